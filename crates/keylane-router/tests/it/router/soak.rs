//! R9: whatever comes, the memory stays within the pool's byte budget and 64 MiB.
//!
//! `KEYLANE_SOAK=20000 cargo test -p keylane-router --test it soak` sends twenty thousand messages
//! of 1 MiB each.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::embedded::{Db, Options};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::OnExhausted;

use super::broker::{Broker, Sent, window};
use super::top::quick_plan;

const FOLDER: &str = "KEYLANE_TEST_FOLDER";
const BUDGET: u64 = 32 << 20;
/// With its envelope it is just below `max_message`.
const BODY: usize = (1 << 20) - 1024;
const KEYS: u64 = 60;

fn messages() -> u64 {
    let asked = std::env::var("KEYLANE_SOAK").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// A third of the keys fail a few times, some are slow. Until something was spilled, a sixth fails for
/// good: together these are more than the budget, so that it comes to that however slow the machine is.
struct Target {
    spilled: Arc<AtomicBool>,
}

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let key: u64 = message.id.split_once('/').unwrap().0.parse().unwrap();
        match key % 6 {
            0 if attempt.number <= 4 || !self.spilled.load(Ordering::Relaxed) => {
                return Outcome::Failed(Reason::default());
            }
            1 if attempt.number <= 2 => return Outcome::Failed(Reason::default()),
            2 => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        Outcome::Delivered
    }
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn the_process_that_is_weighed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(deliver_all(Path::new(&folder)));
    println!("peak {}", peak());
}

async fn deliver_all(folder: &Path) {
    let db = Db::open(folder.join("data"), Options::default()).unwrap();
    let broker = Broker::default();
    let all = messages();
    broker.publish((0..all).map(|n| Sent {
        key: Some((n * 7919 % KEYS).to_string()),
        n,
        bytes: BODY,
    }));
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.byte_budget = BUDGET;
    pool.on_exhausted = OnExhausted::Block;
    pool.retry.initial = Duration::from_millis(100);
    pool.retry.max = Duration::from_millis(500);
    pool.retry.max_attempts = NonZeroUsize::new(10).unwrap();
    plan.sources.insert("s".into(), window(1000));
    let builder = Router::builder().plan(plan).store(db.store());
    let spilled = Arc::new(AtomicBool::new(false));
    let target = Target {
        spilled: spilled.clone(),
    };
    let builder = builder.dispatch(target).source("s", broker.source("s"));
    let router = builder.start().await.unwrap();
    let counters = router.counters().of(&"s".into(), &"default".into());
    // As long as it takes: what is measured is memory.
    while counters.delivered.get() < all {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(router.pools()[0].bytes <= BUDGET);
        spilled.store(counters.spilled.get() > 0, Ordering::Relaxed);
    }
    println!("spilled {}", counters.spilled.get());
    router.stop(Duration::from_secs(5)).await;
    db.close().await;
}

/// The most memory the process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

#[cfg(target_os = "linux")]
#[test]
fn memory_stays_within_the_budget_and_64_mib_with_bodies_of_1_mib() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "router::soak::the_process_that_is_weighed"])
        .args(["--ignored", "--nocapture"])
        // As the program `keylane` runs: large bodies go back to the system when they are freed. What
        // is weighed is what the router holds, not what the C library keeps for later.
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let of = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    let (peak, spilled) = (of("peak"), of("spilled"));
    println!("peak {} MiB, {spilled} spilled", peak >> 20);
    assert!(spilled > 0, "{text}");
    assert!(peak < BUDGET + (64 << 20), "{} MiB", peak >> 20);
}
