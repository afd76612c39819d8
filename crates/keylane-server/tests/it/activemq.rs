//! The program on queues of ActiveMQ Classic and Artemis (FC-1, FC-6, FC-18), where there are some.

use std::sync::atomic::{AtomicBool, Ordering};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::types::messaging::{Data, Header, Message, Properties, Target as Terminus};
use fe2o3_amqp::types::primitives::{Binary, Symbol};
use fe2o3_amqp::{Connection, Sender, Session};
use keylane_router::activemq::Options;
use keylane_router::testing::{Answer, Events, Request, Target};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::server::{Folder, delivered, messages, most_together, within};

/// A queue of one of the brokers, with the program's config for it.
struct Queue {
    url: String,
    name: String,
}

impl Queue {
    /// One on each broker that is there; says which is not.
    fn on_each() -> Vec<Self> {
        let queue = |broker| {
            let variable = format!("KEYLANE_TEST_{broker}_URL");
            let Ok(url) = std::env::var(&variable) else {
                println!("skipped: {variable} is not set");
                return None;
            };
            // Not `keylane.…`: those are not made by being used.
            let name = format!("program.{}", uuid::Uuid::now_v7().simple());
            Some(Self { url, name })
        };
        ["ACTIVEMQ", "ARTEMIS"]
            .into_iter()
            .filter_map(queue)
            .collect()
    }

    /// Sends messages, with the keys in their bodies as groups of the broker.
    async fn send(&self, messages: Vec<Value>) {
        let mut connection = within(self.connect()).await;
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let target = Terminus::builder()
            .address(self.name.as_str())
            .capabilities(vec![Symbol::from("queue")])
            .build();
        let sender = Sender::builder().name("test").target(target);
        let mut sender = sender.attach(&mut session).await.expect("a queue");
        for one in &messages {
            let sent = within(sender.send(message(one))).await;
            sent.expect("sent").accepted_or("taken").expect("taken");
        }
        sender.close().await.expect("closed");
        session.end().await.expect("ended");
        connection.close().await.expect("closed");
    }

    async fn connect(&self) -> ConnectionHandle<()> {
        let at = Options::new(&self.url, &self.name).expect("an address");
        let stream = TcpStream::connect((at.host.as_str(), at.port)).await;
        let stream = stream.expect("a broker");
        stream.set_nodelay(true).expect("set");
        let login = at.login.expect("the test brokers have one");
        let sasl = SaslProfile::Plain {
            username: login.user,
            password: login.password,
        };
        let opened = Connection::builder()
            .container_id(self.name.as_str())
            .sasl_profile(sasl);
        opened.open_with_stream(stream).await.expect("a connection")
    }

    fn folder(&self) -> Folder {
        let config = format!(
            r#"
            [breaker]
            failures = 0.0
            [pools.default]
            retry = {{ max_attempts = 1, initial = "10ms", max = "10ms" }}
            [sources.s]
            type = "activemq"
            url = "{}"
            queue = "{}"
            "#,
            self.url, self.name
        );
        Folder::with_config(&config)
    }
}

fn message(message: &Value) -> Message<Data> {
    let header = Header {
        durable: true,
        ..Header::default()
    };
    let properties = Properties {
        message_id: Some(uuid::Uuid::now_v7().to_string().into()),
        group_id: message["messageGroupId"].as_str().map(str::to_owned),
        ..Properties::default()
    };
    Message::builder()
        .header(header)
        .properties(properties)
        .data(Binary::from(message.to_string().into_bytes()))
        .build()
}

async fn until(target: &Target<Events>, key: &str, count: usize) {
    within(async {
        while delivered(&target.recorder().all(), key).len() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// There is no return here: the second is tried again in its place, and the third waits for it.
#[tokio::test]
async fn fc_1_on_activemq_the_second_of_three_fails_and_the_third_waits_for_it() {
    for queue in Queue::on_each() {
        let failed = AtomicBool::new(false);
        let target = Target::start(move |request: &Request| {
            let second = request.key == "g" && request.number == Some(2);
            match second && !failed.swap(true, Ordering::SeqCst) {
                true => Answer::status(500),
                false => Answer::ok(),
            }
        })
        .await;
        let mut all = messages(&target, "g", 3);
        all.extend(messages(&target, "other", 3));
        queue.send(all).await;
        let folder = queue.folder();
        let server = folder.start().await;
        until(&target, "g", 3).await;
        until(&target, "other", 3).await;
        assert_eq!(delivered(&target.recorder().all(), "g"), [1, 2, 3]);
        assert_eq!(delivered(&target.recorder().all(), "other"), [1, 2, 3]);
        assert_eq!(server.stop().await, Some(0));
        let starts = target.recorder().all().len() / 2;
        // All was acked: the next one finds nothing.
        let server = folder.start().await;
        queue.send(messages(&target, "last", 1)).await;
        until(&target, "last", 1).await;
        assert_eq!(server.stop().await, Some(0));
        assert_eq!(target.recorder().all().len() / 2, starts + 1);
    }
}

#[tokio::test]
async fn fc_6_and_fc_18_on_activemq_keyless_run_one_by_one_and_a_stop_gives_the_rest_back() {
    for queue in Queue::on_each() {
        let slow = Answer::ok().after(std::time::Duration::from_millis(20));
        let target = Target::start(move |_: &Request| slow.clone()).await;
        let mut all = messages(&target, "", 30);
        for message in &mut all {
            message
                .as_object_mut()
                .expect("an object")
                .remove("messageGroupId");
        }
        queue.send(all).await;
        let folder = queue.folder();
        let server = folder.start().await;
        until(&target, "", 5).await;
        assert_eq!(server.stop().await, Some(0));
        let server = folder.start().await;
        until(&target, "", 30).await;
        assert_eq!(server.stop().await, Some(0));
        let events = target.recorder().all();
        assert_eq!(delivered(&events, ""), (1..=30).collect::<Vec<_>>());
        assert_eq!(most_together(&events), 1);
    }
}
