//! What became of a task.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::task::TaskError;

/// What became of one task.
#[derive(Clone, Debug)]
pub struct TaskResult<K, T> {
    /// The key it was submitted under; `None` for a keyless task.
    pub key: Option<K>,
    /// The id it was given, if any.
    pub id: Option<Arc<str>>,
    /// How it ended.
    pub status: Status<T>,
    /// When it held all permits; `None` if it never started.
    pub started: Option<Instant>,
    /// When it ended.
    pub ended: Instant,
    /// From submit to start (or to the end, if it never started).
    pub waited: Duration,
    /// From start to end.
    pub ran: Duration,
}

impl<K, T> TaskResult<K, T> {
    /// The value, if it succeeded.
    pub fn ok(self) -> Option<T> {
        match self.status {
            Status::Done(value) => Some(value),
            _ => None,
        }
    }

    /// Whether it succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self.status, Status::Done(_))
    }
}

/// How a task ended.
#[derive(Clone, Debug)]
pub enum Status<T> {
    /// It succeeded.
    Done(T),
    /// It failed, or panicked, or found no room under a policy that calls this a failure.
    Failed(TaskError),
    /// It was cancelled.
    Cancelled(Why),
    /// It was not taken, or thrown out before it started.
    Rejected(Reason),
}

impl<T> Status<T> {
    /// Why there was no place for the task, whatever the policy makes of that.
    pub(crate) fn refusal(&self) -> Option<&Reason> {
        match self {
            Self::Rejected(reason) | Self::Failed(TaskError::NoRoom { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    /// The kind alone.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Done(_) => Kind::Done,
            Self::Failed(_) => Kind::Failed,
            Self::Cancelled(_) => Kind::Cancelled,
            Self::Rejected(_) => Kind::Rejected,
        }
    }
}

/// The kind of a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Status::Done`].
    Done,
    /// [`Status::Failed`].
    Failed,
    /// [`Status::Cancelled`].
    Cancelled,
    /// [`Status::Rejected`].
    Rejected,
}

/// Why a task was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Somebody asked for it.
    Asked,
    /// The task itself said so.
    ItSaid,
    /// Its deadline passed.
    Deadline,
    /// Whoever waited did not want to wait longer; the task itself goes on.
    WaitedLongEnough,
    /// Its key was shut down or evicted.
    KeyShutDown,
    /// The executor was shut down or dropped.
    ShutDown,
}

/// Why a task was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The executor takes nothing any more.
    ShutDown,
    /// Too many tasks wait for their turn in this key.
    KeyFull {
        /// The key's queue limit.
        limit: usize,
    },
    /// Too many tasks wait for a permit.
    Full {
        /// The queue limit of all.
        limit: usize,
    },
    /// Its key was drained while it waited.
    Drained,
    /// The rejection handler panicked.
    HandlerPanicked(String),
    /// The rejection handler answered a value of another type than the task's.
    WrongType,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => f.write_str("the executor was shut down"),
            Self::KeyFull { limit } => write!(f, "{limit} tasks of this key wait already"),
            Self::Full { limit } => write!(f, "{limit} tasks wait for a permit already"),
            Self::Drained => f.write_str("its key was drained while it waited"),
            Self::HandlerPanicked(text) => write!(f, "the rejection handler panicked: {text}"),
            Self::WrongType => f.write_str("the rejection handler answered another type"),
        }
    }
}

/// A refused task comes back to whoever submitted it.
pub struct Refused<F> {
    /// The task, never polled.
    pub task: F,
    /// Why.
    pub reason: Reason,
}

impl<F> fmt::Debug for Refused<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({})", self.reason)
    }
}

impl<F> fmt::Display for Refused<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the task was refused: {}", self.reason)
    }
}

impl<F> std::error::Error for Refused<F> {}
