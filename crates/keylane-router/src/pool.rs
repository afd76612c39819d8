//! A pool: its limits, its lanes, and what happens when the turn of a message comes.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use keylane::lanes::LaneState;
use keylane::{Executor, Gate, Handler, JobExecutor, Limits, NotPushed, Permits, Queued, Reply};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::audit::{Audit, Line, Start, Violation};
use crate::blocked::Blocked;
use crate::breaker::{self, Breakers, Verdict};
use crate::counters::PoolGauges;
use crate::delivery::{Delivery, Fate, Letter, Origin, Settlement, Wait};
use crate::dispatch::{Attempt, DynDispatch};
use crate::error_type::ErrorType;
use crate::feed::{Fed, Storing};
use crate::gone_back::GoneBack;
use crate::health::{Health, Problem, Trouble};
use crate::history::{By, Event, EventKind, Recorder};
use crate::lane::{LaneId, any_source};
use crate::lease::Lost;
use crate::log_limit::LogLimit;
use crate::machine::Machine;
use crate::map::Map;
use crate::message::{Identity, Key};
use crate::outcome::{Outcome, Reason};
use crate::plan::{Cascade, KeyPlan, LaneScope, Overflow, PoolPlan, Rate, Targets};
use crate::process::{self, Head, Next};
use crate::rescue;
use crate::router::Inner;
use crate::runs::{Doing, Run, Runs, Watched};
use crate::seats::{Most, Seats};
use crate::skips::{Skip, Skips};
use crate::source::BatchId;
use crate::spill::{Over, Overflowing, still_held};
use crate::store::{AuditEntry, DeadLetter, FailedAttempt, LaneName, Stay, Store, StoreError};
use crate::store_trouble::StoreTrouble;
use crate::trace::{self, Described, Link};
use crate::unsettled::{Pressure, Unsettled};
use crate::waits::BreakerWaits;
use crate::watch;
use crate::weight::{Weight, Weights};
use crate::wishes::Wishes;
use crate::workers::Workers;

/// The shortest delay of messages that go back to make room: without one they are received at once.
const OVER_FOR: Duration = Duration::from_secs(1);

/// The longest wait between two tries to write to a store.
const STORE_BACK_OFF: Duration = Duration::from_secs(30);

/// A lane that was promised a worker or a probe, and found none, asks again after this.
const TAKEN: Duration = Duration::from_millis(1);

/// A window or a budget that is full for this long has lanes in it that have more than their part.
pub(crate) const FULL_FOR: Duration = Duration::from_millis(100);

/// What all pools share.
pub(crate) struct Shared {
    pub(crate) dispatch: Arc<dyn DynDispatch>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) breakers: Breakers,
    pub(crate) waits: Arc<BreakerWaits>,
    pub(crate) health: Arc<Health>,
    pub(crate) store_trouble: Arc<StoreTrouble>,
    /// Running attempts are cut: the deadline of a stop has passed.
    pub(crate) cut: CancellationToken,
    /// Whether attempts wait for settlements.
    pub(crate) pressure: Arc<Pressure>,
    /// What sources can do, by name.
    pub(crate) sources: RwLock<Map<Arc<str>, Ability>>,
    /// Who feeds stored keys; set once, when the router is made.
    pub(crate) router: OnceLock<Weak<Inner>>,
    /// Heads that an operator wants skipped.
    pub(crate) skips: Skips,
    /// Looks at the order of first starts.
    pub(crate) audit: Audit,
    /// Where the router's part of a history is written down, if anywhere.
    pub(crate) history: Option<Arc<Recorder>>,
    /// Whom spans are shown to, if anybody.
    pub(crate) link: Option<Link>,
    /// Chance and the wall clock.
    pub(crate) machine: Arc<dyn Machine>,
    /// Rung when a lane may have room that a source waits for: something left it, or the plan or the
    /// pool is another.
    pub(crate) room: Arc<Notify>,
    /// Rung when pool codes may mean other pools: what a source waits for may be there now.
    pub(crate) routes: Arc<Notify>,
}

/// What a source can do when there is no room or no hope, and how much of it may run.
#[derive(Clone)]
pub(crate) struct Ability {
    /// Its attempts at once, where they are limited.
    pub(crate) workers: Option<Arc<Workers>>,
    /// It has dead letters of its own, which are asked for.
    pub(crate) rejects: bool,
    /// It takes messages back in order and with a delay.
    pub(crate) returns: bool,
    /// What it takes back comes again in order.
    pub(crate) ordered_return: bool,
    /// What is given back while it goes on receiving breaks no order that it promises.
    pub(crate) takes_back: bool,
    /// Its keys may be stored.
    pub(crate) spills: bool,
    /// Others read it too.
    pub(crate) many: bool,
    /// What is done with its lanes that are over, where no pool says so.
    pub(crate) overflow: Overflow,
    /// So many settlements are worth being on their way to it at once.
    pub(crate) settles: usize,
    /// What spans say of it.
    pub(crate) described: Described,
}

impl Shared {
    pub(crate) fn returns(&self, source: &Arc<str>) -> bool {
        self.ability(source, |source| source.returns) == Some(true)
    }

    /// Whether the source may get back what waits in this lane and go on receiving.
    pub(crate) fn takes_back(&self, lane: &LaneId, source: &Arc<str>) -> bool {
        // Alone in its lane, a message has no order.
        lane.is_alone()
            || self
                .ability(source, |source| source.takes_back)
                .unwrap_or(true)
    }

    /// Whether what waits in this lane may be stored.
    pub(crate) fn spills(&self, lane: &LaneId, source: &Arc<str>) -> bool {
        // What sources share is in none of their stores.
        lane.source() == source && self.ability(source, |source| source.spills) == Some(true)
    }

    /// Whether a lane that is over can go nowhere but back to the source, which takes it in order and
    /// gives it again later.
    pub(crate) fn only_returns(&self, lane: &LaneId, source: &Arc<str>) -> bool {
        !self.spills(lane, source) && self.returns(source)
    }

