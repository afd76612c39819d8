//! Keys that wait for a head which failed for good and is still retried: alerts that name them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::health::{Health, Trouble};
use crate::log_limit::LogLimit;
use crate::message::Identity;

/// The blocked heads of one pool.
#[derive(Debug)]
pub(crate) struct Blocked {
    pool: Arc<str>,
    health: Arc<Health>,
    /// Why each is, in words.
    heads: Mutex<BTreeMap<Identity, String>>,
    logged: LogLimit,
}

/// Its key is blocked as long as this exists, in memory or on disk.
#[derive(Debug)]
pub(crate) struct BlockedHead {
    identity: Identity,
    of: Arc<Blocked>,
}

impl BlockedHead {
    /// Whether it is the head of this identity.
    pub(crate) fn is(&self, identity: &Identity) -> bool {
        self.identity == *identity
    }
}

impl Blocked {
    pub(crate) fn new(pool: Arc<str>, health: Arc<Health>) -> Arc<Self> {
        Arc::new(Self {
            pool,
            health,
            heads: Mutex::default(),
            logged: LogLimit::default(),
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// This head is one from now on. Each head is logged once, at most one in a second.
    pub(crate) fn add(self: &Arc<Self>, identity: &Identity, why: String) -> BlockedHead {
        if self.logged.allows(Instant::now().into_std()) {
            tracing::warn!(pool = &*self.pool, %identity, "key blocked: {why}");
        }
        self.lock().insert(identity.clone(), why);
        self.tell();
        BlockedHead {
            identity: identity.clone(),
            of: self.clone(),
        }
    }

    fn tell(&self) {
        let heads = self.lock();
        let trouble = Trouble::BlockedKey(self.pool.clone());
        match heads.first_key_value() {
            None => self.health.well(trouble),
            Some((_, why)) => {
                let text = match heads.len() - 1 {
                    0 => why.clone(),
                    others => format!("{why}; and {others} other keys of the pool"),
                };
                self.health.note(trouble, text);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, String>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BlockedHead {
    fn drop(&mut self) {
        self.of.lock().remove(&self.identity);
        self.of.tell();
    }
}
