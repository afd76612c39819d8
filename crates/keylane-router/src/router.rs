//! The router: starts sources and pools, changes them while they run, and stops them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use keylane::Permits;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, Scale};
use crate::breaker::Breakers;
use crate::consume::{self, Consumer};
use crate::counters::{PoolGauges, Registry};
use crate::delivery::Fate;
use crate::dispatch::{Dispatch, DynDispatch, HttpDispatch, HttpOptions};
use crate::feed::{Barred, Fed, Feeders};
use crate::health::{Health, Problem, Trouble};
use crate::history::Recorder;
use crate::lane::{LaneId, any_source};
use crate::lease::{BootClock, LeaseClock};
use crate::machine::{Machine, RealMachine};
use crate::message::{Identity, Message};
use crate::parcel::{Addresses, Parcel};
use crate::parse::{self, Incoming};
use crate::plan::{
    BreakerPlan, Envelope, Instances, LaneScope, OnExhausted, Overflow, Plan, PoolPlan, SourcePlan,
};
use crate::pool::{Ability, Pool, Shared};
use crate::route::{DEFAULT, Leaving, Routes};
use crate::skips::Skips;
use crate::source::{Features, Order, Source};
use crate::store::{AuditEntry, LaneName, Move, ParkedLane, ReadQueue, Store, StoreError};
use crate::store_trouble::StoreTrouble;
use crate::trace::{Described, Link};
use crate::waits::BreakerWaits;
use crate::watch::{Alarm, Watchdog};
use crate::workers::Workers;

/// About how many bytes one receive asks for.
const RECEIVE_BYTES: usize = 4 << 20;
/// How long a stop waits, past its deadline, for what was cut to come back.
const CUT_GRACE: Duration = Duration::from_secs(2);

/// A removed pool that cannot go yet is looked at this often.
const STAYS: Duration = Duration::from_secs(1);
/// So many rows of a stored lane are named at once.
const NAMES: usize = 1000;
/// Attempts of a closed pool that run longer than this are warned about.
const ATTEMPT_ENDS: Duration = Duration::from_secs(60);

/// What everything in the router shares.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatch: Arc<dyn DynDispatch>,
    pub(crate) routes: Routes,
    pub(crate) counters: Registry,
    pub(crate) health: Arc<Health>,
    /// The first signal: nothing more is received.
    pub(crate) stop_taking: CancellationToken,
    /// The end of patience with brokers that do not take settlements.
    pub(crate) give_up: CancellationToken,
    pub(crate) receive_bytes: usize,
    /// What the leases of all sources go by.
    pub(crate) lease_clock: Arc<dyn LeaseClock>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) alarm: Alarm,
    plan: RwLock<Arc<Plan>>,
    permits: Permits,
    consumers: Mutex<BTreeMap<Arc<str>, Arc<Consumer>>>,
    /// Of stored keys.
    pub(crate) feeders: Feeders,
    /// Feeders, drains of removed pools, the breakers' alarm clock.
    pub(crate) tasks: TaskTracker,
    /// Changes of the plan, one after the other.
    changing: tokio::sync::Mutex<()>,
}

/// A running router. Cheap to clone; [`Router::stop`] ends it.
#[derive(Clone)]
pub struct Router {
    pub(crate) inner: Arc<Inner>,
}

/// Makes a [`Router`].
pub struct Builder {
    plan: Plan,
    store: Option<Arc<dyn Store>>,
    dispatch: Option<Arc<dyn DynDispatch>>,
    history: Option<Arc<Recorder>>,
    lease_clock: Arc<dyn LeaseClock>,
    link: Option<Link>,
    machine: Arc<dyn Machine>,
    sources: Vec<StartSource>,
}

type StartSource = Box<dyn FnOnce(Router) -> Starting + Send>;
type Starting = Pin<Box<dyn Future<Output = Result<(), StartError>> + Send>>;

/// Why a router, a source or a changed plan could not be put to work.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StartError {
    /// A router without a store could lose messages.
    #[error("no store: give the builder one, for example the embedded database's")]
    NoStore,
    /// It could not be written down which pools there are.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same name twice.
    #[error("source `{0}` runs already; a source has one consumer")]
    SourceTwice(Arc<str>),
    /// A policy that a source cannot keep.
    #[error(
        "pool `{pool}`: on_exhausted = \"return\", but source `{source_name}` cannot take messages back in order with a delay; set it to another value or leave it out"
    )]
    CannotReturn {
        /// Which pool.
        pool: Arc<str>,
        /// Which source.
        source_name: Arc<str>,
    },
    /// A spilled key lives with one instance, and goes by the source's ids.
    #[error("pool `{pool}`: overflow = \"spill\", but source `{source_name}` {why}; use \"wait\"")]
    CannotSpill {
        /// Which pool.
        pool: Arc<str>,
        /// Which source.
        source_name: Arc<str>,
        /// What it is or lacks.
        why: &'static str,
    },
    /// What sources share is in none of their stores.
    #[error(
        "pool `{0}`: overflow = \"spill\" and lane_scope = \"pool\" exclude each other; use \"wait\", or lane_scope = \"source\""
    )]
    SpillShared(Arc<str>),
    /// A parked key lives with one instance.
    #[error(
        "pool `{pool}`: on_exhausted = \"park\", but source `{source_name}` is read by many instances (instances = \"many\"); set it to another value or leave it out"
    )]
    CannotPark {
        /// Which pool.
        pool: Arc<str>,
        /// Which source.
        source_name: Arc<str>,
    },
    /// A lane that sources share is given back to all of them.
    #[error(
        "pool `{pool}`: lane_scope = \"pool\", but source `{source_name}` cannot take messages back in order with a delay; use lane_scope = \"source\""
    )]
    CannotShare {
        /// Which pool.
        pool: Arc<str>,
        /// Which source.
        source_name: Arc<str>,
    },
    /// A breaker that could never open.
    #[error(
        "breaker: window = {window} is below min_lanes = {min_lanes}: no window would ever hold enough lanes to open; raise window or lower min_lanes"
    )]
    BreakerWindow {
        /// The lanes that are remembered.
        window: usize,
        /// The lanes that it takes.
        min_lanes: usize,
    },
    /// Lanes change their scope only between two runs.
    #[error(
        "pool `{0}`: lane_scope cannot change while the router runs; set it back, or restart with the new value: what is stored moves then"
    )]
    ScopeChanged(Arc<str>),
    /// Messages that name this pool are in lanes of another scope in the default pool.
    #[error(
        "pool `{pool}`: lane_scope differs from that of pool `default`, where its messages ran until now; give both the same value{}",
        match .keys {
            0 => ", or restart".to_owned(),
            keys => format!(" until the keys stored there ({keys}) are delivered, replayed or dropped"),
        }
    )]
    ScopeOfDefault {
        /// The added pool.
        pool: Arc<str>,
        /// Keys that are stored under the default pool.
        keys: usize,
    },
    /// Whether a source is one lane changes only where nothing of it is stored.
    #[error(
        "source `{source_name}`: workers changes {}, but {keys} of its keys are stored in the lanes that they had; set workers back until these are delivered, replayed or dropped",
        if *.one_lane { "to 1, which makes it one lane" } else { "from 1, which gives each key its own lane" }
    )]
    Lanes {
        /// Which source.
        source_name: Arc<str>,
        /// Whether it would be one lane.
        one_lane: bool,
        /// How many keys are stored.
        keys: usize,
    },
    /// What is stored of a queue is of a name that another queue has now.
    #[error(
        "source `{source_name}` reads queue `{queue}`, which source `{before}` read before; {keys} keys are stored of `{before}`, and it reads another queue now: give that another name, or exchange the names when these keys are delivered, replayed or dropped"
    )]
    NameExchanged {
        /// The source that reads the queue now.
        source_name: Arc<str>,
        /// The queue.
        queue: Arc<str>,
        /// The source that read it before.
        before: Arc<str>,
        /// How many keys are stored under that name.
        keys: usize,
    },
    /// The router is stopping.
    #[error("the router is stopping")]
    Stopping,
}

