//! Keys whose head fails for good and is tried again for ever: an alert that names one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::health::{Health, Trouble};
use crate::message::Identity;

/// The blocked heads of one pool.
#[derive(Debug)]
pub(crate) struct Blocked {
    pool: Arc<str>,
    health: Arc<Health>,
    /// Why each is, in words.
    heads: Mutex<BTreeMap<Identity, String>>,
}

/// Its key is blocked as long as this is there.
#[derive(Debug)]
pub(crate) struct BlockedHead {
    identity: Identity,
    of: Arc<Blocked>,
}

impl Blocked {
    pub(crate) fn new(pool: Arc<str>, health: Arc<Health>) -> Arc<Self> {
        let heads = Mutex::default();
        Arc::new(Self {
            pool,
            health,
            heads,
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// This head is one from now on.
    pub(crate) fn add(self: &Arc<Self>, identity: &Identity, why: String) -> BlockedHead {
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
                self.health.trouble(trouble, text);
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
