//! How much of a source's window each lane has, and which lanes have more than their part of it.
//!
//! Plain data: no clock, no lock, no I/O.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use crate::lane::LaneId;
use crate::map::Map;

/// A lane of a pool, as its source sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) pool: Arc<str>,
    pub(crate) lane: LaneId,
}

/// What one lane has of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
}

struct Lane {
    share: Share,
    /// Its place among the held ones.
    held: Option<NonZeroU64>,
}

/// A source's window and who has it.
pub(crate) struct Room {
    window: usize,
    lanes: Map<Arc<Place>, Lane>,
    /// Lanes whose head is held, longest first.
    held: BTreeMap<NonZeroU64, Arc<Place>>,
    /// What those have together.
    held_messages: usize,
    holds: NonZeroU64,
    /// The one lane that was ever seen,
    first: Option<Arc<Place>>,
    /// until there was another: where a source has one lane, nobody else wants room.
    several: bool,
}

impl Room {
    pub(crate) fn new(window: NonZeroUsize) -> Self {
        Self {
            window: window.get(),
            lanes: Map::default(),
            held: BTreeMap::new(),
            held_messages: 0,
            holds: NonZeroU64::MIN,
            first: None,
            several: false,
        }
    }

    /// A message of this lane is out now; answers the lane's name to keep.
    pub(crate) fn add(&mut self, place: Place, bytes: u64) -> Arc<Place> {
        let entry = self.lanes.entry(Arc::new(place));
        let place = entry.key().clone();
        let lane = entry.or_insert(Lane {
            share: Share::default(),
            held: None,
        });
        if !self.several {
            let first = self.first.get_or_insert_with(|| place.clone());
            self.several = *first != place;
        }
        lane.share.messages += 1;
        lane.share.bytes += bytes;
        self.held_messages += usize::from(lane.held.is_some());
        place
    }

    /// A message of this lane is no longer out.
    pub(crate) fn remove(&mut self, place: &Arc<Place>, bytes: u64) {
        let Some(lane) = self.lanes.get_mut(place) else {
            return;
        };
        lane.share.messages -= 1;
        lane.share.bytes -= bytes;
        self.held_messages -= usize::from(lane.held.is_some());
        let left = lane.share.messages;
        if left == 0 {
            self.moved(place);
            self.lanes.remove(place);
        }
    }

    /// What a lane has.
    pub(crate) fn share(&self, place: &Place) -> Share {
        self.lanes
            .get(place)
            .map_or(Share::default(), |lane| lane.share)
    }

    /// The head of this lane is held, from now on if it was not already.
    pub(crate) fn hold(&mut self, place: &Place) {
        let Some((place, _)) = self.lanes.get_key_value(place) else {
            return;
        };
        let place = place.clone();
        let lane = self.lanes.get_mut(&place).expect("it was there just now");
        if lane.held.is_none() {
            self.holds = self.holds.saturating_add(1);
            lane.held = Some(self.holds);
            self.held_messages += lane.share.messages;
            self.held.insert(self.holds, place);
        }
    }

    /// The head of this lane is held no longer: it is resolved.
    pub(crate) fn moved(&mut self, place: &Place) {
        if let Some(lane) = self.lanes.get_mut(place)
            && let Some(held) = lane.held.take()
        {
            self.held.remove(&held);
            self.held_messages -= lane.share.messages;
        }
    }

    /// While held lanes together have half of the window: the longest-held, which is over. It is
    /// not named again before it was held anew.
    pub(crate) fn over_half(&mut self) -> Option<Arc<Place>> {
        if self.held_messages * 2 < self.window || self.is_one_lane() {
            return None;
        }
        let place = self.held.first_key_value()?.1.clone();
        self.moved(&place);
        Some(place)
    }

    /// Whether all messages of the source are in one lane, so that nobody waits behind it. Where
    /// there are keys there may be others, even if all that is out is of one.
    pub(crate) fn is_one_lane(&self) -> bool {
        let keyed = |first: &Arc<Place>| first.lane.key().is_some();
        !self.several && !self.first.as_ref().is_some_and(keyed)
    }

