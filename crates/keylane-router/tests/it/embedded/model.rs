//! Random histories of publish, receive, settle, restart and of pool codes that change their meaning,
//! against a naive model: a list of messages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use keylane_router::embedded::{Db, EmbeddedSource, NewMessage, Options, Receipt};
use keylane_router::message::Key;
use keylane_router::plan::Keyless;
use keylane_router::source::{Lanes, PoolCodes, Received, Room, Settler, Source};
use keylane_router::store::{DeadLetter, LaneName, Store, Stored};
use proptest::prelude::*;

use super::clock::TestClock;

#[derive(Clone, Debug)]
enum Op {
    /// Keys (0 is keyless), each with a delay in seconds and a pool code (0 is none).
    Publish(Vec<(u8, u8, u8)>),
    /// Which pools the codes mean from now on, and the capacity of a lane.
    Remap([u8; 3], u8),
    Receive(u8, u8),
    /// The future is dropped after its first poll.
    ReceiveAndForget(u8),
    /// The oldest so many of what is out of each lane.
    Ack(u8),
    /// A random one of what is out.
    AckOne(u8),
    /// Everything out of a random one's lane, youngest first, with a delay.
    GiveBack(u8, u8),
    DeadLetter(u8),
    Advance(u8),
    Restart,
    /// Takes what a crash would leave on disk, and goes on with that.
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let delay = prop_oneof![4 => Just(0_u8), 1 => 1..20_u8];
    prop_oneof![
        8 => prop::collection::vec((0..6_u8, delay, 0..4_u8), 1..12).prop_map(Op::Publish),
        2 => (any::<[u8; 3]>(), 1..6_u8).prop_map(|(pools, most)| Op::Remap(pools.map(|pool| pool % 3), most)),
        8 => (1..12_u8, prop_oneof![3 => Just(255_u8), 1 => 1..30_u8]).prop_map(|(n, bytes)| Op::Receive(n, bytes)),
        2 => (1..12_u8).prop_map(Op::ReceiveAndForget),
        6 => (1..6_u8).prop_map(Op::Ack),
        2 => any::<u8>().prop_map(Op::AckOne),
        3 => (any::<u8>(), prop_oneof![Just(0_u8), 1..10_u8]).prop_map(|(at, delay)| Op::GiveBack(at, delay)),
        1 => any::<u8>().prop_map(Op::DeadLetter),
        3 => (1..15_u8).prop_map(Op::Advance),
        1 => Just(Op::Restart),
        1 => Just(Op::Crash),
    ]
}

/// Keyless with `parallel` is a lane of its own for each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Lane {
    /// A pool and a key.
    Key(u8, u8),
    One(u32),
}

/// A message that is in the queue.
#[derive(Debug)]
struct Message {
    key: u8,
    code: u8,
    due: Duration,
    /// Under which meaning of the codes it is out, if it is.
    out: Option<u32>,
}

/// What the router would say of its lanes.
struct TestLanes {
    codes: Mutex<Arc<PoolCodes>>,
    capacity: AtomicUsize,
}

impl Lanes for TestLanes {
    fn codes(&self) -> Arc<PoolCodes> {
        self.codes.lock().unwrap().clone()
    }

    fn capacity(&self, pool: &str, _: Option<&Key>) -> usize {
        assert!(["p0", "p1", "p2"].contains(&pool), "{pool}");
        self.capacity.load(Ordering::Relaxed)
    }
}

fn codes_of(pools: [u8; 3]) -> PoolCodes {
    let named = (1..4).zip(pools);
    let named = named.map(|(code, pool)| (format!("c{code}").into(), format!("p{pool}").into()));
    PoolCodes::new(named, "p0")
}

/// One run of a history.
struct World {
    folder: tempfile::TempDir,
    clock: std::sync::Arc<TestClock>,
    now: Duration,
    db: Option<Db>,
    source: Option<EmbeddedSource>,
    keyless: Keyless,
    tiny: bool,
    lanes: Arc<TestLanes>,
    /// Which pools the codes mean, how often that changed, and whether the queue knows.
    pools: [u8; 3],
    meaning: u32,
    told: bool,
    queued: BTreeMap<u32, Message>,
    /// Until when lanes, and whole keys, are held.
    lane_holds: HashMap<Lane, Duration>,
    key_holds: HashMap<u8, Duration>,
    received: Vec<(u32, Received<Receipt>)>,
    next: u32,
    letters: usize,
    seqs: HashSet<u64>,
    resolved: HashSet<u32>,
}

