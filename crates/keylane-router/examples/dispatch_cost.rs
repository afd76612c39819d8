//! What an attempt costs beside a bare call of hyper-util's client and beside connections without any client, with the
//! same headers: CPU per request, the target in a process of its own. Then what each guard costs alone.
//!
//! `cargo run --release -p keylane-router --features testing --example dispatch_cost`

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use keylane_router::dispatch::{
    Attempt, Dispatch, HttpDispatch, HttpOptions, Secrets, TargetList, answer, headers,
};
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::outcome::Outcome;
use keylane_router::plan::{PoolPlan, Targets};
use keylane_router::testing::{self, Answer};
use tokio::net::{TcpListener, TcpStream};

const REQUESTS: usize = 60_000;

#[tokio::main(worker_threads = 2)]
async fn main() {
    if std::env::args().nth(1).as_deref() == Some("target") {
        return target().await;
    }
    let (mut child, url) = start_target();
    guards(&url);
    for concurrency in [10, 100, 1000] {
        for _ in 0..3 {
            raw(&url, concurrency).await;
            bare(&url, concurrency).await;
            attempts("attempt", &url, concurrency, attempt()).await;
            attempts("signed", &url, concurrency, signed(1)).await;
        }
    }
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
}

async fn target() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("http://{}/hook", listener.local_addr().expect("bound"));
    let answer = Answer::ok().body("{\"ack\":true}");
    let behaviour = testing::fixed(answer);
    testing::run(listener, behaviour, Arc::new(()), std::future::pending()).await;
}

fn start_target() -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().expect("we run"))
        .arg("target")
        .stdout(Stdio::piped())
        .spawn()
        .expect("we can run ourselves");
    let mut url = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out)
        .read_line(&mut url)
        .expect("it says where it listens");
    (child, url.trim().to_owned())
}

/// Each caller has a connection of its own: the floor for any client of hyper's.
async fn raw(url: &str, concurrency: usize) {
    let uri: http::Uri = url.parse().expect("a URL");
    let authority = uri.authority().expect("a host").as_str().to_owned();
    let path: http::Uri = uri.path().parse().expect("a path");
    let idle = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..concurrency {
        let stream = TcpStream::connect(&authority).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (send, connection) = shaken.expect("a connection");
        tokio::spawn(connection);
        idle.lock().expect("never poisoned").push(send);
    }
    measure("raw", concurrency, move || {
        let (idle, path, authority) = (idle.clone(), path.clone(), authority.clone());
        async move {
            let mut send = idle.lock().expect("never poisoned").pop().expect("enough");
            send.ready().await.expect("it is open");
            let mut request = request(path);
            let host = authority.parse().expect("a header");
            request.headers_mut().insert("host", host);
            let answer = send.send_request(request).await.expect("an answer");
            answer.into_body().collect().await.expect("a body");
            idle.lock().expect("never poisoned").push(send);
        }
    })
    .await;
}

async fn bare(url: &str, concurrency: usize) {
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(concurrency)
        .build({
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector
        });
    let uri: http::Uri = url.parse().expect("a URL");
    measure("bare client", concurrency, move || {
        let (client, uri) = (client.clone(), uri.clone());
        async move {
            let request = request(uri);
            let answer = client.request(request).await.expect("an answer");
            assert!(answer.status().is_success());
            answer.into_body().collect().await.expect("a body");
        }
    })
    .await;
}

fn request(uri: http::Uri) -> http::Request<Full<Bytes>> {
    http::Request::post(uri)
        .header("content-type", "application/json")
        .header("user-agent", "keylane/0.1.0")
        .header("authorization", "Bearer a-token-of-some-length")
        .header("webhook-id", "0192f3a0-1111-7222-8333-444455556666")
        .header("webhook-timestamp", "1700000000")
        .header("keylane-key", "customer-4711")
        .header("keylane-attempt", "1")
        .header("keylane-pool", "mail")
        .header("keylane-position", "123456")
        .body(Full::new(payload()))
        .expect("a request")
}

async fn attempts(name: &str, url: &str, concurrency: usize, attempt: Attempt) {
    let dispatch = HttpDispatch::new(HttpOptions {
        loopback: true,
        ..HttpOptions::default()
    });
    let message = Arc::new(message(url));
    let attempt = Arc::new(attempt);
    measure(name, concurrency, move || {
        let (dispatch, message, attempt) = (dispatch.clone(), message.clone(), attempt.clone());
        async move {
            let outcome = dispatch.attempt(&message, &attempt).await;
            assert_eq!(outcome, Outcome::Delivered);
        }
    })
    .await;
}

