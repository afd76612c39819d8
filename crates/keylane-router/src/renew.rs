//! Renews the leases of what is out in time, and takes out of the lanes what lost its lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::health::Trouble;
use crate::jitter;
use crate::lease::{Lease, Terms};
use crate::message::BrokerId;
use crate::plan::Overflow;
use crate::router::Inner;
use crate::source::{SettleError, Settler};
use crate::spill::Over;

/// How often leases are looked at in their length. What has less than half of it left is renewed,
/// so more than a third is left whenever that begins.
const LOOKS: u32 = 8;
/// The most leases renewed at once.
const RENEW_BATCH: usize = 1024;

/// What is out of a source, with its leases.
pub(crate) trait Leases<R>: Send + Sync + 'static {
    /// Waits until something is out.
    fn some(&self) -> impl Future<Output = ()> + Send;
    /// Waits until it is doubtful whether what is out is still lent.
    fn doubted(&self) -> impl Future<Output = ()> + Send;
    /// Looks at every lease, with a way to renew it.
    fn look(&self, at: impl FnMut(&Arc<Lease>, &dyn Fn() -> Due<R>));
    /// Hands out the lease that was to be renewed, unless its message was settled or came again
    /// meanwhile.
    fn renewed(&self, due: &Due<R>, with: impl FnOnce(&Arc<Lease>));
}

/// A lease that is to be renewed.
pub(crate) struct Due<R> {
    pub(crate) id: BrokerId,
    pub(crate) came: u32,
    pub(crate) receipt: R,
}

/// The renewing side of one source.
pub(crate) struct Renewals<T: Settler, H> {
    pub(crate) name: Arc<str>,
    pub(crate) settler: T,
    pub(crate) held: Arc<H>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) longest_loan: Option<Duration>,
    /// Whether the source takes messages back in order and with a delay.
    pub(crate) returns: bool,
    /// Whether what is given back comes again in order, at once and with everything else that is out.
    pub(crate) takes_back: bool,
    pub(crate) router: Arc<Inner>,
}

impl<T: Settler, H: Leases<T::Receipt>> Renewals<T, H> {
    /// Renews for ever; while nothing is out it does nothing.
    pub(crate) async fn run(self) {
        let every = self.terms.length / LOOKS;
        loop {
            self.held.some().await;
            let random = self.router.shared.machine.random();
            let doubted = tokio::select! {
                biased;
                () = tokio::time::sleep(jitter::between(random, every, 0.75, 1.0)) => false,
                () = self.held.doubted() => true,
            };
            let due = self.look(doubted);
            for batch in in_batches(due) {
                self.renew(batch).await;
            }
        }
    }

    /// Takes out what is lost; answers what is to be renewed, which is everything when in doubt.
    fn look(&self, doubted: bool) -> Vec<Due<T::Receipt>> {
        let mut due = Vec::new();
        let mut lost = Vec::new();
        let mut old = Vec::new();
        let now = self.terms.clock.now();
        self.held.look(|lease, to_renew| {
            let left = lease.left();
            if left.is_zero() {
                lost.push(lease.clone());
            } else if self.is_old(now.saturating_sub(lease.lent())) {
                old.push(lease.clone());
            } else if doubted || left < self.terms.length / 2 {
                due.push(to_renew());
            }
        });
        lost.iter().for_each(take_out);
        old.iter().for_each(|lease| self.give_back(lease));
        due
    }

    /// Whether what was out for so long cannot be renewed once more, and be given back after that.
    fn is_old(&self, out_for: Duration) -> bool {
        let longest = self.longest_loan;
        longest.is_some_and(|longest| out_for + 2 * self.terms.length > longest)
    }

    /// The lane goes back to its source whole, where that takes it in order and with a delay, or to
    /// the store, if that is where lanes go that are over; or back at once, with all that is out, where
    /// that comes again in order. Elsewhere the loan ends by itself.
    fn give_back(&self, lease: &Arc<Lease>) {
        let Some((pool, lane)) = lease.lane() else {
            return;
        };
        let overflow = self.router.shared.overflow(&pool.plan(), &self.name);
        if self.returns {
            pool.overflow(&lane, Over::Return);
        } else if overflow == Overflow::Spill {
            let why = "it has been out for nearly as long as its broker allows";
            pool.overflow(&lane, Over::Spill(why.to_owned()));
        } else if self.takes_back {
            pool.overflow(&lane, Over::Return);
        }
    }

    async fn renew(&self, due: Vec<Due<T::Receipt>>) {
        // Before the broker is asked: it counts from then on at the earliest.
        let began = self.terms.clock.now();
        let receipts = due.iter().map(|due| due.receipt.clone()).collect();
        let renewed = self.settler.renew(receipts);
        // One that hangs must not keep the others from being renewed.
        let patience = self.terms.length / 4;
        let Ok(results) = tokio::time::timeout(patience, renewed).await else {
            let text = format!("leases were not renewed within {patience:?}");
            return self.trouble(text);
        };
        let mut lost = Vec::new();
        for (due, result) in due.iter().zip(results) {
            self.held.renewed(due, |lease| match &result {
                Ok(()) => lease.begin(began),
                Err(SettleError::Again(_)) => {}
                Err(SettleError::Lost(_)) => {
                    lease.end();
                    lost.push(lease.clone());
                }
            });
            if let Err(SettleError::Again(text)) = result {
                self.trouble(format!("a lease was not renewed: {text}"));
            }
        }
        lost.iter().for_each(take_out);
    }

    fn trouble(&self, text: String) {
        let trouble = Trouble::Source(self.name.clone());
        self.router.health.trouble(trouble, text);
    }
}

/// What lost its lease leaves its lane, if it is at the front: behind something that is still ours
/// it stays, and takes its place again should it come again.
fn take_out(lease: &Arc<Lease>) {
    if let Some((pool, lane)) = lease.lane() {
        pool.take_out_lost(&lane);
    }
}

fn in_batches<R>(mut due: Vec<Due<R>>) -> Vec<Vec<Due<R>>> {
    let mut batches = Vec::new();
    while !due.is_empty() {
        let rest = due.split_off(due.len().min(RENEW_BATCH));
        batches.push(std::mem::replace(&mut due, rest));
    }
    batches
}
