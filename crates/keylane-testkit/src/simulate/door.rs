//! A source behind a door: each call can fail, lose its loans or end the process, and is written
//! down.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use keylane_router::source::{
    Bond, Features, Received, Room, SettleError, Settler, Source, SourceError,
};

use super::case::{Call, Effect};
use super::target::number_in;
use super::world::{What, World};

/// A source of one process.
pub(crate) struct Door<S> {
    pub(crate) name: Arc<str>,
    pub(crate) source: S,
    pub(crate) world: Arc<World>,
    /// Whether calls go over a network.
    pub(crate) remote: bool,
}

/// A receipt, and which message it is of.
#[derive(Clone)]
pub(crate) struct Lent<R> {
    n: Option<usize>,
    receipt: R,
}

impl<S: Source> Source for Door<S> {
    type Receipt = Lent<S::Receipt>;
    type Settler = DoorSettler<S::Settler>;

    fn features(&self) -> Features {
        self.source.features()
    }

    fn destination(&self) -> Option<Arc<str>> {
        self.source.destination()
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Self::Receipt>>, SourceError> {
        let name = self.name.clone();
        let failed = |_| {
            Err(SourceError {
                source_name: name,
                text: "simulated".to_owned(),
                permanent: false,
            })
        };
        let source = &mut self.source;
        let receive = async { source.receive(room).await };
        let received = self.world.call(Call::Receive, &[], receive, failed).await?;
        // No await from here on: what was received is handed out.
        let mut all = Vec::with_capacity(received.len());
        for one in received {
            let n = number_in(&one.body);
            if let Some(n) = n {
                let source = self.name.to_string();
                self.world.note(What::Received { n, source });
                self.world.identified(n, one.identity.clone());
            }
            all.push(Received {
                identity: one.identity,
                key: one.key,
                tenant: one.tenant,
                position: one.position,
                batch: one.batch,
                body: one.body,
                headers: one.headers,
                receipt: Lent {
                    n,
                    receipt: one.receipt,
                },
            });
        }
        Ok(all)
    }

    fn settler(&self) -> Self::Settler {
        DoorSettler {
            settler: self.source.settler(),
            world: self.world.clone(),
            remote: self.remote,
        }
    }

    async fn stop_taking(&mut self) {
        self.source.stop_taking().await;
    }

    async fn close(self) {
        self.source.close().await;
    }
}

/// The settling side.
#[derive(Clone)]
pub(crate) struct DoorSettler<T> {
    settler: T,
    world: Arc<World>,
    remote: bool,
}

impl<T: Settler> DoorSettler<T> {
    async fn settle<F>(
        &self,
        what: Call,
        receipts: Vec<Lent<T::Receipt>>,
        settle: impl FnOnce(Vec<T::Receipt>) -> F + Send,
        settled: impl Fn(usize) -> Option<What> + Send,
    ) -> Vec<Result<(), SettleError>>
    where
        F: Future<Output = Vec<Result<(), SettleError>>> + Send,
    {
        let world = &self.world;
        let numbers: Vec<Option<usize>> = receipts.iter().map(|lent| lent.n).collect();
        let key = |n: &Option<usize>| n.and_then(|n| world.case.key_of(n)).map(str::to_owned);
        let keys: Vec<Option<String>> = numbers.iter().map(key).collect();
        let receipts: Vec<_> = receipts.into_iter().map(|lent| lent.receipt).collect();
        let loans = receipts.clone();
        let remote = self.remote;
        let carry_out = async {
            if remote {
                world.latency(20).await;
            }
            if !world.is_open() {
                std::future::pending::<()>().await;
            }
            let results = settle(receipts).await;
            if world.is_open() {
                for (n, result) in numbers.iter().zip(&results) {
                    let Some(n) = *n else { continue };
                    match result {
                        Ok(()) => settled(n).into_iter().for_each(|what| world.note(what)),
                        Err(SettleError::Lost(_)) => world.note(What::Lost { n }),
                        Err(SettleError::Again(_)) => {
                            world.note(What::Unsettled { n, call: what });
                        }
                    }
                }
            }
            if remote {
                world.latency(20).await;
            }
            results
        };
        let mut lost = false;
        let failed = |effect| {
            for n in numbers.iter().flatten() {
                world.note(What::Unsettled { n: *n, call: what });
            }
            // Loans of the embedded queue end with the process only.
            lost = effect == Effect::Lost && remote;
            let error = match lost {
                true => SettleError::Lost("simulated".to_owned()),
                false => SettleError::Again("simulated".to_owned()),
            };
            vec![Err(error); numbers.len()]
        };
        let results = world.call(what, &keys, carry_out, failed).await;
        if lost {
            // The broker has it again.
            self.settler.give_back(loans, Duration::ZERO).await;
        }
        results
    }
}

impl<T: Settler> Settler for DoorSettler<T> {
    type Receipt = Lent<T::Receipt>;

    async fn ack(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        let settler = self.settler.clone();
        let ack = |receipts| async move { settler.ack(receipts).await };
        self.settle(Call::Ack, receipts, ack, |n| Some(What::Acked { n }))
            .await
    }

    async fn give_back(
        &self,
        receipts: Vec<Self::Receipt>,
        delay: Duration,
    ) -> Vec<Result<(), SettleError>> {
        let settler = self.settler.clone();
        let give_back = |receipts| async move { settler.give_back(receipts, delay).await };
        let returned = |n| Some(What::Returned { n });
        self.settle(Call::GiveBack, receipts, give_back, returned)
            .await
    }

    async fn reject(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        let receipts = receipts.into_iter().map(|lent| lent.receipt).collect();
        self.settler.reject(receipts).await
    }

    async fn renew(&self, receipts: Vec<Self::Receipt>) -> Vec<Result<(), SettleError>> {
        let settler = self.settler.clone();
        let renew = |receipts| async move { settler.renew(receipts).await };
        self.settle(Call::Renew, receipts, renew, |_| None).await
    }

    fn batch(&self) -> NonZeroUsize {
        self.settler.batch()
    }

    fn bond(&self, receipt: &Self::Receipt) -> Option<Bond> {
        self.settler.bond(&receipt.receipt)
    }
}
