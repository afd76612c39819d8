//! Dead letters, parked keys, attempts, pauses and the audit log.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylane_router::embedded::Receipt;
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::source::{Received, Settler, Source};
use keylane_router::store::{
    AuditEntry, DeadLetter, FailedAttempt, LaneName, Move, Stay, Store, StoreError, Stored,
};

use super::{Bed, ack, messages, names, receive};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn lane(key: &str) -> LaneName {
    LaneName::keyed("q", "default", Key::from(key))
}

fn stored(received: &Received<Receipt>) -> Stored {
    Stored {
        identity: received.identity.clone(),
        lane: LaneName {
            key: received.key.clone(),
            alone: None,
            ..lane("")
        },
        body: received.body.clone(),
        headers: vec![("h".into(), "v".into())],
        position: received.position,
    }
}

fn foreign(source: &str, id: &str, key: &str) -> Stored {
    Stored {
        identity: Identity {
            source: source.into(),
            id: BrokerId::Text(id.into()),
        },
        lane: lane(key),
        body: Arc::<str>::from(id).as_bytes().to_vec().into(),
        headers: Vec::new(),
        position: None,
    }
}

fn letter(message: Stored) -> DeadLetter {
    DeadLetter {
        number: 0,
        message,
        reason: "refused".into(),
        text: "the target said 400".into(),
        at: at(5),
        attempts: Vec::new(),
    }
}

fn attempt(n: u64) -> FailedAttempt {
    FailedAttempt {
        at: at(n),
        class: format!("status-50{n}"),
        text: "oops".into(),
        answer: vec![0, 255, n as u8],
    }
}

fn audit(verb: &str) -> AuditEntry {
    AuditEntry {
        at: at(9),
        who: "ann".into(),
        verb: verb.into(),
        lane: Some(lane("a")),
        identity: None,
        why: "because".into(),
    }
}

