//! R1, R2, R4: in order, through failures.

use std::time::Duration;

use keylane_router::Router;
use keylane_router::embedded::Db;
use keylane_router::history;
use keylane_router::source::Order;
use keylane_router::testing::{Answer, random};

use super::log::Log;
use super::test_source::test_source;
use super::top::{Top, quick_plan};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flaky_target_gets_every_key_in_order_and_nothing_is_lost() {
    let answers = vec![
        (70, Answer::ok()),
        (10, Answer::status(500)),
        (5, Answer::status(429).header("retry-after", "0")),
        (5, Answer::not_yet(0)),
        (5, Answer::ok().after(Duration::from_millis(3))),
        (3, Answer::Reset),
        (2, Answer::CutBody),
    ];
    let top = Top::new(quick_plan(), random(7, answers)).await;
    for n in 0..20 {
        let keys: Vec<String> = (0..50).map(|k| format!("key-{k}")).collect();
        let messages: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), n)).collect();
        top.publish_all(&messages).await;
    }
    top.drained().await;
    let report = top.check(&history::Options::default());
    assert!(report.is_green(), "{report:?}");
    assert_eq!(report.counts.published, 1000);
    top.router.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_a_source_does_not_promise_of_order_is_said_at_start_up() {
    for (order, said) in [
        (Order::Kept, None),
        (Order::AsItComes, Some("as they arrive")),
        (Order::NoKeys, Some("side by side")),
    ] {
        let (log, _here) = Log::start();
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Default::default()).unwrap();
        let (source, _feeder) = test_source("t");
        let router = Router::builder()
            .store(db.store())
            .source("t", source.ordered(order))
            .start()
            .await
            .unwrap();
        router.stop(Duration::from_secs(5)).await;
        let lines = log.with("promises no order");
        assert_eq!(lines.len(), usize::from(said.is_some()), "{lines:?}");
        assert!(said.is_none_or(|said| lines[0].contains(said)), "{lines:?}");
    }
}
