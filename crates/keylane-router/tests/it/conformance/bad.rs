//! A broker in memory that does what brokers do at their worst, and a source that reads it.
//!
//! By itself it promises nothing but that it keeps its messages: what is given back goes to the
//! end of the line, acks may be lost, everything may come again in any order. With more features
//! declared it keeps those, too.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::conformance::{Fault, Published, Queue, Subject};
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::plan::SourcePlan;
use keylane_router::source::{
    BatchId, Features, Received, Room, SettleError, Settler, Several, Source, SourceError,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

/// The subject.
pub(crate) struct Bad {
    features: Features,
    /// The test of this program that is a router on such a queue.
    router: &'static str,
}

impl Bad {
    /// No key lock, no delay, no return, no lease, acks that may be lost.
    pub(crate) fn new() -> Self {
        let features = Features {
            identity: true,
            positions: true,
            ..Features::none("bad")
        };
        Self {
            features,
            router: "router_on_a_bad_source",
        }
    }

    /// With a lock on keys, leases, and a return in order and with a delay.
    pub(crate) fn locking() -> Self {
        let features = Features {
            kind: "locking",
            ordered_return: true,
            delayed_return: true,
            key_lock: true,
            lease: Some(Duration::from_millis(400)),
            confirmed_acks: true,
            settles: 0,
            keyless_serial: true,
            several: Several::KeyLock,
            ..Self::new().features
        };
        Self {
            features,
            router: "router_on_a_locking_source",
        }
    }

    /// With leases and nothing else: what has no room goes to the store, also while loans end.
    pub(crate) fn lending() -> Self {
        let features = Features {
            kind: "lending",
            lease: Some(Duration::from_millis(400)),
            ..Self::new().features
        };
        Self {
            features,
            router: "router_on_a_lending_source",
        }
    }

    /// The queue that was written to this file: the broker of another process.
    pub(crate) fn open(&self, journal: &Path) -> BadQueue {
        let queue = self.made();
        queue.0.change(|state| state.read(journal));
        queue
    }

    fn made(&self) -> BadQueue {
        BadQueue(Arc::new(Broker {
            features: self.features.clone(),
            router: self.router,
            state: Mutex::default(),
            changed: watch::channel(()).0,
        }))
    }
}

impl Subject for Bad {
    type Queue = BadQueue;

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn in_memory(&self) -> bool {
        true
    }

    fn can(&self, fault: Fault) -> bool {
        match fault {
            Fault::EndLeases | Fault::LoseRenewals => self.features.lease.is_some(),
            _ => true,
        }
    }

    async fn queue(&self) -> Result<BadQueue, String> {
        Ok(self.made())
    }
}

/// The broker of one queue.
pub(crate) struct BadQueue(Arc<Broker>);

struct Broker {
    features: Features,
    router: &'static str,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// All that were not acked, by their sequence.
    messages: BTreeMap<u64, Kept>,
    /// Who is handed out next.
    line: VecDeque<u64>,
    /// The last sequence, delivery, batch or connection.
    last: u64,
    connections: HashSet<u64>,
    /// Why nobody can do anything at the moment.
    trouble: Option<&'static str>,
    acks_to_lose: u32,
    renewals_lost_until: Option<Instant>,
    journal: Option<Journal>,
}

/// The queue as a file, for a broker that survives its process: a line for each message, and one for
/// each ack.
struct Journal {
    file: File,
    #[expect(dead_code, reason = "held for its end")]
    owned: Option<tempfile::TempPath>,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
enum Entry {
    Message(u64, Option<String>, String),
    Ack(u64),
}

impl Journal {
    fn write(&mut self, entry: &Entry) {
        let mut line = serde_json::to_vec(entry).expect("it can be written");
        line.push(b'\n');
        // One call, so that a kill leaves it whole or not there.
        self.file.write_all(&line).expect("it can be written");
    }
}

struct Kept {
    key: Option<Key>,
    body: Bytes,
    headers: Vec<(Arc<str>, Arc<str>)>,
    not_before: Option<Instant>,
    out: Option<Loan>,
}

#[derive(Clone, Copy)]
struct Loan {
    delivery: u64,
    connection: u64,
    until: Option<Instant>,
}

/// Which message, and which delivery of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    seq: u64,
    delivery: u64,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// These are no longer out, and stand in line again, each in its old place.
    fn take_back(&mut self, is: impl Fn(&Loan) -> bool) {
        for (seq, kept) in &mut self.messages {
            if kept.out.as_ref().is_some_and(&is) {
                kept.out = None;
                self.line.push_back(*seq);
            }
        }
        self.line.make_contiguous().sort_unstable();
    }

    fn keep(&mut self, seq: u64, key: Option<Key>, body: Bytes) -> &mut Kept {
        self.line.push_back(seq);
        self.messages.entry(seq).or_insert(Kept {
            key,
            body,
            headers: Vec::new(),
            not_before: None,
            out: None,
        })
    }

    fn acked(&mut self, seq: u64) {
        self.messages.remove(&seq);
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Ack(seq));
        }
    }

    /// Takes up what the file has, and goes on writing to it.
    fn read(&mut self, path: &Path) {
        self.messages.clear();
        self.line.clear();
        let text = std::fs::read_to_string(path).expect("it can be read");
        for line in text.lines() {
            match serde_json::from_str(line).expect("we wrote it") {
                Entry::Message(seq, key, body) => {
                    self.last = self.last.max(seq);
                    self.keep(seq, key.map(Key::new), body.into());
                }
                Entry::Ack(seq) => {
                    self.messages.remove(&seq);
                    self.line.retain(|other| *other != seq);
                }
            }
        }
        let file = File::options().append(true).open(path);
        self.journal = Some(Journal {
            file: file.expect("it can be written"),
            owned: None,
            path: path.to_owned(),
        });
    }

    /// Writes everything to a file, for another process to go on with.
    fn hand_over(&mut self) -> PathBuf {
        if let Some(journal) = &self.journal {
            return journal.path.clone();
        }
        let (file, path) = tempfile::NamedTempFile::new()
            .expect("a file can be made")
            .into_parts();
        let mut journal = Journal {
            file,
            path: path.to_path_buf(),
            owned: Some(path),
        };
        for (seq, kept) in &self.messages {
            let key = kept.key.as_ref().map(ToString::to_string);
            let body = String::from_utf8_lossy(&kept.body).into_owned();
            journal.write(&Entry::Message(*seq, key, body));
        }
        let path = journal.path.clone();
        self.journal = Some(journal);
        path
    }

    fn disconnect(&mut self, connection: u64) {
        self.connections.remove(&connection);
        self.take_back(|loan| loan.connection == connection);
    }

    fn disconnect_all(&mut self) {
        self.connections.clear();
        self.take_back(|_| true);
    }

    /// Everything that is out stands in line again, the newest first, before all others.
    fn redeliver(&mut self) {
        for (seq, kept) in &mut self.messages {
            if kept.out.take().is_some() {
                self.line.push_front(*seq);
            }
        }
    }

    /// Who may be handed out now, and when to look again if nobody can.
    fn due(&self, room: usize, lock: bool, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let mut blocked: HashSet<Option<&Key>> = HashSet::new();
        let out = self.messages.values().filter(|kept| kept.out.is_some());
        let mut again = out.clone().filter_map(|kept| kept.out?.until).min();
        if lock {
            blocked.extend(out.map(|kept| kept.key.as_ref()).filter(Option::is_some));
        }
        let mut due = Vec::new();
        for seq in &self.line {
            let kept = &self.messages[seq];
            let key = kept.key.as_ref();
            if blocked.contains(&key) {
                continue;
            }
            if let Some(at) = kept.not_before.filter(|at| *at > now) {
                again = Some(again.map_or(at, |other| other.min(at)));
                if key.is_some() {
                    blocked.insert(key);
                }
                continue;
            }
            due.push(*seq);
            if due.len() == room {
                break;
            }
        }
        (due, again)
    }
}

