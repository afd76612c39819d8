//! Running other programs.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::place;

/// The cargo that runs us, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(program());
    cargo.current_dir(place::root());
    cargo
}

/// The same, giving way to everything else.
pub(crate) fn patient_cargo() -> Command {
    let mut cargo = Command::new("nice");
    cargo.args(["-n", "15"]).arg(program());
    cargo.current_dir(place::root());
    cargo
}

fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs to the end with each line of its output passed on and shown to `see`.
pub(crate) fn run_seeing(command: &mut Command, see: impl FnMut(&str)) -> io::Result<ExitStatus> {
    run_marked(command, "", see)
}

/// The same, for one of several at a time: `mark` is before each line that is passed on.
pub(crate) fn run_marked(
    command: &mut Command,
    mark: &str,
    mut see: impl FnMut(&str),
) -> io::Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{mark}{text}");
        see(text.trim_end());
        line.clear();
    }
    child.wait()
}

/// How a program with a deadline ended.
pub(crate) enum Ended {
    By(ExitStatus),
    Deadline,
}

/// Runs to the end, or kills it at the deadline. All of its output goes to the file `log`.
pub(crate) fn run_logged(
    command: &mut Command,
    log: &Path,
    deadline: Duration,
) -> io::Result<Ended> {
    let out = File::create(log)?;
    let mut child = command
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out)
        .spawn()?;
    let last = Instant::now() + deadline;
    // Asking now and then is all that std offers for a wait with a deadline.
    while Instant::now() < last {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::By(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(Ended::Deadline)
}

/// The last thing a log says, in one line.
pub(crate) fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("no reason given").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_seen_line_by_line() {
        let mut seen = Vec::new();
        let status =
            run_seeing(cargo().arg("--version"), |line| seen.push(line.to_owned())).unwrap();
        assert!(status.success());
        assert!(
            matches!(seen.as_slice(), [line] if line.starts_with("cargo ")),
            "{seen:?}"
        );
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        let log = env::temp_dir().join(format!("keylane-xtask-deadline-{}", std::process::id()));
        let ended = run_logged(Command::new("sleep").arg("600"), &log, Duration::ZERO).unwrap();
        std::fs::remove_file(log).unwrap();
        assert!(matches!(ended, Ended::Deadline));
    }
}
