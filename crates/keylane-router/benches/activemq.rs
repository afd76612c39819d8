//! The router on ActiveMQ and Artemis beside a plain loop of the client that it uses, in one run:
//! `eval "$(cargo xtask brokers env)"; cargo bench -p keylane-router --features activemq --bench activemq`

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::types::messaging::{
    Body, Data, Header, Message, Properties, Source, Target as Terminus,
};
use fe2o3_amqp::types::primitives::{Binary, Symbol, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use keylane_router::Router;
use keylane_router::activemq::{ActiveMqSource, Options};
use keylane_router::dispatch::handler_fn;
use keylane_router::embedded::{Db, Options as DbOptions};
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Envelope, Plan, PoolPlan, SourcePlan};
use tokio::net::TcpStream;
use tokio::sync::Notify;

const KEYS: usize = 100;
const WINDOW: u32 = 1000;
const SIZE: usize = 300;
/// Handlers at once.
const CONCURRENCY: usize = 64;
const ROUNDS: usize = 9;
const LATENCIES: usize = 5;
/// Messages of the measurement of latency, one every 10 ms.
const TIMED: usize = 1000;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        for (broker, count) in [("activemq", 10_000), ("artemis", 60_000)] {
            let variable = format!("KEYLANE_TEST_{}_URL", broker.to_uppercase());
            match std::env::var(&variable) {
                Ok(url) => measure(broker, &url, count).await,
                Err(_) => println!("{broker}: skipped, {variable} is not set"),
            }
        }
    });
}

async fn measure(broker: &str, url: &str, count: usize) {
    let queue = format!("bench.{}", uuid::Uuid::now_v7().simple());
    let at = Options::new(url, &queue).expect("an address");
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        publish(&at, count).await;
        let first = per_second(count, plain_loop(&at, count, |_| {}).await);
        publish(&at, count).await;
        let second = per_second(count, router(&at, count, |_| {}).await);
        println!("{broker}, round {round}: plain loop {first:.0}/s, router {second:.0}/s");
        plain.push(first);
        ours.push(second);
    }
    // Round by round: what else the broker and the machine do meets both alike.
    let mut ratios: Vec<f64> = ours.iter().zip(&plain).map(|(a, b)| a / b).collect();
    let ratio = 100.0 * median(&mut ratios);
    let (plain, ours) = (median(&mut plain), median(&mut ours));
    println!(
        "{broker}: {count} durable messages of {SIZE} bytes, {KEYS} keys, medians of {ROUNDS}: plain loop {plain:.0}/s, router {ours:.0}/s; of its round's loop {ratio:.0} %"
    );
    latencies(broker, &at).await;
}

/// In turn, several times: the broker's disk makes everybody wait now and then.
async fn latencies(broker: &str, at: &Options) {
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..LATENCIES {
        plain.push(latency(at, true).await);
        ours.push(latency(at, false).await);
    }
    for (what, at) in [("p50", TIMED / 2), ("p99", TIMED * 99 / 100)] {
        let all = |runs: &[Vec<Duration>]| -> Vec<f64> {
            runs.iter().map(|run| run[at].as_secs_f64() * 1e3).collect()
        };
        let (plain, ours) = (all(&plain), all(&ours));
        println!(
            "{broker}: 100 msg/s, from send to handler, {what} in ms: plain loop {plain:.2?}, router {ours:.2?}; medians {:+.2}",
            median(&mut ours.clone()) - median(&mut plain.clone())
        );
    }
}

fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

async fn connect(at: &Options) -> ConnectionHandle<()> {
    let stream = TcpStream::connect((at.host.as_str(), at.port))
        .await
        .expect("a broker");
    stream.set_nodelay(true).expect("set");
    let sasl = match &at.login {
        Some(login) => SaslProfile::Plain {
            username: login.user.clone(),
            password: login.password.clone(),
        },
        None => SaslProfile::Anonymous,
    };
    Connection::builder()
        .container_id(uuid::Uuid::now_v7().to_string())
        .sasl_profile(sasl)
        .open_with_stream(stream)
        .await
        .expect("a connection")
}

fn message(n: usize) -> Message<Data> {
    Message::builder()
        .header(Header {
            durable: true,
            ..Header::default()
        })
        .properties(Properties {
            message_id: Some(uuid::Uuid::now_v7().to_string().into()),
            group_id: Some(format!("key-{}", n % KEYS)),
            ..Properties::default()
        })
        .data(Binary::from(format!("{n:0SIZE$}").into_bytes()))
        .build()
}

