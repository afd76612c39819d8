//! The router on SQS beside a plain loop of the SDK with as many polls at once: messages a second,
//! and what the router adds to the way of one message.
//!
//! `KEYLANE_TEST_SQS_URL=… cargo bench -p keylane-router --features sqs --bench sqs [-- quick]`
//!
//! Both read the same queue of the same server in turn, in one run.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials as Keys, Region};
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use keylane_router::Router;
use keylane_router::dispatch::handler_fn;
use keylane_router::embedded::{Db, Options as DbOptions};
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Envelope, Plan, SourcePlan};
use keylane_router::sqs::{Credentials, Options, SqsSource};

const BODY: usize = 300;
const ROUNDS: usize = 5;
/// The most that one receive brings: so many a poll has out in the plain loop. The emulator looks
/// through everything that is out at each call, so the router is compared with as many.
const AT_A_TIME: usize = 10;
/// What a source may have out if nothing is said.
const DEFAULT_WINDOW: usize = 1000;
/// Of the load at which the way of one message is measured.
const RATE: u64 = 100;

fn main() {
    let Ok(url) = std::env::var("KEYLANE_TEST_SQS_URL") else {
        return println!("KEYLANE_TEST_SQS_URL is not set: nothing to measure");
    };
    let quick = std::env::args().any(|argument| argument == "quick");
    let messages = if quick { 1000 } else { 4000 };
    let seconds = if quick { 3 } else { 20 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let bench = Bench::new(url);
        println!(
            "{messages} messages of {BODY} bytes, no-op handler, load {}",
            load()
        );
        let fifo = Load {
            name: "FIFO, 1000 keys",
            end: ".fifo",
            messages,
            key: |n| n % 1000,
        };
        for pollers in [1, 4, 8] {
            bench.rates(&fifo, pollers, AT_A_TIME * pollers).await;
        }
        bench.rates(&fifo, 4, DEFAULT_WINDOW).await;
        let runs = Load {
            name: "FIFO, 10 of a key in a row",
            key: |n| n / 10 % 400,
            ..fifo
        };
        bench.rates(&runs, 4, AT_A_TIME * 4).await;
        bench.rates(&runs, 4, 10 * AT_A_TIME).await;
        let standard = Load {
            name: "standard",
            end: "",
            ..fifo
        };
        bench.rates(&standard, 4, AT_A_TIME * 4).await;
        bench.rates(&standard, 4, DEFAULT_WINDOW).await;
        bench.latencies(RATE * seconds).await;
        println!("load {}", load());
    });
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(1).collect()
}

struct Bench {
    url: String,
    client: Client,
    began: Instant,
}

/// What is read.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Of the queue's name.
    end: &'static str,
    messages: usize,
    key: fn(usize) -> usize,
}

/// A queue of its own.
struct Queue {
    name: String,
    url: String,
}

/// Counts what arrives, and keys whose numbers go back.
#[derive(Default)]
struct Seen {
    count: AtomicUsize,
    last: Mutex<HashMap<String, u64>>,
    out_of_order: AtomicU64,
    ways: Mutex<Vec<Duration>>,
    first: OnceLock<Instant>,
}

