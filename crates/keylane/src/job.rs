//! A submitted task on its way: where it waits, runs, and leaves its result.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::lanes::Time;
use crate::listener::{Common, TaskInfo};
use crate::result::{Kind, Reason, Status, TaskResult, Why};
use crate::rt::{AbortHandle, AtomicU64, Mutex, MutexGuard, contain, lock};
use crate::shell::Shell;
use crate::task::{Task, TaskError, Verdict};
use crate::tasks::{Lane, Tasks};

/// A task in a lane, whatever its type.
pub(crate) trait Job: Send + 'static {
    /// Whether it never ran and may still do so.
    fn is_new(&self) -> bool;
    /// Runs it; panics are contained. The result stays inside until `publish`. `before` is when the
    /// task before it ended, if that was just now; what comes next finds there when this one did.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>, before: &mut Option<Time>) -> Poll<Ran>;
    /// Asks it to stop where somebody else is in the middle of it; `false` when nobody is.
    fn stops_by_itself(&self, _: Why) -> bool {
        false
    }
    /// It is stopped before its end.
    fn stop(self: Pin<&mut Self>, why: Why) -> Ran;
    /// Whether anybody can see its result.
    fn has_result(&self) -> bool {
        true
    }
    /// Its permits are free: its result may be seen.
    fn publish(self: Pin<Box<Self>>);
    /// It leaves its lane without having run.
    fn end(self: Box<Self>, ending: Ending) -> Ran;
    /// Whether dropping it stops it.
    fn stops_when_dropped(&self) -> bool;
    /// Itself, to get the task back.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// How a run went, as far as the executor cares.
pub(crate) enum Ran {
    Well,
    Panicked(String),
}

impl Ran {
    /// Drops what is left of a task: its remains may panic as well as itself.
    fn dropping(remains: impl FnOnce()) -> Self {
        contain(remains).map_or_else(Self::Panicked, |()| Self::Well)
    }

    /// The first panic of two.
    fn and(self, then: Self) -> Self {
        match self {
            Self::Well => then,
            panicked => panicked,
        }
    }
}

/// How a task ends that never ran.
#[derive(Clone)]
pub(crate) enum Ending {
    Cancelled(Why),
    Rejected(Reason),
}

pin_project! {
    /// A posted task: nobody waits for its result.
    pub(crate) struct Posted<Tk> {
        #[pin]
        pub(crate) task: Option<Tk>,
    }
}

impl<Tk: Task> Job for Posted<Tk> {
    fn is_new(&self) -> bool {
        self.task.is_some()
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ran> {
        // Written only where need be: all tasks come by here, and it costs a twentieth of them.
        if before.is_some() {
            *before = None;
        }
        let mut place = self.as_mut().project().task;
        let polled = contain(|| {
            let task = place.as_mut().as_pin_mut();
            let task = task.expect("polled until it is ready");
            task.poll_task(cx).map(|verdict| {
                drop(verdict);
                place.set(None);
            })
        });
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ran::Well),
            Err(message) => {
                let remains = Ran::dropping(|| self.project().task.set(None));
                Poll::Ready(Ran::Panicked(message).and(remains))
            }
        }
    }

    fn stop(self: Pin<&mut Self>, _: Why) -> Ran {
        Ran::dropping(|| self.project().task.set(None))
    }

    fn has_result(&self) -> bool {
        false
    }

    fn publish(self: Pin<Box<Self>>) {}

    fn end(self: Box<Self>, _: Ending) -> Ran {
        Ran::dropping(|| drop(self))
    }

    fn stops_when_dropped(&self) -> bool {
        Tk::STOPS_WHEN_DROPPED
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Where a task's result is left, and by which it is cancelled. There is one for every task with
/// a handle, so it is small: with a key of two words and a result of none it is what the allocator
/// of most systems still calls small, 120 bytes with its counts. What few tasks have is apart.
pub(crate) struct Cell<K, T> {
    pub(crate) key: Option<K>,
    id: Option<Box<Arc<str>>>,
    submitted: Submitted,
    pub(crate) shell: Arc<TaskShell<K>>,
    state: Mutex<CellState<T>>,
}

pub(crate) type TaskShell<K> = Arc<Shell<Lane<K>, Tasks<K>>>;

/// When a task was submitted, and whether it was asked to stop; why is in the state.
struct Submitted(AtomicU64);

impl Submitted {
    const ASKED: u64 = 1 << 63;

    fn new(at: Time) -> Self {
        Self(AtomicU64::new(at.0.min(Self::ASKED - 1)))
    }

    fn at(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed) & !Self::ASKED)
    }

    fn ask(&self) {
        self.0.fetch_or(Self::ASKED, Ordering::Release);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::ASKED != 0
    }
}

