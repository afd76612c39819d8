//! FC-18 and restarts: stop gives everything back in order, attempts and pauses survive. R8, R10,
//! R13.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keylane_router::plan::{OnExhausted, Plan, SourcePlan};
use keylane_router::store::{LaneName, Store};
use keylane_router::testing::{Answer, Request, fixed};
use keylane_router::{By, Router, VerbError};

use super::top::{Top, ill_while, quick_plan, start, until};

fn lane(key: &str) -> LaneName {
    LaneName::keyed("default", "default", key)
}

fn by() -> By {
    By {
        who: "ada".to_owned(),
        why: "a test".to_owned(),
    }
}

#[tokio::test]
async fn fc_18_a_stop_finishes_what_runs_returns_the_rest_and_a_restart_goes_on_in_order() {
    let slow = |_: &Request| Answer::ok().after(Duration::from_millis(30));
    let mut top = Top::new(quick_plan(), slow).await;
    let messages: Vec<(&str, u64)> = (1..=5).flat_map(|n| [("a", n), ("b", n)]).collect();
    top.publish_all(&messages).await;
    until("it has gone on", || {
        !top.starts("a").is_empty() && !top.starts("b").is_empty()
    })
    .await;
    top.router.stop(Duration::from_secs(5)).await;
    let before = top.starts("a").len() + top.starts("b").len();
    assert_eq!(
        top.counters().delivered.get() as usize,
        before,
        "what ran finished"
    );
    assert!(before < 10, "and nothing was started after the signal");
    let left = top.db.queues()[0].clone();
    assert_eq!((left.depth as usize, left.out), (10 - before, 0));
    top.router = start(&top.db, quick_plan(), top.history.clone()).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 2, 3, 4, 5]);
    assert!(top.is_green());
}

#[tokio::test]
async fn the_deadline_of_a_stop_cuts_what_runs_and_gives_it_back() {
    let hang = Arc::new(AtomicBool::new(true));
    let answers = {
        let hang = hang.clone();
        move |_: &Request| match hang.load(Ordering::SeqCst) {
            true => Answer::Hang,
            false => Answer::ok(),
        }
    };
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().timeout.first_byte = Duration::from_secs(60);
    plan.pools.get_mut("default").unwrap().timeout.total = Duration::from_secs(60);
    let mut top = Top::new(plan.clone(), answers).await;
    top.publish_all(&[("a", 1), ("a", 2), ("b", 1)]).await;
    until("it has gone on", || {
        !top.starts("a").is_empty() && !top.starts("b").is_empty()
    })
    .await;
    top.router.stop(Duration::from_millis(10)).await;
    let left = top.db.queues()[0].clone();
    assert_eq!((left.depth, left.out), (3, 0));
    assert_eq!(top.counters().attempts_cut.get(), 2);
    hang.store(false, Ordering::SeqCst);
    top.router = start(&top.db, plan, top.history.clone()).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 2]);
}

#[tokio::test]
async fn failed_attempts_survive_a_restart() {
    let attempts = Arc::new(AtomicU64::new(0));
    let seen = attempts.clone();
    let answers = move |request: &Request| {
        seen.store(u64::from(request.attempt), Ordering::SeqCst);
        if request.attempt < 3 {
            Answer::status(500)
        } else {
            Answer::ok()
        }
    };
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.initial = Duration::from_secs(60);
    pool.retry.max = Duration::from_secs(60);
    let mut top = Top::new(plan, answers).await;
    top.publish("a", 1).await;
    until("it has gone on", || {
        top.counters().attempts_failed.get() >= 1
    })
    .await;
    top.router.stop(Duration::from_secs(1)).await;
    top.router = start(&top.db, quick_plan(), top.history.clone()).await;
    top.drained().await;
    assert_eq!(
        top.starts("a").len(),
        3,
        "the second attempt came after the restart"
    );
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
}

fn parking() -> Plan {
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().on_exhausted = OnExhausted::Park;
    plan
}

