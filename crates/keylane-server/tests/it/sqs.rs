//! The program on a queue of SQS (FC-1, FC-2, FC-18), where there is one.

use std::sync::atomic::{AtomicBool, Ordering};

use keylane_router::testing::{Answer, EventKind, Events, Request, Target};
use serde_json::{Value, json};

use crate::http::ask;
use crate::server::{Folder, messages, within};

/// One FIFO queue of the server that the tests are given.
struct Queue {
    sqs: String,
    name: String,
}

impl Queue {
    /// `None`, and says so, where there is no SQS.
    async fn new(attributes: Value) -> Option<Self> {
        let Ok(sqs) = std::env::var("KEYLANE_TEST_SQS_URL") else {
            println!("skipped: KEYLANE_TEST_SQS_URL is not set");
            return None;
        };
        let name = format!("p{}.fifo", uuid::Uuid::now_v7().simple());
        let queue = Self { sqs, name };
        let body = json!({ "QueueName": queue.name, "Attributes": attributes });
        queue.call("CreateQueue", body).await;
        Some(queue)
    }

    async fn call(&self, action: &str, body: Value) -> Value {
        let action = format!("AmazonSQS.{action}");
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", &*action),
        ];
        let answer = within(ask("POST", &self.sqs, &headers, body.to_string())).await;
        let answer = answer.expect("SQS answers");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    fn url(&self) -> String {
        format!("{}/000000000000/{}", self.sqs, self.name)
    }

    /// Sends messages, their keys as the groups of SQS.
    async fn send(&self, messages: Vec<Value>) {
        for messages in messages.chunks(10) {
            let entry = |(n, message): (usize, &Value)| {
                json!({
                    "Id": n.to_string(),
                    "MessageBody": message.to_string(),
                    "MessageGroupId": message["messageGroupId"],
                    "MessageDeduplicationId": message["id"],
                })
            };
            let entries: Vec<Value> = messages.iter().enumerate().map(entry).collect();
            let body = json!({ "QueueUrl": self.url(), "Entries": entries });
            self.call("SendMessageBatch", body).await;
        }
    }

    /// Waits until it has no message, in line or out.
    async fn empty(&self) {
        within(async {
            loop {
                let body = json!({ "QueueUrl": self.url(), "AttributeNames": ["All"] });
                let attributes = self.call("GetQueueAttributes", body).await["Attributes"].clone();
                let none = |name: &str| attributes[name] == "0";
                if none("ApproximateNumberOfMessages")
                    && none("ApproximateNumberOfMessagesNotVisible")
                {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// A config that reads it as the original would: fail once, give back.
    fn config(&self) -> String {
        // Another server than the emulator is asked as the environment says.
        let login = match std::env::var_os("KEYLANE_TEST_SQS_OURS") {
            Some(_) => {
                r#"region = "us-east-1"
                access_key_id = "test"
                secret_access_key = "test""#
            }
            None => "",
        };
        format!(
            r#"
            [breaker]
            failures = 0.0
            [pools.default]
            on_exhausted = "return"
            return_delay = "20ms"
            timeout.first_byte = "300ms"
            retry.max_attempts = 1
            [sources.s]
            type = "sqs"
            queue = "{}"
            endpoint_url = "{}"
            {login}
            wait_time = "1s"
            "#,
            self.name, self.sqs
        )
    }
}

/// Fails the first attempt of one message, and no other.
async fn failing_once(number: u64, answer: Answer) -> Target<Events> {
    let done = AtomicBool::new(false);
    let behaviour = move |request: &Request| {
        let this = request.key == "g" && request.number == Some(number);
        match this && !done.swap(true, Ordering::SeqCst) {
            true => answer.clone(),
            false => Answer::ok(),
        }
    };
    Target::start(behaviour).await
}

fn starts(target: &Target<Events>, key: &str) -> Vec<u64> {
    let events = target.recorder().all();
    let of_key = events
        .iter()
        .filter(|event| event.kind == EventKind::Start && event.key == key);
    of_key.filter_map(|event| event.number).collect()
}

#[tokio::test]
async fn fc_1_on_sqs_the_second_of_three_fails_and_goes_back_with_the_third() {
    let Some(queue) = Queue::new(json!({ "FifoQueue": "true" })).await else {
        return;
    };
    let target = failing_once(2, Answer::status(500)).await;
    let mut all = messages(&target, "g", 3);
    all.extend(messages(&target, "other", 3));
    queue.send(all).await;
    let folder = Folder::with_config(&queue.config());
    let server = folder.start().await;
    queue.empty().await;
    assert_eq!(starts(&target, "g"), [1, 2, 2, 3]);
    assert_eq!(starts(&target, "other"), [1, 2, 3]);
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn fc_2_on_sqs_the_third_of_five_times_out_and_three_go_back() {
    let Some(queue) = Queue::new(json!({ "FifoQueue": "true" })).await else {
        return;
    };
    let target = failing_once(3, Answer::Hang).await;
    queue.send(messages(&target, "g", 5)).await;
    let folder = Folder::with_config(&queue.config());
    let server = folder.start().await;
    queue.empty().await;
    assert_eq!(starts(&target, "g"), [1, 2, 3, 3, 4, 5]);
    let metrics = server.get("/metrics").await.text().to_owned();
    assert!(metrics.contains("outcome=\"returned\"} 3"), "{metrics}");
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn an_ordered_queue_with_a_redrive_policy_keeps_the_program_from_starting() {
    let Some(dead) = Queue::new(json!({ "FifoQueue": "true" })).await else {
        return;
    };
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{}", dead.name);
    let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 3 }).to_string();
    let attributes = json!({ "FifoQueue": "true", "RedrivePolicy": policy });
    let queue = Queue::new(attributes).await.expect("there was one");
    let folder = Folder::with_config(&queue.config());
    let mut starting = folder.spawn(&[]);
    assert_eq!(starting.ended().await, Some(1));
    let log = starting.log();
    for part in [&*queue.name, "redrive policy", "accept_redrive"] {
        assert!(log.contains(part), "{log}");
    }
    let accepted = format!("{}\naccept_redrive = true\n", queue.config());
    folder.write_config(&accepted);
    let server = folder.start().await;
    assert_eq!(server.stop().await, Some(0));
}
