//! Our own durable places: dead letters, parked and spilled keys, attempts, pauses, the audit log.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::message::{BrokerId, Identity, Key};

/// Answers when the write is on disk (or says why it is not).
pub type Durable<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Names a lane across restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneName {
    /// The source's name in the config.
    pub source: Arc<str>,
    /// The pool's name.
    pub pool: Arc<str>,
    /// The ordering key.
    pub key: Option<Key>,
    /// The one message of the lane, where each keyless message is a lane of its own.
    pub alone: Option<BrokerId>,
}

impl LaneName {
    /// The lane of a key.
    pub fn keyed(
        source: impl Into<Arc<str>>,
        pool: impl Into<Arc<str>>,
        key: impl Into<Key>,
    ) -> Self {
        Self {
            source: source.into(),
            pool: pool.into(),
            key: Some(key.into()),
            alone: None,
        }
    }
}

/// A message as a store keeps it: raw, with what the broker said of it.
#[derive(Clone, PartialEq)]
pub struct Stored {
    /// What it is known by.
    pub identity: Identity,
    /// Its lane.
    pub lane: LaneName,
    /// The raw body as received.
    pub body: Bytes,
    /// The broker's headers.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The source's position, if any.
    pub position: Option<u64>,
}

// By hand: body and headers may hold secrets.
impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored")
            .field("identity", &self.identity)
            .field("lane", &self.lane)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// So many failed attempts of a message are kept, the last ones; all are counted.
pub const KEPT_ATTEMPTS: usize = 20;

/// One failed attempt, written before the lane is held.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedAttempt {
    /// When the attempt ended.
    pub at: SystemTime,
    /// [`crate::outcome::Reason::class`].
    pub class: String,
    /// The sentence for people.
    pub text: String,
    /// First bytes of the target's answer.
    pub answer: Vec<u8>,
}

/// How a message fared so far. A returned or replayed message begins a new round of attempts.
/// Attempts are numbered over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// 0 for the first.
    pub round: u32,
    /// Failed attempts of this round: what `max_attempts` limits.
    pub failed: u32,
    /// Failed attempts of all rounds.
    pub total: u32,
}

impl Stay {
    /// The number of the next attempt, 1 for the first; it never falls back.
    pub fn next_attempt(self) -> u32 {
        self.total.saturating_add(1)
    }

    /// Counts a failed attempt.
    pub fn count_failure(&mut self) {
        self.failed = self.failed.saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// Begins a new round.
    pub fn begin_round(&mut self) {
        self.round = self.round.saturating_add(1);
        self.failed = 0;
    }
}

/// A dead letter: the raw message, why, and what was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// The store's own number, 0 when it is not stored yet.
    pub number: u64,
    /// The message.
    pub message: Stored,
    /// A short class: `refused`, `exhausted`, `malformed`, `skipped`, `too-large`, …
    pub reason: String,
    /// A sentence.
    pub text: String,
    /// When it was stored.
    pub at: SystemTime,
    /// The last failed attempts ([`KEPT_ATTEMPTS`]), oldest first (filled by the store from what
    /// was recorded).
    pub attempts: Vec<FailedAttempt>,
}

/// A message parked or spilled with its key, in order of `row`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParkedRow {
    /// The place in the parked key's order.
    pub row: u64,
    /// The message.
    pub message: Stored,
}

/// A parked or spilled key: parking is spilling with an operator at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct ParkedLane {
    /// Which lane.
    pub lane: LaneName,
    /// Why it was stored.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// How many messages it holds.
    pub messages: u64,
    /// Rows are fed back into the lane: it was spilled, or an operator asked for its replay.
    pub replaying: bool,
    /// It was spilled for want of room, and nobody has parked it since.
    pub spilled: bool,
}

/// A change of the name under which messages are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// A stored lane is called `to` from now on. Where a lane of that name is stored, the rows go
    /// behind its rows and the two are one lane, which is fed if both were. A lane that is moved
    /// onto itself, or is not stored, stays as it is.
    Lane {
        /// The present name.
        from: LaneName,
        /// Only rows of this source move, and the others stay: for lanes that sources share.
        of: Option<Arc<str>>,
        /// The new name.
        to: LaneName,
    },
    /// A source is called `to` from now on: its stored lanes move, and its rows, failed attempts,
    /// dead letters, pauses and the queues that it read are of the new name. A row keeps its old
    /// identity where the new one is stored already.
    Source {
        /// The present name.
        from: Arc<str>,
        /// The new name.
        to: Arc<str>,
    },
}

/// A queue that a source has read, and how its messages came to lanes: where either changes, what
/// is stored of it belongs to other lanes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadQueue {
    /// The kind of its broker, as [`crate::source::Features::kind`] has it.
    pub kind: Arc<str>,
    /// The queue, as [`crate::source::Source::destination`] has it.
    pub queue: Arc<str>,
    /// The source's name in the config.
    pub source: Arc<str>,
    /// All of its messages were one lane, whatever their keys.
    pub one_lane: bool,
}

/// What an operator did.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// When.
    pub at: SystemTime,
    /// Who.
    pub who: String,
    /// Which verb.
    pub verb: String,
    /// On what.
    pub lane: Option<LaneName>,
    /// Which message, if the verb meant one.
    pub identity: Option<Identity>,
    /// Why, in the operator's words.
    pub why: String,
}

