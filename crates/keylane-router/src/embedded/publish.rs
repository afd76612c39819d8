//! Publishing: a whole request is stored once, or nothing of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Db;
use super::clock::{Epoch, Moment};
use super::dedup::{BodyHash, IdHash};
use super::queue::Queue;
use super::writer::{Failure, Tx, Write};
use crate::message::Key;
use crate::store::StoreError;

/// A message to be published.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// The publisher's id.
    pub id: Arc<str>,
    /// What the publish is known by when it is repeated; `None` = the id.
    pub dedup_id: Option<Arc<str>>,
    /// The ordering key, `None` for a keyless message.
    pub key: Option<Key>,
    /// The pool it asks for; a key is ordered within its pool.
    pub pool: Option<Arc<str>>,
    /// Handed out as [`crate::source::Received::headers`].
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The raw body.
    pub body: Bytes,
    /// Not handed out before this has passed; its key waits with it.
    pub delay: Duration,
}

impl NewMessage {
    /// A message with this id, key and body, for the default pool and without delay.
    pub fn new(id: impl Into<Arc<str>>, key: Option<Key>, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            dedup_id: None,
            key,
            pool: None,
            headers: Vec::new(),
            body: body.into(),
            delay: Duration::ZERO,
        }
    }
}

/// What a publish came to. All of it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The ids of the request, in its order, repeated ones included.
    pub ids: Vec<Arc<str>>,
    /// Those of them that were published before, with the same body, and not stored again.
    pub duplicates: Vec<Arc<str>>,
}

/// A publish that stored nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no such queue.
    #[error("there is no queue `{0}`; configure a source for it or create it")]
    UnknownQueue(Arc<str>),
    /// The id was published a moment ago with another body.
    #[error(
        "id `{id}` was published before with another body; nothing of the request was stored; use a new id"
    )]
    Conflict {
        /// Which id.
        id: Arc<str>,
    },
    /// It could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Db {
    /// Stores a request in a queue, whole or not at all; answers when it is on disk.
    ///
    /// A message whose deduplication id was published to the queue within the window is stored
    /// once: with the same body it is accepted and listed in [`Published::duplicates`], with
    /// another the request is refused.
    pub async fn publish(
        &self,
        queue: &str,
        messages: Vec<NewMessage>,
        create: bool,
    ) -> Result<Published, PublishError> {
        let queue = match self.find_queue(queue) {
            Some(queue) => queue,
            None if create => self.create_queue(queue).await?,
            None => return Err(PublishError::UnknownQueue(queue.into())),
        };
        let (send, receive) = oneshot::channel();
        let moment = Moment::of(&*self.shared.machine);
        let publish = Publish::new(queue, messages, self.shared.epoch, moment, send);
        self.shared.writer.submit(publish);
        let closed = |_| Err(PublishError::Store(StoreError::Closed));
        receive.await.unwrap_or_else(closed)
    }
}

/// One request on its way to the disk.
struct Publish {
    queue: Arc<Queue>,
    /// With the hashes, made on the caller's thread to spare the writer.
    messages: Vec<(NewMessage, IdHash, BodyHash)>,
    bytes: usize,
    epoch: Epoch,
    moment: Moment,
    /// By index.
    duplicates: Vec<usize>,
    newest: u64,
    send: oneshot::Sender<Result<Published, PublishError>>,
}

impl Publish {
    fn new(
        queue: Arc<Queue>,
        messages: Vec<NewMessage>,
        epoch: Epoch,
        moment: Moment,
        send: oneshot::Sender<Result<Published, PublishError>>,
    ) -> Self {
        let hash = |message: NewMessage| {
            let id = message.dedup_id.as_ref().unwrap_or(&message.id);
            let id = IdHash::of(queue.n, id);
            let body = BodyHash::of(&message.body);
            (message, id, body)
        };
        let messages: Vec<_> = messages.into_iter().map(hash).collect();
        Self {
            bytes: messages
                .iter()
                .map(|(message, ..)| message.body.len() + 256)
                .sum(),
            queue,
            messages,
            epoch,
            moment,
            duplicates: Vec::new(),
            newest: 0,
            send,
        }
    }

    fn published(&self) -> Published {
        let id = |at: usize| self.messages[at].0.id.clone();
        Published {
            ids: (0..self.messages.len()).map(id).collect(),
            duplicates: self.duplicates.iter().copied().map(id).collect(),
        }
    }
}

impl Write for Publish {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn grows(&self) -> bool {
        true
    }

    fn moment(&self) -> Moment {
        self.moment
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
        self.duplicates.clear();
        for (at, (message, id, body)) in self.messages.iter().enumerate() {
            match tx.dedup.find(*id, self.moment.now) {
                Some(before) if before == *body => self.duplicates.push(at),
                Some(_) => return Err(Failure::Conflict(message.id.clone())),
                None => {
                    self.newest = tx.next_seq();
                    let due = self.epoch.stored_due(self.moment.now, message.delay);
                    insert(tx, &self.queue, self.newest, message, due)?;
                    tx.dedup.add(tx.sql, *id, *body, self.moment)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<(), Failure>) {
        let stored = self.messages.len() - self.duplicates.len();
        let answer = match result {
            Ok(()) => Ok(self.published()),
            Err(Failure::Conflict(id)) => Err(PublishError::Conflict { id }),
            Err(failure) => Err(PublishError::Store(failure.into_store_error())),
        };
        if answer.is_ok() && stored > 0 {
            self.queue.add_depth(stored as i64);
            self.queue.shelf().published(self.newest);
            self.queue.wake();
        }
        // Nobody listens any more: the messages stay published.
        let _ = self.send.send(answer);
    }
}

fn insert(
    tx: &Tx<'_>,
    queue: &Queue,
    seq: u64,
    message: &NewMessage,
    due: i64,
) -> Result<(), rusqlite::Error> {
    let delay = message.delay.as_nanos().div_ceil(1_000_000) as i64;
    let delay = (delay > 0).then_some(delay);
    let due = delay.map(|_| due);
    let headers = (!message.headers.is_empty())
        .then(|| serde_json::to_string(&text_pairs(&message.headers)).expect("pairs of strings"));
    tx.sql.prepare_cached(&queue.sql.insert)?.execute((
        seq as i64,
        message.pool.as_deref(),
        message.key.as_ref().map(Key::as_bytes),
        due,
        delay,
        headers,
        &message.body[..],
    ))?;
    Ok(())
}

/// Headers as the file has them.
pub(super) fn text_pairs(headers: &[(Arc<str>, Arc<str>)]) -> Vec<(&str, &str)> {
    headers
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect()
}
