//! The router inside your own program: messages are published to a durable queue and delivered
//! over HTTP, in order per key, through failures of the target.
//!
//! `cargo run -p keylane-router --features testing --example embedded_router`

use std::time::Duration;

use keylane_router::Router;
use keylane_router::embedded::{Db, NewMessage, Options};
use keylane_router::plan::{Keyless, Plan};
use keylane_router::testing::{Answer, EventKind, Target, random};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A target that fails every third time.
    let target = Target::start(random(1, vec![(2, Answer::ok()), (1, Answer::status(500))])).await;

    let folder = tempfile::tempdir()?;
    let db = Db::open(folder.path(), Options::default())?;
    let mut plan = Plan::default();
    let pool = plan
        .pools
        .get_mut("default")
        .expect("there is always a default pool");
    pool.retry.initial = Duration::from_millis(10);
    let source = db.source("orders", "orders", Keyless::Serial).await?;
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .source("orders", source)
        .start()
        .await?;

    let url = target.url("/");
    let message = |key: &str, n: u64| {
        let body = format!(
            r#"{{"id":"{key}-{n}","mediationTarget":"{url}","payload":{{"k":"{key}","n":{n}}}}}"#
        );
        NewMessage::new(format!("{key}-{n}"), Some(key.into()), body)
    };
    let messages = (1..=5)
        .flat_map(|n| ["ada", "bob"].map(|key| message(key, n)))
        .collect();
    db.publish("orders", messages, false).await?;

    while db.queues().iter().any(|queue| queue.depth > 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for event in target.recorder().all() {
        if event.kind == EventKind::End {
            let n = event.number.unwrap_or_default();
            println!(
                "{} {n}, attempt {}: {:?}",
                event.key, event.attempt, event.outcome
            );
        }
    }
    router.stop(Duration::from_secs(5)).await;
    db.close().await;
    Ok(())
}
