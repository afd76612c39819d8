//! A store in memory: for the suite's clock to be paused, nothing may wait for a disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::message::Identity;
use crate::store::{
    AuditEntry, DeadLetter, Durable, FailedAttempt, KEPT_ATTEMPTS, LaneName, Move, ParkedLane,
    ParkedRow, ReadQueue, Stay, Store, StoreError, Stored,
};

/// Keeps everything in memory and forgets it with the last clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    stays: HashMap<Identity, Stay>,
    attempts: HashMap<Identity, Vec<FailedAttempt>>,
    letters: BTreeMap<u64, DeadLetter>,
    parked: BTreeMap<LaneName, Parked>,
    pauses: BTreeSet<LaneName>,
    separate_pools: BTreeSet<Arc<str>>,
    read_queues: BTreeSet<ReadQueue>,
    audit: Vec<AuditEntry>,
    /// The last number given to a letter or a row.
    last: u64,
}

#[derive(Debug)]
struct Parked {
    reason: String,
    since: SystemTime,
    rows: BTreeMap<u64, Stored>,
    replaying: bool,
    spilled: bool,
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at_once<T: Send + 'static>(value: T) -> Durable<T> {
    Box::pin(std::future::ready(Ok::<_, StoreError>(value)))
}

impl Shelf {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn bury(&mut self, mut letter: DeadLetter) {
        let identity = &letter.message.identity;
        let known = |other: &DeadLetter| other.message.identity == *identity;
        if self.letters.values().any(known) {
            return;
        }
        letter.attempts = self.attempts.remove(identity).unwrap_or_default();
        self.stays.remove(identity);
        letter.number = self.number();
        self.letters.insert(letter.number, letter);
    }

    /// The lane in the store, put there if it was not.
    fn stored_lane(&mut self, lane: &LaneName, reason: &str, spilled: bool) -> &mut Parked {
        let new = || Parked {
            reason: reason.to_owned(),
            since: SystemTime::now(),
            rows: BTreeMap::new(),
            replaying: spilled,
            spilled,
        };
        self.parked.entry(lane.clone()).or_insert_with(new)
    }

    /// Answers the rows of the messages, old or new.
    fn put_behind(&mut self, lane: &LaneName, messages: Vec<Stored>) -> Vec<u64> {
        let mut rows = Vec::new();
        for message in messages {
            let new = self.number();
            let parked = self.parked.get_mut(lane).expect("it is parked");
            let known = |(_, other): &(&u64, &Stored)| other.identity == message.identity;
            let old = parked.rows.iter().find(known).map(|(row, _)| *row);
            rows.push(old.unwrap_or(new));
            if old.is_none() {
                parked.rows.insert(new, message);
            }
        }
        rows
    }

    fn take_rows(&mut self, lane: &LaneName, rows: &[u64]) -> Vec<Stored> {
        let Some(parked) = self.parked.get_mut(lane) else {
            return Vec::new();
        };
        let taken = rows.iter().filter_map(|row| parked.rows.remove(row));
        let taken = taken.collect();
        if parked.rows.is_empty() {
            self.parked.remove(lane);
        }
        taken
    }
}

impl Shelf {
    fn move_lane(&mut self, from: &LaneName, of: Option<&Arc<str>>, to: LaneName) {
        if *from == to {
            return;
        }
        let Some(mut old) = self.parked.remove(from) else {
            return;
        };
        let moves = |message: &Stored| of.is_none_or(|of| message.identity.source == *of);
        let (rows, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut old.rows)
            .into_iter()
            .partition(|(_, message)| moves(message));
        if of.is_none() || !rows.is_empty() {
            let there = self.parked.entry(to.clone()).or_insert_with(|| Parked {
                reason: old.reason.clone(),
                since: old.since,
                rows: BTreeMap::new(),
                replaying: old.replaying,
                spilled: old.spilled,
            });
            if there.replaying && !old.replaying {
                there.replaying = false;
                there.spilled = false;
                there.reason.clone_from(&old.reason);
            }
            for (_, message) in rows {
                let number = self.number();
                let there = self.parked.get_mut(&to).expect("it is there now");
                let lane = to.clone();
                there.rows.insert(number, Stored { lane, ..message });
            }
            if stay.is_empty() {
                return;
            }
        }
        old.rows.extend(stay);
        self.parked.insert(from.clone(), old);
    }

