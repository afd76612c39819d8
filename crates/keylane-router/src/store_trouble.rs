//! Whether the store can be written, going by those who need it: one write that succeeds says
//! nothing of another that cannot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::health::{Health, Trouble};
use crate::store::StoreError;

/// Who waits for the store tries again within this time; who does not has found another way.
const TRIED_AGAIN: Duration = Duration::from_secs(31);

/// What is known of the store's trouble, shared by all who write.
#[derive(Debug)]
pub(crate) struct StoreTrouble {
    health: Arc<Health>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many [`StoreWait`]s there are, by pool; none of them 0.
    waiting: BTreeMap<Arc<str>, usize>,
    /// When a write failed last.
    failed: Option<Instant>,
}

/// Somebody waits for the store as long as this is there.
#[derive(Debug)]
pub(crate) struct StoreWait {
    of: Arc<StoreTrouble>,
    pool: Arc<str>,
}

impl StoreTrouble {
    pub(crate) fn new(health: Arc<Health>) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { health, state })
    }

    /// A write failed.
    pub(crate) fn fails(&self, error: &StoreError) {
        self.lock().failed = Some(Instant::now());
        self.health.trouble(Trouble::Store, error.to_string());
    }

    /// A lane of this pool needs the write that failed.
    pub(crate) fn wait(self: &Arc<Self>, pool: &Arc<str>) -> StoreWait {
        *self.lock().waiting.entry(pool.clone()).or_default() += 1;
        StoreWait {
            of: self.clone(),
            pool: pool.clone(),
        }
    }

    /// How many lanes of a pool wait.
    pub(crate) fn waiting_in(&self, pool: &Arc<str>) -> usize {
        self.lock().waiting.get(pool).copied().unwrap_or(0)
    }

    /// A write succeeded. All is well unless somebody waits for another.
    pub(crate) fn works(&self) {
        let state = self.lock();
        let lately = |at: Instant| at.elapsed() < TRIED_AGAIN;
        if state.waiting.is_empty() || !state.failed.is_some_and(lately) {
            self.health.well(Trouble::Store);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StoreWait {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        if let Some(waiting) = state.waiting.get_mut(&self.pool) {
            *waiting -= 1;
            if *waiting == 0 {
                state.waiting.remove(&self.pool);
            }
        }
        if state.waiting.is_empty() {
            self.of.health.well(Trouble::Store);
        }
    }
}
