//! Ends the loans of what came over a link.

use std::sync::Arc;
use std::time::Duration;

use super::link::{How, Lent, Link};
use crate::source::{Bond, SettleError, Settler};

/// What settles one message: the message itself, as it came over its link.
#[derive(Clone)]
pub struct Receipt(pub(super) Arc<Lent>);

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receipt({}, {})", self.0.number, self.0.id)
    }
}

/// The settling side of a source. A receipt knows its link, so there is nothing to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActiveMqSettler;

type Settled = Vec<Result<(), SettleError>>;

/// Those of the receipts whose link is there. It is one link at most: the one before it ended.
fn of_the_link(receipts: &[Receipt]) -> Option<(Arc<Link>, Vec<Arc<Lent>>)> {
    let ours = receipts.iter().filter(|receipt| receipt.holds());
    let lent: Vec<_> = ours.map(|receipt| receipt.0.clone()).collect();
    let link = lent.first()?.link.clone();
    Some((link, lent))
}

impl Receipt {
    fn holds(&self) -> bool {
        self.0.link.bond.holds()
    }
}

/// What became of each, where those of the link had this result.
fn results(receipts: &[Receipt], lent: &[Arc<Lent>], result: Result<(), SettleError>) -> Settled {
    let mut lent = lent.iter().peekable();
    let of_each = |receipt: &Receipt| match lent.next_if(|lent| Arc::ptr_eq(lent, &receipt.0)) {
        Some(_) => result.clone(),
        None => Err(lost()),
    };
    receipts.iter().map(of_each).collect()
}

fn lost() -> SettleError {
    SettleError::Lost("the connection it came over has ended".to_owned())
}

async fn settle(receipts: Vec<Receipt>, how: How) -> Settled {
    let Some((link, lent)) = of_the_link(&receipts) else {
        return results(&receipts, &[], Ok(()));
    };
    let sent = link.settle(&lent, how).await;
    results(&receipts, &lent, sent.then_some(()).ok_or_else(lost))
}

impl Settler for ActiveMqSettler {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Settled {
        settle(receipts, How::Accept).await
    }

    /// They wait here, and not at the broker: it would hand out what is behind them first, unless it
    /// had nothing under way to us. When the link ends they are at their places in the queue.
    async fn give_back(&self, receipts: Vec<Receipt>, _delay: Duration) -> Settled {
        let Some((link, lent)) = of_the_link(&receipts) else {
            return results(&receipts, &[], Ok(()));
        };
        link.give_back(lent.iter().cloned());
        results(&receipts, &lent, Ok(()))
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Settled {
        settle(receipts, How::Reject).await
    }

    /// One answer of the broker is the proof for all that was lent over the connection.
    async fn renew(&self, receipts: Vec<Receipt>) -> Settled {
        let Some((link, lent)) = of_the_link(&receipts) else {
            return results(&receipts, &[], Ok(()));
        };
        let there = link.ping().await && link.bond.holds();
        results(&receipts, &lent, there.then_some(()).ok_or_else(lost))
    }

    fn bond(&self, receipt: &Receipt) -> Option<Bond> {
        Some(receipt.0.link.bond.clone())
    }
}
