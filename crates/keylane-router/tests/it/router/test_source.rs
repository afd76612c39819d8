//! A source of the tests: no key lock, no delay, no return in order, acks that fail on request,
//! leases that are renewed or lost on request.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::source::{
    BatchId, Bond, Features, Order, Received, Room, SettleError, Settler, Source, SourceError,
};
use tokio::sync::{mpsc, watch};

/// What happened to a message: its id and the receipt it was settled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Acked(u64, u64),
    Returned(u64, u64),
}

pub(crate) struct TestSource {
    name: Arc<str>,
    /// The queue, where it is not called as the source.
    queue: Option<Arc<str>>,
    features: Features,
    batches: mpsc::UnboundedReceiver<Vec<Received<Receipt>>>,
    settler: TestSettler,
    /// How many of the next receives panic.
    panics: u64,
    /// How many of the next receives fail, and how long each tries before.
    failures: (u64, Duration),
    /// How many failed.
    pub(crate) failed: Arc<AtomicU64>,
    /// Whether it says so when it is there again, before it brings anything.
    says_so: bool,
}

/// Message id and which delivery of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt(pub(crate) u64, pub(crate) u64);

#[derive(Clone)]
pub(crate) struct TestSettler {
    settled: Arc<Mutex<Vec<Settled>>>,
    changed: Arc<watch::Sender<usize>>,
    /// How long each that was given back is to stay away.
    pub(crate) delays: Arc<Mutex<Vec<Duration>>>,
    /// How many of the next acks fail.
    pub(crate) failing_acks: Arc<AtomicU64>,
    /// The acks of these never succeed.
    pub(crate) never_acked: Arc<Mutex<HashSet<u64>>>,
    /// Acks are not answered while this is so.
    pub(crate) hanging: Arc<AtomicBool>,
    /// Returns have effect at once, and are not answered while this is so.
    pub(crate) returns_hang: Arc<AtomicBool>,
    /// Which deliveries were renewed, and when.
    pub(crate) renewed: Arc<Mutex<Vec<(Receipt, tokio::time::Instant)>>>,
    /// Messages whose leases cannot be renewed.
    pub(crate) not_renewed: Arc<Mutex<HashMap<u64, SettleError>>>,
    /// Over which connections deliveries go and went, where loans end with them.
    bonds: Arc<Mutex<Bonds>>,
}

#[derive(Default)]
struct Bonds {
    now: Option<Bond>,
    of_delivery: HashMap<u64, Bond>,
}

/// The broker's side.
pub(crate) struct Feeder {
    name: Arc<str>,
    batches: mpsc::UnboundedSender<Vec<Received<Receipt>>>,
    next_batch: AtomicU64,
    deliveries: AtomicU64,
    pub(crate) settler: TestSettler,
}

/// One message to feed: id, key, body.
#[derive(Clone)]
pub(crate) struct Fed<'a> {
    pub(crate) id: u64,
    pub(crate) key: Option<&'a str>,
    pub(crate) body: String,
}

pub(crate) fn test_source(name: &str) -> (TestSource, Feeder) {
    let name: Arc<str> = name.into();
    let (sender, batches) = mpsc::unbounded_channel();
    let settler = TestSettler {
        settled: Arc::default(),
        delays: Arc::default(),
        changed: Arc::new(watch::channel(0).0),
        failing_acks: Arc::default(),
        never_acked: Arc::default(),
        hanging: Arc::default(),
        returns_hang: Arc::default(),
        renewed: Arc::default(),
        not_renewed: Arc::default(),
        bonds: Arc::default(),
    };
    let features = Features {
        identity: true,
        positions: true,
        ..Features::none("test")
    };
    let source = TestSource {
        name: name.clone(),
        queue: None,
        features,
        batches,
        settler: settler.clone(),
        panics: 0,
        failures: (0, Duration::ZERO),
        failed: Arc::default(),
        says_so: false,
    };
    let feeder = Feeder {
        name,
        batches: sender,
        next_batch: AtomicU64::new(1),
        deliveries: AtomicU64::new(1),
        settler,
    };
    (source, feeder)
}

impl TestSource {
    /// Of this queue, whatever the source is called.
    pub(crate) fn reading(mut self, queue: &str) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// As a broker that takes messages back in order, with a delay.
    pub(crate) fn returning(mut self) -> Self {
        self.features.ordered_return = true;
        self.features.delayed_return = true;
        self
    }

    /// Its next receives panic.
    pub(crate) fn panicking(mut self, times: u64) -> Self {
        self.panics = times;
        self
    }

    /// As a broker that is away: so many receives fail, each after having tried for so long.
    pub(crate) fn away(mut self, times: u64, each: Duration) -> Self {
        self.failures = (times, each);
        self
    }

    /// Answers with nothing when it is there again.
    pub(crate) fn saying_so(mut self) -> Self {
        self.says_so = true;
        self
    }

    /// As a broker that takes messages back in order, and gives them again at once.
    pub(crate) fn taking_back(mut self) -> Self {
        self.features.ordered_return = true;
        self
    }

    /// As a broker whose acks are confirmed: what comes again was not acked.
    pub(crate) fn confirming(mut self) -> Self {
        self.features.confirmed_acks = true;
        self
    }

    /// As a broker that says nothing of where its messages are.
    pub(crate) fn without_positions(mut self) -> Self {
        self.features.positions = false;
        self
    }

    /// As a broker that lends for a time.
    pub(crate) fn leased(mut self, lease: Duration) -> Self {
        self.features.lease = Some(lease);
        self
    }

