//! The contract between the router and a broker: receive a batch, settle what was received.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::message::{Identity, Key};

/// One queue (or set of topics) of one broker, read by one adapter.
pub trait Source: Send + 'static {
    /// What the broker wants to see again when a message is settled.
    type Receipt: Clone + Send + Sync + 'static;
    /// Settles what this source handed out; lives as long as anything is unsettled.
    type Settler: Settler<Receipt = Self::Receipt>;

    /// What this source can and cannot do.
    fn features(&self) -> Features;

    /// The queue (or topic) that is read, as its broker calls it: what spans say of it. `None`
    /// where that is the source's name. Asked once, when the source is added.
    fn destination(&self) -> Option<Arc<str>> {
        None
    }

    /// Waits for messages and takes at most `room` of them, in the source's order.
    ///
    /// What cannot be reached is an error within a minute. After one, an answer without messages says
    /// that all is well again before there are any; a source that says nothing is believed to be
    /// trying for a minute.
    ///
    /// Cancel-safe: a dropped `receive` loses nothing, what it had taken comes again.
    fn receive(
        &mut self,
        room: Room,
    ) -> impl Future<Output = Result<Vec<Received<Self::Receipt>>, SourceError>> + Send;

    /// The settling side, usable from other tasks.
    fn settler(&self) -> Self::Settler;

    /// Nothing more will be received: what is out is settled now, and then the source is closed. A
    /// broker that would hand out again at once what is given back is told here to hand out
    /// nothing; whatever goes back because of the stop does so after this has answered.
    fn stop_taking(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Ends the connection. Everything received has been settled before.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// Ends loans. Receipts come in lane order and their effects become durable in that order.
pub trait Settler: Clone + Send + Sync + 'static {
    /// As in [`Source::Receipt`].
    type Receipt: Clone + Send + Sync + 'static;

    /// The messages are delivered or safe in a store: the broker may forget them. Answers one
    /// result per receipt, when it is durable.
    fn ack(
        &self,
        receipts: Vec<Self::Receipt>,
    ) -> impl Future<Output = Vec<Result<(), SettleError>>> + Send;

    /// The messages go back, to come again in order, not before `delay` has passed.
    fn give_back(
        &self,
        receipts: Vec<Self::Receipt>,
        delay: Duration,
    ) -> impl Future<Output = Vec<Result<(), SettleError>>> + Send;

    /// To the broker's own dead letter; only called where [`Features::dead_letter`] is set.
    fn reject(
        &self,
        receipts: Vec<Self::Receipt>,
    ) -> impl Future<Output = Vec<Result<(), SettleError>>> + Send;

    /// Prolongs the loan of these.
    fn renew(
        &self,
        receipts: Vec<Self::Receipt>,
    ) -> impl Future<Output = Vec<Result<(), SettleError>>> + Send;

    /// How many messages one call to the broker settles. Where it is more than one, what is to be
    /// settled waits for a moment until it fills a call, unless nothing else is out.
    fn batch(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// What this was lent over, where loans end with their connection and not by themselves; only
    /// asked where [`Features::lease`] is set.
    fn bond(&self, receipt: &Self::Receipt) -> Option<Bond> {
        let _ = receipt;
        None
    }
}

/// The connection (or link, or channel) that messages were lent over.
///
/// The source cuts it when the connection ends: all that was lent over it is lost at that moment,
/// wherever it is. The router cuts it when one of these loans ended by the clock: the source then
/// ends the connection, so that the broker gives everything that was out over it again, in order.
#[derive(Clone, Debug, Default)]
pub struct Bond(CancellationToken);

impl Bond {
    /// Of a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether what was lent over it is still ours.
    pub fn holds(&self) -> bool {
        !self.0.is_cancelled()
    }

    /// All that was lent over it is lost.
    pub fn cut(&self) {
        self.0.cancel();
    }

    /// Waits until it is cut, by whomever.
    pub async fn ended(&self) {
        self.0.cancelled().await;
    }
}

/// How much may be taken now.
#[derive(Clone)]
pub struct Room {
    /// At most this many messages; at least 1.
    pub messages: usize,
    /// About this many bytes of bodies; one message may exceed it.
    pub bytes: usize,
    /// How many messages of each lane may be out. Only a source that knows keys and pool codes
    /// before it hands a message out can keep to this; the others ignore it.
    pub lanes: Option<Arc<dyn Lanes>>,
}

impl Room {
    /// Room for so many messages and bytes, with no limit for single lanes.
    pub const fn new(messages: usize, bytes: usize) -> Self {
        Self {
            messages,
            bytes,
            lanes: None,
        }
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room")
            .field("messages", &self.messages)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// The lanes of the router, for a source that locks keys itself.
///
/// Messages of one key whose pool codes mean the same pool are one lane. A source that tells them
/// apart hands them out side by side, and their order is lost.
pub trait Lanes: Send + Sync {
    /// Which pool each pool code means. Returns the same `Arc` until that changes.
    fn codes(&self) -> Arc<PoolCodes>;

    /// How many messages of a key may be out of the lane in this pool at once, at least 1. The
    /// pool is named as in [`Self::codes`].
    fn capacity(&self, pool: &str, key: Option<&Key>) -> usize;
}

/// Which pool each pool code means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolCodes {
    pools: BTreeMap<Arc<str>, Arc<str>>,
    other: Arc<str>,
}

impl PoolCodes {
    /// `other` is the pool of messages that name none, or none of these.
    pub fn new(
        pools: impl IntoIterator<Item = (Arc<str>, Arc<str>)>,
        other: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            pools: pools.into_iter().collect(),
            other: other.into(),
        }
    }

    /// The pool that this code means.
    pub fn pool(&self, code: Option<&str>) -> &Arc<str> {
        let named = code.and_then(|code| self.pools.get(code));
        named.unwrap_or(&self.other)
    }
}

/// Names one poll of a source (FC-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// The name of a header that an adapter adds to a message which must not be called, with the reason:
/// the message becomes a dead letter. For what is wrong outside the body, such as a key of a type that
/// has no text. It is a header so that it stays with the message where that is stored.
pub const MALFORMED: &str = "keylane-malformed";

/// One message as a source hands it out.
#[derive(Clone)]
pub struct Received<R> {
    /// Source plus the broker's own id.
    pub identity: Identity,
    /// The broker's own ordering key, when it has one. Wins over the body's.
    pub key: Option<Key>,
    /// Whose it is, where the broker says so: tenants take turns in their pool, however many
    /// messages each has there. Wins over the body's. All of a key are of one.
    pub tenant: Option<Arc<str>>,
    /// Where the message is in its queue: grows within a key, and is the same when the message
    /// comes again. Looked at only with [`Features::positions`]; without one a message is not
    /// watched.
    pub position: Option<u64>,
    /// Which poll it came with.
    pub batch: BatchId,
    /// The raw body.
    pub body: Bytes,
    /// The broker's own headers or attributes.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// For settling.
    pub receipt: R,
}

// By hand: body, headers and receipt may hold secrets.
impl<R> std::fmt::Debug for Received<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received")
            .field("identity", &self.identity)
            .field("key", &self.key)
            .field("position", &self.position)
            .field("batch", &self.batch)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish_non_exhaustive()
    }
}