#[tokio::test]
async fn a_dead_letter_leaves_its_queue_with_the_same_commit_and_its_ack_opens_the_lane() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2"])).await;
    let out = receive(&mut source, 1).await;
    let store = bed.db.store();
    store
        .dead_letter(vec![letter(stored(&out[0]))])
        .await
        .expect("stored");
    assert_eq!(bed.db.queues()[0].depth, 1);
    bed.publish("q", messages(&["b1"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);

    ack(&source, &out).await;
    let next = receive(&mut source, 10).await;
    assert_eq!(names(&next), ["a2"]);
    // Given back instead of acked, a stored message does not come again either.
    store
        .dead_letter(vec![letter(stored(&next[0]))])
        .await
        .expect("stored");
    let back = source
        .settler()
        .give_back(vec![next[0].receipt], Duration::ZERO)
        .await;
    assert_eq!(back, [Ok(())]);
    bed.publish("q", messages(&["a3"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a3"]);
    assert_eq!(store.dead_letter_count().await, Ok(2));
}

#[tokio::test]
async fn a_dead_letter_is_stored_once_with_its_recorded_attempts() {
    let bed = Bed::new();
    let store = bed.db.store();
    let message = foreign("kafka", "t-0-7", "a");
    for n in 1..=2 {
        store
            .failed_attempt(&message.identity, attempt(n))
            .await
            .expect("written");
    }
    store
        .dead_letter(vec![letter(message.clone())])
        .await
        .expect("stored");
    store
        .dead_letter(vec![letter(message.clone())])
        .await
        .expect("ignored");

    drop(store);
    let bed = bed.restart().await;
    let store = bed.db.store();
    let letters = store.dead_letters(0, 10).await.expect("reads");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].message, message);
    assert_eq!(letters[0].attempts, [attempt(1), attempt(2)]);
    assert_eq!(
        (letters[0].reason.as_str(), letters[0].at),
        ("refused", at(5))
    );
    assert_eq!(store.stay(&message.identity), Stay::default());
    assert_eq!(store.dead_letters(letters[0].number, 10).await, Ok(vec![]));
}

#[tokio::test]
async fn trimming_deletes_what_was_named_and_writes_it_down() {
    let bed = Bed::new();
    let store = bed.db.store();
    let letters = ["1", "2", "3"].map(|id| letter(foreign("kafka", id, "a")));
    store.dead_letter(letters.to_vec()).await.expect("stored");
    let numbers: Vec<_> = store
        .dead_letters(0, 2)
        .await
        .expect("reads")
        .iter()
        .map(|letter| letter.number)
        .collect();
    assert_eq!(store.trim_dead_letters(numbers, audit("trim")).await, Ok(2));
    assert_eq!(store.dead_letter_count().await, Ok(1));
    assert_eq!(store.audit_log(10).await, Ok(vec![audit("trim")]));
}

#[tokio::test]
async fn attempts_and_rounds_are_counted_and_survive_a_restart() {
    let bed = Bed::new();
    let store = bed.db.store();
    let number = Identity {
        source: "s".into(),
        id: BrokerId::Sequence(5),
    };
    let text = Identity {
        source: "s".into(),
        id: BrokerId::Text("5".into()),
    };
    assert_eq!(store.stay(&number), Stay::default());
    let first = store.failed_attempt(&number, attempt(1)).await;
    assert_eq!(
        first,
        Ok(Stay {
            round: 0,
            failed: 1,
            total: 1
        })
    );
    store
        .failed_attempt(&number, attempt(2))
        .await
        .expect("written");
    assert_eq!(store.stay(&text), Stay::default());
    store
        .new_round(vec![number.clone(), text.clone()])
        .await
        .expect("written");
    let next = store.failed_attempt(&number, attempt(3)).await;
    assert_eq!(
        next,
        Ok(Stay {
            round: 1,
            failed: 1,
            total: 3
        })
    );

    drop(store);
    let bed = bed.restart().await;
    let store = bed.db.store();
    assert_eq!(
        store.stay(&number),
        Stay {
            round: 1,
            failed: 1,
            total: 3
        }
    );
    assert_eq!(
        store.stay(&text),
        Stay {
            round: 1,
            ..Stay::default()
        }
    );
    store.forget(vec![number.clone()]).await.expect("forgotten");
    assert_eq!(store.stay(&number), Stay::default());
    drop(store);
    let bed = bed.restart().await;
    assert_eq!(bed.db.store().stay(&number), Stay::default());
}

#[tokio::test]
async fn of_many_attempts_the_last_are_kept_and_all_are_counted() {
    let bed = Bed::new();
    let store = bed.db.store();
    let (message, other) = (foreign("s", "1", "a"), foreign("s", "2", "a"));
    let mut stay = Stay::default();
    store
        .failed_attempt(&other.identity, attempt(7))
        .await
        .expect("written");
    for n in 1..=50 {
        let written = store.failed_attempt(&message.identity, attempt(n)).await;
        stay = written.expect("written");
    }
    assert_eq!(stay.failed, 50);
    store
        .dead_letter(vec![letter(message), letter(other)])
        .await
        .expect("stored");
    let letters = store.dead_letters(0, 10).await.expect("reads");
    let last: Vec<FailedAttempt> = (31..=50).map(attempt).collect();
    assert_eq!(letters[0].attempts, last);
    assert_eq!(letters[1].attempts, [attempt(7)]);
}

#[tokio::test]
async fn attempts_of_messages_that_are_gone_are_forgotten_when_their_source_opens() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "b1"])).await;
    let out = receive(&mut source, 10).await;
    let store = bed.db.store();
    for message in &out {
        store
            .failed_attempt(&message.identity, attempt(1))
            .await
            .expect("written");
    }
    // The process ends after the ack and before the forgetting.
    ack(&source, &out[..1]).await;
    drop((source, store));
    let bed = bed.restart().await;
    let _source = bed.source("q").await;
    assert_eq!(bed.db.store().stay(&out[0].identity).failed, 0);
    assert_eq!(bed.db.store().stay(&out[1].identity).failed, 1);
}

