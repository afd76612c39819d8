//! The last few ids, oldest forgotten first.

use std::collections::VecDeque;

use crate::map::Map;
use crate::message::BrokerId;

/// How many are remembered.
const REMEMBERED: usize = 10_000;

/// Ids that were seen lately, each with what was noted of it last.
#[derive(Debug)]
pub(crate) struct Recent<T = ()> {
    order: VecDeque<BrokerId>,
    known: Map<BrokerId, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            known: Map::default(),
        }
    }
}

impl<T> Recent<T> {
    pub(crate) fn add(&mut self, id: BrokerId, note: T) {
        if self.known.insert(id.clone(), note).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, id: &BrokerId) -> Option<&T> {
        self.known.get(id)
    }
}

/// How a message came last.
#[cfg(any(feature = "activemq", feature = "rabbitmq"))]
#[derive(Debug)]
pub(crate) struct Seen {
    link: u64,
    /// Stands for its body.
    body: u64,
}

#[cfg(any(feature = "activemq", feature = "rabbitmq"))]
impl Recent<Seen> {
    /// A message of this id came over this link, with this body; `again` says that it may have come
    /// before. `false` when the id is another's: nothing comes twice over one link, and what comes again
    /// over the next is the same.
    pub(crate) fn came(&mut self, id: &BrokerId, link: u64, body: &[u8], again: bool) -> bool {
        let seen = Seen {
            link,
            body: crate::map::hash_of(body),
        };
        let same = |before: &Seen| again && before.link != link && before.body == seen.body;
        if !self.get(id).is_none_or(same) {
            return false;
        }
        self.add(id.clone(), seen);
        true
    }
}
