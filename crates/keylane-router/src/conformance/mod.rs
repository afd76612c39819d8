//! One ordering contract on all sources: the suite that says whether a source keeps it.
//!
//! An adapter implements [`Source`](crate::source::Source); to have it judged, say by [`Subject`]
//! and [`Queue`] how a queue is made, filled and broken, and let `conformance_tests!` make one
//! test per case:
//!
//! ```ignore
//! mod my_broker {
//!     keylane_router::conformance_tests!(MySubject::new());
//! }
//! ```
//!
//! Each case runs a real router on the source, with a target that writes down every call, and has
//! the checker of [`crate::history`] look for anything lost, overtaken, overlapping or repeated
//! without a cause. What a source's [`Features`](crate::source::Features) exclude is not tried, and
//! said. A case that failed prints its seed and the shortest part of the history that shows it.
//!
//! | variable | |
//! |---|---|
//! | `KEYLANE_CONFORMANCE_SEED` | chooses failures, moments and orders; printed by each case |
//! | `KEYLANE_CONFORMANCE_TIMES` | how often each fault is caused; 2 unless set |

mod cases;
mod child;
mod listen;
mod rig;
mod store;
mod subject;
mod suite;
mod target;
mod watched;

pub use cases::CASES;
pub use child::run_child;
pub use listen::listen;
pub use store::MemoryStore;
pub use subject::{Fault, Published, Queue, Subject};
pub use suite::{Case, End, Summary, Verdict, run, run_all, share, test};
