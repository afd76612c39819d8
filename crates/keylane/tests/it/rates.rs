//! How often tasks start.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Executor, Limits, Rate};
use tokio::time::Instant;

use crate::support::{Door, MS, assert_nothing_left, executor, settle};

/// When each task started, since the start of the test.
#[derive(Clone)]
struct Starts {
    since: Instant,
    at: Arc<Mutex<Vec<u128>>>,
}

impl Starts {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            at: Arc::default(),
        }
    }

    fn task(&self) -> impl Future<Output = ()> + Send + use<> + 'static {
        let starts = self.clone();
        async move {
            let at = starts.since.elapsed().as_millis();
            starts.at.lock().unwrap().push(at);
        }
    }

    fn millis(&self) -> Vec<u128> {
        self.at.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_all_spreads_starts_over_all_keys() {
    let executor = Executor::builder()
        .rate(Rate::per_second(10))
        .build()
        .unwrap();
    let starts = Starts::new();
    executor
        .run_all((0..5).map(|key| (key, starts.task())))
        .await;
    assert_eq!(starts.millis(), [0, 100, 200, 300, 400]);
}

#[tokio::test(start_paused = true)]
async fn a_burst_comes_at_once_and_not_more_than_that() {
    let executor = Executor::builder()
        .rate(Rate::new(10, Duration::from_secs(1), 3))
        .build()
        .unwrap();
    let starts = Starts::new();
    executor
        .run_all((0..5).map(|key| (key, starts.task())))
        .await;
    assert_eq!(starts.millis(), [0, 0, 0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_a_key_holds_that_key_and_no_other() {
    let executor = Executor::builder()
        .per_key_rate_by(|key: &&str| (*key == "slow").then(|| Rate::per_second(10)))
        .build()
        .unwrap();
    let (slow, quick) = (Starts::new(), Starts::new());
    let tasks = (0..3).map(|_| ("slow", slow.task()));
    let others = (0..3).map(|_| ("quick", quick.task()));
    executor.run_all(tasks.chain(others)).await;
    assert_eq!(slow.millis(), [0, 100, 200]);
    assert_eq!(quick.millis(), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_keys_rate_outlives_its_lane_until_the_bucket_is_full() {
    let executor = Executor::builder()
        .per_key_rate(Rate::per_second(10))
        .build()
        .unwrap();
    let starts = Starts::new();
    executor.submit("a", starts.task()).await;
    assert_nothing_left(&executor);
    executor.submit("a", starts.task()).await;
    assert_eq!(starts.millis(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_rate_holds_no_permit() {
    let executor = Executor::builder()
        .concurrency(1)
        .per_key_rate_by(|key: &&str| (*key == "slow").then(|| Rate::per_second(1)))
        .build()
        .unwrap();
    let starts = Starts::new();
    executor.submit("slow", starts.task()).await;
    let waits = executor.submit("slow", starts.task());
    settle().await;
    assert!(executor.submit("quick", async {}).await.is_done());
    waits.await;
    assert_eq!(starts.millis(), [0, 1000]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_rate_acts_at_once() {
    let slow = Rate::new(1, Duration::from_secs(3600), 1);
    let executor = Executor::builder().rate(slow).build().unwrap();
    let starts = Starts::new();
    for key in 0..3 {
        executor.submit(key, starts.task());
    }
    settle().await;
    let rate = |rate| Limits {
        rate,
        ..executor.limits()
    };
    executor
        .set_limits(rate(Some(Rate::per_second(10))))
        .unwrap();
    executor.idle(&1).await;
    assert_eq!(starts.millis(), [0, 100]);
    executor.set_limits(rate(None)).unwrap();
    executor.all_idle().await;
    assert_eq!(starts.millis(), [0, 100, 100]);
}

#[tokio::test(start_paused = true)]
async fn asking_for_stats_spends_no_token() {
    let executor = Executor::builder()
        .rate(Rate::per_second(10))
        .build()
        .unwrap();
    let starts = Starts::new();
    let handles: Vec<_> = (0..3)
        .map(|key| executor.submit(key, starts.task()))
        .collect();
    for _ in 0..60 {
        executor.stats();
        executor.stats_of(&2);
        tokio::time::sleep(3 * MS).await;
    }
    for handle in handles {
        handle.await;
    }
    assert_eq!(starts.millis(), [0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn a_task_cancelled_while_it_waits_for_the_rate_spends_no_token() {
    let executor = Executor::builder()
        .rate(Rate::per_second(10))
        .build()
        .unwrap();
    let starts = Starts::new();
    executor.submit(0, starts.task());
    let cancelled = executor.submit(1, starts.task());
    let last = executor.submit(2, starts.task());
    settle().await;
    assert!(cancelled.cancel());
    last.await;
    assert_eq!(starts.millis(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn without_rates_and_holds_there_is_no_timer() {
    let executor = executor();
    let alive = tokio::runtime::Handle::current().metrics();
    let idle = alive.num_alive_tasks();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    executor.submit("a", async {});
    door.reached().await;
    tokio::time::sleep(10 * MS).await;
    assert_eq!(alive.num_alive_tasks(), idle + 1, "the running task alone");
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_one_in_decades_waits_that_long() {
    let years = Duration::from_secs(20 * 365 * 86_400);
    let rate = keylane::Rate::new(1, years, 1);
    let executor = Executor::builder().rate(rate).build().unwrap();
    let before = tokio::time::Instant::now();
    executor.submit("a", async {}).await;
    executor.submit("a", async {}).await;
    assert!(before.elapsed() >= years);
}
