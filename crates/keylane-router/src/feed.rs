//! Feeds a stored key (spilled, or parked and replayed) from the store back into its lane, in
//! order, until it is empty.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::blocked::BlockedHead;
use crate::delivery::{Delivery, Lender, Loan, Origin, Row, Settled, Settlement};
use crate::fault;
use crate::lane::LaneId;
use crate::lock;
use crate::message::Identity;
use crate::parcel::Addresses;
use crate::pool::Pool;
use crate::router::Inner;
use crate::source::BatchId;
use crate::store::{LaneName, ParkedRow, StoreError};
use crate::store_trouble::StoreWait;
use crate::unsettled::Counted;

/// How many rows are in the lane at once,
const AHEAD: usize = 64;
/// and about how many bytes of them; one row may have more.
const AHEAD_BYTES: u64 = 256 << 10;
/// How long a feeder waits for what nobody tells it of.
const MOMENT: Duration = Duration::from_millis(5);
const LONGEST_MOMENT: Duration = Duration::from_secs(1);

/// What a feeder is told.
#[derive(Debug)]
pub(crate) enum Fed {
    /// A message under way is in the store now: its outcome ends this row.
    Adopted(u64, Identity),
    /// The loan of a row ended.
    Settled(Settled<u64>),
    /// Nothing is to be fed before then: the head was held when it was stored.
    NotBefore(Instant),
    /// Somebody wants its head tried now.
    Now,
    /// This head left the memory, and its key is still blocked.
    Blocked(BlockedHead),
    /// It may not be wanted any more.
    LookAgain,
}

/// Keeps lanes from being fed until it is dropped.
pub(crate) struct Barred<'a> {
    feeders: &'a Feeders,
    lanes: Vec<LaneName>,
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        let mut barred = self.feeders.lock_barred();
        for lane in &self.lanes {
            barred.remove(lane);
        }
    }
}

/// The feeders there are, one for each lane at most.
#[derive(Default)]
pub(crate) struct Feeders {
    by: Mutex<HashMap<LaneName, Handle>>,
    /// Notified when a feeder has ended.
    ended: Notify,
    /// Lanes that are to be moved, and not fed until they are.
    barred: Mutex<HashSet<LaneName>>,
    /// Lanes that are being stored.
    storing: Arc<Mutex<HashSet<LaneName>>>,
}

/// A feeder, as others see it.
struct Handle {
    to: mpsc::UnboundedSender<Fed>,
    fed: FedRows,
}

/// The messages of rows that are in their lane, or resolved and still stored.
type FedRows = Arc<Mutex<HashSet<Identity>>>;

/// A lane is being stored until this is dropped: which of its rows are under way, its feeder is told
/// before that.
pub(crate) struct Storing {
    all: Arc<Mutex<HashSet<LaneName>>>,
    lane: LaneName,
}

impl Drop for Storing {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        all.remove(&self.lane);
    }
}

impl Feeders {
    /// One caller at a time for a lane.
    pub(crate) fn storing(&self, lane: &LaneName) -> Storing {
        let mut all = lock(&self.storing);
        all.insert(lane.clone());
        Storing {
            all: self.storing.clone(),
            lane: lane.clone(),
        }
    }

    fn is_being_stored(&self, lane: &LaneName) -> bool {
        let all = lock(&self.storing);
        all.contains(lane)
    }

    /// The feeder of this lane, started if there is none. It ends by itself.
    pub(crate) fn start(&self, router: &Arc<Inner>, lane: &LaneName) -> mpsc::UnboundedSender<Fed> {
        let mut by = self.lock();
        if let Some(feeder) = by.get(lane) {
            return feeder.to.clone();
        }
        // Bounded by what is in the lane: each row there is told of once.
        let (to, events) = mpsc::unbounded_channel();
        let fed = FedRows::default();
        let handle = Handle {
            to: to.clone(),
            fed: fed.clone(),
        };
        by.insert(lane.clone(), handle);
        let feeder = Feeder {
            router: router.clone(),
            lane: lane.clone(),
            to: to.clone(),
            events,
            fed,
            out: BTreeMap::new(),
            since: BTreeMap::new(),
            done: Vec::new(),
            not_before: None,
            blocked: Vec::new(),
            addresses: Addresses::default(),
            waits_for_store: None,
            moment: MOMENT,
        };
        router.tasks.spawn(feeder.run());
        to
    }

