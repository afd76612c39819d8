//! FC-5, FC-9, FC-10, FC-15: room, rates, pools that change while busy, breakers. R9, R11.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::counters::PoolGauges;
use keylane_router::dispatch::handler_fn;
use keylane_router::embedded::{Db, NewMessage};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{
    Instances, KeyPlan, LaneScope, OnExhausted, Overflow, Plan, PoolPlan, Rate, SourcePlan,
};
use keylane_router::store::{LaneName, Store as _};
use keylane_router::testing::{Answer, Request, fixed};
use keylane_router::{By, Router, StartError};
use tokio::sync::Semaphore;

use super::log::Log;
use super::test_source::{Fed, Settled, TestSource, test_source};
use super::top::{Gated, Top, ill_while, quick_plan, until, with_patience};

fn pool(plan: &mut Plan) -> &mut PoolPlan {
    plan.pools.get_mut("default").unwrap()
}

/// Answers 200 to what the test lets through, "not yet" to the rest.
fn gated(open: Arc<AtomicBool>, which: fn(&Request) -> bool) -> impl Fn(&Request) -> Answer {
    move |request| match open.load(Ordering::SeqCst) || !which(request) {
        true => Answer::ok(),
        false => Answer::not_yet(0),
    }
}

#[tokio::test]
async fn fc_5_a_key_gets_no_more_than_its_capacity_nothing_of_it_goes_back_and_others_go_on() {
    let mut plan = quick_plan();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let top = Top::new(plan, gated(open.clone(), |request| request.key == "full")).await;
    let full: Vec<(&str, u64)> = (1..=8).map(|n| ("full", n)).collect();
    top.publish_all(&full).await;
    for n in 1..=20 {
        top.publish("other", n).await;
    }
    until("it has gone on", || top.starts("other").len() >= 20).await;
    until("its capacity is out", || top.db.queues()[0].out == 2).await;
    open.store(true, Ordering::SeqCst);
    top.drained().await;
    assert_eq!(top.counters().returned.get(), 0);
    assert!(top.db.store().parked().is_empty());
    assert!(top.is_green());
}

/// How many of 10 messages of a key their lane takes, while the first of them runs.
async fn held_of_ten(mut plan: Plan, key: &'static str) -> usize {
    pool(&mut plan).overflow = Some(Overflow::Wait);
    let folder = tempfile::tempdir().unwrap();
    let db = keylane_router::embedded::Db::open(folder.path(), Default::default()).unwrap();
    let (source, feeder) = super::test_source::test_source("t");
    let go = Arc::new(Semaphore::new(0));
    let gate = go.clone();
    let dispatch = handler_fn(move |message: Arc<Message>| {
        let gate = gate.clone();
        async move {
            if message.id.parse::<u64>().unwrap() <= 10 {
                gate.acquire().await.unwrap().forget();
            }
            keylane_router::outcome::Outcome::Delivered
        }
    });
    let builder = keylane_router::Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(dispatch);
    let router = builder.source("t", source).start().await.unwrap();
    let fed = |id| super::test_source::Fed {
        id,
        key: Some(if id <= 10 { key } else { "other" }),
        body: format!(r#"{{"id":"{id}","mediationTarget":"http://127.0.0.1:1/"}}"#),
    };
    feeder.feed(vec![fed(1)]);
    until("the first runs", || router.pools()[0].in_flight == 1).await;
    // The last one is of another key: behind those that find no room it is not kept waiting.
    feeder.feed((2..=11).map(fed).collect());
    feeder.settled(1).await;
    let pool = &router.pools()[0];
    let held = pool.queued + pool.in_flight;
    go.add_permits(10);
    let settled = feeder.settled(11).await;
    assert!(settled.iter().all(|one| matches!(one, Settled::Acked(..))));
    held
}

#[tokio::test]
async fn lane_capacity_counts_all_that_is_held_of_a_key_running_ones_too() {
    let mut plan = quick_plan();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(3).unwrap();
    assert_eq!(held_of_ten(plan.clone(), "k").await, 3);
    pool(&mut plan).lane_capacity = NonZeroUsize::MIN;
    assert_eq!(held_of_ten(plan, "k").await, 1);
}

#[tokio::test]
async fn lane_capacity_by_key_pattern_holds() {
    let mut plan = quick_plan();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    pool(&mut plan).keys = vec![KeyPlan {
        pattern: "vip:*".to_owned(),
        lane_concurrency: None,
        lane_capacity: NonZeroUsize::new(5),
        per_key_rate: None,
    }];
    assert_eq!(held_of_ten(plan.clone(), "vip:1").await, 5);
    assert_eq!(held_of_ten(plan, "plain").await, 2);
}

#[tokio::test]
async fn a_reload_refuses_what_a_start_refuses_and_changes_nothing() {
    let plan = quick_plan();
    let top = Top::new(plan.clone(), fixed(Answer::ok())).await;
    let mut spilling = plan;
    pool(&mut spilling).overflow = Some(Overflow::Spill);
    pool(&mut spilling).lane_scope = LaneScope::Pool;
    pool(&mut spilling).concurrency = NonZeroUsize::MIN.into();
    let refused = top.router.reload(spilling).await;
    assert_eq!(refused, Err(StartError::SpillShared("default".into())));
    let concurrency = top.router.plan().pools["default"].concurrency;
    assert_eq!(concurrency, quick_plan().pools["default"].concurrency);
}

#[tokio::test]
async fn a_reload_is_not_refused_for_a_source_that_it_removes() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Default::default()).unwrap();
    let (source, _feeder) = test_source("t");
    let mut plan = quick_plan();
    plan.sources.insert("t".into(), SourcePlan::custom());
    let builder = Router::builder().plan(plan.clone()).store(db.store());
    let router = builder.source("t", source).start().await.unwrap();
    pool(&mut plan).on_exhausted = OnExhausted::Return;
    let refused = router.reload(plan.clone()).await;
    assert!(matches!(refused, Err(StartError::CannotReturn { .. })));
    plan.sources.clear();
    assert_eq!(router.reload(plan).await, Ok(()));
    assert!(router.remove_source("t").await);
}

