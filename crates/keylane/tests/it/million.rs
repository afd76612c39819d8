//! A million tasks from several submitters: no inversion, no overlap, never above a limit, nothing
//! left behind; with cancels, holds, pauses, stops and new limits under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use keylane::{Executor, Gate, Handler, Limits, Mode, Queued, Reply};
use tokio::time::Instant;

const KEYS: usize = 97;
const SUBMITTERS: u64 = 4;

/// Watches one key: what started last of each submitter, and how many run.
#[derive(Default)]
struct Watch {
    last: [AtomicU64; SUBMITTERS as usize],
    running: AtomicUsize,
    overlaps: AtomicUsize,
    inversions: AtomicUsize,
}

impl Watch {
    /// Number `n` (from 1) of a submitter starts; `again` when it was started before.
    fn enter(&self, submitter: u64, n: u64, again: bool) {
        if self.running.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let before = self.last[submitter as usize].swap(n, Ordering::SeqCst);
        if before > n || (before == n && !again) {
            self.inversions.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn watches() -> Arc<Vec<Watch>> {
    Arc::new((0..KEYS).map(|_| Watch::default()).collect())
}

fn assert_clean(watches: &[Watch]) {
    let sum = |count: fn(&Watch) -> &AtomicUsize| -> usize {
        watches
            .iter()
            .map(|watch| count(watch).load(Ordering::SeqCst))
            .sum()
    };
    assert_eq!(sum(|watch| &watch.inversions), 0, "inversions");
    assert_eq!(sum(|watch| &watch.overlaps), 0, "overlaps");
    assert_eq!(sum(|watch| &watch.running), 0, "still inside");
}

struct Inside(Arc<Vec<Watch>>, usize);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0[self.1].leave();
    }
}

/// Raises and lowers the limit of all until told to stop; what runs is never above the highest.
async fn change_limits(executor: Executor<usize>, stop: Arc<AtomicBool>) {
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        round += 1;
        let limits = Limits {
            concurrency: Some([2, 16, 5, 11][round % 4]),
            turn: 1 + (round % 3) as u32,
            ..executor.limits()
        };
        executor.set_limits(limits).unwrap();
        assert!(executor.stats().running <= 16);
        let key = round % KEYS;
        match round % 5 {
            0 => executor.pause(&key),
            1 => drop(executor.resume(&((round - 1) % KEYS))),
            2 => executor.evict(&key),
            3 => executor.shutdown_key(&key, Mode::Now),
            _ => executor.shutdown_key(&key, Mode::Drain),
        }
        tokio::task::yield_now().await;
    }
    for key in 0..KEYS {
        executor.resume(&key);
    }
}

async fn submit_tasks(executor: Executor<usize>, watches: Arc<Vec<Watch>>, me: u64, count: u64) {
    for n in 1..=count {
        let key = (n.wrapping_mul(0x9e37_79b9).wrapping_add(me) >> 3) as usize % KEYS;
        let watches = watches.clone();
        let task = async move {
            watches[key].enter(me, n, false);
            let _inside = Inside(watches, key);
            if n % 8 == 0 {
                tokio::task::yield_now().await;
            }
        };
        match n % 16 {
            0 => drop(executor.submit(key, task).cancel()),
            1 => drop(executor.submit(key, task)),
            _ => executor.post(key, task).unwrap(),
        }
        if n % 256 == 0 {
            while executor.stats().queued > 20_000 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_million_tasks_keep_their_order_while_limits_change_and_keys_are_stopped() {
    let executor = Executor::builder().concurrency(16).build().unwrap();
    let (watches, stop) = (watches(), Arc::new(AtomicBool::new(false)));
    let changes = tokio::spawn(change_limits(executor.clone(), stop.clone()));
    let submits = (0..SUBMITTERS)
        .map(|me| tokio::spawn(submit_tasks(executor.clone(), watches.clone(), me, 125_000)));
    for submit in submits.collect::<Vec<_>>() {
        submit.await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    changes.await.unwrap();
    executor.all_idle().await;
    assert_clean(&watches);
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (0, 0, 0));
}

#[derive(Debug)]
struct Counted {
    submitter: u64,
    n: u64,
    tries: u8,
}

struct Office {
    watches: Arc<Vec<Watch>>,
    done: Arc<AtomicUsize>,
    asked: AtomicUsize,
    most: Arc<AtomicUsize>,
    running: AtomicUsize,
}

impl Handler<usize, (usize, Counted)> for Office {
    fn gate(&self, _: &(usize, Counted)) -> Gate {
        match self.asked.fetch_add(1, Ordering::Relaxed) % 1024 {
            0 => Gate::Until(Instant::now()),
            _ => Gate::Go,
        }
    }

    async fn handle(&self, (key, mut job): (usize, Counted), _: usize) -> Reply<(usize, Counted)> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        self.watches[key].enter(job.submitter, job.n, job.tries > 0);
        if job.n % 8 == 0 {
            tokio::task::yield_now().await;
        }
        self.watches[key].leave();
        self.running.fetch_sub(1, Ordering::SeqCst);
        let hold = job.n % 16 == 3 && job.tries < 2;
        job.tries += 1;
        match job.n {
            _ if hold => Reply::Hold {
                job: (key, job),
                until: Some(Instant::now()),
            },
            n if n % 64 == 5 && job.tries < 3 => Reply::Flush {
                job: Some((key, job)),
            },
            _ => {
                self.done.fetch_add(1, Ordering::SeqCst);
                Reply::Done
            }
        }
    }

    async fn flushed(
        &self,
        _: usize,
        jobs: Vec<Queued<(usize, Counted)>>,
    ) -> Vec<Queued<(usize, Counted)>> {
        tokio::task::yield_now().await;
        jobs
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_million_jobs_keep_their_order_with_holds_flushes_and_new_limits() {
    let (watches, done) = (watches(), Arc::new(AtomicUsize::new(0)));
    let most = Arc::new(AtomicUsize::new(0));
    let office = Office {
        watches: watches.clone(),
        done: done.clone(),
        asked: AtomicUsize::new(0),
        most: most.clone(),
        running: AtomicUsize::new(0),
    };
    let jobs = Executor::builder()
        .concurrency(16)
        .build_with(office)
        .unwrap();
    let mut submits = Vec::new();
    for submitter in 0..SUBMITTERS {
        let jobs = jobs.clone();
        submits.push(tokio::spawn(async move {
            for n in 1..=125_000_u64 {
                let key = (n.wrapping_mul(0x9e37_79b9) >> 5) as usize % KEYS;
                let job = Counted {
                    submitter,
                    n,
                    tries: 0,
                };
                jobs.push(key, (key, job)).expect("never full");
                if n % 256 == 0 {
                    while jobs.stats().queued > 20_000 {
                        tokio::task::yield_now().await;
                    }
                    let limits = Limits {
                        concurrency: Some([3, 16, 7][(n / 256 % 3) as usize]),
                        ..jobs.limits()
                    };
                    jobs.set_limits(limits).unwrap();
                }
            }
        }));
    }
    for submit in submits {
        submit.await.unwrap();
    }
    jobs.all_idle().await;
    assert_clean(&watches);
    assert_eq!(done.load(Ordering::SeqCst), 500_000, "each was done once");
    assert!(
        most.load(Ordering::SeqCst) <= 16,
        "never above the highest limit"
    );
    let stats = jobs.stats();
    assert_eq!((stats.running, stats.queued, stats.live_keys), (0, 0, 0));
}
