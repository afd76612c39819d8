//! Time for the embedded queue: waits go by the monotonic clock, what is stored by the wall clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::machine::Machine;

/// Both clocks at one moment, read by the caller: the writer thread has no clock of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) wall: SystemTime,
}

impl Moment {
    pub(super) fn of(machine: &dyn Machine) -> Self {
        Self {
            now: machine.now(),
            wall: machine.wall(),
        }
    }

    /// The monotonic moment at which something stored with this wall-clock time is due. Never
    /// later than `whole` from now: a clock that was set back must not lengthen a delay.
    pub(super) fn due(&self, stored: i64, whole: Duration) -> Option<Instant> {
        let left = Duration::from_millis(stored.saturating_sub(millis(self.wall)).max(0) as u64);
        let left = left.min(whole);
        (!left.is_zero()).then(|| self.now + left)
    }
}

/// When the file was opened, by both clocks. Delays are stored by a wall clock of our own that began
/// then and never steps: within one process it is exact, whatever is done to the machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    pub(super) opened: Moment,
    /// Rows from this sequence on were stored by this process.
    pub(super) first_seq: u64,
}

impl Epoch {
    /// What is stored for something that is due `delay` from now.
    pub(super) fn stored_due(&self, now: Instant, delay: Duration) -> i64 {
        let since = now.saturating_duration_since(self.opened.now);
        millis(self.opened.wall + since + delay)
    }

    /// The monotonic moment at which a row is due; `None` when it was so before we opened. A row of
    /// an earlier process waits at most its whole delay from the opening: the machine's clock may
    /// have been set back since.
    pub(super) fn due(&self, seq: u64, stored: i64, whole: Duration) -> Option<Instant> {
        let left = stored.saturating_sub(millis(self.opened.wall)).max(0) as u64;
        let mut left = Duration::from_millis(left);
        if seq < self.first_seq {
            left = left.min(whole);
        }
        (!left.is_zero()).then(|| self.opened.now + left)
    }
}

/// A wall-clock time as the file has it.
pub(super) fn millis(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}

/// A time of the file.
pub(super) fn from_millis(stored: i64) -> SystemTime {
    if stored >= 0 {
        UNIX_EPOCH + Duration::from_millis(stored as u64)
    } else {
        UNIX_EPOCH - Duration::from_millis(stored.unsigned_abs())
    }
}
