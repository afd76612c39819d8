//! R8: what becomes of a message whose attempts are exhausted, and how its attempts are numbered.
//! On the paused clock.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::health::Trouble;
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnExhausted, Overflow, Plan, PoolPlan};
use keylane_router::store::{LaneName, Store};

use super::log::Log;
use super::test_source::{Fed, Feeder, Settled, TestSource, test_source};
use super::top::{body, quick_plan, until};

const HOUR: Duration = Duration::from_secs(3600);

/// Fails every call as long as it is ill, and notes the numbers of the attempts.
#[derive(Clone, Default)]
struct Target {
    well: Arc<AtomicBool>,
    numbers: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Target {
    /// Round and number of each attempt so far.
    fn numbers(&self) -> Vec<(u32, u32)> {
        self.numbers.lock().unwrap().clone()
    }
}

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, _: &'a Message, attempt: &'a Attempt) -> Outcome {
        let mut numbers = self.numbers.lock().unwrap();
        numbers.push((attempt.round, attempt.number));
        match self.well.load(Ordering::SeqCst) {
            true => Outcome::Delivered,
            false => Outcome::Failed(Reason {
                class: "status-500".into(),
                text: "the target answered 500".to_owned(),
                ..Reason::default()
            }),
        }
    }
}

struct Top {
    router: Router,
    feeder: Feeder,
    target: Target,
    store: MemoryStore,
}

async fn top(source: fn(TestSource) -> TestSource, change: impl FnOnce(&mut PoolPlan)) -> Top {
    let mut plan: Plan = quick_plan();
    plan.stall_after = Duration::ZERO;
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.max_attempts = NonZeroUsize::new(2).unwrap();
    change(pool);
    let (test, feeder) = test_source("t");
    let (target, store) = (Target::default(), MemoryStore::default());
    let router = Router::builder()
        .plan(plan)
        .store(store.clone())
        .dispatch(target.clone())
        .source("t", source(test))
        .start()
        .await
        .unwrap();
    Top {
        router,
        feeder,
        target,
        store,
    }
}

fn fed(id: u64, key: Option<&str>) -> Fed<'_> {
    Fed {
        id,
        key,
        body: body("http://127.0.0.1:1/", &id.to_string()),
    }
}

impl Top {
    fn is_blocked(&self) -> bool {
        let problems = self.router.problems();
        let blocked = Trouble::BlockedKey("default".into());
        problems.iter().any(|problem| problem.trouble == blocked)
    }
}

#[tokio::test(start_paused = true)]
async fn r8_attempts_are_numbered_over_all_rounds() {
    let policy = |pool: &mut PoolPlan| pool.on_exhausted = OnExhausted::Return;
    let top = top(TestSource::returning, policy).await;
    for round in 1..=3 {
        top.feeder.feed(vec![fed(1, Some("g"))]);
        top.feeder.settled(round).await;
    }
    top.target.well.store(true, Ordering::SeqCst);
    top.feeder.feed(vec![fed(1, Some("g"))]);
    let settled = top.feeder.settled(4).await;
    assert!(matches!(settled[2], Settled::Returned(1, _)), "{settled:?}");
    assert!(matches!(settled[3], Settled::Acked(1, _)), "{settled:?}");
    // Each round has two attempts.
    let numbers = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (3, 7)];
    assert_eq!(top.target.numbers(), numbers);
}

#[tokio::test(start_paused = true)]
async fn unset_a_key_that_fails_for_good_is_blocked_whatever_its_source_can_do() {
    for source in [TestSource::returning, |source| source] {
        let (log, _here) = Log::start();
        let top = top(source, |_| {}).await;
        top.feeder.feed(vec![fed(1, Some("g")), fed(2, Some("g"))]);
        until("it has failed for good", || top.is_blocked()).await;
        tokio::time::sleep(HOUR).await;
        assert_eq!(top.feeder.all_settled(), []);
        let numbers = top.target.numbers();
        assert!(numbers.len() > 10, "{numbers:?}");
        let counted = (1..=numbers.len() as u32).map(|number| (0, number));
        assert_eq!(numbers, counted.collect::<Vec<_>>());
        let logged = log.with("key blocked");
        assert!(
            logged.len() == 1 && logged[0].contains("key `g`"),
            "{logged:?}"
        );
        top.target.well.store(true, Ordering::SeqCst);
        top.feeder.settled(2).await;
        assert!(!top.is_blocked());
    }
}

