//! Models of brokers: one queue each, that outlives the processes which read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::source::{
    BatchId, Bond, Features, Order, Received, Room, SettleError, Settler, Several, Source,
    SourceError,
};
use tokio::sync::Notify;

use super::case::{Kind, SourceCase};
use super::world::{What, World};

/// SQS hands out so many at once.
const FIFO_BATCH: usize = 10;

/// One queue.
#[derive(Clone)]
pub(crate) struct Broker {
    queue: Arc<str>,
    kind: Kind,
    /// How long it lends without a renewal.
    lends: Duration,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    world: Arc<World>,
}

#[derive(Default)]
struct State {
    /// By position.
    messages: BTreeMap<u64, Kept>,
    next: u64,
    loans: u64,
    batches: u64,
    /// The connection that is read over; `None` before the first and after a cut.
    bond: Option<Bond>,
    /// The reader has not heard yet that its connection is gone.
    cut: bool,
    published: BTreeSet<usize>,
}

struct Kept {
    n: usize,
    key: Option<String>,
    body: Bytes,
    /// Not before then, by the run's time.
    hidden: Duration,
    loan: Option<Loan>,
}

#[derive(Clone)]
struct Loan {
    number: u64,
    /// By the leases' clock; of kinds that lend for a time.
    until: Option<Duration>,
}

/// What settles a message.
#[derive(Clone)]
pub(crate) struct Receipt {
    position: u64,
    loan: u64,
    bond: Option<Bond>,
}

/// A process's connection to a queue.
pub(crate) struct Reader {
    broker: Broker,
    name: Arc<str>,
    serial: bool,
}

