//! Many tasks submitted and awaited together.

use std::future::{Future, IntoFuture};
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::Executor;
use crate::handle::TaskHandle;
use crate::result::TaskResult;
use crate::rt::Spawner;
use crate::task::Task;

type Ends = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Many tasks submitted and awaited together; made by [`Executor::run_all`].
///
/// Awaiting it submits the tasks. Cancel-safe in this sense: dropped, the tasks that were
/// submitted go on.
#[must_use = "the tasks are submitted when this is awaited"]
pub struct RunAll<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    executor: Executor<K>,
    tasks: Vec<(K, Tk)>,
    deadline: Option<Duration>,
    until: Option<Ends>,
}

impl<K, Tk> RunAll<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    pub(crate) fn new(executor: Executor<K>, tasks: Vec<(K, Tk)>) -> Self {
        Self {
            executor,
            tasks,
            deadline: None,
            until: None,
        }
    }

    /// What has not ended after this long is cancelled.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// What has not ended when this future ends is cancelled.
    pub fn until(mut self, until: impl Future<Output = ()> + Send + 'static) -> Self {
        self.until = Some(Box::pin(until));
        self
    }

    async fn run(self) -> Vec<TaskResult<K, Tk::Output>> {
        let submit = |(key, task)| self.executor.submit(key, task);
        let handles: Vec<_> = self.tasks.into_iter().map(submit).collect();
        let mut waiting = Waiting::new(handles);
        let ends = ends(self.deadline, self.until, self.executor.spawner());
        if waiting.all_or(ends).await {
            waiting.cancel();
            waiting.all_or(Box::pin(std::future::pending())).await;
        }
        waiting.into_results()
    }
}

impl<K, Tk> IntoFuture for RunAll<K, Tk>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Tk: Task,
{
    type Output = Vec<TaskResult<K, Tk::Output>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

fn ends(deadline: Option<Duration>, until: Option<Ends>, spawner: Spawner) -> Ends {
    let mut until = until.unwrap_or_else(|| Box::pin(std::future::pending()));
    match deadline {
        None => until,
        Some(deadline) => Box::pin(async move {
            // Whichever comes first ends the wait.
            let _ = spawner.timeout(deadline, &mut until).await;
        }),
    }
}

/// Handles whose results come in any order.
struct Waiting<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    handles: Vec<TaskHandle<K, T>>,
    results: Vec<Option<TaskResult<K, T>>>,
    /// All before this one are there.
    next: usize,
    /// Those that run only while they are awaited.
    callers: Vec<usize>,
}

impl<K, T> Waiting<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    fn new(handles: Vec<TaskHandle<K, T>>) -> Self {
        let needs_caller = |(_, handle): &(usize, &TaskHandle<K, T>)| handle.needs_caller();
        let callers = handles
            .iter()
            .enumerate()
            .filter(needs_caller)
            .map(|(at, _)| at)
            .collect();
        Self {
            results: handles.iter().map(|_| None).collect(),
            handles,
            next: 0,
            callers,
        }
    }

    /// Waits for all results; `true` when `ends` came first.
    async fn all_or(&mut self, mut ends: Ends) -> bool {
        std::future::poll_fn(|cx| {
            for at in self.callers.clone() {
                self.poll_one(at, cx);
            }
            // One after the other: every result is kept in its handle until it is asked for.
            while self.next < self.handles.len() {
                if !self.poll_one(self.next, cx) {
                    return ends.as_mut().poll(cx).map(|()| true);
                }
                self.next += 1;
            }
            Poll::Ready(false)
        })
        .await
    }

    /// Whether this result is there.
    fn poll_one(&mut self, at: usize, cx: &mut Context<'_>) -> bool {
        if self.results[at].is_none()
            && let Poll::Ready(result) = Pin::new(&mut self.handles[at]).poll(cx)
        {
            self.results[at] = Some(result);
        }
        self.results[at].is_some()
    }

    fn cancel(&self) {
        for handle in &self.handles[self.next..] {
            handle.cancel();
        }
    }

    fn into_results(self) -> Vec<TaskResult<K, T>> {
        self.results.into_iter().flatten().collect()
    }
}
