//! The ordering rule alone: `Lanes` on one thread.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use keylane::lanes::{Hold, Lanes, Limits, Next, Spec, Time};

use crate::load::{self, Numbers, OUTSTANDING};
use crate::report::{Report, print_table};
use crate::usage::{Cost, median};

const ROUNDS: usize = 5;
const TASKS: u64 = 1_000_000;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn run(report: &mut Report) {
    let mut rows = Vec::new();
    for keys in [1, 100, 10_000, 100_000, 1_000_000] {
        let mut violations = 0;
        let (mut lanes, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            load::reset();
            alone.push(round(&mut Alone::new(), keys).cpu_nanos());
            violations += load::violations();
            load::reset();
            lanes.push(round(&mut Lanes::new(Limits::default()), keys).cpu_nanos());
            violations += load::violations();
        }
        let (lanes, alone) = (median(lanes), median(alone));
        rows.push([
            keys.to_string(),
            format!("{lanes:.0}"),
            format!("{alone:.0}"),
            format!("{:.0}", lanes - alone),
            violations.to_string(),
        ]);
        if keys == 10_000 {
            report.goal(
                "plain lanes, one thread, 10 k keys",
                "≤ 200 ns",
                format!("{:.0} ns ({lanes:.0} with the load)", lanes - alone),
                lanes - alone <= 200.0 && violations == 0,
            );
        }
    }
    println!(
        "\n### Plain lanes, one thread, {OUTSTANDING} waiting, boxed no-op futures, CPU ns/task\n"
    );
    let head = [
        "keys",
        "with the load",
        "the load alone",
        "the lanes' part",
        "order violations",
    ];
    print_table(&head, &rows);
}

/// What waits, and the next of it.
trait Queue {
    fn push(&mut self, key: Arc<str>, job: Job);
    fn run_one(&mut self);
}

/// The load alone: one queue of all keys' jobs, which is in order without any lanes.
type Alone = VecDeque<(Arc<str>, Job)>;

impl Queue for Alone {
    fn push(&mut self, key: Arc<str>, job: Job) {
        self.push_back((key, job));
    }

    fn run_one(&mut self) {
        let (_key, job) = self.pop_front().expect("something waits");
        poll(job);
    }
}

impl Queue for Lanes<Arc<str>, Job> {
    fn push(&mut self, key: Arc<str>, job: Job) {
        let pushed = self.push(key, job, |_| Spec::default());
        assert!(pushed.is_ok(), "there is room");
    }

    fn run_one(&mut self) {
        let Next::Start(ticket, job) = self.next(Time(0), |_, _| Hold::Free) else {
            unreachable!("something waits and nothing runs");
        };
        poll(job);
        self.done(ticket);
    }
}

fn poll(mut job: Job) {
    let polled = job.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(()));
}

fn round(queue: &mut impl Queue, keys: usize) -> Cost {
    let mut numbers = Numbers::new(0, keys);
    for _ in 0..OUTSTANDING {
        push(queue, &mut numbers);
    }
    Cost::of(TASKS, || {
        for _ in 0..TASKS {
            push(queue, &mut numbers);
            queue.run_one();
        }
    })
}

fn push(queue: &mut impl Queue, numbers: &mut Numbers) {
    let task = numbers.task();
    queue.push(task.key().clone(), Box::pin(async move { task.check() }));
}
