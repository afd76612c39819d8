//! How many messages the lanes of a pool have in memory, running ones included, and their bytes. A
//! message has its seat from when it is put into its lane until its loan ends.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::delivery::Delivery;
use crate::lane::LaneId;
use crate::map::{Map, Set};

/// The seats of one pool.
#[derive(Debug)]
pub(crate) struct Seats {
    state: Mutex<State>,
    /// Rung when a lane has room that a source waits for. All pools have the same.
    bell: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    lanes: Map<LaneId, Taken>,
    /// Of lanes that sources share: how many messages each of them has there.
    parts: Map<(LaneId, Arc<str>), usize>,
    /// Lanes that had no room when a source wanted some.
    wanted: Set<LaneId>,
}

/// What a lane has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
}

/// How much a lane may have for a source to put one more message into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Messages of the lane.
    pub(crate) messages: usize,
    /// Messages of this source in the lane.
    pub(crate) part: usize,
    /// Bytes of the lane.
    pub(crate) bytes: u64,
}

/// The place of one message, to be given up with [`Seat::leave`].
#[derive(Debug)]
pub(crate) struct Seat(Arc<Seats>);

impl Seat {
    /// The message has left its lane.
    pub(crate) fn leave(self, delivery: &Delivery) {
        self.0.leave(delivery);
    }
}

impl State {
    fn has_room(&self, lane: &LaneId, source: &Arc<str>, bytes: u64, most: Most) -> bool {
        let Some(taken) = self.lanes.get(lane) else {
            // An empty lane always takes one.
            return true;
        };
        let part = match lane.has_sources() {
            true => self.parts.get(&(lane.clone(), source.clone())).copied(),
            false => Some(taken.messages),
        };
        taken.messages < most.messages
            && part.unwrap_or(0) < most.part
            && taken.bytes.saturating_add(bytes) <= most.bytes
    }
}

impl Seats {
    pub(crate) fn new(bell: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            bell,
        })
    }

    /// Takes a seat, whether or not there is room; `true` when there was. With `limited` there is no
    /// seat without room, and the bell rings when that may have changed.
    pub(crate) fn take(
        self: &Arc<Self>,
        delivery: &Delivery,
        most: Option<Most>,
        limited: bool,
    ) -> Option<(Seat, bool)> {
        let (lane, source) = (&delivery.lane, &delivery.identity.source);
        let bytes = delivery.bytes();
        let mut state = self.lock();
        let room = most.is_none_or(|most| state.has_room(lane, source, bytes, most));
        if limited && !room {
            state.wanted.insert(lane.clone());
            return None;
        }
        let taken = state.lanes.entry(lane.clone()).or_default();
        taken.messages += 1;
        taken.bytes += bytes;
        if lane.has_sources() {
            *state
                .parts
                .entry((lane.clone(), source.clone()))
                .or_default() += 1;
        }
        Some((Seat(self.clone()), room))
    }

    /// Whether one more message of so many bytes would find room.
    pub(crate) fn has_room(
        &self,
        lane: &LaneId,
        source: &Arc<str>,
        bytes: u64,
        most: Most,
    ) -> bool {
        self.lock().has_room(lane, source, bytes, most)
    }

    /// Nothing of the pool has room any more: what waits for some is to go elsewhere.
    pub(crate) fn ring(&self) {
        self.lock().wanted.clear();
        self.bell.notify_waiters();
    }

    fn leave(&self, delivery: &Delivery) {
        let lane = &delivery.lane;
        let mut state = self.lock();
        if let Entry::Occupied(mut taken) = state.lanes.entry(lane.clone()) {
            taken.get_mut().messages -= 1;
            taken.get_mut().bytes -= delivery.bytes();
            if taken.get().messages == 0 {
                taken.remove();
            }
        }
        if lane.has_sources() {
            let part = (lane.clone(), delivery.identity.source.clone());
            if let Entry::Occupied(mut part) = state.parts.entry(part) {
                *part.get_mut() -= 1;
                if *part.get() == 0 {
                    part.remove();
                }
            }
        }
        let rings = !state.wanted.is_empty() && state.wanted.remove(lane);
        drop(state);
        if rings {
            self.bell.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
