//! For those who come from a GoBricks consumer: the same names, sizes and dead letters, and as near
//! to its behaviour as order per key allows.
//!
//! | there | here |
//! |---|---|
//! | `Workers: 0` → CPUs × 4, `PrefetchCount: 0` → workers × 10 up to 500 | `sized(0, 0, cpus)`; caps 200 and 1000 |
//! | workers take messages in any order | one after the other for each key; keyless messages side by side |
//! | an error goes to the dead-letter exchange at once | `max_attempts = 1`, `dead_letter = broker` |
//! | a panic fails its message and the consumer goes on | the same |
//! | `AutoAck` | there is none: it loses messages |
//!
//! `AMQP_URL=… cargo run -p keylane-router --example as-gobricks --features rabbitmq`

use std::num::NonZeroUsize;
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::handler;
use keylane_router::embedded::{self, Db};
use keylane_router::message::Message;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Envelope, OnExhausted, Plan, SourcePlan};
use keylane_router::rabbitmq::{DeadLetterTo, Declare, Options, RabbitmqSource};

async fn work(message: &Message) -> Outcome {
    println!("{} bytes", message.payload.len());
    Outcome::Delivered
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("AMQP_URL");
    let url = url.unwrap_or_else(|_| "amqp://guest:guest@localhost:5672/%2f".to_owned());
    let cpus = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut options = Options::new(url, "user-events").sized(0, 0, cpus);
    options.consumer_tag = "user-service".to_owned();
    options.event_type = "UserCreated".to_owned();
    // Makes `user-events.dlx` and `user-events.dlq`, too.
    options.declare = Declare::Create;
    options.dead_letter = DeadLetterTo::Broker;
    let source_plan = SourcePlan {
        envelope: Envelope::Raw {
            pool: "default".into(),
            target: "".into(),
        },
        ..options.plan()
    };
    let mut plan = Plan::default();
    if let Some(pool) = plan.pools.get_mut("default") {
        pool.concurrency = None;
        pool.retry.max_attempts = NonZeroUsize::MIN;
        pool.on_exhausted = OnExhausted::DeadLetter;
    }
    let db = Db::open("./keylane-data", embedded::Options::default())?;
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(handler(work))
        .start()
        .await?;
    let source = RabbitmqSource::new("user-events", options, &source_plan);
    let source = source.map_err(|wrong| wrong.join("; "))?;
    router
        .add_source("user-events", source, source_plan)
        .await?;
    tokio::signal::ctrl_c().await?;
    router.stop(Duration::from_secs(30)).await;
    db.close().await;
    Ok(())
}
