//! What a shell runs, and how.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use tokio::time::Instant;

use crate::lanes::{Spec, Time};

/// What is to be done with what a flush took, and what of it stays in its place.
pub(crate) type Flushing<J> = Pin<Box<dyn Future<Output = Vec<(u64, J)>> + Send>>;

/// The types of [`Work`]. Apart from it and without bounds, because the compiler proves `Send` of
/// a future that holds a shell for every lifetime of its key, `'static` or not.
pub(crate) trait Types {
    type Job;
    type Run;
    /// What remains to be done once the permit is free.
    type After;
}

/// What the shell runs, and how.
pub(crate) trait Work<K>:
    Types<Job: Send + 'static, Run: Send + Unpin + 'static, After: Send + 'static>
    + Sized
    + Send
    + Sync
    + 'static
{
    /// Whether [`Work::gate`] ever keeps a job from starting.
    const GATED: bool;

    /// Whether there may be another lane of this key.
    fn comes_again(&self, _: &K) -> bool {
        true
    }
    /// What keeps the job at the front of a lane from starting, if anything does. Asked under the
    /// lock: quick and pure.
    fn gate(&self, job: &Self::Job) -> Option<Until>;
    fn start(&self, job: Self::Job, slot: usize) -> Self::Run;
    /// Polls a run; it comes back if it is not ready. `before` is when the run before it ended, if that
    /// was just now: one reading of the clock tells the end of one and the beginning of the next.
    fn poll(
        &self,
        run: Self::Run,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Result<Ended<Self::Job, Self::After>, Self::Run>;
    /// As [`Work::poll`], by a task of its own on any thread: memory that is left may be handed on
    /// ([`Ended::Over`]), for all that ends about now to be freed together.
    fn poll_apart(
        &self,
        run: Self::Run,
        cx: &mut Context<'_>,
    ) -> Result<Ended<Self::Job, Self::After>, Self::Run> {
        self.poll(run, cx, &mut None)
    }
    /// Looks at what starting the job will need, so that it is near when that comes.
    fn fetch(&self, job: &Self::Job);
    /// Whether the run may be asked to stop, because dropping it does that.
    fn stoppable(&self, run: &Self::Run) -> bool;
    /// Whether somebody who has to do with the job alone asked it to stop.
    fn is_asked(&self, job: &Self::Job) -> bool;
    /// Asks a run to stop that cannot be cut off at this moment, because somebody else is in the
    /// middle of it; `false` when nobody is.
    fn stops_by_itself(&self, run: &Self::Run, stop: Stop) -> bool;
    /// The run is cut off before its end.
    fn abandon(&self, run: Self::Run, stop: Stop) -> Option<Self::After>;
    /// Is told of all of these before the first [`Work::after`].
    fn before_after(&self, _: &[Self::After]) {}
    /// The permit is free: results may be seen now.
    fn after(&self, after: Self::After);
    /// Deals with what a flush took behind so many that run, and answers what is to go back to its
    /// place.
    fn flushed(
        self: &Arc<Self>,
        key: K,
        jobs: Vec<(u64, Self::Job)>,
        running: usize,
    ) -> Flushing<Self::Job>;
    /// Deals with a panic of the user's code.
    fn panicked(&self, who: &str, message: &str);
    /// What a new lane of this key is like. User code may run: never under the lock.
    fn spec(&self, key: &K) -> Spec;
    /// Whether [`Work::spec`] depends on the key at all.
    fn has_specs(&self) -> bool;
    /// Is told how much there is after each change.
    #[cfg(feature = "metrics")]
    fn observe(&self, queued: usize, running: usize, live_keys: usize);
}

/// How a run ended. Nearly all are done with nothing left to do, so that is small: it is handed on
/// several times, and jobs may be large.
pub(crate) enum Ended<J, A> {
    Done(Option<A>),
    /// Done, with nothing left to do but to free this.
    Over(A),
    Hold {
        job: Box<J>,
        hold: Until,
    },
    Flush {
        job: Option<Box<J>>,
    },
}

/// How long a put-back job is held.
pub(crate) enum Until {
    /// Not at all: it only goes back to its place.
    Now,
    At(Instant),
    Released,
}

/// What ended a run before its time.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    /// Whoever has to do with it alone asked for that.
    Asked,
    /// Its key was shut down.
    Key,
    /// Everything was, or the runtime went.
    All,
}
