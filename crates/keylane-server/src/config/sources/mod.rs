//! Reads the sources and checks them against each other and against the pools. What a type of source
//! has of its own is in the file of its name.

mod activemq;
pub(crate) mod embedded;
mod rabbitmq;
mod sqs;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use keylane_router::plan::{
    Envelope, Instances, Keyless, LaneScope, OnExhausted, Overflow, PoolPlan, SourceKind,
    SourcePlan,
};
use keylane_router::rabbitmq::Size;
use keylane_router::source::Features;

use super::errors::nearest;
use super::parse::{self, Wrong};
use super::section::Section;
use super::tree::{Node, Table};

type Pools = BTreeMap<Arc<str>, PoolPlan>;
type Sources = BTreeMap<Arc<str>, SourcePlan>;

/// A type of source.
pub(super) struct Type {
    /// What `type` says.
    pub(super) name: &'static str,
    /// Its own options with their defaults, those it has in common with others left out where they
    /// are the same: the table `[sources.<name>]`. `None` = in keylane.toml itself.
    pub(super) documented: Option<&'static str>,
    /// Reads its own options.
    read: ReadKind,
}

/// Reads the options that only one type has, given the source's name and the sources before it.
type ReadKind = fn(&Section<'_>, &str, &Sources) -> SourceKind;

/// All that can be read.
pub(super) const TYPES: &[Type] = &[
    Type {
        name: "embedded",
        documented: None,
        read: embedded::read,
    },
    Type {
        name: "rabbitmq",
        documented: Some(rabbitmq::DOCUMENTED),
        read: rabbitmq::read,
    },
    Type {
        name: "sqs",
        documented: Some(sqs::DOCUMENTED),
        read: sqs::read,
    },
    Type {
        name: "activemq",
        documented: Some(activemq::DOCUMENTED),
        read: activemq::read,
    },
];

/// Brokers that Keylane knows of; those that are no type yet cannot be read by this version.
const BROKERS: [&str; 5] = ["sqs", "rabbitmq", "activemq", "pulsar", "kafka"];

/// All sources; the documented one when none is written. `defaults` are the tables of
/// keylane.toml's `[sources]`.
pub(super) fn read(sources: Section<'_>, defaults: &Table, pools: &Pools) -> Sources {
    let mut plans = Sources::new();
    let named = sources.named(|written| Some(defaults_of(written, defaults)));
    if named.is_empty() {
        let plan = read_source(sources.sub("default"), "default", pools, &plans);
        plans.insert(Arc::from("default"), plan);
    }
    for (name, section) in named {
        let plan = read_source(section, name, pools, &plans);
        plans.insert(Arc::from(name), plan);
    }
    plans
}

/// What a source has for what it does not set goes by its type.
fn defaults_of<'d>(written: Option<&Table>, defaults: &'d Table) -> &'d Table {
    let table = |name: &str| defaults.get(name).and_then(Node::table);
    let written = written
        .and_then(|table| table.get("type"))
        .and_then(Node::text);
    let own = written.and_then(table);
    own.or_else(|| table("default"))
        .expect("the compiled-in keylane.toml has a default source")
}

fn read_source(source: Section<'_>, name: &str, pools: &Pools, others: &Sources) -> SourcePlan {
    let read = source.get("type", source_type);
    let kind = read(&source, name, others);
    let (window, workers) = sizes(&source, &kind);
    let plan = SourcePlan {
        kind,
        window,
        workers,
        instances: source.get("instances", instances),
        keyless: source.get("keyless", keyless),
        envelope: read_envelope(&source, pools),
    };
    if plan.instances == Instances::Many {
        check_many(&source, &plan.kind, pools);
    }
    if features(&plan.kind).is_some_and(|features| !features.returns()) {
        check_returns(&source, pools);
    }
    source.finish();
    plan
}

/// How much may be out and run at once. Of RabbitMQ that is `prefetch` and `workers`.
fn sizes(source: &Section<'_>, kind: &SourceKind) -> (NonZeroUsize, Option<NonZeroUsize>) {
    let window = source.get("window", parse::at_least_one);
    let SourceKind::Rabbitmq(options) = kind else {
        return (window, None);
    };
    if source.is_written("window") {
        source.problem("window", "on RabbitMQ it is called prefetch; set that");
    }
    let number = |size: Option<Size>| size.map(|size| size.number);
    let prefetch = number(options.prefetch).unwrap_or(window);
    (prefetch, number(options.workers))
}

