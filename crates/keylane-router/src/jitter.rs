//! Chance, where those that failed together must not come back together.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// At least `least` and less than `most` of the time.
pub(crate) fn between(time: Duration, least: f64, most: f64) -> Duration {
    time.mul_f64(least + (most - least) * fraction())
}

/// At least 0 and less than 1. Not for secrets: the standard hasher's random keys, anew each time.
fn fraction() -> f64 {
    let random = std::collections::hash_map::RandomState::new();
    (random.build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64
}
