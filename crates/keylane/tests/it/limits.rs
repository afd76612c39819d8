//! How many run at once, by which rule, and what the numbers say.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::support::{
    Door, MS, Peak, assert_nothing_left, executor, one_worker, settle, why, word,
};
use keylane::{Executor, Limits, Mode, Policy, SharedHandle, Why};

fn tasks(peak: &Peak, key: &'static str, count: usize) -> Vec<(&'static str, TaskOf)> {
    (0..count)
        .map(|_| (key, Box::pin(peak.sleeps(10 * MS)) as TaskOf))
        .collect()
}

type TaskOf = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

// GC-1
#[tokio::test(start_paused = true)]
async fn a_key_with_limit_two_never_runs_more_and_all_its_tasks_succeed() {
    let executor = Executor::builder()
        .lane_concurrency_for([("a", 2)])
        .build()
        .unwrap();
    let peak = Peak::default();
    let results = executor.run_all(tasks(&peak, "a", 8)).await;
    assert!(results.iter().all(|result| result.is_done()));
    assert_eq!(peak.most(), 2);
    assert_nothing_left(&executor);
}

// GC-2
#[tokio::test(start_paused = true)]
async fn two_keys_of_limit_two_run_more_than_two_together() {
    let executor = Executor::builder().lane_concurrency(2).build().unwrap();
    let peak = Peak::default();
    let mut both = tasks(&peak, "a", 4);
    both.extend(tasks(&peak, "b", 4));
    executor.run_all(both).await;
    assert_eq!(peak.most(), 4);
}

// GC-4
#[tokio::test(start_paused = true)]
async fn a_function_gives_some_keys_four_and_others_one() {
    let by = |key: &&str| if key.starts_with("vip:") { 4 } else { 1 };
    let executor = Executor::builder().lane_concurrency_by(by).build().unwrap();
    let (vip, other) = (Peak::default(), Peak::default());
    let mut all = tasks(&vip, "vip:1", 12);
    all.extend(tasks(&other, "walk-in", 6));
    executor.run_all(all).await;
    assert_eq!((vip.most(), other.most()), (4, 1));
}

// GC-12, GC-13: a number below 1 cannot be given but for 0, which counts as 1.
#[tokio::test(start_paused = true)]
async fn a_function_that_says_zero_means_one() {
    let executor = Executor::builder()
        .lane_concurrency(8)
        .lane_concurrency_by(|_: &&str| 0)
        .build()
        .unwrap();
    let peak = Peak::default();
    executor.run_all(tasks(&peak, "a", 5)).await;
    assert_eq!(peak.most(), 1);
}

// GC-14
#[tokio::test(start_paused = true)]
async fn a_function_that_panics_means_the_default() {
    let executor = Executor::builder()
        .lane_concurrency(3)
        .lane_concurrency_by(|_: &&str| panic!("no idea"))
        .build()
        .unwrap();
    let peak = Peak::default();
    let results = executor.run_all(tasks(&peak, "a", 9)).await;
    assert!(results.iter().all(|result| result.is_done()));
    assert_eq!(peak.most(), 3);
    assert!(executor.stats().panics > 0);
}

#[tokio::test(start_paused = true)]
async fn the_map_comes_before_the_function_and_the_function_before_the_default() {
    let executor = Executor::builder()
        .lane_concurrency(2)
        .lane_concurrency_for([("map", 5)])
        .lane_concurrency_by(|key: &&str| if *key == "default" { panic!() } else { 3 })
        .build()
        .unwrap();
    let of = |key| executor.limits_of(&key).concurrency;
    assert_eq!((of("map"), of("function"), of("default")), (5, 3, 2));
}

