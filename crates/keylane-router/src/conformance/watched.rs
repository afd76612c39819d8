//! A source with an eye on it: writes its part of the history, notes what it has out, checks what
//! an adapter must keep whatever the case is, and lets a fault happen at a given step.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::subject::Boxed;
use super::target::label_of;
use crate::history::{By, Event, EventKind, Recorder};
use crate::message::{BrokerId, Key};
use crate::source::{Bond, Features, Received, Room, SettleError, Settler, Source, SourceError};

/// Where in the life of a loan something can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Before messages are asked for.
    Receive,
    /// While messages are held.
    Hold,
    /// While acks are under way.
    Settle,
    /// While loans are being renewed.
    Renew,
}

/// What was seen of the sources of one run.
pub(super) struct Watch {
    features: Features,
    history: Arc<Recorder>,
    seen: Arc<Mutex<Seen>>,
    hook: Mutex<Option<Hook>>,
    instance: usize,
}

#[derive(Default)]
struct Seen {
    instances: usize,
    out: HashMap<BrokerId, Out>,
    most_out: usize,
    received: u64,
    renewed: u64,
    /// When receives failed.
    failures: Vec<Instant>,
    /// The broker's id and the position of each message.
    known: HashMap<Arc<str>, (BrokerId, Option<u64>)>,
    /// The position of the newest message of each key.
    newest: HashMap<Key, u64>,
    /// What the adapter did that it must not do.
    faults: Vec<String>,
}

impl Seen {
    /// What is out and not being settled. A loan that was not renewed in time is over.
    fn on_loan(&self, lease: Option<Duration>) -> impl Iterator<Item = &Out> {
        let lease = lease.unwrap_or(Duration::MAX);
        let on_loan = move |out: &&Out| !out.settling && out.since.elapsed() < lease;
        self.out.values().filter(on_loan)
    }
}

struct Out {
    label: Option<Arc<str>>,
    key: Option<Key>,
    instance: usize,
    /// When it was received or renewed.
    since: Instant,
    /// The broker is being told: it may act on it before it has answered.
    settling: bool,
}

struct Hook {
    step: Step,
    /// How many of these steps go by before.
    after: u64,
    what: Boxed<'static, ()>,
}

impl Watch {
    pub(super) fn new(features: Features, history: Arc<Recorder>) -> Arc<Self> {
        Arc::new(Self {
            features,
            history,
            seen: Arc::default(),
            hook: Mutex::default(),
            instance: 0,
        })
    }

    /// A watch on another instance, with the same eyes.
    pub(super) fn another_instance(&self) -> Arc<Self> {
        let instance = {
            let mut seen = self.lock();
            seen.instances += 1;
            seen.instances
        };
        Arc::new(Self {
            features: self.features.clone(),
            history: self.history.clone(),
            seen: self.seen.clone(),
            hook: Mutex::default(),
            instance,
        })
    }

    /// Lets this happen at a later one of these steps, after so many of them.
    pub(super) fn at(
        &self,
        step: Step,
        after: u64,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        let hook = Hook {
            step,
            after,
            what: Box::pin(what),
        };
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    /// One of these steps: what is to happen now, if anything.
    pub(super) fn step(&self, step: Step) -> Option<Boxed<'static, ()>> {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let due = hook.as_mut().filter(|hook| hook.step == step)?;
        if due.after > 0 {
            due.after -= 1;
            return None;
        }
        hook.take().map(|hook| hook.what)
    }

    /// Whether what was to happen has begun.
    pub(super) fn has_happened(&self) -> bool {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.is_none()
    }

    pub(super) fn most_out(&self) -> usize {
        self.lock().most_out
    }

    /// How many are out now.
    pub(super) fn out(&self) -> usize {
        self.lock().on_loan(self.features.lease).count()
    }

    pub(super) fn received(&self) -> u64 {
        self.lock().received
    }

    pub(super) fn renewed(&self) -> u64 {
        self.lock().renewed
    }

    pub(super) fn failures(&self) -> Vec<Instant> {
        self.lock().failures.clone()
    }

