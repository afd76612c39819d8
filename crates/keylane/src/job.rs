//! How a task runs and ends, and the simplest of them: one whose result nobody waits for.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::clock::Clock;
use crate::joint::{Part, Shared, State};
use crate::lanes::Time;
use crate::result::{Kind, Reason, Status, Why};
use crate::rt::contain;
use crate::task::{Task, TaskError};

/// How a run went, as far as the executor cares. Every run hands it on several times, so it is two
/// whole words.
pub(crate) enum Ran {
    /// Well, and nobody can see a result.
    Unseen,
    /// Well, and to a result of the usual kind.
    Done,
    Other(Box<Other>),
}

pub(crate) struct Other {
    /// The kind by which its result is counted; none where nobody can see that.
    kind: Option<Kind>,
    panicked: Panicked,
}

impl Ran {
    #[inline]
    pub(crate) fn new(kind: Option<Kind>, panicked: Panicked) -> Self {
        match (kind, &panicked.0) {
            (None, None) => Self::Unseen,
            (Some(Kind::Done), None) => Self::Done,
            _ => Self::Other(Box::new(Other { kind, panicked })),
        }
    }

    /// The kind by which its result is counted; none where nobody can see that.
    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Unseen => None,
            Self::Done => Some(Kind::Done),
            Self::Other(other) => other.kind,
        }
    }

    /// The message of its panic, if there was one.
    #[inline]
    pub(crate) fn panicked(&self) -> Option<&str> {
        match self {
            Self::Unseen | Self::Done => None,
            Self::Other(other) => other.panicked.0.as_deref().map(|message| &**message),
        }
    }
}

/// The message of a panic, if there was one: hardly ever, so it is small.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "nearly always none, and one word then"
)]
pub(crate) struct Panicked(pub(crate) Option<Box<String>>);

impl Panicked {
    pub(crate) fn with(message: String) -> Self {
        Self(Some(Box::new(message)))
    }

    /// Drops what is left of a task: its remains may panic as well as itself.
    pub(crate) fn dropping(remains: impl FnOnce()) -> Self {
        contain(remains).map_or_else(Self::with, |()| Self(None))
    }

    /// The first of two.
    pub(crate) fn and(self, then: Self) -> Self {
        match self.0 {
            None => then,
            Some(_) => self,
        }
    }
}

/// How a task ends that does not end by itself.
pub(crate) enum Ending {
    Cancelled(Why),
    /// As its handle asked for.
    Asked,
    Rejected(Reason),
    Failed(TaskError),
    /// With a value that somebody else has for it.
    Value(Box<dyn Any + Send>),
}

impl Ending {
    /// `asked` is why its handle asked it to stop.
    pub(crate) fn status<T: 'static>(self, asked: impl FnOnce() -> Option<Why>) -> Status<T> {
        match self {
            Self::Cancelled(why) => Status::Cancelled(why),
            Self::Asked => Status::Cancelled(asked().unwrap_or(Why::Asked)),
            Self::Rejected(reason) => Status::Rejected(reason),
            Self::Failed(error) => Status::Failed(error),
            Self::Value(value) => match value.downcast::<T>() {
                Ok(value) => Status::Done(*value),
                Err(_) => Status::Rejected(Reason::WrongType),
            },
        }
    }
}

pin_project! {
    /// A posted task: nobody waits for its result.
    pub(crate) struct Posted<Tk> {
        #[pin]
        task: Option<Tk>,
        begun: bool,
    }
}

impl<Tk> Posted<Tk> {
    pub(crate) fn new(task: Tk) -> Self {
        Self {
            task: Some(task),
            begun: false,
        }
    }
}

#[allow(unsafe_code)]
// SAFETY: it has begun as soon as it is polled.
unsafe impl<Tk: Task> Part for Posted<Tk> {
    type Shared = ();

    fn is_new(&self, (): &()) -> bool {
        !self.begun
    }

    fn poll(
        mut self: Pin<&mut Self>,
        (): &(),
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        _: &Clock,
    ) -> Poll<Ran> {
        // Written only where need be: all tasks come by here, and it costs a twentieth of them.
        if before.is_some() {
            *before = None;
        }
        let this = self.as_mut().project();
        *this.begun = true;
        let mut place = this.task;
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
            Ok(Poll::Ready(())) => Poll::Ready(Ran::Unseen),
            Err(message) => {
                let remains = Panicked::dropping(|| self.project().task.set(None));
                Poll::Ready(Ran::new(None, Panicked::with(message).and(remains)))
            }
        }
    }

    fn end(self: Pin<&mut Self>, (): &(), _: Ending, _: Time) -> Ran {
        let panicked = Panicked::dropping(|| self.project().task.set(None));
        Ran::new(None, panicked)
    }

    fn stops_when_dropped(&self) -> bool {
        Tk::STOPS_WHEN_DROPPED
    }

    fn take_task(&mut self) -> Box<dyn Any + Send> {
        Box::new(self.task.take().expect("it never ran"))
    }
}

/// Nobody else.
#[allow(unsafe_code)]
// SAFETY: it has no state.
unsafe impl Shared for () {
    fn state(&self) -> Option<&State> {
        None
    }

    fn seen(&self) {}
}
