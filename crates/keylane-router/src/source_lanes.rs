//! The lanes of one source as a queue sees them that locks keys itself: the same lanes that the
//! router puts its messages into, by the same table.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::message::Key;
use crate::plan::{Envelope, SourcePlan};
use crate::router::Inner;
use crate::source::{Lanes, PoolCodes};

/// How many messages of one lane a source with this window may have in memory: no lane takes the
/// window from the others.
pub(crate) fn part_of(window: NonZeroUsize) -> usize {
    (window.get() / 4).max(1)
}

/// What a source is told with its room.
pub(crate) struct SourceLanes {
    router: Weak<Inner>,
    part: usize,
    /// The pool of all its messages, where their bodies name none.
    pool: Option<Arc<str>>,
    last: Mutex<Last>,
}

/// The router's codes when they were asked for last, and what they mean for this source.
#[derive(Default)]
struct Last {
    of_router: Arc<PoolCodes>,
    here: Arc<PoolCodes>,
}

impl SourceLanes {
    pub(crate) fn new(router: &Arc<Inner>, plan: &SourcePlan) -> Self {
        let pool = match &plan.envelope {
            Envelope::Keylane => None,
            Envelope::Raw { pool, .. } => Some(pool.clone()),
        };
        Self {
            router: Arc::downgrade(router),
            part: part_of(plan.window),
            pool,
            last: Mutex::default(),
        }
    }
}

impl Lanes for SourceLanes {
    fn codes(&self) -> Arc<PoolCodes> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(router) = self.router.upgrade() else {
            return last.here.clone();
        };
        let codes = router.routes.codes();
        if !Arc::ptr_eq(&last.of_router, &codes) {
            let here = match &self.pool {
                None => codes.clone(),
                Some(pool) => {
                    let only = PoolCodes::new([], codes.pool(Some(pool)).clone());
                    match only == *last.here {
                        true => last.here.clone(),
                        false => Arc::new(only),
                    }
                }
            };
            *last = Last {
                of_router: codes,
                here,
            };
        }
        last.here.clone()
    }

    fn capacity(&self, pool: &str, key: Option<&Key>) -> usize {
        let router = self.router.upgrade();
        let of_pool = router.map_or(usize::MAX, |router| router.routes.capacity(pool, key));
        of_pool.min(self.part)
    }
}
