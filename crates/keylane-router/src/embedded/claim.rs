//! Takes messages of one queue: reads ahead by a cursor, asks the shelf whose turn it is, reads
//! their bodies.
//!
//! What a claim costs does not depend on the backlog or the number of keys: the cursor passes each
//! row once (by rowid), bodies are read by rowid. Runs of a lane that has too many of them for
//! memory wait in a temporary table `(lane, first)` of the reading connection: on disk, never
//! synced, gone with the connection.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rusqlite::{Connection, Row, Statement};

use super::clock::Epoch;
use super::queue::{Queue, Statements};
use super::schema;
use super::shelf::{LaneId, Pick, Run, Shelf, Step, Taken, key_of, lane_name, pool_of};
use crate::machine::Machine;
use crate::message::Key;
use crate::plan::Keyless;
use crate::source::{Lanes, PoolCodes, Room};

const MAKE_SIDE: &str =
    "CREATE TEMP TABLE side (lane INTEGER, first INTEGER, last INTEGER, count INTEGER,
    due INTEGER, PRIMARY KEY (lane, first)) WITHOUT ROWID";
const ADD_SIDE: &str = "INSERT INTO temp.side VALUES (?, ?, ?, ?, ?)";
const READ_SIDE: &str =
    "SELECT first, last, count, due FROM temp.side WHERE lane = ? ORDER BY first LIMIT ?";
const CUT_SIDE: &str = "DELETE FROM temp.side WHERE lane = ? AND first <= ?";

/// Bodies of messages that came together share memory of this size. The last of them keeps it all,
/// so it is small.
const SHARED: usize = 8 << 10;
/// A larger body has memory of its own.
const LARGE: usize = 2 << 10;

/// A message as the file has it.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) seq: u64,
    pub(super) key: Option<Key>,
    pub(super) headers: Vec<(Arc<str>, Arc<str>)>,
    pub(super) body: Bytes,
}

/// What one claim came to.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// The number that makes receipts of this claim its own.
    pub(super) claim: u64,
    pub(super) messages: Vec<Fetched>,
    /// Rows that cannot be read; they belong with the dead letters.
    pub(super) poisoned: Vec<u64>,
}

/// A connection for one queue's claims, with its side index.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Connection,
    epoch: Epoch,
}

impl Reader {
    pub(super) fn open(file: &Path, epoch: Epoch) -> Result<Self, rusqlite::Error> {
        let connection = schema::open_reader(file)?;
        connection.execute_batch(MAKE_SIDE)?;
        Ok(Self { connection, epoch })
    }

    /// Claims what may be handed out now; nothing when nothing may. After an error the shelf is
    /// read anew: what was in this claim's hands is not lost and not handed out twice.
    pub(super) fn claim(
        &mut self,
        queue: &Queue,
        room: &Room,
        machine: &dyn Machine,
    ) -> Result<Claimed, rusqlite::Error> {
        let keyless = queue.keyless();
        let codes = queue.codes();
        queue.shelf().claim_begins();
        if queue.shelf().is_outdated(keyless, &codes) {
            self.start_over(queue, keyless, codes.clone(), machine.now())?;
        }
        let claimed = self.try_claim(queue, room, machine);
        if claimed.is_err() {
            if !self.connection.is_autocommit() {
                self.run("ROLLBACK")?;
            }
            self.start_over(queue, keyless, codes, machine.now())?;
        }
        claimed
    }

    /// All reads from now on see the file as it is now, at the price of one.
    fn begin(&self) -> Result<(), rusqlite::Error> {
        match self.connection.is_autocommit() {
            true => self.run("BEGIN"),
            false => Ok(()),
        }
    }

