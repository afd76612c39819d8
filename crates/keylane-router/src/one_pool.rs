//! Notices a key whose messages go to several pools, where its broker locks it as one.
//!
//! Plain data: no clock, no lock, no I/O.

use std::collections::HashMap;
use std::sync::Arc;

use crate::message::Key;

/// Which pool each key of a batch goes to. What is out of a locked key came with one batch.
#[derive(Default)]
pub(crate) struct OnePool {
    of: HashMap<Key, Arc<str>>,
    noticed: bool,
}

impl OnePool {
    /// Another batch.
    pub(crate) fn begin(&mut self) {
        self.of.clear();
    }

    /// A message of this key goes to this pool. Answers the other pool that one of its key goes to,
    /// the first time that there is such a key at all.
    pub(crate) fn goes_to(&mut self, key: &Key, pool: &Arc<str>) -> Option<Arc<str>> {
        if self.noticed {
            return None;
        }
        match self.of.get(key) {
            None => {
                self.of.insert(key.clone(), pool.clone());
                None
            }
            Some(other) if other == pool => None,
            Some(other) => {
                self.noticed = true;
                Some(other.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_two_pools_is_noticed_once() {
        let mut one = OnePool::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let (k, l) = (Key::from("k"), Key::from("l"));
        assert_eq!(one.goes_to(&k, &a), None);
        assert_eq!(one.goes_to(&k, &a), None);
        assert_eq!(one.goes_to(&l, &b), None);
        one.begin();
        // Nothing of it was out any more.
        assert_eq!(one.goes_to(&k, &b), None);
        assert_eq!(one.goes_to(&k, &a), Some(b.clone()));
        assert_eq!(one.goes_to(&k, &b), None);
        one.begin();
        assert_eq!(one.goes_to(&l, &a), None);
        assert_eq!(one.goes_to(&l, &b), None);
    }
}
