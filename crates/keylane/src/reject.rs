//! What happens to a task for which there is no room.

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use crate::result::Reason;

/// What happens to a task for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Its handle ends [`Failed`](crate::Status::Failed), naming the task and what was full. In
    /// [`Stats`](crate::Stats) and for a [`Listener`](crate::Listener) it is a rejection.
    #[default]
    Abort,
    /// Its handle ends [`Rejected`](crate::Status::Rejected).
    Discard,
    /// It takes its place in spite of the queue limit, and whoever awaits the handle runs it when
    /// its turn comes: never beyond the limits, never out of order. The lane waits for that: await
    /// the handle, or drop it (which cancels the task). [Blocking work](crate::blocking) that is
    /// cancelled while it runs in this way frees its key at once, and goes on beside what is next.
    CallerRuns,
    /// It runs at once, outside all limits and out of order; shutting down neither waits for it
    /// nor stops it.
    RunUnlimited,
}

/// A task for which there is no room, as a rejection handler sees it.
#[derive(Clone, Debug)]
pub struct Rejection<K> {
    /// The task's key; `None` for a keyless one.
    pub key: Option<K>,
    /// The task's id, if it has one.
    pub id: Option<Arc<str>>,
    /// Why there is no room.
    pub reason: Reason,
}

/// What a rejection handler decides.
pub enum Decision {
    /// As this policy says.
    Follow(Policy),
    /// The task counts as done with this value, which must be of its output's type.
    Value(Box<dyn Any + Send>),
    /// The task counts as failed with this error.
    Fail(Box<dyn Error + Send + Sync>),
}

pub(crate) type RejectHandler<K> = Arc<dyn Fn(&Rejection<K>) -> Decision + Send + Sync>;
