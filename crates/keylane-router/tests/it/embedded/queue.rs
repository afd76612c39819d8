//! Publish, receive and settle: order, locks, delays, dedup.

use std::collections::HashSet;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use keylane_router::embedded::{EmbeddedSource, NewMessage, PublishError};
use keylane_router::message::{BrokerId, Key};
use keylane_router::plan::Keyless;
use keylane_router::source::{Room, SettleError, Settler, Source};

use super::{Bed, ack, message, messages, names, receipts, receive};

#[tokio::test]
async fn a_key_comes_in_order_with_sequence_position_and_headers() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let mut first = message("a1");
    first.headers = vec![("trace".into(), "x".into())];
    bed.publish("q", vec![first, message("a2")]).await;

    let received = receive(&mut source, 10).await;

    assert_eq!(names(&received), ["a1", "a2"]);
    assert_eq!(received[0].key, Some(Key::from("a")));
    assert_eq!(&*received[0].identity.source, "q");
    assert_eq!(received[0].headers, [("trace".into(), "x".into())]);
    let [one, two] = [&received[0], &received[1]].map(|message| message.position.expect("has one"));
    assert!(one < two);
    assert_eq!(received[0].identity.id, BrokerId::Sequence(one));
    assert_eq!(received[0].batch, received[1].batch);
}

#[tokio::test]
async fn fc_8_each_poll_has_a_batch_of_its_own() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "b1"])).await;
    let one = receive(&mut source, 1).await;
    let two = receive(&mut source, 1).await;
    assert_ne!(one[0].batch, two[0].batch);
}

