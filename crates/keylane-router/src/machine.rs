//! What the router and its stores take from the machine: time, chance, and a place for work that
//! blocks.
//!
//! Waits of the router itself go by tokio's clock, which a paused runtime rules.

use std::any::Any;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::{Instant, SystemTime};

use tokio::sync::oneshot;

/// Work that may block.
pub type Work = Box<dyn FnOnce() + Send>;

/// Clocks, randomness and blocking work. Each method does what the real machine does; a test
/// overrides what it wants to rule.
pub trait Machine: Send + Sync + 'static {
    /// The monotonic clock, by which everything in memory waits.
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// The wall clock, by which delays are stored. It may step.
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Ends when [`Machine::now`] has reached `at`.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    /// A random number. Not for secrets.
    fn random(&self) -> u64 {
        // The standard hasher's keys, new for each call.
        let keys = std::collections::hash_map::RandomState::new();
        keys.build_hasher().finish()
    }

    /// Runs work that may block, beside the caller.
    fn run(&self, work: Work) {
        drop(tokio::task::spawn_blocking(work));
    }

    /// Whether the embedded database may have threads of its own. Otherwise it hands everything
    /// it has to do to [`Machine::run`].
    fn has_threads(&self) -> bool {
        true
    }

    /// Asked before the embedded database commits: `false` undoes the transaction, as the end of
    /// the process at this moment would.
    fn commits(&self) -> bool {
        true
    }
}

/// The real machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealMachine;

impl Machine for RealMachine {}

/// Runs work that may block and returns its result, or the text of its panic. A dropped future
/// drops the result.
pub(crate) async fn blocking<T: Send + 'static>(
    machine: &dyn Machine,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (send, receive) = oneshot::channel();
    machine.run(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        let _ = send.send(result.map_err(|panic| text_of(&*panic)));
    }));
    let ended = |_| Err("the runtime ends".to_owned());
    receive.await.unwrap_or_else(ended)
}

/// What a panic said.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
