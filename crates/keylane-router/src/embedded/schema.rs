//! The file's tables, its settings and how an older file becomes a current one.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::OpenError;
use crate::store::StoreError;

/// Marks the file as ours, so that somebody else's database is never written to ("klne").
const APPLICATION_ID: i32 = 0x6b6c_6e65;

/// One step per schema version; step `n` brings a file of version `n` to `n + 1`.
const STEPS: &[&str] = &[
    QUEUES,
    STORES,
    ACKS,
    SPILL,
    SEPARATE_POOLS,
    ATTEMPT_NUMBERS,
    ROWS_HAVE_LANES,
    READ_QUEUES,
];

/// Each queue is a table of its own, made with the queue (see [`queue_table`]): one queue's
/// backlog is never in the way of another's. `next_seq` is the file's one sequence.
const QUEUES: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('next_seq', 1);
CREATE TABLE queues (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE dedup (n INTEGER PRIMARY KEY, id BLOB NOT NULL, body BLOB NOT NULL, expires INTEGER NOT NULL);
";

/// `id` columns have no type on purpose: a sequence is stored as a number, a text as a text, and
/// the two are never equal.
const STORES: &str = "
CREATE TABLE stays (source TEXT NOT NULL, id NOT NULL, round INTEGER NOT NULL, failed INTEGER NOT NULL,
  PRIMARY KEY (source, id)) WITHOUT ROWID;
CREATE TABLE attempts (n INTEGER PRIMARY KEY, source TEXT NOT NULL, id NOT NULL, at INTEGER NOT NULL,
  class TEXT NOT NULL, text TEXT NOT NULL, answer BLOB NOT NULL);
CREATE INDEX attempts_of ON attempts (source, id);
CREATE TABLE dead_letters (number INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, id NOT NULL,
  lane_source TEXT NOT NULL, pool TEXT NOT NULL, key BLOB, position INTEGER, reason TEXT NOT NULL,
  text TEXT NOT NULL, at INTEGER NOT NULL, attempts TEXT NOT NULL, size INTEGER NOT NULL, headers TEXT,
  body BLOB NOT NULL, UNIQUE (source, id));
CREATE TABLE parked_lanes (n INTEGER PRIMARY KEY, source TEXT NOT NULL, pool TEXT NOT NULL, key BLOB,
  reason TEXT NOT NULL, since INTEGER NOT NULL, replaying INTEGER NOT NULL);
CREATE TABLE parked (row INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL, source TEXT NOT NULL,
  id NOT NULL, position INTEGER, size INTEGER NOT NULL, headers TEXT, body BLOB NOT NULL, UNIQUE (source, id));
CREATE INDEX parked_of ON parked (lane);
CREATE TABLE pauses (n INTEGER PRIMARY KEY, source TEXT NOT NULL, pool TEXT NOT NULL, key BLOB);
CREATE TABLE audit (n INTEGER PRIMARY KEY, at INTEGER NOT NULL, who TEXT NOT NULL, verb TEXT NOT NULL,
  lane_source TEXT, pool TEXT, key BLOB, source TEXT, id, why TEXT NOT NULL);
";

/// Rows that are acked and not deleted yet (see `acks`).
const ACKS: &str =
    "CREATE TABLE acks (n INTEGER PRIMARY KEY, queue INTEGER NOT NULL, seqs BLOB NOT NULL);";

/// Spilled keys are parked keys that are fed by themselves; a keyless message that is a lane of its
/// own is named by its id.
const SPILL: &str = "
ALTER TABLE parked_lanes ADD COLUMN spilled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE parked_lanes ADD COLUMN alone;
CREATE INDEX parked_lanes_by ON parked_lanes (source, pool, key, alone);
";

/// The pools of which nothing is stored under the pool for unknown ones.
const SEPARATE_POOLS: &str = "CREATE TABLE separate_pools (name TEXT PRIMARY KEY) WITHOUT ROWID;";

/// Failed attempts over all rounds. Of the rounds before this step only what was kept of the
/// attempts is known.
const ATTEMPT_NUMBERS: &str = "
ALTER TABLE stays ADD COLUMN total INTEGER NOT NULL DEFAULT 0;
UPDATE stays SET total = MAX(failed, (SELECT COUNT(*) FROM attempts
  WHERE attempts.source = stays.source AND attempts.id = stays.id));
";

/// A lane that has rows stays: without it nothing would find them.
const ROWS_HAVE_LANES: &str = "
CREATE TRIGGER rows_have_lanes BEFORE DELETE ON parked_lanes
  WHEN EXISTS (SELECT 1 FROM parked WHERE lane = OLD.n)
  BEGIN SELECT RAISE(ABORT, 'a lane that has rows cannot go'); END;
";

/// Under which names queues were read: the lanes of a renamed source are found by its queue.
const READ_QUEUES: &str = "
CREATE TABLE read_queues (kind TEXT NOT NULL, queue TEXT NOT NULL, source TEXT NOT NULL,
  one_lane INTEGER NOT NULL, PRIMARY KEY (kind, queue, source)) WITHOUT ROWID;
";

/// The table of queue `n`. The body comes last: reading what is before it touches no overflow
/// page. No index: it would cost 1.5 to 15 times on every insert and delete.
pub(super) fn queue_table(n: i64) -> String {
    format!(
        "CREATE TABLE q_{n} (seq INTEGER PRIMARY KEY, pool TEXT, key BLOB, due INTEGER, delay INTEGER,
         headers TEXT, body BLOB NOT NULL)"
    )
}

