//! The embedded queue as a source: waits for messages, claims them, settles them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::Shared;
use super::acks;
use super::claim::{Claimed, Reader};
use super::clock::Moment;
use super::queue::{Queue, Reading};
use super::schema::classify;
use super::stores;
use super::writer::{Failure, Tx, Write};
use crate::machine;
use crate::message::{BrokerId, Identity};
use crate::source::{
    BatchId, Declared, Features, Order, Received, Room, SettleError, Settler, Several, Source,
    SourceError,
};

/// What the embedded queue promises.
pub const DECLARED: Declared = Declared {
    name: "embedded",
    features: Features {
        kind: "embedded",
        order: Order::Kept,
        identity: true,
        ordered_return: true,
        delayed_return: true,
        key_lock: true,
        dead_letter: false,
        lease: None,
        longest_loan: None,
        confirmed_acks: true,
        positions: true,
        settles: 0,
        keyless_serial: true,
        several: Several::OneOwner,
    },
    key_from: "its own column",
    why_not_more: "one process owns the file, so there is no second instance; `--standby` waits for the owner's end. Dead letters are in the same file, in the router's own store.",
};

/// What settles one message: its sequence, and the claim it came with, so that a receipt of an
/// earlier loan settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    seq: u64,
    claim: u64,
}

/// One queue of the file, read under a source's name. Made by [`super::Db::source`].
///
/// Several sources may read one queue: the locks of keys belong to the queue.
#[derive(Debug)]
pub struct EmbeddedSource {
    name: Arc<str>,
    queue: Arc<Queue>,
    reading: Arc<Reading>,
    shared: Arc<Shared>,
    events: watch::Receiver<u64>,
    /// The last claim failed.
    failed: bool,
    /// The queue goes by the lanes of whoever reads this.
    told: bool,
}

impl EmbeddedSource {
    pub(super) fn new(name: Arc<str>, queue: Arc<Queue>, shared: Arc<Shared>) -> Self {
        Self {
            events: queue.events(),
            name,
            reading: Reading::new(queue.clone()),
            queue,
            shared,
            failed: false,
            told: false,
        }
    }

    /// One claim, on a thread that may block. Dropped half-way, what it claimed goes back.
    async fn claim(&self, room: Room) -> Result<Claim, SourceError> {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let claim = machine::blocking(&*self.shared.machine, move || {
            let mut reader = queue.reader.lock().expect("no panic while claiming");
            let reader = match &mut *reader {
                Some(reader) => reader,
                empty => empty.insert(Reader::open(&shared.file, shared.epoch)?),
            };
            let claimed = reader.claim(&queue, &room, &*shared.machine)?;
            Ok(Claim {
                queue: queue.clone(),
                shared: shared.clone(),
                claimed,
            })
        });
        match claim.await {
            Ok(Ok(claim)) => Ok(claim),
            Ok(Err(error)) => Err(self.error(&error)),
            Err(panic) => Err(SourceError {
                source_name: self.name.clone(),
                text: format!("reading the queue panicked: {panic}"),
                permanent: false,
            }),
        }
    }

    fn error(&self, error: &rusqlite::Error) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: format!("{}: {}", self.shared.file.display(), classify(error)),
            permanent: false,
        }
    }

    /// Ends when a claim may find something.
    async fn wait(&mut self) {
        loop {
            // Before the look at the shelf: what happens after it counts as a change.
            self.events.borrow_and_update();
            let now = self.shared.machine.now();
            let (keyless, codes) = (self.queue.keyless(), self.queue.codes());
            let due = {
                let mut shelf = self.queue.shelf();
                if shelf.may_claim(now) || shelf.is_outdated(keyless, &codes) {
                    return;
                }
                shelf.next_due()
            };
            let changed = self.events.changed();
            match due {
                Some(due) => tokio::select! {
                    biased;
                    _ = changed => {}
                    () = self.shared.machine.sleep_until(due) => {}
                },
                // The sender lives as long as the queue, which we hold.
                None => drop(changed.await),
            }
        }
    }

    /// Rows that cannot be read go to the dead letters; they block nobody meanwhile.
    fn bury(&self, poisoned: &[u64]) {
        for seq in poisoned {
            let identity = self.identity(*seq);
            tracing::warn!(queue = %self.queue.name, seq, "a row cannot be read and becomes a dead letter");
            stores::bury(&self.shared, self.queue.clone(), identity, *seq);
        }
    }

    fn identity(&self, seq: u64) -> Identity {
        Identity {
            source: self.name.clone(),
            id: BrokerId::Sequence(seq),
        }
    }

    fn hand_out(&self, claim: &mut Claim) -> Vec<Received<Receipt>> {
        let batch = BatchId(self.shared.batches.fetch_add(1, Ordering::Relaxed));
        let number = claim.claimed.claim;
        let messages = std::mem::take(&mut claim.claimed.messages);
        messages
            .into_iter()
            .map(|message| Received {
                identity: self.identity(message.seq),
                key: message.key,
                tenant: None,
                position: Some(message.seq),
                batch,
                body: message.body,
                headers: message.headers,
                receipt: Receipt {
                    seq: message.seq,
                    claim: number,
                },
            })
            .collect()
    }
}

