//! Sees to it that the queue is there and is what the options say, before anything is taken from it.

use std::fmt;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};

use super::options::{DeadLetterTo, Declare, Options, QueueType, Reader};
use super::probe;
use crate::plan::Instances;

/// Why a queue cannot be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Another consumer has it.
    InUse(String),
    /// What is wrong, and what would help.
    Other(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

impl Refused {
    /// The broker said no to something about this queue.
    pub(super) fn by(queue: &str, error: &lapin::Error) -> Self {
        let text = error_text(error);
        match soft_error(error) {
            Some(AMQPSoftError::NOTFOUND) => Self::Other(format!(
                "queue `{queue}` does not exist; create it, or set declare = \"create\" ({text})"
            )),
            Some(AMQPSoftError::ACCESSREFUSED) if text.contains("in exclusive use") => {
                Self::InUse(format!(
                    "queue `{queue}` has another consumer, and reader = \"exclusive\" wants to be the only one; end the other, or set instances = \"many\" to wait for its end ({text})"
                ))
            }
            Some(AMQPSoftError::ACCESSREFUSED) => Self::Other(format!(
                "queue `{queue}`: the user may not do this; grant it configure, write and read on what it uses ({text})"
            )),
            Some(AMQPSoftError::PRECONDITIONFAILED) => Self::Other(format!(
                "queue `{queue}` is not as configured; change the options, or delete the queue ({text})"
            )),
            _ => Self::Other(format!("queue `{queue}`: {text}")),
        }
    }
}

fn soft_error(error: &lapin::Error) -> Option<AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// What happened, in words for people. Never holds a password: neither the broker nor lapin is told
/// one in what they answer.
pub(super) fn error_text(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            let text = error.get_message().as_str();
            match text.contains("Login was refused") {
                true => {
                    "the broker refuses the user or its password; check both in the url".to_owned()
                }
                false => text.to_owned(),
            }
        }
        ErrorKind::IOError(error) => format!("{error}; is the broker running there?"),
        ErrorKind::MissingHeartbeatError => "the broker has been silent for too long".to_owned(),
        _ => error.to_string(),
    }
}

/// What is known of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) queue_type: String,
    pub(super) single_active: bool,
    pub(super) delivery_limit: Option<i64>,
    pub(super) dead_letter_exchange: Option<String>,
    pub(super) dead_letter_routing_key: Option<String>,
    /// Whether a queue is bound to that exchange.
    pub(super) dead_letters_kept: bool,
}

/// Declares what is to be declared and looks whether every queue is fit to be read.
pub(super) async fn prepare(
    connection: &Connection,
    options: &Options,
    instances: Instances,
) -> Result<(), Refused> {
    for queue in options.queues() {
        let consumers = match options.declare {
            Declare::Passive => look(connection, &queue).await?,
            Declare::Create => create(connection, options, &queue).await?,
        };
        if consumers > 0 && options.reader == Reader::Plain && instances == Instances::One {
            return Err(Refused::InUse(format!(
                "queue `{queue}` has {consumers} other consumers, and instances = \"one\"; end them, or wait until the broker has given up our last connection"
            )));
        }
    }
    if options.shards.is_some() && options.declare == Declare::Create {
        spread(connection, options).await?;
    }
    Ok(())
}

/// Whether the queues are what the options need them to be: everything that is wrong with them.
pub(super) async fn verify(
    source: &str,
    connection: &Connection,
    options: &Options,
) -> Result<(), Refused> {
    let mut wrong = Vec::new();
    for queue in options.queues() {
        let mut facts = probe::facts(connection, &queue).await?;
        if let Some(exchange) = &facts.dead_letter_exchange
            && options.dead_letter == DeadLetterTo::Broker
        {
            let by = facts.dead_letter_routing_key.as_ref().unwrap_or(&queue);
            facts.dead_letters_kept = probe::is_bound(connection, exchange, by).await?;
        }
        if facts.queue_type == QueueType::Quorum.name()
            && facts.delivery_limit.is_none()
            && !options.delivery_limit_accepted
        {
            tracing::warn!(
                source,
                "quorum queue `{queue}` has no x-delivery-limit: RabbitMQ 4 then has one of 20, and after so many lost connections takes messages away that were never called; there, set delivery-limit = -1 by a policy, or accept_delivery_limit = true"
            );
        }
        wrong.append(&mut misfits(options, &queue, &facts));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Refused::Other(wrong.join("; "))),
    }
}