/// How safe a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// On disk when answered.
    Full,
    /// In the system's memory when answered: survives a crash of the process, not of the machine.
    Normal,
}

/// Opens the connection that writes, makes or migrates the tables.
pub(super) fn open_writer(file: &Path, durability: Durability) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    prepare_writer(file, flags, durability).map_err(|error| match error {
        Prepare::Sql(error) => OpenError::of(file, &error),
        Prepare::Refused(error) => error,
    })
}

/// A fresh connection to a file that was open before.
pub(super) fn reopen_writer(
    file: &Path,
    durability: Durability,
) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    prepare_writer(file, flags, durability).map_err(|error| match error {
        Prepare::Sql(error) => error,
        Prepare::Refused(error) => rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
            Some(error.to_string()),
        ),
    })
}

enum Prepare {
    Sql(rusqlite::Error),
    Refused(OpenError),
}

impl From<rusqlite::Error> for Prepare {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

fn prepare_writer(
    file: &Path,
    flags: OpenFlags,
    durability: Durability,
) -> Result<Connection, Prepare> {
    let mut connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    // Before anything is written: is it ours, and do we know its version?
    let version = check(&connection, file)?;
    if connection.is_readonly("main")? {
        return Err(Prepare::Refused(OpenError::ReadOnly { file: file.into() }));
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    commit_as(&connection, durability)?;
    connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    // Rows are added at the end and leave in stretches: little is looked at twice.
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(256);
    migrate(&mut connection, version)?;
    Ok(connection)
}

/// Makes the commits that follow so safe.
pub(super) fn commit_as(
    connection: &Connection,
    durability: Durability,
) -> Result<(), rusqlite::Error> {
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)
}

/// Refuses what is not ours or newer than we are; answers the file's version.
fn check(connection: &Connection, file: &Path) -> Result<usize, Prepare> {
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables: i64 =
        connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 && id != APPLICATION_ID {
        return Err(Prepare::Refused(OpenError::Foreign { file: file.into() }));
    }
    match usize::try_from(version) {
        Ok(version) if version <= STEPS.len() => Ok(version),
        _ => Err(Prepare::Refused(OpenError::Newer {
            file: file.into(),
            found: version,
            known: STEPS.len() as i64,
        })),
    }
}

/// All steps in one transaction: a crash leaves the old file or the new one.
fn migrate(connection: &mut Connection, from: usize) -> Result<(), rusqlite::Error> {
    if from == STEPS.len() {
        return Ok(());
    }
    let tx = connection.transaction()?;
    for step in &STEPS[from..] {
        tx.execute_batch(step)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", STEPS.len() as i64)?;
    tx.commit()
}

/// Opens a connection that only reads the file. Its temporary tables are its own, on disk, and
/// never synced.
pub(super) fn open_reader(file: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    // It reads onwards, and seldom the same again.
    connection.pragma_update(None, "cache_size", -1024)?;
    connection.pragma_update(None, "temp_store", "FILE")?;
    // What a failed write leaves there is thrown away whole; a journal on disk would buy nothing.
    connection.pragma_update(Some("temp"), "journal_mode", "MEMORY")?;
    connection.pragma_update(Some("temp"), "cache_size", -8192)?;
    connection.set_prepared_statement_cache_capacity(32);
    // Every statement has one plan; looking for a better one at each new value costs more than it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(connection)
}

/// Says in our words what SQLite's error means for whoever wanted to write or read.
pub(super) fn classify(error: &rusqlite::Error) -> StoreError {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            StoreError::Full(format!("{text}; free space on the disk of the data folder"))
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Corrupt(format!("{text}; stop and restore a backup of keylane.db"))
        }
        Some(ErrorCode::ReadOnly) => StoreError::Unwritable(format!(
            "{text}; make keylane.db and its folder writable for this user"
        )),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Unwritable(
            format!("{text}; another program has keylane.db locked, end it"),
        ),
        _ => StoreError::Unwritable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_sets_aside_is_undone_in_memory() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let file = folder.path().join("keylane.db");
        open_writer(&file, Durability::Full).expect("makes the file");
        let reader = open_reader(&file).expect("opens");
        reader
            .execute_batch("CREATE TEMP TABLE side (lane)")
            .expect("a table of its own");
        let mode = |schema| {
            reader.pragma_query_value(Some(schema), "journal_mode", |row| row.get::<_, String>(0))
        };
        assert_eq!(mode("temp").as_deref(), Ok("memory"));
        assert_eq!(mode("main").as_deref(), Ok("wal"));
    }

