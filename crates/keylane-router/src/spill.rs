//! A key goes to the store whole (spilled for want of room, or parked), and what arrives goes
//! behind it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::Queued;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::delivery::{Delivery, Fate, Lender, Row, Settlement, Wait};
use crate::fault;
use crate::feed::Fed;
use crate::history::EventKind;
use crate::lane::LaneId;
use crate::lock;
use crate::pool::{Attempts, Job, Pool, by_itself, store_back_off};
use crate::store::{LaneName, StoreError, Stored};

/// How long a lane that could not be taken whole is left alone before the next try.
const AGAIN: Duration = Duration::from_millis(1);
/// A store that could not take a key is not asked for more before this.
const STORE_OUT: Duration = Duration::from_secs(1);
/// A row that waits for nothing that has a time is fed again after this.
const UNLOADED: Duration = Duration::from_secs(1);

/// What is to be done with a lane that has more than its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// To the store, whole.
    Spill(String),
    /// Out of memory: what is fresh to the store, what came from there back to it.
    Unload,
    /// Back to its source, to come again later.
    Return,
    /// Back to its source, which ends.
    Leave,
}

/// What a pool knows of lanes that are over or stored.
#[derive(Default)]
pub(crate) struct Overflowing {
    /// Asked for, until the lane is flushed.
    over: Mutex<HashMap<LaneId, Over>>,
    /// Messages under way, by lane, where their lane may have to be stored meanwhile.
    lent: Mutex<HashMap<LaneId, Vec<Arc<Lent>>>>,
    /// Lanes of stored keys whose head is held, longest first.
    held: Mutex<HeldRows>,
    /// The store could not take a key: until when it is not asked again.
    store_out: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct HeldRows {
    order: BTreeMap<u64, LaneId>,
    of: HashMap<LaneId, u64>,
    next: u64,
}

/// A message under way, as it would be stored, with its lender in keeping.
pub(crate) struct Lent {
    message: Arc<str>,
    stored: Stored,
    counters: Arc<Counters>,
    /// Locked while the key is being stored: its outcome waits for that. `None` once it has ended.
    lender: tokio::sync::Mutex<Option<Lender>>,
}

impl Overflowing {
    /// This is to be done with the lane when it is flushed next; what was asked for before stays,
    /// but who leaves takes all.
    pub(crate) fn ask(&self, lane: &LaneId, over: Over) {
        let mut all = lock(&self.over);
        match over {
            Over::Leave => drop(all.insert(lane.clone(), over)),
            _ => drop(all.entry(lane.clone()).or_insert(over)),
        }
    }

    pub(crate) fn take(&self, lane: &LaneId) -> Option<Over> {
        lock(&self.over).remove(lane)
    }

    pub(crate) fn is_asked(&self, lane: &LaneId) -> bool {
        lock(&self.over).contains_key(lane)
    }

    /// Keeps the lender of a message that is about to be called.
    pub(crate) fn lend(&self, delivery: &mut Delivery, pool: &Arc<str>) -> Arc<Lent> {
        let lent = Arc::new(Lent {
            message: delivery.id().into(),
            stored: delivery.to_stored(delivery.lane.name(pool)),
            counters: delivery.counters.clone(),
            lender: tokio::sync::Mutex::new(delivery.lend()),
        });
        let mut all = lock(&self.lent);
        let of_lane = all.entry(delivery.lane.clone()).or_default();
        of_lane.push(lent.clone());
        lent
    }

    /// The call has ended: the lender comes back, as it is by now.
    pub(crate) async fn take_back(&self, delivery: &mut Delivery, lent: Arc<Lent>) {
        let lender = lent.lender.lock().await.take();
        delivery.take_back(lender);
        let mut all = lock(&self.lent);
        if let Some(of_lane) = all.get_mut(&delivery.lane) {
            of_lane.retain(|other| !Arc::ptr_eq(other, &lent));
            if of_lane.is_empty() {
                all.remove(&delivery.lane);
            }
        }
    }

