//! What the executor's tests share: gates that tasks wait at, a count of what runs, a record of
//! events.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Executor, Listener, Reason, Status, TaskError, TaskInfo, TaskResult, Why};
use tokio::sync::{Semaphore, mpsc};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A runtime with one worker and timers, for tests that are outside of it.
pub(crate) fn one_worker() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap()
}

/// How many run now, and how many ran at once at most. Clones are the same count.
#[derive(Clone, Default)]
pub(crate) struct Peak {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Peak {
    /// Counts one until the answer is dropped.
    pub(crate) fn enter(&self) -> Inside {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Inside(self.now.clone())
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    /// A task that is counted while it sleeps.
    pub(crate) fn sleeps(
        &self,
        time: Duration,
    ) -> impl Future<Output = ()> + Send + use<> + 'static {
        let peak = self.clone();
        async move {
            let _inside = peak.enter();
            tokio::time::sleep(time).await;
        }
    }
}

pub(crate) struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A door that tasks say they have reached and then wait at. Clones are the same door.
#[derive(Clone)]
pub(crate) struct Door {
    open: Arc<Semaphore>,
    reached: mpsc::UnboundedSender<()>,
    seen: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>>,
}

impl Door {
    pub(crate) fn closed() -> Self {
        let (reached, seen) = mpsc::unbounded_channel();
        Self {
            open: Arc::new(Semaphore::new(0)),
            reached,
            seen: Arc::new(tokio::sync::Mutex::new(seen)),
        }
    }

    /// Lets so many through.
    pub(crate) fn let_in(&self, count: usize) {
        self.open.add_permits(count);
    }

    /// Waits until one more task has reached the door.
    pub(crate) async fn reached(&self) {
        self.seen
            .lock()
            .await
            .recv()
            .await
            .expect("we hold a sender");
    }

    /// A task that goes through the door.
    pub(crate) fn passes<T: Send + 'static>(
        &self,
        value: T,
    ) -> impl Future<Output = T> + Send + use<T> + 'static {
        let door = self.clone();
        async move {
            door.reached.send(()).expect("we hold the receiver");
            door.open.acquire().await.expect("never closed").forget();
            value
        }
    }
}

/// Lets everything that can happen without time going on happen.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn executor() -> Executor<&'static str> {
    Executor::builder().build().unwrap()
}

/// A short word for how a task ended.
pub(crate) fn word<K, T>(result: &TaskResult<K, T>) -> &'static str {
    match &result.status {
        Status::Done(_) => "done",
        Status::Failed(_) => "failed",
        Status::Cancelled(_) => "cancelled",
        Status::Rejected(_) => "rejected",
    }
}

pub(crate) fn why<K, T>(result: &TaskResult<K, T>) -> Option<Why> {
    match &result.status {
        Status::Cancelled(why) => Some(*why),
        _ => None,
    }
}

pub(crate) fn reason<K, T>(result: &TaskResult<K, T>) -> Option<Reason> {
    match &result.status {
        Status::Rejected(reason) => Some(reason.clone()),
        _ => None,
    }
}

/// Nothing waits, runs or lives.
pub(crate) fn assert_nothing_left<K>(executor: &Executor<K>)
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
{
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (0, 0, 0));
}

/// Writes down every event as a line.
#[derive(Clone, Default)]
pub(crate) struct Record {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Record {
    fn note(&self, event: &str, task: &TaskInfo<&'static str>, more: &str) {
        let key = task.key.unwrap_or("-");
        let id = task.id.as_deref().unwrap_or("-");
        let line = format!("{event} {key} {id} {more}");
        self.lines.lock().unwrap().push(line.trim_end().to_owned());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, event: &str) -> usize {
        let lines = self.lines();
        lines.iter().filter(|line| line.starts_with(event)).count()
    }

    /// submitted = completed + rejected + cancelled.
    pub(crate) fn assert_balanced(&self, submitted: usize) {
        let ends = ["completed", "rejected", "cancelled"].map(|event| self.count(event));
        assert_eq!(self.count("submitted"), submitted);
        assert_eq!(ends.iter().sum::<usize>(), submitted, "{:?}", self.lines());
    }
}

impl Listener<&'static str> for Record {
    fn submitted(&self, task: &TaskInfo<&'static str>) {
        self.note("submitted", task, "");
    }

    fn started(&self, task: &TaskInfo<&'static str>, waited: Duration) {
        self.note("started", task, &format!("{waited:?}"));
    }

    fn completed(
        &self,
        task: &TaskInfo<&'static str>,
        result: Result<(), &TaskError>,
        ran: Duration,
    ) {
        let how = result.map_or_else(|error| format!("({error})"), |()| "well".to_owned());
        self.note("completed", task, &format!("{how} {ran:?}"));
    }

    fn rejected(&self, task: &TaskInfo<&'static str>, reason: &Reason) {
        self.note("rejected", task, &format!("{reason:?}"));
    }

    fn cancelled(&self, task: &TaskInfo<&'static str>, why: Why) {
        self.note("cancelled", task, &format!("{why:?}"));
    }
}
