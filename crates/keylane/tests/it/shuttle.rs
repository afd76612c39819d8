//! The executor's interleavings, explored by shuttle: every lock and every spawned task is a point
//! at which another task may go on. `RUSTFLAGS="--cfg keylane_shuttle"` builds it so.
//!
//! A lost wake-up or a lost permit shows as a deadlock, which shuttle reports. There is no clock
//! here, so nothing that needs one: no holds until a time, no rates, no deadlines.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::shuttle::future::{block_on, spawn, yield_now};
use ::shuttle::sync::{Condvar, Mutex as ShuttleMutex};
use keylane::{Executor, Handler, Mode, Permits, Policy, Queued, Reason, Reply, Status};

/// How often each scenario is run with each scheduler.
const RUNS: usize = 2_000;
/// Longer than anything takes; there is no clock.
const EVER: Duration = Duration::from_secs(1);

fn explore<F: Future<Output = ()> + 'static>(scenario: impl Fn() -> F + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    let same = scenario.clone();
    ::shuttle::check_random(move || block_on(same()), RUNS);
    ::shuttle::check_pct(move || block_on(scenario()), RUNS, 3);
}

/// What runs of one key, and in which order it started.
#[derive(Clone, Default)]
struct Watch {
    running: Arc<AtomicUsize>,
    started: Arc<Mutex<Vec<usize>>>,
}

impl Watch {
    /// A task that is in the way of every other while it runs.
    fn task(&self, n: usize) -> impl Future<Output = usize> + Send + use<> + 'static {
        let watch = self.clone();
        async move {
            let _alone = watch.enter(n);
            yield_now().await;
            n
        }
    }

    fn enter(&self, n: usize) -> Alone {
        assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "overlap");
        self.started.lock().unwrap().push(n);
        Alone(self.running.clone())
    }

    fn started(&self) -> Vec<usize> {
        self.started.lock().unwrap().clone()
    }
}

struct Alone(Arc<AtomicUsize>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn assert_nothing_left(executor: &Executor<u8>) {
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (0, 0, 0));
}

/// Two submitters of one key, two tasks each, with whatever limits the executor has.
async fn two_submitters(executor: Executor<u8>) {
    let watch = Watch::default();
    let submitter = |from: usize| {
        let (executor, watch) = (executor.clone(), watch.clone());
        spawn(async move {
            let first = executor.submit(0, watch.task(from));
            let second = executor.submit(0, watch.task(from + 1));
            assert!(second.await.is_done());
            // Seen in any order: whoever reported the first may not have come to letting it be seen.
            assert!(first.await.is_done());
        })
    };
    let both = [submitter(0), submitter(10)];
    for submitter in both {
        submitter.await.unwrap();
    }
    let started = watch.started();
    assert_eq!(started.len(), 4);
    for from in [0, 10] {
        let of = |n| started.iter().position(|started| *started == n);
        assert!(of(from) < of(from + 1), "{started:?}");
    }
    assert_nothing_left(&executor);
}

#[test]
fn a_submit_that_meets_the_last_tasks_end_is_neither_lost_nor_overlapping() {
    explore(|| two_submitters(Executor::builder().build().unwrap()));
}

/// More than a runner takes in at once.
const MANY: usize = 9;

/// Posts many tasks of one key to an executor and waits until it is idle, beside somebody who looks
/// at its lanes meanwhile, for which everything has to be there.
#[test]
fn many_submits_are_all_waited_for_and_start_in_their_order() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let watch = Watch::default();
        let (submitter, tasks) = (executor.clone(), watch.clone());
        let submits = spawn(async move {
            for n in 0..MANY {
                submitter.post(0, tasks.task(n)).unwrap();
            }
            submitter.all_idle().await;
            assert_eq!(tasks.started().len(), MANY, "not all were waited for");
        });
        let looking = executor.clone();
        let looks = spawn(async move {
            for _ in 0..2 {
                assert!(looking.stats().running <= 1);
                yield_now().await;
            }
        });
        submits.await.unwrap();
        looks.await.unwrap();
        assert_eq!(watch.started(), (0..MANY).collect::<Vec<_>>());
        assert_nothing_left(&executor);
    });
}