impl Broker {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.send_replace(());
    }

    /// Hands out what is due, or says when to ask again.
    fn hand_out(&self, connection: u64, room: &Room) -> Result<Vec<(u64, u64)>, Option<Instant>> {
        let now = Instant::now();
        let mut state = self.lock();
        state.take_back(|loan| loan.until.is_some_and(|until| until <= now));
        let (due, again) = state.due(room.messages, self.features.key_lock, now);
        if due.is_empty() {
            return Err(again);
        }
        let until = self.features.lease.map(|lease| now + lease);
        let mut handed = Vec::new();
        let taken: HashSet<u64> = due.iter().copied().collect();
        state.line.retain(|seq| !taken.contains(seq));
        for seq in due {
            let delivery = state.next();
            let kept = state.messages.get_mut(&seq).expect("it stood in line");
            kept.not_before = None;
            kept.out = Some(Loan {
                delivery,
                connection,
                until,
            });
            handed.push((seq, delivery));
        }
        Ok(handed)
    }

    /// Whether this is an ack that gets lost.
    fn loses_ack(&self) -> bool {
        let mut state = self.lock();
        let left = state.acks_to_lose.checked_sub(1);
        state.acks_to_lose = left.unwrap_or(0);
        left.is_some()
    }

    /// Ends the loans of these receipts, where they still are some.
    fn settle(
        &self,
        receipts: &[Receipt],
        end: impl Fn(&mut State, u64),
    ) -> Vec<Result<(), SettleError>> {
        let mut state = self.lock();
        if let Some(trouble) = state.trouble {
            let again = |_| Err(SettleError::Again(trouble.to_owned()));
            return receipts.iter().map(again).collect();
        }
        let now = Instant::now();
        let settle = |receipt: &Receipt| {
            let kept = state.messages.get(&receipt.seq);
            let loan = kept.and_then(|kept| kept.out);
            let stands = loan.is_some_and(|loan| {
                loan.delivery == receipt.delivery && loan.until.is_none_or(|until| until > now)
            });
            if !stands {
                return Err(SettleError::Lost("this delivery is over".to_owned()));
            }
            end(&mut state, receipt.seq);
            Ok(())
        };
        let results = receipts.iter().map(settle).collect();
        drop(state);
        self.changed.send_replace(());
        results
    }
}

