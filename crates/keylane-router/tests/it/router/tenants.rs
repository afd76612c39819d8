//! Tenants take turns, however many messages each of them has waiting.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Plan, SourcePlan};
use tokio::sync::Semaphore;

use super::test_source::{Fed, Feeder, test_source};
use super::top::until;
use crate::took_turns;

const MANY: u64 = 1000;
const FEW: u64 = 10;

/// Has many messages of one tenant wait for one place to run in, and then few of another; answers
/// in which order they were started, by the first letters of their ids.
async fn starts(feed: impl Fn(&Feeder, &str, std::ops::RangeInclusive<u64>)) -> String {
    let (source, feeder) = test_source("s");
    let started = Arc::new(Mutex::new(String::new()));
    let may_go = Arc::new(Semaphore::new(0));
    let (noted, gate) = (started.clone(), may_go.clone());
    let dispatch = handler_fn(move |message| {
        noted.lock().unwrap().push_str(&message.id[..1]);
        let gate = gate.clone();
        async move {
            let _ = gate.acquire().await.unwrap();
            Outcome::Delivered
        }
    });
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.concurrency = Some(NonZeroUsize::MIN);
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .start()
        .await
        .unwrap();
    let source_plan = SourcePlan {
        window: NonZeroUsize::new(2 * MANY as usize).unwrap(),
        ..SourcePlan::custom()
    };
    router.add_source("s", source, source_plan).await.unwrap();
    feed(&feeder, "a", 1..=MANY);
    feed(&feeder, "b", MANY + 1..=MANY + FEW);
    let waiting = (MANY + FEW) as usize - 1;
    until("all wait", || router.pools()[0].queued == waiting).await;
    may_go.add_permits(1);
    feeder.settled(waiting + 1).await;
    router.stop(Duration::from_secs(1)).await;
    started.lock().unwrap().clone()
}

fn body(tenant: &str, id: u64, more: &str) -> String {
    format!(r#"{{"id":"{tenant}{id}","mediationTarget":"http://unused.example/"{more}}}"#)
}

#[tokio::test(start_paused = true)]
async fn tenants_that_the_source_names_take_turns_whatever_each_has_waiting() {
    let starts = starts(|feeder, tenant, ids| {
        let fed = ids.map(|id| Fed {
            id,
            key: None,
            // The broker's word wins.
            body: body(tenant, id, r#","tenant":"somebody""#),
        });
        feeder.feed_of(Some(tenant), fed.collect());
    })
    .await;
    assert!(took_turns(&starts, FEW as usize), "{starts}");
}

#[tokio::test(start_paused = true)]
async fn so_do_tenants_that_publishers_name_for_keyless_messages() {
    let starts = starts(|feeder, tenant, ids| {
        let named = format!(r#","tenant":"{tenant}""#);
        let fed = ids.map(|id| Fed {
            id,
            key: None,
            body: body(tenant, id, &named),
        });
        feeder.feed(fed.collect());
    })
    .await;
    assert!(took_turns(&starts, FEW as usize), "{starts}");
}

#[tokio::test(start_paused = true)]
async fn those_without_a_tenant_are_one_beside_the_others() {
    let starts = starts(|feeder, tenant, ids| {
        let fed = ids.map(|id| Fed {
            id,
            key: None,
            body: body(tenant, id, ""),
        });
        feeder.feed_of(Some(tenant).filter(|tenant| *tenant == "b"), fed.collect());
    })
    .await;
    assert!(took_turns(&starts, FEW as usize), "{starts}");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_of_no_tenant_that_a_publisher_names() {
    let starts = starts(|feeder, tenant, ids| {
        let named = format!(r#","tenant":"{tenant}""#);
        for id in ids {
            let key = id.to_string();
            feeder.feed(vec![Fed {
                id,
                key: Some(&key),
                body: body(tenant, id, &named),
            }]);
        }
    })
    .await;
    let keys_in_turn = "a".repeat(MANY as usize) + &"b".repeat(FEW as usize);
    assert_eq!(starts, keys_in_turn);
}
