//! Reads the arguments of a queue by AMQP alone.
//!
//! The protocol has no question for them, but a queue that is declared with other arguments is
//! refused, and the broker says which differs and what it is. So it is declared with a value that no
//! queue can have: it is never made, never changed, and tells one argument each time. What a policy
//! adds is not seen by this.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ErrorKind};

use super::queue::{Facts, Refused};

/// More arguments than a queue can have.
const MOST: usize = 40;

/// What is asked for, with a value that is impossible.
const WANTED: [(&str, Impossible); 5] = [
    ("x-dead-letter-exchange", Impossible::Number),
    ("x-dead-letter-routing-key", Impossible::Number),
    ("x-single-active-consumer", Impossible::Text),
    ("x-queue-type", Impossible::Text),
    ("x-delivery-limit", Impossible::Number),
];

#[derive(Clone, Copy)]
enum Impossible {
    Number,
    Text,
}

impl Impossible {
    fn value(self) -> AMQPValue {
        match self {
            Self::Number => AMQPValue::LongInt(-1),
            Self::Text => AMQPValue::LongString("keylane looks".into()),
        }
    }
}

/// What the broker says of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    argument: String,
    /// Its value and type; `None`: it has none.
    current: Option<(String, String)>,
}

/// What is known so far.
#[derive(Default)]
struct Known {
    options: QueueDeclareOptions,
    arguments: Vec<Told>,
}

impl Known {
    fn learn(&mut self, told: Told) {
        let is = told
            .current
            .as_ref()
            .is_some_and(|(value, _)| value == "true");
        match told.argument.as_str() {
            "durable" => self.options.durable = is,
            "auto_delete" => self.options.auto_delete = is,
            _ => self.arguments.push(told),
        }
    }

    fn value(&self, argument: &str) -> Option<&str> {
        let told = self
            .arguments
            .iter()
            .find(|told| told.argument == argument)?;
        told.current.as_ref().map(|(value, _)| value.as_str())
    }

    fn table(&self) -> FieldTable {
        let mut table = FieldTable::default();
        for told in &self.arguments {
            if let Some((value, kind)) = &told.current {
                table.insert(told.argument.as_str().into(), typed(value, kind));
            }
        }
        table
    }
}

fn typed(value: &str, kind: &str) -> AMQPValue {
    match (kind, value.parse()) {
        ("bool", _) => AMQPValue::Boolean(value == "true"),
        ("longstr", _) | (_, Err(_)) => AMQPValue::LongString(value.into()),
        (_, Ok(number)) => AMQPValue::LongLongInt(number),
    }
}

/// What a queue's arguments say of it.
pub(super) async fn facts(connection: &Connection, queue: &str) -> Result<Facts, Refused> {
    let mut known = Known::default();
    known.options.durable = true;
    for (argument, impossible) in WANTED {
        learn(connection, queue, &mut known, (argument, impossible)).await?;
    }
    Ok(Facts {
        queue_type: known.value("x-queue-type").unwrap_or("classic").to_owned(),
        single_active: known.value("x-single-active-consumer") == Some("true"),
        delivery_limit: known
            .value("x-delivery-limit")
            .and_then(|limit| limit.parse().ok()),
        dead_letter_exchange: known.value("x-dead-letter-exchange").map(str::to_owned),
        dead_letter_routing_key: known.value("x-dead-letter-routing-key").map(str::to_owned),
        dead_letters_kept: false,
    })
}