impl Source for EmbeddedSource {
    type Receipt = Receipt;
    type Settler = EmbeddedSettler;

    fn features(&self) -> Features {
        DECLARED.features
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some(self.queue.name.clone())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        if let Some(lanes) = room.lanes.clone()
            && !std::mem::replace(&mut self.told, true)
        {
            self.queue.set_lanes(lanes);
        }
        loop {
            let failed = self.failed;
            if !failed {
                self.wait().await;
            }
            let claim = self.claim(room.clone()).await;
            self.failed = claim.is_err();
            let mut claim = claim?;
            self.bury(&claim.claimed.poisoned);
            // No await from here on: a claim is either dropped whole or handed out whole.
            let received = self.hand_out(&mut claim);
            // After a failure nothing is an answer, too: the file can be read again.
            if failed || !received.is_empty() {
                return Ok(received);
            }
        }
    }

    fn settler(&self) -> EmbeddedSettler {
        EmbeddedSettler {
            queue: self.queue.clone(),
            reading: self.reading.clone(),
            shared: self.shared.clone(),
        }
    }

    async fn close(self) {}
}

/// What was claimed and not handed out yet: dropped, it goes back to its place.
struct Claim {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    claimed: Claimed,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.claimed.messages.is_empty() {
            return;
        }
        let now = self.shared.machine.now();
        let mut shelf = self.queue.shelf();
        for message in &self.claimed.messages {
            let back = shelf.give_back(message.seq, self.claimed.claim, None, now);
            debug_assert!(back.is_ok(), "only the claim itself could settle it");
        }
        drop(shelf);
        self.queue.wake();
    }
}

/// Settles what an [`EmbeddedSource`] handed out.
///
/// An ack is submitted by the call, before its future is awaited: acks become durable in the order
/// of the calls.
#[derive(Clone, Debug)]
pub struct EmbeddedSettler {
    queue: Arc<Queue>,
    reading: Arc<Reading>,
    shared: Arc<Shared>,
}

impl Settler for EmbeddedSettler {
    type Receipt = Receipt;