/// Everything about a queue that is not what the options need.
fn misfits(options: &Options, queue: &str, facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    if options.reader == Reader::SingleActive && !facts.single_active {
        wrong.push(format!(
            "queue `{queue}` has no x-single-active-consumer, and reader = \"single-active\"; make it anew with that argument, or set reader = \"exclusive\""
        ));
    }
    if options.reader != Reader::SingleActive && facts.single_active {
        wrong.push(format!(
            "queue `{queue}` has x-single-active-consumer; set reader = \"single-active\""
        ));
    }
    if options.reader == Reader::Exclusive && facts.queue_type == QueueType::Quorum.name() {
        wrong.push(format!(
            "queue `{queue}` is a quorum queue, which has no exclusive consumers; make it with x-single-active-consumer and set reader = \"single-active\""
        ));
    }
    if let Some(limit) = facts.delivery_limit
        && !options.delivery_limit_accepted
    {
        wrong.push(format!(
            "queue `{queue}` has a delivery limit of {limit}: after so many deliveries the broker takes a message away, also if it was only waiting here when a connection was lost; remove the limit, or set accept_delivery_limit = true"
        ));
    }
    if options.dead_letter == DeadLetterTo::Broker {
        wrong.extend(unproven_dead_letters(queue, facts));
    }
    wrong
}

/// What the broker would do with what is rejected, unless it is proven to keep it.
fn unproven_dead_letters(queue: &str, facts: &Facts) -> Option<String> {
    let dropped = "and the broker would drop what is rejected";
    match (&facts.dead_letter_exchange, facts.dead_letters_kept) {
        (None, _) => Some(format!(
            "dead_letter = \"broker\", but queue `{queue}` has no x-dead-letter-exchange, {dropped}; give the queue one, or set dead_letter = \"store\""
        )),
        (Some(exchange), false) => Some(format!(
            "dead_letter = \"broker\", but no queue is bound to exchange `{exchange}`, {dropped}; bind one, or set dead_letter = \"store\""
        )),
        (Some(_), true) => None,
    }
}

async fn channel(connection: &Connection, queue: &str) -> Result<Channel, Refused> {
    let channel = connection.create_channel().await;
    channel.map_err(|error| Refused::by(queue, &error))
}

/// How many consumers it has; it must be there.
async fn look(connection: &Connection, queue: &str) -> Result<u32, Refused> {
    let channel = channel(connection, queue).await?;
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let declared = declared.await.map_err(|error| Refused::by(queue, &error))?;
    let _ = channel.close(200, "".into()).await;
    Ok(declared.consumer_count())
}

/// Makes the queue and what belongs to it, unless it is there and the same.
async fn create(connection: &Connection, options: &Options, queue: &str) -> Result<u32, Refused> {
    let channel = channel(connection, queue).await?;
    let refused = |error| Refused::by(queue, &error);
    let mut arguments = FieldTable::default();
    let kind = AMQPValue::LongString(options.queue_type.name().into());
    arguments.insert("x-queue-type".into(), kind);
    if options.reader == Reader::SingleActive {
        let single_active = AMQPValue::Boolean(true);
        arguments.insert("x-single-active-consumer".into(), single_active);
    }
    if options.dead_letter == DeadLetterTo::Broker {
        let exchange = dead_letters(&channel, &options.queue)
            .await
            .map_err(refused)?;
        let exchange = AMQPValue::LongString(exchange.into());
        arguments.insert("x-dead-letter-exchange".into(), exchange);
    }
    let declared = channel.queue_declare(queue.into(), durable(), arguments);
    let declared = declared.await.map_err(refused)?;
    let _ = channel.close(200, "".into()).await;
    Ok(declared.consumer_count())
}

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    }
}

