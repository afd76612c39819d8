//! The SQS source on a real server of it, and on one that answers as AWS does where that differs.

pub(crate) mod front;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::{MemoryStore, share};
use keylane_router::dispatch::handler_fn;
use keylane_router::message::Key;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Envelope, Plan, SourcePlan};
use keylane_router::source::{Received, Room, SettleError, Settler, Source, SourceError};
use keylane_router::sqs::{Credentials, Options, Receipt, SqsSource};
use keylane_router::testing::Proxy;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use front::{Front, Reply, Sqs};

/// Why there is nothing to try.
pub(crate) const ABSENT: &str = "KEYLANE_TEST_SQS_URL is not set";

/// Where SQS is.
pub(crate) fn url() -> Option<String> {
    std::env::var("KEYLANE_TEST_SQS_URL").ok()
}

/// As whom sources come: anybody for the emulator that the project's own command started, and for
/// another server whoever the environment says, in the usual way.
pub(crate) fn credentials() -> Option<Credentials> {
    let ours = std::env::var_os("KEYLANE_TEST_SQS_OURS").is_some();
    ours.then(|| Credentials {
        access_key_id: "test".into(),
        secret_access_key: "test".into(),
    })
}

/// The region of the emulator; of another server, what the environment says.
pub(crate) fn region() -> Option<std::sync::Arc<str>> {
    credentials().map(|_| "us-east-1".into())
}

/// A queue with a server in front of it.
struct Stand {
    sqs: Sqs,
    front: Front,
    name: String,
    url: String,
    sent: AtomicU64,
}

/// Leaves the test out, and says so, where there is no SQS.
macro_rules! stand {
    ($end:literal, $attributes:tt) => {
        match Stand::new($end, json!($attributes)).await {
            Some(stand) => stand,
            None => return,
        }
    };
}

impl Stand {
    async fn new(end: &str, attributes: Value) -> Option<Self> {
        let Some(url) = url() else {
            println!("skipped: {ABSENT}");
            return None;
        };
        let sqs = Sqs::new(&url);
        let name = format!("t{}{end}", uuid::Uuid::now_v7().simple());
        let url = sqs.create(&name, attributes).await.expect("a queue");
        Some(Self {
            front: Front::start(sqs.clone()).await,
            sqs,
            name,
            url,
            sent: AtomicU64::new(0),
        })
    }

    /// Options of a source that comes by the server in front.
    fn options(&self) -> Options {
        Options {
            endpoint_url: Some(self.front.url().into()),
            region: region(),
            credentials: credentials(),
            visibility_timeout: Duration::from_secs(8),
            wait_time: Duration::from_secs(1),
            ..Options::new(&*self.name)
        }
    }

    fn source(&self) -> SqsSource {
        SqsSource::new("s", self.options()).expect("good options")
    }

    /// Sends a message of each of these keys, in this order.
    async fn send(&self, keys: &[&str]) {
        for keys in keys.chunks(10) {
            let entry = |key: &&str| {
                let n = self.sent.fetch_add(1, Ordering::Relaxed).to_string();
                let mut entry = json!({ "Id": n, "MessageBody": n, "MessageGroupId": key });
                if self.name.ends_with(".fifo") {
                    entry["MessageDeduplicationId"] = entry["Id"].clone();
                }
                entry
            };
            let entries: Vec<Value> = keys.iter().map(entry).collect();
            let body = json!({ "QueueUrl": self.url, "Entries": entries });
            let sent = self.sqs.call("SendMessageBatch", body).await;
            sent.expect("they are sent");
        }
    }

    /// How many messages the queue has, those that are out included.
    async fn left(&self) -> u64 {
        let body = json!({ "QueueUrl": self.url, "AttributeNames": ["All"] });
        let answer = self.sqs.call("GetQueueAttributes", body).await;
        let attributes = answer.expect("the queue is there")["Attributes"].clone();
        let count = |name: &str| {
            let count = attributes[format!("ApproximateNumberOfMessages{name}")].as_str();
            count
                .and_then(|count| count.parse::<u64>().ok())
                .unwrap_or(0)
        };
        count("") + count("NotVisible")
    }
}

fn room(messages: usize) -> Room {
    Room::new(messages, 1 << 20)
}

/// Receives until there are so many.
async fn receive(source: &mut SqsSource, count: usize) -> Vec<Received<Receipt>> {
    let mut all = Vec::new();
    while all.len() < count {
        let more = source.receive(room(count - all.len())).await;
        all.extend(more.expect("SQS is there"));
    }
    all
}

