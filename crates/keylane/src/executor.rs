//! The executor: the ways to submit, to look, and to stop.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::builder::Builder;
use crate::cell::{Called, Cell, TaskRef};
use crate::handle::{NOWHERE, TaskHandle, TaskShell, Unplaced};
use crate::job::{Ending, Posted};
use crate::joint::JobRef;
use crate::lanes::{FullOf, Time};
use crate::listener::{End, TaskInfo, Tell, Told};
use crate::reject::{Decision, Policy, RejectHandler, Rejection};
use crate::result::{Kind, Reason, Refused, Why};
use crate::rt::{AbortHandle, Spawner, contain};
use crate::rules::Limits;
use crate::run_all::RunAll;
use crate::shell::NotTaken;
use crate::stats::{KeyLimits, KeyStats, Stats};
use crate::task::{Task, TaskError};
use crate::tasks::{Finished, Lane, Tasks};
use crate::tracked::{Body, Tracked};

/// Runs tasks in order per key, concurrently across keys. Cheap to clone: where several threads submit
/// much, a clone for each is faster than one that they share.
///
/// When the last clone is dropped, or its runtime is, the executor stops: what waits is cancelled,
/// what runs is stopped. To let it finish, [`shutdown`](Self::shutdown) first.
pub struct Executor<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    owner: Arc<Owner<K>>,
    /// What handles hold on to. Every clone has its own: where all were counted in one place, threads
    /// would wait for each other there.
    shell: Arc<TaskShell<K>>,
    /// There is a listener; here, because counters that always change are near it.
    listened: bool,
}

/// What the clones of an executor share; its end is the executor's.
pub(crate) struct Owner<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    pub(crate) shell: TaskShell<K>,
    pub(crate) spawner: Spawner,
    pub(crate) policy: Policy,
    pub(crate) handler: Option<RejectHandler<K>>,
    /// Ends what stops it when the runtime goes.
    pub(crate) watch: OnceLock<AbortHandle>,
}

/// A part of a task that lasts as long as the runtime does.
struct WhileItRuns<K>(Weak<Owner<K>>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Drop for WhileItRuns<K> {
    fn drop(&mut self) {
        if let Some(owner) = self.0.upgrade() {
            owner.stop();
        }
    }
}

/// Tasks without a key get a lane of their own each, named by a number that never repeats.
static ALONE: AtomicU64 = AtomicU64::new(0);

/// How [`Executor::shutdown_key`] ends a key's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What runs may finish; what waits ends rejected.
    Drain,
    /// What runs is stopped; what waits is cancelled.
    Now,
}

/// What [`Executor::shutdown`] had to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Tasks that never started.
    pub waiting: usize,
    /// Tasks that were running.
    pub running: usize,
}

impl Left {
    /// Whether everything ended in time.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Executor<K> {
    /// Starts to build an executor.
    pub fn builder() -> Builder<K> {
        Builder::new()
    }

    pub(crate) fn new(owner: Owner<K>) -> Self {
        let owner = Arc::new(owner);
        owner.stop_with_the_runtime();
        Self {
            shell: Arc::new(owner.shell.clone()),
            listened: owner.shell.work.common.listener.is_some(),
            owner,
        }
    }

    /// Submits a task under a key. Never waits: without room, the rejection handler or the policy
    /// decides what the handle's result is.
    #[inline]
    pub fn submit<Tk: Task>(&self, key: K, task: Tk) -> TaskHandle<K, Tk::Output> {
        self.task(key).submit(task)
    }

    /// Submits a task under a key, or hands it back.
    ///
    /// # Errors
    /// [`Refused`] with the task when there is no room or the executor was shut down.
    pub fn try_submit<Tk: Task>(
        &self,
        key: K,
        task: Tk,
    ) -> Result<TaskHandle<K, Tk::Output>, Refused<Tk>> {
        self.task(key).try_submit(task)
    }

