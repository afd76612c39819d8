//! SIGHUP and `POST /api/v1/config/reload` (FC-10, R11).

use std::time::Duration;

use keylane_router::testing::{Answer, Target, fixed};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::server::{Folder, delivered, message, messages, most_together, within};

const RELOAD: &str = "/api/v1/config/reload";

fn in_pool(pool: &str, messages: Vec<Value>) -> Vec<Value> {
    let put = |mut message: Value| {
        message["poolCode"] = pool.into();
        message
    };
    messages.into_iter().map(put).collect()
}

#[tokio::test]
async fn new_limits_of_a_busy_pool_act_at_once() {
    let slow = fixed(Answer::ok().after(Duration::from_millis(500)));
    let target = Target::start(slow).await;
    let folder = Folder::with_config("[pools.a]\nconcurrency = 1\n");
    let server = folder.start().await;
    let keys = (1..=8).map(|n| message(&target, &format!("k{n}"), n));
    server.publish(in_pool("a", keys.collect())).await;
    within(target.recorder().ended(1)).await;
    assert_eq!(most_together(&target.recorder().all()), 1);

    folder.write_config("[pools.a]\nconcurrency = 8\n");
    server.process.signal(Signal::HUP);

    let events = within(target.recorder().ended(8)).await;
    assert!(most_together(&events) >= 4, "{}", most_together(&events));
    server.process.logs("generation=2").await;
}

#[tokio::test]
async fn a_pool_that_is_removed_while_busy_finishes_in_order() {
    let slow = fixed(Answer::ok().after(Duration::from_millis(50)));
    let target = Target::start(slow).await;
    let folder = Folder::with_config("[pools.a]\nconcurrency = 2\n");
    let server = folder.start().await;
    server
        .publish(in_pool("a", messages(&target, "k", 8)))
        .await;
    within(target.recorder().started(2)).await;

    folder.write_config("[pools.b]\nconcurrency = 2\n");
    assert_eq!(server.post(RELOAD).await.json(), json!({"generation": 2}));
    let late = (9..=10).map(|n| message(&target, "k", n));
    server.publish(in_pool("a", late.collect())).await;
    server
        .publish(in_pool("b", messages(&target, "b", 1)))
        .await;

    let events = within(target.recorder().ended(11)).await;
    assert_eq!(delivered(&events, "k"), (1..=10).collect::<Vec<_>>());
    let gone = |answer: &crate::http::Answer| !answer.text().contains("lanes{pool=\"a\"}");
    let metrics = server.until("/metrics", gone).await;
    assert!(metrics.text().contains("lanes{pool=\"b\"}"));
}

#[tokio::test]
async fn a_changed_source_hands_over_in_order() {
    let slow = fixed(Answer::ok().after(Duration::from_millis(20)));
    let target = Target::start(slow).await;
    let folder = Folder::with_config("[sources.default]\nwindow = 5\n");
    let server = folder.start().await;
    server.publish(messages(&target, "k", 30)).await;
    for window in 6..10_usize {
        within(target.recorder().started(window)).await;
        folder.write_config(&format!("[sources.default]\nwindow = {window}\n"));
        assert_eq!(server.post(RELOAD).await.status, 200);
    }
    let events = within(target.recorder().ended(30)).await;
    assert_eq!(delivered(&events, "k"), (1..=30).collect::<Vec<_>>());
    assert_eq!(most_together(&events), 1);
    server.empty().await;
}

#[tokio::test]
async fn sources_come_and_go() {
    let target = Target::always_ok().await;
    let strict = "[dev]\ncreate_queues = false\n[sources.default]\n";
    let folder = Folder::with_config(strict);
    let server = folder.start().await;
    let body = message(&target, "k", 1);
    server.publish_to("mail", &body).await.problem(404);

    folder.write_config(&format!("{strict}[sources.post]\nqueue = \"mail\"\n"));
    assert_eq!(server.post(RELOAD).await.status, 200);
    assert_eq!(server.publish_to("mail", &body).await.status, 202);
    within(target.recorder().ended(1)).await;

    // Another source of the same queue, under the name of one that reads another.
    let swapped = "[dev]\ncreate_queues = false\n[sources.default]\nqueue = \"mail\"\n[sources.post]\nqueue = \"default\"\n";
    folder.write_config(swapped);
    assert_eq!(server.post(RELOAD).await.status, 200);
    let body = message(&target, "k", 2);
    assert_eq!(server.publish_to("mail", &body).await.status, 202);
    within(target.recorder().ended(2)).await;

    folder.write_config(strict);
    assert_eq!(server.post(RELOAD).await.status, 200);
    let body = message(&target, "k", 3);
    server.publish_to("mail", &body).await.problem(404);
}

#[tokio::test]
async fn an_invalid_config_changes_nothing() {
    let target = Target::always_ok().await;
    let folder = Folder::with_config("[pools.a]\nconcurrency = 1\n");
    let server = folder.start().await;

    folder.write_config("lissten = 1\n[pools.a]\nconcurrency = \"x\"\n");
    let problem = server.post(RELOAD).await.problem(422);
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2, "{problem}");
    server.process.signal(Signal::HUP);
    let logged = || {
        let log = server.process.log();
        log.matches("the config was not reloaded: ").count()
    };
    within(async {
        while logged() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;

    server
        .publish(in_pool("a", messages(&target, "k", 3)))
        .await;
    let events = within(target.recorder().ended(3)).await;
    assert_eq!(delivered(&events, "k"), [1, 2, 3]);
    folder.write_config("[pools.a]\nconcurrency = 2\n");
    assert_eq!(server.post(RELOAD).await.json(), json!({"generation": 2}));
}

#[tokio::test]
async fn what_needs_a_restart_is_said() {
    let folder = Folder::with_config("store_budget = \"1GiB\"\n");
    let server = folder.start().await;
    folder.write_config("store_budget = \"2GiB\"\n");
    assert_eq!(server.post(RELOAD).await.status, 200);
    server.process.logs("needs a restart").await;
    assert!(server.process.log().contains("store_budget"));
}