impl World {
    async fn new(keyless: Keyless, tiny: bool) -> Self {
        let mut world = Self {
            folder: tempfile::tempdir().expect("a temp folder"),
            clock: std::sync::Arc::new(TestClock::new()),
            now: Duration::ZERO,
            db: None,
            source: None,
            keyless,
            tiny,
            lanes: Arc::new(TestLanes {
                codes: Mutex::new(Arc::new(codes_of([0; 3]))),
                capacity: AtomicUsize::new(1000),
            }),
            pools: [0; 3],
            meaning: 0,
            told: true,
            queued: BTreeMap::new(),
            lane_holds: HashMap::new(),
            key_holds: HashMap::new(),
            received: Vec::new(),
            next: 0,
            letters: 0,
            seqs: HashSet::new(),
            resolved: HashSet::new(),
        };
        world.open().await;
        world
    }

    async fn open(&mut self) {
        let options = Options {
            machine: self.clock.clone(),
            tiny_memory: self.tiny,
            // Accepted messages survive a crash of the process all the same, and it is faster.
            risk_losing_accepted_messages_on_power_loss: true,
            ..Options::default()
        };
        let db = Db::open_standby(self.folder.path(), options)
            .await
            .expect("opens");
        self.source = Some(db.source("s", "q", self.keyless).await.expect("a source"));
        self.db = Some(db);
    }

