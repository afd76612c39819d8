//! Feeds a parked key from the store back into its lane, in order, until it is empty.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::delivery::{Delivery, Fate, Lender, Loan, Settled, Settlement};
use crate::lane::LaneId;
use crate::parse;
use crate::plan::Envelope;
use crate::pool::Pool;
use crate::router::Inner;
use crate::source::BatchId;
use crate::store::{LaneName, ParkedRow, StoreError};

/// How many rows are in the lane at once.
const AHEAD: usize = 64;

/// One replay.
pub(crate) struct Replay {
    pub(crate) router: Arc<Inner>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) lane: LaneName,
}

impl Replay {
    /// Runs until nothing is parked, the replay is called off, or the router stops.
    pub(crate) async fn run(self) {
        loop {
            match self.feed_some().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(lane = ?self.lane, "replay: {error}");
                    tokio::select! {
                        () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
                        () = self.router.stop_taking.cancelled() => return,
                    }
                }
            }
        }
    }

    /// Feeds the next rows and sees them through; `false` when there is no more to do.
    async fn feed_some(&self) -> Result<bool, StoreError> {
        let parked = self.router.store.parked_lane(&self.lane);
        if !parked.is_some_and(|lane| lane.replaying) || self.router.stop_taking.is_cancelled() {
            return Ok(false);
        }
        let rows = self
            .router
            .store
            .parked_rows(self.lane.clone(), 0, AHEAD)
            .await?;
        let (lender, mut settled) = mpsc::unbounded_channel();
        let lane = LaneId::of(&self.lane);
        let mut pushed = 0;
        for row in rows {
            let number = row.row;
            let delivery = self.delivery(row, Lender::Row(lender.clone(), number));
            if let Err(delivery) = self.pool.push(lane.clone(), delivery) {
                delivery.settle(Settlement::Return {
                    delay: std::time::Duration::ZERO,
                });
                break;
            }
            pushed += 1;
        }
        drop(lender);
        if pushed == 0 {
            // The lane is full of what arrived: that goes into the store first.
            tokio::select! {
                () = self.pool.idle(&lane) => {}
                () = self.router.stop_taking.cancelled() => {}
            }
        }
        let mut batch = Vec::new();
        while settled.recv_many(&mut batch, AHEAD).await > 0 {
            batch.retain(|settled: &Settled<u64>| settled.settlement == Settlement::Ack);
            let done: Vec<u64> = batch.iter().map(|settled| settled.id).collect();
            if !done.is_empty() {
                self.router.store.unpark(self.lane.clone(), done).await?;
            }
            batch.clear();
        }
        Ok(true)
    }

    fn delivery(&self, row: ParkedRow, lender: Lender) -> Box<Delivery> {
        let stored = row.message;
        let envelope = self.router.envelope_of(&self.lane.source);
        let (message, fate) = match parse::parse(&envelope, &stored) {
            Ok(message) => (message, Fate::Attempt),
            Err(malformed) => {
                let fate = Fate::DeadLetter {
                    reason: "malformed",
                    text: malformed.text,
                };
                let raw = Envelope::Raw {
                    pool: self.pool.name.clone(),
                    target: "".into(),
                };
                let message = parse::parse(&raw, &stored).expect("a raw body is always a message");
                (message, fate)
            }
        };
        let stay = self.router.store.stay(&stored.identity);
        let counters = self.router.counters.of(&self.lane.source, &self.pool.name);
        let lane = LaneId::of(&self.lane);
        let loan = Loan {
            scale: self.router.scale_of(&stored.identity.source),
            identity: stored.identity,
            position: stored.position,
            batch: BatchId(row.row),
            body: stored.body,
            headers: stored.headers,
            lender,
            lease: None,
        };
        let mut delivery = Box::new(Delivery::new(loan, message, lane, stay, counters));
        delivery.origin = self.router.dispatch.origin_of(&delivery.message);
        delivery.fate = fate;
        delivery
    }
}
