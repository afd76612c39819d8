//! A broker of the tests that has a backlog and nothing else: no key lock, no delay, no return in
//! order. What was not acked comes again when it is read anew, also by another process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::plan::SourcePlan;
use keylane_router::source::{
    BatchId, Features, Received, Room, SettleError, Settler, Source, SourceError,
};
use tokio::sync::{Notify, watch};

/// One message: its key and its number within the key.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) key: Option<String>,
    pub(crate) n: u64,
    pub(crate) bytes: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Broker {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
    /// Where acks are written down, if another process is to know of them.
    acks: Option<PathBuf>,
    /// Acks are answered while this is off.
    deaf: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Not handed out yet, or handed out and lost.
    waiting: BTreeMap<u64, Sent>,
    out: BTreeMap<u64, Sent>,
    acked: BTreeSet<u64>,
    returned: usize,
    most_out: usize,
    batches: u64,
}

impl Broker {
    /// With acks in a file, and those of processes before this one taken into account.
    pub(crate) fn on_disk(acks: &Path, messages: Vec<Sent>) -> Self {
        let broker = Self {
            inner: Arc::new(Inner {
                acks: Some(acks.to_owned()),
                ..Inner::default()
            }),
        };
        broker.publish(messages);
        let text = std::fs::read_to_string(acks).unwrap_or_default();
        let mut state = broker.lock();
        for id in text.lines().filter_map(|line| line.parse().ok()) {
            state.waiting.remove(&id);
            state.acked.insert(id);
        }
        drop(state);
        broker
    }

    pub(crate) fn publish(&self, messages: impl IntoIterator<Item = Sent>) {
        let mut state = self.lock();
        for message in messages {
            state.next += 1;
            let id = state.next;
            state.waiting.insert(id, message);
        }
        drop(state);
        self.inner.changed.notify_waiters();
    }

    /// What was handed out and not acked comes again.
    pub(crate) fn lose_connection(&self) {
        let mut state = self.lock();
        let out = std::mem::take(&mut state.out);
        state.waiting.extend(out);
        drop(state);
        self.inner.changed.notify_waiters();
    }

    /// Acks take no effect and are not answered, until it hears again.
    pub(crate) fn set_deaf(&self, deaf: bool) {
        self.inner.deaf.send_replace(deaf);
    }

    pub(crate) fn source(&self, name: &str) -> BrokerSource {
        BrokerSource {
            name: name.into(),
            broker: self.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.out.is_empty()
    }

    pub(crate) fn acked(&self) -> usize {
        self.lock().acked.len()
    }

    pub(crate) fn returned(&self) -> usize {
        self.lock().returned
    }

    pub(crate) fn most_out(&self) -> usize {
        self.lock().most_out
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap()
    }

    fn hand_out(&self, name: &Arc<str>, room: &Room) -> Vec<Received<u64>> {
        let mut state = self.lock();
        state.batches += 1;
        let batch = BatchId(state.batches);
        let mut received = Vec::new();
        let mut bytes = 0;
        while received.len() < room.messages && (received.is_empty() || bytes < room.bytes) {
            let Some((id, sent)) = state.waiting.pop_first() else {
                break;
            };
            let body = body(&sent);
            bytes += body.len();
            received.push(Received {
                identity: Identity {
                    source: name.clone(),
                    id: BrokerId::Sequence(id),
                },
                key: sent.key.as_deref().map(Key::from),
                tenant: None,
                position: Some(id),
                batch,
                body,
                headers: vec![("from".into(), "the broker".into())],
                receipt: id,
            });
            state.out.insert(id, sent);
        }
        state.most_out = state.most_out.max(state.out.len());
        received
    }

    fn ack(&self, ids: &[u64]) {
        if let Some(path) = &self.inner.acks {
            let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
            let mut file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)
                .unwrap();
            file.write_all(lines.as_bytes()).unwrap();
        }
        let mut state = self.lock();
        for id in ids {
            state.out.remove(id);
            state.waiting.remove(id);
            state.acked.insert(*id);
        }
    }
}

/// What a message is called in its body and in histories.
pub(crate) fn name(sent: &Sent) -> String {
    format!("{}/{}", sent.key.as_deref().unwrap_or("none"), sent.n)
}

fn body(sent: &Sent) -> Bytes {
    let id = name(sent);
    let origin = id.split('-').next().unwrap_or_default();
    let (target, filler) = (
        format!("http://127.0.0.1:1/{origin}"),
        "x".repeat(sent.bytes),
    );
    format!(r#"{{"id":"{id}","mediationTarget":"{target}","payload":"{filler}"}}"#).into()
}

pub(crate) struct BrokerSource {
    name: Arc<str>,
    broker: Broker,
}

impl Source for BrokerSource {
    type Receipt = u64;
    type Settler = Broker;

    fn features(&self) -> Features {
        Features {
            identity: true,
            confirmed_acks: true,
            positions: true,
            ..Features::none("test")
        }
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<u64>>, SourceError> {
        loop {
            let changed = self.broker.inner.changed.notified();
            let received = self.broker.hand_out(&self.name, &room);
            if !received.is_empty() {
                return Ok(received);
            }
            changed.await;
        }
    }

    fn settler(&self) -> Broker {
        self.broker.clone()
    }

    async fn close(self) {
        self.broker.lose_connection();
    }
}

impl Settler for Broker {
    type Receipt = u64;

    async fn ack(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        let mut deaf = self.inner.deaf.subscribe();
        let _ = deaf.wait_for(|deaf| !deaf).await;
        Broker::ack(self, &receipts);
        receipts.into_iter().map(|_| Ok(())).collect()
    }

    async fn give_back(&self, receipts: Vec<u64>, _: Duration) -> Vec<Result<(), SettleError>> {
        self.lock().returned += receipts.len();
        receipts.into_iter().map(|_| Ok(())).collect()
    }

    async fn reject(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        let lost = |_| Err(SettleError::Lost("no dead letter here".into()));
        receipts.into_iter().map(lost).collect()
    }

    async fn renew(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        receipts.into_iter().map(|_| Ok(())).collect()
    }
}

/// A source with a small window.
pub(crate) fn window(messages: usize) -> SourcePlan {
    SourcePlan {
        window: NonZeroUsize::new(messages).unwrap(),
        ..SourcePlan::custom()
    }
}
