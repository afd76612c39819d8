//! Maps that every message asks several times: hashed quickly, seeded at random for each map.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};
use std::sync::LazyLock;

use foldhash::quality::RandomState;

/// A [`HashMap`]; make it with `default()`.
pub(crate) type Map<K, V> = HashMap<K, V, RandomState>;

/// A [`HashSet`]; make it with `default()`.
pub(crate) type Set<K> = HashSet<K, RandomState>;

/// Stands for a value within this process: for what is compared often and may be long.
pub(crate) fn hash_of(value: impl Hash) -> u64 {
    static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    HASH.hash_one(value)
}
