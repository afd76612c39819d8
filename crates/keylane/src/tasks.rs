//! How the shell runs tasks.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};

use crate::job::{Job, Ran};
use crate::lanes::Spec;
use crate::listener::Common;
use crate::result::Why;
use crate::rules::{KeyRules, Limits};
use crate::shell::{Ended, Flushing, Until, Work};

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
    pub(crate) limits: RwLock<Limits>,
}

impl<K> Tasks<K> {
    pub(crate) fn limits(&self) -> Limits {
        *self
            .limits
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *self
            .limits
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = limits;
    }
}

/// One task under way.
pub(crate) struct RunTask {
    job: Option<Pin<Box<dyn Job>>>,
    span: tracing::Span,
}

/// A task that ended, its result not yet seen by anybody.
pub(crate) struct Finished {
    job: Pin<Box<dyn Job>>,
    ran: Ran,
}

impl Future for RunTask {
    type Output = Ended<Box<dyn Job>, Finished>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.span.enter();
        let job = this.job.as_mut().expect("polled until it is ready");
        let Poll::Ready(ran) = job.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        let job = this.job.take().expect("it was there just now");
        Poll::Ready(Ended::Done(Finished { job, ran }))
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Work<Lane<K>> for Tasks<K> {
    type Job = Box<dyn Job>;
    type Run = RunTask;
    type After = Finished;

    fn gate(&self, _: &Self::Job) -> Option<Until> {
        None
    }

    fn start(&self, job: Self::Job, slot: usize) -> RunTask {
        RunTask {
            job: Some(Box::into_pin(job)),
            span: tracing::debug_span!("task", executor = &*self.common.name, slot),
        }
    }

    fn abortable(&self, run: &RunTask) -> bool {
        run.job.as_ref().is_some_and(|job| job.stops_when_dropped())
    }

    fn abandon(&self, run: RunTask) -> Finished {
        let mut job = run.job.expect("an ended run is not abandoned");
        job.as_mut().stop(Why::ShutDown);
        Finished {
            job,
            ran: Ran::Well,
        }
    }

    fn after(&self, finished: Finished) {
        if let Ran::Panicked(message) = &finished.ran {
            self.common.panicked("task", message);
        }
        finished.job.publish();
    }

    fn flushed(self: &Arc<Self>, _: Lane<K>, jobs: Vec<(u64, Self::Job)>) -> Flushing<Self::Job> {
        // Tasks are never flushed: what waits leaves by evict.
        Box::pin(std::future::ready(jobs))
    }

    fn spec(&self, key: &Lane<K>) -> Spec {
        match key {
            Lane::Alone(_) => Spec::default(),
            Lane::Key(key) => {
                let report = |who: &str, message: &str| self.common.panicked(who, message);
                self.rules.spec(key, &self.limits(), report)
            }
        }
    }

    fn has_specs(&self) -> bool {
        !self.rules.is_empty()
    }

    #[cfg(feature = "metrics")]
    fn observe(&self, queued: usize, running: usize, live_keys: usize) {
        self.common.exported.set(queued, running, live_keys);
    }
}