fn source_type(node: &Node) -> Result<ReadKind, Wrong> {
    let written = node.text().unwrap_or_default();
    if let Some(found) = TYPES.iter().find(|known| known.name == written) {
        return Ok(found.read);
    }
    let known: Vec<String> = TYPES
        .iter()
        .map(|known| format!("{:?}", known.name))
        .collect();
    let known = known.join(", ");
    Err(match BROKERS.contains(&written) {
        true => format!("reading from {written} is not built into this version; use {known}"),
        false => format!("use {known}"),
    })
}

fn instances(node: &Node) -> Result<Instances, Wrong> {
    parse::word(node, &[("one", Instances::One), ("many", Instances::Many)])
}

fn keyless(node: &Node) -> Result<Option<Keyless>, Wrong> {
    let words = [
        ("auto", None),
        ("serial", Some(Keyless::Serial)),
        ("parallel", Some(Keyless::Parallel)),
    ];
    parse::word(node, &words)
}

fn read_envelope(source: &Section<'_>, pools: &Pools) -> Envelope {
    let raw = source.get("envelope", |node| {
        parse::word(node, &[("keylane", false), ("raw", true)])
    });
    let pool = source.get("pool", parse::text);
    let target = source.get("target", parse::text);
    let unused = |(_, value): &(&str, &String)| !raw && !value.is_empty();
    for (name, _) in [("pool", &pool), ("target", &target)]
        .into_iter()
        .filter(unused)
    {
        source.problem(
            name,
            "it only means something with envelope = \"raw\"; set that or remove this",
        );
    }
    if !raw {
        return Envelope::Keylane;
    }
    let pool = if pool.is_empty() {
        "default".into()
    } else {
        pool
    };
    if !pools.contains_key(pool.as_str()) {
        let near = nearest(&pool, pools.keys().map(|name| &**name));
        let near = near
            .map(|near| format!("; did you mean {near:?}?"))
            .unwrap_or_default();
        source.problem("pool", format!("there is no pool {pool:?}{near}"));
    }
    if !target.starts_with("http://") && !target.starts_with("https://") {
        let text = "envelope = \"raw\" needs it: give the http:// or https:// URL of all messages";
        source.problem("target", text);
    }
    Envelope::Raw {
        pool: pool.into(),
        target: target.into(),
    }
}

/// What sources of this kind can do, as far as that is known before one is connected.
fn features(kind: &SourceKind) -> Option<Features> {
    match kind {
        SourceKind::Embedded { .. } => Some(keylane_router::embedded::DECLARED.features),
        SourceKind::Sqs(options) => Some(options.features()),
        SourceKind::Rabbitmq(options) => Some(keylane_router::rabbitmq::features(options)),
        SourceKind::Activemq(_) => Some(keylane_router::activemq::DECLARED_CLASSIC.features),
        SourceKind::Custom => None,
    }
}

/// What pools ask of a source that cannot take messages back in order with a delay.
fn check_returns(source: &Section<'_>, pools: &Pools) {
    for (name, pool) in pools {
        let on_exhausted = pool.on_exhausted == OnExhausted::Return;
        let shared = pool.lane_scope == LaneScope::Pool;
        let asked = [
            (on_exhausted, "on_exhausted = \"return\""),
            (shared, "lane_scope = \"pool\""),
        ];
        for (_, option) in asked.into_iter().filter(|(asked, _)| *asked) {
            let text = format!(
                "it cannot take messages back in order with a delay, as {option} of pool `{name}` needs; change that or leave it out"
            );
            source.problem("type", text);
        }
    }
}

fn check_many(source: &Section<'_>, kind: &SourceKind, pools: &Pools) {
    if matches!(kind, SourceKind::Embedded { .. }) {
        let text =
            "the embedded queue belongs to one program; use \"one\" (a second one can stand by)";
        source.problem("instances", text);
    }
    for (name, pool) in pools {
        if pool.on_exhausted == OnExhausted::Park {
            let text =
                format!("\"many\" and on_exhausted = \"park\" of pool `{name}` exclude each other");
            source.problem("instances", text);
        }
        if pool.overflow == Some(Overflow::Spill) {
            let text =
                format!("\"many\" and overflow = \"spill\" of pool `{name}` exclude each other");
            source.problem("instances", text);
        }
    }
}