impl Router {
    /// Starts to build a router.
    pub fn builder() -> Builder {
        Builder {
            plan: Plan::default(),
            store: None,
            dispatch: None,
            history: None,
            lease_clock: Arc::new(BootClock),
            link: None,
            machine: Arc::new(RealMachine),
            sources: Vec::new(),
        }
    }

    /// Starts to take messages from another source. What is stored of its queue, under this name or
    /// the one that the queue was read under before, is brought to the lanes that its messages
    /// have from now on.
    ///
    /// # Errors
    /// [`StartError`] when that is impossible; nothing was taken then.
    pub async fn add_source<S: Source>(
        &self,
        name: impl Into<Arc<str>>,
        source: S,
        plan: SourcePlan,
    ) -> Result<(), StartError> {
        let name = name.into();
        let features = source.features();
        let _one_at_a_time = self.inner.changing.lock().await;
        check_source(&self.inner.plan(), &name, &features, &plan)?;
        self.inner.is_free(&name)?;
        let queue = source.destination().unwrap_or_else(|| name.clone());
        let reads = ReadQueue {
            kind: features.kind.into(),
            queue: queue.clone(),
            source: name.clone(),
            one_lane: plan.is_one_lane(),
        };
        self.inner.settle_in(reads, &plan).await?;
        let mut consumers = self.inner.consumers();
        if self.inner.stop_taking.is_cancelled() {
            return Err(StartError::Stopping);
        }
        let described = Described::new(features.kind, queue);
        self.inner
            .set_ability(&name, ability(&features, &plan, described));
        self.inner.dispatch.told_of(&name, &plan.kind);
        let consumer = consume::start(name.clone(), source, plan, self.inner.clone());
        consumers.insert(name.clone(), consumer);
        drop(consumers);
        self.inner.health.well(Trouble::NoSource(name.clone()));
        self.inner.feed_stored(&name);
        Ok(())
    }

    /// Ends one source: nothing more is received, what waits goes back, what runs may finish.
    /// Waits for that. `false` when there is no such source.
    pub async fn remove_source(&self, name: &str) -> bool {
        let consumer = self.inner.consumers().get(name).cloned();
        let Some(consumer) = consumer else {
            return false;
        };
        consumer.stop.cancel();
        self.inner.leave_lanes(&consumer.name);
        // What it was about to put into a lane is there now.
        consumer.received_all().await;
        self.inner.leave_lanes(&consumer.name);
        consumer.ended().await;
        self.inner.consumers().remove(name);
        self.check_stored_keys();
        true
    }

    /// Looks for stored keys of sources that are neither read nor in the plan: nobody feeds them,
    /// which is a [`Trouble::NoSource`] until such a source is added. Done after a source was
    /// removed, and at the start where the builder has sources; who adds them later calls this
    /// when all are there.
    pub fn check_stored_keys(&self) {
        let mut unfed: BTreeMap<Arc<str>, Vec<LaneName>> = BTreeMap::new();
        for stored in self.inner.store.parked() {
            if !self.inner.knows_source(&stored.lane.source) {
                let of = unfed.entry(stored.lane.source.clone()).or_default();
                of.push(stored.lane);
            }
        }
        for (source, lanes) in unfed {
            let (many, first) = (lanes.len(), LaneId::of(&lanes[0]).in_words());
            let text = format!(
                "{many} keys of it are stored ({first} in pool `{}` among them) and nobody feeds them: configure a source of this name again, or park and drop them",
                lanes[0].pool
            );
            self.inner.health.trouble(Trouble::NoSource(source), text);
        }
    }

