//! Tasks that sleep 100 ms, beside bare tasks that do, and beside the least that an executor does.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keylane::Executor;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::load::{self, Numbers};
use crate::report::{Report, print_table};
use crate::usage::{Cost, median, runtime, tidy};

const ROUNDS: usize = 3;
/// Of the shape that takes a tenth of a second, in which everything counts.
const SHORT_ROUNDS: usize = 15;
const NAP: Duration = Duration::from_millis(100);

struct Shape {
    keys: usize,
    tasks_each: usize,
    at_once: Option<usize>,
}

const SHAPES: [Shape; 4] = [
    Shape::new(100, 10, None),
    Shape::new(10_000, 10, None),
    Shape::new(100_000, 1, None),
    Shape::new(10_000, 10, Some(5_000)),
];

pub(crate) fn run(report: &mut Report) {
    measure(report, SHAPES);
}

/// Those of so many keys, for a profile.
pub(crate) fn profile(keys: usize) {
    let shapes = SHAPES.into_iter().filter(|shape| shape.keys == keys);
    measure(&mut Report::new(), shapes);
}

fn measure(report: &mut Report, shapes: impl IntoIterator<Item = Shape>) {
    let runtime = runtime();
    let mut rows = Vec::new();
    for shape in shapes {
        let mut violations = 0;
        let (mut bare, mut ours, mut least) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..shape.rounds() {
            tidy(&runtime);
            bare.push(self::bare(&runtime, &shape));
            tidy(&runtime);
            let (cost, wrong) = self::ours(&runtime, &shape);
            ours.push(cost);
            violations += wrong;
            if shape.tasks_each == 1 {
                tidy(&runtime);
                least.push(self::least(&runtime, &shape));
            }
        }
        let share = |costs: &[Cost]| {
            let rounds = costs.iter().zip(&bare);
            median(rounds.map(|(cost, bare)| 100.0 * cost.per_second() / bare.per_second()))
        };
        let least = match least.is_empty() {
            true => "–".to_owned(),
            false => format!("{:.1}", share(&least)),
        };
        let share = share(&ours);
        let wall = |costs: &[Cost]| median(costs.iter().map(|cost| cost.wall.as_secs_f64() * 1e3));
        let cpu = |costs: &[Cost]| median(costs.iter().map(Cost::cpu_nanos)) / 1e3;
        rows.push([
            shape.name(),
            format!("{:.0}", wall(&ours)),
            format!("{:.0}", wall(&bare)),
            format!("{share:.1}"),
            least,
            format!("{:.1}", cpu(&ours)),
            format!("{:.1}", cpu(&bare)),
            violations.to_string(),
        ]);
        report.goal(
            &format!("100 ms sleepers, {}", shape.name()),
            "≥ 99 % of bare tasks",
            format!("{share:.1} %"),
            share >= 99.0 && violations == 0,
        );
    }
    println!(
        "\n### 100 ms sleepers beside bare tasks, medians of {ROUNDS} rounds ({SHORT_ROUNDS} where a round is short)\n"
    );
    let head = [
        "keys × tasks",
        "wall ms",
        "bare",
        "% of bare",
        "the least",
        "CPU µs/task",
        "bare",
        "order violations",
    ];
    print_table(&head, &rows);
}

impl Shape {
    const fn new(keys: usize, tasks_each: usize, at_once: Option<usize>) -> Self {
        Self {
            keys,
            tasks_each,
            at_once,
        }
    }

    fn name(&self) -> String {
        let at_once = self
            .at_once
            .map(|n| format!(", {n} at once"))
            .unwrap_or_default();
        format!("{} × {}{at_once}", self.keys, self.tasks_each)
    }

    fn rounds(&self) -> usize {
        match self.tasks_each {
            1 => SHORT_ROUNDS,
            _ => ROUNDS,
        }
    }

    fn count(&self) -> usize {
        self.keys * self.tasks_each
    }
}

/// As many tasks as may run at once, each of which sleeps one time after the other.
fn bare(runtime: &Runtime, shape: &Shape) -> Cost {
    let tasks = shape.at_once.unwrap_or(shape.keys).min(shape.keys);
    let sleeps = shape.count() / tasks;
    Cost::of(shape.count() as u64, || {
        runtime.block_on(async {
            let spawned = tokio::spawn(async move {
                let mut all = JoinSet::new();
                for _ in 0..tasks {
                    all.spawn(async move {
                        for _ in 0..sleeps {
                            tokio::time::sleep(NAP).await;
                        }
                    });
                }
                all.join_all().await;
            });
            spawned.await.expect("no panic");
        });
    })
}

fn ours(runtime: &Runtime, shape: &Shape) -> (Cost, u64) {
    load::reset();
    let mut numbers = Numbers::new(0, shape.keys);
    let executor = {
        let _inside = runtime.enter();
        let builder = Executor::builder();
        let builder = match shape.at_once {
            Some(most) => builder.concurrency(most),
            None => builder,
        };
        builder.build().expect("fine")
    };
    let (keys, tasks_each) = (shape.keys, shape.tasks_each);
    let cost = Cost::of(shape.count() as u64, || {
        runtime.block_on(async {
            let spawned = tokio::spawn(async move {
                for _ in 0..tasks_each {
                    for key in 0..keys {
                        let task = numbers.task_of(key);
                        let nap = async move {
                            task.check();
                            tokio::time::sleep(NAP).await;
                        };
                        executor.post(key, nap).expect("there is room");
                    }
                }
                executor.all_idle().await;
            });
            spawned.await.expect("no panic");
        });
    });
    (cost, load::violations())
}

type Nap = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The least that anything between submitter and runtime does: a task is boxed, put into a queue
/// under one lock, taken from there and spawned by another task, and counted when it ends. No
/// lanes, no limits, no order.
fn least(runtime: &Runtime, shape: &Shape) -> Cost {
    let count = shape.count();
    Cost::of(count as u64, || {
        runtime.block_on(async {
            let queue = Arc::new(Mutex::new(VecDeque::<Nap>::new()));
            let (put, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let left = Arc::new(AtomicU64::new(count as u64));
            let starts = tokio::spawn(start_all(queue.clone(), put.clone(), count));
            let all_ended = ended.clone();
            let submits = tokio::spawn(async move {
                for _ in 0..count {
                    let (left, ended) = (left.clone(), ended.clone());
                    let nap: Nap = Box::pin(async move {
                        tokio::time::sleep(NAP).await;
                        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                            ended.notify_one();
                        }
                    });
                    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.push_back(nap);
                    let first = queue.len() == 1;
                    drop(queue);
                    if first {
                        put.notify_one();
                    }
                }
            });
            submits.await.expect("no panic");
            starts.await.expect("no panic");
            all_ended.notified().await;
        });
    })
}

async fn start_all(queue: Arc<Mutex<VecDeque<Nap>>>, put: Arc<Notify>, count: usize) {
    let mut started = 0;
    while started < count {
        let taken = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
        started += taken.len();
        if taken.is_empty() {
            put.notified().await;
        }
        for nap in taken {
            tokio::spawn(nap);
        }
    }
}