#[tokio::test]
async fn breaker_settings_act_on_reload() {
    let mut plan = quick_plan();
    plan.breaker.failures = 0.5;
    plan.breaker.window = NonZeroUsize::new(2).unwrap();
    plan.breaker.min_lanes = NonZeroUsize::new(2).unwrap();
    plan.breaker.open = Duration::from_secs(3600);
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(1000).unwrap();
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(plan.clone(), ill_while(&ill)).await;
    top.publish_all(&[("a", 1), ("b", 1)]).await;
    until("the breaker has opened", || {
        top.counters().attempts_failed.get() >= 2 && top.router.pools()[0].in_flight == 0
    })
    .await;
    ill.store(false, Ordering::SeqCst);
    // Still open for an hour: only the new setting lets anything through.
    plan.breaker.open = Duration::from_millis(20);
    top.router.reload(plan).await.unwrap();
    top.drained().await;
    assert!(top.is_green());
}

#[tokio::test]
async fn fc_9_what_waits_for_the_rate_holds_no_permit_and_a_change_acts_at_once() {
    let mut plan = quick_plan();
    let slow = Rate {
        count: 1,
        per: Duration::from_secs(3600),
        burst: 1,
    };
    pool(&mut plan).rate = Some(slow);
    let top = Top::new(plan.clone(), fixed(Answer::ok())).await;
    top.publish_all(&[("a", 1), ("b", 1), ("c", 1)]).await;
    until("it has gone on", || {
        let pool = &top.router.pools()[0];
        top.counters().delivered.get() >= 1 && pool.queued >= 2 && pool.in_flight == 0
    })
    .await;
    // Looking at it costs no token, and what waits holds no permit.
    for _ in 0..10 {
        assert_eq!(top.router.pools()[0].in_flight, 0);
    }
    assert_eq!(top.counters().delivered.get(), 1);
    pool(&mut plan).rate = None;
    top.router.reload(plan).await.unwrap();
    top.drained().await;
}