#[tokio::test]
async fn a_key_is_locked_until_all_of_it_that_is_out_is_settled() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2"])).await;
    let out = receive(&mut source, 10).await;
    bed.publish("q", messages(&["a3", "b1"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);

    ack(&source, &out[..1]).await;
    bed.publish("q", messages(&["c1"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["c1"]);

    ack(&source, &out[1..]).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a3"]);
}

#[tokio::test]
async fn one_key_in_two_pools_is_two_lanes() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let mut other = message("a2");
    other.pool = Some("mail".into());
    bed.publish("q", messages(&["a1"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a1"]);
    bed.publish("q", vec![other]).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a2"]);
}

#[tokio::test]
async fn an_empty_key_is_not_keyless() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", vec![NewMessage::new("1", None, "keyless")])
        .await;
    assert_eq!(receive(&mut source, 10).await[0].key, None);
    bed.publish("q", vec![NewMessage::new("2", Some(Key::new("")), "empty")])
        .await;
    assert_eq!(receive(&mut source, 10).await[0].key, Some(Key::new("")));
}

#[tokio::test]
async fn keyless_messages_are_one_lane_or_each_its_own() {
    let bed = Bed::new();
    let keyless = |n: usize| NewMessage::new(n.to_string(), None, n.to_string());
    let mut serial = bed.source("serial").await;
    bed.publish("serial", vec![keyless(1)]).await;
    receive(&mut serial, 10).await;
    bed.publish("serial", vec![keyless(2), message("a1")]).await;
    assert_eq!(names(&receive(&mut serial, 10).await), ["a1"]);

    let parallel = bed
        .db
        .source("parallel", "parallel", Keyless::Parallel)
        .await;
    let mut parallel = parallel.expect("a source");
    bed.publish("parallel", vec![keyless(1)]).await;
    receive(&mut parallel, 10).await;
    bed.publish("parallel", vec![keyless(2)]).await;
    assert_eq!(names(&receive(&mut parallel, 10).await), ["2"]);
}

#[tokio::test]
async fn keyless_can_change_to_parallel_while_messages_are_out() {
    let bed = Bed::new();
    let keyless = |n: usize| NewMessage::new(n.to_string(), None, n.to_string());
    let mut source = bed.source("q").await;
    bed.publish("q", (1..=3).map(keyless).collect()).await;
    let out = receive(&mut source, 1).await;
    assert_eq!(names(&out), ["1"]);

    let changed = bed.db.source("q", "q", Keyless::Parallel).await;
    let mut changed = changed.expect("a source");
    assert_eq!(names(&receive(&mut changed, 10).await), ["2", "3"]);
    ack(&source, &out).await;
    bed.publish("q", vec![keyless(4)]).await;
    assert_eq!(names(&receive(&mut changed, 10).await), ["4"]);
}

#[tokio::test]
async fn given_back_in_any_order_a_key_comes_again_in_its_own() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2", "a3"])).await;
    let out = receive(&mut source, 10).await;
    bed.publish("q", messages(&["a4"])).await;
    let settler = source.settler();
    for at in [1, 2, 0] {
        let back = settler
            .give_back(vec![out[at].receipt], Duration::ZERO)
            .await;
        assert_eq!(back, [Ok(())]);
    }
    assert_eq!(
        names(&receive(&mut source, 10).await),
        ["a1", "a2", "a3", "a4"]
    );
}

/// A queue whose only message, `a1`, was given back with this delay.
async fn given_back(delay: Duration) -> (Bed, EmbeddedSource) {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1"])).await;
    let out = receive(&mut source, 10).await;
    source.settler().give_back(receipts(&out), delay).await;
    (bed, source)
}

#[tokio::test]
async fn a_key_given_back_with_a_delay_waits_whole_and_harms_no_other() {
    let (bed, mut source) = given_back(Duration::from_secs(30)).await;
    bed.publish("q", messages(&["a2", "b1"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);

    bed.clock.advance(Duration::from_secs(30));
    assert_eq!(names(&receive(&mut source, 10).await), ["a1", "a2"]);
}

#[tokio::test]
async fn a_waiting_receive_wakes_when_a_delay_ends() {
    let (bed, mut source) = given_back(Duration::from_secs(30)).await;
    let waiting = tokio::spawn(async move { names(&receive(&mut source, 10).await) });
    tokio::task::yield_now().await;
    bed.clock.advance(Duration::from_secs(31));
    assert_eq!(waiting.await.expect("no panic"), ["a1"]);
}

fn delayed(name: &str, seconds: u64) -> NewMessage {
    let mut delayed = message(name);
    delayed.delay = Duration::from_secs(seconds);
    delayed
}

#[tokio::test]
async fn a_delayed_message_holds_its_key() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let delayed = delayed("a1", 10);
    bed.publish("q", vec![delayed, message("a2"), message("b1")])
        .await;
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);
    bed.clock.advance(Duration::from_secs(10));
    assert_eq!(names(&receive(&mut source, 10).await), ["a1", "a2"]);
}

#[tokio::test]
async fn a_delay_survives_a_restart() {
    let bed = Bed::new();
    let delayed = delayed("a1", 10);
    bed.publish("q", vec![delayed, message("a2"), message("b1")])
        .await;
    bed.clock.advance(Duration::from_secs(4));
    let bed = bed.restart().await;
    let mut source = bed.source("q").await;
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);
    bed.clock.advance(Duration::from_secs(6));
    assert_eq!(names(&receive(&mut source, 10).await), ["a1", "a2"]);
}

#[tokio::test]
async fn a_wall_clock_set_back_lengthens_no_delay() {
    let bed = Bed::new();
    let delayed = delayed("a1", 30);
    bed.publish("q", vec![delayed]).await;
    bed.clock.set_wall_back(Duration::from_secs(3 * 3600));
    let bed = bed.restart().await;
    let mut source = bed.source("q").await;
    bed.clock.advance(Duration::from_secs(30));
    assert_eq!(names(&receive(&mut source, 10).await), ["a1"]);
}

/// A message with a delay of half a minute, whose wall clock steps while it waits, comes after half
/// a minute: not before, not later.
async fn comes_in_its_time(step: impl Fn(&super::clock::TestClock)) {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", vec![delayed("a1", 30)]).await;
    bed.clock.advance(Duration::from_secs(10));
    step(&bed.clock);
    // What is stored after the step waits as long as it is told, too.
    bed.publish("q", vec![delayed("b1", 40), message("c1")])
        .await;
    assert_eq!(names(&receive(&mut source, 10).await), ["c1"]);
    bed.clock.advance(Duration::from_secs(19));
    bed.publish("q", vec![message("d1")]).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["d1"]);
    bed.clock.advance(Duration::from_secs(1));
    assert_eq!(names(&receive(&mut source, 10).await), ["a1"]);
    bed.clock.advance(Duration::from_secs(20));
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);
}

#[tokio::test]
async fn a_wall_clock_that_steps_while_running_changes_no_delay() {
    let hours = Duration::from_secs(3 * 3600);
    comes_in_its_time(|clock| clock.set_wall_back(hours)).await;
    comes_in_its_time(|clock| clock.set_wall_forward(hours)).await;
}

