//! What the attempts of a pool are doing right now, and since when: for whoever asks why.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use tokio::time::Instant;

use crate::delivery::Delivery;
use crate::lane::LaneId;
use crate::lock;
use crate::message::Identity;

const CHUNK: usize = 64;
/// Attempts in higher places than all chunks have are not looked at.
const CHUNKS: usize = 64;

/// What an attempt, or the end of one, waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// For its target.
    Calling,
    /// Until what was delivered before it is settled with its source.
    Settling,
    /// For a store.
    Storing,
}

/// One attempt under way.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) doing: Doing,
    /// Since when it does that.
    pub(crate) since: Instant,
    pub(crate) lane: LaneId,
    pub(crate) identity: Identity,
}

type Place = Mutex<Option<Run>>;

/// What runs in a pool, by the numbered places of its attempts. Places are made when they are first
/// used: most pools need few.
pub(crate) struct Runs {
    chunks: [OnceLock<Box<[Place; CHUNK]>>; CHUNKS],
    /// Lanes that are being stored or given back whole: few, and seldom.
    flushes: Mutex<HashMap<LaneId, Run>>,
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            flushes: Mutex::default(),
        }
    }
}

impl Runs {
    /// The attempt in this place begins to do this.
    pub(crate) fn begin(&self, delivery: &Delivery, doing: Doing) -> Watched<'_> {
        let place = self.place(delivery.slot as usize);
        if let Some(place) = place {
            *lock(place) = Some(Run {
                doing,
                since: Instant::now(),
                lane: delivery.lane.clone(),
                identity: delivery.identity.clone(),
            });
        }
        Watched { place }
    }

    /// Everything in this lane begins to be stored or given back.
    pub(crate) fn flush(&self, head: &Delivery) -> Flushing<'_> {
        let lane = head.lane.clone();
        let run = Run {
            doing: Doing::Storing,
            since: Instant::now(),
            lane: lane.clone(),
            identity: head.identity.clone(),
        };
        lock(&self.flushes).insert(lane.clone(), run);
        Flushing { runs: self, lane }
    }

    /// All that are under way.
    pub(crate) fn now(&self) -> Vec<Run> {
        let flushes: Vec<Run> = lock(&self.flushes).values().cloned().collect();
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        let places = chunks.flat_map(|chunk| chunk.iter());
        let attempts = places.filter_map(|place| lock(place).clone());
        attempts.chain(flushes).collect()
    }

    /// Which messages of a lane are under way, or what follows from that.
    pub(crate) fn of(&self, lane: &LaneId) -> Vec<Identity> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        let places = chunks.flat_map(|chunk| chunk.iter());
        let of_it = places.filter_map(|place| {
            let run = lock(place);
            let run = run.as_ref().filter(|run| run.lane == *lane)?;
            Some(run.identity.clone())
        });
        of_it.collect()
    }

    fn place(&self, slot: usize) -> Option<&Place> {
        let chunk = self.chunks.get(slot / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new([const { Mutex::new(None) }; CHUNK]));
        Some(&chunk[slot % CHUNK])
    }
}

/// An attempt under way; over when dropped.
pub(crate) struct Watched<'a> {
    place: Option<&'a Place>,
}

impl Watched<'_> {
    /// It is over: what it was.
    pub(crate) fn end(self) -> Option<Run> {
        lock(self.place?).take()
    }

    /// It does something else now.
    pub(crate) fn does(&self, doing: Doing) {
        let Some(place) = self.place else { return };
        if let Some(run) = &mut *lock(place) {
            run.doing = doing;
            run.since = Instant::now();
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            *lock(place) = None;
        }
    }
}

/// A lane being flushed; over when dropped.
pub(crate) struct Flushing<'a> {
    runs: &'a Runs,
    lane: LaneId,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        lock(&self.runs.flushes).remove(&self.lane);
    }
}
