//! RabbitMQ as the suite's subject: a real broker, a proxy in front of it for each queue, and a user
//! of its own for each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use keylane_router::conformance::{Fault, Published, Queue, Subject};
use keylane_router::plan::SourcePlan;
use keylane_router::rabbitmq::{Options, QueueType, RabbitmqSource, Reader, features};
use keylane_router::source::Features;
use keylane_router::testing::{Accept, Fault as ProxyFault, Proxy};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::Mutex;

/// Short, so that leases are: half of it.
const HEARTBEAT: Duration = Duration::from_secs(4);
/// As long as this the broker may take for a few hundred messages.
const PATIENCE: Duration = Duration::from_secs(60);
/// `basic.ack`: its class and its method.
const ACK: [u8; 4] = [0, 60, 0, 80];

/// A kind of queue, read in one way.
#[derive(Clone, Copy)]
pub(crate) struct Rabbit {
    reader: Reader,
    queue_type: QueueType,
    /// After so many deliveries the broker takes a message away.
    limit: Option<i32>,
}

impl Rabbit {
    /// A classic queue with an exclusive consumer.
    pub(crate) const EXCLUSIVE: Self = Self {
        reader: Reader::Exclusive,
        queue_type: QueueType::Classic,
        limit: None,
    };
    /// A quorum queue with a delivery limit and a single active consumer.
    pub(crate) const QUORUM: Self = Self {
        reader: Reader::SingleActive,
        queue_type: QueueType::Quorum,
        limit: Some(1000),
    };
    /// The same without a limit: RabbitMQ 3 keeps it in another way, and gives back otherwise.
    pub(crate) const QUORUM_WITHOUT_LIMIT: Self = Self {
        limit: None,
        ..Self::QUORUM
    };
    /// A classic queue with a consumer like any other.
    pub(crate) const PLAIN: Self = Self {
        reader: Reader::Plain,
        queue_type: QueueType::Classic,
        limit: None,
    };

    fn options(self, url: &str, queue: &str) -> Options {
        let mut options = Options::new(url, queue);
        options.reader = self.reader;
        options.queue_type = self.queue_type;
        options.heartbeat = HEARTBEAT;
        options.delivery_limit_accepted = self.queue_type == QueueType::Quorum;
        options
    }

    fn arguments(self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString(self.queue_type.name().into());
        arguments.insert("x-queue-type".into(), kind);
        if let Some(limit) = self.limit {
            let limit = AMQPValue::LongInt(limit);
            arguments.insert("x-delivery-limit".into(), limit);
        }
        if self.reader == Reader::SingleActive {
            let active = AMQPValue::Boolean(true);
            arguments.insert("x-single-active-consumer".into(), active);
        }
        arguments
    }

    /// The test that is a router on such a queue.
    fn router(self) -> &'static str {
        match self.reader {
            Reader::Exclusive => "router_on_rabbitmq",
            Reader::SingleActive => "router_on_a_quorum_queue_of_rabbitmq",
            Reader::Plain => "router_on_rabbitmq_as_one_of_many",
        }
    }

    /// The queue of this name, read without a proxy by its own user.
    pub(crate) fn open(self, name: &Path) -> RabbitQueue {
        let broker = Broker::here().expect("the test that starts this has a broker");
        RabbitQueue {
            rabbit: self,
            name: name.to_string_lossy().into_owned(),
            broker,
            proxy: None,
            publisher: Mutex::default(),
            made_here: false,
        }
    }
}

/// The broker of this run.
#[derive(Clone)]
pub(crate) struct Broker {
    pub(crate) url: String,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Broker {
    pub(crate) fn here() -> Option<Self> {
        let url = std::env::var("KEYLANE_TEST_RABBITMQ_URL").ok()?;
        let admin = std::env::var("KEYLANE_TEST_RABBITMQ_ADMIN_URL").ok()?;
        let address = |url: &str| {
            // Also by name.
            let mut parts = url.split(['@', '/']);
            parts.find_map(|part| part.to_socket_addrs().ok()?.next())
        };
        Some(Self {
            address: address(&url).expect("its URL has an address and a port"),
            admin: address(&admin).expect("its URL has an address and a port"),
            url,
        })
    }

    /// As this user, at this address.
    fn url_of(&self, user: &str, address: SocketAddr) -> String {
        format!("amqp://{user}:{}@{address}/%2f", password(user))
    }

    /// Asks the management API; answers the body, or what it says is wrong.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.admin)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            let length = body.len();
            // As whom the URL says.
            let login = self
                .url
                .split("://")
                .nth(1)
                .and_then(|rest| rest.split_once('@'));
            let login = base64(login.map_or("guest:guest", |(login, _)| login));
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {login}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| format!("the management API: {error}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some(status) if status.starts_with('2') => Ok(body.to_owned()),
            _ => Err(format!("the management API: {method} {path}: {answer}")),
        }
    }

