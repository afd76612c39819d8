//! The handler form: one function for many jobs, with a say in what a lane does next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Builder, Executor, Gate, Handler, JobExecutor, NotPushed, Queued, Reply};
use tokio::time::Instant;

use crate::support::{Door, MS, settle};

/// A job: what the handler is to do with it, and its name.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    name: &'static str,
    todo: Todo,
}

#[derive(Clone, Debug, PartialEq)]
enum Todo {
    Done,
    /// Put back this often, held so long each time.
    Hold(u32, Duration),
    HoldUntilReleased,
    /// Flush; with itself put back or not.
    Flush {
        back: bool,
    },
    Door,
    Panic,
}

/// Writes down what it did and was given.
#[derive(Clone)]
struct Desk {
    did: Arc<Mutex<Vec<String>>>,
    flushed: Arc<Mutex<Vec<Vec<&'static str>>>>,
    gates: Arc<Mutex<HashMap<&'static str, Gate>>>,
    keep: &'static [&'static str],
    door: Door,
    since: Instant,
}

impl Desk {
    fn new() -> Self {
        Self {
            did: Arc::default(),
            flushed: Arc::default(),
            gates: Arc::default(),
            keep: &[],
            door: Door::closed(),
            since: Instant::now(),
        }
    }

    fn note(&self, job: &Job) {
        let line = format!("{}@{}", job.name, self.since.elapsed().as_millis());
        self.did.lock().unwrap().push(line);
    }

    fn did(&self) -> Vec<String> {
        self.did.lock().unwrap().clone()
    }

    fn flushed(&self) -> Vec<Vec<&'static str>> {
        self.flushed.lock().unwrap().clone()
    }
}

impl Handler<&'static str, Job> for Desk {
    fn gate(&self, job: &Job) -> Gate {
        let gates = self.gates.lock().unwrap();
        gates.get(job.name).copied().unwrap_or(Gate::Go)
    }

    async fn handle(&self, job: Job, _: usize) -> Reply<Job> {
        self.note(&job);
        match job.todo {
            Todo::Done => Reply::Done,
            Todo::Hold(0, _) => Reply::Done,
            Todo::Hold(times, time) => {
                let name = job.name;
                let todo = Todo::Hold(times - 1, time);
                let until = Some(Instant::now() + time);
                Reply::Hold {
                    job: Job { name, todo },
                    until,
                }
            }
            Todo::HoldUntilReleased => Reply::Hold {
                job: Job {
                    name: job.name,
                    todo: Todo::Done,
                },
                until: None,
            },
            Todo::Flush { back } => Reply::Flush {
                job: back.then_some(Job {
                    name: job.name,
                    todo: Todo::Done,
                }),
            },
            Todo::Door => {
                self.door.passes(()).await;
                Reply::Done
            }
            Todo::Panic => panic!("job {}", job.name),
        }
    }

    async fn flushed(&self, _: &'static str, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        assert!(jobs.is_sorted_by_key(|queued| queued.sequence()));
        let names: Vec<_> = jobs.iter().map(|queued| queued.job.name).collect();
        self.flushed.lock().unwrap().push(names.clone());
        tokio::task::yield_now().await;
        assert!(!names.contains(&"bomb"), "the flush panics");
        let kept = |queued: &Queued<Job>| self.keep.contains(&queued.job.name);
        jobs.into_iter().filter(kept).collect()
    }
}

type Jobs = JobExecutor<&'static str, Job, Desk>;

fn build(
    desk: &Desk,
    options: impl FnOnce(Builder<&'static str>) -> Builder<&'static str>,
) -> Jobs {
    options(Executor::builder())
        .build_with(desk.clone())
        .unwrap()
}

fn push(jobs: &Jobs, key: &'static str, name: &'static str, todo: Todo) {
    jobs.push(key, Job { name, todo }).unwrap();
}

fn assert_nothing_left(jobs: &Jobs) {
    let stats = jobs.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_job_put_back_keeps_its_place_and_its_lane_waits() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.concurrency(1));
    push(&jobs, "a", "first", Todo::Hold(2, 10 * MS));
    push(&jobs, "a", "second", Todo::Done);
    push(&jobs, "b", "other", Todo::Done);
    jobs.all_idle().await;
    let did = desk.did();
    assert_eq!(
        did,
        ["first@0", "other@0", "first@10", "first@20", "second@20"]
    );
    assert_nothing_left(&jobs);
}

