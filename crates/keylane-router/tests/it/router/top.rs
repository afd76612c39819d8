//! A router on a fresh embedded queue, with a recording target in front of it.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::counters::Counters;
use keylane_router::dispatch::{HttpDispatch, HttpOptions};
use keylane_router::embedded::{Db, NewMessage, Options};
use keylane_router::history::{self, By, Event, EventKind, Recorder};
use keylane_router::message::Key;
use keylane_router::plan::{Keyless, OnExhausted, Plan, PoolPlan, SourcePlan};
use keylane_router::testing::{Answer, Behaviour, Request, Target};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Everything of one test; the folder goes with it.
pub(crate) struct Top {
    _folder: tempfile::TempDir,
    pub(crate) db: Db,
    pub(crate) router: Router,
    pub(crate) history: Arc<Recorder>,
    pub(crate) target: Target<SharedRecorder>,
}

/// The one history that producer and target write.
#[derive(Clone)]
pub(crate) struct SharedRecorder(pub(crate) Arc<Recorder>);

impl keylane_router::testing::Recorder for SharedRecorder {
    fn record(
        &self,
        event: keylane_router::testing::Event,
        request: &keylane_router::testing::Request,
    ) {
        keylane_router::testing::Recorder::record(&*self.0, event, request);
    }
}

/// A plan whose waits are short, so that tests need not be long.
pub(crate) fn quick_plan() -> Plan {
    let mut plan = Plan::default();
    let mut pool = PoolPlan::default();
    pool.retry.initial = Duration::from_millis(5);
    pool.retry.max = Duration::from_millis(40);
    pool.retry.max_attempts = NonZeroUsize::new(3).unwrap();
    pool.return_delay = Duration::from_millis(10);
    pool.timeout.first_byte = Duration::from_millis(300);
    pool.timeout.total = Duration::from_millis(500);
    plan.breaker.failures = 0.0;
    plan.pools.insert("default".into(), pool);
    plan
}

/// As that, with a target that may take its time.
pub(crate) fn with_patience(mut plan: Plan) -> Plan {
    let pool = plan.pools.get_mut("default").unwrap();
    pool.timeout.first_byte = Duration::from_secs(60);
    pool.timeout.total = Duration::from_secs(60);
    plan
}

/// A target that answers some requests only when they are let through.
pub(crate) struct Gated<F> {
    pub(crate) go: Arc<Semaphore>,
    /// The answer, and whether it waits.
    pub(crate) answer: F,
}

impl<F: Fn(&Request) -> (Answer, bool) + Send + Sync + 'static> Behaviour for Gated<F> {
    fn answer(&self, request: &Request) -> Answer {
        match (self.answer)(request) {
            (answer, true) => answer.after(Duration::ZERO),
            (answer, false) => answer,
        }
    }

    fn wait(&self, _: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let go = self.go.clone();
        Box::pin(async move { go.acquire().await.unwrap().forget() })
    }
}

/// The original's rule: fail once, give back.
pub(crate) fn as_the_original() -> Plan {
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.max_attempts = NonZeroUsize::MIN;
    pool.on_exhausted = OnExhausted::Return;
    plan
}

impl Top {
    pub(crate) async fn new(plan: Plan, behaviour: impl Behaviour) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Options::default()).unwrap();
        let history = Arc::new(Recorder::in_memory());
        let target = Target::start_with(behaviour, SharedRecorder(history.clone())).await;
        let router = start(&db, plan, history.clone()).await;
        Self {
            _folder: folder,
            db,
            router,
            history,
            target,
        }
    }

    /// Publishes message `n` of a key, with its line in the history.
    pub(crate) async fn publish(&self, key: &str, n: u64) {
        self.publish_all(&[(key, n)]).await;
    }

    pub(crate) async fn publish_all(&self, messages: &[(&str, u64)]) {
        let url = self.target.url("/");
        for (key, n) in messages {
            let line = Event::of(*key, *n, EventKind::Publish, By::Producer);
            self.history.record(line).unwrap();
        }
        let messages = messages
            .iter()
            .map(|(key, n)| message(&url, key, *n))
            .collect();
        self.db.publish("default", messages, true).await.unwrap();
    }

    /// Waits until the queue holds nothing.
    pub(crate) async fn drained(&self) {
        until("the queue is empty", || {
            self.db.queues().iter().all(|queue| queue.depth == 0)
        })
        .await;
    }

    /// The numbers of a key's attempts, in the order in which the target saw them start.
    pub(crate) fn starts(&self, key: &str) -> Vec<u64> {
        let events = self.history.events();
        let starts = events.iter().filter(|event| event.kind == EventKind::Start);
        starts
            .filter(|event| event.key.as_deref() == Some(key))
            .filter_map(|event| event.n)
            .collect()
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.router
            .counters()
            .of(&"default".into(), &"default".into())
    }

    pub(crate) fn is_green(&self) -> bool {
        let report = self.check(&history::Options::default());
        assert!(report.is_green(), "{report:?}");
        true
    }

    pub(crate) fn check(&self, options: &history::Options) -> history::Report {
        let mut history = history::History::default();
        for event in self.history.events() {
            history.push(&event);
        }
        history::check(history, options)
    }
}

/// Answers 500 while it is ill.
pub(crate) fn ill_while(ill: &Arc<AtomicBool>) -> impl Fn(&Request) -> Answer + use<> {
    let ill = ill.clone();
    move |_| match ill.load(Ordering::SeqCst) {
        true => Answer::status(500),
        false => Answer::ok(),
    }
}

/// Waits until something is so that nobody tells of. A minute is for ever here.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .is_err()
    {
        panic!("never came to pass: {what}");
    }
}

pub(crate) async fn start(db: &Db, plan: Plan, history: Arc<Recorder>) -> Router {
    let source = db
        .source("default", "default", Keyless::Serial)
        .await
        .unwrap();
    let mut plan = plan;
    plan.sources
        .insert("default".into(), SourcePlan::embedded("default"));
    Router::builder()
        .plan(plan)
        .store(db.store())
        .history(history)
        .dispatch(HttpDispatch::new(HttpOptions::default()))
        .source("default", source)
        .start()
        .await
        .unwrap()
}

/// An envelope without a payload.
pub(crate) fn body(url: &str, id: &str) -> String {
    format!(r#"{{"id":"{id}","mediationTarget":"{url}"}}"#)
}

pub(crate) fn message(url: &str, key: &str, n: u64) -> NewMessage {
    let body = format!(
        r#"{{"id":"{key}-{n}","mediationTarget":"{url}","messageGroupId":"{key}","payload":{{"k":"{key}","n":{n}}}}}"#
    );
    NewMessage::new(format!("{key}-{n}"), Some(Key::from(key)), body)
}
