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
pub(super) struct Holds(VecDeque<(u64, Hold)>);

impl Holds {
    /// The hold of the item at the front, which has this sequence: nothing is held before it.
    pub(super) fn of_front(&self, seq: u64) -> Hold {
        match self.0.front() {
            Some((held, hold)) if *held == seq => *hold,
            _ => Hold::Free,
        }
    }

    /// This item is held from now on, or not any more.
    pub(super) fn set(&mut self, seq: u64, hold: Hold) {
        let place = self.0.binary_search_by_key(&seq, |(held, _)| *held);
        match (place, hold) {
            (Ok(at), Hold::Free) => drop(self.0.remove(at)),
            (Ok(at), hold) => self.0[at].1 = hold,
            (Err(_), Hold::Free) => {}
            (Err(at), hold) => {
                if self.0.capacity() == 0 {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (seq, hold));
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
