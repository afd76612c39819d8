//! SIGTERM, once and twice (FC-18, R10).

use std::time::Duration;

use keylane_router::testing::{Answer, Target, fixed};
use rustix::process::Signal;

use crate::server::{Folder, delivered, message, messages, within};

#[tokio::test]
async fn a_stop_lets_running_attempts_finish_and_a_restart_delivers_the_rest() {
    let slow = fixed(Answer::ok().after(Duration::from_millis(300)));
    let target = Target::start(slow).await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(messages(&target, "k", 5)).await;
    within(target.recorder().started(1)).await;

    assert_eq!(server.stop().await, Some(0));

    let events = target.recorder().all();
    let before = delivered(&events, "k");
    assert!(!before.is_empty() && before.len() < 5, "{before:?}");
    assert_eq!(events.len(), 2 * before.len(), "none was cut");
    let server = folder.start().await;
    server.empty().await;
    // Each once, in order, over both runs.
    assert_eq!(delivered(&target.recorder().all(), "k"), [1, 2, 3, 4, 5]);
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn while_it_stops_nothing_is_taken_but_it_is_alive() {
    let target = Target::start(fixed(Answer::Hang)).await;
    let folder = Folder::new();
    let mut server = folder.start().await;
    server.publish(vec![message(&target, "k", 1)]).await;
    within(target.recorder().started(1)).await;

    server.process.signal(Signal::TERM);

    let not_ready = server.until("/readyz", |answer| answer.status == 503).await;
    assert!(not_ready.text().contains("stopping"));
    let refused = server
        .publish_to("default", &message(&target, "k", 2))
        .await;
    refused.problem(503);
    assert!(refused.header("retry-after").is_some());
    server.post("/api/seed/messages").await.problem(503);
    assert_eq!(server.get("/livez").await.status, 200);

    // The default deadline is 30 s: only the cut ends it before that.
    server.process.signal(Signal::INT);
    let ended = tokio::time::timeout(Duration::from_secs(15), server.process.ended()).await;
    assert_eq!(ended, Ok(Some(0)), "{}", server.process.log());

    let _server = folder.start().await;
    let events = within(target.recorder().started(2)).await;
    assert_eq!(events.last().unwrap().number, Some(1));
}

#[tokio::test]
async fn the_deadline_of_a_stop_cuts_what_still_runs() {
    let target = Target::start(fixed(Answer::Hang)).await;
    let folder = Folder::with_config("stop_deadline = \"200ms\"\n");
    let server = folder.start().await;
    server.publish(messages(&target, "k", 2)).await;
    within(target.recorder().started(1)).await;
    assert_eq!(server.stop().await, Some(0));

    let _server = folder.start().await;
    let events = within(target.recorder().started(2)).await;
    assert_eq!(events.last().unwrap().number, Some(1));
}

#[tokio::test]
async fn after_kill_9_nothing_is_lost_and_order_holds() {
    let slow = fixed(Answer::ok().after(Duration::from_millis(20)));
    let target = Target::start(slow).await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(messages(&target, "k", 20)).await;
    within(target.recorder().ended(5)).await;
    server.kill().await;

    let server = folder.start().await;
    server.empty().await;

    let mut got = delivered(&target.recorder().all(), "k");
    let repeated = got.len() - 20;
    assert!(repeated <= 2, "{got:?}");
    got.dedup();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, (1..=20).collect::<Vec<_>>(), "{got:?}");
}
