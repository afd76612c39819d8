//! How the shell runs tasks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::clock::Clock;
use crate::job::{Ending, Ran};
use crate::joint::JobRef;
use crate::lanes::{Spec, Time};
use crate::listener::Common;
use crate::result::{Kind, Why};
use crate::rules::{KeyRules, LiveLimits};
use crate::shell::{Ended, Flushing, Stop, Types, Until, Work};

/// The lane of a task: its key's, or one of its own.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Lane<K> {
    Key(K),
    Alone(u64),
}

impl<K> Lane<K> {
    pub(crate) fn key(&self) -> Option<&K> {
        match self {
            Self::Key(key) => Some(key),
            Self::Alone(_) => None,
        }
    }

    /// The key, which is no longer in here then.
    pub(crate) fn take_key(&mut self) -> Option<K> {
        match std::mem::replace(self, Self::Alone(0)) {
            Self::Key(key) => Some(key),
            Self::Alone(_) => None,
        }
    }
}

impl<K: Hash> Hash for Lane<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Key(key) => key.hash(state),
            Self::Alone(number) => number.hash(state),
        }
    }
}

/// Runs tasks.
pub(crate) struct Tasks<K> {
    pub(crate) common: Arc<Common<K>>,
    pub(crate) rules: KeyRules<K>,
    pub(crate) limits: LiveLimits,
    pub(crate) clock: Clock,
}

impl<K> Tasks<K> {
    /// Ends a task like this, and lets that be seen.
    pub(crate) fn end(&self, mut job: JobRef, ending: Ending) {
        let ran = job.end(ending, self.clock.now());
        self.publish(Finished { job, ran });
    }

    /// Counts a task that ended, and lets its result be seen.
    pub(crate) fn publish(&self, finished: Finished) {
        if let Some(kind) = finished.ran.kind() {
            self.common.count(kind, 1);
        }
        self.let_see(finished);
    }

    fn let_see(&self, finished: Finished) {
        if let Some(message) = finished.ran.panicked() {
            self.common.panicked("task", message);
        }
        finished.job.publish();
    }
}

/// One task under way.
pub(crate) struct RunTask {
    job: JobRef,
    /// None unless somebody looks at it.
    span: Option<Box<tracing::Span>>,
}

impl RunTask {
    /// It comes back if it is not ready.
    #[inline(always)]
    fn poll(
        mut self,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Result<Finished, Self> {
        let polled = {
            let _entered = self.span.as_ref().map(|span| span.enter());
            self.job.poll(cx, before, clock)
        };
        match polled {
            Poll::Pending => Err(self),
            Poll::Ready(ran) => Ok(Finished { job: self.job, ran }),
        }
    }
}

/// A task that ended, its result not yet seen by anybody.
pub(crate) struct Finished {
    pub(crate) job: JobRef,
    pub(crate) ran: Ran,
}

impl Finished {
    /// Whether anything remains to be done; nothing does where nobody waits for the result.
    #[inline]
    fn remains(self) -> Option<Self> {
        match self.ran {
            Ran::Unseen => None,
            Ran::Done | Ran::Other(_) => Some(self),
        }
    }
}

impl<K> Types for Tasks<K> {
    type Job = JobRef;
    type Run = RunTask;
    type After = Finished;
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Work<Lane<K>> for Tasks<K> {
    const GATED: bool = false;

    fn gate(&self, _: &Self::Job) -> Option<Until> {
        None
    }

    #[inline]
    fn start(&self, job: Self::Job, slot: usize) -> RunTask {
        let span = tracing::debug_span!("task", executor = &*self.common.name, slot);
        RunTask {
            job,
            span: (!span.is_none()).then(|| Box::new(span)),
        }
    }

    #[inline(always)]
    fn poll(
        &self,
        run: RunTask,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Result<Ended<Self::Job, Finished>, RunTask> {
        let finished = run.poll(cx, before, &self.clock)?;
        Ok(Ended::Done(finished.remains()))
    }

    fn poll_apart(
        &self,
        run: RunTask,
        cx: &mut Context<'_>,
    ) -> Result<Ended<Self::Job, Finished>, RunTask> {
        let finished = run.poll(cx, &mut None, &self.clock)?;
        Ok(match finished.ran {
            Ran::Unseen => Ended::Over(finished),
            Ran::Done | Ran::Other(_) => Ended::Done(Some(finished)),
        })
    }

    #[inline]
    fn fetch(&self, job: &Self::Job) {
        job.fetch();
    }

    fn stoppable(&self, run: &RunTask) -> bool {
        run.job.stops_when_dropped()
    }

    fn is_asked(&self, job: &Self::Job) -> bool {
        job.is_asked()
    }

    fn stops_by_itself(&self, run: &RunTask, stop: Stop) -> bool {
        run.job.stops_by_itself(why(stop))
    }

    fn abandon(&self, run: RunTask, stop: Stop) -> Option<Finished> {
        let mut job = run.job;
        let ending = match stop {
            Stop::Asked => Ending::Asked,
            Stop::Key | Stop::All => Ending::Cancelled(why(stop)),
        };
        let ran = job.end(ending, self.clock.now());
        Finished { job, ran }.remains()
    }

    fn before_after(&self, finished: &[Finished]) {
        let mut done = 0;
        for kind in finished.iter().filter_map(|finished| finished.ran.kind()) {
            match kind {
                Kind::Done => done += 1,
                other => self.common.count(other, 1),
            }
        }
        if done > 0 {
            self.common.count(Kind::Done, done);
        }
    }

    fn after(&self, finished: Finished) {
        self.let_see(finished);
    }

    fn panicked(&self, who: &str, message: &str) {
        self.common.panicked(who, message);
    }

    fn flushed(
        self: &Arc<Self>,
        _: Lane<K>,
        jobs: Vec<(u64, Self::Job)>,
        _: usize,
    ) -> Flushing<Self::Job> {
        // Tasks are never flushed: what waits leaves by evict.
        Box::pin(std::future::ready(jobs))
    }

    fn spec(&self, key: &Lane<K>) -> Spec {
        match key {
            Lane::Alone(_) => Spec::default(),
            Lane::Key(key) => {
                let report = |who: &str, message: &str| self.common.panicked(who, message);
                self.rules.spec(key, &self.limits.get(), report)
            }
        }
    }

    fn comes_again(&self, lane: &Lane<K>) -> bool {
        matches!(lane, Lane::Key(_))
    }

    fn has_specs(&self) -> bool {
        !self.rules.is_empty()
    }

    #[cfg(feature = "metrics")]
    fn observe(&self, queued: usize, running: usize, live_keys: usize) {
        self.common.exported.set(queued, running, live_keys);
    }
}

fn why(stop: Stop) -> Why {
    match stop {
        Stop::Asked => Why::Asked,
        Stop::Key => Why::KeyShutDown,
        Stop::All => Why::ShutDown,
    }
}
