//! The failure table of the design, a test per row, over real HTTP. R2, R8.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use keylane_router::health::{Problem, Trouble};
use keylane_router::plan::{OnExhausted, OnRefused, Plan};
use keylane_router::store::{LaneName, Store};
use keylane_router::testing::{Answer, Behaviour, Request};

use super::top::{Top, ill_while, quick_plan, until};

/// Gives these answers, one per request, then 200.
fn answers(script: Vec<Answer>) -> impl Behaviour {
    let next = AtomicUsize::new(0);
    move |_: &Request| {
        let at = next.fetch_add(1, Ordering::SeqCst);
        script.get(at).cloned().unwrap_or_else(Answer::ok)
    }
}

/// Publishes 1 and 2 of one key; the target gives these answers to whatever comes first.
async fn after(plan: Plan, script: Vec<Answer>) -> Top {
    let top = Top::new(plan, answers(script)).await;
    top.publish_all(&[("g", 1), ("g", 2)]).await;
    top.drained().await;
    assert!(top.is_green());
    top
}

async fn letters(top: &Top) -> Vec<(String, usize)> {
    let letters = top.db.store().dead_letters(0, 100).await.unwrap();
    letters
        .into_iter()
        .map(|letter| (letter.reason, letter.attempts.len()))
        .collect()
}

