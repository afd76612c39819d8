//! What the process has used: CPU time, memory.

use std::ffi::OsStr;
use std::fs;
use std::hint::black_box;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// CPU time of all threads that are alive. Exact to the nanosecond, unlike `/proc/self/stat`.
pub(crate) fn cpu() -> Duration {
    threads().map(|(_, cpu)| cpu).sum()
}

/// CPU time of all threads but the one that asks.
pub(crate) fn cpu_of_others() -> Duration {
    let me = fs::read_link("/proc/thread-self").unwrap_or_default();
    let me = me
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let others = threads().filter(|(thread, _)| Some(thread) != me.as_ref());
    others.map(|(_, cpu)| cpu).sum()
}

fn threads() -> impl Iterator<Item = (String, Duration)> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    tasks.filter_map(|task| {
        let task = task.ok()?;
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = stat.split(' ').next()?.parse().ok()?;
        let name = task.file_name().to_string_lossy().into_owned();
        Some((name, Duration::from_nanos(nanos)))
    })
}

/// Resident memory in bytes.
pub(crate) fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second number of statm") * 4096
}

/// Wall clock and CPU time of something that ran `count` times.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) count: u64,
}

impl Cost {
    pub(crate) fn of(count: u64, run: impl FnOnce()) -> Self {
        let (cpu_before, before) = (cpu(), Instant::now());
        run();
        let wall = before.elapsed();
        Self {
            wall,
            cpu: cpu() - cpu_before,
            count,
        }
    }

    pub(crate) fn cpu_nanos(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.count as f64
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64()
    }
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What this program says when it measures that in a process of its own (`--alone`, in `main`).
pub(crate) fn alone<Word: AsRef<OsStr>>(words: impl IntoIterator<Item = Word>) -> String {
    let me = std::env::current_exe().expect("the path of this program");
    let output = Command::new(me).arg("--alone").args(words).output();
    String::from_utf8(output.expect("it runs").stdout).expect("text")
}

const WORKERS: usize = 2;

/// Lets every worker's part of the heap be put in order, as the next large allocation there would. glibc leaves what
/// is freed in small pieces as it is until then, so that whoever runs next would pay for whoever ran before:
/// ten milliseconds after 100,000 tasks.
pub(crate) fn tidy(runtime: &Runtime) {
    let all_here = Arc::new(Barrier::new(WORKERS));
    let tidying = (0..WORKERS).map(|_| {
        let all_here = all_here.clone();
        runtime.spawn(async move {
            // So that each has a worker of its own.
            all_here.wait();
            drop(black_box(Vec::<u8>::with_capacity(64 << 10)));
        })
    });
    let tidying: Vec<_> = tidying.collect();
    runtime.block_on(async {
        for tidied in tidying {
            tidied.await.expect("no panic");
        }
    });
}

/// A runtime with two workers, as all measurements have.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_time()
        .build()
        .expect("a runtime")
}
