//! Which pool a message goes to. Routes are sticky: where a key has something unresolved, its
//! arrivals follow it there.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

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
    /// Removed pools that still hold keys. There is one pool of a name at a time.
    leaving: BTreeMap<Arc<str>, Leaving>,
    /// Pool codes whose messages went to the default pool until a pool of that name was added.
    in_default: BTreeSet<Arc<str>>,
    /// What a queue that locks keys goes by.
    codes: Arc<PoolCodes>,
    /// The pools behind each name in `codes`.
    groups: BTreeMap<Arc<str>, Vec<Arc<Pool>>>,
    /// Counts the changes.
    generation: u64,
}

/// Where a message goes.
pub(crate) struct Routed {
    pub(crate) pool: Arc<Pool>,
    pub(crate) lane: LaneId,
    /// Messages with this code go to this pool now; otherwise the key still has something there.
    pub(crate) is_usual: bool,
    /// The message names no configured pool.
    pub(crate) is_unknown: bool,
    /// The table that was asked: [`Routes::generation`].
    pub(crate) generation: u64,
}

/// A removed pool.
pub(crate) struct Leaving {
    pub(crate) pool: Arc<Pool>,
    /// Cancelled when the pool is added again.
    pub(crate) called_off: CancellationToken,
}

impl Table {
    fn pool_for(&self, code: &str) -> &Arc<Pool> {
        let named = self.active.get(code).or_else(|| self.active.get(DEFAULT));
        named.expect("there is always a default pool")
    }

    fn find(&self, name: &str) -> Option<&Arc<Pool>> {
        let leaving = || self.leaving.get(name).map(|leaving| &leaving.pool);
        self.active.get(name).or_else(leaving)
    }

    /// The pools that may hold messages of this code, in the order in which they are asked. What is
    /// in the pool of the code's own name is newer than what is in the default pool.
    fn may_hold(&self, code: &str) -> impl Iterator<Item = &Arc<Pool>> {
        let default = self.in_default.contains(code).then_some(DEFAULT);
        let names = [Some(code), default].into_iter().flatten();
        names.filter_map(|name| self.find(name))
    }

    /// All codes that are not just unknown.
    fn known(&self) -> BTreeSet<Arc<str>> {
        let names = self.active.keys().chain(self.leaving.keys());
        names.chain(&self.in_default).cloned().collect()
    }

    /// Names the pools anew. Pools that messages with one code may go to have one name, so that a
    /// queue never tells lanes apart that are one here.
    fn name_codes(&mut self) {
        self.generation += 1;
        let known = self.known();
        let mut groups: Vec<BTreeMap<Arc<str>, Arc<Pool>>> = Vec::new();
        for code in &known {
            let pools = self.may_hold(code).chain([self.pool_for(code)]);
            let mut group: BTreeMap<Arc<str>, Arc<Pool>> = pools
                .map(|pool| (pool.name.clone(), pool.clone()))
                .collect();
            groups.retain(|other| {
                let apart = !other.keys().any(|name| group.contains_key(name));
                if !apart {
                    group.extend(other.clone());
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
            .map(|code| (code.clone(), name_of(&self.pool_for(code).name)));
        let codes = PoolCodes::new(named, name_of(&self.pool_for(DEFAULT).name));
        let named = groups.into_iter().filter_map(|group| {
            let name = group.keys().next()?.clone();
            Some((name, group.into_values().collect()))
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
    ) -> Routed {
        let table = self.table();
        let code: &str = code.map_or(DEFAULT, |code| code);
        let to = |pool: &Arc<Pool>| Routed {
            pool: pool.clone(),
            lane: lane(pool.plan().lane_scope),
            is_usual: Arc::ptr_eq(pool, table.pool_for(code)),
            is_unknown: !table.active.contains_key(code),
            generation: table.generation,
        };
        let mut may_hold = table.may_hold(code).map(to);
        let holding = may_hold.find(|to| self.has(&to.pool, &to.lane));
        holding.unwrap_or_else(|| to(table.pool_for(code)))
    }

    /// Whether something of the lane is in the pool or stored. An operator may park a lane that has
    /// nothing: being parked is not enough.
    fn has(&self, pool: &Pool, lane: &LaneId) -> bool {
        let stored = || self.store.parked_lane(&lane.name(&pool.name));
        pool.has(lane)
            || self.store.parks_any() && stored().is_some_and(|stored| stored.messages > 0)
    }

    /// Counts a message that names no pool, and warns once of each name.
    pub(crate) fn note_unknown(&self, code: &Arc<str>, counted: &Registry) {
        counted.unknown_pool.one();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounded: publishers choose these names.
        if warned.len() < 1000 && warned.insert(code.clone()) {
            tracing::warn!("pool `{code}` is not configured: its messages run in `{DEFAULT}`");
        }
    }

    /// The pool of this name, also while it is leaving.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Pool>> {
        self.table().find(name).cloned()
    }

    /// The pool of this name.
    pub(crate) fn pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.table().active.get(name).cloned()
    }

    /// Where messages that name this pool go now.
    pub(crate) fn pool_for(&self, code: &str) -> Arc<Pool> {
        self.table().pool_for(code).clone()
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

    /// Whether keys may have something unresolved elsewhere than where their messages go now.
    pub(crate) fn moves(&self) -> bool {
        let table = self.table();
        !table.leaving.is_empty() || !table.in_default.is_empty()
    }

    /// Counts the changes of where messages go.
    pub(crate) fn generation(&self) -> u64 {
        self.table().generation
    }

    /// All pools that may hold something.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let table = self.table();
        let leaving = table.leaving.values().map(|leaving| &leaving.pool);
        table.active.values().chain(leaving).cloned().collect()
    }

    /// Keys of messages that name these pools stay in the default pool while they have something
    /// there: it was their pool before.
    pub(crate) fn were_in_default(&self, codes: impl IntoIterator<Item = Arc<str>>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.in_default.extend(codes);
        table.name_codes();
    }

    /// Puts other pools in force. Keys stay where they have something unresolved. Returns the pools
    /// that are leaving from now on; a leaving pool that is active again does not leave.
    pub(crate) fn change(
        &self,
        pools: BTreeMap<Arc<str>, Arc<Pool>>,
        now: SystemTime,
    ) -> Vec<Leaving> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let codes: BTreeSet<Arc<str>> = table
            .known()
            .into_iter()
            .chain(pools.keys().cloned())
            .collect();
        let meant = |table: &Table| -> Vec<Arc<Pool>> {
            codes
                .iter()
                .map(|code| table.pool_for(code).clone())
                .collect()
        };
        let before = meant(&table);
        let old = std::mem::replace(&mut table.active, pools);
        for (was, is) in before.into_iter().zip(meant(&table)) {
            if was.name != is.name {
                is.code_comes(now);
            }
        }
        let added: Vec<Arc<str>> = table.active.keys().cloned().collect();
        for name in added.into_iter().filter(|name| !old.contains_key(name)) {
            if let Some(leaving) = table.leaving.remove(&name) {
                leaving.called_off.cancel();
            }
            table.in_default.insert(name);
        }
        let mut removed = Vec::new();
        for (name, pool) in old {
            if table.active.contains_key(&name) {
                continue;
            }
            let called_off = CancellationToken::new();
            let leaving = || Leaving {
                pool: pool.clone(),
                called_off: called_off.clone(),
            };
            removed.push(leaving());
            table.leaving.insert(name, leaving());
        }
        table.name_codes();
        removed
    }

    /// A leaving pool is gone.
    pub(crate) fn forget(&self, pool: &Pool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.leaving.remove(&pool.name);
        table.name_codes();
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}
