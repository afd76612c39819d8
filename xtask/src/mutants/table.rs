//! The mutations: every property has at least one that makes it red. `docs/proof.md` says what each shows.
//!
//! To add one, copy an entry. `find` is copied from the code as it stands, long enough to occur only
//! once; when the code moves on, a test of xtask says that it no longer applies.
//!
//! ```text
//! const LANES: TestRun = TestRun {
//!     package: "keylane",
//!     target: &["--test", "it"],
//!     filter: "lanes",
//!     env: &[("KEYLANE_HISTORIES", "20000")],
//! };
//!
//! Mutation {
//!     name: "retry-goes-to-the-back",
//!     invariant: "L2",
//!     file: "crates/keylane/src/lanes.rs",
//!     find: "lane.put_back(item)",
//!     replace: "lane.push(item)",
//!     test: LANES,
//! },
//! ```

use super::mutation::Mutation;

pub(crate) const MUTATIONS: &[Mutation] = &[];
