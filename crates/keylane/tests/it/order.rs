//! In which order tasks run, and how long that takes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::Executor;
use tokio::time::Instant;

use crate::support::{Door, MS, Peak, assert_nothing_left, executor, settle, why, word};

async fn nap(time: Duration) {
    tokio::time::sleep(time).await;
}

// PL-7
#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_key_take_the_sum_of_their_times() {
    let executor = executor();
    let start = Instant::now();
    let both = [("a", nap(100 * MS)), ("a", nap(100 * MS))];
    executor.run_all(both).await;
    assert_eq!(start.elapsed(), 200 * MS);
}

// PL-9
#[tokio::test(start_paused = true)]
async fn two_tasks_of_two_keys_take_the_longer_time() {
    let executor = executor();
    let start = Instant::now();
    let both = [("a", nap(100 * MS)), ("b", nap(100 * MS))];
    executor.run_all(both).await;
    assert_eq!(start.elapsed(), 100 * MS);
}

// PL-10 and ≠ An idle group is freed by itself.
#[tokio::test(start_paused = true)]
async fn after_a_keys_last_task_nothing_of_it_remains_and_the_next_makes_it_anew() {
    let executor = executor();
    for round in 0..3 {
        assert_eq!(
            executor.submit("a", async move { round }).await.ok(),
            Some(round)
        );
        assert!(executor.stats_of(&"a").is_none());
        assert_nothing_left(&executor);
    }
}

// PL-11: one lane, however many tasks come while it is busy.
#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_that_come_faster_than_they_run_stay_in_one_lane_and_in_order() {
    let executor = executor();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut handles = Vec::new();
    for n in 0..100 {
        let seen = seen.clone();
        handles.push(executor.submit("a", async move {
            tokio::time::sleep(2 * MS).await;
            seen.lock().unwrap().push(n);
        }));
        assert_eq!(executor.stats().live_keys, 1);
        tokio::time::sleep(MS).await;
    }
    executor.all_idle().await;
    assert!(seen.lock().unwrap().is_sorted());
    assert_eq!(seen.lock().unwrap().len(), 100);
}

// PL-29
#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_of_one_key_take_a_hundred_times_as_long() {
    let executor = executor();
    let start = Instant::now();
    executor
        .run_all((0..100).map(|_| ("a", nap(10 * MS))))
        .await;
    assert_eq!(start.elapsed(), 1000 * MS);
}

// PL-30
#[tokio::test(start_paused = true)]
async fn a_hundred_keys_end_together() {
    let executor = Executor::builder().build().unwrap();
    let ends = executor
        .run_all((0..100).map(|key| {
            let task = async {
                tokio::time::sleep(80 * MS).await;
                Instant::now()
            };
            (key, task)
        }))
        .await;
    let ends: Vec<_> = ends.into_iter().filter_map(|result| result.ok()).collect();
    let apart = *ends.iter().max().unwrap() - *ends.iter().min().unwrap();
    assert!(ends.len() == 100 && apart < 32 * MS, "{apart:?} apart");
}

// PL-31: one at a time, nothing waits inside, whoever submits waits instead.
#[tokio::test(start_paused = true)]
async fn with_no_queue_those_who_wait_for_room_come_in_one_after_another() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(0)
        .queue_limit_per_key(0)
        .build()
        .unwrap();
    let peak = Peak::default();
    let mut last = None;
    for _ in 0..10 {
        last = Some(executor.submit_when_room("a", peak.sleeps(MS)).await);
    }
    assert!(last.unwrap().await.is_done());
    assert_eq!(peak.most(), 1);
}