impl Broker {
    pub(crate) fn new(queue: &str, source: &SourceCase, world: Arc<World>) -> Self {
        Self {
            queue: queue.into(),
            kind: source.kind,
            // The adapter's lease is shorter than what the broker grants.
            lends: Duration::from_millis(source.lease) * 4 / 3,
            state: Arc::default(),
            changed: Arc::default(),
            world,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    /// Stores a message, once for each number.
    pub(crate) fn publish(&self, n: usize, key: Option<&str>, body: Bytes) {
        let mut state = self.lock();
        if !state.published.insert(n) {
            return;
        }
        state.next += 1;
        let position = state.next;
        let kept = Kept {
            n,
            key: key.map(str::to_owned),
            body,
            hidden: Duration::ZERO,
            loan: None,
        };
        state.messages.insert(position, kept);
        drop(state);
        self.changed.notify_waiters();
    }

    /// A process reads the queue under this name. A reader that was there before is gone.
    pub(crate) fn read(&self, name: &str, source: &SourceCase) -> Reader {
        if self.is_connected() {
            self.lock().disconnect(&self.world);
            self.lock().cut = false;
        }
        Reader {
            broker: self.clone(),
            name: name.into(),
            serial: source.kind == Kind::Fifo,
        }
    }

    /// Whether loans end with the connection.
    fn is_connected(&self) -> bool {
        matches!(self.kind, Kind::Connection | Kind::Plain)
    }

    /// The broker ends the connection.
    pub(crate) fn cut(&self) {
        if self.is_connected() {
            self.lock().disconnect(&self.world);
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.lock().messages.len()
    }

    fn lend(&self, room: usize) -> Vec<(u64, Loan)> {
        let (now, lease_now) = (self.world.now(), self.world.lease_now());
        let shuffles = self.kind == Kind::Standard;
        let most = match self.kind {
            Kind::Fifo | Kind::Standard => room.min(FIFO_BATCH),
            _ => room,
        };
        let mut state = self.lock();
        for kept in state.messages.values_mut() {
            let over = |loan: &mut Loan| loan.until.is_some_and(|until| until <= lease_now);
            if kept.loan.take_if(over).is_some() {
                self.world.note(What::Lost { n: kept.n });
            }
        }
        let mut positions = state.lendable(self.kind, now);
        if shuffles {
            let len = positions.len();
            for at in (1..len).rev() {
                let other = self.world.with_chance(|c| c.below(at as u64 + 1)) as usize;
                positions.swap(at, other);
            }
        }
        positions.truncate(most);
        let lends = (!self.is_connected()).then_some(lease_now + self.lends);
        let mut lent = Vec::new();
        for position in positions {
            state.loans += 1;
            let loan = Loan {
                number: state.loans,
                until: lends,
            };
            let kept = state.messages.get_mut(&position).expect("it is lendable");
            kept.loan = Some(loan.clone());
            lent.push((position, loan));
        }
        lent
    }

    /// When a message that is not lendable now may be.
    fn next_change(&self) -> Option<Duration> {
        let (now, lease_now) = (self.world.now(), self.world.lease_now());
        let state = self.lock();
        let due = |kept: &Kept| match &kept.loan {
            Some(loan) => Some(loan.until?.saturating_sub(lease_now)),
            None => Some(kept.hidden.saturating_sub(now)),
        };
        let next = state.messages.values().filter_map(due).min();
        next.map(|left| left.max(Duration::from_millis(1)))
    }
}

impl State {
    /// All loans are over.
    fn disconnect(&mut self, world: &World) {
        if let Some(bond) = self.bond.take() {
            bond.cut();
            self.cut = true;
            for kept in self.messages.values_mut() {
                if kept.loan.take().is_some() {
                    world.note(What::Lost { n: kept.n });
                }
            }
        }
    }

    /// What may be handed out, in this order.
    fn lendable(&self, kind: Kind, now: Duration) -> Vec<u64> {
        let free = |kept: &Kept| kept.loan.is_none() && kept.hidden <= now;
        if kind != Kind::Fifo {
            let free = self.messages.iter().filter(|(_, kept)| free(kept));
            return free.map(|(position, _)| *position).collect();
        }
        // A group with a message that is out or hidden is locked; free groups come one by one.
        let mut groups: Vec<(&Option<String>, Vec<u64>, bool)> = Vec::new();
        for (position, kept) in &self.messages {
            match groups.iter_mut().find(|(key, ..)| **key == kept.key) {
                Some((_, positions, all)) => {
                    positions.push(*position);
                    *all &= free(kept);
                }
                None => groups.push((&kept.key, vec![*position], free(kept))),
            }
        }
        let free = groups.into_iter().filter(|(.., all)| *all);
        free.flat_map(|(_, positions, _)| positions).collect()
    }

    fn standing(&mut self, receipt: &Receipt, lease_now: Duration) -> Option<&mut Kept> {
        let kept = self.messages.get_mut(&receipt.position)?;
        let stands = |loan: &Loan| {
            loan.number == receipt.loan && loan.until.is_none_or(|until| until > lease_now)
        };
        kept.loan.as_ref().is_some_and(stands).then_some(kept)
    }
}

impl Reader {
    fn received(&self, lent: Vec<(u64, Loan)>) -> Vec<Received<Receipt>> {
        let mut state = self.broker.lock();
        state.batches += 1;
        let batch = BatchId(state.batches);
        let bond = state.bond.clone();
        let received = lent.into_iter().map(|(position, loan)| {
            let kept = &state.messages[&position];
            Received {
                identity: Identity {
                    source: self.name.clone(),
                    id: BrokerId::Text(format!("m{}", kept.n).into()),
                },
                key: kept.key.as_deref().map(Key::from),
                tenant: None,
                position: Some(position),
                batch,
                body: kept.body.clone(),
                headers: Vec::new(),
                receipt: Receipt {
                    position,
                    loan: loan.number,
                    bond: bond.clone(),
                },
            }
        });
        received.collect()
    }

    fn error(&self, text: &str) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: text.to_owned(),
            permanent: false,
        }
    }
}

impl Source for Reader {
    type Receipt = Receipt;
    type Settler = Broker;

