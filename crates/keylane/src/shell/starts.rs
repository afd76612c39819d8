//! What starts next, and how much of it at once.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::first_polls::RunnerId;
use super::{BATCH, Shell, State, Work};
use crate::lanes::{Hold, Next, Ticket, Time};
use crate::permits::Kick;
use crate::rt::contain;

/// As [`BATCH`], where others poll what is started: they are to find enough of it.
const LARGE_BATCH: usize = 4 * BATCH;
/// How long a batch should keep its runner busy, in nanoseconds.
pub(super) const BATCH_NANOS: u32 = 50_000;

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// Takes in what was submitted, some of it, and the next batch of starts for a runner that has
    /// polled all it had; answers whether there may be more.
    pub(super) fn take_starts(
        &self,
        state: &mut State<K, W::Job>,
        runner: RunnerId,
        batch: &mut Vec<(Ticket, W::Job)>,
    ) -> bool {
        let most = self.batch();
        let plain = !W::GATED
            && self.permits.is_none()
            && self.is_one_by_one(state)
            && state.first_polls.is_empty();
        // What is short waits where it was submitted rather than in many lanes far away.
        let keep_few = plain && most >= BATCH && state.many_keys;
        if plain && state.lanes.ready() < most {
            self.fill(state, runner, batch, most);
            self.take_in_and_start(state, batch, most, !keep_few);
        } else {
            // Never nothing: what is ready may last for ever.
            let intake = if keep_few { most / 2 } else { self.intake() };
            state.take_in(&self.inbox.0, intake);
        }
        self.fill(state, runner, batch, most)
    }

    /// Takes so many starts in turn for a runner that has polled all it had; answers whether there
    /// may be more.
    #[inline]
    pub(super) fn fill(
        &self,
        state: &mut State<K, W::Job>,
        runner: RunnerId,
        batch: &mut Vec<(Ticket, W::Job)>,
        most: usize,
    ) -> bool {
        if !state.first_polls.is_empty() {
            batch.extend(state.first_polls.polled(runner));
        }
        let one_by_one = self.is_one_by_one(state);
        let now = self.tick(state);
        for _ in batch.len()..most {
            let Some(start) = self.next(state, now) else {
                return false;
            };
            if one_by_one {
                batch.push(start);
            } else {
                let lane = state.lanes.lane_of(&start.0);
                batch.extend(state.first_polls.taken(runner, lane, start));
            }
        }
        true
    }

    /// What time it is, for starts.
    #[inline]
    pub(super) fn tick(&self, state: &mut State<K, W::Job>) -> Time {
        state.rate_at = None;
        if !state.lanes.needs_clock() {
            return Time(0);
        }
        let now = self.now();
        state.lanes.tick(now);
        now
    }

    /// The next start in turn.
    #[inline]
    pub(super) fn next(&self, state: &mut State<K, W::Job>, now: Time) -> Option<(Ticket, W::Job)> {
        if state.lanes.ready() == 0 || !self.take_permit() {
            return None;
        }
        let gate = |_: &K, job: &W::Job| {
            let until = contain(|| self.work.gate(job)).unwrap_or_else(|message| {
                self.work.panicked("gate", &message);
                None
            });
            until.map_or(Hold::Free, |until| self.hold_of(&until))
        };
        match state.lanes.next(now, gate) {
            Next::Start(ticket, job) => Some((ticket, job)),
            other => {
                if let Next::RateUntil(at) = other {
                    state.rate_at = Some(at);
                }
                self.give_permit();
                None
            }
        }
    }

    #[inline]
    fn take_permit(&self) -> bool {
        let Some(permits) = &self.permits else {
            return true;
        };
        permits.take_or_wait(|| {
            let first = !self.wants_permit.swap(true, Ordering::SeqCst);
            first.then(|| self.me.clone() as Weak<dyn Kick>)
        })
    }

    fn give_permit(&self) {
        if let Some(permits) = &self.permits {
            permits.give(1);
        }
    }

    /// How many starts to take at once, going by what a poll took lately.
    pub(super) fn batch(&self) -> usize {
        if cfg!(keylane_shuttle) {
            // What is explored must not depend on the clock.
            return BATCH;
        }
        let most = if self.are_pending() {
            LARGE_BATCH
        } else {
            BATCH
        };
        let nanos = self.pace.0.poll_nanos.load(Ordering::Relaxed).max(1);
        ((BATCH_NANOS / nanos) as usize).clamp(1, most)
    }

    /// The most submits that a runner takes in before it takes starts: not fewer than those, so that
    /// the rest does not wait for ever, and not so many that nothing runs meanwhile.
    pub(super) fn intake(&self) -> usize {
        if cfg!(keylane_shuttle) {
            1
        } else if self.are_pending() {
            LARGE_BATCH
        } else {
            2 * BATCH
        }
    }

    /// Whether the runs of late were not ready at their first poll.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) as usize >= BATCH
    }

    pub(super) fn note_pending(&self, count: usize) {
        if !self.are_pending() {
            let old = self.pending.load(Ordering::Relaxed);
            self.pending
                .store(old.saturating_add(count as u32), Ordering::Relaxed);
        }
    }

    pub(super) fn note_ready(&self) {
        if self.pending.load(Ordering::Relaxed) != 0 {
            self.pending.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_one_by_one(&self, state: &State<K, W::Job>) -> bool {
        state.lanes.limits().lane.concurrency <= 1 && !self.work.has_specs()
    }

    pub(super) fn note_polls(&self, polls: usize, took: std::time::Duration) {
        let each = took.as_nanos() as u64 / polls.max(1) as u64;
        let old = u64::from(self.pace.0.poll_nanos.load(Ordering::Relaxed));
        let new = (old * 3 + each * 5) / 8;
        self.pace
            .0
            .poll_nanos
            .store(new.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}