    fn set_password(&self, user: &str, password: &str) -> Result<(), String> {
        let body = format!("{{\"password\":\"{password}\",\"tags\":\"\"}}");
        self.admin("PUT", &format!("/api/users/{user}"), &body)?;
        Ok(())
    }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn password(user: &str) -> String {
    format!("pass-{user}")
}

impl Subject for Rabbit {
    type Queue = RabbitQueue;

    fn absent(&self) -> Option<String> {
        let needed = [
            "KEYLANE_TEST_RABBITMQ_URL",
            "KEYLANE_TEST_RABBITMQ_ADMIN_URL",
        ];
        let missing = needed
            .into_iter()
            .find(|name| std::env::var_os(name).is_none());
        missing.map(|name| format!("{name} is not set"))
    }

    fn features(&self) -> Features {
        features(&self.options("amqp://localhost", "q"))
    }

    fn can(&self, fault: Fault) -> bool {
        match fault {
            // RabbitMQ 3.10.8 alone on a node, killed and started: one quorum queue in three has no
            // leader for minutes, without any consumer of ours.
            Fault::Kill if self.queue_type == QueueType::Quorum => false,
            Fault::Stop | Fault::Kill | Fault::Start => super::is_ours("rabbitmq"),
            _ => true,
        }
    }

    async fn queue(&self) -> Result<RabbitQueue, String> {
        let broker = Broker::here().ok_or("no broker")?;
        let name = format!("conformance-{}", uuid::Uuid::now_v7().simple());
        broker.set_password(&name, &password(&name))?;
        broker.admin(
            "PUT",
            &format!("/api/permissions/%2f/{name}"),
            r#"{"configure":".*","write":".*","read":".*"}"#,
        )?;
        let queue = RabbitQueue {
            rabbit: *self,
            name,
            proxy: Some(Proxy::start(broker.address).await),
            broker,
            publisher: Mutex::default(),
            made_here: true,
        };
        queue.declare().await?;
        Ok(queue)
    }
}

pub(crate) struct RabbitQueue {
    rabbit: Rabbit,
    /// Of the queue and of the user that reads it.
    name: String,
    broker: Broker,
    proxy: Option<Proxy>,
    publisher: Mutex<Option<(Connection, Channel)>>,
    /// It goes with this.
    made_here: bool,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl RabbitQueue {
    fn proxy(&self) -> Result<&Proxy, String> {
        self.proxy.as_ref().ok_or_else(|| "no proxy".to_owned())
    }

    /// The publisher's channel, which is not behind the proxy; made anew if it was lost.
    async fn channel(&self) -> Result<Channel, String> {
        let mut publisher = self.publisher.lock().await;
        if let Some((_, channel)) = &*publisher
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        let url = &self.broker.url;
        let connection = Connection::connect(url, ConnectionProperties::default()).await;
        let connection = connection.map_err(text)?;
        let channel = connection.create_channel().await.map_err(text)?;
        let confirm = channel.confirm_select(ConfirmSelectOptions::default());
        confirm.await.map_err(text)?;
        *publisher = Some((connection, channel.clone()));
        Ok(channel)
    }

    async fn declare(&self) -> Result<(), String> {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.name.as_str().into();
        let channel = self.channel().await?;
        let declared = channel.queue_declare(name, durable, self.rabbit.arguments());
        declared.await.map(drop).map_err(text)
    }

    async fn send(&self, channel: &Channel, messages: &[Published]) -> lapin::Result<()> {
        let mut confirms = Vec::new();
        for message in messages {
            let mut headers = FieldTable::default();
            if let Some(key) = &message.key {
                let key = AMQPValue::LongString(key.to_vec().into());
                headers.insert("x-group-id".into(), key);
            }
            for (name, value) in &message.headers {
                let value = AMQPValue::LongString(value.as_str().into());
                headers.insert(name.as_str().into(), value);
            }
            let id = uuid::Uuid::now_v7().to_string();
            let properties = BasicProperties::default()
                .with_headers(headers)
                .with_message_id(id.into())
                .with_delivery_mode(2);
            let sent = channel.basic_publish(
                "".into(),
                self.name.as_str().into(),
                BasicPublishOptions::default(),
                &message.body,
                properties,
            );
            confirms.push(sent.await?);
        }
        for confirm in confirms {
            confirm.await?;
        }
        Ok(())
    }

    /// What the broker counts, those that are out included. It looks a few times in a second.
    fn counted(&self) -> Result<u64, String> {
        let path = "/api/queues/%2f?disable_stats=true&enable_queue_totals=true";
        let queues = self.broker.admin("GET", path, "")?;
        let queues: serde_json::Value = serde_json::from_str(&queues).map_err(text)?;
        let mut queues = queues.as_array().into_iter().flatten();
        let this = queues.find(|queue| queue["name"] == *self.name);
        Ok(this
            .and_then(|queue| queue["messages"].as_u64())
            .unwrap_or(0))
    }
}

impl Queue for RabbitQueue {
    type Source = RabbitmqSource;

