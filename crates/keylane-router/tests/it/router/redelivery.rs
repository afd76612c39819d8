//! FC-11 … FC-13: the same message again, equal ids, lost acks. R3, R4.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::{HttpDispatch, HttpOptions};
use keylane_router::embedded::{Db, NewMessage, Options};
use keylane_router::plan::Keyless;
use keylane_router::testing::{Answer, Request, Target, fixed};
use tokio::sync::Semaphore;

use super::test_source::{Fed, Feeder, Settled, test_source};
use super::top::{Gated, Top, body, quick_plan, until, with_patience};

/// A router on the test source, with a target that answers when it is told to.
struct Told {
    _folder: tempfile::TempDir,
    router: Router,
    feeder: Feeder,
    target: Target,
    go: Arc<Semaphore>,
}

async fn told() -> Told {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    let (source, feeder) = test_source("t");
    let go = Arc::new(Semaphore::new(0));
    let target = Target::start(Gated {
        go: go.clone(),
        answer: |_: &Request| (Answer::ok(), true),
    });
    let target = target.await;
    let builder = Router::builder()
        .plan(with_patience(quick_plan()))
        .store(db.store())
        .dispatch(HttpDispatch::new(HttpOptions::default()));
    let router = builder.source("t", source).start().await.unwrap();
    Told {
        _folder: folder,
        router,
        feeder,
        target,
        go,
    }
}

impl Told {
    fn calls(&self) -> usize {
        self.target.recorder().requests().len()
    }

    fn fed(&self, id: u64) -> Fed<'static> {
        Fed {
            id,
            key: Some("g"),
            body: body(&self.target.url("/"), &id.to_string()),
        }
    }

    fn feed(&self, id: u64) -> u64 {
        self.feeder.feed(vec![self.fed(id)])
    }
}

async fn redelivered(router: &Router, count: u64) {
    let counters = router.counters().of(&"t".into(), &"default".into());
    until("it has gone on", || counters.redelivered.get() >= count).await;
}

#[tokio::test]
async fn fc_11_a_message_redelivered_while_it_runs_is_called_once_and_settled_by_its_newest_receipt()
 {
    let top = told().await;
    top.feed(1);
    until("it has gone on", || top.calls() >= 1).await;
    let newest = top.feed(1);
    redelivered(&top.router, 1).await;
    top.go.add_permits(10);
    assert_eq!(top.feeder.settled(1).await, [Settled::Acked(1, newest)]);
    assert_eq!(top.calls(), 1);
    top.router.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn fc_13_an_ack_that_fails_is_tried_again_and_the_message_is_not_called_again() {
    let top = told().await;
    top.feeder.settler.failing_acks.store(2, Ordering::SeqCst);
    top.go.add_permits(10);
    top.feed(1);
    until("it has gone on", || {
        top.feeder.settler.failing_acks.load(Ordering::SeqCst) != 2
    })
    .await;
    let newest = top.feed(1);
    assert_eq!(top.feeder.settled(1).await, [Settled::Acked(1, newest)]);
    assert_eq!(top.calls(), 1);
    assert!(
        top.router.problems().is_empty(),
        "{:?}",
        top.router.problems()
    );
}

#[tokio::test]
async fn r15_nothing_is_acked_at_a_stop_whose_predecessor_could_not_be() {
    let top = told().await;
    top.feeder.settler.never_acked.lock().unwrap().insert(1);
    top.go.add_permits(1);
    top.feeder.feed(vec![top.fed(1), top.fed(2)]);
    until("the first ack has failed", || {
        !top.router.problems().is_empty()
    })
    .await;
    top.go.add_permits(1);
    until("the second was delivered", || {
        top.go.available_permits() == 0 && top.calls() == 2
    })
    .await;
    top.router.stop(Duration::from_secs(1)).await;
    // What is left of the source's tasks ends by itself.
    until("the source is gone", || top.feeder.is_gone()).await;
    assert_eq!(top.feeder.settled(0).await, []);
}

#[tokio::test]
async fn fc_13_an_ack_lost_on_its_way_is_sent_again_without_a_second_call() {
    let top = told().await;
    top.go.add_permits(10);
    top.feed(1);
    top.feeder.settled(1).await;
    let again = top.feed(1);
    assert_eq!(top.feeder.settled(2).await[1], Settled::Acked(1, again));
    assert_eq!(top.calls(), 1);
}

#[tokio::test]
async fn fc_12_equal_body_ids_in_one_batch_are_two_messages() {
    let top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    let url = top.target.url("/");
    let message = |dedup: &str| NewMessage {
        dedup_id: Some(dedup.into()),
        ..NewMessage::new("same", Some("g".into()), body(&url, "same"))
    };
    top.db
        .publish("default", vec![message("a"), message("b")], true)
        .await
        .unwrap();
    top.drained().await;
    let counters = top.counters();
    assert_eq!(
        (counters.attempts_delivered.get(), counters.delivered.get()),
        (2, 2)
    );
}

#[tokio::test]
async fn fc_12_equal_body_ids_in_two_queues_are_two_messages() {
    let top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    let other = top
        .db
        .source("other", "other", Keyless::Serial)
        .await
        .unwrap();
    let plan = keylane_router::plan::SourcePlan::embedded("other");
    top.router.add_source("other", other, plan).await.unwrap();
    let url = top.target.url("/");
    for queue in ["default", "other"] {
        let message = NewMessage::new("same", Some("g".into()), body(&url, "same"));
        top.db.publish(queue, vec![message], true).await.unwrap();
    }
    top.drained().await;
    for source in ["default", "other"] {
        let counters = top.router.counters().of(&source.into(), &"default".into());
        assert_eq!(counters.delivered.get(), 1, "{source}");
    }
}

#[tokio::test]
async fn the_same_source_twice_is_an_error() {
    let top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    let again = top
        .db
        .source("default", "default", Keyless::Serial)
        .await
        .unwrap();
    let plan = keylane_router::plan::SourcePlan::embedded("default");
    let refused = top
        .router
        .add_source("default", again, plan)
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        keylane_router::StartError::SourceTwice("default".into())
    );
}

#[tokio::test]
async fn return_on_a_source_that_cannot_is_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    let (source, _feeder) = test_source("t");
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.on_exhausted = keylane_router::plan::OnExhausted::Return;
    let started = Router::builder()
        .plan(plan)
        .store(db.store())
        .source("t", source)
        .start()
        .await;
    let Err(error) = started else {
        panic!("started");
    };
    assert!(
        error
            .to_string()
            .contains("source `t` cannot take messages back"),
        "{error}"
    );
}

#[tokio::test]
async fn r15_acks_of_a_lane_are_sent_in_lane_order() {
    let top = told().await;
    top.go.add_permits(100);
    top.feeder.feed((1..=50).map(|id| top.fed(id)).collect());
    let settled = top.feeder.settled(50).await;
    let expected: Vec<Settled> = (1..=50).map(|id| Settled::Acked(id, id)).collect();
    assert_eq!(settled, expected);
}
