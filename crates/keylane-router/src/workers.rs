//! How many attempts of one source run at once, whatever the pools they run in allow.

use std::collections::{BTreeMap, HashSet, VecDeque};
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
    /// Others took their place: nothing waits for these any more.
    closed: bool,
    /// The lanes that wait, by pool: when a worker is free each pool may send one, because only the
    /// pool knows whether it has a permit.
    waiting: BTreeMap<Arc<str>, Waiting>,
}

struct Waiting {
    pool: Weak<Pool>,
    /// Each lane once; one that waits no longer is passed over.
    lanes: VecDeque<LaneId>,
    known: HashSet<LaneId>,
}

impl Waiting {
    fn add(&mut self, lane: &LaneId) {
        if self.known.insert(lane.clone()) {
            self.lanes.push_back(lane.clone());
        }
    }

    fn pop(&mut self) -> Option<LaneId> {
        let lane = self.lanes.pop_front()?;
        self.known.remove(&lane);
        Some(lane)
    }
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
        if state.busy < self.most || state.closed {
            return true;
        }
        let waiting = state
            .waiting
            .entry(pool.clone())
            .or_insert_with(|| Waiting {
                pool: of.clone(),
                lanes: VecDeque::new(),
                known: HashSet::new(),
            });
        waiting.add(lane);
        false
    }

    /// The next lane of each pool.
    fn next_of_each(&self) -> Vec<(Arc<str>, Arc<Pool>, LaneId)> {
        let mut state = self.lock();
        let mut next = Vec::new();
        state.waiting.retain(|name, waiting| {
            let (Some(pool), Some(lane)) = (waiting.pool.upgrade(), waiting.pop()) else {
                return false;
            };
            next.push((name.clone(), pool, lane));
            true
        });
        next
    }

    fn next_of(&self, pool: &Arc<str>) -> Option<LaneId> {
        self.lock().waiting.get_mut(pool)?.pop()
    }

    /// Whether lanes wait although a worker is free.
    pub(crate) fn are_waited_for_in_vain(&self) -> bool {
        let state = self.lock();
        state.busy < self.most && !state.waiting.is_empty()
    }

    /// Wakes the next lane of each pool.
    // Not with the state locked: a pool that is woken asks for a worker at once.
    pub(crate) fn wake(&self) {
        for (name, pool, lane) in self.next_of_each() {
            let mut lane = Some(lane);
            while lane.is_some_and(|lane| !pool.wake(&lane)) {
                lane = self.next_of(&name);
            }
        }
    }

    /// Others take their place: every lane that waits asks those.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        for waiting in waiting.into_values() {
            if let Some(pool) = waiting.pool.upgrade() {
                for lane in &waiting.lanes {
                    pool.wake(lane);
                }
            }
        }
    }

    /// How many lanes of this pool wait.
    pub(crate) fn waiting_in(&self, pool: &Arc<str>) -> usize {
        let state = self.lock();
        state
            .waiting
            .get(pool)
            .map_or(0, |waiting| waiting.known.len())
    }

    /// Whether this lane of this pool waits.
    pub(crate) fn lists(&self, pool: &Arc<str>, lane: &LaneId) -> bool {
        let state = self.lock();
        let waiting = state.waiting.get(pool);
        waiting.is_some_and(|waiting| waiting.known.contains(lane))
    }

    /// A lane of each pool that waits although a worker is free.
    pub(crate) fn waits_for_nothing(&self) -> Vec<(Arc<Pool>, LaneId)> {
        let state = self.lock();
        if state.busy >= self.most {
            return Vec::new();
        }
        let first = |waiting: &Waiting| {
            let lane = waiting.lanes.front()?.clone();
            Some((waiting.pool.upgrade()?, lane))
        };
        state.waiting.values().filter_map(first).collect()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn lose_all(&self) {
        self.lock().waiting.clear();
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