    fn source(&mut self) -> &mut EmbeddedSource {
        self.source.as_mut().expect("open")
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Publish(keys) => self.publish(keys).await,
            Op::Remap(pools, capacity) => {
                self.lanes
                    .capacity
                    .store(capacity.into(), Ordering::Relaxed);
                *self.lanes.codes.lock().unwrap() = Arc::new(codes_of(pools));
                self.pools = pools;
                self.told = false;
            }
            Op::Receive(room, bytes) => self.receive(room, bytes).await,
            Op::ReceiveAndForget(room) => self.receive_and_forget(room).await,
            Op::Ack(n) => self.ack_oldest(n).await,
            Op::AckOne(at) => self.ack_one(at).await,
            Op::GiveBack(at, delay) => self.give_back(at, delay).await,
            Op::DeadLetter(at) => self.dead_letter(at).await,
            Op::Advance(seconds) => {
                let by = Duration::from_secs(seconds.into());
                self.now += by;
                self.clock.advance(by);
            }
            Op::Restart => {
                self.source = None;
                self.db = None;
                self.forget_claims();
                self.open().await;
            }
            Op::Crash => self.crash().await,
        }
    }

    async fn publish(&mut self, keys: Vec<(u8, u8, u8)>) {
        let mut request = Vec::new();
        for (key, delay, code) in keys {
            let n = self.next;
            self.next += 1;
            let delay = Duration::from_secs(delay.into());
            request.push(NewMessage {
                delay,
                pool: (code > 0).then(|| format!("c{code}").into()),
                ..NewMessage::new(
                    n.to_string(),
                    (key > 0).then(|| Key::new([key])),
                    n.to_string(),
                )
            });
            let due = if delay.is_zero() {
                Duration::ZERO
            } else {
                self.now + delay
            };
            let message = Message {
                key,
                code,
                due,
                out: None,
            };
            self.queued.insert(n, message);
        }
        let db = self.db.as_ref().expect("open");
        db.publish("q", request, true).await.expect("published");
    }

    fn lane(&self, n: u32) -> Lane {
        let message = &self.queued[&n];
        match (message.key, self.keyless) {
            (0, Keyless::Parallel) => Lane::One(n),
            _ => {
                let pool = message.code.checked_sub(1);
                let pool = pool.map_or(0, |code| self.pools[usize::from(code)]);
                Lane::Key(pool, message.key)
            }
        }
    }

    /// The queue learns of other codes with its next claim. What is out then may be of any lane of
    /// its key from then on, and so may holds.
    fn learn(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        self.meaning += 1;
        for (lane, until) in std::mem::take(&mut self.lane_holds) {
            match lane {
                Lane::One(_) => drop(self.lane_holds.insert(lane, until)),
                Lane::Key(_, key) => {
                    let hold = self.key_holds.entry(key).or_default();
                    *hold = until.max(*hold);
                }
            }
        }
    }

    /// The first message of each lane that may be handed out now.
    fn claimable(&self) -> BTreeMap<Lane, u32> {
        let mut locked = BTreeSet::new();
        let mut keys = HashSet::new();
        let mut first = BTreeMap::new();
        for (n, message) in &self.queued {
            let lane = self.lane(*n);
            match message.out {
                Some(meaning) if meaning < self.meaning && !matches!(lane, Lane::One(_)) => {
                    keys.insert(message.key);
                }
                Some(_) => drop(locked.insert(lane)),
                None => drop(first.entry(lane).or_insert(*n)),
            }
        }
        first.retain(|lane, n| {
            let message = &self.queued[n];
            let held = self.lane_holds.get(lane).copied().unwrap_or_default();
            let key_held = match lane {
                Lane::One(_) => Duration::ZERO,
                Lane::Key(_, key) => self.key_holds.get(key).copied().unwrap_or_default(),
            };
            let free = !locked.contains(lane)
                && (matches!(lane, Lane::One(_)) || !keys.contains(&message.key));
            free && held.max(key_held).max(message.due) <= self.now
        });
        first
    }

    fn room(&self, messages: u8, bytes: usize) -> Room {
        Room {
            lanes: Some(self.lanes.clone()),
            ..Room::new(messages.into(), bytes)
        }
    }

    async fn receive(&mut self, room: u8, bytes: u8) {
        self.learn();
        if self.claimable().is_empty() {
            return;
        }
        let bytes = if bytes == 255 { 1 << 20 } else { bytes.into() };
        let asked = self.room(room, bytes);
        let receiving = tokio::time::timeout(Duration::from_secs(20), self.source().receive(asked));
        let received = receiving.await.expect("something may be handed out");
        let received = received.expect("receives");
        assert!(!received.is_empty() && received.len() <= room.into());
        let body = |message: &Received<Receipt>| message.body.len();
        let longest = received.iter().map(body).max().unwrap_or(0);
        let sum: usize = received.iter().map(body).sum();
        assert!(sum < bytes + longest * received.len().max(1));
        self.check(received);
    }

    /// What was received of a lane is what comes first in it, no more than its capacity, and nothing
    /// of it was out.
    fn check(&mut self, received: Vec<Received<Receipt>>) {
        let now = self.now;
        let batch = received[0].batch;
        let ready = self.claimable();
        let mut counts: BTreeMap<Lane, usize> = BTreeMap::new();
        for message in received {
            assert_eq!(message.batch, batch);
            let n: u32 = String::from_utf8_lossy(&message.body)
                .parse()
                .expect("a number");
            let lane = self.lane(n);
            assert!(
                ready.contains_key(&lane),
                "{lane:?} was locked, held or empty: {n}, {:?} at {now:?}",
                self.queued
            );
            let next = self
                .queued
                .iter()
                .find(|(n, message)| message.out.is_none() && self.lane(**n) == lane);
            let (first, due) = next
                .map(|(n, message)| (*n, message.due))
                .expect("one waits");
            assert_eq!(n, first, "{lane:?} out of order");
            assert!(due <= now, "{n} is not due");
            let count = counts.entry(lane).or_default();
            *count += 1;
            let capacity = self.lanes.capacity.load(Ordering::Relaxed);
            assert!(*count <= capacity, "{lane:?} has more than {capacity}");
            let meaning = self.meaning;
            self.queued.get_mut(&n).expect("it was there").out = Some(meaning);
            self.seqs.insert(message.position.expect("a position"));
            self.received.push((n, message));
        }
    }

    async fn receive_and_forget(&mut self, room: u8) {
        let room = self.room(room, 1 << 20);
        let polled = {
            let mut receive = std::pin::pin!(self.source().receive(room));
            std::future::poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx))).await
        };
        if let Poll::Ready(received) = polled {
            self.learn();
            self.check(received.expect("receives"));
        }
    }

    async fn ack_oldest(&mut self, n: u8) {
        let mut acked = Vec::new();
        let mut counts: BTreeMap<Lane, u8> = BTreeMap::new();
        let all = std::mem::take(&mut self.received);
        for (number, message) in all {
            let count = counts.entry(self.lane(number)).or_default();
            *count += 1;
            match *count <= n {
                true => acked.push((number, message)),
                false => self.received.push((number, message)),
            }
        }
        self.ack(acked).await;
    }

    async fn ack_one(&mut self, at: u8) {
        if !self.received.is_empty() {
            let one = self.received.remove(at as usize % self.received.len());
            self.ack(vec![one]).await;
        }
    }

    async fn ack(&mut self, acked: Vec<(u32, Received<Receipt>)>) {
        let settler = self.source().settler();
        let receipts: Vec<_> = acked.iter().map(|(_, message)| message.receipt).collect();
        for result in settler.ack(receipts.clone()).await {
            result.expect("acked");
        }
        for (n, _) in &acked {
            self.resolve(*n);
        }
        for result in settler.ack(receipts).await {
            result.expect_err("a settled receipt settles nothing");
        }
    }

    fn resolve(&mut self, n: u32) {
        self.queued.remove(&n).expect("it was there");
        assert!(self.resolved.insert(n), "{n} resolved twice");
    }

    async fn give_back(&mut self, at: u8, delay: u8) {
        if self.received.is_empty() {
            return;
        }
        let name = self.lane(self.received[at as usize % self.received.len()].0);
        let all = std::mem::take(&mut self.received);
        let (mut back, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(n, _)| self.lane(*n) == name);
        self.received = kept;
        back.reverse();
        let delay = Duration::from_secs(delay.into());
        let receipts = back.iter().map(|(_, message)| message.receipt).collect();
        for result in self.source().settler().give_back(receipts, delay).await {
            result.expect("given back");
        }
        for (n, _) in back {
            let message = self.queued.get_mut(&n).expect("it was there");
            let old = message.out.take() < Some(self.meaning);
            let (until, key) = (self.now + delay, message.key);
            let hold = match (old, self.lane(n)) {
                // It was out under other names.
                (true, Lane::Key(..)) => self.key_holds.entry(key).or_default(),
                (_, lane) => self.lane_holds.entry(lane).or_default(),
            };
            *hold = until.max(*hold);
        }
    }

    async fn dead_letter(&mut self, at: u8) {
        if self.received.is_empty() {
            return;
        }
        let (n, message) = self.received.remove(at as usize % self.received.len());
        let letter = DeadLetter {
            number: 0,
            message: Stored {
                identity: message.identity.clone(),
                lane: LaneName {
                    source: "s".into(),
                    pool: "default".into(),
                    key: message.key.clone(),
                    alone: None,
                },
                body: message.body.clone(),
                headers: Vec::new(),
                position: message.position,
            },
            reason: "refused".into(),
            text: String::new(),
            at: std::time::SystemTime::now(),
            attempts: Vec::new(),
        };
        let store = self.db.as_ref().expect("open").store();
        store.dead_letter(vec![letter]).await.expect("stored");
        self.letters += 1;
        let settled = self.source().settler().ack(vec![message.receipt]).await;
        assert_eq!(settled, vec![Ok(())]);
        self.resolve(n);
    }

    /// Copies the files under the running database, as a crash would leave them.
    async fn crash(&mut self) {
        let next = tempfile::tempdir().expect("a temp folder");
        for file in ["keylane.db", "keylane.db-wal"] {
            let _ = std::fs::copy(self.folder.path().join(file), next.path().join(file));
        }
        self.source = None;
        self.db = None;
        self.folder = next;
        self.forget_claims();
        self.open().await;
    }

    fn forget_claims(&mut self) {
        self.received.clear();
        self.lane_holds.clear();
        self.key_holds.clear();
        self.told = true;
        for message in self.queued.values_mut() {
            message.out = None;
        }
    }

    /// Everything comes, in order, and then nothing is left.
    async fn drain(&mut self) {
        self.ack_oldest(u8::MAX).await;
        self.step(Op::Advance(60)).await;
        while !self.queued.is_empty() {
            self.receive(7, 255).await;
            self.ack_oldest(u8::MAX).await;
        }
        assert_eq!(self.resolved.len(), self.next as usize, "lost or invented");
        let db = self.db.as_ref().expect("open");
        let queue = &db.queues()[0];
        assert_eq!((queue.depth, queue.out, queue.lanes), (0, 0, 0));
        let letters = db.store().dead_letter_count().await.expect("counted");
        assert_eq!(letters, self.letters as u64);
    }
}

fn run(ops: Vec<Op>, keyless: Keyless, tiny: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut world = World::new(keyless, tiny).await;
        for op in ops {
            world.step(op).await;
        }
        world.drain().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn every_lane_comes_in_order_and_nothing_is_lost(
        ops in prop::collection::vec(op(), 1..60), parallel in any::<bool>(), tiny in any::<bool>()
    ) {
        let keyless = if parallel { Keyless::Parallel } else { Keyless::Serial };
        run(ops, keyless, tiny);
    }
}