/// Whether what is sent to this exchange comes to a queue. Sends a message that must be routed, and
/// whose time is over when it is: it comes back if there is no queue, and no queue keeps it.
pub(super) async fn is_bound(
    connection: &Connection,
    exchange: &str,
    routing_key: &str,
) -> Result<bool, Refused> {
    let refused = |error: lapin::Error| Refused::by(exchange, &error);
    let channel = connection.create_channel().await.map_err(refused)?;
    let confirm = channel.confirm_select(ConfirmSelectOptions::default());
    confirm.await.map_err(refused)?;
    let must_be_routed = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let over = BasicProperties::default()
        .with_expiration("0".into())
        .with_type("keylane.probe".into());
    let sent = channel.basic_publish(
        exchange.into(),
        routing_key.into(),
        must_be_routed,
        b"",
        over,
    );
    let confirmed = match sent.await {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    let _ = channel.close(200, "".into()).await;
    match confirmed {
        Ok(Confirmation::Ack(returned)) => Ok(returned.is_none()),
        Ok(_) => Ok(false),
        // There is no such exchange: the channel is closed for that.
        Err(error) if matches!(error.kind(), ErrorKind::ProtocolError(_)) => Ok(false),
        Err(error) => Err(refused(error)),
    }
}

/// Asks until the broker has told this argument.
async fn learn(
    connection: &Connection,
    queue: &str,
    known: &mut Known,
    (argument, impossible): (&str, Impossible),
) -> Result<(), Refused> {
    for _ in 0..MOST {
        if known.arguments.iter().any(|told| told.argument == argument) {
            return Ok(());
        }
        let mut table = known.table();
        table.insert(argument.into(), impossible.value());
        let channel = connection.create_channel().await;
        let channel = channel.map_err(|error| Refused::by(queue, &error))?;
        let declared = channel
            .queue_declare(queue.into(), known.options, table)
            .await;
        let error = match declared {
            // This broker does not compare it: then it does not know it either.
            Ok(_) => {
                let _ = channel.close(200, "".into()).await;
                return Ok(());
            }
            Err(error) => error,
        };
        match told(&error) {
            Some(told) => known.learn(told),
            None => return Err(Refused::by(queue, &error)),
        }
    }
    let text = format!(
        "queue `{queue}`: its arguments could not be read; please report this with the broker's version"
    );
    Err(Refused::Other(text))
}

/// Reads "inequivalent arg 'x' for queue 'q' in vhost '/': received … but current is …".
fn told(error: &lapin::Error) -> Option<Told> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => read(error.get_message().as_str()),
        _ => None,
    }
}

fn read(text: &str) -> Option<Told> {
    let rest = text.split_once("inequivalent arg '")?.1;
    let (argument, rest) = rest.split_once('\'')?;
    let (_, current) = rest.rsplit_once(" but current is ")?;
    let current = match current {
        "none" => None,
        current => match current.strip_prefix("the value '") {
            Some(value) => {
                let (value, kind) = value.rsplit_once("' of type '")?;
                Some((value.to_owned(), kind.trim_end_matches('\'').to_owned()))
            }
            None => {
                let value = current.trim_matches('\'');
                let is_bool = value.parse::<bool>().is_ok();
                let kind = if is_bool { "bool" } else { "longstr" };
                Some((value.to_owned(), kind.to_owned()))
            }
        },
    };
    Some(Told {
        argument: argument.to_owned(),
        current,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(argument: &str, current: Option<(&str, &str)>) -> Option<Told> {
        Some(Told {
            argument: argument.to_owned(),
            current: current.map(|(value, kind)| (value.to_owned(), kind.to_owned())),
        })
    }

    #[test]
    fn the_brokers_words_are_read() {
        let text = |rest| format!("PRECONDITION_FAILED - inequivalent arg {rest}");
        let cases = [
            (
                "'x-dead-letter-exchange' for queue 'zz' in vhost '/': received none but current is the value 'dlx' of type 'longstr'",
                told("x-dead-letter-exchange", Some(("dlx", "longstr"))),
            ),
            (
                "'x-max-length' for queue 'zz' in vhost '/': received the value '-1' of type 'signedint' but current is none",
                told("x-max-length", None),
            ),
            (
                "'durable' for queue 'zz' in vhost '/': received 'false' but current is 'true'",
                told("durable", Some(("true", "bool"))),
            ),
            (
                "'x-queue-type' for queue 'zz' in vhost '/': received 'false' but current is 'classic'",
                told("x-queue-type", Some(("classic", "longstr"))),
            ),
        ];
        for (rest, expected) in cases {
            assert_eq!(read(&text(rest)), expected);
        }
        assert_eq!(
            read("RESOURCE_LOCKED - cannot obtain exclusive access"),
            None
        );
    }

    #[test]
    fn a_value_goes_back_as_it_came() {
        assert_eq!(typed("dlx", "longstr"), AMQPValue::LongString("dlx".into()));
        assert_eq!(typed("5", "longstr"), AMQPValue::LongString("5".into()));
        assert_eq!(typed("true", "bool"), AMQPValue::Boolean(true));
        assert_eq!(typed("50", "signedint"), AMQPValue::LongLongInt(50));
    }
}