    fn end(&self) -> Result<(), rusqlite::Error> {
        match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.run("COMMIT"),
        }
    }

    fn run(&self, statement: &str) -> Result<(), rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(statement)?;
        statement.execute([]).map(drop)
    }

    fn start_over(
        &mut self,
        queue: &Queue,
        keyless: Keyless,
        codes: Option<Arc<PoolCodes>>,
        now: Instant,
    ) -> Result<(), rusqlite::Error> {
        queue.shelf().rebuild(keyless, codes, now);
        self.connection.execute("DELETE FROM temp.side", [])?;
        Ok(())
    }

    fn try_claim(
        &mut self,
        queue: &Queue,
        room: &Room,
        machine: &dyn Machine,
    ) -> Result<Claimed, rusqlite::Error> {
        let mut claimed = Claimed::default();
        let mut scanned = 0;
        let lanes = queue.lanes();
        let capacity = |name: &[u8]| {
            let most = |lanes: &Arc<dyn Lanes>| {
                let (pool, key) = (pool_of(name), key_of(name));
                lanes.capacity(pool.unwrap_or_default(), key.as_ref()) as u64
            };
            lanes.as_ref().map_or(u64::MAX, most)
        };
        // The newest row that what we see is known to have.
        let mut seen = 0;
        loop {
            let now = machine.now();
            let messages = room.messages.max(1);
            let step = queue.shelf().step(messages, scanned, now, capacity);
            match step {
                Step::Scan { after, newest } => {
                    if seen < newest {
                        self.end()?;
                        seen = newest;
                    }
                    self.begin()?;
                    scanned += self.scan(queue, after, newest, machine, &mut claimed.poisoned)?;
                }
                Step::Refill(lanes) => {
                    self.begin()?;
                    self.refill(queue, lanes, now)?;
                }
                Step::Take(picks) => {
                    self.begin()?;
                    let taken = fetch(&self.connection, &queue.sql, picks, room, &mut claimed)?;
                    // Before anything is out: if the side index is not written, nothing was claimed.
                    self.end()?;
                    seen = 0;
                    claimed.claim = queue.shelf().claimed(taken, now);
                    if !claimed.messages.is_empty() {
                        return Ok(claimed);
                    }
                }
                Step::Wait => {
                    self.end()?;
                    return Ok(claimed);
                }
            }
        }
    }

    /// Moves the cursor on by one chunk.
    fn scan(
        &mut self,
        queue: &Queue,
        after: u64,
        newest: u64,
        machine: &dyn Machine,
        poisoned: &mut Vec<u64>,
    ) -> Result<usize, rusqlite::Error> {
        let (limit, codes) = {
            let shelf = queue.shelf();
            (shelf.limits().chunk, shelf.codes())
        };
        let rows = read_chunk(&self.connection, &queue.sql, after, limit, codes.as_deref())?;
        let now = machine.now();
        let read = rows.ends.len();
        let overflow = {
            let mut shelf = queue.shelf();
            rows.put_on(&mut shelf, self.epoch, now, poisoned);
            if read < limit {
                shelf.seen_all(newest);
            }
            shelf.take_overflow()
        };
        self.put_aside(&overflow)?;
        Ok(read)
    }

    fn put_aside(&self, runs: &[(LaneId, Run)]) -> Result<(), rusqlite::Error> {
        if runs.is_empty() {
            return Ok(());
        }
        let opened = self.epoch.opened.now;
        let mut add = self.connection.prepare_cached(ADD_SIDE)?;
        for (lane, run) in runs {
            let due = run
                .due
                .map(|due| due.saturating_duration_since(opened).as_millis() as i64);
            add.execute((
                lane,
                run.first as i64,
                run.last as i64,
                run.count as i64,
                due,
            ))?;
        }
        Ok(())
    }

    fn refill(
        &mut self,
        queue: &Queue,
        lanes: Vec<LaneId>,
        now: Instant,
    ) -> Result<(), rusqlite::Error> {
        let limit = queue.shelf().limits().refill;
        for lane in lanes {
            let runs = self.read_aside(lane, limit)?;
            if let Some(last) = runs.last() {
                self.connection
                    .prepare_cached(CUT_SIDE)?
                    .execute((lane, last.first as i64))?;
            }
            queue.shelf().refilled(lane, runs, now);
        }
        Ok(())
    }

    fn read_aside(&self, lane: LaneId, limit: usize) -> Result<Vec<Run>, rusqlite::Error> {
        let mut read = self.connection.prepare_cached(READ_SIDE)?;
        let runs = read.query_map((lane, limit as i64), |row| {
            let due: Option<i64> = row.get(3)?;
            Ok(Run {
                first: row.get::<_, i64>(0)? as u64,
                last: row.get::<_, i64>(1)? as u64,
                count: row.get::<_, i64>(2)? as u64,
                due: due
                    .map(|due| self.epoch.opened.now + Duration::from_millis(due.max(0) as u64)),
            })
        })?;
        runs.collect()
    }
}

