//! Which pool a message goes to. Routes are sticky: where a key has something unresolved, its
//! arrivals follow it there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::counters::Registry;
use crate::lane::LaneId;
use crate::message::Key;
use crate::plan::LaneScope;
use crate::pool::Pool;
use crate::source::PoolCodes;
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
    /// What a queue that locks keys goes by.
    codes: Arc<PoolCodes>,
    /// The pools behind each name in `codes`.
    groups: BTreeMap<Arc<str>, Vec<Arc<Pool>>>,
}

impl Table {
    fn pool_for(&self, code: &str) -> Arc<Pool> {
        let named = self.active.get(code).or_else(|| self.active.get(DEFAULT));
        named.expect("there is always a default pool").clone()
    }

    /// Where messages with this code may go: to the pool it means, or to one that still holds
    /// their key.
    fn pools_of(&self, code: &str) -> Vec<Arc<Pool>> {
        let former = self.former.get(code).into_iter().flatten().cloned();
        former.chain([self.pool_for(code)]).collect()
    }

    /// Names the pools anew. Pools that messages with one code may go to have one name, so that a
    /// queue never tells lanes apart that are one here.
    fn name_codes(&mut self) {
        let known: BTreeSet<&Arc<str>> = self.active.keys().chain(self.former.keys()).collect();
        let mut groups: Vec<BTreeMap<Arc<str>, Vec<Arc<Pool>>>> = Vec::new();
        for code in &known {
            let mut group = BTreeMap::<Arc<str>, Vec<Arc<Pool>>>::new();
            for pool in self.pools_of(code) {
                group.entry(pool.name.clone()).or_default().push(pool);
            }
            groups.retain(|other| {
                let apart = !other.keys().any(|name| group.contains_key(name));
                if !apart {
                    for (name, pools) in other {
                        let same = group.entry(name.clone()).or_default();
                        same.extend(pools.iter().cloned());
                    }
                }
                apart
            });
            groups.push(group);
        }
        let name_of = |pool: &Arc<str>| {
            let group = groups.iter().find(|group| group.contains_key(pool));
            let first = group.and_then(|group| group.keys().next());
            first.expect("each pool is in a group").clone()
        };
        let named = known
            .iter()
            .map(|code| ((*code).clone(), name_of(&self.pool_for(code).name)));
        let codes = PoolCodes::new(named, name_of(&self.pool_for(DEFAULT).name));
        let named = groups.into_iter().filter_map(|group| {
            let name = group.keys().next()?.clone();
            Some((name, group.into_values().flatten().collect()))
        });
        self.groups = named.collect();
        if *self.codes != codes {
            self.codes = Arc::new(codes);
        }
    }
}

impl Routes {
    pub(crate) fn new(pools: BTreeMap<Arc<str>, Arc<Pool>>, store: Arc<dyn Store>) -> Self {
        let mut table = Table {
            active: pools,
            ..Table::default()
        };
        table.name_codes();
        Self {
            table: RwLock::new(table),
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

    /// What pool codes mean to a queue that locks keys: the same `Arc` until that changes.
    pub(crate) fn codes(&self) -> Arc<PoolCodes> {
        self.table().codes.clone()
    }

    /// How many messages of this key a pool of this name in [`Self::codes`] may hold.
    pub(crate) fn capacity(&self, name: &str, key: Option<&Key>) -> usize {
        let table = self.table();
        let pools = table.groups.get(name).into_iter().flatten();
        let capacities = pools.map(|pool| pool.key_capacity(key));
        capacities.min().unwrap_or(usize::MAX)
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
        table.name_codes();
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
            let is = table.pool_for(&code);
            if !Arc::ptr_eq(&was, &is) {
                is.code_comes();
                table.former.entry(code).or_default().push(was);
            }
        }
        table.name_codes();
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
        table.name_codes();
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}
