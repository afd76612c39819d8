//! `--standby` (FC-17).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keylane_router::testing::{Answer, Request, Target};
use rustix::process::Signal;

use crate::server::{Folder, delivered, messages, within};

#[tokio::test]
async fn a_standby_takes_over_when_the_owner_dies() {
    let owner_lives = Arc::new(AtomicBool::new(true));
    let lives = owner_lives.clone();
    let target = Target::start(move |_: &Request| match lives.load(Ordering::SeqCst) {
        true => Answer::Hang,
        false => Answer::ok(),
    })
    .await;
    let folder = Folder::new();
    let owner = folder.start().await;
    let standby = folder.spawn(&["--standby"]);
    standby.logs("standing by").await;
    owner.publish(messages(&target, "k", 5)).await;
    within(target.recorder().started(1)).await;

    owner_lives.store(false, Ordering::SeqCst);
    owner.kill().await;

    let heir = standby.listening().await;
    heir.empty().await;
    assert_eq!(delivered(&target.recorder().all(), "k"), [1, 2, 3, 4, 5]);
    assert_eq!(heir.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_standby_that_is_told_to_stop_ends_at_once() {
    let folder = Folder::new();
    let owner = folder.start().await;
    let mut standby = folder.spawn(&["--standby"]);
    standby.logs("standing by").await;
    standby.signal(Signal::TERM);
    assert_eq!(standby.ended().await, Some(0));
    assert_eq!(owner.get("/readyz").await.status, 200);
}
