//! Processes found by a mark in their environment.
//!
//! Whatever a broker starts inherits the mark, also what leaves its process group (Erlang's epmd), and a number
//! that another process got meanwhile is not mistaken for ours. So nothing can stay behind, even when the one who
//! started it died before it could write down a number.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that holds the folder a process works for.
pub(crate) const MARK: &str = "KEYLANE_BROKER_FOLDER";

/// How often we look again.
const PACE: Duration = Duration::from_millis(10);

/// The living processes that are marked with `folder` or something in it. Two looks, because one that just becomes
/// another program can be missed by a single one.
pub(crate) fn marked(folder: &Path) -> Vec<Pid> {
    let mut found = look_at_all(folder);
    thread::sleep(PACE);
    let more = look_at_all(folder);
    for pid in more {
        if !found.contains(&pid) {
            found.push(pid);
        }
    }
    found.retain(|pid| environment_length(*pid).is_some());
    found
}

fn look_at_all(folder: &Path) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .filter(|pid| looks_marked(*pid, folder))
        .collect()
}

/// Whether the living process is marked with `folder` or something in it. A no is only believed when it is said
/// several times.
pub(crate) fn is_marked(pid: Pid, folder: &Path) -> bool {
    (0..5).any(|look| {
        if look > 0 && environment_length(pid).is_some() {
            thread::sleep(PACE);
        }
        looks_marked(pid, folder)
    })
}

fn looks_marked(pid: Pid, folder: &Path) -> bool {
    let Some(environment) = environment(pid) else {
        return false;
    };
    // Text, because that is split in a fraction of the time that single bytes take in an unoptimised build.
    String::from_utf8_lossy(&environment)
        .split('\0')
        .filter_map(|variable| variable.strip_prefix(MARK)?.strip_prefix('='))
        .any(|value| Path::new(value).starts_with(folder))
}

/// None for one that is gone, or has ended and was not yet waited for.
fn environment(pid: Pid) -> Option<Vec<u8>> {
    let file = format!("/proc/{}/environ", pid.as_raw_nonzero());
    let mut whole = None;
    // While it becomes another program it seems to have none, or only the beginning, or cannot be read.
    until(Duration::from_secs(2), || {
        let read = fs::read(&file);
        let Some(length) = environment_length(pid) else {
            return true;
        };
        if let Err(error) = &read {
            return error.kind() == io::ErrorKind::PermissionDenied;
        }
        whole = read
            .ok()
            .filter(|environment| length == Some(environment.len()));
        whole.is_some()
    });
    whole
}

/// None for one that is not alive or is a thread of the kernel, `Some(None)` between two programs. See
/// proc_pid_stat(5).
fn environment_length(pid: Pid) -> Option<Option<usize>> {
    const KERNEL: usize = 0x0020_0000;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in brackets, may have blanks and brackets itself. The third field is the first behind it.
    let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<usize>().ok();
    if matches!(*fields.first()?, "Z" | "X") || number(9)? & KERNEL != 0 {
        return None;
    }
    let (start, end) = (number(50)?, number(51)?);
    Some((end != 0).then(|| end.saturating_sub(start)))
}

/// Starts a process that is marked with `folder`, and returns when it can be found.
pub(crate) fn start(command: &mut Command, folder: &Path) -> io::Result<Child> {
    let mut child = command.env(MARK, folder).spawn()?;
    let pid = Pid::from_child(&child);
    // For a moment it still has our environment.
    until(Duration::from_secs(10), || {
        is_marked(pid, folder) || !matches!(child.try_wait(), Ok(None))
    });
    Ok(child)
}

/// Asks `first` to end, waits for it, then kills whatever is left of `folder`. True when all are gone.
pub(crate) fn end(folder: &Path, first: Option<Pid>, patience: Duration) -> bool {
    let asked = match first.filter(|pid| is_marked(*pid, folder)) {
        Some(first) => vec![first],
        None => marked(folder),
    };
    for pid in &asked {
        // It may just have ended by itself.
        let _ = kill_process(*pid, Signal::TERM);
    }
    until(patience, || {
        !asked.iter().any(|pid| is_marked(*pid, folder))
    });
    kill(folder)
}

/// Kills everything of `folder` without asking. True when all are gone.
pub(crate) fn kill(folder: &Path) -> bool {
    // Again each time: one of them may have started another meanwhile.
    until(Duration::from_secs(10), || {
        let left = marked(folder);
        for pid in &left {
            let _ = kill_process(*pid, Signal::KILL);
        }
        left.is_empty()
    })
}

/// Whether `done` came true in time.
pub(crate) fn until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let last = Instant::now() + patience;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= last {
            return false;
        }
        thread::sleep(PACE);
    }
}

/// The memory that the processes of `folder` have, in bytes.
pub(crate) fn memory(folder: &Path) -> u64 {
    marked(folder).into_iter().filter_map(resident).sum()
}

/// `VmRSS:     1234 kB`
fn resident(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends with the test, also with one that fails.
    struct Marked {
        home: tempfile::TempDir,
        child: Child,
    }

    impl Marked {
        fn start(below: &str, script: &str) -> Self {
            let home = tempfile::tempdir().unwrap();
            fs::write(home.path().join("script.sh"), script).unwrap();
            let mut shell = Command::new("sh");
            shell.arg(home.path().join("script.sh"));
            let child = start(&mut shell, &home.path().join(below)).unwrap();
            Self { home, child }
        }

        fn pid(&self) -> Pid {
            Pid::from_child(&self.child)
        }
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            kill(self.home.path());
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_process_is_found_by_its_folder_or_the_one_above_and_by_no_other() {
        let process = Marked::start("kafka", "exec sleep 600");
        let home = process.home.path();
        assert_eq!(marked(home), [process.pid()]);
        assert_eq!(marked(&home.join("kafka")), [process.pid()]);
        assert!(marked(&home.join("kaf")).is_empty());
        assert!(kill(home));
        assert!(marked(home).is_empty());
    }

    #[test]
    fn one_that_does_not_listen_is_killed_after_a_while() {
        let mut process = Marked::start(
            "",
            "trap '' TERM; touch \"$0.deaf\"; while :; do sleep 600; done",
        );
        let (home, pid) = (process.home.path(), process.pid());
        // Asked before, it would have ended.
        assert!(until(Duration::from_secs(60), || home
            .join("script.sh.deaf")
            .exists()));
        assert!(end(home, Some(pid), Duration::from_millis(50)));
        assert!(!process.child.wait().unwrap().success());
    }

    #[test]
    fn a_process_is_found_also_while_it_becomes_another_program() {
        let again = "n=$((${1:-400} - 1)); [ $n = 0 ] && exec sleep 600; exec sh \"$0\" $n";
        let process = Marked::start("", again);
        let name = format!("/proc/{}/comm", process.child.id());
        while fs::read_to_string(&name).unwrap() != "sleep\n" {
            assert!(is_marked(process.pid(), process.home.path()));
        }
    }
}