    /// Puts another plan's limits and pools in force: added pools start, changed limits act at
    /// once, removed pools drain; a key with something unresolved stays where that is. Sources are
    /// added and removed by [`Self::add_source`] and [`Self::remove_source`].
    ///
    /// # Errors
    /// [`StartError`] when the plan cannot work with the sources there are; nothing changed then.
    pub async fn reload(&self, plan: Plan) -> Result<(), StartError> {
        let _one_at_a_time = self.inner.changing.lock().await;
        check_plan(&plan)?;
        let before = self.inner.plan();
        // What the plan has no longer is to be removed next.
        let goes =
            |name: &Arc<str>| before.sources.contains_key(name) && !plan.sources.contains_key(name);
        let sources = self.inner.running_consumers();
        for source in sources.into_iter().filter(|source| !goes(&source.name)) {
            check_source(&plan, &source.name, &source.features, &source.plan)?;
        }
        self.inner.keeps_scopes(&plan)?;
        self.inner.keeps_lanes(&plan).await?;
        self.inner.separate_no_more(&plan).await?;
        self.inner.permits.set(most_in_flight(&plan));
        self.inner.set_breaker(&plan.breaker);
        let mut pools = BTreeMap::new();
        let mut again = Vec::new();
        for (name, pool_plan) in with_default(&plan) {
            let pool = match self.inner.routes.find(&name) {
                Some(pool) => {
                    pool.set_plan(pool_plan);
                    if self.inner.routes.pool(&name).is_none() {
                        again.push(pool.clone());
                    }
                    pool
                }
                None => self.inner.new_pool(name.clone(), pool_plan),
            };
            pools.insert(name, pool);
        }
        let removed = self
            .inner
            .routes
            .change(pools, self.inner.shared.machine.wall());
        *self
            .inner
            .plan
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
        self.inner.alarm.wake();
        self.inner.shared.room.notify_waiters();
        self.inner.shared.routes.notify_waiters();
        for pool in again {
            self.inner.stay(&pool);
        }
        for leaving in removed {
            let inner = self.inner.clone();
            self.inner
                .tasks
                .spawn(async move { inner.retire(leaving).await });
        }
        Ok(())
    }

    /// Stops: receives nothing more, starts nothing more, gives back at once what does not run,
    /// lets what runs finish until the deadline, then cuts it and gives that back too.
    pub async fn stop(&self, deadline: Duration) {
        let inner = &self.inner;
        inner.stop_taking.cancel();
        let pools = inner.routes.pools();
        let mut drains = tokio::task::JoinSet::new();
        for pool in pools.clone() {
            drains.spawn(async move { pool.drain(deadline).await });
        }
        while drains.join_next().await.is_some() {}
        inner.shared.cut.cancel();
        for pool in pools {
            let _ = tokio::time::timeout(CUT_GRACE, pool.all_idle()).await;
        }
        let consumers: Vec<Arc<Consumer>> = inner.consumers().values().cloned().collect();
        let settled = async {
            for consumer in &consumers {
                consumer.ended().await;
            }
        };
        if tokio::time::timeout(CUT_GRACE, settled).await.is_err() {
            inner.give_up.cancel();
        }
        inner.tasks.close();
        let _ = tokio::time::timeout(CUT_GRACE, inner.tasks.wait()).await;
    }

    /// The deadline of a stop is now: running attempts are cut.
    pub fn cut(&self) {
        self.inner.shared.cut.cancel();
    }

    /// What is wrong right now.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.inner.health.problems();
        problems.extend(self.inner.shared.open_breaker());
        problems
    }

    /// How many target origins have a breaker that is not closed.
    pub fn open_breakers(&self) -> usize {
        self.inner.shared.breakers.unwell().len()
    }

    /// How often a lane came to wait for the breaker of its target.
    #[cfg(feature = "testing")]
    pub fn breaker_holds(&self) -> u64 {
        self.inner.shared.waits.held()
    }

    /// Forgets which lanes wait for breakers and workers, as a bug would.
    #[cfg(feature = "testing")]
    pub fn lose_waiting_lanes(&self) {
        self.inner.shared.waits.lose_all();
        for (_, workers) in self.inner.shared.all_workers() {
            workers.lose_all();
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Registry {
        &self.inner.counters
    }

    /// What is in each pool right now.
    pub fn pools(&self) -> Vec<PoolGauges> {
        let after = self.inner.plan().stall_after;
        let now = tokio::time::Instant::now();
        let gauges = |pool: &Arc<Pool>| PoolGauges {
            stalled: pool.stalled_runs(after, now).len(),
            waits_for_store: self.inner.shared.store_trouble.waiting_in(&pool.name),
            ..pool.gauges()
        };
        self.inner.routes.pools().iter().map(gauges).collect()
    }

    /// Which of these messages, by the ids in their bodies, are held here: received and neither
    /// resolved nor given back.
    pub fn held<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> HashSet<&'a str> {
        let ids: HashSet<&str> = ids.into_iter().collect();
        let mut held = HashSet::new();
        for consumer in self.inner.consumers().values() {
            consumer.add_held(&ids, &mut held);
        }
        held
    }

    /// The names of the sources that are read.
    pub fn sources(&self) -> Vec<Arc<str>> {
        self.inner.consumers().keys().cloned().collect()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The plan in force.
    pub fn plan(&self) -> Arc<Plan> {
        self.inner.plan()
    }

    /// Waits until nothing is held or under way in any pool. Sources may have more.
    pub async fn all_idle(&self) {
        for pool in self.inner.routes.pools() {
            pool.all_idle().await;
        }
    }
}

impl Builder {
    /// What to do. Default: one pool `default`, no source.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plan = plan;
        self
    }

    /// Where dead letters, parked keys, attempts and pauses are kept. There is no default.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// As [`Self::store`], for a store that others have too.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// How targets are called. Default: over HTTP.
    pub fn dispatch(mut self, dispatch: impl Dispatch) -> Self {
        self.dispatch = Some(Arc::new(dispatch));
        self
    }

    /// Writes down what the router does with messages (stores, returns, drops), for the checker of
    /// [`crate::history`]. Default: nowhere.
    pub fn history(mut self, recorder: Arc<Recorder>) -> Self {
        self.history = Some(recorder);
        self
    }

    /// What leases go by. Default: the system's clock that goes on in suspend.
    pub fn lease_clock(mut self, clock: impl LeaseClock) -> Self {
        self.lease_clock = Arc::new(clock);
        self
    }

    /// Where the router's chance and wall clock come from. Default: the real machine.
    pub fn machine(mut self, machine: Arc<dyn Machine>) -> Self {
        self.machine = machine;
        self
    }

    /// Shows each attempt's span with its message to this, if anybody listens to the span, before
    /// it is entered: the place to make a span of the message's `traceparent` its parent.
    /// `tracing` knows no parents of other processes; what exports spans does.
    ///
    /// ```
    /// use keylane_router::Router;
    ///
    /// let builder = Router::builder().on_span(|span, message| {
    ///     // With tracing-opentelemetry: `span.set_parent(propagator.extract(&carrier))`, the
    ///     // carrier being the message's headers.
    ///     let _ = (span, &message.headers);
    /// });
    /// # let _ = builder;
    /// ```
    pub fn on_span(
        mut self,
        link: impl Fn(&tracing::Span, &Message) + Send + Sync + 'static,
    ) -> Self {
        self.link = Some(Arc::new(link));
        self
    }

    /// A source under this name; its settings are the plan's of the same name, else the defaults.
    pub fn source<S: Source>(mut self, name: impl Into<Arc<str>>, source: S) -> Self {
        let name = name.into();
        let plan = self.plan.sources.get(&name).cloned();
        self.sources.push(Box::new(move |router: Router| {
            let plan = plan.unwrap_or_else(SourcePlan::custom);
            Box::pin(async move { router.add_source(name, source, plan).await })
        }));
        self
    }

    /// Starts the router.
    ///
    /// # Errors
    /// [`StartError`] when the plan and the sources do not fit.
    pub async fn start(self) -> Result<Router, StartError> {
        let store = self.store.ok_or(StartError::NoStore)?;
        let dispatch = self.dispatch.unwrap_or_else(http);
        check_plan(&self.plan)?;
        let router = Router {
            inner: Inner::new(
                self.plan,
                store,
                dispatch,
                self.history,
                self.lease_clock,
                self.link,
                self.machine,
            ),
        };
        router.inner.take_up().await?;
        let has_sources = !self.sources.is_empty();
        for start in self.sources {
            start(router.clone()).await?;
        }
        if has_sources {
            router.check_stored_keys();
        }
        Ok(router)
    }
}