    fn rename_source(&mut self, from: &Arc<str>, to: &Arc<str>) {
        if from == to {
            return;
        }
        let lanes: Vec<LaneName> = self.parked.keys().cloned().collect();
        for lane in lanes.into_iter().filter(|lane| lane.source == *from) {
            let new = LaneName {
                source: to.clone(),
                ..lane.clone()
            };
            self.move_lane(&lane, None, new);
        }
        let renamed = |identity: &Identity| Identity {
            source: to.clone(),
            id: identity.id.clone(),
        };
        let rows = || self.parked.values().flat_map(|lane| lane.rows.values());
        let known: BTreeSet<Identity> = rows().map(|row| row.identity.clone()).collect();
        let rows = self
            .parked
            .values_mut()
            .flat_map(|lane| lane.rows.values_mut());
        for row in rows.filter(|row| row.identity.source == *from) {
            let new = renamed(&row.identity);
            if !known.contains(&new) {
                row.identity = new;
            }
        }
        let read = self.read_queues.extract_if(.., |read| read.source == *from);
        for old in read.collect::<Vec<_>>() {
            let known = self
                .read_queues
                .iter()
                .any(|read| (&read.kind, &read.queue, &read.source) == (&old.kind, &old.queue, to));
            if !known {
                let source = to.clone();
                self.read_queues.insert(ReadQueue { source, ..old });
            }
        }
        let of = |identity: &Identity| identity.source == *from;
        let old: Vec<Identity> = self.stays.keys().filter(|id| of(id)).cloned().collect();
        for identity in old {
            let new = renamed(&identity);
            if !self.stays.contains_key(&new) {
                let stay = self.stays.remove(&identity).expect("it is there");
                self.stays.insert(new, stay);
            }
        }
        let old: Vec<Identity> = self.attempts.keys().filter(|id| of(id)).cloned().collect();
        for identity in old {
            let attempts = self.attempts.remove(&identity).expect("it is there");
            let there = self.attempts.entry(renamed(&identity)).or_default();
            there.extend(attempts);
        }
        for letter in self.letters.values_mut() {
            if of(&letter.message.identity) {
                letter.message.identity = renamed(&letter.message.identity);
            }
            if letter.message.lane.source == *from {
                letter.message.lane.source = to.clone();
            }
        }
        let pauses = std::mem::take(&mut self.pauses).into_iter();
        self.pauses = pauses
            .map(|lane| match lane.source == *from {
                true => LaneName {
                    source: to.clone(),
                    ..lane
                },
                false => lane,
            })
            .collect();
    }
}

impl Parked {
    fn shown(&self, lane: &LaneName) -> ParkedLane {
        ParkedLane {
            lane: lane.clone(),
            reason: self.reason.clone(),
            since: self.since,
            messages: self.rows.len() as u64,
            replaying: self.replaying,
            spilled: self.spilled,
        }
    }
}

impl Store for MemoryStore {
    fn stay(&self, identity: &Identity) -> Stay {
        self.lock().stays.get(identity).copied().unwrap_or_default()
    }

    fn failed_attempt(&self, identity: &Identity, attempt: FailedAttempt) -> Durable<Stay> {
        let mut shelf = self.lock();
        let attempts = shelf.attempts.entry(identity.clone()).or_default();
        attempts.push(attempt);
        let old = attempts.len().saturating_sub(KEPT_ATTEMPTS);
        attempts.drain(..old);
        let stay = shelf.stays.entry(identity.clone()).or_default();
        stay.count_failure();
        at_once(*stay)
    }

    fn new_round(&self, identities: Vec<Identity>) -> Durable<()> {
        let mut shelf = self.lock();
        for identity in identities {
            let stay = shelf.stays.entry(identity).or_default();
            stay.begin_round();
        }
        at_once(())
    }

    fn forget(&self, identities: Vec<Identity>) -> Durable<()> {
        let mut shelf = self.lock();
        for identity in identities {
            shelf.stays.remove(&identity);
            shelf.attempts.remove(&identity);
        }
        at_once(())
    }

    fn dead_letter(&self, letters: Vec<DeadLetter>) -> Durable<()> {
        let mut shelf = self.lock();
        letters.into_iter().for_each(|letter| shelf.bury(letter));
        at_once(())
    }

    fn dead_letters(&self, after: u64, limit: usize) -> Durable<Vec<DeadLetter>> {
        let shelf = self.lock();
        let letters = shelf.letters.range(after.saturating_add(1)..).take(limit);
        at_once(letters.map(|(_, letter)| letter.clone()).collect())
    }

    fn dead_letter_count(&self) -> Durable<u64> {
        at_once(self.lock().letters.len() as u64)
    }

    fn trim_dead_letters(&self, numbers: Vec<u64>, audit: AuditEntry) -> Durable<u64> {
        let mut shelf = self.lock();
        let gone = numbers
            .iter()
            .filter(|number| shelf.letters.remove(number).is_some())
            .count();
        shelf.audit.push(audit);
        at_once(gone as u64)
    }