fn receipts(received: &[Received<Receipt>]) -> Vec<Receipt> {
    received.iter().map(|one| one.receipt.clone()).collect()
}

fn bodies(received: &[Received<Receipt>]) -> Vec<String> {
    let text = |one: &Received<_>| String::from_utf8_lossy(&one.body).into_owned();
    received.iter().map(text).collect()
}

/// An entry that failed, as AWS answers it.
fn failed(code: &str, text: &str) -> Value {
    json!({ "Code": code, "Message": text, "SenderFault": true })
}

#[tokio::test]
async fn a_handle_that_has_expired_is_a_lost_loan() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a", "b"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 2).await;
    // As AWS answers for a FIFO queue. The emulator deletes it all the same.
    stand.front.rule(|call| match &*call.action {
        "DeleteMessageBatch" => Reply::PassWithout(
            vec![1],
            failed("InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."),
        ),
        _ => Reply::Pass,
    });
    let results = source.settler().ack(receipts(&received)).await;
    assert_eq!(results[0], Ok(()));
    assert!(matches!(&results[1], Err(SettleError::Lost(text)) if text.contains("expired")));
    // Received again by somebody else: SQS knows another handle now.
    stand.front.end_loans(&stand.url).await;
    stand.front.rule(|_| Reply::Pass);
    let again = receive(&mut source, 1).await;
    let stale = source.settler().ack(receipts(&received[1..])).await;
    assert!(matches!(stale[0], Err(SettleError::Lost(_))), "{stale:?}");
    assert_eq!(source.settler().ack(receipts(&again)).await, [Ok(())]);
}

/// R15: what is deleted of a key is so in its order, whatever fails in between.
#[tokio::test]
async fn nothing_is_deleted_behind_one_that_could_not_be() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a", "a", "b", "a", "b"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 5).await;
    assert_eq!(bodies(&received), ["0", "1", "2", "3", "4"]);
    stand.front.rule(|call| match &*call.action {
        "DeleteMessageBatch" => Reply::PassWithout(vec![0], failed("InternalError", "again")),
        _ => Reply::Pass,
    });
    let first = receipts(&received[..1]);
    let results = source.settler().ack(receipts(&received)).await;
    let again = |result: &Result<(), SettleError>| matches!(result, Err(SettleError::Again(_)));
    let tried_again: Vec<bool> = results.iter().map(again).collect();
    assert_eq!(tried_again, [true, true, false, true, true], "{results:?}");
    assert_eq!(stand.left().await, 4);
    stand.front.rule(|_| Reply::Pass);
    assert_eq!(source.settler().ack(first).await, [Ok(())]);
    let rest = [1, 3, 4].map(|n| received[n].receipt.clone());
    let results = source.settler().ack(rest.into()).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(stand.left().await, 0);
}

#[tokio::test]
async fn visibility_that_could_not_be_changed_is_tried_again_and_the_rest_is_changed() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a", "a", "b"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 3).await;
    stand.front.rule(|call| match &*call.action {
        "ChangeMessageVisibilityBatch" => {
            Reply::PassWithout(vec![1], failed("InternalError", "again"))
        }
        _ => Reply::Pass,
    });
    let settler = source.settler();
    let renewed = settler.renew(receipts(&received)).await;
    assert_eq!((&renewed[0], &renewed[2]), (&Ok(()), &Ok(())));
    assert!(
        matches!(renewed[1], Err(SettleError::Again(_))),
        "{renewed:?}"
    );
    stand.front.rule(|_| Reply::Pass);
    let back = settler.give_back(receipts(&received), Duration::ZERO).await;
    assert!(back.iter().all(Result::is_ok), "{back:?}");
    let again = receive(&mut source, 3).await;
    assert_eq!(bodies(&again), ["0", "1", "2"]);
}

#[tokio::test]
async fn a_call_without_an_answer_is_tried_again() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 1).await;
    stand.front.rule(|call| match &*call.action {
        "DeleteMessageBatch" => Reply::Silence,
        _ => Reply::Pass,
    });
    // No longer than a part of the loan.
    let acked = source.settler().ack(receipts(&received)).await;
    assert!(matches!(&acked[0], Err(SettleError::Again(text)) if text.contains("no answer")));
    stand.front.rule(|_| Reply::Pass);
    assert_eq!(source.settler().ack(receipts(&received)).await, [Ok(())]);
}