    /// A source of this lane that others read too, if there is one.
    pub(crate) fn read_by_many(&self, lane: &LaneName) -> Option<Arc<str>> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let mut of_lane = sources
            .iter()
            .filter(|(name, _)| LaneId::is_shared(lane) || **name == lane.source);
        let many = of_lane.find(|(_, source)| source.many);
        many.map(|(name, _)| name.clone())
    }

    /// The breakers that are not closed, as one problem.
    pub(crate) fn open_breaker(&self) -> Option<Problem> {
        let unwell = self.breakers.unwell();
        let oldest = unwell.iter().min_by_key(|unwell| unwell.since)?;
        let now = Instant::now().into_std();
        let age = |from| now.saturating_duration_since(from);
        let state = match oldest.until {
            Some(until) if until > now => {
                let left = until.saturating_duration_since(now);
                format!("open for another {} s", left.as_secs())
            }
            _ => "half open".to_owned(),
        };
        let (origin, lanes) = (&oldest.origin, self.waits.waiting(&oldest.origin));
        let others = match unwell.len() - 1 {
            0 => String::new(),
            others => format!("; and those of {others} other origins"),
        };
        Some(Problem {
            trouble: Trouble::OpenBreaker,
            text: format!(
                "the breaker of `{origin}` is {state}, because first attempts of too many keys failed there; {lanes} keys wait for it{others}"
            ),
            since: SystemTime::now() - age(oldest.since),
            times: 1,
        })
    }

    /// Whether no source receives any more.
    pub(crate) fn stops(&self) -> bool {
        let router = self.router.get().and_then(Weak::upgrade);
        router.is_none_or(|router| router.stop_taking.is_cancelled())
    }

    /// What happens to a lane of this source in a pool of this plan that is over.
    pub(crate) fn overflow(&self, plan: &PoolPlan, source: &Arc<str>) -> Overflow {
        let by_itself = || {
            let overflow = self.ability(source, |source| source.overflow);
            overflow.unwrap_or(Overflow::Wait)
        };
        match plan.overflow.unwrap_or_else(by_itself) {
            // What sources share is in none of their stores.
            Overflow::Spill if plan.lane_scope == LaneScope::Pool => Overflow::Wait,
            overflow => overflow,
        }
    }

    pub(crate) fn ability<T>(
        &self,
        source: &Arc<str>,
        get: impl FnOnce(&Ability) -> T,
    ) -> Option<T> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        sources.get(source).map(get)
    }

    /// How many lanes of a pool somebody will release: a breaker or a worker.
    pub(crate) fn listed(&self, pool: &Arc<Pool>) -> usize {
        let workers = self.all_workers().into_iter();
        let for_workers = workers.map(|(_, workers)| workers.waiting_in(&pool.name));
        self.waits.waiting_in(pool) + for_workers.sum::<usize>()
    }

    /// Whether somebody will release this lane.
    pub(crate) fn lists(&self, pool: &Arc<Pool>, lane: &LaneId) -> bool {
        let mut workers = self.all_workers().into_iter();
        self.waits.lists(pool, lane) || workers.any(|(_, workers)| workers.lists(&pool.name, lane))
    }

    /// The workers of all sources that have some.
    pub(crate) fn all_workers(&self) -> Vec<(Arc<str>, Arc<Workers>)> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let workers = |(name, source): (&Arc<str>, &Ability)| {
            let workers = source.workers.clone()?;
            Some((name.clone(), workers))
        };
        sources.iter().filter_map(workers).collect()
    }

    fn workers(&self, source: &Arc<str>) -> Option<Arc<Workers>> {
        self.ability(source, |source| source.workers.clone())?
    }

    pub(crate) fn described(&self, source: &Arc<str>) -> Option<Described> {
        self.ability(source, |source| source.described.clone())
    }

    /// How many messages of a pool may be called or not yet settled when one of this source is
    /// called: what a crash repeats. As many again as may run, or as its source settles at once.
    fn most_unsettled(&self, plan: &PoolPlan, source: &Arc<str>) -> usize {
        let settles = || self.ability(source, |source| source.settles).unwrap_or(0);
        plan.concurrency.map_or(usize::MAX, |most| {
            most.get().saturating_add(most.get().max(settles()))
        })
    }

    fn rejects(&self, source: &Arc<str>) -> bool {
        self.ability(source, |source| source.rejects) == Some(true)
    }

    /// A lane is about to be stored, with what is under way of it.
    pub(crate) fn storing(&self, lane: &LaneName) -> Option<Storing> {
        let router = self.router.get().and_then(Weak::upgrade)?;
        Some(router.feeders.storing(lane))
    }

    /// The feeder of a stored key, started if need be.
    pub(crate) fn feeder(&self, lane: &LaneName) -> mpsc::UnboundedSender<Fed> {
        match self.router.get().and_then(Weak::upgrade) {
            Some(router) => router.feeders.start(&router, lane),
            // The router is gone: nobody is left to hear of it.
            None => mpsc::unbounded_channel().0,
        }
    }

    /// Whether the position of a message can be compared with those of messages that arrive in this
    /// pool now.
    pub(crate) fn is_in_scale(&self, delivery: &Delivery, pool: &Pool) -> bool {
        let router = self.router.get().and_then(Weak::upgrade);
        let of = &delivery.identity.source;
        router.is_some_and(|router| router.scale_of(of, pool) == delivery.scale)
    }

    /// Returns a message to its source, or leaves it in the store.
    fn return_one(&self, pool: &str, delivery: Job, delay: Duration) {
        if !delivery.is_stored() {
            self.note(&delivery, EventKind::Return, "returned");
            delivery.counters.returned.one();
        }
        tracing::debug!(identity = %delivery.identity, pool, ?delay, "goes back");
        delivery.settle(Settlement::Return { delay });
    }

    /// A line of the history, written before the source is told.
    pub(crate) fn note(&self, delivery: &Delivery, kind: EventKind, outcome: &'static str) {
        self.note_id(delivery.id(), kind, outcome);
    }

    pub(crate) fn note_id(&self, id: &str, kind: EventKind, outcome: &'static str) {
        if let Some(history) = &self.history {
            let event = Event::new(kind, By::Router).id(id);
            if let Err(error) = history.record(event.outcome(outcome)) {
                tracing::error!("the history cannot be written: {error}");
            }
        }
    }
}

type PoolExecutor = JobExecutor<LaneId, Box<Delivery>, Attempts>;

/// A named set of limits with its lanes.
pub(crate) struct Pool {
    pub(crate) name: Arc<str>,
    plan: Arc<RwLock<Arc<PoolPlan>>>,
    executor: PoolExecutor,
    unsettled: Arc<Unsettled>,
    overflowing: Arc<Overflowing>,
    /// Lanes that went back lately.
    gone_back: Arc<GoneBack>,
    /// Bytes of bodies that are here.
    weights: Arc<Weights>,
    /// Messages in its lanes.
    seats: Arc<Seats>,
    /// It takes no more and gives everything back. Written before the drain begins.
    draining: AtomicBool,
    /// Held by whoever puts something into a lane.
    pushing: Mutex<()>,
    losses: Arc<Losses>,
    hurried: Arc<Hurried>,
    blocked: Arc<Blocked>,
    runs: Arc<Runs>,
    /// How often messages that name another pool began to come here.
    codes: AtomicU64,
    /// The time of the last change of `codes`.
    codes_since: Mutex<Option<SystemTime>>,
}

/// Lanes that are flushed because their front lost its lease, and for no other reason. Written
/// together with the wish for the flush, read when it happens.
#[derive(Default)]
struct Losses {
    lanes: Mutex<HashSet<LaneId>>,
}

impl Losses {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<LaneId>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, lane: &LaneId) -> bool {
        let mut lanes = self.lock();
        !lanes.is_empty() && lanes.remove(lane)
    }
}

/// Lanes that an operator wants tried at once, whatever their heads wait for. Noted by the verb before
/// it ends holds, because what waits may be out of its lane for a moment, or on its way to the store;
/// gone with the next attempt of the lane.
type Hurried = Wishes<LaneId, ()>;

/// Where a message is, for whoever wants something done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Its key has no lane.
    NoLane,
    /// Under way.
    Runs,
    /// First, or so it may be: what of its lane is neither waiting nor under way is between the two.
    OnItsWay,
    /// Another is first.
    Behind,
}

/// What became of a push.
pub(crate) struct Pushed {
    /// The lane has more than it may have.
    pub(crate) over: bool,
    /// An operator paused it.
    pub(crate) paused: bool,
}

/// Why a push was refused; the delivery comes back.
pub(crate) struct NotPut {
    pub(crate) delivery: Box<Delivery>,
    /// The pool takes no more at all.
    pub(crate) closed: bool,
}

