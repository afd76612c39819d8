//! Lanes that wait for the breaker of an origin, and who wakes them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::breaker::{Change, ChangeKind};
use crate::lane::LaneId;
use crate::log_limit::LogLimit;
use crate::plan::BreakerPlan;
use crate::pool::Pool;

/// Lanes held by breakers. They cost nothing while they wait; a free slot wakes one of them.
pub(crate) struct BreakerWaits {
    state: Mutex<State>,
    changed: Notify,
    logged: LogLimit,
}

struct State {
    /// So many lanes are woken when an origin may be probed,
    probes: usize,
    /// and again after this, if none of them took the chance.
    again: Duration,
    /// By origin; none of them is empty.
    lines: BTreeMap<Arc<str>, Line>,
    /// How many places the lanes of a pool have in them.
    of_pool: HashMap<usize, usize>,
    /// How often a lane came to wait: what waiting costs.
    held: u64,
    /// When origins are to be probed.
    due: BTreeMap<Arc<str>, Instant>,
}

/// A lane that waits.
struct Waiter {
    pool: Weak<Pool>,
    lane: LaneId,
}

/// A lane that waits, for the watchdog.
pub(crate) struct Waits {
    pub(crate) origin: Arc<str>,
    /// When the origin is looked at next; there is always such a time.
    pub(crate) due: Option<Instant>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) lane: LaneId,
}

/// The lanes that wait for one origin, each once.
#[derive(Default)]
struct Line {
    /// Lanes whose front was not called yet. They probe first: what failed once says little.
    fresh: VecDeque<Waiter>,
    /// The others.
    failed: VecDeque<Waiter>,
    /// Whether the front of each of them was called.
    known: HashMap<Name, bool>,
}

/// Which lane of which pool.
type Name = (usize, LaneId);

impl Waiter {
    fn name(&self) -> Name {
        (self.pool.as_ptr().addr(), self.lane.clone())
    }
}

impl Line {
    /// A lane that waits already keeps its place among those of its kind. Answers whether it is new.
    fn add(&mut self, waiter: Waiter, failed: bool) -> bool {
        let new = self.known.insert(waiter.name(), failed).is_none();
        if new {
            match failed {
                false => self.fresh.push_back(waiter),
                true => self.failed.push_back(waiter),
            }
        }
        new
    }

    fn pop(&mut self) -> Option<Waiter> {
        while let Some(waiter) = self.fresh.pop_front() {
            match self.known.get(&waiter.name()) {
                // It has failed since it came.
                Some(true) => self.failed.push_back(waiter),
                _ => return Some(self.leaves(waiter)),
            }
        }
        let waiter = self.failed.pop_front()?;
        Some(self.leaves(waiter))
    }

    fn leaves(&mut self, waiter: Waiter) -> Waiter {
        self.known.remove(&waiter.name());
        waiter
    }

    fn len(&self) -> usize {
        self.known.len()
    }
}

impl BreakerWaits {
    pub(crate) fn new(plan: &BreakerPlan) -> Self {
        let state = State {
            probes: plan.probes.get(),
            again: again(plan),
            lines: BTreeMap::new(),
            of_pool: HashMap::new(),
            held: 0,
            due: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            logged: LogLimit::default(),
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

    /// This lane waits for this origin; `failed` says that its front was called before.
    pub(crate) fn add(&self, origin: &Arc<str>, pool: Weak<Pool>, lane: LaneId, failed: bool) {
        let mut state = self.lock();
        state.held += 1;
        let line = state.lines.entry(origin.clone()).or_default();
        let of = pool.as_ptr().addr();
        if line.add(Waiter { pool, lane }, failed) {
            *state.of_pool.entry(of).or_default() += 1;
        }
        if !state.due.contains_key(origin) {
            // Whatever happens, the origin is looked at again.
            let at = now() + state.again;
            state.due.insert(origin.clone(), at);
            self.changed.notify_one();
        }
    }

    /// How many lanes wait for this origin.
    pub(crate) fn waiting(&self, origin: &str) -> usize {
        self.lock().lines.get(origin).map_or(0, Line::len)
    }

    /// How many lanes of this pool wait; one that waits for two origins counts twice.
    pub(crate) fn waiting_in(&self, pool: &Arc<Pool>) -> usize {
        let of = Arc::as_ptr(pool).addr();
        self.lock().of_pool.get(&of).copied().unwrap_or(0)
    }

    /// Whether this lane waits for any origin.
    pub(crate) fn lists(&self, pool: &Arc<Pool>, lane: &LaneId) -> bool {
        let name = (Arc::as_ptr(pool).addr(), lane.clone());
        let state = self.lock();
        state
            .lines
            .values()
            .any(|line| line.known.contains_key(&name))
    }

    /// For each origin one of the lanes that wait for it, and since when it should have been looked
    /// at.
    pub(crate) fn first_of_each(&self) -> Vec<Waits> {
        let state = self.lock();
        let first = |(origin, line): (&Arc<str>, &Line)| {
            let waiter = line.fresh.front().or(line.failed.front())?;
            Some(Waits {
                origin: origin.clone(),
                due: state.due.get(origin).copied(),
                pool: waiter.pool.upgrade()?,
                lane: waiter.lane.clone(),
            })
        };
        state.lines.iter().filter_map(first).collect()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn lose_all(&self) {
        let mut state = self.lock();
        state.lines.clear();
        state.of_pool.clear();
    }

    /// How often a lane came to wait.
    #[cfg(feature = "testing")]
    pub(crate) fn held(&self) -> u64 {
        self.lock().held
    }

    fn log(&self, change: &Change) {
        let origin = &*change.origin;
        match change.kind {
            ChangeKind::Opened(_) if self.logged.allows(now()) => tracing::warn!(
                origin,
                "breaker opened: the first attempts of too many keys failed; keys with targets there wait and probe"
            ),
            ChangeKind::Closed => tracing::info!(origin, "breaker closed"),
            _ => {}
        }
    }

    /// The breaker says something changed.
    pub(crate) fn on_change(&self, change: Change) {
        self.log(&change);
        match change.kind {
            ChangeKind::Opened(until) | ChangeKind::OpenUntil(until) => {
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
            if state.lines.contains_key(&origin) {
                let at = now + state.again;
                state.due.entry(origin).or_insert(at);
            }
        }
    }

    /// Wakes this many lanes, first come first served; a lane that is gone, or that something else
    /// keeps from starting, does not count. All of what waits in a lane is released: it is in no
    /// list any more.
    fn wake(&self, origin: &Arc<str>, most: usize) {
        let mut woken = 0;
        while woken < most {
            let Some(Waiter { pool, lane }) = self.pop(origin) else {
                return;
            };
            if pool.upgrade().is_some_and(|pool| pool.wake(&lane)) {
                woken += 1;
            }
        }
    }

    fn pop(&self, origin: &Arc<str>) -> Option<Waiter> {
        let mut state = self.lock();
        let line = state.lines.get_mut(origin)?;
        let first = line.pop();
        if line.len() == 0 {
            state.lines.remove(origin);
        }
        if let Some(first) = &first {
            let of = first.pool.as_ptr().addr();
            let left = state.of_pool.entry(of).and_modify(|places| *places -= 1);
            if let Entry::Occupied(left) = left
                && *left.get() == 0
            {
                left.remove();
            }
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
