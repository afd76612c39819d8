//! What of the broker's settings would break order or lose messages, as far as it shows them:
//! Artemis answers questions about its queues, Classic does not.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, Properties, Source, Target,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Symbol, Value};
use fe2o3_amqp::{Receiver, Sender, Session};

use super::connect::{Connected, Failure};
use super::options::{Broker, Options, QueueSettings};
use super::peer::Peer;

/// Where Artemis answers questions.
const MANAGEMENT: &str = "activemq.management";
/// How long it may take for all answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at the broker, and at the settings of the queue, before anything is read.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// What was told already: once is enough, however often we connect.
    told: Vec<String>,
}

/// What is wrong with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// It breaks a promise.
    Breaks(String),
    /// It may surprise.
    Surprises(String),
}

impl Checks {
    /// An error where the queue must not be read.
    pub(super) async fn check(
        &mut self,
        source: &Arc<str>,
        options: &Options,
        connected: &mut Connected,
    ) -> Result<(), Failure> {
        lease_is_short_enough(options.lease, connected.peer)?;
        match (options.broker, connected.peer.artemis) {
            (Broker::Artemis, false) => {
                return Err(Failure::permanent(
                    "broker = \"artemis\", and it says that it is another: order over lost connections cannot be promised; set broker = \"classic\"",
                ));
            }
            (Broker::Classic, true) => {
                let text = "the broker is Artemis, which keeps order over lost connections, too; with broker = \"artemis\" that is promised";
                self.tell(source, &options.queue, text.to_owned());
            }
            _ => {}
        }
        if !connected.peer.artemis || options.queue_settings == QueueSettings::Ignore {
            return Ok(());
        }
        let asked = ask(&mut connected.connection, &options.queue);
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        let asked = asked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let findings = match asked {
            Ok(settings) => settings.findings(),
            Err(why) => vec![Finding::Surprises(format!(
                "its settings cannot be looked at: {why}; see that they are as docs/sources/activemq.md says"
            ))],
        };
        let queue = &options.queue;
        for finding in findings {
            match finding {
                Finding::Breaks(text) if options.queue_settings == QueueSettings::Refuse => {
                    return Err(Failure::permanent(format!(
                        "queue `{queue}` is not read: {text}; or set queue_settings = \"warn\""
                    )));
                }
                Finding::Breaks(text) | Finding::Surprises(text) => self.tell(source, queue, text),
            }
        }
        Ok(())
    }

    fn tell(&mut self, source: &str, queue: &str, text: String) {
        if !self.told.contains(&text) {
            tracing::warn!(source, "queue `{queue}`: {text}");
            self.told.push(text);
        }
    }
}

/// What we believe to be ours must still be so for the broker.
fn lease_is_short_enough(lease: Duration, peer: Peer) -> Result<(), Failure> {
    match peer.idle {
        Some(idle) if lease > idle => Err(Failure::permanent(format!(
            "lease is {lease:?}, and the broker gives messages to others {:?} after it last heard of us; set lease to at most {idle:?}",
            idle * 2
        ))),
        _ => Ok(()),
    }
}

/// What matters of a queue of Artemis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings {
    rebalances: bool,
    redelivery_delay: i64,
    max_delivery_attempts: i64,
    /// Where messages go after so many, with the queues there.
    dead_letters: Option<(String, usize)>,
}

impl Settings {
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.redelivery_delay > 0 {
            findings.push(Finding::Breaks(format!(
                "redelivery-delay is {} ms, and what is behind a message that comes again overtakes it; set it to 0",
                self.redelivery_delay
            )));
        }
        if self.rebalances {
            findings.push(Finding::Breaks(
                "group-rebalance is on, and a key moves to another consumer while messages of it are out; switch it off".to_owned(),
            ));
        }
        if self.max_delivery_attempts > 0 {
            findings.push(self.attempts());
        }
        findings
    }

    fn attempts(&self) -> Finding {
        let limit = self.max_delivery_attempts;
        let remedy = "set max-delivery-attempts to -1";
        match &self.dead_letters {
            Some((address, queues)) if *queues > 0 => Finding::Surprises(format!(
                "Artemis moves a message to `{address}` when a connection was lost {limit} times while it was out, called or not; {remedy}"
            )),
            Some((address, _)) => Finding::Breaks(format!(
                "Artemis drops a message when a connection was lost {limit} times while it was out, for there is no queue on the dead-letter address `{address}`; make one, or {remedy}"
            )),
            None => Finding::Breaks(format!(
                "Artemis drops a message when a connection was lost {limit} times while it was out, for there is no dead-letter-address; {remedy}"
            )),
        }
    }
}

async fn ask(connection: &mut ConnectionHandle<()>, queue: &str) -> Result<Settings, String> {
    let session = Session::begin(connection).await;
    let mut session = session.map_err(|error| error.to_string())?;
    let mut desk = Desk::open(&mut session).await?;
    let settings = desk.settings(queue).await;
    desk.close().await;
    let _ = session.end().await;
    settings
}

/// Where questions are asked and answered.
struct Desk {
    questions: Sender,
    answers: Receiver,
}

