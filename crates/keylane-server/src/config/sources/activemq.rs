//! Queues of ActiveMQ Classic and Artemis.

use std::time::Duration;

use keylane_router::activemq::{Broker, Identified, Login, Options, QueueSettings};
use keylane_router::plan::SourceKind;

use super::Sources;
use crate::config::parse::{self, Wrong};
use crate::config::section::Section;
use crate::config::tree::Node;

/// Its options with their defaults.
pub(super) const DOCUMENTED: &str = include_str!("activemq.toml");
/// Answers of a broker take some time.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// A queue, and how it is read.
pub(super) fn read(source: &Section<'_>, name: &str, others: &Sources) -> SourceKind {
    let queue = source.find_written("queue", queue_name);
    let queue = queue.unwrap_or_else(|| name.to_owned());
    let at = source.get("url", |node| place(node, &queue));
    let options = Options {
        broker: source.get("broker", broker),
        roots: source.get("extra_ca", crate::config::certificates),
        login: login(source, at.login.clone()),
        lease: source.get("lease", lease),
        connect_timeout: source.get("connect_timeout", parse::some_time),
        identity: source.get("identity", identity),
        queue_settings: source.get("queue_settings", queue_settings),
        ..at
    };
    let same = |kind: &SourceKind| match kind {
        SourceKind::Activemq(other) => {
            (&other.host, other.port, &other.queue) == (&options.host, options.port, &options.queue)
        }
        _ => false,
    };
    if let Some((other, _)) = others.iter().find(|(_, plan)| same(&plan.kind)) {
        let text = format!("source `{other}` reads this queue already; one is enough");
        source.problem("queue", text);
    }
    SourceKind::Activemq(options)
}

fn queue_name(node: &Node) -> Result<String, Wrong> {
    let name = parse::text(node)?;
    match name.trim().is_empty() {
        true => Err("give the queue's name, or leave it out for the source's own".into()),
        false => Ok(name),
    }
}

fn place(node: &Node, queue: &str) -> Result<Options, Wrong> {
    Options::new(&parse::text(node)?, queue)
}

fn login(source: &Section<'_>, in_url: Option<Login>) -> Option<Login> {
    let user = source.get("user", parse::text);
    let password = source.get("password", parse::text);
    match (in_url, user.is_empty()) {
        (Some(_), false) => {
            source.problem("user", "url has a user already; give it once");
            None
        }
        (in_url, true) => {
            if !password.is_empty() {
                source.problem("password", "there is no user for it; set user, too");
            }
            in_url
        }
        (None, false) => Some(Login { user, password }),
    }
}

fn lease(node: &Node) -> Result<Duration, Wrong> {
    match parse::duration(node)? {
        lease if lease < SHORTEST_LEASE => Err("give at least \"1s\"".into()),
        lease => Ok(lease),
    }
}

fn identity(node: &Node) -> Result<Identified, Wrong> {
    let words = [
        ("message-id", Identified::MessageId),
        ("none", Identified::Nothing),
    ];
    parse::word(node, &words)
}

fn broker(node: &Node) -> Result<Broker, Wrong> {
    let words = [("classic", Broker::Classic), ("artemis", Broker::Artemis)];
    parse::word(node, &words)
}

fn queue_settings(node: &Node) -> Result<QueueSettings, Wrong> {
    let words = [
        ("refuse", QueueSettings::Refuse),
        ("warn", QueueSettings::Warn),
        ("ignore", QueueSettings::Ignore),
    ];
    parse::word(node, &words)
}
