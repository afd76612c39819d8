//! From a source to the lanes, and back: each message becomes a delivery, each settlement reaches
//! the source, in order and in batches.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Scales;
use crate::counters::Counters;
use crate::delivery::{Delivery, Fate, Lender, Loan, Settled, Settlement, SourceEnd, Window};
use crate::fault;
use crate::health::Trouble;
use crate::jitter;
use crate::lane::{LaneId, Owner, any_source};
use crate::lease::{Book, Lease, Lost, Terms};
use crate::map::Map;
use crate::message::{BrokerId, Key};
use crate::one_pool::OnePool;
use crate::parcel::{Addresses, Parcel};
use crate::plan::{Keyless, LaneScope, Overflow, PoolPlan, SourcePlan};
use crate::pool::{NotPut, Pool};
use crate::recent::Recent;
use crate::renew::{Due, Leases, Renewals};
use crate::room::{Place, Room as Shares};
use crate::route::Routed;
use crate::router::Inner;
use crate::seats::Most;
use crate::settle_again::Again;
use crate::settlements::{self, Settlements};
use crate::source::{
    BatchId, Bond, Features, Received, Room, SettleError, Settler, Source, SourceError,
};
use crate::source_lanes::{SourceLanes, part_of};
use crate::spill::Over;
use crate::stage::{Blocked, Stage};
use crate::weight::Weight;

/// The most messages received at once: while a batch is taken apart it is in memory several times.
const RECEIVE: usize = 2048;
/// Where little of the window is free, this long is waited for more.
const MOMENT: Duration = Duration::from_millis(2);
/// How often a source that lends for a time is looked at in the length of a lease.
const LOOKS: u32 = 8;
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// Longer than any source tries to reach its broker before it says that it cannot.
const TRIES: Duration = Duration::from_secs(60);
/// While nothing more may be received, held lanes are looked at this often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A pool that takes no more is asked for its successor after this.
const POOL_GONE: Duration = Duration::from_millis(10);
/// A source that waits for one lane says so this often.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// A running consumer, as the router sees it.
pub(crate) struct Consumer {
    pub(crate) name: Arc<str>,
    pub(crate) plan: SourcePlan,
    pub(crate) features: Features,
    /// Of its positions, where it has some.
    pub(crate) scales: Option<Arc<Scales>>,
    /// Receives nothing more.
    pub(crate) stop: CancellationToken,
    /// It does.
    takes_no_more: CancellationToken,
    /// The receiving and the settling task.
    tasks: TaskTracker,
    held: Arc<dyn HeldIds>,
    /// What it is doing.
    pub(crate) stage: Arc<Stage>,
}

impl Consumer {
    /// Waits until nothing more comes from it into the lanes.
    pub(crate) async fn received_all(&self) {
        tokio::select! {
            biased;
            () = self.takes_no_more.cancelled() => {}
            () = self.ended() => {}
        }
    }

    /// Waits until everything received was settled and the source is closed.
    pub(crate) async fn ended(&self) {
        self.tasks.wait().await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds those of the messages' ids that are out here.
    pub(crate) fn add_held<'a>(&self, ids: &HashSet<&'a str>, to: &mut HashSet<&'a str>) {
        self.held.add_held(ids, to);
    }

    /// Whether this is out: its source has not confirmed a settlement of it.
    pub(crate) fn is_out(&self, id: &BrokerId) -> bool {
        self.held.is_out(id)
    }

