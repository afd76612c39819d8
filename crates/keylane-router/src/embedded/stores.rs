//! The stores in the same file as the queues: dead letters, parked keys, pauses, attempts, audit.
//!
//! What a store takes over leaves its embedded queue in the same transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Row};

use super::Shared;
use super::claim::read_headers;
use super::clock::{Moment, from_millis, millis};
use super::publish::text_pairs;
use super::queue::Queue;
use super::schema::{self, classify};
use super::source::delete_rows;
use super::writer::{Failure, Tx};
use crate::machine;
use crate::message::{BrokerId, Identity, Key};
use crate::parcel::Addresses;
use crate::parse::{self, Incoming};
use crate::plan::Envelope;
use crate::route::DEFAULT;
use crate::store::{
    AuditEntry, DeadLetter, Durable, FailedAttempt, KEPT_ATTEMPTS, LaneName, Move, ParkedLane,
    ParkedRow, ReadQueue, Stay, Store, StoreError, Stored,
};

/// What a stored message is counted with beside its body and headers.
const ROW_OVERHEAD: i64 = 256;

/// What is answered from memory; follows the file after each commit.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    stays: HashMap<Identity, Stay>,
    parked: BTreeMap<LaneName, ParkedLane>,
    pauses: BTreeSet<LaneName>,
    separate_pools: BTreeSet<Arc<str>>,
    read_queues: BTreeSet<ReadQueue>,
    /// What [`recover_rows`] did when the file was opened.
    pub(super) recovered: Vec<(LaneName, u64)>,
    /// The last row when this was read. Moving a lane may give new numbers to old rows, so all rows
    /// count as old after that.
    rows_before: u64,
}

impl Memory {
    /// Reads the file; answers also how many bytes the stores hold.
    pub(super) fn load(connection: &Connection) -> Result<(Self, i64), rusqlite::Error> {
        let mut memory = Self::default();
        let mut stays = connection.prepare("SELECT source, id, round, failed, total FROM stays")?;
        let mut stays = stays.query([])?;
        while let Some(row) = stays.next()? {
            memory.stays.insert(identity_at(row, 0)?, stay_at(row, 2)?);
        }
        let mut lanes = connection.prepare(
            "SELECT source, pool, key, alone, reason, since, replaying, spilled,
             (SELECT COUNT(*) FROM parked WHERE lane = n) FROM parked_lanes",
        )?;
        let mut lanes = lanes.query([])?;
        while let Some(row) = lanes.next()? {
            let lane = parked_lane_at(row)?;
            memory.parked.insert(lane.lane.clone(), lane);
        }
        let mut pauses = connection.prepare("SELECT source, pool, key, NULL FROM pauses")?;
        let pauses = pauses.query_map([], |row| lane_at(row, 0))?;
        memory.pauses = pauses.collect::<Result<_, _>>()?;
        let mut pools = connection.prepare("SELECT name FROM separate_pools")?;
        let pools = pools.query_map([], |row| row.get(0))?;
        memory.separate_pools = pools.collect::<Result<_, _>>()?;
        let select = "SELECT kind, queue, source, one_lane FROM read_queues";
        let mut queues = connection.prepare(select)?;
        let queues = queues.query_map([], read_queue_at)?;
        memory.read_queues = queues.collect::<Result<_, _>>()?;
        memory.rows_before = last_row(connection)? as u64;
        let sizes =
            "SELECT (SELECT TOTAL(size) FROM dead_letters) + (SELECT TOTAL(size) FROM parked)";
        let used: f64 = connection.query_row(sizes, [], |row| row.get(0))?;
        Ok((memory, used as i64))
    }
}

impl Memory {
    /// The lane as it is stored, or as it is from now on.
    fn stored_lane(
        &mut self,
        lane: LaneName,
        reason: &str,
        since: SystemTime,
        spilled: bool,
    ) -> &mut ParkedLane {
        let new = |lane: &LaneName| ParkedLane {
            lane: lane.clone(),
            reason: reason.to_owned(),
            since: from_millis(millis(since)),
            messages: 0,
            replaying: spilled,
            spilled,
        };
        self.parked.entry(lane).or_insert_with_key(new)
    }
}

/// The [`Store`] in the file of a [`super::Db`].
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

impl EmbeddedStore {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.shared.memory)
    }

    /// Writes, then brings the memory up to date, then answers.
    fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        grows: bool,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
        after: impl FnOnce(&mut Memory, &T) + Send + 'static,
    ) -> Durable<T> {
        let memory = self.shared.memory.clone();
        let after = move |value: &T| after(&mut lock(&memory), value);
        let moment = Moment::of(&*self.shared.machine);
        let written = self.shared.writer.call(moment, bytes, grows, work, after);
        Box::pin(written.durable())
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Durable<T> {
        let shared = self.shared.clone();
        let machine = self.shared.machine.clone();
        let blocking = move || {
            let mut connection = shared.reader.lock().expect("no panic while reading");
            let connection = match &mut *connection {
                Some(connection) => connection,
                empty => empty.insert(schema::open_reader(&shared.file)?),
            };
            read(connection)
        };
        Box::pin(async move {
            match machine::blocking(&*machine, blocking).await {
                Ok(value) => value.map_err(|error| classify(&error)),
                Err(panic) => Err(StoreError::Unwritable(panic)),
            }
        })
    }

    /// The rows of embedded queues these messages are, by queue.
    fn rows_of<'a>(&self, messages: impl Iterator<Item = &'a Stored>) -> Rows {
        let sources = self.shared.sources.lock().expect("no panic while locked");
        let mut rows: HashMap<i64, (Arc<Queue>, Vec<u64>)> = HashMap::new();
        for message in messages {
            let BrokerId::Sequence(seq) = message.identity.id else {
                continue;
            };
            if let Some(queue) = sources.get(&message.identity.source) {
                let of_queue = rows.entry(queue.n);
                of_queue
                    .or_insert_with(|| (queue.clone(), Vec::new()))
                    .1
                    .push(seq);
            }
        }
        Rows(rows.into_values().collect())
    }
}

/// Rows that leave their queues with what is written.
#[derive(Clone)]
struct Rows(Vec<(Arc<Queue>, Vec<u64>)>);