#[tokio::test]
async fn a_poll_that_was_not_answered_is_made_again_by_the_same_name() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    let cut = AtomicU64::new(0);
    stand.front.rule(move |call| {
        let first = || cut.fetch_add(1, Ordering::Relaxed) == 0;
        match call.action == "ReceiveMessage" && first() {
            true => Reply::Cut,
            false => Reply::Pass,
        }
    });
    let mut source = stand.source();
    let error: SourceError = source.receive(room(5)).await.unwrap_err();
    assert!(
        error.text.contains(&stand.name) && !error.permanent,
        "{error}"
    );
    for key in ["a", "b"] {
        stand.send(&[key]).await;
        source.receive(room(5)).await.expect("SQS is there");
    }
    let calls = stand.front.calls("ReceiveMessage");
    let name = |n: usize| calls[n].body["ReceiveRequestAttemptId"].as_str();
    assert!(name(0).is_some());
    assert_eq!(name(0), name(1));
    assert_ne!(name(1), name(2), "that one was answered");
}

#[tokio::test]
async fn a_standard_queue_is_not_given_names_of_attempts() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    stand.send(&["a"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 1).await;
    assert_eq!(received[0].key, None);
    let calls = stand.front.calls("ReceiveMessage");
    assert_eq!(calls[0].body["ReceiveRequestAttemptId"], Value::Null);
}

#[tokio::test]
async fn no_more_is_asked_for_than_there_is_room() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    stand.send(&["a"; 100]).await;
    let mut source = stand.source();
    let mut received = Vec::new();
    // As the router does it: what is out takes room.
    while received.len() < 37 {
        let free = 37 - received.len();
        received.extend(source.receive(room(free)).await.expect("SQS is there"));
    }
    let calls = stand.front.calls("ReceiveMessage");
    let asked = |call: &front::Call| call.body["MaxNumberOfMessages"].as_u64();
    let asked: u64 = calls.iter().filter_map(asked).sum();
    assert_eq!((received.len(), asked), (37, 37));
    let mut ids: Vec<_> = received.iter().map(|one| one.identity.id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 37);
    // Nobody asks for more, so nothing is polled for.
    let before = calls.len();
    tokio::task::yield_now().await;
    let kept = source.settler().renew(receipts(&received)).await;
    assert!(kept.iter().all(Result::is_ok));
    assert_eq!(stand.front.calls("ReceiveMessage").len(), before);
}

#[tokio::test]
async fn there_are_several_polls_while_there_is_much_and_one_while_there_is_nothing() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    stand.send(&["a"; 60]).await;
    let mut source = stand.source();
    receive(&mut source, 60).await;
    let busy = stand.front.most_at_once("ReceiveMessage");
    assert!((2..=4).contains(&busy), "{busy} polls at once");
    // The polls that were under way end without a message, then one is left.
    let idle = tokio::time::timeout(Duration::from_secs(3), source.receive(room(100)));
    assert!(idle.await.is_err(), "there is nothing");
    assert_eq!(stand.front.now("ReceiveMessage"), 1);
}

#[tokio::test]
async fn a_batch_is_what_one_receive_brought() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a", "b", "a"]).await;
    let mut source = stand.source();
    let first = source.receive(room(10)).await.unwrap();
    let batches: Vec<_> = first.iter().map(|one| one.batch).collect();
    assert_eq!(batches, [first[0].batch; 3]);
    assert!(first.is_sorted_by_key(|one| one.position));
    let keys: Vec<_> = first.iter().map(|one| one.key.clone().unwrap()).collect();
    assert_eq!(keys, ["a", "b", "a"].map(Key::from));
    stand.send(&["c"]).await;
    let second = source.receive(room(10)).await.unwrap();
    assert_ne!(first[0].batch, second[0].batch);
}

#[tokio::test]
async fn what_lay_here_for_too_long_goes_back_and_comes_again() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    // What lies here is of other groups than what was handed out, or it would go back with it.
    stand.send(&["a", "b", "b", "c", "c"]).await;
    let mut options = stand.options();
    options.visibility_timeout = Duration::from_secs(8);
    let mut source = SqsSource::new("s", options).unwrap();
    // Nothing fits but one: the rest lies in the source.
    let one = Room::new(5, 1);
    let first = source.receive(one).await.unwrap();
    assert_eq!(bodies(&first), ["0"]);
    // The loan's own time: nobody can make it shorter.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let settler = source.settler();
    assert_eq!(settler.ack(receipts(&first)).await, [Ok(())]);
    let again = receive(&mut source, 4).await;
    assert_eq!(bodies(&again), ["1", "2", "3", "4"]);
    let changed = stand.front.calls("ChangeMessageVisibilityBatch");
    let back = changed.iter().filter(|call| call.visibility() == Some(0));
    assert_eq!(back.map(front::Call::entries).collect::<Vec<_>>(), [4]);
    let acked = settler.ack(receipts(&again)).await;
    assert!(acked.iter().all(Result::is_ok), "{acked:?}");
}