    pub(crate) fn has_something_out(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Starts to take messages from a source.
pub(crate) fn start<S: Source>(
    name: Arc<str>,
    source: S,
    plan: SourcePlan,
    router: Arc<Inner>,
) -> Arc<Consumer> {
    let features = source.features();
    router.announce(&name, &features);
    let scales = features.positions.then(Arc::<Scales>::default);
    let lanes = Arc::new(SourceLanes::new(&router, &plan));
    let (to_settle, settlements) = settlements::channel(router.shared.pressure.clone());
    let held = Arc::new(Held::new(plan.window));
    let stop = router.stop_taking.child_token();
    let terms = features.lease.map(|length| {
        let book: Weak<dyn Book> = Arc::downgrade(&held) as Weak<Held<S::Receipt>>;
        Arc::new(Terms {
            clock: router.lease_clock.clone(),
            length,
            book,
            stop: stop.clone(),
        })
    });
    let tasks = TaskTracker::new();
    let stage = Arc::new(Stage::default());
    let takes_no_more = CancellationToken::new();
    let settle = Settle {
        stop: stop.clone(),
        takes_no_more: takes_no_more.clone(),
        stage: stage.clone(),
        name: name.clone(),
        settler: source.settler(),
        held: held.clone(),
        remember: !features.confirmed_acks,
        router: router.clone(),
    };
    let renewals = terms.clone().map(|terms| Renewals {
        name: name.clone(),
        settler: source.settler(),
        held: held.clone(),
        terms,
        longest_loan: features.longest_loan,
        returns: features.returns(),
        takes_back: features.ordered_return,
        router: router.clone(),
    });
    let settled = tasks.spawn(async move {
        let renew = async {
            match renewals {
                Some(renewals) => renewals.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = settle.run(settlements) => {}
            () = renew => {}
        }
    });
    let consume = Consume {
        stage: stage.clone(),
        name: name.clone(),
        settler: source.settler(),
        source,
        plan: plan.clone(),
        features: features.clone(),
        scales: scales.clone(),
        lanes,
        terms,
        end: Arc::new(SourceEnd {
            to_settle,
            window: held.clone(),
        }),
        relief: Arc::new(Relief {
            name: name.clone(),
            held: held.clone(),
            router: router.clone(),
            warned: Mutex::default(),
        }),
        held: held.clone(),
        router,
        stop: stop.clone(),
        counters: Map::default(),
        one_pool: features.key_lock.then(OnePool::default),
        addresses: Addresses::default(),
        owners: [name.clone(), any_source()].map(|source| Owner::new(source, None)),
        loans: 0,
        asked: 0,
    };
    let no_more = takes_no_more.clone();
    tasks.spawn(async move {
        let mut source = consume.run().await;
        source.stop_taking().await;
        no_more.cancel();
        // Everything that was received is settled before the connection goes.
        let _ = settled.await;
        source.close().await;
    });
    tasks.close();
    Arc::new(Consumer {
        name,
        plan,
        features,
        scales,
        stop,
        takes_no_more,
        tasks,
        held,
        stage,
    })
}

/// What is out: received and not settled, by the broker's own id.
struct Held<R> {
    out: Mutex<Out<R>>,
    changed: Notify,
    /// Something is out, where nothing was; only told where leases are renewed.
    first: Notify,
    /// A receive failed: what is out may be lost with its connection.
    doubted: Notify,
    /// Acked lately, where an ack may be lost on its way without anybody knowing.
    acked: Mutex<Recent>,
}

struct Out<R> {
    table: Map<BrokerId, Entry<R>>,
    /// Which lanes have how much of it.
    shares: Shares,
    /// The newest batch.
    batch: BatchId,
}

impl<R> Out<R> {
    fn remove(&mut self, id: &BrokerId) -> Option<Entry<R>> {
        let entry = self.table.remove(id)?;
        self.shares.remove(&entry.place, entry.bytes.into());
        Some(entry)
    }

    /// The entry of this loan, unless the message was lent anew since.
    fn of_loan(&self, (id, loan): (&BrokerId, u32)) -> Option<&Entry<R>> {
        self.table.get(id).filter(|entry| entry.loan == loan)
    }
}

/// The ids of what is out, whatever the source's receipts are.
trait HeldIds: Send + Sync {
    fn add_held<'a>(&self, ids: &HashSet<&'a str>, to: &mut HashSet<&'a str>);
    fn is_out(&self, id: &BrokerId) -> bool;
    fn is_empty(&self) -> bool;
}

impl<R: Clone + Send> HeldIds for Held<R> {
    // Not by an index: what is out is no more than a window, and this is asked seldom.
    fn add_held<'a>(&self, ids: &HashSet<&'a str>, to: &mut HashSet<&'a str>) {
        let out = self.lock();
        let ids: HashMap<IdHash, &str> = ids.iter().map(|id| (IdHash::of(id), *id)).collect();
        let entries = out.table.values();
        to.extend(entries.filter_map(|entry| ids.get(&entry.message)));
    }

    fn is_out(&self, id: &BrokerId) -> bool {
        self.lock().table.contains_key(id)
    }

    fn is_empty(&self) -> bool {
        self.lock().table.is_empty()
    }
}

impl<R: Clone + Send> Window for Held<R> {
    fn goes_back(&self, messages: &[(&BrokerId, u32)]) -> BatchId {
        let mut out = self.lock();
        for (id, loan) in messages {
            let entry = out.table.get_mut(*id);
            if let Some(entry) = entry.filter(|entry| entry.loan == *loan) {
                entry.goes_back = true;
            }
        }
        out.batch
    }

    fn hold(&self, place: &Place) {
        self.lock().shares.hold(place);
    }

    fn moved(&self, place: &Place) {
        self.lock().shares.moved(place);
    }
}

/// Stands for the publisher's id of a message, which may be long.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct IdHash(u64);

impl IdHash {
    fn of(id: &str) -> Self {
        Self(crate::map::hash_of(id))
    }
}

/// There is one for each message that is out.
struct Entry<R> {
    /// Of the id in its body, which need not be the only one of its kind.
    message: IdHash,
    /// The newest one: a message that comes again while it is here is settled with that.
    receipt: R,
    /// Which loan this is: one that went back and was lent again is another.
    loan: u32,
    /// It is in no lane any more, and is to be given back or being given back.
    goes_back: bool,
    /// How often it came: what was asked about an older receipt says nothing of the newest.
    came: u32,
    /// What it takes of its lane's share.
    bytes: u32,
    lease: Option<Arc<Lease>>,
    counters: Arc<Counters>,
    /// Its lane.
    place: Arc<Place>,
}

impl<R: Clone> Held<R> {
    fn new(window: NonZeroUsize) -> Self {
        let out = Out {
            table: Map::default(),
            shares: Shares::new(window),
            batch: BatchId(0),
        };
        Self {
            out: Mutex::new(out),
            changed: Notify::new(),
            first: Notify::new(),
            doubted: Notify::new(),
            acked: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Out<R>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are out.
    fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// How many more may be out. Where that is little, what is settled in a moment is waited for:
    /// a receive costs about the same for one message as for many, and what is out keeps the lanes
    /// busy meanwhile.
    async fn room(&self, window: usize) -> usize {
        let room = self.room_for(1, window).await;
        let enough = window / 8;
        if room >= enough {
            return room;
        }
        match tokio::time::timeout(MOMENT, self.room_for(enough, window)).await {
            Ok(room) => room,
            // Only settlements change it, and they make it larger.
            Err(_) => self.room_for(1, window).await,
        }
    }

    /// Waits until this many more may be out; answers how many.
    async fn room_for(&self, enough: usize, window: usize) -> usize {
        loop {
            let changed = self.changed.notified();
            let room = window.saturating_sub(self.len());
            if room >= enough {
                return room;
            }
            changed.await;
        }
    }

    /// Notes the newest receipts of those messages that are here already, all at one moment:
    /// where the first of a lane is known, so is everything behind it. Returns which are. What goes
    /// back is here no more: what comes again of it is a new loan.
    fn come_again(
        &self,
        batch: &[Received<R>],
        lent: Duration,
        bond: impl Fn(&R) -> Option<Bond>,
    ) -> Vec<bool> {
        let mut out = self.lock();
        if let Some(received) = batch.first() {
            out.batch = received.batch;
        }
        let mut known = |received: &Received<R>| {
            let id = &received.identity.id;
            if out.table.get(id).is_some_and(|entry| entry.goes_back) {
                out.remove(id);
            }
            let Some(entry) = out.table.get_mut(id) else {
                return false;
            };
            entry.receipt = received.receipt.clone();
            entry.came += 1;
            if let Some(lease) = &entry.lease {
                lease.begin_over(lent, bond(&entry.receipt));
            }
            entry.counters.redelivered.one();
            true
        };
        batch.iter().map(&mut known).collect()
    }

    /// A message goes to another lane than it was to go to when it came.
    fn move_to(&self, id: &BrokerId, place: Place) -> Arc<Place> {
        let mut out = self.lock();
        let Out { table, shares, .. } = &mut *out;
        let Some(entry) = table.get_mut(id) else {
            return Arc::new(place);
        };
        shares.remove(&entry.place, entry.bytes.into());
        entry.place = shares.add(place, entry.bytes.into());
        entry.place.clone()
    }

    /// A message of this lane, with so many bytes, is out from now on.
    fn insert(
        &self,
        id: BrokerId,
        (place, bytes): (Place, u32),
        entry: impl FnOnce(Arc<Place>) -> Entry<R>,
    ) -> Arc<Place> {
        let mut out = self.lock();
        let place = out.shares.add(place, bytes.into());
        let entry = entry(place.clone());
        let first = out.table.is_empty() && entry.lease.is_some();
        out.table.insert(id, entry);
        drop(out);
        if first {
            self.first.notify_one();
        }
        place
    }

    /// Whether this was acked before: then it was delivered, and only the ack was lost.
    fn was_acked(&self, id: &BrokerId) -> bool {
        let acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        acked.get(id).is_some()
    }

    fn remember_acked<'a>(&self, ids: impl IntoIterator<Item = &'a BrokerId>) {
        let mut acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            acked.add(id.clone(), ());
        }
    }

    /// The receipts of those that may still be settled, and what lost its lease; what was lent anew
    /// since is neither.
    fn receipts(&self, settled: &[Settled<BrokerId>]) -> Receipts<R> {
        let out = self.lock();
        let mut receipts = Receipts {
            sent: Vec::new(),
            receipts: Vec::new(),
            late: Vec::new(),
        };
        for (at, one) in settled.iter().enumerate() {
            let Some(entry) = out.of_loan((&one.id, one.loan)) else {
                continue;
            };
            let holds = entry.lease.as_ref().is_none_or(|lease| lease.holds());
            if holds {
                receipts.sent.push(Sent {
                    at,
                    came: entry.came,
                });
                receipts.receipts.push(entry.receipt.clone());
            } else {
                receipts.late.push(at);
            }
        }
        receipts
    }

    /// Whether it came again since this was sent.
    fn came_since(&self, one: &Settled<BrokerId>, came: u32) -> bool {
        let out = self.lock();
        let entry = out.of_loan((&one.id, one.loan));
        entry.is_some_and(|entry| entry.came > came)
    }

    /// Whether it was lent anew since: then this loan is over, whatever its source says.
    fn is_over(&self, one: &Settled<BrokerId>) -> bool {
        self.lock().of_loan((&one.id, one.loan)).is_none()
    }

    /// The lane of what is out.
    fn place_of(&self, id: &BrokerId) -> Option<Arc<Place>> {
        Some(self.lock().table.get(id)?.place.clone())
    }

    /// It is forgotten here, and the broker does not know.
    fn give_up(&self, id: &BrokerId) {
        let out = self.lock();
        let lease = out.table.get(id).and_then(|entry| entry.lease.as_ref());
        lease.inspect(|lease| lease.give_up());
    }

    fn forget<'a>(&self, settled: impl IntoIterator<Item = &'a Settled<BrokerId>>) {
        let mut out = self.lock();
        for one in settled {
            if out.of_loan((&one.id, one.loan)).is_some() {
                out.remove(&one.id);
            }
        }
        drop(out);
        self.changed.notify_waiters();
    }
}

/// What is to be settled, by its place in its run.
struct Receipts<R> {
    sent: Vec<Sent>,
    receipts: Vec<R>,
    /// What lost its lease before.
    late: Vec<usize>,
}

/// A settlement on its way, and which of its receipts went with it.
struct Sent {
    at: usize,
    came: u32,
}

impl<R: Clone + Send> Book for Held<R> {
    fn forget_lost(&self, messages: &[Lost<'_>]) -> Vec<bool> {
        let mut out = self.lock();
        let mut some = false;
        let mut forget = |lost: &Lost<'_>| {
            let entry = out.table.get_mut(lost.id);
            let holds = |entry: &&mut Entry<R>| entry.lease.as_ref().is_some_and(|l| l.holds());
            if let Some(entry) = entry.filter(holds) {
                // Behind what is forgotten: it goes back, from this moment on.
                entry.goes_back |= some;
                return false;
            }
            some = true;
            if lost.delivered {
                self.remember_acked([lost.id]);
            }
            if let Some(entry) = out.remove(lost.id) {
                entry.lease.inspect(|lease| lease.give_up());
            }
            true
        };
        let forgotten = messages.iter().map(&mut forget).collect();
        drop(out);
        self.changed.notify_waiters();
        forgotten
    }
}

impl<R: Clone + Send + Sync + 'static> Leases<R> for Held<R> {
    async fn some(&self) {
        loop {
            let first = self.first.notified();
            if !self.lock().table.is_empty() {
                return;
            }
            first.await;
        }
    }

