//! Lanes that an operator wants tried at once, whatever their heads wait for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::lane::LaneId;
use crate::map::Set;

/// The wishes there are. Noted by the verb before it ends holds, because what waits may be out of
/// its lane for a moment, or on its way to the store; gone with the next attempt of the lane.
#[derive(Default)]
pub(crate) struct Hurried {
    lanes: Mutex<Set<LaneId>>,
    /// `lanes.len()`, for those who come by with every message and find nothing.
    count: AtomicUsize,
}

impl Hurried {
    pub(crate) fn note(&self, lane: &LaneId) {
        self.change(|lanes| lanes.insert(lane.clone()));
    }

    /// Forgets the wish; answers whether there was one.
    pub(crate) fn take(&self, lane: &LaneId) -> bool {
        !self.is_empty() && self.change(|lanes| lanes.remove(lane))
    }

    pub(crate) fn has(&self, lane: &LaneId) -> bool {
        !self.is_empty() && self.change(|lanes| lanes.contains(lane))
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut Set<LaneId>) -> T) -> T {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = change(&mut lanes);
        self.count.store(lanes.len(), Ordering::SeqCst);
        answer
    }
}
