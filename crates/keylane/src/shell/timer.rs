//! What happens by itself at a known time.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Shell, State, Work};
use crate::rt::lock;

/// Nothing further away is waited for at once: timers have their limits.
const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

pub(super) enum TimerOut {
    Fine,
    Start,
    Earlier,
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    pub(super) fn start_timer(&self) {
        if let Some(shell) = self.me.upgrade() {
            self.spawner.spawn(keep_time(shell));
        }
    }
}

/// The timer: exists only while something is to happen by itself at a known time.
async fn keep_time<K, W>(shell: Arc<Shell<K, W>>)
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    loop {
        let at = {
            let mut state = lock(&shell.state.0);
            state.timer_task = state.timer.is_some();
            state.timer
        };
        let Some(at) = at else {
            return;
        };
        let changed = shell.timer_changed.notified();
        let at = shell.clock.instant_of(at).min(Instant::now() + FAR);
        if tokio::time::timeout_at(at, changed).await.is_err() {
            let now = shell.now();
            shell.with(|state, _| {
                state.timer = None;
                state.rate_at = None;
                state.lanes.tick(now);
            });
        }
    }
}

impl<K: std::hash::Hash + Eq + Clone, J> State<K, J> {
    pub(super) fn set_timer(&mut self) -> TimerOut {
        let rate_at = self.rate_at.filter(|_| self.lanes.ready() > 0);
        let wanted = match (self.lanes.wake_at(), rate_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let Some(wanted) = wanted else {
            return self.unset_timer();
        };
        if self.timer.is_some_and(|at| at <= wanted) {
            return TimerOut::Fine;
        }
        self.timer = Some(wanted);
        if std::mem::replace(&mut self.timer_task, true) {
            TimerOut::Earlier
        } else {
            TimerOut::Start
        }
    }

    /// Where nothing is left, the timer is not either.
    fn unset_timer(&mut self) -> TimerOut {
        if self.timer.is_none() || !self.lanes.is_idle() {
            return TimerOut::Fine;
        }
        self.timer = None;
        TimerOut::Earlier
    }
}
