//! Shutting down: one key, everything, with a deadline, by dropping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane::{Executor, Left, Mode, Reason, Why, blocking};
use tokio::time::Instant;

use crate::support::{
    Door, MS, Peak, Record, assert_nothing_left, executor, one_worker, reason, settle, why, word,
};

// GC-7
#[tokio::test(start_paused = true)]
async fn draining_a_key_rejects_what_waits_and_lets_run_what_runs() {
    let executor = executor();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(1));
    let queued = [
        executor.submit("a", async { 2 }),
        executor.submit("a", async { 3 }),
    ];
    door.reached().await;
    executor.shutdown_key(&"a", Mode::Drain);
    for handle in queued {
        assert_eq!(reason(&handle.await), Some(Reason::Drained));
    }
    // A new submit works, and never beyond the limit.
    let new = executor.submit("a", async { 4 });
    settle().await;
    assert!(!new.is_done());
    door.let_in(1);
    assert_eq!((running.await.ok(), new.await.ok()), (Some(1), Some(4)));
    assert_nothing_left(&executor);
}

// GC-7: the original
#[tokio::test(start_paused = true)]
async fn shutting_a_key_down_now_stops_what_runs_and_cancels_what_waits() {
    let executor = executor();
    let (door, peak) = (Door::closed(), Peak::default());
    let passes = door.passes(());
    let count = peak.clone();
    let running = executor.submit("a", async move {
        let _inside = count.enter();
        passes.await;
    });
    let queued = executor.submit("a", async {});
    door.reached().await;
    executor.shutdown_key(&"a", Mode::Now);
    let count = peak.clone();
    let new = executor.submit("a", async move {
        let _inside = count.enter();
    });
    assert_eq!(why(&queued.await), Some(Why::KeyShutDown));
    assert_eq!(why(&running.await), Some(Why::KeyShutDown));
    assert!(new.await.is_done());
    assert_eq!(peak.most(), 1);
    assert_nothing_left(&executor);
}

// GC-7, and stopping what was started and not yet polled a second time.
#[tokio::test(start_paused = true)]
async fn a_task_stopped_right_after_its_start_gives_its_permit_back() {
    let executor = Executor::builder().concurrency(1).build().unwrap();
    let door = Door::closed();
    for _ in 0..10 {
        let running = executor.submit("a", door.passes(()));
        // Wakes before the started task is polled by itself for the first time.
        door.reached().await;
        executor.shutdown_key(&"a", Mode::Now);
        assert_eq!(word(&running.await), "cancelled");
        assert_nothing_left(&executor);
    }
    assert!(executor.submit("b", async {}).await.is_done());
}

// GC-6
#[tokio::test(start_paused = true)]
async fn shutting_down_an_unknown_key_touches_nothing() {
    let executor = executor();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(()));
    door.reached().await;
    executor.shutdown_key(&"b", Mode::Now);
    executor.shutdown_key(&"b", Mode::Drain);
    executor.evict(&"b");
    door.let_in(1);
    assert!(running.await.is_done());
    assert_nothing_left(&executor);
}

// ≠ Evicting never lets more than the limit run.
#[tokio::test(start_paused = true)]
async fn evicting_a_key_that_runs_never_lets_more_than_its_limit_run() {
    let executor = Executor::builder()
        .lane_concurrency_by(|_: &&str| 2)
        .build()
        .unwrap();
    let peak = Peak::default();
    let mut handles = Vec::new();
    for _ in 0..10 {
        for _ in 0..4 {
            handles.push(executor.submit("a", peak.sleeps(10 * MS)));
        }
        tokio::time::sleep(3 * MS).await;
        executor.evict(&"a");
    }
    executor.all_idle().await;
    assert_eq!(peak.most(), 2);
    assert!(handles.iter().all(|handle| handle.is_done()));
}

