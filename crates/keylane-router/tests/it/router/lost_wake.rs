//! A lane that waits for a breaker is woken, also when the breaker closes in the very moment in
//! which it begins to wait.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::counters::Counters;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::PoolPlan;
use tokio::sync::Semaphore;
use tracing::field::{Field, Visit};
use tracing::span;

use super::test_source::{Fed, test_source};
use super::top::{quick_plan, until};

/// What the threads of the test tell each other.
#[derive(Default)]
struct Scene {
    /// The lane that will wait has passed its gate and comes to its call,
    late: AtomicBool,
    /// which takes the probe that is called now.
    probes: AtomicBool,
    /// The probe may end,
    end: OnceLock<Arc<Semaphore>>,
    /// and has been told to.
    ended: AtomicBool,
    counters: OnceLock<Arc<Counters>>,
}

/// Waits on this thread; ten seconds are for ever.
fn wait(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the attempt of the pool `late` before its call, and again when its turn is over and its
/// lane does not know it yet.
#[derive(Clone)]
struct Between(Arc<Scene>);

const LATE: u64 = 2;

struct IsLate(bool);

impl Visit for IsLate {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0 |= field.name() == "pool" && value == "late";
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl tracing::Subscriber for Between {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "attempt"
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut late = IsLate(false);
        span.record(&mut late);
        if !late.0 {
            return span::Id::from_u64(1);
        }
        self.0.late.store(true, Ordering::SeqCst);
        wait(|| self.0.probes.load(Ordering::SeqCst));
        span::Id::from_u64(LATE)
    }

    fn exit(&self, span: &span::Id) {
        if span.into_u64() == LATE && !self.0.ended.swap(true, Ordering::SeqCst) {
            let end = self.0.end.get().unwrap().clone();
            // From a thread that is no worker: this one would keep for itself what it wakes.
            let end = std::thread::spawn(move || end.add_permits(1));
            end.join().unwrap();
            wait(|| self.0.counters.get().unwrap().attempts_delivered.get() > 0);
        }
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
}

/// One origin: opens its breaker with the first message, and probes it with the second.
struct Target(Arc<Scene>);

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, message: &'a Message, _: &'a Attempt) -> Outcome {
        match &*message.id {
            "opens" => Outcome::Refused(Reason {
                class: "status-503".into(),
                status: Some(503),
                breaker_failure: true,
                ..Reason::default()
            }),
            "probes" => {
                self.0.probes.store(true, Ordering::SeqCst);
                let end = self.0.end.get().unwrap().clone();
                end.acquire().await.unwrap().forget();
                Outcome::Delivered
            }
            _ => Outcome::Delivered,
        }
    }

    fn origin(&self, _: &str) -> Option<Arc<str>> {
        Some("o".into())
    }
}

#[test]
fn a_breaker_that_closes_while_a_lane_begins_to_wait_for_it_wakes_that_lane() {
    let scene = Arc::new(Scene::default());
    scene.end.set(Arc::new(Semaphore::new(0))).unwrap();
    let between = scene.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .on_thread_start(move || {
            let here = keylane_router::conformance::listen(Between(between.clone()));
            // As long as the thread is.
            std::mem::forget(here);
        })
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut plan = quick_plan();
        plan.breaker.failures = 0.5;
        plan.breaker.window = NonZeroUsize::MIN;
        plan.breaker.min_lanes = NonZeroUsize::MIN;
        plan.breaker.open = Duration::from_millis(1);
        plan.breaker.probes = NonZeroUsize::MIN;
        plan.pools.insert("late".into(), PoolPlan::default());
        let (source, feeder) = test_source("t");
        let router = Router::builder()
            .plan(plan)
            .store(MemoryStore::default())
            .dispatch(Target(scene.clone()))
            .source("t", source)
            .start()
            .await
            .unwrap();
        let counters = router.counters().of(&"t".into(), &"default".into());
        scene.counters.set(counters).unwrap();
        let fed = |number, id, pool| Fed {
            id: number,
            key: Some(id),
            body: format!(r#"{{"id":"{id}","poolCode":"{pool}","mediationTarget":"http://o/"}}"#),
        };
        feeder.feed(vec![fed(1, "opens", "default")]);
        feeder.settled(1).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        feeder.feed(vec![fed(2, "waits", "late")]);
        until("it has passed its gate", || {
            scene.late.load(Ordering::SeqCst)
        })
        .await;
        feeder.feed(vec![fed(3, "probes", "default")]);
        until("both are delivered", || feeder.all_settled().len() == 3).await;
        assert!(scene.ended.load(Ordering::SeqCst), "it did not come so far");
        router.stop(Duration::from_secs(1)).await;
    });
}
