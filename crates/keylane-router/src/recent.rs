//! The last few ids, oldest forgotten first.

use std::collections::VecDeque;
#[cfg(any(feature = "activemq", feature = "rabbitmq"))]
use std::{hash::BuildHasher, sync::LazyLock};

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

/// Tells bodies apart: two messages that have one id and differ are two messages. Seeded at random for
/// each process.
#[cfg(any(feature = "activemq", feature = "rabbitmq"))]
pub(crate) fn fingerprint(body: &[u8]) -> u64 {
    static HASH: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);
    HASH.hash_one(body)
}
