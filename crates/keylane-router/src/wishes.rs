//! What operators want done with something that others have in their hands just now.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::map::Map;

/// The wishes there are, by what they are about: whoever has that looks here. Few and seldom.
pub(crate) struct Wishes<K, W> {
    by: Mutex<Map<K, W>>,
    /// `by.len()`, for those who come by with every message and find nothing.
    count: AtomicUsize,
}

impl<K, W> Default for Wishes<K, W> {
    fn default() -> Self {
        Self {
            by: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }
}

impl<K: Eq + Hash, W> Wishes<K, W> {
    pub(crate) fn insert(&self, about: K, wish: W) {
        let mut by = self.lock();
        by.insert(about, wish);
        self.count.store(by.len(), Ordering::SeqCst);
    }

    /// Forgets the wish; answers it if there was one.
    pub(crate) fn take(&self, about: &K) -> Option<W> {
        if self.is_empty() {
            return None;
        }
        let mut by = self.lock();
        let wish = by.remove(about);
        self.count.store(by.len(), Ordering::SeqCst);
        wish
    }

    pub(crate) fn has(&self, about: &K) -> bool {
        !self.is_empty() && self.lock().contains_key(about)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, Map<K, W>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
