//! What happens without room.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use keylane::{Decision, Executor, Policy, Reason, SharedHandle, Status, TaskError};

use crate::support::{Door, MS, Peak, Record, assert_nothing_left, reason, settle, why, word};

/// Limit 1, no waiting.
fn tight(policy: Policy) -> Executor<&'static str> {
    Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(policy)
        .build()
        .unwrap()
}

// GC-25, GC-26
#[tokio::test(start_paused = true)]
async fn one_runs_one_waits_and_the_third_is_rejected() {
    let executor = Executor::builder()
        .queue_limit_per_key(1)
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    let tasks = (0..3).map(|_| ("a", async { tokio::time::sleep(MS).await }));
    let results = executor.run_all(tasks).await;
    let words: Vec<_> = results.iter().map(word).collect();
    assert_eq!(words, ["done", "done", "rejected"]);
}

// GC-36, GC-38
#[tokio::test(start_paused = true)]
async fn a_busy_key_without_queue_rejects_at_once() {
    let executor = tight(Policy::Discard);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let second = executor.submit("a", async {});
    assert!(second.is_done());
    assert_eq!(reason(&second.await), Some(Reason::KeyFull { limit: 0 }));
    assert!(executor.submit("b", async {}).await.is_done());
}

// GC-44
#[tokio::test(start_paused = true)]
async fn a_used_place_comes_back() {
    let executor = tight(Policy::Discard);
    for _ in 0..10 {
        assert!(executor.submit("a", tokio::time::sleep(MS)).await.is_done());
    }
}

// GC-64
#[tokio::test(start_paused = true)]
async fn with_one_in_flight_and_no_queue_the_second_is_rejected_whatever_its_key() {
    let executor = Executor::builder()
        .max_in_flight(1)
        .queue_limit(0)
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    let first = executor.submit("a", tokio::time::sleep(MS));
    let second = executor.submit("b", async {}).await;
    assert_eq!(reason(&second), Some(Reason::Full { limit: 0 }));
    assert!(first.await.is_done());
}

// GC-69
#[tokio::test(start_paused = true)]
async fn a_waiting_task_takes_one_place_however_many_limits_hold_it() {
    let executor = Executor::builder()
        .max_in_flight(2)
        .queue_limit_per_key(1)
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    let nap = || async { tokio::time::sleep(MS).await };
    let results = executor.run_all((0..3).map(|_| ("a", nap()))).await;
    let words: Vec<_> = results.iter().map(word).collect();
    assert_eq!(words, ["done", "done", "rejected"]);
}

// A task held back by its key counts in the key's queue, one held back by all in that of all.
#[tokio::test(start_paused = true)]
async fn each_waiting_task_counts_in_the_queue_of_what_holds_it_back() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(1)
        .queue_limit_per_key(1)
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    assert!(
        executor.try_submit("a", async {}).is_ok(),
        "waits for its key"
    );
    assert!(
        executor.try_submit("b", async {}).is_ok(),
        "waits for a permit"
    );
    let refused = executor.try_submit("a", async {}).unwrap_err();
    assert_eq!(refused.reason, Reason::KeyFull { limit: 1 });
    let refused = executor.try_submit("c", async {}).unwrap_err();
    assert_eq!(refused.reason, Reason::Full { limit: 1 });
}

// GC-37
#[tokio::test(start_paused = true)]
async fn abort_fails_the_handle_naming_key_and_task() {
    let executor = tight(Policy::Abort);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let result = executor.task("a").id("invoice-7").submit(async {}).await;
    assert_eq!(
        (result.key, result.id.as_deref()),
        (Some("a"), Some("invoice-7"))
    );
    let Status::Failed(error) = result.status else {
        panic!("not failed");
    };
    assert_eq!(
        error.to_string(),
        "no room for the task \"invoice-7\": 0 tasks of this key wait already"
    );
    assert!(matches!(
        error,
        TaskError::NoRoom {
            reason: Reason::KeyFull { limit: 0 },
            ..
        }
    ));
}

// GC-37: the default policy's refusals are counted as what they are.
#[tokio::test(start_paused = true)]
async fn an_aborted_task_counts_as_rejected() {
    let executor = tight(Policy::Abort);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    executor.submit("a", async {}).await;
    let stats = executor.stats();
    assert_eq!((stats.rejected, stats.failed), (1, 0));
}

