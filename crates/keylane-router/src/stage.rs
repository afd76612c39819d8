//! What a source's consumer is doing right now, and since when: for whoever asks why.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::lane::LaneId;
use crate::lock;

/// Written by the receiving and the settling task, read by the watchdog.
#[derive(Default)]
pub(crate) struct Stage {
    blocked: Mutex<Option<(Blocked, Instant)>>,
    settling: Mutex<Option<(usize, Instant)>>,
    /// What failed and is tried again.
    again: Mutex<Option<(usize, Instant)>>,
}

/// Why nothing more is received.
#[derive(Clone, Debug)]
pub(crate) enum Blocked {
    /// The window is full.
    Window,
    /// A message of so many bytes waits for room in this lane of this pool.
    Lane(Arc<str>, LaneId, u64),
    /// A message waits for bytes of this pool.
    Bytes(Arc<str>),
}

impl Stage {
    /// Nothing is received from now on.
    pub(crate) fn block(&self, why: Blocked) {
        *lock(&self.blocked) = Some((why, Instant::now()));
    }

    /// As [`Self::block`], but the time counts on if it is blocked already.
    pub(crate) fn block_on(&self, why: Blocked) {
        let mut blocked = lock(&self.blocked);
        let since = blocked
            .as_ref()
            .map_or_else(Instant::now, |(_, since)| *since);
        *blocked = Some((why, since));
    }

    /// It goes on receiving.
    pub(crate) fn unblock(&self) {
        *lock(&self.blocked) = None;
    }

    /// So many are being settled from now on.
    pub(crate) fn settle(&self, count: usize) {
        *lock(&self.settling) = Some((count, Instant::now()));
    }

    /// They are settled.
    pub(crate) fn settled(&self) {
        *lock(&self.settling) = None;
    }

    /// So many failed and are tried again from now on, or still.
    pub(crate) fn settle_again(&self, count: usize) {
        let mut again = lock(&self.again);
        let since = again.map_or_else(Instant::now, |(_, since)| since);
        *again = (count > 0).then_some((count, since));
    }

    pub(crate) fn blocked(&self) -> Option<(Blocked, Instant)> {
        lock(&self.blocked).clone()
    }

    /// How many are not settled though their source was asked, and since when.
    pub(crate) fn settling(&self) -> Option<(usize, Instant)> {
        let again = *lock(&self.again);
        again.or(*lock(&self.settling))
    }
}
