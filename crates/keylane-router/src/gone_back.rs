//! Lanes that went back to their source: messages that had arrived by then and were on their way to
//! them go back, too (R5).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::delivery::{Delivery, SourceEnd};
use crate::lane::LaneId;
use crate::message::BrokerId;
use crate::pool::Shared;
use crate::source::BatchId;

/// The lanes of one pool that went back lately.
#[derive(Debug, Default)]
pub(crate) struct GoneBack(Mutex<HashMap<(LaneId, Arc<str>), Tail>>);

/// The messages that go back behind a lane.
#[derive(Debug)]
struct Tail {
    /// Their consumer: batches of different consumers cannot be compared.
    of: Weak<SourceEnd>,
    /// The newest batch when it went back.
    last: BatchId,
    /// Earlier batches follow too.
    all: bool,
}

impl GoneBack {
    /// These messages of a lane go back, all of a source at one moment: if the first comes again
    /// before the others are settled, none of them is taken for one that is still here. Messages that
    /// arrived by then and are on their way to the lane follow; with `only`, those of the newest
    /// batch, if it is listed there.
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
            let last = end.window.goes_back(&loans);
            let follows = only.is_none_or(|only| only.contains(&last));
            // Where nothing comes again in order, nothing has to follow what goes back. It would go
            // back and come again without end.
            let source = &of_source[0].identity.source;
            let ordered = shared.ability(source, |source| source.ordered_return);
            if follows && ordered != Some(false) {
                let (of, all) = (Arc::downgrade(end), only.is_none());
                let tail = Tail { of, last, all };
                self.lock().insert(place(of_source[0]), tail);
            }
        }
    }

    /// Whether what was ahead of this message in its lane has gone back since it came.
    pub(crate) fn includes(&self, delivery: &Delivery) -> bool {
        let gone = self.lock();
        if gone.is_empty() {
            return false;
        }
        let (Some(tail), Some((end, _))) = (gone.get(&place(delivery)), delivery.source_end())
        else {
            return false;
        };
        let in_time = match tail.all {
            true => delivery.batch <= tail.last,
            false => delivery.batch == tail.last,
        };
        in_time && std::ptr::eq(Arc::as_ptr(end), tail.of.as_ptr())
    }

    /// The source has put a batch into its lanes: those of its own that hold nothing are forgotten.
    pub(crate) fn sweep(&self, source: &Arc<str>, holds: impl Fn(&LaneId) -> bool) {
        let mut gone = self.lock();
        gone.retain(|(lane, of), _| of != source || holds(lane));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(LaneId, Arc<str>), Tail>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane may be shared by sources, whose batches have nothing to do with each other.
fn place(delivery: &Delivery) -> (LaneId, Arc<str>) {
    (delivery.lane.clone(), delivery.identity.source.clone())
}