#[tokio::test]
async fn what_a_poll_brings_at_the_end_goes_back() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    let mut source = stand.source();
    {
        let receiving = source.receive(room(10));
        let dropped = tokio::time::timeout(Duration::from_millis(200), receiving);
        assert!(dropped.await.is_err(), "there is nothing yet");
    }
    stand.send(&["a", "a"]).await;
    source.stop_taking().await;
    source.close().await;
    let mut next = stand.source();
    assert_eq!(bodies(&receive(&mut next, 2).await), ["0", "1"]);
}

#[tokio::test]
async fn a_redrive_policy_on_an_ordered_queue_is_refused_unless_accepted() {
    let _shared = share("sqs");
    let dead = stand!(".fifo", { "FifoQueue": "true" });
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{}", dead.name);
    let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 3 }).to_string();
    let stand = stand!(".fifo", { "FifoQueue": "true", "RedrivePolicy": policy });
    stand.send(&["a"]).await;
    let mut source = stand.source();
    let error = source.check().await.unwrap_err();
    assert!(error.permanent);
    for part in [&*stand.name, "redrive policy", "accept_redrive"] {
        assert!(error.text.contains(part), "{error}");
    }
    // Nothing was received, and nothing is.
    assert!(source.receive(room(1)).await.is_err());
    assert!(stand.front.calls("ReceiveMessage").is_empty());
    let mut options = stand.options();
    options.accept_redrive = true;
    let mut source = SqsSource::new("s", options).unwrap();
    source.check().await.unwrap();
    receive(&mut source, 1).await;
}

#[tokio::test]
async fn a_source_is_made_while_sqs_is_away() {
    let mut options = Options::new("q.fifo");
    // Nobody listens there.
    options.endpoint_url = Some("http://127.0.0.1:1".into());
    options.region = Some("us-east-1".into());
    options.credentials = Some(Credentials {
        access_key_id: "test".into(),
        secret_access_key: "test".into(),
    });
    let mut source = SqsSource::new("s", options).unwrap();
    source.check().await.unwrap();
    let error = source.receive(room(1)).await.unwrap_err();
    assert!(!error.permanent && error.text.contains("q.fifo"), "{error}");
}

#[tokio::test]
async fn a_queue_is_found_by_its_url_and_attributes_are_headers() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    let attribute = json!({ "DataType": "String", "StringValue": "text/plain" });
    let body = json!({
        "QueueUrl": stand.url,
        "MessageBody": "x",
        "MessageAttributes": { "content-type": attribute },
    });
    stand.sqs.call("SendMessage", body).await.unwrap();
    let mut options = stand.options();
    options.queue = stand.url.clone().into();
    let mut source = SqsSource::new("s", options).unwrap();
    let received = receive(&mut source, 1).await;
    let headers = [("content-type".into(), "text/plain".into())];
    assert_eq!(received[0].headers, headers);
    assert!(stand.front.calls("GetQueueUrl").is_empty());
}

#[tokio::test]
async fn what_cannot_be_delayed_any_longer_goes_back_when_its_loan_ends() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a"]).await;
    let mut source = stand.source();
    let received = receive(&mut source, 1).await;
    // As AWS answers 12 hours after the receive.
    let text = "Value 60 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].";
    stand.front.rule(move |call| match &*call.action {
        "ChangeMessageVisibilityBatch" => {
            Reply::PassWithout(vec![0], failed("InvalidParameterValue", text))
        }
        _ => Reply::Pass,
    });
    let minute = Duration::from_secs(60);
    let settler = source.settler();
    let back = settler.give_back(receipts(&received), minute).await;
    assert!(matches!(back[0], Err(SettleError::Lost(_))), "{back:?}");
}

