//! The load of the no-op runs: keys, numbered tasks, and the bound on what is outstanding.

use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;

pub(crate) const MOST_KEYS: usize = 1_000_000;
const MOST_SUBMITTERS: usize = 2;
/// How many tasks are submitted and not yet ended, at most.
pub(crate) const OUTSTANDING: usize = 80 * STEP;
/// Submitters wait for room for so many tasks at once, without spinning.
const STEP: usize = 256;

/// Keys of 26 bytes.
pub(crate) static KEYS: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| {
    let keys = (0..MOST_KEYS).map(|n| Arc::from(format!("customer-{n:017}")));
    keys.collect()
});

static NEXT: LazyLock<Vec<[AtomicU32; MOST_SUBMITTERS]>> = LazyLock::new(|| {
    let zero = || [const { AtomicU32::new(0) }; MOST_SUBMITTERS];
    (0..MOST_KEYS).map(|_| zero()).collect()
});
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static ROOM: Semaphore = Semaphore::const_new(OUTSTANDING);

/// One task: the `number`th that `submitter` has for `key`.
#[derive(Clone, Copy)]
pub(crate) struct NoOp {
    key: u32,
    submitter: u32,
    number: u32,
}

impl NoOp {
    pub(crate) fn key(&self) -> &'static Arc<str> {
        &KEYS[self.key as usize]
    }

    /// Checks the order and does nothing else.
    pub(crate) fn check(self) {
        let next = &NEXT[self.key as usize][self.submitter as usize];
        if next.load(Ordering::Relaxed) != self.number {
            VIOLATIONS.fetch_add(1, Ordering::Relaxed);
        }
        next.store(self.number + 1, Ordering::Relaxed);
    }

    /// As [`Self::check`], then makes room for another task.
    pub(crate) fn check_and_make_room(self) {
        self.check();
        let ended = ENDED.fetch_add(1, Ordering::Relaxed) + 1;
        if ended.is_multiple_of(STEP as u64) {
            ROOM.add_permits(STEP);
        }
    }
}

/// Random keys, each key's tasks numbered.
pub(crate) struct Numbers {
    submitter: u32,
    of_key: Vec<u32>,
    random: u64,
}

impl Numbers {
    pub(crate) fn new(submitter: usize, keys: usize) -> Self {
        Self {
            submitter: submitter as u32,
            of_key: vec![0; keys],
            random: 0x9e37_79b9_7f4a_7c15 + submitter as u64,
        }
    }

    pub(crate) fn task(&mut self) -> NoOp {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.task_of((((self.random >> 32) * self.of_key.len() as u64) >> 32) as usize)
    }

    /// The tasks of one step, their keys at hand, as whoever read messages has theirs. Fetched from a
    /// million places one by one, each waited for, they would be most of what is measured.
    fn step(&mut self) -> Vec<NoOp> {
        let tasks: Vec<NoOp> = (0..STEP).map(|_| self.task()).collect();
        for task in &tasks {
            black_box(task.key().as_bytes()[0]);
        }
        tasks
    }

    /// The next task of this key.
    pub(crate) fn task_of(&mut self, key: usize) -> NoOp {
        let number = self.of_key[key];
        self.of_key[key] += 1;
        NoOp {
            key: key as u32,
            submitter: self.submitter,
            number,
        }
    }
}

/// Forgets the numbers and violations of the last run.
pub(crate) fn reset() {
    for of_key in NEXT.iter() {
        of_key
            .iter()
            .for_each(|next| next.store(0, Ordering::Relaxed));
    }
    VIOLATIONS.store(0, Ordering::Relaxed);
}

pub(crate) fn violations() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed)
}

/// How many tasks a run over so many submitters has: near to `wanted`.
pub(crate) fn whole_steps(wanted: usize, submitters: usize) -> usize {
    wanted / (STEP * submitters) * STEP * submitters
}

/// Submits `count` tasks that make room themselves when they end.
pub(crate) async fn submit(mut numbers: Numbers, count: usize, put: impl Fn(NoOp)) {
    for _ in 0..count / STEP {
        let room = ROOM.acquire_many(STEP as u32).await;
        room.expect("never closed").forget();
        numbers.step().into_iter().for_each(&put);
    }
}

/// Waits until what was submitted has ended.
pub(crate) async fn all_ended() {
    let room = ROOM.acquire_many(OUTSTANDING as u32).await;
    drop(room.expect("never closed"));
}

/// Submits `count` tasks and awaits the handle of each, `outstanding` tasks behind.
pub(crate) async fn submit_and_await<H: Future + Unpin>(
    mut numbers: Numbers,
    count: usize,
    outstanding: usize,
    put: impl Fn(NoOp) -> H,
) {
    let mut handles = VecDeque::with_capacity(outstanding);
    for _ in 0..count / STEP {
        while handles.len() + STEP > outstanding {
            handles.pop_front().expect("more than one step").await;
        }
        handles.extend(numbers.step().into_iter().map(&put));
    }
    for handle in handles {
        handle.await;
    }
}