/// The same with a key for each, all of which may run at once.
#[test]
fn many_submits_of_many_keys_are_all_waited_for() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for n in 0..MANY {
            let ran = ran.clone();
            let task = async move {
                yield_now().await;
                ran.fetch_add(1, Ordering::SeqCst);
            };
            executor.post(n as u8, task).unwrap();
        }
        executor.all_idle().await;
        assert_eq!(ran.load(Ordering::SeqCst), MANY, "not all were waited for");
        assert_nothing_left(&executor);
    });
}

/// What cannot start yet is taken in before what can.
#[test]
fn what_was_submitted_behind_a_paused_key_starts() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let watch = Watch::default();
        executor.pause(&0);
        for n in 0..3 {
            executor.post(0, watch.task(n)).unwrap();
        }
        assert!(executor.submit(1, async {}).await.is_done());
        assert!(watch.started().is_empty());
    });
}

/// Somebody takes in a part of what was submitted, and goes on with something that waits for the
/// rest.
#[test]
fn what_is_half_way_in_when_the_last_runner_retires_starts() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let first = executor.submit(0, async { yield_now().await });
        yield_now().await;
        let second = executor.submit(0, async move { receiver.await.is_ok() });
        executor.post(0, async {}).unwrap();
        let other = async move { sender.send(()).unwrap() };
        executor.post(1, other).unwrap();
        assert!(first.await.is_done());
        assert!(second.await.ok().expect("it ran"));
    });
}

// The submits go straight to the lanes, past the inbox: only `again` tells a runner that retires.
#[test]
fn a_runner_that_retires_sees_what_became_ready_meanwhile() {
    explore(|| {
        let builder = Executor::builder().queue_limit_per_key(10);
        two_submitters(builder.build().unwrap())
    });
}

#[test]
fn an_end_does_not_wait_for_what_its_collector_starts() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let seen = Arc::new((ShuttleMutex::new(false), Condvar::new()));
        let first = executor.submit(0, yield_now());
        let other = executor.submit(1, yield_now());
        let gate = seen.clone();
        let behind = executor.submit(0, async move {
            let (seen, changed) = &*gate;
            let seen = seen.lock().unwrap();
            drop(changed.wait_while(seen, |seen| !*seen).unwrap());
        });
        assert!(other.await.is_done());
        *seen.0.lock().unwrap() = true;
        seen.1.notify_all();
        assert!(first.await.is_done() && behind.await.is_done());
        assert_nothing_left(&executor);
    });
}

#[test]
fn a_lane_made_while_the_old_one_ends_has_its_keys_own_limit() {
    explore(|| {
        let builder = Executor::builder().lane_concurrency(8);
        two_submitters(builder.lane_concurrency_for([(0, 1)]).build().unwrap())
    });
}

// The first task may end between any two steps of the second's submit, and its lane with it.
#[test]
fn a_submit_that_meets_its_lanes_end_asks_for_the_keys_limit_again() {
    explore(|| async {
        let builder = Executor::builder().lane_concurrency(8);
        let executor = builder.lane_concurrency_for([(0, 1)]).build().unwrap();
        let watch = Watch::default();
        let first = executor.submit(0, watch.task(0));
        let rest = [1, 2].map(|n| executor.submit(0, watch.task(n)));
        for handle in rest {
            assert!(handle.await.is_done());
        }
        assert!(first.await.is_done());
        assert_eq!(watch.started(), [0, 1, 2]);
    });
}