    fn store_is_out(&self) -> bool {
        lock(&self.store_out).is_some_and(|until| until > Instant::now())
    }

    fn lent(&self, lane: &LaneId) -> Vec<Arc<Lent>> {
        lock(&self.lent).get(lane).cloned().unwrap_or_default()
    }

    /// The head of a stored key is held.
    pub(crate) fn row_held(&self, lane: &LaneId) {
        let mut held = lock(&self.held);
        if !held.of.contains_key(lane) {
            held.next += 1;
            let place = held.next;
            held.of.insert(lane.clone(), place);
            held.order.insert(place, lane.clone());
        }
    }

    /// It is held no longer, or not here.
    pub(crate) fn row_moved(&self, lane: &LaneId) {
        let mut held = lock(&self.held);
        if let Some(place) = held.of.remove(lane) {
            held.order.remove(&place);
        }
    }

    /// The stored key whose head has been held in memory for the longest time.
    pub(crate) fn longest_held_row(&self) -> Option<LaneId> {
        let lane = lock(&self.held).order.first_key_value()?.1.clone();
        self.row_moved(&lane);
        Some(lane)
    }
}

impl Attempts {
    /// Everything that waits of a lane was taken out of it; `running` of it are still under way.
    pub(crate) async fn deal_with(
        &self,
        lane: LaneId,
        mut jobs: Vec<Queued<Job>>,
        running: usize,
    ) -> Vec<Queued<Job>> {
        let over = self.overflowing.take(&lane);
        // Before anything else: stored, it would be in front of what its source gives again.
        if self.follow_what_went_back(&mut jobs) {
            return self.give_back(lane, jobs, false).await;
        }
        let Some(head) = jobs.first() else {
            return jobs;
        };
        // With several under way at once it need not be the head that wants to go.
        let returns = jobs.iter().any(|queued| *queued.job.fate() == Fate::Return);
        let parks = jobs.iter().find_map(|queued| match queued.job.fate() {
            Fate::Park(reason) => Some(reason.clone()),
            _ => None,
        });
        if let Some(reason) = parks {
            return self.park(lane, reason, jobs).await;
        }
        // Nothing of a stored key goes back.
        let stored = running == 0 && self.is_parked(&lane);
        match (head.job.fate().clone(), over) {
            _ if returns && !stored => self.give_back(lane, jobs, false).await,
            (_, Some(Over::Spill(reason))) => self.spill(lane, reason, jobs, running).await,
            (_, Some(Over::Unload)) => self.unload(lane, jobs, running).await,
            (Fate::ParkBehind, _) => self.park_behind(lane, jobs).await,
            _ if stored => self.park_behind(lane, jobs).await,
            (_, Some(Over::Return)) => self.give_back(lane, jobs, true).await,
            (_, Some(Over::Leave)) if !self.is_parked(&lane) => {
                self.give_back(lane, jobs, false).await
            }
            _ if self.is_draining() && running == 0 && !self.may_go_back(&lane, &jobs) => {
                self.store_for_good(lane, jobs).await
            }
            _ if self.is_draining() => self.give_back(lane, jobs, false).await,
            // Asked for twice, and done the first time: a source that cannot take it back in order
            // must not get it back for nothing.
            _ => jobs.into_iter().map(still_held).collect(),
        }
    }

    /// The key is stored whole in one transaction; only after that is any of it acked.
    async fn park(&self, lane: LaneId, reason: String, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        match self.store_key(&lane, &reason, &jobs).await {
            Ok(()) => {
                self.shared.store_trouble.works();
                for queued in jobs {
                    self.stored(queued.job, "parked");
                }
                Vec::new()
            }
            Err(error) => self.keep_until_stored(lane, jobs, &error).await,
        }
    }

