//! The file itself: who owns it, what is refused, what happens when it cannot be written.

use std::time::Duration;

use bytes::Bytes;
use keylane_router::embedded::{BackupError, Db, NewMessage, OpenError, PublishError};
use keylane_router::plan::Keyless;
use keylane_router::source::{Room, SettleError, Settler, Source};
use keylane_router::store::{Store, StoreError};

use super::{Bed, ack, message, messages, names, options, receipts, receive};

#[tokio::test]
async fn a_second_opener_is_refused_and_told_who_has_it() {
    let bed = Bed::new();
    let refused = Db::open(bed.folder.path(), options(&bed.clock)).expect_err("is held");
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::Held { .. }), "{text}");
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    assert!(text.contains("keylane.lock"), "{text}");
}

#[tokio::test]
async fn a_standby_takes_over_when_the_owner_closes() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1"])).await;
    let (folder, options) = (bed.folder.path().to_owned(), options(&bed.clock));
    let standby = tokio::spawn(async move { Db::open_standby(folder, options).await });
    tokio::task::yield_now().await;
    assert!(!standby.is_finished());
    bed.db.close().await;
    let db = standby.await.expect("no panic").expect("opens");
    let mut source = db
        .source("q", "q", Keyless::Serial)
        .await
        .expect("a source");
    assert_eq!(names(&receive(&mut source, 1).await), ["a1"]);
}

#[tokio::test]
async fn a_standby_nobody_waits_for_gives_the_lock_back() {
    let bed = Bed::new();
    {
        let mut standby = std::pin::pin!(Db::open_standby(bed.folder.path(), options(&bed.clock)));
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(standby.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
    }
    let Bed { folder, clock, db } = bed;
    db.close().await;
    Db::open_standby(folder.path(), options(&clock))
        .await
        .expect("opens in the end");
}

#[cfg(unix)]
#[tokio::test]
async fn the_folder_is_made_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("deep").join("data");
    let db = Db::open(&folder, Default::default()).expect("opens");
    let mode = std::fs::metadata(&folder)
        .expect("is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    db.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn the_files_are_their_owners_alone_also_in_a_folder_that_is_not() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("opens it");
    let db = Db::open(folder.path(), Default::default()).expect("opens");
    db.publish("q", messages(&["a1"]), true)
        .await
        .expect("published");
    let mut modes: Vec<(String, u32)> = std::fs::read_dir(folder.path())
        .expect("lists")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("is there").permissions().mode();
            (entry.file_name().into_string().expect("text"), mode & 0o777)
        })
        .collect();
    modes.sort();
    let names = [
        "keylane.db",
        "keylane.db-shm",
        "keylane.db-wal",
        "keylane.lock",
    ];
    assert_eq!(modes, names.map(|name| (name.to_owned(), 0o600)));
    db.close().await;
}

#[tokio::test]
async fn after_close_everything_answers_closed() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1"])).await;
    let out = receive(&mut source, 1).await;
    let db = bed.db.clone();
    let store = db.store();
    bed.db.close().await;
    let refused = db.publish("q", messages(&["a2"]), false).await;
    assert_eq!(refused, Err(PublishError::Store(StoreError::Closed)));
    let settled = source.settler().ack(receipts(&out)).await;
    assert!(
        matches!(settled[..], [Err(SettleError::Again(_))]),
        "{settled:?}"
    );
    let written = store.new_round(vec![out[0].identity.clone()]).await;
    assert_eq!(written, Err(StoreError::Closed));
}

fn file_with(content: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("keylane.db"), content).expect("writes");
    folder
}