// GC-5
#[tokio::test(start_paused = true)]
async fn four_in_flight_and_no_queue_discards_the_rest() {
    let executor = Executor::builder()
        .max_in_flight(4)
        .queue_limit(0)
        .lane_concurrency(4)
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    let peak = Peak::default();
    let mut all = Vec::new();
    for key in ["a", "b", "c"] {
        all.extend(tasks(&peak, key, 4));
    }
    let results = executor.run_all(all).await;
    let done = results.iter().filter(|result| word(result) == "done");
    assert_eq!(done.count(), 4);
    let rejected = results.iter().filter(|result| word(result) == "rejected");
    assert_eq!(rejected.count(), 8);
    assert_eq!(peak.most(), 4);
}

// GC-61
#[tokio::test(start_paused = true)]
async fn four_in_flight_with_waiting_allowed_runs_all_twelve() {
    let executor = Executor::builder()
        .max_in_flight(4)
        .lane_concurrency(4)
        .build()
        .unwrap();
    let peak = Peak::default();
    let mut all = Vec::new();
    for key in ["a", "b", "c"] {
        all.extend(tasks(&peak, key, 4));
    }
    let results = executor.run_all(all).await;
    assert!(results.iter().all(|result| result.is_done()));
    assert_eq!(peak.most(), 4);
}

// GC-17
#[tokio::test(start_paused = true)]
async fn ten_keys_of_a_hundred_tasks_all_succeed() {
    let executor = Executor::builder().lane_concurrency(5).build().unwrap();
    let peaks: Vec<Peak> = (0..10).map(|_| Peak::default()).collect();
    let all = (0..1000).map(|n| (n % 10, peaks[n % 10].sleeps(MS)));
    let results = executor.run_all(all).await;
    assert!(results.iter().all(|result| result.is_done()));
    assert!(peaks.iter().all(|peak| peak.most() == 5));
}

// GC-16
#[tokio::test(start_paused = true)]
async fn a_map_changed_after_build_changes_nothing() {
    let mut map = HashMap::from([("a", 2)]);
    let executor = Executor::builder()
        .lane_concurrency_for(map.clone())
        .build()
        .unwrap();
    map.insert("a", 7);
    assert_eq!(executor.limits_of(&"a").concurrency, 2);
}

/// An executor whose function answers 1, 2, 3, … by how often it was asked.
fn counting(once: bool) -> (Executor<&'static str>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let executor = Executor::builder()
        .lane_concurrency_by(move |_: &&str| count.fetch_add(1, Ordering::SeqCst) + 1)
        .resolve_once(once)
        .build()
        .unwrap();
    (executor, asked)
}