fn http() -> Arc<dyn DynDispatch> {
    Arc::new(HttpDispatch::new(HttpOptions::default()))
}

/// The plan's pools, and a default pool in any case.
fn with_default(plan: &Plan) -> BTreeMap<Arc<str>, PoolPlan> {
    let mut pools = plan.pools.clone();
    pools.entry(DEFAULT.into()).or_default();
    pools
}

fn most_in_flight(plan: &Plan) -> usize {
    plan.max_in_flight
        .map_or(usize::MAX, std::num::NonZeroUsize::get)
}

/// What no source makes possible.
fn check_plan(plan: &Plan) -> Result<(), StartError> {
    let (window, min_lanes) = (plan.breaker.window.get(), plan.breaker.min_lanes.get());
    if window < min_lanes {
        return Err(StartError::BreakerWindow { window, min_lanes });
    }
    let shared = |pool: &PoolPlan| {
        pool.overflow == Some(Overflow::Spill) && pool.lane_scope == LaneScope::Pool
    };
    match plan.pools.iter().find(|(_, pool)| shared(pool)) {
        Some((name, _)) => Err(StartError::SpillShared(name.clone())),
        None => Ok(()),
    }
}

/// `return` exists only where a source keeps order and can delay; `spill` where one instance reads
/// it and its ids are stable.
fn check_source(
    plan: &Plan,
    name: &Arc<str>,
    features: &Features,
    source: &SourcePlan,
) -> Result<(), StartError> {
    let returns = features.returns();
    let no_spill = no_spill(features, source);
    for (pool, pool_plan) in &plan.pools {
        if pool_plan.on_exhausted == OnExhausted::Return && !returns {
            return Err(StartError::CannotReturn {
                pool: pool.clone(),
                source_name: name.clone(),
            });
        }
        if pool_plan.on_exhausted == OnExhausted::Park && source.instances == Instances::Many {
            return Err(StartError::CannotPark {
                pool: pool.clone(),
                source_name: name.clone(),
            });
        }
        if pool_plan.lane_scope == LaneScope::Pool && !returns {
            return Err(StartError::CannotShare {
                pool: pool.clone(),
                source_name: name.clone(),
            });
        }
        if let Some(why) = no_spill
            && pool_plan.overflow == Some(Overflow::Spill)
        {
            return Err(StartError::CannotSpill {
                pool: pool.clone(),
                source_name: name.clone(),
                why,
            });
        }
    }
    Ok(())
}

/// Why a source's keys cannot be spilled, if they cannot.
fn no_spill(features: &Features, source: &SourcePlan) -> Option<&'static str> {
    if source.instances == Instances::Many {
        Some("is read by many instances (instances = \"many\")")
    } else if !features.identity {
        Some("has no ids that stay the same when a message comes again")
    } else {
        None
    }
}

/// What a source can do; unset, a lane that is over goes to the store if it may.
fn ability(features: &Features, source: &SourcePlan, described: Described) -> Ability {
    let returns = features.returns();
    let overflow = match no_spill(features, source) {
        None => Overflow::Spill,
        Some(_) => Overflow::Wait,
    };
    Ability {
        workers: source
            .workers
            .filter(|most| most.get() > 1)
            .map(Workers::new),
        rejects: features.dead_letter,
        returns,
        ordered_return: features.ordered_return,
        takes_back: returns || matches!(features.order, Order::AsItComes | Order::NoKeys),
        spills: no_spill(features, source).is_none(),
        many: source.instances == Instances::Many,
        overflow,
        settles: features.settles,
        described,
    }
}

/// What the router did to a pause because the scope of its pool's lanes is another.
fn of_scope(verb: &str, lane: &LaneName) -> AuditEntry {
    AuditEntry {
        at: SystemTime::now(),
        who: "keylane".to_owned(),
        verb: verb.to_owned(),
        lane: Some(lane.clone()),
        identity: None,
        why: "lane_scope is another one since this start".to_owned(),
    }
}