impl Rows {
    /// Answers how many there were, by queue.
    fn delete(&self, tx: &Tx<'_>) -> Result<Vec<usize>, rusqlite::Error> {
        let delete = |(queue, seqs): &(Arc<Queue>, Vec<u64>)| delete_rows(tx, queue, seqs);
        self.0.iter().map(delete).collect()
    }

    fn left(&self, deleted: &[usize]) {
        for ((queue, seqs), deleted) in self.0.iter().zip(deleted) {
            queue.add_depth(-(*deleted as i64));
            queue.shelf().gone(seqs);
        }
    }
}

impl Store for EmbeddedStore {
    fn stay(&self, identity: &Identity) -> Stay {
        self.memory()
            .stays
            .get(identity)
            .copied()
            .unwrap_or_default()
    }

    fn failed_attempt(&self, identity: &Identity, attempt: FailedAttempt) -> Durable<Stay> {
        let identity = identity.clone();
        let bytes = attempt.text.len() + attempt.answer.len() + 256;
        let of = identity.clone();
        let work = move |tx: &mut Tx<'_>| {
            insert_attempt(tx.sql, &identity, &attempt)?;
            Ok(count_failure(tx.sql, &identity)?)
        };
        self.write(bytes, true, work, move |memory, stay| {
            memory.stays.insert(of, *stay);
        })
    }

    fn new_round(&self, identities: Vec<Identity>) -> Durable<()> {
        let of = identities.clone();
        let work = move |tx: &mut Tx<'_>| {
            for identity in &identities {
                begin_round(tx.sql, identity)?;
            }
            Ok(())
        };
        self.write(of.len() * 128, true, work, move |memory, ()| {
            for identity in of {
                memory.stays.entry(identity).or_default().begin_round();
            }
        })
    }

    fn forget(&self, identities: Vec<Identity>) -> Durable<()> {
        let of = identities.clone();
        let work = move |tx: &mut Tx<'_>| {
            for identity in &identities {
                forget_attempts(tx.sql, identity)?;
            }
            Ok(())
        };
        self.write(of.len() * 128, false, work, move |memory, ()| {
            for identity in &of {
                memory.stays.remove(identity);
            }
        })
    }

    fn dead_letter(&self, letters: Vec<DeadLetter>) -> Durable<()> {
        let rows = self.rows_of(letters.iter().map(|letter| &letter.message));
        let left = rows.clone();
        let bytes = letters
            .iter()
            .map(|letter| size_of(&letter.message) as usize)
            .sum();
        let identities: Vec<_> = letters
            .iter()
            .map(|letter| letter.message.identity.clone())
            .collect();
        let work = move |tx: &mut Tx<'_>| {
            for letter in &letters {
                insert_letter(tx, letter)?;
            }
            Ok(rows.delete(tx)?)
        };
        let written = self.write(bytes, true, work, move |memory, deleted| {
            for identity in &identities {
                memory.stays.remove(identity);
            }
            left.left(deleted);
        });
        Box::pin(async move { written.await.map(drop) })
    }

    fn dead_letters(&self, after: u64, limit: usize) -> Durable<Vec<DeadLetter>> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT number, source, id, lane_source, pool, key, NULL, position, headers, body, reason,
                 text, at, attempts FROM dead_letters WHERE number > ? ORDER BY number LIMIT ?",
            )?;
            let letters = select.query_map((after as i64, limit as i64), letter_at)?;
            letters.collect()
        })
    }

    fn dead_letter_count(&self) -> Durable<u64> {
        self.read(|connection| {
            connection.query_row("SELECT COUNT(*) FROM dead_letters", [], |row| {
                row.get::<_, i64>(0).map(|count| count as u64)
            })
        })
    }

    fn trim_dead_letters(&self, numbers: Vec<u64>, audit: AuditEntry) -> Durable<u64> {
        let work = move |tx: &mut Tx<'_>| {
            let mut trimmed = 0;
            for number in &numbers {
                trimmed += trim_letter(tx, *number)?;
            }
            insert_audit(tx.sql, &audit)?;
            Ok(trimmed)
        };
        self.write(1024, false, work, |_, _| {})
    }

    fn park(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<()> {
        let rows = self.rows_of(messages.iter());
        let left = rows.clone();
        let since = self.shared.machine.wall();
        let bytes = bytes_of(&messages);
        let (of, why) = (lane.clone(), reason.clone());
        let work = move |tx: &mut Tx<'_>| {
            let n = parked_lane(tx.sql, &lane, &reason, since, false)?;
            stop_feeding(tx.sql, n, &reason)?;
            let added = insert_all(tx, n, &messages)?;
            Ok((added, rows.delete(tx)?))
        };
        let written = self.write(bytes, true, work, move |memory, (added, deleted)| {
            let lane = memory.stored_lane(of, &why, since, false);
            lane.messages += added;
            if lane.replaying {
                lane.replaying = false;
                lane.spilled = false;
                lane.reason = why;
            }
            left.left(deleted);
        });
        Box::pin(async move { written.await.map(drop) })
    }

    fn spill(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<Vec<u64>> {
        let rows = self.rows_of(messages.iter());
        let left = rows.clone();
        let since = self.shared.machine.wall();
        let bytes = bytes_of(&messages);
        let (of, why) = (lane.clone(), reason.clone());
        let work = move |tx: &mut Tx<'_>| {
            let n = parked_lane(tx.sql, &lane, &reason, since, true)?;
            let mut added = 0;
            let mut numbers = Vec::with_capacity(messages.len());
            for message in &messages {
                added += insert_parked(tx, n, message)?;
                numbers.push(row_of(tx.sql, &message.identity)?);
            }
            Ok((added, numbers, rows.delete(tx)?))
        };
        let written = self.write(bytes, true, work, move |memory, (added, _, deleted)| {
            memory.stored_lane(of, &why, since, true).messages += added;
            left.left(deleted);
        });
        Box::pin(async move { written.await.map(|(_, numbers, _)| numbers) })
    }

    fn parks_any(&self) -> bool {
        !self.memory().parked.is_empty()
    }

    fn park_behind(&self, lane: LaneName, messages: Vec<Stored>) -> Durable<bool> {
        let rows = self.rows_of(messages.iter());
        let left = rows.clone();
        let bytes = bytes_of(&messages);
        let of = lane.clone();
        let work = move |tx: &mut Tx<'_>| {
            let Some(n) = find_parked_lane(tx.sql, &lane)? else {
                return Ok(None);
            };
            let added = insert_all(tx, n, &messages)?;
            Ok(Some((added, rows.delete(tx)?)))
        };
        let written = self.write(bytes, true, work, move |memory, stored| {
            let Some((added, deleted)) = stored else {
                return;
            };
            if let Some(lane) = memory.parked.get_mut(&of) {
                lane.messages += added;
            }
            left.left(deleted);
        });
        Box::pin(async move { written.await.map(|stored| stored.is_some()) })
    }

    fn parked(&self) -> Vec<ParkedLane> {
        self.memory().parked.values().cloned().collect()
    }

    fn parked_lane(&self, lane: &LaneName) -> Option<ParkedLane> {
        self.memory().parked.get(lane).cloned()
    }

    fn parked_rows(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<ParkedRow>> {
        self.read(move |connection| {
            let Some(n) = find_parked_lane(connection, &lane)? else {
                return Ok(Vec::new());
            };
            let mut select = connection.prepare_cached(
                "SELECT row, source, id, position, headers, body FROM parked
                 WHERE lane = ? AND row > ? ORDER BY row LIMIT ?",
            )?;
            let rows =
                select.query_map((n, after as i64, limit as i64), |row| parked_at(row, &lane))?;
            rows.collect()
        })
    }

    fn parked_names(
        &self,
        lane: LaneName,
        after: u64,
        limit: usize,
    ) -> Durable<Vec<(u64, Identity)>> {
        self.read(move |connection| {
            let Some(n) = find_parked_lane(connection, &lane)? else {
                return Ok(Vec::new());
            };
            let mut select = connection.prepare_cached(
                "SELECT row, source, id FROM parked WHERE lane = ? AND row > ? ORDER BY row LIMIT ?",
            )?;
            let names = select.query_map((n, after as i64, limit as i64), |row| {
                Ok((row.get::<_, i64>(0)? as u64, identity_at(row, 1)?))
            })?;
            names.collect()
        })
    }

    fn parked_sizes(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<u64>> {
        self.read(move |connection| {
            let Some(n) = find_parked_lane(connection, &lane)? else {
                return Ok(Vec::new());
            };
            let mut select = connection.prepare_cached(
                "SELECT size FROM parked WHERE lane = ? AND row > ? ORDER BY row LIMIT ?",
            )?;
            let sizes = select.query_map((n, after as i64, limit as i64), |row| {
                row.get::<_, i64>(0).map(|size| size as u64)
            })?;
            sizes.collect()
        })
    }

    fn move_lanes(&self, moves: Vec<Move>) -> Durable<()> {
        let work = move |tx: &mut Tx<'_>| {
            for one in &moves {
                match one {
                    Move::Lane { from, of, to } => move_lane(tx.sql, from, of.as_deref(), to)?,
                    Move::Source { from, to } => rename_source(tx.sql, from, to)?,
                }
            }
            Ok(Memory::load(tx.sql)?.0)
        };
        let written = self.write(4096, true, work, move |memory, loaded| {
            let recovered = std::mem::take(&mut memory.recovered);
            *memory = Memory {
                recovered,
                ..loaded.clone()
            };
        });
        Box::pin(async move { written.await.map(drop) })
    }

    fn recovered(&self) -> Vec<(LaneName, u64)> {
        self.memory().recovered.clone()
    }

    fn rows_before(&self) -> u64 {
        self.memory().rows_before
    }

    fn unpark(&self, lane: LaneName, rows: Vec<u64>) -> Durable<()> {
        self.take_parked(lane, rows, None, None)
    }

    fn set_replaying(&self, lane: LaneName, replaying: bool, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let work = move |tx: &mut Tx<'_>| {
            tx.sql
                .prepare_cached(
                    "UPDATE parked_lanes SET replaying = ?, spilled = spilled AND ?1
                     WHERE source = ? AND pool = ? AND key IS ? AND alone IS ?",
                )?
                .execute((
                    replaying,
                    &*lane.source,
                    &*lane.pool,
                    key_column(&lane),
                    alone_column(&lane),
                ))?;
            let ended = replaying && delete_empty_lane(tx.sql, &lane)?;
            insert_audit(tx.sql, &audit)?;
            Ok(ended)
        };
        let written = self.write(1024, true, work, move |memory, ended| {
            if *ended {
                memory.parked.remove(&of);
            } else if let Some(lane) = memory.parked.get_mut(&of) {
                lane.replaying = replaying;
                lane.spilled &= replaying;
            }
        });
        Box::pin(async move { written.await.map(drop) })
    }

    fn remove_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: AuditEntry,
    ) -> Durable<()> {
        self.take_parked(lane, rows, as_letter, Some(audit))
    }

    fn pause(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let work = move |tx: &mut Tx<'_>| {
            delete_pause(tx.sql, &lane)?;
            tx.sql
                .prepare_cached("INSERT INTO pauses (source, pool, key) VALUES (?, ?, ?)")?
                .execute((&*lane.source, &*lane.pool, key_column(&lane)))?;
            Ok(insert_audit(tx.sql, &audit)?)
        };
        self.write(1024, true, work, move |memory, ()| {
            memory.pauses.insert(of);
        })
    }

    fn resume(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let work = move |tx: &mut Tx<'_>| {
            delete_pause(tx.sql, &lane)?;
            Ok(insert_audit(tx.sql, &audit)?)
        };
        self.write(1024, true, work, move |memory, ()| {
            memory.pauses.remove(&of);
        })
    }

    fn separate_pools(&self) -> BTreeSet<Arc<str>> {
        self.memory().separate_pools.clone()
    }

    fn set_separate_pools(&self, pools: BTreeSet<Arc<str>>) -> Durable<()> {
        let names = pools.clone();
        let work = move |tx: &mut Tx<'_>| {
            tx.sql.execute("DELETE FROM separate_pools", ())?;
            let insert = "INSERT INTO separate_pools VALUES (?)";
            let mut insert = tx.sql.prepare_cached(insert)?;
            for name in &names {
                insert.execute([&**name])?;
            }
            Ok(())
        };
        self.write(1024, false, work, |memory, ()| {
            memory.separate_pools = pools
        })
    }

    fn read_queues(&self) -> BTreeSet<ReadQueue> {
        self.memory().read_queues.clone()
    }

    fn set_read_queues(&self, queues: BTreeSet<ReadQueue>) -> Durable<()> {
        let written = queues.clone();
        let work = move |tx: &mut Tx<'_>| {
            tx.sql.execute("DELETE FROM read_queues", ())?;
            let insert = "INSERT INTO read_queues VALUES (?, ?, ?, ?)";
            let mut insert = tx.sql.prepare_cached(insert)?;
            for read in &written {
                insert.execute((&*read.kind, &*read.queue, &*read.source, read.one_lane))?;
            }
            Ok(())
        };
        self.write(1024, false, work, |memory, ()| memory.read_queues = queues)
    }

    fn pauses(&self) -> Vec<LaneName> {
        self.memory().pauses.iter().cloned().collect()
    }

    fn audit(&self, entry: AuditEntry) -> Durable<()> {
        let work = move |tx: &mut Tx<'_>| Ok(insert_audit(tx.sql, &entry)?);
        self.write(1024, true, work, |_, ()| {})
    }

    fn audit_log(&self, limit: usize) -> Durable<Vec<AuditEntry>> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT at, who, verb, lane_source, pool, key, NULL, source, id, why FROM audit
                 ORDER BY n DESC LIMIT ?",
            )?;
            let entries = select.query_map([limit as i64], audit_at)?;
            entries.collect()
        })
    }
}