struct CellState<T> {
    /// When it started, or [`NEVER`].
    started: Time,
    stage: CellStage<T>,
    /// Whoever awaits the handle; of a shared one, see [`Rare::sharers`].
    waiter: Option<Waker>,
    rare: Option<Box<Rare<T>>>,
}

const NEVER: Time = Time(u64::MAX);

enum CellStage<T> {
    /// It waits, or runs: then this polls it.
    Open(Option<Waker>),
    /// It has a result since then, which cannot be seen yet.
    Ended(Time, Outcome<T>),
    /// The listener is told of its result.
    Told,
    /// Its result can be seen; none means that it was taken, or is lent to be cloned.
    Seen(Time, Option<Outcome<T>>),
    /// There will be no result.
    Forgotten,
}

/// A status where it is kept: nearly all are of one kind, and the others are large.
pub(crate) enum Outcome<T> {
    Done(T),
    Other(Box<Status<T>>),
}

impl<T> From<Status<T>> for Outcome<T> {
    fn from(status: Status<T>) -> Self {
        match status {
            Status::Done(value) => Self::Done(value),
            other => Self::Other(Box::new(other)),
        }
    }
}

impl<T> Outcome<T> {
    pub(crate) fn into_status(self) -> Status<T> {
        match self {
            Self::Done(value) => Status::Done(value),
            Self::Other(status) => *status,
        }
    }

    pub(crate) fn to_status(&self) -> Status<T>
    where
        T: Clone,
    {
        match self {
            Self::Done(value) => Status::Done(value.clone()),
            Self::Other(status) => Status::clone(status),
        }
    }

    /// The kind by which it is counted.
    fn kind(&self) -> Kind {
        match self {
            Self::Done(_) => Kind::Done,
            Self::Other(status) if status.refusal().is_some() => Kind::Rejected,
            Self::Other(status) => status.kind(),
        }
    }
}

/// One of those who await a shared handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sharer(u64);

/// What few tasks have.
struct Rare<T> {
    /// Why it was asked to stop.
    cancel: Option<Why>,
    /// Those who await a shared handle, each in a place of its own.
    sharers: BTreeMap<Sharer, Waker>,
    /// The next who comes to share.
    next_sharer: Sharer,
    /// Ends it when its deadline passes.
    deadline: Option<AbortHandle>,
    /// For a task that whoever awaits the handle runs in its turn.
    caller: Caller<T>,
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self {
            cancel: None,
            sharers: BTreeMap::new(),
            next_sharer: Sharer(0),
            deadline: None,
            caller: Caller::No,
        }
    }
}

impl<T> CellState<T> {
    fn new() -> Self {
        Self {
            started: NEVER,
            stage: CellStage::Open(None),
            waiter: None,
            rare: None,
        }
    }

    fn started(&self) -> Option<Time> {
        (self.started != NEVER).then_some(self.started)
    }

    /// Somebody ends it, or has: nobody else may.
    fn is_ended(&self) -> bool {
        !matches!(self.stage, CellStage::Open(_) | CellStage::Ended(..))
    }