async fn sender(
    at: &Options,
) -> (
    ConnectionHandle<()>,
    fe2o3_amqp::session::SessionHandle<()>,
    Sender,
) {
    let mut connection = connect(at).await;
    let mut session = Session::begin(&mut connection).await.expect("a session");
    let target = Terminus::builder()
        .address(at.queue.as_str())
        .capabilities(vec![Symbol::from("queue")])
        .build();
    let sender = Sender::builder().name("bench").target(target);
    let sender = sender.attach(&mut session).await.expect("a queue");
    (connection, session, sender)
}

/// Fills the queue.
async fn publish(at: &Options, count: usize) {
    let (mut connection, _session, mut sender) = sender(at).await;
    for chunk in (0..count).collect::<Vec<_>>().chunks(500) {
        let mut sent = Vec::new();
        for n in chunk {
            sent.push(sender.send_batchable(message(*n)).await.expect("sent"));
        }
        for sent in sent {
            sent.await.expect("taken");
        }
    }
    sender.close().await.expect("closed");
    let _ = connection.close().await;
}

/// Takes so many, one after the other, and acks each: what the client's docs show, with credit that
/// is refilled when half of it is used.
async fn plain_loop(at: &Options, count: usize, mut see: impl FnMut(&[u8])) -> Duration {
    let begun = Instant::now();
    let mut connection = connect(at).await;
    let mut session = Session::begin(&mut connection).await.expect("a session");
    let source = Source::builder()
        .address(at.queue.as_str())
        .capabilities(vec![Symbol::from("queue")])
        .build();
    let mut receiver = Receiver::builder()
        .name("plain")
        .source(source)
        .credit_mode(CreditMode::Auto(WINDOW))
        .attach(&mut session)
        .await
        .expect("a queue");
    for _ in 0..count {
        let delivery = receiver.recv::<Body<Value>>().await.expect("a message");
        if let Body::Data(parts) = delivery.body() {
            parts.iter().for_each(|part| see(&part.0));
        }
        receiver.accept(&delivery).await.expect("sent");
    }
    receiver.close().await.expect("closed");
    let _ = connection.close().await;
    begun.elapsed()
}

/// The same through the router, to a handler that does nothing, in order per key: from the connection
/// until everything is acked and the source is closed.
async fn router(
    at: &Options,
    count: usize,
    see: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Duration {
    let (done, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, told, see) = (done.clone(), all.clone(), Arc::new(see));
    let handler = handler_fn(move |message| {
        see(&message.payload);
        if counted.fetch_add(1, Ordering::Relaxed) + 1 == count {
            told.notify_one();
        }
        std::future::ready(Outcome::Delivered)
    });
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(folder.path(), DbOptions::default()).expect("a store");
    let mut plan = Plan::default();
    let pool = PoolPlan {
        concurrency: NonZeroUsize::new(CONCURRENCY),
        ..PoolPlan::default()
    };
    plan.pools.insert("default".into(), pool);
    let started = Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(handler)
        .start()
        .await;
    let router = started.expect("a router");
    let plan = SourcePlan {
        envelope: Envelope::Raw {
            pool: "default".into(),
            target: "http://target.invalid/".into(),
        },
        ..SourcePlan::custom()
    };
    let begun = Instant::now();
    let source = ActiveMqSource::new("s", at.clone());
    router
        .add_source("s", source, plan)
        .await
        .expect("a source");
    all.notified().await;
    router.stop(Duration::from_secs(10)).await;
    let took = begun.elapsed();
    db.close().await;
    assert_eq!(done.load(Ordering::Relaxed), count, "nothing comes twice");
    took
}

/// How long messages take from their send to the handler, sorted.
async fn latency(at: &Options, plain: bool) -> Vec<Duration> {
    let begun = Instant::now();
    let sent: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let (noted, seen) = (sent.clone(), times.clone());
    let see = move |body: &[u8]| {
        let n: usize = std::str::from_utf8(body)
            .expect("digits")
            .parse()
            .expect("a number");
        let sent = noted.lock().expect("locked")[n];
        seen.lock().expect("locked").push(begun.elapsed() - sent);
    };
    let publishing = async {
        let (_connection, _session, mut sender) = sender(at).await;
        // The consumers are there by then.
        let mut tick = tokio::time::interval_at(
            tokio::time::Instant::now() + Duration::from_millis(500),
            Duration::from_millis(10),
        );
        let mut confirmations = Vec::new();
        for n in 0..TIMED {
            tick.tick().await;
            sent.lock().expect("locked").push(begun.elapsed());
            let confirmed = sender.send_batchable(message(n)).await;
            confirmations.push(confirmed.expect("sent"));
        }
        for confirmed in confirmations {
            confirmed.await.expect("taken");
        }
    };
    match plain {
        true => {
            tokio::join!(publishing, plain_loop(at, TIMED, see));
        }
        false => {
            tokio::join!(publishing, router(at, TIMED, see));
        }
    }
    let mut times = times.lock().expect("locked").clone();
    times.sort();
    times
}