/// What a source can do; what it cannot is said at start-up and in the docs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// `embedded`, `sqs`, …
    pub kind: &'static str,
    /// Whether messages of a key come in the order in which they were sent.
    pub order: Order,
    /// The broker's id is stable over redeliveries.
    pub identity: bool,
    /// What was given back comes again before anything behind it.
    pub ordered_return: bool,
    /// A return can be delayed.
    pub delayed_return: bool,
    /// The broker hands out no further message of a key while one of it is out.
    pub key_lock: bool,
    /// The broker has a dead-letter place of its own that was proven to exist.
    pub dead_letter: bool,
    /// How long a loan lasts without renewal; `None` while the connection (or process) lives.
    pub lease: Option<Duration>,
    /// How long a message may be out in all, whatever is renewed; `None` = for ever. What is out for
    /// nearly so long goes back, with everything behind it, where the source takes it in order.
    pub longest_loan: Option<Duration>,
    /// When an ack is answered it took effect. Otherwise it may be lost on its way, and what was
    /// acked is remembered for a while.
    pub confirmed_acks: bool,
    /// [`Received::position`] tells the order that the source promises: the router then counts
    /// first starts that break it (`ordering_violations_total`). `false` where there are no
    /// positions or no order is promised.
    pub positions: bool,
    /// How many settlements are worth being on their way at once: a pool whose concurrency is less
    /// calls on until so many of its messages are delivered and not settled, and a crash repeats as
    /// many more. With 0 that is never more than the concurrency.
    pub settles: usize,
    /// Whether keyless messages run one at a time unless configured.
    pub keyless_serial: bool,
    /// What keeps the order of a key when several instances read the queue.
    pub several: Several,
}

