//! What a flush took, on its way out and back.

use std::sync::Arc;

use super::{Shell, Work};
use crate::lanes::{FlushId, Flushed, Spec};
use crate::rt::{Mutex, lock};

/// The most lanes of one flush that are dealt with at a time: a drain flushes them all, and each
/// takes a task.
const FLUSHES: usize = if cfg!(keylane_shuttle) { 2 } else { 256 };

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    pub(super) fn start_flushes(&self, flushes: Vec<Flushed<K, W::Job>>) {
        if flushes.is_empty() {
            return;
        }
        let Some(shell) = self.me.upgrade() else {
            return;
        };
        let draining = lock(&self.state.0).draining;
        let tasks = flushes.len().min(FLUSHES);
        let flushes = Arc::new(Mutex::new(flushes.into_iter()));
        for _ in 0..tasks {
            let (shell, flushes) = (shell.clone(), flushes.clone());
            self.spawner.spawn(async move {
                loop {
                    let Some(flushed) = lock(&flushes).next() else {
                        break;
                    };
                    shell.flush(flushed, draining).await;
                }
            });
        }
    }

    async fn flush(&self, flushed: Flushed<K, W::Job>, draining: bool) {
        let Flushed {
            key,
            jobs,
            running,
            id,
        } = flushed;
        if jobs.is_empty() {
            return self.lanes(|lanes| lanes.flush_done(id, jobs));
        }
        let keep = self.work.flushed(key.clone(), jobs, running).await;
        self.end_flush(&key, id, keep, draining);
    }

    /// What a flush keeps goes on, unless the executor drains: then what was taken before that is
    /// handed out once more, and what is kept even so stays where it is.
    fn end_flush(&self, key: &K, id: FlushId, keep: Vec<(u64, W::Job)>, drained: bool) {
        self.with(|state, _| {
            if drained {
                state.lanes.pause(key.clone(), |_| Spec::default());
            }
            state.lanes.flush_done(id, keep);
        });
    }
}
