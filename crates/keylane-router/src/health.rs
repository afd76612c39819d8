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
        let mut problems = self.lock();
        if let Some(known) = problems.get_mut(&trouble) {
            known.times += 1;
            known.text = text;
            return;
        }
        tracing::error!("{trouble:?}: {text}");
        let problem = Problem {
            trouble: trouble.clone(),
            text,
            since: SystemTime::now(),
            times: 1,
        };
        problems.insert(trouble, problem);
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