impl Pool {
    pub(crate) fn new(
        name: Arc<str>,
        plan: PoolPlan,
        shared: Arc<Shared>,
        permits: Permits,
    ) -> Arc<Self> {
        let limits = limits_of(&plan);
        let targets = Arc::new(plan.targets.clone());
        let weights = Weights::new(plan.byte_budget);
        let seats = Seats::new(shared.room.clone());
        let plan = Arc::new(RwLock::new(Arc::new(plan)));
        let pool = Arc::new(OnceLock::new());
        let unsettled = Arc::new(Unsettled::new(shared.pressure.clone()));
        let losses = Arc::new(Losses::default());
        let hurried = Arc::new(Hurried::default());
        let blocked = Blocked::new(name.clone(), shared.health.clone());
        let runs = Arc::new(Runs::default());
        let overflowing = Arc::new(Overflowing::default());
        let gone_back = Arc::new(GoneBack::default());
        let attempts = Attempts {
            name: name.clone(),
            plan: plan.clone(),
            targets: RwLock::new(targets),
            blocked: blocked.clone(),
            shared,
            pool: pool.clone(),
            unsettled: unsettled.clone(),
            losses: losses.clone(),
            hurried: hurried.clone(),
            runs: runs.clone(),
            overflowing: overflowing.clone(),
            gone_back: gone_back.clone(),
            returns_logged: LogLimit::default(),
        };
        let (by_concurrency, by_rate) = (plan.clone(), plan.clone());
        let mut builder = Executor::<LaneId>::builder()
            .name(name.clone())
            .shared_permits(permits)
            .lane_concurrency_by(move |lane| lane_concurrency(&current(&by_concurrency), lane))
            .per_key_rate_by(move |lane| key_rate(&current(&by_rate), lane))
            .maybe_tenant_by(|lane| lane.tenant().cloned());
        builder = with_limits(builder, &limits);
        let executor = builder
            .build_with(attempts)
            .expect("a plan's limits are at least 1");
        let made = Arc::new(Self {
            name,
            plan,
            executor,
            unsettled,
            overflowing,
            gone_back,
            weights,
            seats,
            draining: AtomicBool::new(false),
            pushing: Mutex::default(),
            losses,
            hurried,
            blocked,
            runs,
            codes: AtomicU64::new(0),
            codes_since: Mutex::default(),
        });
        let _ = pool.set(Arc::downgrade(&made));
        made
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Arc<PoolPlan> {
        current(&self.plan)
    }

    /// Messages that went to another pool go here from now on.
    pub(crate) fn code_comes(&self, now: SystemTime) {
        let mut since = self
            .codes_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = Some(now);
        drop(since);
        self.codes.fetch_add(1, Ordering::SeqCst);
    }

    /// The time of the last change of [`Self::codes`].
    pub(crate) fn codes_since(&self) -> Option<SystemTime> {
        *self
            .codes_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How often that was so.
    pub(crate) fn codes(&self) -> u64 {
        self.codes.load(Ordering::SeqCst)
    }

    /// Puts another plan in force: same lanes, new limits, at once.
    pub(crate) fn set_plan(&self, plan: PoolPlan) {
        let limits = limits_of(&plan);
        self.weights.set_budget(plan.byte_budget);
        *self.plan.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
        self.executor
            .set_limits(limits)
            .expect("a plan's limits are at least 1");
    }

    /// Puts a delivery at the end of its lane. With `limited`, hands it back when the lane has as
    /// much as it may have: what waits, is held or runs.
    pub(crate) fn push(
        &self,
        mut delivery: Box<Delivery>,
        most: Option<Most>,
        limited: bool,
    ) -> Result<Pushed, NotPut> {
        // A drain finds what was put into a lane before it began.
        let _one_at_a_time = self.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_draining() {
            let closed = true;
            return Err(NotPut { delivery, closed });
        }
        let lane = delivery.lane.clone();
        let state = self.executor.lane(&lane);
        let is_empty = state.is_none_or(|lane| lane.running + lane.waiting == 0);
        if is_empty && !state.is_some_and(|lane| lane.flushing) {
            // What was asked for was meant for what has left: no flush took anything.
            self.overflowing.take(&lane);
        }
        let Some((seat, room)) = self.seats.take(&delivery, most, limited) else {
            let closed = false;
            return Err(NotPut { delivery, closed });
        };
        delivery.seat = Some(seat);
        let paused = state.is_some_and(|lane| lane.paused);
        match self.executor.push(lane, delivery) {
            Ok(()) => Ok(Pushed {
                over: !room,
                paused,
            }),
            Err(refused) => {
                let closed = matches!(refused, NotPushed::ShutDown(_));
                let mut delivery = refused.into_job();
                delivery.leave();
                Err(NotPut { delivery, closed })
            }
        }
    }

    /// Whether this source would find room in the lane for so many bytes.
    pub(crate) fn has_room(
        &self,
        lane: &LaneId,
        source: &Arc<str>,
        bytes: u64,
        most: Most,
    ) -> bool {
        self.seats.has_room(lane, source, bytes, most)
    }

    /// Puts a row of a store at the end of its lane, or hands it back when the pool is closed.
    pub(crate) fn push_row(&self, delivery: Box<Delivery>) -> Result<(), Box<Delivery>> {
        let pushed = self.push(delivery, None, false);
        pushed.map(drop).map_err(|refused| refused.delivery)
    }

    /// How many messages of the lane may be in memory.
    pub(crate) fn lane_capacity(&self, lane: &LaneId) -> usize {
        self.key_capacity(lane.key())
    }

    /// How many messages of a lane of this key may be in memory.
    pub(crate) fn key_capacity(&self, key: Option<&Key>) -> usize {
        let plan = self.plan();
        let own = key_plan(&plan, key).and_then(|keys| keys.lane_capacity);
        own.unwrap_or(plan.lane_capacity).get()
    }

    /// Bytes of the pool's budget. While they are waited for, and nobody gives any back, stored
    /// keys leave the memory, the longest-held first, and `full` is called to see to others.
    pub(crate) async fn weigh(&self, bytes: u64, full: impl Fn()) -> Weight {
        if let Some(weight) = self.try_weigh(bytes) {
            return weight;
        }
        let mut weight = std::pin::pin!(self.weights.take(bytes));
        loop {
            match tokio::time::timeout(FULL_FOR, &mut weight).await {
                Ok(weight) => return weight,
                Err(_) => {
                    if let Some(lane) = self.overflowing.longest_held_row() {
                        self.overflow(&lane, Over::Unload);
                    }
                    full();
                }
            }
        }
    }

    /// Bytes of the pool's budget, if there are so many and nobody waits for them.
    pub(crate) fn try_weigh(&self, bytes: u64) -> Option<Weight> {
        self.weights.try_take(bytes)
    }

    /// Sees to a lane that has more than its part.
    pub(crate) fn overflow(&self, lane: &LaneId, over: Over) {
        self.overflowing.ask(lane, over);
        if !self.flush_behind(lane) {
            self.overflowing.take(lane);
        }
    }

    /// The head of a stored key is resolved, or not in memory any more.
    pub(crate) fn row_moved(&self, lane: &LaneId) {
        self.overflowing.row_moved(lane);
    }

    /// Whether this message arrived before messages ahead of it in its lane went back.
    pub(crate) fn has_given_back(&self, delivery: &Delivery) -> bool {
        self.gone_back.includes(delivery)
    }

    /// Sends a message that waits for room after those of its lane that went back.
    pub(crate) fn follow_back(&self, delivery: Box<Delivery>, shared: &Shared) {
        let one = std::iter::once(&*delivery);
        self.gone_back.go_back(one, None, shared);
        shared.return_one(&self.name, delivery, self.plan().return_delay);
    }

    /// This source has put a batch into its lanes.
    pub(crate) fn batch_is_in(&self, source: &Arc<str>) {
        self.gone_back.sweep(source, |lane| self.has(lane));
    }

    /// Whether the lane has anything unresolved here. What a flush took is here until the flush is
    /// over: it may be on its way to the store, or stay.
    pub(crate) fn has(&self, lane: &LaneId) -> bool {
        let state = self.executor.lane(lane);
        state.is_some_and(|lane| lane.running + lane.waiting > 0 || lane.flushing)
    }

    pub(crate) fn lane(&self, lane: &LaneId) -> Option<LaneState> {
        self.executor.lane(lane)
    }

    pub(crate) fn release(&self, lane: &LaneId) -> bool {
        self.executor.release(lane)
    }

    /// The head of a lane is to be tried at once: whatever holds it ends, also where it is only about
    /// to be held. `tell` says it to whoever has the rest of the lane; answers whether anybody has any
    /// of it.
    pub(crate) fn hurry(&self, lane: &LaneId, tell: impl FnOnce() -> bool) -> bool {
        self.hurried.insert(lane.clone(), ());
        let told = tell();
        let known = self.executor.release(lane) || told;
        if !known {
            self.hurried.take(lane);
        }
        known
    }

    /// The breaker or the worker that this lane waits for may let it go: all of it, also behind a
    /// front that waits for something else by now. A hold until a time is not ended by this.
    /// Answers whether its front waited for that and can start; if not, another lane may.
    pub(crate) fn wake(&self, lane: &LaneId) -> bool {
        self.executor.release_waiting(lane)
    }

    /// How many lanes wait for a breaker or a worker.
    pub(crate) fn waiting_for_release(&self) -> usize {
        self.executor.waiting_for_release()
    }

    /// Those lanes: costs a look at all lanes.
    pub(crate) fn lanes_waiting_for_release(&self) -> Vec<LaneId> {
        self.executor.keys_waiting_for_release()
    }

    /// The source of a lane's front, and the origin of its target.
    pub(crate) fn front_of(&self, lane: &LaneId) -> Option<(Arc<str>, Option<Arc<str>>)> {
        let front = |delivery: &Job| {
            let origin = delivery.parcel.address.origin();
            (delivery.identity.source.clone(), origin.cloned())
        };
        let look = |_, jobs: &mut dyn Iterator<Item = &Job>| jobs.next().map(front);
        self.executor.inspect(lane, look).flatten()
    }

    /// Everything in the lane goes back, or where the fate of its front says.
    pub(crate) fn flush(&self, lane: &LaneId) -> bool {
        let mut losses = self.losses.lock();
        losses.remove(lane);
        self.executor.flush(lane)
    }

    /// Everything of a lane goes back to its source as soon as nothing of it runs.
    pub(crate) fn leave(&self, lane: &LaneId) {
        self.overflowing.ask(lane, Over::Leave);
        if !self.flush(lane) {
            self.overflowing.take(lane);
        }
    }

    /// What is stored of a lane leaves the memory as soon as nothing of it runs.
    pub(crate) fn unload(&self, lane: &LaneId) {
        self.overflowing.ask(lane, Over::Unload);
        if !self.flush(lane) {
            self.overflowing.take(lane);
        }
    }

    pub(crate) fn flush_behind(&self, lane: &LaneId) -> bool {
        let mut losses = self.losses.lock();
        losses.remove(lane);
        self.executor.flush_behind(lane)
    }

    /// If the front of the lane lost its lease, it goes, with everything behind it. A front that
    /// runs is looked at when its attempt has ended.
    pub(crate) fn take_out_lost(&self, lane: &LaneId) {
        let mut losses = self.losses.lock();
        let lost = self.executor.inspect(lane, |stats, jobs| {
            stats.running == 0 && jobs.next().is_some_and(|front| front.is_lost())
        });
        if lost == Some(true) && self.executor.flush(lane) {
            losses.insert(lane.clone());
        }
    }

    pub(crate) fn pause(&self, lane: LaneId) {
        self.executor.pause(lane);
    }

    pub(crate) fn resume(&self, lane: &LaneId) -> bool {
        self.executor.resume(lane)
    }

    /// Calls `note` if this message is the first of its lane and waits there; it cannot start
    /// before that, and then the lane is flushed. Whether it was.
    pub(crate) fn flush_head(
        &self,
        lane: &LaneId,
        identity: &Identity,
        note: impl FnOnce(),
    ) -> bool {
        // What runs is before what waits, unless several run at once.
        let one = lane_concurrency(&self.plan(), lane) == 1;
        let noted = self.executor.inspect(lane, |stats, jobs| {
            let front = jobs.next();
            let meant = front.is_some_and(|head| head.identity == *identity && !head.is_lost());
            let first = meant && (stats.running == 0 || !one);
            if first {
                note();
            }
            first
        });
        noted == Some(true) && {
            self.flush_behind(lane);
            true
        }
    }

    /// Where a message is in its lane.
    pub(crate) fn whereabouts(&self, lane: &LaneId, identity: &Identity) -> Whereabouts {
        let seen = self.executor.inspect(lane, |stats, jobs| {
            let front = jobs.next().is_some_and(|head| head.identity == *identity);
            let moved = stats.flushing || front && stats.running == 0;
            (stats.running, moved)
        });
        let Some((running, moved)) = seen else {
            return Whereabouts::NoLane;
        };
        let named = self.runs.of(lane);
        if named.contains(identity) {
            Whereabouts::Runs
        } else if moved || named.len() < running {
            Whereabouts::OnItsWay
        } else {
            Whereabouts::Behind
        }
    }

    /// The lanes of one source, and those it shares that may have something of it.
    pub(crate) fn lanes_of(&self, source: &Arc<str>) -> Vec<LaneId> {
        let mut lanes = self.executor.keys();
        let shared = any_source();
        let has_some = |lane: &LaneId| {
            let has = self.executor.inspect(lane, |stats, jobs| {
                let mut jobs = jobs.map(|job| job.identity.source == *source);
                stats.running > 0 || jobs.any(|of_it| of_it)
            });
            has == Some(true)
        };
        lanes.retain(|lane| match lane.source() {
            of if of == source => true,
            of => *of == shared && has_some(lane),
        });
        lanes
    }

    pub(crate) fn gauges(&self) -> PoolGauges {
        let stats = self.executor.stats();
        PoolGauges {
            pool: self.name.clone(),
            lanes: stats.live_keys,
            queued: stats.queued,
            in_flight: stats.running,
            unsettled: self.unsettled.now(),
            bytes: self.weights.used(),
            stalled: 0,
            blocked: self.blocked.len(),
            waits_for_store: 0,
        }
    }

    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.executor.stats().live_keys == 0
    }

    /// How many lanes could start something.
    pub(crate) fn ready(&self) -> usize {
        self.executor.ready()
    }

    /// What its attempts are doing.
    pub(crate) fn runs_now(&self) -> Vec<Run> {
        self.runs.now()
    }

    /// What does not end in its time.
    pub(crate) fn stalled_runs(&self, after: Duration, now: Instant) -> Vec<Run> {
        if after.is_zero() {
            return Vec::new();
        }
        let plan = self.plan();
        let mut runs = self.runs_now();
        runs.retain(|run| now - run.since >= watch::run_limit(&plan, run.doing, after));
        runs
    }

    pub(crate) async fn all_idle(&self) {
        self.executor.all_idle().await;
    }

    /// Starts nothing more and gives everything back that does not run; `false` when something
    /// still runs at the deadline.
    pub(crate) async fn drain(&self, deadline: Duration) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        self.seats.ring();
        self.executor.drain(deadline).await
    }