#[tokio::test]
async fn any_2xx_without_ack_false_is_delivered() {
    for answer in [
        Answer::status(200),
        Answer::status(204),
        Answer::status(202).body("not json"),
        Answer::ok().body(vec![b'x'; 200_000]),
        Answer::ok().body(r#"{"ack":true}"#),
    ] {
        let top = after(quick_plan(), vec![answer]).await;
        assert_eq!(top.starts("g"), [1, 2]);
    }
}

#[tokio::test]
async fn not_yet_holds_the_lane_and_uses_no_attempt() {
    let many = vec![Answer::not_yet(0); 5];
    let top = after(quick_plan(), many).await;
    assert_eq!(top.starts("g"), [1, 1, 1, 1, 1, 1, 2]);
    assert_eq!(top.counters().attempts_not_yet.get(), 5);
    assert_eq!(top.counters().returned.get(), 0);
}

#[tokio::test]
async fn busy_holds_the_lane_and_uses_no_attempt() {
    let retry_after = |code| Answer::status(code).header("retry-after", "0");
    let busy = vec![
        Answer::status(408),
        Answer::status(425),
        Answer::status(429),
        retry_after(429),
        retry_after(503),
    ];
    let top = after(quick_plan(), busy).await;
    assert_eq!(top.starts("g"), [1, 1, 1, 1, 1, 1, 2]);
    assert_eq!(top.counters().attempts_busy.get(), 5);
    assert_eq!(top.counters().returned.get(), 0);
}

#[tokio::test]
async fn failures_are_retried_in_place() {
    for answer in [
        Answer::status(500),
        Answer::status(503),
        Answer::status(302).header("location", "http://127.0.0.1:1/"),
        Answer::status(421),
        Answer::status(401),
        Answer::status(403),
        Answer::status(404),
        Answer::status(407),
        Answer::status(410),
        Answer::Reset,
        Answer::CutBody,
        Answer::Hang,
        Answer::SlowBody,
    ] {
        let top = after(quick_plan(), vec![answer.clone()]).await;
        assert_eq!(top.starts("g"), [1, 1, 2], "{answer:?}");
        assert_eq!(top.counters().attempts_failed.get(), 1, "{answer:?}");
    }
}

#[tokio::test]
async fn a_target_that_cannot_be_reached_is_a_failure() {
    let top = Top::new(quick_plan(), answers(Vec::new())).await;
    let nobody = "http://127.0.0.1:1/";
    let message = super::top::message(nobody, "g", 1);
    top.db
        .publish("default", vec![message], true)
        .await
        .unwrap();
    until("it has gone on", || {
        top.counters().attempts_failed.get() >= 3
    })
    .await;
    top.router.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_refused_message_is_a_dead_letter_and_its_key_goes_on() {
    for code in [400, 405, 422, 501] {
        let top = after(quick_plan(), vec![Answer::status(code).body("no")]).await;
        assert_eq!(top.starts("g"), [1, 2]);
        assert_eq!(letters(&top).await, [("refused".to_owned(), 1)]);
        let letter = &top.db.store().dead_letters(0, 1).await.unwrap()[0];
        assert_eq!(letter.attempts[0].answer, b"no");
        assert_eq!(&*letter.message.identity.source, "default");
    }
}

#[tokio::test]
async fn a_target_that_is_not_allowed_and_an_unknown_mediation_type_are_refused() {
    let top = Top::new(quick_plan(), answers(Vec::new())).await;
    for (id, target, kind) in [
        ("a", "ftp://x/", "HTTP"),
        ("b", "http://127.0.0.1:1/", "FAX"),
    ] {
        let body =
            format!(r#"{{"id":"{id}","mediationTarget":"{target}","mediationType":"{kind}"}}"#);
        let message = keylane_router::embedded::NewMessage::new(id, Some("g".into()), body);
        top.db
            .publish("default", vec![message], true)
            .await
            .unwrap();
    }
    top.drained().await;
    let reasons: Vec<String> = letters(&top)
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
}

#[tokio::test]
async fn on_refused_retry_tries_again_and_drop_forgets() {
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().on_refused = OnRefused::Retry;
    let top = after(plan.clone(), vec![Answer::status(400)]).await;
    assert_eq!(top.starts("g"), [1, 1, 2]);
    plan.pools.get_mut("default").unwrap().on_refused = OnRefused::Drop;
    let top = Top::new(plan, answers(vec![Answer::status(400)])).await;
    top.publish_all(&[("g", 1), ("g", 2)]).await;
    top.drained().await;
    assert_eq!(top.starts("g"), [1, 2]);
    assert_eq!(top.counters().dropped.get(), 1);
    assert_eq!(letters(&top).await, []);
}

#[tokio::test]
async fn a_body_that_does_not_parse_is_a_dead_letter_and_blocks_nobody() {
    let top = Top::new(quick_plan(), answers(Vec::new())).await;
    let broken = keylane_router::embedded::NewMessage::new("x", Some("g".into()), "{not json");
    top.db.publish("default", vec![broken], true).await.unwrap();
    top.publish("g", 1).await;
    top.drained().await;
    assert_eq!(top.starts("g"), [1]);
    let letter = &top.db.store().dead_letters(0, 1).await.unwrap()[0];
    assert_eq!(
        (letter.reason.as_str(), &letter.message.body[..]),
        ("malformed", &b"{not json"[..])
    );
}

#[tokio::test]
async fn a_message_larger_than_the_pool_takes_is_a_dead_letter() {
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().max_message = 300;
    let top = Top::new(plan, answers(Vec::new())).await;
    let url = top.target.url("/");
    let body = format!(
        r#"{{"id":"x","mediationTarget":"{url}","payload":"{}"}}"#,
        "y".repeat(400)
    );
    let large = keylane_router::embedded::NewMessage::new("x", Some("g".into()), body);
    top.db.publish("default", vec![large], true).await.unwrap();
    top.publish("g", 1).await;
    top.drained().await;
    assert_eq!(letters(&top).await, [("too-large".to_owned(), 0)]);
}

fn exhausted(policy: OnExhausted) -> Plan {
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().on_exhausted = policy;
    plan
}

#[tokio::test]
async fn exhausted_return_gives_the_key_back_and_begins_a_new_round() {
    let policy = OnExhausted::Return;
    let top = after(exhausted(policy), vec![Answer::status(500); 4]).await;
    assert_eq!(top.starts("g"), [1, 1, 1, 1, 1, 2]);
    assert_eq!(top.counters().returned.get(), 2);
}

#[tokio::test]
async fn exhausted_dead_letter_stores_the_head_and_the_lane_goes_on() {
    let policy = OnExhausted::DeadLetter;
    let top = after(exhausted(policy), vec![Answer::status(500); 3]).await;
    assert_eq!(top.starts("g"), [1, 1, 1, 2]);
    assert_eq!(letters(&top).await, [("exhausted".to_owned(), 3)]);
}

#[tokio::test]
async fn exhausted_block_retries_for_ever_and_those_behind_wait() {
    // Unset, that is the policy.
    for plan in [quick_plan(), exhausted(OnExhausted::Block)] {
        let top = after(plan, vec![Answer::status(500); 7]).await;
        assert_eq!(top.starts("g"), [1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(top.counters().returned.get(), 0);
    }
}

#[tokio::test]
async fn a_blocked_key_is_an_alert_until_its_head_is_resolved() {
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(exhausted(OnExhausted::Block), ill_while(&ill)).await;
    top.publish_all(&[("g", 1), ("h", 1)]).await;
    until("both are blocked", || top.router.pools()[0].blocked == 2).await;
    let problems = top.router.problems();
    let [Problem { trouble, text, .. }] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!(*trouble, Trouble::BlockedKey("default".into()));
    assert!(
        text.contains("key `g`") && text.contains("1 other"),
        "{text}"
    );
    ill.store(false, Ordering::SeqCst);
    top.drained().await;
    until("it is over", || top.router.problems().is_empty()).await;
    assert_eq!(top.router.pools()[0].blocked, 0);
}

#[tokio::test]
async fn exhausted_park_stores_the_key_whole() {
    let policy = OnExhausted::Park;
    let top = Top::new(exhausted(policy), answers(vec![Answer::status(500); 3])).await;
    top.publish_all(&[("g", 1), ("g", 2)]).await;
    top.drained().await;
    assert_eq!(top.starts("g"), [1, 1, 1]);
    let lane = LaneName::keyed("default", "default", "g");
    let parked = top.db.store().parked_lane(&lane).unwrap();
    assert_eq!((parked.messages, parked.replaying), (2, false));
}

#[tokio::test]
async fn r2_a_store_that_cannot_be_written_holds_the_lane_and_recovers() {
    let refuses = |request: &Request| match request.number {
        Some(1) if request.key == "g" => Answer::status(400),
        _ => Answer::ok(),
    };
    let top = Top::new(quick_plan(), refuses).await;
    top.publish_all(&[("g", 1), ("g", 2)]).await;
    top.db.test_pragma("PRAGMA query_only = ON").await.unwrap();
    until("the trouble is known", || !top.router.problems().is_empty()).await;
    assert_eq!(top.starts("g"), [1], "nothing of the key goes on");
    assert_eq!(top.db.queues()[0].depth, 2, "and nothing was acked");
    top.db.test_pragma("PRAGMA query_only = OFF").await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("g"), [1, 2]);
    assert_eq!(letters(&top).await.len(), 1);
    until("the trouble is over", || top.router.problems().is_empty()).await;
}
