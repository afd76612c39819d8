//! What a submitter holds on to: the handle of a task.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use crate::cell::{NEVER, Sharer, TaskRef};
use crate::job::Ending;
use crate::lanes::Time;
use crate::result::{Status, TaskResult, Why};
use crate::shell::Shell;
use crate::tasks::{Lane, Tasks};

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
    /// None once the result was taken.
    task: Option<TaskRef<T>>,
    pub(crate) place: Place<K>,
    pub(crate) id: Option<Box<Arc<str>>>,
    submitted: Time,
}

pub(crate) type TaskShell<K> = Arc<Shell<Lane<K>, Tasks<K>>>;

/// Where a task waits.
#[derive(Clone)]
pub(crate) struct Place<K> {
    pub(crate) shell: Arc<TaskShell<K>>,
    pub(crate) lane: Lane<K>,
    /// Its sequence, or [`NOWHERE`].
    pub(crate) seq: u64,
}

/// Of a task that waits in no lane.
pub(crate) const NOWHERE: u64 = u64::MAX;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Place<K> {
    /// Cancels the task, whether it waits or runs; `false` if it has ended.
    pub(crate) fn cancel<T: Send + 'static>(&self, task: &TaskRef<T>, why: Why) -> bool {
        if self.cancel_if_waiting(why) {
            return true;
        }
        let asked = task.ask_to_stop(why);
        if asked {
            // About to begin when it was asked, it may have gone back to its place instead.
            self.cancel_if_waiting(why);
        }
        asked
    }

    /// Takes the task out if it still waits.
    pub(crate) fn cancel_if_waiting(&self, why: Why) -> bool {
        let end = |job| self.shell.work.end(job, Ending::Cancelled(why));
        self.seq != NOWHERE && self.shell.cancel(&self.lane, self.seq, end)
    }
}

/// A handle of which it is not known yet where its task waits.
pub(crate) struct Unplaced<K, T: Send + 'static> {
    pub(crate) task: TaskRef<T>,
    pub(crate) shell: Arc<TaskShell<K>>,
    pub(crate) lane: Lane<K>,
    pub(crate) id: Option<Box<Arc<str>>>,
    pub(crate) submitted: Time,
}

impl<K, T> Unplaced<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    #[inline(always)]
    pub(crate) fn at(self, seq: u64) -> TaskHandle<K, T> {
        TaskHandle {
            task: Some(self.task),
            place: Place {
                shell: self.shell,
                lane: self.lane,
                seq,
            },
            id: self.id,
            submitted: self.submitted,
        }
    }
}

impl<K, T> TaskHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    /// The task, whose result was not taken.
    pub(crate) fn task(&self) -> &TaskRef<T> {
        let task = self.task.as_ref();
        task.expect("polled after its result was taken")
    }

    /// Another takes the task's place.
    pub(crate) fn set_task(&mut self, task: TaskRef<T>) {
        self.task = Some(task);
    }

    /// The key it was submitted under; `None` for a keyless task, and once the result was taken, which
    /// has the key then.
    pub fn key(&self) -> Option<&K> {
        self.place.lane.key()
    }

    /// The id it was given, if any.
    pub fn id(&self) -> Option<&str> {
        self.id.as_ref().map(|id| &***id)
    }

    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        self.task.as_ref().is_none_or(|task| task.is_seen())
    }

    /// Cancels the task: waiting, it leaves its lane at once; running, it is stopped at its next
    /// await, and its permits are free as soon as it has stopped. `false` if it has ended.
    pub fn cancel(&self) -> bool {
        let task = self.task.as_ref();
        task.is_some_and(|task| self.place.cancel(task, Why::Asked))
    }

    /// Cancels the task only if it has not started.
    pub fn cancel_if_waiting(&self) -> bool {
        self.place.cancel_if_waiting(Why::Asked)
    }

    /// Waits at most this long. After that the result is `Cancelled(WaitedLongEnough)`, and the
    /// task goes on: the handle can be awaited again.
    ///
    /// Cancel-safe.
    pub async fn wait_timeout(&mut self, most: Duration) -> TaskResult<K, T> {
        let shell = self.place.shell.clone();
        match shell.timeout(most, &mut *self).await {
            Ok(result) => result,
            Err(()) => self.waited_long_enough(),
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

    /// Whether the task needs its handle to run.
    pub(crate) fn needs_caller(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.needs_caller())
    }

    /// A result for somebody who does not want to wait longer.
    fn waited_long_enough(&self) -> TaskResult<K, T> {
        let status = Status::Cancelled(Why::WaitedLongEnough);
        let started = self.task().started();
        self.result(self.key().cloned(), status, started, NEVER)
    }

    /// `ended` is when it did; [`NEVER`] says now.
    #[inline]
    fn result(
        &self,
        key: Option<K>,
        status: Status<T>,
        started: Option<Time>,
        ended: Time,
    ) -> TaskResult<K, T> {
        let clock = &self.place.shell.clock;
        let ended = match ended {
            NEVER => clock.now(),
            ended => ended,
        };
        let begun = started.unwrap_or(ended);
        let instant = |time| clock.instant_of(time).into_std();
        TaskResult {
            key,
            id: self.id.as_deref().cloned(),
            status,
            started: started.map(instant),
            ended: instant(ended),
            waited: begun.since(self.submitted),
            ran: ended.since(begun),
        }
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
        if self.needs_caller() {
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
        let this = &mut *self;
        let task = this.task.as_mut();
        let task = task.expect("polled after its result was taken");
        let seen = match task.take_alone() {
            Some(seen) => seen,
            None => ready!(task.poll_seen(|slow| slow.wait(cx.waker()))),
        };
        let started = task.started();
        this.task = None;
        let key = this.place.lane.take_key();
        Poll::Ready(this.result(key, seen.outcome.into_status(), started, seen.at))
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
        match self.place.shell.timeout(most, self.clone()).await {
            Ok(result) => result,
            Err(()) => self.waited_long_enough(),
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
            self.handle.task().leave(sharer);
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
        let task = handle.task();
        let (status, ended) = ready!(task.poll_shared(cx, sharer));
        let key = handle.key().cloned();
        Poll::Ready(handle.result(key, status, task.started(), ended))
    }
}

impl<K, T> std::fmt::Debug for SharedHandle<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedHandle").field(&self.handle).finish()
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