    async fn doubted(&self) {
        self.doubted.notified().await;
    }

    // Not by an index: what is out is no more than a window, and it is looked at a few times in
    // the length of a lease.
    fn look(&self, mut at: impl FnMut(&Arc<Lease>, &dyn Fn() -> Due<R>)) {
        let out = self.lock();
        // In an order of their own, not the table's, which is another in each process.
        let mut entries: Vec<_> = out.table.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        for (id, entry) in entries {
            let Some(lease) = &entry.lease else { continue };
            at(lease, &|| Due {
                id: id.clone(),
                came: entry.came,
                receipt: entry.receipt.clone(),
            });
        }
    }

    fn renewed(&self, due: &Due<R>, with: impl FnOnce(&Arc<Lease>)) {
        let out = self.lock();
        if let Some(entry) = out.table.get(&due.id)
            && entry.came == due.came
            && let Some(lease) = &entry.lease
        {
            with(lease);
        }
    }
}

/// Sees to lanes that have more than their part of a source's window.
struct Relief<R> {
    name: Arc<str>,
    held: Arc<Held<R>>,
    router: Arc<Inner>,
    /// Which lane was warned about last, and when.
    warned: Mutex<Option<(Arc<Place>, Instant)>>,
}

impl<R: Clone + Send + Sync + 'static> Relief<R> {
    /// How many more may be out. While that is few, held lanes make room.
    async fn room(&self, window: usize) -> usize {
        let mut room = std::pin::pin!(self.held.room(window));
        loop {
            self.longest_held();
            match tokio::time::timeout(LOOK_AGAIN, &mut room).await {
                Ok(room) => return room,
                Err(_) => continue,
            }
        }
    }

    /// Held lanes make room also while the source waits for some; this has no end.
    async fn while_waiting(&self) {
        loop {
            self.longest_held();
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Held lanes have half of the window or more: the longest-held are over.
    fn longest_held(&self) {
        loop {
            let over = self.held.lock().shares.over_half();
            let Some(place) = over else {
                return;
            };
            self.relieve(&place, "held lanes have half of the window");
        }
    }

    /// The pool's bytes are all in use: its held lanes make room.
    fn heavy(&self, pool: &Pool) {
        let half = pool.plan().byte_budget / 2;
        let over = self.held.lock().shares.longest_held(&pool.name, half);
        for place in over {
            self.held.lock().shares.moved(&place);
            self.relieve(&place, "held lanes have the bytes of its pool");
        }
    }

    /// Waits for bytes of the pool's budget, in turn.
    fn weigh(self: &Arc<Self>, pool: Arc<Pool>, bytes: u64) -> Weighing {
        let (relief, of) = (self.clone(), pool.clone());
        let weight = Box::pin(async move { of.weigh(bytes, || relief.heavy(&of)).await });
        Weighing { pool, weight }
    }

    /// What is over makes room: it goes to the store, or back to a source that may not store it and
    /// takes it back in order, later. Elsewhere the source waits.
    fn relieve(&self, place: &Arc<Place>, why: &str) {
        let Some(pool) = self.router.routes.find(&place.pool) else {
            return;
        };
        let shared = &self.router.shared;
        match shared.overflow(&pool.plan(), &self.name) {
            Overflow::Spill => pool.overflow(&place.lane, Over::Spill(why.to_owned())),
            Overflow::Wait if shared.only_returns(&place.lane, &self.name) => {
                pool.overflow(&place.lane, Over::Return);
            }
            Overflow::Wait => self.warn(place, why),
        }
    }

    /// The source waits for this lane.
    fn warn(&self, place: &Arc<Place>, why: &str) {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |(last, at): &(Arc<Place>, Instant)| last == place && now - *at < WARN_EVERY;
        if !warned.as_ref().is_some_and(known) {
            let (source, pool, lane) = (&*self.name, &*place.pool, &place.lane);
            tracing::warn!(source, pool, ?lane, "the source waits for this lane: {why}");
            *warned = Some((place.clone(), now));
        }
    }
}

/// The receiving side of one source.
struct Consume<S: Source> {
    name: Arc<str>,
    stage: Arc<Stage>,
    source: S,
    plan: SourcePlan,
    features: Features,
    scales: Option<Arc<Scales>>,
    /// What the source is told of them.
    lanes: Arc<SourceLanes>,
    /// Where the source lends for a time.
    terms: Option<Arc<Terms>>,
    settler: S::Settler,
    held: Arc<Held<S::Receipt>>,
    end: Arc<SourceEnd>,
    relief: Arc<Relief<S::Receipt>>,
    router: Arc<Inner>,
    stop: CancellationToken,
    counters: Map<Arc<str>, Arc<Counters>>,
    /// Where the broker locks keys.
    one_pool: Option<OnePool>,
    /// Where its messages go.
    addresses: Addresses,
    /// Of lanes that are nobody's, of this source and of all.
    owners: [Arc<Owner>; 2],
    /// How many loans there were.
    loans: u32,
    /// The table of routes at the last call of `receive`.
    asked: u64,
}

impl<S: Source> Consume<S> {
    /// Receives until told to stop; hands the source back.
    async fn run(mut self) -> S {
        let mut back_off = FIRST_BACK_OFF;
        // A source that failed and has brought nothing since is well once it has held out for this
        // long: from when it says that it is there again, or else while it may still be trying.
        let mut failed = None;
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            self.stage.block(Blocked::Window);
            let messages = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                room = self.relief.room(self.plan.window.get()) => room,
            };
            self.stage.unblock();
            let room = Room {
                messages: messages.min(RECEIVE),
                bytes: self.router.receive_bytes,
                lanes: Some(self.lanes.clone()),
            };
            let well = || self.router.health.well(Trouble::Source(self.name.clone()));
            let routes = self.router.shared.routes.clone();
            let received = {
                // Before the source looks what it may hand out.
                let mut changed = std::pin::pin!(routes.notified());
                self.asked = self.router.routes.generation();
                let receiving = receive(&mut self.source, room, self.terms.as_deref());
                let receiving = contained(receiving);
                let mut receiving = std::pin::pin!(receiving);
                let holds_out = tokio::time::sleep(failed.unwrap_or_default());
                let mut holds_out = std::pin::pin!(holds_out);
                loop {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break None,
                        received = &mut receiving => break Some(Some(received)),
                        // What keeps messages waiting in their queue may keep them no more.
                        () = &mut changed => break Some(None),
                        () = &mut holds_out, if failed.is_some() => {
                            (failed, back_off) = (None, FIRST_BACK_OFF);
                            well();
                        }
                    }
                }
            };
            let received = match received {
                None => break,
                Some(None) => continue,
                Some(Some(received)) => received,
            };
            let received = received.unwrap_or_else(|text| Err(self.panicked(text)));
            match received {
                // It has connected again, and nothing more is known.
                Ok((batch, _)) if failed.is_some() && batch.is_empty() => failed = Some(back_off),
                Ok((batch, lent)) => {
                    (failed, back_off) = (None, FIRST_BACK_OFF);
                    well();
                    let (batch, lent) = self.still_lent(batch, lent).await;
                    self.take_batch(batch, lent).await;
                }
                Err(error) => {
                    failed = Some(TRIES);
                    self.held.doubted.notify_one();
                    let trouble = Trouble::Source(self.name.clone());
                    self.router.health.trouble(trouble, error.to_string());
                    let random = self.router.shared.machine.random();
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break,
                        () = tokio::time::sleep(jitter::between(random, back_off, 0.5, 1.0)) => {}
                    }
                    back_off = (back_off * 2).min(LONGEST_BACK_OFF);
                }
            }
        }
        self.source
    }

    fn panicked(&self, text: String) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: format!("receiving panicked: {text}"),
            permanent: false,
        }
    }

    /// What may have been lent long ago, before this process was stopped, is renewed before
    /// anything is done with it. Where that fails nothing is taken from there on: it comes again.
    async fn still_lent(
        &mut self,
        mut batch: Vec<Received<S::Receipt>>,
        lent: Duration,
    ) -> (Vec<Received<S::Receipt>>, Duration) {
        let Some(terms) = &self.terms else {
            return (batch, lent);
        };
        let began = terms.clock.now();
        if began.saturating_sub(lent) < terms.length / 2 {
            return (batch, lent);
        }
        let receipts: Vec<_> = batch.iter().map(|one| one.receipt.clone()).collect();
        let patience = terms.length / 4;
        let renewed = tokio::time::timeout(patience, self.settler.renew(receipts)).await;
        let results = renewed.unwrap_or_default();
        let ours = results.iter().take_while(|result| result.is_ok()).count();
        if ours < batch.len() {
            let source = &*self.name;
            let late = batch.len() - ours;
            tracing::warn!(source, "{late} came too late: their leases are over");
            let back = batch.split_off(ours);
            // Without an answer of the broker it may not know that these are not ours any more.
            let bond = back.first().and_then(|one| self.settler.bond(&one.receipt));
            bond.inspect(Bond::cut);
            let back = back.into_iter().zip(&results[ours..]);
            let back = back.filter(|(_, result)| result.is_ok());
            let back = back.map(|(received, _)| received.receipt).collect();
            // What does not go back now does so when its lease ends.
            let _ = self.settler.give_back(back, Duration::ZERO).await;
        }
        (batch, began)
    }

    /// Puts a batch into its lanes, in order. All of it is in the table of what is held before any
    /// of it waits for room.
    async fn take_batch(&mut self, batch: Vec<Received<S::Receipt>>, lent: Duration) {
        self.router.alarm.wake();
        if let Some(one_pool) = &mut self.one_pool {
            one_pool.begin();
        }
        let settler = self.settler.clone();
        let bond = |receipt: &S::Receipt| settler.bond(receipt);
        let known = self.held.come_again(&batch, lent, bond);
        let mut arrivals = VecDeque::with_capacity(batch.len());
        for (received, known) in batch.into_iter().zip(known) {
            // A batch may have the same message twice.
            let one = std::slice::from_ref(&received);
            if known || self.held.come_again(one, lent, bond)[0] {
                continue;
            }
            let acked = self.held.was_acked(&received.identity.id);
            let arrival = self.delivery(received, lent);
            if acked {
                arrival.delivery.counters.redelivered.one();
                arrival.delivery.settle(Settlement::Ack);
                continue;
            }
            arrival.delivery.counters.received.one();
            arrivals.push_back(arrival);
        }
        self.put_all(arrivals).await;
        for pool in self.router.routes.pools() {
            pool.batch_is_in(&self.name);
        }
    }

    /// A received message as a delivery, and the pool it goes to.
    fn delivery(&mut self, received: Received<S::Receipt>, lent: Duration) -> Arrival {
        let tenant = received.tenant.as_deref();
        let (envelope, addresses) = (&self.plan.envelope, &mut self.addresses);
        let (parcel, fate) = self.router.unpack(envelope, &received, tenant, addresses);
        let (id, given) = (&received.identity.id, received.tenant.as_ref());
        let lane_of = |scope| self.lane(scope, &parcel, id, given);
        let code = parcel.address.pool.as_ref();
        let routes = &self.router.routes;
        let Routed {
            pool,
            lane,
            is_usual,
            is_unknown,
            generation: routed,
        } = routes.route(code, lane_of);
        if let Some(code) = code.filter(|_| is_unknown) {
            routes.note_unknown(code, &self.router.counters);
        }
        if let Some(key) = &parcel.key {
            self.warn_of_two_pools(key, &pool.name);
        }
        let counters = self.counters_of(&pool);
        let terms = self.terms.clone();
        let lease = terms.map(|terms| {
            let bond = self.settler.bond(&received.receipt);
            Lease::new(terms, lent, bond)
        });
        let place = Place {
            pool: pool.name.clone(),
            lane: lane.clone(),
        };
        let bytes = u32::try_from(received.body.len()).unwrap_or(u32::MAX);
        let id = received.identity.id.clone();
        self.loans = self.loans.wrapping_add(1);
        let number = self.loans;
        let place = self.held.insert(id, (place, bytes), |place| Entry {
            message: IdHash::of(parcel.id(&received.body)),
            receipt: received.receipt.clone(),
            loan: number,
            goes_back: false,
            came: 0,
            bytes,
            lease: lease.clone(),
            counters: counters.clone(),
            place,
        });
        let stay = self.router.store.stay(&received.identity);
        let audit = &self.router.shared.audit;
        let ordered = self.is_ordered(&parcel);
        // Its predecessors may have started in another pool, or the source handed it out before the
        // pools changed.
        let audited = ordered && is_usual && routed == self.asked;
        let scales = self.scales.as_ref().filter(|_| audited);
        let scale = scales.map(|scales| scales.of(audit, &pool.name, pool.codes()));
        let loan = Loan {
            identity: received.identity,
            position: received.position,
            scale,
            batch: received.batch,
            body: received.body,
            headers: received.headers,
            place: Some(place),
            lender: Lender::Source(self.end.clone(), number),
            lease,
        };
        let mut delivery = Box::new(Delivery::new(loan, parcel, lane, stay, counters));
        delivery.set_fate(too_large(&delivery, &pool.plan()).unwrap_or(fate));
        Arrival {
            pool,
            delivery,
            routed,
        }
    }

    /// A broker that locks keys hands out nothing more of one while anything of it is out: pools
    /// that share a key wait for each other.
    fn warn_of_two_pools(&mut self, key: &Key, pool: &Arc<str>) {
        let one_pool = self.one_pool.as_mut();
        if let Some(other) = one_pool.and_then(|one_pool| one_pool.goes_to(key, pool)) {
            tracing::warn!(
                source = &*self.name,
                %key,
                "messages of one key go to the pools `{other}` and `{pool}`: the source hands out no more of a key before all of it is settled, so each of them waits for the other; send a key to one pool"
            );
        }
    }

    /// The lane of a message, and whose it is: the tenant that its source gave it, if any.
    fn lane(
        &self,
        scope: LaneScope,
        parcel: &Parcel,
        id: &BrokerId,
        given: Option<&Arc<str>>,
    ) -> LaneId {
        // One worker takes one message after the other.
        let key = parcel.key.as_ref();
        let key = key.filter(|_| self.plan.workers != Some(NonZeroUsize::MIN));
        if let Some(key) = key {
            // Not the publisher's tenant: a lane is of one, and he may name several for a key.
            let owner = self.owner(scope, given);
            return LaneId::key_of(owner, key.clone());
        }
        if self.plan.workers == Some(NonZeroUsize::MIN) || self.is_serial() {
            LaneId::keyless(self.owner(scope, None))
        } else {
            let owner = self.owner(scope, given.or(parcel.address.tenant.as_ref()));
            LaneId::alone(owner, id.clone())
        }
    }

    /// Whether keyless messages run in the order of their positions.
    fn is_serial(&self) -> bool {
        match self.plan.keyless {
            Some(keyless) => keyless == Keyless::Serial,
            None => self.features.keyless_serial,
        }
    }

    /// Whether the message runs in the order of positions: with those of its key, or with all
    /// keyless ones.
    fn is_ordered(&self, parcel: &Parcel) -> bool {
        parcel.key.is_some() || self.is_serial()
    }

    fn owner(&self, scope: LaneScope, tenant: Option<&Arc<str>>) -> Arc<Owner> {
        let nobody = match scope {
            LaneScope::Source => &self.owners[0],
            LaneScope::Pool => &self.owners[1],
        };
        match tenant {
            Some(tenant) => Owner::new(nobody.source().clone(), Some(tenant.clone())),
            None => nobody.clone(),
        }
    }

    fn counters_of(&mut self, pool: &Pool) -> Arc<Counters> {
        if let Some(counters) = self.counters.get(&pool.name) {
            return counters.clone();
        }
        let counters = self.router.counters.of(&self.name, &pool.name);
        counters.set_audited(self.scales.is_some());
        self.counters.insert(pool.name.clone(), counters.clone());
        counters
    }

    /// Puts messages into their lanes, in order. One that finds no room waits, with everything of its
    /// lane that is behind it, and is no obstacle to others. The source takes no more meanwhile.
    // `&mut self`, because a source need not be `Sync`.
    async fn put_all(&mut self, mut arrivals: VecDeque<Arrival>) {
        let room = self.router.shared.room.clone();
        let stop = self.stop.clone();
        let relief = self.relief.clone();
        let mut weighing: Vec<Weighing> = Vec::new();
        // For the first message that can use it: another one may stand behind that.
        let mut granted = None;
        loop {
            // Before the look: what makes room after it is noticed.
            let rung = room.notified();
            if stop.is_cancelled() {
                arrivals.into_iter().for_each(|one| give_back(one.delivery));
                break;
            }
            let mut look = Look::new(&self.router, &self.held, granted.take());
            let before = arrivals.len();
            let mut waiting = VecDeque::new();
            for arrival in arrivals {
                waiting.extend(self.put(arrival, &mut look));
            }
            arrivals = waiting;
            let Some(blocked) = look.blocked.take() else {
                break;
            };
            match arrivals.len() < before {
                true => self.stage.block(blocked),
                false => self.stage.block_on(blocked),
            }
            // Nobody could use it: others may ask for these bytes.
            look.granted = None;
            for (pool, bytes) in look.without_bytes {
                if !weighing.iter().any(|one| one.pool.name == pool.name) {
                    weighing.push(self.relief.weigh(pool, bytes));
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                weight = next_weight(&mut weighing) => granted = Some(weight),
                () = rung => {}
                () = relief.while_waiting() => {}
                () = tokio::time::sleep(POOL_GONE), if look.closed => {}
            }
        }
        self.stage.unblock();
    }

    /// Puts one message into its lane, or hands it back if there is no room.
    fn put(&self, mut arrival: Arrival, look: &mut Look) -> Option<Arrival> {
        if self.is_fed(&arrival) {
            arrival.delivery.counters.redelivered.one();
            arrival.delivery.settle(Settlement::Ack);
            return None;
        }
        let place = arrival.place();
        let waits = look.behind.contains(&place);
        if !waits && arrival.pool.has_given_back(&arrival.delivery) {
            // Not by its lane: it would wait there, and what comes again would follow it in turn.
            let Arrival { pool, delivery, .. } = arrival;
            pool.follow_back(delivery, &self.router.shared);
            return None;
        }
        if look.moves || arrival.routed != look.generation {
            self.route_again(&mut arrival);
            arrival.routed = look.generation;
        }
        if waits || look.behind.contains(&arrival.place()) {
            // Its followers may be on their way to either.
            look.behind.extend([place, arrival.place()]);
            // Those before it may wait for its bytes.
            arrival.delivery.weight = None;
            return Some(arrival);
        }
        if arrival.delivery.weight.is_none() {
            let bytes = arrival.delivery.bytes();
            match look.weigh(&arrival.pool, bytes) {
                Some(weight) => arrival.delivery.weight = Some(weight),
                None => {
                    let pool = arrival.pool.name.clone();
                    look.block(Blocked::Bytes(pool), [place, arrival.place()]);
                    return Some(arrival);
                }
            }
        }
        let Arrival {
            pool,
            delivery,
            routed,
        } = arrival;
        if let Some(lease) = &delivery.lease {
            lease.put(&pool, &delivery.lane);
        }
        let NotPut { delivery, closed } = self.push(&pool, delivery, look.one_lane).err()?;
        look.closed |= closed;
        let bytes = delivery.bytes();
        let blocked = Blocked::Lane(pool.name.clone(), delivery.lane.clone(), bytes);
        let arrival = Arrival {
            pool,
            delivery,
            routed,
        };
        look.block(blocked, [place, arrival.place()]);
        Some(arrival)
    }

    /// Whether this is a redelivery of a message that is fed from the store.
    fn is_fed(&self, arrival: &Arrival) -> bool {
        let Arrival { pool, delivery, .. } = arrival;
        let lane = || delivery.lane.name(&pool.name);
        let feeders = &self.router.feeders;
        self.router.store.parks_any() && feeders.has_fed(&lane(), &delivery.identity)
    }

    /// Puts a delivery into its lane, unless the lane is over and waits.
    fn push(
        &self,
        pool: &Arc<Pool>,
        delivery: Box<Delivery>,
        one_lane: bool,
    ) -> Result<(), NotPut> {
        let place = Place {
            pool: pool.name.clone(),
            lane: delivery.lane.clone(),
        };
        let spills = self.overflow(pool) == Overflow::Spill;
        let most = most_of(pool, &place.lane, self.plan.window, one_lane);
        let pushed = match pool.push(delivery, Some(most), !spills) {
            Ok(pushed) => pushed,
            Err(not_put) => {
                if !not_put.closed {
                    self.relief
                        .warn(&Arc::new(place), "it has as much as it may have");
                }
                return Err(not_put);
            }
        };
        if pushed.paused {
            self.held.lock().shares.hold(&place);
        }
        if spills {
            self.pushed(pool, &place, pushed.over);
        }
        Ok(())
    }

    /// What follows from a push where lanes spill: the lane may be over now, or be stored already.
    fn pushed(&self, pool: &Arc<Pool>, place: &Place, over: bool) {
        let why = match over {
            true => "it has as much as it may have",
            false => "what came before it is stored",
        };
        let store = &self.router.store;
        let stored = || store.parked_lane(&place.lane.name(&place.pool)).is_some();
        if over || store.parks_any() && stored() {
            pool.overflow(&place.lane, Over::Spill(why.to_owned()));
        }
    }

    /// Where a message goes may have changed since it was asked: its key may have something
    /// unresolved elsewhere by now, or nothing any more.
    fn route_again(&self, arrival: &mut Arrival) {
        let Arrival { pool, delivery, .. } = arrival;
        let (parcel, id) = (&delivery.parcel, &delivery.identity.id);
        let given = delivery.lane.tenant();
        let lane_of = |scope| self.lane(scope, parcel, id, given);
        let code = parcel.address.pool.as_ref();
        let Routed { pool: to, lane, .. } = self.router.routes.route(code, lane_of);
        let place = Place {
            pool: to.name.clone(),
            lane,
        };
        if *pool.name != *to.name || delivery.lane != place.lane {
            let place = self.held.move_to(&delivery.identity.id, place);
            delivery.set_place(place);
        }
        *pool = to;
    }

    fn overflow(&self, pool: &Pool) -> Overflow {
        self.router.shared.overflow(&pool.plan(), &self.name)
    }
}

