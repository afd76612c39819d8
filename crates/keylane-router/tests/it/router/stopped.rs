//! R12 in a process of its own: it is stopped for longer than a lease and goes on, again and again,
//! and no call starts on a lost lease.
//!
//! The process is this test program, started once more; it talks to a broker and a target that
//! live here and go on meanwhile.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane_router::Router;
use keylane_router::dispatch::{HttpDispatch, HttpOptions};
use keylane_router::embedded::{Db, Options};
use keylane_router::lease::BootClock;
use keylane_router::source::{Features, Received, Room, SettleError, Settler, Source, SourceError};
use keylane_router::testing::{Answer, Request, Target};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::lease_model::{Broker, Receipt, features, received};
use super::leases::patient_plan;

const LEASE: Duration = Duration::from_millis(600);
const KEYS: u64 = 6;
const PER_KEY: u64 = 60;
const BROKER: &str = "KEYLANE_TEST_BROKER";
const TARGET: &str = "KEYLANE_TEST_TARGET";

/// Answers one line to one line.
async fn serve(broker: Broker, listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let broker = broker.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            if stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                let answer = answer(&broker, line.trim()).await;
                let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
            }
        });
    }
}

async fn answer(broker: &Broker, line: &str) -> String {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    if verb == "lend" {
        loop {
            let lent = broker.lend(rest.parse().unwrap());
            if !lent.is_empty() {
                let one = |(key, number, receipt)| format!("{key}:{number}:{receipt}");
                return lent.into_iter().map(one).collect::<Vec<_>>().join(" ");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let receipts = rest.split_whitespace().map(|text| {
        let [key, receipt] = numbers(text);
        Receipt { key, receipt }
    });
    let receipts = receipts.collect();
    let results = match verb {
        "ack" => broker.ack(receipts).await,
        "back" => broker.give_back(receipts, Duration::ZERO).await,
        "renew" => broker.renew(receipts).await,
        other => panic!("{other}?"),
    };
    let text = |result: &Result<(), SettleError>| if result.is_ok() { "ok" } else { "lost" };
    results.iter().map(text).collect::<Vec<_>>().join(" ")
}

fn numbers<const N: usize>(text: &str) -> [u64; N] {
    let numbers: Vec<u64> = text.split(':').map(|part| part.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The broker as the stopped process sees it.
#[derive(Clone)]
struct Remote {
    broker: String,
    target: String,
}

impl Remote {
    async fn ask(&self, question: String) -> std::io::Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(&self.broker).await?);
        stream.write_all(format!("{question}\n").as_bytes()).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        Ok(line.trim().to_owned())
    }

    async fn settle(&self, verb: &str, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        let one = |receipt: &Receipt| format!(" {}:{}", receipt.key, receipt.receipt);
        let list: String = receipts.iter().map(one).collect();
        let answer = self.ask(format!("{verb}{list}")).await.unwrap_or_default();
        let mut answers = answer.split_whitespace();
        let result = |_| match answers.next() {
            Some("ok") => Ok(()),
            Some(_) => Err(SettleError::Lost("not yours".to_owned())),
            None => Err(SettleError::Again("away".to_owned())),
        };
        receipts.iter().map(result).collect()
    }
}

impl Source for Remote {
    type Receipt = Receipt;
    type Settler = Remote;

    fn features(&self) -> Features {
        features(LEASE)
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        let answer = self.ask(format!("lend {}", room.messages)).await;
        let answer = answer.map_err(|error| SourceError {
            source_name: "m".into(),
            text: error.to_string(),
            permanent: false,
        })?;
        let one = |text| {
            let [key, number, receipt] = numbers(text);
            received(&self.target, (key, number, receipt))
        };
        Ok(answer.split_whitespace().map(one).collect())
    }

    fn settler(&self) -> Remote {
        self.clone()
    }

    async fn close(self) {}
}

impl Settler for Remote {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        self.settle("ack", receipts).await
    }

    async fn give_back(
        &self,
        receipts: Vec<Receipt>,
        _delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        self.settle("back", receipts).await
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        receipts
            .iter()
            .map(|_| Err(SettleError::Lost("no".to_owned())))
            .collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        self.settle("renew", receipts).await
    }
}

/// The stopped process: started by the test below, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of the test below, in a process of its own"]
async fn the_router_that_is_stopped() {
    let (Ok(broker), Ok(target)) = (std::env::var(BROKER), std::env::var(TARGET)) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    let _router = Router::builder()
        .plan(patient_plan())
        .store(db.store())
        .dispatch(HttpDispatch::new(HttpOptions::default()))
        .source("m", Remote { broker, target })
        .start()
        .await
        .unwrap();
    // It ends with the process that started it.
    let mut line = String::new();
    let _ = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut line)).await;
}

/// Whether this process itself stood still, so that nothing that was seen then can be judged.
struct Awake {
    stood_still: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Awake {
    fn watch() -> Self {
        let (stood_still, stop) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (seen, end) = (stood_still.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !AtomicBool::load(&end, Ordering::SeqCst) {
                let before = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
                if before.elapsed() > LEASE / 6 {
                    seen.store(true, Ordering::SeqCst);
                }
            }
        });
        Self { stood_still, stop }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Stopped(Child);

impl Stopped {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One run; `None` when this machine stood still meanwhile.
async fn run() -> Option<(Vec<String>, usize)> {
    let awake = Awake::watch();
    let broker = Broker::new(KEYS, PER_KEY, BootClock, LEASE);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(serve(broker.clone(), listener));
    let wrong: Arc<Mutex<Vec<String>>> = Arc::default();
    let calls = Arc::new(AtomicUsize::new(0));
    let (seen, says, counted) = (broker.clone(), wrong.clone(), calls.clone());
    let target = Target::start(move |request: &Request| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let (key, number) = text.trim_matches('"').split_once('-').unwrap();
        if !seen.is_lent(key.parse().unwrap(), number.parse().unwrap()) {
            says.lock().unwrap().push(text.clone());
        }
        Answer::After(
            Duration::from_millis(call as u64 % 40),
            Box::new(Answer::ok()),
        )
    })
    .await;
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "router::stopped::the_router_that_is_stopped",
            "--ignored",
        ])
        .env(BROKER, address)
        .env(TARGET, target.url("/"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Stopped(child);
    let begun = Instant::now();
    let mut stops = 0;
    while !broker.is_empty() && begun.elapsed() < Duration::from_secs(60) {
        // Real waits: the other process has no clock that could be paused.
        tokio::time::sleep(Duration::from_millis(150 + stops * 37 % 100)).await;
        child.signal(Signal::STOP);
        tokio::time::sleep(LEASE + Duration::from_millis(200)).await;
        child.signal(Signal::CONT);
        stops += 1;
    }
    serving.abort();
    if awake.stood_still.load(Ordering::SeqCst) {
        return None;
    }
    assert!(broker.is_empty(), "it never got through: {stops} stops");
    assert!(stops > 2, "only {stops} stops");
    let wrong = wrong.lock().unwrap().clone();
    Some((wrong, calls.load(Ordering::SeqCst)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_a_router_that_was_stopped_for_longer_than_a_lease_calls_nothing_on_a_lost_lease() {
    for _ in 0..10 {
        if let Some((wrong, calls)) = run().await {
            assert!(
                wrong.is_empty(),
                "on lost leases, of {calls} calls: {wrong:?}"
            );
            return;
        }
    }
    panic!("this machine stood still in every run");
}
