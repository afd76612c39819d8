//! Queues of Amazon SQS.

use std::sync::Arc;

use keylane_router::plan::SourceKind;
use keylane_router::sqs::{Credentials, KeyFrom, Options};

use super::Sources;
use crate::config::parse::{self, Wrong};
use crate::config::section::Section;
use crate::config::tree::Node;

/// Its options with their defaults.
pub(super) const DOCUMENTED: &str = include_str!("sqs.toml");

/// A queue, and how it is read.
pub(super) fn read(source: &Section<'_>, name: &str, others: &Sources) -> SourceKind {
    let queue = source.find_written("queue", parse::text);
    let text = |name| some(source.get(name, parse::text));
    let options = Options {
        endpoint_url: text("endpoint_url"),
        region: text("region"),
        profile: text("profile"),
        credentials: credentials(source, text("access_key_id"), text("secret_access_key")),
        visibility_timeout: source.get("visibility_timeout", parse::duration),
        wait_time: source.get("wait_time", parse::duration),
        pollers: source.get("pollers", parse::at_least_one),
        key: source.get("key", key),
        accept_redrive: source.get("accept_redrive", parse::yes_or_no),
        ..Options::new(queue.unwrap_or_else(|| name.to_owned()))
    };
    for problem in options.problems() {
        source.problem(problem.option, problem.text);
    }
    let kind = SourceKind::Sqs(options);
    if let Some((other, _)) = others.iter().find(|(_, plan)| plan.kind == kind) {
        let text = format!("source `{other}` reads this queue already; one is enough");
        source.problem("queue", text);
    }
    kind
}

fn some(text: String) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn credentials(
    source: &Section<'_>,
    id: Option<Arc<str>>,
    secret: Option<Arc<str>>,
) -> Option<Credentials> {
    let missing = match (&id, &secret) {
        (Some(_), None) => Some(("secret_access_key", "access_key_id")),
        (None, Some(_)) => Some(("access_key_id", "secret_access_key")),
        _ => None,
    };
    if let Some((missing, set)) = missing {
        source.problem(missing, format!("{set} is set: it needs this, too"));
    }
    Some(Credentials {
        access_key_id: id?,
        secret_access_key: secret?,
    })
}

fn key(node: &Node) -> Result<KeyFrom, Wrong> {
    parse::word(
        node,
        &[("none", KeyFrom::None), ("group-id", KeyFrom::GroupId)],
    )
}