// GC-8, PL-15
#[tokio::test(start_paused = true)]
async fn submitting_after_shutdown_is_a_clear_error_and_hands_the_task_back() {
    let executor = executor();
    executor.shutdown(Duration::ZERO).await;
    assert!(executor.is_shut_down());
    let refused = executor.try_submit("a", async { 1 }).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the task was refused: the executor was shut down"
    );
    assert_eq!(refused.task.await, 1);
    let refused = executor.post("a", async { 2 }).unwrap_err();
    assert_eq!((refused.reason, refused.task.await), (Reason::ShutDown, 2));
    let result = executor.submit("a", async { 3 }).await;
    assert_eq!(reason(&result), Some(Reason::ShutDown));
}

// GC-10, PL-14
#[tokio::test(start_paused = true)]
async fn shutting_down_thrice_is_harmless() {
    let executor = executor();
    executor.submit("a", tokio::time::sleep(MS));
    let (one, two) = (executor.clone(), executor.clone());
    let both = tokio::join!(one.shutdown(10 * MS), two.shutdown(10 * MS));
    assert!(both.0.is_nothing() && both.1.is_nothing());
    assert!(executor.shutdown(Duration::ZERO).await.is_nothing());
}

// GC-30, GC-73, and ≠ close waits to a deadline
#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_what_ends_in_time() {
    for limit in [None, Some(2)] {
        let builder = Executor::builder();
        let builder = match limit {
            Some(limit) => builder.concurrency(limit),
            None => builder,
        };
        let executor = builder.build().unwrap();
        let nap = || async { tokio::time::sleep(10 * MS).await };
        let handles: Vec<_> = (0..4).map(|_| executor.submit("a", nap())).collect();
        let start = Instant::now();
        assert!(executor.shutdown(100 * MS).await.is_nothing());
        assert_eq!(start.elapsed(), 40 * MS);
        assert!(handles.iter().all(|handle| handle.is_done()));
    }
}

