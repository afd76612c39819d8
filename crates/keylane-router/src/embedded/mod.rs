//! Queues and stores in one SQLite file, owned by one process.
//!
//! What is accepted is on disk; what is claimed is claimed in memory only, so a restart hands
//! everything out again, in order. Read on in this order: `schema` (the tables), `writer` (one
//! thread, many commands, one sync), `publish`, `shelf` (whose turn it is), `claim` (the reading),
//! `source` (receive and settle), `acks`, `stores`.
//!
//! ```
//! use keylane_router::embedded::{Db, NewMessage, Options};
//! use keylane_router::plan::Keyless;
//! use keylane_router::source::{Room, Settler, Source};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! let db = Db::open(folder.path(), Options::default())?;
//! let mut source = db.source("orders", "orders", Keyless::Serial).await?;
//! db.publish("orders", vec![NewMessage::new("1", Some("customer-7".into()), "{}")], false).await?;
//!
//! let received = source.receive(Room::new(10, 1 << 20)).await?;
//! let receipts = received.iter().map(|message| message.receipt).collect();
//! source.settler().ack(receipts).await;
//! db.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acks;
mod backup;
mod claim;
mod clock;
mod dedup;
mod lock;
mod publish;
mod queue;
mod schema;
mod shelf;
mod source;
mod stores;
mod sync;
mod writer;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

pub use backup::BackupError;
pub use publish::{NewMessage, PublishError, Published};
pub use source::{DECLARED, EmbeddedSettler, EmbeddedSource, Receipt};
pub use stores::EmbeddedStore;

use crate::machine::{Machine, RealMachine};
use crate::plan::Keyless;
use crate::store::StoreError;
use clock::{Epoch, Moment};
use dedup::Dedup;
use lock::FolderLock;
use queue::Queue;
use schema::Durability;
use shelf::Limits;
use source::SourceQueues;
use stores::Memory;
use sync::Syncer;
use writer::{Budget, Failure, State, Writer};

/// How the file is opened.
#[derive(Clone)]
pub struct Options {
    /// Answers a publish before it is on disk: faster with few publishers, and a power cut loses
    /// messages that were accepted. A crash of the process alone loses nothing.
    pub risk_losing_accepted_messages_on_power_loss: bool,
    /// Bytes that dead letters and parked keys may take.
    pub store_budget: u64,
    /// How long a repeated publish is recognised.
    pub dedup_window: Duration,
    /// Where time, chance and threads come from.
    pub machine: Arc<dyn Machine>,
    /// Keeps so little in memory that a test with a few messages walks every path.
    #[doc(hidden)]
    pub tiny_memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            risk_losing_accepted_messages_on_power_loss: false,
            store_budget: 10 << 30,
            dedup_window: Duration::from_secs(300),
            machine: Arc::new(RealMachine),
            tiny_memory: false,
        }
    }
}

/// The file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or the lock file cannot be made or opened.
    #[error("{path}: {source}; name a data folder that this user may write to")]
    Folder {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process owns the folder.
    #[error(
        "{lock} is held by {by}; stop that, choose another data folder, or wait with --standby"
    )]
    Held {
        /// The lock file.
        lock: PathBuf,
        /// Who has it.
        by: String,
    },
    /// It is not a database at all.
    #[error("{file} is not a database; move it away, or restore a backup to its place")]
    NotADatabase {
        /// Which file.
        file: PathBuf,
    },
    /// It is a database of another program.
    #[error("{file} is the database of another program; choose another data folder")]
    Foreign {
        /// Which file.
        file: PathBuf,
    },
    /// It was written by a newer version.
    #[error(
        "{file} has schema version {found}, this program knows up to {known}; use the newer program"
    )]
    Newer {
        /// Which file.
        file: PathBuf,
        /// Its version.
        found: i64,
        /// The newest known one.
        known: i64,
    },
    /// It is damaged.
    #[error("{file} is damaged ({text}); restore a backup to its place")]
    Corrupt {
        /// Which file.
        file: PathBuf,
        /// What SQLite said.
        text: String,
    },
    /// It cannot be written to.
    #[error("{file} is read-only; make it and its folder writable for this user")]
    ReadOnly {
        /// Which file.
        file: PathBuf,
    },
    /// Another program has the file locked, without owning the folder.
    #[error("{file} is locked by another program; end that (a database browser?) and try again")]
    Locked {
        /// Which file.
        file: PathBuf,
    },
    /// The disk is full.
    #[error("{file}: the disk is full; free some space")]
    Full {
        /// Which file.
        file: PathBuf,
    },
    /// Anything else.
    #[error("{file} cannot be opened: {text}")]
    Other {
        /// Which file.
        file: PathBuf,
        /// What SQLite said.
        text: String,
    },
}