#[test]
fn a_cancel_that_meets_the_start_stops_the_task_or_comes_too_late() {
    explore(|| async {
        let executor = Executor::builder().concurrency(1).build().unwrap();
        let watch = Watch::default();
        let inside = watch.clone();
        let endless = async move {
            let _alone = inside.enter(0);
            std::future::pending::<()>().await;
        };
        let first = executor.submit(0, endless).shared();
        let cancelled = executor.submit(0, watch.task(1)).shared();
        let last = executor.submit(0, watch.task(2));
        let (a, b) = (first.clone(), cancelled.clone());
        let cancels = spawn(async move { (a.cancel(), b.cancel_if_waiting()) });
        let (asked, waited) = cancels.await.unwrap();
        assert!(asked);
        assert!(matches!(first.await.status, Status::Cancelled(_)));
        let result = cancelled.await;
        assert_eq!(waited, matches!(result.status, Status::Cancelled(_)));
        assert_eq!(waited, !watch.started().contains(&1));
        assert!(last.await.is_done());
        assert_nothing_left(&executor);
    });
}

#[test]
fn an_evict_that_meets_submits_leaves_every_task_with_a_result() {
    explore(|| async {
        let builder = Executor::builder().lane_concurrency(8);
        let executor = builder.lane_concurrency_by(|_| 1).build().unwrap();
        let watch = Watch::default();
        let evicting = executor.clone();
        let evicts = spawn(async move {
            evicting.evict(&0);
            evicting.evict(&0);
        });
        let handles: Vec<_> = (0..3).map(|n| executor.submit(0, watch.task(n))).collect();
        evicts.await.unwrap();
        let mut done = 0;
        for handle in handles {
            done += usize::from(handle.await.is_done());
        }
        assert_nothing_left(&executor);
        let started = watch.started();
        assert!(started.is_sorted() && started.len() == done, "{started:?}");
    });
}

#[test]
fn a_submit_that_meets_shutdown_is_refused_or_finished() {
    for builder in [
        || Executor::builder(),
        || Executor::builder().queue_limit_per_key(9),
    ] {
        explore(move || async move {
            let executor = builder().build().unwrap();
            let submitting = executor.clone();
            let submits = spawn(async move {
                let watch = Watch::default();
                let submit = |n| submitting.try_submit(0, watch.task(n));
                [submit(0), submit(1)]
            });
            let left = executor.shutdown(EVER).await;
            assert!(left.is_nothing());
            let late = executor.submit(0, async {}).await;
            assert!(matches!(late.status, Status::Rejected(Reason::ShutDown)));
            let stats = executor.stats();
            assert_eq!((stats.running, stats.queued), (0, 0), "idle means idle");
            for submitted in submits.await.unwrap() {
                match submitted {
                    Ok(handle) => assert!(handle.is_done() && handle.await.is_done()),
                    Err(refused) => assert_eq!(refused.reason, Reason::ShutDown),
                }
            }
        });
    }
}

#[test]
fn a_stop_that_meets_starts_and_ends_loses_no_permit_and_no_runner() {
    explore(|| async {
        let executor = Executor::builder().concurrency(1).build().unwrap();
        let watch = Watch::default();
        let stopping = executor.clone();
        let stops = spawn(async move {
            stopping.shutdown_key(&0, Mode::Now);
            yield_now().await;
            stopping.shutdown_key(&0, Mode::Now);
        });
        let handles: Vec<_> = (0..5).map(|n| executor.submit(0, watch.task(n))).collect();
        stops.await.unwrap();
        for handle in handles {
            handle.await;
        }
        assert_nothing_left(&executor);
        assert!(executor.submit(1, watch.task(9)).await.is_done());
    });
}

/// They end only by being stopped, wherever on their way that finds them.
#[test]
fn a_stop_that_meets_the_starts_of_tasks_without_end_loses_no_permit() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let keys = [0, 1, 2];
        let handles = keys.map(|key| executor.submit(key, std::future::pending::<()>()));
        let stopping = executor.clone();
        let stops = spawn(async move {
            for key in keys {
                stopping.shutdown_key(&key, Mode::Now);
            }
        });
        stops.await.unwrap();
        for handle in handles {
            assert!(matches!(handle.await.status, Status::Cancelled(_)));
        }
        assert_nothing_left(&executor);
    });
}