#[tokio::test(start_paused = true)]
async fn fc_9_a_rate_per_minute_lets_no_whole_minute_through_at_once() {
    let mut plan = quick_plan();
    // As the config reads "6000/m".
    pool(&mut plan).rate = Some(Rate {
        count: 6000,
        per: Duration::from_secs(60),
        burst: 10,
    });
    let (source, feeder) = test_source("t");
    let store = keylane_router::conformance::MemoryStore::default();
    let builder = Router::builder().plan(plan).store(store);
    let builder = builder.dispatch(handler_fn(|_| async { Outcome::Delivered }));
    let router = builder.source("t", source).start().await.unwrap();
    let keys: Vec<String> = (0..110).map(|n| format!("k{n}")).collect();
    let began = tokio::time::Instant::now();
    let one = |(id, key)| Fed {
        key: Some(key),
        ..fed(id)
    };
    feeder.feed(
        (0..110)
            .zip(keys.iter().map(String::as_str))
            .map(one)
            .collect(),
    );
    feeder.settled(110).await;
    // Ten at once, the others one each ten milliseconds; the clock moves from timer to timer.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(990), "{took:?}");
    assert!(took <= Duration::from_millis(1100), "{took:?}");
    router.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn limits_by_key_pattern_and_lane_concurrency_hold() {
    let mut plan = quick_plan();
    pool(&mut plan).keys = vec![KeyPlan {
        pattern: "vip:*".to_owned(),
        lane_concurrency: NonZeroUsize::new(3),
        lane_capacity: None,
        per_key_rate: None,
    }];
    let open = Arc::new(AtomicBool::new(false));
    let hang = {
        let open = open.clone();
        move |_: &Request| match open.load(Ordering::SeqCst) {
            true => Answer::ok(),
            false => Answer::ok().after(Duration::from_millis(30)),
        }
    };
    let top = Top::new(plan, hang).await;
    let messages: Vec<(&str, u64)> = (1..=6).flat_map(|n| [("vip:1", n), ("plain", n)]).collect();
    top.publish_all(&messages).await;
    let mut most = 0;
    while top.counters().delivered.get() < 4 {
        most = most.max(top.router.pools()[0].in_flight);
        tokio::task::yield_now().await;
    }
    open.store(true, Ordering::SeqCst);
    top.drained().await;
    assert!(
        most > 2 && most <= 4,
        "3 of the one and 1 of the other: {most}"
    );
    assert_eq!(top.starts("plain"), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn max_in_flight_holds_over_all_pools() {
    let mut plan = quick_plan();
    plan.max_in_flight = NonZeroUsize::new(2);
    plan.pools
        .insert("mail".into(), plan.pools["default"].clone());
    let top = Top::new(plan, fixed(Answer::ok().after(Duration::from_millis(5)))).await;
    let url = top.target.url("/");
    let messages = (0..20).map(|n| {
        let (key, pool) = (format!("k{n}"), ["default", "mail"][n % 2]);
        message_in(pool, &url, &key, 1)
    });
    top.db
        .publish("default", messages.collect(), true)
        .await
        .unwrap();
    let mut most = 0;
    while top.db.queues()[0].depth > 0 {
        most = most.max(top.router.pools().iter().map(|pool| pool.in_flight).sum());
        tokio::task::yield_now().await;
    }
    assert_eq!(most, 2);
}

fn message_in(pool: &str, url: &str, key: &str, n: u64) -> NewMessage {
    let id = format!("{key}-{n}");
    let body = format!(
        r#"{{"id":"{id}","poolCode":"{pool}","mediationTarget":"{url}","payload":{{"k":"{key}","n":{n}}}}}"#
    );
    NewMessage {
        pool: Some(pool.into()),
        ..NewMessage::new(id, Some(key.into()), body)
    }
}

#[tokio::test]
async fn an_unknown_pool_code_runs_in_the_default_pool_and_is_counted() {
    let top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    let url = top.target.url("/");
    let message = message_in("nobody", &url, "g", 1);
    top.db
        .publish("default", vec![message], true)
        .await
        .unwrap();
    top.drained().await;
    assert_eq!(top.router.counters().unknown_pool.get(), 1);
    assert_eq!(top.counters().delivered.get(), 1);
}

/// Message `n` of `one`, naming this pool or none.
fn message_of_one(code: Option<&str>, url: &str, n: u64) -> NewMessage {
    let pool = code.map_or(String::new(), |code| format!(r#""poolCode":"{code}","#));
    let body = format!(
        r#"{{"id":"one-{n}",{pool}"mediationTarget":"{url}","payload":{{"k":"one","n":{n}}}}}"#
    );
    NewMessage {
        pool: code.map(Into::into),
        ..NewMessage::new(format!("one-{n}"), Some("one".into()), body)
    }
}

#[tokio::test]
async fn r1_codes_that_mean_one_pool_are_one_lane() {
    let top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    let url = top.target.url("/");
    let codes = [Some("default"), None, Some("nobody")];
    let message = |n| message_of_one(codes[n as usize % 3], &url, n);
    let messages = (0..60).map(message).collect();
    top.db.publish("default", messages, true).await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("one"), (0..60).collect::<Vec<_>>());
    assert_eq!(top.counters().ordering_violations.get(), 0);
}

/// Pools come and go while a key has messages that name them all, and its head is under way.
#[tokio::test]
async fn r11_codes_of_a_key_stay_one_lane_when_pools_come_and_go() {
    let (go, held) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(true)));
    let hold = held.clone();
    let answer = move |_: &Request| (Answer::ok(), hold.load(Ordering::SeqCst));
    let gated = Gated {
        go: go.clone(),
        answer,
    };
    let mut plan = with_patience(quick_plan());
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    let top = Top::new(plan.clone(), gated).await;
    let url = top.target.url("/");
    let publish = |range: std::ops::Range<u64>| {
        let codes = [Some("default"), None, Some("mail")];
        let message = |n| message_of_one(codes[n as usize % 3], &url, n);
        top.db
            .publish("default", range.map(message).collect(), true)
    };
    publish(0..9).await.unwrap();
    until("the first runs", || top.starts("one") == [0]).await;
    let mut with_mail = plan.clone();
    let like = plan.pools["default"].clone();
    with_mail.pools.insert("mail".into(), like);
    top.router.reload(with_mail).await.unwrap();
    publish(9..18).await.unwrap();
    top.router.reload(plan).await.unwrap();
    publish(18..27).await.unwrap();
    held.store(false, Ordering::SeqCst);
    go.add_permits(1);
    top.drained().await;
    assert_eq!(top.starts("one"), (0..27).collect::<Vec<_>>());
    assert_eq!(top.counters().ordering_violations.get(), 0);
}

#[tokio::test]
async fn fc_10_a_removed_pool_finishes_its_keys_and_their_arrivals_follow_them() {
    let mut plan = quick_plan();
    plan.pools
        .insert("mail".into(), plan.pools["default"].clone());
    let open = Arc::new(AtomicBool::new(false));
    let top = Top::new(
        plan.clone(),
        gated(open.clone(), |request| request.key == "k"),
    )
    .await;
    let url = top.target.url("/");
    let publish = |n| {
        let message = message_in("mail", &url, "k", n);
        top.db.publish("default", vec![message], true)
    };
    // Together, so that both are in the lane.
    let both = vec![
        message_in("mail", &url, "k", 1),
        message_in("mail", &url, "k", 2),
    ];
    top.db.publish("default", both, true).await.unwrap();
    let of = |pool: &str| top.router.counters().of(&"default".into(), &pool.into());
    until("it has gone on", || of("mail").attempts_not_yet.get() != 0).await;
    let without: BTreeMap<_, _> = plan
        .pools
        .clone()
        .into_iter()
        .filter(|(name, _)| &**name != "mail")
        .collect();
    let reloaded = Plan {
        pools: without,
        ..plan
    };
    top.router.reload(reloaded).await.unwrap();
    publish(3).await.unwrap();
    open.store(true, Ordering::SeqCst);
    top.drained().await;
    let starts = top.starts("k");
    let mut firsts = starts.clone();
    firsts.dedup();
    assert_eq!(firsts, [1, 2, 3], "{starts:?}");
    assert!(
        of("mail").delivered.get() >= 2,
        "what was there stayed there"
    );
    // Once it is empty it is gone, and its messages run in the default pool.
    until("it has gone on", || top.router.pools().len() <= 1).await;
    publish(4).await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("k").last(), Some(&4));
    assert!(top.router.counters().unknown_pool.get() > 0);
}

#[tokio::test]
async fn fc_10_a_removed_pool_gives_back_what_it_cannot_finish_in_time() {
    let mut plan = quick_plan();
    let mut mail = plan.pools["default"].clone();
    mail.drain = Some(Duration::from_millis(20));
    plan.pools.insert("mail".into(), mail);
    let open = Arc::new(AtomicBool::new(false));
    let top = Top::new(
        plan.clone(),
        gated(open.clone(), |request| request.key == "k"),
    )
    .await;
    let url = top.target.url("/");
    let messages = (1..=3).map(|n| message_in("mail", &url, "k", n)).collect();
    top.db.publish("default", messages, true).await.unwrap();
    let mail = top.router.counters().of(&"default".into(), &"mail".into());
    until("it has gone on", || mail.attempts_not_yet.get() != 0).await;
    plan.pools.remove("mail");
    top.router.reload(plan).await.unwrap();
    until("it has gone on", || top.router.pools().len() <= 1).await;
    assert!(mail.returned.get() >= 3);
    open.store(true, Ordering::SeqCst);
    top.drained().await;
    let mut firsts = top.starts("k");
    firsts.dedup();
    assert_eq!(firsts, [1, 2, 3]);
}

#[tokio::test]
async fn fc_10_with_drain_finish_a_removed_pool_takes_as_long_as_it_takes_and_says_what_it_has() {
    let (log, _here) = Log::start_at(tracing::Level::INFO);
    let mut plan = quick_plan();
    let mut mail = plan.pools["default"].clone();
    mail.drain = None;
    plan.pools.insert("mail".into(), mail);
    let open = Arc::new(AtomicBool::new(false));
    let is_open = open.clone();
    let top = Top::new(plan.clone(), move |_: &Request| {
        match is_open.load(Ordering::SeqCst) {
            true => Answer::ok(),
            // Longer than the test's other steps.
            false => Answer::not_yet(1),
        }
    })
    .await;
    let url = top.target.url("/");
    let messages = (1..=3).map(|n| message_in("mail", &url, "k", n)).collect();
    top.db.publish("default", messages, true).await.unwrap();
    let mail = top.router.counters().of(&"default".into(), &"mail".into());
    until("its head waits", || {
        let pools = top.router.pools();
        let waits = |p: &PoolGauges| &*p.pool == "mail" && (p.queued, p.in_flight) == (3, 0);
        mail.attempts_not_yet.get() == 1 && pools.iter().any(waits)
    })
    .await;
    plan.pools.remove("mail");
    top.router.reload(plan).await.unwrap();
    until("it says so", || {
        !log.with("the pool was removed").is_empty()
    })
    .await;
    let said = log.with("the pool was removed");
    for part in ["queued=3", "active=0", "keys=1", "pool=\"mail\""] {
        assert!(said[0].contains(part), "{part}: {said:?}");
    }
    open.store(true, Ordering::SeqCst);
    until("the pool is gone", || top.router.pools().len() == 1).await;
    assert_eq!((mail.delivered.get(), mail.returned.get()), (3, 0));
    assert_eq!(log.with("the removed pool is gone").len(), 1);
}

#[tokio::test]
async fn a_pause_holds_when_its_pool_goes_and_comes_back() {
    let mut plan = quick_plan();
    plan.pools
        .insert("mail".into(), plan.pools["default"].clone());
    let top = Top::new(plan.clone(), fixed(Answer::ok())).await;
    let lane = LaneName::keyed("default", "mail", "k");
    let by = By {
        who: "ada".to_owned(),
        why: "a test".to_owned(),
    };
    top.router.pause(lane.clone(), by.clone()).await.unwrap();
    let mut without = plan.clone();
    without.pools.remove("mail");
    top.router.reload(without).await.unwrap();
    until("the pool is gone", || top.router.pools().len() == 1).await;
    top.router.reload(plan).await.unwrap();
    let url = top.target.url("/");
    let of = |key, n| message_in("mail", &url, key, n);
    let messages = vec![of("k", 1), of("other", 1)];
    top.db.publish("default", messages, true).await.unwrap();
    until("the other is delivered", || !top.starts("other").is_empty()).await;
    until("it waits", || {
        let mail = top.router.pools().into_iter().find(|p| &*p.pool == "mail");
        mail.is_some_and(|mail| mail.queued == 1)
    })
    .await;
    assert!(top.starts("k").is_empty());
    top.router.resume(lane, by).await.unwrap();
    top.drained().await;
}

/// A router with pools `default` and `mail` on a source that cannot take messages back in order;
/// its target answers as it is told, `calls` are the ids it was called with.
struct Removing {
    _folder: tempfile::TempDir,
    db: Db,
    router: Router,
    feeder: super::test_source::Feeder,
    plan: Plan,
    calls: Arc<Mutex<Vec<String>>>,
    ill: Arc<AtomicBool>,
}

impl Removing {
    /// With three messages of a key in `mail`, the first of which failed and waits.
    async fn new(instances: Instances) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Default::default()).unwrap();
        let mut plan = quick_plan();
        pool(&mut plan).retry.initial = Duration::from_millis(300);
        pool(&mut plan).retry.max = Duration::from_millis(300);
        pool(&mut plan).on_exhausted = OnExhausted::Block;
        let mut mail = plan.pools["default"].clone();
        mail.drain = Some(Duration::from_millis(20));
        plan.pools.insert("mail".into(), mail);
        let source_plan = SourcePlan {
            instances,
            ..SourcePlan::custom()
        };
        plan.sources.insert("t".into(), source_plan);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let ill = Arc::new(AtomicBool::new(true));
        let (called, is_ill) = (calls.clone(), ill.clone());
        let dispatch = handler_fn(move |message| {
            called.lock().unwrap().push(message.id.to_string());
            let ill = is_ill.load(Ordering::SeqCst);
            async move {
                match ill {
                    true => Outcome::Failed(Reason::default()),
                    false => Outcome::Delivered,
                }
            }
        });
        let (source, feeder) = test_source("t");
        let builder = Router::builder().plan(plan.clone()).store(db.store());
        let router = builder.dispatch(dispatch).source("t", source);
        let router = router.start().await.unwrap();
        let removing = Self {
            _folder: folder,
            db,
            router,
            feeder,
            plan,
            calls,
            ill,
        };
        removing
            .feeder
            .feed((1..=3).map(|id| fed_to("mail", id)).collect());
        until("the first failed", || !removing.calls().is_empty()).await;
        removing
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    async fn remove(&mut self, pool: &str) {
        self.plan.pools.remove(pool);
        self.router.reload(self.plan.clone()).await.unwrap();
    }

    /// Everything was acked, nothing given back, and the calls were in order.
    async fn ends_in_order(&self, messages: usize) {
        let settled = self.feeder.settled(messages).await;
        let acked = |settled: &Settled| matches!(settled, Settled::Acked(..));
        assert!(settled.iter().all(acked), "{settled:?}");
        let wanted: Vec<String> = (1..=messages).map(|id| id.to_string()).collect();
        let called = || {
            let mut calls = self.calls();
            calls.dedup();
            calls
        };
        until("all are called", || called().len() >= messages).await;
        assert_eq!(called(), wanted);
    }
}