#[tokio::test]
async fn a_wall_clock_set_forward_over_a_restart_ends_a_delay_and_spoils_no_later_one() {
    let bed = Bed::new();
    bed.publish("q", vec![delayed("a1", 30)]).await;
    bed.clock.set_wall_forward(Duration::from_secs(3 * 3600));
    let bed = bed.restart().await;
    let mut source = bed.source("q").await;
    // For all the file knows, three hours have passed.
    assert_eq!(names(&receive(&mut source, 10).await), ["a1"]);
    bed.publish("q", vec![delayed("b1", 30), message("c1")])
        .await;
    assert_eq!(names(&receive(&mut source, 10).await), ["c1"]);
    bed.clock.advance(Duration::from_secs(30));
    assert_eq!(names(&receive(&mut source, 10).await), ["b1"]);
}

#[tokio::test]
async fn a_settled_receipt_settles_nothing_more() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1"])).await;
    let first = receive(&mut source, 1).await;
    let settler = source.settler();
    settler.give_back(receipts(&first), Duration::ZERO).await;
    let second = receive(&mut source, 1).await;

    let stale = settler.ack(receipts(&first)).await;
    assert!(
        matches!(stale[..], [Err(SettleError::Lost(_))]),
        "{stale:?}"
    );
    assert!(settler.renew(receipts(&first)).await[0].is_err());
    assert!(settler.renew(receipts(&second)).await[0].is_ok());
    ack(&source, &second).await;
    let again = settler.ack(receipts(&second)).await;
    assert!(
        matches!(again[..], [Err(SettleError::Lost(_))]),
        "{again:?}"
    );
    assert_eq!(bed.db.queues()[0].depth, 0);
}

#[tokio::test]
async fn a_restart_hands_everything_unsettled_out_again_in_order() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2", "b1", "a3"])).await;
    let out = receive(&mut source, 2).await;
    assert_eq!(names(&out), ["a1", "b1"]);
    ack(&source, &out[..1]).await;
    drop(source);
    let bed = bed.restart().await;
    assert_eq!(bed.db.queues()[0].depth, 3);
    let mut source = bed.source("q").await;
    let again = receive(&mut source, 10).await;
    let of_a: Vec<_> = names(&again)
        .into_iter()
        .filter(|name| name.starts_with('a'))
        .collect();
    assert_eq!(of_a, ["a2", "a3"]);
    assert_eq!(again.len(), 3);
}

#[tokio::test]
async fn a_sequence_is_never_used_twice_also_when_the_queue_was_empty() {
    let mut bed = Bed::new();
    let mut seen = HashSet::new();
    for round in 0..4 {
        let mut source = bed.source("q").await;
        bed.publish("q", messages(&[&format!("a{round}")])).await;
        let received = receive(&mut source, 10).await;
        assert!(seen.insert(received[0].position), "round {round}");
        ack(&source, &received).await;
        drop(source);
        bed = bed.restart().await;
    }
}

#[tokio::test]
async fn acks_become_durable_in_the_order_of_their_calls() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let all: Vec<String> = (0..200).map(|n| format!("a{n}")).collect();
    bed.publish("q", all.iter().map(|name| message(name)).collect())
        .await;
    let out = receive(&mut source, 1000).await;
    let settler = source.settler();
    // Called in order, awaited by nobody: what is on disk at any moment is a prefix.
    let pending: Vec<_> = out
        .iter()
        .map(|message| settler.ack(vec![message.receipt]))
        .collect();
    let crashed = tempfile::tempdir().expect("a folder");
    // The log alone: the file has nothing new before a checkpoint. Taken last, it may be the newer.
    for file in ["keylane.db", "keylane.db-wal"] {
        std::fs::copy(bed.folder.path().join(file), crashed.path().join(file)).expect("copies");
    }
    for ack in pending {
        assert_eq!(ack.await, [Ok(())]);
    }

    let db = keylane_router::embedded::Db::open(crashed.path(), super::options(&bed.clock))
        .expect("opens");
    let left = db.queues()[0].depth as usize;
    let mut source = db
        .source("q", "q", Keyless::Serial)
        .await
        .expect("a source");
    bed.publish("q", vec![]).await;
    if left > 0 {
        let again = names(&receive(&mut source, 1000).await);
        assert_eq!(again, all[200 - left..]);
    }
}

#[tokio::test]
async fn a_cancelled_receive_loses_nothing() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2"])).await;
    for _ in 0..50 {
        let room = Room::new(10, 1 << 20);
        let polled = {
            let mut cut = std::pin::pin!(source.receive(room));
            std::future::poll_fn(|cx| Poll::Ready(cut.as_mut().poll(cx))).await
        };
        // Seldom it is that fast; then nothing was cancelled.
        if let Poll::Ready(received) = polled {
            let back = receipts(&received.expect("receives"));
            source.settler().give_back(back, Duration::ZERO).await;
        }
    }
    assert_eq!(names(&receive(&mut source, 10).await), ["a1", "a2"]);
}