impl EmbeddedStore {
    /// Rows leave a parked lane, as dead letters or for good; the last one ends the parking.
    fn take_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: Option<AuditEntry>,
    ) -> Durable<()> {
        let of = lane.clone();
        let at = self.shared.machine.wall();
        let grows = as_letter.is_some();
        let work = move |tx: &mut Tx<'_>| {
            let left = remove_rows(tx, &lane, &rows, as_letter.as_ref(), at)?;
            if let Some(audit) = &audit {
                insert_audit(tx.sql, audit)?;
            }
            Ok(left)
        };
        let written = self.write(1024, grows, work, move |memory, left| {
            if left.empty {
                memory.parked.remove(&of);
            } else if let Some(lane) = memory.parked.get_mut(&of) {
                lane.messages = lane.messages.saturating_sub(left.removed.len() as u64);
            }
            if grows {
                for identity in &left.removed {
                    memory.stays.remove(identity);
                }
            }
        });
        Box::pin(async move { written.await.map(drop) })
    }
}

/// What a removal left behind.
struct Left {
    removed: Vec<Identity>,
    empty: bool,
}

fn remove_rows(
    tx: &mut Tx<'_>,
    lane: &LaneName,
    rows: &[u64],
    as_letter: Option<&(String, String)>,
    at: SystemTime,
) -> Result<Left, Failure> {
    let mut removed = Vec::new();
    let Some(n) = find_parked_lane(tx.sql, lane)? else {
        return Ok(Left {
            removed,
            empty: true,
        });
    };
    for row in rows {
        let Some(parked) = read_parked(tx.sql, n, *row, lane)? else {
            continue;
        };
        tx.sql
            .prepare_cached("DELETE FROM parked WHERE row = ?")?
            .execute([*row as i64])?;
        tx.budget.release(size_of(&parked.message));
        removed.push(parked.message.identity.clone());
        if let Some((reason, text)) = as_letter {
            let letter = DeadLetter {
                number: 0,
                message: parked.message,
                reason: reason.clone(),
                text: text.clone(),
                at,
                attempts: Vec::new(),
            };
            insert_letter(tx, &letter)?;
        }
    }
    let mut any = tx
        .sql
        .prepare_cached("SELECT 1 FROM parked WHERE lane = ? LIMIT 1")?;
    let empty = !any.exists([n])?;
    if empty {
        tx.sql
            .prepare_cached("DELETE FROM parked_lanes WHERE n = ?")?
            .execute([n])?;
    }
    Ok(Left { removed, empty })
}

