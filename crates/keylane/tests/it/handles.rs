//! Handles and results: waiting, cancelling, deadlines, times.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use keylane::{
    Cancelled, Executor, Limits, Policy, SharedHandle, Status, TaskError, TaskHandle, Why,
    blocking, fallible,
};

use crate::support::{Door, MS, assert_nothing_left, executor, one_worker, settle, why, word};

type Answer = Result<u32, Box<dyn Error + Send + Sync>>;

// GC-3
#[tokio::test(start_paused = true)]
async fn run_all_answers_one_result_per_task_in_input_order() {
    let executor = Executor::builder()
        .queue_limit_for([("full", 0)])
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    let task = |answer: Answer, time: u32| {
        fallible(async move {
            tokio::time::sleep(time * MS).await;
            answer
        })
    };
    let tasks = [
        ("a", task(Ok(1), 30)),
        ("b", task(Err("broken".into()), 20)),
        ("c", task(Ok(3), 10)),
        ("full", task(Ok(4), 5)),
        ("full", task(Ok(5), 5)),
    ];
    let results = executor.run_all(tasks).await;
    let words: Vec<_> = results.iter().map(word).collect();
    assert_eq!(words, ["done", "failed", "done", "done", "rejected"]);
    assert!(matches!(&results[1].status, Status::Failed(error) if error.to_string() == "broken"));
    let values: Vec<_> = results.into_iter().map(|result| result.ok()).collect();
    assert_eq!(values, [Some(1), None, Some(3), Some(4), None]);
}

