//! `workers`: how much of one source runs at once, whatever the pools allow (GB-32 … GB-34).

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::health::Trouble;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Overflow, Plan, PoolPlan, SourcePlan};
use keylane_router::store::Store;
use tokio::sync::Semaphore;

use super::test_source::{Fed, Feeder, test_source};
use super::top::until;

/// What a handler saw.
#[derive(Default)]
struct Seen {
    running: AtomicUsize,
    most: AtomicUsize,
    order: Mutex<Vec<String>>,
}

fn body(n: u64, pool: &str) -> String {
    format!(r#"{{"id":"m{n}","poolCode":"{pool}","mediationTarget":"http://unused.example/"}}"#)
}

/// Runs so many messages, all of different keys and in two pools of 16, with so many workers; fails
/// those that `fails` means the first time.
async fn run(workers: usize, messages: u64, fails: fn(&str) -> bool) -> Arc<Seen> {
    let (source, feeder) = test_source("s");
    let seen = Arc::new(Seen::default());
    let shared = seen.clone();
    let dispatch = handler_fn(move |message| {
        let seen = shared.clone();
        async move {
            let now = seen.running.fetch_add(1, Ordering::SeqCst) + 1;
            seen.most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            seen.running.fetch_sub(1, Ordering::SeqCst);
            let id = message.id.to_string();
            let again = seen.order.lock().unwrap().contains(&id);
            seen.order.lock().unwrap().push(id.clone());
            match fails(&id) && !again {
                true => Outcome::Failed(Reason::default()),
                false => Outcome::Delivered,
            }
        }
    });
    let mut plan = Plan::default();
    for pool in ["default", "other"] {
        let mut limits = PoolPlan::default();
        limits.retry.initial = Duration::from_millis(1);
        plan.pools.insert(pool.into(), limits);
    }
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .start()
        .await
        .unwrap();
    let source_plan = SourcePlan {
        workers: NonZeroUsize::new(workers),
        ..SourcePlan::custom()
    };
    router.add_source("s", source, source_plan).await.unwrap();
    let keys: Vec<String> = (1..=messages).map(|n| format!("k{n}")).collect();
    let fed = (1..=messages).zip(&keys).map(|(id, key)| Fed {
        id,
        key: Some(key),
        body: body(id, if id % 2 == 0 { "default" } else { "other" }),
    });
    feeder.feed(fed.collect());
    feeder.settled(messages as usize).await;
    router.stop(Duration::from_secs(1)).await;
    seen
}

#[tokio::test(start_paused = true)]
async fn a_source_runs_no_more_than_its_workers_and_no_less_while_there_is_work() {
    let begun = tokio::time::Instant::now();
    let seen = run(5, 100, |_| false).await;
    assert_eq!(seen.most.load(Ordering::SeqCst), 5);
    // 100 messages of 10 ms on 5 workers, and a moment for those that had to ask again.
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(300), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_fails_keeps_no_worker() {
    let seen = run(2, 20, |id| id == "m1" || id == "m2").await;
    assert_eq!(seen.most.load(Ordering::SeqCst), 2);
    assert_eq!(seen.order.lock().unwrap().len(), 22);
}

#[tokio::test(start_paused = true)]
async fn gb_34_one_worker_is_one_lane_for_the_whole_source() {
    // In one pool: a lane is in one.
    let (source, feeder) = test_source("s");
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = order.clone();
    let failed = Arc::new(AtomicUsize::new(0));
    let dispatch = handler_fn(move |message| {
        let (noted, failed) = (noted.clone(), failed.clone());
        async move {
            if &*message.id == "m3" && failed.fetch_add(1, Ordering::SeqCst) < 2 {
                return Outcome::Failed(Reason::default());
            }
            noted.lock().unwrap().push(message.id.to_string());
            Outcome::Delivered
        }
    });
    let router = Router::builder()
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .start()
        .await
        .unwrap();
    let plan = SourcePlan {
        workers: Some(NonZeroUsize::MIN),
        ..SourcePlan::custom()
    };
    router.add_source("s", source, plan).await.unwrap();
    let keys: Vec<String> = (1..=10).map(|n| format!("k{n}")).collect();
    let fed = (1..=10).zip(&keys).map(|(id, key)| Fed {
        id,
        key: Some(key).filter(|_| id % 2 == 0).map(String::as_str),
        body: body(id, "default"),
    });
    feeder.feed(fed.collect());
    feeder.settled(10).await;
    router.stop(Duration::from_secs(1)).await;
    let expected: Vec<String> = (1..=10).map(|n| format!("m{n}")).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

/// A router whose source has two workers, with ten keys that are on disk; calls take a permit each.
struct Stored {
    router: Router,
    feeder: Feeder,
    go: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
    store: MemoryStore,
}

fn two_workers() -> SourcePlan {
    SourcePlan {
        workers: NonZeroUsize::new(2),
        ..SourcePlan::custom()
    }
}

impl Stored {
    async fn new(stall_after: Duration) -> Self {
        let (source, feeder) = test_source("s");
        let (go, calls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, counted) = (go.clone(), calls.clone());
        let dispatch = handler_fn(move |_| {
            let (gate, counted) = (gate.clone(), counted.clone());
            async move {
                counted.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
                Outcome::Delivered
            }
        });
        let mut plan = Plan {
            stall_after,
            ..Plan::default()
        };
        let mut pool = PoolPlan {
            lane_capacity: NonZeroUsize::MIN,
            overflow: Some(Overflow::Spill),
            ..PoolPlan::default()
        };
        pool.timeout.total = Duration::from_secs(1_000_000);
        plan.pools.insert("default".into(), pool);
        let store = MemoryStore::default();
        let router = Router::builder()
            .plan(plan)
            .store(store.clone())
            .dispatch(dispatch)
            .start()
            .await
            .unwrap();
        router
            .add_source("s", source.confirming(), two_workers())
            .await
            .unwrap();
        let keys: Vec<String> = (0..10).map(|key| format!("k{key}")).collect();
        let fed = (0..30).map(|id| Fed {
            id,
            key: Some(&keys[id as usize % 10]),
            body: body(id, "default"),
        });
        feeder.feed(fed.collect());
        until("all is on disk", || feeder.all_settled().len() == 30).await;
        until("two run", || calls.load(Ordering::SeqCst) == 2).await;
        Self {
            router,
            feeder,
            go,
            calls,
            store,
        }
    }
}

/// Lanes that wait for workers of the source as it was ask those of the source as it is.
#[tokio::test(start_paused = true)]
async fn r17_lanes_that_wait_for_a_worker_go_on_when_their_source_is_made_anew() {
    let mut top = Stored::new(Duration::ZERO).await;
    top.go.add_permits(2);
    assert!(top.router.remove_source("s").await);
    assert!(top.feeder.is_gone());
    // What waits is back in its lanes, and the next two run.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(top.calls.load(Ordering::SeqCst), 4);
    let (source, feeder) = test_source("s");
    top.feeder = feeder;
    top.router
        .add_source("s", source.confirming(), two_workers())
        .await
        .unwrap();
    top.go.add_permits(100);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(top.calls.load(Ordering::SeqCst), 30);
    assert!(!top.store.parks_any());
}

/// Lanes that wait for a worker and would never be released are a stall, those that wait for
/// workers that are busy are none.
#[tokio::test(start_paused = true)]
async fn r17_a_lane_that_waits_for_a_free_worker_is_told_as_a_stall() {
    let stall = Duration::from_secs(120);
    let top = Stored::new(stall).await;
    let told = || {
        let problems = top.router.problems().into_iter();
        let of_pool = problems.filter(|p| p.trouble == Trouble::StalledPool("default".into()));
        of_pool.map(|problem| problem.text).next()
    };
    for _ in 0..10 {
        tokio::time::sleep(stall).await;
        assert_eq!(told(), None);
    }
    top.router.lose_waiting_lanes();
    top.go.add_permits(2);
    tokio::time::sleep(stall * 3 / 2).await;
    let text = told().expect("it is told");
    assert!(text.contains("a worker of source `s`"), "{text}");
    assert!(text.contains("key `k"), "{text}");
}
