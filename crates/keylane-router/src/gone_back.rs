//! Which lanes went back to their source while a batch was still being put into its lanes: what
//! comes behind them in that batch goes back, too (R5).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delivery::Delivery;
use crate::lane::LaneId;
use crate::source::BatchId;

/// The lanes of one pool that went back lately.
#[derive(Debug, Default)]
pub(crate) struct GoneBack(Mutex<HashMap<(LaneId, Arc<str>), BatchId>>);

impl GoneBack {
    /// This message goes back to its source, and so does what this batch brings to its lane from
    /// now on.
    pub(crate) fn note(&self, delivery: &Delivery, batch: BatchId) {
        self.lock().insert(place(delivery), batch);
    }

    /// Whether what was ahead of this message in its lane has gone back since it came.
    pub(crate) fn includes(&self, delivery: &Delivery) -> bool {
        let gone = self.lock();
        !gone.is_empty() && gone.get(&place(delivery)) == Some(&delivery.batch)
    }

    /// The source has put a batch into its lanes: those of its own that hold nothing are forgotten.
    pub(crate) fn sweep(&self, source: &Arc<str>, holds: impl Fn(&LaneId) -> bool) {
        let mut gone = self.lock();
        gone.retain(|(lane, of), _| of != source || holds(lane));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(LaneId, Arc<str>), BatchId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane may be shared by sources, whose batches have nothing to do with each other.
fn place(delivery: &Delivery) -> (LaneId, Arc<str>) {
    (delivery.lane.clone(), delivery.identity.source.clone())
}
