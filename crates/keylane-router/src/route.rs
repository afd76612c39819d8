//! Which pool a message goes to. Routes are sticky: where a key has something unresolved, its
//! arrivals follow it there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::counters::Registry;
use crate::lane::LaneId;
use crate::plan::LaneScope;
use crate::pool::Pool;
use crate::store::Store;

/// The pool of messages that name none, or an unknown one.
pub(crate) const DEFAULT: &str = "default";

/// The pools, and where messages went before the last changes.
pub(crate) struct Routes {
    table: RwLock<Table>,
    store: Arc<dyn Store>,
    /// Unknown pools that were warned about.
    warned: Mutex<HashSet<Arc<str>>>,
}

#[derive(Default)]
struct Table {
    active: BTreeMap<Arc<str>, Arc<Pool>>,
    /// By pool code: pools that may still hold keys of messages that name it.
    former: HashMap<Arc<str>, Vec<Arc<Pool>>>,
}

impl Table {
    fn pool_for(&self, code: &str) -> Arc<Pool> {
        let named = self.active.get(code).or_else(|| self.active.get(DEFAULT));
        named.expect("there is always a default pool").clone()
    }
}

impl Routes {
    pub(crate) fn new(pools: BTreeMap<Arc<str>, Arc<Pool>>, store: Arc<dyn Store>) -> Self {
        Self {
            table: RwLock::new(Table {
                active: pools,
                former: HashMap::new(),
            }),
            store,
            warned: Mutex::default(),
        }
    }

    /// The pool and the lane of a message that names this pool.
    pub(crate) fn route(
        &self,
        code: Option<&Arc<str>>,
        lane: impl Fn(LaneScope) -> LaneId,
        counted: &Registry,
    ) -> (Arc<Pool>, LaneId) {
        let table = self.table();
        let code: &str = code.map_or(DEFAULT, |code| code);
        if !table.active.contains_key(code) {
            self.warn_once(code, counted);
        }
        if let Some(former) = table.former.get(code) {
            for pool in former {
                let lane = self.lane_in(pool, &lane);
                if self.has(pool, &lane) {
                    return (pool.clone(), lane);
                }
            }
        }
        let pool = table.pool_for(code);
        let lane = self.lane_in(&pool, &lane);
        (pool, lane)
    }

    /// The lane of a message in this pool. Where its scope was another one, what is unresolved
    /// under that keeps the key there. The source's own lane comes first: what is in the shared one
    /// may be of other sources.
    fn lane_in(&self, pool: &Pool, lane: impl Fn(LaneScope) -> LaneId) -> LaneId {
        if pool.scope_changed() {
            for scope in [LaneScope::Source, LaneScope::Pool] {
                let lane = lane(scope);
                if self.has(pool, &lane) {
                    return lane;
                }
            }
        }
        lane(pool.plan().lane_scope)
    }

    fn has(&self, pool: &Pool, lane: &LaneId) -> bool {
        pool.has(lane) || self.store.parked_lane(&lane.name(&pool.name)).is_some()
    }

    fn warn_once(&self, code: &str, counted: &Registry) {
        counted.unknown_pool.one();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounded: publishers choose these names.
        if warned.len() < 1000 && warned.insert(code.into()) {
            tracing::warn!("pool `{code}` is not configured: its messages run in `{DEFAULT}`");
        }
    }

    /// The pool of this name.
    pub(crate) fn pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.table().active.get(name).cloned()
    }

    /// The pool of this name, or the one that had it before the last changes.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Pool>> {
        let table = self.table();
        let former = || {
            table
                .former
                .values()
                .flatten()
                .find(|pool| *pool.name == *name)
        };
        table.active.get(name).or_else(former).cloned()
    }

    /// Where messages that name this pool go now.
    pub(crate) fn pool_for(&self, code: &str) -> Arc<Pool> {
        self.table().pool_for(code)
    }

    /// All pools that may hold something.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let table = self.table();
        let mut pools: Vec<Arc<Pool>> = table.active.values().cloned().collect();
        for pool in table.former.values().flatten() {
            if !pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
                pools.push(pool.clone());
            }
        }
        pools
    }

    /// Keys of messages that name these pools stay in the default pool while they have something
    /// there: it was their pool before.
    pub(crate) fn were_in_default(&self, codes: impl IntoIterator<Item = Arc<str>>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let default = table.pool_for(DEFAULT);
        for code in codes {
            table.former.entry(code).or_default().push(default.clone());
        }
    }

    /// Puts other pools in force. Keys stay where they have something unresolved. Answers the
    /// pools that are no longer active.
    pub(crate) fn change(&self, pools: BTreeMap<Arc<str>, Arc<Pool>>) -> Vec<Arc<Pool>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let codes: HashSet<Arc<str>> = table.active.keys().chain(pools.keys()).cloned().collect();
        let before: Vec<(Arc<str>, Arc<Pool>)> = codes
            .into_iter()
            .map(|code| (code.clone(), table.pool_for(&code)))
            .collect();
        let old = std::mem::replace(&mut table.active, pools);
        for (code, was) in before {
            if !Arc::ptr_eq(&was, &table.pool_for(&code)) {
                table.former.entry(code).or_default().push(was);
            }
        }
        let active = &table.active;
        let gone = old
            .into_values()
            .filter(|pool| !active.contains_key(&pool.name));
        gone.collect()
    }

    /// A pool that is gone is no longer asked.
    pub(crate) fn forget(&self, pool: &Arc<Pool>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for former in table.former.values_mut() {
            former.retain(|other| !Arc::ptr_eq(other, pool));
        }
        table.former.retain(|_, former| !former.is_empty());
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}