/// Stores a letter unless its identity has one, with the attempts that were written down for it.
fn insert_letter(tx: &mut Tx<'_>, letter: &DeadLetter) -> Result<(), Failure> {
    let message = &letter.message;
    let recorded = attempts_of(tx.sql, &message.identity)?;
    let attempts = match recorded.is_empty() {
        true => &letter.attempts,
        false => &recorded,
    };
    let size = size_of(message);
    let inserted = tx
        .sql
        .prepare_cached(
            "INSERT OR IGNORE INTO dead_letters (source, id, lane_source, pool, key, position, headers, body,
             reason, text, at, attempts, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(rusqlite::params![
            &*message.identity.source,
            IdColumn(&message.identity.id),
            &*message.lane.source,
            &*message.lane.pool,
            key_column(&message.lane),
            message.position.map(|position| position as i64),
            headers_column(message),
            &message.body[..],
            letter.reason,
            letter.text,
            millis(letter.at),
            write_attempts(attempts),
            size,
        ])?;
    if inserted > 0 {
        tx.budget.take(size)?;
    }
    Ok(forget_attempts(tx.sql, &message.identity)?)
}

fn trim_letter(tx: &mut Tx<'_>, number: u64) -> Result<u64, Failure> {
    let mut delete = tx
        .sql
        .prepare_cached("DELETE FROM dead_letters WHERE number = ? RETURNING size")?;
    let mut sizes = delete.query_map([number as i64], |row| row.get::<_, i64>(0))?;
    match sizes.next().transpose()? {
        Some(size) => {
            tx.budget.release(size);
            Ok(1)
        }
        None => Ok(0),
    }
}

/// Moves a row that cannot be read to the dead letters, as raw as it is. Nobody waits for it; if it
/// cannot be written now, the next start finds the row again.
pub(super) fn bury(shared: &Shared, queue: Arc<Queue>, identity: Identity, seq: u64) {
    let moment = Moment::of(&*shared.machine);
    let of = queue.clone();
    let work = move |tx: &mut Tx<'_>| {
        let mut select = tx.sql.prepare_cached(&queue.sql.raw)?;
        let raw = select.query_map([seq as i64], |row| {
            Ok((raw_at(row, 0)?, raw_at(row, 1)?, raw_at(row, 2)?))
        })?;
        let Some((pool, key, body)) = raw.last().transpose()? else {
            return Ok(0);
        };
        let lane = LaneName {
            source: identity.source.clone(),
            pool: String::from_utf8_lossy(&pool.unwrap_or_default()).into(),
            key: key.map(Key::new),
            alone: None,
        };
        let letter = DeadLetter {
            number: 0,
            message: Stored {
                identity: identity.clone(),
                lane,
                body: Bytes::from(body.unwrap_or_default()),
                headers: Vec::new(),
                position: Some(seq),
            },
            reason: "malformed".into(),
            text: "the row in the queue cannot be read: a column has a wrong type or content"
                .into(),
            at: moment.wall,
            attempts: Vec::new(),
        };
        insert_letter(tx, &letter)?;
        Ok(delete_rows(tx, &queue, &[seq])?)
    };
    let after = move |deleted: &usize| of.add_depth(-(*deleted as i64));
    // Submitted by the call; the answer is of no use to anybody.
    drop(shared.writer.call(moment, 4096, true, work, after));
}