#[tokio::test]
async fn fc_10_a_removed_pool_stores_what_its_source_cannot_take_back_in_order() {
    let mut removing = Removing::new(Instances::One).await;
    removing.remove("mail").await;
    until("the pool is gone", || removing.router.pools().len() == 1).await;
    let stored = removing.db.store().parked();
    assert_eq!(stored.len(), 1, "{stored:?}");
    assert_eq!(&*stored[0].lane.pool, "default");
    removing.feeder.feed(vec![fed_to("mail", 4)]);
    removing.ill.store(false, Ordering::SeqCst);
    removing.ends_in_order(4).await;
}

#[tokio::test]
async fn fc_10_a_removed_pool_keeps_what_can_neither_go_back_nor_be_stored_to_its_end() {
    let mut removing = Removing::new(Instances::Many).await;
    removing.remove("mail").await;
    let failed = removing.calls().len();
    until("it is tried there again", || {
        removing.calls().len() > failed
    })
    .await;
    removing.feeder.feed(vec![fed_to("mail", 4)]);
    assert_eq!(removing.router.pools().len(), 2);
    removing.ill.store(false, Ordering::SeqCst);
    removing.ends_in_order(4).await;
    until("the pool is gone", || removing.router.pools().len() == 1).await;
}

#[tokio::test]
async fn fc_15_an_open_breaker_holds_its_lanes_uses_no_attempt_and_closes_on_success() {
    let mut plan = quick_plan();
    plan.breaker.failures = 0.5;
    plan.breaker.window = NonZeroUsize::new(4).unwrap();
    plan.breaker.min_lanes = NonZeroUsize::new(4).unwrap();
    plan.breaker.open = Duration::from_millis(50);
    plan.breaker.probes = NonZeroUsize::new(1).unwrap();
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(1000).unwrap();
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(plan, ill_while(&ill)).await;
    let keys: Vec<String> = (0..20).map(|k| format!("k{k}")).collect();
    let messages: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    top.publish_all(&messages).await;
    until("it has gone on", || {
        top.counters().attempts_failed.get() >= 4
    })
    .await;
    // Open: every lane waits, nothing runs, only probes go out.
    let before = top.counters().attempts_failed.get();
    until("it has gone on", || {
        top.counters().attempts_failed.get() >= before + 3
    })
    .await;
    assert!(
        top.counters().attempts_failed.get() < 40,
        "probes, not twenty lanes hammering"
    );
    ill.store(false, Ordering::SeqCst);
    top.drained().await;
    assert!(top.is_green());
}

