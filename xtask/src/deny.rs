//! Licences, bans, sources and advisories of all dependencies, by cargo-deny and `deny.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Ended, last_line, patient_cargo, run_logged};
use crate::report::Verdict;
use crate::test::verdict;
use crate::{Result, place};

const VERSION: &str = "0.20.2";

/// A fetch that takes longer hangs.
const FETCH_DEADLINE: Duration = Duration::from_secs(120);

/// Checks what needs no more than the crates themselves.
pub(crate) fn licences() -> Result<Verdict> {
    verdict(deny()?.args([
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ]))
}

/// Checks for known vulnerabilities; skipped where their database cannot be had.
pub(crate) fn advisories() -> Result<Verdict> {
    let log = place::cache()?.join("advisories.log");
    match run_logged(deny()?.args(["fetch", "db"]), &log, FETCH_DEADLINE)? {
        Ended::By(status) if status.success() => {
            verdict(deny()?.args(["check", "--disable-fetch", "advisories"]))
        }
        Ended::By(_) => Ok(Verdict::Skipped(format!(
            "the database cannot be fetched: {}",
            last_line(&log)
        ))),
        Ended::Deadline => Ok(Verdict::Skipped(format!(
            "the database was not fetched in {FETCH_DEADLINE:?}"
        ))),
    }
}

fn deny() -> Result<Command> {
    let mut deny = Command::new(installed()?);
    deny.current_dir(place::root());
    Ok(deny)
}

/// The pinned version's program, built once per machine.
fn installed() -> Result<PathBuf> {
    let home = place::cache()?.join(format!("cargo-deny-{VERSION}"));
    let program = home.join("bin/cargo-deny");
    if !program.exists() {
        install(&home)?;
    }
    Ok(program)
}

fn install(home: &Path) -> Result<()> {
    println!("building cargo-deny {VERSION} into the cache; later runs find it there");
    let build = home.join("target");
    let mut install = patient_cargo();
    install
        .args([
            "install",
            "cargo-deny",
            "--version",
            VERSION,
            "--locked",
            "--root",
        ])
        .arg(home);
    install.env("CARGO_TARGET_DIR", &build);
    // It runs for a second: the build's time is what counts.
    install
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    install
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    let status = install.status()?;
    if !status.success() {
        return Err(format!("cargo-deny {VERSION} could not be installed: {status}").into());
    }
    fs::remove_dir_all(build)?;
    Ok(())
}
