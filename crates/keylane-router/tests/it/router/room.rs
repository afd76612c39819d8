//! How messages find room in their lanes, wait for it, and go back. R1, R5, R9, R12. On the paused
//! clock.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{
    Instances, LaneScope, OnExhausted, Overflow, Plan, PoolPlan, SourcePlan,
};

use super::test_source::{Fed, Feeder, Settled, TestSource, test_source};
use super::top::{body, quick_plan, until};

const HOUR: Duration = Duration::from_secs(3600);

/// What the target says to a message whose turn it is.
type Answer = fn(&Message, usize) -> Outcome;

/// A router with one source for each of these names.
struct Rig {
    router: Router,
    feeders: Vec<Feeder>,
    plan: Plan,
    calls: Arc<Mutex<Vec<u64>>>,
}

fn fed<'a>(key: &'a str, ids: impl IntoIterator<Item = u64>) -> Vec<Fed<'a>> {
    let one = |id: u64| Fed {
        id,
        key: Some(key),
        body: body("http://127.0.0.1:1/", &id.to_string()),
    };
    ids.into_iter().map(one).collect()
}

fn busy() -> Outcome {
    Outcome::Busy {
        after: Some(HOUR),
        reason: Reason::default(),
    }
}

async fn rig(
    names: &[&str],
    of: impl Fn(TestSource) -> TestSource,
    answer: Answer,
    change: impl FnOnce(&mut Plan, &mut PoolPlan),
) -> Rig {
    let mut plan = quick_plan();
    let mut pool = plan.pools["default"].clone();
    pool.overflow = Some(Overflow::Wait);
    pool.busy_max = HOUR;
    plan.stall_after = Duration::from_secs(120);
    change(&mut plan, &mut pool);
    plan.pools.insert("default".into(), pool);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = calls.clone();
    let dispatch = handler_fn(move |message: Arc<Message>| {
        let id: u64 = message.id.parse().unwrap();
        let before = {
            let mut called = called.lock().unwrap();
            called.push(id);
            called.iter().filter(|other| **other == id).count() - 1
        };
        let outcome = answer(&message, before);
        async move {
            // Others go first.
            tokio::task::yield_now().await;
            outcome
        }
    });
    let mut builder = Router::builder()
        .plan(plan.clone())
        .store(MemoryStore::default())
        .dispatch(dispatch);
    let mut feeders = Vec::new();
    for name in names {
        let (source, feeder) = test_source(name);
        builder = builder.source(*name, of(source));
        feeders.push(feeder);
    }
    let router = builder.start().await.unwrap();
    Rig {
        router,
        feeders,
        plan,
        calls,
    }
}

impl Rig {
    fn calls(&self) -> Vec<u64> {
        self.calls.lock().unwrap().clone()
    }

    fn violations(&self) -> u64 {
        let counters = self.router.counters().of(&"t".into(), &"default".into());
        counters.ordering_violations.get()
    }