#[tokio::test(start_paused = true)]
async fn a_held_job_takes_no_permit_and_can_be_released_before_its_time() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.concurrency(1));
    push(
        &jobs,
        "a",
        "first",
        Todo::Hold(1, Duration::from_secs(3600)),
    );
    settle().await;
    let stats = jobs.stats();
    assert_eq!((stats.running, stats.queued), (0, 1));
    assert!(jobs.inspect(&"a", |stats, _| stats.held).unwrap());
    assert!(jobs.release(&"a"));
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["first@0", "first@0"]);
    assert!(!jobs.release(&"a"), "there is no such lane any more");
}

#[tokio::test(start_paused = true)]
async fn a_hold_without_a_time_waits_for_its_release() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "first", Todo::HoldUntilReleased);
    push(&jobs, "a", "second", Todo::Done);
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(desk.did(), ["first@0"]);
    jobs.release(&"a");
    jobs.all_idle().await;
    assert_eq!(desk.did()[1..], ["first@86400000", "second@86400000"]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_until_a_time_gone_by_starts_again_at_once() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "first", Todo::Hold(3, Duration::ZERO));
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["first@0"; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_hold_ends_before_a_longer_one_that_began_earlier() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "long", Todo::Hold(1, 100 * MS));
    push(&jobs, "b", "short", Todo::Hold(1, 10 * MS));
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["long@0", "short@0", "short@10", "long@100"]);
}

#[tokio::test(start_paused = true)]
async fn a_gate_holds_a_lane_before_it_takes_a_permit() {
    let desk = Desk::new();
    let until = Gate::Until(desk.since + 30 * MS);
    desk.gates.lock().unwrap().insert("first", until);
    let jobs = build(&desk, |builder| builder.concurrency(1));
    push(&jobs, "a", "first", Todo::Done);
    push(&jobs, "a", "second", Todo::Done);
    push(&jobs, "b", "other", Todo::Done);
    jobs.idle(&"b").await;
    assert_eq!(desk.did(), ["other@0"]);
    desk.gates.lock().unwrap().clear();
    jobs.all_idle().await;
    assert_eq!(desk.did()[1..], ["first@30", "second@30"]);
}

