//! What tests, crash loops and benchmarks need: a real HTTP target that records what it gets, one
//! that breaks HTTP, and a proxy that breaks connections.

pub mod fuzz;
mod proxy;
mod raw;
mod recorded;
mod script;
mod target;

pub use proxy::{Accept, End, Fault, Proxy, Way};
pub use raw::{RawAnswer, RawTarget, Step};
pub use script::{Answer, Behaviour, Draw, fixed, random};
pub use target::{Event, EventKind, Events, Recorder, Request, Target, run};
