//! Finds out which message and which lane each event of a history is about.
//!
//! A lane is (source, pool, key). Source and pool count only when every publish and every start
//! has them: a target that does not know them would otherwise seem to serve other lanes than the
//! producer filled. An event without `n` is placed by its id.

use std::collections::HashMap;

use super::{EventKind, History, NO_NUMBER, NONE, Row};

/// "About no message".
pub(super) const NOWHERE: u32 = u32::MAX;

/// Messages are numbered so that those of one lane are neighbours, in the producer's order.
#[derive(Debug)]
pub(super) struct Places {
    /// For each row its message, or [`NOWHERE`].
    pub(super) message_of_row: Vec<u32>,
    /// For each message its lane.
    pub(super) lane_of_message: Vec<u32>,
    /// For each message the producer's number.
    pub(super) number: Vec<u64>,
    /// The lanes.
    pub(super) lanes: Vec<LanePlace>,
}

/// One lane.
#[derive(Debug)]
pub(super) struct LanePlace {
    pub(super) source: u32,
    pub(super) pool: u32,
    pub(super) key: u32,
    /// Its messages, from this one …
    pub(super) first: u32,
    /// … up to before this one.
    pub(super) end: u32,
}

impl LanePlace {
    /// Keyless messages have no order among themselves.
    pub(super) fn ordered(&self) -> bool {
        self.key != NONE
    }
}

type LaneName = (u32, u32, u32);

pub(super) fn place(history: &History) -> Places {
    let mut finder = Finder::new(history);
    let mut message_of_row: Vec<u32> = history
        .rows
        .iter()
        .map(|row| finder.numbered(row))
        .collect();
    for (row, message) in history.rows.iter().zip(&mut message_of_row) {
        if *message == NOWHERE {
            *message = finder.by_id(row);
        }
    }
    finder.finish(message_of_row)
}

/// Gives out message numbers in the order they are met; [`Finder::finish`] sorts them.
struct Finder {
    use_source: bool,
    use_pool: bool,
    lanes: HashMap<LaneName, u32>,
    messages: HashMap<(u32, u64), u32>,
    /// `None` when two messages have the id.
    ids: HashMap<u32, Option<u32>>,
}

impl Finder {
    fn new(history: &History) -> Self {
        let mut named = history
            .rows
            .iter()
            .filter(|row| matches!(row.kind, EventKind::Publish | EventKind::Start));
        let (mut use_source, mut use_pool) = (true, true);
        named.by_ref().for_each(|row| {
            use_source &= row.source != NONE;
            use_pool &= row.pool != NONE;
        });
        Self {
            use_source,
            use_pool,
            lanes: HashMap::new(),
            messages: HashMap::new(),
            ids: HashMap::new(),
        }
    }

    /// The message of a row that has a number (or, keyless, nothing but an id).
    fn numbered(&mut self, row: &Row) -> u32 {
        let keyless_by_id = row.key == NONE && matches!(row.kind, EventKind::Publish);
        let number = match row.n {
            NO_NUMBER if keyless_by_id => u64::from(row.id),
            number => number,
        };
        let lacks_lane =
            (self.use_source && row.source == NONE) || (self.use_pool && row.pool == NONE);
        if number == NO_NUMBER || (lacks_lane && row.id != NONE) {
            return NOWHERE;
        }
        let message = self.message(self.lane_name(row), number);
        if row.id != NONE {
            let known = self.ids.entry(row.id).or_insert(Some(message));
            if *known != Some(message) {
                *known = None;
            }
        }
        message
    }

    fn by_id(&self, row: &Row) -> u32 {
        self.ids.get(&row.id).copied().flatten().unwrap_or(NOWHERE)
    }

    fn lane_name(&self, row: &Row) -> LaneName {
        let source = if self.use_source { row.source } else { NONE };
        let pool = if self.use_pool { row.pool } else { NONE };
        (source, pool, row.key)
    }

    fn message(&mut self, lane: LaneName, number: u64) -> u32 {
        let next_lane = small(self.lanes.len());
        let lane = *self.lanes.entry(lane).or_insert(next_lane);
        let next = small(self.messages.len());
        *self.messages.entry((lane, number)).or_insert(next)
    }

    fn finish(self, mut message_of_row: Vec<u32>) -> Places {
        let mut sorted: Vec<((u32, u64), u32)> = self.messages.into_iter().collect();
        sorted.sort_unstable();
        let mut moved = vec![0; sorted.len()];
        for (new, &(_, old)) in sorted.iter().enumerate() {
            moved[old as usize] = small(new);
        }
        for message in message_of_row.iter_mut().filter(|m| **m != NOWHERE) {
            *message = moved[*message as usize];
        }
        let lane_of_message: Vec<u32> = sorted.iter().map(|&((lane, _), _)| lane).collect();
        Places {
            message_of_row,
            lanes: lane_places(&self.lanes, &lane_of_message),
            number: sorted.iter().map(|&((_, number), _)| number).collect(),
            lane_of_message,
        }
    }
}

fn lane_places(names: &HashMap<LaneName, u32>, lane_of_message: &[u32]) -> Vec<LanePlace> {
    let mut by_number: Vec<(u32, LaneName)> = names.iter().map(|(&name, &n)| (n, name)).collect();
    by_number.sort_unstable();
    by_number
        .into_iter()
        .map(|(number, (source, pool, key))| LanePlace {
            source,
            pool,
            key,
            first: small(lane_of_message.partition_point(|&lane| lane < number)),
            end: small(lane_of_message.partition_point(|&lane| lane <= number)),
        })
        .collect()
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("fewer than 2^32 messages")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{By, Event};

    fn places(events: &[Event]) -> Places {
        let mut history = History::default();
        history.extend(events);
        place(&history)
    }

    fn publish(key: &str, n: u64) -> Event {
        Event::of(key, n, EventKind::Publish, By::Producer)
    }

    #[test]
    fn one_key_in_two_pools_is_two_lanes_when_all_name_the_pool() {
        let found = places(&[
            publish("k", 0).within("s", "a"),
            publish("k", 0).within("s", "b"),
        ]);
        assert_eq!(found.lanes.len(), 2);
        assert_ne!(found.message_of_row[0], found.message_of_row[1]);
    }

    #[test]
    fn source_and_pool_are_left_out_when_the_target_does_not_know_them() {
        let found = places(&[
            publish("k", 0).within("s", "a"),
            Event::of("k", 0, EventKind::Start, By::Target),
        ]);
        assert_eq!(found.message_of_row, [0, 0]);
    }

    #[test]
    fn an_event_without_a_number_is_placed_by_its_id() {
        let mut ack = Event::new(EventKind::Ack, By::Router).id("x");
        ack.key = Some("k".into());
        let found = places(&[ack, publish("k", 3).id("x"), publish("k", 2).id("y")]);
        assert_eq!(found.message_of_row, [1, 1, 0]);
    }

    #[test]
    fn an_id_that_two_messages_have_places_nothing() {
        let ack = Event::new(EventKind::Ack, By::Router).id("x");
        let found = places(&[publish("k", 3).id("x"), publish("k", 2).id("x"), ack]);
        assert_eq!(found.message_of_row[2], NOWHERE);
    }
}