#[tokio::test]
async fn ready_keys_take_turns_and_share_the_room() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let hot: Vec<_> = (0..100).map(|n| message(&format!("hot{n}"))).collect();
    bed.publish("q", hot).await;
    bed.publish("q", messages(&["a1", "a2", "b1", "c1"])).await;
    let out = names(&receive(&mut source, 8).await);
    assert_eq!(out.iter().filter(|name| name.starts_with("hot")).count(), 4);
    assert_eq!(out.len(), 8);
    for other in ["a1", "a2", "b1", "c1"] {
        assert!(out.iter().any(|name| name == other), "{other} in {out:?}");
    }
}

#[tokio::test]
async fn a_single_key_gets_the_whole_room() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", (0..100).map(|n| message(&format!("a{n}"))).collect())
        .await;
    assert_eq!(receive(&mut source, 64).await.len(), 64);
}

#[tokio::test]
async fn a_receive_keeps_to_its_bytes_but_for_one_message() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let big = |name: &str| {
        let mut big = message(name);
        big.body = Bytes::from(vec![b'.'; 1000]);
        big
    };
    bed.publish("q", vec![big("a1"), big("a2"), big("b1"), big("c1")])
        .await;
    let room = |bytes| Room::new(10, bytes);
    assert_eq!(source.receive(room(10)).await.expect("receives").len(), 1);
    assert_eq!(source.receive(room(1500)).await.expect("receives").len(), 2);
}

#[tokio::test]
async fn a_stuck_key_in_front_neither_starves_others_nor_fills_memory() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    // Every second one: 20,000 pieces of the stuck key, far more than it may keep in memory.
    for part in 0..10 {
        let pair = |n: usize| {
            [
                message(&format!("stuck{n}")),
                message(&format!("k{}x{n}", n % 100)),
            ]
        };
        bed.publish(
            "q",
            (part * 2000..(part + 1) * 2000).flat_map(pair).collect(),
        )
        .await;
    }
    let head = receive(&mut source, 1).await;
    assert_eq!(names(&head), ["stuck0"]);

    let mut others = 0;
    while others < 20_000 {
        let out = receive(&mut source, 500).await;
        assert!(names(&out).iter().all(|name| name.starts_with('k')));
        others += out.len();
        ack(&source, &out).await;
    }
    ack(&source, &head).await;
    let mut next = 1;
    while next < 20_000 {
        let out = receive(&mut source, 1000).await;
        for name in names(&out) {
            assert_eq!(name, format!("stuck{next}"));
            next += 1;
        }
        ack(&source, &out).await;
    }
    assert_eq!(bed.db.queues()[0].depth, 0);
}

/// More of them than a receive takes, and than are read at once: each is ready again as soon as it
/// went back.
#[tokio::test]
async fn keys_that_go_back_at_once_starve_nobody_behind_them() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let of = |key: String| NewMessage::new(key.clone(), Some(Key::from(&*key)), "x");
    let failing = (0..3_000).map(|n| of(format!("failing-{n}"))).collect();
    bed.publish("q", failing).await;
    bed.publish("q", vec![of("good".into())]).await;
    for _ in 0..100 {
        let received = receive(&mut source, 100).await;
        if received
            .iter()
            .any(|message| message.key == Some(Key::from("good")))
        {
            return;
        }
        let settler = source.settler();
        let given_back = settler.give_back(receipts(&received), Duration::ZERO);
        assert!(given_back.await.iter().all(Result::is_ok));
    }
    panic!("ten thousand receives, and none of them of the good key");
}

#[tokio::test]
async fn queues_do_not_see_one_another() {
    let bed = Bed::new();
    let (mut high, mut low) = (bed.source("high").await, bed.source("low").await);
    bed.publish("low", messages(&["a1"])).await;
    bed.publish("high", messages(&["a1", "a2"])).await;
    assert_eq!(names(&receive(&mut high, 10).await), ["a1", "a2"]);
    assert_eq!(names(&receive(&mut low, 10).await), ["a1"]);
    let depths: Vec<_> = bed
        .db
        .queues()
        .iter()
        .map(|queue| (queue.name.to_string(), queue.depth, queue.out))
        .collect();
    assert_eq!(depths, [("high".into(), 2, 2), ("low".into(), 1, 1)]);
}

#[tokio::test]
async fn an_unknown_queue_is_refused_unless_it_may_be_made() {
    let bed = Bed::new();
    let refused = bed.db.publish("nope", messages(&["a1"]), false).await;
    assert_eq!(refused, Err(PublishError::UnknownQueue("nope".into())));
    assert!(!bed.db.has_queue("nope"));
    bed.db
        .publish("nope", messages(&["a1"]), true)
        .await
        .expect("made and published");
    assert!(bed.db.has_queue("nope"));
}

