//! What a submitter holds on to: the handle of a task.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::job::{Cell, Ending, Sharer};
use crate::result::{TaskResult, Why};
use crate::tasks::Lane;

/// The handle of a submitted task: await it for the [`TaskResult`].
///
/// Dropping it does not cancel the task (except under
/// [`Policy::CallerRuns`](crate::Policy::CallerRuns), where the handle is what runs it). Awaiting
/// is cancel-safe: a dropped wait loses nothing, the handle can be awaited again.
pub struct TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    pub(crate) cell: Arc<Cell<K, T>>,
    pub(crate) place: Option<Place>,
    /// The result was taken: nothing is left to do.
    taken: bool,
}

/// Where a task waits, if it was taken.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    /// The number of its lane, if it has no key.
    pub(crate) alone: u64,
}

impl<K, T> Cell<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// The task's lane: its key's, or the one of this number.
    pub(crate) fn lane(&self, alone: u64) -> Lane<K> {
        match &self.key {
            Some(key) => Lane::Key(key.clone()),
            None => Lane::Alone(alone),
        }
    }

    /// Takes the task out if it still waits.
    pub(crate) fn cancel_at(&self, place: Place, why: Why) -> bool {
        let end = |job| self.shell.work.end(job, Ending::Cancelled(why));
        let lane = self.lane(place.alone);
        self.shell.cancel(&lane, place.seq, end)
    }
}

impl<K, T> TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    pub(crate) fn placed(cell: Arc<Cell<K, T>>, alone: u64, seq: u64) -> Self {
        Self {
            cell,
            place: Some(Place { seq, alone }),
            taken: false,
        }
    }

    /// Of a task that waits in no lane.
    pub(crate) fn unplaced(cell: Arc<Cell<K, T>>) -> Self {
        Self {
            cell,
            place: None,
            taken: false,
        }
    }

    /// The key it was submitted under; `None` for a keyless task.
    pub fn key(&self) -> Option<&K> {
        self.cell.key.as_ref()
    }

    /// The id it was given, if any.
    pub fn id(&self) -> Option<&str> {
        self.cell.id().map(|id| &**id)
    }

    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        self.cell.is_seen()
    }

    /// Cancels the task: waiting, it leaves its lane at once; running, it is stopped at its next
    /// await, and its permits are free as soon as it has stopped. `false` if it has ended.
    pub fn cancel(&self) -> bool {
        self.cancel_if_waiting() || self.cell.ask_to_stop(Why::Asked)
    }

    /// Cancels the task only if it has not started.
    pub fn cancel_if_waiting(&self) -> bool {
        self.place
            .is_some_and(|place| self.cell.cancel_at(place, Why::Asked))
    }

    /// Waits at most this long. After that the result is `Cancelled(WaitedLongEnough)`, and the
    /// task goes on: the handle can be awaited again.
    ///
    /// Cancel-safe.
    pub async fn wait_timeout(&mut self, most: Duration) -> TaskResult<K, T> {
        let shell = self.cell.shell.clone();
        match shell.timeout(most, &mut *self).await {
            Ok(result) => result,
            Err(()) => self.cell.waited_long_enough(),
        }
    }

    /// Blocks this thread until the result is there. Not for use inside a runtime's workers.
    pub fn join(mut self) -> TaskResult<K, T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    fn assert_not_taken(&self) {
        assert!(!self.taken, "polled after its result was taken");
    }

    /// A handle that can be cloned and awaited by many.
    pub fn shared(self) -> SharedHandle<K, T>
    where
        T: Clone,
    {
        SharedHandle {
            handle: Arc::new(self),
            sharer: None,
        }
    }
}

// Nothing in a handle is pinned: the task lives elsewhere.
impl<K, T> Unpin for TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
}

impl<K, T> Drop for TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn drop(&mut self) {
        if !self.taken && self.cell.needs_caller() {
            self.cancel();
        }
    }
}

impl<K, T> Future for TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    type Output = TaskResult<K, T>;

    /// # Panics
    /// When polled again after the result was taken.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.assert_not_taken();
        let polled = self.cell.poll_result(cx);
        self.taken = polled.is_ready();
        polled
    }
}

impl<K, T> std::fmt::Debug for TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut handle = f.debug_struct("TaskHandle");
        handle
            .field("id", &self.id())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// A [`TaskHandle`] that can be cloned and awaited by many.
pub struct SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    handle: Arc<TaskHandle<K, T>>,
    /// This clone's place among those who wait, if it has waited.
    sharer: Option<Sharer>,
}

impl<K, T> SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Clone + Send + 'static,
{
    /// Waits at most this long. After that the result is `Cancelled(WaitedLongEnough)`, and the
    /// task goes on, as do others who wait for it.
    ///
    /// Cancel-safe.
    pub async fn wait_timeout(&self, most: Duration) -> TaskResult<K, T> {
        match self.cell.shell.timeout(most, self.clone()).await {
            Ok(result) => result,
            Err(()) => self.cell.waited_long_enough(),
        }
    }
}

impl<K, T> Clone for SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            sharer: None,
        }
    }
}

impl<K, T> Drop for SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(sharer) = self.sharer {
            self.handle.cell.leave(sharer);
        }
    }
}

impl<K, T> std::ops::Deref for SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    type Target = TaskHandle<K, T>;

    fn deref(&self) -> &Self::Target {
        &self.handle
    }
}

impl<K, T> Future for SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Clone + Send + 'static,
{
    type Output = TaskResult<K, T>;

    /// # Panics
    /// When the result was taken before the handle was shared.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, sharer } = self.get_mut();
        handle.assert_not_taken();
        handle.cell.poll_shared(cx, sharer)
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
