//! The crash loop: `kill -9` at random times under load, restart, and nothing is lost, nothing
//! overtaken. R1, R2, R4, R6, R7, R15.
//!
//! `KEYLANE_CRASHES=500 cargo test -p keylane-server --test it crash` runs five hundred rounds.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use keylane_router::embedded::{Db, Options};
use keylane_router::history::{self, EventKind, Recorder};
use keylane_router::plan::{Keyless, Plan};
use keylane_router::store::Store;
use keylane_router::testing::{self, Answer, Target, random};
use keylane_router::{By, Router};
use serde_json::{Value, json};

use crate::http::ask;
use crate::server::Folder;

/// Of three pools.
const CONCURRENCY: u64 = 12;
const KEYS: u64 = 40;

/// The timeouts are longer than a busy machine stands still: an answer that comes too late was
/// recorded as delivered, comes again, and would be put down to a crash.
const CONFIG: &str = r#"
stop_deadline = "5s"
[breaker]
failures = 0
[pools.default]
concurrency = 4
return_delay = "10ms"
[pools.default.retry]
max_attempts = 4
initial = "20ms"
max = "80ms"
[pools.default.timeout]
first_byte = "1s"
total = "2s"
[pools.spilling]
concurrency = 4
overflow = "spill"
lane_capacity = 2
[pools.spilling.retry]
max_attempts = 1000
initial = "20ms"
max = "80ms"
[pools.spilling.timeout]
first_byte = "1s"
total = "2s"
[pools.parking]
concurrency = 4
on_exhausted = "park"
[pools.parking.retry]
max_attempts = 2
initial = "20ms"
max = "80ms"
[pools.parking.timeout]
first_byte = "1s"
total = "2s"
"#;

fn rounds() -> u64 {
    let asked = std::env::var("KEYLANE_CRASHES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(25)
}

/// Mostly well, sometimes ill in every way a target can be.
fn flaky(seed: u64) -> impl testing::Behaviour {
    random(
        seed,
        vec![
            (600, Answer::ok()),
            (80, Answer::ok().after(Duration::from_millis(5))),
            (32, Answer::status(500)),
            (24, Answer::status(429).header("retry-after", "0")),
            (16, Answer::not_yet(0)),
            (12, Answer::Reset),
            (1, Answer::Hang),
            (1, Answer::SlowBody),
            (8, Answer::CutBody),
        ],
    )
}

/// The one history that producer and target write, and how much the target has written.
#[derive(Clone)]
struct Shared {
    history: Arc<Recorder>,
    written: Arc<AtomicU64>,
}

impl Shared {
    /// What a killed process had sent may still be on its way: waits until the target has seen the
    /// last of it, so that it stands in the history before the crash.
    async fn quiet(&self) {
        let mut still = 0;
        let mut before = self.written.load(Ordering::SeqCst);
        while still < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = self.written.load(Ordering::SeqCst);
            still = if now == before { still + 1 } else { 0 };
            before = now;
        }
    }
}

impl testing::Recorder for Shared {
    fn record(&self, event: testing::Event, request: &testing::Request) {
        testing::Recorder::record(&*self.history, event, request);
        self.written.fetch_add(1, Ordering::SeqCst);
    }
}

/// Publishes until told to stop; what may not have arrived is published again.
struct Producer {
    history: Arc<Recorder>,
    /// Where the server listens now.
    server: Arc<RwLock<String>>,
    target: String,
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
}

