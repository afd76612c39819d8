//! Bounds how often the log repeats itself.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// Lets one line a second through.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Mutex<Option<Instant>>,
}

impl LogLimit {
    /// Whether a line may be written at this time.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= EVERY);
        if due {
            *last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_goes_to_the_log() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        let after = |millis| limit.allows(now + Duration::from_millis(millis));
        assert_eq!(
            [after(0), after(1), after(999), after(1000), after(1001)],
            [true, false, false, true, false]
        );
    }
}