impl Inner {
    fn new(
        plan: Plan,
        store: Arc<dyn Store>,
        dispatch: Arc<dyn DynDispatch>,
        history: Option<Arc<Recorder>>,
        lease_clock: Arc<dyn LeaseClock>,
        link: Option<Link>,
        machine: Arc<dyn Machine>,
    ) -> Arc<Self> {
        let breaker = plan.breaker.clone();
        let waits = Arc::new(BreakerWaits::new(&breaker));
        let told = waits.clone();
        let health = Arc::new(Health::default());
        let shared = Arc::new(Shared {
            dispatch: dispatch.clone(),
            store: store.clone(),
            breakers: Breakers::new(breaker, move |change| told.on_change(change)),
            waits,
            health: health.clone(),
            store_trouble: StoreTrouble::new(health.clone()),
            cut: CancellationToken::new(),
            pressure: Arc::default(),
            sources: RwLock::default(),
            router: std::sync::OnceLock::new(),
            skips: Skips::default(),
            audit: Audit::default(),
            history,
            link,
            machine,
            room: Arc::default(),
            routes: Arc::default(),
        });
        let permits = Permits::new(most_in_flight(&plan));
        let make = |(name, pool): (Arc<str>, PoolPlan)| {
            let made = Pool::new(name.clone(), pool, shared.clone(), permits.clone());
            (name, made)
        };
        let pools = with_default(&plan).into_iter().map(make).collect();
        let inner = Arc::new(Self {
            routes: Routes::new(pools, store.clone()),
            store,
            dispatch,
            counters: Registry::default(),
            health,
            stop_taking: CancellationToken::new(),
            give_up: CancellationToken::new(),
            receive_bytes: RECEIVE_BYTES,
            lease_clock,
            shared,
            alarm: Alarm::default(),
            plan: RwLock::new(Arc::new(plan)),
            permits,
            consumers: Mutex::default(),
            feeders: Feeders::default(),
            tasks: TaskTracker::new(),
            changing: tokio::sync::Mutex::new(()),
        });
        let _ = inner.shared.router.set(Arc::downgrade(&inner));
        inner
    }

    /// Lanes that wait for an origin are woken as the new settings say.
    fn set_breaker(&self, plan: &BreakerPlan) {
        self.shared.waits.set(plan);
        self.shared.breakers.set_plan(plan.clone());
    }