/// Attempts of messages of an embedded queue that are in neither queue nor store: the process
/// ended between their ack and the forgetting.
pub(super) async fn forget_orphans(
    shared: &Shared,
    source: Arc<str>,
    queue: &Queue,
) -> Result<(), StoreError> {
    let memory = shared.memory.clone();
    if !lock(&memory)
        .stays
        .keys()
        .any(|identity| identity.source == source)
    {
        return Ok(());
    }
    let select = format!(
        "SELECT source, id, EXISTS (SELECT 1 FROM q_{} WHERE seq = id) FROM stays
         WHERE source = ? AND typeof(id) = 'integer'
         AND NOT EXISTS (SELECT 1 FROM parked WHERE parked.source = stays.source AND parked.id = stays.id)",
        queue.n
    );
    // What is acked has a row for a while; no attempt of it will follow.
    let acked: HashSet<BrokerId> = queue
        .shelf()
        .acked_rows()
        .into_iter()
        .map(BrokerId::Sequence)
        .collect();
    let work = move |tx: &mut Tx<'_>| {
        let mut select = tx.sql.prepare(&select)?;
        let stays = select.query_map([&*source], |row| {
            Ok((identity_at(row, 0)?, row.get::<_, bool>(2)?))
        })?;
        let mut orphans = Vec::new();
        for stay in stays {
            let (identity, has_row) = stay?;
            if !has_row || acked.contains(&identity.id) {
                orphans.push(identity);
            }
        }
        for identity in &orphans {
            forget_attempts(tx.sql, identity)?;
        }
        Ok(orphans)
    };
    let after = move |orphans: &Vec<Identity>| {
        let mut memory = lock(&memory);
        for identity in orphans {
            memory.stays.remove(identity);
        }
    };
    let moment = Moment::of(&*shared.machine);
    let written = shared.writer.call(moment, 4096, false, work, after);
    written.durable().await.map(drop)
}

fn insert_attempt(
    sql: &Connection,
    identity: &Identity,
    attempt: &FailedAttempt,
) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(
        "INSERT INTO attempts (source, id, at, class, text, answer) VALUES (?, ?, ?, ?, ?, ?)",
    )?
    .execute((
        &*identity.source,
        IdColumn(&identity.id),
        millis(attempt.at),
        &attempt.class,
        &attempt.text,
        &attempt.answer,
    ))?;
    // A head may be tried for ever.
    sql.prepare_cached(
        "DELETE FROM attempts WHERE source = ?1 AND id = ?2 AND n <=
         (SELECT n FROM attempts WHERE source = ?1 AND id = ?2 ORDER BY n DESC LIMIT 1 OFFSET ?3)",
    )?
    .execute((
        &*identity.source,
        IdColumn(&identity.id),
        KEPT_ATTEMPTS as i64,
    ))
    .map(drop)
}

fn count_failure(sql: &Connection, identity: &Identity) -> Result<Stay, rusqlite::Error> {
    sql.prepare_cached(
        "INSERT INTO stays VALUES (?, ?, 0, 1, 1)
         ON CONFLICT DO UPDATE SET failed = failed + 1, total = total + 1
         RETURNING round, failed, total",
    )?
    .query_row((&*identity.source, IdColumn(&identity.id)), |row| {
        stay_at(row, 0)
    })
}

fn stay_at(row: &rusqlite::Row<'_>, first: usize) -> Result<Stay, rusqlite::Error> {
    Ok(Stay {
        round: row.get(first)?,
        failed: row.get(first + 1)?,
        total: row.get(first + 2)?,
    })
}

fn begin_round(sql: &Connection, identity: &Identity) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(
        "INSERT INTO stays VALUES (?, ?, 1, 0, 0) ON CONFLICT DO UPDATE SET round = round + 1, failed = 0",
    )?
    .execute((&*identity.source, IdColumn(&identity.id)))
    .map(drop)
}

fn forget_attempts(sql: &Connection, identity: &Identity) -> Result<(), rusqlite::Error> {
    let of = (&*identity.source, IdColumn(&identity.id));
    let stays = sql
        .prepare_cached("DELETE FROM stays WHERE source = ? AND id = ?")?
        .execute((of.0, IdColumn(&identity.id)))?;
    // No attempt is written without its stay.
    if stays > 0 {
        sql.prepare_cached("DELETE FROM attempts WHERE source = ? AND id = ?")?
            .execute(of)?;
    }
    Ok(())
}

fn attempts_of(
    sql: &Connection,
    identity: &Identity,
) -> Result<Vec<FailedAttempt>, rusqlite::Error> {
    let mut select = sql.prepare_cached(
        "SELECT at, class, text, answer FROM attempts WHERE source = ? AND id = ? ORDER BY n",
    )?;
    let attempts = select.query_map((&*identity.source, IdColumn(&identity.id)), |row| {
        Ok(FailedAttempt {
            at: from_millis(row.get(0)?),
            class: row.get(1)?,
            text: row.get(2)?,
            answer: row.get(3)?,
        })
    })?;
    attempts.collect()
}