// GC-16 ≠
#[tokio::test(start_paused = true)]
async fn limits_are_kept_while_the_lane_lives_and_asked_again_when_it_was_idle() {
    let (executor, asked) = counting(false);
    let first = executor.submit("a", tokio::time::sleep(MS));
    executor.submit("a", tokio::time::sleep(MS)).await;
    assert!(first.is_done());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    executor.submit("a", async {}).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

// GC-16: as the original
#[tokio::test(start_paused = true)]
async fn limits_resolved_once_are_kept_until_evicted() {
    let (executor, asked) = counting(true);
    for _ in 0..3 {
        executor.submit("a", async {}).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    executor.evict(&"a");
    executor.submit("a", async {}).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

// GC-50
#[tokio::test(start_paused = true)]
async fn the_stats_of_a_key_say_what_runs_waits_and_may() {
    let executor = Executor::builder()
        .lane_concurrency_for([("a", 2)])
        .queue_limit_for([("a", 5)])
        .build()
        .unwrap();
    for _ in 0..4 {
        executor.submit("a", tokio::time::sleep(MS));
    }
    settle().await;
    let stats = executor.stats_of(&"a").unwrap();
    assert_eq!((stats.running, stats.queued), (2, 2));
    let limits = (stats.limits.concurrency, stats.limits.queue);
    assert_eq!(limits, (2, Some(5)));
}

// GC-51, GC-52, GC-53
#[tokio::test(start_paused = true)]
async fn totals_are_over_all_keys_and_an_unknown_key_has_none() {
    let executor = executor();
    let doors = [Door::closed(), Door::closed()];
    for (key, door) in ["a", "b"].into_iter().zip(&doors) {
        executor.submit(key, door.passes(()));
        executor.submit(key, door.passes(()));
        door.reached().await;
    }
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (2, 2, 2));
    assert!(executor.stats_of(&"c").is_none());
    doors.iter().for_each(|door| door.let_in(2));
    executor.all_idle().await;
    assert_nothing_left(&executor);
    assert_eq!(executor.stats().done, 4);
}

// GC-53 ≠
#[tokio::test(start_paused = true)]
async fn stats_tell_the_truth_after_shutdown() {
    let executor = executor();
    executor.submit("a", tokio::time::sleep(MS));
    let blocked = executor.submit("b", std::future::pending::<()>());
    let left = executor.shutdown(2 * MS).await;
    assert_eq!((left.running, left.waiting), (1, 0));
    blocked.await;
    assert_nothing_left(&executor);
    let stats = executor.stats();
    assert_eq!((stats.done, stats.cancelled), (1, 1));
}

// GC-60
#[tokio::test(start_paused = true)]
async fn in_flight_per_key_and_concurrency_count_by_the_smaller() {
    let executor = Executor::builder()
        .lane_concurrency(10)
        .max_in_flight_per_key(3)
        .max_in_flight_for([("b", 2)])
        .build()
        .unwrap();
    let (a, b) = (Peak::default(), Peak::default());
    let mut all = tasks(&a, "a", 12);
    all.extend(tasks(&b, "b", 12));
    executor.run_all(all).await;
    assert_eq!((a.most(), b.most()), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn of_two_limits_for_all_the_smaller_counts() {
    let executor = Executor::builder()
        .concurrency(8)
        .max_in_flight(3)
        .lane_concurrency(10)
        .build()
        .unwrap();
    let peak = Peak::default();
    executor.run_all(tasks(&peak, "a", 12)).await;
    assert_eq!(peak.most(), 3);
}

// ≠ Waiting tasks hold no global permit.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_key_takes_no_permit_of_all() {
    let executor = Executor::builder().concurrency(2).build().unwrap();
    let door = Door::closed();
    for _ in 0..5 {
        executor.submit("busy", door.passes(()));
    }
    door.reached().await;
    assert!(executor.submit("other", async {}).await.is_done());
}

// ≠ Changing limits never lets more than the limit run.
#[tokio::test(start_paused = true)]
async fn a_raised_limit_acts_at_once_and_a_lowered_one_stops_new_starts() {
    let executor = Executor::builder().lane_concurrency(2).build().unwrap();
    let door = Door::closed();
    for _ in 0..10 {
        executor.submit("a", door.passes(()));
    }
    settle().await;
    assert_eq!(executor.stats().running, 2);
    let limits = |lane_concurrency| Limits {
        lane_concurrency,
        ..executor.limits()
    };
    executor.set_limits(limits(5)).unwrap();
    settle().await;
    assert_eq!(executor.stats().running, 5);
    executor.set_limits(limits(1)).unwrap();
    for running in [4, 3, 2, 1, 1, 1] {
        door.let_in(1);
        settle().await;
        assert_eq!(executor.stats().running, running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_of_all_stops_new_starts_until_fewer_run() {
    let executor = Executor::builder()
        .concurrency(4)
        .lane_concurrency(9)
        .build()
        .unwrap();
    let door = Door::closed();
    for _ in 0..10 {
        executor.submit("a", door.passes(()));
    }
    settle().await;
    let limits = Limits {
        concurrency: Some(2),
        ..executor.limits()
    };
    executor.set_limits(limits).unwrap();
    for running in [3, 2, 2, 2] {
        door.let_in(1);
        settle().await;
        assert_eq!(executor.stats().running, running);
    }
}

#[tokio::test(start_paused = true)]
async fn queue_limits_can_be_set_and_lifted_while_running() {
    let executor = executor();
    let door = Door::closed();
    executor.submit("a", door.passes(0));
    door.reached().await;
    let limits = executor.limits();
    let none = Limits {
        queue_limit_per_key: Some(0),
        ..limits
    };
    executor.set_limits(none).unwrap();
    assert!(executor.try_submit("a", async { 1 }).is_err());
    executor.set_limits(limits).unwrap();
    let second = executor.try_submit("a", async { 2 }).unwrap();
    door.let_in(1);
    assert_eq!(second.await.ok(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn impossible_new_limits_are_refused_and_change_nothing() {
    let executor = executor();
    let before = executor.limits();
    let wrong = Limits {
        lane_concurrency: 0,
        concurrency: Some(0),
        ..before
    };
    let errors = executor.set_limits(wrong).unwrap_err();
    assert_eq!(errors.errors.len(), 2);
    assert_eq!(executor.limits(), before);
}

#[tokio::test]
async fn everything_wrong_with_a_builder_is_said_at_once() {
    let errors = Executor::builder()
        .concurrency(0)
        .max_in_flight(0)
        .lane_concurrency(0)
        .max_in_flight_per_key(0)
        .turn(0)
        .lane_concurrency_for([("a", 0)])
        .max_in_flight_for([("b", 0)])
        .build()
        .unwrap_err();
    assert_eq!(
        errors.to_string().split("; it must be at least 1").count(),
        8,
        "{errors}"
    );
    for part in [
        "concurrency is 0",
        "lane_concurrency_for[\"a\"] is 0",
        "max_in_flight_for[\"b\"]",
    ] {
        assert!(errors.to_string().contains(part), "{errors}");
    }
}

#[test]
fn without_a_runtime_the_remedy_is_named() {
    let errors = Executor::<u8>::builder().build().unwrap_err();
    assert!(errors.to_string().contains(".runtime("), "{errors}");
}

#[test]
fn an_executor_can_be_built_for_a_runtime_it_is_not_inside_of() {
    let runtime = one_worker();
    let executor = Executor::builder()
        .runtime(runtime.handle().clone())
        .build()
        .unwrap();
    assert_eq!(executor.submit("a", async { 7 }).join().ok(), Some(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_changes_at_once_the_later_one_is_in_force() {
    let (asked, is_asked) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let slow = Arc::new(std::sync::Mutex::new(None));
    let by = {
        let slow = slow.clone();
        move |_: &&str| {
            let waits: Option<std::sync::mpsc::Receiver<()>> = slow.lock().unwrap().take();
            if let Some(may_go_on) = waits {
                asked.send(()).unwrap();
                may_go_on.recv().unwrap();
            }
            1
        }
    };
    let executor = Executor::builder().lane_concurrency_by(by).build().unwrap();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(()));
    let with_queue = |most| Limits {
        queue_limit_per_key: Some(most),
        ..executor.limits()
    };
    *slow.lock().unwrap() = Some(may_go_on);
    let (first, second) = (with_queue(5), with_queue(7));
    let earlier = std::thread::spawn({
        let executor = executor.clone();
        move || executor.set_limits(first).unwrap()
    });
    is_asked.recv().unwrap();
    executor.set_limits(second).unwrap();
    go_on.send(()).unwrap();
    earlier.join().unwrap();
    assert_eq!(executor.limits().queue_limit_per_key, Some(7));
    assert_eq!(executor.limits_of(&"a").queue, Some(7));
    door.let_in(1);
    running.await;
}

#[test]
fn a_runtime_without_timers_is_refused_with_the_remedy() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    let builder = Executor::<&str>::builder().runtime(runtime.handle().clone());
    let error = builder.build().unwrap_err().to_string();
    assert!(error.contains("enable_time()"), "{error}");
}

// The first change is in the middle of asking when two others come, the last of them like itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_under_other_limits_is_not_taken_for_the_latest() {
    type Asked = std::sync::mpsc::Sender<()>;
    thread_local!(static SLOWLY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    let (ask, asked) = std::sync::mpsc::channel::<Asked>();
    let executor = Executor::<u8>::builder()
        .lane_concurrency_by(move |_| {
            if SLOWLY.get() {
                let (go, goes) = std::sync::mpsc::channel();
                ask.send(go).unwrap();
                goes.recv().unwrap();
            }
            8
        })
        .build()
        .unwrap();
    for key in [0, 1] {
        executor.pause(&key);
        executor.submit(key, async {});
    }
    let limits = |most| Limits {
        max_in_flight_per_key: Some(most),
        ..executor.limits()
    };
    let (two, five) = (limits(2), limits(5));
    let sets = executor.clone();
    let thread = std::thread::spawn(move || {
        SLOWLY.set(true);
        sets.set_limits(two).unwrap();
    });
    let first = asked.recv().unwrap();
    executor.set_limits(five).unwrap();
    first.send(()).unwrap();
    let second = asked.recv().unwrap();
    executor.set_limits(two).unwrap();
    second.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(executor.limits(), two);
    let each = [0, 1].map(|key| executor.stats_of(&key).unwrap().limits.concurrency);
    assert_eq!(each, [2, 2]);
}

/// An executor that knows of short tasks, of which it takes several at a time.
async fn with_short_tasks() -> Executor<u32> {
    let executor = Executor::builder().build().unwrap();
    for _ in 0..100 {
        executor.submit(0, async {}).await;
    }
    executor
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_does_not_begin_after_its_key_was_paused() {
    let executor = with_short_tasks().await;
    let pauses = executor.clone();
    let first = executor.submit(0, async move { pauses.pause(&1) });
    let mut second = executor.submit(1, async {});
    assert!(first.await.is_done());
    assert!(!second.wait_timeout(MS).await.is_done());
    executor.resume(&1);
    assert!(second.await.is_done());
}

// Of what was taken at once, the first keeps the second from beginning and cancels it.
#[tokio::test(start_paused = true)]
async fn what_was_taken_and_cancelled_ends_also_where_it_may_not_begin_any_more() {
    let executor = with_short_tasks().await;
    let (pauses, handle) = (executor.clone(), Arc::new(OnceLock::new()));
    let cancels: Arc<OnceLock<SharedHandle<u32, ()>>> = handle.clone();
    let first = executor.submit(0, async move {
        pauses.pause(&1);
        cancels.get().unwrap().cancel()
    });
    let second = executor.submit(1, async {}).shared();
    handle.set(second.clone()).unwrap();
    assert_eq!(first.await.ok(), Some(true));
    assert_eq!(why(&second.wait_timeout(MS).await), Some(Why::Asked));
    executor.idle(&1).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_does_not_begin_beyond_a_limit_that_was_lowered() {
    let executor = with_short_tasks().await;
    let sets = executor.clone();
    let first = executor.submit(0, async move {
        let concurrency = Some(1);
        let limits = Limits {
            concurrency,
            ..sets.limits()
        };
        sets.set_limits(limits).unwrap();
    });
    let peak = Peak::default();
    let others: Vec<_> = (1..20)
        .map(|key| executor.submit(key, peak.sleeps(MS)))
        .collect();
    assert!(first.await.is_done());
    for other in others {
        assert!(other.await.is_done());
    }
    assert_eq!(peak.most(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_and_stopped_ends_also_where_it_may_not_begin_any_more() {
    let executor = with_short_tasks().await;
    let other = executor.clone();
    let first = executor.submit(0, async move {
        other.shutdown_key(&1, Mode::Now);
        other.pause(&1);
    });
    let mut second = executor.submit(1, async {});
    assert!(first.await.is_done());
    assert_eq!(why(&second.wait_timeout(MS).await), Some(Why::KeyShutDown));
}