/// A key "a" whose 1 … 3 are parked because its target was ill; it is well now.
async fn parked() -> Top {
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(parking(), ill_while(&ill)).await;
    top.publish_all(&[("a", 1), ("a", 2), ("a", 3)]).await;
    top.drained().await;
    ill.store(false, Ordering::SeqCst);
    top
}

async fn unparked(top: &Top) {
    until("it has gone on", || {
        top.db.store().parked_lane(&lane("a")).is_none()
    })
    .await;
}

#[tokio::test]
async fn r7_what_arrives_for_a_parked_key_goes_behind_and_a_replay_comes_before_anything_newer() {
    let top = parked().await;
    top.publish_all(&[("a", 4), ("a", 5), ("b", 1)]).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 1]);
    assert_eq!(top.starts("b"), [1]);
    assert_eq!(top.db.store().parked_lane(&lane("a")).unwrap().messages, 5);
    top.router.replay(lane("a"), by()).await.unwrap();
    top.publish("a", 6).await;
    unparked(&top).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 1, 1, 2, 3, 4, 5, 6]);
    assert!(top.is_green());
    let verbs: Vec<String> = top
        .db
        .store()
        .audit_log(10)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.verb)
        .collect();
    assert!(verbs.contains(&"replay".to_owned()), "{verbs:?}");
}

#[tokio::test]
async fn a_parked_key_survives_a_restart_and_so_does_its_replay() {
    let mut top = parked().await;
    top.router.stop(Duration::from_secs(1)).await;
    top.router = start(&top.db, parking(), top.history.clone()).await;
    top.publish("a", 4).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 1]);
    top.router.replay(lane("a"), by()).await.unwrap();
    unparked(&top).await;
    assert_eq!(top.starts("a"), [1, 1, 1, 1, 2, 3, 4]);
}

#[tokio::test]
async fn r13_skip_means_one_message_and_another_head_is_a_conflict() {
    let top = parked().await;
    let rows = top.db.store().parked_rows(lane("a"), 0, 10).await.unwrap();
    let (first, second) = (
        rows[0].message.identity.clone(),
        rows[1].message.identity.clone(),
    );
    let refused = top.router.skip(lane("a"), second, by()).await;
    assert_eq!(refused, Err(keylane_router::VerbError::Conflict));
    top.router.skip(lane("a"), first, by()).await.unwrap();
    top.router.replay(lane("a"), by()).await.unwrap();
    unparked(&top).await;
    assert_eq!(top.starts("a"), [1, 1, 1, 2, 3]);
    let letter = &top.db.store().dead_letters(0, 1).await.unwrap()[0];
    assert_eq!(letter.reason, "skipped");
    assert!(letter.text.contains("ada"), "{}", letter.text);
}

#[tokio::test]
async fn a_held_head_can_be_skipped_and_the_lane_goes_on() {
    let first = |request: &Request| match request.number {
        Some(1) => Answer::not_yet(3000),
        _ => Answer::ok(),
    };
    let top = Top::new(quick_plan(), first).await;
    top.publish_all(&[("a", 1), ("a", 2)]).await;
    until("it has gone on", || {
        top.counters().attempts_not_yet.get() >= 1 && top.router.pools()[0].in_flight == 0
    })
    .await;
    let identity = keylane_router::message::Identity {
        source: "default".into(),
        id: keylane_router::message::BrokerId::Sequence(1),
    };
    top.router.skip(lane("a"), identity, by()).await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 2]);
    assert_eq!(top.counters().skipped.get(), 1);
}

#[tokio::test]
async fn dropping_a_parked_key_deletes_it_and_says_so_in_the_audit_log() {
    let top = parked().await;
    assert_eq!(top.router.drop_parked(lane("a"), by()).await.unwrap(), 3);
    top.publish("a", 4).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 1, 4]);
    let entry = &top.db.store().audit_log(1).await.unwrap()[0];
    assert_eq!((entry.verb.as_str(), entry.who.as_str()), ("drop", "ada"));
}