/// The lane's number, made if nothing is stored of it yet: spilled and fed, or parked.
fn parked_lane(
    sql: &Connection,
    lane: &LaneName,
    reason: &str,
    since: SystemTime,
    spilled: bool,
) -> Result<i64, rusqlite::Error> {
    if let Some(n) = find_parked_lane(sql, lane)? {
        return Ok(n);
    }
    sql.prepare_cached(
        "INSERT INTO parked_lanes (source, pool, key, alone, reason, since, replaying, spilled)
         VALUES (?, ?, ?, ?, ?, ?, ?7, ?7)",
    )?
    .execute((
        &*lane.source,
        &*lane.pool,
        key_column(lane),
        alone_column(lane),
        reason,
        millis(since),
        spilled,
    ))?;
    Ok(sql.last_insert_rowid())
}

/// Moves the rows of a lane (with `of`, those of one source) to the lane of another name.
fn move_lane(
    sql: &Connection,
    from: &LaneName,
    of: Option<&str>,
    to: &LaneName,
) -> Result<(), rusqlite::Error> {
    if from == to {
        return Ok(());
    }
    let Some(lane) = find_parked_lane(sql, from)? else {
        return Ok(());
    };
    let rows = rows_of_lane(sql, lane, of)?;
    let whole = of.is_none() || rows.len() == rows_of_lane(sql, lane, None)?.len();
    if of.is_some() && rows.is_empty() {
        return Ok(());
    }
    match find_parked_lane(sql, to)? {
        None if whole => rename_lane(sql, lane, to),
        None => {
            let into = like_lane(sql, lane, to)?;
            put_behind(sql, rows, into)
        }
        Some(into) => {
            put_behind(sql, rows, into)?;
            stop_feeding_as(sql, into, lane)?;
            if whole {
                sql.prepare_cached("DELETE FROM parked_lanes WHERE n = ?")?
                    .execute([lane])?;
            }
            Ok(())
        }
    }
}

fn rows_of_lane(
    sql: &Connection,
    lane: i64,
    of: Option<&str>,
) -> Result<Vec<i64>, rusqlite::Error> {
    let select =
        "SELECT row FROM parked WHERE lane = ?1 AND (?2 IS NULL OR source = ?2) ORDER BY row";
    let mut rows = sql.prepare_cached(select)?;
    let rows = rows.query_map((lane, of), |row| row.get(0))?;
    rows.collect()
}

fn rename_lane(sql: &Connection, lane: i64, to: &LaneName) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(
        "UPDATE parked_lanes SET source = ?, pool = ?, key = ?, alone = ? WHERE n = ?",
    )?
    .execute((
        &*to.source,
        &*to.pool,
        key_column(to),
        alone_column(to),
        lane,
    ))
    .map(drop)
}

/// Another lane that is stored for the same reason, and fed if this one is.
fn like_lane(sql: &Connection, lane: i64, to: &LaneName) -> Result<i64, rusqlite::Error> {
    sql.prepare_cached(
        "INSERT INTO parked_lanes (source, pool, key, alone, reason, since, replaying, spilled)
         SELECT ?, ?, ?, ?, reason, since, replaying, spilled FROM parked_lanes WHERE n = ?",
    )?
    .execute((
        &*to.source,
        &*to.pool,
        key_column(to),
        alone_column(to),
        lane,
    ))?;
    Ok(sql.last_insert_rowid())
}

/// Rows go behind those of another lane, as new ones: what is fed of that is never behind what is
/// to be fed.
fn put_behind(sql: &Connection, rows: Vec<i64>, into: i64) -> Result<(), rusqlite::Error> {
    let mut last = last_row(sql)?;
    let mut move_row = sql.prepare_cached("UPDATE parked SET row = ?, lane = ? WHERE row = ?")?;
    for row in rows {
        last += 1;
        move_row.execute((last, into, row))?;
    }
    sql.prepare_cached("UPDATE sqlite_sequence SET seq = ? WHERE name = 'parked'")?
        .execute([last])
        .map(drop)
}

/// The highest row there ever was: numbers do not repeat.
fn last_row(sql: &Connection) -> Result<i64, rusqlite::Error> {
    let last = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'parked'";
    sql.prepare_cached(last)?.query_row([], |row| row.get(0))
}

/// If the other lane waits for an operator, so does this one.
fn stop_feeding_as(sql: &Connection, lane: i64, other: i64) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(
        "UPDATE parked_lanes SET reason = other.reason, replaying = 0, spilled = 0
         FROM (SELECT reason, replaying FROM parked_lanes WHERE n = ?) AS other
         WHERE n = ? AND parked_lanes.replaying AND NOT other.replaying",
    )?
    .execute((other, lane))
    .map(drop)
}

fn rename_source(sql: &Connection, from: &str, to: &Arc<str>) -> Result<(), rusqlite::Error> {
    if *from == **to {
        return Ok(());
    }
    let select = "SELECT source, pool, key, alone FROM parked_lanes WHERE source = ? ORDER BY n";
    let lanes: Vec<LaneName> = sql
        .prepare_cached(select)?
        .query_map([from], |row| lane_at(row, 0))?
        .collect::<Result<_, _>>()?;
    for lane in lanes {
        let new = LaneName {
            source: to.clone(),
            ..lane.clone()
        };
        move_lane(sql, &lane, None, &new)?;
    }
    // What is known by its new identity already keeps the old one: no row is lost.
    for update in [
        "UPDATE OR IGNORE parked SET source = ?2 WHERE source = ?1",
        "UPDATE OR IGNORE stays SET source = ?2 WHERE source = ?1",
        "UPDATE attempts SET source = ?2 WHERE source = ?1",
        "UPDATE OR IGNORE dead_letters SET source = ?2 WHERE source = ?1",
        "UPDATE dead_letters SET lane_source = ?2 WHERE lane_source = ?1",
        "UPDATE pauses SET source = ?2 WHERE source = ?1",
        "UPDATE OR IGNORE read_queues SET source = ?2 WHERE source = ?1",
    ] {
        sql.prepare_cached(update)?.execute((from, &**to))?;
    }
    sql.prepare_cached("DELETE FROM read_queues WHERE source = ?")?
        .execute([from])?;
    Ok(())
}

