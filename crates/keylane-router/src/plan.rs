//! What the router is told to do: a checked plan. Config files become one, embedders build one.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::{Secrets, TargetList};

/// Everything the router needs to know. Made by a config file's reader, or by hand from
/// [`Plan::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Attempts under way in all pools together; `None` = no limit.
    pub max_in_flight: Option<NonZeroUsize>,
    /// How long a stop waits for running attempts.
    pub stop_deadline: Duration,
    /// Without progress for this long, a source, pool or key is stalled; 0 = nobody looks.
    pub stall_after: Duration,
    /// Bytes on disk for dead letters, parked and spilled keys.
    pub store_budget: u64,
    /// The circuit breaker of each target origin.
    pub breaker: BreakerPlan,
    /// By name; always has `default`.
    pub pools: BTreeMap<Arc<str>, PoolPlan>,
    /// By name.
    pub sources: BTreeMap<Arc<str>, SourcePlan>,
}

/// When a target origin is left alone for a while. It goes by lanes: the result of a lane is that
/// of the first attempt of its latest message.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerPlan {
    /// The share of failing lanes that opens it; 0 = off.
    pub failures: f64,
    /// Of so many lanes, the latest ones.
    pub window: NonZeroUsize,
    /// With fewer lanes than this in the window it does not open; at most `window`.
    pub min_lanes: NonZeroUsize,
    /// How long it stays open before probes are let through; older results do not count.
    pub open: Duration,
    /// How many probes while half open; when all of them succeed, it closes.
    pub probes: NonZeroUsize,
}

/// The limits and policies of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    /// Attempts under way; `None` = unlimited. (0 in a file = CPUs × 4 is resolved by the reader.)
    pub concurrency: Option<NonZeroUsize>,
    /// Attempts under way of one key.
    pub lane_concurrency: NonZeroUsize,
    /// Messages of one key held in memory. No key has more than a quarter of its source's window.
    pub lane_capacity: NonZeroUsize,
    /// One lane per source and key, or one per key.
    pub lane_scope: LaneScope,
    /// Attempts per time, of the pool.
    pub rate: Option<Rate>,
    /// Attempts per time, of each key.
    pub per_key_rate: Option<Rate>,
    /// What happens when a lane has no room; `None` = [`Overflow::Spill`] where one instance reads
    /// the source and its ids are stable, else [`Overflow::Wait`].
    pub overflow: Option<Overflow>,
    /// How far a return reaches.
    pub cascade: Cascade,
    /// What happens to a message its target refuses.
    pub on_refused: OnRefused,
    /// What happens after the last attempt. A message without a key is never parked or blocked: it
    /// becomes a dead letter.
    pub on_exhausted: OnExhausted,
    /// Which targets may be called.
    pub targets: Targets,
    /// What requests are signed with; none = unsigned.
    pub signing_secrets: Secrets,
    /// Bytes of bodies held by the pool.
    pub byte_budget: u64,
    /// A larger message is a dead letter.
    pub max_message: u64,
    /// When a returned message may come again: not before the first hold of a retry, and not before a
    /// second if it makes room for others.
    pub return_delay: Duration,
    /// The longest hold for "busy" and "not yet".
    pub busy_max: Duration,
    /// A head older than this counts "busy" and "not yet" as failed.
    pub patience: Duration,
    /// How long a removed pool may take to finish; `None` = `"finish"`, as long as it takes.
    pub drain: Option<Duration>,
    /// Limits of one attempt.
    pub timeout: TimeoutPlan,
    /// In-place retries.
    pub retry: RetryPlan,
    /// Limits for some keys; the first match counts.
    pub keys: Vec<KeyPlan>,
}

/// Time limits of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeoutPlan {
    /// To get a connection.
    pub connect: Duration,
    /// From the request's end to the answer's head.
    pub first_byte: Duration,
    /// Of the whole attempt.
    pub total: Duration,
    /// Between two pieces of the answer's body.
    pub idle_body: Duration,
}

/// In-place retries.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPlan {
    /// Failed attempts of one round; 1 = fail once, give up.
    pub max_attempts: NonZeroUsize,
    /// The first back-off.
    pub initial: Duration,
    /// The longest back-off.
    pub max: Duration,
}

/// Limits for keys that match a pattern (`*` matches any run of bytes).
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPlan {
    /// The pattern.
    pub pattern: String,
    /// Overrides the pool's.
    pub lane_concurrency: Option<NonZeroUsize>,
    /// Overrides the pool's.
    pub lane_capacity: Option<NonZeroUsize>,
    /// Overrides the pool's.
    pub per_key_rate: Option<Rate>,
}

/// So many per so long; `burst` may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In which time.
    pub per: Duration,
    /// At once, at most.
    pub burst: u32,
}

/// One lane per source and key, or one per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneScope {
    /// Default.
    Source,
    /// Whatever the source.
    Pool,
}

/// What happens when a lane has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The source takes no more until there is room.
    Wait,
    /// The key goes to disk.
    Spill,
}

/// How far a return reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    /// Everything held behind the head.
    Key,
    /// What came with the head in one batch.
    Batch,
}

