//! From a source to the lanes, and back: each message becomes a delivery, each settlement reaches
//! the source, in order and in batches.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Scale;
use crate::counters::Counters;
use crate::delivery::{Delivery, Fate, Lender, Loan, Settled, Settlement};
use crate::health::Trouble;
use crate::jitter;
use crate::lane::{LaneId, any_source};
use crate::lease::{Book, Lease, Lost, Terms};
use crate::message::{BrokerId, Message};
use crate::parse::{self, Malformed};
use crate::plan::{Keyless, LaneScope, Overflow, PoolPlan, SourcePlan};
use crate::pool::Pool;
use crate::renew::{Due, Leases, Renewals};
use crate::router::Inner;
use crate::source::{Features, Received, Room, SettleError, Settler, Source, SourceError};
use crate::unsettled::Counted;

/// The most settlements sent to a source at once.
const SETTLE_BATCH: usize = 1024;
/// How many acked ids are remembered, where acks may be lost.
const REMEMBERED: usize = 10_000;
/// Where little of the window is free, this long is waited for more.
const MOMENT: Duration = Duration::from_millis(2);
/// How often a source that lends for a time is looked at in the length of a lease.
const LOOKS: u32 = 8;
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);

/// A running consumer, as the router sees it.
pub(crate) struct Consumer {
    pub(crate) name: Arc<str>,
    pub(crate) plan: SourcePlan,
    pub(crate) features: Features,
    /// Of its positions, where it has some.
    pub(crate) scale: Option<Scale>,
    /// Receives nothing more.
    pub(crate) stop: CancellationToken,
    /// The receiving and the settling task.
    tasks: TaskTracker,
    held: Arc<dyn HeldIds>,
}

impl Consumer {
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
    let scale = features.positions.then(|| router.shared.audit.new_scale());
    let (to_settle, settlements) = mpsc::unbounded_channel();
    let held = Arc::new(Held::default());
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
    let settle = Settle {
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
            () = settle.run(settlements) => {}
            () = renew => {}
        }
    });
    let consume = Consume {
        name: name.clone(),
        settler: source.settler(),
        source,
        plan: plan.clone(),
        features: features.clone(),
        scale,
        terms,
        held: held.clone(),
        to_settle,
        router,
        stop: stop.clone(),
        counters: HashMap::new(),
        target: "".into(),
    };
    tasks.spawn(async move {
        let source = consume.run().await;
        // Everything that was received is settled before the connection goes.
        let _ = settled.await;
        source.close().await;
    });
    tasks.close();
    Arc::new(Consumer {
        name,
        plan,
        features,
        scale,
        stop,
        tasks,
        held,
    })
}

/// What is out: received and not settled, by the broker's own id.
struct Held<R> {
    table: Mutex<HashMap<BrokerId, Entry<R>>>,
    changed: Notify,
    /// Something is out, where nothing was; only told where leases are renewed.
    first: Notify,
    /// Acked lately, where an ack may be lost on its way without anybody knowing.
    acked: Mutex<Recent>,
}

/// The last few ids, oldest forgotten first.
#[derive(Default)]
struct Recent {
    order: VecDeque<BrokerId>,
    known: HashSet<BrokerId>,
}

impl Recent {
    fn add(&mut self, id: BrokerId) {
        if self.known.insert(id.clone()) {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// The ids of what is out, whatever the source's receipts are.
trait HeldIds: Send + Sync {
    fn add_held<'a>(&self, ids: &HashSet<&'a str>, to: &mut HashSet<&'a str>);
}

impl<R: Clone + Send> HeldIds for Held<R> {
    // Not by an index: what is out is no more than a window, and this is asked seldom.
    fn add_held<'a>(&self, ids: &HashSet<&'a str>, to: &mut HashSet<&'a str>) {
        let table = self.lock();
        to.extend(table.values().filter_map(|entry| ids.get(&*entry.message)));
    }
}

struct Entry<R> {
    /// The id in its body, which need not be the only one of its kind.
    message: Arc<str>,
    /// The newest one: a message that comes again while it is here is settled with that.
    receipt: R,
    /// How often it came: what was asked about an older receipt says nothing of the newest.
    came: u64,
    lease: Option<Arc<Lease>>,
    counters: Arc<Counters>,
}

impl<R> Default for Held<R> {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            changed: Notify::new(),
            first: Notify::new(),
            acked: Mutex::default(),
        }
    }
}

