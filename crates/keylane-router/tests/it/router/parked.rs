//! What an operator does to a parked key costs no memory for its bodies.

use std::time::Duration;

use keylane_router::dispatch::handler_fn;
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::Outcome;
use keylane_router::store::{LaneName, Store, Stored};
use keylane_router::{By, Router};

use super::odd_store::{Does, OddStore};
use super::test_source::test_source;
use super::top::quick_plan;

#[tokio::test]
async fn a_parked_key_is_replayed_and_dropped_without_a_look_at_its_bodies() {
    let store = OddStore::new(|call| match call {
        "parked_rows" => Does::Fails,
        _ => Does::Well,
    });
    let (source, _feeder) = test_source("t");
    let router = Router::builder()
        .plan(quick_plan())
        .store(store.clone())
        .dispatch(handler_fn(|_| async { Outcome::Delivered }))
        .source("t", source)
        .start()
        .await
        .unwrap();
    let lane = |key: &str| LaneName::keyed("t", "default", key);
    let identity = |id| Identity {
        source: "t".into(),
        id: BrokerId::Sequence(id),
    };
    let message = |id, key: &str| Stored {
        identity: identity(id),
        lane: lane(key),
        body: vec![b'x'; 100].into(),
        headers: Vec::new(),
        position: None,
    };
    let by = || By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    for (key, first) in [("dropped", 1), ("replayed", 3)] {
        let messages = vec![message(first, key), message(first + 1, key)];
        let parked = store.inner.park(lane(key), "test".to_owned(), messages);
        parked.await.unwrap();
    }
    assert_eq!(router.drop_parked(lane("dropped"), by()).await, Ok(2));
    assert_eq!(store.inner.parked_lane(&lane("dropped")), None);
    router.replay(lane("replayed"), by()).await.unwrap();
    let replaying = store.inner.parked_lane(&lane("replayed"));
    assert!(replaying.is_some_and(|lane| lane.replaying));
    assert_eq!(store.stay(&identity(3)).round, 1);
    assert_eq!(store.stay(&identity(4)).round, 1);
    router.stop(Duration::from_secs(1)).await;
}
