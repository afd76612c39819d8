//! A fault of the network or the target, whatever it is, loses nothing and lets nothing overtake.
//!
//! Each test runs the whole router against a target behind the fault proxy, or against a target
//! that breaks HTTP, with the history checker on.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::Router;
use keylane_router::dispatch::{Attempt, Dispatch, HttpDispatch, HttpOptions, Root};
use keylane_router::embedded::{Db, Options};
use keylane_router::history::{self, By, Event, EventKind, Recorder};
use keylane_router::message::Message;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Keyless, Plan, SourceKind, SourcePlan};
use keylane_router::testing::{
    Accept, Answer, End, Fault, Proxy, RawAnswer, RawTarget, Request, Step, Target, Way, fixed,
};

use crate::certificate::Front;

use super::top::{SharedRecorder, message, quick_plan, until};

const KEYS: usize = 8;
const EACH: u64 = 4;

/// Writes down what the router saw of each attempt: that it gave up, or never heard the answer.
/// The target's own line may come later, or say "delivered".
struct Noting {
    http: HttpDispatch,
    history: Arc<Recorder>,
}

impl Dispatch for Noting {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let outcome = self.http.attempt(message, attempt).await;
        if let Outcome::Failed(reason) = &outcome {
            let kind = match &*reason.class {
                "timeout" => EventKind::Timeout,
                _ => EventKind::Cut,
            };
            let line = Event::new(kind, By::Router).id(message.id.clone());
            self.history.record(line.attempt(attempt.number)).unwrap();
        }
        outcome
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        self.http.origin(target)
    }

    fn source_added(&self, name: &Arc<str>, kind: &SourceKind) {
        self.http.source_added(name, kind);
    }
}

/// A router with an embedded queue and a history; what it calls comes from the test.
struct Rig {
    _folder: tempfile::TempDir,
    db: Db,
    router: Router,
    history: Arc<Recorder>,
}

/// Limits so short that a fault which has to be waited for is soon over.
const SHORT: Duration = Duration::from_millis(150);
/// Limits so long that no fault is taken for a timeout on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn plan(limit: Duration) -> Plan {
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.concurrency = NonZeroUsize::new(4);
    pool.timeout.connect = limit;
    pool.timeout.first_byte = limit;
    pool.timeout.idle_body = limit;
    pool.timeout.total = 3 * limit;
    plan
}

impl Rig {
    async fn new(history: Arc<Recorder>, limit: Duration, roots: Vec<Root>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Options::default()).unwrap();
        let source = db.source("default", "default", Keyless::Serial).await;
        let mut plan = plan(limit);
        plan.sources
            .insert("default".into(), SourcePlan::embedded("default"));
        let dispatch = Noting {
            http: HttpDispatch::new(HttpOptions {
                extra_roots: roots,
                ..HttpOptions::default()
            }),
            history: history.clone(),
        };
        let router = Router::builder()
            .plan(plan)
            .store(db.store())
            .history(history.clone())
            .dispatch(dispatch)
            .source("default", source.unwrap())
            .start()
            .await
            .unwrap();
        Self {
            _folder: folder,
            db,
            router,
            history,
        }
    }

    /// Publishes some messages of some keys, waits until all are delivered, and checks.
    async fn delivers_to(&self, url: &str) -> history::Report {
        for n in 0..EACH {
            let keys = (0..KEYS).map(|key| format!("key-{key}"));
            let mut batch = Vec::new();
            for key in keys {
                let line = Event::of(key.as_str(), n, EventKind::Publish, By::Producer);
                self.history.record(line.id(format!("{key}-{n}"))).unwrap();
                batch.push(message(url, &key, n));
            }
            self.db.publish("default", batch, true).await.unwrap();
        }
        until("the queue is empty", || {
            self.db.queues().iter().all(|queue| queue.depth == 0)
        })
        .await;
        self.router.stop(Duration::from_secs(5)).await;
        let mut history = history::History::default();
        for event in self.history.events() {
            history.push(&event);
        }
        let report = history::check(history, &history::Options::default());
        assert!(report.is_green(), "{report:?}");
        assert_eq!(report.counts.published, EACH * KEYS as u64);
        assert_eq!(report.counts.delivered, EACH * KEYS as u64, "{report:?}");
        report
    }
}

