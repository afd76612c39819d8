//! R1, R13, R15: what an operator skips leaves its lane when it is on disk, and not before.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::dispatch::handler_fn;
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::Outcome;
use keylane_router::plan::SourcePlan;
use keylane_router::store::{LaneName, Store};
use keylane_router::{By, Router, VerbError};
use tokio::sync::Semaphore;

use super::odd_store::{Does, OddStore};
use super::test_source::{Fed, Feeder, Settled, test_source};
use super::top::{body, quick_plan, until};

/// Messages 1 to 3 of one key. The first says "not yet" for an hour, or, with `hangs`, runs until
/// it may end.
struct Rig {
    router: Router,
    feeder: Feeder,
    store: OddStore,
    calls: Arc<Mutex<Vec<String>>>,
    /// What becomes of dead letters: 0 fails, 1 goes well; both wait for the door.
    letters: Arc<AtomicU8>,
    door: Arc<Semaphore>,
    hang: Arc<Semaphore>,
}

async fn rig(hangs: bool) -> Rig {
    let (source, feeder) = test_source("t");
    let (letters, door) = (Arc::new(AtomicU8::new(1)), Arc::new(Semaphore::new(0)));
    let (by, gate) = (letters.clone(), door.clone());
    let store = OddStore::new(move |call| match call {
        "dead_letter" => {
            let then = match by.load(Ordering::SeqCst) {
                0 => Does::Fails,
                _ => Does::Well,
            };
            Does::Waits(gate.clone(), Box::new(then))
        }
        _ => Does::Well,
    });
    let calls = Arc::new(Mutex::new(Vec::new()));
    let hang = Arc::new(Semaphore::new(0));
    let (noted, until_then) = (calls.clone(), hang.clone());
    let dispatch = handler_fn(move |message| {
        let (noted, hang) = (noted.clone(), until_then.clone());
        async move {
            noted.lock().unwrap().push(message.id.to_string());
            if &*message.id != "1" {
                return Outcome::Delivered;
            }
            if hangs {
                hang.acquire().await.unwrap().forget();
            }
            Outcome::NotYet {
                after: Some(Duration::from_secs(3600)),
            }
        }
    });
    let mut plan = quick_plan();
    plan.stall_after = Duration::ZERO;
    let router = Router::builder()
        .plan(plan)
        .store(store.clone())
        .dispatch(dispatch)
        .source("t", source)
        .start()
        .await
        .unwrap();
    let fed = |id: u64| Fed {
        id,
        key: Some("k"),
        body: body("http://unused/", &id.to_string()),
    };
    feeder.feed((1..=3).map(fed).collect());
    until("the first was called", || !calls.lock().unwrap().is_empty()).await;
    if !hangs {
        until("it is held", || router.pools()[0].in_flight == 0).await;
    }
    until("the others are there", || {
        let pool = &router.pools()[0];
        pool.queued + pool.in_flight == 3
    })
    .await;
    Rig {
        router,
        feeder,
        store,
        calls,
        letters,
        door,
        hang,
    }
}

impl Rig {
    async fn skip(&self, id: u64) -> Result<(), VerbError> {
        self.router.skip(lane(), identity(id), by()).await
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    async fn audited(&self) -> Vec<String> {
        let log = self.store.inner.audit_log(10).await.unwrap();
        log.into_iter().map(|entry| entry.verb).collect()
    }
}

fn lane() -> LaneName {
    LaneName::keyed("t", "default", "k")
}

fn identity(id: u64) -> Identity {
    Identity {
        source: "t".into(),
        id: BrokerId::Sequence(id),
    }
}

fn by() -> By {
    By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    }
}

