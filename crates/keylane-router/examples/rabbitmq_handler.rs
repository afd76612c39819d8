//! A consumer of RabbitMQ in your own program: an async function in order per key, workers and
//! prefetch by the usual rules, a graceful stop, and no HTTP.
//!
//! `AMQP_URL=amqp://guest:guest@localhost:5672/%2f cargo run -p keylane-router --example
//! rabbitmq_handler --features rabbitmq`, then publish to the queue `orders` with the header
//! `x-group-id`. Ctrl-C stops it.

use std::num::NonZeroUsize;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::handler;
use keylane_router::embedded::{self, Db};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Envelope, OnExhausted, Plan, SourcePlan};
use keylane_router::rabbitmq::{Declare, Options, RabbitmqSource};

/// Messages of one key one after the other, of different keys side by side.
async fn work(message: &Message) -> Outcome {
    let key = message.key.as_ref().map(ToString::to_string);
    match std::str::from_utf8(&message.payload) {
        Ok(text) => {
            println!("{}: {text}", key.unwrap_or_default());
            Outcome::Delivered
        }
        // Tried again, in its place, and after the last attempt a dead letter.
        Err(error) => Outcome::Failed(Reason {
            text: error.to_string(),
            ..Reason::default()
        }),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("AMQP_URL");
    let url = url.unwrap_or_else(|_| "amqp://guest:guest@localhost:5672/%2f".to_owned());
    let cpus = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut options = Options::new(url, "orders").sized(0, 0, cpus);
    options.declare = Declare::Create;
    let source_plan = SourcePlan {
        envelope: Envelope::Raw {
            pool: "default".into(),
            target: "".into(),
        },
        ..options.plan()
    };
    let mut plan = Plan::default();
    if let Some(pool) = plan.pools.get_mut("default") {
        // The source's workers are the limit.
        pool.concurrency = None;
        pool.on_exhausted = OnExhausted::DeadLetter;
    }

    // Dead letters, and keys that have no room, are kept here.
    let db = Db::open("./keylane-data", embedded::Options::default())?;
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(handler(work))
        .start()
        .await?;
    let source = RabbitmqSource::new("orders", options, &source_plan);
    let source = source.map_err(|wrong| wrong.join("; "))?;
    router.add_source("orders", source, source_plan).await?;

    tokio::signal::ctrl_c().await?;
    // What runs may finish, the rest goes back in order.
    router.stop(Duration::from_secs(30)).await;
    db.close().await;
    Ok(())
}
