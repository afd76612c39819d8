//! What tests, crash loops and benchmarks need: a real HTTP target that records what it gets.

mod recorded;
mod script;
mod target;

pub use script::{Answer, Behaviour, Draw, fixed, random};
pub use target::{Event, EventKind, Events, Recorder, Request, Target, run};
