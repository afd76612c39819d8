//! A message on loan from a source, on its way through a lane. It must be settled.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::audit::Scale;
use crate::counters::Counters;
use crate::lane::LaneId;
use crate::lease::Lease;
use crate::message::{BrokerId, Identity, Message};
use crate::source::BatchId;
use crate::store::{LaneName, Stay, Stored};
use crate::unsettled::Counted;

/// How a loan ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    /// It was delivered, or is safe in a store of ours.
    Ack,
    /// It goes back, to come again not before the delay.
    Return {
        /// How long the source keeps it.
        delay: Duration,
    },
}

/// What is to be done with a delivery instead of calling its target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// Call the target.
    Attempt,
    /// Its target has it, but the lease was lost meanwhile: ack it should it come again.
    Delivered,
    /// Store it as a dead letter.
    DeadLetter {
        /// A short class.
        reason: &'static str,
        /// A sentence.
        text: String,
    },
    /// Give it back, with everything behind it.
    Return,
    /// Its key is parked: store it behind that.
    ParkBehind,
    /// Store its key whole.
    Park {
        /// A sentence.
        reason: String,
    },
}

/// Who is told how a loan ended.
#[derive(Clone, Debug)]
pub(crate) enum Lender {
    /// The consumer of a source.
    Source(mpsc::UnboundedSender<Settled<BrokerId>>),
    /// The replay of a parked key: the row it came from.
    Row(mpsc::UnboundedSender<Settled<u64>>, u64),
}

/// How the loan of one message ended.
#[derive(Debug)]
pub(crate) struct Settled<I> {
    pub(crate) id: I,
    pub(crate) settlement: Settlement,
    /// Dropped when the settlement is durable.
    pub(crate) counted: Option<Counted>,
}

/// A message on loan, with how it fared so far.
pub(crate) struct Delivery {
    pub(crate) identity: Identity,
    pub(crate) position: Option<u64>,
    /// What its position can be compared with, where the source has positions.
    pub(crate) scale: Option<Scale>,
    pub(crate) batch: BatchId,
    pub(crate) body: Bytes,
    pub(crate) headers: Vec<(Arc<str>, Arc<str>)>,
    pub(crate) message: Message,
    /// Whom it will be sent to, for the breaker.
    pub(crate) origin: Option<Arc<str>>,
    pub(crate) received: Instant,
    pub(crate) stay: Stay,
    /// How often in a row the target said "not yet" or "busy", or the store could not write.
    pub(crate) waits: u32,
    pub(crate) not_before: Option<Instant>,
    pub(crate) fate: Fate,
    pub(crate) lane: LaneId,
    pub(crate) counters: Arc<Counters>,
    /// Until when it may be acted on, where its source lends for a time.
    pub(crate) lease: Option<Arc<Lease>>,
    /// While an attempt is under way, and from then on if it was the last.
    pub(crate) counted: Option<Counted>,
    lender: Option<Lender>,
}

/// What a delivery starts with.
pub(crate) struct Loan {
    pub(crate) identity: Identity,
    pub(crate) position: Option<u64>,
    /// What its position can be compared with, where the source has positions.
    pub(crate) scale: Option<Scale>,
    pub(crate) batch: BatchId,
    pub(crate) body: Bytes,
    pub(crate) headers: Vec<(Arc<str>, Arc<str>)>,
    pub(crate) lender: Lender,
    pub(crate) lease: Option<Arc<Lease>>,
}

impl Delivery {
    pub(crate) fn new(
        loan: Loan,
        message: Message,
        lane: LaneId,
        stay: Stay,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            identity: loan.identity,
            position: loan.position,
            scale: loan.scale,
            batch: loan.batch,
            body: loan.body,
            headers: loan.headers,
            message,
            origin: None,
            received: Instant::now(),
            stay,
            waits: 0,
            not_before: None,
            fate: Fate::Attempt,
            lane,
            counters,
            lease: loan.lease,
            counted: None,
            lender: Some(loan.lender),
        }
    }

    /// Whether it came from a store of ours rather than from its source.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.lender, Some(Lender::Row(..)))
    }

    /// The row of a store it came from, if it did.
    pub(crate) fn row(&self) -> Option<u64> {
        match self.lender {
            Some(Lender::Row(_, row)) => Some(row),
            _ => None,
        }
    }

    /// Whether its lease is over, so that nothing may be done with it.
    pub(crate) fn is_lost(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| !lease.holds())
    }

    /// Whether its source takes no more, and wants everything back.
    pub(crate) fn source_stops(&self) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| lease.source_stops())
    }

    /// The loan is over, and its source knows nothing of this delivery any more.
    pub(crate) fn lost(mut self) {
        self.counters.lost_leases.one();
        self.lender = None;
    }

    /// Ends the loan.
    pub(crate) fn settle(mut self, settlement: Settlement) {
        if let Some(lender) = self.lender.take() {
            lender.settle(&self.identity, settlement, self.counted.take());
        }
    }

    /// As a store keeps it.
    pub(crate) fn to_stored(&self, lane: LaneName) -> Stored {
        Stored {
            identity: self.identity.clone(),
            lane,
            body: self.body.clone(),
            headers: self.headers.clone(),
            position: self.position,
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.lender.is_some() {
            // Only the end of the process may do this: the source gives it out again.
            tracing::error!(identity = %self.identity, "a delivery was dropped without settlement");
        }
    }
}

impl Lender {
    fn settle(self, identity: &Identity, settlement: Settlement, counted: Option<Counted>) {
        // A closed channel means that the source is gone: it gives out again what was not settled.
        let _ = match self {
            Self::Source(to) => {
                let id = identity.id.clone();
                let settled = Settled {
                    id,
                    settlement,
                    counted,
                };
                to.send(settled).is_ok()
            }
            Self::Row(to, id) => {
                let settled = Settled {
                    id,
                    settlement,
                    counted,
                };
                to.send(settled).is_ok()
            }
        };
    }
}