#[tokio::test(start_paused = true)]
async fn run_all_cancels_what_has_not_ended_at_its_deadline() {
    let executor = executor();
    let nap = |time: u32| async move { tokio::time::sleep(time * MS).await };
    let tasks = [("a", nap(5)), ("a", nap(20)), ("a", nap(1)), ("b", nap(2))];
    let results = executor.run_all(tasks).deadline(10 * MS).await;
    let words: Vec<_> = results.iter().map(word).collect();
    assert_eq!(words, ["done", "cancelled", "cancelled", "done"]);
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn run_all_ends_when_its_token_says_so() {
    let executor = executor();
    let door = Door::closed();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let tasks = [("a", door.passes(1)), ("b", door.passes(2))];
    let all = executor.run_all(tasks).deadline(100 * MS);
    let all = tokio::spawn(
        all.until(async move {
            let _ = stopped.await;
        })
        .into_future(),
    );
    door.reached().await;
    door.reached().await;
    door.let_in(1);
    settle().await;
    stop.send(()).unwrap();
    let results = all.await.unwrap();
    let words: Vec<_> = results.iter().map(word).collect();
    assert_eq!(words, ["done", "cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn run_all_of_nothing_is_nothing() {
    let none: Vec<(&str, std::future::Ready<()>)> = Vec::new();
    assert!(executor().run_all(none).await.is_empty());
}

// GC-11 ≠
#[tokio::test(start_paused = true)]
async fn a_cancelled_running_task_is_stopped_at_its_next_await() {
    let executor = executor();
    let gone = Arc::new(AtomicBool::new(false));
    let flag = DropFlag(gone.clone());
    let door = Door::closed();
    let passes = door.passes(());
    let running = executor.submit("a", async move {
        let _flag = flag;
        passes.await;
        unreachable!("it was cancelled");
    });
    let behind = executor.submit("a", async { 2 });
    door.reached().await;
    assert!(running.cancel());
    assert_eq!(why(&running.await), Some(Why::Asked));
    assert!(
        gone.load(Ordering::SeqCst),
        "dropped before the result is seen"
    );
    assert_eq!(behind.await.ok(), Some(2));
    assert_nothing_left(&executor);
}

struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// GC-28 ≠
#[tokio::test(start_paused = true)]
async fn a_cancelled_waiting_task_frees_its_place_at_once() {
    let executor = Executor::builder().queue_limit_per_key(1).build().unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(1));
    door.reached().await;
    let waiting = executor.submit("a", async { 2 });
    assert!(executor.try_submit("a", async { 3 }).is_err());
    assert!(waiting.cancel());
    assert!(waiting.is_done());
    let behind = executor.try_submit("a", async { 3 }).unwrap();
    door.let_in(1);
    assert_eq!(behind.await.ok(), Some(3));
    let result = waiting.await;
    assert_eq!((why(&result), result.started), (Some(Why::Asked), None));
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_task_that_has_ended_says_no() {
    let executor = executor();
    let mut handle = executor.submit("a", async {});
    assert!((&mut handle).await.is_done());
    assert!(!handle.cancel());
    assert!(!handle.cancel_if_waiting());
    assert!(handle.is_done(), "also after its result was taken");
}

#[tokio::test(start_paused = true)]
async fn cancel_if_waiting_leaves_a_running_task_alone() {
    let executor = executor();
    let door = Door::closed();
    let running = executor.submit("a", door.passes(1));
    door.reached().await;
    assert!(!running.cancel_if_waiting());
    door.let_in(1);
    assert_eq!(running.await.ok(), Some(1));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "result was taken")]
async fn awaiting_a_handle_again_after_its_result_was_taken_panics_instead_of_hanging() {
    let executor = executor();
    let mut handle = executor.submit("a", async {});
    (&mut handle).await;
    (&mut handle).await;
}

// GC-18
#[tokio::test(start_paused = true)]
async fn waiting_with_a_timeout_ends_the_wait_and_not_the_task() {
    let executor = executor();
    let mut handle = executor.submit("a", async {
        tokio::time::sleep(10 * MS).await;
        7
    });
    let early = handle.wait_timeout(MS).await;
    assert_eq!(why(&early), Some(Why::WaitedLongEnough));
    assert_eq!(handle.wait_timeout(100 * MS).await.ok(), Some(7));
    let stats = executor.stats();
    assert_eq!((stats.done, stats.cancelled), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handle_cancels_nothing() {
    let executor = executor();
    let door = Door::closed();
    drop(executor.submit("a", door.passes(())));
    door.reached().await;
    door.let_in(1);
    executor.all_idle().await;
    assert_eq!(executor.stats().done, 1);
}

#[tokio::test(start_paused = true)]
async fn a_shared_handle_gives_its_result_to_all() {
    let executor = executor();
    let door = Door::closed();
    let shared = executor.submit("a", door.passes(5)).shared();
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(shared.clone())).collect();
    settle().await;
    door.let_in(1);
    for wait in waits {
        assert_eq!(wait.await.unwrap().ok(), Some(5));
    }
    assert_eq!(shared.clone().await.ok(), Some(5));
    assert_eq!((shared.key(), shared.is_done()), (Some(&"a"), true));
}

#[tokio::test(start_paused = true)]
async fn one_of_many_who_wait_can_do_so_with_a_timeout() {
    let executor = executor();
    let door = Door::closed();
    let shared = executor.submit("a", door.passes(5)).shared();
    let all = tokio::spawn(shared.clone());
    let early = shared.wait_timeout(MS).await;
    assert_eq!(why(&early), Some(Why::WaitedLongEnough));
    door.let_in(1);
    assert_eq!(shared.wait_timeout(MS).await.ok(), Some(5));
    assert_eq!(shared.wait_timeout(MS).await.ok(), Some(5), "and again");
    assert_eq!(all.await.unwrap().ok(), Some(5));
}

/// A waker that is counted while it is kept.
struct Kept(Arc<AtomicUsize>);

impl Kept {
    fn waker(alive: &Arc<AtomicUsize>) -> Waker {
        alive.fetch_add(1, Ordering::SeqCst);
        Waker::from(Arc::new(Self(alive.clone())))
    }
}

impl Wake for Kept {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn waits_that_were_given_up_leave_no_waker_behind() {
    let executor = executor();
    let mut handle = executor.submit("a", std::future::pending::<()>());
    let alive = Arc::new(AtomicUsize::new(0));
    for _ in 0..100 {
        let waker = Kept::waker(&alive);
        let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert_eq!(alive.load(Ordering::SeqCst), 1, "of one who awaits");
    let shared = handle.shared();
    for _ in 0..100 {
        let waker = Kept::waker(&alive);
        let polled = Pin::new(&mut shared.clone()).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert!(alive.load(Ordering::SeqCst) <= 1, "of many who awaited");
}

/// Calls a function when it is cloned.
struct Calls(Arc<dyn Fn() + Send + Sync>);

impl Clone for Calls {
    fn clone(&self) -> Self {
        (self.0)();
        Self(self.0.clone())
    }
}

/// A shared handle, done, whose value calls `on_clone` with a clone of that handle.
async fn shared_calls(
    on_clone: impl Fn(SharedHandle<&'static str, Calls>) + Send + Sync + 'static,
) -> SharedHandle<&'static str, Calls> {
    let executor = executor();
    let place = Arc::new(Mutex::new(None::<SharedHandle<&'static str, Calls>>));
    let own = place.clone();
    let calls = Calls(Arc::new(move || {
        let own = own.lock().unwrap().clone();
        on_clone(own.unwrap());
    }));
    let handle = executor.submit("a", async move { calls }).shared();
    *place.lock().unwrap() = Some(handle.clone());
    executor.all_idle().await;
    handle
}

/// On a thread and a clock of its own, so that what waits for itself is noticed. Only a failure waits
/// that long.
fn in_time(test: impl Future<Output = ()> + Send + 'static) {
    let (ends, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(test);
        ends.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(5));
    assert!(ended.is_ok(), "it waits for itself");
}

#[test]
fn a_value_may_look_at_its_handle_while_it_is_cloned() {
    in_time(async {
        let handle = shared_calls(|own| assert!(own.is_done())).await;
        assert!(handle.await.is_done());
    });
}

#[test]
fn whoever_asks_while_a_value_is_cloned_gets_it_afterwards() {
    in_time(async {
        let waits = Arc::new(Mutex::new(None));
        let woken = Arc::new(Woken::default());
        let (place, waker) = (waits.clone(), Waker::from(woken.clone()));
        let first = AtomicBool::new(true);
        let handle = shared_calls(move |mut own| {
            if first.swap(false, Ordering::SeqCst) {
                let polled = Pin::new(&mut own).poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending() && own.is_done());
                *place.lock().unwrap() = Some(own);
            }
        })
        .await;
        assert!(handle.await.is_done());
        assert!(woken.0.load(Ordering::SeqCst), "it is there again");
        let other = waits.lock().unwrap().take();
        assert!(other.unwrap().await.is_done());
    });
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_panics_while_it_is_cloned_stays_for_others() {
    let first = AtomicBool::new(true);
    let handle = shared_calls(move |_| {
        assert!(!first.swap(false, Ordering::SeqCst), "not this time");
    })
    .await;
    let harmed = tokio::spawn(handle.clone()).await.err();
    assert!(harmed.is_some_and(|error| error.is_panic()));
    assert!(handle.is_done());
    assert!(handle.await.is_done());
}

#[test]
fn a_thread_can_block_on_a_result() {
    let runtime = one_worker();
    let executor = Executor::builder()
        .runtime(runtime.handle().clone())
        .build()
        .unwrap();
    let first = executor.submit("a", async {
        tokio::task::yield_now().await;
        1
    });
    let second = executor.submit("a", async { 2 });
    assert_eq!(second.join().ok(), Some(2));
    assert_eq!(first.join().ok(), Some(1));
}

// Duration counts from the moment all permits are held; waiting is reported beside it.
#[tokio::test(start_paused = true)]
async fn a_result_says_how_long_it_waited_and_ran() {
    let executor = executor();
    let nap = |time: u32| async move { tokio::time::sleep(time * MS).await };
    let first = executor.submit("a", nap(30));
    let second = executor.task("a").id("second").submit(nap(20));
    let third = executor.submit("a", nap(1));
    tokio::time::sleep(10 * MS).await;
    third.cancel();
    let first = first.await;
    assert_eq!((first.waited, first.ran), (Duration::ZERO, 30 * MS));
    let second = second.await;
    assert_eq!((second.waited, second.ran), (30 * MS, 20 * MS));
    assert_eq!(second.id.as_deref(), Some("second"));
    assert_eq!(second.ended - second.started.unwrap(), 20 * MS);
    let third = third.await;
    assert_eq!((third.waited, third.ran), (10 * MS, Duration::ZERO));
}

// On the real clock: what is compared are points in time, not how long anything takes.
#[tokio::test]
async fn a_task_begins_after_whatever_ran_before_it() {
    let executor = executor();
    // Once it is known that tasks are short, several are started at a time.
    let short = (0..200).map(|_| ("a", std::future::ready(())));
    executor.run_all(short).await;
    let first = executor.submit("a", async {});
    let between = Arc::new(Mutex::new(None));
    let note = between.clone();
    executor
        .post("b", async move {
            *note.lock().unwrap() = Some(std::time::Instant::now());
        })
        .unwrap();
    let (second, third) = (
        executor.submit("c", async {}),
        executor.submit("d", async {}),
    );
    let (first, second, third) = (first.await, second.await, third.await);
    let between = between.lock().unwrap().unwrap();
    let begun = [&second, &third].map(|result| result.started.unwrap());
    assert!(first.ended <= between && between <= begun[0], "{begun:?}");
    assert!(begun[0] <= second.ended && second.ended <= begun[1]);
    assert!(begun[1] <= third.ended);
}

// Cancelled also when the task itself says so.
#[tokio::test(start_paused = true)]
async fn a_task_can_say_that_it_was_cancelled() {
    let executor = executor();
    let task = fallible(async { Err::<(), _>(Cancelled) });
    assert_eq!(why(&executor.submit("a", task).await), Some(Why::ItSaid));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_kept_as_the_failures_source() {
    let task = fallible(async { Err::<(), _>(std::io::Error::other("disk")) });
    let result = executor().submit("a", task).await;
    let Status::Failed(error) = result.status else {
        panic!("not failed");
    };
    assert!(matches!(error, TaskError::Failed(_)));
    assert!(error.source().unwrap().is::<std::io::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_task_that_waits_and_one_that_runs() {
    let executor = executor();
    let with = |time: u32| executor.task("a").deadline(time * MS);
    let runs = with(10).submit(std::future::pending::<()>());
    let waits = with(5).submit(async {});
    let behind = with(20).submit(async {});
    let waits = waits.await;
    assert_eq!((why(&waits), waits.waited), (Some(Why::Deadline), 5 * MS));
    let runs = runs.await;
    assert_eq!((why(&runs), runs.ran), (Some(Why::Deadline), 10 * MS));
    assert!(behind.await.is_done());
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_an_ended_task_does_nothing() {
    let executor = executor();
    let handle = executor.task("a").deadline(MS).submit(async {});
    assert!(handle.await.is_done());
    tokio::time::sleep(5 * MS).await;
    assert_eq!(executor.stats().cancelled, 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_a_task_that_is_refused_leaves_no_timer() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::Discard)
        .build()
        .unwrap();
    executor.submit("a", std::future::pending::<()>());
    settle().await;
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    let late = executor.task("a").deadline(MS).submit(async {});
    assert_eq!(word(&late.await), "rejected");
    settle().await;
    assert_eq!(tasks.num_alive_tasks(), before);
}

#[test]
fn shutdown_and_waits_with_a_limit_need_no_timers_of_whoever_waits() {
    let runtime = one_worker();
    let builder = Executor::builder().runtime(runtime.handle().clone());
    let executor = builder.build().unwrap();
    let elsewhere = tokio::runtime::Builder::new_current_thread().build();
    let elsewhere = elsewhere.unwrap();
    let most = Duration::from_secs(9);
    let mut handle = executor.submit("a", async { 1 });
    let waited = elsewhere.block_on(handle.wait_timeout(most));
    assert_eq!(waited.ok(), Some(1));
    let all = executor.run_all([("a", async { 2 })]).deadline(most);
    let all = elsewhere.block_on(all.into_future());
    assert!(all[0].is_done());
    let left = elsewhere.block_on(executor.shutdown(most));
    assert!(left.is_nothing());
}

#[test]
fn a_wait_with_a_limit_ends_well_when_the_runtime_of_the_task_goes() {
    let runtime = one_worker();
    let builder = Executor::builder().runtime(runtime.handle().clone());
    let executor = builder.build().unwrap();
    let mut handle = executor.submit("a", std::future::pending::<()>());
    let elsewhere = tokio::runtime::Builder::new_current_thread().build();
    let waits = std::thread::spawn(move || {
        let most = Duration::from_secs(60);
        elsewhere.unwrap().block_on(handle.wait_timeout(most))
    });
    drop(runtime);
    assert_eq!(why(&waits.join().unwrap()), Some(Why::ShutDown));
}

// ≠ A result is visible only after its permits are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sees_a_result_finds_its_permits_free() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(0)
        .queue_limit_per_key(0)
        .build()
        .unwrap();
    for round in 0..20_000 {
        let task = async move {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
        };
        let handle = executor.try_submit("a", task);
        assert!(handle.expect("the permit is free").await.is_done());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sees_a_cancelled_result_finds_its_permits_free() {
    let executor = Executor::builder()
        .concurrency(1)
        .queue_limit(0)
        .queue_limit_per_key(0)
        .build()
        .unwrap();
    for round in 0..5_000 {
        let handle = executor.try_submit("a", std::future::pending::<()>());
        let handle = handle.expect("the permit is free");
        if round % 3 != 0 {
            tokio::task::yield_now().await;
        }
        assert!(handle.cancel());
        assert_eq!(word(&handle.await), "cancelled");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_waits_for_one_key_and_all_idle_for_all() {
    let executor = executor();
    executor.idle(&"nobody").await;
    executor.all_idle().await;
    let (a, b) = (Door::closed(), Door::closed());
    let first = executor.submit("a", a.passes(()));
    executor.submit("b", b.passes(()));
    let (one, all) = (executor.clone(), executor.clone());
    let idle = tokio::spawn(async move { one.idle(&"a").await });
    let all_idle = tokio::spawn(async move { all.all_idle().await });
    settle().await;
    assert!(!idle.is_finished());
    a.let_in(1);
    idle.await.unwrap();
    assert!(first.is_done());
    settle().await;
    assert!(!all_idle.is_finished());
    b.let_in(1);
    all_idle.await.unwrap();
    assert_nothing_left(&executor);
}

#[tokio::test(start_paused = true)]
async fn idle_also_comes_when_the_last_one_is_cancelled_evicted_or_dropped() {
    let executor = executor();
    executor.pause(&"a");
    let waiting = executor.submit("a", async {});
    let idle = executor.idle(&"a");
    waiting.cancel();
    idle.await;
    executor.submit("a", async {});
    let waits = executor.clone();
    let idle = tokio::spawn(async move { waits.idle(&"a").await });
    settle().await;
    executor.evict(&"a");
    idle.await.unwrap();
    executor.all_idle().await;
}

// What was submitted before the last one ended waits, however far it has come.
#[tokio::test(start_paused = true)]
async fn a_key_is_not_idle_while_a_submit_of_it_is_behind_many_others() {
    let executor = Executor::<u32>::builder().build().unwrap();
    let door = Door::closed();
    let first = executor.submit(0, door.passes(()));
    let waits = executor.clone();
    let idle = tokio::spawn(async move { waits.idle(&0).await });
    settle().await;
    door.let_in(1);
    for key in 1..1000 {
        executor.post(key, async {}).unwrap();
    }
    let second = executor.submit(0, door.passes(()));
    settle().await;
    assert!(first.is_done() && !idle.is_finished());
    door.let_in(1);
    idle.await.unwrap();
    assert!(second.is_done());
}

// When all is idle, every result is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_is_idle_every_result_can_be_seen_and_is_counted() {
    let executor = Executor::builder().build().unwrap();
    for round in 1..=3_000_u64 {
        let handle = executor.submit("a", async move {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
        });
        executor.all_idle().await;
        assert!(handle.is_done(), "round {round}");
        assert_eq!(executor.stats().done, round);
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_work_runs_off_the_workers_in_its_turn() {
    let executor = executor();
    let worker = std::thread::current().id();
    let first = executor.submit("a", blocking(move || std::thread::current().id() != worker));
    let second = executor.submit("a", async { 2 });
    assert_eq!(first.await.ok(), Some(true));
    assert_eq!(second.await.ok(), Some(2));
}

// Blocking work cannot be stopped: its lane waits for it.
#[tokio::test(start_paused = true)]
async fn cancelled_blocking_work_keeps_its_lane_until_it_returns() {
    let executor = executor();
    let (go, wait) = mpsc::channel::<()>();
    let (started, seen) = tokio::sync::oneshot::channel();
    let work = executor.submit(
        "a",
        blocking(move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
            5
        }),
    );
    let behind = executor.submit("a", async {});
    seen.await.unwrap();
    work.cancel();
    executor.shutdown_key(&"b", keylane::Mode::Now);
    settle().await;
    assert!(!work.is_done() && !behind.is_done());
    assert_eq!(executor.stats_of(&"a").unwrap().running, 1);
    go.send(()).unwrap();
    assert_eq!(work.await.ok(), Some(5), "it came to an end after all");
    assert!(behind.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn blocking_work_cancelled_while_it_waits_never_runs() {
    let executor = executor();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    let work = executor.submit("a", blocking(move || flag.store(true, Ordering::SeqCst)));
    assert!(work.cancel());
    door.let_in(1);
    executor.all_idle().await;
    assert!(!ran.load(Ordering::SeqCst));
}

// What is taken together starts one by one: one of them may cancel the next.
#[tokio::test(start_paused = true)]
async fn blocking_work_cancelled_before_it_began_never_runs() {
    let executor = executor();
    // Once it is known that tasks are short, several are started at a time.
    let short = (0..200).map(|_| ("a", std::future::ready(())));
    executor.run_all(short).await;
    let next = Arc::new(Mutex::new(None::<TaskHandle<&str, ()>>));
    let cancels = next.clone();
    let first = executor.submit("a", async move {
        let next = cancels.lock().unwrap().take().unwrap();
        (next.cancel(), why(&next.await))
    });
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    let work = blocking(move || runs.store(true, Ordering::SeqCst));
    *next.lock().unwrap() = Some(executor.submit("b", work));
    assert_eq!(first.await.ok(), Some((true, Some(Why::Asked))));
    executor.all_idle().await;
    assert!(!ran.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn blocking_work_outside_the_limits_cancelled_before_it_began_never_runs() {
    let executor = Executor::builder()
        .queue_limit_per_key(0)
        .on_reject(Policy::RunUnlimited)
        .build()
        .unwrap();
    executor.submit("a", std::future::pending::<()>());
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    let work = executor.submit("a", blocking(move || runs.store(true, Ordering::SeqCst)));
    assert!(work.cancel());
    assert_eq!(why(&work.await), Some(Why::Asked));
    assert!(!ran.load(Ordering::SeqCst));
}

// GC-40/limits: a key's own limits hold for the lane that is made while the old one goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_keeps_its_own_limit_when_a_submit_meets_its_last_tasks_end() {
    let executor = Executor::builder()
        .lane_concurrency(8)
        .lane_concurrency_for([("a", 1)])
        .build()
        .unwrap();
    for _ in 0..20_000 {
        let ended = executor.submit("a", async {});
        assert_eq!(executor.limits_of(&"a").concurrency, 1);
        let next = executor.submit("a", tokio::task::yield_now());
        let limit = executor
            .stats_of(&"a")
            .map(|stats| stats.limits.concurrency);
        assert!(matches!(limit, None | Some(1)), "{limit:?}");
        ended.await;
        next.await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_set_while_a_function_is_asked_hold_for_what_it_was_asked_for() {
    let inside = Arc::new(Mutex::new(None::<Executor<&'static str>>));
    let asks = inside.clone();
    let executor = Executor::builder()
        .queue_limit_per_key(5)
        .lane_concurrency_by(move |_: &&str| {
            // Somebody lowers the queue limit at this very moment.
            if let Some(executor) = asks.lock().unwrap().take() {
                let limits = Limits {
                    queue_limit_per_key: Some(0),
                    ..executor.limits()
                };
                executor.set_limits(limits).unwrap();
            }
            1
        })
        .build()
        .unwrap();
    *inside.lock().unwrap() = Some(executor.clone());
    executor.submit("a", std::future::pending::<()>());
    assert!(executor.try_submit("a", async {}).is_err());
}