    fn cancel(&self) -> Option<Why> {
        self.rare.as_ref().and_then(|rare| rare.cancel)
    }

    fn end(&mut self, at: Time, status: Status<T>) {
        if !self.is_ended() {
            self.stage = CellStage::Ended(at, status.into());
        }
    }

    fn set_driver(&mut self, waker: &Waker) {
        if let CellStage::Open(driver) = &mut self.stage
            && !driver.as_ref().is_some_and(|old| old.will_wake(waker))
        {
            *driver = Some(waker.clone());
        }
    }

    fn take_driver(&mut self) -> Option<Waker> {
        match &mut self.stage {
            CellStage::Open(driver) => driver.take(),
            _ => None,
        }
    }

    fn rare(&mut self) -> &mut Rare<T> {
        self.rare.get_or_insert_default()
    }

    fn caller(&self) -> &Caller<T> {
        self.rare.as_ref().map_or(&Caller::No, |rare| &rare.caller)
    }

    /// Puts another in the caller's place.
    fn set_caller(&mut self, caller: Caller<T>) -> Caller<T> {
        match (&mut self.rare, caller) {
            (None, Caller::No) => Caller::No,
            (_, caller) => std::mem::replace(&mut self.rare().caller, caller),
        }
    }

    /// Whoever has this waker awaits the handle, and nobody else does. Answers the waker from before,
    /// to be dropped without the lock.
    fn wait(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waiter {
            Some(old) if old.will_wake(waker) => None,
            _ => self.waiter.replace(waker.clone()),
        }
    }

    /// As [`Self::wait`], for one of many.
    fn wait_shared(&mut self, sharer: &mut Option<Sharer>, waker: &Waker) -> Option<Waker> {
        let rare = self.rare();
        let sharer = *sharer.get_or_insert_with(|| {
            let next = rare.next_sharer;
            rare.next_sharer.0 += 1;
            next
        });
        match rare.sharers.get(&sharer) {
            Some(old) if old.will_wake(waker) => None,
            _ => rare.sharers.insert(sharer, waker.clone()),
        }
    }

    fn take_waiting(&mut self) -> impl Iterator<Item = Waker> + use<T> {
        let sharers = self.rare.as_mut().map(|rare| &mut rare.sharers);
        let sharers = sharers.map(std::mem::take).unwrap_or_default();
        self.waiter.take().into_iter().chain(sharers.into_values())
    }

    /// Takes the result, if it is there.
    fn take_seen(&mut self) -> Option<Seen<T>> {
        let started = self.started();
        let CellStage::Seen(ended, outcome) = &mut self.stage else {
            return None;
        };
        Some(Seen {
            outcome: outcome.take()?,
            started,
            ended: *ended,
        })
    }
}

/// A result that can be seen.
struct Seen<T> {
    outcome: Outcome<T>,
    started: Option<Time>,
    ended: Time,
}

/// A result that is out to be cloned, without the lock: what is the user's runs meanwhile. Dropped,
/// also by a panic, it is back, and whoever asked meanwhile is told.
struct Lent<'a, K, T> {
    cell: &'a Cell<K, T>,
    outcome: Option<Outcome<T>>,
}

impl<K, T> Drop for Lent<'_, K, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.cell.state);
        if let CellStage::Seen(_, outcome) = &mut state.stage {
            *outcome = self.outcome.take();
        }
        let waiting = state.take_waiting();
        drop(state);
        waiting.for_each(Waker::wake);
    }
}

/// A task that whoever awaits its handle polls.
struct CallerRun<T> {
    task: CallerTask<T>,
    /// Wakes all who await the handle: any of them may be gone by then.
    wakes: Waker,
}

type CallerTask<T> = Pin<Box<dyn Future<Output = Verdict<T>> + Send>>;