/// Until when a row is delayed, as stored, and how long it was delayed for in all.
#[derive(Clone, Copy)]
struct Delay {
    until: i64,
    whole: Duration,
}

/// What the cursor read: the names of all lanes in one buffer, so that a row costs no allocation.
#[derive(Default)]
struct Chunk {
    names: Vec<u8>,
    /// Sequence, end of the name in `names`, delay; no name for a row that cannot be read.
    ends: Vec<(u64, Option<usize>, Option<Delay>)>,
}

impl Chunk {
    fn put_on(&self, shelf: &mut Shelf, epoch: Epoch, now: Instant, poisoned: &mut Vec<u64>) {
        let mut start = 0;
        for (seq, end, delay) in &self.ends {
            match end {
                Some(end) => {
                    let due = delay
                        .and_then(|delay| epoch.due(*seq, delay.until, delay.whole))
                        .filter(|due| *due > now);
                    shelf.arrived(*seq, &self.names[start..*end], due, now);
                    start = *end;
                }
                None => {
                    shelf.passed(*seq);
                    poisoned.push(*seq);
                }
            }
        }
    }
}

fn read_chunk(
    connection: &Connection,
    sql: &Statements,
    after: u64,
    limit: usize,
    codes: Option<&PoolCodes>,
) -> Result<Chunk, rusqlite::Error> {
    let mut chunk = Chunk::default();
    let mut name = Vec::new();
    let mut scan = connection.prepare_cached(&sql.scan)?;
    let mut rows = scan.query((after as i64, limit as i64))?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        match read_lane(row, codes, &mut name) {
            Some(delay) => {
                chunk.names.extend_from_slice(&name);
                chunk
                    .ends
                    .push((seq as u64, Some(chunk.names.len()), delay));
            }
            None => chunk.ends.push((seq as u64, None, None)),
        }
    }
    Ok(chunk)
}

/// The row's lane and its delay, or `None` when a column has a type it must not have.
fn read_lane(
    row: &Row<'_>,
    codes: Option<&PoolCodes>,
    name: &mut Vec<u8>,
) -> Option<Option<Delay>> {
    let code = row.get_ref(1).ok()?.as_str_or_null().ok()?;
    let pool = match codes {
        Some(codes) => Some(&**codes.pool(code)),
        None => code,
    };
    let key = row.get_ref(2).ok()?.as_blob_or_null().ok()?;
    let until = row.get_ref(3).ok()?.as_i64_or_null().ok()?;
    let whole = row.get_ref(4).ok()?.as_i64_or_null().ok()?;
    lane_name(name, pool, key);
    let whole = Duration::from_millis(whole.unwrap_or(0).max(0) as u64);
    Some(until.map(|until| Delay { until, whole }))
}

/// Reads the picked messages until the room's bytes are used; no lane gets more than its part of
/// those, and at least one message is taken in all.
fn fetch(
    connection: &Connection,
    sql: &Statements,
    picks: Vec<Pick>,
    room: &Room,
    claimed: &mut Claimed,
) -> Result<Vec<Taken>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(&sql.fetch)?;
    let part = room.bytes / picks.len().max(1);
    let mut left = room.bytes;
    let mut bodies = Bodies::default();
    let mut all = Vec::with_capacity(picks.len());
    for pick in picks {
        let allowed = match (left, claimed.messages.is_empty()) {
            // Nothing yet: one message may exceed the room.
            (_, true) => part.max(1),
            (0, false) => 0,
            (left, false) => part.clamp(1, left),
        };
        let (taken, used) = fetch_lane(&mut statement, pick, allowed, &mut bodies, claimed)?;
        left = left.saturating_sub(used);
        all.push(taken);
    }
    Ok(all)
}

