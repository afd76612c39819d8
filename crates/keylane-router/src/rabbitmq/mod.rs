//! RabbitMQ as a source (AMQP 0.9.1): one connection, one channel for each queue that is read.
//!
//! [`Options`] say which queue and how; `queue` sees to it that the queue is as they say, `link` is
//! one connection until it is lost, `message` reads deliveries, and the rest is the contract with
//! the router.
//!
//! How order is kept: a connection is never mended. When it is lost, so is everything that is out;
//! the broker hands it out again in order, before anything else, to whoever reads the queue then.
//! What is given back goes the same way, all at once, by closing the channel.

mod link;
mod message;
mod options;
mod probe;
mod queue;
mod receive;
mod settle;
mod sizes;

pub use options::{
    DeadLetterTo, Declare, IdentityFrom, KEY_HEADERS, Options, QueueType, Reader, masked,
};
pub use receive::RabbitmqSource;
pub use settle::{RabbitmqSettler, Receipt};
pub use sizes::{How, Size, prefetch, workers};

use std::time::Duration;

use crate::source::{Declared, Features, Order, Several};

/// What RabbitMQ promises, with the defaults and an exclusive or single active consumer.
pub const DECLARED: Declared = Declared {
    name: "rabbitmq",
    features: Features {
        identity: true,
        ordered_return: true,
        lease: Some(Duration::from_secs(10)),
        longest_loan: Some(Duration::from_secs(30 * 60)),
        several: Several::OneActive,
        ..Features::none("rabbitmq")
    },
    key_from: "header `x-group-id`, then `JMSXGroupID` (`key_headers`); the routing key if told so",
    why_not_more: "the broker has no ids of its own: the publisher's `message-id` must not repeat. It cannot delay what is given back. With `reader = \"plain\"` keys are not in order when a connection is made anew, and several instances keep no order. A dead-letter exchange is used with `dead_letter = \"broker\"`, once it is proven to be there. An ack that was answered may be forgotten when the broker is killed.",
};

/// What a source with these options promises.
pub fn features(options: &Options) -> Features {
    let ordered = options.reader != Reader::Plain;
    Features {
        identity: options.identity == IdentityFrom::MessageId,
        dead_letter: options.dead_letter == DeadLetterTo::Broker,
        lease: Some(options.lease()),
        longest_loan: (!options.consumer_timeout.is_zero()).then_some(options.consumer_timeout),
        order: match ordered {
            true => Order::Kept,
            false => Order::UntilReconnect,
        },
        several: match ordered {
            true => Several::OneActive,
            false => Several::Nothing,
        },
        ..DECLARED.features
    }
}