impl Features {
    /// Those of a source that promises nothing but the order of a key: begin with these and say what
    /// yours does.
    pub const fn none(kind: &'static str) -> Self {
        Self {
            kind,
            order: Order::Kept,
            identity: false,
            ordered_return: false,
            delayed_return: false,
            key_lock: false,
            dead_letter: false,
            lease: None,
            longest_loan: None,
            confirmed_acks: false,
            positions: false,
            settles: 0,
            keyless_serial: false,
            several: Several::Nothing,
        }
    }

    /// Whether messages can be given back so that they come again in order, and later.
    pub fn returns(&self) -> bool {
        self.ordered_return && self.delayed_return
    }
}

/// In which order a source's messages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those of a key as they were sent.
    Kept,
    /// The same, while the connection lasts. When it is lost and made anew, what was out may come
    /// behind what follows it.
    UntilReconnect,
    /// Those of a key one after the other, as they arrive. The broker does not promise that they
    /// arrive as they were sent.
    AsItComes,
    /// Side by side: there are no keys.
    NoKeys,
}

/// What keeps the order of a key when several instances read one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Several {
    /// There is only one: whoever has the queue owns it, and a second is refused.
    OneOwner,
    /// One of them is handed messages, the others wait for its end.
    OneActive,
    /// While messages of a key are out, no other instance is handed one of it.
    KeyLock,
    /// Each key belongs to one of them; it moves with nothing of it out.
    KeyOwner,
    /// Each partition belongs to one of them, with all keys in it.
    Partitions,
    /// Nothing: order is promised for one instance only.
    Nothing,
}

impl Several {
    /// Whether several instances may read the queue and each key stays in order.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Self::OneOwner | Self::Nothing)
    }
}

/// A source of this crate as the docs show it.
#[derive(Clone, Debug)]
pub struct Declared {
    /// What it is called.
    pub name: &'static str,
    /// What it promises.
    pub features: Features,
    /// Where a message's key comes from.
    pub key_from: &'static str,
    /// Why it does not promise more, and what it needs for what it promises.
    pub why_not_more: &'static str,
}

/// All sources of this build.
pub fn declared() -> Vec<Declared> {
    vec![
        #[cfg(feature = "embedded")]
        crate::embedded::DECLARED,
        #[cfg(feature = "activemq")]
        crate::activemq::DECLARED_CLASSIC,
        #[cfg(feature = "activemq")]
        crate::activemq::DECLARED_ARTEMIS,
        #[cfg(feature = "rabbitmq")]
        crate::rabbitmq::DECLARED,
        #[cfg(feature = "sqs")]
        crate::sqs::FIFO,
        #[cfg(feature = "sqs")]
        crate::sqs::STANDARD,
    ]
}

/// A receive that failed; the consumer backs off and tries again.
#[derive(Debug, thiserror::Error)]
#[error("source `{source_name}`: {text}")]
pub struct SourceError {
    /// The source's name.
    pub source_name: Arc<str>,
    /// What went wrong and what would help.
    pub text: String,
    /// Whether trying again can help without somebody changing something.
    pub permanent: bool,
}

/// A settlement that did not take effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// Trying again may help.
    #[error("{0}")]
    Again(String),
    /// The loan is over: the message is no longer ours.
    #[error("the lease was lost: {0}")]
    Lost(String),
}
