//! What is simulated, as a file that people read: configuration, traffic, targets, faults, acts.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use keylane_router::plan::{
    BreakerPlan, Cascade, Envelope, Instances, KeyPlan, Keyless, LaneScope, OnExhausted, OnRefused,
    Overflow, Plan, PoolPlan, Rate, SourceKind, SourcePlan,
};
use serde::{Deserialize, Serialize};

/// One simulated run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Case {
    /// Seeds latencies and jitter.
    pub seed: u64,
    /// What it shows.
    pub note: String,
    /// The embedded queue keeps so little in memory that few messages walk every path.
    pub tiny: bool,
    /// The configurations; the run begins with the first, reloads name others.
    pub plans: Vec<PlanCase>,
    /// The messages, in the order of their publishing.
    pub messages: Vec<MessageCase>,
    /// How targets answer; the first that fits counts. What fits none succeeds.
    pub targets: Vec<TargetCase>,
    /// What goes wrong, by trait call.
    pub faults: Vec<FaultCase>,
    /// What operators and the world do.
    pub acts: Vec<ActCase>,
    /// From then on nothing goes wrong any more and everything must be resolved.
    pub calm: u64,
}

/// One configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanCase {
    /// Attempts in all pools together.
    pub max_in_flight: Option<usize>,
    /// Milliseconds without progress that make a stall.
    pub stall_after: u64,
    /// The breaker.
    pub breaker: BreakerCase,
    /// By name; `default` is always there.
    pub pools: BTreeMap<String, PoolCase>,
    /// By name.
    pub sources: BTreeMap<String, SourceCase>,
}

/// The breaker's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerCase {
    /// 0 is off.
    pub failures: f64,
    /// Lanes remembered.
    pub window: usize,
    /// It opens with so many of them at least.
    pub min_lanes: usize,
    /// Milliseconds.
    pub open: u64,
    /// At once.
    pub probes: usize,
}

impl Default for BreakerCase {
    fn default() -> Self {
        Self {
            failures: 0.0,
            window: 20,
            min_lanes: 5,
            open: 5_000,
            probes: 1,
        }
    }
}

/// One pool. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each is the option of this name")]
pub struct PoolCase {
    pub concurrency: Option<usize>,
    pub lane_concurrency: usize,
    pub lane_capacity: usize,
    pub lane_scope: ScopeCase,
    /// Starts a second.
    pub rate: Option<u32>,
    pub per_key_rate: Option<u32>,
    pub overflow: Option<OverflowCase>,
    pub cascade: CascadeCase,
    pub on_refused: RefusedCase,
    pub on_exhausted: ExhaustedCase,
    pub byte_budget: u64,
    pub max_message: u64,
    pub return_delay: u64,
    pub busy_max: u64,
    pub patience: u64,
    /// `None` is "finish".
    pub drain: Option<u64>,
    pub timeout: u64,
    pub max_attempts: usize,
    pub retry_initial: u64,
    pub retry_max: u64,
    pub keys: Vec<KeyCase>,
}

impl Default for PoolCase {
    fn default() -> Self {
        Self {
            concurrency: None,
            lane_concurrency: 1,
            lane_capacity: 500,
            lane_scope: ScopeCase::Source,
            rate: None,
            per_key_rate: None,
            overflow: None,
            cascade: CascadeCase::Key,
            on_refused: RefusedCase::DeadLetter,
            on_exhausted: ExhaustedCase::Block,
            byte_budget: 64 << 20,
            max_message: 1 << 20,
            return_delay: 2_000,
            busy_max: 10_000,
            patience: 60_000,
            drain: None,
            timeout: 5_000,
            max_attempts: 3,
            retry_initial: 200,
            retry_max: 2_000,
            keys: Vec::new(),
        }
    }
}

/// Limits for some keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each is the option of this name")]
pub struct KeyCase {
    pub pattern: String,
    pub lane_concurrency: Option<usize>,
    pub lane_capacity: Option<usize>,
    pub per_key_rate: Option<u32>,
}