    /// Everything that is here leaves its lanes as soon as nothing of its lane runs.
    pub(crate) fn flush_all(&self) {
        for lane in self.executor.keys() {
            self.flush(&lane);
        }
    }

    /// Takes messages again after [`Pool::close`].
    pub(crate) fn reopen(&self) {
        self.draining.store(false, Ordering::SeqCst);
    }

    /// Takes nothing more, unless it holds lanes that cannot be given back or stored.
    pub(crate) fn close(&self, shared: &Shared) -> bool {
        let _nobody_pushes = self.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        let stays = |lane: &LaneId| {
            let source = lane.source();
            !shared.takes_back(lane, source) && !shared.spills(lane, source) && self.has(lane)
        };
        let closes = !self.executor.keys().iter().any(stays);
        if closes {
            self.draining.store(true, Ordering::SeqCst);
            self.seats.ring();
        }
        closes
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.name)
    }
}

fn current(plan: &RwLock<Arc<PoolPlan>>) -> Arc<PoolPlan> {
    plan.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn limits_of(plan: &PoolPlan) -> Limits {
    Limits {
        concurrency: plan.concurrency.map(NonZeroUsize::get),
        lane_concurrency: plan.lane_concurrency.get(),
        rate: plan.rate.map(rate_of),
        per_key_rate: plan.per_key_rate.map(rate_of),
        ..Limits::default()
    }
}

fn with_limits<K: std::hash::Hash + Eq + Clone + Send + Sync + 'static>(
    mut builder: keylane::Builder<K>,
    limits: &Limits,
) -> keylane::Builder<K> {
    if let Some(most) = limits.concurrency {
        builder = builder.concurrency(most);
    }
    if let Some(rate) = limits.rate {
        builder = builder.rate(rate);
    }
    if let Some(rate) = limits.per_key_rate {
        builder = builder.per_key_rate(rate);
    }
    builder.lane_concurrency(limits.lane_concurrency)
}

fn rate_of(rate: Rate) -> keylane::Rate {
    keylane::Rate::new(rate.count, rate.per, rate.burst)
}

fn lane_concurrency(plan: &PoolPlan, lane: &LaneId) -> usize {
    if lane.key().is_none() {
        // The option is about keys; keyless messages in one lane run one after the other.
        return 1;
    }
    let own = key_plan(plan, lane.key()).and_then(|keys| keys.lane_concurrency);
    own.unwrap_or(plan.lane_concurrency).get()
}

fn key_rate(plan: &PoolPlan, lane: &LaneId) -> Option<keylane::Rate> {
    key_plan(plan, lane.key())
        .and_then(|keys| keys.per_key_rate)
        .map(rate_of)
}

fn key_plan<'a>(plan: &'a PoolPlan, key: Option<&Key>) -> Option<&'a KeyPlan> {
    let key = key?;
    plan.keys
        .iter()
        .find(|keys| matches(keys.pattern.as_bytes(), key))
}

/// Whether a pattern (`*` is any run of bytes) matches the whole key.
fn matches(pattern: &[u8], key: &Key) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = key.as_bytes().strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            let Some(at) = find(rest, middle) else {
                return false;
            };
            rest = &rest[at + middle.len()..];
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(0);
    }
    hay.windows(needle.len())
        .position(|window| window == needle)
}

/// What a pool does with a delivery whose turn has come.
pub(crate) struct Attempts {
    pub(crate) name: Arc<str>,
    plan: Arc<RwLock<Arc<PoolPlan>>>,
    targets: RwLock<Arc<Targets>>,
    pub(crate) shared: Arc<Shared>,
    pool: Arc<OnceLock<Weak<Pool>>>,
    unsettled: Arc<Unsettled>,
    losses: Arc<Losses>,
    hurried: Arc<Hurried>,
    blocked: Arc<Blocked>,
    runs: Arc<Runs>,
    pub(crate) overflowing: Arc<Overflowing>,
    /// Lanes that went back lately.
    gone_back: Arc<GoneBack>,
    returns_logged: LogLimit,
}

pub(crate) type Job = Box<Delivery>;

/// What few turns come to. In a box of its own: a turn is in memory as large as the largest of what
/// it may come to, and each is made, moved and freed.
type Seldom<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Handler<LaneId, Job> for Attempts {
    fn gate(&self, delivery: &Job) -> Gate {
        if *delivery.fate() != Fate::Attempt || delivery.is_lost() {
            return Gate::Go;
        }
        if !self.breaker_allows(delivery) {
            self.note_held(delivery);
            self.leaves_worker(&delivery.identity.source);
            return Gate::UntilReleased;
        }
        match self.worker_is_free(delivery) {
            true => Gate::Go,
            false => Gate::UntilReleased,
        }
    }

    async fn handle(&self, mut delivery: Job, slot: usize) -> Reply<Job> {
        delivery.slot = u32::try_from(slot).unwrap_or(u32::MAX);
        match rescue::keeping(self.turn(delivery)).await {
            Ok(reply) => reply,
            Err(mut kept) => {
                let job = kept.pop().map(Box::new);
                job.map_or(Reply::Done, |job| self.panicked(job))
            }
        }
    }

    async fn flushed(&self, lane: LaneId, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        let work = |jobs| self.flush_all(lane.clone(), jobs);
        let keep = self.in_place(jobs, work).await;
        self.hurry_feeder(&lane);
        keep
    }

    async fn flushed_behind(
        &self,
        lane: LaneId,
        jobs: Vec<Queued<Job>>,
        running: usize,
    ) -> Vec<Queued<Job>> {
        let work = |jobs| self.flush_waiting(lane.clone(), jobs, running);
        let keep = self.in_place(jobs, work).await;
        self.hurry_feeder(&lane);
        keep
    }
}

