//! The other end of a queue: publishes, counts, makes and deletes.

use std::collections::HashMap;
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{
    ApplicationProperties, Body, Data, Header, Message, Properties, Source, Target,
};
use fe2o3_amqp::types::primitives::{Binary, SimpleValue, Symbol, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use keylane_router::activemq::Options;
use tokio::net::TcpStream;

use super::Server;

const PATIENCE: Duration = Duration::from_secs(20);

/// A message to be published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Vec<(String, String)>,
}

/// A connection for tests.
pub(crate) struct Client {
    server: Server,
    _connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
    senders: HashMap<String, Sender>,
    /// Where the broker answers.
    replies: Option<Receiver>,
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl Client {
    pub(crate) async fn connect(server: Server, at: &Options) -> Result<Self, String> {
        let stream = TcpStream::connect((at.host.as_str(), at.port))
            .await
            .map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        let sasl = match &at.login {
            Some(login) => SaslProfile::Plain {
                username: login.user.clone(),
                password: login.password.clone(),
            },
            None => SaslProfile::Anonymous,
        };
        let connection = Connection::builder()
            .container_id(uuid::Uuid::now_v7().to_string())
            .sasl_profile(sasl)
            .open_with_stream(stream);
        let mut connection = connection.await.map_err(text)?;
        let session = Session::begin(&mut connection).await.map_err(text)?;
        Ok(Self {
            server,
            _connection: connection,
            session,
            senders: HashMap::new(),
            replies: None,
        })
    }

    async fn sender(&mut self, to: &str) -> Result<&mut Sender, String> {
        if !self.senders.contains_key(to) {
            let target = Target::builder()
                .address(to)
                .capabilities(vec![Symbol::from("queue")])
                .build();
            let sender = Sender::builder()
                .name(format!("to-{to}"))
                .target(target)
                .attach(&mut self.session);
            let sender = sender.await.map_err(text)?;
            self.senders.insert(to.to_owned(), sender);
        }
        Ok(self.senders.get_mut(to).expect("it is there"))
    }

    /// Puts messages into a queue, in order; all are on disk when this answers.
    pub(crate) async fn publish(&mut self, to: &str, all: &[Outgoing]) -> Result<(), String> {
        let sender = self.sender(to).await?;
        let mut confirmations = Vec::new();
        for outgoing in all {
            let sent = sender.send_batchable(message(outgoing)).await;
            confirmations.push(sent.map_err(text)?);
        }
        for confirmed in confirmations {
            let outcome = confirmed.await.map_err(text)?;
            outcome.accepted_or_else(text)?;
        }
        Ok(())
    }

    /// Sees to it that there is such a queue.
    pub(crate) async fn create(&mut self, queue: &str) -> Result<(), String> {
        match self.server {
            // A link to it makes it.
            Server::Classic => self.sender(queue).await.map(drop),
            Server::Artemis => {
                let config = serde_json::json!({
                    "name": queue, "address": queue, "routing-type": "ANYCAST",
                    "durable": true, "auto-delete": false, "auto-create-address": true,
                });
                let body = serde_json::json!([config.to_string()]);
                self.manage("broker", "createQueue", body).await.map(drop)
            }
        }
    }

    /// The queue is no more, and who reads it is told.
    pub(crate) async fn delete(&mut self, queue: &str) -> Result<(), String> {
        self.senders.remove(queue);
        let body = serde_json::json!([queue, true, true]);
        self.manage("broker", "destroyQueue", body).await.map(drop)
    }

    /// How many messages a queue holds.
    pub(crate) async fn left(&mut self, queue: &str) -> Result<u64, String> {
        match self.server {
            Server::Artemis => {
                let resource = format!("queue.{queue}");
                let count = self
                    .manage(&resource, "countMessages", serde_json::json!([]))
                    .await?;
                let count: serde_json::Value = serde_json::from_str(&count).map_err(text)?;
                count[0]
                    .as_u64()
                    .ok_or_else(|| format!("no number: {count}"))
            }
            Server::Classic => {
                let to = format!("ActiveMQ.Statistics.Destination.{queue}");
                let reply = self.ask(&to, Message::builder().value("").build()).await?;
                let Body::Value(value) = reply.body else {
                    return Err(format!("no statistics: {:?}", reply.body));
                };
                let Value::Map(map) = value.0 else {
                    return Err(format!("no statistics: {:?}", value.0));
                };
                match map.get(&Value::String("size".to_owned())) {
                    Some(Value::Long(size)) => u64::try_from(*size).map_err(text),
                    other => Err(format!("no size: {other:?}")),
                }
            }
        }
    }

    /// An operation of Artemis; answers its result as text.
    pub(crate) async fn manage(
        &mut self,
        resource: &str,
        operation: &str,
        parameters: serde_json::Value,
    ) -> Result<String, String> {
        let properties = ApplicationProperties::builder()
            .insert("_AMQ_ResourceName", resource)
            .insert("_AMQ_OperationName", operation)
            .build();
        let question = Message::builder()
            .application_properties(properties)
            .value(parameters.to_string())
            .build();
        let reply = self.ask("activemq.management", question).await?;
        let properties = reply.application_properties.unwrap_or_default();
        let done = properties.0.get("_AMQ_OperationSucceeded").cloned();
        match (done, reply.body) {
            (Some(SimpleValue::Bool(true)), Body::Value(value)) => match value.0 {
                Value::String(text) => Ok(text),
                other => Ok(format!("{other:?}")),
            },
            (_, body) => Err(format!("{operation} of {resource} failed: {body:?}")),
        }
    }

    /// Sends a question and waits for its answer.
    async fn ask(
        &mut self,
        to: &str,
        mut question: Message<fe2o3_amqp::types::messaging::AmqpValue<impl Into<String>>>,
    ) -> Result<Message<Body<Value>>, String> {
        if self.replies.is_none() {
            let source = Source::builder().dynamic(true).build();
            let replies = Receiver::builder()
                .name("replies")
                .source(source)
                .auto_accept(true)
                .attach(&mut self.session);
            self.replies = Some(replies.await.map_err(text)?);
        }
        let replies = self.replies.as_mut().expect("it is there");
        let address = replies
            .source()
            .as_ref()
            .and_then(|source| source.address.clone());
        let properties = question.properties.get_or_insert_with(Properties::default);
        properties.reply_to = address;
        let question = Message {
            header: question.header,
            delivery_annotations: question.delivery_annotations,
            message_annotations: question.message_annotations,
            properties: question.properties,
            application_properties: question.application_properties,
            body: fe2o3_amqp::types::messaging::AmqpValue(question.body.0.into()),
            footer: question.footer,
        };
        let outcome = self.sender(to).await?.send(question).await.map_err(text)?;
        outcome.accepted_or_else(text)?;
        let replies = self.replies.as_mut().expect("it is there");
        let reply = tokio::time::timeout(PATIENCE, replies.recv::<Body<Value>>()).await;
        let reply = reply.map_err(|_| format!("no answer from {to}"))?;
        Ok(reply.map_err(text)?.into_message())
    }
}

/// As plain AMQP publishers send it: bytes.
fn message(outgoing: &Outgoing) -> Message<Data> {
    let headers = outgoing.headers.iter();
    let headers = headers.map(|(name, value)| (name.clone(), SimpleValue::from(value.clone())));
    Message::builder()
        .header(Header {
            durable: true,
            ..Header::default()
        })
        .properties(Properties {
            message_id: outgoing.id.clone().map(Into::into),
            group_id: outgoing.key.clone(),
            ..Properties::default()
        })
        .application_properties(ApplicationProperties(headers.collect()))
        .data(Binary::from(outgoing.body.clone()))
        .build()
}