impl Desk {
    async fn open(session: &mut fe2o3_amqp::session::SessionHandle<()>) -> Result<Self, String> {
        let target = Target::builder()
            .address(MANAGEMENT)
            .capabilities(vec![Symbol::from("queue")])
            .build();
        let questions = Sender::builder()
            .name("keylane-questions")
            .target(target)
            .attach(session);
        let questions = questions.await.map_err(|error| error.to_string())?;
        let answers = Receiver::builder()
            .name("keylane-answers")
            .source(Source::builder().dynamic(true).build())
            .auto_accept(true)
            .attach(session);
        Ok(Self {
            questions,
            answers: answers.await.map_err(|error| error.to_string())?,
        })
    }

    async fn settings(&mut self, queue: &str) -> Result<Settings, String> {
        let queue = queue.rsplit_once("::").map_or(queue, |(_, queue)| queue);
        let resource = format!("queue.{queue}");
        let rebalances = self.call(&resource, "isGroupRebalance", &[]).await?;
        let address = self.call(&resource, "getAddress", &[]).await?;
        let address = address.as_str().unwrap_or(queue).to_owned();
        let set = self
            .call("broker", "getAddressSettingsAsJSON", &[&address])
            .await?;
        let set: serde_json::Value = serde_json::from_str(set.as_str().unwrap_or("{}"))
            .map_err(|error| format!("its settings are no JSON: {error}"))?;
        let number = |name: &str, usual| set[name].as_i64().unwrap_or(usual);
        let mut settings = Settings {
            rebalances: rebalances.as_bool().unwrap_or(false),
            redelivery_delay: number("redeliveryDelay", 0),
            // What Artemis has where nothing is set.
            max_delivery_attempts: number("maxDeliveryAttempts", 10),
            dead_letters: None,
        };
        let dead_letters = set["deadLetterAddress"].as_str();
        if let Some(address) = dead_letters.filter(|_| settings.max_delivery_attempts > 0) {
            let resource = format!("address.{address}");
            // An address that does not exist has none.
            let queues = self.call(&resource, "getQueueNames", &[]).await;
            let queues = queues.ok().and_then(|names| Some(names.as_array()?.len()));
            settings.dead_letters = Some((address.to_owned(), queues.unwrap_or(0)));
        }
        Ok(settings)
    }

    /// Calls an operation; answers what it answers.
    async fn call(
        &mut self,
        resource: &str,
        operation: &str,
        parameters: &[&str],
    ) -> Result<serde_json::Value, String> {
        let source = self.answers.source().as_ref();
        let properties = Properties {
            reply_to: source.and_then(|source| source.address.clone()),
            ..Properties::default()
        };
        let question = Message::builder()
            .properties(properties)
            .application_properties(
                ApplicationProperties::builder()
                    .insert("_AMQ_ResourceName", resource)
                    .insert("_AMQ_OperationName", operation)
                    .build(),
            )
            .value(serde_json::json!(parameters).to_string())
            .build();
        let sent = self.questions.send(question).await;
        let sent = sent.map_err(|error| error.to_string())?;
        sent.accepted_or_else(|state| format!("we may not ask: {state:?}"))?;
        let answer = self.answers.recv::<Body<Value>>().await;
        let answer = answer.map_err(|error| error.to_string())?.into_message();
        let done = answer.application_properties.unwrap_or_default();
        let done = done.0.get("_AMQ_OperationSucceeded") == Some(&SimpleValue::Bool(true));
        match answer.body {
            // The result is the only one of a list.
            Body::Value(AmqpValue(Value::String(text))) if done => {
                let results: serde_json::Value = serde_json::from_str(&text)
                    .map_err(|error| format!("{operation} answers no JSON: {error}"))?;
                Ok(results[0].clone())
            }
            body => Err(format!("{operation} of {resource} fails: {body:?}")),
        }
    }

    async fn close(self) {
        let _ = self.questions.close().await;
        let _ = self.answers.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Settings {
        Settings {
            max_delivery_attempts: -1,
            ..Settings::default()
        }
    }

    #[test]
    fn nothing_is_said_of_a_queue_that_is_as_it_should_be() {
        assert_eq!(good().findings(), []);
    }

    #[test]
    fn what_breaks_order_or_loses_messages_is_found() {
        let dropping = Settings {
            max_delivery_attempts: 10,
            dead_letters: Some(("DLQ".to_owned(), 0)),
            ..good()
        };
        let bad = [
            Settings {
                redelivery_delay: 100,
                ..good()
            },
            Settings {
                rebalances: true,
                ..good()
            },
            Settings {
                dead_letters: None,
                ..dropping.clone()
            },
            dropping.clone(),
        ];
        for settings in bad {
            let findings = settings.findings();
            assert!(
                matches!(&findings[..], [Finding::Breaks(_)]),
                "{findings:?}"
            );
        }
        let moving = Settings {
            dead_letters: Some(("DLQ".to_owned(), 1)),
            ..dropping
        };
        assert!(matches!(&moving.findings()[..], [Finding::Surprises(_)]));
    }

    #[test]
    fn a_lease_that_the_broker_may_end_before_us_is_an_error_that_says_how_long_it_may_be() {
        let peer = |seconds| Peer {
            artemis: false,
            idle: Some(Duration::from_secs(seconds)),
        };
        let lease = Duration::from_secs(10);
        assert_eq!(lease_is_short_enough(lease, peer(15)), Ok(()));
        assert_eq!(lease_is_short_enough(lease, Peer::default()), Ok(()));
        let error = lease_is_short_enough(lease, peer(5)).expect_err("too long");
        assert!(error.text.contains("at most 5s"), "{}", error.text);
    }
}
