//! Which lanes went back to their source while a batch was still being put into its lanes: what
//! comes behind them in that batch goes back, too (R5).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delivery::Delivery;
use crate::lane::LaneId;
use crate::message::BrokerId;
use crate::pool::Shared;
use crate::source::BatchId;

/// The lanes of one pool that went back lately.
#[derive(Debug, Default)]
pub(crate) struct GoneBack(Mutex<HashMap<(LaneId, Arc<str>), BatchId>>);

impl GoneBack {
    /// These messages of a lane go back, all of a source at one moment: if the first comes again
    /// before the others are settled, none of them is taken for one that is still here. The rest of a
    /// batch that is on its way to the lane goes back too; with `only`, if it is one of these.
    pub(crate) fn go_back<'a>(
        &self,
        jobs: impl Iterator<Item = &'a Delivery>,
        only: Option<&[BatchId]>,
        shared: &Shared,
    ) {
        let mut by_source: BTreeMap<&Arc<str>, Vec<&Delivery>> = BTreeMap::new();
        for job in jobs.filter(|job| job.source_end().is_some()) {
            by_source.entry(&job.identity.source).or_default().push(job);
        }
        for of_source in by_source.into_values() {
            let Some((end, _)) = of_source[0].source_end() else {
                continue;
            };
            let loan = |job: &&'a Delivery| {
                let (_, loan) = job.source_end().expect("only those with one");
                (&job.identity.id, loan)
            };
            let loans: Vec<(&BrokerId, u32)> = of_source.iter().map(loan).collect();
            let batch = end.window.goes_back(&loans);
            let goes = |batch: &BatchId| only.is_none_or(|only| only.contains(batch));
            // Where nothing comes again in order, nothing has to follow what goes back. It would go
            // back and come again without end.
            let source = &of_source[0].identity.source;
            let ordered = shared.ability(source, |source| source.ordered_return);
            if let Some(batch) = batch.filter(goes).filter(|_| ordered != Some(false)) {
                self.note(of_source[0], batch);
            }
        }
    }

    fn note(&self, delivery: &Delivery, batch: BatchId) {
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
