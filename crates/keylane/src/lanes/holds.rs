//! Which waiting items of one lane may not start yet.

use std::collections::VecDeque;

use super::Time;

/// Whether an item may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It may.
    Free,
    /// Not before this time.
    Until(Time),
    /// Not before somebody releases it.
    UntilReleased,
}

/// The holds of a lane's waiting items, by sequence. An item without an entry is free.
#[derive(Default)]
pub(super) struct Holds {
    by: VecDeque<(u64, Hold)>,
    /// How many of them have no time.
    unreleased: usize,
}

impl Holds {
    /// The hold of the item at the front, which has this sequence: nothing is held before it.
    pub(super) fn of_front(&self, seq: u64) -> Hold {
        match self.by.front() {
            Some((held, hold)) if *held == seq => *hold,
            _ => Hold::Free,
        }
    }

    /// This item is held from now on, or not any more.
    pub(super) fn set(&mut self, seq: u64, hold: Hold) {
        let place = self.by.binary_search_by_key(&seq, |(held, _)| *held);
        if let Ok(at) = place {
            self.unreleased -= usize::from(self.by[at].1 == Hold::UntilReleased);
        }
        self.unreleased += usize::from(hold == Hold::UntilReleased);
        match (place, hold) {
            (Ok(at), Hold::Free) => drop(self.by.remove(at)),
            (Ok(at), hold) => self.by[at].1 = hold,
            (Err(_), Hold::Free) => {}
            (Err(at), hold) => {
                if self.by.capacity() == 0 {
                    self.by.reserve_exact(1);
                }
                self.by.insert(at, (seq, hold));
            }
        }
    }

    /// Ends the holds that have no time.
    pub(super) fn release_waiting(&mut self) {
        if self.unreleased > 0 {
            self.by.retain(|(_, hold)| *hold != Hold::UntilReleased);
            self.unreleased = 0;
        }
    }

    /// Whether one of them has no time.
    pub(super) fn wait_for_release(&self) -> bool {
        self.unreleased > 0
    }

    pub(super) fn clear(&mut self) {
        self.by.clear();
        self.unreleased = 0;
    }
}