    /// Waits until this many are settled; fails with what the watchdog says when nothing moves.
    async fn settled(&self, count: usize) -> Vec<Settled> {
        let feeder = &self.feeders[0];
        let all = || feeder.all_settled();
        loop {
            if all().len() >= count {
                return all();
            }
            let problems = self.router.problems();
            assert!(
                problems.is_empty(),
                "{} of {count}: {problems:?}",
                all().len()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn stop(self) {
        self.router.stop(Duration::from_secs(5)).await;
    }
}

fn delivered(_: &Message, _: usize) -> Outcome {
    Outcome::Delivered
}

fn returning(pool: &mut PoolPlan) {
    pool.on_exhausted = OnExhausted::Return;
    pool.retry.max_attempts = NonZeroUsize::MIN;
}

/// The first message fails when it is called first.
fn first_fails_once(message: &Message, before: usize) -> Outcome {
    match (&*message.id, before) {
        ("1", 0) => Outcome::Failed(Reason::default()),
        _ => Outcome::Delivered,
    }
}

#[tokio::test(start_paused = true)]
async fn r5_what_comes_again_before_its_return_is_confirmed_is_a_new_loan() {
    let change = |_: &mut Plan, pool: &mut PoolPlan| returning(pool);
    let rig = rig(&["t"], TestSource::returning, first_fails_once, change).await;
    let feeder = &rig.feeders[0];
    feeder.settler.returns_hang.store(true, Ordering::SeqCst);
    feeder.feed(fed("g", 1..=3));
    feeder.settled(3).await;
    // The source gives them out again, with one more, and has not answered yet.
    feeder.feed(fed("g", 1..=4));
    let counters = rig.router.counters().of(&"t".into(), &"default".into());
    until("they are received", || counters.received.get() == 7).await;
    feeder.settler.returns_hang.store(false, Ordering::SeqCst);
    feeder.settled(7).await;
    assert_eq!(rig.calls(), [1, 1, 2, 3, 4]);
    assert_eq!((rig.violations(), counters.redelivered.get()), (0, 0));
    rig.stop().await;
}

/// The lane goes back while messages of a later batch wait to get in.
#[tokio::test(start_paused = true)]
async fn r5_what_waits_for_room_in_a_lane_goes_back_with_it() {
    fn slow(message: &Message, before: usize) -> Outcome {
        match before {
            0 if &*message.id == "1" => Outcome::Busy {
                after: Some(Duration::from_secs(60)),
                reason: Reason::default(),
            },
            1 if &*message.id == "1" => Outcome::Failed(Reason::default()),
            _ => Outcome::Delivered,
        }
    }
    let rig = rig(&["t"], TestSource::returning, slow, |_, pool| {
        returning(pool);
        pool.lane_capacity = NonZeroUsize::MIN;
    })
    .await;
    let feeder = &rig.feeders[0];
    feeder.feed(fed("g", [1]));
    until("it is held", || rig.calls() == [1]).await;
    feeder.feed(fed("g", [2, 3]));
    let back = feeder.settled(3).await;
    assert!(
        back.iter().all(|one| matches!(one, Settled::Returned(..))),
        "{back:?}"
    );
    feeder.feed(fed("g", 1..=3));
    feeder.settled(6).await;
    assert_eq!(rig.calls(), [1, 1, 1, 2, 3]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn r9_an_ack_that_fails_again_and_again_keeps_no_other_lane_waiting() {
    let rig = rig(&["t"], |source| source, delivered, |_, _| {}).await;
    let feeder = &rig.feeders[0];
    feeder.settler.never_acked.lock().unwrap().insert(1);
    feeder.feed(fed("a", [1]));
    until("it has failed", || !rig.router.problems().is_empty()).await;
    feeder.feed(fed("a", [2]));
    feeder.feed(fed("b", [3, 4]));
    let settled = feeder.settled(2).await;
    let acked = [Settled::Acked(3, 3), Settled::Acked(4, 4)];
    assert_eq!(settled, acked, "and nothing behind it in its own lane");
    feeder.settler.never_acked.lock().unwrap().clear();
    let settled = feeder.settled(4).await;
    assert_eq!(settled[2..], [Settled::Acked(1, 1), Settled::Acked(2, 2)]);
    until("all is well", || rig.router.problems().is_empty()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn r9_sources_that_share_a_full_lane_wait_for_each_other_and_go_on() {
    let rig = rig(&["t", "u"], TestSource::returning, delivered, |_, pool| {
        pool.lane_scope = LaneScope::Pool;
        pool.lane_capacity = NonZeroUsize::MIN;
    })
    .await;
    for (at, feeder) in rig.feeders.iter().enumerate() {
        for batch in 0..10 {
            let first = 1000 * at as u64 + 10 * batch;
            feeder.feed(fed("hot", first..first + 10));
        }
    }
    let settled = rig.settled(100).await;
    assert!(settled.iter().all(|one| matches!(one, Settled::Acked(..))));
    rig.feeders[1].settled(100).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn r9_a_lane_that_may_hold_one_goes_on_when_that_is_resolved() {
    let rig = rig(
        &["t"],
        |source| source,
        delivered,
        |_, pool| {
            pool.lane_capacity = NonZeroUsize::MIN;
        },
    )
    .await;
    for batch in 0..20 {
        rig.feeders[0].feed(fed("hot", 10 * batch..10 * batch + 10));
    }
    rig.settled(200).await;
    assert_eq!(rig.calls(), (0..200).collect::<Vec<_>>());
    rig.stop().await;
}

/// The head of `bad` is busy for an hour, and the source waits for room behind it.
async fn waiting() -> Rig {
    fn answer(message: &Message, _: usize) -> Outcome {
        match message.key.as_ref().map(|key| key.as_bytes()) {
            Some(b"bad") => busy(),
            _ => Outcome::Delivered,
        }
    }
    let rig = rig(
        &["t"],
        |source| source,
        answer,
        |_, pool| {
            pool.lane_capacity = NonZeroUsize::new(2).unwrap();
        },
    )
    .await;
    let mut batch = fed("bad", 1..=5);
    batch.extend(fed("good", [6]));
    rig.feeders[0].feed(batch);
    // Of the same batch: it is not kept waiting. What comes after it is.
    rig.settled(1).await;
    rig.feeders[0].feed(fed("good", [7]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.feeders[0].all_settled(), [Settled::Acked(6, 6)]);
    rig
}

#[tokio::test(start_paused = true)]
async fn r11_a_reload_that_makes_room_acts_on_a_source_that_waits_for_it() {
    for overflow in [Overflow::Wait, Overflow::Spill] {
        let rig = waiting().await;
        let mut plan = rig.plan.clone();
        let pool = plan.pools.get_mut("default").unwrap();
        pool.overflow = Some(overflow);
        if overflow == Overflow::Wait {
            pool.lane_capacity = NonZeroUsize::new(100).unwrap();
        }
        rig.router.reload(plan).await.unwrap();
        let acked = |id| {
            let settled = rig.feeders[0].all_settled();
            settled
                .iter()
                .any(|one| matches!(one, Settled::Acked(other, _) if *other == id))
        };
        until("what came behind them is delivered", || acked(7)).await;
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fc_14_a_source_that_waits_for_a_held_lane_is_not_stalled() {
    let rig = waiting().await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(rig.router.problems(), []);
    }
    rig.stop().await;
}

/// Several instances: nothing may be stored. The held key goes back, and makes room for others.
#[tokio::test(start_paused = true)]
async fn r9_held_lanes_go_back_where_they_may_not_be_stored_and_come_again_later() {
    fn answer(message: &Message, before: usize) -> Outcome {
        match message.key.as_ref().map(|key| key.as_bytes()) {
            Some(b"bad") if before == 0 => busy(),
            _ => Outcome::Delivered,
        }
    }
    let rig = rig(&["t"], TestSource::returning, answer, |plan, pool| {
        pool.overflow = None;
        let source = SourcePlan {
            window: NonZeroUsize::new(8).unwrap(),
            instances: Instances::Many,
            ..SourcePlan::custom()
        };
        plan.sources.insert("t".into(), source);
    })
    .await;
    let mut batch = fed("bad", [1, 2]);
    for key in ["b", "c", "d"] {
        let id = u64::from(key.as_bytes()[0]);
        batch.extend(fed(key, [id]));
    }
    rig.feeders[0].feed(batch);
    rig.feeders[0].settled(3).await;
    rig.feeders[0].feed(fed("bad", [3, 4]));
    let settled = rig.feeders[0].settled(7).await;
    let back: Vec<u64> = settled
        .iter()
        .filter_map(|one| match one {
            Settled::Returned(id, _) => Some(*id),
            Settled::Acked(..) => None,
        })
        .collect();
    assert_eq!(back, [1, 2, 3, 4]);
    rig.stop().await;
}
