//! What a task shares with its handle: who waits for its result, and that it is to stop.

mod caller;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) use self::caller::Called;
use self::caller::Caller;
use crate::clock::Clock;
use crate::joint::{HandleRef, Shared, State};
use crate::lanes::Time;
use crate::listener::{End, Tell};
use crate::result::{Kind, Status, Why};
use crate::rt::{AbortHandle, Mutex, lock};

/// One for every task with a handle, so it is small, and neither the way of a task that ends at its
/// first poll nor that of a handle whose result is there takes the lock.
pub(crate) struct Cell<T> {
    state: State,
    /// When it started, or [`NEVER`].
    started: AtomicU64,
    slow: Mutex<Slow<T>>,
}

/// What is shared and more than a number.
pub(crate) struct Slow<T> {
    /// Whoever awaits the handle; of a shared one, see [`Rare::sharers`].
    waiter: Option<Waker>,
    /// Polls the task, where it was polled and went on.
    driver: Option<Waker>,
    rare: Option<Box<Rare<T>>>,
}

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
    /// Tells the listener.
    told: Option<Arc<dyn Tell>>,
}

/// One of those who await a shared handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sharer(u64);

/// Before it started, and where nobody knows when.
pub(crate) const NEVER: Time = Time(u64::MAX);

/// How a task ended, and when.
pub(crate) struct Seen<T> {
    pub(crate) at: Time,
    pub(crate) outcome: Outcome<T>,
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
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Done(_) => Kind::Done,
            Self::Other(status) if status.refusal().is_some() => Kind::Rejected,
            Self::Other(status) => status.kind(),
        }
    }

    /// What a listener hears of it.
    pub(crate) fn end(&self) -> End<'_> {
        match self {
            Self::Done(_) => End::Done,
            Self::Other(status) => match (&**status, status.refusal()) {
                (_, Some(reason)) => End::Rejected(reason),
                (Status::Failed(error), _) => End::Failed(error),
                (Status::Cancelled(why), _) => End::Cancelled(*why),
                (Status::Done(_) | Status::Rejected(_), None) => End::Done,
            },
        }
    }
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self {
            cancel: None,
            sharers: BTreeMap::new(),
            next_sharer: Sharer(0),
            deadline: None,
            caller: Caller::No,
            told: None,
        }
    }
}

impl<T> Slow<T> {
    fn rare(&mut self) -> &mut Rare<T> {
        self.rare.get_or_insert_default()
    }

    pub(crate) fn cancel(&self) -> Option<Why> {
        self.rare.as_ref().and_then(|rare| rare.cancel)
    }

    fn set_driver(&mut self, waker: &Waker) {
        if !self.driver.as_ref().is_some_and(|old| old.will_wake(waker)) {
            self.driver = Some(waker.clone());
        }
    }

    pub(crate) fn take_driver(&mut self) -> Option<Waker> {
        self.driver.take()
    }

    pub(crate) fn caller(&self) -> &Caller<T> {
        self.rare.as_ref().map_or(&Caller::No, |rare| &rare.caller)
    }

    /// Puts another in the caller's place.
    pub(crate) fn set_caller(&mut self, caller: Caller<T>) -> Caller<T> {
        match (&mut self.rare, caller) {
            (None, Caller::No) => Caller::No,
            (_, caller) => std::mem::replace(&mut self.rare().caller, caller),
        }
    }

    /// Whoever has this waker awaits the handle, and nobody else does. Answers the waker from before,
    /// to be dropped without the lock.
    pub(crate) fn wait(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waiter {
            Some(old) if old.will_wake(waker) => None,
            _ => self.waiter.replace(waker.clone()),
        }
    }

