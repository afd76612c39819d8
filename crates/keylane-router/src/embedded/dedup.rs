//! What was published in the last minutes, so that a repeated publish is stored once.
//!
//! The file has it as an append-only table (an index by id would cost more than the message), the
//! lookup is in memory: about 40 bytes for each message of one window.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use super::clock::{Moment, millis};

/// A window is forgotten in this many pieces.
const PIECES: u32 = 6;
/// So many expired rows leave the file with one commit: purging is spread, never a stop.
const PURGE: i64 = 2000;

/// The first 96 bits of the hash of queue and deduplication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IdHash([u32; 3]);

/// The first 64 bits of the body's hash. Alone it would be short; it is only ever compared between
/// two messages of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyHash([u32; 2]);

impl IdHash {
    pub(super) fn of(queue: i64, id: &str) -> Self {
        let hash = Sha256::new()
            .chain_update(queue.to_le_bytes())
            .chain_update(id.as_bytes())
            .finalize();
        Self([word(&hash, 0), word(&hash, 4), word(&hash, 8)])
    }

    fn bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (to, from) in bytes.chunks_exact_mut(4).zip(self.0) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }
}

impl BodyHash {
    pub(super) fn of(body: &[u8]) -> Self {
        let hash = Sha256::digest(body);
        Self([word(&hash, 0), word(&hash, 4)])
    }

    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        for (to, from) in bytes.chunks_exact_mut(4).zip(self.0) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Tenths of a second since the file was opened: 13 years in 32 bits.
type Tick = u32;

/// Ids whose windows end in one stretch of time; forgotten together.
#[derive(Debug)]
struct Piece {
    /// Every window in here has ended by then.
    ends: Tick,
    /// The newest row of the file that belongs to it.
    last_row: i64,
    /// When each window ends, and the body's hash.
    ids: HashMap<IdHash, (BodyHash, Tick)>,
}

/// Owned by the writer thread alone.
#[derive(Debug)]
pub(super) struct Dedup {
    window: Duration,
    opened: Instant,
    next_row: i64,
    /// Rows up to here have expired and may leave the file.
    expired_row: i64,
    /// Oldest first.
    pieces: VecDeque<Piece>,
    /// What was added since the last commit, newest last, to be taken back on rollback.
    added: Vec<(Tick, IdHash)>,
}

impl Dedup {
    /// Reads what the file remembers. A window never lasts longer than `window` from now, whatever
    /// the wall clock did since it was written.
    pub(super) fn load(
        connection: &Connection,
        window: Duration,
        moment: Moment,
    ) -> Result<Self, rusqlite::Error> {
        let mut dedup = Self {
            window,
            opened: moment.now,
            next_row: 1,
            expired_row: 0,
            pieces: VecDeque::new(),
            added: Vec::new(),
        };
        let mut rows = connection.prepare("SELECT n, id, body, expires FROM dedup ORDER BY n")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let (n, id, body): (i64, [u8; 12], [u8; 8]) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let id = IdHash([word(&id, 0), word(&id, 4), word(&id, 8)]);
            let body = BodyHash([word(&body, 0), word(&body, 4)]);
            dedup.next_row = n + 1;
            match moment.due(row.get(3)?, window) {
                Some(due) => dedup.remember(id, body, due, n),
                None if dedup.pieces.is_empty() => dedup.expired_row = n,
                None => {}
            }
        }
        dedup.added.clear();
        Ok(dedup)
    }

    /// The body this id was published with in the window before `now`, if it was.
    pub(super) fn find(&self, id: IdHash, now: Instant) -> Option<BodyHash> {
        let now = self.tick(now);
        let newest = self
            .pieces
            .iter()
            .rev()
            .find_map(|piece| piece.ids.get(&id));
        newest
            .filter(|(_, ends)| *ends > now)
            .map(|(body, _)| *body)
    }

    /// Writes down that this id was published, in the transaction that is open.
    pub(super) fn add(
        &mut self,
        connection: &Connection,
        id: IdHash,
        body: BodyHash,
        moment: Moment,
    ) -> Result<(), rusqlite::Error> {
        let n = self.next_row;
        let expires = millis(moment.wall + self.window);
        connection
            .prepare_cached("INSERT INTO dedup VALUES (?, ?, ?, ?)")?
            .execute((n, id.bytes(), body.bytes(), expires))?;
        self.next_row += 1;
        self.remember(id, body, moment.now + self.window, n);
        Ok(())
    }

    fn remember(&mut self, id: IdHash, body: BodyHash, due: Instant, row: i64) {
        let ends = self.tick(due);
        let span = (self.window.as_millis() / 100) as Tick / PIECES + 1;
        let end_of_piece = (ends / span + 1) * span;
        // Windows end in the order they began, so this is the last piece or a new one.
        if self
            .pieces
            .back()
            .is_none_or(|piece| piece.ends < end_of_piece)
        {
            self.pieces.push_back(Piece {
                ends: end_of_piece,
                last_row: row,
                ids: HashMap::new(),
            });
        }
        let piece = self.pieces.back_mut().expect("just made");
        piece.last_row = row;
        piece.ids.insert(id, (body, ends));
        self.added.push((piece.ends, id));
    }

    /// Where an undo would go back to.
    pub(super) fn mark(&self) -> usize {
        self.added.len()
    }

    /// Takes back what was added since `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        for (ends, id) in self.added.drain(mark..) {
            if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.ends == ends) {
                piece.ids.remove(&id);
            }
        }
    }

    /// What was added is on disk.
    pub(super) fn committed(&mut self) {
        self.added.clear();
    }

    /// Forgets windows that have ended, here and, a few rows with each commit, in the file.
    pub(super) fn purge(
        &mut self,
        connection: &Connection,
        now: Instant,
    ) -> Result<(), rusqlite::Error> {
        let now = self.tick(now);
        while self.pieces.front().is_some_and(|piece| piece.ends <= now) {
            let piece = self.pieces.pop_front().expect("just seen");
            self.expired_row = piece.last_row;
        }
        if self.expired_row == 0 {
            return Ok(());
        }
        let first: Option<i64> = connection
            .prepare_cached("SELECT MIN(n) FROM dedup")?
            .query_row([], |row| row.get(0))?;
        match first {
            Some(first) if first <= self.expired_row => {
                let last = self.expired_row.min(first + PURGE - 1);
                connection
                    .prepare_cached("DELETE FROM dedup WHERE n <= ?")?
                    .execute([last])?;
            }
            // All gone; forgotten by the next purge that finds nothing to do.
            _ => self.expired_row = 0,
        }
        Ok(())
    }

    /// Rounded up, so that a window is never shorter than it says.
    fn tick(&self, at: Instant) -> Tick {
        let since = at.saturating_duration_since(self.opened);
        since.as_millis().div_ceil(100) as Tick
    }
}
