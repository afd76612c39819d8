//! Random histories of publish, receive, settle and restart against a naive model: a list per lane.

use std::collections::{BTreeMap, HashSet};
use std::task::Poll;
use std::time::Duration;

use keylane_router::embedded::{Db, EmbeddedSource, NewMessage, Options, Receipt};
use keylane_router::message::Key;
use keylane_router::plan::Keyless;
use keylane_router::source::{Received, Room, Settler, Source};
use keylane_router::store::{DeadLetter, LaneName, Store, Stored};
use proptest::prelude::*;

use super::clock::TestClock;

#[derive(Clone, Debug)]
enum Op {
    /// Keys (0 is keyless), each with a delay in seconds.
    Publish(Vec<(u8, u8)>),
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
        8 => prop::collection::vec((0..6_u8, delay), 1..12).prop_map(Op::Publish),
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Key(u8),
    One(u32),
}

#[derive(Debug, Default)]
struct LaneModel {
    /// What is in the queue, oldest first: number and due time.
    queued: Vec<(u32, Duration)>,
    /// Those of them that are out.
    out: Vec<u32>,
    hold: Duration,
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
    lanes: BTreeMap<Lane, LaneModel>,
    received: Vec<(Lane, u32, Received<Receipt>)>,
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
            lanes: BTreeMap::new(),
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

    async fn publish(&mut self, keys: Vec<(u8, u8)>) {
        let mut request = Vec::new();
        for (key, delay) in keys {
            let n = self.next;
            self.next += 1;
            let delay = Duration::from_secs(delay.into());
            request.push(NewMessage {
                delay,
                ..NewMessage::new(
                    n.to_string(),
                    (key > 0).then(|| Key::new([key])),
                    n.to_string(),
                )
            });
            let lane = match (key, self.keyless) {
                (0, Keyless::Parallel) => Lane::One(n),
                _ => Lane::Key(key),
            };
            let due = if delay.is_zero() {
                Duration::ZERO
            } else {
                self.now + delay
            };
            self.lanes.entry(lane).or_default().queued.push((n, due));
        }
        let db = self.db.as_ref().expect("open");
        db.publish("q", request, true).await.expect("published");
    }

    fn claimable(&self, lane: &LaneModel) -> bool {
        let due = |(_, due): &(u32, Duration)| *due <= self.now;
        lane.out.is_empty() && lane.hold <= self.now && lane.queued.first().is_some_and(due)
    }

    async fn receive(&mut self, room: u8, bytes: u8) {
        if !self.lanes.values().any(|lane| self.claimable(lane)) {
            return;
        }
        let room = Room {
            messages: room.into(),
            bytes: if bytes == 255 { 1 << 20 } else { bytes.into() },
        };
        let received = self.source().receive(room).await.expect("receives");
        assert!(!received.is_empty() && received.len() <= room.messages);
        let body = |message: &Received<Receipt>| message.body.len();
        let longest = received.iter().map(body).max().unwrap_or(0);
        let bytes: usize = received.iter().map(body).sum();
        assert!(bytes < room.bytes + longest * received.len().max(1));
        self.check(received);
    }

    /// What was received of a lane is what comes first in it, and nothing of it was out.
    fn check(&mut self, received: Vec<Received<Receipt>>) {
        let now = self.now;
        let batch = received[0].batch;
        let ready: Vec<Lane> = self
            .lanes
            .iter()
            .filter(|(_, lane)| self.claimable(lane))
            .map(|(name, _)| name.clone())
            .collect();
        for message in received {
            assert_eq!(message.batch, batch);
            let n: u32 = String::from_utf8_lossy(&message.body)
                .parse()
                .expect("a number");
            let key = message.key.as_ref().map_or(0, |key| key.as_bytes()[0]);
            let name = match (key, self.keyless) {
                (0, Keyless::Parallel) => Lane::One(n),
                _ => Lane::Key(key),
            };
            assert!(
                ready.contains(&name),
                "{name:?} was locked, held or empty: {n}, {:?} at {now:?}",
                self.lanes.get(&name)
            );
            let lane = self.lanes.get_mut(&name).expect("a lane");
            let (first, due) = lane.queued[lane.out.len()];
            assert_eq!(n, first, "{name:?} out of order");
            assert!(due <= now, "{n} is not due");
            lane.out.push(n);
            self.seqs.insert(message.position.expect("a position"));
            self.received.push((name, n, message));
        }
    }

    async fn receive_and_forget(&mut self, room: u8) {
        let room = Room {
            messages: room.into(),
            bytes: 1 << 20,
        };
        let polled = {
            let mut receive = std::pin::pin!(self.source().receive(room));
            std::future::poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx))).await
        };
        if let Poll::Ready(received) = polled {
            self.check(received.expect("receives"));
        }
    }

    async fn ack_oldest(&mut self, n: u8) {
        let mut acked = Vec::new();
        let mut counts: BTreeMap<Lane, u8> = BTreeMap::new();
        let all = std::mem::take(&mut self.received);
        for (lane, number, message) in all {
            let count = counts.entry(lane.clone()).or_default();
            *count += 1;
            match *count <= n {
                true => acked.push((lane, number, message)),
                false => self.received.push((lane, number, message)),
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

    async fn ack(&mut self, acked: Vec<(Lane, u32, Received<Receipt>)>) {
        let settler = self.source().settler();
        let receipts: Vec<_> = acked
            .iter()
            .map(|(_, _, message)| message.receipt)
            .collect();
        for result in settler.ack(receipts.clone()).await {
            result.expect("acked");
        }
        for (lane, n, _) in &acked {
            self.resolve(lane, *n);
        }
        for result in settler.ack(receipts).await {
            result.expect_err("a settled receipt settles nothing");
        }
    }

    fn resolve(&mut self, lane: &Lane, n: u32) {
        let model = self.lanes.get_mut(lane).expect("a lane");
        model.queued.retain(|(queued, _)| *queued != n);
        model.out.retain(|out| *out != n);
        assert!(self.resolved.insert(n), "{n} resolved twice");
    }

    async fn give_back(&mut self, at: u8, delay: u8) {
        if self.received.is_empty() {
            return;
        }
        let name = self.received[at as usize % self.received.len()].0.clone();
        let all = std::mem::take(&mut self.received);
        let (mut back, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(lane, ..)| *lane == name);
        self.received = kept;
        back.reverse();
        let delay = Duration::from_secs(delay.into());
        let receipts = back.iter().map(|(_, _, message)| message.receipt).collect();
        for result in self.source().settler().give_back(receipts, delay).await {
            result.expect("given back");
        }
        let now = self.now;
        let lane = self.lanes.get_mut(&name).expect("a lane");
        lane.out.clear();
        lane.hold = lane.hold.max(now + delay);
    }

    async fn dead_letter(&mut self, at: u8) {
        if self.received.is_empty() {
            return;
        }
        let (lane, n, message) = self.received.remove(at as usize % self.received.len());
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
        self.resolve(&lane, n);
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
        for lane in self.lanes.values_mut() {
            lane.out.clear();
            lane.hold = Duration::ZERO;
        }
    }

    /// Everything comes, in order, and then nothing is left.
    async fn drain(&mut self) {
        self.ack_oldest(u8::MAX).await;
        self.step(Op::Advance(60)).await;
        while self.lanes.values().any(|lane| !lane.queued.is_empty()) {
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
