//! `cargo xtask test`: everything that must hold before a change lands, with one summary at the end.

use std::env;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::brokers::{self, keeper::Kept};
use crate::process::{cargo, patient_cargo, run_seeing};
use crate::report::{Report, Verdict};
use crate::tally::Tally;
use crate::{Answer, Result, deny, groups, place};

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
            report.step("format", format);
            report.step("clippy", || clippy(cargo()));
            report.step("tests", || quick_tests(&mut tally));
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
    let (running, begun) = mpsc::channel();
    let beside = thread::scope(|scope| {
        let beside = scope.spawn(move || beside(&begun));
        report.step("format", format);
        report.step("build", build);
        report.step("brokers", || Ok(brokers.ready(&required)));
        report.step("tests", || {
            groups::run(&brokers.variables()?, tally, running)
        });
        drop(brokers);
        beside.join().expect("a step does not panic")
    });
    report.add_all(beside.0);
    tally.add_all(beside.1);
    Ok(())
}

/// What needs no broker: with what the others leave of the processors, while the last of the tests is
/// built, which one alone can do, and while they wait, which they mostly do.
fn beside(begun: &mpsc::Receiver<()>) -> (Report, Tally) {
    let (mut report, mut tally) = (Report::default(), Tally::default());
    // These are built where nothing else is.
    report.step("shuttle", || shuttle(&mut tally));
    report.step("licences", deny::licences);
    report.step("advisories", deny::advisories);
    // Elsewhere cargo builds for one at a time, and the tests come first: until all have begun.
    while begun.recv().is_ok() {}
    report.step("clippy", || clippy(patient_cargo()));
    report.step("docs", docs);
    report.step("doc tests", || doc_tests(&mut tally));
    report.step("package", package);
    report.step("simulation", simulation);
    (report, tally)
}

fn format() -> Result<Verdict> {
    verdict(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy(mut cargo: Command) -> Result<Verdict> {
    verdict(cargo.args([
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

fn quick_tests(tally: &mut Tally) -> Result<Verdict> {
    let histories = env::var("KEYLANE_HISTORIES").unwrap_or_else(|_| QUICK_HISTORIES.to_owned());
    let mut test = cargo();
    test.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    tallied(test.env("KEYLANE_HISTORIES", histories), tally)
}

/// The examples in the docs of the code.
fn doc_tests(tally: &mut Tally) -> Result<Verdict> {
    let mut test = patient_cargo();
    test.args([
        "test",
        "--workspace",
        "--all-features",
        "--no-fail-fast",
        "--doc",
    ]);
    tallied(&mut test, tally)
}

/// The executor's interleavings, in a build of their own beside the usual one.
fn shuttle(tally: &mut Tally) -> Result<Verdict> {
    let mut test = patient_cargo();
    test.args(["test", "--package", "keylane", "--test", "it", "shuttle::"]);
    test.env("RUSTFLAGS", "--cfg keylane_shuttle")
        .env("CARGO_TARGET_DIR", place::root().join("target/shuttle"));
    tallied(&mut test, tally)
}

pub(crate) fn tallied(test: &mut Command, tally: &mut Tally) -> Result<Verdict> {
    let before = tally.failures.len();
    let status = run_seeing(test, |line| tally.see(line))?;
    Ok(judged(status, &tally.failures[before..]))
}

/// What a test program came to, with the tests that failed.
pub(crate) fn judged(status: ExitStatus, failures: &[String]) -> Verdict {
    match (status.success(), failures) {
        (true, _) => Verdict::Ok,
        (false, []) => Verdict::Failed(status.to_string()),
        (false, names) => Verdict::Failed(names.join(", ")),
    }
}

fn docs() -> Result<Verdict> {
    let mut doc = patient_cargo();
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

/// Fresh seeds of the simulator for two minutes; it prints which. In the build of the tests.
fn simulation() -> Result<Verdict> {
    let from = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut simulate = patient_cargo();
    simulate.args(["run", "--quiet", "--package", "keylane-testkit"]);
    simulate.args(["--bin", "simulate", "--", "--minutes", "2"]);
    verdict(simulate.args(["--from", &from.to_string()]))
}

/// Packs the crate that strangers depend on and builds it from the package alone.
fn package() -> Result<Verdict> {
    verdict(patient_cargo().args(["package", "--package", "keylane", "--allow-dirty"]))
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