    /// As a broker that keeps the order of a key, or does not.
    pub(crate) fn ordered(mut self, order: Order) -> Self {
        self.features.order = order;
        self
    }

    /// As a broker that lends no longer than this, whatever is renewed.
    pub(crate) fn longest(mut self, loan: Duration) -> Self {
        self.features.longest_loan = Some(loan);
        self
    }

    /// As a broker that hands out no more of a key while something of it is out.
    pub(crate) fn locking(mut self) -> Self {
        self.features.key_lock = true;
        self
    }

    /// Keyless messages one after the other.
    pub(crate) fn serial(mut self) -> Self {
        self.features.keyless_serial = true;
        self
    }
}

impl Feeder {
    /// Hands out one batch; answers the number of its first delivery.
    pub(crate) fn feed(&self, batch: Vec<Fed<'_>>) -> u64 {
        self.feed_of(None, batch)
    }

    /// The same, as a broker that says whose they are.
    pub(crate) fn feed_of(&self, tenant: Option<&str>, batch: Vec<Fed<'_>>) -> u64 {
        let number = BatchId(self.next_batch.fetch_add(1, Ordering::Relaxed));
        let first = self.deliveries.load(Ordering::Relaxed);
        let over = first..first + batch.len() as u64;
        over.for_each(|delivery| self.settler.lend(delivery));
        let received = batch.into_iter().map(|fed| Received {
            identity: Identity {
                source: self.name.clone(),
                id: BrokerId::Sequence(fed.id),
            },
            key: fed.key.map(Key::from),
            tenant: tenant.map(Arc::from),
            position: Some(fed.id),
            batch: number,
            body: fed.body.into(),
            headers: Vec::new(),
            receipt: Receipt(fed.id, self.deliveries.fetch_add(1, Ordering::Relaxed)),
        });
        self.batches
            .send(received.collect())
            .expect("the source is read");
        first
    }

    /// What was settled so far.
    pub(crate) fn all_settled(&self) -> Vec<Settled> {
        self.settler.settled.lock().unwrap().clone()
    }

    /// Whether the source was closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.batches.is_closed()
    }

    pub(crate) async fn settled(&self, count: usize) -> Vec<Settled> {
        let mut changed = self.settler.changed.subscribe();
        let settled = changed.wait_for(|done| *done >= count);
        // On the paused clock this is over at once if nothing happens any more.
        let settled = tokio::time::timeout(Duration::from_secs(600), settled).await;
        let all = self.settler.settled.lock().unwrap().clone();
        assert!(settled.is_ok(), "{count} were to be settled: {all:?}");
        self.settler.settled.lock().unwrap().clone()
    }
}

impl TestSettler {
    /// A new connection.
    pub(crate) fn connected(&self) -> Bond {
        let bond = Bond::new();
        self.bonds.lock().unwrap().now = Some(bond.clone());
        bond
    }

    fn lend(&self, delivery: u64) {
        let mut bonds = self.bonds.lock().unwrap();
        if let Some(bond) = bonds.now.clone() {
            bonds.of_delivery.insert(delivery, bond);
        }
    }

    fn note(&self, settled: Settled) {
        let mut all = self.settled.lock().unwrap();
        all.push(settled);
        self.changed.send_replace(all.len());
    }

    fn fails(&self) -> bool {
        let left = &self.failing_acks;
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok()
    }
}

impl Source for TestSource {
    type Receipt = Receipt;
    type Settler = TestSettler;

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn destination(&self) -> Option<Arc<str>> {
        self.queue.clone()
    }

    async fn receive(&mut self, _room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        if self.panics > 0 {
            self.panics -= 1;
            panic!("a receive that goes wrong");
        }
        if let (1.., each) = self.failures {
            tokio::time::sleep(each).await;
            self.failures.0 -= 1;
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(SourceError {
                source_name: self.name.clone(),
                text: "nobody answers".to_owned(),
                permanent: false,
            });
        }
        if std::mem::take(&mut self.says_so) {
            return Ok(Vec::new());
        }
        match self.batches.recv().await {
            Some(batch) => Ok(batch),
            None => std::future::pending().await,
        }
    }

    fn settler(&self) -> TestSettler {
        self.settler.clone()
    }

    async fn close(self) {
        drop(self.name);
    }
}

impl Settler for TestSettler {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        while self.hanging.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let ack = |Receipt(id, delivery)| {
            if self.never_acked.lock().unwrap().contains(&id) || self.fails() {
                return Err(SettleError::Again("the broker is away".to_owned()));
            }
            self.note(Settled::Acked(id, delivery));
            Ok(())
        };
        receipts.into_iter().map(ack).collect()
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        let again = receipts.iter().map(|_| delay);
        self.delays.lock().unwrap().extend(again);
        let give = |Receipt(id, delivery)| {
            self.note(Settled::Returned(id, delivery));
            Ok(())
        };
        let results = receipts.into_iter().map(give).collect();
        while self.returns_hang.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        results
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        receipts
            .into_iter()
            .map(|_| Err(SettleError::Lost("no dead letter here".into())))
            .collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let not_renewed = self.not_renewed.lock().unwrap();
        let renew = |receipt: Receipt| match not_renewed.get(&receipt.0) {
            Some(error) => Err(error.clone()),
            None => {
                let now = tokio::time::Instant::now();
                self.renewed.lock().unwrap().push((receipt, now));
                Ok(())
            }
        };
        receipts.into_iter().map(renew).collect()
    }

    fn bond(&self, receipt: &Receipt) -> Option<Bond> {
        let bonds = self.bonds.lock().unwrap();
        bonds.of_delivery.get(&receipt.1).cloned()
    }
}