impl Attempts {
    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.get()?.upgrade()
    }

    /// How many of a lane may run at once.
    pub(crate) fn lane_concurrency(&self, lane: &LaneId) -> usize {
        lane_concurrency(&current(&self.plan), lane)
    }

    /// What is done with a message whose turn has come.
    async fn turn(&self, mut delivery: Job) -> Reply<Job> {
        let lane = delivery.lane.clone();
        if delivery.is_lost() {
            return self.lost_turn(delivery);
        }
        if let Some(skip) = self.shared.skips.take(&delivery.identity) {
            return self.skip_turn(delivery, skip).await;
        }
        let (not_before, hurried) = (
            delivery.take_not_before(),
            self.hurried.take(&lane).is_some(),
        );
        if let Some(until) = not_before.filter(|at| !hurried && *at > Instant::now()) {
            return self.hold(delivery, until);
        }
        if self.follows_what_went_back(&delivery) {
            delivery.set_fate(Fate::Return);
        } else if self.belongs_to_the_store(&delivery) {
            delivery.set_fate(Fate::ParkBehind);
        }
        let doing = match delivery.fate() {
            Fate::Attempt => Doing::Calling,
            _ => Doing::Storing,
        };
        let run = self.runs.begin(&delivery, doing);
        let reply = match delivery.fate() {
            Fate::Attempt => self.attempt(delivery, lane, &run).await,
            Fate::Delivered => self.delivered(delivery).await,
            Fate::DeadLetter(Letter { reason, text }) => {
                let (reason, text) = (*reason, text.clone());
                self.dead_letter(delivery, lane, reason, text).await
            }
            Fate::Return | Fate::Park(_) | Fate::ParkBehind => Reply::Flush {
                job: Some(delivery),
            },
        };
        // From here on it does not run for whoever wants it skipped: a wish noted before is seen.
        let ended = run.end();
        if self.shared.skips.is_empty() || matches!(reply, Reply::Flush { .. }) {
            return reply;
        }
        let skip = ended.and_then(|run| self.shared.skips.take(&run.identity));
        match (skip, reply) {
            (Some(skip), Reply::Hold { job, .. }) => self.skip_turn(job, skip).await,
            // It is gone: a wish that came too late has nothing left to mean.
            (_, reply) => reply,
        }
    }

    async fn flush_all(&self, lane: LaneId, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        let asked = self.overflowing.is_asked(&lane) || self.is_draining();
        let only_for_lost = self.losses.take(&lane) && !asked;
        let _watched = jobs.first().map(|head| self.runs.flush(&head.job));
        let jobs = self.skip_first(&lane, jobs).await;
        let (jobs, lost) = split_lost(jobs);
        let keep = match jobs.first().map(|head| &head.job) {
            None => jobs,
            Some(head) if only_for_lost && !head.source_stops() => {
                jobs.into_iter().map(still_held).collect()
            }
            Some(_) if only_for_lost => self.give_back(lane.clone(), jobs, false).await,
            Some(_) => self.deal_with(lane.clone(), jobs, 0).await,
        };
        self.lose(&lane, lost);
        keep
    }

    async fn flush_waiting(
        &self,
        lane: LaneId,
        jobs: Vec<Queued<Job>>,
        running: usize,
    ) -> Vec<Queued<Job>> {
        let jobs = self.skip_first(&lane, jobs).await;
        self.deal_with(lane, jobs, running).await
    }

    /// Does something with all that waits in a lane; what a panic leaves of it goes back to its
    /// places, and waits.
    async fn in_place<F: Future<Output = Vec<Queued<Job>>>>(
        &self,
        mut jobs: Vec<Queued<Job>>,
        work: impl FnOnce(Vec<Queued<Job>>) -> F,
    ) -> Vec<Queued<Job>> {
        for queued in &mut jobs {
            queued.job.sequence = queued.sequence();
        }
        if let Some(first) = jobs.first() {
            self.leaves_worker(&first.job.identity.source);
        }
        let mut kept = match rescue::keeping(work(jobs)).await {
            Ok(keep) => return keep,
            Err(kept) => kept,
        };
        kept.sort_by_key(|job| job.sequence);
        let kept = kept.into_iter().map(|mut job| {
            let until = self.after_panic(&mut job);
            job.rare().not_before = Some(until);
            Queued::at(job.sequence, Box::new(job))
        });
        kept.collect()
    }

    /// It panicked during the turn of this message, which goes back to its place.
    fn panicked(&self, mut delivery: Job) -> Reply<Job> {
        let until = self.after_panic(&mut delivery);
        self.hold(delivery, until)
    }

    fn after_panic(&self, delivery: &mut Delivery) -> Instant {
        tracing::error!(identity = %delivery.identity, pool = &*self.name, "a panic while this message was being dealt with; its key waits and goes on with it");
        delivery.waits_for(Wait::Store);
        let until = Instant::now() + store_back_off(delivery.waits());
        delivery.waits_again();
        delivery.rare().held_until = Some(until);
        until
    }

    /// An operator wanted the lane tried while it was dealt with: what went to the store meanwhile was
    /// told to wait there.
    fn hurry_feeder(&self, lane: &LaneId) {
        if self.hurried.has(lane)
            && let Some(router) = self.shared.router.get().and_then(Weak::upgrade)
        {
            router.feeders.tell(&lane.name(&self.name), Fed::Now);
        }
    }

    /// Whether this message arrived before messages ahead of it in its lane went back.
    fn follows_what_went_back(&self, delivery: &Delivery) -> bool {
        !delivery.is_stored()
            && *delivery.fate() != Fate::Delivered
            && self.gone_back.includes(delivery)
    }

    /// Marks what follows something that went back as what goes back too. Returns whether there is
    /// any.
    pub(crate) fn follow_what_went_back(&self, jobs: &mut [Queued<Job>]) -> bool {
        let mut any = false;
        for queued in jobs {
            if self.follows_what_went_back(&queued.job) {
                queued.job.set_fate(Fate::Return);
                any = true;
            }
        }
        any
    }

    /// What is fresh goes behind what the store has of its key; what came from there and is not
    /// given out any more goes back.
    fn belongs_to_the_store(&self, delivery: &Delivery) -> bool {
        match delivery.is_stored() {
            true => !self.is_fed(&delivery.lane),
            false => self.is_parked(&delivery.lane),
        }
    }

    /// Whether its source may run one more; if not, the lane is woken when it may.
    fn worker_is_free(&self, delivery: &Delivery) -> bool {
        let Some(workers) = self.shared.workers(&delivery.identity.source) else {
            return true;
        };
        let pool = self.pool.get().cloned().unwrap_or_default();
        workers.free_or_wait(&self.name, &pool, &delivery.lane)
    }

    /// Passes on the worker that a lane may have been woken for and does not take.
    fn leaves_worker(&self, source: &Arc<str>) {
        let workers = self.shared.workers(source);
        if let Some(workers) = workers.filter(|workers| workers.are_waited_for_in_vain()) {
            // In a task: the executor calls the gate under its lock.
            tokio::spawn(async move { workers.wake() });
        }
    }

    /// One call of the target, and what follows from it.
    async fn attempt(&self, mut delivery: Job, lane: LaneId, run: &Watched<'_>) -> Reply<Job> {
        let workers = self.shared.workers(&delivery.identity.source);
        let _worker = match workers.map(|workers| workers.try_take()) {
            Some(None) => return ask_again(delivery),
            Some(worker) => worker,
            None => None,
        };
        let call = match self.begin(&delivery) {
            Ok(call) => call,
            Err(()) => return ask_again(delivery),
        };
        let plan = current(&self.plan);
        let spills = self.shared.overflow(&plan, &delivery.identity.source) == Overflow::Spill;
        let lent = spills.then(|| self.overflowing.lend(&mut delivery, &self.name));
        let most = self.shared.most_unsettled(&plan, &delivery.identity.source);
        delivery.counted = Some(match self.unsettled.try_count(most) {
            Some(counted) => counted,
            None => {
                run.does(Doing::Settling);
                let counted = self.unsettled.count(most).await;
                run.does(Doing::Calling);
                counted
            }
        });
        // A reload may have changed its limits while it waited.
        let outdated = !Arc::ptr_eq(&plan, &current(&self.plan));
        if outdated || delivery.is_lost() {
            drop(call);
            if let Some(lent) = lent {
                self.overflowing.take_back(&mut delivery, lent).await;
            }
            if delivery.is_lost() {
                return self.lost_turn(delivery);
            }
            delivery.counted = None;
            return ask_again(delivery);
        }
        delivery.called = true;
        self.audit(&delivery, &lane, &plan);
        if delivery.stay.failed == 0 && delivery.waits() == 0 {
            delivery
                .counters
                .wait_seconds
                .note(delivery.received.elapsed());
        }
        let (span, started, outcome);
        {
            let attempt = self.attempt_of(&delivery, &plan);
            let message = delivery.message();
            span = trace::attempt(&self.shared, &self.name, &delivery, &message);
            let called = self.shared.dispatch.attempt_boxed(&message, &attempt);
            started = Instant::now();
            outcome = tokio::select! {
                biased;
                outcome = contained(called).instrument(span.clone()) => Some(outcome),
                () = self.shared.cut.cancelled() => None,
            };
        }
        let Some(outcome) = outcome else {
            drop(call);
            if let Some(lent) = lent {
                self.overflowing.take_back(&mut delivery, lent).await;
            }
            let cut = ErrorType::cut();
            trace::failed(&span, cut);
            let counters = &delivery.counters;
            counters.attempts_cut.note(Some(cut), started.elapsed());
            delivery.counted = None;
            delivery.set_fate(Fate::Return);
            return Reply::Flush {
                job: Some(delivery),
            };
        };
        let error = ErrorType::of(&outcome);
        count(&delivery, &outcome, error, started.elapsed());
        if let Some(error) = error {
            trace::failed(&span, error);
        }
        if let Some(call) = call {
            call.end(Verdict::of(&outcome), Instant::now().into_std());
        }
        if let Some(lent) = lent {
            self.overflowing.take_back(&mut delivery, lent).await;
        }
        if outcome != Outcome::Delivered {
            run.does(Doing::Storing);
        }
        if delivery.is_lost() {
            return self.lost_result(delivery, outcome).await;
        }
        match &outcome {
            Outcome::NotYet { .. } => delivery.waits_for(Wait::NotYet),
            Outcome::Busy { .. } => delivery.waits_for(Wait::Busy),
            Outcome::Delivered | Outcome::Failed(_) | Outcome::Refused(_) => {}
        }
        let head = self.head(&delivery, &lane);
        match process::judge(&plan, outcome, head) {
            Next::Ack => self.delivered(delivery).instrument(span).await,
            next => self.follow(delivery, lane, next).instrument(span).await,
        }
    }

    /// Looks whether it is the turn of this message, by the positions of its source.
    fn audit(&self, delivery: &Delivery, lane: &LaneId, plan: &PoolPlan) {
        let (Some(scale), Some(position)) = (delivery.scale, delivery.position()) else {
            return;
        };
        if lane.is_alone() {
            return;
        }
        let line = Line {
            scale,
            pool: &self.name,
            // Not the lane's: with one worker it has all keys, in the order in which they arrive.
            key: delivery.parcel.key.as_ref(),
        };
        let unordered = lane_concurrency(plan, lane) > 1 || plan.cascade == Cascade::Batch;
        let start = match delivery.origin {
            _ if unordered => Start::Loose,
            Origin::EarlierStore => Start::Earlier,
            Origin::Source if delivery.stay != Stay::default() => Start::Again,
            Origin::Source | Origin::Store => Start::First,
        };
        if let Some(violation) = self.shared.audit.start(line, position, start) {
            self.overtaken(delivery, violation);
        }
    }

    #[cold]
    fn overtaken(&self, delivery: &Delivery, violation: Violation) {
        delivery.counters.ordering_violations.one();
        let Violation { position, after } = violation;
        let (identity, pool) = (&delivery.identity, &*self.name);
        let key = delivery.lane.in_words();
        let text = format!(
            "source `{}`, pool `{pool}`, {key}: the message at position {position} was started after the one at {after}; please report this with the log around it",
            identity.source
        );
        if self.shared.audit.may_log(std::time::Instant::now()) {
            tracing::error!(%identity, pool, position, after, "ORDER VIOLATED: {text}");
        }
        self.shared.health.note(Trouble::Order, text);
    }

    fn attempt_of(&self, delivery: &Delivery, plan: &PoolPlan) -> Attempt {
        Attempt {
            identity: delivery.identity.clone(),
            number: delivery.stay.next_attempt(),
            round: delivery.stay.round,
            pool: self.name.clone(),
            position: delivery.position(),
            slot: delivery.slot as usize,
            timeout: plan.timeout.clone(),
            targets: self.targets(plan),
            secrets: plan.signing_secrets.clone(),
            lease: delivery.lease.clone(),
        }
    }

    /// Shared by the attempts as long as the plan says the same.
    fn targets(&self, plan: &PoolPlan) -> Arc<Targets> {
        let kept = self
            .targets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if *kept == plan.targets {
            return kept;
        }
        let new = Arc::new(plan.targets.clone());
        *self.targets.write().unwrap_or_else(PoisonError::into_inner) = new.clone();
        new
    }

    fn head(&self, delivery: &Delivery, lane: &LaneId) -> Head {
        Head {
            stay: delivery.stay,
            waits: delivery.waits(),
            age: delivery.received.elapsed(),
            keyless: lane.key().is_none(),
            returns: !delivery.is_stored() && self.shared.returns(&delivery.identity.source),
            random: self.shared.machine.random(),
        }
    }

    /// Its turn came after its lease was lost: it goes, with everything behind it.
    fn lost_turn(&self, mut delivery: Job) -> Reply<Job> {
        delivery.counted = None;
        self.flush_for_lost(&delivery.lane);
        Reply::Flush {
            job: Some(delivery),
        }
    }

    /// The lease was lost during the attempt: what came of it settles nothing, unless the message
    /// comes again before it is forgotten.
    fn lost_result(&self, mut delivery: Job, outcome: Outcome) -> Seldom<'_, Reply<Job>> {
        Box::pin(async move {
            match outcome {
                Outcome::Delivered => delivery.set_fate(Fate::Delivered),
                Outcome::Failed(reason) => self.write_down(&mut delivery, &reason).await,
                Outcome::NotYet { .. } | Outcome::Busy { .. } | Outcome::Refused(_) => {}
            }
            self.lost_turn(delivery)
        })
    }

    /// The flush that follows is for what is lost, and for nothing else.
    fn flush_for_lost(&self, lane: &LaneId) {
        self.losses.lock().insert(lane.clone());
    }

    /// What lost its lease is forgotten; what is behind it and still ours goes back.
    fn lose(&self, lane: &LaneId, lost: Vec<Taken>) {
        if lost.is_empty() {
            return;
        }
        let forgotten = lost.iter().filter(|taken| taken.forgotten).count();
        let returned = lost.len() - forgotten;
        tracing::warn!(
            pool = &*self.name,
            ?lane,
            "{forgotten} lost their lease, {returned} behind them go back"
        );
        let jobs = lost.iter().map(|taken| &*taken.job);
        self.gone_back.go_back(jobs, None, &self.shared);
        for Taken { job, forgotten } in lost {
            if forgotten {
                self.shared.note(&job, EventKind::LeaseLost, "lost");
                job.lost();
            } else {
                self.shared.return_one(&self.name, job, Duration::ZERO);
            }
        }
    }

    /// Carries out what the table said.
    fn follow(&self, mut delivery: Job, lane: LaneId, next: Next) -> Seldom<'_, Reply<Job>> {
        Box::pin(async move {
            if matches!(
                next,
                Next::Wait(_) | Next::Retry(..) | Next::Block(..) | Next::Return(_) | Next::Park(_)
            ) {
                delivery.counted = None;
            }
            if let Some(skip) = self.shared.skips.take(&delivery.identity)
                && next != Next::Ack
            {
                return self.dead_letter(delivery, lane, "skipped", skip.text).await;
            }
            match next {
                Next::Ack => self.delivered(delivery).await,
                Next::Wait(time) => {
                    delivery.waits_again();
                    self.hold(delivery, Instant::now() + time)
                }
                Next::Retry(reason, time) => {
                    self.write_down(&mut delivery, &reason).await;
                    self.hold(delivery, Instant::now() + time)
                }
                Next::Block(reason, time) => {
                    self.write_down(&mut delivery, &reason).await;
                    if delivery.rare().blocked.is_none() {
                        let why = format!(
                            "{}: message {} failed {} times and keeps its key waiting: {}; repair its target, skip the message or park the key",
                            lane.in_words(),
                            delivery.identity,
                            delivery.stay.total,
                            reason.text
                        );
                        let blocked = self.blocked.add(&delivery.identity, why);
                        delivery.rare().blocked = Some(blocked);
                    }
                    self.hold(delivery, Instant::now() + time)
                }
                Next::DeadLetter { class, reason } => {
                    self.write_down(&mut delivery, &reason).await;
                    self.dead_letter(delivery, lane, class, reason.text).await
                }
                Next::Drop(reason) => {
                    let (identity, slot) = (&delivery.identity, delivery.slot);
                    tracing::warn!(%identity, pool = &*self.name, slot, "dropped by policy: {}", reason.text);
                    self.drop_it(delivery)
                }
                Next::Return(reason) => {
                    self.write_down(&mut delivery, &reason).await;
                    self.log_return(&delivery, &lane, &reason);
                    delivery.set_fate(Fate::Return);
                    Reply::Flush {
                        job: Some(delivery),
                    }
                }
                Next::Park(reason) => {
                    self.write_down(&mut delivery, &reason).await;
                    delivery.set_fate(Fate::Park(reason.text));
                    Reply::Flush {
                        job: Some(delivery),
                    }
                }
            }
        })
    }

    /// A message may go back round after round: each is logged, at most one in a second.
    fn log_return(&self, delivery: &Delivery, lane: &LaneId, reason: &Reason) {
        if self.returns_logged.allows(Instant::now().into_std()) {
            let Stay { round, total, .. } = delivery.stay;
            tracing::warn!(
                pool = &*self.name, identity = %delivery.identity, key = lane.in_words(), attempts = total, round,
                "attempts exhausted, returning the message to its source: {}; repair its target, or set on_exhausted to \"dead-letter\", \"park\" or \"block\"",
                reason.text
            );
        }
    }

    async fn delivered(&self, delivery: Job) -> Reply<Job> {
        if delivery.stay != Default::default() {
            // What is not forgotten now is never asked for again: identities do not repeat.
            let _ = self
                .shared
                .store
                .forget(vec![delivery.identity.clone()])
                .await;
        }
        delivery.counters.delivered.one();
        delivery.settle(Settlement::Ack);
        Reply::Done
    }

    fn drop_it(&self, delivery: Job) -> Reply<Job> {
        self.shared.note(&delivery, EventKind::Drop, "dropped");
        delivery.counters.dropped.one();
        delivery.settle(Settlement::Ack);
        Reply::Done
    }

    /// A failed attempt is on disk before its lane is held, or it is not counted.
    async fn write_down(&self, delivery: &mut Delivery, reason: &Reason) {
        delivery.waits_no_more();
        let attempt = FailedAttempt {
            at: SystemTime::now(),
            class: reason.class.to_string(),
            text: reason.text.clone(),
            answer: reason.answer.clone(),
        };
        tracing::debug!(identity = %delivery.identity, pool = &*self.name, slot = delivery.slot, "failed: {}", reason.text);
        match self
            .shared
            .store
            .failed_attempt(&delivery.identity, attempt)
            .await
        {
            Ok(stay) => {
                self.shared.store_trouble.works();
                delivery.stay = stay;
            }
            Err(error) => self.shared.store_trouble.fails(&error),
        }
    }

    fn dead_letter(
        &self,
        mut delivery: Job,
        lane: LaneId,
        reason: &'static str,
        text: String,
    ) -> Seldom<'_, Reply<Job>> {
        Box::pin(async move {
            if !delivery.is_stored() && self.shared.rejects(&delivery.identity.source) {
                return self.reject(delivery, reason, &text);
            }
            match self.store_letter(&delivery, &lane, reason, &text).await {
                Ok(()) => {
                    self.shared.store_trouble.works();
                    self.shared.note(&delivery, EventKind::Store, "dead-letter");
                    match reason {
                        "skipped" => delivery.counters.skipped.one(),
                        _ => delivery.counters.dead_lettered.one(),
                    }
                    delivery.settle(Settlement::Ack);
                    Reply::Done
                }
                Err(error) => {
                    delivery.set_fate(Fate::dead_letter(reason, text));
                    self.hold_for_store(delivery, &error)
                }
            }
        })
    }

    /// To the broker's own dead letters.
    fn reject(&self, delivery: Job, reason: &'static str, text: &str) -> Reply<Job> {
        tracing::warn!(identity = %delivery.identity, pool = &*self.name, slot = delivery.slot, reason, "rejected, for the broker's own dead letters: {text}");
        self.shared
            .note(&delivery, EventKind::Reject, "dead-letter");
        match reason {
            "skipped" => delivery.counters.skipped.one(),
            _ => delivery.counters.dead_lettered.one(),
        }
        delivery.settle(Settlement::Reject);
        Reply::Done
    }

    async fn store_letter(
        &self,
        delivery: &Delivery,
        lane: &LaneId,
        reason: &str,
        text: &str,
    ) -> Result<(), StoreError> {
        let name = lane.name(&self.name);
        if let Some(row) = delivery.row() {
            let audit = by_itself("dead-letter", &name, &delivery.identity, text);
            let letter = Some((reason.to_owned(), text.to_owned()));
            return self
                .shared
                .store
                .remove_parked(name, vec![row], letter, audit)
                .await;
        }
        let letter = DeadLetter {
            number: 0,
            message: delivery.to_stored(name),
            reason: reason.to_owned(),
            text: text.to_owned(),
            at: SystemTime::now(),
            attempts: Vec::new(),
        };
        self.shared.store.dead_letter(vec![letter]).await
    }

    /// Its turn has come, and an operator wants it skipped.
    fn skip_turn(&self, delivery: Job, skip: Skip) -> Seldom<'_, Reply<Job>> {
        Box::pin(async move {
            let written = self.write_skipped(&delivery, &skip).await;
            let reply = match written {
                Ok(()) => {
                    self.skipped(delivery);
                    Reply::Done
                }
                Err(_) => ask_again(delivery),
            };
            skip.answer(written);
            reply
        })
    }

    /// A head that an operator wants skipped is, before anything else is done with its lane. What
    /// cannot be written down is not done.
    async fn skip_first(&self, lane: &LaneId, mut jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        if self.shared.skips.is_empty() {
            return jobs;
        }
        // Those behind it are not first any more: their wishes are dropped.
        let wishes = jobs
            .iter()
            .map(|queued| self.shared.skips.take(&queued.job.identity));
        let mut wishes: Vec<Option<Skip>> = wishes.collect();
        let first = wishes.first_mut().and_then(Option::take);
        let Some(skip) = first.filter(|_| !jobs[0].job.is_lost()) else {
            return jobs;
        };
        let written = self.write_skipped(&jobs[0].job, &skip).await;
        if written.is_ok() {
            tracing::debug!(pool = &*self.name, ?lane, "skipped its head");
            self.skipped(jobs.remove(0).job);
        }
        skip.answer(written);
        jobs
    }

    /// The head becomes a dead letter, and who did it is in the audit log; where it came from the
    /// store, its row goes with that.
    async fn write_skipped(&self, head: &Delivery, skip: &Skip) -> Result<(), StoreError> {
        let name = head.lane.name(&self.name);
        let store = &self.shared.store;
        let (reason, text) = ("skipped".to_owned(), skip.text.clone());
        if let Some(row) = head.row() {
            let known = || by_itself("dead-letter", &name, &head.identity, &text);
            let audit = skip.audit.clone().unwrap_or_else(known);
            let letter = Some((reason, text));
            return store.remove_parked(name, vec![row], letter, audit).await;
        }
        if let Some(audit) = &skip.audit {
            store.audit(audit.clone()).await?;
        }
        self.store_letter(head, &head.lane, &reason, &text).await
    }

    fn skipped(&self, delivery: Job) {
        self.shared.note(&delivery, EventKind::Store, "dead-letter");
        delivery.counters.skipped.one();
        delivery.settle(Settlement::Ack);
    }

    /// The store cannot take it: nothing is acked, the lane waits.
    fn hold_for_store(&self, mut delivery: Job, error: &StoreError) -> Reply<Job> {
        let trouble = &self.shared.store_trouble;
        trouble.fails(error);
        let wait = || trouble.wait(&self.name);
        delivery.rare().waits_for_store.get_or_insert_with(wait);
        delivery.waits_for(Wait::Store);
        let until = Instant::now() + store_back_off(delivery.waits());
        delivery.waits_again();
        // It waits for the disk, and others need not wait for it.
        delivery.counted = None;
        self.hold(delivery, until)
    }

    fn hold(&self, mut delivery: Job, until: Instant) -> Reply<Job> {
        self.note_held(&delivery);
        delivery.rare().held_until = Some(until);
        Reply::Hold {
            job: delivery,
            until: Some(until),
        }
    }

    /// Its window and its pool know that its lane is held.
    fn note_held(&self, delivery: &Delivery) {
        delivery.note_held();
        if delivery.is_stored() {
            self.overflowing.row_held(&delivery.lane);
        }
    }

    /// Everything goes back to its source, head first (with `cascade = "batch"`, what came with
    /// those that want to); what came from a store stays there.
    pub(crate) async fn give_back(
        &self,
        lane: LaneId,
        jobs: Vec<Queued<Job>>,
        over: bool,
    ) -> Vec<Queued<Job>> {
        let plan = current(&self.plan);
        let returning = jobs
            .iter()
            .filter(|queued| *queued.job.fate() == Fate::Return);
        let batches: Vec<BatchId> = returning.map(|queued| queued.job.batch).collect();
        let by_policy = !batches.is_empty() && !self.shared.cut.is_cancelled();
        let only_batches = (by_policy && plan.cascade == Cascade::Batch).then_some(batches);
        let delay = match (by_policy, over) {
            (_, true) => plan.return_delay.max(OVER_FOR),
            (true, false) => plan.return_delay.max(plan.retry.initial),
            (false, false) => Duration::ZERO,
        };
        let goes = |queued: &Queued<Job>| {
            let only = only_batches.as_ref();
            only.is_none_or(|batches| batches.contains(&queued.job.batch))
        };
        let (back, keep): (Vec<_>, Vec<_>) = jobs.into_iter().partition(goes);
        if by_policy || over {
            let (head, many) = (&back[0].job.identity, back.len());
            tracing::info!(pool = &*self.name, ?lane, %head, "{many} go back to the source");
        }
        let tried = back
            .iter()
            .filter(|queued| queued.job.stay != Default::default());
        let tried: Vec<Identity> = tried.map(|queued| queued.job.identity.clone()).collect();
        if !tried.is_empty() && by_policy {
            // Not on disk means only that the next round goes on counting where this one ended.
            let _ = self.shared.store.new_round(tried).await;
        }
        self.gone_back.go_back(
            back.iter().map(|queued| &*queued.job),
            only_batches.as_deref(),
            &self.shared,
        );
        for queued in back {
            self.shared.return_one(&self.name, queued.job, delay);
        }
        keep
    }

    /// Whether the origin's breaker lets a call through; if not, the lane is woken when it does.
    fn breaker_allows(&self, delivery: &Delivery) -> bool {
        let Some(origin) = delivery.parcel.address.origin() else {
            return true;
        };
        let check = || {
            self.shared
                .breakers
                .check(origin, Instant::now().into_std())
        };
        if check() == breaker::Gate::Go {
            return true;
        }
        let pool = self.pool.get().cloned().unwrap_or_default();
        let failed = !delivery.is_first_attempt();
        let lane = delivery.lane.clone();
        self.shared.waits.add(origin, pool, lane, failed);
        // It may have changed before we were on the list: then nobody would wake us.
        check() == breaker::Gate::Go
    }

    fn begin(&self, delivery: &Delivery) -> Result<Option<breaker::Call>, ()> {
        let Some(origin) = delivery.parcel.address.origin() else {
            return Ok(None);
        };
        // One result for each message: retries say no more of the origin.
        let first = delivery.is_first_attempt();
        let lane = first.then(|| delivery.lane.number(&self.name));
        let now = Instant::now().into_std();
        let call = self.shared.breakers.begin(origin, lane, now);
        call.map(Some).map_err(|_| ())
    }
}

