//! What a RabbitMQ source is told: which broker, which queue, how it is read.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use lapin::uri::AMQPUri;

use super::sizes::Size;
use crate::plan::{SourceKind, SourcePlan};

/// Where keys are looked for unless told otherwise, the first that is there wins.
pub const KEY_HEADERS: [&str; 2] = ["x-group-id", "JMSXGroupID"];

/// How a queue is read. All fields are plain data; [`Options::check`] says whether they fit.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// `amqp://user:password@host:port/vhost`, or `amqps://…`. Printed without its password.
    pub url: String,
    /// The queue; with shards, the beginning of their names.
    pub queue: String,
    /// How many queues share the keys by a consistent-hash exchange; `None`: there is one queue.
    pub shards: Option<NonZeroUsize>,
    /// The consumer's tag; empty: the broker makes one up.
    pub consumer_tag: String,
    /// What the messages are, if only one kind is in the queue. Names the consumer in the log and is
    /// a part of who it is: the same queue, tag and event type twice is an error.
    pub event_type: String,
    /// Attempts at once; `None`: as many as the pools allow.
    pub workers: Option<Size>,
    /// Messages out at once; `None`: the plan's window.
    pub prefetch: Option<Size>,
    /// What keeps the order of keys when connections or instances come and go.
    pub reader: Reader,
    /// The queue's type.
    pub queue_type: QueueType,
    /// Whether the queue is made here.
    pub declare: Declare,
    /// Headers that may carry the key, the first that is there and not blank wins.
    pub key_headers: Vec<String>,
    /// The routing key is the key of messages that have none of the headers.
    pub key_from_routing_key: bool,
    /// What a message is known by when it comes again.
    pub identity: IdentityFrom,
    /// Where messages go that fail for good.
    pub dead_letter: DeadLetterTo,
    /// A limit of deliveries on the queue is known and accepted.
    pub delivery_limit_accepted: bool,
    /// The broker's limit for how long a message may be out.
    pub consumer_timeout: Duration,
    /// How long a silent connection counts as alive. What is out may be acted on for half of it
    /// after the broker was heard of last.
    pub heartbeat: Duration,
    /// A PEM file of who may sign the broker's certificate, besides those the system knows.
    pub ca_file: Option<String>,
}

/// Who reads a queue, as the broker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The queue has `x-single-active-consumer`: one of its consumers is handed messages.
    SingleActive,
    /// This consumer is the queue's only one; a second is refused. Classic queues only.
    Exclusive,
    /// One of as many as come. Keys are not in order when the connection is made anew.
    Plain,
}

/// The types of queues that can be read in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// On one node.
    Classic,
    /// Replicated.
    Quorum,
}

impl QueueType {
    /// As RabbitMQ calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

/// Whether a queue is made by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declare {
    /// It must be there.
    Passive,
    /// It is made if it is not there, with what belongs to it.
    Create,
}

/// What a message is known by when it comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityFrom {
    /// Its `message-id`, which the publisher must not use twice. A message without one is another
    /// message when it comes again.
    MessageId,
    /// Nothing: every delivery is a message of its own.
    Nothing,
}

/// Where messages go that fail for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterTo {
    /// To the router's own store.
    Store,
    /// To the queue's dead-letter exchange, which must be there.
    Broker,
}

