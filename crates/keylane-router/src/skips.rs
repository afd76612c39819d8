//! Heads that an operator wants skipped: the wish is noted here, and whoever has the head carries it
//! out.

use tokio::sync::oneshot;

use crate::message::Identity;
use crate::store::{AuditEntry, StoreError};
use crate::wishes::Wishes;

/// Noted by the verb; taken by the turn of the message, or by a flush of its lane.
pub(crate) type Skips = Wishes<Identity, Skip>;

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
