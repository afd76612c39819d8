//! The brokers of one `cargo xtask test`, kept by a process of their own that ends them when the test run is gone.
//!
//! The keeper's input is a pipe that the test run holds and never writes to. However the test run ends (its last step,
//! Ctrl-C, a panic, kill -9), the pipe ends with it, and the keeper kills all brokers and removes their folder. If the
//! keeper itself is killed, the next `cargo xtask test` or `brokers` command clears up: see `run::sweep`.
//!
//! It prints one line for each piece of news: `ready kafka`, `failed kafka <why>`, `say <text>`.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::broker::{self, Broker};
use super::install::Installer;
use super::marked;
use super::run::{self, Run};
use super::server::Server;
use crate::report::Verdict;
use crate::{Answer, Result};

/// From the start of the test run. A machine that has nothing of it yet needs about four minutes.
const PATIENCE: Duration = Duration::from_secs(12 * 60);

/// Brokers give way to the build and to the tests that use them.
const NICENESS: i32 = 5;

/// The brokers of this test run, from the side of the test run.
pub(crate) struct Kept {
    begun: Instant,
    run: Run,
    /// The ones to be started.
    brokers: Vec<Broker>,
    /// The ones for which there is a URL already.
    yours: Vec<Broker>,
    ready: Vec<Broker>,
    failed: Vec<(Broker, String)>,
    keeper: Child,
    /// Held open: its end is the keeper's end.
    pipe: Option<ChildStdin>,
    news: Receiver<String>,
}

impl Kept {
    /// Begins to start those of these brokers for which no URL is set, and does not wait.
    pub(crate) fn begin(wanted: &[Broker]) -> Result<Self> {
        run::sweep()?;
        let given = |broker: &Broker| {
            env::var_os(broker.variable("URL")).is_some_and(|url| !url.is_empty())
        };
        let brokers: Vec<_> = wanted.iter().copied().filter(|b| !given(b)).collect();
        let run = Run::named(&format!("test-{}", std::process::id()))?;
        let mut keeper = Command::new(env::current_exe()?);
        keeper.args(["brokers", "keep", run.name()]);
        keeper.args(brokers.iter().map(|broker| broker.name()));
        // Ctrl-C is for us; the keeper sees the pipe end.
        let mut keeper = keeper
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipe = keeper.stdin.take();
        let news = listen(keeper.stdout.take().expect("stdout is piped"));
        Ok(Self {
            begun: Instant::now(),
            run,
            brokers,
            yours: wanted.iter().copied().filter(given).collect(),
            ready: Vec::new(),
            failed: Vec::new(),
            keeper,
            pipe,
            news,
        })
    }

    /// Waits for all, and judges what is missing.
    pub(crate) fn ready(&mut self, required: &[Broker]) -> Verdict {
        self.wait();
        self.smoke();
        for broker in &self.yours {
            println!("{broker:<10}yours, by {}", broker.variable("URL"));
        }
        judge(&self.failed, required)
    }

    /// Until each is ready or cannot be had.
    fn wait(&mut self) {
        let last = self.begun + PATIENCE;
        while !self.open().is_empty() {
            let left = last.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(line) => self.hear(&line),
                Err(RecvTimeoutError::Timeout) => {
                    self.give_up(&format!("not ready after {PATIENCE:?}"))
                }
                Err(RecvTimeoutError::Disconnected) => self.give_up("its keeper ended"),
            }
        }
    }

    /// The ones of which nothing is known yet.
    fn open(&self) -> Vec<Broker> {
        let settled = |broker: &Broker| {
            self.ready.contains(broker) || self.failed.iter().any(|(failed, _)| failed == broker)
        };
        self.brokers
            .iter()
            .copied()
            .filter(|broker| !settled(broker))
            .collect()
    }

    fn hear(&mut self, line: &str) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
        match (kind, broker::named(name)) {
            ("ready", Ok(broker)) => {
                println!(
                    "{broker:<10}{:>6.1} s  ready",
                    self.begun.elapsed().as_secs_f64()
                );
                self.ready.push(broker);
            }
            ("failed", Ok(broker)) => {
                println!(
                    "{broker:<10}{:>6.1} s  FAILED: {why}",
                    self.begun.elapsed().as_secs_f64()
                );
                self.failed.push((broker, why.to_owned()));
            }
            _ => println!("{rest}"),
        }
    }

    fn give_up(&mut self, why: &str) {
        for broker in self.open() {
            self.failed.push((broker, why.to_owned()));
        }
    }

    /// Puts a message through each once more: ready while all were starting is not yet ready beside the others.
    fn smoke(&mut self) {
        for broker in std::mem::take(&mut self.ready) {
            match Server::new(&self.run, broker).probe() {
                Ok(()) => self.ready.push(broker),
                Err(error) => self.failed.push((broker, error.to_string())),
            }
        }
    }

    /// What the tests are told.
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>> {
        let mut variables = Vec::new();
        for broker in &self.ready {
            variables.extend(broker.variables(&Server::new(&self.run, *broker).ports()?));
        }
        let folder = self.run.folder().display().to_string();
        variables.push(("KEYLANE_BROKERS_RUN".to_owned(), folder));
        let program = env::current_exe()?.display().to_string();
        variables.push(("KEYLANE_XTASK".to_owned(), program));
        Ok(variables)
    }
}

