//! Runs cases and says how each ended.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::cases::CASES;
use super::rig::{Rig, cannot_do};
use super::subject::{Fault, Subject};
use crate::chance::Chance;

/// A case that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(1800);

/// One promise, tried.
pub struct Case {
    /// Its name, and that of its test.
    pub name: &'static str,
    /// What must hold, in a sentence.
    pub asks: &'static str,
    pub(super) on: On,
    pub(super) run: Tries,
}

/// How a case is tried.
pub(super) type Tries = fn(Rig) -> Pin<Box<dyn Future<Output = Result<Summary, End>>>>;

/// What a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// The paused clock where the subject is in memory, else the real one.
    AnyClock,
    /// As that, and on the one thread that runs the case.
    OneThread,
    /// The real clock: what it does cannot be paused.
    RealClock,
    /// As `AnyClock`, while no other case uses the subject's broker: it is stopped.
    StoppedBroker,
    /// The same, and it is killed.
    KilledBroker,
}

impl On {
    /// What the case does to the broker that others use too.
    fn to_the_broker(self) -> Option<Fault> {
        match self {
            Self::StoppedBroker => Some(Fault::Stop),
            Self::KilledBroker => Some(Fault::Kill),
            Self::AnyClock | Self::OneThread | Self::RealClock => None,
        }
    }
}

/// What a case saw when all was well.
pub type Summary = String;

/// Why a case ended before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The source, or its subject, does not have what the case needs.
    Excluded(String),
    /// A promise was broken.
    Failed(String),
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The promise was kept.
    Passed(Summary),
    /// It was not tried.
    Excluded(String),
    /// It was broken.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(text) => write!(f, "passed: {text}"),
            Self::Excluded(text) => write!(f, "excluded: {text}"),
            Self::Failed(text) => write!(f, "FAILED: {text}"),
        }
    }
}

/// Runs one case on a runtime of its own.
///
/// # Panics
/// When there is no case of this name.
pub fn run<S: Subject>(subject: S, name: &str) -> Verdict {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("no case is called `{name}`"));
    if let Some(why) = subject.absent() {
        return Verdict::Excluded(why);
    }
    let cannot = |fault: &Fault| !subject.can(*fault);
    if let Some(fault) = case.on.to_the_broker().filter(cannot) {
        // Before the others are waited for.
        return Verdict::Excluded(cannot_do(fault));
    }
    let paused = subject.in_memory() && case.on != On::RealClock;
    // What is in memory is the case's own.
    let _turn = (!subject.in_memory()).then(|| Turn::of(subject.features().kind, case.on));
    let rig = Rig {
        features: subject.features(),
        subject: Arc::new(subject),
        times: variable("KEYLANE_CONFORMANCE_TIMES").unwrap_or(2),
        chance: Arc::new(Chance::new(seed())),
    };
    let runtime = match (paused, case.on) {
        (true, _) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build(),
        (false, On::OneThread) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build(),
        (false, _) => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build(),
    };
    let runtime = runtime.expect("a runtime can be made");
    let ended = runtime.block_on(async { tokio::time::timeout(LONGEST, (case.run)(rig)).await });
    runtime.shutdown_timeout(Duration::from_secs(5));
    match ended {
        Ok(Ok(summary)) => Verdict::Passed(summary),
        Ok(Err(End::Excluded(why))) => Verdict::Excluded(why),
        Ok(Err(End::Failed(why))) => Verdict::Failed(why),
        Err(_) => Verdict::Failed("it hangs".to_owned()),
    }
}

/// The right to use a broker while no case of the suite stops it: for other tests that run on the
/// same broker in the same process.
///
/// `kind` is that of [`Features::kind`](crate::source::Features::kind).
pub fn share(kind: &'static str) -> impl Drop {
    Turn::of(kind, On::AnyClock)
}

/// The right to use a broker that other cases use, too, at the same time or alone.
enum Turn {
    Shared {
        _held: RwLockReadGuard<'static, ()>,
    },
    Alone {
        _held: RwLockWriteGuard<'static, ()>,
    },
}

/// Brokers by the kind of their sources; never removed, there are few.
static BROKERS: Mutex<BTreeMap<&str, &'static RwLock<()>>> = Mutex::new(BTreeMap::new());

impl Drop for Turn {
    // Only for its parts.
    fn drop(&mut self) {}
}

impl Turn {
    fn of(kind: &'static str, on: On) -> Self {
        let mut brokers = BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let broker = *brokers
            .entry(kind)
            .or_insert_with(|| Box::leak(Box::default()));
        drop(brokers);
        match on.to_the_broker() {
            Some(_) => Self::Alone {
                _held: broker.write().unwrap_or_else(PoisonError::into_inner),
            },
            None => Self::Shared {
                _held: broker.read().unwrap_or_else(PoisonError::into_inner),
            },
        }
    }
}

/// Runs all cases, each on a subject of its own, and says how they ended.
pub fn run_all<S: Subject>(subject: impl Fn() -> S) -> Vec<(&'static str, Verdict)> {
    let run = |case: &Case| {
        let verdict = told(subject(), case.name);
        (case.name, verdict)
    };
    CASES.iter().map(run).collect()
}

/// Runs one case as a test: says how it ended, and panics when it failed.
///
/// # Panics
/// When the promise was broken.
pub fn test<S: Subject>(subject: S, name: &str) {
    let verdict = told(subject, name);
    assert!(!matches!(verdict, Verdict::Failed(_)), "{verdict}");
}

fn told<S: Subject>(subject: S, name: &str) -> Verdict {
    let (kind, begun) = (subject.features().kind, Instant::now());
    let verdict = run(subject, name);
    let seconds = begun.elapsed().as_secs_f64();
    let seed = seed();
    // Not by `eprintln!`: a test that passes says nothing by that, and what is left out must be seen.
    let line = format!("conformance of {kind}: {name} {verdict} ({seconds:.1} s, seed {seed})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    verdict
}

/// What every chance of a case comes from.
pub(super) fn seed() -> u64 {
    variable("KEYLANE_CONFORMANCE_SEED").unwrap_or(1)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
