//! Who waits until nothing waits or runs.

use tokio::sync::oneshot;

use super::{Shell, State, Work};
use crate::rt::lock;

/// Which results are on their way to be seen: runners report under the lock of the lanes and let
/// results be seen after it, each at its own pace.
#[derive(Default)]
pub(super) struct Publishing {
    next: u64,
    /// Reported, and their results not yet seen; no more than there are runners.
    open: Vec<u64>,
    /// Those who wait for a key to be idle: its lane is, and results below this number remain.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    /// All lanes were idle while results remained: whoever waits for that is to be told.
    idle: bool,
}

impl Publishing {
    pub(super) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.push(self.next);
        self.next
    }

    /// The results of this number can be seen; answers who waited for that.
    pub(super) fn end(&mut self, number: u64) -> Vec<oneshot::Sender<()>> {
        self.open.retain(|open| *open != number);
        let seen = self.open.iter().min().map_or(u64::MAX, |least| least - 1);
        let ready = self.waiting.extract_if(.., |(until, _)| *until <= seen);
        ready.map(|(_, sender)| sender).collect()
    }

    /// Whoever this is waits for all results that were reported.
    fn wait(&mut self, sender: oneshot::Sender<()>) {
        self.waiting.push((self.next, sender));
    }

    /// Whoever waits for all to be idle is to be told of the last result; `false` when there is
    /// none to wait for.
    fn wait_for_all(&mut self) -> bool {
        self.idle |= !self.open.is_empty();
        self.idle
    }

    /// Whether somebody is to be told that no result remains.
    pub(super) fn is_last(&mut self) -> bool {
        self.open.is_empty() && std::mem::take(&mut self.idle)
    }
}

/// Results that are on their way to be seen until this is dropped.
pub(super) struct Unseen<'a, K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    shell: &'a Shell<K, W>,
    number: u64,
}

impl<K, W> Drop for Unseen<'_, K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn drop(&mut self) {
        self.shell.seen(self.number);
    }
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// Results will be seen that belong to what leaves the lanes now, under their lock.
    pub(super) fn unseen(&self) -> Unseen<'_, K, W> {
        let number = lock(&self.publishing).begin();
        Unseen {
            shell: self,
            number,
        }
    }

    /// Tells when everything is idle; `None` when it is so now. Takes nothing in: that may be much,
    /// and runners are at it.
    pub(crate) fn watch_all_idle(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = lock(&self.state.0);
        if self.is_idle(&state) && !lock(&self.publishing).wait_for_all() {
            return None;
        }
        Some(wait_among(&mut state.idle_all))
    }

    /// Tells when this key is idle; `None` when it is so now.
    pub(crate) fn watch_idle(&self, key: &K) -> Option<oneshot::Receiver<()>> {
        self.with(|state, _| {
            if state.lanes.watch(key) {
                return Some(wait_among(state.idle_of.entry(key.clone()).or_default()));
            }
            let mut publishing = lock(&self.publishing);
            if publishing.open.is_empty() {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            publishing.wait(sender);
            Some(receiver)
        })
    }

    /// Who waited for what is idle now, every result of it seen.
    pub(super) fn idle_now(&self, state: &mut State<K, W::Job>) -> Vec<oneshot::Sender<()>> {
        let emptied = state.lanes.take_emptied();
        let of_keys = self.idle_keys(state, emptied);
        let all = !state.idle_all.is_empty() && self.is_idle(state);
        if of_keys.is_empty() && !all {
            return Vec::new();
        }
        let mut publishing = lock(&self.publishing);
        if !publishing.open.is_empty() {
            of_keys.into_iter().for_each(|key| publishing.wait(key));
            publishing.idle |= all;
            return Vec::new();
        }
        drop(publishing);
        let mut idle = of_keys;
        if all {
            idle.append(&mut state.idle_all);
        }
        idle
    }

    /// Who waited for one of these keys, as far as nothing of it was submitted meanwhile.
    fn idle_keys(&self, state: &mut State<K, W::Job>, emptied: Vec<K>) -> Vec<oneshot::Sender<()>> {
        let mut idle = Vec::new();
        if emptied.is_empty() {
            return idle;
        }
        state.take_all(&mut lock(&self.inbox.0));
        for key in emptied {
            if !state.lanes.watch(&key) {
                idle.extend(state.idle_of.remove(&key).unwrap_or_default());
            }
        }
        idle
    }

    /// Whether nothing waits or runs; what was submitted a moment ago waits too.
    pub(super) fn is_idle(&self, state: &State<K, W::Job>) -> bool {
        state.lanes.is_idle() && state.taken.is_empty() && lock(&self.inbox.0).queue.is_empty()
    }

    /// The results of this number can be seen.
    pub(super) fn seen(&self, number: u64) {
        let mut publishing = lock(&self.publishing);
        let idle = publishing.end(number);
        let last = publishing.is_last();
        drop(publishing);
        tell(idle);
        if last {
            self.tell_idle();
        }
    }

    /// The last result can be seen: whoever waits for all to be idle may go on.
    fn tell_idle(&self) {
        let idle = {
            let mut state = lock(&self.state.0);
            if !self.is_idle(&state) || lock(&self.publishing).wait_for_all() {
                return;
            }
            std::mem::take(&mut state.idle_all)
        };
        tell(idle);
    }
}

fn wait_among(waiting: &mut Vec<oneshot::Sender<()>>) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    waiting.retain(|other| !other.is_closed());
    waiting.push(sender);
    receiver
}

pub(super) fn tell(idle: Vec<oneshot::Sender<()>>) {
    for idle in idle {
        // Whoever asked may have stopped waiting.
        let _ = idle.send(());
    }
}