/// Gives rows that have no lane one: that of their key, as their bodies say it, or
/// [`recovery_lane`]. Returns these lanes, with how many rows each got.
///
/// A lane made for them waits for an operator: later messages of the key may have been delivered.
/// Where the key is stored, the rows come before its others, and what is done with those is done
/// with them.
pub(super) fn recover_rows(
    connection: &mut Connection,
    now: SystemTime,
) -> Result<Vec<(LaneName, u64)>, rusqlite::Error> {
    let lost = {
        let mut select = connection.prepare(
            "SELECT row, source, id, position, headers, body FROM parked
             WHERE lane NOT IN (SELECT n FROM parked_lanes) ORDER BY row",
        )?;
        let lane = recovery_lane(&"".into());
        let rows = select.query_map([], |row| {
            let parked = parked_at(row, &lane)?;
            Ok((parked.row, key_lane(&parked.message)))
        })?;
        rows.collect::<Result<Vec<_>, _>>()?
    };
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    let tx = connection.transaction()?;
    let mut recovered: BTreeMap<LaneName, u64> = BTreeMap::new();
    let lanes = lost.iter().map(|(_, lane)| lane).collect::<BTreeSet<_>>();
    let mut numbers = HashMap::new();
    for lane in lanes {
        numbers.insert(lane, parked_lane(&tx, lane, RECOVERED, now, false)?);
    }
    for (row, lane) in &lost {
        tx.prepare_cached("UPDATE parked SET lane = ? WHERE row = ?")?
            .execute((numbers[lane], *row as i64))?;
        *recovered.entry(lane.clone()).or_default() += 1;
    }
    tx.commit()?;
    Ok(recovered.into_iter().collect())
}

/// Why rows that had no lane wait.
const RECOVERED: &str = "its rows were found without a lane";

/// Where rows wait whose key is not known.
fn recovery_lane(source: &Arc<str>) -> LaneName {
    LaneName::keyed(source.clone(), DEFAULT, "keylane:recovered")
}

/// The lane of a message's key, as far as its body says it.
fn key_lane(message: &Stored) -> LaneName {
    let source = message.identity.source.clone();
    let incoming = Incoming {
        identity: &message.identity,
        key: None,
        headers: &message.headers,
        body: &message.body,
    };
    let unpacked = parse::unpack(
        &Envelope::Keylane,
        incoming,
        None,
        &mut Addresses::default(),
    );
    let Ok(parcel) = unpacked else {
        return recovery_lane(&source);
    };
    let pool = parcel.address.pool.clone();
    match parcel.key {
        Some(key) => LaneName::keyed(source, pool.unwrap_or_else(|| DEFAULT.into()), key),
        None => recovery_lane(&source),
    }
}

/// Nothing would end the replay of a lane that has no rows. Returns whether it had none.
fn delete_empty_lane(sql: &Connection, lane: &LaneName) -> Result<bool, rusqlite::Error> {
    let Some(n) = find_parked_lane(sql, lane)? else {
        return Ok(false);
    };
    let mut delete = sql.prepare_cached(
        "DELETE FROM parked_lanes WHERE n = ?1 AND NOT EXISTS (SELECT 1 FROM parked WHERE lane = ?1)",
    )?;
    Ok(delete.execute([n])? > 0)
}

/// From now on an operator decides.
fn stop_feeding(sql: &Connection, lane: i64, reason: &str) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(
        "UPDATE parked_lanes SET replaying = 0, spilled = 0, reason = ? WHERE n = ? AND replaying",
    )?
    .execute((reason, lane))
    .map(drop)
}

fn row_of(sql: &Connection, identity: &Identity) -> Result<u64, rusqlite::Error> {
    sql.prepare_cached("SELECT row FROM parked WHERE source = ? AND id = ?")?
        .query_row((&*identity.source, IdColumn(&identity.id)), |row| {
            row.get::<_, i64>(0).map(|row| row as u64)
        })
}

fn find_parked_lane(sql: &Connection, lane: &LaneName) -> Result<Option<i64>, rusqlite::Error> {
    let mut select = sql.prepare_cached(
        "SELECT n FROM parked_lanes WHERE source = ? AND pool = ? AND key IS ? AND alone IS ?",
    )?;
    let of = (
        &*lane.source,
        &*lane.pool,
        key_column(lane),
        alone_column(lane),
    );
    let mut found = select.query_map(of, |row| row.get(0))?;
    found.next().transpose()
}

fn bytes_of(messages: &[Stored]) -> usize {
    messages
        .iter()
        .map(|message| size_of(message) as usize)
        .sum()
}

/// Answers how many were not there before.
fn insert_all(tx: &mut Tx<'_>, lane: i64, messages: &[Stored]) -> Result<u64, Failure> {
    let mut added = 0;
    for message in messages {
        added += insert_parked(tx, lane, message)?;
    }
    Ok(added)
}

fn insert_parked(tx: &mut Tx<'_>, lane: i64, message: &Stored) -> Result<u64, Failure> {
    let size = size_of(message);
    let inserted = tx
        .sql
        .prepare_cached(
            "INSERT OR IGNORE INTO parked (lane, source, id, position, size, headers, body)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            lane,
            &*message.identity.source,
            IdColumn(&message.identity.id),
            message.position.map(|position| position as i64),
            size,
            headers_column(message),
            &message.body[..],
        ))?;
    if inserted > 0 {
        tx.budget.take(size)?;
    }
    Ok(inserted as u64)
}

fn read_parked(
    sql: &Connection,
    n: i64,
    row: u64,
    lane: &LaneName,
) -> Result<Option<ParkedRow>, rusqlite::Error> {
    let mut select = sql.prepare_cached(
        "SELECT row, source, id, position, headers, body FROM parked WHERE row = ? AND lane = ?",
    )?;
    let mut rows = select.query_map((row as i64, n), |row| parked_at(row, lane))?;
    rows.next().transpose()
}

fn delete_pause(sql: &Connection, lane: &LaneName) -> Result<(), rusqlite::Error> {
    sql.prepare_cached("DELETE FROM pauses WHERE source = ? AND pool = ? AND key IS ?")?
        .execute((&*lane.source, &*lane.pool, key_column(lane)))
        .map(drop)
}

fn insert_audit(sql: &Connection, entry: &AuditEntry) -> Result<(), rusqlite::Error> {
    let lane = entry.lane.as_ref();
    let identity = entry.identity.as_ref();
    sql.prepare_cached(
        "INSERT INTO audit (at, who, verb, lane_source, pool, key, source, id, why)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute((
        millis(entry.at),
        &entry.who,
        &entry.verb,
        lane.map(|lane| &*lane.source),
        lane.map(|lane| &*lane.pool),
        lane.and_then(key_column),
        identity.map(|identity| &*identity.source),
        identity.map(|identity| IdColumn(&identity.id)),
        &entry.why,
    ))
    .map(drop)
}

