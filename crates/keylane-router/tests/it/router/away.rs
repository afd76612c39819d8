//! A source whose broker is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::health::Trouble;
use keylane_router::outcome::Outcome;
use tokio::time::Instant;

use super::log::Log;
use super::test_source::{Feeder, TestSource, test_source};
use super::top::quick_plan;

/// How long it tries before it says that nobody answers.
const TRIES: Duration = Duration::from_secs(15);

async fn started(
    change: impl FnOnce(TestSource) -> TestSource,
) -> (Router, Feeder, Arc<AtomicU64>) {
    let (source, feeder) = test_source("t");
    let source = change(source);
    let failed = source.failed.clone();
    let router = Router::builder()
        .plan(quick_plan())
        .store(MemoryStore::default())
        .dispatch(handler_fn(|_| async { Outcome::Delivered }))
        .source("t", source)
        .start()
        .await
        .unwrap();
    (router, feeder, failed)
}

fn is_troubled(router: &Router) -> bool {
    let mut problems = router.problems().into_iter();
    problems.any(|problem| problem.trouble == Trouble::Source("t".into()))
}

/// One that drops packets answers nobody: trying takes much longer than the first waits between.
#[tokio::test(start_paused = true)]
async fn while_a_source_tries_to_connect_it_is_not_well_and_the_log_says_so_once() {
    let (log, _here) = Log::start();
    let (router, _feeder, failed) = started(|source| source.away(8, TRIES)).await;
    let begun = Instant::now();
    tokio::time::sleep(TRIES + Duration::from_millis(1)).await;
    while failed.load(Ordering::SeqCst) < 8 {
        assert!(is_troubled(&router), "after {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The waits between grew: 0.1 s and its doubles, at least half of each.
    let waited = begun.elapsed() - 8 * TRIES;
    assert!(waited >= Duration::from_millis(6350), "{waited:?}");
    assert_eq!(log.with("nobody answers").len(), 1);
    router.stop(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_says_that_it_is_there_again_is_well_when_it_has_held_out() {
    let (router, _feeder, _) = started(|source| source.away(1, TRIES).saying_so()).await;
    tokio::time::sleep(TRIES + Duration::from_millis(1)).await;
    assert!(is_troubled(&router));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_troubled(&router));
    router.stop(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_says_nothing_is_well_when_it_has_tried_for_longer_than_any_does() {
    let (router, _feeder, _) = started(|source| source.away(1, TRIES)).await;
    tokio::time::sleep(TRIES + Duration::from_millis(1)).await;
    assert!(is_troubled(&router));
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(!is_troubled(&router));
    router.stop(Duration::from_secs(1)).await;
}