impl<R: Clone> Held<R> {
    fn lock(&self) -> MutexGuard<'_, HashMap<BrokerId, Entry<R>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
            let room = window.saturating_sub(self.lock().len());
            if room >= enough {
                return room;
            }
            changed.await;
        }
    }

    /// Notes the newest receipts of those messages that are here already, all at one moment:
    /// where the first of a lane is known, so is everything behind it. Answers which are.
    fn come_again(&self, batch: &[Received<R>], lent: Duration) -> Vec<bool> {
        let mut table = self.lock();
        let mut known = |received: &Received<R>| {
            let Some(entry) = table.get_mut(&received.identity.id) else {
                return false;
            };
            entry.receipt = received.receipt.clone();
            entry.came += 1;
            if let Some(lease) = &entry.lease {
                lease.begin(lent);
            }
            entry.counters.redelivered.one();
            true
        };
        batch.iter().map(&mut known).collect()
    }

    fn insert(&self, id: BrokerId, entry: Entry<R>) {
        let mut table = self.lock();
        let first = table.is_empty() && entry.lease.is_some();
        table.insert(id, entry);
        drop(table);
        if first {
            self.first.notify_one();
        }
    }

    /// Whether this was acked before: then it was delivered, and only the ack was lost.
    fn was_acked(&self, id: &BrokerId) -> bool {
        let acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        acked.known.contains(id)
    }

    fn remember_acked<'a>(&self, ids: impl IntoIterator<Item = &'a BrokerId>) {
        let mut acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            acked.add(id.clone());
        }
    }

    /// The receipts of those that may still be settled; what lost its lease is not among them.
    fn receipts(&self, ids: &[BrokerId]) -> Vec<(Sent, R)> {
        let table = self.lock();
        let known = ids.iter().filter_map(|id| {
            let entry = table.get(id)?;
            let holds = entry.lease.as_ref().is_none_or(|lease| lease.holds());
            let sent = Sent {
                id: id.clone(),
                came: entry.came,
            };
            holds.then(|| (sent, entry.receipt.clone()))
        });
        known.collect()
    }

    /// Whether it came again since this was sent.
    fn came_since(&self, sent: &Sent) -> bool {
        let table = self.lock();
        table
            .get(&sent.id)
            .is_some_and(|entry| entry.came > sent.came)
    }

    fn forget<'a>(&self, ids: impl IntoIterator<Item = &'a BrokerId>) {
        let mut table = self.lock();
        for id in ids {
            table.remove(id);
        }
        drop(table);
        self.changed.notify_waiters();
    }
}

/// A settlement on its way: whose, and which of its receipts went with it.
struct Sent {
    id: BrokerId,
    came: u64,
}

impl<R: Clone + Send> Book for Held<R> {
    fn forget_lost(&self, messages: &[Lost<'_>]) -> Vec<bool> {
        let mut table = self.lock();
        let mut forget = |lost: &Lost<'_>| {
            let lease = table.get(lost.id).and_then(|entry| entry.lease.as_ref());
            if lease.is_some_and(|lease| lease.holds()) {
                return false;
            }
            if lost.delivered {
                self.remember_acked([lost.id]);
            }
            table.remove(lost.id);
            true
        };
        let forgotten = messages.iter().map(&mut forget).collect();
        drop(table);
        self.changed.notify_waiters();
        forgotten
    }
}

impl<R: Clone + Send + Sync + 'static> Leases<R> for Held<R> {
    async fn some(&self) {
        loop {
            let first = self.first.notified();
            if !self.lock().is_empty() {
                return;
            }
            first.await;
        }
    }

    // Not by an index: what is out is no more than a window, and it is looked at a few times in
    // the length of a lease.
    fn look(&self, mut at: impl FnMut(&Arc<Lease>, &dyn Fn() -> Due<R>)) {
        for (id, entry) in &*self.lock() {
            let Some(lease) = &entry.lease else { continue };
            at(lease, &|| Due {
                id: id.clone(),
                came: entry.came,
                receipt: entry.receipt.clone(),
            });
        }
    }

    fn renewed(&self, due: &Due<R>, with: impl FnOnce(&Arc<Lease>)) {
        let table = self.lock();
        if let Some(entry) = table.get(&due.id)
            && entry.came == due.came
            && let Some(lease) = &entry.lease
        {
            with(lease);
        }
    }
}