macro_rules! cases {
    ($(#[$doc:meta])* $name:ident => $plan:ident { $($variant:ident),* } default $default:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[allow(missing_docs, reason = "each is the value of this name")]
        pub enum $name { $($variant),* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn plan(self) -> $plan {
                match self { $(Self::$variant => $plan::$variant),* }
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }
    };
}

cases!(/// `lane_scope`.
    ScopeCase => LaneScope { Source, Pool } default Source);
cases!(/// `overflow`.
    OverflowCase => Overflow { Wait, Spill } default Wait);
cases!(/// `cascade`.
    CascadeCase => Cascade { Key, Batch } default Key);
cases!(/// `on_refused`.
    RefusedCase => OnRefused { DeadLetter, Retry, Drop } default DeadLetter);
cases!(/// `on_exhausted`.
    ExhaustedCase => OnExhausted { Return, DeadLetter, Park, Block } default Block);
cases!(/// `keyless`.
    KeylessCase => Keyless { Serial, Parallel } default Serial);

/// What a source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The real embedded queue.
    #[default]
    Embedded,
    /// Like SQS FIFO: keys are locked, leases end by the clock, returns are delayed.
    Fifo,
    /// Like SQS standard: no order, leases.
    Standard,
    /// Like RabbitMQ with an active consumer, or ActiveMQ: loans end with the connection.
    Connection,
    /// The same without an order across reconnects.
    Plain,
}

impl Kind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::Embedded,
        Self::Fifo,
        Self::Standard,
        Self::Connection,
        Self::Plain,
    ];
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each is the option of this name")]
pub struct SourceCase {
    pub kind: Kind,
    /// The queue that is read; messages name it.
    pub queue: String,
    pub window: usize,
    pub workers: Option<usize>,
    pub many: bool,
    pub keyless: Option<KeylessCase>,
    /// Bodies are payloads, all of this pool.
    pub raw_pool: Option<String>,
    /// Milliseconds, of kinds that lend for a time.
    pub lease: u64,
}

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MessageCase {
    /// When it is published, in milliseconds.
    pub at: u64,
    /// Into which queue.
    pub queue: String,
    /// `None` is keyless.
    pub key: Option<String>,
    /// The pool code.
    pub pool: Option<String>,
    /// Milliseconds; embedded queues only.
    pub delay: u64,
    /// Published once more, with the same id.
    pub twice: bool,
    /// Bytes beside the envelope.
    pub size: usize,
    /// Which origin it is sent to.
    pub origin: u8,
    /// Its body cannot be parsed.
    pub malformed: bool,
}

/// How a target answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetCase {
    /// Of this origin only.
    pub origin: Option<u8>,
    /// To messages of this key only.
    pub key: Option<String>,
    /// To the first so many attempts of each message only; 0 is all.
    pub first: u32,
    /// Once in so many attempts; 0 and 1 are all.
    pub one_in: u64,
    /// Not before, in milliseconds.
    pub from: u64,
    /// Not from then on, in milliseconds.
    pub until: u64,
    /// The answer.
    pub answer: Answer,
}

/// An answer of a target. Times are milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Answer {
    #[default]
    Success,
    Slow {
        takes: u64,
    },
    Busy {
        after: Option<u64>,
    },
    NotYet {
        after: Option<u64>,
    },
    ServerError,
    NoConnection,
    ClientError,
    /// Until the time limit.
    Never,
    Panic,
}

/// A fault of one trait call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultCase {
    /// Of which call.
    pub call: Call,
    /// Of which key, or of any.
    #[serde(default)]
    pub key: Option<String>,
    /// The how-manieth of these calls, from 1.
    pub nth: u32,
    /// What happens.
    pub effect: Effect,
}

/// Calls that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is the call of this name")]
pub enum Call {
    Receive,
    Ack,
    GiveBack,
    Renew,
    FailedAttempt,
    NewRound,
    Forget,
    DeadLetter,
    Park,
    ParkBehind,
    Spill,
    Unpark,
    Rows,
    Move,
    Replaying,
    Remove,
    Pause,
    Resume,
    Audit,
    Attempt,
    Commit,
}

