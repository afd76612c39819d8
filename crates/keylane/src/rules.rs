//! Limits as the user states them, and what they come to for one key.

use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashMap;

use crate::lanes::{LaneLimits, Limits as LanesLimits, Rate, Spec};
use crate::rt::contain;

/// The limits of an executor. `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tasks that run at once.
    pub concurrency: Option<usize>,
    /// Tasks in flight at once: another name for the same limit; the smaller one counts.
    pub max_in_flight: Option<usize>,
    /// Tasks of one key that run at once.
    pub lane_concurrency: usize,
    /// Tasks of one key in flight at once; the smaller one counts.
    pub max_in_flight_per_key: Option<usize>,
    /// Tasks that wait only because the executor's limit is reached.
    pub queue_limit: Option<usize>,
    /// Tasks of one key that wait for that key.
    pub queue_limit_per_key: Option<usize>,
    /// Starts per time, of all keys together.
    pub rate: Option<Rate>,
    /// Starts per time, of each key.
    pub per_key_rate: Option<Rate>,
    /// Starts of one key before the next ready key's turn.
    pub turn: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrency: None,
            max_in_flight: None,
            lane_concurrency: 1,
            max_in_flight_per_key: None,
            queue_limit: None,
            queue_limit_per_key: None,
            rate: None,
            per_key_rate: None,
            turn: 1,
        }
    }
}

impl Limits {
    /// Every value that cannot be meant, as (option, value).
    pub(crate) fn problems(&self) -> Vec<(&'static str, usize)> {
        let values = [
            ("concurrency", self.concurrency),
            ("max_in_flight", self.max_in_flight),
            ("lane_concurrency", Some(self.lane_concurrency)),
            ("max_in_flight_per_key", self.max_in_flight_per_key),
            ("turn", Some(self.turn as usize)),
        ];
        let zero = values.into_iter().filter(|(_, value)| *value == Some(0));
        zero.map(|(option, _)| (option, 0)).collect()
    }

    pub(crate) fn for_lanes(&self) -> LanesLimits {
        LanesLimits {
            total: smaller(self.concurrency, self.max_in_flight).unwrap_or(usize::MAX),
            queue: self.queue_limit.unwrap_or(usize::MAX),
            rate: self.rate,
            turn: self.turn,
            lane: LaneLimits {
                concurrency: self
                    .lane_concurrency
                    .min(self.max_in_flight_per_key.unwrap_or(usize::MAX)),
                queue: self.queue_limit_per_key.unwrap_or(usize::MAX),
                rate: self.per_key_rate,
            },
        }
    }
}

fn smaller(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The limits in force, and the number of the change that put them there.
pub(crate) struct LiveLimits(RwLock<(Limits, u64)>);

impl LiveLimits {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(RwLock::new((limits, 0)))
    }

    pub(crate) fn get(&self) -> Limits {
        self.read().0
    }

    /// Puts limits in force; answers the number of this change.
    pub(crate) fn set(&self, limits: Limits) -> u64 {
        let mut live = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *live = (limits, live.1 + 1);
        live.1
    }

    /// Whether no change came after this one.
    pub(crate) fn is_latest(&self, change: u64) -> bool {
        self.read().1 == change
    }

    fn read(&self) -> (Limits, u64) {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the user's code about a key.
pub(crate) type ByKey<K, V> = Arc<dyn Fn(&K) -> V + Send + Sync>;
pub(crate) type ByTenant = Arc<dyn Fn(&str) -> u32 + Send + Sync>;

/// What is said about single keys.
pub(crate) struct KeyRules<K> {
    pub(crate) concurrency_for: HashMap<K, usize>,
    pub(crate) concurrency_by: Option<ByKey<K, usize>>,
    pub(crate) in_flight_for: HashMap<K, usize>,
    pub(crate) queue_for: HashMap<K, usize>,
    pub(crate) rate_by: Option<ByKey<K, Option<Rate>>>,
    pub(crate) tenant_by: Option<ByKey<K, Option<Arc<str>>>>,
    pub(crate) weight_by: Option<ByTenant>,
}

impl<K> Default for KeyRules<K> {
    fn default() -> Self {
        Self {
            concurrency_for: HashMap::new(),
            concurrency_by: None,
            in_flight_for: HashMap::new(),
            queue_for: HashMap::new(),
            rate_by: None,
            tenant_by: None,
            weight_by: None,
        }
    }
}

impl<K: Hash + Eq> KeyRules<K> {
    pub(crate) fn is_empty(&self) -> bool {
        !self.limit_keys() && self.tenant_by.is_none()
    }

    fn limit_keys(&self) -> bool {
        !self.concurrency_for.is_empty()
            || self.concurrency_by.is_some()
            || !self.in_flight_for.is_empty()
            || !self.queue_for.is_empty()
            || self.rate_by.is_some()
    }

    /// What a lane of this key is like. `report` hears of panics in the user's code.
    pub(crate) fn spec(&self, key: &K, limits: &Limits, report: impl Fn(&str, &str)) -> Spec {
        let tenant = self
            .tenant_by
            .as_ref()
            .and_then(|by| ask("tenant_by", || by(key), &report).flatten());
        let weight = match (&tenant, &self.weight_by) {
            (Some(tenant), Some(by)) => ask("weight_by", || by(tenant), &report).unwrap_or(1),
            _ => 1,
        };
        Spec {
            limits: self.limit_keys().then(|| self.limits(key, limits, &report)),
            tenant,
            weight,
        }
    }

    /// Map, then resolver (at least 1; a panic means the default), then default.
    fn limits(&self, key: &K, limits: &Limits, report: &impl Fn(&str, &str)) -> LaneLimits {
        let by = || {
            let by = self.concurrency_by.as_ref()?;
            ask("lane_concurrency_by", || by(key), report).map(|n| n.max(1))
        };
        let concurrency = self.concurrency_for.get(key).copied().or_else(by);
        let in_flight = self
            .in_flight_for
            .get(key)
            .copied()
            .or(limits.max_in_flight_per_key);
        let queue = self
            .queue_for
            .get(key)
            .copied()
            .or(limits.queue_limit_per_key);
        let rate_by = self.rate_by.as_ref();
        let rate = rate_by.and_then(|by| ask("per_key_rate_by", || by(key), report).flatten());
        LaneLimits {
            concurrency: concurrency
                .unwrap_or(limits.lane_concurrency)
                .min(in_flight.unwrap_or(usize::MAX)),
            queue: queue.unwrap_or(usize::MAX),
            rate: rate.or(limits.per_key_rate),
        }
    }
}

fn ask<V>(who: &str, code: impl FnOnce() -> V, report: &impl Fn(&str, &str)) -> Option<V> {
    contain(code).map_err(|message| report(who, &message)).ok()
}
