//! Queues of RabbitMQ.

use std::num::NonZeroUsize;

use keylane_router::plan::SourceKind;
use keylane_router::rabbitmq::{
    DeadLetterTo, Declare, IdentityFrom, Options, QueueType, Reader, prefetch, workers,
};

use super::Sources;
use crate::config::cpus::cpus;
use crate::config::parse::{self, Wrong};
use crate::config::section::Section;
use crate::config::tree::Node;

/// Its options with their defaults.
pub(super) const DOCUMENTED: &str = include_str!("rabbitmq.toml");

/// A queue, and how it is read.
pub(super) fn read(source: &Section<'_>, name: &str, others: &Sources) -> SourceKind {
    let queue = source.find_written("queue", parse::text);
    let queue = queue.unwrap_or_else(|| name.to_owned());
    let workers = workers(source.get("workers", number), cpus());
    let prefetch = prefetch(source.get("prefetch", number), workers.number);
    let ca_file = source.get("ca_file", parse::text);
    let options = Options {
        shards: NonZeroUsize::new(source.get("shards", number)),
        workers: Some(workers),
        prefetch: Some(prefetch),
        consumer_tag: source.get("consumer_tag", parse::text),
        event_type: source.get("event_type", parse::text),
        reader: source.get("reader", reader),
        queue_type: source.get("queue_type", queue_type),
        declare: source.get("declare", declare),
        key_headers: source.get("key_headers", names),
        key_from_routing_key: source.get("key_from_routing_key", parse::yes_or_no),
        identity: source.get("identity", identity),
        dead_letter: source.get("dead_letter", dead_letter),
        delivery_limit_accepted: source.get("accept_delivery_limit", parse::yes_or_no),
        consumer_timeout: source.get("consumer_timeout", parse::duration),
        heartbeat: source.get("heartbeat", parse::duration),
        ca_file: (!ca_file.is_empty()).then_some(ca_file),
        ..Options::new(source.get("url", parse::text), queue)
    };
    for wrong in options.check() {
        source.problem("type", wrong);
    }
    let same = |kind: &SourceKind| match kind {
        SourceKind::Rabbitmq(other) => other.consumer() == options.consumer(),
        _ => false,
    };
    if let Some((other, _)) = others.iter().find(|(_, plan)| same(&plan.kind)) {
        let text = format!(
            "source `{other}` is the same consumer: the same queue, consumer_tag and event_type; one is enough"
        );
        source.problem("queue", text);
    }
    SourceKind::Rabbitmq(Box::new(options))
}

fn number(node: &Node) -> Result<usize, Wrong> {
    parse::zero_is_none(node).map(|number| number.map_or(0, NonZeroUsize::get))
}

fn names(node: &Node) -> Result<Vec<String>, Wrong> {
    let text = parse::text(node)?;
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

fn reader(node: &Node) -> Result<Reader, Wrong> {
    let words = [
        ("exclusive", Reader::Exclusive),
        ("single-active", Reader::SingleActive),
        ("plain", Reader::Plain),
    ];
    parse::word(node, &words)
}

fn queue_type(node: &Node) -> Result<QueueType, Wrong> {
    let words = [
        ("classic", QueueType::Classic),
        ("quorum", QueueType::Quorum),
    ];
    parse::word(node, &words)
}

fn declare(node: &Node) -> Result<Declare, Wrong> {
    let words = [("passive", Declare::Passive), ("create", Declare::Create)];
    parse::word(node, &words)
}

fn identity(node: &Node) -> Result<IdentityFrom, Wrong> {
    let words = [
        ("message-id", IdentityFrom::MessageId),
        ("none", IdentityFrom::Nothing),
    ];
    parse::word(node, &words)
}

fn dead_letter(node: &Node) -> Result<DeadLetterTo, Wrong> {
    let words = [
        ("store", DeadLetterTo::Store),
        ("broker", DeadLetterTo::Broker),
    ];
    parse::word(node, &words)
}