#[tokio::test]
async fn fc_15_the_breaker_of_an_origin_is_shared_by_pools() {
    let mut plan = quick_plan();
    plan.breaker.failures = 0.5;
    plan.breaker.window = NonZeroUsize::new(2).unwrap();
    plan.breaker.min_lanes = NonZeroUsize::new(2).unwrap();
    plan.breaker.open = Duration::from_secs(3600);
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(1000).unwrap();
    let like = plan.pools["default"].clone();
    plan.pools.insert("mail".into(), like);
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(plan.clone(), ill_while(&ill)).await;
    top.publish_all(&[("a", 1), ("b", 1)]).await;
    until("both wait for the breaker", || {
        top.router.breaker_holds() == 2
    })
    .await;
    // Nothing of this pool was called before, and nothing is now.
    let message = message_in("mail", &top.target.url("/"), "c", 1);
    let published = top.db.publish("default", vec![message], true);
    published.await.unwrap();
    until("so does the third", || top.router.breaker_holds() == 3).await;
    assert!(top.starts("c").is_empty());
    ill.store(false, Ordering::SeqCst);
    plan.breaker.open = Duration::from_millis(20);
    top.router.reload(plan).await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("c"), [1]);
}

#[tokio::test]
async fn r11_a_key_with_something_unresolved_stays_where_that_is() {
    let folder = tempfile::tempdir().unwrap();
    let db = keylane_router::embedded::Db::open(folder.path(), Default::default()).unwrap();
    let (source, feeder) = super::test_source::test_source("t");
    let starts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let go = Arc::new(Semaphore::new(0));
    let (noted, gate) = (starts.clone(), go.clone());
    let dispatch = keylane_router::dispatch::handler_fn(move |message| {
        let (noted, gate) = (noted.clone(), gate.clone());
        async move {
            noted.lock().unwrap().push(message.id.to_string());
            gate.acquire().await.unwrap().forget();
            keylane_router::outcome::Outcome::Delivered
        }
    });
    let mut plan = quick_plan();
    plan.pools
        .insert("mail".into(), plan.pools["default"].clone());
    let builder = keylane_router::Router::builder()
        .plan(plan.clone())
        .store(db.store());
    let router = builder
        .dispatch(dispatch)
        .source("t", source)
        .start()
        .await
        .unwrap();
    let fed = |id: u64| super::test_source::Fed {
        id,
        key: Some("k"),
        body: format!(
            r#"{{"id":"{id}","poolCode":"mail","mediationTarget":"http://127.0.0.1:1/"}}"#
        ),
    };
    feeder.feed(vec![fed(1)]);
    until("the first runs", || starts.lock().unwrap().len() == 1).await;
    plan.pools.remove("mail");
    router.reload(plan).await.unwrap();
    feeder.feed(vec![fed(2)]);
    let queued = || {
        router
            .pools()
            .iter()
            .map(|pool| pool.queued + pool.in_flight)
            .sum::<usize>()
    };
    until("the second is here", || queued() == 2).await;
    assert_eq!(
        *starts.lock().unwrap(),
        ["1"],
        "the second waits behind the first"
    );
    go.add_permits(2);
    feeder.settled(2).await;
    assert_eq!(*starts.lock().unwrap(), ["1", "2"]);
}