#[tokio::test]
async fn an_operator_parks_a_key_by_hand() {
    let top = Top::new(quick_plan(), |_: &Request| Answer::not_yet(3000)).await;
    top.publish_all(&[("a", 1), ("a", 2)]).await;
    until("it has gone on", || {
        top.counters().attempts_not_yet.get() >= 1 && top.router.pools()[0].in_flight == 0
    })
    .await;
    top.router.park(lane("a"), by()).await.unwrap();
    top.drained().await;
    assert_eq!(top.db.store().parked_lane(&lane("a")).unwrap().messages, 2);
}

#[tokio::test]
async fn a_pause_survives_a_restart() {
    let mut top = Top::new(quick_plan(), fixed(Answer::ok())).await;
    top.router.pause(lane("a"), by()).await.unwrap();
    top.publish_all(&[("a", 1), ("b", 1)]).await;
    until("it has gone on", || !top.starts("b").is_empty()).await;
    top.router.stop(Duration::from_secs(1)).await;
    top.router = start(&top.db, quick_plan(), top.history.clone()).await;
    top.publish("b", 2).await;
    until("it has gone on", || top.starts("b").len() >= 2).await;
    assert_eq!(top.starts("a"), [0_u64; 0]);
    top.router.resume(lane("a"), by()).await.unwrap();
    top.drained().await;
    assert_eq!(top.starts("a"), [1]);
}

#[tokio::test]
async fn r14_counters_equal_what_happened() {
    let answers = |request: &Request| match request.number {
        Some(2) => Answer::status(400),
        _ => Answer::ok(),
    };
    let top = Top::new(quick_plan(), answers).await;
    top.publish_all(&[("a", 1), ("a", 2), ("a", 3), ("b", 1)])
        .await;
    top.drained().await;
    let counters = top.counters();
    let resolved: u64 = counters
        .resolved()
        .iter()
        .map(|(_, counter)| counter.get())
        .sum();
    assert_eq!(counters.received.get(), resolved);
    assert_eq!(
        (counters.delivered.get(), counters.dead_lettered.get()),
        (3, 1)
    );
    let text = top.router.counters().render(&top.router.pools());
    let line =
        r#"keylane_messages_resolved_total{source="default",pool="default",outcome="delivered"} 3"#;
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn stored_keys_of_a_source_that_was_renamed_are_told_of_and_not_replayed() {
    let ill = Arc::new(AtomicBool::new(true));
    let mut plan = quick_plan();
    plan.pools.get_mut("default").unwrap().on_exhausted = OnExhausted::Park;
    let top = Top::new(plan.clone(), ill_while(&ill)).await;
    top.publish_all(&[("k", 1), ("k", 2)]).await;
    let parked = || top.db.store().parked_lane(&lane("k"));
    until("it is parked", || {
        parked().is_some_and(|lane| lane.messages == 2)
    })
    .await;
    ill.store(false, Ordering::SeqCst);
    assert!(top.router.problems().is_empty());
    // As with a config that calls it otherwise.
    top.router.reload(plan.clone()).await.unwrap();
    assert!(top.router.remove_source("default").await);
    let problems = top.router.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let text = &problems[0].text;
    assert!(
        text.contains("`k`") && text.contains("configure a source"),
        "{text}"
    );
    let Err(VerbError::Refused(refused)) = top.router.replay(lane("k"), by()).await else {
        panic!("it is to be replayed by nobody");
    };
    assert!(refused.contains("no source `default`"), "{refused}");
    top.router.stop(Duration::from_secs(5)).await;
    // A start says so too; with the source there again all is well.
    let renamed = Router::builder().plan(plan.clone()).store(top.db.store());
    let keyless = keylane_router::plan::Keyless::Serial;
    let source = top.db.source("other", "other", keyless).await.unwrap();
    let renamed = renamed.source("other", source).start().await.unwrap();
    assert_eq!(renamed.problems().len(), 1);
    let source = top.db.source("default", "default", keyless).await.unwrap();
    let embedded = SourcePlan::embedded("default");
    renamed
        .add_source("default", source, embedded)
        .await
        .unwrap();
    assert!(renamed.problems().is_empty());
    renamed.replay(lane("k"), by()).await.unwrap();
    until("it is delivered", || top.starts("k").ends_with(&[1, 2])).await;
    renamed.stop(Duration::from_secs(5)).await;
}