fn fetch_lane(
    statement: &mut Statement<'_>,
    pick: Pick,
    allowed: usize,
    bodies: &mut Bodies,
    claimed: &mut Claimed,
) -> Result<(Taken, usize), rusqlite::Error> {
    let mut taken = Taken {
        lane: pick.lane,
        seqs: Vec::new(),
        missing: 0,
        rest: Vec::new(),
    };
    let mut used = 0;
    let mut wanted = pick.take;
    for run in pick.runs {
        if used >= allowed || wanted == 0 {
            taken.rest.push(run);
            continue;
        }
        let want = wanted.min(run.count);
        let (mut got, mut last) = (0, run.first);
        let mut rows = statement.query((run.first as i64, run.last as i64, want as i64))?;
        while used < allowed
            && let Some(row) = rows.next()?
        {
            got += 1;
            last = row.get::<_, i64>(0)? as u64;
            match read_message(row, last, &pick.key, bodies) {
                Some(message) => {
                    used += message.body.len().max(1);
                    taken.seqs.push(last);
                    claimed.messages.push(message);
                }
                None => {
                    taken.missing += 1;
                    claimed.poisoned.push(last);
                }
            }
        }
        wanted -= got;
        if got < want && used < allowed {
            // The table has no more of this run: somebody deleted rows.
            taken.missing += run.count - got;
        } else if got < run.count {
            taken.rest.push(Run {
                first: last + 1,
                count: run.count - got,
                ..run
            });
        }
    }
    Ok((taken, used))
}

/// The message, or `None` when the row cannot be read as one.
fn read_message(
    row: &Row<'_>,
    seq: u64,
    key: &Option<Key>,
    bodies: &mut Bodies,
) -> Option<Fetched> {
    let headers = row.get_ref(1).ok()?.as_str_or_null().ok()?;
    let body = row.get_ref(2).ok()?.as_blob().ok()?;
    Some(Fetched {
        seq,
        key: key.clone(),
        headers: match headers {
            Some(text) => read_headers(text)?,
            None => Vec::new(),
        },
        body: bodies.copy(body),
    })
}

/// Makes copies of bodies, small ones several to a piece of memory: a message then costs none of its
/// own.
#[derive(Default)]
struct Bodies {
    free: BytesMut,
}

impl Bodies {
    fn copy(&mut self, body: &[u8]) -> Bytes {
        if body.len() > LARGE {
            return Bytes::copy_from_slice(body);
        }
        if self.free.capacity() < body.len() {
            self.free = BytesMut::with_capacity(SHARED);
        }
        self.free.extend_from_slice(body);
        self.free.split().freeze()
    }
}

/// Headers as the file has them: pairs of strings, as JSON.
pub(super) fn read_headers(text: &str) -> Option<Vec<(Arc<str>, Arc<str>)>> {
    let pairs: Vec<(String, String)> = serde_json::from_str(text).ok()?;
    let shared = |(name, value): (String, String)| (name.into(), value.into());
    Some(pairs.into_iter().map(shared).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::shelf::Limits;

    fn plan(connection: &Connection, sql: &str) -> String {
        let mut explain = connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .expect("explains");
        let arguments = vec![1_i64; explain.parameter_count()];
        let lines = explain
            .query_map(rusqlite::params_from_iter(arguments), |row| {
                row.get::<_, String>(3)
            })
            .expect("a plan");
        lines
            .collect::<Result<Vec<_>, _>>()
            .expect("lines")
            .join("; ")
    }

    #[test]
    fn every_statement_of_a_claim_searches_by_rowid_and_sorts_nothing() {
        let connection = Connection::open_in_memory().expect("opens");
        connection
            .execute_batch(&schema::queue_table(1))
            .expect("makes the table");
        connection
            .execute_batch(MAKE_SIDE)
            .expect("makes the side index");
        let queue = Queue::new(1, "q".into(), 0, 0, Limits::USUAL);
        let by_rowid = "SEARCH q_1 USING INTEGER PRIMARY KEY (rowid";

        for sql in [
            &queue.sql.scan,
            &queue.sql.fetch,
            &queue.sql.delete,
            &queue.sql.delete_range,
            &queue.sql.raw,
        ] {
            let plan = plan(&connection, sql);
            assert!(plan.starts_with(by_rowid), "{sql}: {plan}");
            assert!(
                !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"),
                "{sql}: {plan}"
            );
        }
        for sql in [READ_SIDE, CUT_SIDE] {
            let plan = plan(&connection, sql);
            assert!(
                plan.starts_with("SEARCH temp.side USING PRIMARY KEY (lane="),
                "{sql}: {plan}"
            );
            assert!(
                !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"),
                "{sql}: {plan}"
            );
        }
    }
}
