//! The progress watchdog: a source, a pool or a key that stands still, though nothing keeps it by
//! design, is a stall, and is told with its cause (FC-14).
//!
//! What waits by design is none: a hold until a time, a pause, an open breaker, a rate. The keys are
//! not looked at one by one: what runs is at most the concurrency, and a pool knows whether any of
//! its lanes could start, and how many wait for a breaker or a worker. Those that nothing would
//! release are looked for only when more of them wait than are listed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane::lanes::Hold;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::consume::{Consumer, most_of};
use crate::health::Trouble;
use crate::lane::LaneId;
use crate::plan::{PoolPlan, Rate};
use crate::pool::Pool;
use crate::router::Inner;
use crate::runs::{Doing, Run};
use crate::stage::Blocked;

/// How often it looks in the time that makes a stall.
const LOOKS: u32 = 4;

/// Wakes the watchdog when there is something to watch: while the router is empty it sleeps.
#[derive(Default)]
pub(crate) struct Alarm {
    asleep: AtomicBool,
    wake: Notify,
}

impl Alarm {
    /// There is something to watch, or the plan has changed.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    async fn sleep(&self, is_empty: impl Fn() -> bool) {
        self.asleep.store(true, Ordering::SeqCst);
        // What came before the line above woke nobody.
        if is_empty() {
            self.wake.notified().await;
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// What was seen at the last look.
pub(crate) struct Watchdog {
    router: Arc<Inner>,
    pools: BTreeMap<Arc<str>, Seen>,
    /// Lanes that wait for nothing, by pool, and since when that was seen.
    lost: HashMap<(Arc<str>, LaneId), Instant>,
    /// What is told right now.
    stalled: BTreeSet<Trouble>,
}

/// A pool at the last look.
struct Seen {
    finished: u64,
    /// Since when a lane could start and nothing was finished.
    still: Option<Instant>,
}

impl Watchdog {
    pub(crate) fn new(router: Arc<Inner>) -> Self {
        Self {
            router,
            pools: BTreeMap::new(),
            lost: HashMap::new(),
            stalled: BTreeSet::new(),
        }
    }

    /// Watches until the router stops.
    pub(crate) async fn run(mut self) {
        let stop = self.router.stop_taking.clone();
        tokio::select! {
            biased;
            () = self.watch() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn watch(&mut self) {
        loop {
            let after = self.router.plan().stall_after;
            let router = &self.router;
            if after.is_zero() || router.is_empty() {
                // Told stalls end here at the latest.
                self.tell(Vec::new());
                let router = self.router.clone();
                let nothing_to_do = || router.plan().stall_after.is_zero() || router.is_empty();
                router.alarm.sleep(nothing_to_do).await;
                continue;
            }
            tokio::time::sleep(after / LOOKS).await;
            let stalls = self.look(after, Instant::now());
            self.tell(stalls);
        }
    }

    fn look(&mut self, after: Duration, now: Instant) -> Vec<(Trouble, String)> {
        let mut stalls = Vec::new();
        let pools = self.router.routes.pools();
        self.pools
            .retain(|name, _| pools.iter().any(|pool| pool.name == *name));
        let mut stalled_pools = Vec::new();
        let mut stalled_runs = Vec::new();
        for (pool, text) in self.lost_lanes(&pools, after, now) {
            stalls.push((Trouble::StalledPool(pool.clone()), text));
            stalled_pools.push(pool);
        }
        for pool in &pools {
            let runs = pool.stalled_runs(after, now);
            if let Some(text) = key_text(pool, &runs, now) {
                stalls.push((Trouble::StalledKey(pool.name.clone()), text));
            }
            stalled_runs.extend(runs);
            if let Some(text) = self.pool(pool, after, now) {
                stalls.push((Trouble::StalledPool(pool.name.clone()), text));
                stalled_pools.push(pool.name.clone());
            }
        }
        for source in self.router.running_consumers() {
            let because = Because {
                pools: &stalled_pools,
                runs: &stalled_runs,
                all: &pools,
            };
            if let Some(text) = source_text(&source, after, now, &because) {
                stalls.push((Trouble::StalledSource(source.name.clone()), text));
            }
        }
        stalls
    }

    /// Why a pool is stalled, if it is.
    fn pool(&mut self, pool: &Pool, after: Duration, now: Instant) -> Option<String> {
        let finished = self.router.counters.finished_in(&pool.name);
        let seen = self.pools.entry(pool.name.clone()).or_insert(Seen {
            finished,
            still: None,
        });
        if pool.ready() == 0 {
            seen.still = None;
        } else if seen.finished != finished || seen.still.is_none() {
            seen.still = Some(now);
        }
        seen.finished = finished;
        let still = now - seen.still?;
        let plan = pool.plan();
        (still >= pool_limit(&plan, after)).then(|| pool_text(pool, &plan, still, now))
    }

    /// A lane of each pool that waits for a breaker that is closed, or for a worker that is free, or
    /// that nothing would ever release.
    fn lost_lanes(
        &mut self,
        pools: &[Arc<Pool>],
        after: Duration,
        now: Instant,
    ) -> Vec<(Arc<str>, String)> {
        let mut seen = HashMap::new();
        let mut lost = BTreeMap::new();
        for (pool, lane) in self.waiting_for_nothing(pools, after, now) {
            let name = (pool.name.clone(), lane);
            let since = self.lost.get(&name).copied().unwrap_or(now);
            if now - since >= after {
                let text = || lost_text(&pool, &name.1, now - since);
                lost.entry(pool.name.clone()).or_insert_with(text);
            }
            seen.insert(name, since);
        }
        self.lost = seen;
        lost.into_iter().collect()
    }

    fn waiting_for_nothing(
        &self,
        pools: &[Arc<Pool>],
        after: Duration,
        now: Instant,
    ) -> Vec<(Arc<Pool>, LaneId)> {
        let shared = &self.router.shared;
        let mut lanes = Vec::new();
        for waits in shared.waits.first_of_each() {
            let late = |due: std::time::Instant| now.into_std().saturating_duration_since(due);
            let overdue = waits.due.is_none_or(|due| late(due) >= after);
            if overdue || shared.breakers.is_closed(&waits.origin) {
                lanes.push((waits.pool, waits.lane));
            }
        }
        for (_, workers) in shared.all_workers() {
            let waiting = workers.waits_for_nothing().into_iter();
            // What is ready waits for a permit, and others of its pool behind it.
            lanes.extend(waiting.filter(|(pool, _)| pool.ready() == 0));
        }
        for pool in pools {
            if pool.waiting_for_release() > shared.listed(pool) {
                let waiting = pool.lanes_waiting_for_release().into_iter();
                let unlisted = waiting.filter(|lane| !shared.lists(pool, lane));
                lanes.extend(unlisted.map(|lane| (pool.clone(), lane)));
            }
        }
        lanes
    }

    /// Each stall is told once, and once more when it is over.
    fn tell(&mut self, stalls: Vec<(Trouble, String)>) {
        let health = &self.router.health;
        let now: BTreeSet<Trouble> = stalls.iter().map(|(trouble, _)| trouble.clone()).collect();
        for over in self.stalled.difference(&now) {
            health.well(over.clone());
        }
        for (trouble, text) in stalls {
            health.trouble(trouble, text);
        }
        self.stalled = now;
    }
}

/// An attempt may take its own time, and a rate its own.
fn pool_limit(plan: &PoolPlan, after: Duration) -> Duration {
    let rate = plan.rate.map_or(Duration::ZERO, |rate: Rate| {
        // Twice, because the first start may have been a burst's.
        2 * rate.per / rate.count.max(1)
    });
    after.max(plan.timeout.total).max(rate)
}

/// When what an attempt does is a stall.
pub(crate) fn run_limit(plan: &PoolPlan, doing: Doing, after: Duration) -> Duration {
    match doing {
        Doing::Calling => after.max(plan.timeout.total),
        Doing::Settling | Doing::Storing => after,
    }
}

fn lost_text(pool: &Pool, lane: &LaneId, still: Duration) -> String {
    let waits_for = match pool.front_of(lane) {
        Some((source, Some(origin))) => {
            format!("the breaker of `{origin}` or a worker of source `{source}`")
        }
        Some((source, None)) => format!("a worker of source `{source}`"),
        None => "a breaker or a worker".to_owned(),
    };
    format!(
        "pool `{}`, {}: waits for {waits_for} for {} s although nothing keeps it; retry the key, and please report this with the log around it",
        pool.name,
        lane.in_words(),
        still.as_secs()
    )
}

fn key_text(pool: &Pool, runs: &[Run], now: Instant) -> Option<String> {
    let oldest = runs.iter().min_by_key(|run| run.since)?;
    let others = match runs.len() - 1 {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(format!(
        "pool `{}`, {}{others}",
        pool.name,
        told(oldest, now)
    ))
}

/// Whose, what, since when, and what would release it.
fn told(run: &Run, now: Instant) -> String {
    let (key, id) = (run.lane.in_words(), &run.identity);
    let seconds = (now - run.since).as_secs();
    let what = match run.doing {
        Doing::Calling => {
            "its call has not ended, longer than its time limit: the handler hangs, or ignores that it is dropped"
        }
        Doing::Settling => {
            "it waits until what was delivered before is settled: the broker or the disk is slow"
        }
        Doing::Storing => "it waits for the store: the disk is slow or hangs",
    };
    format!("{key}, message {id}: for {seconds} s {what}")
}

fn pool_text(pool: &Pool, plan: &PoolPlan, still: Duration, now: Instant) -> String {
    let gauges = pool.gauges();
    let runs = pool.runs_now();
    let oldest = runs.iter().min_by_key(|run| run.since);
    let all_taken = plan
        .concurrency
        .is_some_and(|most| gauges.in_flight >= most.get());
    let why = match oldest {
        Some(run) if all_taken => format!(
            "all {} attempts are taken; the oldest: {}",
            gauges.in_flight,
            told(run, now)
        ),
        Some(run) => format!(
            "max_in_flight is reached or nothing is started; the oldest: {}",
            told(run, now)
        ),
        None => {
            "max_in_flight is taken by other pools; raise it, or lower their concurrency".into()
        }
    };
    format!(
        "pool `{}`: {} messages wait and nothing was finished for {} s: {why}",
        pool.name,
        gauges.queued,
        still.as_secs()
    )
}

/// What else stands still.
struct Because<'a> {
    pools: &'a [Arc<str>],
    runs: &'a [Run],
    /// All pools there are.
    all: &'a [Arc<Pool>],
}

/// Why a source is stalled, if it is. Blocked alone is no stall: what fills its window may be held
/// by design.
fn source_text(
    source: &Consumer,
    after: Duration,
    now: Instant,
    because: &Because<'_>,
) -> Option<String> {
    let name = &source.name;
    if let Some((count, since)) = source.stage.settling()
        && now - since >= after
    {
        let seconds = (now - since).as_secs();
        return Some(format!(
            "source `{name}`: {count} acks or returns were not answered for {seconds} s: the broker or the disk does not take them"
        ));
    }
    let (blocked, since) = source.stage.blocked()?;
    if now - since < after {
        return None;
    }
    let place = match &blocked {
        Blocked::Window => "its window is full".to_owned(),
        Blocked::Lane(pool, lane, _) => {
            format!(
                "a message waits for room in {} of pool `{pool}`",
                lane.in_words()
            )
        }
        Blocked::Bytes(pool) => format!("a message waits for bytes of pool `{pool}`"),
    };
    let seconds = (now - since).as_secs();
    let own = because.runs.iter().find(|run| run.identity.source == *name);
    let cause = match (own, because.pools.first()) {
        (Some(run), _) => told(run, now),
        (None, Some(pool)) => format!("pool `{pool}` is stalled"),
        (None, None) => not_woken(source, &blocked, because.all)?.to_owned(),
    };
    Some(format!(
        "source `{name}`: nothing was received for {seconds} s, because {place}: {cause}"
    ))
}

/// Why a source that waits for room or bytes waits in vain; `None` where there is none, and waits by
/// design or makes progress.
fn not_woken(source: &Consumer, blocked: &Blocked, pools: &[Arc<Pool>]) -> Option<&'static str> {
    let (Blocked::Lane(name, ..) | Blocked::Bytes(name)) = blocked else {
        return None;
    };
    let Some(pool) = pools.iter().find(|known| known.name == *name) else {
        return Some("the pool is gone, and the message was not sent elsewhere");
    };
    let Blocked::Lane(_, lane, bytes) = blocked else {
        let text = "the pool has nothing that would give bytes back";
        return pool.is_empty().then_some(text);
    };
    let most = most_of(pool, lane, source.plan.window, false);
    if pool.has_room(lane, &source.name, *bytes, most) {
        return Some("there is room, and the source was not told");
    }
    let state = pool.lane(lane);
    let idle = state.is_none_or(|state| {
        let waits = state.paused || state.hold != Hold::Free || state.rate_until.is_some();
        state.running == 0 && !waits && !state.flushing
    });
    (idle && pool.ready() == 0).then_some("nothing of it runs, and nothing holds it")
}
