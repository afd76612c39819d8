//! What the system says about this process and this machine.

use std::time::Duration;

/// Processor time of this process, all threads.
#[cfg(unix)]
pub(super) fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Not known here.
#[cfg(not(unix))]
pub(super) fn cpu() -> Duration {
    Duration::ZERO
}

/// Bytes of memory that are this process's right now; 0 where the system does not say.
pub(super) fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The load average of the last minutes.
pub(super) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<&str> = text.split_whitespace().take(3).collect();
    numbers.join(" ")
}

/// Processors and their kind.
pub(super) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("", |line| line.trim_start_matches([' ', '\t', ':']));
    format!("{cores} × {model} ({})", std::env::consts::OS)
}
