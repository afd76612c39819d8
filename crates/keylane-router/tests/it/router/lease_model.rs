//! R12 by random histories: a broker with leases and key locks, a machine that falls asleep, brokers
//! that are away, targets that take their time. On the paused clock, each from a seed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Dispatch, handler_fn};
use keylane_router::lease::LeaseClock;
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::source::{
    BatchId, Features, Order, Received, Room, SettleError, Settler, Several, Source, SourceError,
};
use tokio::sync::Notify;

use super::leases::{TestClock, patient_plan};

const LEASE: Duration = Duration::from_secs(40);
const KEYS: u64 = 3;
const PER_KEY: u64 = 8;
const SEEDS: u64 = 150;

/// A broker that lends the messages of a key in order, to one at a time.
#[derive(Clone)]
pub(crate) struct Broker {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    clock: Arc<dyn LeaseClock>,
    lease: Duration,
    dice: Dice,
    /// Of how many answers one is "again".
    away: u64,
}

struct State {
    keys: BTreeMap<u64, Vec<Kept>>,
    receipts: u64,
}

/// A message that was not acked yet.
struct Kept {
    number: u64,
    lent: Option<Lent>,
}

struct Lent {
    receipt: u64,
    until: Duration,
}

/// A seeded sequence of chances.
#[derive(Clone)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        )))
    }

    fn below(&self, sides: u64) -> u64 {
        let step = |mut x: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^ (x << 17)
        };
        let before = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(step(x)));
        (step(before.unwrap()) >> 11) % sides
    }
}

impl Broker {
    pub(crate) fn new(keys: u64, per_key: u64, clock: impl LeaseClock, lease: Duration) -> Self {
        let kept = |number| Kept { number, lent: None };
        let keys = (0..keys).map(|key| (key, (0..per_key).map(kept).collect()));
        Self {
            state: Arc::new(Mutex::new(State {
                keys: keys.collect(),
                receipts: 0,
            })),
            changed: Arc::default(),
            clock: Arc::new(clock),
            lease,
            dice: Dice::new(1),
            away: u64::MAX,
        }
    }

    fn whimsical(mut self, seed: u64) -> Self {
        self.dice = Dice::new(seed);
        self.away = 12;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().keys.values().all(Vec::is_empty)
    }

    pub(crate) fn is_lent(&self, key: u64, number: u64) -> bool {
        let (state, now) = (self.lock(), self.clock.now());
        let kept = state.keys[&key].iter().find(|kept| kept.number == number);
        kept.is_some_and(|kept| kept.is_lent(now))
    }

    /// Lends up to a few messages of every key of which nothing is lent.
    pub(crate) fn lend(&self, room: usize) -> Vec<(u64, u64, u64)> {
        let now = self.clock.now();
        let mut state = self.lock();
        let State { keys, receipts } = &mut *state;
        let mut out = Vec::new();
        for (key, kept) in keys {
            if kept.iter().any(|kept| kept.is_lent(now)) {
                continue;
            }
            let most = 1 + self.dice.below(4) as usize;
            for kept in kept.iter_mut().take(most) {
                if out.len() < room {
                    *receipts += 1;
                    kept.lent = Some(Lent {
                        receipt: *receipts,
                        until: now + self.lease,
                    });
                    out.push((*key, kept.number, *receipts));
                }
            }
        }
        out
    }

    /// What a receipt that is still good stands for.
    fn with(
        &self,
        receipts: Vec<Receipt>,
        act: impl Fn(&mut Vec<Kept>, usize, Duration),
    ) -> Vec<Result<(), SettleError>> {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut settle = |receipt: Receipt| {
            if self.dice.below(self.away) == 0 {
                return Err(SettleError::Again("away".to_owned()));
            }
            let kept = state.keys.get_mut(&receipt.key).unwrap();
            let good = |kept: &Kept| {
                let lent = kept.lent.as_ref().map(|lent| lent.receipt);
                kept.is_lent(now) && lent == Some(receipt.receipt)
            };
            let at = kept.iter().position(good);
            let at = at.ok_or_else(|| SettleError::Lost("not yours".to_owned()))?;
            act(kept, at, now);
            Ok(())
        };
        let results = receipts.into_iter().map(&mut settle).collect();
        self.changed.notify_one();
        results
    }
}

impl Kept {
    fn is_lent(&self, now: Duration) -> bool {
        self.lent.as_ref().is_some_and(|lent| now < lent.until)
    }
}

#[derive(Clone)]
pub(crate) struct Receipt {
    pub(crate) key: u64,
    pub(crate) receipt: u64,
}

impl Source for Broker {
    type Receipt = Receipt;
    type Settler = Broker;

    fn features(&self) -> Features {
        features(self.lease)
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        loop {
            let lent = self.lend(room.messages);
            let url = "http://127.0.0.1:1/";
            if !lent.is_empty() {
                return Ok(lent.into_iter().map(|lent| received(url, lent)).collect());
            }
            // Something may be given back, or its lease may end.
            let _ = tokio::time::timeout(self.lease / 20, self.changed.notified()).await;
        }
    }

