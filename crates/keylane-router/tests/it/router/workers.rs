//! `workers`: how much of one source runs at once, whatever the pools allow (GB-32 … GB-34).

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Plan, PoolPlan, SourcePlan};

use super::test_source::{Fed, test_source};

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
    router.add_source("s", source, source_plan).unwrap();
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
    router.add_source("s", source, plan).unwrap();
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