// PL-27, PL-28
#[tokio::test(start_paused = true)]
async fn a_task_runs_with_a_key_and_without() {
    let executor = executor();
    let keyed = executor.submit("a", async { 1 }).await;
    assert_eq!((keyed.key, keyed.ok()), (Some("a"), Some(1)));
    let keyless = executor.keyless().submit(async { 2 }).await;
    assert_eq!((keyless.key, keyless.ok()), (None, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn keyless_tasks_are_in_nobodys_order_and_within_the_limit_of_all() {
    let executor = Executor::<u8>::builder().concurrency(3).build().unwrap();
    let peak = Peak::default();
    let handles: Vec<_> = (0..9)
        .map(|_| executor.keyless().submit(peak.sleeps(MS)))
        .collect();
    for handle in handles {
        assert!(handle.await.is_done());
    }
    assert_eq!(peak.most(), 3);
    assert_nothing_left(&executor);
}

// ≠ a failing message keeps its lane's order
#[tokio::test(start_paused = true)]
async fn a_failure_or_a_panic_changes_nothing_for_those_behind_it() {
    let executor = executor();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for n in 0..30 {
        let seen = seen.clone();
        executor.submit(
            "a",
            keylane::fallible(async move {
                tokio::task::yield_now().await;
                seen.lock().unwrap().push(n);
                assert!(n % 3 != 0, "every third panics");
                if n % 3 == 1 { Err("no") } else { Ok(()) }
            }),
        );
    }
    executor.all_idle().await;
    assert_eq!(*seen.lock().unwrap(), (0..30).collect::<Vec<_>>());
    let stats = executor.stats();
    assert_eq!((stats.done, stats.failed, stats.panics), (10, 20, 10));
}

// ≠ a slow topic never delays another
#[tokio::test(start_paused = true)]
async fn a_slow_key_never_delays_another() {
    let executor = Executor::builder().concurrency(2).build().unwrap();
    let door = Door::closed();
    for _ in 0..1000 {
        executor.submit("slow", door.passes(()));
    }
    door.reached().await;
    let start = Instant::now();
    executor.run_all((0..10).map(|_| ("quick", nap(MS)))).await;
    assert_eq!(start.elapsed(), 10 * MS);
}

// With N at once, first starts are in submit order (L1).
#[tokio::test(start_paused = true)]
async fn with_several_at_once_first_starts_are_in_submit_order() {
    let executor = Executor::builder().lane_concurrency(4).build().unwrap();
    let starts = Arc::new(Mutex::new(Vec::new()));
    for n in 0..200_u64 {
        let starts = starts.clone();
        executor.submit("a", async move {
            starts.lock().unwrap().push(n);
            tokio::time::sleep(Duration::from_millis(n * 7 % 5)).await;
        });
    }
    executor.all_idle().await;
    assert_eq!(*starts.lock().unwrap(), (0..200).collect::<Vec<_>>());
}

/// The numbers of tasks in the order of their first polls, each of which goes on `waits` times.
async fn first_polls(executor: &Executor<&'static str>, count: u64, waits: usize) -> Vec<u64> {
    let starts = Arc::new(Mutex::new(Vec::new()));
    for n in 0..count {
        let starts = starts.clone();
        let task = async move {
            starts.lock().unwrap().push(n);
            for _ in 0..waits {
                tokio::task::yield_now().await;
            }
        };
        executor.post("a", task).unwrap();
    }
    executor.all_idle().await;
    let starts = starts.lock().unwrap();
    starts.clone()
}

// L1, where several workers start and end tasks at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_several_at_once_first_polls_are_in_submit_order_whoever_polls() {
    let executor = Executor::builder().lane_concurrency(4).build().unwrap();
    for waits in [0, 1, 3] {
        let starts = first_polls(&executor, 20_000, waits).await;
        let wrong = starts.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert_eq!((wrong, starts.len()), (0, 20_000), "with {waits} waits");
    }
}

#[tokio::test(start_paused = true)]
async fn ready_keys_take_turns_of_the_configured_length() {
    for (turn, expected) in [(1, "ababab"), (2, "aabbab"), (3, "aaabbb")] {
        let executor = Executor::builder()
            .concurrency(1)
            .turn(turn)
            .build()
            .unwrap();
        let seen = Arc::new(Mutex::new(String::new()));
        let door = Door::closed();
        executor.submit("first", door.passes(()));
        door.reached().await;
        for key in ["a", "a", "a", "b", "b", "b"] {
            let seen = seen.clone();
            executor.submit(key, async move { seen.lock().unwrap().push_str(key) });
        }
        door.let_in(1);
        executor.all_idle().await;
        assert_eq!(*seen.lock().unwrap(), expected, "turn {turn}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_key_starts_nothing_and_goes_on_where_it_was() {
    let executor = executor();
    executor.pause(&"a");
    let first = executor.submit("a", async { 1 });
    let second = executor.submit("a", async { 2 });
    settle().await;
    assert_eq!(
        executor
            .stats_of(&"a")
            .map(|stats| (stats.running, stats.queued, stats.paused)),
        Some((0, 2, true))
    );
    assert!(executor.submit("b", async {}).await.is_done());
    assert!(executor.resume(&"a"));
    assert_eq!((first.await.ok(), second.await.ok()), (Some(1), Some(2)));
    assert!(!executor.resume(&"a"));
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn cancels_in_between_leave_the_order_of_the_others() {
    let executor = executor();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    let handles: Vec<_> = (0..50)
        .map(|n| {
            let seen = seen.clone();
            executor.submit("a", async move { seen.lock().unwrap().push(n) })
        })
        .collect();
    for handle in handles.iter().step_by(3) {
        assert!(handle.cancel_if_waiting());
    }
    door.let_in(1);
    for (n, handle) in handles.into_iter().enumerate() {
        let result = handle.await;
        let expected = if n % 3 == 0 { "cancelled" } else { "done" };
        assert_eq!(word(&result), expected);
        assert_eq!(why(&result).is_some(), n % 3 == 0);
    }
    let expected: Vec<_> = (0..50).filter(|n| n % 3 != 0).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

// All are taken in together, and no lane is there yet.
#[tokio::test(start_paused = true)]
async fn of_new_keys_submitted_by_turns_one_of_each_runs() {
    let executor = executor();
    for _ in 0..100 {
        // So that it knows of short ones, of which it takes several at a time.
        executor.submit("a", async {}).await;
    }
    let door = Door::closed();
    let submit = |key| executor.submit(key, door.passes(()));
    let handles = ["a", "b", "a", "c", "b", "a"].map(submit);
    settle().await;
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (3, 3, 3));
    door.let_in(6);
    for handle in handles {
        handle.await;
    }
    assert_nothing_left(&executor);
}

// PL: a slow topic never delays another, also where it does not wait but works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_long_in_its_first_step_delays_no_other_key() {
    for limit in [usize::MAX, 1000] {
        let builder = Executor::builder().queue_limit(limit);
        let executor = builder.build().unwrap();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let long = executor.submit("a", async move {
            begun.send(()).unwrap();
            tokio::task::block_in_place(|| goes.recv().unwrap());
        });
        begins.await.unwrap();
        for key in ["b", "c", "b"] {
            let mut other = executor.submit(key, async {});
            // On the real clock: only a failure waits that long.
            let result = other.wait_timeout(Duration::from_secs(5)).await;
            assert!(result.is_done(), "it waited for another key's first step");
        }
        go.send(()).unwrap();
        assert!(long.await.is_done());
    }
}