enum Caller<T> {
    No,
    /// Not yet its turn.
    Waits(CallerRun<T>),
    /// Its turn: whoever awaits the handle polls it.
    Turn(CallerRun<T>),
    /// It is being polled right now, or its remains dropped.
    Polled {
        /// It has to be polled again.
        woken: bool,
    },
    Ran(Status<T>, Ran),
}

/// The waker of a task that its handle runs. Weak: the task, which keeps it, is in the cell.
struct Everybody<K, T>(Weak<Cell<K, T>>);

impl<K, T> Wake for Everybody<K, T>
where
    K: Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(cell) = self.0.upgrade() {
            cell.wake_callers();
        }
    }
}

impl<K: Clone + 'static, T> Cell<K, T> {
    pub(crate) fn new(key: Option<K>, id: Option<Arc<str>>, shell: Arc<TaskShell<K>>) -> Arc<Self> {
        let cell = Self {
            key,
            id: id.map(Box::new),
            submitted: Submitted::new(shell.now()),
            shell,
            state: Mutex::new(CellState::new()),
        };
        cell.tell(|listener, task| listener.submitted(task));
        Arc::new(cell)
    }

    /// A new place for the result of the same task.
    pub(crate) fn again(&self) -> Arc<Self> {
        Arc::new(Self {
            key: self.key.clone(),
            id: self.id.clone(),
            submitted: Submitted::new(self.submitted.at()),
            shell: self.shell.clone(),
            state: Mutex::new(CellState::new()),
        })
    }

    pub(crate) fn id(&self) -> Option<&Arc<str>> {
        self.id.as_deref()
    }

    fn common(&self) -> &Common<K> {
        &self.shell.work.common
    }

    fn tell(&self, event: impl FnOnce(&dyn crate::listener::Listener<K>, &TaskInfo<K>)) {
        self.common().tell(|listener| {
            let info = TaskInfo {
                key: self.key.clone(),
                id: self.id().cloned(),
            };
            event(listener, &info);
        });
    }

    /// The task is about to be polled; `Some` if it is to stop instead.
    fn before_poll(&self, cx: &Context<'_>) -> Option<Why> {
        let (first, cancel) = {
            let mut state = lock(&self.state);
            let first = state.started == NEVER;
            if first {
                state.started = self.shell.now();
            }
            state.set_driver(cx.waker());
            (first, state.cancel())
        };
        if first {
            self.tell_start();
        }
        cancel
    }

    fn tell_start(&self) {
        if self.common().listener.is_some() {
            let waited = self.shell.now().since(self.submitted.at());
            self.tell(|listener, task| listener.started(task, waited));
        }
    }

    /// The task began then and ended at its first poll; answers when that is.
    fn ended_at_once(&self, began: Time, status: Status<T>) -> Time {
        let ended_at = self.shell.now();
        let mut state = lock(&self.state);
        state.started = began;
        state.end(ended_at, status);
        ended_at
    }

    /// The task began then and goes on; `Some` if it is to stop.
    fn goes_on(&self, began: Time, cx: &Context<'_>) -> Option<Why> {
        let mut state = lock(&self.state);
        state.started = began;
        state.set_driver(cx.waker());
        state.cancel()
    }

    /// The task has this result, to be seen once its permits are free.
    fn set_status(&self, status: Status<T>) {
        let ended_at = self.shell.now();
        lock(&self.state).end(ended_at, status);
    }

    /// The permits are free: the result can be seen.
    fn publish(&self) {
        self.finish(lock(&self.state));
    }

    /// The result is this, and can be seen.
    pub(crate) fn complete(&self, status: Status<T>) {
        let mut state = lock(&self.state);
        if !state.is_ended() {
            state.end(self.shell.now(), status);
            self.finish(state);
        }
    }

    /// Tells whoever wants to know of the result, once.
    fn finish<'a>(&'a self, mut state: MutexGuard<'a, CellState<T>>) {
        if !matches!(state.stage, CellStage::Ended(..)) {
            return;
        }
        let CellStage::Ended(at, mut outcome) =
            std::mem::replace(&mut state.stage, CellStage::Told)
        else {
            unreachable!("it had ended just now");
        };
        self.common().count(outcome.kind());
        if self.common().listener.is_some() {
            let ran = at.since(state.started().unwrap_or(at));
            drop(state);
            outcome = self.tell_end(outcome, ran);
            state = lock(&self.state);
        }
        state.stage = CellStage::Seen(at, Some(outcome));
        let deadline = state.rare.as_mut().and_then(|rare| rare.deadline.take());
        let waiting = state.take_waiting();
        drop(state);
        if let Some(deadline) = deadline {
            deadline.abort();
        }
        waiting.for_each(Waker::wake);
    }

    fn result(&self, status: Status<T>, started: Option<Time>, ended: Time) -> TaskResult<K, T> {
        let begun = started.unwrap_or(ended);
        let instant = |time| self.shell.instant_of(time).into_std();
        TaskResult {
            key: self.key.clone(),
            id: self.id().cloned(),
            status,
            started: started.map(instant),
            ended: instant(ended),
            waited: begun.since(self.submitted.at()),
            ran: ended.since(begun),
        }
    }

    fn tell_end(&self, outcome: Outcome<T>, ran: Duration) -> Outcome<T> {
        let status = outcome.into_status();
        self.tell(|listener, task| match &status {
            Status::Rejected(reason) | Status::Failed(TaskError::NoRoom { reason, .. }) => {
                listener.rejected(task, reason);
            }
            Status::Cancelled(why) => listener.cancelled(task, *why),
            Status::Failed(error) => listener.completed(task, Err(error), ran),
            Status::Done(_) => listener.completed(task, Ok(()), ran),
        });
        status.into()
    }

    /// A result for somebody who does not want to wait longer.
    pub(crate) fn waited_long_enough(&self) -> TaskResult<K, T> {
        let started = lock(&self.state).started();
        let status = Status::Cancelled(Why::WaitedLongEnough);
        self.result(status, started, self.shell.now())
    }

    /// The task goes back to its submitter: there will be no result.
    pub(crate) fn forget(&self) {
        lock(&self.state).stage = CellStage::Forgotten;
    }

    pub(crate) fn is_seen(&self) -> bool {
        matches!(lock(&self.state).stage, CellStage::Seen(..))
    }

    /// Asks a running task to stop; `false` if it has ended.
    pub(crate) fn ask_to_stop(&self, why: Why) -> bool {
        let mut state = lock(&self.state);
        if state.is_ended() {
            return false;
        }
        state.rare().cancel.get_or_insert(why);
        self.submitted.ask();
        let driver = state.take_driver();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        true
    }

    /// Lets the caller begin no more polls; `true` when it is in the middle of one: the task is over
    /// when that is.
    fn stop_caller(&self, why: Why) -> bool {
        self.ask_to_stop(why) && self.is_polled()
    }

    pub(crate) fn set_deadline(&self, timer: AbortHandle) {
        let mut state = lock(&self.state);
        if state.is_ended() {
            drop(state);
            timer.abort();
        } else {
            state.rare().deadline = Some(timer);
        }
    }

    pub(crate) fn set_caller(self: &Arc<Self>, task: CallerTask<T>)
    where
        K: Send + Sync,
        T: Send + 'static,
    {
        let wakes = Waker::from(Arc::new(Everybody(Arc::downgrade(self))));
        let run = CallerRun { task, wakes };
        lock(&self.state).rare().caller = Caller::Waits(run);
    }

    /// Whether the task needs its handle to run.
    pub(crate) fn needs_caller(&self) -> bool {
        let state = lock(&self.state);
        !state.is_ended() && !matches!(state.caller(), Caller::No | Caller::Ran(..))
    }

    /// Waits for the result and takes it.
    pub(crate) fn poll_result(&self, cx: &mut Context<'_>) -> Poll<TaskResult<K, T>> {
        let seen = ready!(self.poll_seen(|state| state.wait(cx.waker())));
        let status = seen.outcome.into_status();
        Poll::Ready(self.result(status, seen.started, seen.ended))
    }

    /// Waits for the result as one of many.
    pub(crate) fn poll_shared(
        &self,
        cx: &mut Context<'_>,
        sharer: &mut Option<Sharer>,
    ) -> Poll<TaskResult<K, T>>
    where
        T: Clone,
    {
        let seen = ready!(self.poll_seen(|state| state.wait_shared(sharer, cx.waker())));
        let lent = Lent {
            cell: self,
            outcome: Some(seen.outcome),
        };
        let outcome = lent.outcome.as_ref().expect("it was lent just now");
        let status = outcome.to_status();
        drop(lent);
        Poll::Ready(self.result(status, seen.started, seen.ended))
    }

    /// One of many does not wait any longer.
    pub(crate) fn leave(&self, sharer: Sharer) {
        let mut state = lock(&self.state);
        let rare = state.rare.as_mut();
        let waker = rare.and_then(|rare| rare.sharers.remove(&sharer));
        drop(state);
        drop(waker);
    }

    /// Takes the result, or waits for it; runs the task meanwhile if that is the caller's part.
    fn poll_seen(&self, wait: impl FnOnce(&mut CellState<T>) -> Option<Waker>) -> Poll<Seen<T>> {
        let mut state = lock(&self.state);
        if let Some(seen) = state.take_seen() {
            return Poll::Ready(seen);
        }
        let old = wait(&mut state);
        drop(state);
        drop(old);
        // Only now: a turn that comes a moment later finds somebody to wake.
        self.poll_as_caller();
        Poll::Pending
    }

    fn poll_as_caller(&self) {
        let Some(mut run) = self.take_turn() else {
            return;
        };
        let mut cx = Context::from_waker(&run.wakes);
        let polled = match contain(|| run.task.as_mut().poll(&mut cx)) {
            Ok(Poll::Pending) => Caller::Turn(run),
            // Its remains go while it is still its turn, and may panic as well as itself.
            Ok(Poll::Ready(verdict)) => {
                Caller::Ran(status_of(verdict), Ran::dropping(|| drop(run)))
            }
            Err(message) => {
                let remains = Ran::dropping(|| drop(run));
                Caller::Ran(panicked(&message), Ran::Panicked(message).and(remains))
            }
        };
        self.end_turn(polled);
    }

    fn take_turn(&self) -> Option<CallerRun<T>> {
        let mut state = lock(&self.state);
        if state.cancel().is_some() || !matches!(state.caller(), Caller::Turn(_)) {
            return None;
        }
        match state.set_caller(Caller::Polled { woken: false }) {
            Caller::Turn(run) => Some(run),
            _ => unreachable!("it was the caller's turn just now"),
        }
    }

    fn end_turn(&self, polled: Caller<T>) {
        let mut state = lock(&self.state);
        let Caller::Polled { woken } = *state.caller() else {
            // It was cut off meanwhile. Nobody is left to hear of a panic.
            drop(state);
            let _ = Ran::dropping(|| drop(polled));
            return;
        };
        state.set_caller(polled);
        let driver = state.take_driver();
        let waiting = woken.then(|| state.take_waiting());
        drop(state);
        waiting.into_iter().flatten().for_each(Waker::wake);
        // It looks whether the task has ended, or is to stop now that nobody polls it.
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The task has to be polled by one of those who await it; in the middle of a poll, after that:
    /// who comes now would find nothing to do, and who polls may be gone before the next.
    fn wake_callers(&self) {
        let mut state = lock(&self.state);
        if let Caller::Polled { .. } = state.caller() {
            state.set_caller(Caller::Polled { woken: true });
            return;
        }
        let waiting = state.take_waiting();
        drop(state);
        waiting.for_each(Waker::wake);
    }

    /// Whether the caller polls the task at this moment; it wakes the driver afterwards.
    fn is_polled(&self) -> bool {
        matches!(lock(&self.state).caller(), Caller::Polled { .. })
    }

    /// The caller's turn has come: answers how it went once it is over.
    fn poll_caller(&self) -> Poll<(Status<T>, Ran)> {
        let mut state = lock(&self.state);
        match state.set_caller(Caller::No) {
            Caller::Ran(status, ran) => return Poll::Ready((status, ran)),
            Caller::Waits(run) => {
                state.set_caller(Caller::Turn(run));
                let waiting = state.take_waiting();
                drop(state);
                waiting.for_each(Waker::wake);
            }
            other => drop(state.set_caller(other)),
        }
        Poll::Pending
    }

    fn drop_caller(&self) -> Ran {
        let caller = lock(&self.state).set_caller(Caller::No);
        match caller {
            Caller::Ran(status, ran) => ran.and(Ran::dropping(|| drop(status))),
            caller => Ran::dropping(|| drop(caller)),
        }
    }
}