#[test]
fn a_dropped_executor_leaves_every_task_with_a_result() {
    explore(|| async {
        let permits = Permits::new(1);
        let builder = Executor::builder().shared_permits(permits.clone());
        let executor = builder.build().unwrap();
        let watch = Watch::default();
        let handles: Vec<_> = (0..3).map(|n| executor.submit(0, watch.task(n))).collect();
        spawn(async move { drop(executor) }).await.unwrap();
        for handle in handles {
            handle.await;
        }
        assert_eq!(permits.in_use(), 0);
    });
}

/// Tasks of one key of which several run at once; those that wait go on after their first poll.
fn first_polls(waits: fn(usize) -> bool) {
    explore(move || async move {
        let executor = Executor::builder().lane_concurrency(4).build().unwrap();
        let polled = Arc::new(Mutex::new(Vec::new()));
        for n in 0..8 {
            let polled = polled.clone();
            let task = async move {
                // Somebody else may be first here.
                ::shuttle::thread::yield_now();
                polled.lock().unwrap().push(n);
                if waits(n) {
                    yield_now().await;
                }
            };
            executor.post(0, task).unwrap();
        }
        executor.all_idle().await;
        assert_eq!(*polled.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    });
}

#[test]
fn first_polls_of_a_key_with_several_at_once_are_in_submit_order() {
    first_polls(|n| n % 2 == 0);
}

#[test]
fn first_polls_of_tasks_that_all_wait_are_in_submit_order() {
    first_polls(|_| true);
}

/// Runners take starts for each other, and one that is no longer needed goes.
#[test]
fn a_stop_that_meets_runners_which_go_is_not_forgotten() {
    explore(|| async {
        let executor = Executor::builder().lane_concurrency(4).build().unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let task = |n: usize| {
            let begun = begun.clone();
            async move {
                // Somebody else may come by here.
                ::shuttle::thread::yield_now();
                begun.fetch_add(1, Ordering::SeqCst);
                if n % 2 == 0 {
                    yield_now().await;
                }
                if n > 4 {
                    std::future::pending::<()>().await;
                }
            }
        };
        let handles: Vec<_> = (0..8).map(|n| executor.submit(0, task(n))).collect();
        while begun.load(Ordering::SeqCst) < 4 {
            yield_now().await;
        }
        executor.shutdown(Duration::ZERO).await;
        for handle in handles {
            handle.await;
        }
    });
}

#[test]
fn a_result_is_seen_only_after_its_permits_are_free() {
    explore(|| async {
        let executor = Executor::builder()
            .concurrency(1)
            .queue_limit(0)
            .queue_limit_per_key(0)
            .build()
            .unwrap();
        let watch = Watch::default();
        for n in 0..3 {
            let handle = executor.try_submit(0, watch.task(n));
            assert!(handle.expect("the permit is free").await.is_done());
        }
        let stopped = executor.try_submit(0, std::future::pending::<()>());
        let stopped = stopped.expect("the permit is free");
        stopped.cancel();
        stopped.await;
        assert!(executor.try_submit(0, watch.task(9)).is_ok());
    });
}

#[test]
fn a_permit_freed_while_a_lane_of_another_executor_becomes_ready_wakes_it() {
    explore(|| async {
        let permits = Permits::new(1);
        let watch = Watch::default();
        let submitter = |n: usize| {
            let builder = Executor::<u8>::builder().shared_permits(permits.clone());
            let executor = builder.build().unwrap();
            let watch = watch.clone();
            spawn(async move {
                assert!(executor.submit(0, watch.task(n)).await.is_done());
                assert!(executor.submit(1, watch.task(n)).await.is_done());
            })
        };
        let all = [submitter(0), submitter(1), submitter(2)];
        for submitter in all {
            submitter.await.unwrap();
        }
        assert_eq!(permits.in_use(), 0);
    });
}

#[test]
fn when_a_key_is_idle_every_result_of_it_can_be_seen() {
    explore(|| async {
        let executor = Executor::builder().lane_concurrency(2).build().unwrap();
        let slow = executor.submit(0, yield_now());
        let quick = executor.submit(0, async {});
        executor.idle(&0).await;
        assert!(slow.is_done() && quick.is_done());
    });
}

#[test]
fn when_all_is_idle_every_result_can_be_seen() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let watch = Watch::default();
        let handle = executor.submit(0, watch.task(0));
        let other = executor.submit(1, async {});
        executor.all_idle().await;
        assert!(handle.is_done() && other.is_done());
        assert_eq!(executor.stats().done, 2);
    });
}