#[tokio::test]
async fn a_parked_key_leaves_its_queue_keeps_its_order_and_survives_a_restart() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2", "a3"])).await;
    let out = receive(&mut source, 2).await;
    let store = bed.db.store();
    let all: Vec<_> = out.iter().map(stored).collect();
    store
        .park(lane("a"), "exhausted".into(), all.clone())
        .await
        .expect("parked");
    ack(&source, &out).await;
    let behind = receive(&mut source, 1).await;
    assert_eq!(names(&behind), ["a3"]);
    store
        .park(
            lane("a"),
            "other".into(),
            vec![stored(&behind[0]), all[0].clone()],
        )
        .await
        .expect("parked behind");
    ack(&source, &behind).await;
    assert_eq!(bed.db.queues()[0].depth, 0);
    drop((source, store));

    let bed = bed.restart().await;
    let store = bed.db.store();
    let parked = store.parked_lane(&lane("a")).expect("is parked");
    assert_eq!(
        (parked.messages, parked.reason.as_str(), parked.replaying),
        (3, "exhausted", false)
    );
    assert_eq!(store.parked(), [parked]);
    let rows = store.parked_rows(lane("a"), 0, 10).await.expect("reads");
    let bodies: Vec<_> = rows.iter().map(|row| row.message.body.clone()).collect();
    assert_eq!(bodies, ["a1", "a2", "a3"]);
    assert_eq!(rows[0].message, all[0]);
    assert_eq!(
        store
            .parked_rows(lane("a"), rows[1].row, 10)
            .await
            .expect("reads")
            .len(),
        1
    );
    assert_eq!(store.parked_rows(lane("b"), 0, 10).await, Ok(vec![]));
}

#[tokio::test]
async fn a_parked_key_is_replayed_skipped_and_dropped_row_by_row() {
    let bed = Bed::new();
    let store = bed.db.store();
    let keyless = LaneName {
        key: None,
        alone: None,
        ..lane("")
    };
    for of in [lane("a"), keyless.clone()] {
        let id = |n: u32| foreign("sqs", &format!("{of:?}{n}"), "a");
        store
            .park(of.clone(), "exhausted".into(), (0..4).map(id).collect())
            .await
            .expect("parked");
    }
    let rows: Vec<_> = store
        .parked_rows(lane("a"), 0, 10)
        .await
        .expect("reads")
        .iter()
        .map(|row| row.row)
        .collect();
    store
        .set_replaying(lane("a"), true, audit("replay"))
        .await
        .expect("set");
    assert!(store.parked_lane(&lane("a")).expect("parked").replaying);
    store
        .unpark(lane("a"), vec![rows[0]])
        .await
        .expect("delivered");
    let skip = Some(("skipped".to_owned(), "by ann".to_owned()));
    store
        .remove_parked(lane("a"), vec![rows[1]], skip, audit("skip"))
        .await
        .expect("skipped");
    assert_eq!(store.parked_lane(&lane("a")).expect("parked").messages, 2);
    // A row of another lane is not touched, whatever the number says.
    store
        .unpark(keyless.clone(), rows.clone())
        .await
        .expect("nothing to do");
    assert_eq!(store.parked_lane(&lane("a")).expect("parked").messages, 2);
    store
        .remove_parked(lane("a"), rows[2..].to_vec(), None, audit("drop"))
        .await
        .expect("dropped");

    assert_eq!(store.parked_lane(&lane("a")), None);
    assert_eq!(
        store.parked_lane(&keyless).expect("still parked").messages,
        4
    );
    let letters = store.dead_letters(0, 10).await.expect("reads");
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].reason.as_str(), &letters[0].message.lane),
        ("skipped", &lane("a"))
    );
    let verbs: Vec<_> = store
        .audit_log(2)
        .await
        .expect("reads")
        .into_iter()
        .map(|entry| entry.verb)
        .collect();
    assert_eq!(verbs, ["drop", "skip"]);
    drop(store);
    let bed = bed.restart().await;
    assert_eq!(bed.db.store().parked().len(), 1);
}

#[tokio::test]
async fn pauses_survive_a_restart_and_are_written_down() {
    let bed = Bed::new();
    let store = bed.db.store();
    let keyless = LaneName {
        key: None,
        alone: None,
        ..lane("")
    };
    for of in [lane("a"), lane("a"), keyless.clone()] {
        store.pause(of, audit("pause")).await.expect("paused");
    }
    drop(store);
    let bed = bed.restart().await;
    let store = bed.db.store();
    assert_eq!(store.pauses(), [keyless.clone(), lane("a")]);
    store
        .resume(lane("a"), audit("resume"))
        .await
        .expect("resumed");
    drop(store);
    let bed = bed.restart().await;
    let store = bed.db.store();
    assert_eq!(store.pauses(), [keyless]);
    let entry = AuditEntry {
        lane: None,
        identity: Some(foreign("sqs", "x", "a").identity),
        ..audit("other")
    };
    store.audit(entry.clone()).await.expect("written");
    let log = store.audit_log(10).await.expect("reads");
    assert_eq!(log.len(), 5);
    assert_eq!(log[0], entry);
}