    /// Tells the feeder of this lane something, if there is one.
    pub(crate) fn tell(&self, lane: &LaneName, what: Fed) -> bool {
        let by = self.lock();
        let feeder = by.get(lane);
        feeder.is_some_and(|feeder| feeder.to.send(what).is_ok())
    }

    /// Whether this message is fed from the store. It is safe there until it is resolved: a redelivery
    /// of it is not needed, and must not wait behind it.
    pub(crate) fn has_fed(&self, lane: &LaneName, identity: &Identity) -> bool {
        let by = self.lock();
        let feeder = by.get(lane);
        feeder.is_some_and(|feeder| lock(&feeder.fed).contains(identity))
    }

    /// Whether this lane has a feeder: rows of it may be in memory, or resolved and still stored.
    pub(crate) fn has(&self, lane: &LaneName) -> bool {
        self.lock().contains_key(lane)
    }

    /// Keeps these lanes from being fed. One caller at a time.
    pub(crate) fn bar(&self, lanes: Vec<LaneName>) -> Barred<'_> {
        self.lock_barred().extend(lanes.iter().cloned());
        for lane in &lanes {
            // It may wait for bytes.
            self.tell(lane, Fed::LookAgain);
        }
        Barred {
            feeders: self,
            lanes,
        }
    }

    fn lock_barred(&self) -> MutexGuard<'_, HashSet<LaneName>> {
        lock(&self.barred)
    }

    /// Completes when a feeder ends after this was called.
    pub(crate) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LaneName, Handle>> {
        lock(&self.by)
    }
}

/// The feeder of one lane.
struct Feeder {
    router: Arc<Inner>,
    lane: LaneName,
    to: mpsc::UnboundedSender<Fed>,
    events: mpsc::UnboundedReceiver<Fed>,
    fed: FedRows,
    /// Rows that are in the lane.
    out: BTreeMap<u64, Identity>,
    /// When rows that are not resolved were fed first: a row that left the memory is no younger
    /// when it comes again. No more than were ever in the lane at once, and nothing after a restart.
    since: BTreeMap<u64, Instant>,
    /// Rows that are resolved and still in the store; what is fed next comes behind them.
    done: Vec<Done>,
    not_before: Option<Instant>,
    /// Blocked heads that are on disk only.
    blocked: Vec<BlockedHead>,
    /// The store could not be written or read.
    waits_for_store: Option<StoreWait>,
    /// The next wait for what nobody tells of.
    moment: Duration,
    /// Where its rows go.
    addresses: Addresses,
}

/// A row that is resolved.
struct Done {
    row: u64,
    identity: Identity,
    /// A crash would repeat it until it is forgotten.
    _counted: Option<Counted>,
}