    fn ack(
        &self,
        receipts: Vec<Receipt>,
    ) -> impl Future<Output = Vec<Result<(), SettleError>>> + Send {
        let moment = Moment::of(&*self.shared.machine);
        let mut seqs = Vec::with_capacity(receipts.len());
        let alone = self.reading.is_alone();
        let mut unlocked = alone;
        let results: Vec<_> = {
            let mut shelf = self.queue.shelf();
            let mut ack = |receipt: &Receipt| {
                let has_row = shelf.acking(receipt.seq, receipt.claim, alone, moment.now)?;
                match has_row {
                    true => seqs.push(receipt.seq),
                    false => unlocked = true,
                }
                Ok(has_row)
            };
            receipts.iter().map(&mut ack).collect()
        };
        if unlocked {
            self.queue.wake();
        }
        let durable = self.delete(seqs, moment);
        async move {
            let written = durable.await;
            let settle = |result: Result<bool, SettleError>| match result {
                Ok(true) => written.clone(),
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            results.into_iter().map(settle).collect()
        }
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        let now = self.shared.machine.now();
        let hold = (!delay.is_zero()).then(|| now + delay);
        let results = {
            let mut shelf = self.queue.shelf();
            let mut back =
                |receipt: &Receipt| shelf.give_back(receipt.seq, receipt.claim, hold, now);
            receipts.iter().map(&mut back).collect()
        };
        self.queue.wake();
        results
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let none = || SettleError::Again("an embedded queue has no dead letter of its own".into());
        receipts.iter().map(|_| Err(none())).collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let shelf = self.queue.shelf();
        let stands = |receipt: &Receipt| match shelf.is_open(receipt.seq, receipt.claim) {
            true => Ok(()),
            false => Err(SettleError::Lost(format!(
                "message {} was settled already",
                receipt.seq
            ))),
        };
        receipts.iter().map(stands).collect()
    }
}

impl EmbeddedSettler {
    /// Submits the deletion; the future says whether it is on disk.
    fn delete(
        &self,
        seqs: Vec<u64>,
        moment: Moment,
    ) -> impl Future<Output = Result<(), SettleError>> + Send + use<> {
        let (send, receive) = oneshot::channel();
        match seqs.is_empty() {
            true => drop(send.send(Ok(()))),
            false => self.shared.writer.submit(Ack {
                queue: self.queue.clone(),
                seqs,
                deleted: None,
                moment,
                send,
            }),
        }
        async move {
            let closed = |_| Err(SettleError::Again("the queue's writer has ended".into()));
            receive.await.unwrap_or_else(closed)
        }
    }
}

/// Ends messages: they are written down as acked, or deleted at once where there is no room for
/// that.
struct Ack {
    queue: Arc<Queue>,
    seqs: Vec<u64>,
    /// How many rows were deleted, if they were.
    deleted: Option<usize>,
    moment: Moment,
    send: oneshot::Sender<Result<(), SettleError>>,
}

impl Write for Ack {
    fn bytes(&self) -> usize {
        self.seqs.len() * 256
    }

    fn grows(&self) -> bool {
        false
    }

    fn acks(&self) -> Option<usize> {
        Some(self.seqs.len())
    }

    fn moment(&self) -> Moment {
        self.moment
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
        self.deleted = match tx.no_room {
            true => Some(delete_rows(tx, &self.queue, &self.seqs)?),
            false => {
                acks::add(tx.sql, self.queue.n, &self.seqs)?;
                *tx.acked += self.seqs.len();
                None
            }
        };
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<(), Failure>) {
        let result =
            result.map_err(|failure| SettleError::Again(failure.into_store_error().to_string()));
        match result {
            Ok(()) => {
                let mut shelf = self.queue.shelf();
                match self.deleted {
                    Some(_) => shelf.deleted(&self.seqs, self.moment.now),
                    None => shelf.acked(&self.seqs, self.moment.now),
                }
                drop(shelf);
                let ended = self.deleted.unwrap_or(self.seqs.len());
                self.queue.add_depth(-(ended as i64));
            }
            Err(_) => self.queue.shelf().ack_failed(&self.seqs),
        }
        self.queue.wake();
        // Nobody listens any more: the deletion stands.
        let _ = self.send.send(result);
    }
}

/// Deletes rows of a queue; answers how many were there.
pub(super) fn delete_rows(
    tx: &Tx<'_>,
    queue: &Queue,
    seqs: &[u64],
) -> Result<usize, rusqlite::Error> {
    let mut delete = tx.sql.prepare_cached(&queue.sql.delete)?;
    let mut deleted = 0;
    for seq in seqs {
        deleted += delete.execute([*seq as i64])?;
    }
    Ok(deleted)
}

/// Which queue a source reads, by the source's name.
pub(super) type SourceQueues = HashMap<Arc<str>, Arc<Queue>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::shelf::Limits;
    use crate::machine::RealMachine;

    #[test]
    fn an_ack_that_is_not_on_disk_leaves_the_depth_as_it_is() {
        let queue = Arc::new(Queue::new(1, "q".into(), 3, 3, Limits::USUAL));
        let finish = |result| {
            let ack = Ack {
                queue: queue.clone(),
                seqs: vec![1],
                // It was written down, and then the commit failed or did not.
                deleted: None,
                moment: Moment::of(&RealMachine),
                send: oneshot::channel().0,
            };
            Box::new(ack).finish(result);
            queue.depth()
        };
        let full = Failure::Store(crate::store::StoreError::Full("no room".into()));
        assert_eq!(finish(Err(full)), 3);
        assert_eq!(finish(Ok(())), 2);
    }
}