    fn settler(&self) -> Broker {
        self.clone()
    }

    async fn close(self) {}
}

pub(crate) fn features(lease: Duration) -> Features {
    Features {
        order: Order::Kept,
        kind: "model",
        identity: true,
        ordered_return: true,
        delayed_return: true,
        key_lock: true,
        dead_letter: false,
        lease: Some(lease),
        longest_loan: None,
        confirmed_acks: true,
        positions: true,
        settles: 0,
        keyless_serial: true,
        several: Several::KeyLock,
    }
}

/// Message `number` of `key`, as it was lent.
pub(crate) fn received(url: &str, (key, number, receipt): (u64, u64, u64)) -> Received<Receipt> {
    let id = format!("{key}-{number}");
    Received {
        identity: Identity {
            source: "m".into(),
            id: BrokerId::Sequence(key * 1000 + number),
        },
        key: Some(Key::from(&*key.to_string())),
        tenant: None,
        position: Some(number),
        batch: BatchId(receipt),
        body: format!(r#"{{"id":"{id}","mediationTarget":"{url}","payload":"{id}"}}"#).into(),
        headers: Vec::new(),
        receipt: Receipt { key, receipt },
    }
}

impl Settler for Broker {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        self.with(receipts, |kept, at, _| {
            kept.remove(at);
        })
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        _delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        self.with(receipts, |kept, at, _| kept[at].lent = None)
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        receipts
            .iter()
            .map(|_| Err(SettleError::Lost("no".to_owned())))
            .collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        self.with(receipts, |kept, at, now| {
            if let Some(lent) = &mut kept[at].lent {
                lent.until = now + self.lease;
            }
        })
    }
}

/// Sees every call, and says what is wrong with it.
#[derive(Clone)]
struct Witness {
    broker: Broker,
    delivered: Arc<Mutex<HashMap<u64, u64>>>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Witness {
    fn dispatch(&self) -> impl Dispatch + use<> {
        let this = self.clone();
        handler_fn(move |message| {
            let this = this.clone();
            async move {
                let (key, number) = message.id.split_once('-').unwrap();
                this.call(key.parse().unwrap(), number.parse().unwrap())
                    .await
            }
        })
    }

    async fn call(&self, key: u64, number: u64) -> Outcome {
        if !self.broker.is_lent(key, number) {
            self.says(format!("{key}-{number} was called on a lost lease"));
        }
        let done = self
            .delivered
            .lock()
            .unwrap()
            .get(&key)
            .copied()
            .unwrap_or(0);
        if number > done {
            self.says(format!("{key}-{number} overtook {key}-{done}"));
        }
        let dice = &self.broker.dice;
        // Often at once, sometimes longer than a lease.
        let takes = dice.below(3) * dice.below(LEASE.as_secs());
        tokio::time::sleep(Duration::from_secs(takes)).await;
        if dice.below(3) == 0 {
            return Outcome::Busy {
                after: Some(Duration::from_secs(dice.below(60))),
                reason: Reason::default(),
            };
        }
        let mut delivered = self.delivered.lock().unwrap();
        let done = delivered.entry(key).or_default();
        *done = (*done).max(number + 1);
        Outcome::Delivered
    }

    fn says(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }
}

async fn history(seed: u64) {
    let clock = TestClock::new();
    let broker = Broker::new(KEYS, PER_KEY, clock.clone(), LEASE).whimsical(seed);
    let witness = Witness {
        broker: broker.clone(),
        delivered: Arc::default(),
        wrong: Arc::default(),
    };
    let router = Router::builder()
        .plan(patient_plan())
        .store(MemoryStore::default())
        .dispatch(witness.dispatch())
        .lease_clock(clock.clone())
        .source("m", broker.clone())
        .start()
        .await
        .unwrap();
    let mut steps = 0;
    while !broker.is_empty() {
        steps += 1;
        assert!(steps < 20_000, "seed {seed}: it does not end");
        tokio::time::sleep(Duration::from_secs(1 + broker.dice.below(20))).await;
        if broker.dice.below(12) == 0 {
            clock.suspend(LEASE * u32::try_from(broker.dice.below(4)).unwrap() / 2);
        }
    }
    let wrong = witness.wrong.lock().unwrap().clone();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    router.all_idle().await;
    let counters = router.counters().of(&"m".into(), &"default".into());
    assert_eq!(counters.ordering_violations.get(), 0, "seed {seed}");
    let resolved: u64 = counters
        .resolved()
        .iter()
        .map(|(_, count)| count.get())
        .sum();
    assert_eq!(counters.received.get(), resolved, "seed {seed}");
    router.stop(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn r12_no_history_has_a_call_on_a_lost_lease_or_an_overtaking() {
    for seed in 0..SEEDS {
        history(seed).await;
    }
}