/// A good target behind a proxy with this fault on two connections of three.
async fn behind(fault: Fault) -> history::Report {
    behind_with(fault, Answer::ok().body("{\"ack\":true}")).await
}

async fn behind_with(fault: Fault, answer: Answer) -> history::Report {
    let history = Arc::new(Recorder::in_memory());
    let target = Target::start_with(fixed(answer), SharedRecorder(history.clone())).await;
    let proxy = Proxy::start(target.address()).await;
    let used = two_of_three(&proxy, fault);
    let rig = Rig::new(history, SHORT, Vec::new()).await;
    let report = rig.delivers_to(&proxy.url("/")).await;
    assert!(used.load(Ordering::Relaxed) > 0, "the fault was never used");
    report
}

/// The same over TLS.
async fn behind_tls(fault: Fault) {
    let history = Arc::new(Recorder::in_memory());
    let recorder = SharedRecorder(history.clone());
    let target = Target::start_with(fixed(Answer::ok()), recorder).await;
    let front = Front::of(target.address()).await;
    let proxy = Proxy::start(front.address).await;
    let used = two_of_three(&proxy, fault);
    let rig = Rig::new(history, SHORT, front.roots.clone()).await;
    let url = format!("https://localhost:{}/", proxy.address().port());
    rig.delivers_to(&url).await;
    assert!(used.load(Ordering::Relaxed) > 0, "the fault was never used");
}

fn two_of_three(proxy: &Proxy, fault: Fault) -> Arc<AtomicU64> {
    let used = Arc::new(AtomicU64::new(0));
    let counted = used.clone();
    proxy.choose(move |number| match number % 3 {
        2 => Fault::none(),
        _ => {
            counted.fetch_add(1, Ordering::Relaxed);
            fault.clone()
        }
    });
    used
}

/// A target that answers the first attempt of every message so, and the others well.
async fn first_answer(answer: RawAnswer, limit: Duration) -> history::Report {
    let history = Arc::new(Recorder::in_memory());
    let recorder = Arc::new(SharedRecorder(history.clone()));
    let behaviour = move |request: &Request| match request.attempt {
        1 => answer.clone(),
        _ => RawAnswer::ok(),
    };
    let target = RawTarget::start(behaviour, recorder).await;
    let rig = Rig::new(history, limit, Vec::new()).await;
    rig.delivers_to(&target.url("/")).await
}

/// As [`first_answer`]; every first attempt must have failed.
async fn first_fails(steps: Vec<Step>) {
    let report = first_answer(RawAnswer::failing(steps), LONG).await;
    assert_eq!(report.counts.attempts, 2 * EACH * KEYS as u64, "{report:?}");
}

