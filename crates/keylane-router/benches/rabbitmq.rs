//! The router on RabbitMQ beside a plain lapin loop, on the same broker in the same run.
//!
//! `KEYLANE_TEST_RABBITMQ_URL=… cargo bench -p keylane-router --bench rabbitmq --features
//! rabbitmq,conformance [-- quick]`

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Envelope, Plan, SourcePlan};
use keylane_router::rabbitmq::{Options, RabbitmqSource};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::Semaphore;

const BODY: usize = 300;
const KEYS: u64 = 1000;
const PREFETCH: u16 = 500;

fn main() {
    let Ok(url) = std::env::var("KEYLANE_TEST_RABBITMQ_URL") else {
        println!("KEYLANE_TEST_RABBITMQ_URL is not set: nothing to measure");
        return;
    };
    let quick = std::env::args().any(|argument| argument == "quick");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average at the start: {}", load.trim());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    runtime.block_on(async {
        let broker = Broker::new(url).await;
        rates(
            &broker,
            if quick { 10_000 } else { 60_000 },
            if quick { 1 } else { 5 },
        )
        .await;
        sleeping(&broker, if quick { 5 } else { 20 }).await;
        latency(&broker, if quick { 200 } else { 1000 }).await;
        memory(&broker).await;
    });
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average at the end: {}", load.trim());
}

struct Broker {
    url: String,
    _connection: Connection,
    channel: Channel,
}

impl Broker {
    async fn new(url: String) -> Self {
        let connection = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connection.expect("the broker is there");
        let channel = connection.create_channel().await.expect("a channel");
        let confirm = channel.confirm_select(ConfirmSelectOptions::default());
        confirm.await.expect("confirms");
        Self {
            url,
            _connection: connection,
            channel,
        }
    }

    /// A new queue with so many messages.
    async fn queue(&self, messages: u64) -> String {
        let name = format!("bench-{}", uuid::Uuid::now_v7().simple());
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared =
            self.channel
                .queue_declare(name.as_str().into(), durable, FieldTable::default());
        declared.await.expect("a queue");
        let mut confirms = Vec::new();
        for n in 0..messages {
            confirms.push(self.publish(&name, n, vec![b'x'; BODY]).await);
            if confirms.len() == 1000 {
                for confirm in confirms.drain(..) {
                    confirm.await.expect("it is confirmed");
                }
            }
        }
        for confirm in confirms {
            confirm.await.expect("it is confirmed");
        }
        name
    }