/// Others were quicker: its gate is asked again in a moment. Not "until released" from here: who
/// would release it may look before its lane is held, and then nobody does.
fn ask_again(delivery: Job) -> Reply<Job> {
    Reply::Hold {
        job: delivery,
        until: Some(Instant::now() + TAKEN),
    }
}

/// One of those that a lost lease takes out of their lane.
struct Taken {
    job: Job,
    /// Its own lease is lost, and its source forgot it.
    forgotten: bool,
}

/// What is in front of the first lost lease, and everything from that on: the source may give that
/// again, in order, so nothing of it may stay.
fn split_lost(mut jobs: Vec<Queued<Job>>) -> (Vec<Queued<Job>>, Vec<Taken>) {
    let Some(from) = jobs.iter().position(|queued| queued.job.is_lost()) else {
        return (jobs, Vec::new());
    };
    let forgotten = forget_lost(&jobs[from..]);
    // It may have come again a moment ago: then it is ours, and stays.
    let Some(first) = forgotten.iter().position(|forgotten| *forgotten) else {
        return (jobs, Vec::new());
    };
    let behind = jobs.split_off(from + first).into_iter();
    let taken = behind
        .zip(&forgotten[first..])
        .map(|(queued, forgotten)| Taken {
            job: queued.job,
            forgotten: *forgotten,
        });
    let taken = taken.collect();
    (jobs, taken)
}