// GC-30, GC-73 ≠: what did not end is stopped and reported.
#[tokio::test(start_paused = true)]
async fn shutdown_stops_and_reports_what_does_not_end_in_time() {
    let executor = executor();
    let peak = Peak::default();
    let handles: Vec<_> = (0..4)
        .map(|_| executor.submit("a", peak.sleeps(40 * MS)))
        .collect();
    let start = Instant::now();
    let left = executor.shutdown(50 * MS).await;
    assert_eq!(start.elapsed(), 50 * MS);
    assert_eq!((left.running, left.waiting), (1, 2));
    assert!(!left.is_nothing());
    let mut words = Vec::new();
    for handle in handles {
        words.push(word(&handle.await));
    }
    assert_eq!(words, ["done", "cancelled", "cancelled", "cancelled"]);
    assert_eq!(peak.now(), 0);
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_shutdown_takes_nothing_more_but_stops_nothing() {
    let executor = executor();
    let running = executor.submit("a", async { tokio::time::sleep(10 * MS).await });
    let gave_up = tokio::time::timeout(MS, executor.shutdown(100 * MS)).await;
    assert!(gave_up.is_err());
    assert!(executor.try_submit("a", async {}).is_err());
    assert!(running.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_clone_stops_everything() {
    let record = Record::default();
    let executor = Executor::builder()
        .listener(record.clone())
        .build()
        .unwrap();
    let clone = executor.clone();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(()));
    let waiting = executor.submit("a", async {});
    door.reached().await;
    drop(executor);
    settle().await;
    assert!(!running.is_done());
    drop(clone);
    assert_eq!(why(&running.await), Some(Why::ShutDown));
    assert_eq!(why(&waiting.await), Some(Why::ShutDown));
    record.assert_balanced(2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_executor_leaves_no_timer_behind() {
    let rate = keylane::Rate::new(1, Duration::from_secs(86_400), 1);
    let executor = Executor::builder().rate(rate).build().unwrap();
    let alive = tokio::runtime::Handle::current().metrics();
    let idle = alive.num_alive_tasks();
    executor.submit("a", async {});
    let waiting = executor.submit("a", async {});
    tokio::time::sleep(10 * MS).await;
    assert_eq!(alive.num_alive_tasks(), idle + 1, "the timer");
    drop(executor);
    assert_eq!(why(&waiting.await), Some(Why::ShutDown));
    settle().await;
    assert_eq!(alive.num_alive_tasks(), 0);
}

// Blocking work is waited for: its lane stays until it returns.
#[tokio::test(start_paused = true)]
async fn blocking_work_keeps_its_lane_through_shutdown() {
    let executor = executor();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (started, seen) = tokio::sync::oneshot::channel();
    let work = executor.submit(
        "a",
        blocking(move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
            5
        }),
    );
    seen.await.unwrap();
    let left = executor.shutdown(Duration::ZERO).await;
    assert_eq!((left.running, left.waiting), (1, 0));
    settle().await;
    assert!(!work.is_done());
    assert_eq!(executor.stats().running, 1);
    go.send(()).unwrap();
    assert_eq!(work.await.ok(), Some(5));
    executor.all_idle().await;
    assert_nothing_left(&executor);
}

// Stopping tasks of one key at any moment harms no other and loses no permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_keys_at_any_moment_loses_no_permit() {
    let executor = Executor::builder()
        .concurrency(4)
        .lane_concurrency(2)
        .build()
        .unwrap();
    let stopper = executor.clone();
    let stops = tokio::spawn(async move {
        for round in 0..4_000 {
            stopper.shutdown_key(&(round % 3), Mode::Now);
            tokio::task::yield_now().await;
        }
    });
    for n in 0..40_000_u32 {
        executor
            .post((n % 3) as usize, async move {
                for _ in 0..n % 4 {
                    tokio::task::yield_now().await;
                }
            })
            .unwrap();
        if n % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    stops.await.unwrap();
    executor.all_idle().await;
    assert_nothing_left(&executor);
    let peak = Peak::default();
    let full: Vec<_> = (0..4).map(|key| (key, peak.sleeps(5 * MS))).collect();
    executor.run_all(full).await;
    assert_nothing_left(&executor);
}

#[test]
fn blocking_work_of_a_stopped_key_says_so_when_the_runtime_goes() {
    let runtime = one_worker();
    let executor = runtime.block_on(async { executor() });
    let (begun, begins) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let task = blocking(move || {
        begun.send(()).unwrap();
        ends.recv().unwrap_err();
    });
    let handle = executor.submit("a", task);
    begins.recv().unwrap();
    executor.shutdown_key(&"a", Mode::Now);
    runtime.shutdown_background();
    let result = handle.join();
    drop(end);
    assert_eq!(why(&result), Some(Why::KeyShutDown));
}

#[tokio::test(start_paused = true)]
async fn of_two_stops_the_first_says_why() {
    let executor = executor();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(()));
    door.reached().await;
    executor.shutdown_key(&"a", Mode::Now);
    drop(executor);
    assert_eq!(why(&running.await), Some(Why::KeyShutDown));
}

// Both are taken at once; the first stops the second before that was looked at.
#[tokio::test(start_paused = true)]
async fn what_is_stopped_before_its_first_step_does_not_begin() {
    let executor = executor();
    for _ in 0..100 {
        // So that it knows of short ones, of which it takes several at a time.
        executor.submit("a", async {}).await;
    }
    let begun = Arc::new(AtomicBool::new(false));
    let (stops, begins) = (executor.clone(), begun.clone());
    let first = executor.submit("a", async move { stops.shutdown_key(&"b", Mode::Now) });
    let second = executor.submit("b", async move { begins.store(true, Ordering::SeqCst) });
    assert!(first.await.is_done());
    assert_eq!(why(&second.await), Some(Why::KeyShutDown));
    assert!(!begun.load(Ordering::SeqCst));
    let (stops, begins) = (executor.clone(), begun.clone());
    executor.submit("a", async move { stops.shutdown_key(&"b", Mode::Now) });
    let work = blocking(move || begins.store(true, Ordering::SeqCst));
    let blocks = executor.submit("b", work);
    assert_eq!(why(&blocks.await), Some(Why::KeyShutDown));
    assert!(!begun.load(Ordering::SeqCst));
}

// Where tasks are not ready at once, they are not polled by whoever takes them.
#[tokio::test(start_paused = true)]
async fn blocking_work_that_was_stopped_before_its_first_step_does_not_begin() {
    let executor = executor();
    let busy: Vec<String> = (0..100).map(|n| format!("busy {n}")).collect();
    for key in busy {
        executor
            .post(key.leak(), std::future::pending::<()>())
            .unwrap();
        settle().await;
    }
    let begun = Arc::new(AtomicBool::new(false));
    let (stops, begins) = (executor.clone(), begun.clone());
    executor.submit("a", async move { stops.shutdown_key(&"b", Mode::Now) });
    let work = blocking(move || begins.store(true, Ordering::SeqCst));
    let blocks = executor.submit("b", work);
    assert_eq!(why(&blocks.await), Some(Why::KeyShutDown));
    assert!(!begun.load(Ordering::SeqCst));
}

#[test]
fn everything_ends_when_the_runtime_goes() {
    let runtime = one_worker();
    let builder = Executor::builder().runtime(runtime.handle().clone());
    let executor = builder.build().unwrap();
    executor.pause(&"paused");
    let submit = |key| executor.submit(key, std::future::pending::<()>());
    let handles = ["a", "a", "paused"].map(submit);
    drop(runtime);
    for handle in handles {
        assert!(handle.is_done());
        assert_eq!(why(&handle.join()), Some(Why::ShutDown));
    }
    let late = submit("b").join();
    assert_eq!(reason(&late), Some(Reason::ShutDown));
    let other = tokio::runtime::Builder::new_current_thread().build();
    other.unwrap().block_on(executor.all_idle());
    assert_nothing_left(&executor);
}

#[test]
fn a_task_that_ends_while_the_runtime_goes_has_its_result() {
    let runtime = one_worker();
    let permits = keylane::Permits::new(2);
    let builder = Executor::builder().runtime(runtime.handle().clone());
    let builder = builder.shared_permits(permits.clone()).concurrency(2);
    let executor = builder.build().unwrap();
    executor.submit("pending", std::future::pending::<()>());
    let (begun, begins) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let blocks = executor.submit("blocks", async move {
        tokio::task::yield_now().await;
        tokio::task::block_in_place(|| {
            begun.send(()).unwrap();
            goes.recv().unwrap();
        });
    });
    let waits = executor.submit("waits", async {});
    begins.recv().unwrap();
    // Its worker is another thread's now, which ends while this one is in the middle of its poll.
    runtime.block_on(runtime.spawn(async {})).unwrap();
    runtime.shutdown_background();
    assert_eq!(why(&waits.join()), Some(Why::ShutDown));
    go.send(()).unwrap();
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(blocks.join().is_done()));
    let is_done = ends.recv_timeout(Duration::from_secs(5));
    assert_eq!(is_done, Ok(true), "{:?}, {permits:?}", executor.stats());
    let other = tokio::runtime::Builder::new_current_thread().build();
    other.unwrap().block_on(executor.all_idle());
    assert_nothing_left(&executor);
}

// What it had, the remains of the task included, is gone before anybody is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_is_idle_what_was_evicted_has_its_result() {
    let executor = executor();
    executor.pause(&"a");
    let (dropped, drops) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let remains = Remains(dropped, goes);
    let handle = executor.submit("a", async move { drop(remains) });
    let evicts = executor.clone();
    let thread = std::thread::spawn(move || evicts.evict(&"a"));
    drops.recv().unwrap();
    let (idle, idles) = (executor.all_idle(), executor.idle(&"a"));
    let (mut idle, mut idles) = (std::pin::pin!(idle), std::pin::pin!(idles));
    std::future::poll_fn(|cx| {
        assert!(idle.as_mut().poll(cx).is_pending());
        assert!(idles.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    go.send(()).unwrap();
    idle.await;
    idles.await;
    assert!(handle.is_done());
    thread.join().unwrap();
}

/// Says that it is dropped, and is gone only when it may.
struct Remains(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

impl Drop for Remains {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        self.1.recv().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_another_one_cuts_short_says_what_was_stopped() {
    let executor = executor();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    executor.submit("a", async {});
    door.reached().await;
    let waits = executor.clone();
    let first = tokio::spawn(async move { waits.shutdown(Duration::from_secs(60)).await });
    settle().await;
    let (waiting, running) = (1, 1);
    let left = Left { waiting, running };
    assert_eq!(executor.shutdown(Duration::ZERO).await, left);
    assert_eq!(first.await.unwrap(), left);
}