/// The receiving side of one source.
struct Consume<S: Source> {
    name: Arc<str>,
    source: S,
    plan: SourcePlan,
    features: Features,
    scale: Option<Scale>,
    /// Where the source lends for a time.
    terms: Option<Arc<Terms>>,
    settler: S::Settler,
    held: Arc<Held<S::Receipt>>,
    to_settle: mpsc::UnboundedSender<Settled<BrokerId>>,
    router: Arc<Inner>,
    stop: CancellationToken,
    counters: HashMap<Arc<str>, Arc<Counters>>,
    /// The last message's: most have the same, and it is kept once for them.
    target: Arc<str>,
}

impl<S: Source> Consume<S> {
    /// Receives until told to stop; hands the source back.
    async fn run(mut self) -> S {
        let mut back_off = FIRST_BACK_OFF;
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            let messages = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                room = self.held.room(self.plan.window.get()) => room,
            };
            let room = Room {
                messages,
                bytes: self.router.receive_bytes,
            };
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                received = receive(&mut self.source, room, self.terms.as_deref()) => received,
            };
            match received {
                Ok((batch, lent)) => {
                    back_off = FIRST_BACK_OFF;
                    self.router.health.well(Trouble::Source(self.name.clone()));
                    let (batch, lent) = self.still_lent(batch, lent).await;
                    self.take_batch(batch, lent).await;
                }
                Err(error) => {
                    let trouble = Trouble::Source(self.name.clone());
                    self.router.health.trouble(trouble, error.to_string());
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = tokio::time::sleep(jitter::between(back_off, 0.5, 1.0)) => {}
                    }
                    back_off = (back_off * 2).min(LONGEST_BACK_OFF);
                }
            }
        }
        self.source
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
            let back = batch.split_off(ours).into_iter().zip(&results[ours..]);
            let back = back.filter(|(_, result)| result.is_ok());
            let back = back.map(|(received, _)| received.receipt).collect();
            // What does not go back now does so when its lease ends.
            let _ = self.settler.give_back(back, Duration::ZERO).await;
        }
        (batch, began)
    }

    /// Puts a batch into its lanes, in order. What has no room goes back, with everything of its
    /// lane that comes behind it.
    async fn take_batch(&mut self, batch: Vec<Received<S::Receipt>>, lent: Duration) {
        let mut refused = HashSet::new();
        let known = self.held.come_again(&batch, lent);
        for (received, known) in batch.into_iter().zip(known) {
            // A batch may have the same message twice.
            if known || self.held.come_again(std::slice::from_ref(&received), lent)[0] {
                continue;
            }
            let acked = self.held.was_acked(&received.identity.id);
            let (pool, delivery) = self.delivery(received, lent);
            if acked {
                delivery.counters.redelivered.one();
                delivery.settle(Settlement::Ack);
                continue;
            }
            delivery.counters.received.one();
            self.put(pool, delivery, &mut refused).await;
        }
    }

    /// A received message as a delivery, and the pool it goes to.
    fn delivery(
        &mut self,
        received: Received<S::Receipt>,
        lent: Duration,
    ) -> (Arc<Pool>, Box<Delivery>) {
        let parsed = parse::parse(&self.plan.envelope, &received);
        let (mut message, fate) = match parsed {
            Ok(message) => (message, Fate::Attempt),
            Err(malformed) => (stand_in(&received), malformed_fate(malformed)),
        };
        if message.target == self.target {
            message.target = self.target.clone();
        } else {
            self.target = message.target.clone();
        }
        let key = message.key.clone();
        let lane_of = |scope| self.lane(scope, key.as_ref(), &received.identity.id);
        let code = message.pool.as_ref();
        let (pool, lane) = self
            .router
            .routes
            .route(code, lane_of, &self.router.counters);
        let counters = self.counters_of(&pool);
        let receipt = received.receipt.clone();
        let terms = self.terms.clone();
        let lease = terms.map(|terms| Lease::new(terms, lent));
        let entry = Entry {
            message: message.id.clone(),
            receipt,
            came: 0,
            lease: lease.clone(),
            counters: counters.clone(),
        };
        self.held.insert(received.identity.id.clone(), entry);
        let stay = self.router.store.stay(&received.identity);
        let loan = Loan {
            identity: received.identity,
            position: received.position,
            scale: self.scale,
            batch: received.batch,
            body: received.body,
            headers: received.headers,
            lender: Lender::Source(self.to_settle.clone()),
            lease,
        };
        let mut delivery = Box::new(Delivery::new(loan, message, lane, stay, counters));
        delivery.origin = self.router.dispatch.origin_of(&delivery.message);
        delivery.fate = too_large(&delivery, &pool.plan()).unwrap_or(fate);
        (pool, delivery)
    }

    fn lane(&self, scope: LaneScope, key: Option<&crate::message::Key>, id: &BrokerId) -> LaneId {
        let source = match scope {
            LaneScope::Source => self.name.clone(),
            LaneScope::Pool => any_source(),
        };
        if let Some(key) = key {
            return LaneId::Key {
                source,
                key: key.clone(),
            };
        }
        let serial = match self.plan.keyless {
            Some(keyless) => keyless == Keyless::Serial,
            None => self.features.keyless_serial,
        };
        if serial {
            LaneId::Keyless { source }
        } else {
            LaneId::Alone {
                source,
                id: id.clone(),
            }
        }
    }

    fn counters_of(&mut self, pool: &Pool) -> Arc<Counters> {
        if let Some(counters) = self.counters.get(&pool.name) {
            return counters.clone();
        }
        let counters = self.router.counters.of(&self.name, &pool.name);
        counters.set_audited(self.scale.is_some());
        self.counters.insert(pool.name.clone(), counters.clone());
        counters
    }

    // `&mut self`, because a source need not be `Sync`.
    async fn put(
        &mut self,
        mut pool: Arc<Pool>,
        mut delivery: Box<Delivery>,
        refused: &mut HashSet<(Arc<str>, LaneId)>,
    ) {
        let place = (pool.name.clone(), delivery.lane.clone());
        if refused.contains(&place) {
            return give_back(delivery);
        }
        let held = self.held.clone();
        loop {
            let changed = held.changed.notified();
            if let Some(lease) = &delivery.lease {
                lease.put(&pool, &delivery.lane);
            }
            delivery = match pool.push(delivery.lane.clone(), delivery) {
                Ok(()) => return,
                Err(delivery) => delivery,
            };
            if self.stop.is_cancelled() || self.overflow(&pool) == Overflow::Return {
                refused.insert(place);
                return give_back(delivery);
            }
            // The source takes no more until there is room in this lane.
            tokio::select! {
                () = changed => {}
                () = self.stop.cancelled() => {}
            }
            pool = self.again(&pool, &mut delivery);
        }
    }

    /// The pool may have been drained meanwhile: then the message follows the new way.
    fn again(&self, pool: &Arc<Pool>, delivery: &mut Delivery) -> Arc<Pool> {
        if pool.has(&delivery.lane) {
            return pool.clone();
        }
        let key = delivery.message.key.clone();
        let id = delivery.identity.id.clone();
        let lane_of = |scope| self.lane(scope, key.as_ref(), &id);
        let code = delivery.message.pool.as_ref();
        let (pool, lane) = self
            .router
            .routes
            .route(code, lane_of, &self.router.counters);
        delivery.lane = lane;
        pool
    }

    fn overflow(&self, pool: &Pool) -> Overflow {
        let default = if self.features.ordered_return && self.features.delayed_return {
            Overflow::Return
        } else {
            Overflow::Wait
        };
        pool.plan().overflow.unwrap_or(default)
    }
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