impl Producer {
    async fn run(self) {
        let mut n = 0;
        while !self.stop.load(Ordering::SeqCst) {
            n += 1;
            let messages: Vec<Value> = (0..KEYS).map(|key| self.message(key, n)).collect();
            let body = Value::from(messages).to_string();
            while !self.is_published(&body).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.published.fetch_add(KEYS, Ordering::SeqCst);
            // A pace that a slow machine keeps up with, so that the backlog does not grow with
            // the speed of the disk.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// `false` when the server was killed before it could answer.
    async fn is_published(&self, body: &str) -> bool {
        let server = self.server.read().unwrap().clone();
        let url = format!("{server}/api/v1/queues/default/messages");
        let json = [("content-type", "application/json")];
        match ask("POST", &url, &json, body.to_owned()).await {
            Some(answer) if (400..500).contains(&answer.status) => panic!("{}", answer.text()),
            answer => answer.is_some_and(|answer| answer.status == 202),
        }
    }

    fn message(&self, key: u64, n: u64) -> Value {
        let name = format!("key-{key}");
        let line = history::Event::of(name.as_str(), n, EventKind::Publish, history::By::Producer);
        self.history.record(line).unwrap();
        let pool = match key % 8 {
            0 => "parking",
            1..=3 => "spilling",
            _ => "default",
        };
        json!({
            "id": format!("{name}-{n}"),
            "poolCode": pool,
            "messageGroupId": name,
            "mediationTarget": self.target,
            "payload": {"k": name, "n": n},
        })
    }
}

fn note(history: &Recorder, kind: EventKind) {
    let line = history::Event::new(kind, history::By::Router);
    history.record(line).unwrap();
}

/// How many messages this process has spilled so far.
async fn spilled_by(server: &str) -> u64 {
    let answer = ask("GET", &format!("{server}/metrics"), &[], String::new()).await;
    let text = answer
        .map(|answer| answer.text().to_owned())
        .unwrap_or_default();
    let lines = text
        .lines()
        .filter(|line| line.contains("outcome=\"spilled\""));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Replays what is parked, in this process, until nothing is.
async fn replay_parked(folder: &Path) -> u64 {
    let db = Db::open(folder.join("data"), Options::default()).expect("the server is gone");
    let source = db
        .source("default", "default", Keyless::Serial)
        .await
        .unwrap();
    let mut plan = Plan::default();
    let mut pool = plan.pools["default"].clone();
    pool.retry.initial = Duration::from_millis(20);
    pool.retry.max = Duration::from_millis(80);
    pool.timeout.first_byte = Duration::from_secs(1);
    pool.timeout.total = Duration::from_secs(2);
    plan.breaker.failures = 0.0;
    plan.pools.insert("parking".into(), pool);
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .source("default", source);
    let router = router.start().await.unwrap();
    let parked = db.store().parked();
    let messages = parked.iter().map(|lane| lane.messages).sum();
    // Those that are on their way out already may be gone at any moment.
    for lane in parked.into_iter().filter(|lane| !lane.replaying) {
        let by = By {
            who: "test".to_owned(),
            why: "the target is well again".to_owned(),
        };
        router.replay(lane.lane, by).await.unwrap();
    }
    while !db.store().parked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    router.stop(Duration::from_secs(5)).await;
    db.close().await;
    messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_under_load_it_loses_nothing_and_overtakes_nothing() {
    let folder = Folder::with_config(CONFIG);
    let history = Arc::new(Recorder::in_memory());
    let shared = Shared {
        history: history.clone(),
        written: Arc::default(),
    };
    let ill = Target::start_with(flaky(11), shared.clone()).await;
    let mut server = folder.start().await;
    let address = Arc::new(RwLock::new(server.url.clone()));
    let (stop, published) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let producer = Producer {
        history: history.clone(),
        server: address.clone(),
        target: ill.url("/"),
        stop: stop.clone(),
        published: published.clone(),
    };
    let producer = tokio::spawn(producer.run());
    let mut spilled = 0;
    for round in 0..rounds() {
        // The times are the test's dice, not something that is waited for.
        let time = 60 + (round * 7919) % 340;
        tokio::time::sleep(Duration::from_millis(time)).await;
        spilled += spilled_by(&server.url).await;
        server.kill().await;
        shared.quiet().await;
        note(&history, EventKind::Crash);
        note(&history, EventKind::Restart);
        server = folder.start().await;
        *address.write().unwrap() = server.url.clone();
    }
    stop.store(true, Ordering::SeqCst);
    producer.await.unwrap();
    server.empty().await;
    server.kill().await;
    note(&history, EventKind::Crash);
    note(&history, EventKind::Restart);
    let parked = replay_parked(folder.path()).await;
    let mut all = history::History::default();
    for event in history.events() {
        all.push(&event);
    }
    let options = history::Options {
        max_duplicates_per_crash: Some(2 * CONCURRENCY),
        ..history::Options::default()
    };
    let report = history::check(all, &options);
    assert!(report.is_green(), "{:#?}", report);
    assert_eq!(report.counts.published, published.load(Ordering::SeqCst));
    println!(
        "{} rounds, {} messages, {} attempts, {spilled} spilled, {parked} parked, duplicates {:?}",
        rounds(),
        report.counts.published,
        report.counts.attempts,
        report.counts.duplicates
    );
    assert!(parked > 0, "parking was in use");
    assert!(spilled > 0, "spilling was in use");
}
