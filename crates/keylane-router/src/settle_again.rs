//! Settlements that failed and are tried again, lane by lane: what comes of a lane waits behind them,
//! other lanes do not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::delivery::Settled;
use crate::jitter;
use crate::message::BrokerId;
use crate::room::Place;

const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);

/// What is to be tried again.
#[derive(Default)]
pub(crate) struct Again {
    lanes: HashMap<Arc<Place>, Lane>,
    /// How many settlements wait.
    waiting: usize,
    /// How many lanes there ever were.
    lanes_ever: usize,
    /// Nothing is tried any more.
    gave_up: bool,
}

struct Lane {
    at: Instant,
    back_off: Duration,
    /// To be tried then; empty while they are tried.
    failed: Vec<Settled<BrokerId>>,
    /// What came of the lane since. It is not sent before those have succeeded.
    behind: Vec<Settled<BrokerId>>,
    /// Those that failed first are tried first.
    order: usize,
}

impl Again {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many settlements wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Whether settlements of any lane are held back.
    pub(crate) fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// When the next try is due; `None` when nothing waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        let failed = self.lanes.values().filter(|lane| !lane.failed.is_empty());
        failed.map(|lane| lane.at).min()
    }

    /// What is to be tried by now; the order of each lane stays.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Settled<BrokerId>> {
        let due = self.lanes.values_mut().filter(|lane| lane.at <= now);
        let mut due: Vec<&mut Lane> = due.collect();
        due.sort_by_key(|lane| lane.order);
        let mut all = Vec::new();
        for lane in due {
            all.append(&mut lane.failed);
        }
        self.waiting -= all.len();
        all
    }

    /// All that was taken was tried: what is behind it is next, where it succeeded.
    pub(crate) fn tried(&mut self, now: Instant) {
        if self.gave_up {
            return;
        }
        for lane in self.lanes.values_mut() {
            if lane.failed.is_empty() {
                lane.failed.append(&mut lane.behind);
                (lane.at, lane.back_off) = (now, Duration::ZERO);
            }
        }
        self.lanes.retain(|_, lane| !lane.failed.is_empty());
    }

    /// A settlement waits if others of its lane do; it comes back if not. One that was taken waits
    /// only for what failed once more.
    pub(crate) fn hold_back(
        &mut self,
        place: Option<Arc<Place>>,
        one: Settled<BrokerId>,
        taken: bool,
    ) -> Option<Settled<BrokerId>> {
        let Some(lane) = place.and_then(|place| self.lanes.get_mut(&place)) else {
            return Some(one);
        };
        match taken {
            _ if self.gave_up => return None,
            true if lane.failed.is_empty() => return Some(one),
            true => lane.failed.push(one),
            false => lane.behind.push(one),
        }
        self.waiting += 1;
        None
    }

    /// These failed, in one call. `random` is for the back-off's jitter.
    pub(crate) fn add(&mut self, failed: Vec<(Arc<Place>, Settled<BrokerId>)>, random: u64) {
        let now = Instant::now();
        let (mut longest, mut places) = (Duration::ZERO, Vec::new());
        for (place, one) in failed {
            let lane = self.lanes.entry(place.clone()).or_insert_with(|| Lane {
                at: now,
                back_off: Duration::ZERO,
                failed: Vec::new(),
                behind: Vec::new(),
                order: self.lanes_ever,
            });
            self.lanes_ever += 1;
            if lane.failed.is_empty() {
                let back_off = (lane.back_off * 2).clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF);
                lane.back_off = back_off;
                longest = longest.max(back_off);
                places.push(place);
            }
            if !self.gave_up {
                lane.failed.push(one);
                self.waiting += 1;
            }
        }
        // Together once more: a call costs about the same for one as for many.
        let at = now + jitter::between(random, longest, 0.5, 1.0);
        for place in places {
            if let Some(lane) = self.lanes.get_mut(&place) {
                lane.at = at;
            }
        }
    }

    /// Nothing is tried any more: what waits comes again, and so does what comes of these lanes.
    pub(crate) fn give_up(&mut self) {
        self.gave_up = true;
        self.waiting = 0;
        for lane in self.lanes.values_mut() {
            lane.failed.clear();
            lane.behind.clear();
        }
    }
}
