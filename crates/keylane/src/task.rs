//! What can be submitted: any future, a fallible one, or blocking work.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::result::Reason;

/// A unit of work.
///
/// Every `Future + Send + 'static` is a task: its output is the result. [`fallible`] makes one of a
/// future that answers a [`Result`], [`blocking`] one of a closure that blocks its thread.
pub trait Task: Send + 'static {
    /// What it comes to.
    type Output: Send + 'static;
    /// Whether dropping it stops it. Blocking work goes on, so its lane waits for it.
    const STOPS_WHEN_DROPPED: bool = true;

    /// As [`Future::poll`].
    fn poll_task(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict<Self::Output>>;
}

/// What a task says of itself.
#[derive(Debug)]
pub enum Verdict<T> {
    /// It succeeded.
    Done(T),
    /// It failed.
    Failed(TaskError),
    /// It was not carried out, and that is no failure.
    Cancelled,
}

impl<F> Task for F
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    type Output = F::Output;

    fn poll_task(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict<F::Output>> {
        self.poll(cx).map(Verdict::Done)
    }
}

pin_project! {
    /// A task that may fail; made by [`fallible`].
    #[derive(Debug)]
    pub struct Fallible<F> {
        #[pin]
        future: F,
    }
}

/// A task of a future that answers a `Result`: `Ok` is [`Status::Done`](crate::Status::Done), an
/// error [`Status::Failed`](crate::Status::Failed), and the error [`Cancelled`]
/// [`Status::Cancelled`](crate::Status::Cancelled).
pub fn fallible<F>(future: F) -> Fallible<F> {
    Fallible { future }
}

impl<F, T, E> Task for Fallible<F>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    type Output = T;

    fn poll_task(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict<T>> {
        let verdict = match ready!(self.project().future.poll(cx)) {
            Ok(value) => Verdict::Done(value),
            Err(error) => judge(error.into()),
        };
        Poll::Ready(verdict)
    }
}

fn judge<T>(error: Box<dyn Error + Send + Sync>) -> Verdict<T> {
    if error.is::<Cancelled>() {
        Verdict::Cancelled
    } else {
        Verdict::Failed(TaskError::Failed(error.into()))
    }
}

/// The error by which a [`fallible`] task says that it was cancelled rather than failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled")
    }
}

impl Error for Cancelled {}

/// A closure that blocks its thread; made by [`blocking`].
pub struct Blocking<F, T> {
    work: Work<F, T>,
}

enum Work<F, T> {
    Waits(F),
    Runs(tokio::task::JoinHandle<T>),
    Over,
}

/// A task of a closure that blocks; it runs on the runtime's threads for blocking work.
///
/// It cannot be stopped once it runs: cancelling it then, or shutting down, waits for it.
pub fn blocking<F, T>(work: F) -> Blocking<F, T>
where
    F: FnOnce() -> T + Send + Unpin + 'static,
    T: Send + 'static,
{
    Blocking {
        work: Work::Waits(work),
    }
}

impl<F, T> fmt::Debug for Blocking<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

impl<F, T> Task for Blocking<F, T>
where
    F: FnOnce() -> T + Send + Unpin + 'static,
    T: Send + 'static,
{
    type Output = T;
    const STOPS_WHEN_DROPPED: bool = false;

    fn poll_task(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict<T>> {
        if let Work::Waits(_) = self.work {
            let Work::Waits(work) = std::mem::replace(&mut self.work, Work::Over) else {
                unreachable!("it was waiting just now");
            };
            self.work = Work::Runs(tokio::task::spawn_blocking(work));
        }
        let Work::Runs(handle) = &mut self.work else {
            unreachable!("a task is not polled after its end");
        };
        let verdict = match ready!(Pin::new(handle).poll(cx)) {
            Ok(value) => Verdict::Done(value),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Verdict::Cancelled,
        };
        Poll::Ready(verdict)
    }
}

/// Why a task failed.
#[derive(Clone, Debug)]
pub enum TaskError {
    /// The task answered this error.
    Failed(Arc<dyn Error + Send + Sync>),
    /// The task panicked with this message.
    Panicked(String),
    /// There was no room for it, and the policy says that this is a failure.
    NoRoom {
        /// The task's id, if it has one.
        id: Option<Arc<str>>,
        /// What was full.
        reason: Reason,
    },
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Panicked(message) => write!(f, "the task panicked: {message}"),
            Self::NoRoom { id: None, reason } => write!(f, "no room for the task: {reason}"),
            Self::NoRoom {
                id: Some(id),
                reason,
            } => write!(f, "no room for the task {id:?}: {reason}"),
        }
    }
}

impl Error for TaskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error.as_ref()),
            Self::Panicked(_) | Self::NoRoom { .. } => None,
        }
    }
}
