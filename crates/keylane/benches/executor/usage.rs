//! What the process has used: CPU time, memory.

use std::fs;
use std::time::{Duration, Instant};

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

/// A runtime with two workers, as all measurements have.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime")
}