impl Feeder {
    /// Runs until nothing is stored, the feeding is called off, or the router stops.
    async fn run(mut self) {
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.note(event);
            }
            self.forget_done().await;
            if !self.out.is_empty() {
                self.wait_for_news().await;
            } else if !self.is_wanted() {
                // Parked, or gone: an operator knows.
                self.blocked.clear();
                if self.has_ended() {
                    return;
                }
                self.pause().await;
            } else if self.not_before.is_some_and(|at| at > Instant::now()) {
                self.wait(self.not_before).await;
            } else {
                self.feed().await;
            }
        }
    }

    fn note(&mut self, event: Fed) {
        match event {
            Fed::Adopted(row, identity) => {
                lock(&self.fed).insert(identity.clone());
                self.out.insert(row, identity);
            }
            Fed::NotBefore(at) => self.not_before = Some(at),
            Fed::Now => self.not_before = None,
            Fed::Blocked(head) => self.blocked.push(head),
            Fed::LookAgain => {}
            Fed::Settled(settled) => self.settled(settled),
        }
    }

    fn settled(&mut self, settled: Settled<u64>) {
        let Some(identity) = self.out.remove(&settled.id) else {
            return;
        };
        if let Some(pool) = self.pool() {
            pool.row_moved(&LaneId::of(&self.lane));
        }
        match settled.settlement {
            // A row is ours: what is rejected of it was stored or dropped before.
            Settlement::Ack | Settlement::Reject => {
                self.since.remove(&settled.id);
                self.done.push(Done {
                    row: settled.id,
                    identity,
                    _counted: settled.counted,
                });
            }
            Settlement::Return { delay } => {
                lock(&self.fed).remove(&identity);
                let at = Instant::now() + delay;
                self.not_before = self.not_before.max(Some(at));
            }
        }
    }

    /// What is resolved leaves the store, in order.
    async fn forget_done(&mut self) {
        // While its source has not heard that it is ours, it may come again: then the row says so.
        let router = self.router.clone();
        let known = |done: &&Done| !router.is_out(&done.identity);
        let safe = self.done.iter().take_while(known).count();
        if safe < self.done.len() {
            // Redelivered messages may wait for room.
            self.router.shared.room.notify_waiters();
        }
        if safe == 0 {
            return;
        }
        fault::point("feed:resolved");
        let rows: Vec<u64> = self.done[..safe].iter().map(|done| done.row).collect();
        match self.router.store.unpark(self.lane.clone(), rows).await {
            Ok(()) => {
                fault::point("feed:removed");
                self.waits_for_store = None;
                self.router.shared.store_trouble.works();
                self.moment = MOMENT;
                let mut fed = lock(&self.fed);
                for done in self.done.drain(..safe) {
                    fed.remove(&done.identity);
                }
            }
            Err(error) => self.trouble(&error).await,
        }
    }

    async fn trouble(&mut self, error: &StoreError) {
        let trouble = &self.router.shared.store_trouble;
        trouble.fails(error);
        if *error == StoreError::Closed || self.router.stop_taking.is_cancelled() {
            // What is in the store is fed again by the next start.
            self.done.clear();
            return;
        }
        let wait = || trouble.wait(&self.lane.pool);
        self.waits_for_store.get_or_insert_with(wait);
        self.pause().await;
    }

    /// Waits for an event; while something is to be forgotten, a moment at the most.
    async fn wait_for_news(&mut self) {
        match self.done.is_empty() {
            true => self.wait(None).await,
            false => self.pause().await,
        }
    }

    /// Waits a moment, longer each time.
    async fn pause(&mut self) {
        let at = Instant::now() + self.moment;
        self.moment = (self.moment * 2).min(LONGEST_MOMENT);
        self.wait(Some(at)).await;
    }

    /// Waits for an event, until then at the latest.
    async fn wait(&mut self, until: Option<Instant>) {
        let stop = self.router.stop_taking.clone();
        let stopping = stop.is_cancelled();
        let at = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            biased;
            event = self.events.recv() => self.note(event.expect("the feeder has a sender itself")),
            () = tokio::time::sleep_until(at) => {}
            () = stop.cancelled(), if !stopping => {}
        }
    }

    fn is_wanted(&self) -> bool {
        let stored = self.router.store.parked_lane(&self.lane);
        stored.is_some_and(|lane| lane.replaying)
            && !self.router.stop_taking.is_cancelled()
            && self.router.has_source(&self.lane.source)
            && self.pool().is_some_and(|pool| !pool.is_draining())
            && !self.router.feeders.lock_barred().contains(&self.lane)
    }

    /// Ends unless there is something to do after all; whoever starts a feeder looks here first.
    fn has_ended(&mut self) -> bool {
        let router = self.router.clone();
        let mut by = router.feeders.lock();
        let forgotten = self.done.is_empty() || router.give_up.is_cancelled();
        let ends = self.events.is_empty() && !self.is_wanted() && forgotten;
        if ends {
            by.remove(&self.lane);
            router.feeders.ended.notify_waiters();
        }
        ends
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        self.router.routes.find(&self.lane.pool)
    }

    /// Puts the next rows into the lane.
    async fn feed(&mut self) {
        let Some(pool) = self.pool() else {
            return;
        };
        let most = AHEAD.min(pool.lane_capacity(&LaneId::of(&self.lane)));
        let after = self.done.iter().map(|done| done.row).max().unwrap_or(0);
        let lane = self.lane.clone();
        let sizes = self.router.store.parked_sizes(lane, after, most);
        let sizes = match sizes.await {
            Ok(sizes) => sizes,
            Err(error) => return self.trouble(&error).await,
        };
        let (count, bytes) = some_of(&sizes);
        if count == 0 {
            // All that is left is still to be forgotten.
            return self.pause().await;
        }
        let router = self.router.clone();
        let mut weighing = std::pin::pin!(pool.weigh(bytes, || {}));
        let mut weight = loop {
            let resolved = !self.done.is_empty();
            tokio::select! {
                biased;
                weight = &mut weighing => break weight,
                () = router.stop_taking.cancelled() => return,
                event = self.events.recv() => self.note(event.expect("the feeder has a sender itself")),
                () = tokio::time::sleep(self.moment), if resolved => {
                    self.moment = (self.moment * 2).min(LONGEST_MOMENT);
                }
            }
            // The owners of the bytes may wait until resolved rows are forgotten.
            self.forget_done().await;
            if !self.is_wanted() {
                return;
            }
        };
        let lane = self.lane.clone();
        let rows = router.store.parked_rows(lane, after, count).await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.trouble(&error).await,
        };
        fault::point("feed:read");
        self.waits_for_store = None;
        // Somebody may have parked it meanwhile, or stored it with what is under way of it.
        let wanted = self.is_wanted();
        if router.feeders.is_being_stored(&self.lane) {
            return self.pause().await;
        }
        while let Ok(event) = self.events.try_recv() {
            self.note(event);
        }
        if !wanted || !self.out.is_empty() {
            return;
        }
        self.moment = MOMENT;
        for row in rows {
            let (number, identity) = (row.row, row.message.identity.clone());
            let mut delivery = self.delivery(&pool, row);
            delivery.weight = Some(weight.split(delivery.bytes()));
            let since = self.since.entry(number);
            delivery.received = *since.or_insert(delivery.received);
            lock(&self.fed).insert(identity.clone());
            self.out.insert(number, identity);
            if let Err(refused) = pool.push_row(delivery) {
                let delay = MOMENT;
                refused.settle(Settlement::Return { delay });
                break;
            }
            fault::point("feed:pushed");
        }
        if count == sizes.len() {
            // What was not fed now is not among the first any more: it was skipped on disk.
            self.blocked.clear();
        }
    }

    /// Whether rows of it may be of another order than others: messages that went to another pool
    /// have come to its pool since the first was stored.
    fn is_mixed(&self, pool: &Pool) -> bool {
        let stored = self.router.store.parked_lane(&self.lane);
        stored.is_some_and(|stored| pool.codes_since().is_some_and(|at| stored.since <= at))
    }

    fn delivery(&mut self, pool: &Pool, row: ParkedRow) -> Box<Delivery> {
        let stored = row.message;
        let envelope = self.router.envelope_of(&stored.identity.source);
        let addresses = &mut self.addresses;
        let (parcel, fate) = self.router.unpack(&envelope, &stored, None, addresses);
        let stay = self.router.store.stay(&stored.identity);
        let counters = self.router.counters.of(&self.lane.source, &pool.name);
        let lane = LaneId::of(&self.lane);
        let loan = Loan {
            // A row of a lane without a key may be of a message with one: with one worker a source
            // has one lane for all keys.
            scale: match self.lane.key {
                Some(_) if !self.is_mixed(pool) => {
                    self.router.scale_of(&stored.identity.source, pool)
                }
                _ => None,
            },
            identity: stored.identity,
            position: stored.position,
            batch: BatchId(row.row),
            body: stored.body,
            headers: stored.headers,
            place: None,
            lender: Lender::Row(Box::new(Row {
                to: self.to.clone(),
                row: row.row,
            })),
            lease: None,
        };
        let mut delivery = Box::new(Delivery::new(loan, parcel, lane, stay, counters));
        delivery.set_fate(fate);
        if delivery.batch.0 <= self.router.store.rows_before() {
            delivery.origin = Origin::EarlierStore;
        }
        let head = self
            .blocked
            .iter()
            .position(|head| head.is(&delivery.identity));
        if let Some(head) = head {
            delivery.rare().blocked = Some(self.blocked.swap_remove(head));
        }
        delivery
    }
}

/// How many of the first rows to take at once, and their bytes: one at least.
fn some_of(sizes: &[u64]) -> (usize, u64) {
    let mut bytes = 0;
    let mut count = 0;
    for size in sizes {
        if count > 0 && bytes + size > AHEAD_BYTES {
            break;
        }
        bytes += size;
        count += 1;
    }
    (count, bytes)
}