impl OpenError {
    fn of(file: &Path, error: &rusqlite::Error) -> Self {
        let (file, text) = (file.to_path_buf(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { file },
            Some(ErrorCode::DatabaseCorrupt) => Self::Corrupt { file, text },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { file },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked { file },
            Some(ErrorCode::DiskFull) => Self::Full { file },
            _ => Self::Other { file, text },
        }
    }
}

/// The file with its queues and stores. Cheap to clone; all clones are one.
///
/// The folder is released by [`Db::close`], or soon after the last clone, source, settler and
/// store is gone.
#[derive(Clone, Debug)]
pub struct Db {
    shared: Arc<Shared>,
}

/// What the database's handles share.
pub(crate) struct Shared {
    file: PathBuf,
    machine: Arc<dyn Machine>,
    epoch: Epoch,
    writer: Writer,
    /// Every poll has a number of its own.
    batches: AtomicU64,
    /// Its own `Arc`: the writer goes through them to take acked rows out, and must not be kept alive
    /// by itself.
    queues: Arc<Mutex<Queues>>,
    /// Which queue a source reads: what a store takes over leaves it.
    sources: Mutex<SourceQueues>,
    /// What the stores answer from memory. Its own `Arc`: commands on their way to the disk have
    /// it, and must not keep the writer alive.
    memory: Arc<Mutex<Memory>>,
    /// For lists of dead letters and the like; opened by the first.
    reader: Mutex<Option<Connection>>,
    limits: Limits,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// All queues of the file, by name.
type Queues = HashMap<Arc<str>, Arc<Queue>>;

/// One queue, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its name.
    pub name: Arc<str>,
    /// Messages in it, those that are out included.
    pub depth: u64,
    /// Messages that are out.
    pub out: usize,
    /// Lanes the claims have in memory.
    pub lanes: usize,
}

impl Db {
    /// Opens or makes `keylane.db` in `folder` and takes the folder's lock. Reads the file, so it
    /// blocks for a moment.
    pub fn open(folder: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let folder = folder.as_ref();
        make_folder(folder)?;
        Self::open_locked(folder, options, FolderLock::try_take(folder)?)
    }

    /// As [`Db::open`], but waits until whoever owns the folder releases it or dies.
    pub async fn open_standby(
        folder: impl AsRef<Path>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let folder = folder.as_ref();
        make_folder(folder)?;
        Self::open_locked(folder, options, FolderLock::wait(folder).await?)
    }