/// A message on its way to its lane.
struct Arrival {
    pool: Arc<Pool>,
    delivery: Box<Delivery>,
    /// The table of routes that said where it goes.
    routed: u64,
}

impl Arrival {
    fn place(&self) -> Place {
        Place {
            pool: self.pool.name.clone(),
            lane: self.delivery.lane.clone(),
        }
    }
}

/// One look at all messages that are to be put into their lanes.
struct Look {
    /// Keys may have something unresolved in another pool than their messages name.
    moves: bool,
    /// The table of routes that is asked. Read first: a later change is found by the next look.
    generation: u64,
    /// All messages of the source are in one lane.
    one_lane: bool,
    /// Lanes that messages wait for, in the order in which they came.
    behind: HashSet<Place>,
    /// Pools whose bytes are used up, with the bytes of the message that is first to have some.
    without_bytes: Vec<(Arc<Pool>, u64)>,
    /// Bytes that were waited for.
    granted: Option<(Arc<Pool>, Weight)>,
    /// What the first of them waits for.
    blocked: Option<Blocked>,
    /// A pool takes no more: nobody tells of its successor.
    closed: bool,
}

impl Look {
    fn new<R: Clone>(router: &Inner, held: &Held<R>, granted: Option<(Arc<Pool>, Weight)>) -> Self {
        let generation = router.routes.generation();
        Self {
            moves: router.routes.moves(),
            generation,
            one_lane: held.lock().shares.is_one_lane(),
            behind: HashSet::new(),
            without_bytes: Vec::new(),
            granted,
            blocked: None,
            closed: false,
        }
    }

