//! A function of the embedding program as a dispatch: no HTTP between the queue and the work.

use std::future::Future;
use std::sync::Arc;

use super::{Attempt, Dispatch};
use crate::message::Message;
use crate::outcome::Outcome;

/// Makes a dispatch of a closure that owns its message.
///
/// ```
/// use keylane_router::dispatch::handler_fn;
/// use keylane_router::outcome::Outcome;
///
/// let dispatch = handler_fn(|message| async move {
///     println!("{} for {:?}", message.id, message.key);
///     Outcome::Delivered
/// });
/// # let _ = dispatch;
/// ```
pub fn handler_fn<F, Fut>(call: F) -> HandlerFn<F>
where
    F: Fn(Arc<Message>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    HandlerFn { call }
}

/// Made by [`handler_fn`].
#[derive(Clone, Debug)]
pub struct HandlerFn<F> {
    call: F,
}

impl<F, Fut> Dispatch for HandlerFn<F>
where
    F: Fn(Arc<Message>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    async fn attempt<'a>(&'a self, message: &'a Message, _attempt: &'a Attempt) -> Outcome {
        (self.call)(Arc::new(message.clone())).await
    }
}

/// Makes a dispatch of an `async fn(&Message) -> Outcome`.
///
/// ```
/// use keylane_router::{dispatch::handler, message::Message, outcome::Outcome};
///
/// async fn work(message: &Message) -> Outcome {
///     println!("{} bytes", message.payload.len());
///     Outcome::Delivered
/// }
/// let dispatch = handler(work);
/// # let _ = dispatch;
/// ```
pub fn handler<F>(call: F) -> RefHandler<F>
where
    F: for<'a> Handler<'a>,
{
    RefHandler { call }
}

/// An `async fn(&Message) -> Outcome`; implemented for every such function.
///
/// A trait of its own because a bound cannot say of an `async fn` that its future is `Send` for
/// every lifetime of its argument.
pub trait Handler<'a>: Send + Sync + 'static {
    /// What the function returns.
    type Future: Future<Output = Outcome> + Send + 'a;

    /// Calls it.
    fn call(&self, message: &'a Message) -> Self::Future;
}

impl<'a, F, Fut> Handler<'a> for F
where
    F: Fn(&'a Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'a,
{
    type Future = Fut;

    fn call(&self, message: &'a Message) -> Fut {
        self(message)
    }
}

/// Made by [`handler`].
#[derive(Clone, Debug)]
pub struct RefHandler<F> {
    call: F,
}

impl<F> Dispatch for RefHandler<F>
where
    F: for<'a> Handler<'a>,
{
    fn attempt<'a>(
        &'a self,
        message: &'a Message,
        _attempt: &'a Attempt,
    ) -> impl Future<Output = Outcome> + Send + 'a {
        self.call.call(message)
    }
}
