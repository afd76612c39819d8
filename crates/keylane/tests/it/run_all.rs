//! What becomes of tasks that were submitted together when nobody waits for them any more.

use keylane::{Executor, Policy};

use crate::support::{Door, MS, executor};

#[tokio::test(start_paused = true)]
async fn what_a_dropped_run_all_has_submitted_goes_on() {
    let executor = executor();
    let door = Door::closed();
    let all = executor.run_all([("a", door.passes(())), ("b", door.passes(()))]);
    assert!(tokio::time::timeout(MS, all.into_future()).await.is_err());
    door.let_in(2);
    executor.all_idle().await;
    let stats = executor.stats();
    assert_eq!((stats.done, stats.cancelled), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_run_all_was_to_run_itself_is_cancelled() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .build()
        .unwrap();
    let door = Door::closed();
    let all = executor.run_all([("a", door.passes(())), ("a", door.passes(()))]);
    assert!(tokio::time::timeout(MS, all.into_future()).await.is_err());
    door.let_in(2);
    let idle = tokio::time::timeout(MS, executor.all_idle());
    idle.await.expect("its lane waits for nobody");
    let stats = executor.stats();
    assert_eq!((stats.done, stats.cancelled), (1, 1));
}