impl Seen {
    /// A body: key, number, and when it was sent.
    fn note(&self, body: &str, began: Instant) {
        self.first.get_or_init(Instant::now);
        let mut parts = body.split(' ');
        let key = parts.next().unwrap_or_default();
        let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        let (n, sent) = (number(), number());
        let mut last = self.last.lock().expect("no panic while locked");
        if last
            .insert(key.to_owned(), n)
            .is_some_and(|before| before >= n)
        {
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        drop(last);
        let way = began.elapsed().saturating_sub(Duration::from_nanos(sent));
        self.ways.lock().expect("no panic while locked").push(way);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Messages a second since the first.
    fn rate(&self) -> f64 {
        let first = self.first.get().expect("there was one");
        self.count.load(Ordering::Relaxed) as f64 / first.elapsed().as_secs_f64()
    }

    async fn all(&self, count: usize) {
        while self.count.load(Ordering::Acquire) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Bench {
    fn new(url: String) -> Self {
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .credentials_provider(Keys::new("test", "test", None, None, "bench"))
            .endpoint_url(&url);
        Self {
            client: Client::from_conf(config.build()),
            url,
            began: Instant::now(),
        }
    }

    async fn queue(&self, end: &str) -> Queue {
        let name = format!("bench{}{end}", uuid::Uuid::now_v7().simple());
        let mut create = self.client.create_queue().queue_name(&name);
        if !end.is_empty() {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        let made = create.send().await.expect("a queue");
        let url = made.queue_url.expect("it has a URL");
        Queue { name, url }
    }

    async fn send(&self, queue: &Queue, messages: impl Iterator<Item = (usize, usize)>) {
        let fifo = queue.name.ends_with(".fifo");
        let entry = |(n, key): (usize, usize)| {
            let sent = self.began.elapsed().as_nanos();
            let mut body = format!("k{key} {n} {sent} ");
            body.extend(std::iter::repeat_n('.', BODY - body.len()));
            let entry = SendMessageBatchRequestEntry::builder();
            let entry = entry.id(n.to_string()).message_body(body);
            let entry = entry.message_group_id(format!("k{key}"));
            let entry = match fifo {
                true => entry.message_deduplication_id(n.to_string()),
                false => entry,
            };
            entry.build().expect("an entry")
        };
        let entries: Vec<_> = messages.map(entry).collect();
        for batch in entries.chunks(10) {
            let send = self.client.send_message_batch().queue_url(&queue.url);
            let sent = send.set_entries(Some(batch.to_vec())).send().await;
            assert!(sent.expect("sent").failed.is_empty());
        }
    }

    /// So many polls, each of which deletes what it got before the next.
    fn plain(&self, queue: &Queue, pollers: usize, seen: &Arc<Seen>) -> tokio::task::JoinSet<()> {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..pollers {
            let (client, url, seen) = (self.client.clone(), queue.url.clone(), seen.clone());
            let began = self.began;
            tasks.spawn(async move {
                loop {
                    plain_turn(&client, &url, &seen, began).await;
                }
            });
        }
        tasks
    }

    async fn router(
        &self,
        queue: &Queue,
        pollers: usize,
        window: usize,
        seen: &Arc<Seen>,
    ) -> (Router, Db) {
        let options = Options {
            endpoint_url: Some(self.url.clone().into()),
            region: Some("us-east-1".into()),
            credentials: Some(Credentials {
                access_key_id: "test".into(),
                secret_access_key: "test".into(),
            }),
            wait_time: Duration::from_secs(1),
            pollers: NonZeroUsize::new(pollers).expect("not zero"),
            ..Options::new(&*queue.name)
        };
        let source = SqsSource::new("s", options).expect("good options");
        let mut plan = Plan::default();
        let raw = Envelope::Raw {
            pool: "default".into(),
            target: "http://target.invalid/".into(),
        };
        let source_plan = SourcePlan {
            envelope: raw,
            window: NonZeroUsize::new(window).expect("not zero"),
            ..SourcePlan::custom()
        };
        plan.sources.insert("s".into(), source_plan);
        let folder = tempfile::tempdir().expect("a folder").keep();
        let db = Db::open(&folder, DbOptions::default()).expect("a store");
        let (seen, began) = (seen.clone(), self.began);
        let router = Router::builder()
            .plan(plan)
            .store(db.store())
            .dispatch(handler_fn(move |message| {
                seen.note(&String::from_utf8_lossy(&message.payload), began);
                async { Outcome::Delivered }
            }))
            .source("s", source)
            .start()
            .await;
        let _ = std::fs::remove_dir_all(folder);
        (router.expect("a router"), db)
    }

    /// Waits until the queue has nothing left.
    async fn empty(&self, queue: &Queue) {
        loop {
            let left = self.client.get_queue_attributes().queue_url(&queue.url);
            let left = left.attribute_names(QueueAttributeName::All).send().await;
            let attributes = left.expect("attributes").attributes.unwrap_or_default();
            let names = [
                QueueAttributeName::ApproximateNumberOfMessages,
                QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            ];
            if names.iter().all(|name| attributes[name] == "0") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn rates(&self, load: &Load, pollers: usize, window: usize) {
        let Load {
            name,
            end,
            messages,
            key,
        } = *load;
        let (mut plain, mut routed) = (Vec::new(), Vec::new());
        let mut out_of_order = 0;
        for _ in 0..ROUNDS {
            for by_router in [false, true] {
                let queue = self.queue(end).await;
                self.send(&queue, (0..messages).map(|n| (n, key(n)))).await;
                let seen = Arc::new(Seen::default());
                if by_router {
                    let (router, db) = self.router(&queue, pollers, window, &seen).await;
                    self.done(&queue, &seen, messages).await;
                    routed.push(seen.rate());
                    router.stop(Duration::from_secs(5)).await;
                    db.close().await;
                    out_of_order += seen.out_of_order.load(Ordering::Relaxed);
                } else {
                    let _tasks = self.plain(&queue, pollers, &seen);
                    self.done(&queue, &seen, messages).await;
                    plain.push(seen.rate());
                }
            }
        }
        let (plain, routed) = (median(plain), median(routed));
        println!(
            "{name}, {pollers} polls, {window} out at most: plain {plain:.0}/s, router {routed:.0}/s = {:.0} %, {out_of_order} out of order",
            100.0 * routed / plain
        );
    }

    async fn done(&self, queue: &Queue, seen: &Seen, messages: usize) {
        seen.all(messages).await;
        self.empty(queue).await;
    }

    /// From before a message is sent to its handler, at a steady rate.
    async fn latencies(&self, messages: u64) {
        let mut tails = Vec::new();
        for by_router in [false, true, false, true] {
            let queue = self.queue(".fifo").await;
            let seen = Arc::new(Seen::default());
            let count = usize::try_from(messages).expect("few");
            if by_router {
                let (router, db) = self.router(&queue, 4, DEFAULT_WINDOW, &seen).await;
                self.steadily(&queue, count).await;
                seen.all(count).await;
                router.stop(Duration::from_secs(5)).await;
                db.close().await;
            } else {
                let _tasks = self.plain(&queue, 4, &seen);
                self.steadily(&queue, count).await;
                seen.all(count).await;
            }
            let mut ways = std::mem::take(&mut *seen.ways.lock().expect("no panic while locked"));
            ways.sort();
            let at = |share: f64| ways[(share * (ways.len() - 1) as f64) as usize];
            let (p50, p99) = (at(0.5), at(0.99));
            let who = if by_router { "router" } else { "plain" };
            println!("{RATE}/s, 4 polls, {who}: p50 {p50:?}, p99 {p99:?}");
            tails.push((p50, p99));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        for pair in tails.chunks(2) {
            println!(
                "the router adds {:.1} ms at p50, {:.1} ms at p99",
                ms(pair[1].0) - ms(pair[0].0),
                ms(pair[1].1) - ms(pair[0].1)
            );
        }
    }

    /// One message every so often, whatever became of the ones before.
    async fn steadily(&self, queue: &Queue, count: usize) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE as u32);
        for n in 0..count {
            ticks.tick().await;
            self.send(queue, std::iter::once((n, n % 1000))).await;
        }
    }
}

async fn plain_turn(client: &Client, url: &str, seen: &Seen, began: Instant) {
    let receive = client
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(10)
        .wait_time_seconds(1)
        .visibility_timeout(30)
        .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
        .message_system_attribute_names(MessageSystemAttributeName::SequenceNumber)
        .message_attribute_names("All");
    let received = receive.send().await.expect("received");
    let messages = received.messages.unwrap_or_default();
    if messages.is_empty() {
        return;
    }
    let mut entries = Vec::new();
    for (n, message) in messages.into_iter().enumerate() {
        seen.note(message.body().unwrap_or_default(), began);
        let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
        let entry = entry.set_receipt_handle(message.receipt_handle);
        entries.push(entry.build().expect("an entry"));
    }
    let delete = client.delete_message_batch().queue_url(url);
    let deleted = delete.set_entries(Some(entries)).send().await;
    assert!(deleted.expect("deleted").failed.is_empty());
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