impl Call {
    /// Every call.
    pub const ALL: &'static [Self] = &[
        Self::Receive,
        Self::Ack,
        Self::GiveBack,
        Self::Renew,
        Self::FailedAttempt,
        Self::NewRound,
        Self::Forget,
        Self::DeadLetter,
        Self::Park,
        Self::ParkBehind,
        Self::Spill,
        Self::Unpark,
        Self::Rows,
        Self::Move,
        Self::Replaying,
        Self::Remove,
        Self::Pause,
        Self::Resume,
        Self::Audit,
        Self::Attempt,
        Self::Commit,
    ];
}

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The process ends before the call has any effect.
    CrashBefore,
    /// The process ends when the call has had its effect, before it returns.
    CrashAfter,
    /// The call fails and has no effect.
    Error,
    /// The loan of the call's messages is over.
    Lost,
}

impl Effect {
    /// Every effect.
    pub const ALL: &'static [Self] =
        &[Self::CrashBefore, Self::CrashAfter, Self::Error, Self::Lost];
}

/// Something that is done at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActCase {
    /// When, in milliseconds.
    pub at: u64,
    /// What.
    pub act: Act,
}

/// Acts. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Act {
    /// The configuration of this number is put in force.
    Reload { plan: usize },
    /// A verb on a key.
    Verb {
        verb: Verb,
        source: String,
        pool: String,
        key: String,
    },
    /// A stop and a new start, with another configuration if `plan` says so; `second` is when
    /// running attempts are cut.
    Restart {
        deadline: u64,
        second: Option<u64>,
        plan: Option<usize>,
    },
    /// A kill and a new start.
    Crash,
    /// The broker of this queue ends the connection.
    Cut { queue: String },
    /// The machine sleeps.
    Suspend { takes: u64 },
}

/// An operator's verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is the verb of this name")]
pub enum Verb {
    Pause,
    Resume,
    Retry,
    Skip,
    Park,
    Replay,
    Drop,
}

impl Act {
    /// The configuration that it puts in force.
    pub(crate) fn plan(&mut self) -> Option<&mut usize> {
        match self {
            Self::Reload { plan } => Some(plan),
            Self::Restart { plan, .. } => plan.as_mut(),
            _ => None,
        }
    }
}

impl Verb {
    /// Every verb.
    pub const ALL: &'static [Self] = &[
        Self::Pause,
        Self::Resume,
        Self::Retry,
        Self::Skip,
        Self::Park,
        Self::Replay,
        Self::Drop,
    ];
}

impl Case {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Writes a scenario file: what differs from the defaults.
    pub fn to_toml(&self) -> String {
        let mut case = table(self);
        without(&mut case, &table(&Self::default()));
        for plan in tables(&mut case, "plans") {
            without(plan, &table(&PlanCase::default()));
            if let Some(toml::Value::Table(breaker)) = plan.get_mut("breaker") {
                without(breaker, &table(&BreakerCase::default()));
            }
            for pool in named(plan, "pools") {
                without(pool, &table(&PoolCase::default()));
                for keys in tables(pool, "keys") {
                    without(keys, &table(&KeyCase::default()));
                }
            }
            for source in named(plan, "sources") {
                without(source, &table(&SourceCase::default()));
            }
        }
        for message in tables(&mut case, "messages") {
            without(message, &table(&MessageCase::default()));
        }
        for target in tables(&mut case, "targets") {
            without(target, &table(&TargetCase::default()));
        }
        toml::to_string(&case).expect("a case is tables, numbers and text")
    }

    /// The message's key, by its number.
    pub fn key_of(&self, n: usize) -> Option<&str> {
        self.messages.get(n)?.key.as_deref()
    }
}

fn table(value: &impl Serialize) -> toml::Table {
    toml::Table::try_from(value).expect("it is a table")
}

/// Leaves out what is the same in `usual`.
fn without(table: &mut toml::Table, usual: &toml::Table) {
    table.retain(|name, value| usual.get(name) != Some(value));
}

/// The tables of a list.
fn tables<'a>(of: &'a mut toml::Table, list: &str) -> impl Iterator<Item = &'a mut toml::Table> {
    let list = of.get_mut(list).and_then(toml::Value::as_array_mut);
    let tables = list.into_iter().flatten();
    tables.filter_map(toml::Value::as_table_mut)
}

/// The tables of a table.
fn named<'a>(of: &'a mut toml::Table, name: &str) -> impl Iterator<Item = &'a mut toml::Table> {
    let tables = of.get_mut(name).and_then(toml::Value::as_table_mut);
    let tables = tables.into_iter().flat_map(|table| table.iter_mut());
    tables.filter_map(|(_, value)| value.as_table_mut())
}