/// Their sources forget them, all of a source at one moment. Answers which were forgotten.
fn forget_lost(jobs: &[Queued<Job>]) -> Vec<bool> {
    let mut forgotten = vec![false; jobs.len()];
    let mut by_source: BTreeMap<&Arc<str>, Vec<usize>> = BTreeMap::new();
    for (at, queued) in jobs.iter().enumerate() {
        if queued.job.lease.is_some() {
            by_source
                .entry(&queued.job.identity.source)
                .or_default()
                .push(at);
        }
    }
    for places in by_source.into_values() {
        let lease = jobs[places[0]].job.lease.as_ref();
        let Some(book) = lease.and_then(|lease| lease.book()) else {
            continue;
        };
        let lost: Vec<Lost<'_>> = places.iter().map(|at| lost_of(&jobs[*at].job)).collect();
        for (at, was) in places.iter().zip(book.forget_lost(&lost)) {
            forgotten[*at] = was;
        }
    }
    forgotten
}

fn lost_of(delivery: &Delivery) -> Lost<'_> {
    Lost {
        id: &delivery.identity.id,
        delivered: *delivery.fate() == Fate::Delivered,
    }
}

pub(crate) fn store_back_off(waits: u32) -> Duration {
    let seconds = 1_u64 << waits.min(5);
    Duration::from_secs(seconds).min(STORE_BACK_OFF)
}

