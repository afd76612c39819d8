//! `cargo xtask test`: everything that must hold before a change lands, with one summary at the end.

use std::process::Command;

use crate::process::{cargo, run_seeing};
use crate::report::{Report, Verdict};
use crate::tally::Tally;
use crate::{Answer, Result, deny};

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
    report.step("format", format);
    report.step("clippy", clippy);
    report.step("tests", || tests(extent, &mut tally));
    if extent == Extent::Full {
        report.step("docs", docs);
        report.step("package", package);
        // Last, because a fresh machine first has to build the tool.
        report.step("licences", deny::licences);
        report.step("advisories", deny::advisories);
    }
    println!("\n=== summary\n{report}{tally}");
    Ok(if report.is_good() {
        Answer::Good
    } else {
        Answer::Bad
    })
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

fn tests(extent: Extent, tally: &mut Tally) -> Result<Verdict> {
    let mut test = cargo();
    test.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    if extent == Extent::Quick && std::env::var_os("KEYLANE_HISTORIES").is_none() {
        test.env("KEYLANE_HISTORIES", QUICK_HISTORIES);
    }
    let status = run_seeing(&mut test, |line| tally.see(line))?;
    Ok(match (status.success(), tally.failures.as_slice()) {
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