/// What happens to a message its target refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefused {
    /// Stored as dead letter.
    DeadLetter,
    /// Treated as failed.
    Retry,
    /// Acknowledged and forgotten.
    Drop,
}

/// What happens after the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    /// Back to the source with everything behind it, for another round of attempts. A key that is
    /// on disk has no way back: it is blocked.
    Return,
    /// The head is stored; the lane goes on.
    DeadLetter,
    /// The key is stored whole and waits for an operator.
    Park,
    /// Retried at the longest back-off until it is delivered; an alert names the key.
    Block,
}

/// Which targets may be called.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Public and private addresses.
    Any,
    /// Public addresses.
    Public,
    /// By a list of whom to allow and whom to deny.
    Only(TargetList),
}

/// One source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePlan {
    /// Which broker, and what of it.
    pub kind: SourceKind,
    /// Messages out at once.
    pub window: NonZeroUsize,
    /// Attempts at once, in all pools together; `None` = as many as the pools allow. One makes the
    /// source one lane: its messages run in the order in which they come, whatever their keys.
    pub workers: Option<NonZeroUsize>,
    /// Whether others read the same queue.
    pub instances: Instances,
    /// How keyless messages run; `None` = by source.
    pub keyless: Option<Keyless>,
    /// What the bodies look like.
    pub envelope: Envelope,
}

/// Which broker, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The queue of this name in the data folder's file.
    Embedded {
        /// The queue's name.
        queue: Arc<str>,
    },
    /// A queue of Amazon SQS.
    #[cfg(feature = "sqs")]
    Sqs(crate::sqs::Options),
    /// A queue of RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(Box<crate::rabbitmq::Options>),
    /// A queue of ActiveMQ Classic or Artemis.
    #[cfg(feature = "activemq")]
    Activemq(crate::activemq::Options),
    /// A source handed to the builder by the embedding program.
    Custom,
}

/// Whether others read the same queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instances {
    /// Only this one.
    One,
    /// Several.
    Many,
}

/// How keyless messages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyless {
    /// One lane for all of them.
    Serial,
    /// Each its own lane.
    Parallel,
}

/// What the bodies look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Envelope {
    /// The JSON envelope.
    Keylane,
    /// The body is the payload.
    Raw {
        /// The pool for all of them.
        pool: Arc<str>,
        /// The target for all of them.
        target: Arc<str>,
    },
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            max_in_flight: None,
            stop_deadline: Duration::from_secs(30),
            stall_after: Duration::from_secs(120),
            store_budget: 10 << 30,
            breaker: BreakerPlan::default(),
            pools: BTreeMap::from([(Arc::from("default"), PoolPlan::default())]),
            sources: BTreeMap::new(),
        }
    }
}

impl Default for BreakerPlan {
    fn default() -> Self {
        Self {
            failures: 0.5,
            window: NonZeroUsize::new(20).expect("not zero"),
            min_lanes: NonZeroUsize::new(5).expect("not zero"),
            open: Duration::from_secs(30),
            probes: NonZeroUsize::new(3).expect("not zero"),
        }
    }
}

impl Default for PoolPlan {
    fn default() -> Self {
        Self {
            concurrency: NonZeroUsize::new(16),
            lane_concurrency: NonZeroUsize::MIN,
            lane_capacity: NonZeroUsize::new(500).expect("not zero"),
            lane_scope: LaneScope::Source,
            rate: None,
            per_key_rate: None,
            overflow: None,
            cascade: Cascade::Key,
            on_refused: OnRefused::DeadLetter,
            on_exhausted: OnExhausted::Block,
            targets: Targets::Any,
            signing_secrets: Secrets::default(),
            byte_budget: 64 << 20,
            max_message: 1 << 20,
            return_delay: Duration::from_secs(30),
            busy_max: Duration::from_secs(3600),
            patience: Duration::from_secs(24 * 3600),
            drain: Some(Duration::from_secs(30)),
            timeout: TimeoutPlan {
                connect: Duration::from_secs(5),
                first_byte: Duration::from_secs(30),
                total: Duration::from_secs(60),
                idle_body: Duration::from_secs(10),
            },
            retry: RetryPlan {
                max_attempts: NonZeroUsize::new(5).expect("not zero"),
                initial: Duration::from_secs(1),
                max: Duration::from_secs(300),
            },
            keys: Vec::new(),
        }
    }
}

impl SourcePlan {
    /// Whether all of its messages are one lane, whatever their keys.
    pub(crate) fn is_one_lane(&self) -> bool {
        self.workers == Some(NonZeroUsize::MIN)
    }

    /// A source of the embedding program with default settings.
    pub fn custom() -> Self {
        Self {
            kind: SourceKind::Custom,
            ..Self::embedded("")
        }
    }

    /// The embedded queue of this name with default settings.
    pub fn embedded(queue: impl Into<Arc<str>>) -> Self {
        Self {
            kind: SourceKind::Embedded {
                queue: queue.into(),
            },
            window: NonZeroUsize::new(1000).expect("not zero"),
            workers: None,
            instances: Instances::One,
            keyless: None,
            envelope: Envelope::Keylane,
        }
    }
}
