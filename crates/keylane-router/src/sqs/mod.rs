//! A queue of Amazon SQS as a source: FIFO queues in order per group, standard queues as they come.
//!
//! `api` is SQS as we use it, `poll` asks for messages, [`SqsSource`] hands them out, `settle` says
//! what became of them.

mod api;
mod options;
mod poll;
mod settle;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use tokio::task::JoinSet;

use self::api::{Api, CallError};
use self::poll::{Lent, Polls};
use crate::message::{BrokerId, Identity, Key};
use crate::source::{
    BatchId, Declared, Features, Order, Received, Room, Settler, Several, Source, SourceError,
};

pub use options::{Credentials, KeyFrom, Options};
pub use settle::{Receipt, SqsSettler};

/// How long the end of a source waits for polls that are about to be answered.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// What a FIFO queue promises.
pub const FIFO: Declared = Declared {
    name: "SQS FIFO",
    features: Features {
        kind: "sqs",
        order: Order::Kept,
        identity: true,
        ordered_return: true,
        delayed_return: true,
        key_lock: true,
        dead_letter: false,
        lease: Some(Duration::from_millis(22_500)),
        longest_loan: Some(options::LONGEST_LOAN),
        confirmed_acks: true,
        positions: true,
        settles: options::POLLERS * api::BATCH,
        keyless_serial: true,
        several: Several::KeyLock,
    },
    key_from: "`MessageGroupId`",
    why_not_more: "a redrive policy counts messages that only waited behind another, and moves them out of their order: it is refused unless accepted; dead letters are in the router's own store. The lease is three quarters of `visibility_timeout`, renewed for 12 hours at the most; then a key goes back.",
};

/// What a standard queue promises.
pub const STANDARD: Declared = Declared {
    name: "SQS standard",
    features: Features {
        order: Order::NoKeys,
        ordered_return: false,
        key_lock: false,
        positions: false,
        keyless_serial: false,
        several: Several::Nothing,
        ..FIFO.features
    },
    key_from: "none; with `key = \"group-id\"` the `MessageGroupId`",
    why_not_more: "SQS promises no order on a standard queue, and no message only once. Messages run side by side, and their groups take turns; with `key = \"group-id\"` those of a group run one after the other as they arrive.",
};

/// An option that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {text}")]
pub struct OptionsError {
    /// Which.
    pub option: &'static str,
    /// What is wrong with it, and what would be right.
    pub text: String,
}

/// A queue of SQS, read under a source's name.
///
/// SQS is asked by several polls at once while there is room for what they may bring, and one while
/// there is nothing to be had. They go on while nobody calls `receive`, within the room that they
/// were given.
pub struct SqsSource {
    name: Arc<str>,
    api: Arc<Api>,
    polls: Polls,
    /// Answered, and not handed out yet.
    ready: VecDeque<Batch>,
    batches: u64,
    /// Whether the queue was seen to be one that can be read in order.
    checked: bool,
    /// A poll failed, and none was answered since.
    failed: bool,
    /// What is given back without having been handed out.
    returning: JoinSet<()>,
}

/// The messages of one answer, or what is left of them.
struct Batch {
    id: BatchId,
    lent: Lent,
    messages: VecDeque<Message>,
}

impl SqsSource {
    /// A source that reads this queue. It reaches for SQS when it is read.
    ///
    /// # Errors
    /// All options that cannot be.
    pub fn new(name: impl Into<Arc<str>>, options: Options) -> Result<Self, Vec<OptionsError>> {
        let problems = options.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let api = Arc::new(Api::new(options));
        Ok(Self {
            name: name.into(),
            polls: Polls::new(api.clone()),
            // Where nothing is promised nothing can be broken.
            checked: !api.options.is_fifo() || api.options.accept_redrive,
            failed: false,
            api,
            ready: VecDeque::new(),
            batches: 0,
            returning: JoinSet::new(),
        })
    }

