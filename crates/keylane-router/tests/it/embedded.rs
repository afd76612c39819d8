//! The embedded queue and its stores, on real files.

mod clock;
mod files;
mod model;
mod moves;
mod queue;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_router::embedded::{Db, EmbeddedSource, NewMessage, Options, Receipt};
use keylane_router::message::Key;
use keylane_router::plan::Keyless;
use keylane_router::source::{Received, Room, SettleError, Settler, Source};

/// A data folder with its database open.
struct Bed {
    folder: tempfile::TempDir,
    clock: Arc<clock::TestClock>,
    db: Db,
}

impl Bed {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Options)) -> Self {
        let clock = Arc::new(clock::TestClock::new());
        let mut options = options(&clock);
        change(&mut options);
        let folder = tempfile::tempdir().expect("a temp folder");
        let db = Db::open(folder.path(), options).expect("opens");
        Self { folder, clock, db }
    }

    /// The process ends without a word and comes back.
    async fn restart(self) -> Self {
        let Self { folder, clock, db } = self;
        drop(db);
        // A handle that a test forgot would keep the folder for ever: fail instead.
        let again = Db::open_standby(folder.path(), options(&clock));
        let again = tokio::time::timeout(Duration::from_secs(20), again).await;
        let db = again
            .expect("everything of the old one is dropped")
            .expect("opens again");
        Self { folder, clock, db }
    }

    async fn source(&self, queue: &str) -> EmbeddedSource {
        let source = self.db.source(queue, queue, Keyless::Serial).await;
        source.expect("a source")
    }

    async fn publish(&self, queue: &str, messages: Vec<NewMessage>) {
        let published = self.db.publish(queue, messages, true).await;
        assert!(published.expect("published").duplicates.is_empty());
    }
}

fn options(clock: &Arc<clock::TestClock>) -> Options {
    Options {
        machine: clock.clone(),
        ..Options::default()
    }
}

/// A message whose id and body say which one it is: `a1` is the first of key `a`.
fn message(name: &str) -> NewMessage {
    let key = name.trim_end_matches(|c: char| c.is_ascii_digit());
    NewMessage::new(
        name,
        Some(Key::new(key)),
        Bytes::copy_from_slice(name.as_bytes()),
    )
}

fn messages(names: &[&str]) -> Vec<NewMessage> {
    names.iter().copied().map(message).collect()
}

fn names(received: &[Received<Receipt>]) -> Vec<String> {
    let name = |message: &Received<Receipt>| String::from_utf8_lossy(&message.body).into_owned();
    received.iter().map(name).collect()
}

fn receipts(received: &[Received<Receipt>]) -> Vec<Receipt> {
    received.iter().map(|message| message.receipt).collect()
}

async fn receive(source: &mut EmbeddedSource, messages: usize) -> Vec<Received<Receipt>> {
    let room = Room::new(messages, 1 << 20);
    source.receive(room).await.expect("receives")
}

async fn ack(source: &EmbeddedSource, received: &[Received<Receipt>]) {
    let results = source.settler().ack(receipts(received)).await;
    assert_eq!(results, vec![Ok::<(), SettleError>(()); received.len()]);
}