    /// What is fresh goes behind what the store has of the key; what came from there stays there,
    /// and if it was the head that failed, its replay ends.
    async fn store_key(
        &self,
        lane: &LaneId,
        reason: &str,
        jobs: &[Queued<Job>],
    ) -> Result<(), StoreError> {
        let name = lane.name(&self.name);
        let store = &self.shared.store;
        let fresh = self.fresh(&name, jobs);
        tracing::warn!(
            pool = &*self.name,
            ?lane,
            "parked, {} of it now: {reason}",
            fresh.len()
        );
        store.park(name.clone(), reason.to_owned(), fresh).await?;
        let head = &jobs[0].job;
        if head.is_stored() {
            let audit = by_itself("stop-replay", &name, &head.identity, reason);
            store.audit(audit).await?;
        }
        Ok(())
    }

    fn fresh(&self, name: &LaneName, jobs: &[Queued<Job>]) -> Vec<Stored> {
        let pool = self.pool();
        let fresh = jobs.iter().filter(|queued| !queued.job.is_stored());
        let stored = |queued: &Queued<Job>| {
            let mut stored = queued.job.to_stored(name.clone());
            let in_scale = |pool: &Arc<Pool>| self.shared.is_in_scale(&queued.job, pool);
            if !pool.as_ref().is_some_and(in_scale) {
                // It was received for another pool: rows are in the order of this one.
                stored.position = None;
            }
            stored
        };
        fresh.map(stored).collect()
    }

    /// The key is stored: what arrived goes behind what the store has of it. If that ended
    /// meanwhile, nothing is stored and the lane goes on.
    async fn park_behind(&self, lane: LaneId, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        let name = lane.name(&self.name);
        let fresh = self.fresh(&name, &jobs);
        fault::point("behind:taken");
        match self.shared.store.park_behind(name, fresh).await {
            Ok(behind) => {
                fault::point("behind:stored");
                self.shared.store_trouble.works();
                self.keep_some(&lane, jobs, behind.then_some("parked"))
            }
            Err(error) => self.keep_until_stored(lane, jobs, &error).await,
        }
    }

    /// Rows stay in their places as long as they are fed; what is fresh is stored (or not, and
    /// stays too).
    fn keep_some(
        &self,
        lane: &LaneId,
        jobs: Vec<Queued<Job>>,
        stored: Option<&'static str>,
    ) -> Vec<Queued<Job>> {
        let fed = self.is_fed(lane) && !self.is_draining();
        let mut keep = Vec::new();
        for mut queued in jobs {
            queued.job.goes_on_without_store();
            match (queued.job.is_stored(), stored) {
                (true, _) if fed => keep.push(still_held(queued)),
                (true, _) => self.stored(queued.job, ""),
                (false, Some(place)) => self.stored(queued.job, place),
                (false, None) => {
                    queued.job.set_fate(Fate::Attempt);
                    keep.push(still_held(queued));
                }
            }
        }
        keep
    }

    /// The delivery is safe in the store that holds its key.
    fn stored(&self, mut delivery: Job, place: &'static str) {
        if self.is_fed(&delivery.lane)
            && let Some(head) = delivery.take_blocked()
        {
            // The key is blocked as much on disk as in memory.
            let feeder = self.shared.feeder(&delivery.lane.name(&self.name));
            let _ = feeder.send(Fed::Blocked(head));
        }
        if delivery.is_stored() {
            let until = delivery.waits_until();
            let wait = until.map_or(Duration::ZERO, |until| until - Instant::now());
            return delivery.settle(Settlement::Return { delay: wait });
        }
        self.shared.note(&delivery, EventKind::Store, place);
        match place {
            "spilled" => delivery.counters.spilled.one(),
            _ => delivery.counters.parked.one(),
        }
        delivery.settle(Settlement::Ack);
    }