/// A plan whose lanes have this scope.
fn scoped(scope: LaneScope) -> Plan {
    let mut plan = quick_plan();
    pool(&mut plan).lane_scope = scope;
    pool(&mut plan).on_exhausted = OnExhausted::Park;
    pool(&mut plan).retry.max_attempts = NonZeroUsize::MIN;
    plan
}

const SCOPES: [[LaneScope; 2]; 2] = [
    [LaneScope::Source, LaneScope::Pool],
    [LaneScope::Pool, LaneScope::Source],
];

fn fed(id: u64) -> Fed<'static> {
    Fed {
        id,
        key: Some("k"),
        body: super::top::body("http://127.0.0.1:1/", &id.to_string()),
    }
}

#[tokio::test]
async fn r11_a_parked_key_is_not_overtaken_after_a_restart_with_another_scope_of_lanes() {
    for [before, after] in SCOPES {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Default::default()).unwrap();
        let fails = || handler_fn(|_| async { Outcome::Failed(Reason::default()) });
        for (scope, ids) in [(before, vec![1]), (after, vec![2, 3])] {
            let (source, feeder) = test_source("t");
            let builder = Router::builder().store(db.store()).dispatch(fails());
            let builder = builder.plan(scoped(scope));
            let source = source.returning();
            let router = builder.source("t", source).start().await.unwrap();
            let count = ids.len();
            feeder.feed(ids.into_iter().map(fed).collect());
            feeder.settled(count).await;
            router.stop(Duration::from_secs(5)).await;
        }
        let parked = db.store().parked();
        let messages: Vec<u64> = parked.iter().map(|lane| lane.messages).collect();
        assert_eq!(messages, [3], "{before:?}: the key is parked in two places");
    }
}