    /// The held lanes of a pool, longest-held first, until they have so many bytes together.
    pub(crate) fn longest_held(&self, pool: &str, bytes: u64) -> Vec<Arc<Place>> {
        let mut sum = 0;
        let of_pool = self.held.values().filter(|place| *place.pool == *pool);
        let enough = of_pool.take_while(|place| {
            let before = sum;
            sum += self.share(place).bytes;
            before < bytes
        });
        enough.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::lane::Owner;
    use crate::message::Key;

    fn place(key: &str) -> Place {
        Place {
            pool: "p".into(),
            lane: LaneId::key_of(Owner::new("s".into(), None), Key::from(key)),
        }
    }

    fn room(window: usize) -> Room {
        Room::new(NonZeroUsize::new(window).unwrap())
    }

    fn add(room: &mut Room, key: &str, messages: usize) {
        for _ in 0..messages {
            room.add(place(key), 10);
        }
    }

    fn names(places: &[Arc<Place>]) -> Vec<String> {
        let mut names: Vec<_> = places
            .iter()
            .map(|place| place.lane.key().unwrap().to_string())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_one_lane_of_a_source_is_never_over() {
        let mut room = room(4);
        let keyless = || Place {
            pool: "p".into(),
            lane: LaneId::keyless(Owner::new("s".into(), None)),
        };
        for _ in 0..4 {
            room.add(keyless(), 10);
        }
        room.hold(&keyless());
        assert!(room.is_one_lane());
        assert_eq!(room.over_half(), None);
        add(&mut room, "b", 1);
        assert!(!room.is_one_lane());
        assert!(room.over_half().is_some());
    }

    #[test]
    fn a_window_full_of_one_held_key_lets_others_be_seen() {
        let mut room = room(4);
        add(&mut room, "a", 4);
        assert_eq!(room.over_half(), None);
        room.hold(&place("a"));
        let over = room.over_half().unwrap();
        assert_eq!(names(&[over]), ["a"]);
    }

    #[test]
    fn the_longest_held_are_over_while_held_lanes_have_half_of_the_window() {
        let mut room = room(8);
        for key in ["a", "b", "c", "d"] {
            add(&mut room, key, 1);
        }
        for key in ["b", "a", "c"] {
            room.hold(&place(key));
        }
        assert_eq!(room.over_half(), None);
        // One that was held before is not held anew.
        room.hold(&place("b"));
        room.hold(&place("d"));
        let over = room.over_half().unwrap();
        assert_eq!(names(&[over]), ["b"]);
        assert_eq!(room.over_half(), None);
    }

    #[test]
    fn a_lane_that_goes_on_is_not_held() {
        let mut room = room(2);
        add(&mut room, "a", 1);
        add(&mut room, "b", 1);
        room.hold(&place("a"));
        room.moved(&place("a"));
        assert_eq!(room.over_half(), None);
    }

    #[test]
    fn what_leaves_takes_its_part_with_it() {
        let mut room = room(4);
        let a = room.add(place("a"), 10);
        let b = room.add(place("b"), 10);
        room.hold(&a);
        room.hold(&b);
        room.remove(&a, 10);
        assert_eq!(room.share(&a), Share::default());
        assert_eq!(room.over_half(), None);
        assert_eq!(names(&room.longest_held("p", 1)), ["b"]);
        room.remove(&b, 10);
        assert!(room.lanes.is_empty() && room.held.is_empty() && room.held_messages == 0);
    }

    proptest::proptest! {
        /// Whatever happens, the sums are those that counting would give.
        #[test]
        fn sums_are_what_counting_gives(steps in proptest::collection::vec((0_u8..4, 0_u8..6), 0..200)) {
            let mut room = room(8);
            let mut out: Vec<Arc<Place>> = Vec::new();
            for (step, key) in steps {
                let place = place(&key.to_string());
                match step {
                    0 => out.push(room.add(place, 1)),
                    1 => if !out.is_empty() {
                        let gone = out.remove(key as usize % out.len());
                        room.remove(&gone, 1);
                    },
                    2 => room.hold(&place),
                    _ => room.moved(&place),
                }
                let held: usize = room.held.values().map(|held| room.share(held).messages).sum();
                assert_eq!(room.held_messages, held);
                for (place, lane) in &room.lanes {
                    let count = out.iter().filter(|other| *other == place).count();
                    assert_eq!(lane.share, Share { messages: count, bytes: count as u64 });
                }
                assert_eq!(room.lanes.len(), out.iter().collect::<HashSet<_>>().len());
            }
        }
    }
}