impl Options {
    /// The defaults for this queue.
    pub fn new(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            queue: queue.into(),
            shards: None,
            consumer_tag: String::new(),
            event_type: String::new(),
            workers: None,
            prefetch: None,
            reader: Reader::Exclusive,
            queue_type: QueueType::Classic,
            declare: Declare::Passive,
            key_headers: KEY_HEADERS.map(str::to_owned).to_vec(),
            key_from_routing_key: false,
            identity: IdentityFrom::MessageId,
            dead_letter: DeadLetterTo::Store,
            delivery_limit_accepted: false,
            consumer_timeout: Duration::from_secs(30 * 60),
            heartbeat: Duration::from_secs(20),
            ca_file: None,
        }
    }

    /// With so many workers and messages out, 0 being the usual number for so many CPUs.
    pub fn sized(mut self, workers: usize, prefetch: usize, cpus: NonZeroUsize) -> Self {
        let workers = super::workers(workers, cpus);
        self.workers = Some(workers);
        self.prefetch = Some(super::prefetch(prefetch, workers.number));
        self
    }

    /// A plan of a source with these options.
    pub fn plan(&self) -> SourcePlan {
        let mut plan = SourcePlan {
            kind: SourceKind::Rabbitmq(Box::new(self.clone())),
            workers: self.workers.map(|workers| workers.number),
            ..SourcePlan::custom()
        };
        if let Some(prefetch) = self.prefetch {
            plan.window = prefetch.number;
        }
        plan
    }

    /// Everything that is wrong with them, each with its remedy.
    pub fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Err(text) = self.url.parse::<AMQPUri>() {
            // The parser's own words may hold the URL, and with it the password.
            let _ = text;
            wrong.push(
                "url is not like `amqp://user:password@host:5672/vhost` (or `amqps://…`); in names and passwords `/`, `@`, `:` and `%` are written as %2F, %40, %3A, %25".to_owned(),
            );
        }
        let names = [("queue", &self.queue), ("consumer_tag", &self.consumer_tag)];
        for (option, name) in names {
            // Shards add a few characters of their own.
            if name.len() > 240 {
                wrong.push(format!("{option} has {} bytes; 240 fit", name.len()));
            }
        }
        if self.queue.is_empty() {
            wrong.push("queue is empty; name the queue to read".to_owned());
        }
        if self.reader == Reader::Exclusive && self.queue_type == QueueType::Quorum {
            wrong.push(
                "a quorum queue has no exclusive consumers; make it with x-single-active-consumer and set reader = \"single-active\"".to_owned(),
            );
        }
        if self.reader != Reader::SingleActive && self.shards.is_some() {
            wrong.push(
                "shards keep order by single active consumers; set reader = \"single-active\""
                    .to_owned(),
            );
        }
        if self.key_headers.is_empty() && !self.key_from_routing_key {
            wrong.push(
                "key_headers is empty and key_from_routing_key is off: no message would have a key"
                    .to_owned(),
            );
        }
        if !(1..=3600).contains(&self.heartbeat.as_secs()) || self.heartbeat.subsec_nanos() != 0 {
            wrong.push("heartbeat must be whole seconds, from 1s to 1h".to_owned());
        }
        wrong
    }

    /// Who this is to the broker: two sources must not be the same (GB-95).
    pub fn consumer(&self) -> (&str, &str, &str, &str) {
        (&self.url, &self.queue, &self.consumer_tag, &self.event_type)
    }

    /// The names of the queues that are read.
    pub fn queues(&self) -> Vec<String> {
        match self.shards {
            None => vec![self.queue.clone()],
            Some(shards) => (0..shards.get())
                .map(|shard| format!("{}.{shard}", self.queue))
                .collect(),
        }
    }

    /// How long what is out may be acted on without news of the broker. It gives the connection up
    /// after the heartbeat at the earliest, and the news may be a quarter of that old.
    pub(super) fn lease(&self) -> Duration {
        self.heartbeat / 2
    }

    /// The broker's address, for messages to people.
    pub fn address(&self) -> String {
        masked(&self.url)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("url", &masked(&self.url))
            .field("queue", &self.queue)
            .field("shards", &self.shards)
            .field("consumer_tag", &self.consumer_tag)
            .field("event_type", &self.event_type)
            .field("workers", &self.workers)
            .field("prefetch", &self.prefetch)
            .field("reader", &self.reader)
            .field("queue_type", &self.queue_type)
            .field("declare", &self.declare)
            .field("key_headers", &self.key_headers)
            .field("key_from_routing_key", &self.key_from_routing_key)
            .field("identity", &self.identity)
            .field("dead_letter", &self.dead_letter)
            .field("delivery_limit_accepted", &self.delivery_limit_accepted)
            .field("consumer_timeout", &self.consumer_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("ca_file", &self.ca_file)
            .finish()
    }
}

/// A URL without its password.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "(not a URL)".to_owned();
    };
    // A password may hold an `@` or a `/` that somebody forgot to escape: hide too much.
    let Some((user, host)) = rest.rsplit_once('@') else {
        return url.to_owned();
    };
    let user = user.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}:***@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gb_138_a_password_is_masked_wherever_options_are_printed() {
        let urls = [
            "amqp://user:s3cret@host:5672/%2f",
            "amqps://user:s3cr@s3cret@host/vhost",
            "amqp://user:s3/cret:s3cret@host",
        ];
        for url in urls {
            let options = Options::new(url, "orders");
            let printed = format!("{options:?} {} {:?}", options.address(), options.check());
            for secret in ["s3cret", "s3cr", "cret"] {
                assert!(!printed.contains(secret), "{url}: {printed}");
            }
            assert!(printed.contains("user:***@host"), "{printed}");
        }
        assert_eq!(masked("amqp://host/vhost"), "amqp://host/vhost");
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let mut options = Options::new("http://x", "");
        options.queue_type = QueueType::Quorum;
        options.shards = NonZeroUsize::new(4);
        options.key_headers.clear();
        options.heartbeat = Duration::from_millis(1500);
        assert_eq!(options.check().len(), 6, "{:?}", options.check());
        assert!(
            Options::new("amqp://localhost", "orders")
                .check()
                .is_empty()
        );
    }

    #[test]
    fn shards_are_queues_of_their_own() {
        let mut options = Options::new("amqp://localhost", "orders");
        assert_eq!(options.queues(), ["orders"]);
        options.shards = NonZeroUsize::new(2);
        assert_eq!(options.queues(), ["orders.0", "orders.1"]);
    }
}