#[tokio::test(start_paused = true)]
async fn a_gate_is_asked_again_after_a_release() {
    let desk = Desk::new();
    desk.gates
        .lock()
        .unwrap()
        .insert("first", Gate::UntilReleased);
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "first", Todo::Done);
    settle().await;
    jobs.release(&"a");
    settle().await;
    assert!(desk.did().is_empty(), "it is still shut");
    desk.gates.lock().unwrap().clear();
    jobs.release(&"a");
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["first@0"]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_hands_over_everything_that_waits_in_order() {
    for (back, expected) in [
        (false, vec!["two", "three"]),
        (true, vec!["one", "two", "three"]),
    ] {
        let desk = Desk::new();
        let jobs = build(&desk, |builder| builder);
        push(&jobs, "a", "one", Todo::Flush { back });
        push(&jobs, "a", "two", Todo::Done);
        push(&jobs, "a", "three", Todo::Done);
        push(&jobs, "b", "other", Todo::Done);
        jobs.all_idle().await;
        assert_eq!(desk.flushed(), [expected]);
        assert_eq!(desk.did(), ["one@0", "other@0"]);
        assert_nothing_left(&jobs);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_flush_keeps_stays_in_its_place_before_what_came_meanwhile() {
    let desk = Desk {
        keep: &["one", "three"],
        ..Desk::new()
    };
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "one", Todo::Flush { back: true });
    for name in ["two", "three", "four"] {
        push(&jobs, "a", name, Todo::Done);
    }
    while desk.flushed().is_empty() {
        tokio::task::yield_now().await;
    }
    push(&jobs, "a", "five", Todo::Done);
    jobs.all_idle().await;
    assert_eq!(desk.flushed(), [["one", "two", "three", "four"]]);
    assert_eq!(desk.did(), ["one@0", "one@0", "three@0", "five@0"]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_what_runs() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.lane_concurrency(2));
    push(&jobs, "a", "runs", Todo::Door);
    push(&jobs, "a", "flushes", Todo::Flush { back: false });
    push(&jobs, "a", "waits", Todo::Done);
    settle().await;
    assert!(desk.flushed().is_empty());
    desk.door.let_in(1);
    jobs.all_idle().await;
    assert_eq!(desk.flushed(), [["waits"]]);
}

#[tokio::test(start_paused = true)]
async fn a_flush_behind_what_runs_takes_the_rest_at_once_and_nothing_starts_meanwhile() {
    let mut desk = Desk::new();
    desk.keep = &["kept"];
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "runs", Todo::Door);
    push(&jobs, "a", "kept", Todo::Done);
    push(&jobs, "a", "taken", Todo::Done);
    settle().await;
    assert!(jobs.flush_behind(&"a"));
    settle().await;
    assert_eq!(desk.flushed(), [["kept", "taken"]]);
    assert_eq!(jobs.lane(&"a").map(|lane| lane.running), Some(1));
    assert!(desk.did().iter().all(|line| line.starts_with("runs")));
    desk.door.let_in(1);
    jobs.all_idle().await;
    assert!(
        desk.did()
            .last()
            .is_some_and(|line| line.starts_with("kept"))
    );
    assert!(!jobs.flush_behind(&"a"));
}

#[tokio::test(start_paused = true)]
async fn a_flush_from_outside_takes_held_ones_too() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "held", Todo::HoldUntilReleased);
    push(&jobs, "a", "waits", Todo::Done);
    settle().await;
    assert!(jobs.flush(&"a"));
    assert!(!jobs.flush(&"nobody"));
    jobs.all_idle().await;
    assert_eq!(desk.flushed(), [["held", "waits"]]);
}

#[tokio::test(start_paused = true)]
async fn take_head_takes_the_front_only_if_it_is_the_one_that_is_meant() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "stuck", Todo::HoldUntilReleased);
    push(&jobs, "a", "next", Todo::Done);
    settle().await;
    assert!(jobs.take_head(&"a", |job| job.name == "next").is_none());
    let head = jobs.take_head(&"a", |job| job.name == "stuck").unwrap();
    assert_eq!(head.name, "stuck");
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["stuck@0", "next@0"]);
    assert!(jobs.take_head(&"a", |_| true).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_running_job_is_nobodys_head() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "runs", Todo::Door);
    desk.door.reached().await;
    assert!(jobs.take_head(&"a", |_| true).is_none());
    desk.door.let_in(1);
    jobs.all_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_can_be_looked_into_and_paused() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    jobs.pause("a");
    push(&jobs, "a", "one", Todo::Done);
    push(&jobs, "a", "two", Todo::Done);
    let names: Option<Vec<_>> = jobs.inspect(&"a", |stats, waiting| {
        assert!(stats.paused && stats.queued == 2);
        waiting.map(|job| job.name).collect()
    });
    assert_eq!(names.unwrap(), ["one", "two"]);
    assert_eq!(jobs.keys(), ["a"]);
    assert!(jobs.inspect(&"b", |_, _| ()).is_none());
    assert!(jobs.resume(&"a"));
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["one@0", "two@0"]);
    assert!(jobs.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_hands_the_job_back() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.queue_limit_per_key(1));
    push(&jobs, "a", "runs", Todo::Door);
    push(&jobs, "a", "waits", Todo::Done);
    let third = Job {
        name: "third",
        todo: Todo::Done,
    };
    let refused = jobs.push("a", third.clone()).unwrap_err();
    assert!(matches!(refused, NotPushed::Full(_)));
    assert_eq!(refused.into_job(), third);
    desk.door.let_in(1);
    jobs.all_idle().await;
}

