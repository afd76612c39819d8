//! FC-15, R9: one slow key and one dead origin take nothing from the others, and lanes that wait for
//! an origin cost nothing. On the paused clock; the target is in this process.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::health::Trouble;
use keylane_router::message::{BrokerId, Identity, Message};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Plan, SourcePlan};
use keylane_router::store::LaneName;
use keylane_router::{By, Router};

use tokio::time::Instant;

use super::test_source::{Fed, Feeder, test_source};
use super::top::{body, quick_plan, until};

const HOUR: Duration = Duration::from_secs(3600);
const OPEN: Duration = Duration::from_secs(30);
const PROBES: u64 = 3;

/// Targets by name: `dead` is away, `slow` says 429 for an hour, others take everything.
#[derive(Clone, Default)]
struct Targets {
    calls: Arc<Mutex<HashMap<String, Vec<Instant>>>>,
    /// The ids of what was called, in order.
    ids: Arc<Mutex<Vec<String>>>,
    /// `dead` is back.
    healed: Arc<AtomicBool>,
}

impl Targets {
    fn calls(&self, target: &str) -> u64 {
        self.times(target).len() as u64
    }

    fn heal(&self) {
        self.healed.store(true, Ordering::SeqCst);
    }

    fn ids(&self) -> Vec<String> {
        self.ids.lock().unwrap().clone()
    }

    fn times(&self, target: &str) -> Vec<Instant> {
        let calls = self.calls.lock().unwrap();
        calls.get(target).cloned().unwrap_or_default()
    }
}

impl Dispatch for Targets {
    async fn attempt<'a>(&'a self, message: &'a Message, _attempt: &'a Attempt) -> Outcome {
        let target = message.target.to_string();
        let first = {
            let mut calls = self.calls.lock().unwrap();
            let of_target = calls.entry(target).or_default();
            of_target.push(Instant::now());
            of_target.len() == 1
        };
        self.ids.lock().unwrap().push(message.id.to_string());
        if &*message.target == "http://well/later" {
            // Long enough for the next of its key to be looked at.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let reason = |class: &'static str, status, breaker_failure| Reason {
            class: class.into(),
            status,
            breaker_failure,
            ..Reason::default()
        };
        match &*message.target {
            // Not "failed": that is written to a store, by a thread that knows no paused clock.
            "http://dead/" if !self.healed.load(Ordering::SeqCst) => Outcome::Busy {
                after: None,
                reason: reason("status-503", Some(503), true),
            },
            // The first call of each is answered, all others fail.
            later if later.starts_with("http://later/") => Outcome::Busy {
                after: None,
                reason: reason("status-503", Some(503), !first),
            },
            "http://mixed/poison" => Outcome::Busy {
                after: Some(Duration::from_millis(1)),
                reason: reason("status-503", Some(503), true),
            },
            "http://well/later" if first => Outcome::Busy {
                after: Some(HOUR),
                reason: reason("status-429", Some(429), false),
            },
            "http://well/slow" => Outcome::Busy {
                after: Some(HOUR * 2),
                reason: reason("status-429", Some(429), false),
            },
            _ => Outcome::Delivered,
        }
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        let host = target.trim_start_matches("http://");
        host.split('/').next().map(Arc::from)
    }
}

struct Top {
    router: Router,
    feeder: Feeder,
    targets: Targets,
}

fn plan() -> Plan {
    let mut plan = quick_plan();
    plan.stall_after = Duration::ZERO;
    plan.breaker.failures = 0.5;
    plan.breaker.window = NonZeroUsize::new(20).unwrap();
    plan.breaker.open = OPEN;
    plan.breaker.probes = NonZeroUsize::new(PROBES as usize).unwrap();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.busy_max = HOUR * 2;
    pool.retry.initial = Duration::from_secs(1);
    let source = SourcePlan {
        window: NonZeroUsize::new(1_000_000).unwrap(),
        ..SourcePlan::custom()
    };
    plan.sources.insert("t".into(), source);
    plan
}

async fn top() -> Top {
    top_of(plan()).await
}

async fn top_of(plan: Plan) -> Top {
    let (source, feeder) = test_source("t");
    let targets = Targets::default();
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(targets.clone())
        .source("t", source)
        .start()
        .await
        .unwrap();
    Top {
        router,
        feeder,
        targets,
    }
}

