//! A message on loan from a source, on its way through a lane. It must be settled.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::audit::Scale;
use crate::blocked::BlockedHead;
use crate::counters::Counters;
use crate::feed::Fed;
use crate::lane::LaneId;
use crate::lease::Lease;
use crate::message::{BrokerId, Identity, Message};
use crate::parcel::Parcel;
use crate::rescue;
use crate::room::Place;
use crate::seats::Seat;
use crate::settlements::ToSettle;
use crate::source::BatchId;
use crate::store::{LaneName, Stay, Stored};
use crate::store_trouble::StoreWait;
use crate::unsettled::Counted;
use crate::weight::Weight;

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
    /// To the broker's own dead letters.
    Reject,
}

/// What is to be done with a delivery instead of calling its target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// Call the target.
    Attempt,
    /// Its target has it, but the lease was lost meanwhile: ack it should it come again.
    Delivered,
    /// Store it as a dead letter.
    DeadLetter(Letter),
    /// Give it back, with everything behind it.
    Return,
    /// Its key is stored: store it behind that.
    ParkBehind,
    /// Store its key whole, because of this: a sentence.
    Park(String),
}

/// What a delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its target says "not yet".
    NotYet,
    /// Its target is busy.
    Busy,
    /// The store cannot be written.
    Store,
}

/// Why a message becomes a dead letter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Letter {
    /// A short class.
    pub(crate) reason: &'static str,
    /// A sentence.
    pub(crate) text: String,
}

impl Fate {
    pub(crate) fn dead_letter(reason: &'static str, text: String) -> Self {
        Self::DeadLetter(Letter { reason, text })
    }
}

/// Who is told how a loan ended.
#[derive(Clone, Debug)]
pub(crate) enum Lender {
    /// The consumer of a source, and the number of the loan there.
    Source(Arc<SourceEnd>, u32),
    /// The feeder of a stored key.
    Row(Box<Row>),
}

/// A row of a stored key, and who feeds it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) to: mpsc::UnboundedSender<Fed>,
    pub(crate) row: u64,
}

/// Where deliveries of one source end.
pub(crate) struct SourceEnd {
    pub(crate) to_settle: ToSettle,
    pub(crate) window: Arc<dyn Window>,
}

impl std::fmt::Debug for SourceEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SourceEnd")
    }
}

/// The window of a source, told how its lanes fare.
pub(crate) trait Window: Send + Sync {
    /// These messages go back to the source, all at one moment: one that comes again from then on is
    /// a new one. Returns the newest batch: messages of the lane from it or an earlier one arrived
    /// before that moment, and go back too.
    fn goes_back(&self, messages: &[(&BrokerId, u32)]) -> BatchId;
    /// The head of this lane is held.
    fn hold(&self, place: &Place);
    /// The head of this lane, which was held, is resolved.
    fn moved(&self, place: &Place);
}

/// How the loan of one message ended.
#[derive(Debug)]
pub(crate) struct Settled<I> {
    pub(crate) id: I,
    /// The number of the loan at its source; 0 for a row.
    pub(crate) loan: u32,
    pub(crate) settlement: Settlement,
    /// Dropped when the settlement is durable.
    pub(crate) counted: Option<Counted>,
}

/// A message on loan, with how it fared so far. There may be very many: what few have is apart.
pub(crate) struct Delivery {
    pub(crate) identity: Identity,
    position: Position,
    /// What its position can be compared with, where the source has positions.
    pub(crate) scale: Option<Scale>,
    pub(crate) batch: BatchId,
    pub(crate) body: Bytes,
    pub(crate) parcel: Parcel,
    pub(crate) received: Instant,
    pub(crate) stay: Stay,
    pub(crate) origin: Origin,
    /// Its target was called in this stay.
    pub(crate) called: bool,
    /// How often in a row it had to wait for the same.
    waits: u16,
    waited_for: Option<Wait>,
    /// Whether it was held at all.
    held: AtomicBool,
    rare: Option<Box<Rare>>,
    /// What it takes of its pool's byte budget; given back when it is dropped.
    pub(crate) weight: Option<Weight>,
    /// While it is in a lane.
    pub(crate) seat: Option<Seat>,
    /// Its lane in the window of its source, if it came from there.
    place: Option<Arc<Place>>,
    /// Of the few that are not to be attempted.
    fate: Option<Box<Fate>>,
    pub(crate) lane: LaneId,
    pub(crate) counters: Arc<Counters>,
    /// Until when it may be acted on, where its source lends for a time.
    pub(crate) lease: Option<Arc<Lease>>,
    /// While an attempt is under way, and from then on if it was the last.
    pub(crate) counted: Option<Counted>,
    /// Where its last attempt ran, for the log.
    pub(crate) slot: u32,
    /// Its place in its lane, while a flush has it.
    pub(crate) sequence: u64,
    lender: Option<Lender>,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Source,
    Store,
    /// An earlier process stored it.
    EarlierStore,
}

