//! `examples/as-flowcatalyst.toml` behaves as the original (FC-1, FC-2). FC-3 needs two batches of
//! one key at once, which the embedded queue never hands out: `src/config/as_flowcatalyst.rs` has it.

use std::sync::atomic::{AtomicBool, Ordering};

use keylane_router::testing::{Answer, EventKind, Events, Request, Target};
use serde_json::json;

use crate::server::{Folder, messages};

const EXAMPLE: &str = include_str!("../../examples/as-flowcatalyst.toml");

/// The example, with waits that suit a test.
fn example() -> Folder {
    let quick = "concurrency = 20\nreturn_delay = \"20ms\"\ntimeout.first_byte = \"300ms\"";
    assert_eq!(EXAMPLE.matches("concurrency = 20").count(), 1);
    Folder::with_config(&EXAMPLE.replace("concurrency = 20", quick))
}

/// Fails the first attempt of one message, and no other.
async fn failing_once(number: u64, answer: Answer) -> Target<Events> {
    let done = AtomicBool::new(false);
    let behaviour = move |request: &Request| {
        let this = request.key == "g" && request.number == Some(number);
        if this && !done.swap(true, Ordering::SeqCst) {
            answer.clone()
        } else {
            Answer::ok()
        }
    };
    Target::start(behaviour).await
}

fn starts(target: &Target<Events>, key: &str) -> Vec<u64> {
    let events = target.recorder().all();
    let of_key = events
        .iter()
        .filter(|event| event.kind == EventKind::Start && event.key == key);
    of_key.filter_map(|event| event.number).collect()
}

#[tokio::test]
async fn fc_1_the_second_of_three_fails_and_goes_back_with_the_third() {
    let target = failing_once(2, Answer::status(500)).await;
    let folder = example();
    let server = folder.start().await;
    let mut all = messages(&target, "g", 3);
    all.extend(messages(&target, "other", 3));
    server.publish(all).await;
    server.empty().await;
    assert_eq!(starts(&target, "g"), [1, 2, 2, 3]);
    assert_eq!(starts(&target, "other"), [1, 2, 3]);
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn fc_2_the_third_of_five_times_out_and_three_go_back() {
    let target = failing_once(3, Answer::Hang).await;
    let folder = example();
    let server = folder.start().await;
    server.publish(messages(&target, "g", 5)).await;
    server.empty().await;
    assert_eq!(starts(&target, "g"), [1, 2, 3, 3, 4, 5]);
    let metrics = server.get("/metrics").await.text().to_owned();
    assert!(metrics.contains("outcome=\"returned\"} 3"), "{metrics}");
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn fc_19_which_messages_are_held_here() {
    let held = |_: &Request| Answer::not_yet(3600);
    let target = Target::start(held).await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(messages(&target, "g", 2)).await;
    let ask = "/api/v1/in-flight?id=g-1&id=nobody&id=g-2";
    let both = |answer: &crate::http::Answer| answer.json()["held"] == json!(["g-1", "g-2"]);
    let answer = server.until(ask, both).await.json();
    assert_eq!(answer["notHeld"], json!(["nobody"]));
    assert_eq!(answer["stored"], json!(0));
    for wrong in ["/api/v1/in-flight", "/api/v1/in-flight?name=g-1"] {
        let problem = server.get(wrong).await.problem(400);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("?id="), "{detail}");
    }
}

#[tokio::test]
async fn fc_19_what_is_delivered_is_no_longer_held() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(messages(&target, "g", 1)).await;
    server.empty().await;
    let gone = |answer: &crate::http::Answer| answer.json()["held"] == json!([]);
    server.until("/api/v1/in-flight?id=g-1", gone).await;
}

#[tokio::test]
async fn fc_19_the_answer_says_how_many_are_stored_and_were_not_looked_through() {
    let target = Target::start(|_: &Request| Answer::status(500)).await;
    let folder = Folder::with_config(
        "[pools.default]\non_exhausted = \"park\"\n[pools.default.retry]\nmax_attempts = 1\n",
    );
    let server = folder.start().await;
    server.publish(messages(&target, "g", 2)).await;
    // The source hears of it after it is stored.
    let stored = |answer: &crate::http::Answer| {
        let answer = answer.json();
        answer["stored"] == json!(2) && answer["notHeld"] == json!(["g-1"])
    };
    server.until("/api/v1/in-flight?id=g-1", stored).await;
}
