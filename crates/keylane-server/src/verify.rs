//! `keylane verify`: judges recorded histories.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use keylane_router::history::{History, Options, Report, check};

use crate::cli::{BAD_USAGE, FAILED, OK, VerifyArgs};

/// Prints a report; exit code 0 when nothing is wrong, 1 with violations, 2 when a file cannot be
/// read.
pub(crate) fn run(args: &VerifyArgs) -> u8 {
    let history = match read(args) {
        Ok(history) => history,
        Err(text) => {
            eprintln!("{text}");
            return BAD_USAGE;
        }
    };
    let report = check(history, &options(args));
    print!("{}", printed(&report, args.json));
    match report.is_green() {
        true => OK,
        false => FAILED,
    }
}

fn read(args: &VerifyArgs) -> Result<History, String> {
    let mut history = History::default();
    for path in &args.files {
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = open(path).map_err(|error| named(&error))?;
        history.read(file).map_err(|error| named(&error))?;
    }
    Ok(history)
}

fn open(path: &Path) -> std::io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?))
}

fn options(args: &VerifyArgs) -> Options {
    Options {
        lane_concurrency: args.lane_concurrency.get(),
        max_duplicates_per_crash: args.max_duplicates_per_crash,
        allow_unfinished: args.allow_unfinished,
        refused_resolves: args.refused_resolves,
        ..Options::default()
    }
}

fn printed(report: &Report, json: bool) -> String {
    match json {
        true => serde_json::to_string_pretty(report).expect("a report has only text keys") + "\n",
        false => report.to_string(),
    }
}
