//! The embedded queue as the suite's subject: real files in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use keylane_router::conformance::{Published, Queue, Subject};
use keylane_router::embedded::{DECLARED, Db, EmbeddedSource, NewMessage, Options};
use keylane_router::message::Key;
use keylane_router::plan::{Instances, Keyless, SourcePlan};
use keylane_router::source::Features;
use keylane_router::store::Store;

const QUEUE: &str = "q";

pub(crate) struct Embedded;

pub(crate) struct EmbeddedQueue {
    folder: PathBuf,
    /// Goes with the queue, where the folder is its own.
    owned: Option<tempfile::TempDir>,
    db: Mutex<Option<Db>>,
    published: AtomicU64,
}

impl Subject for Embedded {
    type Queue = EmbeddedQueue;

    fn features(&self) -> Features {
        DECLARED.features
    }

    async fn queue(&self) -> Result<EmbeddedQueue, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut queue = EmbeddedQueue::open(folder.path());
        queue.owned = Some(folder);
        Ok(queue)
    }
}

fn open(folder: &Path) -> Result<Db, String> {
    Db::open(folder, Options::default()).map_err(|error| error.to_string())
}

impl EmbeddedQueue {
    /// The queue in this folder.
    pub(crate) fn open(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            owned: None,
            db: Mutex::new(None),
            published: AtomicU64::new(0),
        }
    }

    /// The database, opened again if it was closed for a process of its own.
    fn db(&self) -> Result<Db, String> {
        let mut db = self.db.lock().expect("no panic while locked");
        if db.is_none() {
            *db = Some(open(&self.folder)?);
        }
        Ok(db.clone().expect("it is open"))
    }
}

impl Queue for EmbeddedQueue {
    type Source = EmbeddedSource;

    async fn connect(&self, name: Arc<str>, plan: &SourcePlan) -> Result<EmbeddedSource, String> {
        if plan.instances == Instances::Many {
            // Another process would open the folder itself.
            open(&self.folder)?;
        }
        let source = self.db()?.source(name, QUEUE, Keyless::Serial).await;
        source.map_err(|error| error.to_string())
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        let new = |message: Published| {
            let n = self.published.fetch_add(1, Ordering::Relaxed);
            let headers = message.headers.into_iter();
            NewMessage {
                headers: headers.map(|(k, v)| (k.into(), v.into())).collect(),
                ..NewMessage::new(n.to_string(), message.key.map(Key::new), message.body)
            }
        };
        let messages = messages.into_iter().map(new).collect();
        let published = self.db()?.publish(QUEUE, messages, true).await;
        published.map(drop).map_err(|error| error.to_string())
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        let queues = self.db()?.queues();
        Ok(Some(queues.iter().map(|queue| queue.depth).sum()))
    }

    fn store(&self) -> Option<Arc<dyn Store>> {
        let db = self.db().ok()?;
        Some(Arc::new(db.store()))
    }

    async fn child(&self) -> Option<Command> {
        let db = self.db.lock().expect("no panic while locked").take();
        if let Some(db) = db {
            db.close().await;
        }
        super::as_a_router("router_on_the_embedded_queue", &self.folder)
    }
}