    /// What the adapter did that it must not do.
    pub(super) fn faults(&self) -> Vec<String> {
        self.lock().faults.clone()
    }

    /// All loans are over, by a fault of the broker or of the connections to it.
    pub(super) fn loans_end(&self) {
        self.lock().out.clear();
    }

    /// A call of this message, which is lent, begins.
    pub(super) fn call_begins(&self, label: &Arc<str>) {
        let mut seen = self.lock();
        let mut out = seen.out.values();
        let over = out.any(|out| out.label.as_ref() == Some(label) && self.is_over(out));
        if over {
            let text = format!("a call of {label} began on a loan that was over");
            seen.faults.push(text);
        }
    }

    /// Whether a loan was not renewed for more than a lease: by our clock, which sees it a little
    /// later than router and broker do.
    fn is_over(&self, out: &Out) -> bool {
        let lease = self.features.lease;
        lease.is_some_and(|lease| out.since.elapsed() >= lease * 5 / 4)
    }

    fn declared(&self, features: &Features) {
        if *features != self.features {
            self.lock().faults.push(format!(
                "the source declares {features:?}, its subject {:?}",
                self.features
            ));
        }
    }

    fn record(&self, kind: EventKind, id: Option<&Arc<str>>) {
        if let Some(id) = id {
            let event = Event::new(kind, By::Router).id(id.clone());
            // A history with holes proves nothing.
            self.history
                .record(event)
                .expect("the history can be written");
        }
    }

    fn receive<R>(&self, room: usize, batch: &[Received<R>]) {
        let mut seen = self.lock();
        seen.received += batch.len() as u64;
        if batch.len() > room {
            seen.faults.push(format!(
                "received {} messages, asked for at most {}",
                batch.len(),
                room
            ));
        }
        for received in batch {
            let before = seen.out.remove(&received.identity.id);
            // Another instance has it now: whatever the first makes of it, its loan is over.
            if before.is_some_and(|out| out.instance != self.instance) {
                let label = label_of(&received.body);
                self.record(EventKind::LeaseLost, label.as_ref());
            }
        }
        // The broker counts from a little earlier than we do.
        let lease = self.features.lease.map(|lease| lease / 4 * 3);
        self.take_over(&mut seen, batch, lease.unwrap_or(Duration::MAX));
        let out = seen.on_loan(lease);
        let keys: HashSet<Key> = out.filter_map(|out| out.key.clone()).collect();
        for received in batch {
            self.look_at(&mut seen, received, &keys);
            let key = received.key.clone();
            let out = Out {
                label: label_of(&received.body),
                key,
                instance: self.instance,
                since: Instant::now(),
                settling: false,
            };
            seen.out.insert(received.identity.id.clone(), out);
        }
        let out = seen.on_loan(self.features.lease).count();
        seen.most_out = seen.most_out.max(out);
    }

    /// A key that is handed to this instance is no other's: what another had out of it, and did not
    /// renew, is on loan no more.
    fn take_over<R>(&self, seen: &mut Seen, batch: &[Received<R>], lease: Duration) {
        let keys: HashSet<&Key> = batch.iter().filter_map(|r| r.key.as_ref()).collect();
        let over = |_: &BrokerId, out: &mut Out| {
            let taken = out.key.as_ref().is_some_and(|key| keys.contains(key));
            taken && out.instance != self.instance && out.since.elapsed() >= lease
        };
        for (_, out) in seen.out.extract_if(over) {
            self.record(EventKind::LeaseLost, out.label.as_ref());
        }
    }