    /// Submits a task under a key and waits for room for it.
    ///
    /// It takes its place in its key's order at the first poll; later submits of that key queue
    /// behind it or are refused. Cancel-safe: dropping the future frees the place, and the task
    /// does not run, or is stopped if it has just been started.
    pub fn submit_when_room<Tk: Task>(&self, key: K, task: Tk) -> SubmitWhenRoom<K, Tk> {
        SubmitWhenRoom {
            executor: self.clone(),
            stage: Stage::Before(Some((key, task))),
        }
    }

    /// Submits a task whose result nobody waits for, at no cost of a handle.
    ///
    /// # Errors
    /// [`Refused`] with the task when there is no room or the executor was shut down.
    pub fn post<Tk: Task>(&self, key: K, task: Tk) -> Result<(), Refused<Tk>> {
        if self.listened {
            return self.try_submit(key, task).map(drop);
        }
        let job = JobRef::alone(Posted::new(task));
        let refused = match self.owner.shell.push(Lane::Key(key), job) {
            Ok(_) => return Ok(()),
            Err(refused) => refused,
        };
        let (job, reason) = self.reason_of(refused);
        self.common().count(Kind::Rejected, 1);
        let task = take_task(job);
        Err(Refused { task, reason })
    }

    /// Submits tasks, each under its key, and waits for all: one result per task in input order.
    /// Refused ones are results too; one failure ends no other.
    pub fn run_all<Tk: Task>(&self, tasks: impl IntoIterator<Item = (K, Tk)>) -> RunAll<K, Tk> {
        RunAll::new(self.clone(), tasks.into_iter().collect())
    }