#[test]
fn garbage_is_refused_by_name_and_left_as_it_is() {
    let garbage = b"this is no database, whatever its name says. ".repeat(100);
    let folder = file_with(&garbage);
    let refused = Db::open(folder.path(), Default::default()).expect_err("is no database");
    assert!(
        matches!(refused, OpenError::NotADatabase { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("keylane.db"), "{refused}");
    let left = std::fs::read(folder.path().join("keylane.db")).expect("reads");
    assert_eq!(left, garbage);
}

#[test]
fn another_programs_database_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = rusqlite::Connection::open(folder.path().join("keylane.db")).expect("opens");
    other
        .execute_batch("CREATE TABLE mine (x)")
        .expect("makes a table");
    drop(other);
    let refused = Db::open(folder.path(), Default::default()).expect_err("is not ours");
    assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_both_versions_named() {
    let bed = Bed::new();
    let Bed { folder, db, .. } = bed;
    db.close().await;
    let file = rusqlite::Connection::open(folder.path().join("keylane.db")).expect("opens");
    file.pragma_update(None, "user_version", 99).expect("sets");
    drop(file);
    let refused = Db::open(folder.path(), Default::default()).expect_err("is newer");
    assert!(
        matches!(refused, OpenError::Newer { found: 99, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_says_so_when_it_is_read() {
    let bed = Bed::new();
    let body = |n: usize| NewMessage::new(n.to_string(), None, vec![b'x'; 3000]);
    bed.publish("q", (0..200).map(body).collect()).await;
    let Bed { folder, clock, db } = bed;
    db.close().await;
    let path = folder.path().join("keylane.db");
    let mut bytes = std::fs::read(&path).expect("reads");
    let middle = bytes.len() / 8;
    bytes[middle..middle * 7].fill(0xff);
    std::fs::write(&path, bytes).expect("writes");

    let refused = Db::open(folder.path(), options(&clock)).expect_err("is damaged");
    assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
}

#[tokio::test]
async fn a_folder_in_the_files_place_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("keylane.db")).expect("makes a folder");
    let refused = Db::open(folder.path(), Default::default()).expect_err("cannot be opened");
    assert!(refused.to_string().contains("keylane.db"), "{refused}");
}

#[test]
fn a_file_locked_by_another_program_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = rusqlite::Connection::open(folder.path().join("keylane.db")).expect("opens");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locks");
    let refused = Db::open(folder.path(), Default::default()).expect_err("is locked");
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
}

#[tokio::test]
async fn a_file_that_another_program_locks_meanwhile_refuses_publishes_and_recovers() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1"])).await;
    let path = bed.folder.path().join("keylane.db");
    let other = rusqlite::Connection::open(path).expect("opens");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locks");
    // After SQLite's own wait for a lock, which goes by its own clock.
    let refused = bed.db.publish("q", messages(&["a2"]), false).await;
    let refused = refused.expect_err("cannot be written").to_string();
    assert!(
        refused.contains("another program has keylane.db locked"),
        "{refused}"
    );
    other.execute_batch("ROLLBACK").expect("unlocks");
    bed.publish("q", messages(&["a3"])).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a1", "a3"]);
}

#[tokio::test]
async fn a_file_that_becomes_read_only_refuses_publishes_and_recovers() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1"])).await;
    let out = receive(&mut source, 1).await;
    bed.db
        .test_pragma("PRAGMA query_only = ON")
        .await
        .expect("sets");

    let refused = bed.db.publish("q", messages(&["a2"]), false).await;
    assert!(
        matches!(refused, Err(PublishError::Store(StoreError::Unwritable(_)))),
        "{refused:?}"
    );
    let settled = source.settler().ack(receipts(&out)).await;
    assert!(
        matches!(settled[..], [Err(SettleError::Again(_))]),
        "{settled:?}"
    );

    bed.db
        .test_pragma("PRAGMA query_only = OFF")
        .await
        .expect("sets");
    bed.publish("q", messages(&["a2"])).await;
    ack(&source, &out).await;
    assert_eq!(names(&receive(&mut source, 10).await), ["a2"]);
}

#[tokio::test]
async fn a_file_that_can_be_read_again_says_so_before_there_is_a_message() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1"])).await;
    let (mut source, mut other) = (bed.source("q").await, bed.source("q").await);
    let (file, away) = (
        bed.folder.path().join("keylane.db"),
        bed.folder.path().join("away.db"),
    );
    std::fs::rename(&file, &away).expect("renames");
    let room = Room::new(1, 1 << 20);
    let failed = source
        .receive(room.clone())
        .await
        .expect_err("cannot be opened");
    assert!(failed.to_string().contains("keylane.db"), "{failed}");
    std::fs::rename(&away, &file).expect("renames");
    // Somebody else takes what there is.
    assert_eq!(names(&receive(&mut other, 1).await), ["a1"]);
    let said = tokio::time::timeout(Duration::from_secs(60), source.receive(room)).await;
    let said = said.expect("it answers").expect("it is well");
    assert!(said.is_empty());
}

