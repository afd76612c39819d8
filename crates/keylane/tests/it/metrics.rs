//! What the feature `metrics` exports.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use keylane::{Executor, Policy};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::support::Door;

/// Keeps the last value of every series by name and executor.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<String, f64>>>);

struct One(Seen, String);

impl One {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(self.0.0.lock().unwrap().entry(self.1.clone()).or_default());
    }
}

impl metrics::GaugeFn for One {
    fn increment(&self, value: f64) {
        self.change(|old| *old += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|old| *old -= value);
    }

    fn set(&self, value: f64) {
        self.change(|old| *old = value);
    }
}

impl metrics::CounterFn for One {
    fn increment(&self, value: u64) {
        self.change(|old| *old += value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|old| *old = value as f64);
    }
}

impl Seen {
    fn one(&self, key: &Key) -> Arc<One> {
        let label = key.labels().next().map_or("", |label| label.value());
        Arc::new(One(self.clone(), format!("{} {label}", key.name())))
    }

    fn get(&self, name: &str) -> f64 {
        self.0
            .lock()
            .unwrap()
            .get(name)
            .copied()
            .unwrap_or_default()
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

// PL-18, PL-19, PL-20
#[tokio::test(start_paused = true)]
async fn gauges_follow_each_executor_under_its_name() {
    let seen = Seen::default();
    let build = |name: &str| {
        let builder = Executor::builder().name(name).queue_limit_per_key(1);
        metrics::with_local_recorder(&seen, || builder.build().unwrap())
    };
    let (one, two) = (build("one"), build("two"));
    let door = Door::closed();
    one.submit("a", door.passes(()));
    one.submit("a", door.passes(()));
    two.submit("a", async {}).await;
    door.reached().await;
    assert_eq!(seen.get("keylane_executor_live_keys one"), 1.0);
    assert_eq!(seen.get("keylane_executor_running one"), 1.0);
    assert_eq!(seen.get("keylane_executor_queued one"), 1.0);
    assert_eq!(seen.get("keylane_executor_live_keys two"), 0.0);
    door.let_in(2);
    one.all_idle().await;
    for gauge in ["live_keys", "running", "queued"] {
        assert_eq!(seen.get(&format!("keylane_executor_{gauge} one")), 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_are_counted_whatever_the_policy() {
    let seen = Seen::default();
    for policy in [Policy::Abort, Policy::Discard] {
        let builder = Executor::builder()
            .name("tight")
            .queue_limit_per_key(0)
            .on_reject(policy);
        let executor = metrics::with_local_recorder(&seen, || builder.build().unwrap());
        let door = Door::closed();
        executor.submit("a", door.passes(()));
        executor.submit("a", async {}).await;
        assert!(executor.post("a", async {}).is_err());
    }
    assert_eq!(seen.get("keylane_executor_rejected_total tight"), 4.0);
}
