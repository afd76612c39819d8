//! Results that nobody takes.

use std::time::Duration;

use keylane::{Executor, Policy};

use crate::support::{executor, settle, word};

/// So long does only a failure wait.
const SOON: Duration = Duration::from_secs(5);

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_panics_while_it_is_dropped_holds_nothing_up() {
    let executor = executor();
    drop(executor.submit("a", async { Bomb }));
    let after = executor.submit("a", async {});
    let other = executor.submit("b", async {});
    let after = tokio::time::timeout(SOON, after).await.expect("a goes on");
    assert_eq!(word(&after), "done");
    assert_eq!(word(&other.await), "done");
    let idle = tokio::time::timeout(SOON, executor.all_idle()).await;
    idle.expect("nothing is left");
    assert_eq!(executor.stats().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_outside_the_limits_that_panics_while_it_is_dropped_is_counted() {
    let builder = Executor::builder().queue_limit_per_key(0);
    let executor = builder.on_reject(Policy::RunUnlimited).build().unwrap();
    executor.submit("a", std::future::pending::<()>());
    settle().await;
    drop(executor.submit("a", async { Bomb }));
    settle().await;
    assert_eq!(executor.stats().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_panics_spoils_no_other() {
    let executor = executor();
    for n in 0..2000 {
        // So that it knows of short ones, of which it takes several at a time.
        executor.post(["x", "y"][n % 2], async {}).unwrap();
    }
    executor.all_idle().await;
    drop(executor.submit("bomb", async { Bomb }));
    let handles = ["a", "b", "c", "d", "e", "f"].map(|key| executor.submit(key, async {}));
    for handle in handles {
        assert_eq!(word(&handle.await), "done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_panics_later_lets_its_key_go_on() {
    let executor = executor();
    let before = executor.submit("a", tokio::task::yield_now());
    drop(executor.submit("a", async {
        tokio::task::yield_now().await;
        Bomb
    }));
    let after = [0, 1].map(|_| executor.submit("a", tokio::task::yield_now()));
    assert_eq!(word(&before.await), "done");
    for handle in after {
        let result = tokio::time::timeout(SOON, handle).await;
        assert_eq!(result.map_or("hangs", |result| word(&result)), "done");
    }
    let idle = tokio::time::timeout(SOON, executor.all_idle()).await;
    idle.expect("nothing is left");
}
