//! The queues in the data folder.

use std::sync::Arc;

use keylane_router::plan::SourceKind;

use super::Sources;
use crate::config::parse::Wrong;
use crate::config::section::Section;
use crate::config::tree::Node;

/// A queue that nobody else reads.
pub(super) fn read(source: &Section<'_>, name: &str, others: &Sources) -> SourceKind {
    let queue = read_queue(source, name, others);
    SourceKind::Embedded { queue }
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