#[tokio::test(start_paused = true)]
async fn draining_hands_over_what_waits_and_waits_for_what_runs() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "runs", Todo::Door);
    push(&jobs, "a", "waits", Todo::Done);
    push(&jobs, "b", "held", Todo::HoldUntilReleased);
    push(&jobs, "b", "behind", Todo::Done);
    jobs.pause("c");
    push(&jobs, "c", "paused", Todo::Done);
    desk.door.reached().await;
    settle().await;
    assert!(!jobs.drain(10 * MS).await, "one still runs");
    let mut flushed = desk.flushed();
    flushed.sort();
    assert_eq!(flushed, [vec!["held", "behind"], vec!["paused"]]);
    let late = Job {
        name: "late",
        todo: Todo::Done,
    };
    assert!(matches!(jobs.push("d", late), Err(NotPushed::ShutDown(_))));
    desk.door.let_in(1);
    assert!(jobs.drain(10 * MS).await);
    assert_eq!(desk.flushed().last().unwrap(), &["waits"]);
    assert_eq!(desk.did(), ["runs@0", "held@0"]);
}

/// Counts the lanes that are flushed at a time.
#[derive(Clone, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

impl Handler<usize, ()> for Crowd {
    async fn handle(&self, (): (), _: usize) -> Reply<()> {
        Reply::Done
    }

    async fn flushed(&self, _: usize, jobs: Vec<Queued<()>>) -> Vec<Queued<()>> {
        self.all.fetch_add(jobs.len(), Ordering::SeqCst);
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(MS).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Vec::new()
    }
}

/// Each takes a task: 100 k lanes at once would take more memory than they do while they wait.
#[tokio::test(start_paused = true)]
async fn draining_deals_with_so_many_lanes_at_a_time() {
    let crowd = Crowd::default();
    let jobs = Executor::builder().build_with(crowd.clone()).unwrap();
    for lane in 0..5_000 {
        jobs.pause(lane);
        jobs.push(lane, ()).unwrap();
        jobs.push(lane, ()).unwrap();
    }
    assert!(jobs.drain(1_000 * MS).await);
    assert_eq!(crowd.all.load(Ordering::SeqCst), 10_000);
    assert_eq!(crowd.most.load(Ordering::SeqCst), 256);
}

#[tokio::test(start_paused = true)]
async fn a_job_put_back_while_draining_is_handed_over_with_the_rest() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.lane_concurrency(2));
    push(&jobs, "a", "runs", Todo::Door);
    push(&jobs, "a", "held", Todo::Hold(1, MS));
    push(&jobs, "a", "behind", Todo::Done);
    desk.door.reached().await;
    let draining = jobs.clone();
    let drained = tokio::spawn(async move { draining.drain(100 * MS).await });
    settle().await;
    desk.door.let_in(1);
    assert!(drained.await.unwrap());
    assert_eq!(desk.flushed().concat().last(), Some(&"behind"));
}

#[tokio::test(start_paused = true)]
async fn draining_starts_nothing_even_of_what_a_flush_keeps() {
    let desk = Desk {
        keep: &["one", "two"],
        ..Desk::new()
    };
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "one", Todo::HoldUntilReleased);
    push(&jobs, "a", "two", Todo::Done);
    settle().await;
    assert!(!jobs.drain(10 * MS).await, "something is left");
    assert_eq!(desk.did(), ["one@0"], "nothing started after the drain");
    assert_eq!(desk.flushed(), [["one", "two"]]);
    assert_eq!(jobs.stats().queued, 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_flush_keeps_that_was_under_way_is_handed_over_by_the_drain() {
    let desk = Desk {
        keep: &["two"],
        ..Desk::new()
    };
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "one", Todo::Flush { back: false });
    push(&jobs, "a", "two", Todo::Done);
    while desk.flushed().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!jobs.drain(MS).await);
    assert_eq!(desk.flushed(), [["two"], ["two"]]);
    assert_eq!(desk.did(), ["one@0"]);
}

