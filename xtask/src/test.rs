//! `cargo xtask test`: everything that must hold before a change lands, with one summary at the end.

use std::env;
use std::process::Command;

use crate::brokers::{self, keeper::Kept};
use crate::process::{cargo, run_seeing};
use crate::report::{Report, Verdict};
use crate::tally::Tally;
use crate::{Answer, Result, deny, place};

/// Histories of a property test in the inner loop, where seconds count.
const QUICK_HISTORIES: &str = "5000";

/// How much is checked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    Full,
    Quick,
}

/// Runs every step, whatever became of the ones before.
pub(crate) fn run(extent: Extent) -> Result<Answer> {
    let mut report = Report::default();
    let mut tally = Tally::default();
    match extent {
        Extent::Quick => {
            checks(&mut report);
            report.step("tests", || tests(quick_histories(), &mut tally));
        }
        Extent::Full => {
            full(&mut report, &mut tally)?;
        }
    }
    println!("\n=== summary\n{report}{tally}");
    Ok(if report.is_good() {
        Answer::Good
    } else {
        Answer::Bad
    })
}

fn full(report: &mut Report, tally: &mut Tally) -> Result<()> {
    let required = brokers::required(&env::var("KEYLANE_REQUIRE_BROKERS").unwrap_or_default())?;
    // They are fetched and started while cargo builds.
    let mut brokers = Kept::begin(&brokers::chosen(&[])?)?;
    checks(report);
    report.step("build", build);
    report.step("brokers", || Ok(brokers.ready(&required)));
    report.step("tests", || tests(brokers.variables()?, tally));
    // Nothing from here on needs them, and it has their memory.
    drop(brokers);
    report.step("shuttle", || shuttle(tally));
    report.step("docs", docs);
    report.step("package", package);
    // Last, because a fresh machine first has to build the tool.
    report.step("licences", deny::licences);
    report.step("advisories", deny::advisories);
    Ok(())
}

fn checks(report: &mut Report) {
    report.step("format", format);
    report.step("clippy", clippy);
}

fn format() -> Result<Verdict> {
    verdict(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<Verdict> {
    verdict(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

/// On its own, so that the brokers have its time too.
fn build() -> Result<Verdict> {
    verdict(cargo().args(["test", "--workspace", "--all-features", "--no-run"]))
}

fn tests(variables: Vec<(String, String)>, tally: &mut Tally) -> Result<Verdict> {
    let mut test = cargo();
    test.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    tallied(test.envs(variables), tally)
}

fn quick_histories() -> Vec<(String, String)> {
    let asked = env::var("KEYLANE_HISTORIES").unwrap_or_else(|_| QUICK_HISTORIES.to_owned());
    vec![("KEYLANE_HISTORIES".to_owned(), asked)]
}

/// The executor's interleavings, in a build of their own beside the usual one.
fn shuttle(tally: &mut Tally) -> Result<Verdict> {
    let mut test = cargo();
    test.args(["test", "--package", "keylane", "--test", "it", "shuttle::"]);
    test.env("RUSTFLAGS", "--cfg keylane_shuttle")
        .env("CARGO_TARGET_DIR", place::root().join("target/shuttle"));
    tallied(&mut test, tally)
}

pub(crate) fn tallied(test: &mut Command, tally: &mut Tally) -> Result<Verdict> {
    let before = tally.failures.len();
    let status = run_seeing(test, |line| tally.see(line))?;
    Ok(match (status.success(), &tally.failures[before..]) {
        (true, _) => Verdict::Ok,
        (false, []) => Verdict::Failed(status.to_string()),
        (false, names) => Verdict::Failed(names.join(", ")),
    })
}

fn docs() -> Result<Verdict> {
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--all-features"]);
    verdict(doc.env("RUSTDOCFLAGS", "-Dwarnings"))
}

/// Writes what is generated in the docs: the test that compares it, told to write instead.
pub(crate) fn write_docs() -> Result<Answer> {
    let mut test = cargo();
    test.args(["test", "--package", "keylane-router", "--all-features"]);
    test.args(["--test", "it", "docs::"]);
    let written = verdict(test.env("KEYLANE_WRITE_DOCS", "1"))?;
    Ok(match written {
        Verdict::Ok => Answer::Good,
        _ => Answer::Bad,
    })
}

/// Packs the crate that strangers depend on and builds it from the package alone.
fn package() -> Result<Verdict> {
    verdict(cargo().args(["package", "--package", "keylane", "--allow-dirty"]))
}

/// Ok when the program says so.
pub(crate) fn verdict(command: &mut Command) -> Result<Verdict> {
    let status = command.status()?;
    Ok(if status.success() {
        Verdict::Ok
    } else {
        Verdict::Failed(status.to_string())
    })
}
