//! R1, R2, R4: in order, through failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::embedded::{Db, NewMessage};
use keylane_router::history::{self, By, Event, EventKind};
use keylane_router::source::Order;
use keylane_router::testing::{Answer, Request, random};

use super::log::Log;
use super::test_source::test_source;
use super::top::{Top, quick_plan, until};

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

#[tokio::test]
async fn fc_6_messages_without_a_group_run_one_at_a_time_and_default_is_a_key_like_any_other() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = open.clone();
    let top = Top::new(quick_plan(), move |request: &Request| {
        match request.key != "none" || is_open.load(Ordering::SeqCst) {
            true => Answer::ok(),
            false => Answer::not_yet(0),
        }
    })
    .await;
    let url = top.target.url("/");
    // Absent, null and blank.
    let groups = ["", r#","messageGroupId":null"#, r#","messageGroupId":"  ""#];
    let mut messages = Vec::new();
    for (n, group) in (1..).zip(groups) {
        let line = Event::of("none", n, EventKind::Publish, By::Producer);
        top.history.record(line).unwrap();
        let body = format!(
            r#"{{"id":"none-{n}","mediationTarget":"{url}"{group},"payload":{{"k":"none","n":{n}}}}}"#
        );
        messages.push(NewMessage::new(format!("none-{n}"), None, body));
    }
    top.db.publish("default", messages, true).await.unwrap();
    top.publish("__DEFAULT__", 1).await;
    until("the key goes on", || top.starts("__DEFAULT__") == [1]).await;
    until("the first is tried", || !top.starts("none").is_empty()).await;
    assert!(top.starts("none").iter().all(|n| *n == 1));
    open.store(true, Ordering::SeqCst);
    top.drained().await;
    assert!(top.is_green());
}
