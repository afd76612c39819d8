//! What is going on in an executor.

use crate::lanes::{Hold, LaneLimits, LaneState};

/// What is going on in an executor.
///
/// `done`, `failed`, `cancelled` and `rejected` count the tasks that have a handle, each once, when
/// its result can be seen. Of [posted](crate::Executor::post) tasks only those count that `post`
/// refuses, as rejected; where the executor has a [`Listener`](crate::Listener), they count as the
/// others do. A [`JobExecutor`](crate::JobExecutor) does not know how its jobs end: there these four
/// are always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Tasks between start and end.
    pub running: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Keys that have something waiting or running.
    pub live_keys: usize,
    /// Tasks that succeeded, and those whose value the rejection handler gave.
    pub done: u64,
    /// Tasks that failed or panicked, and those that the rejection handler let fail.
    pub failed: u64,
    /// Tasks that were cancelled, waiting or running.
    pub cancelled: u64,
    /// Tasks that were not taken or were thrown out before they started, also where their handles
    /// say [`Failed`](crate::Status::Failed) for it ([`Policy::Abort`](crate::Policy::Abort)) or
    /// where they were handed back.
    pub rejected: u64,
    /// Panics of tasks (posted ones too), listeners, rejection handlers, the builder's functions,
    /// and a [`Handler`](crate::Handler). Each is a line in the log.
    pub panics: u64,
}

/// What is going on under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// Tasks between start and end.
    pub running: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// The limits in force.
    pub limits: KeyLimits,
    /// Whether somebody paused it.
    pub paused: bool,
    /// Whether its first task is held back (by a hold, not by limits).
    pub held: bool,
    /// Whether what waited was taken by a flush that is not over; always `false` for an
    /// [`Executor`](crate::Executor).
    pub flushing: bool,
}

/// The limits of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// How many tasks run at once.
    pub concurrency: usize,
    /// How many may wait; `None` means no limit.
    pub queue: Option<usize>,
}

impl KeyStats {
    pub(crate) fn of(state: LaneState) -> Self {
        Self {
            running: state.running,
            queued: state.waiting,
            limits: KeyLimits::of(state.limits),
            paused: state.paused,
            held: state.hold != Hold::Free,
            flushing: state.flushing,
        }
    }
}

impl KeyLimits {
    pub(crate) fn of(limits: LaneLimits) -> Self {
        Self {
            concurrency: limits.concurrency,
            queue: (limits.queue != usize::MAX).then_some(limits.queue),
        }
    }
}