    /// A task under a key, with optional parts.
    pub fn task(&self, key: K) -> TaskBuilder<'_, K> {
        TaskBuilder {
            executor: self,
            key: Some(key),
            id: None,
            deadline: None,
        }
    }

    /// A task without a key: in nobody's order, within the limits of all.
    pub fn keyless(&self) -> TaskBuilder<'_, K> {
        TaskBuilder {
            executor: self,
            key: None,
            id: None,
            deadline: None,
        }
    }

    /// Waits until nothing of this key waits or runs. Cancel-safe.
    pub async fn idle(&self, key: &K) {
        if let Some(idle) = self.owner.shell.watch_idle(&Lane::Key(key.clone())) {
            // The sender goes only with the executor, and then nothing runs any more.
            let _ = idle.await;
        }
    }

    /// Waits until nothing waits or runs. Cancel-safe.
    pub async fn all_idle(&self) {
        if let Some(idle) = self.owner.shell.watch_all_idle() {
            let _ = idle.await;
        }
    }

    /// What is going on. Changes nothing, costs no token, tells the truth after shutdown too.
    pub fn stats(&self) -> Stats {
        let common = self.common();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.owner.shell.lanes(|lanes| Stats {
            running: lanes.running(),
            queued: lanes.waiting(),
            live_keys: lanes.live(),
            done: load(&common.done),
            failed: load(&common.failed),
            cancelled: load(&common.cancelled),
            rejected: load(&common.rejected),
            panics: load(&common.panics),
        })
    }

    /// What is going on under one key; `None` when nothing is.
    pub fn stats_of(&self, key: &K) -> Option<KeyStats> {
        let lane = Lane::Key(key.clone());
        let state = self.owner.shell.lanes(|lanes| lanes.state_of(&lane))?;
        Some(KeyStats::of(state))
    }

    /// The limits a task submitted now under this key would have.
    pub fn limits_of(&self, key: &K) -> KeyLimits {
        KeyLimits::of(self.owner.shell.limits_of(Lane::Key(key.clone())))
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.owner.shell.work.limits.get()
    }

    /// Changes the limits while everything goes on. Increases act at once; after a decrease
    /// nothing starts until fewer run than the new limit. What the builder's functions say about keys
    /// is asked for anew.
    ///
    /// # Errors
    /// [`BuildErrors`](crate::BuildErrors) when a value cannot be meant; nothing has changed then.
    pub fn set_limits(&self, limits: Limits) -> Result<(), crate::BuildErrors> {
        crate::BuildErrors::check(&limits)?;
        let shell = &self.owner.shell;
        let change = shell.work.limits.set(limits);
        let latest = || shell.work.limits.is_latest(change);
        shell.set_limits(limits.for_lanes(), latest);
        Ok(())
    }

    /// Nothing of this key starts until [`resume`](Self::resume); what runs goes on.
    pub fn pause(&self, key: &K) {
        self.owner.shell.pause(Lane::Key(key.clone()));
    }

    /// Ends a pause; `false` if there was none.
    pub fn resume(&self, key: &K) -> bool {
        self.owner
            .shell
            .lanes(|lanes| lanes.resume(&Lane::Key(key.clone())))
    }

    /// Cancels what waits of this key and forgets the limits resolved for it. What runs goes on,
    /// and counts.
    pub fn evict(&self, key: &K) {
        self.end_waiting(key, || Ending::Cancelled(Why::KeyShutDown));
    }

    /// Ends the tasks of one key. The key itself stays usable: later submits work.
    pub fn shutdown_key(&self, key: &K, mode: Mode) {
        match mode {
            Mode::Drain => self.end_waiting(key, || Ending::Rejected(Reason::Drained)),
            Mode::Now => {
                self.end_waiting(key, || Ending::Cancelled(Why::KeyShutDown));
                self.owner.shell.abort(&Lane::Key(key.clone()));
            }
        }
    }

    /// Takes nothing more, lets what is here finish until the deadline, then stops the rest:
    /// what waits is cancelled, what runs is stopped, both are counted in the answer.
    ///
    /// What is stopped at the deadline ends at its next await, and blocking work when it returns:
    /// [`all_idle`](Self::all_idle) waits for that.
    ///
    /// Cancel-safe: dropped, the executor takes nothing more but is not stopped. May be called
    /// again, and several times at once: the first deadline counts, and all answer what was stopped.
    pub async fn shutdown(&self, deadline: Duration) -> Left {
        self.owner.shell.close();
        let idle = self.owner.spawner.timeout(deadline, self.all_idle());
        if idle.await.is_err() {
            self.owner.stop();
        }
        self.owner.left()
    }

    /// Whether [`shutdown`](Self::shutdown) was called.
    pub fn is_shut_down(&self) -> bool {
        self.owner.shell.is_closed()
    }

    pub(crate) fn spawner(&self) -> Spawner {
        self.owner.spawner.clone()
    }

    fn end_waiting(&self, key: &K, ending: impl Fn() -> Ending) {
        let shell = &self.owner.shell;
        let end = |job| shell.work.end(job, ending());
        shell.evict(&Lane::Key(key.clone()), end);
    }

    fn common(&self) -> &crate::listener::Common<K> {
        &self.owner.shell.work.common
    }

    fn reason_of(&self, refused: NotTaken<JobRef>) -> (JobRef, Reason) {
        match refused {
            NotTaken::Closed(job) => (job, Reason::ShutDown),
            NotTaken::Full { full, key_limit } => {
                let reason = match full.limit {
                    FullOf::Key => Reason::KeyFull { limit: key_limit },
                    FullOf::Total => Reason::Full {
                        limit: self.limits().queue_limit.unwrap_or(usize::MAX),
                    },
                };
                (full.job, reason)
            }
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Clone for Executor<K> {
    fn clone(&self) -> Self {
        Self {
            owner: self.owner.clone(),
            shell: Arc::new(self.owner.shell.clone()),
            listened: self.listened,
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> std::fmt::Debug for Executor<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &*self.common().name;
        f.debug_struct("Executor")
            .field("name", &name)
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Owner<K> {
    /// What waits when the runtime goes has its result too, and what is submitted later is refused.
    fn stop_with_the_runtime(self: &Arc<Self>) {
        if cfg!(keylane_shuttle) {
            // Its runtime lasts as long as any task.
            return;
        }
        let lasts = WhileItRuns(Arc::downgrade(self));
        let watch = self.spawner.spawn_abortable(async move {
            std::future::pending::<()>().await;
            drop(lasts);
        });
        // It is called once.
        let _ = self.watch.set(watch);
    }

    /// Cancels what waits, stops what runs.
    fn stop(&self) {
        let end = |job| self.shell.work.end(job, Ending::Cancelled(Why::ShutDown));
        self.shell.stop(end);
    }

    /// What had to be stopped.
    fn left(&self) -> Left {
        let stopped = self.shell.stopped();
        stopped.map_or_else(Left::default, |(waiting, running)| Left {
            waiting,
            running,
        })
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Drop for Owner<K> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            watch.abort();
        }
        self.stop();
    }
}

/// A task with optional parts; made by [`Executor::task`] and [`Executor::keyless`].
#[must_use = "a task runs once it is submitted"]
pub struct TaskBuilder<'a, K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    executor: &'a Executor<K>,
    key: Option<K>,
    id: Option<Arc<str>>,
    deadline: Option<Duration>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> TaskBuilder<'_, K> {
    /// A name for results, listeners and errors. Default: none.
    pub fn id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The task is cancelled, waiting or running, when this much time has passed since the submit.
    /// Default: never.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// As [`Executor::submit`].
    #[inline]
    pub fn submit<Tk: Task>(self, task: Tk) -> TaskHandle<K, Tk::Output> {
        let (executor, deadline) = (self.executor, self.deadline);
        let (job, unplaced) = self.track(task);
        let handle = match executor.owner.shell.push(unplaced.lane.clone(), job) {
            Ok(seq) => unplaced.at(seq),
            Err(refused) => executor.reject::<Tk>(refused, unplaced),
        };
        if let Some(deadline) = deadline {
            executor.watch_deadline(&handle, deadline);
        }
        handle
    }

    /// As [`Executor::try_submit`].
    ///
    /// # Errors
    /// [`Refused`] with the task when there is no room or the executor was shut down.
    pub fn try_submit<Tk: Task>(self, task: Tk) -> Result<TaskHandle<K, Tk::Output>, Refused<Tk>> {
        let (executor, deadline) = (self.executor, self.deadline);
        let (job, unplaced) = self.track(task);
        match executor.owner.shell.push(unplaced.lane.clone(), job) {
            Ok(seq) => {
                let handle = unplaced.at(seq);
                if let Some(deadline) = deadline {
                    executor.watch_deadline(&handle, deadline);
                }
                Ok(handle)
            }
            Err(refused) => {
                let (job, reason) = executor.reason_of(refused);
                executor.common().count(Kind::Rejected, 1);
                if let Some(told) = unplaced.task.told() {
                    told.ended(End::Rejected(&reason), Duration::ZERO);
                }
                let task = take_task(job);
                Err(Refused { task, reason })
            }
        }
    }

    /// The job of a task, and what its handle will be.
    #[inline(always)]
    fn track<Tk: Task>(self, task: Tk) -> (JobRef, Unplaced<K, Tk::Output>) {
        let lane = match self.key {
            Some(key) => Lane::Key(key),
            None => Lane::Alone(ALONE.fetch_add(1, Ordering::Relaxed)),
        };
        let shell = self.executor.shell.clone();
        let submitted = shell.now();
        let told = self.executor.listened.then(|| {
            let id = self.id.as_ref();
            self.executor.tell_submitted(&lane, id, submitted)
        });
        let (job, task) = tracked(task, told);
        let unplaced = Unplaced {
            task,
            shell,
            lane,
            id: self.id.map(Box::new),
            submitted,
        };
        (job, unplaced)
    }
}

#[inline(always)]
fn tracked<B: Body>(body: B, told: Option<Arc<dyn Tell>>) -> (JobRef, TaskRef<B::Output>) {
    let (job, task) = JobRef::with_handle(Tracked::new(body), Cell::new());
    if let Some(told) = told {
        task.set_told(told);
    }
    (job, task)
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Executor<K> {
    /// Tells the listener that somebody wants a task run; answers what tells it more.
    fn tell_submitted(
        &self,
        lane: &Lane<K>,
        id: Option<&Arc<str>>,
        submitted: Time,
    ) -> Arc<dyn Tell> {
        let told = Told {
            common: self.owner.shell.work.common.clone(),
            task: TaskInfo {
                key: lane.key().cloned(),
                id: id.cloned(),
            },
            submitted,
        };
        told.submitted();
        Arc::new(told)
    }

    /// There is no room: the handler decides, else the policy.
    #[cold]
    fn reject<Tk: Task>(
        &self,
        refused: NotTaken<JobRef>,
        unplaced: Unplaced<K, Tk::Output>,
    ) -> TaskHandle<K, Tk::Output> {
        let closed = matches!(refused, NotTaken::Closed(_));
        let (job, reason) = self.reason_of(refused);
        let mut handle = unplaced.at(NOWHERE);
        let decision = match closed {
            true => Ok(Decision::Follow(Policy::Discard)),
            false => self.decide(&handle, &reason),
        };
        let ending = match decision {
            Ok(Decision::Follow(policy)) => {
                self.follow::<Tk>(policy, job, &mut handle, reason);
                return handle;
            }
            Ok(Decision::Value(value)) => Ending::Value(value),
            Ok(Decision::Fail(error)) => Ending::Failed(TaskError::Failed(error.into())),
            Err(message) => {
                self.common().panicked("rejection handler", &message);
                Ending::Rejected(Reason::HandlerPanicked(message))
            }
        };
        self.owner.shell.work.end(job, ending);
        handle
    }

    fn decide<T: Send>(
        &self,
        handle: &TaskHandle<K, T>,
        reason: &Reason,
    ) -> Result<Decision, String> {
        let Some(handler) = &self.owner.handler else {
            return Ok(Decision::Follow(self.owner.policy));
        };
        let rejection = Rejection {
            key: handle.key().cloned(),
            id: handle.id.as_deref().cloned(),
            reason: reason.clone(),
        };
        contain(|| handler(&rejection))
    }

    fn follow<Tk: Task>(
        &self,
        policy: Policy,
        job: JobRef,
        handle: &mut TaskHandle<K, Tk::Output>,
        reason: Reason,
    ) {
        let work = &self.owner.shell.work;
        match policy {
            Policy::Abort => {
                let id = handle.id.as_deref().cloned();
                work.end(job, Ending::Failed(TaskError::NoRoom { id, reason }));
            }
            Policy::Discard => work.end(job, Ending::Rejected(reason)),
            Policy::CallerRuns => self.caller_runs::<Tk>(job, handle),
            Policy::RunUnlimited => self.run_unlimited(job),
        }
    }

    fn caller_runs<Tk: Task>(&self, job: JobRef, handle: &mut TaskHandle<K, Tk::Output>) {
        let told = handle.task().told();
        let mut task = Box::pin(take_task::<Tk>(job));
        let runtime = self.owner.spawner.clone();
        let run = std::future::poll_fn(move |cx| {
            let _inside = runtime.enter();
            task.as_mut().poll_task(cx)
        });
        let (called, task) = tracked(Called::new(), told);
        task.run_by_caller(Box::pin(run));
        handle.set_task(task);
        match self.push_over(handle.place.lane.clone(), called) {
            Ok((seq, _)) => handle.place.seq = seq,
            Err(ended) => ended,
        }
    }

    /// Takes a place, whether or not there is room; the task ends where the executor was shut down.
    fn push_over(&self, lane: Lane<K>, job: JobRef) -> Result<(u64, bool), ()> {
        let shell = &self.owner.shell;
        shell.push_over(lane, job).map_err(|job| {
            let ending = Ending::Rejected(Reason::ShutDown);
            shell.work.end(job, ending);
        })
    }

    fn run_unlimited(&self, job: JobRef) {
        let mut run = Unlimited {
            work: self.owner.shell.work.clone(),
            job: Some(job),
        };
        let run = std::future::poll_fn(move |cx| run.poll(cx));
        self.owner.spawner.spawn(run);
    }

    fn watch_deadline<T: Send>(&self, handle: &TaskHandle<K, T>, deadline: Duration) {
        let (task, place) = (handle.task().clone(), handle.place.clone());
        let timer = self.owner.spawner.spawn_abortable(async move {
            tokio::time::sleep(deadline).await;
            place.cancel(&task, Why::Deadline);
        });
        handle.task().set_deadline(timer);
    }
}

/// A task outside all limits. Dropped before its end, because the runtime goes, it ends by that.
struct Unlimited<K> {
    work: Arc<Tasks<K>>,
    job: Option<JobRef>,
}

impl<K> Unlimited<K> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let job = self.job.as_mut().expect("polled until it is ready");
        let ran = ready!(job.poll(cx, &mut None, &self.work.clock));
        let job = self.job.take().expect("it was there just now");
        let finished = Finished { job, ran };
        if let Err(message) = contain(|| self.work.publish(finished)) {
            self.work.common.panicked("result", &message);
        }
        Poll::Ready(())
    }
}

impl<K> Drop for Unlimited<K> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.work.end(job, Ending::Cancelled(Why::ShutDown));
        }
    }
}

