//! What the router promises, over real HTTP and real files.

mod breaker;
mod dispatch;
#[cfg(feature = "embedded")]
mod embedded;
mod parse;
#[cfg(feature = "embedded")]
mod router;