#[tokio::test]
async fn a_repeated_publish_is_accepted_and_stored_once_also_after_a_restart() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1", "a2"])).await;
    let again = bed
        .db
        .publish("q", messages(&["a2", "a3"]), false)
        .await
        .expect("accepted");
    assert_eq!(again.ids, ["a2".into(), "a3".into()]);
    assert_eq!(again.duplicates, ["a2".into()]);

    let bed = bed.restart().await;
    let again = bed
        .db
        .publish("q", messages(&["a1"]), false)
        .await
        .expect("accepted");
    assert_eq!(again.duplicates, ["a1".into()]);
    assert_eq!(bed.db.queues()[0].depth, 3);
}

#[tokio::test]
async fn an_id_may_come_again_when_its_window_has_passed() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1"])).await;
    bed.clock.advance(Duration::from_secs(299));
    let again = bed
        .db
        .publish("q", messages(&["a1"]), false)
        .await
        .expect("accepted");
    assert_eq!(again.duplicates, ["a1".into()]);
    bed.clock.advance(Duration::from_secs(1));
    bed.publish("q", messages(&["a1"])).await;
    assert_eq!(bed.db.queues()[0].depth, 2);

    bed.clock.advance(Duration::from_secs(301));
    let bed = bed.restart().await;
    bed.publish("q", messages(&["a1"])).await;
}

#[tokio::test]
async fn expired_windows_leave_the_file() {
    let bed = Bed::new();
    bed.publish("q", (0..3000).map(|n| message(&format!("a{n}"))).collect())
        .await;
    bed.clock.advance(Duration::from_secs(600));
    for n in 0..3 {
        bed.publish("q", messages(&[&format!("b{n}")])).await;
    }
    let file = rusqlite::Connection::open(bed.folder.path().join("keylane.db")).expect("opens");
    let left: i64 = file
        .query_row("SELECT COUNT(*) FROM dedup", [], |row| row.get(0))
        .expect("counts");
    assert_eq!(left, 3);
}

#[tokio::test]
async fn another_body_under_the_same_id_is_refused_and_nothing_is_stored() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1"])).await;
    let mut other = message("a1");
    other.body = "other".into();
    let request = vec![message("b1"), other.clone(), message("b2")];
    let refused = bed.db.publish("q", request, false).await;
    assert_eq!(refused, Err(PublishError::Conflict { id: "a1".into() }));
    assert_eq!(bed.db.queues()[0].depth, 1);
    // Not even the ids of the refused request are remembered.
    let mut changed = message("b1");
    changed.body = "changed".into();
    bed.publish("q", vec![changed]).await;

    let refused = bed
        .db
        .publish(
            "q",
            vec![message("c1"), {
                let mut c = message("c1");
                c.body = "x".into();
                c
            }],
            false,
        )
        .await;
    assert_eq!(refused, Err(PublishError::Conflict { id: "c1".into() }));
    assert_eq!(bed.db.queues()[0].depth, 2);
}

#[tokio::test]
async fn dedup_goes_by_deduplication_id_and_queue_and_within_one_request() {
    let bed = Bed::new();
    let named = |id: &str| {
        let mut named = message(id);
        named.dedup_id = Some("same".into());
        named.body = "same".into();
        named
    };
    let twice = bed
        .db
        .publish("q", vec![named("a1"), named("a2")], true)
        .await
        .expect("accepted");
    assert_eq!(twice.duplicates, ["a2".into()]);
    bed.publish("other", vec![named("a3")]).await;
    // The id itself was not used for dedup.
    bed.publish("q", messages(&["a1"])).await;
}

#[tokio::test]
async fn many_publishers_at_once_keep_each_keys_order() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let mut publishers = tokio::task::JoinSet::new();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let db = bed.db.clone();
        publishers.spawn(async move {
            for n in 0..50 {
                let request = vec![message(&format!("{key}{n}"))];
                db.publish("q", request, false).await.expect("published");
            }
        });
    }
    let mut next = std::collections::HashMap::new();
    for _ in 0.. {
        let out = receive(&mut source, 16).await;
        for name in names(&out) {
            let (key, n) = name.split_at(1);
            let expected = next.entry(key.to_owned()).or_insert(0);
            assert_eq!(n, expected.to_string());
            *expected += 1;
        }
        ack(&source, &out).await;
        if next.values().sum::<i32>() == 400 {
            break;
        }
    }
    publishers.join_all().await;
}