/// What each guard costs alone.
fn guards(url: &str) {
    let dispatch = HttpDispatch::new(HttpOptions {
        loopback: true,
        listeners: vec!["127.0.0.1:1".parse().expect("an address")],
        ..HttpOptions::default()
    });
    let message = message(url);
    let address = "127.0.0.1:9".parse().expect("an address");
    let list = [
        "public",
        "*.example.com",
        "10.0.0.0/8",
        "127.0.0.0/8",
        "!10.1.0.0/16",
    ];
    let listed = Attempt {
        targets: Arc::new(Targets::Only(TargetList::parse(list).expect("a list"))),
        ..attempt()
    };
    let plain = attempt();
    each("target and address, any", || {
        dispatch.may_call(&message, &plain, address)
    });
    each("target and address, a list of 5", || {
        dispatch.may_call(&message, &listed, address)
    });
    for secrets in 0..=2 {
        let attempt = signed(secrets);
        let name = format!("headers, {secrets} secrets");
        each(&name, || headers::of(&message, &attempt).is_ok());
    }
    let (status, headers) = (http::StatusCode::OK, http::HeaderMap::new());
    each("judging the answer", || {
        let body = answer::Body::Whole(b"{\"ack\":true}");
        answer::outcome(status, &headers, body) == Outcome::Delivered
    });
}

fn each(name: &str, call: impl Fn() -> bool) {
    const TIMES: u32 = 300_000;
    let begun = Instant::now();
    for _ in 0..TIMES {
        std::hint::black_box(call());
    }
    let nanos = begun.elapsed().as_nanos() / u128::from(TIMES);
    println!("{name:40} {nanos:6} ns");
}

fn signed(secrets: usize) -> Attempt {
    let secret = "whsec_c29tZSBzZWNyZXQgb2YgdHdlbnR5LWZvdXIgYnl0ZXM=";
    Attempt {
        secrets: Secrets::parse(vec![secret; secrets]).expect("secrets"),
        ..attempt()
    }
}

/// Runs `REQUESTS` calls, `concurrency` at a time, after a warm-up.
async fn measure<F>(name: &str, concurrency: usize, call: impl Fn() -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    run(concurrency, concurrency * 20, call.clone()).await;
    let (begun, before) = (Instant::now(), cpu());
    run(concurrency, REQUESTS, call).await;
    let (took, cpu) = (begun.elapsed(), cpu() - before);
    let per_request = cpu.as_secs_f64() * 1e6 / REQUESTS as f64;
    let rate = REQUESTS as f64 / took.as_secs_f64();
    println!("{name:12} {concurrency:5} at once  {rate:8.0}/s  {per_request:5.1} µs CPU");
}

async fn run<F>(concurrency: usize, total: usize, call: impl Fn() -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let left = Arc::new(AtomicUsize::new(total));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let (left, call) = (left.clone(), call.clone());
        tasks.spawn(async move {
            let take = |n: usize| n.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                call().await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no call fails");
    }
}

/// User and system time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let after_name = stat.rsplit(')').next().expect("a line");
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}

fn payload() -> Bytes {
    static BYTES: [u8; 298] = [b'x'; 298];
    Bytes::from_static(&BYTES)
}

fn message(url: &str) -> Message {
    Message {
        id: "0192f3a0-1111-7222-8333-444455556666".into(),
        key: Some(Key::from("customer-4711")),
        pool: None,
        target: url.into(),
        mediation_type: "HTTP".into(),
        auth_token: Some("a-token-of-some-length".into()),
        tenant: None,
        payload: payload(),
        content_type: "application/json".into(),
        headers: Vec::new(),
    }
}

fn attempt() -> Attempt {
    let pool = PoolPlan {
        concurrency: NonZeroUsize::new(100),
        ..PoolPlan::default()
    };
    Attempt {
        identity: Identity {
            source: "s".into(),
            id: BrokerId::Sequence(1),
        },
        number: 1,
        round: 0,
        pool: "mail".into(),
        position: Some(123_456),
        slot: 0,
        timeout: pool.timeout,
        targets: Arc::new(Targets::Any),
        secrets: Secrets::default(),
        lease: None,
    }
}
