//! One attempt of one message: the call of its target, over HTTP or in this process.
//!
//! Reading order: [`http`] makes the call, [`target`] reads the URL, [`headers`] says what the
//! target is told and `sign` signs it, `connections` keeps connections and `dial` opens them,
//! `guard` says whether an address may be called, [`answer`] is the failure table.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::lease::Lease;
use crate::message::{Identity, Message};
use crate::outcome::Outcome;
use crate::plan::{SourceKind, Targets, TimeoutPlan};

pub mod address;
pub mod answer;
mod body;
mod connections;
mod dial;
mod framing;
mod guard;
mod handler;
pub mod headers;
pub mod http;
mod http1;
mod list;
pub mod retry_after;
mod sign;
pub mod target;
pub(crate) mod tls;

pub use self::http::{HttpDispatch, HttpOptions};
pub use dial::{Resolve, Resolving, SystemResolver};
pub use handler::{Handler, HandlerFn, RefHandler, handler, handler_fn};
pub use list::{ListError, TargetList};
pub use sign::{SecretError, Secrets};
pub use tls::Root;

/// What a dispatch is told about one call besides the message.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What the message is known by.
    pub identity: Identity,
    /// Counts the failed attempts before this one, of all rounds, from 1; it never falls back.
    pub number: u32,
    /// The round this attempt belongs to; 0 for the first.
    pub round: u32,
    /// The pool it runs in.
    pub pool: Arc<str>,
    /// Monotone per lane, where the source has positions.
    pub position: Option<u64>,
    /// The numbered place in which it runs, for span and log.
    pub slot: usize,
    /// How long it may take.
    pub timeout: TimeoutPlan,
    /// Which targets may be called. Shared, because every attempt carries it.
    pub targets: Arc<Targets>,
    /// What the request is signed with.
    pub secrets: Secrets,
    /// Until when the message may be acted on; `None` = as long as it is held. A dispatch that
    /// waits for anything asks it again at the last moment before it writes.
    pub lease: Option<Arc<Lease>>,
}

impl Attempt {
    /// Whether the call may be made now.
    pub fn lease_holds(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.holds())
    }
}

/// Makes one attempt. HTTP is one implementation, a function of the embedding program another.
///
/// Dropping the future ends the attempt. A dispatch keeps no promise of its own about order or
/// repetition: it is called once per attempt.
pub trait Dispatch: Send + Sync + 'static {
    /// Calls the target once and says what came of it.
    fn attempt<'a>(
        &'a self,
        message: &'a Message,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Outcome> + Send + 'a;

    /// Whom a message for this target would be sent to (`https://host:443`): what a circuit breaker
    /// goes by. `None` where no breaker applies: calls in this process, targets that cannot be
    /// called. Not asked for every message: many have the same target.
    fn origin(&self, target: &str) -> Option<Arc<str>> {
        let _ = target;
        None
    }

    /// Tells of a source before any message of it is attempted.
    fn source_added(&self, name: &Arc<str>, kind: &SourceKind) {
        let _ = (name, kind);
    }
}

/// [`Dispatch`] behind a pointer, so that what holds one need not be generic. Every `Dispatch`
/// is one.
pub trait DynDispatch: Send + Sync + 'static {
    /// As [`Dispatch::attempt`].
    fn attempt_boxed<'a>(
        &'a self,
        message: &'a Message,
        attempt: &'a Attempt,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

    /// As [`Dispatch::origin`].
    fn origin_of(&self, target: &str) -> Option<Arc<str>>;

    /// As [`Dispatch::source_added`].
    fn told_of(&self, name: &Arc<str>, kind: &SourceKind);
}

impl<D: Dispatch> DynDispatch for D {
    fn attempt_boxed<'a>(
        &'a self,
        message: &'a Message,
        attempt: &'a Attempt,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>> {
        Box::pin(self.attempt(message, attempt))
    }

    fn origin_of(&self, target: &str) -> Option<Arc<str>> {
        // Its attempt will tell; whoever asks here has other messages to see to.
        let origin = std::panic::AssertUnwindSafe(|| self.origin(target));
        std::panic::catch_unwind(origin).unwrap_or_else(|_| {
            tracing::error!("the origin of a target could not be told: the dispatch panicked");
            None
        })
    }

    fn told_of(&self, name: &Arc<str>, kind: &SourceKind) {
        self.source_added(name, kind);
    }
}