/// A broker's id as a column: a number or a text, never equal to one another.
struct IdColumn<'a>(&'a BrokerId);

impl ToSql for IdColumn<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            BrokerId::Sequence(n) => ToSqlOutput::Owned(Value::Integer(*n as i64)),
            BrokerId::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

fn key_column(lane: &LaneName) -> Option<&[u8]> {
    lane.key.as_ref().map(Key::as_bytes)
}

fn alone_column(lane: &LaneName) -> Option<IdColumn<'_>> {
    lane.alone.as_ref().map(IdColumn)
}

fn headers_column(message: &Stored) -> Option<String> {
    let pairs = text_pairs(&message.headers);
    (!pairs.is_empty()).then(|| serde_json::to_string(&pairs).expect("pairs of strings"))
}

fn size_of(message: &Stored) -> i64 {
    let headers: usize = message
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    (message.body.len() + headers) as i64 + ROW_OVERHEAD
}

/// When, class, text, first bytes of the answer.
type AttemptRow = (i64, String, String, Vec<u8>);

fn write_attempts(attempts: &[FailedAttempt]) -> String {
    let row = |attempt: &FailedAttempt| -> AttemptRow {
        let FailedAttempt {
            at,
            class,
            text,
            answer,
        } = attempt.clone();
        (millis(at), class, text, answer)
    };
    let rows: Vec<AttemptRow> = attempts.iter().map(row).collect();
    serde_json::to_string(&rows).expect("numbers and strings")
}

fn read_attempts(text: &str) -> Vec<FailedAttempt> {
    let rows: Vec<AttemptRow> = serde_json::from_str(text).unwrap_or_default();
    let attempt = |(at, class, text, answer)| FailedAttempt {
        at: from_millis(at),
        class,
        text,
        answer,
    };
    rows.into_iter().map(attempt).collect()
}

fn identity_at(row: &Row<'_>, at: usize) -> Result<Identity, rusqlite::Error> {
    Ok(Identity {
        source: row.get::<_, String>(at)?.into(),
        id: id_at(row, at + 1)?,
    })
}

fn id_at(row: &Row<'_>, at: usize) -> Result<BrokerId, rusqlite::Error> {
    Ok(match row.get_ref(at)? {
        ValueRef::Integer(n) => BrokerId::Sequence(n as u64),
        other => {
            BrokerId::Text(String::from_utf8_lossy(other.as_bytes().unwrap_or_default()).into())
        }
    })
}

/// Source, pool, key, and the id of a message that is a lane of its own.
fn lane_at(row: &Row<'_>, at: usize) -> Result<LaneName, rusqlite::Error> {
    let alone = row.get_ref(at + 3)? != ValueRef::Null;
    Ok(LaneName {
        source: row.get::<_, String>(at)?.into(),
        pool: row.get::<_, String>(at + 1)?.into(),
        key: row.get::<_, Option<Vec<u8>>>(at + 2)?.map(Key::new),
        alone: alone.then(|| id_at(row, at + 3)).transpose()?,
    })
}

fn headers_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Vec<(Arc<str>, Arc<str>)>> {
    let text: Option<String> = row.get(at)?;
    Ok(text
        .and_then(|text| read_headers(&text))
        .unwrap_or_default())
}

fn read_queue_at(row: &Row<'_>) -> Result<ReadQueue, rusqlite::Error> {
    Ok(ReadQueue {
        kind: row.get(0)?,
        queue: row.get(1)?,
        source: row.get(2)?,
        one_lane: row.get(3)?,
    })
}

fn parked_lane_at(row: &Row<'_>) -> Result<ParkedLane, rusqlite::Error> {
    Ok(ParkedLane {
        lane: lane_at(row, 0)?,
        reason: row.get(4)?,
        since: from_millis(row.get(5)?),
        replaying: row.get(6)?,
        spilled: row.get(7)?,
        messages: row.get::<_, i64>(8)? as u64,
    })
}

fn parked_at(row: &Row<'_>, lane: &LaneName) -> Result<ParkedRow, rusqlite::Error> {
    Ok(ParkedRow {
        row: row.get::<_, i64>(0)? as u64,
        message: Stored {
            identity: identity_at(row, 1)?,
            lane: lane.clone(),
            position: row
                .get::<_, Option<i64>>(3)?
                .map(|position| position as u64),
            headers: headers_at(row, 4)?,
            body: Bytes::from(row.get::<_, Vec<u8>>(5)?),
        },
    })
}

fn letter_at(row: &Row<'_>) -> Result<DeadLetter, rusqlite::Error> {
    Ok(DeadLetter {
        number: row.get::<_, i64>(0)? as u64,
        message: Stored {
            identity: identity_at(row, 1)?,
            lane: lane_at(row, 3)?,
            position: row
                .get::<_, Option<i64>>(7)?
                .map(|position| position as u64),
            headers: headers_at(row, 8)?,
            body: Bytes::from(row.get::<_, Vec<u8>>(9)?),
        },
        reason: row.get(10)?,
        text: row.get(11)?,
        at: from_millis(row.get(12)?),
        attempts: read_attempts(&row.get::<_, String>(13)?),
    })
}

fn audit_at(row: &Row<'_>) -> Result<AuditEntry, rusqlite::Error> {
    let lane = row.get_ref(3)? != ValueRef::Null;
    let identity = row.get_ref(7)? != ValueRef::Null;
    Ok(AuditEntry {
        at: from_millis(row.get(0)?),
        who: row.get(1)?,
        verb: row.get(2)?,
        lane: lane.then(|| lane_at(row, 3)).transpose()?,
        identity: identity.then(|| identity_at(row, 7)).transpose()?,
        why: row.get(9)?,
    })
}

/// Whatever the column holds, as bytes.
fn raw_at(row: &Row<'_>, at: usize) -> Result<Option<Vec<u8>>, rusqlite::Error> {
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(n) => Some(n.to_string().into_bytes()),
        ValueRef::Real(n) => Some(n.to_string().into_bytes()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
    })
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().expect("no panic while the memory is locked")
}