    fn features(&self) -> Features {
        let lease = Some(self.broker.lends * 3 / 4);
        let none = Features::none("model");
        match self.broker.kind {
            Kind::Fifo => Features {
                order: Order::Kept,
                identity: true,
                ordered_return: true,
                delayed_return: true,
                key_lock: true,
                lease,
                confirmed_acks: true,
                positions: true,
                settles: FIFO_BATCH,
                keyless_serial: self.serial,
                several: Several::KeyLock,
                ..none
            },
            Kind::Standard => Features {
                order: Order::NoKeys,
                identity: true,
                delayed_return: true,
                lease,
                confirmed_acks: true,
                ..none
            },
            Kind::Connection => Features {
                order: Order::Kept,
                identity: true,
                ordered_return: true,
                lease,
                several: Several::OneActive,
                ..none
            },
            Kind::Plain => Features {
                order: Order::UntilReconnect,
                identity: true,
                ordered_return: true,
                lease,
                ..none
            },
            Kind::Embedded => unreachable!("the embedded queue is no model"),
        }
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some(self.broker.queue.clone())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        loop {
            let changed = self.broker.changed.clone();
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            if self.broker.is_connected() {
                let mut state = self.broker.lock();
                if state.bond.as_ref().is_some_and(|bond| !bond.holds()) {
                    state.disconnect(&self.broker.world);
                }
                if std::mem::take(&mut state.cut) {
                    return Err(self.error("the connection is gone"));
                }
                state.bond.get_or_insert_default();
            }
            let lent = self.broker.lend(room.messages);
            if !lent.is_empty() {
                return Ok(self.received(lent));
            }
            let bond = self.broker.lock().bond.clone();
            let next = self.broker.next_change();
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
                () = ended(bond) => {}
            }
        }
    }

    fn settler(&self) -> Broker {
        self.broker.clone()
    }

    async fn close(self) {}
}

async fn ended(bond: Option<Bond>) {
    match bond {
        Some(bond) => bond.ended().await,
        None => std::future::pending().await,
    }
}

impl Broker {
    fn settle(
        &self,
        receipts: Vec<Receipt>,
        mut settle: impl FnMut(&mut State, u64),
    ) -> Vec<Result<(), SettleError>> {
        let lease_now = self.world.lease_now();
        let mut state = self.lock();
        let mut one = |receipt: Receipt| {
            if state.standing(&receipt, lease_now).is_none() {
                return Err(SettleError::Lost("the loan is over".to_owned()));
            }
            settle(&mut state, receipt.position);
            Ok(())
        };
        let results = receipts.into_iter().map(&mut one).collect();
        drop(state);
        self.changed.notify_waiters();
        results
    }
}

impl Settler for Broker {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        self.settle(receipts, |state, position| {
            state.messages.remove(&position);
        })
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        if self.is_connected() {
            // Anything less than all of it would come behind what is out.
            let results = self.settle(receipts, |_, _| ());
            if results.iter().any(Result::is_ok) {
                self.lock().disconnect(&self.world);
                self.changed.notify_waiters();
            }
            return results;
        }
        let hidden = self.world.now() + delay;
        self.settle(receipts, |state, position| {
            let kept = state.messages.get_mut(&position).expect("it stands");
            kept.loan = None;
            kept.hidden = hidden;
        })
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let error = || SettleError::Again("the model has no dead letters".to_owned());
        receipts.iter().map(|_| Err(error())).collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let until = self.world.lease_now() + self.lends;
        let connected = self.is_connected();
        self.settle(receipts, |state, position| {
            let kept = state.messages.get_mut(&position).expect("it stands");
            if let (Some(loan), false) = (&mut kept.loan, connected) {
                loan.until = Some(until);
            }
        })
    }

    fn bond(&self, receipt: &Receipt) -> Option<Bond> {
        receipt.bond.clone()
    }
}