fn at_least_1(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

fn per_second(count: u32) -> Rate {
    Rate {
        count,
        per: Duration::from_secs(1),
        burst: 1,
    }
}

impl PlanCase {
    /// As the router takes it.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan {
            max_in_flight: self.max_in_flight.map(at_least_1),
            stall_after: Duration::from_millis(self.stall_after),
            breaker: BreakerPlan {
                failures: self.breaker.failures,
                window: at_least_1(self.breaker.window),
                min_lanes: at_least_1(self.breaker.min_lanes),
                open: Duration::from_millis(self.breaker.open),
                probes: at_least_1(self.breaker.probes),
            },
            ..Plan::default()
        };
        let pools = self.pools.iter();
        plan.pools = pools
            .map(|(name, pool)| (name.as_str().into(), pool.plan()))
            .collect();
        let sources = self.sources.iter();
        plan.sources = sources
            .map(|(name, source)| (name.as_str().into(), source.plan()))
            .collect();
        plan
    }
}

impl PoolCase {
    fn plan(&self) -> PoolPlan {
        let mut plan = PoolPlan {
            concurrency: self.concurrency.map(at_least_1),
            lane_concurrency: at_least_1(self.lane_concurrency),
            lane_capacity: at_least_1(self.lane_capacity),
            lane_scope: self.lane_scope.plan(),
            rate: self.rate.map(per_second),
            per_key_rate: self.per_key_rate.map(per_second),
            overflow: self.overflow.map(OverflowCase::plan),
            cascade: self.cascade.plan(),
            on_refused: self.on_refused.plan(),
            on_exhausted: self.on_exhausted.plan(),
            byte_budget: self.byte_budget,
            max_message: self.max_message,
            return_delay: Duration::from_millis(self.return_delay),
            busy_max: Duration::from_millis(self.busy_max),
            patience: Duration::from_millis(self.patience),
            drain: self.drain.map(Duration::from_millis),
            keys: self.keys.iter().map(KeyCase::plan).collect(),
            ..PoolPlan::default()
        };
        plan.timeout.total = Duration::from_millis(self.timeout);
        plan.retry.max_attempts = at_least_1(self.max_attempts);
        plan.retry.initial = Duration::from_millis(self.retry_initial);
        plan.retry.max = Duration::from_millis(self.retry_max);
        plan
    }

    /// How many of a key may run at once.
    pub fn lane_concurrency_of(&self, key: Option<&str>) -> usize {
        let own = key.and_then(|key| {
            let fits = |keys: &&KeyCase| fits(&keys.pattern, key);
            self.keys.iter().find(fits)?.lane_concurrency
        });
        own.unwrap_or(self.lane_concurrency).max(1)
    }
}

/// Patterns here end with `*` or have none.
fn fits(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => pattern == key,
    }
}

impl KeyCase {
    fn plan(&self) -> KeyPlan {
        KeyPlan {
            pattern: self.pattern.clone(),
            lane_concurrency: self.lane_concurrency.map(at_least_1),
            lane_capacity: self.lane_capacity.map(at_least_1),
            per_key_rate: self.per_key_rate.map(per_second),
        }
    }
}

/// The URL of an origin, as messages name it.
pub(crate) fn target(origin: u8, key: Option<&str>) -> String {
    format!("http://o{origin}.test/{}", key.unwrap_or("-"))
}

impl SourceCase {
    /// As the router takes it.
    pub fn plan(&self) -> SourcePlan {
        let envelope = match &self.raw_pool {
            None => Envelope::Keylane,
            Some(pool) => Envelope::Raw {
                pool: pool.as_str().into(),
                target: target(0, None).into(),
            },
        };
        SourcePlan {
            kind: match self.kind {
                Kind::Embedded => SourceKind::Embedded {
                    queue: Arc::from(self.queue.as_str()),
                },
                _ => SourceKind::Custom,
            },
            window: at_least_1(self.window),
            workers: self.workers.map(at_least_1),
            instances: match self.many {
                true => Instances::Many,
                false => Instances::One,
            },
            keyless: self.keyless.map(KeylessCase::plan),
            envelope,
        }
    }
}