#[tokio::test]
async fn a_full_disk_refuses_publishes_lets_acks_through_and_recovers() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    let big = |n: usize| {
        let mut big = message(&format!("a{n}"));
        big.body = Bytes::from(vec![b'.'; 20_000]);
        big
    };
    bed.db
        .test_pragma("PRAGMA max_page_count = 100")
        .await
        .expect("sets");
    let mut stored = 0;
    let refused = loop {
        match bed.db.publish("q", vec![big(stored)], false).await {
            Ok(_) => stored += 1,
            Err(refused) => break refused,
        }
    };
    assert!(
        matches!(refused, PublishError::Store(StoreError::Full(_))),
        "{refused}"
    );
    assert!(stored > 2);
    assert_eq!(bed.db.queues()[0].depth, stored as u64);

    // Publishes that fail and acks that make room share a transaction's fate only as they must.
    let out = receive(&mut source, 100).await;
    assert_eq!(out.len(), stored);
    let settler = source.settler();
    let (first, publish) = tokio::join!(
        settler.ack(vec![out[0].receipt]),
        bed.db
            .publish("q", (0..9).map(|n| big(1000 + n)).collect(), false),
    );
    assert_eq!(first, [Ok(())]);
    assert!(publish.is_err());
    ack(&source, &out[1..]).await;

    // There is room again, and the refused id is free.
    bed.publish("q", vec![big(stored)]).await;
    let next = receive(&mut source, 100).await;
    assert_eq!(next[0].body, big(stored).body);
    ack(&source, &next).await;
    assert_eq!(bed.db.queues()[0].depth, 0);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_becomes_a_dead_letter_and_blocks_nobody() {
    let bed = Bed::new();
    let mut with_headers = message("d1");
    with_headers.headers = vec![("a".into(), "b".into())];
    bed.publish("q", messages(&["a1", "a2", "a3", "b1", "c1"]))
        .await;
    bed.publish("q", vec![with_headers, message("d2")]).await;
    let file = rusqlite::Connection::open(bed.folder.path().join("keylane.db")).expect("opens");
    file.execute_batch(
        "UPDATE q_1 SET body = 'text, not bytes' WHERE body = x'6132';
         UPDATE q_1 SET key = 42 WHERE body = x'6231';
         UPDATE q_1 SET headers = 'no json' WHERE body = x'6431';",
    )
    .expect("spoils rows");
    drop(file);

    let mut source = bed.source("q").await;
    let out = receive(&mut source, 100).await;
    let mut good = names(&out);
    good.sort();
    assert_eq!(good, ["a1", "a3", "c1", "d2"]);
    ack(&source, &out).await;

    let letters = bed.db.store().dead_letters(0, 100).await.expect("reads");
    let mut bodies: Vec<_> = letters
        .iter()
        .map(|letter| String::from_utf8_lossy(&letter.message.body).into_owned())
        .collect();
    bodies.sort();
    assert_eq!(bodies, ["b1", "d1", "text, not bytes"]);
    assert!(letters.iter().all(|letter| letter.reason == "malformed"));
    assert_eq!(bed.db.queues()[0].depth, 0);
}

