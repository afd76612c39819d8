//! The crash loop: `kill -9` at random times under load, restart, and nothing is lost, nothing
//! overtaken. R1, R2, R4, R7, R15.
//!
//! `KEYLANE_CRASHES=500 cargo test -p keylane-server --test it crash` runs five hundred rounds.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keylane_router::embedded::{Db, Options};
use keylane_router::history::{self, EventKind, Recorder};
use keylane_router::plan::{Keyless, Plan};
use keylane_router::store::Store;
use keylane_router::testing::{self, Answer, Target, random};
use keylane_router::{By, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONCURRENCY: u64 = 8;
const KEYS: u64 = 40;

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
first_byte = "200ms"
total = "400ms"
[pools.parking]
concurrency = 4
on_exhausted = "park"
[pools.parking.retry]
max_attempts = 2
initial = "20ms"
max = "80ms"
[pools.parking.timeout]
first_byte = "200ms"
total = "400ms"
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
            (150, Answer::ok()),
            (20, Answer::ok().after(Duration::from_millis(5))),
            (8, Answer::status(500)),
            (6, Answer::status(429).header("retry-after", "0")),
            (4, Answer::not_yet(0)),
            (3, Answer::Reset),
            (1, Answer::Hang),
            (1, Answer::SlowBody),
            (2, Answer::CutBody),
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

/// The program, running; killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut child = crate::keylane(&["serve", "--listen", "127.0.0.1:0"], folder)
            .arg("--config")
            .arg(folder.join("keylane.toml"))
            .arg("--data")
            .arg(folder.join("data"))
            .env("KEYLANE_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listening on http://")?.1.trim().to_owned()));
        Self {
            child,
            address: address.expect("it says where it listens"),
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request; `None` when the connection breaks.
async fn request(address: &str, head: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!(
        "{head} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n")?.1.to_owned();
    Some((status, body))
}

/// Publishes until told to stop; what may not have arrived is published again.
struct Producer {
    history: Arc<Recorder>,
    address: Arc<std::sync::RwLock<String>>,
    url: String,
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
}

impl Producer {
    async fn run(self) {
        let mut n = 0;
        while !self.stop.load(Ordering::SeqCst) {
            n += 1;
            let messages: Vec<String> = (0..KEYS).map(|key| self.message(key, n)).collect();
            let body = format!("[{}]", messages.join(","));
            loop {
                let address = self.address.read().unwrap().clone();
                let path = "POST /api/v1/queues/default/messages";
                match request(&address, path, &body).await {
                    Some((202, _)) => break,
                    Some((status @ 400..=499, answer)) => panic!("{status}: {answer}"),
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
            self.published.fetch_add(KEYS, Ordering::SeqCst);
            // A pace that a slow machine keeps up with, so that the backlog does not grow with
            // the speed of the disk.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn message(&self, key: u64, n: u64) -> String {
        let name = format!("key-{key}");
        let line = history::Event::of(name.as_str(), n, EventKind::Publish, history::By::Producer);
        self.history.record(line).unwrap();
        let pool = if key.is_multiple_of(8) {
            "parking"
        } else {
            "default"
        };
        let url = &self.url;
        format!(
            r#"{{"id":"{name}-{n}","poolCode":"{pool}","messageGroupId":"{name}","mediationTarget":"{url}","payload":{{"k":"{name}","n":{n}}}}}"#
        )
    }
}

fn note(history: &Recorder, kind: EventKind) {
    let line = history::Event::new(kind, history::By::Router);
    history.record(line).unwrap();
}

async fn depth(address: &str) -> Option<u64> {
    let (_, body) = request(address, "GET /api/v1/queues", "").await?;
    let queues: serde_json::Value = serde_json::from_str(&body).ok()?;
    let list = queues.as_array().or_else(|| queues["queues"].as_array())?;
    Some(
        list.iter()
            .filter_map(|queue| queue["depth"].as_u64())
            .sum(),
    )
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
    pool.timeout.first_byte = Duration::from_millis(200);
    pool.timeout.total = Duration::from_millis(400);
    plan.breaker.failures = 0.0;
    plan.pools.insert("parking".into(), pool);
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .source("default", source);
    let router = router.start().await.unwrap();
    let parked = db.store().parked();
    let messages = parked.iter().map(|lane| lane.messages).sum();
    for lane in parked {
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
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keylane.toml"), CONFIG).unwrap();
    let history = Arc::new(Recorder::in_memory());
    let shared = Shared {
        history: history.clone(),
        written: Arc::default(),
    };
    let ill = Target::start_with(flaky(11), shared.clone()).await;
    let mut server = Server::start(folder.path());
    let address = Arc::new(std::sync::RwLock::new(server.address.clone()));
    let (stop, published) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let producer = Producer {
        history: history.clone(),
        address: address.clone(),
        url: ill.url("/"),
        stop: stop.clone(),
        published: published.clone(),
    };
    let producer = tokio::spawn(producer.run());
    for round in 0..rounds() {
        // The times are the test's dice, not something that is waited for.
        let time = 60 + (round * 7919) % 340;
        tokio::time::sleep(Duration::from_millis(time)).await;
        server.kill();
        shared.quiet().await;
        note(&history, EventKind::Crash);
        note(&history, EventKind::Restart);
        server = Server::start(folder.path());
        *address.write().unwrap() = server.address.clone();
    }
    stop.store(true, Ordering::SeqCst);
    producer.await.unwrap();
    while depth(&server.address).await != Some(0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.kill();
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
        "{} rounds, {} messages, {} attempts, {parked} parked, duplicates {:?}",
        rounds(),
        report.counts.published,
        report.counts.attempts,
        report.counts.duplicates
    );
    assert!(parked > 0, "parking was in use");
}
