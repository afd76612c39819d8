//! Rate limits as plain arithmetic: the generic cell rate algorithm.

use std::time::Duration;

use super::Time;

/// So many starts per so long, of which `burst` may come at once.
///
/// In every window of length *w* there are at most `burst + w × count / per` starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    interval: u64,
    slack: u64,
}

impl Rate {
    /// `count` starts per `per`, at most `burst` of them at once (0 counts as 1).
    ///
    /// The executor's timer has steps of a millisecond: for more than 1,000 starts a second, give
    /// `burst` at least what falls into two of them, or less is let through than asked for.
    ///
    /// # Panics
    /// If `count` is 0 or `per` is zero: a rate that never lets anything through is a pause.
    pub fn new(count: u32, per: Duration, burst: u32) -> Self {
        assert!(
            count > 0 && !per.is_zero(),
            "a rate needs a count and a time"
        );
        let per = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX / 2);
        // Rounded up: a hair slower than asked for, never faster.
        let interval = per.div_ceil(u64::from(count)).max(1);
        let slack = interval.saturating_mul(u64::from(burst.max(1) - 1));
        Self { interval, slack }
    }

    /// `count` per second, one at a time.
    pub fn per_second(count: u32) -> Self {
        Self::new(count, Duration::from_secs(1), 1)
    }
}

/// The state of one rate limit: when it will be full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) full_at: Time,
}

impl Bucket {
    /// When the next start is allowed; at or before `now` means now.
    pub(super) fn next_at(&self, rate: Rate) -> Time {
        Time(self.full_at.0.saturating_sub(rate.slack))
    }

    pub(super) fn spend(&mut self, rate: Rate, now: Time) {
        let base = self.full_at.0.max(now.0);
        self.full_at = Time(base.saturating_add(rate.interval));
    }

    /// After a change of rate no debt may outlast what the new rate could owe.
    pub(super) fn rebase(&mut self, rate: Option<Rate>, now: Time) {
        let most = rate.map_or(0, |rate| rate.slack.saturating_add(rate.interval));
        self.full_at = self.full_at.min(Time(now.0.saturating_add(most)));
    }
}