pin_project! {
    /// A task whose result somebody waits for.
    pub(crate) struct Tracked<K, Tk>
    where
        Tk: Task,
        K: Clone,
        K: 'static,
    {
        #[pin]
        pub(crate) task: Option<Tk>,
        pub(crate) cell: Arc<Cell<K, Tk::Output>>,
        stage: Stage,
    }

    impl<K, Tk> PinnedDrop for Tracked<K, Tk>
    where
        Tk: Task,
        K: Clone,
        K: 'static,
    {
        fn drop(this: Pin<&mut Self>) {
            // Never left without a result: the runtime may go while the task waits or runs.
            if this.stage != Stage::Published {
                this.cell.complete(Status::Cancelled(Why::ShutDown));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waits,
    Begun,
    Published,
}

impl<K: Clone + 'static, Tk: Task> Tracked<K, Tk> {
    pub(crate) fn new(task: Tk, cell: Arc<Cell<K, Tk::Output>>) -> Self {
        Self {
            task: Some(task),
            cell,
            stage: Stage::Waits,
        }
    }
}

impl<K: Clone + Send + Sync + 'static, Tk: Task> Tracked<K, Tk> {
    fn poll_once(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Status<Tk::Output>, Ran)> {
        let task = self.project().task.as_pin_mut();
        let task = task.expect("polled until it is ready");
        match contain(|| task.poll_task(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(verdict)) => Poll::Ready((status_of(verdict), Ran::Well)),
            Err(message) => Poll::Ready((panicked(&message), Ran::Panicked(message))),
        }
    }

    /// Most tasks with little to do end at their first poll, so it costs one lock.
    fn poll_first(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ran> {
        *self.as_mut().project().stage = Stage::Begun;
        let began = before.take().unwrap_or_else(|| self.cell.shell.now());
        self.cell.tell_start();
        match self.as_mut().poll_once(cx) {
            Poll::Pending => match self.cell.goes_on(began, cx) {
                Some(why) if Tk::STOPS_WHEN_DROPPED => Poll::Ready(self.stop(why)),
                _ => Poll::Pending,
            },
            Poll::Ready((status, ran)) => {
                let mut this = self.project();
                *before = Some(this.cell.ended_at_once(began, status));
                Poll::Ready(ran.and(Ran::dropping(|| this.task.set(None))))
            }
        }
    }
}

impl<K: Clone + Send + Sync + 'static, Tk: Task> Job for Tracked<K, Tk> {
    fn is_new(&self) -> bool {
        self.stage == Stage::Waits && !self.cell.submitted.is_asked()
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ran> {
        if self.is_new() {
            return self.poll_first(cx, before);
        }
        *before = None;
        // What has not begun stops, whatever it is.
        if let Some(why) = self.cell.before_poll(cx)
            && (Tk::STOPS_WHEN_DROPPED || self.stage == Stage::Waits)
        {
            return Poll::Ready(self.stop(why));
        }
        let (status, ran) = ready!(self.as_mut().poll_once(cx));
        let mut this = self.project();
        this.cell.set_status(status);
        Poll::Ready(ran.and(Ran::dropping(|| this.task.set(None))))
    }

    fn stop(self: Pin<&mut Self>, why: Why) -> Ran {
        let mut this = self.project();
        this.cell.set_status(Status::Cancelled(why));
        Ran::dropping(|| this.task.set(None))
    }

    fn publish(mut self: Pin<Box<Self>>) {
        self.cell.publish();
        *self.as_mut().project().stage = Stage::Published;
    }

    fn end(mut self: Box<Self>, ending: Ending) -> Ran {
        let ran = Ran::dropping(|| self.task = None);
        self.cell.complete(ending.status());
        ran
    }

    fn stops_when_dropped(&self) -> bool {
        Tk::STOPS_WHEN_DROPPED
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// A task that its handle runs when its turn comes: it holds the permits meanwhile.
pub(crate) struct Called<K: Clone + 'static, T> {
    pub(crate) cell: Arc<Cell<K, T>>,
}

impl<K: Clone + 'static, T> Called<K, T> {
    pub(crate) fn new(cell: Arc<Cell<K, T>>) -> Self {
        Self { cell }
    }
}

// Nothing in it is pinned: the run is boxed in the cell.
impl<K: Clone + 'static, T> Unpin for Called<K, T> {}

impl<K: Clone + 'static, T> Drop for Called<K, T> {
    fn drop(&mut self) {
        let _ = self.cell.drop_caller();
        self.cell.complete(Status::Cancelled(Why::ShutDown));
    }
}

impl<K, T> Job for Called<K, T>
where
    K: Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn is_new(&self) -> bool {
        !self.cell.submitted.is_asked()
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>, before: &mut Option<Time>) -> Poll<Ran> {
        *before = None;
        if let Some(why) = self.cell.before_poll(cx) {
            if self.cell.is_polled() {
                return Poll::Pending;
            }
            return Poll::Ready(self.stop(why));
        }
        let (status, ran) = ready!(self.cell.poll_caller());
        self.cell.set_status(status);
        Poll::Ready(ran)
    }

    fn stops_by_itself(&self, why: Why) -> bool {
        self.cell.stop_caller(why)
    }

    fn stop(self: Pin<&mut Self>, why: Why) -> Ran {
        self.cell.set_status(Status::Cancelled(why));
        self.cell.drop_caller()
    }

    fn publish(self: Pin<Box<Self>>) {
        self.cell.publish();
    }

    fn end(self: Box<Self>, ending: Ending) -> Ran {
        let ran = self.cell.drop_caller();
        self.cell.complete(ending.status());
        ran
    }

    fn stops_when_dropped(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Ending {
    fn status<T>(self) -> Status<T> {
        match self {
            Self::Cancelled(why) => Status::Cancelled(why),
            Self::Rejected(reason) => Status::Rejected(reason),
        }
    }
}

pub(crate) fn status_of<T>(verdict: Verdict<T>) -> Status<T> {
    match verdict {
        Verdict::Done(value) => Status::Done(value),
        Verdict::Failed(error) => Status::Failed(error),
        Verdict::Cancelled => Status::Cancelled(Why::ItSaid),
    }
}

pub(crate) fn panicked<T>(message: &str) -> Status<T> {
    Status::Failed(TaskError::Panicked(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_task_with_a_handle_has_is_small() {
        let counts = 2 * size_of::<usize>();
        let cell = size_of::<Cell<Arc<str>, ()>>() + counts;
        assert!(cell <= 120, "{cell} bytes");
    }
}
