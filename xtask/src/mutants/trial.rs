//! Building a test in the copy, running it, and what that shows.

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::mutation::TestRun;
use super::tree::Tree;
use crate::Result;
use crate::process::{Ended, cargo, run_logged};
use crate::tally::Tally;

/// A build that takes longer hangs.
const BUILD_DEADLINE: Duration = Duration::from_secs(1800);

/// A test that takes longer hangs. A hang is not red: it says nothing about which promise was broken.
const TEST_DEADLINE: Duration = Duration::from_secs(600);

/// What became of a mutation. Only killed is good.
#[derive(Debug)]
pub(crate) enum Verdict {
    Killed { by: Vec<String> },
    Survived { passed: usize },
    DoesNotApply(String),
    DoesNotCompile { log: PathBuf },
    HangsTheTest { log: PathBuf },
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Killed { by } if by.is_empty() => {
                write!(f, "killed (the test program broke off)")
            }
            Verdict::Killed { by } => write!(f, "killed by {}", by.join(", ")),
            Verdict::Survived { passed } => write!(f, "SURVIVED {passed} tests"),
            Verdict::DoesNotApply(why) => write!(f, "DOES NOT APPLY: {why}"),
            Verdict::DoesNotCompile { log } => write!(f, "DOES NOT COMPILE: see {}", log.display()),
            Verdict::HangsTheTest { log } => {
                write!(f, "HANGS for {TEST_DEADLINE:?}: see {}", log.display())
            }
        }
    }
}

/// Runs tests in a copy of the workspace, in whatever state it is.
pub(crate) struct Trial<'a> {
    tree: &'a Tree,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(tree: &'a Tree) -> Self {
        Self { tree }
    }

    pub(crate) fn tree(&self) -> &Tree {
        self.tree
    }

    /// Builds first, so that code that does not compile is not taken for a red test.
    pub(crate) fn run(&self, name: &str, test: &TestRun) -> Result<Verdict> {
        let log = self.tree.log(name);
        match self.build(test, &log)? {
            Some(program) => self.judge(test, &program, log),
            None => Ok(Verdict::DoesNotCompile { log }),
        }
    }

    /// The test program, or none when it does not compile.
    fn build(&self, test: &TestRun, log: &Path) -> Result<Option<PathBuf>> {
        let mut build = cargo();
        build
            .current_dir(self.tree.root())
            .env("CARGO_TARGET_DIR", self.tree.build());
        build
            .args([
                "test",
                "--no-run",
                "--all-features",
                "--package",
                test.package,
            ])
            .args(test.target);
        match run_logged(build.envs(test.env.iter().copied()), log, BUILD_DEADLINE)? {
            Ended::By(status) if status.success() => Ok(Some(program_in(&read(log)?)?)),
            Ended::By(_) => Ok(None),
            Ended::Deadline => {
                Err(format!("{test}: the build hangs; see {}", log.display()).into())
            }
        }
    }

    fn judge(&self, test: &TestRun, program: &Path, log: PathBuf) -> Result<Verdict> {
        let folder = self.tree.file("crates").join(test.package);
        let mut run = Command::new(program);
        run.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
        // What one mutation's failure taught must not help to find the next.
        run.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        run.envs(test.env.iter().copied()).arg(test.filter);
        let Ended::By(status) = run_logged(&mut run, &log, TEST_DEADLINE)? else {
            return Ok(Verdict::HangsTheTest { log });
        };
        let mut tally = Tally::default();
        read(&log)?.lines().for_each(|line| tally.see(line));
        Ok(match status.success() {
            true => Verdict::Survived {
                passed: tally.passed,
            },
            false => Verdict::Killed { by: tally.failures },
        })
    }
}

fn read(log: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(log)?).into_owned())
}

/// Cargo's `Executable tests/it/main.rs (/…/deps/it-0123)`.
fn program_in(output: &str) -> Result<PathBuf> {
    let line = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("Executable "));
    let path = line.and_then(|line| line.split_once('(')?.1.strip_suffix(')'));
    Ok(path
        .ok_or_else(|| format!("cargo named no test program:\n{output}"))?
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_is_read_from_cargos_output() {
        let output = "   Compiling keylane v0.1.0\n  Executable unittests src/lib.rs (/t/debug/deps/keylane-01ab)\n";
        assert_eq!(
            program_in(output).unwrap(),
            Path::new("/t/debug/deps/keylane-01ab")
        );
        assert!(program_in("    Finished `test` profile\n").is_err());
    }
}
