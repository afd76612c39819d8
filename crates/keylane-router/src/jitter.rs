//! Random waits, so that what failed together is not retried together.

use std::time::Duration;

/// At least `least` and less than `most` of `time`. `random` is of
/// [`Machine::random`](crate::machine::Machine::random).
pub(crate) fn between(random: u64, time: Duration, least: f64, most: f64) -> Duration {
    let fraction = (random >> 11) as f64 / (1_u64 << 53) as f64;
    time.mul_f64(least + (most - least) * fraction)
}
