//! How many attempts of one source run at once, whatever the pools they run in allow.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::lane::LaneId;
use crate::pool::Pool;

/// The workers of a source. A lane that waits for one takes no permit of its pool.
pub(crate) struct Workers {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: usize,
    /// Who waits, by pool: when a worker is free each pool may send one, as nobody knows which of
    /// them has a permit for it.
    waiting: HashMap<Arc<str>, Waiting>,
}

struct Waiting {
    pool: Weak<Pool>,
    /// A lane may be here more than once; one that waits no longer is passed over.
    lanes: VecDeque<LaneId>,
}

/// One of them, at work. Free again when this is dropped.
pub(crate) struct Worker(Arc<Workers>);

impl Workers {
    pub(crate) fn new(most: NonZeroUsize) -> Arc<Self> {
        Arc::new(Self {
            most: most.get(),
            state: Mutex::default(),
        })
    }

    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Worker> {
        let mut state = self.lock();
        if state.busy == self.most {
            return None;
        }
        state.busy += 1;
        Some(Worker(self.clone()))
    }

    /// Whether one is free; if none is, the lane is woken when one may be.
    pub(crate) fn free_or_wait(&self, pool: &Arc<str>, of: &Weak<Pool>, lane: &LaneId) -> bool {
        let mut state = self.lock();
        if state.busy < self.most {
            return true;
        }
        let waiting = state
            .waiting
            .entry(pool.clone())
            .or_insert_with(|| Waiting {
                pool: of.clone(),
                lanes: VecDeque::new(),
            });
        waiting.lanes.push_back(lane.clone());
        false
    }

    /// The next lane of each pool.
    fn next_of_each(&self) -> Vec<(Arc<str>, Arc<Pool>, LaneId)> {
        let mut state = self.lock();
        let mut next = Vec::new();
        state.waiting.retain(|name, waiting| {
            let (Some(pool), Some(lane)) = (waiting.pool.upgrade(), waiting.lanes.pop_front())
            else {
                return false;
            };
            next.push((name.clone(), pool, lane));
            true
        });
        next
    }

    fn next_of(&self, pool: &Arc<str>) -> Option<LaneId> {
        self.lock().waiting.get_mut(pool)?.lanes.pop_front()
    }

    // Not with the state locked: a pool that is woken asks for a worker at once.
    fn wake(&self) {
        for (name, pool, lane) in self.next_of_each() {
            let mut lane = Some(lane);
            while lane.is_some_and(|lane| !pool.wake(&lane)) {
                lane = self.next_of(&name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.lock().busy -= 1;
        self.0.wake();
    }
}
