//! Heads that an operator wants skipped: the wish is noted here, and whoever has the head carries it
//! out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::message::Identity;
use crate::store::{AuditEntry, StoreError};

/// The wishes there are. Noted by the verb; taken by the turn of the message, or by a flush of its
/// lane.
#[derive(Default)]
pub(crate) struct Skips {
    by: Mutex<HashMap<Identity, Skip>>,
    /// `by.len()`, for those who come by with every message and find nothing.
    count: AtomicUsize,
}

/// A wish. Dropped without an answer, it came to nothing: another message is first.
pub(crate) struct Skip {
    /// Who and why, for the dead letter.
    pub(crate) text: String,
    /// Still to be written down, with the letter.
    pub(crate) audit: Option<AuditEntry>,
    /// Who waits until it is on disk.
    pub(crate) done: Option<oneshot::Sender<Result<(), StoreError>>>,
}

impl Skip {
    /// A wish for whose end nobody waits.
    pub(crate) fn unheard(text: String) -> Self {
        Self {
            text,
            audit: None,
            done: None,
        }
    }

    /// Tells whoever waits for it.
    pub(crate) fn answer(self, answer: Result<(), StoreError>) {
        if let Some(done) = self.done {
            // Who waited may have gone.
            let _ = done.send(answer);
        }
    }
}

impl Skips {
    pub(crate) fn insert(&self, identity: Identity, skip: Skip) {
        let mut by = self.lock();
        by.insert(identity, skip);
        self.count.store(by.len(), Ordering::SeqCst);
    }

    pub(crate) fn take(&self, identity: &Identity) -> Option<Skip> {
        if self.is_empty() {
            return None;
        }
        let mut by = self.lock();
        let skip = by.remove(identity);
        self.count.store(by.len(), Ordering::SeqCst);
        skip
    }

    pub(crate) fn has(&self, identity: &Identity) -> bool {
        !self.is_empty() && self.lock().contains_key(identity)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Skip>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
