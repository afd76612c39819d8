//! `examples/as-flowcatalyst.toml` on a source that hands out two batches of one key (FC-3), which
//! the embedded queue never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::embedded::{Db, Options};
use keylane_router::message::{BrokerId, Identity, Key};
use keylane_router::plan::Plan;
use keylane_router::source::{
    BatchId, Features, Received, Room, SettleError, Settler, Source, SourceError,
};
use keylane_router::testing::{Answer, Request, Target};
use tokio::sync::mpsc;

use super::{Config, documented, tree};

const EXAMPLE: &str = include_str!("../../examples/as-flowcatalyst.toml");

fn plan() -> Plan {
    let written = tree::parse(EXAMPLE, None).expect("the example is TOML");
    let config = Config::from_tables(&written, &documented()).expect("and right");
    config.plan
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Acked(u64),
    Returned(u64),
}

/// Hands out the batches it is given; takes messages back in order.
struct TwoBatches {
    batches: mpsc::UnboundedReceiver<Vec<Received<u64>>>,
    ends: Ends,
}

#[derive(Clone)]
struct Ends(mpsc::UnboundedSender<End>);

impl Source for TwoBatches {
    type Receipt = u64;
    type Settler = Ends;

    fn features(&self) -> Features {
        Features {
            identity: true,
            ordered_return: true,
            delayed_return: true,
            confirmed_acks: true,
            ..Features::none("two batches")
        }
    }

    async fn receive(&mut self, _: Room) -> Result<Vec<Received<u64>>, SourceError> {
        match self.batches.recv().await {
            Some(batch) => Ok(batch),
            None => std::future::pending().await,
        }
    }

    fn settler(&self) -> Ends {
        self.ends.clone()
    }

    async fn close(self) {}
}

impl Ends {
    fn all(&self, receipts: Vec<u64>, end: fn(u64) -> End) -> Vec<Result<(), SettleError>> {
        let told = |id| {
            self.0
                .send(end(id))
                .map_err(|_| SettleError::Lost("over".into()))
        };
        receipts.into_iter().map(told).collect()
    }
}

impl Settler for Ends {
    type Receipt = u64;

    async fn ack(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        self.all(receipts, End::Acked)
    }

    async fn give_back(&self, receipts: Vec<u64>, _: Duration) -> Vec<Result<(), SettleError>> {
        self.all(receipts, End::Returned)
    }

    async fn reject(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        receipts.into_iter().map(|_| Ok(())).collect()
    }

    async fn renew(&self, receipts: Vec<u64>) -> Vec<Result<(), SettleError>> {
        receipts.into_iter().map(|_| Ok(())).collect()
    }
}

fn message(url: &str, id: u64, batch: u64) -> Received<u64> {
    let body = format!(r#"{{"id":"{id}","mediationTarget":"{url}","payload":{{"n":{id}}}}}"#);
    Received {
        identity: Identity {
            source: "default".into(),
            id: BrokerId::Sequence(id),
        },
        key: Some(Key::from("g")),
        tenant: None,
        position: None,
        batch: BatchId(batch),
        body: body.into(),
        headers: Vec::new(),
        receipt: id,
    }
}

#[tokio::test]
async fn fc_3_a_failure_in_the_first_batch_does_not_touch_the_second() {
    let both_are_here = Arc::new(AtomicBool::new(false));
    let go = both_are_here.clone();
    // The first waits for the second batch ("not yet" gives nothing back), then fails.
    let target = Target::start(move |request: &Request| match request.number {
        Some(1) if go.load(Ordering::SeqCst) => Answer::status(500),
        Some(1) => Answer::not_yet(0),
        _ => Answer::ok(),
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(folder.path(), Options::default()).expect("a file");
    let (to, batches) = mpsc::unbounded_channel();
    let (ends, mut ended) = mpsc::unbounded_channel();
    let source = TwoBatches {
        batches,
        ends: Ends(ends),
    };
    let mut plan = plan();
    let pool = plan.pools.get_mut("default").expect("the example has it");
    pool.retry.initial = Duration::from_millis(5);
    let builder = Router::builder().plan(plan).store(db.store());
    let router = builder.source("default", source).start().await;
    let router = router.expect("it starts");
    let url = target.url("/");
    let first = vec![message(&url, 1, 1), message(&url, 2, 1)];
    let second = vec![message(&url, 3, 2)];
    to.send(first).and(to.send(second)).expect("it is read");
    while router.held(["1", "2", "3"]).len() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    both_are_here.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    while all.len() < 3 {
        all.push(ended.recv().await.expect("the source lives"));
    }
    assert_eq!(all, [End::Returned(1), End::Returned(2), End::Acked(3)]);
    router.stop(Duration::from_secs(5)).await;
}