fn malformed_fate(malformed: Malformed) -> Fate {
    Fate::DeadLetter {
        reason: "malformed",
        text: malformed.text,
    }
}

fn too_large(delivery: &Delivery, plan: &PoolPlan) -> Option<Fate> {
    let size = delivery.body.len() as u64;
    (size > plan.max_message).then(|| Fate::DeadLetter {
        reason: "too-large",
        text: format!(
            "{size} bytes; max_message of its pool is {}",
            plan.max_message
        ),
    })
}

/// What stands for a message whose body is none, so that it takes its place in its lane.
fn stand_in<R>(received: &Received<R>) -> Message {
    Message {
        id: received.identity.id.to_string().into(),
        key: received.key.clone(),
        pool: None,
        target: "".into(),
        mediation_type: "".into(),
        auth_token: None,
        tenant: None,
        payload: received.body.clone(),
        content_type: "".into(),
        headers: Vec::new(),
    }
}

/// The settling side of one source.
struct Settle<T: Settler> {
    name: Arc<str>,
    settler: T,
    held: Arc<Held<T::Receipt>>,
    /// Acks may be lost on their way: remember what was acked.
    remember: bool,
    router: Arc<Inner>,
}

impl<T: Settler> Settle<T> {
    /// Settles until nothing is out and nothing more will be.
    async fn run(self, mut settlements: mpsc::UnboundedReceiver<Settled<BrokerId>>) {
        let mut batch = Vec::new();
        while settlements.recv_many(&mut batch, SETTLE_BATCH).await > 0 {
            for run in runs(&mut batch) {
                self.settle(&run.settlement, run.ids).await;
                // Durable now: a crash repeats none of these.
                drop(run.counted);
            }
        }
    }

