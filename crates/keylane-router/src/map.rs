//! Maps that every message asks several times: hashed quickly, seeded at random for each map.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

/// A [`HashMap`]; make it with `default()`.
pub(crate) type Map<K, V> = HashMap<K, V, RandomState>;

/// A [`HashSet`]; make it with `default()`.
pub(crate) type Set<K> = HashSet<K, RandomState>;
