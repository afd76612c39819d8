//! Tells the broker how loans ended.

use std::sync::Arc;
use std::time::Duration;

use super::link::{GAVE_BACK, Link};
use crate::source::{Bond, SettleError, Settler};

/// What settles one delivery: the connection it came over, the channel there, and its tag.
#[derive(Clone, Debug)]
pub struct Receipt(Arc<Loan>);

/// A delivery that is out. When nobody has a receipt of it any more, and it was not settled, the
/// router has let go of it, and it must come again.
#[derive(Debug)]
struct Loan {
    link: Arc<Link>,
    shard: usize,
    tag: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.link.let_go(self.shard, self.tag);
    }
}

impl Receipt {
    pub(super) fn new(link: Arc<Link>, shard: usize, tag: u64) -> Self {
        link.hand_out(shard, tag);
        Self(Arc::new(Loan { link, shard, tag }))
    }
}

/// Settles what a [`super::RabbitmqSource`] handed out. Receipts know their connection, so there is
/// nothing in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RabbitmqSettler;

impl Settler for RabbitmqSettler {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        settle(receipts, Link::ack).await
    }

    async fn give_back(&self, receipts: Vec<Receipt>, _: Duration) -> Vec<Result<(), SettleError>> {
        let results = receipts.iter().map(stands).collect();
        for receipt in &receipts {
            let link = &receipt.0.link;
            if link.ended().is_none() && !link.is_stopping() {
                // Anything less than all of it would come behind what is here already.
                tracing::info!("messages go back: the broker takes back all that is out, in order");
                link.close(GAVE_BACK).await;
            }
        }
        results
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        settle(receipts, Link::reject).await
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Vec<Result<(), SettleError>> {
        settle(receipts, |_, _, _| ()).await
    }

    fn bond(&self, receipt: &Receipt) -> Option<Bond> {
        Some(receipt.0.link.bond.clone())
    }
}

/// Whether the loan still is one.
fn stands(receipt: &Receipt) -> Result<(), SettleError> {
    match receipt.0.link.ended() {
        None => Ok(()),
        Some(why) => Err(SettleError::Lost(format!(
            "the connection it came over is gone: {why}"
        ))),
    }
}

/// Sends what there is to send, in order, and has each channel answer that it was done.
async fn settle(
    receipts: Vec<Receipt>,
    send: impl Fn(&Link, usize, &[u64]) + Send,
) -> Vec<Result<(), SettleError>> {
    let channels = by_channel(&receipts);
    for (link, shard, tags) in &channels {
        if link.ended().is_none() {
            send(link, *shard, tags);
        }
    }
    for (link, shard, _) in &channels {
        if link.ended().is_none() {
            // What comes of it is in the link.
            let _ = link.ask(*shard).await;
        }
    }
    receipts.iter().map(stands).collect()
}

/// The tags of each channel, in their order.
fn by_channel(receipts: &[Receipt]) -> Vec<(Arc<Link>, usize, Vec<u64>)> {
    let mut channels: Vec<(Arc<Link>, usize, Vec<u64>)> = Vec::new();
    for Receipt(loan) in receipts {
        let known = channels
            .iter_mut()
            .find(|(link, shard, _)| Arc::ptr_eq(link, &loan.link) && *shard == loan.shard);
        match known {
            Some((_, _, tags)) => tags.push(loan.tag),
            None => channels.push((loan.link.clone(), loan.shard, vec![loan.tag])),
        }
    }
    channels
}
