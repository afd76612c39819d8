//! The executor's numbers through the `metrics` facade (feature `metrics`).

use metrics::{Counter, Gauge};

/// Handles made once per executor; every series has the executor's name as label `executor`.
pub(crate) struct Exported {
    queued: Gauge,
    running: Gauge,
    live_keys: Gauge,
    rejected: Counter,
}

impl Exported {
    pub(crate) fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self {
            queued: metrics::gauge!("keylane_executor_queued", "executor" => name.clone()),
            running: metrics::gauge!("keylane_executor_running", "executor" => name.clone()),
            live_keys: metrics::gauge!("keylane_executor_live_keys", "executor" => name.clone()),
            rejected: metrics::counter!("keylane_executor_rejected_total", "executor" => name),
        }
    }

    pub(crate) fn set(&self, queued: usize, running: usize, live_keys: usize) {
        self.queued.set(queued as f64);
        self.running.set(running as f64);
        self.live_keys.set(live_keys as f64);
    }

    pub(crate) fn rejected(&self, how_many: usize) {
        self.rejected.increment(how_many as u64);
    }
}
