//! FC-14: what stands still without a reason is told with its cause, once, and once more when it is
//! over; what waits by design is not. On the paused clock.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Dispatch, handler_fn};
use keylane_router::health::Trouble;
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Plan, PoolPlan, Rate, SourcePlan};
use keylane_router::store::LaneName;
use tokio::sync::Semaphore;

use super::test_source::{Fed, Feeder, test_source};
use super::top::{body, quick_plan, until};

const STALL: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);

struct Watched {
    router: Router,
    feeder: Feeder,
    /// Lets calls of keys that hang end.
    go: Arc<Semaphore>,
}

/// Calls of keys that begin with `hang` end when told to, those of `busy` are busy for an hour.
fn dispatch(go: &Arc<Semaphore>) -> impl Dispatch + use<> {
    let go = go.clone();
    handler_fn(move |message: Arc<Message>| {
        let go = go.clone();
        async move {
            let key = message.key.as_ref().map(ToString::to_string);
            let key = key.unwrap_or_default();
            if key.starts_with("hang") {
                go.acquire().await.unwrap().forget();
            }
            match key.starts_with("busy") {
                true => Outcome::Busy {
                    after: Some(HOUR),
                    reason: Reason::default(),
                },
                false => Outcome::Delivered,
            }
        }
    })
}

async fn watched(change: impl FnOnce(&mut Plan, &mut PoolPlan)) -> Watched {
    let mut plan = quick_plan();
    let mut pool = plan.pools["default"].clone();
    plan.stall_after = STALL;
    change(&mut plan, &mut pool);
    plan.pools.insert("default".into(), pool);
    let (source, feeder) = test_source("t");
    let go = Arc::new(Semaphore::new(0));
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch(&go))
        .source("t", source)
        .start()
        .await
        .unwrap();
    Watched { router, feeder, go }
}

impl Watched {
    fn feed(&self, key: &str, ids: impl IntoIterator<Item = u64>) {
        let fed = |id: u64| Fed {
            id,
            key: Some(key),
            body: body("http://127.0.0.1:1/", &id.to_string()),
        };
        self.feeder.feed(ids.into_iter().map(fed).collect());
    }

    fn stalls(&self) -> Vec<(Trouble, String)> {
        let problems = self.router.problems().into_iter();
        problems
            .map(|problem| (problem.trouble, problem.text))
            .collect()
    }

    fn stall(&self, trouble: &Trouble) -> Option<String> {
        let mut stalls = self.stalls().into_iter();
        stalls
            .find(|(known, _)| known == trouble)
            .map(|(_, text)| text)
    }

