//! The program on a queue of RabbitMQ (FC-1, FC-18), where there is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::testing::{Answer, Events, Request, Target};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::Value;

use crate::server::{Folder, delivered, messages, within};

/// A queue with the program's config for it.
struct Queue {
    url: String,
    name: String,
    channel: Channel,
    _connection: Connection,
}

impl Queue {
    /// `None`, and says so, where there is no broker.
    async fn new() -> Option<Self> {
        let Ok(url) = std::env::var("KEYLANE_TEST_RABBITMQ_URL") else {
            println!("skipped: KEYLANE_TEST_RABBITMQ_URL is not set");
            return None;
        };
        let connection = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connection.expect("the broker is there");
        let channel = connection.create_channel().await.expect("a channel");
        let confirm = channel.confirm_select(ConfirmSelectOptions::default());
        confirm.await.expect("confirms");
        let name = format!("program-{}", uuid::Uuid::now_v7().simple());
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = channel.queue_declare(name.as_str().into(), durable, FieldTable::default());
        declared.await.expect("a queue");
        Some(Self {
            url,
            name,
            channel,
            _connection: connection,
        })
    }

    /// Sends messages, with the keys in their bodies as headers.
    async fn send(&self, messages: Vec<Value>) {
        for message in messages {
            let mut headers = FieldTable::default();
            let key = message["messageGroupId"].as_str().unwrap_or_default();
            headers.insert("x-group-id".into(), AMQPValue::LongString(key.into()));
            let properties = BasicProperties::default()
                .with_headers(headers)
                .with_message_id(uuid::Uuid::now_v7().to_string().into())
                .with_delivery_mode(2);
            let body = message.to_string();
            let sent = self.channel.basic_publish(
                "".into(),
                self.name.as_str().into(),
                BasicPublishOptions::default(),
                body.as_bytes(),
                properties,
            );
            let confirm = sent.await.expect("sent");
            confirm.await.expect("confirmed");
        }
    }

    fn folder(&self) -> Folder {
        let config = format!(
            r#"
            [breaker]
            failures = 0.0
            [pools.default]
            retry = {{ max_attempts = 1, initial = "10ms", max = "10ms" }}
            [sources.s]
            type = "rabbitmq"
            url = "{}"
            queue = "{}"
            workers = 5
            "#,
            self.url, self.name
        );
        Folder::with_config(&config)
    }
}

async fn until(target: &Target<Events>, key: &str, count: usize) {
    within(async {
        while delivered(&target.recorder().all(), key).len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// There is no return here: the second is tried again in its place, and the third waits for it. A
/// stop gives back what is left, and the next start finds it, in order.
#[tokio::test]
async fn fc_1_and_fc_18_on_rabbitmq_a_failing_message_keeps_its_place_and_a_stop_gives_the_rest_back()
 {
    let Some(queue) = Queue::new().await else {
        return;
    };
    let failed = AtomicBool::new(false);
    let target = Target::start(move |request: &Request| {
        let second = request.key == "g" && request.number == Some(2);
        match second && !failed.swap(true, Ordering::SeqCst) {
            true => Answer::status(500),
            false => Answer::ok().after(Duration::from_millis(5)),
        }
    })
    .await;
    let mut all = messages(&target, "g", 40);
    all.extend(messages(&target, "other", 3));
    queue.send(all).await;
    let folder = queue.folder();
    let server = folder.start().await;
    until(&target, "g", 5).await;
    until(&target, "other", 3).await;
    assert_eq!(server.stop().await, Some(0));
    let before = delivered(&target.recorder().all(), "g").len();
    assert!(before < 40, "the stop came too late to show anything");
    let server = folder.start().await;
    until(&target, "g", 40).await;
    assert_eq!(server.stop().await, Some(0));
    assert_eq!(
        delivered(&target.recorder().all(), "g"),
        (1..=40).collect::<Vec<_>>()
    );
    assert_eq!(delivered(&target.recorder().all(), "other"), [1, 2, 3]);
    let name = queue.name.as_str().into();
    let deleted = queue
        .channel
        .queue_delete(name, QueueDeleteOptions::default());
    assert_eq!(deleted.await.expect("deleted"), 0, "all was acked");
}