/// A durable fanout exchange with one queue, for what fails for good (GB-105).
async fn dead_letters(channel: &Channel, queue: &str) -> lapin::Result<String> {
    let (exchange, letters) = (format!("{queue}.dlx"), format!("{queue}.dlq"));
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let none = FieldTable::default;
    channel
        .exchange_declare(
            exchange.as_str().into(),
            ExchangeKind::Fanout,
            options,
            none(),
        )
        .await?;
    channel
        .queue_declare(letters.as_str().into(), durable(), none())
        .await?;
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(
            letters.into(),
            exchange.as_str().into(),
            "".into(),
            bind,
            none(),
        )
        .await?;
    Ok(exchange)
}

/// The exchange that spreads keys over the shards: by the first of the headers that carry the key,
/// or by the routing key where that is the key.
async fn spread(connection: &Connection, options: &Options) -> Result<(), Refused> {
    let refused = |error| Refused::by(&options.queue, &error);
    let channel = channel(connection, &options.queue).await?;
    let kind = ExchangeKind::Custom("x-consistent-hash".to_owned());
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    if let Some(header) = options.key_headers.first() {
        let header = AMQPValue::LongString(header.as_str().into());
        arguments.insert("hash-header".into(), header);
    }
    let exchange = options.queue.as_str();
    channel
        .exchange_declare(exchange.into(), kind, durable, arguments)
        .await
        .map_err(refused)?;
    for queue in options.queues() {
        // The routing key of the binding is its weight: all the same.
        let bind = QueueBindOptions::default();
        let bound = channel.queue_bind(
            queue.into(),
            exchange.into(),
            "1".into(),
            bind,
            FieldTable::default(),
        );
        bound.await.map_err(refused)?;
    }
    let _ = channel.close(200, "".into()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            queue_type: "classic".to_owned(),
            ..Facts::default()
        }
    }

    #[test]
    fn what_the_options_need_of_a_queue_is_asked_of_it() {
        let mut options = Options::new("amqp://localhost", "q");
        assert_eq!(misfits(&options, "q", &facts()), [""; 0]);
        let limited = Facts {
            delivery_limit: Some(20),
            ..facts()
        };
        let said = misfits(&options, "q", &limited).join("");
        assert!(said.contains("limit of 20") && said.contains("accept_delivery_limit"));
        options.delivery_limit_accepted = true;
        assert_eq!(misfits(&options, "q", &limited), [""; 0]);
        let active = Facts {
            single_active: true,
            ..facts()
        };
        assert_eq!(misfits(&options, "q", &active).len(), 1);
        options.reader = Reader::SingleActive;
        assert_eq!(misfits(&options, "q", &active), [""; 0]);
        assert_eq!(misfits(&options, "q", &facts()).len(), 1);
    }

    #[test]
    fn gb_96_all_that_is_wrong_is_said_together() {
        let mut options = Options::new("amqp://localhost", "q");
        options.reader = Reader::SingleActive;
        options.dead_letter = DeadLetterTo::Broker;
        let wrong = Facts {
            delivery_limit: Some(3),
            ..facts()
        };
        assert_eq!(misfits(&options, "q", &wrong).len(), 3);
    }

    #[test]
    fn a_dead_letter_exchange_must_be_proven() {
        let mut options = Options::new("amqp://localhost", "q");
        options.dead_letter = DeadLetterTo::Broker;
        let with = |exchange: Option<&str>, dead_letters_kept| Facts {
            dead_letter_exchange: exchange.map(str::to_owned),
            dead_letters_kept,
            ..facts()
        };
        for wrong in [with(None, false), with(Some("x"), false)] {
            let said = misfits(&options, "q", &wrong).join("");
            assert!(said.contains("dead_letter = \"broker\""), "{said}");
        }
        assert_eq!(misfits(&options, "q", &with(Some("x"), true)), [""; 0]);
    }
}
