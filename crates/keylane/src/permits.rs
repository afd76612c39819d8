//! A limit that several executors share.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::rt::{Mutex, lock};

/// Something that may have been waiting for a permit.
pub(crate) trait Kick: Send + Sync {
    fn kick(self: Arc<Self>);
}

/// A number of permits shared by several executors: together they never run more than that.
///
/// Cheap to clone; every clone is the same set.
#[derive(Clone)]
pub struct Permits {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    most: usize,
    used: usize,
    /// Executors that found no permit, in the order they asked.
    waiting: VecDeque<Weak<dyn Kick>>,
}

impl Permits {
    /// `most` permits.
    pub fn new(most: usize) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                most,
                used: 0,
                waiting: VecDeque::new(),
            })),
        }
    }

    /// Changes the number: an increase acts at once, after a decrease nothing starts until fewer
    /// than `most` run.
    pub fn set(&self, most: usize) {
        let woken = {
            let mut shared = lock(&self.shared);
            shared.most = most;
            shared.wake()
        };
        kick_all(woken);
    }

    /// How many are in use.
    pub fn in_use(&self) -> usize {
        lock(&self.shared).used
    }

    /// Takes a permit, or notes who wants one.
    pub(crate) fn take_or_wait(&self, waiter: impl FnOnce() -> Option<Weak<dyn Kick>>) -> bool {
        let mut shared = lock(&self.shared);
        if shared.used < shared.most {
            shared.used += 1;
            return true;
        }
        shared.waiting.extend(waiter());
        false
    }

    pub(crate) fn give(&self, count: usize) {
        if count == 0 {
            return;
        }
        let woken = {
            let mut shared = lock(&self.shared);
            shared.used -= count;
            shared.wake()
        };
        kick_all(woken);
    }
}

impl std::fmt::Debug for Permits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = lock(&self.shared);
        write!(f, "Permits({} of {} in use)", shared.used, shared.most)
    }
}

impl Shared {
    /// Everybody who waits looks again: who finds nothing to run leaves the permit to the others.
    fn wake(&mut self) -> VecDeque<Weak<dyn Kick>> {
        if self.used < self.most {
            std::mem::take(&mut self.waiting)
        } else {
            VecDeque::new()
        }
    }
}

fn kick_all(waiting: VecDeque<Weak<dyn Kick>>) {
    for waiter in waiting {
        if let Some(executor) = waiter.upgrade() {
            executor.kick();
        }
    }
}