#[test]
fn whoever_asks_when_nothing_runs_any_more_waits_for_the_results() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let handle = executor.submit(0, async {});
        while executor.stats().queued + executor.stats().running > 0 {
            yield_now().await;
        }
        executor.all_idle().await;
        assert!(handle.is_done());
    });
}

#[test]
fn a_caller_run_task_cancelled_while_it_is_polled_is_over_before_the_next_starts() {
    explore(|| async {
        let executor = Executor::builder()
            .queue_limit_per_key(0)
            .on_reject(Policy::CallerRuns)
            .build()
            .unwrap();
        let watch = Watch::default();
        let first = executor.submit(0, watch.task(0));
        let inside = watch.clone();
        let called = executor.submit(0, async move {
            let _alone = inside.enter(1);
            // Others go on while this is in the middle of a poll.
            ::shuttle::thread::yield_now();
            ::shuttle::thread::yield_now();
        });
        let called = called.shared();
        let behind = executor.submit(0, watch.task(2));
        let canceller = called.clone();
        let cancels = spawn(async move { canceller.cancel() });
        let waits = spawn(async move { called.await });
        assert!(behind.await.is_done());
        waits.await.unwrap();
        cancels.await.unwrap();
        assert!(first.await.is_done());
        assert_nothing_left(&executor);
    });
}

#[test]
fn a_caller_run_task_stopped_while_it_is_polled_is_over_before_the_next_starts() {
    explore(|| async {
        let executor = Executor::builder()
            .queue_limit_per_key(0)
            .on_reject(Policy::CallerRuns)
            .build()
            .unwrap();
        let watch = Watch::default();
        let first = executor.submit(0, watch.task(0));
        let inside = watch.clone();
        let called = spawn(executor.submit(0, async move {
            let _alone = inside.enter(1);
            // Others go on while this is in the middle of a poll.
            (0..12).for_each(|_| ::shuttle::thread::yield_now());
        }));
        while watch.started().len() < 2 {
            yield_now().await;
        }
        executor.shutdown_key(&0, Mode::Now);
        let behind = spawn(executor.submit(0, watch.task(2)));
        called.await.unwrap();
        assert!(behind.await.unwrap().is_done());
        first.await;
        executor.all_idle().await;
        assert_nothing_left(&executor);
    });
}

#[test]
fn a_shared_caller_run_task_goes_on_whoever_of_those_who_await_it_goes() {
    explore(|| async {
        let executor = Executor::builder()
            .queue_limit_per_key(0)
            .on_reject(Policy::CallerRuns)
            .build()
            .unwrap();
        let watch = Watch::default();
        let first = executor.submit(0, watch.task(0));
        let called = executor.submit(0, watch.task(1)).shared();
        let mut goes = called.clone();
        let gone = spawn(async move {
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(std::pin::Pin::new(&mut goes).poll(cx).is_ready())
            });
            polled.await
        });
        let other = spawn(called.clone());
        assert_eq!(called.await.ok(), Some(1));
        assert_eq!(other.await.unwrap().ok(), Some(1));
        gone.await.unwrap();
        assert!(first.await.is_done());
        assert_nothing_left(&executor);
    });
}

#[test]
fn a_wait_for_room_dropped_while_room_comes_frees_its_place() {
    explore(|| async {
        let executor = Executor::builder().queue_limit_per_key(0).build().unwrap();
        let watch = Watch::default();
        let first = executor.submit(0, watch.task(0));
        let mut waiting = Box::pin(executor.submit_when_room(0, watch.task(1)));
        let polled = std::future::poll_fn(|cx| {
            let _ = waiting.as_mut().poll(cx);
            std::task::Poll::Ready(())
        });
        polled.await;
        let drops = spawn(async move { drop(waiting) });
        let last = executor.submit_when_room(0, watch.task(2)).await;
        assert!(last.await.is_done());
        assert!(first.await.is_done());
        drops.await.unwrap();
        executor.all_idle().await;
        assert_nothing_left(&executor);
    });
}

