//! Build and test commands of the project: `cargo xtask help`.
//!
//! Reading order: `test` is the one test command, `groups` its tests side by side, `report` its summary, `tally` its count of tests, `deny` its
//! licence check, `brokers` the servers that it starts. `soak` repeats the faults of the conformance suite. `simulate` runs the simulator. `mutants` shows that the property tests can fail. `place` says where things are, `process` runs them.

mod brokers;
mod deny;
mod groups;
mod mutants;
mod place;
mod process;
mod report;
mod simulate;
mod soak;
mod tally;
mod test;

use std::error::Error;
use std::process::ExitCode;

/// Nobody acts on the kind of an error here: it is printed once and ends the command.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
cargo xtask <command>

  test [--quick]     format, lints, all tests against real brokers, the executor's interleavings, docs, packaging,
                     licences; one summary at the end
                     --quick: format, lints, and tests with fewer histories and without brokers
  brokers <command>  the real brokers by themselves; see `cargo xtask brokers help`
  soak [name]        the conformance suite with every fault 20 times; a name is a broker's, embedded, bad or locking
  simulate …         the whole router in a simulation: --seed N, --seeds N [--from N], --minutes M, --file FILE; see
                     `cargo xtask simulate` without arguments
  docs               write the generated parts of docs/sources.md
  mutants [name…]    break the code on purpose and check that the tests notice;
                     a name is a mutation's or an invariant's (L1); none means all
  help               this text

environment
  KEYLANE_HISTORIES  histories a property test runs (200000; with --quick 5000)
  KEYLANE_CACHE      where tools, brokers and their builds are kept (~/.cache/keylane)
  KEYLANE_REQUIRE_BROKERS
                     brokers without which `test` fails: `all`, or names with commas; others are skipped
  KEYLANE_TEST_<BROKER>_URL
                     a server of your own, such as KEYLANE_TEST_KAFKA_URL; `test` then starts none
";

/// What a command came to: it could be carried out, and this is its answer.
enum Answer {
    Good,
    Bad,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match answer(&args) {
        Ok(Answer::Good) => ExitCode::SUCCESS,
        Ok(Answer::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

fn answer(args: &[String]) -> Result<Answer> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["test"] => test::run(test::Extent::Full),
        ["test", "--quick"] => test::run(test::Extent::Quick),
        ["brokers", args @ ..] => brokers::run(args),
        ["soak"] => soak::run(None),
        ["soak", name] => soak::run(Some(name)),
        ["simulate", args @ ..] => simulate::run(args),
        ["docs"] => test::write_docs(),
        ["mutants", names @ ..] => mutants::run(names),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(Answer::Good)
        }
        other => Err(format!(
            "`{}` is no command; see `cargo xtask help`",
            other.join(" ")
        )
        .into()),
    }
}