/// What is logged when a key's messages go to two pools, again and again.
async fn logged_of_two_pools(of: impl FnOnce(TestSource) -> TestSource) -> Vec<String> {
    let (log, _here) = Log::start();
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Default::default()).unwrap();
    let mut plan = quick_plan();
    plan.pools.insert("mail".into(), PoolPlan::default());
    let (source, feeder) = test_source("t");
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(handler_fn(|_| async { Outcome::Delivered }))
        .source("t", of(source))
        .start()
        .await
        .unwrap();
    for round in 0..3 {
        let fed = |(n, pool): (u64, &str)| Fed {
            id: 10 * round + n,
            key: Some("customer-7"),
            body: format!(r#"{{"poolCode":"{pool}","mediationTarget":"http://127.0.0.1:1/"}}"#),
        };
        feeder.feed([(0, "default"), (1, "mail")].map(fed).into());
        feeder.settled(2 * (round as usize + 1)).await;
    }
    router.stop(Duration::from_secs(5)).await;
    log.with("customer-7")
}

#[tokio::test]
async fn a_key_in_two_pools_is_warned_of_once_where_the_source_locks_keys() {
    let lines = logged_of_two_pools(TestSource::locking).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("`default` and `mail`"), "{lines:?}");
    let elsewhere = logged_of_two_pools(|source| source).await;
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

