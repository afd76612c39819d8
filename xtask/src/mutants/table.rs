//! The mutations: every property has at least one that makes it red. `docs/proof.md` says what each shows.
//!
//! To add one, copy an entry. `find` is copied from the code as it stands, long enough to occur only once; when the code
//! moves on, a test of xtask says that it no longer applies.
//!
//! ```text
//! Mutation {
//!     name: "retry-goes-to-the-back",
//!     invariant: "L2",
//!     file: "crates/keylane/src/lanes.rs",
//!     find: "self.waiting.insert_by_sequence(item)",
//!     replace: "self.waiting.push_back(item)",
//!     test: TestRun { filter: "history", ..LANES },
//! },
//! ```

use super::mutation::Mutation;

pub(crate) const MUTATIONS: &[Mutation] = &[];
