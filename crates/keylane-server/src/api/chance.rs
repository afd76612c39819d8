//! Random numbers for seeds and test targets, where nothing depends on them.

use std::hash::{BuildHasher as _, RandomState};

/// A number below `end`.
pub(super) fn below(end: u64) -> u64 {
    RandomState::new().hash_one(()) % end
}
