//! How the shell runs tasks.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::job::{Ending, Job, Ran};
use crate::lanes::{Spec, Time};
use crate::listener::Common;
use crate::result::Why;
use crate::rules::{KeyRules, LiveLimits};
use crate::shell::{Ended, Flushing, Stop, Types, Until, Work};

/// The lane of a task: its key's, or one of its own.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Lane<K> {
    Key(K),
    Alone(u64),
}

impl<K: Hash> Hash for Lane<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Key(key) => key.hash(state),
            Self::Alone(number) => number.hash(state),
        }
    }
}

/// Runs boxed tasks.
pub(crate) struct Tasks<K> {
    pub(crate) common: Arc<Common<K>>,
    pub(crate) rules: KeyRules<K>,
    pub(crate) limits: LiveLimits,
}

impl<K> Tasks<K> {
    /// Ends a task that never ran.
    pub(crate) fn end(&self, job: Box<dyn Job>, ending: Ending) {
        self.note_panic(&job.end(ending));
    }

    /// Lets the result of a task be seen.
    pub(crate) fn publish(&self, finished: Finished) {
        self.note_panic(&finished.ran);
        finished.job.publish();
    }

    fn note_panic(&self, ran: &Ran) {
        if let Ran::Panicked(message) = ran {
            self.common.panicked("task", message);
        }
    }
}

/// One task under way.
pub(crate) struct RunTask {
    job: Option<Pin<Box<dyn Job>>>,
    /// None unless somebody looks at it.
    span: Option<Box<tracing::Span>>,
}

/// A task that ended, its result not yet seen by anybody.
pub(crate) struct Finished {
    pub(crate) job: Pin<Box<dyn Job>>,
    pub(crate) ran: Ran,
}

/// What remains to be done for a task that ended; nothing, where nobody waits for its result.
#[inline]
fn finished(job: Pin<Box<dyn Job>>, ran: Ran) -> Option<Finished> {
    let nothing = matches!(ran, Ran::Well) && !job.has_result();
    (!nothing).then_some(Finished { job, ran })
}

impl RunTask {
    #[inline]
    fn poll_job(
        &mut self,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ended<Box<dyn Job>, Finished>> {
        let _entered = self.span.as_ref().map(|span| span.enter());
        let job = self.job.as_mut().expect("polled until it is ready");
        let Poll::Ready(ran) = job.as_mut().poll(cx, before) else {
            return Poll::Pending;
        };
        let job = self.job.take().expect("it was there just now");
        Poll::Ready(Ended::Done(finished(job, ran)))
    }
}

impl Future for RunTask {
    type Output = Ended<Box<dyn Job>, Finished>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_job(cx, &mut None)
    }
}

impl<K> Types for Tasks<K> {
    type Job = Box<dyn Job>;
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
            job: Some(Box::into_pin(job)),
            span: (!span.is_none()).then(|| Box::new(span)),
        }
    }

    #[inline]
    fn poll_first(
        &self,
        run: &mut RunTask,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ended<Self::Job, Finished>> {
        run.poll_job(cx, before)
    }

    fn fetch(&self, job: &Self::Job) {
        std::hint::black_box(job.is_new());
    }

    fn stoppable(&self, job: &Self::Job) -> bool {
        job.stops_when_dropped()
    }

    fn stops_by_itself(&self, run: &RunTask, stop: Stop) -> bool {
        let job = run.job.as_ref().expect("an ended run is not stopped");
        job.stops_by_itself(why(stop))
    }

    fn abandon(&self, run: RunTask, stop: Stop) -> Option<Finished> {
        let mut job = run.job.expect("an ended run is not abandoned");
        let ran = job.as_mut().stop(why(stop));
        finished(job, ran)
    }

    fn after(&self, finished: Finished) {
        self.publish(finished);
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
        Stop::Key => Why::KeyShutDown,
        Stop::All => Why::ShutDown,
    }
}