/// The task of a job that was pushed and came back; there will be no result of it.
fn take_task<Tk: Task>(job: JobRef) -> Tk {
    let task = job.into_task().downcast::<Tk>();
    *task.expect("what was pushed comes back")
}

/// The future of [`Executor::submit_when_room`].
#[must_use = "the task takes its place at the first poll"]
pub struct SubmitWhenRoom<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    executor: Executor<K>,
    stage: Stage<K, Tk>,
}

enum Stage<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    Before(Option<(K, Tk)>),
    Waits(Option<TaskHandle<K, Tk::Output>>),
}

// The task is boxed before it is first polled, so nothing in here is pinned.
impl<K, Tk> Unpin for SubmitWhenRoom<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
}

impl<K, Tk> Future for SubmitWhenRoom<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    type Output = TaskHandle<K, Tk::Output>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::Before(first) = &mut self.stage {
            let (key, task) = first.take().expect("taken once");
            let (handle, room) = self.executor.take_place(key, task);
            if room {
                self.stage = Stage::Waits(None);
                return Poll::Ready(handle);
            }
            self.stage = Stage::Waits(Some(handle));
        }
        let shell = self.executor.owner.shell.clone();
        let Stage::Waits(handle) = &mut self.stage else {
            unreachable!("it has taken its place");
        };
        let seq = handle.as_ref().map(|handle| handle.place.seq);
        let seq = seq.expect("polled until it is ready");
        if shell.poll_room(seq, cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(handle.take().expect("it was there just now"))
    }
}

impl<K, Tk> Drop for SubmitWhenRoom<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    fn drop(&mut self) {
        if let Stage::Waits(Some(handle)) = &self.stage {
            handle.cancel();
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Executor<K> {
    /// Takes a place in the key's order; `true` when there is room for it now.
    fn take_place<Tk: Task>(&self, key: K, task: Tk) -> (TaskHandle<K, Tk::Output>, bool) {
        let (job, unplaced) = self.task(key).track(task);
        match self.push_over(unplaced.lane.clone(), job) {
            Ok((seq, room)) => (unplaced.at(seq), room),
            Err(()) => (unplaced.at(NOWHERE), true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_tasks_that_have_ended_nothing_is_known() {
        let executor = Executor::builder().build().unwrap();
        for key in 0..200 {
            executor.post(key, tokio::task::yield_now()).unwrap();
        }
        tokio::task::yield_now().await;
        assert!(executor.owner.shell.known() > 0, "they can be stopped");
        executor.all_idle().await;
        assert_eq!(executor.owner.shell.known(), 0);
    }
}