/// Whatever happens, they end.
impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let gone = marked::until(Duration::from_secs(60), || {
            !matches!(self.keeper.try_wait(), Ok(None))
        });
        if !gone {
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
        let _ = self.run.remove();
    }
}

/// What could not be had fails the step if it is required, and is skipped aloud otherwise.
fn judge(failed: &[(Broker, String)], required: &[Broker]) -> Verdict {
    if failed.is_empty() {
        return Verdict::Ok;
    }
    let lines: Vec<_> = failed
        .iter()
        .map(|(broker, why)| {
            let variable = broker.variable("URL");
            format!("{broker}: {why} (or set {variable} to a server of yours)")
        })
        .collect();
    let missing = lines.join("\n    ");
    if failed.iter().any(|(broker, _)| required.contains(broker)) {
        Verdict::Failed(format!(
            "required by KEYLANE_REQUIRE_BROKERS and missing:\n    {missing}"
        ))
    } else {
        Verdict::Skipped(format!("NOT TESTED AGAINST\n    {missing}"))
    }
}

fn listen(output: ChildStdout) -> Receiver<String> {
    let (tell, news) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(io::Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    news
}

/// `xtask brokers keep`: the keeper's own side.
pub(crate) fn keep(run: &str, names: &[&str]) -> Result<Answer> {
    let run = Run::named(run)?;
    let brokers: Vec<_> = names
        .iter()
        .map(|name| broker::named(name))
        .collect::<Result<_>>()?;
    let _owner = run.own()?;
    let _ = rustix::process::nice(NICENESS);
    thread::scope(|scope| {
        for broker in &brokers {
            scope.spawn(|| tell(&bring_up(&run, *broker)));
        }
        // Meanwhile, and after: until the test run is gone.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let removed = run.remove();
        // Not by returning: a thread that waits for something would be waited for.
        std::process::exit(if removed.is_ok() { 0 } else { 1 })
    })
}

fn bring_up(run: &Run, broker: Broker) -> String {
    let installer = Installer {
        say: &|text| tell(&format!("say {text}")),
        run: Some(run.folder()),
    };
    let ended = super::on_linux()
        .and_then(|()| installer.installed(broker))
        .and_then(|installed| Server::new(run, broker).up(&installed, None));
    match ended {
        Ok(_) => format!("ready {broker}"),
        Err(error) => format!("failed {broker} {}", error.to_string().replace('\n', " ")),
    }
}

/// To nobody, perhaps: the test run may be gone.
fn tell(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Vec<(Broker, String)> {
        vec![(Broker::Pulsar, "no network".to_owned())]
    }

    #[test]
    fn what_is_missing_is_skipped_aloud_with_the_remedy() {
        let Verdict::Skipped(why) = judge(&failed(), &[Broker::Kafka]) else {
            panic!("not skipped");
        };
        assert!(why.contains("pulsar: no network"), "{why}");
        assert!(why.contains("KEYLANE_TEST_PULSAR_URL"), "{why}");
    }

    #[test]
    fn what_is_missing_and_required_is_a_failure() {
        let verdict = judge(&failed(), &Broker::ALL);
        assert!(matches!(verdict, Verdict::Failed(why) if why.contains("KEYLANE_REQUIRE_BROKERS")));
        assert!(matches!(judge(&[], &Broker::ALL), Verdict::Ok));
    }
}
