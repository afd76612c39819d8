//! How fast the embedded queue publishes, claims and acks, every commit synced; and that a claim
//! costs the same whatever waits in the queue.
//!
//! `cargo bench -p keylane-router --bench embedded [-- quick]`

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use keylane_router::embedded::{Db, NewMessage, Options, Receipt};
use keylane_router::message::Key;
use keylane_router::plan::Keyless;
use keylane_router::source::{Received, Room, Settler, Source};

const BODY: usize = 300;
const ROOM: Room = Room::new(1000, 64 << 20);

fn main() {
    let quick = std::env::args().any(|argument| argument == "quick");
    let scale = if quick { 10 } else { 1 };
    println!(
        "bodies of {BODY} bytes, synchronous=FULL, one file in {}",
        std::env::temp_dir().display()
    );
    floor();
    run(publish_batches(200_000 / scale, 100, 4));
    run(publish_batches(30_000 / scale, 1, 64));
    run(publish_batches(3_000 / scale, 1, 1));
    let base = run(claims("10 k waiting, 1,000 keys", 0, 10_000, 1000));
    let deep = run(claims(
        "1 M waiting, 1,000 keys",
        0,
        1_000_000 / scale,
        1000,
    ));
    let many = run(claims(
        "1 M waiting, each its own key",
        0,
        1_000_000 / scale,
        1_000_000,
    ));
    let stuck = run(claims(
        "1 M waiting behind 1 M of a stuck key",
        1_000_000 / scale,
        1_000_000 / scale,
        1000,
    ));
    let mixed = run(stuck_between(1_000_000 / scale));
    let hot = run(claims("100 k waiting, one key", 0, 100_000 / scale, 1));
    for (name, rate) in [
        ("1 M", deep),
        ("1 M keys", many),
        ("stuck in front", stuck),
        ("stuck in between", mixed),
        ("one key", hot),
    ] {
        println!("ratio to 10 k: {name:<18} {:.2}", rate / base);
    }
}

fn run<T>(bench: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(bench)
}

/// What one sync costs here: the floor under everything.
fn floor() {
    let mut file = tempfile::tempfile().expect("a file");
    let begin = Instant::now();
    for _ in 0..200 {
        std::io::Write::write_all(&mut file, &[0; 4096]).expect("writes");
        file.sync_data().expect("syncs");
    }
    println!(
        "floor: one 4 KiB append and sync takes {:?}",
        begin.elapsed() / 200
    );
}

fn open(folder: &Path) -> Db {
    Db::open(folder, Options::default()).expect("opens")
}

fn message(n: usize, key: usize) -> NewMessage {
    let mut body = n.to_string().into_bytes();
    body.resize(BODY, b'.');
    NewMessage::new(n.to_string(), Some(Key::new(format!("key-{key}"))), body)
}

async fn publish_batches(messages: usize, batch: usize, publishers: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path());
    db.source("s", "q", Keyless::Serial).await.expect("a queue");
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let each = messages / publishers;
    for publisher in 0..publishers {
        let db = db.clone();
        tasks.spawn(async move {
            let mut slowest = Duration::ZERO;
            for start in (0..each).step_by(batch) {
                let numbers = (start..start + batch).map(|n| publisher * each + n);
                let request = numbers.map(|n| message(n, n % 1000)).collect();
                let asked = Instant::now();
                db.publish("q", request, false).await.expect("published");
                slowest = slowest.max(asked.elapsed());
            }
            slowest
        });
    }
    let slowest = tasks.join_all().await.into_iter().max().unwrap_or_default();
    let rate = messages as f64 / begin.elapsed().as_secs_f64();
    println!(
        "publish {batch:>4} per request, {publishers:>2} publishers: {rate:>9.0}/s, slowest answer {slowest:?}"
    );
    db.close().await;
}

async fn fill(db: &Db, from: usize, count: usize, key: impl Fn(usize) -> usize) {
    for start in (from..from + count).step_by(5000) {
        let end = (start + 5000).min(from + count);
        let request = (start..end).map(|n| message(n, key(n))).collect();
        db.publish("q", request, true).await.expect("published");
    }
}

const STUCK: usize = usize::MAX;

/// `stuck` messages of a key whose first is never settled, then `waiting` ones of others.
async fn claims(name: &str, stuck: usize, waiting: usize, keys: usize) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path());
    fill(&db, 0, stuck, |_| STUCK).await;
    fill(&db, stuck, waiting, |n| n % keys).await;
    measure(name, db, folder.path(), if stuck > 0 { 1 } else { 0 }).await
}

/// Every second message is one of a stuck key: nothing of it is in one piece.
async fn stuck_between(each: usize) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path());
    fill(&db, 0, 2 * each, |n| {
        if n % 2 == 0 { STUCK } else { n / 2 % 1000 }
    })
    .await;
    measure(
        "1 M waiting between 1 M of a stuck key",
        db,
        folder.path(),
        1,
    )
    .await
}

async fn measure(name: &str, db: Db, folder: &Path, stuck: usize) -> f64 {
    db.close().await;
    let opening = Instant::now();
    let db = open(folder);
    let opening = opening.elapsed();
    let mut source = db
        .source("s", "q", Keyless::Serial)
        .await
        .expect("a source");
    let settler = source.settler();
    if stuck > 0 {
        // The stuck key's head goes out and stays out.
        let one = Room {
            messages: 1,
            ..ROOM
        };
        source.receive(one).await.expect("receives");
    }
    let begin = Instant::now();
    let (mut first, mut slowest, mut done) = (None, Duration::ZERO, 0);
    let mut acks = tokio::task::JoinSet::new();
    while done < 100_000 && (db.queues()[0].depth as usize) > 1000 + db.queues()[0].out {
        let asked = Instant::now();
        let received = source.receive(ROOM).await.expect("receives");
        first.get_or_insert(begin.elapsed());
        slowest = slowest.max(asked.elapsed());
        done += received.len();
        let (settler, receipts) = (settler.clone(), receipts(&received));
        acks.spawn(async move { settler.ack(receipts).await });
        if acks.len() > 2 {
            acks.join_next().await;
        }
        if begin.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    acks.join_all().await;
    let took = begin.elapsed();
    let rate = done as f64 / took.as_secs_f64();
    // Without the first receive, whose cursor has to pass what is stuck in front.
    let steady = done as f64 / (took - first.unwrap_or_default()).as_secs_f64();
    println!(
        "claim+ack, {name}: {steady:.0}/s ({rate:.0}/s with the first receive, {:?}), slowest receive {slowest:?}, open {opening:?}",
        first.unwrap_or_default()
    );
    db.close().await;
    steady
}

fn receipts(received: &[Received<Receipt>]) -> Vec<Receipt> {
    received.iter().map(|message| message.receipt).collect()
}