    async fn all_is_well(&self) {
        until("all is well", || self.stalls().is_empty()).await;
    }
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn key_stall() -> Trouble {
    Trouble::StalledKey("default".into())
}

fn pool_stall() -> Trouble {
    Trouble::StalledPool("default".into())
}

fn source_stall() -> Trouble {
    Trouble::StalledSource("t".into())
}

#[tokio::test(start_paused = true)]
async fn fc_14_a_key_whose_attempt_does_not_end_is_told_while_the_others_go_on() {
    let top = watched(|_, _| {}).await;
    top.feed("hang", [1, 2]);
    tokio::time::sleep(STALL - Duration::from_secs(1)).await;
    assert_eq!(top.stalls(), []);
    top.feed("other", [3]);
    top.feeder.settled(1).await;
    tokio::time::sleep(STALL).await;
    let text = top.stall(&key_stall()).expect("the key is stalled");
    for part in [
        "pool `default`",
        "key `hang`",
        "t:1",
        "its call has not ended",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(top.stall(&pool_stall()), None);
    assert_eq!(top.router.pools()[0].stalled, 1);
    top.go.add_permits(2);
    top.all_is_well().await;
}

#[tokio::test(start_paused = true)]
async fn fc_14_a_pool_in_which_nothing_is_finished_is_told_with_its_oldest_lane() {
    let top = watched(|_, pool| pool.concurrency = Some(one())).await;
    top.feed("hang", [1]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    top.feed("other", [2]);
    tokio::time::sleep(STALL * 2).await;
    let text = top.stall(&pool_stall()).expect("the pool is stalled");
    for part in [
        "pool `default`",
        "1 messages wait",
        "all 1 attempts",
        "key `hang`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    top.go.add_permits(1);
    top.all_is_well().await;
}

#[tokio::test(start_paused = true)]
async fn fc_14_a_source_whose_acks_are_not_answered_is_told() {
    let top = watched(|_, _| {}).await;
    top.feeder.settler.hanging.store(true, Ordering::SeqCst);
    top.feed("other", [1]);
    tokio::time::sleep(STALL * 2).await;
    let text = top.stall(&source_stall()).expect("the source is stalled");
    assert!(
        text.contains("1 acks or returns were not answered"),
        "{text}"
    );
    top.feeder.settler.hanging.store(false, Ordering::SeqCst);
    top.all_is_well().await;
}

#[tokio::test(start_paused = true)]
async fn fc_14_a_source_whose_window_is_full_of_what_hangs_is_told_why() {
    let window = SourcePlan {
        window: one(),
        ..SourcePlan::custom()
    };
    let top = watched(|plan, _| drop(plan.sources.insert("t".into(), window))).await;
    top.feed("hang", [1]);
    tokio::time::sleep(STALL * 2).await;
    let text = top.stall(&source_stall()).expect("the source is stalled");
    for part in ["its window is full", "key `hang`", "its call has not ended"] {
        assert!(text.contains(part), "{text}");
    }
    top.go.add_permits(1);
    top.all_is_well().await;
}

#[tokio::test(start_paused = true)]
async fn attempts_that_wait_for_settlements_are_told_with_that_cause() {
    let top = watched(|_, pool| pool.concurrency = Some(one())).await;
    top.feeder.settler.hanging.store(true, Ordering::SeqCst);
    for (id, key) in ["a", "b", "c", "d"].into_iter().enumerate() {
        top.feed(key, [id as u64]);
    }
    tokio::time::sleep(STALL * 2).await;
    let text = top.stall(&key_stall()).expect("a key is stalled");
    assert!(
        text.contains("until what was delivered before is settled"),
        "{text}"
    );
    assert!(top.stall(&pool_stall()).is_some());
    top.feeder.settler.hanging.store(false, Ordering::SeqCst);
    top.all_is_well().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_by_design_is_no_stall() {
    let small = SourcePlan {
        window: NonZeroUsize::new(4).unwrap(),
        ..SourcePlan::custom()
    };
    let top = watched(|plan, pool| {
        plan.sources.insert("t".into(), small);
        pool.busy_max = HOUR;
    })
    .await;
    let lane = LaneName::keyed("t", "default", "paused");
    let by = keylane_router::By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    top.router.pause(lane, by).await.unwrap();
    // Idle, then held until a time, and paused, with a full window.
    tokio::time::sleep(HOUR).await;
    assert_eq!(top.stalls(), []);
    top.feed("busy", [1, 2]);
    top.feed("paused", [3, 4]);
    for _ in 0..20 {
        tokio::time::sleep(STALL).await;
        assert_eq!(top.stalls(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_waits_for_its_rate_is_not_stalled() {
    let hourly = Rate {
        count: 1,
        per: HOUR,
        burst: 1,
    };
    let top = watched(|_, pool| pool.rate = Some(hourly)).await;
    for (id, key) in ["a", "b", "c"].into_iter().enumerate() {
        top.feed(key, [id as u64]);
    }
    for _ in 0..50 {
        tokio::time::sleep(STALL).await;
        assert_eq!(top.stalls(), []);
    }
    let settled = top.feeder.all_settled().len();
    assert!((1..=2).contains(&settled), "{settled}");
}

#[tokio::test(start_paused = true)]
async fn stall_after_acts_on_reload_and_nobody_looks_when_it_is_0() {
    let top = watched(|plan, _| plan.stall_after = Duration::ZERO).await;
    top.feed("hang", [1]);
    tokio::time::sleep(HOUR).await;
    assert_eq!(top.stalls(), []);
    let mut plan = (*top.router.plan()).clone();
    plan.stall_after = STALL;
    top.router.reload(plan).await.unwrap();
    until("it is told", || top.stall(&key_stall()).is_some()).await;
    top.go.add_permits(1);
    top.all_is_well().await;
}
