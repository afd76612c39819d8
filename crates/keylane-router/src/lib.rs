//! Messages in from sources, through named pools, out to their targets: in order per key.

#[cfg(feature = "activemq")]
pub mod activemq;
mod audit;
mod blocked;
pub mod breaker;
#[cfg(any(feature = "conformance", feature = "testing"))]
mod chance;
#[cfg(feature = "conformance")]
pub mod conformance;
mod consume;
pub mod counters;
mod delivery;
pub mod dispatch;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error_type;
mod fault;
mod feed;
mod gone_back;
pub mod health;
pub mod history;
mod jitter;
mod lane;
pub mod lease;
mod log_limit;
pub mod machine;
mod map;
pub mod message;
mod one_pool;
pub mod outcome;
mod parcel;
pub mod parse;
pub mod plan;
mod pool;
mod process;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
mod recent;
mod renew;
mod rescue;
mod room;
mod route;
mod router;
mod runs;
mod seats;
mod settle_again;
mod settlements;
mod skips;
pub mod source;
mod source_lanes;
mod spill;
#[cfg(feature = "sqs")]
pub mod sqs;
mod stage;
pub mod store;
mod store_trouble;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod unsettled;
mod verbs;
mod waits;
mod watch;
mod weight;
mod wishes;
mod workers;

pub use router::{Builder, Router, StartError};
pub use verbs::{By, VerbError};

/// How large what a function answers is, without calling it: a future, for one.
#[cfg(test)]
fn size_of_result<A, R>(_: impl FnOnce(A) -> R) -> usize {
    size_of::<R>()
}

/// Locks, also after a panic of a previous owner.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
