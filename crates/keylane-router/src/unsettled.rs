//! How many messages may be called or delivered without their source knowing: what a crash of the
//! process repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Counts a pool's messages from the start of an attempt until their source knows the settlement.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    count: AtomicUsize,
    freed: Notify,
    pressure: Arc<Pressure>,
}

/// Whether attempts wait for settlements, of whatever pool.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    waiting: AtomicUsize,
    felt: Notify,
}

/// One attempt that waits; until dropped.
pub(crate) struct Pressed<'a>(&'a Pressure);

impl Pressure {
    pub(crate) fn press(&self) -> Pressed<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.felt.notify_waiters();
        Pressed(self)
    }

    pub(crate) fn is_felt(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Somebody begins to wait.
    pub(crate) fn felt(&self) -> Notified<'_> {
        self.felt.notified()
    }
}

impl Drop for Pressed<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One message that a crash would repeat; counted until dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Unsettled>);

impl Unsettled {
    pub(crate) fn new(pressure: Arc<Pressure>) -> Self {
        Self {
            pressure,
            ..Self::default()
        }
    }

    /// Waits until fewer than `most` are counted, and counts one more.
    pub(crate) async fn count(self: &Arc<Self>, most: usize) -> Counted {
        let _pressed = self.pressure.press();
        loop {
            let freed = self.freed.notified();
            if let Some(counted) = self.try_count(most) {
                return counted;
            }
            freed.await;
        }
    }

    /// Counts one more, if fewer than `most` are counted.
    pub(crate) fn try_count(self: &Arc<Self>, most: usize) -> Option<Counted> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        let counted = self
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        counted.is_ok().then(|| Counted(self.clone()))
    }

    /// How many are counted now.
    pub(crate) fn now(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn never_more_than_the_most_and_who_waits_goes_on() {
        let unsettled = Arc::new(Unsettled::default());
        let first = unsettled.count(2).await;
        let _second = unsettled.count(2).await;
        let waiting = tokio::spawn({
            let unsettled = unsettled.clone();
            async move { unsettled.count(2).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let _third = waiting.await.unwrap();
        assert_eq!(unsettled.now(), 2);
    }
}
