//! What a listener hears, and that it balances.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane::{Decision, Executor, Listener, Mode, Policy, TaskError, TaskInfo, fallible};

use crate::support::{Door, MS, Record, one_worker, settle};

fn recorded() -> (Executor<&'static str>, Record) {
    let record = Record::default();
    let executor = Executor::builder()
        .listener(record.clone())
        .build()
        .unwrap();
    (executor, record)
}

// GC-22
#[tokio::test(start_paused = true)]
async fn each_task_is_submitted_started_and_completed_once() {
    let (executor, record) = recorded();
    let nap = async { tokio::time::sleep(3 * MS).await };
    executor.task("a").id("1").submit(nap).await;
    let fails = fallible(async { Err::<(), _>("no") });
    executor.task("a").id("2").submit(fails).await;
    executor.post("b", async {}).unwrap();
    executor.all_idle().await;
    let expected = [
        "submitted a 1",
        "started a 1 0ns",
        "completed a 1 well 3ms",
        "submitted a 2",
        "started a 2 0ns",
        "completed a 2 (no) 0ns",
        "submitted b -",
        "started b - 0ns",
        "completed b - well 0ns",
    ];
    assert_eq!(record.lines(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_or_panics_is_completed_with_its_error() {
    let (executor, record) = recorded();
    let fails = fallible(async { Err::<(), _>("the disk is full") });
    executor.task("a").id("1").submit(fails).await;
    let panics = async { panic!("out of paper") };
    executor.task("a").id("2").submit(panics).await;
    executor.post("b", async { panic!("posted") }).unwrap();
    executor.all_idle().await;
    let mut ends = record.lines();
    ends.retain(|line| line.starts_with("completed"));
    let expected = [
        "completed a 1 (the disk is full) 0ns",
        "completed a 2 (the task panicked: out of paper) 0ns",
        "completed b - (the task panicked: posted) 0ns",
    ];
    assert_eq!(ends, expected);
}

struct Panics;

impl Listener<&'static str> for Panics {
    fn submitted(&self, _: &TaskInfo<&'static str>) {
        panic!("submitted");
    }

    fn started(&self, _: &TaskInfo<&'static str>, _: Duration) {
        panic!("started");
    }

    fn completed(&self, _: &TaskInfo<&'static str>, _: Result<(), &TaskError>, _: Duration) {
        panic!("completed");
    }

    fn cancelled(&self, _: &TaskInfo<&'static str>, _: keylane::Why) {
        panic!("cancelled");
    }

    fn rejected(&self, _: &TaskInfo<&'static str>, _: &keylane::Reason) {
        panic!("rejected");
    }
}

// GC-23
#[tokio::test(start_paused = true)]
async fn a_panicking_listener_disturbs_nothing() {
    let executor = Executor::builder()
        .listener(Panics)
        .queue_limit_per_key(1)
        .build()
        .unwrap();
    let door = Door::closed();
    let first = executor.submit("a", door.passes(1));
    let second = executor.submit("a", async { 2 });
    assert!(executor.try_submit("a", async { 3 }).is_err());
    door.reached().await;
    second.cancel();
    let third = executor.submit("a", async { 3 });
    door.let_in(1);
    assert_eq!(first.await.ok(), Some(1));
    assert_eq!(third.await.ok(), Some(3));
    // 4 submitted, 2 started, 2 completed, 1 cancelled, 1 rejected.
    assert_eq!(executor.stats().panics, 10);
}

/// Calls the executor whenever it is told something.
#[derive(Clone, Default)]
struct Asks {
    executor: Arc<OnceLock<Executor<&'static str>>>,
    told: Arc<AtomicUsize>,
}

impl Asks {
    fn ask(&self) {
        let executor = self.executor.get().expect("set before the first submit");
        executor.stats();
        executor.stats_of(&"a");
        executor.pause(&"z");
        executor.resume(&"z");
        self.told.fetch_add(1, Ordering::SeqCst);
    }
}

impl Listener<&'static str> for Asks {
    fn submitted(&self, _: &TaskInfo<&'static str>) {
        self.ask();
    }

    fn started(&self, _: &TaskInfo<&'static str>, _: Duration) {
        self.ask();
    }

    fn completed(&self, _: &TaskInfo<&'static str>, _: Result<(), &TaskError>, _: Duration) {
        self.ask();
    }

    fn rejected(&self, _: &TaskInfo<&'static str>, _: &keylane::Reason) {
        self.ask();
    }

    fn cancelled(&self, _: &TaskInfo<&'static str>, _: keylane::Why) {
        self.ask();
    }
}

// Under a lock it would hang.
#[tokio::test(start_paused = true)]
async fn a_listener_may_call_the_executor() {
    let asks = Asks::default();
    let executor = Executor::builder()
        .queue_limit_per_key(1)
        .listener(asks.clone())
        .build()
        .unwrap();
    asks.executor.set(executor.clone()).unwrap();
    let door = Door::closed();
    let runs = executor.submit("a", door.passes(()));
    let waits = executor.submit("a", async {});
    executor.submit("a", async {}).await;
    door.reached().await;
    waits.cancel();
    let evicted = executor.submit("a", async {});
    executor.evict(&"a");
    assert!(evicted.is_done());
    door.let_in(1);
    assert!(runs.await.is_done());
    let stopped = executor.submit("a", std::future::pending::<()>());
    settle().await;
    executor.shutdown_key(&"a", Mode::Now);
    assert!(!stopped.await.is_done());
    // 5 submitted, 2 started, 1 completed, 1 rejected, 3 cancelled.
    assert_eq!(asks.told.load(Ordering::SeqCst), 12);
    assert_eq!(executor.stats().panics, 0);
}

// GC-45
#[tokio::test(start_paused = true)]
async fn a_rejection_names_key_task_and_reason_whatever_the_policy() {
    for policy in [Policy::Abort, Policy::Discard] {
        let record = Record::default();
        let executor = Executor::builder()
            .queue_limit_per_key(0)
            .on_reject(policy)
            .listener(record.clone())
            .build()
            .unwrap();
        let door = Door::closed();
        executor.submit("a", door.passes(()));
        executor.task("a").id("9").submit(async {}).await;
        let line = "rejected a 9 KeyFull { limit: 0 }";
        assert!(
            record.lines().iter().any(|seen| seen == line),
            "{:?}",
            record.lines()
        );
    }
}

// ≠ events balance: cancelled, drained, evicted, stopped
#[tokio::test(start_paused = true)]
async fn events_balance_for_cancelled_drained_evicted_and_stopped_tasks() {
    let (executor, record) = recorded();
    for key in ["cancel", "drain", "evict", "now", "drop"] {
        for _ in 0..3 {
            executor.submit(key, std::future::pending::<()>());
        }
    }
    settle().await;
    let cancelled = executor.submit("cancel", async {});
    assert!(cancelled.cancel());
    executor.shutdown_key(&"drain", Mode::Drain);
    executor.evict(&"evict");
    executor.shutdown_key(&"now", Mode::Now);
    settle().await;
    assert_eq!(record.count("rejected drain - Drained"), 2);
    assert_eq!(record.count("cancelled evict - KeyShutDown"), 2);
    assert_eq!(record.count("cancelled now - KeyShutDown"), 3);
    drop(executor);
    settle().await;
    record.assert_balanced(16);
    assert_eq!(record.count("cancelled drop - ShutDown"), 3);
    assert_eq!(record.count("started"), 5);
}

// ≠ events balance: caller-run, unlimited, decided by a handler, handed back, refused after the end
#[tokio::test(start_paused = true)]
async fn events_balance_for_tasks_without_room() {
    let record = Record::default();
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .listener(record.clone())
        .reject_with(|rejection| match rejection.id.as_deref() {
            Some("caller") => Decision::Follow(Policy::CallerRuns),
            Some("unlimited") => Decision::Follow(Policy::RunUnlimited),
            Some("value") => Decision::Value(Box::new(())),
            Some("fail") => Decision::Fail("no".into()),
            Some("panic") => panic!("handler"),
            _ => Decision::Follow(Policy::Abort),
        })
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    for id in ["unlimited", "value", "fail", "panic", "abort"] {
        executor.task("a").id(id).submit(async {}).await;
    }
    assert!(executor.try_submit("a", async {}).is_err());
    assert!(executor.post("a", async {}).is_err());
    let called = executor.task("a").id("caller").submit(async {});
    let never_awaited = executor.task("a").id("caller").submit(async {});
    door.let_in(1);
    called.await;
    drop(never_awaited);
    executor.shutdown(MS).await;
    executor.submit("a", async {}).await;
    record.assert_balanced(11);
    assert_eq!(record.count("started a caller"), 2);
}

// ≠ events balance: whatever runs or waits when the runtime goes
#[test]
fn events_balance_when_the_runtime_goes() {
    let record = Record::default();
    let runtime = one_worker();
    let executor = Executor::builder()
        .runtime(runtime.handle().clone())
        .listener(record.clone())
        .build()
        .unwrap();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(()));
    executor.submit("a", async {});
    runtime.block_on(door.reached());
    drop(runtime);
    drop(executor);
    assert_eq!(running.join().ok(), None);
    record.assert_balanced(2);
}

// Of what was taken at once, the first cancels the second.
#[tokio::test(start_paused = true)]
async fn a_task_that_was_cancelled_before_it_began_was_not_started() {
    let (executor, record) = recorded();
    for _ in 0..100 {
        // So that it knows of short ones, of which it takes several at a time.
        executor.submit("a", async {}).await;
    }
    let before = record.lines().len();
    let handle = Arc::new(OnceLock::<keylane::SharedHandle<_, ()>>::new());
    let cancels = handle.clone();
    executor.submit("a", async move { cancels.get().unwrap().cancel() });
    let second = executor.submit("b", async {}).shared();
    handle.set(second.clone()).unwrap();
    let result = second.await;
    assert_eq!(result.started, None);
    let mut lines = record.lines().split_off(before);
    lines.retain(|line| line.contains(" b "));
    assert_eq!(lines, ["submitted b -", "cancelled b - Asked"]);
}