    #[test]
    fn an_older_file_is_migrated_and_keeps_its_messages() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let file = folder.path().join("keylane.db");
        let old = Connection::open(&file).expect("opens");
        old.execute_batch(STEPS[0]).expect("the first version");
        old.execute_batch(&format!(
            "INSERT INTO queues VALUES (1, 'orders'); {}; INSERT INTO q_1 (seq, body) VALUES (7, x'61');
             PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;",
            queue_table(1)
        ))
        .expect("a queue with a message");
        drop(old);

        let new = open_writer(&file, Durability::Full).expect("migrates");

        let version: i64 = new
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .expect("has a version");
        assert_eq!(version, STEPS.len() as i64);
        let body: Vec<u8> = new
            .query_row("SELECT body FROM q_1 WHERE seq = 7", [], |row| row.get(0))
            .expect("still there");
        assert_eq!(body, b"a");
        new.execute("INSERT INTO pauses (source, pool) VALUES ('s', 'p')", [])
            .expect("the new tables are there");
    }

    #[test]
    fn attempts_of_an_older_file_keep_their_numbers() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let file = folder.path().join("keylane.db");
        let old = Connection::open(&file).expect("opens");
        for step in &STEPS[..5] {
            old.execute_batch(step).expect("the steps before");
        }
        // Three failures in one round, two of them before the message went back; and five of
        // another message, of which one is kept.
        old.execute_batch(&format!(
            "INSERT INTO stays VALUES ('s', 7, 1, 1), ('s', 8, 0, 5);
             INSERT INTO attempts (source, id, at, class, text, answer) VALUES
               ('s', 7, 1, 'c', 't', x''), ('s', 7, 2, 'c', 't', x''), ('s', 7, 3, 'c', 't', x''),
               ('s', 8, 4, 'c', 't', x'');
             PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 5;"
        ))
        .expect("two messages that failed");
        drop(old);

        let new = open_writer(&file, Durability::Full).expect("migrates");

        let total = |id: i64| -> i64 {
            let sql = "SELECT total FROM stays WHERE id = ?";
            new.query_row(sql, [id], |row| row.get(0)).expect("known")
        };
        assert_eq!((total(7), total(8)), (3, 5));
    }
}