impl Queue for BadQueue {
    type Source = BadSource;

    async fn connect(&self, name: Arc<str>, _: &SourcePlan) -> Result<BadSource, String> {
        Ok(BadSource {
            name,
            broker: self.0.clone(),
            connection: None,
        })
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        self.0.change(|state| {
            for message in messages {
                let headers = message.headers.into_iter();
                let seq = state.next();
                let kept = state.keep(seq, message.key.map(Key::new), message.body);
                kept.headers = headers.map(|(k, v)| (k.into(), v.into())).collect();
            }
        });
        Ok(())
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        let mut state = self.0.lock();
        if let Some(journal) = state.journal.take() {
            // Another process has done all that was done.
            state.read(&journal.path);
            state.journal = Some(journal);
        }
        Ok(Some(state.messages.len() as u64))
    }

    async fn child(&self) -> Option<Command> {
        let journal = self.0.lock().hand_over();
        super::as_a_router(self.0.router, &journal)
    }

    async fn fault(&self, fault: Fault) -> Result<(), String> {
        let lease = self.0.features.lease.unwrap_or_default();
        self.0.change(|state| match fault {
            Fault::Cut => state.disconnect_all(),
            Fault::Away => state.trouble = Some("the broker cannot be reached"),
            Fault::Stop | Fault::Kill => {
                state.disconnect_all();
                state.trouble = Some("the broker is not running");
            }
            Fault::Back | Fault::Start | Fault::RightPassword => state.trouble = None,
            Fault::LoseAck => state.acks_to_lose += 1,
            Fault::Redeliver => state.redeliver(),
            Fault::EndLeases => state.take_back(|_| true),
            Fault::LoseRenewals => state.renewals_lost_until = Some(Instant::now() + 2 * lease),
            Fault::WrongPassword => {
                state.disconnect_all();
                state.trouble = Some("the password is wrong; set the right one");
            }
            Fault::DeleteQueue => {
                state.disconnect_all();
                state.messages.clear();
                state.line.clear();
                state.trouble = Some("there is no such queue; create it");
            }
            Fault::CreateQueue => state.trouble = None,
        });
        Ok(())
    }
}