#[tokio::test]
async fn a_backup_taken_while_publishing_is_whole_and_opens() {
    let bed = Bed::new();
    bed.publish("q", (0..100).map(|n| message(&format!("a{n}"))).collect())
        .await;
    let db = bed.db.clone();
    let publisher = tokio::spawn(async move {
        for n in 100..400 {
            db.publish("q", vec![message(&format!("a{n}"))], false)
                .await
                .expect("published");
        }
    });
    let copy = tempfile::tempdir().expect("a folder");
    let to = copy.path().join("keylane.db");
    bed.db.backup(&to).await.expect("copies");
    publisher.await.expect("no panic");
    let exists = bed.db.backup(&to).await;
    assert!(matches!(exists, Err(BackupError::Exists(_))), "{exists:?}");

    let restored = Db::open(copy.path(), options(&bed.clock)).expect("opens");
    let depth = restored.queues()[0].depth as usize;
    assert!((100..=400).contains(&depth), "{depth}");
    let mut source = restored
        .source("q", "q", Keyless::Serial)
        .await
        .expect("a source");
    let out = receive(&mut source, 1000).await;
    let expected: Vec<_> = (0..depth).map(|n| format!("a{n}")).collect();
    assert_eq!(names(&out), expected);
    // The copy goes on where the original was: no sequence comes twice.
    let last = out.last().and_then(|message| message.position);
    ack(&source, &out).await;
    restored
        .publish("q", messages(&["z1"]), false)
        .await
        .expect("published");
    assert!(receive(&mut source, 1).await[0].position > last);
}

#[tokio::test]
async fn a_clean_close_leaves_no_log_behind() {
    let bed = Bed::new();
    bed.publish("q", messages(&["a1"])).await;
    let Bed { folder, db, .. } = bed;
    db.close().await;
    let log = std::fs::metadata(folder.path().join("keylane.db-wal"));
    assert!(log.map_or(0, |log| log.len()) == 0);
}

#[tokio::test(start_paused = true)]
async fn the_machines_clock_obeys_a_paused_runtime() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(folder.path(), Default::default()).expect("opens");
    let mut source = db
        .source("q", "q", Keyless::Serial)
        .await
        .expect("a source");
    let mut delayed = message("a1");
    delayed.delay = Duration::from_secs(3600);
    db.publish("q", vec![delayed], false)
        .await
        .expect("published");
    // An hour passes at once: nothing else is left to wait for.
    assert_eq!(names(&receive(&mut source, 1).await), ["a1"]);
}

/// How many rows the queue's table has, and how many notes of acks there are.
fn rows(folder: &std::path::Path) -> (i64, i64) {
    let file = rusqlite::Connection::open(folder.join("keylane.db")).expect("opens");
    let count = |sql| file.query_row(sql, [], |row| row.get(0)).expect("counts");
    (
        count("SELECT COUNT(*) FROM q_1"),
        count("SELECT COUNT(*) FROM acks"),
    )
}

#[tokio::test]
async fn acked_messages_have_left_the_file_when_it_is_closed() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "b1", "c1"])).await;
    let out = receive(&mut source, 10).await;
    ack(&source, &out[..2]).await;
    assert_eq!(bed.db.queues()[0].depth, 1);

    let Bed { folder, db, .. } = bed;
    db.close().await;

    assert_eq!(rows(folder.path()), (1, 0));
}

#[tokio::test]
async fn what_is_acked_is_not_handed_out_again_while_its_row_is_there() {
    let bed = Bed::new();
    let mut source = bed.source("q").await;
    bed.publish("q", messages(&["a1", "a2", "a3", "b1"])).await;
    let out = receive(&mut source, 3).await;
    ack(&source, &out[..2]).await;
    let settler = source.settler();
    for result in settler.give_back(receipts(&out[2..]), Duration::ZERO).await {
        result.expect("given back");
    }

    // The queue is read anew from its beginning.
    let mut parallel = bed
        .db
        .source("p", "q", Keyless::Parallel)
        .await
        .expect("a source");

    let mut left = names(&receive(&mut parallel, 10).await);
    left.sort();
    assert_eq!(left, ["a3", "b1"]);
    // So does a copy, and whoever opens that.
    let copy = tempfile::tempdir().expect("a folder");
    let file = copy.path().join("keylane.db");
    bed.db.backup(&file).await.expect("copies");
    let db = Db::open(copy.path(), options(&bed.clock)).expect("opens");
    assert_eq!(db.queues()[0].depth, 2);
    let mut source = db
        .source("q", "q", Keyless::Serial)
        .await
        .expect("a source");
    assert_eq!(names(&receive(&mut source, 10).await), ["a3", "b1"]);
}
