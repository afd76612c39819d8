//! What is freed is used again, or goes back to the system.
//!
//! The C library learns from the first large piece that is freed to keep such pieces for itself, each
//! in the heap of its thread. With bodies of 1 MiB and a budget of 32 MiB that took 128 MB at the
//! peak instead of 81. And it makes eight heaps for each processor, each with holes of its own, though
//! no more threads than processors run at once: 100 k waiting keys took 3 MB more than with one for
//! each. Both can only be said before a program starts, so this one starts itself again: the same
//! process, with two more variables.

/// Returns when it is as it should be, or cannot be.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_little() {
    use std::os::unix::process::CommandExt;

    const FROM: &str = "MALLOC_MMAP_THRESHOLD_";
    const HEAPS: &str = "MALLOC_ARENA_MAX";
    // Also where somebody has set it: they may know better.
    if std::env::var_os(FROM).is_some() {
        return;
    }
    let processors = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut args = std::env::args_os();
    let mut again = std::process::Command::new(program);
    again.env(FROM, "131072");
    if std::env::var_os(HEAPS).is_none() {
        again.env(HEAPS, processors.to_string());
    }
    again.arg0(args.next().unwrap_or_default()).args(args);
    // Only an error comes back. It takes more memory then, and does the same.
    let _ = again.exec();
}

/// Other C libraries are not known to need it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn use_little() {}