fn count(delivery: &Delivery, outcome: &Outcome, error: Option<ErrorType>, took: Duration) {
    let counters = &delivery.counters;
    let calls = match outcome {
        Outcome::Delivered => &counters.attempts_delivered,
        Outcome::NotYet { .. } => &counters.attempts_not_yet,
        Outcome::Busy { .. } => &counters.attempts_busy,
        Outcome::Failed(_) => &counters.attempts_failed,
        Outcome::Refused(_) => &counters.attempts_refused,
    };
    calls.note(error, took);
}

/// What the router did by itself, as the audit log says it.
pub(crate) fn by_itself(verb: &str, lane: &LaneName, identity: &Identity, why: &str) -> AuditEntry {
    AuditEntry {
        at: SystemTime::now(),
        who: "keylane".to_owned(),
        verb: verb.to_owned(),
        lane: Some(lane.clone()),
        identity: Some(identity.clone()),
        why: why.to_owned(),
    }
}

/// Runs a dispatch that may panic: a panic is a failed attempt of its message, nothing more.
fn contained(mut attempt: Seldom<'_, Outcome>) -> impl Future<Output = Outcome> {
    std::future::poll_fn(move |cx| {
        let poll = std::panic::AssertUnwindSafe(|| attempt.as_mut().poll(cx));
        std::panic::catch_unwind(poll).unwrap_or_else(|_| {
            Poll::Ready(Outcome::Failed(Reason {
                class: "panic".into(),
                text: "the handler panicked".to_owned(),
                ..Reason::default()
            }))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attempt takes that much memory beside that of its dispatch, however little of it it
    /// needs; with 24 more for the executor, up to 1032 bytes are the allocator's quick way.
    #[test]
    fn a_turn_is_small() {
        type Of = (&'static Attempts, Job);
        let size = crate::size_of_result(|(attempts, job): Of| attempts.handle(job, 0));
        assert!(size <= 1008, "{size} bytes");
    }

    #[test]
    fn a_pattern_matches_the_whole_key() {
        let yes = [
            ("vip:*", "vip:7"),
            ("*", ""),
            ("a*b*c", "a--b--c"),
            ("a", "a"),
            ("*x", "xx"),
        ];
        let no = [
            ("vip:*", "pip:7"),
            ("a", "ab"),
            ("a*b", "a-c"),
            ("a*a", "a"),
            ("", "x"),
        ];
        for (pattern, key) in yes {
            assert!(
                matches(pattern.as_bytes(), &Key::new(key)),
                "{pattern} {key}"
            );
        }
        for (pattern, key) in no {
            assert!(
                !matches(pattern.as_bytes(), &Key::new(key)),
                "{pattern} {key}"
            );
        }
    }
}
