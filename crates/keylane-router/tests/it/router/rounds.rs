//! FC-4 and FC-6: how long it takes, counted in rounds on a clock that stands still while work
//! goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::Outcome;
use keylane_router::plan::Plan;
use std::num::NonZeroUsize;
use tokio::time::Instant;

use super::test_source::{Fed, Feeder, TestSource, test_source};
use super::top::body;

const TARGET_TAKES: Duration = Duration::from_millis(100);

struct Timed {
    feeder: Feeder,
    most_at_once: Arc<AtomicUsize>,
}

async fn timed(workers: usize, source: fn(TestSource) -> TestSource) -> Timed {
    let (test, feeder) = test_source("t");
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let most_at_once = most.clone();
    let dispatch = handler_fn(move |_| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(TARGET_TAKES).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Outcome::Delivered
        }
    });
    let mut plan = Plan::default();
    plan.pools.get_mut("default").unwrap().concurrency = NonZeroUsize::new(workers);
    let builder = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch);
    builder.source("t", source(test)).start().await.unwrap();
    Timed {
        feeder,
        most_at_once,
    }
}

/// How many rounds the messages take; `key` names the key of each.
async fn rounds(timed: &Timed, count: u64, key: impl Fn(u64) -> Option<String>) -> u128 {
    let keys: Vec<Option<String>> = (0..count).map(key).collect();
    let fed = |id: u64| Fed {
        id,
        key: keys[id as usize].as_deref(),
        body: body("http://127.0.0.1:1/", &id.to_string()),
    };
    let started = Instant::now();
    timed.feeder.feed((0..count).map(fed).collect());
    timed.feeder.settled(count as usize).await;
    // The clock moves only from timer to timer, and the only timers are the target's: whole
    // rounds, but for the millisecond to which timers are rounded up.
    started.elapsed().as_millis() / TARGET_TAKES.as_millis()
}

#[tokio::test(start_paused = true)]
async fn fc_4_a_hundred_messages_take_as_many_rounds_as_keys_and_workers_allow() {
    for (keys, expected) in [(1, 100), (5, 20), (10, 10), (100, 10)] {
        let timed = timed(10, |source| source).await;
        let key = |n: u64| Some(format!("group-{}", n % keys));
        assert_eq!(rounds(&timed, 100, key).await, expected, "{keys} keys");
    }
}

#[tokio::test(start_paused = true)]
async fn fc_4_fifteen_keys_of_ten_share_ten_workers_in_fifteen_rounds() {
    let timed = timed(10, |source| source).await;
    // One key after the other, as they were published: a scan from the start needs 20 rounds.
    let key = |n: u64| Some(format!("group-{}", n / 10));
    assert_eq!(rounds(&timed, 150, key).await, 15);
}

#[tokio::test(start_paused = true)]
async fn fc_6_keyless_messages_run_one_at_a_time_or_side_by_side_as_the_source_says() {
    let serial = timed(10, TestSource::serial).await;
    assert_eq!(rounds(&serial, 10, |_| None).await, 10);
    assert_eq!(serial.most_at_once.load(Ordering::SeqCst), 1);
    let parallel = timed(10, |source| source).await;
    assert_eq!(rounds(&parallel, 10, |_| None).await, 1);
    assert_eq!(parallel.most_at_once.load(Ordering::SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn fc_6_a_blank_key_is_keyless_and_a_key_called_default_is_a_key() {
    let timed = timed(10, TestSource::serial).await;
    let key =
        |n: u64| [None, Some(" ".to_owned()), Some("__DEFAULT__".to_owned())][n as usize].clone();
    assert_eq!(rounds(&timed, 3, key).await, 2);
}
