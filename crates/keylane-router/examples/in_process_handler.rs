//! A consumer in your own program: messages from a durable queue to an async function, in order
//! per key, without HTTP.
//!
//! `cargo run -p keylane-router --example in_process_handler`

use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::handler;
use keylane_router::embedded::{Db, NewMessage, Options};
use keylane_router::message::Message;
use keylane_router::outcome::Outcome;
use keylane_router::plan::Keyless;

async fn work(message: &Message) -> Outcome {
    let key = message.key.as_ref().map(ToString::to_string);
    println!("{} of {}", message.id, key.unwrap_or_default());
    Outcome::Delivered
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Db::open(folder.path(), Options::default())?;
    let source = db.source("orders", "orders", Keyless::Serial).await?;
    let router = Router::builder()
        .store(db.store())
        .dispatch(handler(work))
        .source("orders", source)
        .start()
        .await?;

    let steps = ["created", "paid", "shipped"];
    let messages = steps.iter().flat_map(|step| {
        (1..=3).map(move |order| {
            let id = format!("{step}-{order}");
            let body = format!(r#"{{"id":"{id}","mediationTarget":"http://unused.example/"}}"#);
            NewMessage::new(id, Some(format!("order-{order}").as_str().into()), body)
        })
    });
    db.publish("orders", messages.collect(), false).await?;

    while db.queues().iter().any(|queue| queue.depth > 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    router.stop(Duration::from_secs(5)).await;
    db.close().await;
    Ok(())
}