// GC-37: try_submit and post hand the task back.
#[tokio::test(start_paused = true)]
async fn a_refused_task_comes_back_unharmed() {
    let executor = tight(Policy::Abort);
    let door = Door::closed();
    executor.submit("a", door.passes(0));
    let refused = executor.try_submit("a", async { 41 }).unwrap_err();
    assert_eq!(refused.reason, Reason::KeyFull { limit: 0 });
    assert_eq!(refused.task.await, 41);
    let refused = executor.post("a", async { 42 }).unwrap_err();
    assert_eq!(refused.task.await, 42);
    assert_eq!(executor.stats().rejected, 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_limit_of_its_own_key() {
    let executor = Executor::builder()
        .queue_limit_for([("a", 1)])
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    executor.submit("a", async {});
    let refused = executor.try_submit("a", async {}).unwrap_err();
    assert_eq!(refused.reason, Reason::KeyFull { limit: 1 });
}

// GC-39 ≠
#[tokio::test(start_paused = true)]
async fn caller_runs_is_in_its_turn_and_within_the_limit() {
    let executor = tight(Policy::CallerRuns);
    let (seen, peak) = (Arc::new(Mutex::new(Vec::new())), Peak::default());
    let task = |n| {
        let (seen, peak) = (seen.clone(), peak.clone());
        async move {
            let _inside = peak.enter();
            seen.lock().unwrap().push(n);
            tokio::time::sleep(MS).await;
        }
    };
    let handles: Vec<_> = (0..5).map(|n| executor.submit("a", task(n))).collect();
    // Awaited last to first: the order is the lane's all the same, as long as all are awaited.
    let mut waits = tokio::task::JoinSet::new();
    for handle in handles.into_iter().rev() {
        waits.spawn(async move { word(&handle.await) });
    }
    assert!(waits.join_all().await.iter().all(|word| *word == "done"));
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(peak.most(), 1);
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn a_caller_run_task_that_ran_to_its_end_keeps_its_result() {
    let executor = tight(Policy::CallerRuns);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    let called = executor.submit("a", async { 7 }).shared();
    door.let_in(1);
    settle().await;
    let mut polled = called.clone();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut polled).poll(&mut cx).is_pending());
    // It ran, and nobody has seen to its end yet.
    called.cancel();
    assert_eq!(called.await.ok(), Some(7));
}

// GC-39 ≠: it runs where the handle is awaited, and only there.
#[tokio::test(start_paused = true)]
async fn caller_runs_runs_only_while_the_handle_is_awaited() {
    let executor = tight(Policy::CallerRuns);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    let called = executor.submit("a", async move { tokio::task::try_id() });
    door.let_in(1);
    settle().await;
    assert!(!called.is_done(), "its turn came, but nobody awaits it");
    let waiter = tokio::spawn(async move { (tokio::task::id(), called.await.ok()) });
    let (waiter, ran_in) = waiter.await.unwrap();
    assert_eq!(ran_in, Some(Some(waiter)));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_of_a_caller_run_task_cancels_it_and_frees_the_lane() {
    let record = Record::default();
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .listener(record.clone())
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    let waiting = executor.submit("a", async {});
    let in_turn = executor.submit("a", async {});
    drop(waiting);
    door.let_in(1);
    settle().await;
    drop(in_turn);
    executor.all_idle().await;
    record.assert_balanced(3);
    assert_eq!(record.count("cancelled"), 2);
    assert!(executor.try_submit("a", async {}).unwrap().await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_caller_run_task_can_be_cancelled_in_its_turn() {
    let executor = tight(Policy::CallerRuns);
    let door = Door::closed();
    executor.submit("a", async {});
    let called = executor.submit("a", door.passes(())).shared();
    let waiter = tokio::spawn(called.clone());
    door.reached().await;
    assert!(called.cancel());
    assert_eq!(word(&waiter.await.unwrap()), "cancelled");
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn a_shared_caller_run_task_goes_on_when_one_of_those_who_await_it_goes() {
    let executor = tight(Policy::CallerRuns);
    let door = Door::closed();
    executor.submit("a", async {});
    let called = executor.submit("a", door.passes(7)).shared();
    let stays = tokio::spawn(called.clone());
    door.reached().await;
    let goes = tokio::spawn(called.clone());
    settle().await;
    goes.abort();
    settle().await;
    door.let_in(1);
    let result = tokio::time::timeout(MS, stays).await.expect("it goes on");
    assert_eq!(result.unwrap().ok(), Some(7));
}

// Whoever awaits it while somebody else polls it is woken when it has to be polled again.
#[tokio::test(start_paused = true)]
async fn a_shared_caller_run_task_woken_in_the_middle_of_a_poll_is_polled_by_whoever_is_left() {
    let executor = tight(Policy::CallerRuns);
    executor.submit("a", async {});
    let other = Arc::new(Mutex::new(None::<SharedHandle<&str, ()>>));
    let wakes = Arc::new(Wakes::default());
    let (awaits, waker) = (other.clone(), Waker::from(wakes.clone()));
    let mut polls = 0;
    let called = executor.submit(
        "a",
        std::future::poll_fn(move |cx| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            let mut other = awaits.lock().unwrap();
            let other = std::pin::Pin::new(other.as_mut().unwrap());
            assert!(other.poll(&mut Context::from_waker(&waker)).is_pending());
            Poll::Pending
        }),
    );
    let called = called.shared();
    *other.lock().unwrap() = Some(called.clone());
    let mut goes = called.clone();
    settle().await;
    assert!(poll_once(std::pin::Pin::new(&mut goes)).await.is_pending());
    drop(goes);
    assert!(wakes.0.load(Ordering::SeqCst) > 0, "nobody polls it again");
    let left = other.lock().unwrap().take().unwrap();
    assert!(left.await.is_done());
}

/// A waker that counts.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that ends at once, and whose remains are dropped when they are let.
struct Lingers {
    dropped: Option<tokio::sync::oneshot::Sender<()>>,
    let_go: mpsc::Receiver<()>,
}

impl Future for Lingers {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Drop for Lingers {
    fn drop(&mut self) {
        self.dropped.take().unwrap().send(()).unwrap();
        self.let_go.recv().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_starts_when_what_is_left_of_a_caller_run_task_is_gone() {
    let executor = tight(Policy::CallerRuns);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let (dropped, drops) = tokio::sync::oneshot::channel();
    let (go, let_go) = mpsc::channel();
    let lingers = Lingers {
        dropped: Some(dropped),
        let_go,
    };
    let called = executor.submit("a", lingers);
    let mut next = Box::pin(executor.submit_when_room("a", async {}));
    assert!(poll_once(next.as_mut()).await.is_pending());
    door.let_in(1);
    // On a thread of its own: what it wakes can run meanwhile.
    let (ends, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || ends.send(word(&called.join())));
    drops.await.unwrap();
    settle().await;
    let early = poll_once(next.as_mut()).await.is_ready();
    go.send(()).unwrap();
    assert!(!early, "the one before it was not gone");
    assert_eq!(ended.await, Ok("done"));
    assert!(next.await.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn run_all_runs_what_is_left_to_the_caller() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(0)
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .build()
        .unwrap();
    let peak = Peak::default();
    let tasks = (0..12).map(|n| (["a", "b", "c"][n % 3], peak.sleeps(MS)));
    let results = executor.run_all(tasks).await;
    assert!(results.iter().all(|result| result.is_done()));
    assert_eq!(peak.most(), 1);
}

#[test]
fn a_caller_outside_the_runtime_still_runs_in_its_context() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let executor = Executor::builder()
        .runtime(runtime.handle().clone())
        .queue_limit_per_key(0)
        .on_reject(Policy::CallerRuns)
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let called = executor.submit("a", async {
        tokio::time::sleep(MS).await;
        5
    });
    door.let_in(1);
    assert_eq!(called.join().ok(), Some(5));
}

// GC-39: the original
#[tokio::test(start_paused = true)]
async fn run_unlimited_runs_at_once_outside_limits_and_order() {
    let executor = tight(Policy::RunUnlimited);
    let door = Door::closed();
    executor.submit("a", door.passes(0));
    door.reached().await;
    assert_eq!(executor.submit("a", async { 1 }).await.ok(), Some(1));
    let running = executor.submit("a", std::future::pending::<i32>());
    settle().await;
    assert!(running.cancel());
    assert_eq!(word(&running.await), "cancelled");
}

#[tokio::test(start_paused = true)]
async fn run_unlimited_contains_and_counts_a_panic() {
    let executor = tight(Policy::RunUnlimited);
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let result = executor.submit("a", async { panic!("outside") }).await;
    assert_eq!(word(&result), "failed");
    assert_eq!(executor.stats().panics, 1);
}

// GC-40
#[tokio::test(start_paused = true)]
async fn a_handlers_answer_is_the_handles_and_wins_over_the_policy() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::Discard)
        .reject_with(|rejection| match rejection.id.as_deref() {
            Some("value") => Decision::Value(Box::new(99)),
            Some("type") => Decision::Value(Box::new("not a number")),
            Some("fail") => Decision::Fail("enough".into()),
            Some("panic") => panic!("handler"),
            _ => Decision::Follow(Policy::Abort),
        })
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(0));
    let submit = |id: &'static str| executor.task("a").id(id).submit(async { 1 });
    assert_eq!(submit("value").await.ok(), Some(99));
    assert_eq!(reason(&submit("type").await), Some(Reason::WrongType));
    assert_eq!(word(&submit("fail").await), "failed");
    assert_eq!(
        reason(&submit("panic").await),
        Some(Reason::HandlerPanicked("handler".into()))
    );
    assert_eq!(word(&submit("policy").await), "failed");
    assert_eq!(executor.stats().panics, 1);
}

// GC-65
#[tokio::test(start_paused = true)]
async fn a_refused_task_holds_no_permit_while_the_handler_runs() {
    let inside = Arc::new(Mutex::new(None::<Executor<&'static str>>));
    let (asks, seen) = (inside.clone(), Arc::new(AtomicUsize::new(0)));
    let running = seen.clone();
    let executor = Executor::builder()
        .concurrency(2)
        .queue_limit(0)
        .queue_limit_per_key(0)
        .reject_with(move |_| {
            let executor = asks.lock().unwrap().clone().expect("set before any task");
            running.store(executor.stats().running, Ordering::SeqCst);
            // There is a permit for another key, though a task of this one was just refused.
            assert!(executor.post("b", async {}).is_ok());
            Decision::Follow(Policy::Discard)
        })
        .build()
        .unwrap();
    *inside.lock().unwrap() = Some(executor.clone());
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    assert_eq!(word(&executor.submit("a", async {}).await), "rejected");
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    assert_eq!(executor.stats().panics, 0);
    inside.lock().unwrap().take();
}

// GC-31, GC-32
#[tokio::test(start_paused = true)]
async fn after_many_rounds_of_refusals_all_permits_are_back() {
    for policy in [
        Policy::Abort,
        Policy::Discard,
        Policy::CallerRuns,
        Policy::RunUnlimited,
    ] {
        let executor = Executor::builder()
            .concurrency(3)
            .lane_concurrency(2)
            .queue_limit(2)
            .queue_limit_per_key(1)
            .on_reject(policy)
            .build()
            .unwrap();
        for round in 0..50 {
            let tasks = (0..20).map(|n| (n * 7 % 5, async { tokio::time::sleep(MS).await }));
            let results = executor.run_all(tasks).await;
            assert_eq!(results.len(), 20, "round {round}");
            executor.all_idle().await;
            assert_nothing_left(&executor);
        }
        let peak = Peak::default();
        let full = (0..3).map(|key| (key, peak.sleeps(MS)));
        executor.run_all(full).await;
        assert_eq!(peak.most(), 3, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn submit_when_room_keeps_its_place_and_later_submits_of_its_key_are_refused() {
    let executor = tight(Policy::Discard);
    let door = Door::closed();
    executor.submit("a", door.passes(0));
    door.reached().await;
    let mut waiting = Box::pin(executor.submit_when_room("a", door.passes(1)));
    assert!(poll_once(waiting.as_mut()).await.is_pending());
    door.let_in(1);
    let handle = waiting.await;
    assert_eq!(
        word(&executor.submit("a", door.passes(2)).await),
        "rejected"
    );
    door.let_in(1);
    assert_eq!(handle.await.ok(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_wait_for_room_frees_its_place() {
    let record = Record::default();
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .listener(record.clone())
        .build()
        .unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    door.reached().await;
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let mut waiting = Box::pin(executor.submit_when_room("a", async move {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    assert!(poll_once(waiting.as_mut()).await.is_pending());
    let mut behind = Box::pin(executor.submit_when_room("a", async {}));
    assert!(poll_once(behind.as_mut()).await.is_pending());
    drop(waiting);
    assert_eq!(executor.stats().queued, 1);
    door.let_in(1);
    assert!(behind.await.await.is_done());
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    record.assert_balanced(3);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_room_never_polled_takes_no_place() {
    let record = Record::default();
    let executor = Executor::builder()
        .listener(record.clone())
        .build()
        .unwrap();
    drop(executor.submit_when_room("a", async {}));
    record.assert_balanced(0);
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn waits_for_room_of_all_come_in_as_they_asked() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(0)
        .build()
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let door = Door::closed();
    executor.submit(100, door.passes(()));
    door.reached().await;
    let mut waits = tokio::task::JoinSet::new();
    for key in 0..10 {
        let (executor, noted) = (executor.clone(), seen.clone());
        waits.spawn(async move {
            let task = async move { noted.lock().unwrap().push(key) };
            executor.submit_when_room(key, task).await.await;
        });
        settle().await;
    }
    door.let_in(1);
    waits.join_all().await;
    assert_eq!(*seen.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_wait_for_room() {
    let executor = tight(Policy::Abort);
    executor.submit("a", std::future::pending::<()>());
    let mut waiting = Box::pin(executor.submit_when_room("a", async {}));
    assert!(poll_once(waiting.as_mut()).await.is_pending());
    let left = executor.shutdown(MS).await;
    assert_eq!((left.waiting, left.running), (1, 1));
    assert_eq!(why(&waiting.await.await), Some(keylane::Why::ShutDown));
    let late = executor.submit_when_room("a", async {}).await.await;
    assert_eq!(reason(&late), Some(Reason::ShutDown));
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}