/// A position, in as much as a number takes: the last one stands for none.
#[derive(Clone, Copy)]
struct Position(Option<NonZeroU64>);

impl From<Option<u64>> for Position {
    fn from(position: Option<u64>) -> Self {
        Self(position.and_then(|position| NonZeroU64::new(!position)))
    }
}

impl Position {
    fn get(self) -> Option<u64> {
        self.0.map(|position| !position.get())
    }
}

/// What few deliveries have.
#[derive(Default)]
pub(crate) struct Rare {
    /// The broker's own.
    headers: Vec<(Arc<str>, Arc<str>)>,
    pub(crate) not_before: Option<Instant>,
    /// Until when it was held last.
    pub(crate) held_until: Option<Instant>,
    /// Its lane is held because the store could not take it.
    pub(crate) waits_for_store: Option<StoreWait>,
    /// It fails for good, and its key waits for it.
    pub(crate) blocked: Option<BlockedHead>,
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
    /// Its lane in the window of its source, if it comes from there.
    pub(crate) place: Option<Arc<Place>>,
    pub(crate) lender: Lender,
    pub(crate) lease: Option<Arc<Lease>>,
}

impl Delivery {
    pub(crate) fn new(
        loan: Loan,
        parcel: Parcel,
        lane: LaneId,
        stay: Stay,
        counters: Arc<Counters>,
    ) -> Self {
        let headers = loan.headers;
        let rare = (!headers.is_empty()).then(|| {
            Box::new(Rare {
                headers,
                ..Rare::default()
            })
        });
        Self {
            identity: loan.identity,
            position: loan.position.into(),
            scale: loan.scale,
            batch: loan.batch,
            body: loan.body,
            parcel,
            received: Instant::now(),
            stay,
            origin: match loan.lender {
                Lender::Source(..) => Origin::Source,
                Lender::Row(..) => Origin::Store,
            },
            called: false,
            waits: 0,
            waited_for: None,
            held: AtomicBool::new(false),
            rare,
            weight: None,
            seat: None,
            place: loan.place,
            fate: None,
            lane,
            counters,
            lease: loan.lease,
            counted: None,
            slot: 0,
            sequence: 0,
            lender: Some(loan.lender),
        }
    }

    /// What it is to whoever is called with it.
    pub(crate) fn message(&self) -> Message {
        self.parcel.message(&self.body)
    }

    /// Its place in the order of its source, where that has one.
    pub(crate) fn position(&self) -> Option<u64> {
        self.position.get()
    }

    /// The publisher's id; may repeat.
    pub(crate) fn id(&self) -> &str {
        self.parcel.id(&self.body)
    }

    /// What few have, to be changed.
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Not before then, if that was said; said once.
    pub(crate) fn take_not_before(&mut self) -> Option<Instant> {
        self.rare.as_mut()?.not_before.take()
    }

    /// Takes what says that its key is blocked.
    pub(crate) fn take_blocked(&mut self) -> Option<BlockedHead> {
        self.rare.as_mut()?.blocked.take()
    }