    /// Bytes for the next message of a pool, unless one before it waits for some.
    fn weigh(&mut self, pool: &Arc<Pool>, bytes: u64) -> Option<Weight> {
        let is_this = |other: &Arc<Pool>| Arc::ptr_eq(other, pool);
        if self.without_bytes.iter().any(|(other, _)| is_this(other)) {
            return None;
        }
        let granted = self.granted.take_if(|(other, _)| is_this(other));
        let granted = granted.map(|(_, weight)| weight);
        let weight = granted.filter(|weight| weight.bytes() == bytes);
        let weight = weight.or_else(|| pool.try_weigh(bytes));
        if weight.is_none() {
            self.without_bytes.push((pool.clone(), bytes));
        }
        weight
    }

    fn block(&mut self, why: Blocked, places: [Place; 2]) {
        self.blocked.get_or_insert(why);
        self.behind.extend(places);
    }
}

/// Waits for bytes of a pool's budget.
struct Weighing {
    pool: Arc<Pool>,
    weight: Pin<Box<dyn Future<Output = Weight> + Send>>,
}

/// The next of these that has its bytes; never, if there is none.
async fn next_weight(weighing: &mut Vec<Weighing>) -> (Arc<Pool>, Weight) {
    std::future::poll_fn(|cx| {
        for at in 0..weighing.len() {
            if let Poll::Ready(weight) = weighing[at].weight.as_mut().poll(cx) {
                return Poll::Ready((weighing.remove(at).pool, weight));
            }
        }
        Poll::Pending
    })
    .await
}

