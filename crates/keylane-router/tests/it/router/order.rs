//! R1, R2, R4: in order, through failures.

use std::time::Duration;

use keylane_router::history;
use keylane_router::testing::{Answer, random};

use super::top::{Top, quick_plan};

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