    /// Looks whether the queue can be read in order, if SQS can be reached: to be called at
    /// start-up, so that what is wrong with it is known then. It is looked at again before the
    /// first message is asked for.
    ///
    /// # Errors
    /// When the queue must not be read as it is.
    pub async fn check(&mut self) -> Result<(), SourceError> {
        match self.look().await {
            Err(error) if error.permanent => Err(error),
            _ => Ok(()),
        }
    }

    async fn look(&mut self) -> Result<(), SourceError> {
        if self.checked {
            return Ok(());
        }
        let policy = self.api.redrive_policy().await;
        if let Some(policy) = policy.map_err(|error| self.error(error))? {
            let queue = &self.api.options.queue;
            return Err(SourceError {
                source_name: self.name.clone(),
                text: format!(
                    "queue `{queue}` has a redrive policy ({policy}). SQS counts every receive, also of messages that only waited behind another of their group and were never called, and moves them out of their order; remove the policy, or accept that with accept_redrive = true"
                ),
                permanent: true,
            });
        }
        self.checked = true;
        Ok(())
    }

    fn error(&self, error: CallError) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            permanent: false,
            text: error.text,
        }
    }

    /// The next messages that are still ours for long enough, if there are any.
    fn hand_out(&mut self, room: &Room) -> Option<Vec<Received<Receipt>>> {
        while let Some(mut batch) = self.ready.pop_front() {
            if !batch.lent.is_fresh() {
                self.give_back(batch.messages);
                continue;
            }
            let received = self.take(&mut batch, room);
            self.give_back_the_rest_of(&received, &mut batch);
            if !batch.messages.is_empty() {
                self.ready.push_front(batch);
            }
            return Some(received);
        }
        None
    }

    /// A group is handed out as one or not at all: if its first messages are returned, what lies here
    /// of it must not come before them. SQS keeps it until they are settled.
    fn give_back_the_rest_of(&mut self, received: &[Received<Receipt>], batch: &mut Batch) {
        if !self.api.options.is_fifo() || batch.messages.is_empty() {
            return;
        }
        let handed_out: HashSet<&[u8]> = received
            .iter()
            .filter_map(|received| received.key.as_ref().map(Key::as_bytes))
            .collect();
        let messages = std::mem::take(&mut batch.messages).into_iter();
        let (rest, others) = messages.partition(|message| {
            let attributes = message.attributes.as_ref();
            let group =
                attributes.and_then(|all| all.get(&MessageSystemAttributeName::MessageGroupId));
            group.is_some_and(|group| handed_out.contains(group.as_bytes()))
        });
        batch.messages = others;
        self.give_back(rest);
    }

    /// Takes what there is room for; one in any case.
    fn take(&self, batch: &mut Batch, room: &Room) -> Vec<Received<Receipt>> {
        let mut received = Vec::new();
        let mut bytes = 0;
        while let Some(message) = batch.messages.front() {
            bytes += message.body().map_or(0, str::len);
            let fits = received.len() < room.messages && bytes <= room.bytes;
            if !received.is_empty() && !fits {
                break;
            }
            let message = batch.messages.pop_front().expect("it was there just now");
            received.push(self.received(message, batch.id));
        }
        received
    }

    fn received(&self, message: Message, batch: BatchId) -> Received<Receipt> {
        let mut attributes = message.attributes.unwrap_or_default();
        let group = attributes.remove(&MessageSystemAttributeName::MessageGroupId);
        let (key, tenant) = match (group, self.has_keys()) {
            (Some(group), true) => (Some(Key::new(group)), None),
            (group, _) => (None, group.map(Arc::from)),
        };
        let trace = attributes.remove(&MessageSystemAttributeName::AwsTraceHeader);
        let trace = trace.map(|trace| (Arc::from("x-amzn-trace-id"), Arc::from(trace)));
        let texts = message.message_attributes.unwrap_or_default();
        let texts = texts.into_iter().filter_map(|(name, value)| {
            let text = value.string_value?;
            Some((Arc::from(name), Arc::from(text)))
        });
        let position = attributes.get(&MessageSystemAttributeName::SequenceNumber);
        Received {
            identity: Identity {
                source: self.name.clone(),
                id: BrokerId::Text(message.message_id.unwrap_or_default().into()),
            },
            position: position.and_then(|number| low_bits(number)),
            batch,
            body: message.body.unwrap_or_default().into(),
            headers: texts.chain(trace).collect(),
            receipt: Receipt {
                handle: message.receipt_handle.unwrap_or_default().into(),
                key: key.clone(),
            },
            key,
            tenant,
        }
    }

    fn has_keys(&self) -> bool {
        let options = &self.api.options;
        options.is_fifo() || options.key == KeyFrom::GroupId
    }

    /// Ends the loans of what nobody was handed, meanwhile.
    fn give_back(&mut self, messages: VecDeque<Message>) {
        let receipt = |message: Message| Receipt {
            handle: message.receipt_handle.unwrap_or_default().into(),
            key: None,
        };
        let receipts = messages.into_iter().map(receipt).collect();
        let settler = self.settler();
        self.returning.spawn(async move {
            // What does not go back now does so when its loan ends.
            let _ = settler.give_back(receipts, Duration::ZERO).await;
        });
    }

    fn keep(&mut self, lent: Lent, messages: Vec<Message>) {
        self.batches += 1;
        self.ready.push_back(Batch {
            id: BatchId(self.batches),
            lent,
            messages: messages.into(),
        });
    }
}