    async fn publish(&self, queue: &str, n: u64, body: Vec<u8>) -> lapin::PublisherConfirm {
        let mut headers = FieldTable::default();
        let key = AMQPValue::LongString(format!("k{}", n % KEYS).into());
        headers.insert("x-group-id".into(), key);
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_message_id(format!("{queue}/{n}").into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let sent = self
            .channel
            .basic_publish("".into(), queue.into(), options, &body, properties);
        sent.await.expect("it is sent")
    }

    async fn delete(&self, queue: &str) {
        let deleted = self
            .channel
            .queue_delete(queue.into(), QueueDeleteOptions::default());
        deleted.await.expect("it is deleted");
    }
}

/// What is counted while a consumer runs.
#[derive(Default)]
struct Done {
    count: AtomicU64,
    /// The last number of each key, and how often one came out of order.
    order: Mutex<(HashMap<String, u64>, u64)>,
}

impl Done {
    async fn all(&self, messages: u64) {
        while self.count.load(Ordering::Relaxed) < messages {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

/// A router on the queue, with a handler that sleeps.
async fn router(
    url: &str,
    queue: &str,
    workers: Option<usize>,
    sleep: Duration,
    done: Arc<Done>,
    latencies: Option<Arc<Mutex<Vec<Duration>>>>,
    begun: Instant,
) -> Router {
    let mut plan = Plan::default();
    plan.pools
        .get_mut("default")
        .expect("it is there")
        .concurrency = NonZeroUsize::new(1000);
    let dispatch = handler_fn(move |message| {
        let (done, latencies) = (done.clone(), latencies.clone());
        async move {
            if !sleep.is_zero() {
                tokio::time::sleep(sleep).await;
            }
            note(
                &done,
                &message.id,
                message.key.as_ref().map(ToString::to_string),
            );
            note_latency(latencies.as_deref(), &message.payload, begun);
            Outcome::Delivered
        }
    });
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .start()
        .await
        .expect("the router starts");
    let options = Options::new(url, queue);
    let source_plan = SourcePlan {
        window: NonZeroUsize::new(usize::from(PREFETCH)).expect("not zero"),
        workers: workers.and_then(NonZeroUsize::new),
        envelope: Envelope::Raw {
            pool: "default".into(),
            target: "".into(),
        },
        ..options.plan()
    };
    let source = RabbitmqSource::new("s", options, &source_plan).expect("the options fit");
    let added = router.add_source("s", source, source_plan).await;
    added.expect("the router takes it");
    router
}

fn note(done: &Done, id: &str, key: Option<String>) {
    let number = id.rsplit('/').next().and_then(|n| n.parse::<u64>().ok());
    if let (Some(number), Some(key)) = (number, key) {
        let mut order = done.order.lock().expect("no panic");
        let before = order.0.insert(key, number);
        if before.is_some_and(|before| before > number) {
            order.1 += 1;
        }
    }
    done.count.fetch_add(1, Ordering::Relaxed);
}

fn note_latency(latencies: Option<&Mutex<Vec<Duration>>>, body: &[u8], begun: Instant) {
    let sent = body.get(..8).and_then(|bytes| bytes.try_into().ok());
    if let (Some(latencies), Some(sent)) = (latencies, sent) {
        let sent = Duration::from_nanos(u64::from_be_bytes(sent));
        let mut latencies = latencies.lock().expect("no panic");
        latencies.push(begun.elapsed().saturating_sub(sent));
    }
}

/// The plain loop: a consumer that acks each message and does not wait for that.
async fn plain(
    url: &str,
    queue: &str,
    messages: u64,
    latencies: Option<Arc<Mutex<Vec<Duration>>>>,
    begun: Instant,
) -> Done {
    let connection = Connection::connect(url, ConnectionProperties::default()).await;
    let connection = connection.expect("the broker is there");
    let channel = connection.create_channel().await.expect("a channel");
    let qos = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    qos.await.expect("it is set");
    let consumer = channel.basic_consume(
        queue.into(),
        "".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let mut consumer = consumer.await.expect("a consumer");
    let done = Done::default();
    while done.count.load(Ordering::Relaxed) < messages {
        let delivery = consumer.next().await.expect("more").expect("a delivery");
        let id = delivery.properties.message_id().clone().unwrap_or_default();
        let headers = delivery.properties.headers().as_ref();
        let key = headers.and_then(|headers| match headers.inner().get("x-group-id") {
            Some(AMQPValue::LongString(key)) => Some(key.to_string()),
            _ => None,
        });
        note(&done, id.as_str(), key);
        note_latency(latencies.as_deref(), &delivery.data, begun);
        // It is on its way at the first poll.
        let _ = channel
            .basic_ack(delivery.delivery_tag, BasicAckOptions::default())
            .now_or_never();
    }
    // So that all acks have arrived.
    let qos = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    qos.await.expect("it is set");
    let _ = connection.close(200, "".into()).await;
    done
}

/// Messages a second with a handler that does nothing.
async fn rates(broker: &Broker, messages: u64, times: usize) {
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    let mut disordered = 0;
    for _ in 0..times {
        let queue = broker.queue(messages).await;
        let begun = Instant::now();
        plain(&broker.url, &queue, messages, None, begun).await;
        floor.push(messages as f64 / begun.elapsed().as_secs_f64());
        broker.delete(&queue).await;

        let queue = broker.queue(messages).await;
        let done = Arc::new(Done::default());
        let begun = Instant::now();
        let none = Duration::ZERO;
        let router = router(&broker.url, &queue, None, none, done.clone(), None, begun).await;
        done.all(messages).await;
        ours.push(messages as f64 / begun.elapsed().as_secs_f64());
        router.stop(Duration::from_secs(5)).await;
        disordered += done.order.lock().expect("no panic").1;
        broker.delete(&queue).await;
    }
    let (floor, ours) = (median(&mut floor), median(&mut ours));
    println!(
        "no-op, {messages} × {BODY} B, {KEYS} keys, prefetch {PREFETCH}: plain lapin loop {floor:.0}/s, router {ours:.0}/s = {:.0} %, {disordered} out of order",
        100.0 * ours / floor
    );
}

/// A handler of 100 ms, beside bare tasks that sleep as long.
async fn sleeping(broker: &Broker, rounds: u64) {
    let sleep = Duration::from_millis(100);
    for workers in [1, 32, 64, 200] {
        let messages = workers as u64 * rounds;
        let permits = Arc::new(Semaphore::new(workers));
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..messages {
            let permits = permits.clone();
            tasks.spawn(async move {
                let _one = permits.acquire().await;
                tokio::time::sleep(sleep).await;
            });
        }
        tasks.join_all().await;
        let bare = messages as f64 / begun.elapsed().as_secs_f64();
        let queue = broker.queue(messages).await;
        let done = Arc::new(Done::default());
        let made = Instant::now();
        let some = Some(workers);
        let router = router(&broker.url, &queue, some, sleep, done.clone(), None, made).await;
        // Connecting is no part of it: from the first to the last.
        done.all(1).await;
        let begun = Instant::now();
        done.all(messages).await;
        let rest = (messages - 1).max(1) as f64;
        let took = begun.elapsed() + sleep.mul_f64(if workers > 1 { 1.0 } else { 0.0 });
        let counted = if workers > 1 { messages as f64 } else { rest };
        let ours = counted / took.as_secs_f64();
        router.stop(Duration::from_secs(5)).await;
        broker.delete(&queue).await;
        println!(
            "100 ms, {workers} workers: bare tasks {bare:.1}/s, router {ours:.1}/s = {:.1} %",
            100.0 * ours / bare
        );
    }
}

/// How long after it was published a message reaches the handler, at 100 a second.
async fn latency(broker: &Broker, messages: u64) {
    let mut slowest = Vec::new();
    for which in ["plain lapin loop", "router"] {
        let queue = broker.queue(0).await;
        let latencies = Arc::new(Mutex::new(Vec::new()));
        let begun = Instant::now();
        let (url, name, all) = (broker.url.clone(), queue.clone(), Some(latencies.clone()));
        let done = Arc::new(Done::default());
        let mut routers = Vec::new();
        if which == "router" {
            let none = Duration::ZERO;
            routers.push(router(&url, &name, None, none, done.clone(), all, begun).await);
        } else {
            tokio::spawn(async move { plain(&url, &name, messages, all, begun).await });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        for n in 0..messages {
            ticks.tick().await;
            let mut body = vec![b'x'; BODY];
            let now = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
            body[..8].copy_from_slice(&now.to_be_bytes());
            drop(broker.publish(&queue, n, body).await);
        }
        while latencies.lock().expect("no panic").len() < messages as usize {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut sorted = latencies.lock().expect("no panic").clone();
        sorted.sort_unstable();
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        println!(
            "latency at 100/s, {which}: p50 {:?}, p99 {:?}",
            at(0.5),
            at(0.99)
        );
        slowest.push(at(0.99).as_secs_f64() * 1e3);
        for router in routers {
            router.stop(Duration::from_secs(5)).await;
        }
        broker.delete(&queue).await;
    }
    println!(
        "latency added at the p99: {:.2} ms",
        slowest[1] - slowest[0]
    );
}

/// What a consumer with so many workers takes, all of them busy and as many messages waiting as are
/// fetched for them.
async fn memory(broker: &Broker) {
    // The first one pays for what all share, and is not told of.
    for (n, workers) in [1, 1, 32, 100].into_iter().enumerate() {
        let fetched = workers * 10;
        let queue = broker.queue(fetched as u64).await;
        let before = resident();
        let done = Arc::new(Done::default());
        let (sleep, begun) = (Duration::from_millis(500), Instant::now());
        let some = Some(workers);
        let router = router(&broker.url, &queue, some, sleep, done.clone(), None, begun).await;
        while router.pools()[0].in_flight < workers {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let taken = resident().saturating_sub(before);
        if n > 0 {
            println!(
                "memory, {workers} workers busy and {fetched} messages of {BODY} B fetched: {taken} kB more"
            );
        }
        router.stop(Duration::from_secs(5)).await;
        broker.delete(&queue).await;
    }
}

/// This process's memory, in kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