#[tokio::test(start_paused = true)]
async fn a_keyless_message_that_fails_for_good_is_a_dead_letter() {
    let serial = |source: TestSource| source.returning().serial();
    for policy in [OnExhausted::Block, OnExhausted::Park] {
        for source in [serial, TestSource::returning] {
            let top = top(source, |pool| pool.on_exhausted = policy).await;
            top.feeder.feed(vec![fed(1, None), fed(2, None)]);
            let settled = top.feeder.settled(2).await;
            let acked = settled.iter().all(|how| matches!(how, Settled::Acked(..)));
            assert!(acked, "{policy:?}: {settled:?}");
            assert_eq!(top.store.dead_letter_count().await, Ok(2), "{policy:?}");
            assert!(!top.is_blocked());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_keyless_message_goes_back_where_that_is_asked_for() {
    let policy = |pool: &mut PoolPlan| pool.on_exhausted = OnExhausted::Return;
    let top = top(TestSource::returning, policy).await;
    top.feeder.feed(vec![fed(1, None)]);
    let settled = top.feeder.settled(1).await;
    assert!(matches!(settled[0], Settled::Returned(1, _)), "{settled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_goes_back_round_after_round_is_logged_in_each() {
    let (log, _here) = Log::start();
    let policy = |pool: &mut PoolPlan| pool.on_exhausted = OnExhausted::Return;
    let top = top(TestSource::returning, policy).await;
    for round in 1..=3 {
        // Two keys at once: one line a second is enough.
        top.feeder.feed(vec![fed(1, Some("g")), fed(2, Some("h"))]);
        top.feeder.settled(round * 2).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let logged = log.with("attempts exhausted");
    assert_eq!(logged.len(), 3, "{logged:?}");
    assert!(logged[2].contains("attempts=6"), "{logged:?}");
}

#[tokio::test(start_paused = true)]
async fn a_blocked_key_is_an_alert_on_disk_as_in_memory() {
    for policy in [OnExhausted::Block, OnExhausted::Return] {
        let stored = |pool: &mut PoolPlan| {
            pool.on_exhausted = policy;
            pool.overflow = Some(Overflow::Spill);
            pool.lane_capacity = NonZeroUsize::new(2).unwrap();
            pool.retry.initial = HOUR;
            pool.retry.max = HOUR;
            // The first of the key blocks it at once.
            pool.retry.max_attempts = NonZeroUsize::MIN;
        };
        let top = top(|source| source.returning().confirming(), stored).await;
        let lane = LaneName::keyed("t", "default", "g");
        top.feeder.feed(vec![fed(1, Some("g"))]);
        if policy == OnExhausted::Block {
            // Its alert goes to disk with the head; with `return` only a stored key is blocked.
            until("it has failed for good", || top.is_blocked()).await;
        }
        let behind = (2..=4).map(|id| fed(id, Some("g")));
        top.feeder.feed(behind.collect());
        until("it is stored", || top.store.parked_lane(&lane).is_some()).await;
        until("it has failed for good", || top.is_blocked()).await;
        // What arrives goes to disk, and takes what is in memory of the key along.
        for id in 5..10 {
            top.feeder.feed(vec![fed(id, Some("g"))]);
        }
        for _ in 0..10 {
            tokio::time::sleep(HOUR / 4).await;
            assert!(top.is_blocked(), "{policy:?}");
            assert_eq!(top.router.pools()[0].blocked, 1);
        }
        top.target.well.store(true, Ordering::SeqCst);
        tokio::time::sleep(HOUR * 2).await;
        assert_eq!(top.store.parked_lane(&lane), None, "{policy:?}");
        assert!(!top.is_blocked());
        let numbers = top.target.numbers();
        let of_head = numbers.len() - 9;
        assert_eq!(numbers[of_head], (0, of_head as u32 + 1), "{numbers:?}");
    }
}
