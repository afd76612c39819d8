//! What time it is, counted from when an executor was built.

use std::time::Duration;

use tokio::time::Instant;

use crate::lanes::Time;

#[derive(Clone, Copy)]
pub(crate) struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    #[inline]
    pub(crate) fn time_of(&self, instant: Instant) -> Time {
        let since = instant.saturating_duration_since(self.epoch);
        let seconds = since.as_secs().saturating_mul(1_000_000_000);
        Time(seconds.saturating_add(since.subsec_nanos().into()))
    }

    pub(crate) fn instant_of(&self, time: Time) -> Instant {
        self.epoch + Duration::from_nanos(time.0)
    }
}