/// As [`first_answer`]; every first attempt must have delivered.
async fn first_delivers(steps: Vec<Step>) {
    let report = first_answer(RawAnswer::delivered(steps), LONG).await;
    assert_eq!(report.counts.attempts, EACH * KEYS as u64, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_closed_reset_or_ignored_lose_nothing() {
    for accept in [Accept::Close, Accept::Reset, Accept::Ignore] {
        behind(Fault::accept(accept)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_cut_in_the_middle_lose_nothing() {
    for end in [End::Cut, End::Reset, End::HalfClose, End::Stall] {
        behind(Fault::up(Way::ends(100, end))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_cut_in_the_middle_lose_nothing() {
    for end in [End::Cut, End::Reset, End::HalfClose, End::Stall] {
        // Before the answer, in its head, in its body.
        for after in [0, 10, 120] {
            behind(Fault::down(Way::ends(after, end))).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_networks_lose_nothing() {
    let slowly = Way {
        delay: Duration::from_millis(10),
        ..Way::default()
    };
    behind(Fault {
        up: slowly.clone(),
        down: slowly,
        ..Fault::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byte_by_byte_loses_nothing() {
    behind(Fault {
        up: Way::trickles(1, Duration::ZERO),
        down: Way::trickles(1, Duration::ZERO),
        ..Fault::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_too_slowly_lose_nothing() {
    // A hundred bytes: half a second, the limit is less.
    behind(Fault::down(Way::trickles(1, Duration::from_millis(5)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_after_our_timeout_lose_nothing() {
    let late = RawAnswer::failing([
        Step::Wait(2 * SHORT),
        Step::send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ]);
    let report = first_answer(late, SHORT).await;
    assert!(report.counts.attempts >= 2 * EACH * KEYS as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_delivers_and_whose_answer_is_lost_is_called_again_for_a_reason() {
    // The target says "delivered" in its history; the router never hears it.
    let fault = Fault::down(Way::ends(0, End::Cut));
    let report = behind_with(fault, Answer::ok()).await;
    assert!(report.counts.attempts > report.counts.delivered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_connections_lose_nothing() {
    first_fails(vec![Step::HalfClose, Step::Hang]).await;
    first_delivers(vec![
        Step::send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        Step::HalfClose,
        Step::Hang,
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_without_end_lose_nothing() {
    first_fails(vec![
        Step::send("HTTP/1.1 200 OK\r\n"),
        Step::Forever(Bytes::from_static(b"x-filler: yyyyyyyyyyyyyyyyyyyy\r\n")),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_without_end_are_left_and_their_status_counts() {
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    let endless = Step::Forever(chunk.into());
    first_delivers(vec![
        Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        endless.clone(),
    ])
    .await;
    first_fails(vec![
        Step::send("HTTP/1.1 500 Oh\r\ntransfer-encoding: chunked\r\n\r\n"),
        endless,
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gzip_bomb_is_a_body_like_any_other() {
    let bomb = crate::bomb::gzip(32 << 20);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        bomb.len()
    );
    first_delivers(vec![Step::Send(head.into()), Step::Send(bomb.into())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_an_answer_loses_nothing() {
    first_fails(vec![Step::send("\u{16}\u{3}\u{1}garbage\r\n\r\n")]).await;
    first_fails(vec![Step::Reset]).await;
    first_fails(vec![Step::send(
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
    )])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_before_the_answer_loses_nothing() {
    behind(Fault::down(Way::garbage(
        &b"\x15\x03\x01\x00\x02\x02\x28"[..],
    )))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_cut_again_and_again_loses_nothing() {
    let history = Arc::new(Recorder::in_memory());
    let answer = Answer::ok().after(Duration::from_millis(2));
    let target = Target::start_with(fixed(answer), SharedRecorder(history.clone())).await;
    let proxy = Arc::new(Proxy::start(target.address()).await);
    let rig = Rig::new(history, LONG, Vec::new()).await;
    let url = proxy.url("/");
    let delivered = rig.delivers_to(&url);
    let cuts = async {
        let mut every = tokio::time::interval(Duration::from_millis(7));
        loop {
            every.tick().await;
            proxy.cut_all();
        }
    };
    tokio::select! {
        _ = delivered => {}
        () = cuts => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_garbage_loses_nothing() {
    let random: Vec<u8> = (0..4000_u32).map(|n| (n * n % 251) as u8).collect();
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        // An alert: the handshake failed.
        b"\x15\x03\x01\x00\x02\x02\x28",
        // A record that says it is larger than any may be.
        b"\x16\x03\x03\xff\xff",
        &random,
    ] {
        behind_tls(Fault::down(Way::garbage(garbage.to_vec()))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_cut_in_its_handshake_or_after_loses_nothing() {
    for after in [0, 3, 200, 1200] {
        for end in [End::Cut, End::Stall] {
            behind_tls(Fault::down(Way::ends(after, end))).await;
        }
    }
    behind_tls(Fault::up(Way::ends(100, End::Reset))).await;
}
