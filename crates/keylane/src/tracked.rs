//! A task whose result somebody waits for: the task, and later its result in the same place.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::cell::{Cell, NEVER, Outcome, Seen};
use crate::clock::Clock;
use crate::job::{Ending, Panicked, Ran};
use crate::joint::{Part, Yields};
use crate::lanes::Time;
use crate::result::{Status, Why};
use crate::rt::contain;
use crate::task::{Task, TaskError, Verdict};

/// What is tracked: a task, or the turn of one that its handle runs.
pub(crate) trait Body: Sized + Send + 'static {
    type Output: Send + 'static;
    /// Whether dropping it stops it.
    const STOPS_WHEN_DROPPED: bool;
    /// Whether others wake whoever polls it, from its first poll on.
    const IS_WOKEN: bool = false;

    /// Runs it; panics are contained.
    fn poll_body(
        self: Pin<&mut Self>,
        cell: &Cell<Self::Output>,
        cx: &mut Context<'_>,
    ) -> Poll<(Status<Self::Output>, Panicked)>;
    /// Whether somebody else is in the middle of it, and wakes whoever polls it afterwards.
    fn is_busy(_: &Cell<Self::Output>) -> bool {
        false
    }
    /// Whether somebody else ran it to its end.
    fn has_ended(_: &Cell<Self::Output>) -> bool {
        false
    }
    /// Drops what there is of it elsewhere.
    fn drop_rest(_: &Cell<Self::Output>) -> Panicked {
        Panicked::default()
    }
    /// The task, of one that was never polled.
    fn into_task(self) -> Box<dyn Any + Send>;
}

impl<Tk: Task> Body for Tk {
    type Output = Tk::Output;
    const STOPS_WHEN_DROPPED: bool = Tk::STOPS_WHEN_DROPPED;

    fn poll_body(
        self: Pin<&mut Self>,
        _: &Cell<Tk::Output>,
        cx: &mut Context<'_>,
    ) -> Poll<(Status<Tk::Output>, Panicked)> {
        match contain(|| self.poll_task(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(verdict)) => Poll::Ready((status_of(verdict), Panicked::default())),
            Err(message) => Poll::Ready((panicked(&message), Panicked::with(message))),
        }
    }

    fn into_task(self) -> Box<dyn Any + Send> {
        Box::new(self)
    }
}

pin_project! {
    #[project = Stage]
    #[project_replace = Was]
    pub(crate) enum Tracked<B>
    where
        B: Body,
    {
        /// It waits or runs.
        Open {
            #[pin]
            body: B,
        },
        Ended {
            seen: Seen<B::Output>,
        },
        /// Its result was taken, or itself before it ran.
        Taken,
    }
}

impl<B: Body> Tracked<B> {
    #[inline(always)]
    pub(crate) fn new(body: B) -> Self {
        Self::Open { body }
    }

    fn poll_body(
        self: Pin<&mut Self>,
        cell: &Cell<B::Output>,
        cx: &mut Context<'_>,
    ) -> Poll<(Status<B::Output>, Panicked)> {
        match self.project() {
            Stage::Open { body } => body.poll_body(cell, cx),
            Stage::Ended { .. } | Stage::Taken => unreachable!("polled until it is ready"),
        }
    }

    /// Most tasks with little to do end at their first poll, so that takes no lock.
    fn poll_first(
        mut self: Pin<&mut Self>,
        cell: &Cell<B::Output>,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran> {
        let began = before.take().unwrap_or_else(|| clock.now());
        cell.set_started(began);
        cell.tell_start(began);
        match self.as_mut().poll_body(cell, cx) {
            Poll::Pending => match cell.goes_on(cx) {
                Some(why) if B::STOPS_WHEN_DROPPED => {
                    Poll::Ready(self.end(cell, Ending::Cancelled(why), clock.now()))
                }
                _ => Poll::Pending,
            },
            Poll::Ready((status, panicked)) => {
                let at = clock.now();
                *before = Some(at);
                Poll::Ready(self.close(at, status, panicked))
            }
        }
    }

    /// Its result takes the place of what is left of it.
    #[inline]
    fn close(
        mut self: Pin<&mut Self>,
        at: Time,
        status: Status<B::Output>,
        mut panicked: Panicked,
    ) -> Ran {
        if std::mem::needs_drop::<B>() {
            let remains = Panicked::dropping(|| self.as_mut().set(Self::Taken));
            panicked = panicked.and(remains);
        }
        let outcome = Outcome::from(status);
        let kind = Some(outcome.kind());
        self.set(Self::Ended {
            seen: Seen { at, outcome },
        });
        Ran::new(kind, panicked)
    }
}

#[allow(unsafe_code)]
// SAFETY: it has started before its body is polled, and nothing makes that undone.
unsafe impl<B: Body> Part for Tracked<B> {
    type Shared = Cell<B::Output>;