impl Source for SqsSource {
    type Receipt = Receipt;
    type Settler = SqsSettler;

    fn features(&self) -> Features {
        self.api.options.features()
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some(self.api.options.queue_name().into())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        while self.returning.try_join_next().is_some() {}
        self.look().await?;
        loop {
            // No await from here on to the return: what a poll brought stays here until it is
            // handed out.
            if let Some(received) = self.hand_out(&room) {
                return Ok(received);
            }
            self.polls.start(room.messages);
            match self.polls.next().await {
                Ok((_, messages)) if messages.is_empty() => {
                    if std::mem::take(&mut self.failed) {
                        // Nothing yet, but all is well.
                        return Ok(Vec::new());
                    }
                }
                Ok((lent, messages)) => {
                    self.failed = false;
                    self.keep(lent, messages);
                }
                Err(error) => {
                    self.failed = true;
                    return Err(self.error(error));
                }
            }
        }
    }

    fn settler(&self) -> SqsSettler {
        SqsSettler {
            api: self.api.clone(),
        }
    }

    /// What is given back from now on would be taken again by a poll, and lie here.
    async fn stop_taking(&mut self) {
        for (lent, messages) in self.polls.last_answers(LAST_ANSWERS).await {
            self.keep(lent, messages);
        }
        while let Some(batch) = self.ready.pop_front() {
            self.give_back(batch.messages);
        }
    }

    async fn close(mut self) {
        while self.returning.join_next().await.is_some() {}
    }
}

/// The low 64 of the number's 128 bits. They grow within a group as the number does, but for one
/// step in 2⁶⁴.
fn low_bits(number: &str) -> Option<u64> {
    let number: u128 = number.parse().ok()?;
    u64::try_from(number & u128::from(u64::MAX)).ok()
}

impl std::fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqsSource")
            .field("name", &self.name)
            .field("options", &self.api.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_as_sequence_numbers_do() {
        let numbers = [
            "18849496460467696128",
            "18849496460467696384",
            "18887884384352528128",
        ];
        let positions: Vec<_> = numbers.iter().map(|n| low_bits(n).unwrap()).collect();
        assert!(positions.is_sorted(), "{positions:?}");
        assert_eq!(low_bits("00000000000000000007"), Some(7));
        assert_eq!(low_bits("x"), None);
    }
}
