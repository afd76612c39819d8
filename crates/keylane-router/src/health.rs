//! What is wrong right now, for readiness and logs: each trouble once, with since when.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Something that can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// A store cannot be written.
    Store,
    /// A source cannot be read or settled with.
    Source(std::sync::Arc<str>),
    /// Nothing is received from this source, or nothing settled with it, for too long.
    StalledSource(std::sync::Arc<str>),
    /// Messages wait in this pool, something could start, and nothing is finished.
    StalledPool(std::sync::Arc<str>),
    /// An attempt of some key of this pool does not end.
    StalledKey(std::sync::Arc<str>),
    /// The head of some key of this pool fails for good, and its key waits.
    BlockedKey(std::sync::Arc<str>),
    /// Target origins fail, and their lanes wait for them: a breaker is not closed. It harms no
    /// others.
    OpenBreaker,
    /// Keys are stored of a source of this name, and there is none: nobody feeds them.
    NoSource(std::sync::Arc<str>),
    /// Stored messages were found without a key and given back to theirs. Shown until the end of
    /// the process; it keeps nothing from working.
    Recovered,
    /// A message was started after a later one of its key. That cannot be made good, so it is
    /// shown until the end of the process; it keeps nothing from working.
    Order,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What.
    pub trouble: Trouble,
    /// In words.
    pub text: String,
    /// Since when.
    pub since: SystemTime,
    /// How often it was noticed.
    pub times: u64,
}

/// What is wrong right now.
#[derive(Debug, Default)]
pub struct Health {
    problems: Mutex<BTreeMap<Trouble, Problem>>,
}

impl Health {
    /// Something is wrong; logged when it is new.
    pub fn trouble(&self, trouble: Trouble, text: String) {
        if self.note(trouble.clone(), text.clone()) {
            tracing::error!("{trouble:?}: {text}");
        }
    }

    /// Something is wrong, and the caller says so in the log. Whether it is new.
    pub(crate) fn note(&self, trouble: Trouble, text: String) -> bool {
        let mut problems = self.lock();
        if let Some(known) = problems.get_mut(&trouble) {
            known.times += 1;
            known.text = text;
            return false;
        }
        let problem = Problem {
            trouble: trouble.clone(),
            text,
            since: SystemTime::now(),
            times: 1,
        };
        problems.insert(trouble, problem);
        true
    }

    /// It is well again; logged when it was not.
    pub fn well(&self, trouble: Trouble) {
        if self.lock().remove(&trouble).is_some() {
            tracing::info!("{trouble:?}: well again");
        }
    }

    /// Everything that is wrong.
    pub fn problems(&self) -> Vec<Problem> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Trouble, Problem>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