    fn is_new(&self, cell: &Self::Shared) -> bool {
        matches!(self, Self::Open { .. }) && cell.started().is_none() && !cell.is_asked()
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cell: &Self::Shared,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran> {
        if !B::IS_WOKEN && self.is_new(cell) {
            return self.poll_first(cell, cx, before, clock);
        }
        *before = None;
        let begun = cell.started().is_some();
        if !begun && cell.is_asked() {
            return Poll::Ready(self.end(cell, Ending::Asked, clock.now()));
        }
        // What has not begun stops, whatever it is.
        if let Some(why) = cell.before_poll(cx, clock)
            && (B::STOPS_WHEN_DROPPED || !begun)
            && !B::has_ended(cell)
        {
            if B::is_busy(cell) {
                return Poll::Pending;
            }
            return Poll::Ready(self.end(cell, Ending::Cancelled(why), clock.now()));
        }
        let (status, panicked) = ready!(self.as_mut().poll_body(cell, cx));
        let at = clock.now();
        cell.forget_driver();
        Poll::Ready(self.close(at, status, panicked))
    }

    fn stops_by_itself(&self, cell: &Self::Shared, why: Why) -> bool {
        B::IS_WOKEN && cell.ask_to_stop(why) && B::is_busy(cell)
    }

    fn end(self: Pin<&mut Self>, cell: &Self::Shared, ending: Ending, at: Time) -> Ran {
        cell.forget_driver();
        let rest = B::drop_rest(cell);
        self.close(at, ending.status(|| cell.why()), rest)
    }

    fn dropped(self: Pin<&mut Self>, cell: &Self::Shared) {
        if matches!(*self, Self::Open { .. }) {
            // Never left without a result: the runtime may go while the task waits or runs.
            let _ = self.end(cell, Ending::Cancelled(Why::ShutDown), NEVER);
        }
    }

    fn before_seen(&self, cell: &Self::Shared) {
        if let Self::Ended { seen } = self {
            cell.tell_end(seen);
        }
    }

    fn stops_when_dropped(&self) -> bool {
        B::STOPS_WHEN_DROPPED
    }

    fn take_task(&mut self) -> Box<dyn Any + Send> {
        match std::mem::replace(self, Self::Taken) {
            Self::Open { body } => body.into_task(),
            Self::Ended { .. } | Self::Taken => unreachable!("it never ran"),
        }
    }
}

impl<B: Body> Yields<Seen<B::Output>> for Tracked<B> {
    fn take_result(self: Pin<&mut Self>) -> Option<Seen<B::Output>> {
        match self.project_replace(Self::Taken) {
            Was::Ended { seen } => Some(seen),
            Was::Open { .. } | Was::Taken => None,
        }
    }

    fn put_result(mut self: Pin<&mut Self>, seen: Seen<B::Output>) {
        self.set(Self::Ended { seen });
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

    fn size_with<B: Body>(_: &B) -> usize {
        size_of::<Cell<B::Output>>() + size_of::<Tracked<B>>()
    }

    #[test]
    fn what_every_task_with_a_handle_has_is_small() {
        let captured = [0_u32; 3];
        let task = async move { assert_eq!(captured, [0; 3]) };
        let bytes = size_with(&task);
        assert!(bytes <= 88, "{bytes} bytes, {} its own", size_of_val(&task));
        let bytes = size_of::<crate::TaskHandle<std::sync::Arc<str>, ()>>();
        assert!(bytes <= 64, "{bytes} bytes");
    }
}