    /// It waits for the store no longer.
    pub(crate) fn goes_on_without_store(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.waits_for_store = None;
        }
    }

    /// Whether it came from a store of ours rather than from its source.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.lender, Some(Lender::Row(..)))
    }

    /// The row of a store it came from, if it did.
    pub(crate) fn row(&self) -> Option<u64> {
        match &self.lender {
            Some(Lender::Row(row)) => Some(row.row),
            _ => None,
        }
    }

    /// It goes to another lane than it was to go to when it came.
    pub(crate) fn set_place(&mut self, place: Arc<Place>) {
        self.lane = place.lane.clone();
        self.place = Some(place);
    }

    /// The consumer that lent it, and the number of the loan there.
    pub(crate) fn source_end(&self) -> Option<(&Arc<SourceEnd>, u32)> {
        match &self.lender {
            Some(Lender::Source(end, loan)) => Some((end, *loan)),
            _ => None,
        }
    }

    /// It is in no lane any more.
    pub(crate) fn leave(&mut self) {
        if let Some(seat) = self.seat.take() {
            seat.leave(self);
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

    /// Its lane is held because of it. What that means for the window is seen to here.
    pub(crate) fn note_held(&self) {
        self.held.store(true, Ordering::Relaxed);
        if let (Some(place), Some(Lender::Source(end, _))) = (&self.place, &self.lender) {
            end.window.hold(place);
        }
    }

    /// What is to be done with it.
    pub(crate) fn fate(&self) -> &Fate {
        self.fate.as_deref().unwrap_or(&Fate::Attempt)
    }

    pub(crate) fn set_fate(&mut self, fate: Fate) {
        self.fate = (fate != Fate::Attempt).then(|| Box::new(fate));
    }

    /// Whether its next attempt is the first of this round.
    pub(crate) fn is_first_attempt(&self) -> bool {
        !self.called && self.stay.failed == 0
    }

    /// How often in a row it had to wait for the same.
    pub(crate) fn waits(&self) -> u32 {
        self.waits.into()
    }

    /// It has to wait once more.
    pub(crate) fn waits_again(&mut self) {
        self.waits = self.waits.saturating_add(1);
    }

    /// It does not wait any more.
    pub(crate) fn waits_no_more(&mut self) {
        self.waits = 0;
    }

    /// It has to wait for this: what it waited for before does not count any more.
    pub(crate) fn waits_for(&mut self, wait: Wait) {
        if self.waited_for.replace(wait) != Some(wait) {
            self.waits = 0;
        }
    }

    /// How long it is to wait still, by the last hold.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        let held_until = self.rare.as_ref()?.held_until;
        held_until.filter(|until| *until > Instant::now())
    }

    /// The bytes it takes of memory: its body, and its payload where that is not a part of it.
    pub(crate) fn bytes(&self) -> u64 {
        (self.body.len() + self.parcel.beside()) as u64
    }

    /// Ends the loan.
    pub(crate) fn settle(mut self, settlement: Settlement) {
        // Before its source knows: what that hands out next finds room.
        self.leave();
        let held = *self.held.get_mut();
        if let Some(lender) = self.lender.take() {
            if let (true, Some(place), Lender::Source(end, _)) = (held, &self.place, &lender) {
                end.window.moved(place);
            }
            lender.settle(&self.identity, settlement, self.counted.take());
        }
    }

    /// Lets somebody else keep the lender for a while, who may put another in its place.
    pub(crate) fn lend(&mut self) -> Option<Lender> {
        self.lender.take()
    }

    pub(crate) fn take_back(&mut self, lender: Option<Lender>) {
        if let Some(Lender::Row(..)) = lender {
            // It is ours now, whatever becomes of the loan.
            self.lease = None;
        }
        self.lender = lender;
    }

    /// As a store keeps it.
    pub(crate) fn to_stored(&self, lane: LaneName) -> Stored {
        Stored {
            identity: self.identity.clone(),
            lane,
            body: self.body.clone(),
            headers: self
                .rare
                .as_ref()
                .map_or_else(Vec::new, |rare| rare.headers.clone()),
            position: self.position.get(),
        }
    }
}

impl Delivery {
    /// All of it that matters, out of one that is being dropped. No attempt is under way any more.
    fn rescued(&mut self) -> Self {
        Self {
            identity: self.identity.clone(),
            position: self.position,
            scale: self.scale,
            batch: self.batch,
            body: std::mem::take(&mut self.body),
            parcel: self.parcel.clone(),
            received: self.received,
            stay: self.stay,
            origin: self.origin,
            called: self.called,
            waits: self.waits,
            waited_for: self.waited_for,
            held: AtomicBool::new(*self.held.get_mut()),
            rare: self.rare.take(),
            weight: self.weight.take(),
            seat: self.seat.take(),
            place: self.place.take(),
            fate: self.fate.take(),
            lane: self.lane.clone(),
            counters: self.counters.clone(),
            lease: self.lease.take(),
            counted: None,
            slot: self.slot,
            sequence: self.sequence,
            lender: self.lender.take(),
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.lender.is_some() && rescue::keeps() {
            return rescue::keep(self.rescued());
        }
        self.leave();
        if let Some(Lender::Row(..)) = self.lender
            && let Some(lender) = self.lender.take()
        {
            // It is in the store still: its feeder gives it out again.
            let delay = Duration::ZERO;
            lender.settle(&self.identity, Settlement::Return { delay }, None);
        }
        if self.lender.is_some() {
            // Only the end of the process may do this: the source gives it out again.
            tracing::error!(identity = %self.identity, "a delivery was dropped without settlement");
        }
    }
}

impl Lender {
    pub(crate) fn settle(
        self,
        identity: &Identity,
        settlement: Settlement,
        counted: Option<Counted>,
    ) {
        // A closed channel means that the source is gone: it gives out again what was not settled.
        let _ = match self {
            Self::Source(end, loan) => {
                let id = identity.id.clone();
                if let Settlement::Return { .. } = settlement {
                    end.window.goes_back(&[(&id, loan)]);
                }
                let settled = Settled {
                    id,
                    loan,
                    settlement,
                    counted,
                };
                end.to_settle.send(settled)
            }
            Self::Row(row) => {
                let Row { to, row: id } = *row;
                let settled = Settled {
                    id,
                    loan: 0,
                    settlement,
                    counted,
                };
                to.send(Fed::Settled(settled)).is_ok()
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be very many.
    #[test]
    fn a_delivery_is_small() {
        assert!(size_of::<Delivery>() <= 280, "{}", size_of::<Delivery>());
    }

    #[test]
    fn a_position_is_what_it_was() {
        for position in [None, Some(0), Some(1), Some(u64::MAX - 1)] {
            assert_eq!(Position::from(position).get(), position);
        }
    }
}
