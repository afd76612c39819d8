//! Tasks that whoever awaits their handle runs, in their turn.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::{Cell, TaskRef};
use crate::job::Panicked;
use crate::result::Status;
use crate::rt::{Mutex, contain, lock};
use crate::task::Verdict;
use crate::tracked::{Body, panicked, status_of};

pub(crate) type CallerTask<T> = Pin<Box<dyn Future<Output = Verdict<T>> + Send>>;

/// How far a task is that its handle runs.
pub(crate) enum Caller<T> {
    /// Its handle does not.
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
    Ran(Status<T>, Panicked),
}

impl<T> Caller<T> {
    /// Whether there is something for the handle to run.
    pub(crate) fn is_needed(&self) -> bool {
        !matches!(self, Self::No | Self::Ran(..))
    }
}

/// A task that whoever awaits its handle polls.
pub(crate) struct CallerRun<T> {
    task: CallerTask<T>,
    /// Wakes all who await the handle: any of them may be gone by then.
    wakes: Waker,
    forgets: Arc<dyn Forgets>,
}

impl<T> Drop for CallerRun<T> {
    fn drop(&mut self) {
        // Wakers of the task may be anywhere, and for long.
        self.forgets.forget();
    }
}

/// The waker of a task that its handle runs. The task, which keeps it, is in the cell: with the task it
/// lets go of that.
struct Everybody<T: Send + 'static>(Mutex<Option<TaskRef<T>>>);

trait Forgets: Send + Sync {
    fn forget(&self);
}

impl<T: Send + 'static> Forgets for Everybody<T> {
    fn forget(&self) {
        let task = lock(&self.0).take();
        drop(task);
    }
}

impl<T: Send + 'static> Wake for Everybody<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = lock(&self.0).clone();
        if let Some(task) = task {
            task.wake_callers();
        }
    }
}

/// The turn of a task that its handle runs: it holds the permits meanwhile.
pub(crate) struct Called<T> {
    // The run is in the cell, where the handle finds it.
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T> Called<T> {
    pub(crate) fn new() -> Self {
        Self {
            of: std::marker::PhantomData,
        }
    }
}

impl<T: Send + 'static> Body for Called<T> {
    type Output = T;
    const STOPS_WHEN_DROPPED: bool = true;
    const IS_WOKEN: bool = true;

    fn poll_body(
        self: Pin<&mut Self>,
        cell: &Cell<T>,
        _: &mut Context<'_>,
    ) -> Poll<(Status<T>, Panicked)> {
        cell.poll_caller()
    }

    fn is_busy(cell: &Cell<T>) -> bool {
        matches!(lock(&cell.slow).caller(), Caller::Polled { .. })
    }

    fn has_ended(cell: &Cell<T>) -> bool {
        matches!(lock(&cell.slow).caller(), Caller::Ran(..))
    }

    fn drop_rest(cell: &Cell<T>) -> Panicked {
        let caller = lock(&cell.slow).set_caller(Caller::No);
        match caller {
            Caller::Ran(status, panicked) => panicked.and(Panicked::dropping(|| drop(status))),
            caller => Panicked::dropping(|| drop(caller)),
        }
    }

    fn into_task(self) -> Box<dyn Any + Send> {
        unreachable!("what its handle runs is never refused")
    }
}

impl<T> Cell<T> {
    /// The caller's turn has come: answers how it went once it is over.
    fn poll_caller(&self) -> Poll<(Status<T>, Panicked)> {
        let mut slow = lock(&self.slow);
        match slow.set_caller(Caller::No) {
            Caller::Ran(status, panicked) => return Poll::Ready((status, panicked)),
            Caller::Waits(run) => {
                slow.set_caller(Caller::Turn(run));
                drop(slow);
                self.wake_waiting();
            }
            other => drop(slow.set_caller(other)),
        }
        Poll::Pending
    }

    /// The task has to be polled by one of those who await it; in the middle of a poll, after that:
    /// who comes now would find nothing to do, and who polls may be gone before the next.
    fn wake_callers(&self) {
        let mut slow = lock(&self.slow);
        if let Caller::Polled { .. } = slow.caller() {
            slow.set_caller(Caller::Polled { woken: true });
            return;
        }
        drop(slow);
        self.wake_waiting();
    }

    fn take_turn(&self) -> Option<CallerRun<T>> {
        let mut slow = lock(&self.slow);
        if slow.cancel().is_some() || !matches!(slow.caller(), Caller::Turn(_)) {
            return None;
        }
        match slow.set_caller(Caller::Polled { woken: false }) {
            Caller::Turn(run) => Some(run),
            _ => unreachable!("it was the caller's turn just now"),
        }
    }

    fn end_turn(&self, polled: Caller<T>) {
        let mut slow = lock(&self.slow);
        let Caller::Polled { woken } = *slow.caller() else {
            // It was cut off meanwhile. Nobody is left to hear of a panic.
            drop(slow);
            let _ = Panicked::dropping(|| drop(polled));
            return;
        };
        slow.set_caller(polled);
        let driver = slow.take_driver();
        let waiting = woken.then(|| slow.take_waiting());
        drop(slow);
        waiting.into_iter().flatten().for_each(Waker::wake);
        // It looks whether the task has ended, or is to stop now that nobody polls it.
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Polls the task, if its handle runs it and its turn has come.
    pub(crate) fn poll_as_caller(&self) {
        let Some(mut run) = self.take_turn() else {
            return;
        };
        let wakes = run.wakes.clone();
        let mut cx = Context::from_waker(&wakes);
        let polled = match contain(|| run.task.as_mut().poll(&mut cx)) {
            Ok(Poll::Pending) => Caller::Turn(run),
            // Its remains go while it is still its turn, and may panic as well as itself.
            Ok(Poll::Ready(verdict)) => {
                Caller::Ran(status_of(verdict), Panicked::dropping(|| drop(run)))
            }
            Err(message) => {
                let remains = Panicked::dropping(|| drop(run));
                Caller::Ran(panicked(&message), Panicked::with(message).and(remains))
            }
        };
        self.end_turn(polled);
    }
}

impl<T: Send + 'static> TaskRef<T> {
    /// Whoever awaits the handle runs this when its turn comes.
    pub(crate) fn run_by_caller(&self, task: CallerTask<T>) {
        let everybody = Arc::new(Everybody(Mutex::new(Some(self.clone()))));
        let run = CallerRun {
            task,
            wakes: Waker::from(everybody.clone()),
            forgets: everybody,
        };
        self.set_caller(Caller::Waits(run));
    }
}