/// One run after the other on one file, each with these pools beside `default`; every message fails
/// and its key is parked. Answers how many messages are parked, by pool.
async fn parked_after(runs: &[(&[&str], &[Fed<'static>])]) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Default::default()).unwrap();
    for (pools, messages) in runs {
        let mut plan = scoped(LaneScope::Source);
        for name in *pools {
            let like = plan.pools["default"].clone();
            plan.pools.insert((*name).into(), like);
        }
        let (source, feeder) = test_source("t");
        let fails = handler_fn(|_| async { Outcome::Failed(Reason::default()) });
        let builder = Router::builder().store(db.store()).dispatch(fails);
        let router = builder
            .plan(plan)
            .source("t", source)
            .start()
            .await
            .unwrap();
        feeder.feed(messages.to_vec());
        feeder.settled(messages.len()).await;
        router.stop(Duration::from_secs(5)).await;
    }
    let parked = db.store().parked().into_iter();
    parked
        .map(|lane| (lane.lane.pool.to_string(), lane.messages))
        .collect()
}

fn fed_to(pool: &str, id: u64) -> Fed<'static> {
    let target = "http://127.0.0.1:1/";
    Fed {
        body: format!(r#"{{"id":"{id}","poolCode":"{pool}","mediationTarget":"{target}"}}"#),
        ..fed(id)
    }
}

#[tokio::test]
async fn r11_a_key_stored_under_the_default_pool_is_not_overtaken_when_a_restart_adds_its_own() {
    let runs: [(&[&str], &[Fed<'_>]); 4] = [
        (&[], &[fed_to("mail", 1)]),
        (&["mail"], &[fed_to("mail", 2)]),
        (&["mail", "other"], &[fed_to("mail", 3)]),
        (&["mail"], &[fed_to("mail", 4)]),
    ];
    let parked = parked_after(&runs).await;
    assert_eq!(parked, BTreeMap::from([("default".to_owned(), 4)]));
}

#[tokio::test]
async fn r11_a_key_stored_under_a_pool_that_went_and_came_again_is_not_overtaken() {
    let runs: [(&[&str], &[Fed<'_>]); 3] = [
        (&["mail"], &[fed_to("mail", 1)]),
        (&[], &[fed_to("mail", 2)]),
        (&["mail"], &[fed_to("mail", 3)]),
    ];
    let parked = parked_after(&runs).await;
    assert_eq!(parked, BTreeMap::from([("default".to_owned(), 3)]));
}

#[tokio::test]
async fn a_key_parked_in_the_default_pool_touches_no_lane_of_a_pool_that_was_there_all_along() {
    let runs: [(&[&str], &[Fed<'_>]); 2] = [
        (&["mail"], &[fed_to("default", 1)]),
        (&["mail"], &[fed_to("mail", 2)]),
    ];
    let parked = parked_after(&runs).await;
    let both = [("default".to_owned(), 1), ("mail".to_owned(), 1)];
    assert_eq!(parked, BTreeMap::from(both));
}

#[tokio::test]
async fn lanes_are_shared_only_by_sources_that_can_return() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Default::default()).unwrap();
    let builder = || Router::builder().store(db.store());
    let shared = || builder().plan(scoped(LaneScope::Pool));
    let (source, _feeder) = test_source("t");
    let Err(refused) = shared().source("t", source).start().await else {
        panic!("it started");
    };
    let text = refused.to_string();
    assert!(text.contains("lane_scope = \"pool\""), "{text}");
    assert!(text.contains("source `t`"), "{text}");
    let (source, _feeder) = test_source("t");
    let started = shared().source("t", source.returning()).start().await;
    started.unwrap().stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_source_that_goes_gets_back_what_it_has_in_shared_lanes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Default::default()).unwrap();
    let mut plan = scoped(LaneScope::Pool);
    pool(&mut plan).retry.initial = Duration::from_secs(3600);
    pool(&mut plan).retry.max = Duration::from_secs(3600);
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(3).unwrap();
    pool(&mut plan).busy_max = Duration::from_secs(3600);
    let (goes, of_goes) = test_source("goes");
    let (stays, of_stays) = test_source("stays");
    let fails = handler_fn(|_| async { Outcome::Failed(Reason::default()) });
    let builder = Router::builder().plan(plan).store(db.store());
    let builder = builder.dispatch(fails).source("goes", goes.returning());
    let router = builder.source("stays", stays.returning());
    let router = router.start().await.unwrap();
    of_goes.feed(vec![fed(1), fed(2)]);
    of_stays.feed(vec![Fed {
        key: Some("other"),
        ..fed(3)
    }]);
    until("both heads are held", || {
        let pool = &router.pools()[0];
        pool.queued == 3 && pool.in_flight == 0 && pool.lanes == 2
    })
    .await;
    assert!(router.remove_source("goes").await);
    let back = [Settled::Returned(1, 1), Settled::Returned(2, 2)];
    assert_eq!(of_goes.all_settled(), back);
    assert_eq!(
        of_stays.all_settled(),
        [],
        "its lane has nothing of the other"
    );
}