    /// The key is stored whole, what is under way of it included, and fed from there.
    async fn spill(
        &self,
        lane: LaneId,
        reason: String,
        jobs: Vec<Queued<Job>>,
        running: usize,
    ) -> Vec<Queued<Job>> {
        if self.overflowing.store_is_out() && !self.is_draining() {
            return jobs.into_iter().map(still_held).collect();
        }
        let name = lane.name(&self.name);
        let lent = self.overflowing.lent(&lane);
        let mut heads = Vec::new();
        for lent in &lent {
            let lender = lent.lender.lock().await;
            if lender.is_some() {
                heads.push((lent, lender));
            }
        }
        if heads.len() != running {
            // One has just begun or ended: it would be left out, and those behind it come first.
            drop(heads);
            return self.spill_again(lane, reason, jobs).await;
        }
        let fresh_heads = heads
            .iter()
            .filter(|(_, lender)| matches!(**lender, Some(Lender::Source(..))));
        let mut fresh: Vec<Stored> = fresh_heads.map(|(lent, _)| lent.stored.clone()).collect();
        fresh.extend(self.fresh(&name, &jobs));
        if fresh.is_empty() {
            drop(heads);
            return jobs.into_iter().map(still_held).collect();
        }
        fault::point("spill:taken");
        // Of the rows to come its feeder leaves those alone that are under way.
        let storing = self.shared.storing(&name);
        let rows = self.shared.store.spill(name.clone(), reason, fresh).await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                drop(heads);
                return self.keep_until_stored(lane, jobs, &error).await;
            }
        };
        fault::point("spill:stored");
        self.shared.store_trouble.works();
        let feeder = self.shared.feeder(&name);
        let mut rows = rows.into_iter();
        for (lent, mut lender) in heads {
            if !matches!(*lender, Some(Lender::Source(..))) {
                continue;
            }
            let row = rows.next().expect("each message has its row");
            let _ = feeder.send(Fed::Adopted(row, lent.stored.identity.clone()));
            let old = lender.replace(Lender::Row(Box::new(Row {
                to: feeder.clone(),
                row,
            })));
            self.shared
                .note_id(&lent.message, EventKind::Store, "spilled");
            lent.counters.spilled.one();
            let old = old.expect("it was there just now");
            old.settle(&lent.stored.identity, Settlement::Ack, None);
        }
        drop(storing);
        if running == 0
            && let Some(until) = jobs[0].job.waits_until()
            && !jobs[0].job.is_stored()
        {
            let _ = feeder.send(Fed::NotBefore(until));
        }
        let keep = self.keep_some(&lane, jobs, Some("spilled"));
        fault::point("spill:acked");
        if running > 0 {
            self.spill_arrivals(&lane);
        }
        keep
    }

    /// What came while its key was being stored found nothing stored: it follows at once, instead of
    /// waiting here behind what is under way.
    fn spill_arrivals(&self, lane: &LaneId) {
        let Some(pool) = self.pool() else {
            return;
        };
        if pool.lane(lane).is_some_and(|lane| lane.waiting > 0) {
            let why = "what came before it is stored";
            pool.overflow(lane, Over::Spill(why.to_owned()));
        }
    }

    /// Tries once more in a moment.
    async fn spill_again(
        &self,
        lane: LaneId,
        reason: String,
        jobs: Vec<Queued<Job>>,
    ) -> Vec<Queued<Job>> {
        tokio::time::sleep(AGAIN).await;
        self.overflowing.ask(&lane, Over::Spill(reason));
        if let Some(pool) = self.pool() {
            pool.flush_behind(&lane);
        }
        jobs.into_iter().map(still_held).collect()
    }

    /// The rows of a stored key leave the memory; its feeder brings them again.
    async fn unload(
        &self,
        lane: LaneId,
        jobs: Vec<Queued<Job>>,
        running: usize,
    ) -> Vec<Queued<Job>> {
        let (rows, fresh): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .partition(|queued| queued.job.is_stored() && running == 0);
        for queued in rows {
            let until = queued.job.waits_until();
            let delay = until.map_or(UNLOADED, |until| until - Instant::now());
            queued.job.settle(Settlement::Return { delay });
        }
        match fresh.is_empty() {
            true => fresh,
            false => self.park_behind(lane, fresh).await,
        }
    }

    /// The store cannot take it: nothing is acked, the lane waits; if all is to end, it goes back.
    async fn keep_until_stored(
        &self,
        lane: LaneId,
        mut jobs: Vec<Queued<Job>>,
        error: &StoreError,
    ) -> Vec<Queued<Job>> {
        let trouble = &self.shared.store_trouble;
        trouble.fails(error);
        if self.is_draining() {
            return match self.may_go_back(&lane, &jobs) {
                true => self.give_back(lane, jobs, false).await,
                false => self.store_for_good(lane, jobs).await,
            };
        }
        let now = Instant::now();
        *lock(&self.overflowing.store_out) = Some(now + STORE_OUT);
        if jobs[0].job.fate() == &Fate::Attempt && self.lane_concurrency(&lane) > 1 {
            // While its head is held, others of it would start.
            return jobs.into_iter().map(still_held).collect();
        }
        // After that its head is tried, and if it is still over, so is the store.
        let head = &mut jobs[0].job;
        head.waits_for(Wait::Store);
        let until = now + store_back_off(head.waits());
        head.waits_again();
        let rare = head.rare();
        rare.held_until = rare.held_until.max(Some(until));
        rare.waits_for_store
            .get_or_insert_with(|| trouble.wait(&self.name));
        jobs.into_iter().map(still_held).collect()
    }

    /// Whether what the sources get back breaks no order: they receive nothing more, or can take
    /// it back.
    fn may_go_back(&self, lane: &LaneId, jobs: &[Queued<Job>]) -> bool {
        let takes_back = |queued: &Queued<Job>| {
            let source = &queued.job.identity.source;
            queued.job.is_stored()
                || self.shared.takes_back(lane, source)
                || !self.shared.spills(lane, source)
        };
        self.shared.stops() || jobs.iter().all(takes_back)
    }

    /// The pool goes, and the source, which goes on, would get this back behind what is newer: it
    /// is stored, however long that takes.
    async fn store_for_good(&self, lane: LaneId, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        let name = lane.name(&self.name);
        let reason = "its pool was removed";
        let trouble = &self.shared.store_trouble;
        let mut waits = None;
        loop {
            let fresh = self.fresh(&name, &jobs);
            let stored = self
                .shared
                .store
                .spill(name.clone(), reason.to_owned(), fresh);
            match stored.await {
                Ok(_) => {
                    drop(waits);
                    trouble.works();
                    // The pool may be there again by now.
                    let _ = self.shared.feeder(&name);
                    return self.keep_some(&lane, jobs, Some("spilled"));
                }
                Err(error) => {
                    trouble.fails(&error);
                    waits.get_or_insert_with(|| trouble.wait(&self.name));
                }
            }
            tokio::time::sleep(STORE_OUT).await;
            if self.shared.stops() {
                return self.give_back(lane, jobs, false).await;
            }
        }
    }

    pub(crate) fn is_parked(&self, lane: &LaneId) -> bool {
        let store = &self.shared.store;
        store.parks_any() && store.parked_lane(&lane.name(&self.name)).is_some()
    }

    /// Whether the store has the key and gives it out.
    pub(crate) fn is_fed(&self, lane: &LaneId) -> bool {
        let stored = self.shared.store.parked_lane(&lane.name(&self.name));
        stored.is_some_and(|lane| lane.replaying)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.pool().is_none_or(|pool| pool.is_draining())
    }
}

/// A flush ends holds: what was held goes on waiting.
pub(crate) fn still_held(mut queued: Queued<Job>) -> Queued<Job> {
    if let Some(until) = queued.job.waits_until() {
        queued.job.rare().not_before = Some(until);
    }
    queued
}
