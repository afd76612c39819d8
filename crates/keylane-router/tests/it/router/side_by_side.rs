//! R5, R8: with several of a key at once, it need not be the head that wants to go.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Cascade, OnExhausted, Plan};
use keylane_router::store::{LaneName, Store};

use tokio::sync::Semaphore;

use super::test_source::{Fed, Feeder, Settled, test_source};
use super::top::{as_the_original, body, until};

/// Two of a key at once; the first says "not yet" for an hour, then the second fails for good.
struct Rig {
    router: Router,
    feeder: Feeder,
    store: MemoryStore,
    calls: Arc<Mutex<HashMap<String, usize>>>,
    fail: Arc<Semaphore>,
}

async fn rig(change: impl FnOnce(&mut Plan)) -> Rig {
    let (source, feeder) = test_source("t");
    let calls: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let noted = calls.clone();
    let (both_run, fail) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let may_fail = fail.clone();
    let dispatch = handler_fn(move |message| {
        *noted
            .lock()
            .unwrap()
            .entry(message.id.to_string())
            .or_default() += 1;
        let (both_run, fail) = (both_run.clone(), may_fail.clone());
        async move {
            if &*message.id == "1" {
                both_run.acquire().await.unwrap().forget();
                let after = Some(Duration::from_secs(3600));
                return Outcome::NotYet { after };
            }
            both_run.add_permits(1);
            fail.acquire().await.unwrap().forget();
            Outcome::Failed(Reason::default())
        }
    });
    let mut plan = as_the_original();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.lane_concurrency = NonZeroUsize::new(2).unwrap();
    change(&mut plan);
    let store = MemoryStore::default();
    let router = Router::builder()
        .plan(plan)
        .store(store.clone())
        .dispatch(dispatch)
        .source("t", source.returning())
        .start()
        .await
        .unwrap();
    Rig {
        router,
        feeder,
        store,
        calls,
        fail,
    }
}

impl Rig {
    /// Both in batches of their own; the second fails when the first is held.
    async fn fail_the_second(&self) {
        self.feeder.feed(vec![fed(1)]);
        self.feeder.feed(vec![fed(2)]);
        until("both were called", || self.calls.lock().unwrap().len() == 2).await;
        until("the first is held", || {
            let pool = &self.router.pools()[0];
            (pool.queued, pool.in_flight) == (1, 1)
        })
        .await;
        // Twice: who spins would do it again at once.
        self.fail.add_permits(2);
    }
}

fn fed<'a>(id: u64) -> Fed<'a> {
    Fed {
        id,
        key: Some("k"),
        body: body("http://unused/", &id.to_string()),
    }
}

fn identity(id: u64) -> Identity {
    Identity {
        source: "t".into(),
        id: BrokerId::Sequence(id),
    }
}

#[tokio::test]
async fn one_behind_a_held_head_that_goes_back_begins_a_new_round_after_a_delay() {
    let rig = rig(|_| {}).await;
    rig.fail_the_second().await;
    let settled = rig.feeder.settled(2).await;
    assert_eq!(settled, [Settled::Returned(1, 1), Settled::Returned(2, 2)]);
    let delay = as_the_original().pools["default"].return_delay;
    assert_eq!(*rig.feeder.settler.delays.lock().unwrap(), [delay, delay]);
    assert_eq!(rig.store.stay(&identity(2)).round, 1);
    rig.router.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn with_cascade_batch_what_came_with_the_one_that_fails_goes_back() {
    let batch = |plan: &mut Plan| {
        let pool = plan.pools.get_mut("default").unwrap();
        pool.cascade = Cascade::Batch;
    };
    let rig = rig(batch).await;
    rig.fail_the_second().await;
    let settled = rig.feeder.settled(1).await;
    assert_eq!(settled, [Settled::Returned(2, 2)]);
    rig.router.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn one_behind_a_held_head_that_fails_for_good_parks_its_key() {
    let park = |plan: &mut Plan| {
        let pool = plan.pools.get_mut("default").unwrap();
        pool.on_exhausted = OnExhausted::Park;
    };
    let rig = rig(park).await;
    rig.fail_the_second().await;
    let lane = LaneName::keyed("t", "default", "k");
    until("it is parked", || {
        let parked = rig.store.parked_lane(&lane);
        parked.is_some_and(|lane| lane.messages == 2)
    })
    .await;
    assert_eq!(rig.calls.lock().unwrap()["2"], 1);
    rig.feeder.settled(2).await;
    rig.router.stop(Duration::from_secs(1)).await;
}
