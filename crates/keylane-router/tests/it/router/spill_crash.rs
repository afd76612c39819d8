//! R6: the process dies at each step of spilling and feeding, starts again on the same file, and
//! nothing is lost, nothing overtaken.
//!
//! The test runs its own program again, with `KEYLANE_FAULT` naming the step at which it dies.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::embedded::{Db, Options};
use keylane_router::history::{self, By, Event, EventKind, Recorder};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::OnExhausted;
use keylane_router::store::{LaneName, Store};
use std::num::NonZeroUsize;

use super::broker::{Broker, Sent, name, window};
use super::top::{quick_plan, until};

const FOLDER: &str = "KEYLANE_TEST_FOLDER";
/// The key `bad` fails for good and is parked; in the last run an operator replays it.
const PARKING: &str = "KEYLANE_TEST_PARKING";
const EACH: u64 = 12;
const CONCURRENCY: u64 = 4;

fn messages() -> Vec<Sent> {
    let keys = ["bad", "slow", "good", "bad"];
    let mut sent: Vec<Sent> = Vec::new();
    for _ in 0..EACH {
        for key in keys {
            let n = sent.iter().filter(|sent| sent.key.as_deref() == Some(key));
            let n = n.count() as u64 + 1;
            sent.push(Sent {
                key: Some(key.to_owned()),
                n,
                bytes: 10,
            });
        }
    }
    sent
}

/// Fails so many attempts of every message of `bad`, takes long with the first of `slow`.
struct Target {
    history: Arc<Recorder>,
    fails: u32,
}

impl Target {
    fn note(&self, message: &Message, attempt: u32, kind: EventKind, outcome: Option<&str>) {
        let (key, n) = message.id.split_once('/').unwrap();
        let mut event = Event::of(key, n.parse().unwrap(), kind, By::Target).attempt(attempt);
        if let Some(outcome) = outcome {
            event = event.outcome(outcome);
        }
        self.history.record(event.id(message.id.clone())).unwrap();
    }
}

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let number = attempt.number;
        self.note(message, number, EventKind::Start, None);
        if message.id.starts_with("bad/") && number <= self.fails {
            self.note(message, number, EventKind::End, Some("failed"));
            return Outcome::Failed(Reason::default());
        }
        if &*message.id == "slow/1" {
            // Longer than a full window is looked at: it is spilled while it runs.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        self.note(message, number, EventKind::End, Some("delivered"));
        Outcome::Delivered
    }
}

/// What runs in a process of its own, until all is delivered or it dies.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn the_process_that_dies() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(deliver_all(Path::new(&folder)));
}

async fn deliver_all(folder: &Path) {
    let db = Db::open(folder.join("data"), Options::default()).unwrap();
    let history = Arc::new(Recorder::to_file(folder.join("history")).unwrap());
    let broker = Broker::on_disk(&folder.join("acks"), messages());
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.concurrency = NonZeroUsize::new(CONCURRENCY as usize);
    pool.lane_capacity = NonZeroUsize::new(5).unwrap();
    pool.retry.max_attempts = NonZeroUsize::new(5).unwrap();
    plan.sources.insert("s".into(), window(8));
    let parking = std::env::var_os(PARKING).is_some();
    let last = std::env::var_os("KEYLANE_FAULT").is_none();
    if parking {
        pool.on_exhausted = OnExhausted::Park;
        pool.retry.max_attempts = NonZeroUsize::MIN;
    }
    let target = Target {
        history: history.clone(),
        fails: match (parking, last) {
            (false, _) => 2,
            (true, false) => u32::MAX,
            (true, true) => 0,
        },
    };
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .history(history)
        .dispatch(target)
        .source("s", broker.source("s"));
    let router = router.start().await.unwrap();
    if parking && last {
        let lane = LaneName::keyed("s", "default", "bad");
        let by = keylane_router::By {
            who: "test".to_owned(),
            why: "test".to_owned(),
        };
        router.replay(lane, by).await.unwrap();
    }
    until("all is delivered, or parked", || {
        broker.is_empty() && (parking && !last || db.store().parked().is_empty())
    })
    .await;
    router.stop(Duration::from_secs(5)).await;
    db.close().await;
}

fn run(folder: &Path, parking: bool, fault: Option<&str>) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "router::spill_crash::the_process_that_dies"])
        .args(["--ignored", "--test-threads", "1"])
        .env(FOLDER, folder)
        .env_remove("KEYLANE_FAULT");
    if parking {
        child.env(PARKING, "yes");
    }
    if let Some(fault) = fault {
        child.env("KEYLANE_FAULT", fault);
    }
    let output = child.output().unwrap();
    if fault.is_none() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
    }
    output.status
}

/// Dies at these steps, one after the other, then runs to the end.
fn dies_at(faults: &[&str]) {
    dies(false, faults);
}

/// Whether a step is reached is a matter of chance; that it can be is not.
fn dies(parking: bool, faults: &[&str]) {
    let reached = (0..20).any(|_| dies_once(parking, faults));
    assert!(reached, "{} was never reached", faults[0]);
}

/// `false` when the first step was not reached.
fn dies_once(parking: bool, faults: &[&str]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let recorder = Recorder::to_file(path.join("history")).unwrap();
    for sent in messages() {
        let key = sent.key.clone().unwrap();
        let line = Event::of(key, sent.n, EventKind::Publish, By::Producer);
        recorder.record(line.id(name(&sent))).unwrap();
    }
    for (place, fault) in faults.iter().enumerate() {
        let status = run(path, parking, Some(fault));
        if status.success() {
            // All was delivered, and nothing of it came by there.
            match place {
                0 => return false,
                _ => break,
            }
        }
        assert!(status.code().is_none(), "{fault}: {status}");
        for kind in [EventKind::Crash, EventKind::Restart] {
            recorder.record(Event::new(kind, By::Router)).unwrap();
        }
    }
    run(path, parking, None);
    let file = std::fs::File::open(path.join("history")).unwrap();
    let mut history = history::History::default();
    history.read(std::io::BufReader::new(file)).unwrap();
    let options = history::Options {
        max_duplicates_per_crash: Some(2 * CONCURRENCY),
        ..history::Options::default()
    };
    let report = history::check(history, &options);
    assert!(report.is_green(), "{faults:?}: {report:#?}");
    assert_eq!(report.counts.published, 4 * EACH);
    true
}

#[test]
fn it_dies_while_a_key_is_spilled() {
    for step in ["spill:taken", "spill:stored", "spill:acked"] {
        dies_at(&[step]);
        dies_at(&[&format!("{step}*3")]);
    }
}

#[test]
fn it_dies_while_what_arrives_goes_behind_a_parked_key() {
    for step in ["behind:taken", "behind:stored"] {
        dies(true, &[step]);
        dies(true, &[step, "settle:after*3", step]);
    }
}

#[test]
fn it_dies_while_the_source_is_told() {
    for step in ["settle:before", "settle:after"] {
        for nth in [1, 4, 9] {
            dies_at(&[&format!("{step}*{nth}")]);
        }
    }
}

#[test]
fn it_dies_while_a_key_is_fed() {
    for step in ["feed:read", "feed:pushed", "feed:resolved", "feed:removed"] {
        dies_at(&[step]);
        dies_at(&[&format!("{step}*4")]);
    }
}

#[test]
fn it_dies_again_and_again() {
    dies_at(&[
        "settle:before*2",
        "spill:stored",
        "feed:pushed*2",
        "spill:acked",
        "feed:resolved*2",
        "feed:removed",
    ]);
}