const MOMENT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn nothing_behind_a_skipped_head_starts_before_it_is_on_disk() {
    let rig = rig(false).await;
    rig.letters.store(0, Ordering::SeqCst);
    let open = async {
        tokio::time::sleep(MOMENT).await;
        assert_eq!(rig.calls(), ["1"], "the letter is not on disk yet");
        rig.door.add_permits(1);
    };
    let (skipped, ()) = tokio::join!(rig.skip(1), open);
    assert!(matches!(skipped, Err(VerbError::Store(_))), "{skipped:?}");
    tokio::time::sleep(MOMENT).await;
    assert_eq!(rig.calls(), ["1"], "it was not skipped, and is held still");
    assert_eq!(rig.feeder.all_settled(), []);
    rig.letters.store(1, Ordering::SeqCst);
    rig.door.add_permits(1);
    rig.skip(1).await.unwrap();
    assert_eq!(rig.store.inner.dead_letter_count().await.unwrap(), 1);
    let settled = rig.feeder.settled(3).await;
    assert_eq!(settled[0], Settled::Acked(1, 1));
    assert_eq!(rig.calls(), ["1", "2", "3"]);
    // Who tried is written down first.
    assert_eq!(rig.audited().await, ["skip", "skip"]);
}

#[tokio::test(start_paused = true)]
async fn a_skip_that_nobody_waits_for_any_more_is_done_all_the_same() {
    let rig = rig(false).await;
    let given_up = tokio::time::timeout(MOMENT, rig.skip(1)).await;
    assert!(given_up.is_err());
    rig.door.add_permits(1);
    let settled = rig.feeder.settled(3).await;
    assert_eq!(settled[0], Settled::Acked(1, 1));
    assert_eq!(rig.calls(), ["1", "2", "3"]);
    assert_eq!(rig.audited().await, ["skip"]);
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_paused_key_can_be_skipped() {
    let rig = rig(false).await;
    rig.door.add_permits(1);
    rig.router.pause(lane(), by()).await.unwrap();
    rig.skip(1).await.unwrap();
    tokio::time::sleep(MOMENT).await;
    assert_eq!(rig.feeder.all_settled(), [Settled::Acked(1, 1)]);
    assert_eq!(rig.calls(), ["1"], "it is paused");
    rig.router.resume(lane(), by()).await.unwrap();
    rig.feeder.settled(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_skip_means_the_message_that_is_first_now_or_nothing() {
    let rig = rig(true).await;
    // The first runs.
    assert_eq!(rig.skip(99).await, Err(VerbError::Conflict));
    assert_eq!(rig.skip(2).await, Err(VerbError::Conflict));
    assert_eq!(rig.skip(3).await, Err(VerbError::Conflict));
    assert!(rig.audited().await.is_empty());
    rig.skip(1).await.unwrap();
    rig.door.add_permits(1);
    rig.hang.add_permits(1);
    let settled = rig.feeder.settled(3).await;
    assert_eq!(settled[0], Settled::Acked(1, 1));
    assert_eq!(rig.store.inner.dead_letter_count().await.unwrap(), 1);
    assert_eq!(rig.calls(), ["1", "2", "3"]);
}

/// It goes between its lane and its attempts all the time, and is first wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_on_its_way_between_lane_and_attempt_can_be_skipped() {
    const MESSAGES: u64 = 400;
    let (source, feeder) = test_source("t");
    let dispatch = handler_fn(|_| async {
        Outcome::NotYet {
            after: Some(Duration::from_micros(50)),
        }
    });
    let mut plan = quick_plan();
    plan.stall_after = Duration::ZERO;
    let window = NonZeroUsize::new(4000).unwrap();
    let wide = SourcePlan {
        window,
        ..SourcePlan::custom()
    };
    plan.sources.insert("t".into(), wide);
    let builder = Router::builder()
        .plan(plan)
        .store(OddStore::new(|_| Does::Well));
    let builder = builder.dispatch(dispatch).source("t", source);
    let router = builder.start().await.unwrap();
    let fed = |id: u64| Fed {
        id,
        key: Some("k"),
        body: body("http://unused/", &id.to_string()),
    };
    feeder.feed((1..=MESSAGES).map(fed).collect());
    until("all are there", || {
        let pool = &router.pools()[0];
        pool.queued + pool.in_flight == usize::try_from(MESSAGES).unwrap()
    })
    .await;
    for id in 1..=MESSAGES {
        let skipped = router.skip(lane(), identity(id), by()).await;
        skipped.unwrap_or_else(|error| panic!("{id}: {error}"));
        feeder.settled(usize::try_from(id).unwrap()).await;
    }
    router.stop(Duration::from_secs(5)).await;
}