    fn park(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<()> {
        let mut shelf = self.lock();
        let parked = shelf.stored_lane(&lane, &reason, false);
        if parked.replaying {
            parked.replaying = false;
            parked.spilled = false;
            parked.reason = reason;
        }
        shelf.put_behind(&lane, messages);
        at_once(())
    }

    fn spill(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<Vec<u64>> {
        let mut shelf = self.lock();
        shelf.stored_lane(&lane, &reason, true);
        at_once(shelf.put_behind(&lane, messages))
    }

    fn parks_any(&self) -> bool {
        !self.lock().parked.is_empty()
    }

    fn park_behind(&self, lane: LaneName, messages: Vec<Stored>) -> Durable<bool> {
        let mut shelf = self.lock();
        let parked = shelf.parked.contains_key(&lane);
        if parked {
            shelf.put_behind(&lane, messages);
        }
        at_once(parked)
    }

    fn parked(&self) -> Vec<ParkedLane> {
        let shelf = self.lock();
        let lanes = shelf.parked.iter();
        lanes.map(|(lane, parked)| parked.shown(lane)).collect()
    }

    fn parked_lane(&self, lane: &LaneName) -> Option<ParkedLane> {
        let shelf = self.lock();
        shelf.parked.get(lane).map(|parked| parked.shown(lane))
    }

    fn parked_rows(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<ParkedRow>> {
        let shelf = self.lock();
        let rows = shelf.parked.get(&lane).map(|parked| {
            let rows = parked.rows.range(after.saturating_add(1)..).take(limit);
            let row = |(row, message): (&u64, &Stored)| ParkedRow {
                row: *row,
                message: message.clone(),
            };
            rows.map(row).collect()
        });
        at_once(rows.unwrap_or_default())
    }

    fn parked_names(
        &self,
        lane: LaneName,
        after: u64,
        limit: usize,
    ) -> Durable<Vec<(u64, Identity)>> {
        let shelf = self.lock();
        let names = shelf.parked.get(&lane).map(|parked| {
            let rows = parked.rows.range(after.saturating_add(1)..).take(limit);
            let name = |(row, message): (&u64, &Stored)| (*row, message.identity.clone());
            rows.map(name).collect()
        });
        at_once(names.unwrap_or_default())
    }

    fn parked_sizes(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<u64>> {
        let shelf = self.lock();
        let sizes = shelf.parked.get(&lane).map(|parked| {
            let rows = parked.rows.range(after.saturating_add(1)..).take(limit);
            rows.map(|(_, message)| message.body.len() as u64).collect()
        });
        at_once(sizes.unwrap_or_default())
    }

    fn move_lanes(&self, moves: Vec<Move>) -> Durable<()> {
        let mut shelf = self.lock();
        for one in moves {
            match one {
                Move::Lane { from, of, to } => shelf.move_lane(&from, of.as_ref(), to),
                Move::Source { from, to } => shelf.rename_source(&from, &to),
            }
        }
        at_once(())
    }

    fn unpark(&self, lane: LaneName, rows: Vec<u64>) -> Durable<()> {
        self.lock().take_rows(&lane, &rows);
        at_once(())
    }

    fn set_replaying(&self, lane: LaneName, replaying: bool, audit: AuditEntry) -> Durable<()> {
        let mut shelf = self.lock();
        let is_empty = |parked: &Parked| parked.rows.is_empty();
        if replaying && shelf.parked.get(&lane).is_some_and(is_empty) {
            shelf.parked.remove(&lane);
        } else if let Some(parked) = shelf.parked.get_mut(&lane) {
            parked.replaying = replaying;
            parked.spilled &= replaying;
        }
        shelf.audit.push(audit);
        at_once(())
    }

    fn remove_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: AuditEntry,
    ) -> Durable<()> {
        let mut shelf = self.lock();
        for message in shelf.take_rows(&lane, &rows) {
            if let Some((reason, text)) = as_letter.clone() {
                shelf.bury(DeadLetter {
                    number: 0,
                    message,
                    reason,
                    text,
                    at: SystemTime::now(),
                    attempts: Vec::new(),
                });
            }
        }
        shelf.audit.push(audit);
        at_once(())
    }

    fn pause(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let mut shelf = self.lock();
        shelf.pauses.insert(lane);
        shelf.audit.push(audit);
        at_once(())
    }

    fn resume(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let mut shelf = self.lock();
        shelf.pauses.remove(&lane);
        shelf.audit.push(audit);
        at_once(())
    }

    fn separate_pools(&self) -> BTreeSet<Arc<str>> {
        self.lock().separate_pools.clone()
    }

    fn set_separate_pools(&self, pools: BTreeSet<Arc<str>>) -> Durable<()> {
        self.lock().separate_pools = pools;
        at_once(())
    }

    fn read_queues(&self) -> BTreeSet<ReadQueue> {
        self.lock().read_queues.clone()
    }

    fn set_read_queues(&self, queues: BTreeSet<ReadQueue>) -> Durable<()> {
        self.lock().read_queues = queues;
        at_once(())
    }

    fn pauses(&self) -> Vec<LaneName> {
        self.lock().pauses.iter().cloned().collect()
    }

    fn audit(&self, entry: AuditEntry) -> Durable<()> {
        self.lock().audit.push(entry);
        at_once(())
    }

    fn audit_log(&self, limit: usize) -> Durable<Vec<AuditEntry>> {
        let shelf = self.lock();
        at_once(shelf.audit.iter().rev().take(limit).cloned().collect())
    }
}