/// How much a lane may have for a source with this window to put one more message into it.
pub(crate) fn most_of(pool: &Pool, lane: &LaneId, window: NonZeroUsize, one_lane: bool) -> Most {
    let bytes = pool.plan().byte_budget / 4;
    match one_lane {
        // Nobody waits behind it for a place in the window.
        true => Most {
            messages: usize::MAX,
            part: usize::MAX,
            bytes,
        },
        false => Most {
            messages: pool.lane_capacity(lane),
            part: part_of(window),
            bytes,
        },
    }
}

/// Runs what may panic: a source's panic is its trouble, and it is read again.
async fn contained<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let poll = std::panic::AssertUnwindSafe(|| future.as_mut().poll(cx));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(text_of(&*panic))),
        }
    })
    .await
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a word".to_owned())
}

/// Receives a batch; answers also since when it is lent, at the earliest.
///
/// A process that was stopped may find messages that came long ago. So the source is looked at
/// also while it has nothing, and what it hands out counts from the look before the last: by the
/// last one it may have been on its way through the adapter.
async fn receive<S: Source>(
    source: &mut S,
    room: Room,
    terms: Option<&Terms>,
) -> Result<(Vec<Received<S::Receipt>>, Duration), SourceError> {
    let Some(terms) = terms else {
        return Ok((source.receive(room).await?, Duration::ZERO));
    };
    let mut receiving = std::pin::pin!(source.receive(room));
    let mut lent = terms.clock.now();
    loop {
        let looked = terms.clock.now();
        tokio::select! {
            biased;
            received = &mut receiving => return Ok((received?, lent)),
            () = tokio::time::sleep(terms.length / LOOKS) => lent = looked,
        }
    }
}

