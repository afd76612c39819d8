//! A store in memory that does odd things on request: it fails, waits or panics.

use std::collections::BTreeSet;
use std::sync::Arc;

use keylane_router::conformance::MemoryStore;
use keylane_router::message::Identity;
use keylane_router::store::{
    AuditEntry, DeadLetter, Durable, FailedAttempt, LaneName, Move, ParkedLane, ParkedRow,
    ReadQueue, Stay, Store, StoreError, Stored,
};
use tokio::sync::Semaphore;

/// What becomes of a call.
pub(crate) enum Does {
    Well,
    Fails,
    /// Waits for a permit, then as this says.
    Waits(Arc<Semaphore>, Box<Does>),
    /// Panics when it is waited for.
    Panics,
}

type Odd = dyn Fn(&'static str) -> Does + Send + Sync;

/// Asks what becomes of each call that goes to disk, by its name.
#[derive(Clone)]
pub(crate) struct OddStore {
    pub(crate) inner: MemoryStore,
    odd: Arc<Odd>,
}

impl OddStore {
    pub(crate) fn new(odd: impl Fn(&'static str) -> Does + Send + Sync + 'static) -> Self {
        Self {
            inner: MemoryStore::default(),
            odd: Arc::new(odd),
        }
    }

    fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        call: impl FnOnce(&MemoryStore) -> Durable<T> + Send + 'static,
    ) -> Durable<T> {
        let (inner, mut does) = (self.inner.clone(), (self.odd)(name));
        Box::pin(async move {
            loop {
                match does {
                    Does::Well => return call(&inner).await,
                    Does::Fails => return Err(StoreError::Full("by request".to_owned())),
                    Does::Panics => panic!("by request"),
                    Does::Waits(until, then) => {
                        until.acquire().await.unwrap().forget();
                        does = *then;
                    }
                }
            }
        })
    }
}

impl Store for OddStore {
    fn stay(&self, identity: &Identity) -> Stay {
        self.inner.stay(identity)
    }

    fn failed_attempt(&self, identity: &Identity, attempt: FailedAttempt) -> Durable<Stay> {
        let identity = identity.clone();
        self.call("failed_attempt", move |store| {
            store.failed_attempt(&identity, attempt)
        })
    }

    fn new_round(&self, identities: Vec<Identity>) -> Durable<()> {
        self.call("new_round", |store| store.new_round(identities))
    }

    fn forget(&self, identities: Vec<Identity>) -> Durable<()> {
        self.call("forget", |store| store.forget(identities))
    }

    fn dead_letter(&self, letters: Vec<DeadLetter>) -> Durable<()> {
        self.call("dead_letter", |store| store.dead_letter(letters))
    }

    fn dead_letters(&self, after: u64, limit: usize) -> Durable<Vec<DeadLetter>> {
        self.inner.dead_letters(after, limit)
    }

    fn dead_letter_count(&self) -> Durable<u64> {
        self.inner.dead_letter_count()
    }

    fn trim_dead_letters(&self, numbers: Vec<u64>, audit: AuditEntry) -> Durable<u64> {
        self.inner.trim_dead_letters(numbers, audit)
    }

    fn park(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<()> {
        self.call("park", |store| store.park(lane, reason, messages))
    }

    fn park_behind(&self, lane: LaneName, messages: Vec<Stored>) -> Durable<bool> {
        self.call("park_behind", |store| store.park_behind(lane, messages))
    }

    fn spill(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<Vec<u64>> {
        self.call("spill", |store| store.spill(lane, reason, messages))
    }

    fn parks_any(&self) -> bool {
        self.inner.parks_any()
    }

    fn parked(&self) -> Vec<ParkedLane> {
        self.inner.parked()
    }

    fn parked_lane(&self, lane: &LaneName) -> Option<ParkedLane> {
        self.inner.parked_lane(lane)
    }

    fn parked_rows(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<ParkedRow>> {
        self.call("parked_rows", move |store| {
            store.parked_rows(lane, after, limit)
        })
    }

    fn parked_names(
        &self,
        lane: LaneName,
        after: u64,
        limit: usize,
    ) -> Durable<Vec<(u64, Identity)>> {
        self.inner.parked_names(lane, after, limit)
    }

    fn parked_sizes(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<u64>> {
        self.inner.parked_sizes(lane, after, limit)
    }

    fn move_lanes(&self, moves: Vec<Move>) -> Durable<()> {
        self.call("move_lanes", |store| store.move_lanes(moves))
    }

    fn unpark(&self, lane: LaneName, rows: Vec<u64>) -> Durable<()> {
        self.call("unpark", |store| store.unpark(lane, rows))
    }

    fn set_replaying(&self, lane: LaneName, replaying: bool, audit: AuditEntry) -> Durable<()> {
        self.inner.set_replaying(lane, replaying, audit)
    }

    fn remove_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: AuditEntry,
    ) -> Durable<()> {
        self.call("remove_parked", |store| {
            store.remove_parked(lane, rows, as_letter, audit)
        })
    }

    fn separate_pools(&self) -> BTreeSet<Arc<str>> {
        self.inner.separate_pools()
    }

    fn set_separate_pools(&self, pools: BTreeSet<Arc<str>>) -> Durable<()> {
        self.inner.set_separate_pools(pools)
    }

    fn read_queues(&self) -> BTreeSet<ReadQueue> {
        self.inner.read_queues()
    }

    fn set_read_queues(&self, queues: BTreeSet<ReadQueue>) -> Durable<()> {
        self.call("set_read_queues", |store| store.set_read_queues(queues))
    }

    fn pause(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        self.inner.pause(lane, audit)
    }

    fn resume(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        self.inner.resume(lane, audit)
    }

    fn pauses(&self) -> Vec<LaneName> {
        self.inner.pauses()
    }

    fn audit(&self, entry: AuditEntry) -> Durable<()> {
        self.call("audit", |store| store.audit(entry))
    }

    fn audit_log(&self, limit: usize) -> Durable<Vec<AuditEntry>> {
        self.inner.audit_log(limit)
    }
}
