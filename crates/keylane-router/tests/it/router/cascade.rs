//! FC-1 … FC-3: what goes back with a head that fails for good. R5.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::{HttpDispatch, HttpOptions, handler_fn};
use keylane_router::embedded::{Db, Options};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Cascade, Plan};
use keylane_router::testing::{Answer, Request, Target};
use tokio::sync::Semaphore;

use super::test_source::{Fed, Settled, test_source};
use super::top::{Gated, Top, as_the_original, body, until, with_patience};

/// Fails the first request that `which` means, and no other.
fn once(which: impl Fn(&Request) -> bool, answer: Answer) -> impl Fn(&Request) -> Answer {
    let done = AtomicBool::new(false);
    move |request| {
        if which(request) && !done.swap(true, Ordering::SeqCst) {
            return answer.clone();
        }
        Answer::ok()
    }
}

#[tokio::test]
async fn fc_1_a_failed_head_goes_back_with_what_is_behind_it_uncalled() {
    let second = |request: &Request| request.key == "g" && request.number == Some(2);
    let top = Top::new(as_the_original(), once(second, Answer::status(500))).await;
    top.publish_all(&[("g", 1), ("other", 1), ("g", 2), ("g", 3), ("other", 2)])
        .await;
    top.drained().await;
    assert_eq!(top.starts("g"), [1, 2, 2, 3]);
    assert_eq!(top.starts("other"), [1, 2]);
    let counters = top.counters();
    assert_eq!(counters.returned.get(), 2);
    assert_eq!(counters.delivered.get(), 5);
    assert!(top.is_green());
}

#[tokio::test]
async fn fc_2_a_time_out_in_the_middle_returns_three_of_five_and_leaves_nothing_behind() {
    let third = |request: &Request| request.number == Some(3);
    let top = Top::new(as_the_original(), once(third, Answer::Hang)).await;
    top.publish_all(&[("g", 1), ("g", 2), ("g", 3), ("g", 4), ("g", 5)])
        .await;
    top.drained().await;
    assert_eq!(top.starts("g"), [1, 2, 3, 3, 4, 5]);
    assert_eq!(top.counters().returned.get(), 3);
    top.router.all_idle().await;
    let pools = top.router.pools();
    assert!(
        pools
            .iter()
            .all(|pool| pool.lanes + pool.queued + pool.in_flight == 0),
        "{pools:?}"
    );
}

/// A router on the test source whose first message fails once the second batch has arrived.
async fn two_batches(plan: Plan) -> Vec<Settled> {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    let (source, feeder) = test_source("t");
    let go = Arc::new(Semaphore::new(0));
    let target = Target::start(Gated {
        go: go.clone(),
        answer: |request: &Request| match request.path.as_str() {
            "/1" => (Answer::status(500), true),
            _ => (Answer::ok(), false),
        },
    });
    let target = target.await;
    let router = Router::builder()
        .plan(with_patience(plan))
        .store(db.store())
        .dispatch(HttpDispatch::new(HttpOptions::default()))
        .source("t", source.returning())
        .start()
        .await
        .unwrap();
    let fed = |id: u64| Fed {
        id,
        key: Some("g"),
        body: body(&target.url(&format!("/{id}")), &id.to_string()),
    };
    feeder.feed(vec![fed(1), fed(2)]);
    feeder.feed(vec![fed(3)]);
    // Both batches are in the lane before the head fails.
    until("it has gone on", || router.pools()[0].queued >= 2).await;
    go.add_permits(1);
    let settled = feeder.settled(3).await;
    router.stop(Duration::from_secs(1)).await;
    settled
}

#[tokio::test]
async fn fc_3_with_cascade_batch_a_failure_does_not_touch_the_next_batch() {
    let mut plan = as_the_original();
    plan.pools.get_mut("default").unwrap().cascade = Cascade::Batch;
    let settled = two_batches(plan).await;
    let ids: Vec<(bool, u64)> = settled.iter().map(what).collect();
    assert_eq!(ids, [(false, 1), (false, 2), (true, 3)]);
}

#[tokio::test]
async fn by_default_everything_held_behind_the_head_goes_back_head_first() {
    let settled = two_batches(as_the_original()).await;
    let ids: Vec<(bool, u64)> = settled.iter().map(what).collect();
    assert_eq!(ids, [(false, 1), (false, 2), (false, 3)]);
}

/// Whether it was acked, and which message.
fn what(settled: &Settled) -> (bool, u64) {
    match settled {
        Settled::Acked(id, _) => (true, *id),
        Settled::Returned(id, _) => (false, *id),
    }
}

/// The second of the key is put into its lane after the first has failed and gone back: what lies
/// between them in the batch waits for bytes that the first gives back.
#[tokio::test]
async fn r5_what_comes_behind_a_head_that_went_back_in_one_batch_goes_back_too() {
    let mut plan = as_the_original();
    plan.pools.get_mut("default").unwrap().byte_budget = 2000;
    let (source, feeder) = test_source("t");
    let dispatch = handler_fn(move |message| async move {
        match &*message.id {
            "1" => Outcome::Failed(Reason::default()),
            _ => Outcome::Delivered,
        }
    });
    let router = Router::builder()
        .plan(plan)
        .store(keylane_router::conformance::MemoryStore::default())
        .dispatch(dispatch)
        .source("t", source.returning())
        .start()
        .await
        .unwrap();
    let fed = |id: u64, key, payload: usize| Fed {
        id,
        key: Some(key),
        body: serde_json::json!({
            "id": id.to_string(),
            "mediationType": "HTTP",
            "mediationTarget": "http://127.0.0.1:1/",
            "payload": "x".repeat(payload),
        })
        .to_string(),
    };
    feeder.feed(vec![
        fed(1, "g", 500),
        fed(9, "large", 1700),
        fed(2, "g", 10),
    ]);
    let settled = feeder.settled(3).await;
    let mut ids: Vec<(bool, u64)> = settled.iter().map(what).collect();
    assert_eq!(ids.remove(0), (false, 1));
    ids.sort_unstable();
    assert_eq!(ids, [(false, 2), (true, 9)]);
    router.stop(Duration::from_secs(1)).await;
}