fn give_back(delivery: Box<Delivery>) {
    delivery.counters.returned.one();
    delivery.settle(Settlement::Return {
        delay: Duration::ZERO,
    });
}

fn too_large(delivery: &Delivery, plan: &PoolPlan) -> Option<Fate> {
    let size = delivery.body.len() as u64;
    (size > plan.max_message).then(|| {
        let most = plan.max_message;
        let text = format!("{size} bytes; max_message of its pool is {most}");
        Fate::dead_letter("too-large", text)
    })
}

/// The settling side of one source.
struct Settle<T: Settler> {
    name: Arc<str>,
    stage: Arc<Stage>,
    settler: T,
    held: Arc<Held<T::Receipt>>,
    /// Acks may be lost on their way: remember what was acked.
    remember: bool,
    /// The source is to receive nothing more,
    stop: CancellationToken,
    /// and the broker knows it.
    takes_no_more: CancellationToken,
    router: Arc<Inner>,
}

impl<T: Settler> Settle<T> {
    /// Settles until nothing is out and nothing more will be.
    async fn run(self, mut settlements: Settlements) {
        let mut waiting = Vec::new();
        let mut again = Again::default();
        let mut open = true;
        let (call, out) = (self.settler.batch(), || self.held.len());
        while open || !again.is_empty() {
            let due = again.due();
            let at = due.unwrap_or_else(Instant::now);
            let (batch, taken) = tokio::select! {
                biased;
                // Stopping for good: what is not settled by now comes again, and so does what is
                // behind it.
                () = self.router.give_up.cancelled(), if due.is_some() => {
                    again.give_up();
                    continue;
                }
                () = tokio::time::sleep_until(at), if due.is_some() => (again.take(at), true),
                more = settlements.next(&mut waiting, call, out), if open => {
                    open = more;
                    (whole_calls(&mut waiting, call), false)
                }
            };
            for mut run in runs(batch) {
                self.hold_back(&mut run, &mut again, taken);
                if !run.settled.is_empty() {
                    self.stage.settle(run.settled.len());
                    self.settle(run, &mut again).await;
                    self.stage.settled();
                }
            }
            if taken {
                again.tried(Instant::now());
            }
            self.stage.settle_again(again.len());
        }
    }