    fn look_at<R>(&self, seen: &mut Seen, received: &Received<R>, out: &HashSet<Key>) {
        let id = &received.identity.id;
        if let Some(key) = received.key.as_ref().filter(|key| out.contains(key))
            && self.features.key_lock
        {
            seen.faults.push(format!(
                "message {id} of {key:?} came while another of its key was out; a key lock is declared"
            ));
        }
        let Some(label) = label_of(&received.body) else {
            return;
        };
        let now = (id.clone(), received.position);
        if let Some(known) = seen.known.get(&label) {
            if self.features.identity && *known != now {
                seen.faults.push(format!(
                    "{label} came as {known:?} and again as {now:?}; identity is declared"
                ));
            }
            return;
        }
        seen.known.insert(label, now);
        let newest = match (&received.key, received.position) {
            (Some(key), Some(position)) if self.features.positions => seen
                .newest
                .insert(key.clone(), position)
                .zip(Some(position)),
            _ => None,
        };
        if let Some((before, position)) = newest.filter(|(before, now)| before >= now) {
            seen.faults.push(format!(
                "message {id} is new and has position {position}, an earlier one of its key had {before}"
            ));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source with its watch.
pub(super) struct Watched<S> {
    /// There until it is closed.
    inner: Option<S>,
    watch: Arc<Watch>,
}

impl<S: Source> Watched<S> {
    pub(super) fn new(inner: S, watch: Arc<Watch>) -> Self {
        watch.declared(&inner.features());
        let inner = Some(inner);
        Self { inner, watch }
    }
}

const OPEN: &str = "it is not closed";

impl<S> Drop for Watched<S> {
    /// Whether it was closed or its process died: what it had out is the broker's again.
    fn drop(&mut self) {
        let instance = self.watch.instance;
        let mut seen = self.watch.lock();
        seen.out.retain(|_, out| out.instance != instance);
    }
}

/// The source's receipt, and whose it is.
#[derive(Clone)]
pub(super) struct WatchedReceipt<R> {
    inner: R,
    id: BrokerId,
    label: Option<Arc<str>>,
}

#[derive(Clone)]
pub(super) struct WatchedSettler<T> {
    inner: T,
    watch: Arc<Watch>,
}

impl<S: Source> Source for Watched<S> {
    type Receipt = WatchedReceipt<S::Receipt>;
    type Settler = WatchedSettler<S::Settler>;

    fn features(&self) -> Features {
        self.inner.as_ref().expect(OPEN).features()
    }

    fn destination(&self) -> Option<Arc<str>> {
        self.inner.as_ref().expect(OPEN).destination()
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Self::Receipt>>, SourceError> {
        if let Some(what) = self.watch.step(Step::Receive) {
            what.await;
        }
        let messages = room.messages;
        let received = self.inner.as_mut().expect(OPEN).receive(room).await;
        let batch = received.inspect_err(|_| {
            self.watch.lock().failures.push(Instant::now());
        })?;
        self.watch.receive(messages, &batch);
        let batch = batch.into_iter().map(|received| {
            let label = label_of(&received.body);
            self.watch.record(EventKind::Receive, label.as_ref());
            let receipt = WatchedReceipt {
                inner: received.receipt,
                id: received.identity.id.clone(),
                label,
            };
            Received {
                identity: received.identity,
                key: received.key,
                tenant: received.tenant,
                position: received.position,
                batch: received.batch,
                body: received.body,
                headers: received.headers,
                receipt,
            }
        });
        Ok(batch.collect())
    }

    fn settler(&self) -> Self::Settler {
        WatchedSettler {
            inner: self.inner.as_ref().expect(OPEN).settler(),
            watch: self.watch.clone(),
        }
    }

    async fn stop_taking(&mut self) {
        self.inner.as_mut().expect(OPEN).stop_taking().await;
    }

    async fn close(mut self) {
        if let Some(inner) = self.inner.take() {
            inner.close().await;
        }
    }
}

impl<T: Settler> WatchedSettler<T> {
    /// Acks of these are sent.
    fn acks_begin(&self, receipts: &[WatchedReceipt<T::Receipt>]) {
        let mut seen = self.watch.lock();
        for receipt in receipts {
            let out = seen.out.get(&receipt.id);
            if out.is_some_and(|out| self.watch.is_over(out)) {
                let id = &receipt.id;
                let text = format!("an ack of {id} was sent on a loan that was over");
                seen.faults.push(text);
            }
        }
    }

    /// The broker is told of these.
    fn begin(&self, receipts: &[WatchedReceipt<T::Receipt>]) {
        let mut seen = self.watch.lock();
        for receipt in receipts {
            if let Some(out) = seen.out.get_mut(&receipt.id) {
                out.settling = true;
            }
        }
    }

    /// The broker has answered. What came again meanwhile is out again.
    fn end(
        &self,
        receipts: &[WatchedReceipt<T::Receipt>],
        results: &[Result<(), SettleError>],
        what: &str,
    ) {
        let mut seen = self.watch.lock();
        for (receipt, result) in receipts.iter().zip(results) {
            let settling = seen.out.get(&receipt.id).is_some_and(|out| out.settling);
            if settling && !matches!(result, Err(SettleError::Again(_))) {
                seen.out.remove(&receipt.id);
            }
        }
        drop(seen);
        self.lost(receipts, results, what);
    }

    /// What was renewed is on loan for another lease from then on.
    fn renewed(
        &self,
        receipts: &[WatchedReceipt<T::Receipt>],
        results: &[Result<(), SettleError>],
        at: Instant,
    ) {
        let mut seen = self.watch.lock();
        for (receipt, result) in receipts.iter().zip(results) {
            let ours = seen.out.get_mut(&receipt.id);
            let ours = ours.filter(|out| out.instance == self.watch.instance);
            if let (Some(out), Ok(())) = (ours, result) {
                out.since = at;
            }
        }
    }

    fn lost(
        &self,
        receipts: &[WatchedReceipt<T::Receipt>],
        results: &[Result<(), SettleError>],
        what: &str,
    ) {
        if receipts.len() != results.len() {
            self.watch.lock().faults.push(format!(
                "{what} of {} receipts answered {} results",
                receipts.len(),
                results.len()
            ));
        }
        for (receipt, result) in receipts.iter().zip(results) {
            if matches!(result, Err(SettleError::Lost(_))) {
                self.watch
                    .record(EventKind::LeaseLost, receipt.label.as_ref());
            }
        }
    }
}

fn inner<R: Clone>(receipts: &[WatchedReceipt<R>]) -> Vec<R> {
    receipts.iter().map(|r| r.inner.clone()).collect()
}

/// Both, side by side.
async fn meanwhile<T>(call: impl Future<Output = T>, what: Option<Boxed<'static, ()>>) -> T {
    match what {
        Some(what) => tokio::join!(call, what).0,
        None => call.await,
    }
}

impl<T: Settler> Settler for WatchedSettler<T> {
    type Receipt = WatchedReceipt<T::Receipt>;

    async fn ack(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        for receipt in &receipts {
            self.watch.record(EventKind::Ack, receipt.label.as_ref());
        }
        self.acks_begin(&receipts);
        self.begin(&receipts);
        let acked = self.inner.ack(inner(&receipts));
        let results = meanwhile(acked, self.watch.step(Step::Settle)).await;
        self.end(&receipts, &results, "an ack");
        results
    }

    async fn give_back(
        &self,
        receipts: Vec<Self::Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        self.begin(&receipts);
        let results = self.inner.give_back(inner(&receipts), delay).await;
        self.end(&receipts, &results, "a return");
        results
    }

    async fn reject(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        self.begin(&receipts);
        let results = self.inner.reject(inner(&receipts)).await;
        self.end(&receipts, &results, "a reject");
        results
    }

    async fn renew(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        self.watch.lock().renewed += receipts.len() as u64;
        let begun = Instant::now();
        let renewed = self.inner.renew(inner(&receipts));
        let results = meanwhile(renewed, self.watch.step(Step::Renew)).await;
        self.renewed(&receipts, &results, begun);
        self.lost(&receipts, &results, "a renewal");
        results
    }

    fn batch(&self) -> NonZeroUsize {
        self.inner.batch()
    }

    fn bond(&self, receipt: &Self::Receipt) -> Option<Bond> {
        self.inner.bond(&receipt.inner)
    }
}
