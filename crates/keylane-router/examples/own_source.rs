//! A source of your own, small enough to read at once, and the suite that says what it is worth:
//! `cargo run -p keylane-router --example own_source --features conformance`

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::conformance::{Published, Queue, Subject, Verdict, run_all};
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::plan::SourcePlan;
use keylane_router::source::{
    BatchId, Features, Order, Received, Room, SettleError, Settler, Several, Source, SourceError,
};
use tokio::sync::Notify;

/// The broker: a list of messages, and which of them are out.
#[derive(Default)]
pub(crate) struct Shelf {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    messages: BTreeMap<u64, (Option<Key>, Bytes)>,
    out: HashSet<u64>,
    last: u64,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }
}

/// What the adapter promises. What is not promised here, the router does without: it has no
/// `return`, and remembers for a while what it acked.
const FEATURES: Features = Features {
    kind: "shelf",
    order: Order::Kept,
    identity: true,
    ordered_return: false,
    delayed_return: false,
    key_lock: false,
    dead_letter: false,
    lease: None,
    longest_loan: None,
    confirmed_acks: true,
    positions: true,
    settles: 0,
    keyless_serial: true,
    several: Several::Nothing,
};

/// The adapter.
pub(crate) struct ShelfSource {
    name: Arc<str>,
    shelf: Arc<Shelf>,
}

impl Source for ShelfSource {
    type Receipt = u64;
    type Settler = ShelfSettler;

    fn features(&self) -> Features {
        FEATURES
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<u64>>, SourceError> {
        loop {
            let changed = self.shelf.changed.notified();
            // No await from here to the return: a receive that is dropped has taken nothing.
            let received = self.take(&room);
            if !received.is_empty() {
                return Ok(received);
            }
            changed.await;
        }
    }

    fn settler(&self) -> ShelfSettler {
        ShelfSettler(self.shelf.clone())
    }

    async fn close(self) {}
}

impl ShelfSource {
    fn take(&self, room: &Room) -> Vec<Received<u64>> {
        let mut state = self.shelf.lock();
        let State {
            messages,
            out,
            last,
        } = &mut *state;
        *last += 1;
        let batch = BatchId(*last);
        let waiting = messages.iter().filter(|(seq, _)| !out.contains(seq));
        let received = |(seq, (key, body)): (&u64, &(Option<Key>, Bytes))| Received {
            identity: Identity {
                source: self.name.clone(),
                id: BrokerId::Sequence(*seq),
            },
            key: key.clone(),
            tenant: None,
            position: Some(*seq),
            batch,
            body: body.clone(),
            headers: Vec::new(),
            receipt: *seq,
        };
        let received: Vec<_> = waiting.take(room.messages).map(received).collect();
        out.extend(received.iter().map(|received| received.receipt));
        received
    }
}

impl Drop for ShelfSource {
    /// The connection is over: what was not settled is handed out again.
    fn drop(&mut self) {
        self.shelf.lock().out.clear();
        self.shelf.changed.notify_waiters();
    }
}

/// The settling side.
#[derive(Clone)]
pub(crate) struct ShelfSettler(Arc<Shelf>);

impl ShelfSettler {
    fn each(
        &self,
        receipts: Vec<u64>,
        end: impl Fn(&mut State, u64),
    ) -> Vec<Result<(), SettleError>> {
        let mut state = self.0.lock();
        let settle = |seq| {
            if !state.out.contains(&seq) {
                return Err(SettleError::Lost("it is not out".to_owned()));
            }
            end(&mut state, seq);
            Ok(())
        };
        let results = receipts.into_iter().map(settle).collect();
        drop(state);
        self.0.changed.notify_waiters();
        results
    }
}

impl Settler for ShelfSettler {
    type Receipt = u64;

    async fn ack(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        self.each(receipts, |state, seq| {
            state.out.remove(&seq);
            state.messages.remove(&seq);
        })
    }

    async fn give_back(&self, receipts: Vec<u64>, _: Duration) -> Vec<Result<(), SettleError>> {
        self.each(receipts, |state, seq| {
            state.out.remove(&seq);
        })
    }

    async fn reject(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        let none = |_| Err(SettleError::Lost("there is no dead letter".to_owned()));
        receipts.into_iter().map(none).collect()
    }

    async fn renew(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        self.each(receipts, |_, _| {})
    }
}

/// How the suite makes, fills and reads such a queue.
pub(crate) struct Shelves;

/// One queue.
#[derive(Default)]
pub(crate) struct ShelfQueue(Arc<Shelf>);

impl Subject for Shelves {
    type Queue = ShelfQueue;

    fn features(&self) -> Features {
        FEATURES
    }

    fn in_memory(&self) -> bool {
        true
    }

    async fn queue(&self) -> Result<ShelfQueue, String> {
        Ok(ShelfQueue::default())
    }
}

impl Queue for ShelfQueue {
    type Source = ShelfSource;

    async fn connect(&self, name: Arc<str>, _: &SourcePlan) -> Result<ShelfSource, String> {
        let shelf = self.0.clone();
        Ok(ShelfSource { name, shelf })
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        let mut state = self.0.lock();
        for message in messages {
            state.last += 1;
            let seq = state.last;
            let kept = (message.key.map(Key::new), message.body);
            state.messages.insert(seq, kept);
        }
        drop(state);
        self.0.changed.notify_waiters();
        Ok(())
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        Ok(Some(self.0.lock().messages.len() as u64))
    }
}

fn main() {
    // In a test: `keylane_router::conformance_tests!(Shelves);` makes a test of each case.
    let verdicts = run_all(|| Shelves);
    let failed = verdicts
        .iter()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_)));
    let failed = failed.count();
    println!("{} cases, {failed} failed", verdicts.len());
    std::process::exit(i32::from(failed > 0));
}