    async fn connect(&self, name: Arc<str>, plan: &SourcePlan) -> Result<RabbitmqSource, String> {
        let address = self.proxy.as_ref().map(Proxy::address);
        let address = address.unwrap_or(self.broker.address);
        let url = self.broker.url_of(&self.name, address);
        let source = RabbitmqSource::new(name, self.rabbit.options(&url, &self.name), plan);
        source.map_err(|wrong| wrong.join("; "))
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        let channel = self.channel().await?;
        let sent = tokio::time::timeout(PATIENCE, self.send(&channel, &messages)).await;
        let sent = sent.map_err(|_| format!("the broker did not confirm within {PATIENCE:?}"))?;
        sent.map_err(text)
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.name.as_str().into();
        let channel = self.channel().await?;
        let queue = channel.queue_declare(name, passive, FieldTable::default());
        let ready = queue.await.map_err(text)?.message_count();
        Ok(Some(u64::from(ready).max(self.counted()?)))
    }

    async fn child(&self) -> Option<Command> {
        super::as_a_router(self.rabbit.router(), Path::new(&self.name))
    }

    /// Killed within two seconds, RabbitMQ 3.10.8 forgets a durable queue that it has answered for.
    async fn kept(&self) {
        tokio::time::sleep(Duration::from_secs(4)).await;
    }

    async fn fault(&self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Cut | Fault::Redeliver | Fault::EndLeases => self.proxy()?.cut_all(),
            Fault::Away => {
                self.proxy()?.set(ProxyFault::accept(Accept::Close));
                self.proxy()?.cut_all();
            }
            Fault::Back => self.proxy()?.set(ProxyFault::none()),
            Fault::LoseAck => self.proxy()?.swallow(ACK.to_vec()),
            Fault::LoseRenewals => self.proxy()?.stall_for(HEARTBEAT),
            Fault::Stop => super::operate("stop", "rabbitmq").await?,
            Fault::Kill => super::operate("kill", "rabbitmq").await?,
            Fault::Start => super::operate("start", "rabbitmq").await?,
            Fault::WrongPassword => {
                self.broker.set_password(&self.name, "another")?;
                self.proxy()?.cut_all();
            }
            Fault::RightPassword => self
                .broker
                .set_password(&self.name, &password(&self.name))?,
            Fault::DeleteQueue => {
                let name = self.name.as_str().into();
                let channel = self.channel().await?;
                let deleted = channel.queue_delete(name, QueueDeleteOptions::default());
                deleted.await.map_err(text)?;
            }
            Fault::CreateQueue => self.declare().await?,
        }
        Ok(())
    }
}

impl Drop for RabbitQueue {
    fn drop(&mut self) {
        if self.made_here {
            // What is left behind goes with the broker.
            let _ = self
                .broker
                .admin("DELETE", &format!("/api/queues/%2f/{}", self.name), "");
            let _ = self
                .broker
                .admin("DELETE", &format!("/api/users/{}", self.name), "");
        }
    }
}
