//! Panics of tasks: a result, a counter, and nothing else.

use keylane::{Executor, Permits, Policy, Status, TaskError, blocking};

use crate::support::{Door, MS, assert_nothing_left, executor, settle, word};

fn message<K>(result: &keylane::TaskResult<K, ()>) -> Option<&str> {
    match &result.status {
        Status::Failed(TaskError::Panicked(message)) => Some(message),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_result_at_the_first_poll_and_at_a_later_one() {
    let executor = Executor::builder().concurrency(1).build().unwrap();
    let first = executor.submit("a", async { panic!("at once") }).await;
    assert_eq!(message(&first), Some("at once"));
    let later = executor.submit("a", async {
        tokio::task::yield_now().await;
        panic!("later {}", 2)
    });
    assert_eq!(message(&later.await), Some("later 2"));
    let work = executor.submit("a", blocking(|| panic!("blocking"))).await;
    assert_eq!(message(&work), Some("blocking"));
    let odd = executor
        .submit("a", async { std::panic::panic_any(7) })
        .await;
    assert_eq!(message(&odd), Some("a panic without a message"));
    assert_eq!((executor.stats().panics, executor.stats().failed), (4, 4));
    assert!(executor.submit("a", async {}).await.is_done());
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn a_posted_task_that_panics_is_counted_and_its_lane_goes_on() {
    let executor = executor();
    executor.post("a", async { panic!("posted") }).unwrap();
    assert!(executor.submit("a", async {}).await.is_done());
    assert_eq!(executor.stats().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_run_task_that_panics_fails_and_does_not_harm_the_caller() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .build()
        .unwrap();
    executor.submit("a", tokio::task::yield_now());
    let called = executor.submit("a", async { panic!("called") });
    assert_eq!(message(&called.await), Some("called"));
    assert_eq!(executor.stats().panics, 1);
    assert_nothing_left(&executor);
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

/// A task that ends at once but whose remains panic when they are dropped.
struct Remains {
    _bomb: Bomb,
    polls: usize,
}

impl Future for Remains {
    type Output = ();

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        if self.polls == 0 {
            return std::task::Poll::Ready(());
        }
        self.polls -= 1;
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}

fn remains(polls: usize) -> Remains {
    Remains { _bomb: Bomb, polls }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_while_it_is_dropped_holds_nothing_up() {
    let permits = Permits::new(1);
    let executor = Executor::builder()
        .shared_permits(permits.clone())
        .build()
        .unwrap();
    for polls in [0, 1, 3] {
        assert!(executor.submit("a", remains(polls)).await.is_done());
        executor.post("a", remains(polls)).unwrap();
        executor.all_idle().await;
    }
    assert_eq!(executor.stats().panics, 6);
    assert_eq!(permits.in_use(), 0);
    assert!(executor.submit("a", async {}).await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_while_it_is_stopped_or_thrown_out_holds_nothing_up() {
    let executor = executor();
    let cancelled = executor.submit("a", remains(usize::MAX));
    let waiting = executor.submit("a", remains(0));
    let evicted = executor.submit("a", remains(0));
    settle().await;
    assert!(waiting.cancel());
    executor.evict(&"a");
    assert!(cancelled.cancel());
    for handle in [cancelled, waiting, evicted] {
        assert_eq!(word(&handle.await), "cancelled");
    }
    let stopped = executor.submit("b", remains(usize::MAX));
    settle().await;
    executor.shutdown_key(&"b", keylane::Mode::Now);
    assert_eq!(word(&stopped.await), "cancelled");
    assert_nothing_left(&executor);
    assert_eq!(executor.stats().panics, 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_caller_run_task_may_panic_and_does_not_harm_the_caller() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .build()
        .unwrap();
    for polls in [0, 1] {
        executor.submit("a", tokio::task::yield_now());
        let called = tokio::spawn(executor.submit("a", remains(polls)));
        let result = called.await.expect("the caller is not harmed");
        assert_eq!(word(&result), "done");
    }
    assert_eq!(executor.stats().panics, 2);
    assert_nothing_left(&executor);
}

/// Panics when it is dropped, with something that does so too.
struct BombOfBombs;

impl Drop for BombOfBombs {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(Bomb);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_that_panics_again_when_it_is_dropped_holds_nothing_up() {
    let executor = executor();
    let bomb = executor.submit("a", async { std::panic::panic_any(Bomb) });
    let bombs = executor.submit("a", async { std::panic::panic_any(BombOfBombs) });
    let after = executor.submit("a", async {});
    let mut words = Vec::new();
    for mut handle in [bomb, bombs, after] {
        words.push(word(&handle.wait_timeout(MS).await));
    }
    assert_eq!(words, ["failed", "failed", "done"]);
    assert_eq!(executor.stats().panics, 2);
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_panics_while_it_is_dropped_holds_nothing_up() {
    let executor = executor();
    executor.post("a", async { Bomb }).unwrap();
    assert!(executor.submit("a", async {}).await.is_done());
    assert_eq!(executor.stats().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_function_about_a_key_costs_nobody_a_permit() {
    let executor = Executor::builder()
        .concurrency(2)
        .queue_limit_per_key(1)
        .lane_concurrency_by(|_: &&str| panic!("limits"))
        .per_key_rate_by(|_| panic!("rate"))
        .build()
        .unwrap();
    let door = Door::closed();
    for key in ["a", "b"] {
        executor.submit(key, door.passes(()));
    }
    door.reached().await;
    door.reached().await;
    door.let_in(2);
    executor.all_idle().await;
    assert_nothing_left(&executor);
}