/// The durable places. Every write answers when it is on disk; a failed write changed nothing.
pub trait Store: Send + Sync + 'static {
    /// How this message fared so far; from memory.
    fn stay(&self, identity: &Identity) -> Stay;
    /// Writes down a failed attempt; answers the stay with it counted.
    fn failed_attempt(&self, identity: &Identity, attempt: FailedAttempt) -> Durable<Stay>;
    /// The message goes back or is replayed: its next attempt begins a new round, and goes on with
    /// the numbers of the attempts before.
    fn new_round(&self, identities: Vec<Identity>) -> Durable<()>;
    /// Forgets the attempts of messages that were resolved.
    fn forget(&self, identities: Vec<Identity>) -> Durable<()>;

    /// Stores dead letters, each identity once. Where the message came from an embedded queue in
    /// the same file it leaves that queue in the same transaction.
    fn dead_letter(&self, letters: Vec<DeadLetter>) -> Durable<()>;
    /// Dead letters with a number above `after`, oldest first.
    fn dead_letters(&self, after: u64, limit: usize) -> Durable<Vec<DeadLetter>>;
    /// How many there are.
    fn dead_letter_count(&self) -> Durable<u64>;
    /// Deletes these dead letters, with its audit entry, in one transaction.
    fn trim_dead_letters(&self, numbers: Vec<u64>, audit: AuditEntry) -> Durable<u64>;

    /// Parks a lane: stores `messages` (oldest first) behind what is stored of it already, each
    /// identity once, in one transaction; those of an embedded queue in the same file leave it.
    /// If it was fed, it is fed no more from now on, and `reason` says why.
    fn park(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<()>;
    /// As [`Store::park`], but only where the lane is parked at that moment; `false` when it is
    /// not, and then nothing was stored. What arrives for a parked key is stored by this, so that
    /// it cannot miss the end of a replay.
    fn park_behind(&self, lane: LaneName, messages: Vec<Stored>) -> Durable<bool>;
    /// Spills a lane: as [`Store::park`], but a lane that was not stored before is fed. One that
    /// is parked stays parked. Answers the rows of the messages, old or new.
    fn spill(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<Vec<u64>>;
    /// Whether any lane is parked or spilled; from memory, cheap.
    fn parks_any(&self) -> bool;
    /// All parked and spilled lanes; from memory, for routing.
    fn parked(&self) -> Vec<ParkedLane>;
    /// One parked lane; from memory.
    fn parked_lane(&self, lane: &LaneName) -> Option<ParkedLane>;
    /// The parked rows of a lane in order, from `after` on.
    fn parked_rows(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<ParkedRow>>;
    /// The parked rows of a lane in order, from `after` on, without what is in them.
    fn parked_names(
        &self,
        lane: LaneName,
        after: u64,
        limit: usize,
    ) -> Durable<Vec<(u64, Identity)>>;
    /// How many bytes each row of a lane has, in order, from `after` on.
    fn parked_sizes(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<u64>>;
    /// Gives stored lanes other names, one move after the other in one transaction. Of each key the
    /// same messages are stored in the same order before and after.
    fn move_lanes(&self, moves: Vec<Move>) -> Durable<()>;
    /// Lanes made at the start for rows that had none, and how many rows each got; from memory.
    fn recovered(&self) -> Vec<(LaneName, u64)> {
        Vec::new()
    }
    /// The highest row that may be from an earlier process; from memory. Only the self-audit asks.
    fn rows_before(&self) -> u64 {
        0
    }
    /// Rows that were resolved leave the store; a lane without rows is no longer parked.
    fn unpark(&self, lane: LaneName, rows: Vec<u64>) -> Durable<()>;
    /// Marks a lane as being replayed (or stops that), with its audit entry in one transaction. A lane
    /// without rows is no longer parked when it is to be replayed.
    fn set_replaying(&self, lane: LaneName, replaying: bool, audit: AuditEntry) -> Durable<()>;
    /// The row becomes a dead letter (skip); `None` deletes it (drop). One transaction.
    fn remove_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: AuditEntry,
    ) -> Durable<()>;

    /// The pools of which nothing is stored under the pool for unknown ones; from memory.
    fn separate_pools(&self) -> BTreeSet<Arc<str>>;
    /// These and no others are separate from now on.
    fn set_separate_pools(&self, pools: BTreeSet<Arc<str>>) -> Durable<()>;

    /// Which queues were read under which names, and how; from memory.
    fn read_queues(&self) -> BTreeSet<ReadQueue>;
    /// These and no others are known from now on.
    fn set_read_queues(&self, queues: BTreeSet<ReadQueue>) -> Durable<()>;

    /// Pauses a lane, with its audit entry.
    fn pause(&self, lane: LaneName, audit: AuditEntry) -> Durable<()>;
    /// Ends a pause, with its audit entry.
    fn resume(&self, lane: LaneName, audit: AuditEntry) -> Durable<()>;
    /// All pauses; from memory.
    fn pauses(&self) -> Vec<LaneName>;

    /// Writes down what an operator did.
    fn audit(&self, entry: AuditEntry) -> Durable<()>;
    /// The newest entries, newest first.
    fn audit_log(&self, limit: usize) -> Durable<Vec<AuditEntry>>;
}

/// A write or read that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full, or the file's budget.
    #[error("no room on disk: {0}")]
    Full(String),
    /// The file cannot be written (read-only, gone, I/O error).
    #[error("the store cannot be written: {0}")]
    Unwritable(String),
    /// The file is damaged.
    #[error("the store's file is damaged: {0}")]
    Corrupt(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}
