//! Who goes on while a runner is in the middle of a long poll.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inbox, Shell, Work};
use crate::rt::lock;

/// How long something waits for a runner before another one is called.
const LONG: Duration = Duration::from_millis(1);

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// Whether this is the first that waits for the runners there are: then somebody is to watch them.
    pub(super) fn is_unwatched(&self, inbox: &mut Inbox<K, W::Job>) -> bool {
        // Without a clock no poll is long.
        !cfg!(keylane_shuttle) && !std::mem::replace(&mut inbox.watched, true)
    }

    pub(super) fn watch_runners(&self) {
        if let Some(shell) = self.me.upgrade() {
            self.spawner.spawn(watch(shell));
        }
    }

    /// Calls another runner if none has come to the lanes since, the last one that was called included;
    /// `false` when nothing waits for one.
    fn relieve(&self, turns: u32, called: &mut Option<u32>) -> bool {
        let mut inbox = lock(&self.inbox.0);
        let waits = !inbox.queue.is_empty() || inbox.again;
        if !waits || inbox.runners == 0 {
            inbox.watched = false;
            return false;
        }
        if self.pace.0.turns.load(Ordering::Relaxed) == turns
            && called.replace(turns) != Some(turns)
        {
            // However many there are: each of them is in the middle of a poll.
            inbox.runners += 1;
            drop(inbox);
            self.start_runner();
        }
        true
    }
}

/// Exists only while something waits for a runner that is busy.
async fn watch<K, W>(shell: Arc<Shell<K, W>>)
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    let mut called = None;
    loop {
        let turns = shell.pace.0.turns.load(Ordering::Relaxed);
        tokio::time::sleep(LONG).await;
        if !shell.relieve(turns, &mut called) {
            return;
        }
    }
}