    /// Takes up what the store knows from before: pauses, and keys of pools that are gone. Stored
    /// keys are fed once their source is there.
    async fn take_up(self: &Arc<Self>) -> Result<(), StartError> {
        self.report_recovered();
        self.move_pauses().await?;
        for pool in self.routes.pools() {
            self.apply_pauses(&pool);
        }
        let mut moves = Vec::new();
        for ParkedLane { lane, .. } in self.store.parked() {
            let pool = self.routes.pool_for(&lane.pool);
            let shared = pool.plan().lane_scope == LaneScope::Pool;
            if pool.name != lane.pool || shared != LaneId::is_shared(&lane) {
                moves.extend(self.moves_to(&pool, &lane).await?);
            }
        }
        self.move_stored(moves).await?;
        self.keep_to_the_default_pool().await?;
        let waits = self.shared.waits.clone();
        let stop = self.stop_taking.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = waits.run() => {}
                () = stop.cancelled() => {}
            }
        });
        self.tasks.spawn(Watchdog::new(self.clone()).run());
        Ok(())
    }

    /// What was stored under the default pool may be of pools that have come since: their arrivals
    /// follow it. Which pools those can be is written down, for the starts to come.
    async fn keep_to_the_default_pool(&self) -> Result<(), StartError> {
        let plan = self.plan();
        let named = plan.pools.keys().filter(|name| ***name != *DEFAULT);
        let named: BTreeSet<Arc<str>> = named.cloned().collect();
        let known = self.store.separate_pools();
        let stored = self.store.parked();
        let keys = stored.iter().filter(|p| *p.lane.pool == *DEFAULT).count();
        let separate: BTreeSet<Arc<str>> = match keys {
            0 => named.clone(),
            _ => named.intersection(&known).cloned().collect(),
        };
        let scope_of = |name: &str| self.routes.pool_for(name).plan().lane_scope;
        let mut follow = named.difference(&separate);
        if let Some(pool) = follow.find(|name| scope_of(name) != scope_of(DEFAULT)) {
            let pool = pool.clone();
            return Err(StartError::ScopeOfDefault { pool, keys });
        }
        if !known.is_subset(&named) {
            // Messages that name a removed pool go to this one now.
            let default = self.routes.pool_for(DEFAULT);
            default.code_comes(self.shared.machine.wall());
        }
        self.routes
            .were_in_default(named.difference(&separate).cloned());
        match separate == known {
            true => Ok(()),
            false => Ok(self.store.set_separate_pools(separate).await?),
        }
    }

    /// Messages of pools that go are stored under the default pool from now on. Those of pools that
    /// come may be there already, or come to be: what is in a lane now may be stored later.
    async fn separate_no_more(&self, plan: &Plan) -> Result<(), StoreError> {
        let known = self.store.separate_pools();
        let stays = |name: &Arc<str>| plan.pools.contains_key(name);
        let separate: BTreeSet<Arc<str>> = known.iter().filter(|n| stays(n)).cloned().collect();
        match separate == known {
            true => Ok(()),
            false => self.store.set_separate_pools(separate).await,
        }
    }

    /// The moves that bring a stored lane to this pool, into lanes of the pool's scope.
    async fn moves_to(&self, pool: &Pool, lane: &LaneName) -> Result<Vec<Move>, StoreError> {
        let scope = pool.plan().lane_scope;
        let to = |source: &Arc<str>, of: Option<Arc<str>>| Move::Lane {
            from: lane.clone(),
            of,
            to: LaneName {
                source: source.clone(),
                pool: pool.name.clone(),
                ..lane.clone()
            },
        };
        if scope == LaneScope::Pool {
            return Ok(vec![to(&any_source(), None)]);
        }
        let sources = match LaneId::is_shared(lane) {
            true => self.sources_in(lane).await?,
            false => BTreeSet::new(),
        };
        // A lane without rows is of no source yet.
        if sources.is_empty() {
            return Ok(vec![to(&lane.source, None)]);
        }
        let each = sources
            .iter()
            .map(|source| to(source, Some(source.clone())));
        Ok(each.collect())
    }

    /// Whose messages a stored lane has.
    async fn sources_in(&self, lane: &LaneName) -> Result<BTreeSet<Arc<str>>, StoreError> {
        let mut sources = BTreeSet::new();
        let mut after = 0;
        loop {
            let names = self.store.parked_names(lane.clone(), after, NAMES).await?;
            let Some((last, _)) = names.last() else {
                return Ok(sources);
            };
            after = *last;
            sources.extend(names.into_iter().map(|(_, identity)| identity.source));
        }
    }

    /// Pauses of lanes of another scope than the plan's hold for the lanes of that from now on.
    async fn move_pauses(&self) -> Result<(), StoreError> {
        let plan = self.plan();
        for old in self.store.pauses() {
            let Some(pool) = self.routes.pool(&old.pool) else {
                continue;
            };
            let shared = pool.plan().lane_scope == LaneScope::Pool;
            if shared == LaneId::is_shared(&old) {
                continue;
            }
            let sources: Vec<Arc<str>> = match shared {
                true => vec![any_source()],
                false => plan.sources.keys().cloned().collect(),
            };
            for source in sources {
                let new = LaneName {
                    source,
                    ..old.clone()
                };
                let audit = of_scope("pause", &new);
                self.store.pause(new, audit).await?;
            }
            let audit = of_scope("resume", &old);
            self.store.resume(old, audit).await?;
        }
        Ok(())
    }

    /// Moves stored lanes, and feeds them where they are now.
    async fn move_stored(self: &Arc<Self>, moves: Vec<Move>) -> Result<(), StoreError> {
        if moves.is_empty() {
            return Ok(());
        }
        self.store.move_lanes(moves.clone()).await?;
        for one in &moves {
            if let Move::Lane { from, to, .. } = one {
                tracing::info!(?from, ?to, "moved a stored key");
                if let Some(pool) = self.routes.find(&to.pool) {
                    // Behind what it had: positions are not compared across that.
                    pool.code_comes(self.shared.machine.wall());
                }
                self.feed(to);
            }
        }
        Ok(())
    }

    /// Whether no source of this name runs.
    fn is_free(&self, name: &Arc<str>) -> Result<(), StartError> {
        let consumers = self.consumers();
        match consumers.get(name).is_some_and(|other| !other.has_ended()) {
            true => Err(StartError::SourceTwice(name.clone())),
            false => Ok(()),
        }
    }

    /// Brings what is stored of a source to the lanes that its messages have from now on. It is not
    /// read yet.
    async fn settle_in(
        self: &Arc<Self>,
        reads: ReadQueue,
        plan: &SourcePlan,
    ) -> Result<(), StartError> {
        let known = self.store.read_queues();
        let of_queue = |read: &&ReadQueue| read.kind == reads.kind && read.queue == reads.queue;
        let named = known.iter().filter(of_queue);
        // Two sources may read one queue; the one that is not there any more has another name now.
        let (stays, gone): (Vec<_>, Vec<_>) = named
            .filter(|read| read.source != reads.source)
            .cloned()
            .partition(|read| self.knows_source(&read.source));
        for other in stays {
            let now = self.shared.described(&other.source);
            if now.is_some_and(|now| *now.queue() != reads.queue) {
                self.is_of_its_name(&other.source, &other, &reads.source)
                    .await?;
            }
        }
        let own = known
            .iter()
            .filter(of_queue)
            .find(|read| read.source == reads.source);
        let elsewhere = known.iter().filter(|read| read.source == reads.source);
        for before in elsewhere.filter(|read| !of_queue(read) && own.is_none()) {
            if let Some(reader) = self.reader_of(before) {
                self.is_of_its_name(&reads.source, before, &reader).await?;
            }
        }
        for before in gone.iter().chain(own) {
            let keys = self.stored_of(&before.source).await?.len();
            if keys > 0 && before.one_lane != reads.one_lane {
                return Err(StartError::Lanes {
                    source_name: reads.source.clone(),
                    one_lane: reads.one_lane,
                    keys,
                });
            }
        }
        for before in &gone {
            self.rename(&before.source, &reads.source).await?;
        }
        if let Envelope::Raw { pool, .. } = &plan.envelope {
            self.gather(&reads.source, &self.routes.pool_for(pool))
                .await?;
        }
        let stored = !self.stored_of(&reads.source).await?.is_empty();
        // As long as keys are stored they may be of another queue that it read.
        let stays = |read: &&ReadQueue| read.source != reads.source || stored && !of_queue(read);
        let known = self.store.read_queues();
        let mut after: BTreeSet<ReadQueue> = known.iter().filter(stays).cloned().collect();
        after.insert(reads);
        match after == known {
            true => Ok(()),
            false => Ok(self.store.set_read_queues(after).await?),
        }
    }

    /// The running source that reads this queue.
    fn reader_of(&self, read: &ReadQueue) -> Option<Arc<str>> {
        let running = self.running_consumers().into_iter();
        let mut readers = running.filter(|consumer| {
            let described = self.shared.described(&consumer.name);
            *consumer.features.kind == *read.kind
                && consumer.name != read.source
                && described.is_some_and(|described| *described.queue() == read.queue)
        });
        readers.next().map(|consumer| consumer.name.clone())
    }

    /// Nothing may be stored of a queue under a name that another queue has now.
    async fn is_of_its_name(
        &self,
        before: &Arc<str>,
        read: &ReadQueue,
        reader: &Arc<str>,
    ) -> Result<(), StartError> {
        match self.stored_of(before).await?.len() {
            0 => Ok(()),
            keys => Err(StartError::NameExchanged {
                source_name: reader.clone(),
                queue: read.queue.clone(),
                before: before.clone(),
                keys,
            }),
        }
    }

    /// The stored lanes that have messages of this source.
    async fn stored_of(&self, source: &Arc<str>) -> Result<Vec<LaneName>, StoreError> {
        let mut lanes = Vec::new();
        for ParkedLane { lane, .. } in self.store.parked() {
            let has_some = lane.source == *source
                || LaneId::is_shared(&lane) && self.sources_in(&lane).await?.contains(source);
            if has_some {
                lanes.push(lane);
            }
        }
        Ok(lanes)
    }

    /// A source that is not there any more has another name from now on.
    async fn rename(self: &Arc<Self>, from: &Arc<str>, to: &Arc<str>) -> Result<(), StartError> {
        let lanes = self.stored_of(from).await?;
        let keys = lanes.len();
        let _barred = self.take_out(lanes).await?;
        let renamed = Move::Source {
            from: from.clone(),
            to: to.clone(),
        };
        self.store.move_lanes(vec![renamed]).await?;
        tracing::info!(
            from = &**from,
            to = &**to,
            keys,
            "the source has another name"
        );
        for pool in self.routes.pools() {
            self.apply_pauses(&pool);
        }
        self.health.well(Trouble::NoSource(from.clone()));
        Ok(())
    }

    /// All messages of this source go to one pool: what is stored of it elsewhere moves there.
    async fn gather(self: &Arc<Self>, source: &Arc<str>, pool: &Pool) -> Result<(), StartError> {
        let mut lanes = self.stored_of(source).await?;
        lanes.retain(|lane| lane.pool != pool.name);
        let to = match pool.plan().lane_scope {
            LaneScope::Source => source.clone(),
            LaneScope::Pool => any_source(),
        };
        let moves = lanes.iter().map(|lane| Move::Lane {
            from: lane.clone(),
            of: LaneId::is_shared(lane).then(|| source.clone()),
            to: LaneName {
                source: to.clone(),
                pool: pool.name.clone(),
                ..lane.clone()
            },
        });
        let moves = moves.collect();
        let barred = self.take_out(lanes.clone()).await?;
        let moved = self.move_stored(moves).await;
        drop(barred);
        // What shared lanes have of other sources stayed there.
        for lane in &lanes {
            self.feed(lane);
        }
        Ok(moved?)
    }

    /// Stored lanes leave the memory, and are not fed as long as the guard is kept.
    async fn take_out(&self, lanes: Vec<LaneName>) -> Result<Barred<'_>, StartError> {
        let barred = self.feeders.bar(lanes.clone());
        loop {
            let ended = self.feeders.ended();
            let fed: Vec<&LaneName> = lanes.iter().filter(|lane| self.feeders.has(lane)).collect();
            if fed.is_empty() {
                return Ok(barred);
            }
            for lane in fed {
                if let Some(pool) = self.routes.find(&lane.pool) {
                    pool.unload(&LaneId::of(lane));
                }
            }
            tokio::select! {
                _ = tokio::time::timeout(STAYS, ended) => {}
                () = self.stop_taking.cancelled() => return Err(StartError::Stopping),
            }
        }
    }

    /// A source is, or is not, one lane as long as something of it is stored.
    async fn keeps_lanes(&self, plan: &Plan) -> Result<(), StartError> {
        for consumer in self.running_consumers() {
            let after = plan.sources.get(&consumer.name);
            let Some(after) =
                after.filter(|after| after.is_one_lane() != consumer.plan.is_one_lane())
            else {
                continue;
            };
            let keys = self.stored_of(&consumer.name).await?.len();
            if keys > 0 {
                return Err(StartError::Lanes {
                    source_name: consumer.name.clone(),
                    one_lane: after.is_one_lane(),
                    keys,
                });
            }
        }
        Ok(())
    }

    /// Tells of rows that the store found without a lane.
    fn report_recovered(&self) {
        let recovered = self.store.recovered();
        let Some((lane, _)) = recovered.first() else {
            return;
        };
        let rows: u64 = recovered.iter().map(|(_, rows)| rows).sum();
        let text = format!(
            "{rows} stored messages had no key and were given back to theirs, {} keys, {} of source `{}` in pool `{}` among them; those that are parked now wait for you: replay them, or drop them if later messages have made them void",
            recovered.len(),
            LaneId::of(lane).in_words(),
            lane.source,
            lane.pool
        );
        self.health.trouble(Trouble::Recovered, text);
    }

    /// What waits of a source goes back to it.
    fn leave_lanes(&self, source: &Arc<str>) {
        for pool in self.routes.pools() {
            for lane in pool.lanes_of(source) {
                pool.leave(&lane);
            }
        }
    }

    /// Feeds the stored keys of a source that is there now.
    fn feed_stored(self: &Arc<Self>, source: &Arc<str>) {
        if !self.store.parks_any() {
            return;
        }
        let shared = any_source();
        for stored in self.store.parked() {
            let of = &stored.lane.source;
            if stored.replaying && (of == source || *of == shared) {
                self.feed(&stored.lane);
            }
        }
    }

    /// Feeds a stored key, if that is to be done.
    pub(crate) fn feed(self: &Arc<Self>, lane: &LaneName) {
        let _ = self.feeders.start(self, lane);
    }

    /// Whether a source's keys can be fed: what they mean is in its plan.
    pub(crate) fn has_source(&self, name: &Arc<str>) -> bool {
        *name == any_source() || self.consumers().contains_key(name)
    }

    /// Whether a source of this name is read, or is to be.
    pub(crate) fn knows_source(&self, name: &Arc<str>) -> bool {
        self.has_source(name) || self.plan().sources.contains_key(name)
    }

    /// Whether its source has not heard yet how this message's loan ended.
    pub(crate) fn is_out(&self, identity: &Identity) -> bool {
        let consumer = self.consumers().get(&identity.source).cloned();
        consumer.is_some_and(|consumer| consumer.is_out(&identity.id))
    }

    /// A pool that comes with a reload. It may have been there before, with pauses.
    fn new_pool(&self, name: Arc<str>, plan: PoolPlan) -> Arc<Pool> {
        let pool = Pool::new(name, plan, self.shared.clone(), self.permits.clone());
        self.apply_pauses(&pool);
        pool
    }

    fn apply_pauses(&self, pool: &Pool) {
        for lane in self.store.pauses() {
            if lane.pool == pool.name {
                pool.pause(LaneId::of(&lane));
            }
        }
    }

    /// A key has one lane: its scope changes only where nothing is in memory.
    fn keeps_scopes(&self, plan: &Plan) -> Result<(), StartError> {
        for (name, after) in with_default(plan) {
            let before = self.routes.find(&name);
            if before.is_some_and(|pool| pool.plan().lane_scope != after.lane_scope) {
                return Err(StartError::ScopeChanged(name));
            }
            let default = self.routes.pool_for(DEFAULT).plan().lane_scope;
            if self.routes.pool(&name).is_none() && after.lane_scope != default {
                let (pool, keys) = (name, 0);
                return Err(StartError::ScopeOfDefault { pool, keys });
            }
        }
        Ok(())
    }

    /// A leaving pool was added again: it takes and feeds what it has.
    fn stay(self: &Arc<Self>, pool: &Pool) {
        pool.reopen();
        for stored in self.store.parked() {
            if stored.lane.pool == pool.name {
                self.feed(&stored.lane);
            }
        }
    }

    /// A removed pool drains to its deadline, then its remaining lanes move, unless it is added
    /// again meanwhile.
    async fn retire(self: &Arc<Self>, leaving: Leaving) {
        let Leaving { pool, called_off } = leaving;
        let gauges = pool.gauges();
        let name = &*pool.name;
        tracing::info!(
            pool = name,
            queued = gauges.queued,
            active = gauges.in_flight,
            keys = gauges.lanes,
            "the pool was removed: draining"
        );
        let leave = async {
            match pool.plan().drain {
                None => pool.all_idle().await,
                Some(deadline) => {
                    let _ = tokio::time::timeout(deadline, pool.all_idle()).await;
                }
            }
            // What its source cannot take back in order, and no store may have, stays to its end.
            while !self.close(&pool).await {
                let _ = tokio::time::timeout(STAYS, pool.all_idle()).await;
            }
            loop {
                let fed = self.feeders.ended();
                if self.move_out(&pool).await {
                    return;
                }
                let _ = tokio::time::timeout(STAYS, fed).await;
            }
        };
        tokio::select! {
            biased;
            () = called_off.cancelled() => {
                tracing::info!(pool = name, "the removed pool was added again: it stays");
            }
            // What is stored moves at the next start.
            () = self.stop_taking.cancelled() => {}
            () = leave => tracing::info!(pool = name, "the removed pool is gone"),
        }
    }

    /// A leaving pool takes nothing more, unless it holds lanes that cannot go.
    async fn close(&self, pool: &Pool) -> bool {
        let _not_added_again = self.changing.lock().await;
        pool.close(&self.shared)
    }

    /// What a closed pool holds goes back or to the store, and what is stored of it goes where its
    /// messages go now. Returns whether that is done, and then the pool is gone.
    async fn move_out(self: &Arc<Self>, pool: &Arc<Pool>) -> bool {
        pool.flush_all();
        if tokio::time::timeout(ATTEMPT_ENDS, pool.all_idle())
            .await
            .is_err()
        {
            let name = &*pool.name;
            tracing::warn!(pool = name, "attempts of the removed pool still run");
            return false;
        }
        let _not_added_again = self.changing.lock().await;
        let stored = self.store.parked().into_iter().map(|stored| stored.lane);
        let of_it = stored.filter(|lane| lane.pool == pool.name);
        // Rows that a feeder has not finished with keep their numbers.
        let (busy, free): (Vec<_>, Vec<_>) = of_it.partition(|lane| self.feeders.has(lane));
        let to = self.routes.pool_for(&pool.name);
        for lane in &busy {
            // Its feeder may wait for bytes that nobody gives back any more.
            self.feeders.tell(lane, Fed::LookAgain);
        }
        let moved = async {
            let mut moves = Vec::new();
            for lane in &free {
                moves.extend(self.moves_to(&to, lane).await?);
            }
            self.move_stored(moves).await
        };
        if let Err(error) = moved.await {
            self.shared.store_trouble.fails(&error);
            return false;
        }
        self.shared.store_trouble.works();
        if busy.is_empty() {
            self.routes.forget(pool);
            self.shared.room.notify_waiters();
            self.shared.routes.notify_waiters();
        }
        busy.is_empty()
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn running_consumers(&self) -> Vec<Arc<Consumer>> {
        self.consumers().values().cloned().collect()
    }

    /// Whether nothing is held, under way or being settled. Received messages may be in no pool yet.
    pub(crate) fn is_empty(&self) -> bool {
        let busy = |consumer: &Arc<Consumer>| {
            consumer.stage.settling().is_some() || consumer.has_something_out()
        };
        self.routes.pools().iter().all(|pool| pool.is_empty())
            && !self.consumers().values().any(busy)
    }

    /// A body as a message to be kept beside it, and what is to be done with that. From then on it is
    /// known whom it would be sent to.
    pub(crate) fn unpack<'a>(
        &self,
        envelope: &Envelope,
        incoming: impl Into<Incoming<'a>>,
        tenant: Option<&str>,
        addresses: &mut Addresses,
    ) -> (Parcel, Fate) {
        let incoming = incoming.into();
        let (parcel, fate) = match parse::unpack(envelope, incoming, tenant, addresses) {
            Ok(parcel) => (parcel, Fate::Attempt),
            Err(malformed) => {
                let fate = Fate::dead_letter("malformed", malformed.text);
                (parse::stand_in(incoming, tenant), fate)
            }
        };
        let origin = |target: &str| self.dispatch.origin_of(target);
        parcel.address.locate(origin);
        (parcel, fate)
    }

    pub(crate) fn envelope_of(&self, source: &str) -> Envelope {
        let consumers = self.consumers();
        let read = consumers.get(source).map(|consumer| consumer.plan.clone());
        // What sources share may be fed before each of them is read.
        let plan = read.or_else(|| self.plan().sources.get(source).cloned());
        plan.map_or(Envelope::Keylane, |plan| plan.envelope)
    }

    /// What positions of this source can be compared with now.
    pub(crate) fn scale_of(&self, source: &str, pool: &Pool) -> Option<Scale> {
        let consumers = self.consumers();
        let scales = consumers.get(source)?.scales.as_ref()?;
        Some(scales.of(&self.shared.audit, &pool.name, pool.codes()))
    }

    /// Says at start-up what a source cannot promise.
    pub(crate) fn announce(&self, name: &str, features: &Features) {
        let kind = features.kind;
        tracing::info!(source = name, kind, "reading");
        match features.order {
            Order::Kept => {}
            Order::UntilReconnect => tracing::warn!(
                source = name,
                "not ordered across reconnect: when the connection is lost, keys may be out of order"
            ),
            Order::AsItComes => tracing::warn!(
                source = name,
                "promises no order: messages of a key run one after the other, as they arrive"
            ),
            Order::NoKeys => tracing::warn!(
                source = name,
                "promises no order: messages run side by side"
            ),
        }
        if !features.ordered_return {
            tracing::warn!(
                source = name,
                "cannot take messages back in order: no `return` here"
            );
        }
        let batch = self
            .plan()
            .pools
            .values()
            .any(|p| p.cascade == crate::plan::Cascade::Batch);
        if batch {
            tracing::warn!(
                source = name,
                "cascade = \"batch\": order holds per batch and key only"
            );
        }
    }

    fn set_ability(&self, name: &Arc<str>, ability: Ability) {
        let mut known = self
            .shared
            .sources
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = known.insert(name.clone(), ability);
        drop(known);
        if let Some(workers) = old.and_then(|old| old.workers) {
            workers.close();
        }
    }

    fn consumers(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Consumer>>> {
        self.consumers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
