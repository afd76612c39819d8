//! Messages in from sources, through named pools, out to their targets: in order per key.

pub mod breaker;
pub mod dispatch;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod history;
pub mod message;
pub mod outcome;
pub mod parse;
pub mod plan;
pub mod source;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