    /// As [`Self::wait`], for one of many.
    pub(crate) fn wait_shared(
        &mut self,
        sharer: &mut Option<Sharer>,
        waker: &Waker,
    ) -> Option<Waker> {
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

    fn take_deadline(&mut self) -> Option<AbortHandle> {
        self.rare.as_mut().and_then(|rare| rare.deadline.take())
    }

    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = Waker> + use<T> {
        let sharers = self.rare.as_mut().map(|rare| &mut rare.sharers);
        let sharers = sharers.map(std::mem::take).unwrap_or_default();
        self.waiter.take().into_iter().chain(sharers.into_values())
    }
}

impl<T> Cell<T> {
    /// Of a task with a handle.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            state: State::of_two(),
            started: AtomicU64::new(NEVER.0),
            slow: Mutex::new(Slow {
                waiter: None,
                driver: None,
                rare: None,
            }),
        }
    }

    /// Who hears of it.
    pub(crate) fn set_told(&self, told: Arc<dyn Tell>) {
        lock(&self.slow).rare().told = Some(told);
        self.state.be_rare();
    }

    pub(crate) fn started(&self) -> Option<Time> {
        let started = Time(self.started.load(Ordering::Relaxed));
        (started != NEVER).then_some(started)
    }

    pub(crate) fn set_started(&self, at: Time) {
        self.started.store(at.0, Ordering::Relaxed);
    }

    /// Whether the result can be seen.
    pub(crate) fn is_seen(&self) -> bool {
        self.state.is_seen()
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.state.is_asked()
    }

    /// The task is about to be polled; `Some` if it is to stop instead.
    pub(crate) fn before_poll(&self, cx: &Context<'_>, clock: &Clock) -> Option<Why> {
        if self.started().is_none() {
            let now = clock.now();
            self.set_started(now);
            self.tell_start(now);
        }
        self.goes_on(cx)
    }

    /// The task goes on, and this polls it; `Some` if it is to stop.
    pub(crate) fn goes_on(&self, cx: &Context<'_>) -> Option<Why> {
        let mut slow = lock(&self.slow);
        slow.set_driver(cx.waker());
        slow.cancel()
    }

    /// Why it was asked to stop, if it was.
    pub(crate) fn why(&self) -> Option<Why> {
        match self.is_asked() {
            true => lock(&self.slow).cancel(),
            false => None,
        }
    }

    /// Nobody polls the task any more.
    pub(crate) fn forget_driver(&self) {
        if self.started().is_some() {
            let driver = lock(&self.slow).take_driver();
            drop(driver);
        }
    }

    /// What tells the listener of it, if there is one.
    pub(crate) fn told(&self) -> Option<Arc<dyn Tell>> {
        if !self.state.is_rare() {
            return None;
        }
        lock(&self.slow).rare().told.clone()
    }

    pub(crate) fn tell_start(&self, at: Time) {
        if let Some(told) = self.told() {
            told.started(at);
        }
    }

    /// How it ended, before that can be seen.
    pub(crate) fn tell_end(&self, seen: &Seen<T>) {
        if let Some(told) = self.told() {
            let ran = match self.started() {
                Some(started) if seen.at != NEVER => seen.at.since(started),
                _ => Duration::ZERO,
            };
            told.ended(seen.outcome.end(), ran);
        }
    }

    /// Asks a running task to stop; `false` if it has ended.
    pub(crate) fn ask_to_stop(&self, why: Why) -> bool {
        let mut slow = lock(&self.slow);
        if self.state.is_over() {
            return false;
        }
        slow.rare().cancel.get_or_insert(why);
        self.state.ask();
        let driver = slow.take_driver();
        drop(slow);
        if let Some(driver) = driver {
            driver.wake();
        }
        true
    }

    /// The timer that ends the task ends with it.
    pub(crate) fn set_deadline(&self, timer: AbortHandle) {
        lock(&self.slow).rare().deadline = Some(timer);
        if self.state.be_rare() {
            let timer = lock(&self.slow).take_deadline();
            if let Some(timer) = timer {
                timer.abort();
            }
        }
    }

    /// It is run by its handle.
    pub(crate) fn set_caller(&self, caller: Caller<T>) {
        lock(&self.slow).set_caller(caller);
        self.state.be_rare();
    }

    /// Whether the task needs its handle to run.
    pub(crate) fn needs_caller(&self) -> bool {
        self.state.is_rare() && !self.state.is_over() && lock(&self.slow).caller().is_needed()
    }

    /// One of many does not wait any longer.
    pub(crate) fn leave(&self, sharer: Sharer) {
        let mut slow = lock(&self.slow);
        let rare = slow.rare.as_mut();
        let waker = rare.and_then(|rare| rare.sharers.remove(&sharer));
        drop(slow);
        drop(waker);
    }

    /// Whoever awaits the handle is to look.
    pub(crate) fn wake_waiting(&self) {
        let waiting = lock(&self.slow).take_waiting();
        waiting.for_each(Waker::wake);
    }
}

#[allow(unsafe_code)]
// SAFETY: its state is one of its fields, which nothing replaces.
unsafe impl<T: Send + 'static> Shared for Cell<T> {
    fn state(&self) -> Option<&State> {
        Some(&self.state)
    }

    fn seen(&self) {
        let mut slow = lock(&self.slow);
        let deadline = slow.take_deadline();
        let waiting = slow.take_waiting();
        drop(slow);
        if let Some(deadline) = deadline {
            deadline.abort();
        }
        waiting.for_each(Waker::wake);
    }
}

/// A handle's way to the result of its task.
pub(crate) type TaskRef<T> = HandleRef<Cell<T>, Seen<T>>;

impl<T: Send + 'static> TaskRef<T> {
    /// Takes the result, or waits for it; runs the task meanwhile if that is the caller's part.
    pub(crate) fn poll_seen(
        &self,
        wait: impl FnOnce(&mut Slow<T>) -> Option<Waker>,
    ) -> Poll<Seen<T>> {
        let mut slow = lock(&self.slow);
        if let Some(seen) = self.take_result() {
            return Poll::Ready(seen);
        }
        let old = wait(&mut slow);
        drop(slow);
        drop(old);
        if self.state.be_waited_for()
            && let Some(seen) = self.take_locked()
        {
            return Poll::Ready(seen);
        }
        // Only now: a turn that comes a moment later finds somebody to wake.
        self.poll_as_caller();
        Poll::Pending
    }

    fn take_locked(&self) -> Option<Seen<T>> {
        let _slow = lock(&self.slow);
        self.take_result()
    }

    /// As [`Self::poll_seen`] for one of many, each of whom gets a clone.
    pub(crate) fn poll_shared(
        &self,
        cx: &mut Context<'_>,
        sharer: &mut Option<Sharer>,
    ) -> Poll<(Status<T>, Time)>
    where
        T: Clone,
    {
        let waits = |slow: &mut Slow<T>| slow.wait_shared(sharer, cx.waker());
        self.poll_seen(waits).map(|seen| {
            let lent = Lent {
                task: self,
                seen: Some(seen),
            };
            let seen = lent.seen.as_ref().expect("it was lent just now");
            (seen.outcome.to_status(), seen.at)
        })
    }
}

/// A result that is out to be cloned, without the lock: what is the user's runs meanwhile. Dropped,
/// also by a panic, it is back, and whoever asked meanwhile is told.
struct Lent<'a, T: Send + 'static> {
    task: &'a TaskRef<T>,
    seen: Option<Seen<T>>,
}

impl<T: Send + 'static> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut slow = lock(&self.task.slow);
        if let Some(seen) = self.seen.take() {
            self.task.put_result(seen);
        }
        let waiting = slow.take_waiting();
        drop(slow);
        waiting.for_each(Waker::wake);
    }
}