    /// Sees a run of equal settlements through, so that the next one comes after it.
    async fn settle(&self, settlement: &Settlement, mut ids: Vec<BrokerId>) {
        let mut back_off = FIRST_BACK_OFF;
        loop {
            let (sent, receipts): (Vec<_>, Vec<_>) = self.held.receipts(&ids).into_iter().unzip();
            self.too_late(settlement, &ids, &sent);
            let results = match settlement {
                Settlement::Ack => self.settler.ack(receipts).await,
                Settlement::Return { delay } => self.settler.give_back(receipts, *delay).await,
            };
            if self.remember && *settlement == Settlement::Ack {
                self.held.remember_acked(sent.iter().map(|sent| &sent.id));
            }
            ids = self.results(settlement, sent, results);
            if ids.is_empty() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(jitter::between(back_off, 0.5, 1.0)) => {}
                // Stopping for good: what is not settled by now comes again.
                () = self.router.give_up.cancelled() => return,
            }
            back_off = (back_off * 2).min(LONGEST_BACK_OFF);
        }
    }

    /// What lost its lease on the way here is not settled: it comes again.
    fn too_late(&self, settlement: &Settlement, ids: &[BrokerId], sent: &[Sent]) {
        if sent.len() == ids.len() {
            return;
        }
        let sent: HashSet<&BrokerId> = sent.iter().map(|sent| &sent.id).collect();
        let late = ids.iter().filter(|id| !sent.contains(id));
        for id in late {
            self.late(settlement, id, "it ended before this could be settled");
            self.held.forget([id]);
        }
    }

    /// It is resolved as far as we go, and the source does not know.
    fn late(&self, settlement: &Settlement, id: &BrokerId, text: &str) {
        tracing::warn!(source = &*self.name, %id, "a lease was lost: {text}");
        if let Some(entry) = self.held.lock().get(id) {
            entry.counters.late_settlements.one();
        }
        if *settlement == Settlement::Ack {
            self.held.remember_acked([id]);
        }
    }

    /// Forgets what is settled (or no longer ours); answers what is to be tried again.
    fn results(
        &self,
        settlement: &Settlement,
        sent: Vec<Sent>,
        results: Vec<Result<(), SettleError>>,
    ) -> Vec<BrokerId> {
        let mut again = Vec::new();
        let mut over = Vec::new();
        let trouble = Trouble::Source(self.name.clone());
        for (sent, result) in sent.into_iter().zip(results) {
            match result {
                // The older loan went back, the newer one is still out.
                Ok(()) if *settlement != Settlement::Ack && self.held.came_since(&sent) => {
                    again.push(sent.id);
                }
                Ok(()) => over.push(sent.id),
                Err(SettleError::Again(text)) => {
                    self.router.health.trouble(trouble.clone(), text);
                    again.push(sent.id);
                }
                // It was received again meanwhile: that receipt is good.
                Err(SettleError::Lost(_)) if self.held.came_since(&sent) => again.push(sent.id),
                Err(SettleError::Lost(text)) => {
                    self.late(settlement, &sent.id, &text);
                    over.push(sent.id);
                }
            }
        }
        if again.is_empty() && !over.is_empty() {
            self.router.health.well(trouble);
        }
        self.held.forget(&over);
        again
    }
}

/// Neighbouring equal settlements.
struct Run {
    settlement: Settlement,
    ids: Vec<BrokerId>,
    counted: Vec<Counted>,
}

/// Neighbouring equal settlements together; the order stays.
fn runs(batch: &mut Vec<Settled<BrokerId>>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for settled in batch.drain(..) {
        if runs
            .last()
            .is_none_or(|run| run.settlement != settled.settlement)
        {
            runs.push(Run {
                settlement: settled.settlement,
                ids: Vec::new(),
                counted: Vec::new(),
            });
        }
        let run = runs.last_mut().expect("there is one now");
        run.ids.push(settled.id);
        run.counted.extend(settled.counted);
    }
    runs
}
