//! How many messages may be called or delivered without their source knowing: what a crash of the
//! process repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts a pool's messages from the start of an attempt until their source knows the settlement.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    count: AtomicUsize,
    freed: Notify,
}

/// One message that a crash would repeat; counted until dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Unsettled>);

impl Unsettled {
    /// Waits until fewer than `most` are counted, and counts one more.
    pub(crate) async fn count(self: &Arc<Self>, most: usize) -> Counted {
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
