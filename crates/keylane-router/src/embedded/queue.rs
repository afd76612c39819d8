//! One named queue of the file: its table, what is known of it in memory, and how its readers wake.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::Connection;
use tokio::sync::watch;

use super::acks;
use super::claim::Reader;
use super::shelf::{Limits, Shelf};
use crate::plan::Keyless;
use crate::source::{Lanes, PoolCodes};

/// The statements of one queue's table. All of them find rows by rowid.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) insert: String,
    pub(super) delete: String,
    pub(super) delete_range: String,
    pub(super) scan: String,
    pub(super) fetch: String,
    pub(super) raw: String,
}

impl Statements {
    fn new(n: i64) -> Self {
        Self {
            insert: format!(
                "INSERT INTO q_{n} (seq, pool, key, due, delay, headers, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
            ),
            delete: format!("DELETE FROM q_{n} WHERE seq = ?"),
            delete_range: format!("DELETE FROM q_{n} WHERE seq BETWEEN ? AND ?"),
            scan: format!(
                "SELECT seq, pool, key, due, delay FROM q_{n} WHERE seq > ? ORDER BY seq LIMIT ?"
            ),
            fetch: format!(
                "SELECT seq, headers, body FROM q_{n} WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
            ),
            raw: format!("SELECT pool, key, body FROM q_{n} WHERE seq = ?"),
        }
    }
}

/// One named queue.
pub(super) struct Queue {
    pub(super) name: Arc<str>,
    pub(super) n: i64,
    pub(super) sql: Statements,
    shelf: Mutex<Shelf>,
    /// One claim at a time; opened by the first.
    pub(super) reader: Mutex<Option<Reader>>,
    /// Whether keyless messages are to run in parallel; the next claim makes it so.
    parallel: AtomicBool,
    /// Which lanes its messages belong to: as the reader says that began last.
    lanes: Mutex<Option<Arc<dyn Lanes>>>,
    /// Rows in the table that are not acked: exact at open, then by what commits added, deleted and
    /// acked. Signed, for an ack can overtake the count of its own publish.
    depth: AtomicI64,
    /// How many [`Reading`]s there are.
    readers: AtomicUsize,
    /// Counts events after which a claim may find something. Readers wait for a change.
    wake: watch::Sender<u64>,
}

impl Queue {
    /// What the file has of queue `n`.
    pub(super) fn load(
        connection: &Connection,
        n: i64,
        name: Arc<str>,
        limits: Limits,
    ) -> Result<Self, rusqlite::Error> {
        let counted = format!("SELECT COUNT(*) FROM q_{n}");
        let rows: i64 = connection.query_row(&counted, [], |row| row.get(0))?;
        let acked = acks::load(connection, n)?;
        let newest = newest_row(connection, n)?;
        let queue = Self::new(n, name, rows - acked.len() as i64, newest, limits);
        queue.shelf().acked_before(acked);
        Ok(queue)
    }

    pub(super) fn new(n: i64, name: Arc<str>, depth: i64, newest: u64, limits: Limits) -> Self {
        Self {
            name,
            n,
            sql: Statements::new(n),
            shelf: Mutex::new(Shelf::new(newest, limits)),
            reader: Mutex::new(None),
            parallel: AtomicBool::new(false),
            lanes: Mutex::new(None),
            depth: AtomicI64::new(depth),
            readers: AtomicUsize::new(0),
            wake: watch::Sender::new(0),
        }
    }

    pub(super) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf
            .lock()
            .expect("no panic while the shelf is locked")
    }

    pub(super) fn keyless(&self) -> Keyless {
        match self.parallel.load(Ordering::Relaxed) {
            true => Keyless::Parallel,
            false => Keyless::Serial,
        }
    }

    pub(super) fn set_keyless(&self, keyless: Keyless) {
        let parallel = keyless == Keyless::Parallel;
        self.parallel.store(parallel, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn lanes(&self) -> Option<Arc<dyn Lanes>> {
        self.lanes.lock().expect("no panic while locked").clone()
    }

    /// What pool codes mean now.
    pub(super) fn codes(&self) -> Option<Arc<PoolCodes>> {
        self.lanes().map(|lanes| lanes.codes())
    }

    /// From the next claim on.
    pub(super) fn set_lanes(&self, lanes: Arc<dyn Lanes>) {
        *self.lanes.lock().expect("no panic while locked") = Some(lanes);
    }

    pub(super) fn depth(&self) -> u64 {
        self.depth.load(Ordering::Relaxed).max(0) as u64
    }

    pub(super) fn add_depth(&self, rows: i64) {
        self.depth.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn wake(&self) {
        self.wake
            .send_modify(|events| *events = events.wrapping_add(1));
    }

    pub(super) fn events(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({})", self.name)
    }
}

/// Somebody reads the queue: a source with its settlers.
#[derive(Debug)]
pub(super) struct Reading(Arc<Queue>);

impl Reading {
    pub(super) fn new(queue: Arc<Queue>) -> Arc<Self> {
        queue.readers.fetch_add(1, Ordering::SeqCst);
        Arc::new(Self(queue))
    }

    /// Whether nobody else does.
    pub(super) fn is_alone(&self) -> bool {
        self.0.readers.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The newest row of queue `n`, 0 when it is empty.
pub(super) fn newest_row(connection: &Connection, n: i64) -> Result<u64, rusqlite::Error> {
    let newest: Option<i64> =
        connection.query_row(&format!("SELECT MAX(seq) FROM q_{n}"), [], |row| row.get(0))?;
    Ok(newest.unwrap_or(0) as u64)
}
