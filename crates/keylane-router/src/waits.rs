//! Lanes that wait for the breaker of an origin, and who wakes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::breaker::{Change, ChangeKind};
use crate::lane::LaneId;
use crate::plan::BreakerPlan;
use crate::pool::Pool;

/// Lanes held by breakers. They cost nothing while they wait; a free slot wakes one of them.
pub(crate) struct BreakerWaits {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// So many lanes are woken when an origin may be probed,
    probes: usize,
    /// and again after this, if nobody took the chance.
    again: Duration,
    waiting: HashMap<Arc<str>, VecDeque<(Weak<Pool>, LaneId)>>,
    /// How often a lane came to wait: what waiting costs.
    held: u64,
    /// When origins are to be probed.
    due: HashMap<Arc<str>, Instant>,
}

impl BreakerWaits {
    pub(crate) fn new(plan: &BreakerPlan) -> Self {
        let state = State {
            probes: plan.probes.get(),
            again: again(plan),
            waiting: HashMap::new(),
            held: 0,
            due: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// Another plan is in force; who waits longer than that says is looked at in time.
    pub(crate) fn set(&self, plan: &BreakerPlan) {
        let mut state = self.lock();
        state.probes = plan.probes.get();
        state.again = again(plan);
        let latest = now() + state.again;
        for due in state.due.values_mut() {
            *due = latest.min(*due);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// This lane waits for this origin.
    pub(crate) fn add(&self, origin: &Arc<str>, pool: Weak<Pool>, lane: LaneId) {
        let mut state = self.lock();
        state.held += 1;
        state
            .waiting
            .entry(origin.clone())
            .or_default()
            .push_back((pool, lane));
        if !state.due.contains_key(origin) {
            // Whatever happens, somebody looks again.
            let at = now() + state.again;
            state.due.insert(origin.clone(), at);
            self.changed.notify_one();
        }
    }

    /// How often a lane came to wait.
    #[cfg(feature = "testing")]
    pub(crate) fn held(&self) -> u64 {
        self.lock().held
    }

    /// The breaker says something changed.
    pub(crate) fn on_change(&self, change: Change) {
        match change.kind {
            ChangeKind::Opened(until) => {
                self.lock().due.insert(change.origin, until);
                self.changed.notify_one();
            }
            ChangeKind::SlotFree => self.wake(&change.origin, 1),
            ChangeKind::Closed => self.wake(&change.origin, usize::MAX),
        }
    }

    /// Wakes lanes when their origins may be probed; ends with its task.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.lock().due.values().min().copied();
            let changed = self.changed.notified();
            match next {
                None => changed.await,
                Some(at) => {
                    if tokio::time::timeout_at(at.into(), changed).await.is_err() {
                        self.probe_due(now());
                    }
                }
            }
        }
    }

    fn probe_due(&self, now: Instant) {
        let due: Vec<Arc<str>> = {
            let mut state = self.lock();
            let due = state.due.iter().filter(|(_, at)| **at <= now);
            let due: Vec<Arc<str>> = due.map(|(origin, _)| origin.clone()).collect();
            for origin in &due {
                state.due.remove(origin);
            }
            due
        };
        for origin in due {
            let probes = self.lock().probes;
            self.wake(&origin, probes);
            let mut state = self.lock();
            if state.waiting.contains_key(&origin) {
                let at = now + state.again;
                state.due.entry(origin).or_insert(at);
            }
        }
    }

    /// Wakes this many lanes, first come first served; a lane that is gone, or waits for something
    /// else by now, does not count.
    fn wake(&self, origin: &Arc<str>, most: usize) {
        let mut woken = 0;
        while woken < most {
            let Some((pool, lane)) = self.pop(origin) else {
                return;
            };
            if pool.upgrade().is_some_and(|pool| pool.wake(&lane)) {
                woken += 1;
            }
        }
    }

    fn pop(&self, origin: &Arc<str>) -> Option<(Weak<Pool>, LaneId)> {
        let mut state = self.lock();
        let queue = state.waiting.get_mut(origin)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            state.waiting.remove(origin);
        }
        first
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokio's clock, so that a paused test runtime rules it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn again(plan: &BreakerPlan) -> Duration {
    plan.open.max(Duration::from_millis(10))
}