struct Desk(Watch);

impl Handler<u8, usize> for Desk {
    async fn handle(&self, job: usize, _: usize) -> Reply<usize> {
        self.0.task(job).await;
        Reply::Done
    }

    async fn flushed(&self, _: u8, jobs: Vec<Queued<usize>>) -> Vec<Queued<usize>> {
        yield_now().await;
        jobs
    }
}

#[test]
fn a_flush_that_meets_pushes_keeps_their_order() {
    explore(|| async {
        let watch = Watch::default();
        let builder = Executor::builder();
        let jobs = builder.build_with(Desk(watch.clone())).unwrap();
        let flushing = jobs.clone();
        let flushes = spawn(async move { flushing.flush(&0) });
        for job in 0..4 {
            assert!(jobs.push(0, job).is_ok());
        }
        flushes.await.unwrap();
        jobs.all_idle().await;
        assert_eq!(watch.started(), [0, 1, 2, 3]);
    });
}

#[test]
fn a_pause_and_a_resume_that_meet_pushes_lose_no_wake_up() {
    explore(|| async {
        let watch = Watch::default();
        let builder = Executor::builder();
        let jobs = builder.build_with(Desk(watch.clone())).unwrap();
        let pausing = jobs.clone();
        let pauses = spawn(async move {
            pausing.pause(0);
            pausing.resume(&0);
        });
        for job in 0..3 {
            assert!(jobs.push(0, job).is_ok());
        }
        pauses.await.unwrap();
        jobs.all_idle().await;
        assert_eq!(watch.started(), [0, 1, 2]);
    });
}

#[test]
fn when_all_is_idle_the_result_of_a_cancelled_task_can_be_seen() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        executor.pause(&0);
        let handle = executor.submit(0, async {}).shared();
        let cancels = handle.clone();
        let thread = ::shuttle::thread::spawn(move || cancels.cancel());
        executor.all_idle().await;
        assert!(handle.is_done());
        thread.join().unwrap();
    });
}

/// What was taken and not begun goes back to its place when a key is paused.
#[test]
fn a_stop_that_meets_a_pause_is_not_forgotten() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let pauses = executor.clone();
        // So that both are ready when they are taken.
        [0, 1].iter().for_each(|key| executor.pause(key));
        let before = executor.submit(0, async move { pauses.pause(&2) });
        let stays = executor.submit(1, std::future::pending::<()>());
        assert!([0, 1].iter().all(|key| executor.resume(key)));
        let stops = executor.clone();
        let thread = ::shuttle::thread::spawn(move || stops.shutdown_key(&1, Mode::Now));
        before.await;
        thread.join().unwrap();
        assert!(!stays.await.is_done());
    });
}

/// Counts how many of them are gone.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

// A task and its handles have one piece of memory: who goes last frees it, with the result in it.
#[test]
fn a_result_goes_once_whoever_of_its_owners_goes_last() {
    explore(|| async {
        let executor = Executor::builder().build().unwrap();
        let gone = Arc::new(AtomicUsize::new(0));
        let submit = |key| {
            let counted = Counted(gone.clone());
            executor.submit(key, async move { Arc::new(counted) })
        };
        let (dropped, awaited, shared) = (submit(0), submit(1), submit(1).shared());
        let (drops, shares) = (
            spawn(async move { drop(dropped) }),
            spawn({
                let shared = shared.clone();
                async move { shared.await.ok().is_some() }
            }),
        );
        assert!(awaited.await.is_done());
        assert!(shared.clone().await.is_done());
        drops.await.unwrap();
        assert!(shares.await.unwrap());
        drop(shared);
        executor.all_idle().await;
        assert_eq!(gone.load(Ordering::SeqCst), 3);
    });
}