    fn open_locked(folder: &Path, options: Options, lock: FolderLock) -> Result<Self, OpenError> {
        let file = folder.join("keylane.db");
        let durability = match options.risk_losing_accepted_messages_on_power_loss {
            true => Durability::Normal,
            false => Durability::Full,
        };
        make_file(&file)?;
        let mut connection = schema::open_writer(&file, durability)?;
        let moment = Moment::of(&*options.machine);
        let recovered = stores::recover_rows(&mut connection, moment.wall)
            .map_err(|error| OpenError::of(&file, &error))?;
        let limits = match options.tiny_memory {
            true => Limits::TINY,
            false => Limits::USUAL,
        };
        let load = || -> Result<_, rusqlite::Error> {
            let queues = load_queues(&connection, limits)?;
            let next_seq = next_seq(&connection, queues.values())?;
            let dedup = Dedup::load(&connection, options.dedup_window, moment)?;
            let (mut memory, used) = Memory::load(&connection)?;
            memory.recovered = recovered;
            Ok((queues, next_seq, dedup, memory, used))
        };
        let (queues, next_seq, dedup, memory, used) =
            load().map_err(|error| OpenError::of(&file, &error))?;
        let acked = queues
            .values()
            .map(|queue| queue.shelf().acked_rows().len());
        let acked = acked.sum();
        let queues = Arc::new(Mutex::new(queues));
        let epoch = Epoch {
            opened: moment,
            first_seq: next_seq,
        };
        let syncer = match options.machine.has_threads() {
            true => Syncer::start(&file),
            false => Ok(Syncer::threadless()),
        };
        let syncer = syncer.map_err(|source| OpenError::Folder {
            path: file.clone(),
            source,
        })?;
        let writer = State {
            file: file.clone(),
            durability,
            connection: Some(connection),
            commits: durability,
            syncer,
            dedup,
            budget: Budget {
                limit: options.store_budget,
                used,
            },
            next_seq,
            queues: queues.clone(),
            limits,
            acked,
            no_room: false,
            lock,
            machine: options.machine.clone(),
        }
        .start()?;
        let shared = Shared {
            file,
            machine: options.machine,
            epoch,
            writer,
            batches: AtomicU64::new(1),
            queues,
            sources: Mutex::default(),
            memory: Arc::new(Mutex::new(memory)),
            reader: Mutex::new(None),
            limits,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Reads the queue (made if it is not there) as a source of this name. `keyless` holds for the
    /// queue from now on.
    pub async fn source(
        &self,
        name: impl Into<Arc<str>>,
        queue: &str,
        keyless: Keyless,
    ) -> Result<EmbeddedSource, StoreError> {
        let name = name.into();
        let queue = self.create_queue(queue).await?;
        queue.set_keyless(keyless);
        self.shared
            .sources
            .lock()
            .expect("no panic while locked")
            .insert(name.clone(), queue.clone());
        stores::forget_orphans(&self.shared, name.clone(), &queue).await?;
        Ok(EmbeddedSource::new(name, queue, self.shared.clone()))
    }

    /// The stores in this file.
    pub fn store(&self) -> EmbeddedStore {
        EmbeddedStore::new(self.shared.clone())
    }

    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueInfo> {
        let queues = self.shared.queues.lock().expect("no panic while locked");
        let info = |queue: &Arc<Queue>| {
            let shelf = queue.shelf();
            QueueInfo {
                name: queue.name.clone(),
                depth: queue.depth(),
                out: shelf.out(),
                lanes: shelf.lanes(),
            }
        };
        let mut infos: Vec<_> = queues.values().map(info).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    /// Whether there is a queue of this name.
    pub fn has_queue(&self, name: &str) -> bool {
        self.find_queue(name).is_some()
    }

    fn find_queue(&self, name: &str) -> Option<Arc<Queue>> {
        let queues = self.shared.queues.lock().expect("no panic while locked");
        queues.get(name).cloned()
    }

    async fn create_queue(&self, name: &str) -> Result<Arc<Queue>, StoreError> {
        if let Some(queue) = self.find_queue(name) {
            return Ok(queue);
        }
        let name: Arc<str> = name.into();
        let moment = Moment::of(&*self.shared.machine);
        let make = {
            let name = name.clone();
            move |tx: &mut writer::Tx<'_>| make_queue(tx.sql, &name).map_err(Failure::from)
        };
        let n = self.shared.writer.call(moment, 4096, true, make, |_| {});
        let n = n.durable().await?;
        let mut queues = self.shared.queues.lock().expect("no panic while locked");
        // Somebody else may have made it at the same time: the first one stays.
        let queue = queues
            .entry(name.clone())
            .or_insert_with(|| Arc::new(Queue::new(n, name, 0, 0, self.shared.limits)));
        Ok(queue.clone())
    }

    /// Writes what was submitted, folds the log into the file and releases the folder. Everything
    /// that still holds the database gets [`StoreError::Closed`] from then on.
    pub async fn close(self) {
        *self.shared.reader.lock().expect("no panic while locked") = None;
        let queues = self
            .shared
            .queues
            .lock()
            .expect("no panic while locked")
            .clone();
        for queue in queues.values() {
            // A claim under way keeps its own connection a little longer; that harms nothing.
            if let Ok(mut reader) = queue.reader.try_lock() {
                *reader = None;
            }
        }
        self.shared.writer.close().await;
    }

    /// Sets a pragma on the writing connection, so that tests can make the disk full.
    #[doc(hidden)]
    pub async fn test_pragma(&self, pragma: &str) -> Result<(), StoreError> {
        self.shared.writer.pragma(pragma.into()).await
    }
}

fn make_folder(folder: &Path) -> Result<(), OpenError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|source| OpenError::Folder {
        path: folder.into(),
        source,
    })
}

/// How files of ours are made: messages carry tokens, so nobody else may read them, whatever the
/// folder allows. One that is there already keeps the rights its owner gave it.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// SQLite makes its other files with the rights of this one.
fn make_file(file: &Path) -> Result<(), OpenError> {
    match private().write(true).create_new(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(OpenError::Folder {
            path: file.into(),
            source,
        }),
    }
}

fn load_queues(connection: &Connection, limits: Limits) -> Result<Queues, rusqlite::Error> {
    let mut names = connection.prepare("SELECT n, name FROM queues")?;
    let names = names.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
    let mut queues = HashMap::new();
    for row in names {
        let (n, name) = row?;
        let name: Arc<str> = name.into();
        let queue = Queue::load(connection, n, name.clone(), limits)?;
        queues.insert(name, Arc::new(queue));
    }
    Ok(queues)
}

/// Above everything that was ever given out, also when all of it is gone.
fn next_seq<'a>(
    connection: &Connection,
    queues: impl Iterator<Item = &'a Arc<Queue>>,
) -> Result<u64, rusqlite::Error> {
    let select = "SELECT value FROM meta WHERE name = 'next_seq'";
    let kept: i64 = connection.query_row(select, [], |row| row.get(0))?;
    let mut next = kept as u64;
    for queue in queues {
        next = next.max(queue::newest_row(connection, queue.n)? + 1);
    }
    Ok(next)
}

fn make_queue(sql: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    let mut find = sql.prepare_cached("SELECT n FROM queues WHERE name = ?")?;
    let found = find.query_map([name], |row| row.get(0))?.next();
    if let Some(n) = found.transpose()? {
        return Ok(n);
    }
    sql.execute("INSERT INTO queues (name) VALUES (?)", [name])?;
    let n = sql.last_insert_rowid();
    sql.execute_batch(&schema::queue_table(n))?;
    Ok(n)
}
