//! What is kept of the answers of a target from one to the next, and what is logged of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnRefused, Plan};
use tokio::time::Instant;

use super::log::Log;
use super::test_source::{Fed, Feeder, TestSource, test_source};
use super::top::{as_the_original, body, quick_plan};

async fn router(
    plan: Plan,
    source: TestSource,
    answer: impl Fn() -> Outcome + Send + Sync + 'static,
) -> Router {
    let dispatch = handler_fn(move |_| {
        let outcome = answer();
        async move { outcome }
    });
    Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .source("t", source)
        .start()
        .await
        .unwrap()
}

fn feed(feeder: &Feeder) {
    feeder.feed(vec![Fed {
        id: 1,
        key: Some("k"),
        body: body("http://unused/", "1"),
    }]);
}

#[tokio::test(start_paused = true)]
async fn waits_double_only_while_the_same_answer_repeats() {
    let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = calls.clone();
    let answer = move || {
        let mut noted = noted.lock().unwrap();
        noted.push(Instant::now());
        let after = Some(Duration::ZERO);
        match noted.len() {
            1..=3 => Outcome::Busy {
                after,
                reason: Reason::default(),
            },
            4..=5 => Outcome::NotYet { after },
            _ => Outcome::Delivered,
        }
    };
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.initial = Duration::from_secs(1);
    let (source, feeder) = test_source("t");
    let _router = router(plan, source, answer).await;
    feed(&feeder);
    feeder.settled(1).await;
    let calls = calls.lock().unwrap();
    let gaps = calls.windows(2).map(|pair| (pair[1] - pair[0]).as_secs());
    assert_eq!(gaps.collect::<Vec<_>>(), [1, 2, 4, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_log_names_the_slot_of_an_attempt() {
    let (log, _here) = Log::start();
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().on_refused = OnRefused::Drop;
    let (source, feeder) = test_source("t");
    let _router = router(plan, source, || Outcome::Refused(Reason::default())).await;
    feed(&feeder);
    feeder.settled(1).await;
    let dropped = log.with("dropped by policy");
    assert!(dropped[0].contains("slot=0 "), "{dropped:?}");
}

#[tokio::test(start_paused = true)]
async fn fc_3_each_message_that_goes_back_is_logged_at_debug() {
    let (log, _here) = Log::start_at(tracing::Level::DEBUG);
    let (source, feeder) = test_source("t");
    let failed = || Outcome::Failed(Reason::default());
    let _router = router(as_the_original(), source.returning(), failed).await;
    feed(&feeder);
    feeder.settled(1).await;
    assert_eq!(log.with("1 go back to the source").len(), 1);
    let one = log.with("goes back");
    assert_eq!(one.len(), 1, "{one:?}");
    assert!(one[0].contains("identity="), "{one:?}");
}