#[tokio::test]
async fn polls_that_fail_together_are_one_failure() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    stand.send(&["a"; 60]).await;
    let proxy = Proxy::start(stand.front.address).await;
    let mut options = stand.options();
    options.endpoint_url = Some(proxy.url("").into());
    let mut source = SqsSource::new("s", options).unwrap();
    let calls = AtomicU64::new(0);
    stand
        .front
        .rule(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0..5 => Reply::Pass,
            _ => Reply::Silence,
        });
    // The first call finds the queue.
    receive(&mut source, 40).await;
    let waiting = tokio::time::timeout(Duration::from_millis(300), source.receive(room(100)));
    assert!(waiting.await.is_err(), "nothing is answered");
    assert_eq!(stand.front.now("ReceiveMessage"), 4);
    stand.front.rule(|_| Reply::Pass);
    proxy.cut_all();
    let mut failures = 0;
    stand.send(&["b"]).await;
    loop {
        match source.receive(room(100)).await {
            Err(_) => failures += 1,
            Ok(received) if bodies(&received).contains(&"60".to_owned()) => break,
            Ok(_) => {}
        }
        // As the router does: whatever fails together has failed by then.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!((1..=2).contains(&failures), "{failures} failures");
}

#[tokio::test]
async fn what_is_settled_together_is_deleted_together() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    stand.send(&["a"; 200]).await;
    let raw = Envelope::Raw {
        pool: "default".into(),
        target: "http://target.invalid/".into(),
    };
    let plan = SourcePlan {
        envelope: raw,
        ..SourcePlan::custom()
    };
    let router = Router::builder()
        .store(MemoryStore::default())
        .dispatch(handler_fn(|_| async { Outcome::Delivered }))
        .start()
        .await
        .unwrap();
    router.add_source("s", stand.source(), plan).await.unwrap();
    while stand.left().await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    router.stop(Duration::from_secs(5)).await;
    let deletes = stand.front.calls("DeleteMessageBatch").len();
    assert!(
        (20..=30).contains(&deletes),
        "{deletes} deletes for 200 messages"
    );
}

/// There was room for ten when they were asked for, and there is for less when they come.
#[tokio::test]
async fn what_there_is_no_room_for_goes_back_with_its_group() {
    let _shared = share("sqs");
    let stand = stand!(".fifo", { "FifoQueue": "true" });
    stand.send(&["a", "a", "a", "a", "b"]).await;
    let mut source = stand.source();
    let little = Room::new(10, 2);
    let first = source.receive(little).await.expect("SQS is there");
    assert_eq!(bodies(&first), ["0", "1"]);
    let second = source.receive(room(10)).await.expect("SQS is there");
    assert_eq!(bodies(&second), ["4"], "the group is out, or is not");
    let settler = source.settler();
    let given_back = settler.give_back(receipts(&first), Duration::ZERO);
    assert!(given_back.await.iter().all(Result::is_ok));
    assert_eq!(bodies(&receive(&mut source, 4).await), ["0", "1", "2", "3"]);
}

/// The group id of a standard queue is no key: it says whose turn it is.
#[tokio::test]
async fn groups_of_a_standard_queue_take_turns_side_by_side() {
    let _shared = share("sqs");
    let stand = stand!("", {});
    let groups = [vec!["a"; 40], vec!["b"; 4]].concat();
    stand.send(&groups).await;
    let started = Arc::new(Mutex::new(String::new()));
    let may_go = Arc::new(Semaphore::new(0));
    let (noted, gate) = (started.clone(), may_go.clone());
    let dispatch = handler_fn(move |message| {
        assert_eq!(message.key, None);
        let group = message.tenant.clone().expect("it has a group id");
        noted.lock().unwrap().push_str(&group);
        let gate = gate.clone();
        async move {
            let _ = gate.acquire().await.unwrap();
            Outcome::Delivered
        }
    });
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.concurrency = Some(NonZeroUsize::MIN);
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .start()
        .await
        .unwrap();
    let envelope = Envelope::Raw {
        pool: "default".into(),
        target: "".into(),
    };
    let source_plan = SourcePlan {
        envelope,
        ..SourcePlan::custom()
    };
    router
        .add_source("s", stand.source(), source_plan)
        .await
        .unwrap();
    super::eventually(|| router.pools()[0].queued == groups.len() - 1).await;
    may_go.add_permits(1);
    super::eventually(|| started.lock().unwrap().len() == groups.len()).await;
    router.stop(Duration::from_secs(5)).await;
    let started = started.lock().unwrap().clone();
    assert!(super::took_turns(&started, 4), "{started}");
}