fn fed<'a>(id: u64, key: &'a str, target: &str) -> Fed<'a> {
    Fed {
        id,
        key: Some(key),
        body: body(target, &id.to_string()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_429_slows_only_its_key() {
    let top = top().await;
    top.feeder.feed(vec![fed(1, "slow", "http://well/slow")]);
    let others = (2..502).map(|id| fed(id, "other", "http://well/"));
    top.feeder.feed(others.collect());
    top.feeder.settled(500).await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(top.targets.calls("http://well/slow"), 1);
    assert_eq!(top.targets.calls("http://well/"), 500);
}

/// Promise 4: a failing key takes nothing from the healthy keys of its origin.
#[tokio::test(start_paused = true)]
async fn one_failing_key_does_not_open_the_breaker_of_its_origin() {
    let top = top().await;
    top.feeder
        .feed(vec![fed(0, "poison", "http://mixed/poison")]);
    for id in 1..=50 {
        tokio::time::sleep(OPEN / 10).await;
        let sent = Instant::now();
        let key = format!("healthy-{id}");
        top.feeder.feed(vec![fed(id, &key, "http://mixed/")]);
        top.feeder.settled(id as usize).await;
        assert!(sent.elapsed() < Duration::from_secs(1), "{id} waited");
    }
    assert!(top.targets.calls("http://mixed/poison") > 5);
    assert_eq!(top.router.open_breakers(), 0);
    assert_eq!(top.router.breaker_holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn retries_say_nothing_of_an_origin() {
    let top = top().await;
    for id in 0..20 {
        let target = format!("http://later/{id}");
        top.feeder.feed(vec![fed(id, &id.to_string(), &target)]);
    }
    tokio::time::sleep(OPEN).await;
    assert!(top.targets.calls("http://later/0") > 2);
    assert_eq!(top.router.breaker_holds(), 0);
}

/// As many lanes as the defaults take open it; that is a problem to be seen until it closes.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_told_until_it_is_closed() {
    let top = top().await;
    for id in 0..4 {
        top.feeder
            .feed(vec![fed(id, &id.to_string(), "http://dead/")]);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(top.router.problems(), []);
    for id in 4..8 {
        top.feeder
            .feed(vec![fed(id, &id.to_string(), "http://dead/")]);
    }
    until("it is open", || top.router.open_breakers() == 1).await;
    tokio::time::sleep(OPEN * 10).await;
    let problems = top.router.problems();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!(problem.trouble, Trouble::OpenBreaker);
    assert!(problem.text.contains("`dead`"), "{problems:?}");
    top.targets.heal();
    top.feeder.settled(8).await;
    assert_eq!(top.router.problems(), []);
    assert_eq!(top.router.open_breakers(), 0);
}

/// Lanes that have not failed probe first, so that a few keys that fail for reasons of their own do
/// not keep an origin closed that is well again.
#[tokio::test(start_paused = true)]
async fn lanes_that_have_not_failed_probe_first() {
    let top = top().await;
    for id in 0..5 {
        top.feeder
            .feed(vec![fed(id, &format!("old-{id}"), "http://dead/")]);
    }
    // All of them failed and wait for the breaker.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(top.router.breaker_holds(), 5);
    let failed = top.targets.ids();
    assert_eq!(failed.len(), 5, "{failed:?}");
    top.targets.heal();
    let late =
        (100..100 + PROBES).map(|id| fed(id, ["x", "y", "z"][(id % 3) as usize], "http://dead/"));
    top.feeder.feed(late.collect());
    top.feeder.settled(5 + PROBES as usize).await;
    let probes = top.targets.ids().split_off(failed.len());
    let fresh = |id: &String| !failed.contains(id);
    assert!(probes[..PROBES as usize].iter().all(fresh), "{probes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_lanes_of_a_dead_origin_wait_without_being_asked() {
    const LANES: u64 = 100_000;
    let top = top().await;
    let keys: Vec<String> = (0..LANES).map(|key| key.to_string()).collect();
    let dead = |(id, key): (usize, &'_ String)| Fed {
        id: id as u64,
        key: None,
        body: format!(
            r#"{{"id":"{id}","mediationTarget":"http://dead/","messageGroupId":"{key}"}}"#
        ),
    };
    top.feeder.feed(keys.iter().enumerate().map(dead).collect());
    until("all wait", || top.router.breaker_holds() >= LANES - 20).await;
    let (holds, calls) = (
        top.router.breaker_holds(),
        top.targets.calls("http://dead/"),
    );
    assert!(
        holds < LANES + 1000 && calls < 1000,
        "{holds} holds, {calls} calls"
    );
    // The others go on.
    let well = (0..100).map(|n| fed(LANES + n, "well", "http://well/"));
    top.feeder.feed(well.collect());
    top.feeder.settled(100).await;
    // An hour: a few probes each time, and nobody else is asked.
    tokio::time::sleep(HOUR).await;
    let times = HOUR.as_secs() / OPEN.as_secs() + 1;
    let holds = top.router.breaker_holds() - holds;
    let calls = top.targets.calls("http://dead/") - calls;
    // Each probe fails, backs off and is held again.
    let most = times * PROBES * 2;
    assert!(calls > times / 4, "nobody probed: {calls} calls");
    assert!(
        holds <= most && calls <= most,
        "{holds} holds, {calls} calls"
    );
    assert_eq!(top.router.pools()[0].queued as u64, LANES);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_no_longer_waits_for_an_origin_is_not_woken_by_it() {
    let top = top().await;
    for id in 0..40 {
        top.feeder
            .feed(vec![fed(id, &id.to_string(), "http://dead/")]);
    }
    until("it is open", || top.router.breaker_holds() >= 10).await;
    top.feeder.feed(vec![
        fed(100, "k", "http://dead/"),
        fed(101, "k", "http://well/slow"),
    ]);
    let lane = LaneName::keyed("t", "default", "k");
    let identity = Identity {
        source: "t".into(),
        id: BrokerId::Sequence(100),
    };
    let by = By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    until("received", || {
        let counters = top.router.counters().of(&"t".into(), &"default".into());
        counters.received.get() == 42
    })
    .await;
    top.router.skip(lane, identity, by).await.unwrap();
    until("called", || top.targets.calls("http://well/slow") >= 1).await;
    // It is held for two hours each time, whatever happens to the origin it waited for before.
    tokio::time::sleep(HOUR * 5).await;
    let times = top.targets.times("http://well/slow");
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        gaps.len() >= 2 && gaps.iter().all(|gap| *gap >= HOUR * 2),
        "{gaps:?}"
    );
}

/// As [`plan`], with two of a key at once; one failing lane opens a breaker.
fn two_at_once() -> Plan {
    let mut plan = plan();
    plan.breaker.min_lanes = NonZeroUsize::MIN;
    plan.breaker.probes = NonZeroUsize::MIN;
    plan.pools.get_mut("default").unwrap().lane_concurrency = NonZeroUsize::new(2).unwrap();
    plan
}

/// The breaker of `dead` is open. Of the key `k` the second message waits for it, behind the first,
/// which waits for an hour.
async fn waits_behind_a_back_off(plan: Plan) -> Top {
    let top = top_of(plan).await;
    top.feeder.feed(vec![fed(1, "x", "http://dead/")]);
    until("it is open", || top.router.open_breakers() == 1).await;
    top.feeder.feed(vec![
        fed(2, "k", "http://well/later"),
        fed(3, "k", "http://dead/"),
    ]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(top.targets.calls("http://well/later"), 1);
    assert_eq!(top.router.breaker_holds(), 2, "`x` and the second of `k`");
    top
}

/// R17: the reason is the lane's, the back-off is the message's.
#[tokio::test(start_paused = true)]
async fn r17_what_waits_for_a_breaker_behind_a_back_off_goes_on_when_the_breaker_closes() {
    let top = waits_behind_a_back_off(two_at_once()).await;
    top.targets.heal();
    let begun = Instant::now();
    top.feeder.settled(1).await;
    // The first of the key is tried again after its hour, and not before.
    tokio::time::sleep(HOUR - OPEN * 4).await;
    assert_eq!(top.targets.calls("http://well/later"), 1);
    top.feeder.settled(3).await;
    assert!(begun.elapsed() < HOUR * 2);
}

/// R17: an operator's pause uses up no probe.
#[tokio::test(start_paused = true)]
async fn r17_a_paused_lane_is_passed_over_when_an_origin_is_probed() {
    let top = top_of(two_at_once()).await;
    let keys: Vec<String> = (0..10).map(|key| key.to_string()).collect();
    for (id, key) in keys.iter().enumerate() {
        top.feeder.feed(vec![fed(id as u64, key, "http://dead/")]);
    }
    until("all wait", || top.router.breaker_holds() >= 10).await;
    for key in &keys[1..9] {
        let by = By {
            who: "test".to_owned(),
            why: "test".to_owned(),
        };
        let lane = LaneName::keyed("t", "default", key.as_str());
        top.router.pause(lane, by).await.unwrap();
    }
    top.targets.heal();
    let healed = Instant::now();
    top.feeder.settled(2).await;
    assert!(healed.elapsed() <= OPEN * 2, "{:?}", healed.elapsed());
}

fn pool_stall(router: &Router) -> Option<String> {
    let stalled = Trouble::StalledPool("default".into());
    let mut problems = router.problems().into_iter();
    let found = problems.find(|problem| problem.trouble == stalled);
    found.map(|problem| problem.text)
}

/// A lane that nothing would release is a stall; one that waits for an open breaker is none.
#[tokio::test(start_paused = true)]
async fn r17_a_lane_that_waits_and_is_not_listed_is_told_as_a_stall() {
    let stall = Duration::from_secs(120);
    let mut plan = two_at_once();
    plan.stall_after = stall;
    plan.breaker.open = HOUR;
    let top = waits_behind_a_back_off(plan).await;
    let keys: Vec<String> = (0..100).map(|key| format!("w{key}")).collect();
    for (id, key) in (100..).zip(&keys) {
        top.feeder.feed(vec![fed(id, key, "http://dead/")]);
    }
    for _ in 0..10 {
        tokio::time::sleep(stall / 2).await;
        assert_eq!(pool_stall(&top.router), None);
    }
    top.router.lose_waiting_lanes();
    tokio::time::sleep(stall * 3 / 2).await;
    let text = pool_stall(&top.router).expect("it is told");
    for part in ["pool `default`", "key `", "the breaker of `dead`"] {
        assert!(text.contains(part), "{text}");
    }
    // An operator retries what is lost, and all is well.
    let lost = keys.iter().map(String::as_str);
    for key in lost.chain(["x", "k"]) {
        let by = By {
            who: "test".to_owned(),
            why: "test".to_owned(),
        };
        let lane = LaneName::keyed("t", "default", key);
        let _ = top.router.retry_now(lane, by).await;
    }
    tokio::time::sleep(stall).await;
    assert_eq!(pool_stall(&top.router), None);
}
