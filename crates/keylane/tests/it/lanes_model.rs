//! Random histories of [`Lanes`] beside a naive model, with L1 … L14 checked after every step.
//!
//! `KEYLANE_HISTORIES` says how many (default 200,000), `KEYLANE_SEED` which ones. A failure is
//! shrunk and printed with the words it was decoded from; `KEYLANE_HISTORY=<words>` runs that one
//! history again and prints each step.
//!
//! [`Lanes`]: keylane::lanes::Lanes

mod beside;
mod checks;
mod history;
mod model;
mod shortest;

use std::env;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::thread;

use proptest::collection::vec;
use proptest::num::u64::ANY;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use beside::Beside;
use history::{Setup, Step};

/// `Err` says which invariant does not hold, and how.
type Checked = Result<(), String>;

const DEFAULT_HISTORIES: u32 = 200_000;
const THREADS: u32 = 2;

#[test]
fn every_invariant_holds_after_every_step_of_random_histories() {
    if let Some(words) = words_from_environment() {
        return replay(&words);
    }
    let histories = number_from_environment("KEYLANE_HISTORIES")
        .map_or(DEFAULT_HISTORIES, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let seed = number_from_environment("KEYLANE_SEED")
        .unwrap_or_else(|| RandomState::new().hash_one("histories"));
    println!("KEYLANE_HISTORIES={histories} KEYLANE_SEED={seed}");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let part = histories.div_ceil(THREADS);
            scope.spawn(move || run_random_histories(part, seed, thread));
        }
    });
}

fn run_random_histories(cases: u32, seed: u64, thread: u32) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &rng_seed(seed, thread));
    let mut runner = TestRunner::new_with_rng(config, rng);
    let shrunk = runner.run(&vec(ANY, 4..56), |words| {
        shortest::run(&words).map_err(TestCaseError::fail)
    });
    match shrunk {
        Ok(()) => {}
        Err(TestError::Fail(_, words)) => {
            let (words, why) = shortest::of(words);
            panic!("{why}\n{}", listing(&words))
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

fn rng_seed(seed: u64, thread: u32) -> [u8; 16] {
    let mut bytes = [0x5A; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..12].copy_from_slice(&thread.to_le_bytes());
    bytes
}

/// Runs the history that these words stand for: the first says the limits, each other one a step.
fn run(words: &[u64], trace: bool) -> Checked {
    let Some((first, steps)) = words.split_first() else {
        return Ok(());
    };
    let mut both = Beside::new(Setup::decode(*first));
    for (at, word) in steps.iter().enumerate() {
        let step = Step::decode(*word);
        if trace {
            println!("{at}: {step:?}");
        }
        both.step(step)
            .map_err(|why| format!("{why} (in step {at}: {step:?})"))?;
    }
    both.drain()
        .map_err(|why| format!("{why} (while draining)"))
}

fn replay(words: &[u64]) {
    println!("{}", listing(words));
    if let Err(why) = run(words, true) {
        panic!("{why}");
    }
}

fn listing(words: &[u64]) -> String {
    let mut text = String::from("the history:\n");
    for (at, word) in words.iter().enumerate() {
        let _ = match at {
            0 => writeln!(text, "  {:?}", Setup::decode(*word)),
            _ => writeln!(text, "  {}: {:?}", at - 1, Step::decode(*word)),
        };
    }
    let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
    let _ = write!(text, "again: KEYLANE_HISTORY={}", words.join(","));
    text
}

fn number_from_environment(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: it must be a number")))
}

fn words_from_environment() -> Option<Vec<u64>> {
    let text = env::var("KEYLANE_HISTORY").ok()?;
    let words = text.split(',').map(|word| u64::from_str_radix(word, 16));
    Some(words.collect::<Result<_, _>>().unwrap_or_else(|why| {
        panic!("KEYLANE_HISTORY={text}: {why}");
    }))
}

/// What once went wrong, as short histories.
#[test]
fn histories_that_were_once_red_are_green() {
    for words in history::ONCE_RED {
        if let Err(why) = run(words, false) {
            panic!("{why}\n{}", listing(words));
        }
    }
}