    /// What is behind a settlement of its lane that is to be tried again waits for that.
    fn hold_back(&self, run: &mut Run, again: &mut Again, taken: bool) {
        if again.has_lanes() {
            let settled = std::mem::take(&mut run.settled).into_iter();
            run.settled = settled
                .filter_map(|one| again.hold_back(self.held.place_of(&one.id), one, taken))
                .collect();
        }
    }

    /// Sees to a run of equal settlements; what fails is to be tried again, with what comes of its
    /// lane, and keeps no other lane waiting.
    async fn settle(&self, run: Run, again: &mut Again) {
        let Run {
            settlement,
            settled,
        } = run;
        if matches!(settlement, Settlement::Return { .. }) && self.stop.is_cancelled() {
            self.takes_no_more.cancelled().await;
        }
        let Receipts {
            sent,
            receipts,
            late,
        } = self.held.receipts(&settled);
        for at in late {
            // What lost its lease on the way here is not settled: it comes again.
            let one = &settled[at];
            self.late(one, "it ended before this could be settled");
            self.held.give_up(&one.id);
            self.held.forget([one]);
        }
        if sent.is_empty() {
            return;
        }
        fault::point("settle:before");
        let results = match &settlement {
            Settlement::Ack => self.settler.ack(receipts).await,
            Settlement::Return { delay } => self.settler.give_back(receipts, *delay).await,
            Settlement::Reject => self.settler.reject(receipts).await,
        };
        fault::point("settle:after");
        if self.remember && settlement == Settlement::Ack {
            let ids = sent.iter().map(|sent| &settled[sent.at].id);
            self.held.remember_acked(ids);
        }
        let failed = self.results(&settled, sent, results);
        let place = |one: &Settled<BrokerId>| self.held.place_of(&one.id);
        let failed: HashSet<usize> = failed.into_iter().collect();
        let settled = settled.into_iter().enumerate();
        let failed = settled.filter(|(at, _)| failed.contains(at));
        // The source knows of the others now: a crash repeats none of these.
        let failed = failed.filter_map(|(_, one)| Some((place(&one)?, one)));
        again.add(failed.collect(), self.router.shared.machine.random());
        if again.is_empty() {
            self.router.health.well(Trouble::Source(self.name.clone()));
        }
    }

    /// It is resolved as far as we go, and the source does not know.
    fn late(&self, one: &Settled<BrokerId>, text: &str) {
        let id = &one.id;
        tracing::warn!(source = &*self.name, %id, "a lease was lost: {text}");
        if let Some(entry) = self.held.lock().table.get(id) {
            entry.counters.late_settlements.one();
        }
        if one.settlement == Settlement::Ack {
            self.held.remember_acked([id]);
        }
    }

    /// Forgets what is settled (or no longer ours); returns what is to be tried again.
    fn results(
        &self,
        settled: &[Settled<BrokerId>],
        sent: Vec<Sent>,
        results: Vec<Result<(), SettleError>>,
    ) -> Vec<usize> {
        let mut again = Vec::new();
        let mut over = Vec::new();
        for (Sent { at, came }, result) in sent.into_iter().zip(results) {
            let one = &settled[at];
            if self.held.is_over(one) {
                continue;
            }
            let again_since = || self.held.came_since(one, came);
            match result {
                // The older loan went back, the newer one is still out.
                Ok(()) if one.settlement != Settlement::Ack && again_since() => again.push(at),
                Ok(()) => over.push(one),
                Err(SettleError::Again(text)) => {
                    let trouble = Trouble::Source(self.name.clone());
                    self.router.health.trouble(trouble, text);
                    again.push(at);
                }
                // It was received again meanwhile: that receipt is good.
                Err(SettleError::Lost(_)) if again_since() => again.push(at),
                Err(SettleError::Lost(text)) => {
                    self.late(one, &text);
                    over.push(one);
                }
            }
        }
        self.held.forget(over);
        again
    }
}

/// The oldest that fill whole calls, or all if they fill none: the rest goes with what comes next.
fn whole_calls<T>(waiting: &mut Vec<T>, call: NonZeroUsize) -> Vec<T> {
    let whole = waiting.len() - waiting.len() % call;
    let rest = match whole {
        0 => Vec::new(),
        whole => waiting.split_off(whole),
    };
    std::mem::replace(waiting, rest)
}

/// Neighbouring equal settlements.
struct Run {
    settlement: Settlement,
    settled: Vec<Settled<BrokerId>>,
}

/// Neighbouring equal settlements together; the order stays.
fn runs(batch: Vec<Settled<BrokerId>>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for settled in batch {
        if runs
            .last()
            .is_none_or(|run| run.settlement != settled.settlement)
        {
            runs.push(Run {
                settlement: settled.settlement.clone(),
                settled: Vec::new(),
            });
        }
        let run = runs.last_mut().expect("there is one now");
        run.settled.push(settled);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_filled_and_what_fills_none_goes_at_once() {
        let ten = NonZeroUsize::new(10).unwrap();
        let mut waiting: Vec<u32> = (0..23).collect();
        assert_eq!(whole_calls(&mut waiting, ten), (0..20).collect::<Vec<_>>());
        assert_eq!(waiting, [20, 21, 22]);
        assert_eq!(whole_calls(&mut waiting, ten), [20, 21, 22]);
        assert!(waiting.is_empty());
        waiting.extend(0..23);
        assert_eq!(whole_calls(&mut waiting, NonZeroUsize::MIN).len(), 23);
    }
}
