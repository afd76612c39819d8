//! A panic of a source or a dispatch is told of, and everything goes on.

use std::sync::Arc;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Attempt, Dispatch, handler_fn};
use keylane_router::health::Trouble;
use keylane_router::message::Message;
use keylane_router::outcome::Outcome;

use super::test_source::{Fed, test_source};
use super::top::{body, quick_plan, until};

fn fed(id: u64) -> Fed<'static> {
    Fed {
        id,
        key: Some("k"),
        body: body("http://127.0.0.1:1/", &id.to_string()),
    }
}

#[tokio::test]
async fn a_source_whose_receive_panics_is_told_of_and_read_again() {
    let (source, feeder) = test_source("t");
    let builder = Router::builder().plan(quick_plan());
    let builder = builder.store(MemoryStore::default());
    let builder = builder.dispatch(handler_fn(|_| async { Outcome::Delivered }));
    let router = builder.source("t", source.panicking(2));
    let router = router.start().await.unwrap();
    feeder.feed(vec![fed(1)]);
    until("it is told of", || {
        let problems = router.problems();
        let of_it = problems
            .iter()
            .find(|p| p.trouble == Trouble::Source("t".into()));
        of_it.is_some_and(|problem| problem.text.contains("a receive that goes wrong"))
    })
    .await;
    feeder.settled(1).await;
    until("all is well", || router.problems().is_empty()).await;
    router.stop(Duration::from_secs(5)).await;
}

/// Knows no origin.
struct NoOrigin;

impl Dispatch for NoOrigin {
    async fn attempt<'a>(&'a self, _: &'a Message, _: &'a Attempt) -> Outcome {
        Outcome::Delivered
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        panic!("the origin of {target} cannot be told");
    }
}

#[tokio::test]
async fn a_dispatch_that_panics_over_an_origin_keeps_no_message_from_being_delivered() {
    let (source, feeder) = test_source("t");
    let builder = Router::builder().plan(quick_plan());
    let builder = builder.store(MemoryStore::default()).dispatch(NoOrigin);
    let router = builder.source("t", source).start().await.unwrap();
    feeder.feed(vec![fed(1), fed(2)]);
    feeder.feed(vec![fed(3)]);
    feeder.settled(3).await;
    router.stop(Duration::from_secs(5)).await;
}