#[tokio::test(start_paused = true)]
async fn a_drained_executor_leaves_no_timer_behind() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(
        &jobs,
        "a",
        "held",
        Todo::Hold(1, Duration::from_secs(86_400)),
    );
    settle().await;
    assert!(jobs.drain(MS).await);
    drop(jobs);
    settle().await;
    assert_eq!(
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks(),
        0
    );
}

// Panics of a handler: contained, counted, the lane goes on.

#[tokio::test(start_paused = true)]
async fn a_panicking_job_is_gone_and_its_lane_goes_on() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.concurrency(1));
    push(&jobs, "a", "bad", Todo::Panic);
    push(&jobs, "a", "good", Todo::Done);
    jobs.all_idle().await;
    assert_eq!(desk.did(), ["bad@0", "good@0"]);
    assert_eq!(jobs.stats().panics, 1);
    assert_nothing_left(&jobs);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_flush_loses_what_it_was_given_and_its_lane_goes_on() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder);
    push(&jobs, "a", "flushes", Todo::Flush { back: false });
    push(&jobs, "a", "bomb", Todo::Done);
    while desk.flushed().is_empty() {
        tokio::task::yield_now().await;
    }
    push(&jobs, "a", "next", Todo::Done);
    tokio::time::timeout(MS, jobs.all_idle())
        .await
        .expect("the lane goes on");
    assert_eq!(desk.did(), ["flushes@0", "next@0"]);
    assert_eq!(jobs.stats().panics, 1);
    assert_nothing_left(&jobs);
}

struct BadGate;

impl Handler<u8, u8> for BadGate {
    fn gate(&self, job: &u8) -> Gate {
        assert!(*job != 1, "the gate panics");
        Gate::Go
    }

    async fn handle(&self, _: u8, _: usize) -> Reply<u8> {
        Reply::Done
    }

    async fn flushed(&self, _: u8, _: Vec<Queued<u8>>) -> Vec<Queued<u8>> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_gate_lets_the_job_through() {
    let jobs = Executor::builder().build_with(BadGate).unwrap();
    for job in 0..3 {
        jobs.push(0, job).unwrap();
    }
    tokio::time::timeout(MS, jobs.all_idle())
        .await
        .expect("the lane goes on");
    assert_eq!(jobs.stats().panics, 1);
    jobs.push(0, 9).unwrap();
    tokio::time::timeout(MS, jobs.all_idle())
        .await
        .expect("it still runs");
}

#[tokio::test(start_paused = true)]
async fn limits_of_jobs_change_while_they_run() {
    let desk = Desk::new();
    let jobs = build(&desk, |builder| builder.concurrency(1));
    for key in ["a", "b", "c"] {
        push(&jobs, key, key, Todo::Door);
    }
    settle().await;
    assert_eq!(jobs.stats().running, 1);
    let limits = keylane::Limits {
        concurrency: Some(3),
        ..jobs.limits()
    };
    jobs.set_limits(limits).unwrap();
    settle().await;
    assert_eq!(jobs.stats().running, 3);
    desk.door.let_in(3);
    jobs.all_idle().await;
}

struct Slots(Arc<Mutex<Vec<usize>>>);

impl Handler<usize, ()> for Slots {
    async fn handle(&self, (): (), slot: usize) -> Reply<()> {
        self.0.lock().unwrap().push(slot);
        tokio::time::sleep(MS).await;
        Reply::Done
    }

    async fn flushed(&self, _: usize, _: Vec<Queued<()>>) -> Vec<Queued<()>> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn slots_are_below_the_concurrency() {
    let slots = Arc::new(Mutex::new(Vec::new()));
    let builder = Executor::builder().concurrency(3);
    let jobs = builder.build_with(Slots(slots.clone())).unwrap();
    for key in 0..30 {
        jobs.push(key, ()).unwrap();
    }
    jobs.all_idle().await;
    let slots = slots.lock().unwrap();
    assert_eq!(slots.len(), 30);
    assert!(slots.iter().all(|slot| *slot < 3), "{slots:?}");
}
