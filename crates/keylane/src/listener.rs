//! Who is told what happens to tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lanes::Time;
use crate::result::{Kind, Reason, Why};
use crate::rt::contain;
use crate::task::TaskError;

/// What a listener is told of a task.
#[derive(Clone, Debug)]
pub struct TaskInfo<K> {
    /// The key it was submitted under; `None` for a keyless task.
    pub key: Option<K>,
    /// The id it was given, if any.
    pub id: Option<Arc<str>>,
}

/// Is told what happens to tasks. For every task `submitted` comes once, and then exactly one of
/// `completed`, `rejected` and `cancelled`; `started` comes once for those that ran. Where there is a
/// listener, it is told of posted tasks too.
///
/// Called outside all locks, so it may call the executor. A panic is logged and counted, and
/// disturbs nothing.
pub trait Listener<K>: Send + Sync + 'static {
    /// Somebody wants the task run.
    fn submitted(&self, task: &TaskInfo<K>) {
        let _ = task;
    }

    /// The task holds all permits and is about to run.
    fn started(&self, task: &TaskInfo<K>, waited: Duration) {
        let _ = (task, waited);
    }

    /// The task ended by itself: it succeeded, or failed with this error
    /// ([`Failed`](TaskError::Failed) or [`Panicked`](TaskError::Panicked), never
    /// [`NoRoom`](TaskError::NoRoom), which is a rejection).
    fn completed(&self, task: &TaskInfo<K>, result: Result<(), &TaskError>, ran: Duration) {
        let _ = (task, result, ran);
    }

    /// The task was not taken, or was thrown out before it started.
    fn rejected(&self, task: &TaskInfo<K>, reason: &Reason) {
        let _ = (task, reason);
    }

    /// The task was cancelled, waiting or running.
    fn cancelled(&self, task: &TaskInfo<K>, why: Why) {
        let _ = (task, why);
    }
}

/// Tells a listener of one task, whatever its key is.
pub(crate) trait Tell: Send + Sync {
    fn submitted(&self);
    fn started(&self, at: Time);
    fn ended(&self, end: End<'_>, ran: Duration);
}

/// What a listener hears of how a task ended.
pub(crate) enum End<'a> {
    Done,
    Failed(&'a TaskError),
    Cancelled(Why),
    Rejected(&'a Reason),
}

pub(crate) struct Told<K> {
    pub(crate) common: Arc<Common<K>>,
    pub(crate) task: TaskInfo<K>,
    pub(crate) submitted: Time,
}

impl<K: Send + Sync + 'static> Tell for Told<K> {
    fn submitted(&self) {
        self.common.tell(|listener| listener.submitted(&self.task));
    }

    fn started(&self, at: Time) {
        let waited = at.since(self.submitted);
        self.common
            .tell(|listener| listener.started(&self.task, waited));
    }

    fn ended(&self, end: End<'_>, ran: Duration) {
        let task = &self.task;
        self.common.tell(|listener| match end {
            End::Done => listener.completed(task, Ok(()), ran),
            End::Failed(error) => listener.completed(task, Err(error), ran),
            End::Cancelled(why) => listener.cancelled(task, why),
            End::Rejected(reason) => listener.rejected(task, reason),
        });
    }
}

/// What all tasks of an executor share: its name, its listener, its counters.
pub(crate) struct Common<K> {
    pub(crate) name: Arc<str>,
    pub(crate) listener: Option<Arc<dyn Listener<K>>>,
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) panics: AtomicU64,
    #[cfg(feature = "metrics")]
    pub(crate) exported: crate::export::Exported,
}

impl<K> Common<K> {
    pub(crate) fn new(name: Arc<str>, listener: Option<Arc<dyn Listener<K>>>) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            exported: crate::export::Exported::new(&name),
            name,
            listener,
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// Tells the listener, if there is one.
    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Listener<K>)) {
        if let Some(listener) = &self.listener
            && let Err(message) = contain(|| event(listener.as_ref()))
        {
            self.panicked("listener", &message);
        }
    }

    pub(crate) fn panicked(&self, who: &str, message: &str) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(executor = &*self.name, "a {who} panicked: {message}");
    }

    pub(crate) fn count(&self, kind: Kind, how_many: usize) {
        let counter = match kind {
            Kind::Done => &self.done,
            Kind::Failed => &self.failed,
            Kind::Cancelled => &self.cancelled,
            Kind::Rejected => &self.rejected,
        };
        counter.fetch_add(how_many as u64, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        if kind == Kind::Rejected {
            self.exported.rejected(how_many);
        }
    }
}