#[tokio::test]
async fn beyond_its_budget_a_store_takes_nothing_and_the_message_stays_in_its_queue() {
    let bed = Bed::with(|options| options.store_budget = 1000);
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "b1", "c1", "d1"])).await;
    let out = receive(&mut source, 10).await;
    let store = bed.db.store();
    store
        .dead_letter(vec![letter(stored(&out[0]))])
        .await
        .expect("fits");
    store
        .park(lane("b"), "exhausted".into(), vec![stored(&out[1])])
        .await
        .expect("fits");
    let both = vec![letter(stored(&out[2])), letter(stored(&out[3]))];
    let refused = store.dead_letter(both).await;
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    assert_eq!(store.dead_letter_count().await, Ok(1));
    assert_eq!(bed.db.queues()[0].depth, 2);
    // From parked to dead letter is no more than there was.
    let row = store.parked_rows(lane("b"), 0, 1).await.expect("reads")[0].row;
    let skip = Some(("skipped".to_owned(), String::new()));
    store
        .remove_parked(lane("b"), vec![row], skip, audit("skip"))
        .await
        .expect("fits");
    // Trimming makes room.
    let numbers = store
        .dead_letters(0, 10)
        .await
        .expect("reads")
        .iter()
        .map(|letter| letter.number)
        .collect();
    store
        .trim_dead_letters(numbers, audit("trim"))
        .await
        .expect("trimmed");
    store
        .dead_letter(vec![letter(stored(&out[2])), letter(stored(&out[3]))])
        .await
        .expect("fits");
    assert_eq!(bed.db.queues()[0].depth, 0);
}

/// The stored messages of a lane, oldest first.
async fn rows_of(store: &impl Store, lane: LaneName) -> Vec<String> {
    let rows = store.parked_rows(lane, 0, 100).await.expect("read");
    let body = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    rows.iter().map(|row| body(&row.message.body)).collect()
}

async fn spill(store: &impl Store, lane: &LaneName, id: &str) {
    let message = Stored {
        lane: lane.clone(),
        ..foreign("s", id, "k")
    };
    let spilled = store.spill(lane.clone(), "no room".into(), vec![message]);
    spilled.await.expect("stored");
}

/// Lane `k` has everything, of both pools in their order, and is fed or not.
async fn is_merged(store: &impl Store, fed: bool) {
    let lanes = store.parked();
    assert_eq!(lanes.len(), 1, "{lanes:?}");
    assert_eq!(lanes[0].messages, 4);
    assert_eq!((lanes[0].replaying, lanes[0].spilled), (fed, fed));
    assert_eq!(rows_of(store, lane("k")).await, ["d1", "m1", "m2", "d2"]);
}

#[tokio::test]
async fn a_moved_lane_goes_behind_the_one_of_its_new_name_and_both_wait_if_one_does() {
    for fed in [false, true] {
        let bed = Bed::new();
        let store = bed.db.store();
        let mail = LaneName {
            pool: "mail".into(),
            ..lane("k")
        };
        spill(&store, &mail, "m1").await;
        spill(&store, &lane("k"), "d1").await;
        spill(&store, &mail, "m2").await;
        if !fed {
            let parked = store.park(mail.clone(), "no hope".into(), Vec::new());
            parked.await.expect("parked");
        }
        let (from, to, of) = (mail, lane("k"), None);
        let moved = store.move_lanes(vec![Move::Lane { from, of, to }]).await;
        assert_eq!(moved, Ok(()));
        spill(&store, &lane("k"), "d2").await;
        is_merged(&store, fed).await;
        drop(store);
        let bed = bed.restart().await;
        is_merged(&bed.db.store(), fed).await;
    }
}
