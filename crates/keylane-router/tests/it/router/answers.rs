//! What is kept of the answers of a target from one to the next, and what is logged of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnRefused, Plan};
use keylane_router::store::{LaneName, Store, Stored};
use keylane_router::{By, Router};
use tokio::time::Instant;

use super::log::Log;
use super::test_source::{Fed, Feeder, TestSource, test_source};
use super::top::{as_the_original, body, quick_plan, until};

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

#[tokio::test(start_paused = true)]
async fn patience_ends_also_with_a_head_that_leaves_the_memory_between_its_attempts() {
    let hold = Duration::from_secs(10);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let dispatch = handler_fn(move |message| {
        let busy = message.id.starts_with("bad");
        counted.fetch_add(usize::from(busy), Ordering::SeqCst);
        async move {
            match busy {
                true => Outcome::Busy {
                    after: Some(hold),
                    reason: Reason::default(),
                },
                false => Outcome::Delivered,
            }
        }
    });
    let mut plan = quick_plan();
    plan.stall_after = Duration::ZERO;
    let pool = plan.pools.get_mut("default").unwrap();
    pool.patience = hold * 3;
    pool.byte_budget = 200;
    let (source, feeder) = test_source("t");
    let store = MemoryStore::default();
    let router = Router::builder()
        .plan(plan)
        .store(store.clone())
        .dispatch(dispatch)
        .source("t", source)
        .start()
        .await
        .unwrap();
    // Two of them are more than the budget.
    let large = |name: &str| body("http://unused/", &format!("{name}-{}", "x".repeat(100)));
    let lane = LaneName::keyed("t", "default", "bad");
    let identity = Identity {
        source: "t".into(),
        id: BrokerId::Sequence(1),
    };
    let row = Stored {
        identity: identity.clone(),
        lane: lane.clone(),
        body: large("bad").into(),
        headers: Vec::new(),
        position: None,
    };
    let parked = store.park(lane.clone(), "test".to_owned(), vec![row]);
    parked.await.unwrap();
    let by = By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    router.replay(lane, by).await.unwrap();
    for round in 1..=6 {
        until("it was called", || calls.load(Ordering::SeqCst) >= round).await;
        feeder.feed(vec![Fed {
            id: 10 + round as u64,
            key: Some("good"),
            body: large("good"),
        }]);
        // It has room only when the other has left.
        feeder.settled(round).await;
    }
    assert!(store.stay(&identity).failed > 0);
}