pub(crate) struct BadSource {
    name: Arc<str>,
    broker: Arc<Broker>,
    connection: Option<u64>,
}

impl BadSource {
    fn error(&self, text: &str) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: text.to_owned(),
            permanent: false,
        }
    }

    /// The open connection, or a new one. One that was cut is told once.
    fn connection(&mut self) -> Result<u64, SourceError> {
        let mut state = self.broker.lock();
        if let Some(trouble) = state.trouble {
            drop(state);
            return Err(self.error(trouble));
        }
        match self.connection {
            Some(open) if state.connections.contains(&open) => Ok(open),
            Some(_) => {
                drop(state);
                self.connection = None;
                Err(self.error("the connection was cut"))
            }
            None => {
                let new = state.next();
                state.connections.insert(new);
                self.connection = Some(new);
                Ok(new)
            }
        }
    }

    fn received(&self, handed: &[(u64, u64)]) -> Vec<Received<Receipt>> {
        let mut state = self.broker.lock();
        let batch = BatchId(state.next());
        let received = |(seq, delivery): &(u64, u64)| {
            let kept = state.messages.get(seq)?;
            Some(Received {
                identity: Identity {
                    source: self.name.clone(),
                    id: BrokerId::Sequence(*seq),
                },
                key: kept.key.clone(),
                tenant: None,
                position: Some(*seq),
                batch,
                body: kept.body.clone(),
                headers: kept.headers.clone(),
                receipt: Receipt {
                    seq: *seq,
                    delivery: *delivery,
                },
            })
        };
        handed.iter().filter_map(received).collect()
    }
}

impl Drop for BadSource {
    /// A connection ends with its process, however that ends.
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.broker.change(|state| state.disconnect(connection));
        }
    }
}

impl Source for BadSource {
    type Receipt = Receipt;
    type Settler = BadSettler;

    fn features(&self) -> Features {
        self.broker.features.clone()
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        let mut changed = self.broker.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let connection = self.connection()?;
            let again = match self.broker.hand_out(connection, &room) {
                Ok(handed) => return Ok(self.received(&handed)),
                Err(again) => again,
            };
            match again {
                Some(at) => tokio::select! {
                    _ = changed.changed() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => drop(changed.changed().await),
            }
        }
    }

    fn settler(&self) -> BadSettler {
        BadSettler(self.broker.clone())
    }

    async fn close(self) {}
}

#[derive(Clone)]
pub(crate) struct BadSettler(Arc<Broker>);

impl Settler for BadSettler {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        // On its way to the broker: whatever happens meanwhile happens before it arrives.
        tokio::task::yield_now().await;
        if self.0.features.confirmed_acks && self.0.loses_ack() {
            let lost = |_| Err(SettleError::Again("no answer".to_owned()));
            return receipts.into_iter().map(lost).collect();
        }
        self.0.settle(&receipts, |state, seq| {
            if state.acks_to_lose > 0 {
                state.acks_to_lose -= 1;
            } else {
                state.acked(seq);
            }
        })
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        tokio::task::yield_now().await;
        let ordered = self.0.features.ordered_return;
        self.0.settle(&receipts, |state, seq| {
            let kept = state.messages.get_mut(&seq).expect("it is out");
            kept.out = None;
            kept.not_before = (!delay.is_zero()).then(|| Instant::now() + delay);
            state.line.push_back(seq);
            if ordered {
                state.line.make_contiguous().sort_unstable();
            }
        })
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let none = |_| Err(SettleError::Lost("there is no dead letter here".to_owned()));
        receipts.into_iter().map(none).collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        tokio::task::yield_now().await;
        let now = Instant::now();
        if self.0.lock().renewals_lost_until.is_some_and(|at| at > now) {
            let lost = |_| Err(SettleError::Again("no answer".to_owned()));
            return receipts.into_iter().map(lost).collect();
        }
        let until = self.0.features.lease.map(|lease| now + lease);
        self.0.settle(&receipts, |state, seq| {
            let kept = state.messages.get_mut(&seq).expect("it is out");
            if let Some(loan) = &mut kept.out {
                loan.until = until;
            }
        })
    }
}
