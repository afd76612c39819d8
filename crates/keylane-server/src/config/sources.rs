//! Reads the sources and checks them against each other and against the pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use keylane_router::plan::{
    Envelope, Instances, Keyless, OnExhausted, Overflow, PoolPlan, SourceKind, SourcePlan,
};

use super::errors::nearest;
use super::parse::{self, Wrong};
use super::section::Section;
use super::tree::{Node, Table};

type Pools = BTreeMap<Arc<str>, PoolPlan>;
type Sources = BTreeMap<Arc<str>, SourcePlan>;

/// Brokers that Keylane knows of and this version cannot read.
const NOT_BUILT: [&str; 5] = ["sqs", "rabbitmq", "activemq", "pulsar", "kafka"];

/// All sources; the documented one when none is written.
pub(super) fn read(sources: Section<'_>, defaults: &Table, pools: &Pools) -> Sources {
    let mut plans = Sources::new();
    let named = sources.named(Some(defaults));
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

fn read_source(source: Section<'_>, name: &str, pools: &Pools, others: &Sources) -> SourcePlan {
    source.get("type", source_type);
    let plan = SourcePlan {
        kind: SourceKind::Embedded {
            queue: read_queue(&source, name, others),
        },
        window: source.get("window", parse::at_least_one),
        instances: source.get("instances", instances),
        keyless: source.get("keyless", keyless),
        envelope: read_envelope(&source, pools),
    };
    if plan.instances == Instances::Many {
        check_many(&source, pools);
    }
    source.finish();
    plan
}

fn source_type(node: &Node) -> Result<(), Wrong> {
    match node.text() {
        Some("embedded") => Ok(()),
        Some(broker) if NOT_BUILT.contains(&broker) => Err(format!(
            "reading from {broker} is not built into this version; use \"embedded\""
        )),
        _ => Err("use \"embedded\"".into()),
    }
}

fn read_queue(source: &Section<'_>, name: &str, others: &Sources) -> Arc<str> {
    let queue = source.find_written("queue", queue_name);
    let queue = queue.unwrap_or_else(|| name.into());
    if !source.is_written("queue") && !is_queue_name(&queue) {
        source.problem(
            "queue",
            format!("the source's name is no queue's name; {QUEUE_NAMES}"),
        );
    }
    let queue: Arc<str> = queue.into();
    let same = SourceKind::Embedded {
        queue: queue.clone(),
    };
    if let Some((other, _)) = others.iter().find(|(_, plan)| plan.kind == same) {
        let text = format!("source `{other}` reads the queue {queue:?} already; one is enough");
        source.problem("queue", text);
    }
    queue
}

/// What may be a queue's name, in words.
pub(crate) const QUEUE_NAMES: &str =
    "a queue's name has 1 to 128 letters, digits, `.`, `_` and `-`";

fn queue_name(node: &Node) -> Result<String, Wrong> {
    let name = node.text().filter(|name| is_queue_name(name));
    name.map(String::from).ok_or_else(|| QUEUE_NAMES.into())
}

/// Queues are named in URLs.
pub(crate) fn is_queue_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=128).contains(&name.len()) && name.chars().all(fits) && !name.chars().all(|c| c == '.')
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

fn check_many(source: &Section<'_>, pools: &Pools) {
    let text = "the embedded queue belongs to one program; use \"one\" (a second one can stand by)";
    source.problem("instances", text);
    for (name, pool) in pools {
        if pool.on_exhausted == Some(OnExhausted::Park) {
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
