//! Runs one case: lives of the real router one after the other, on the same queues and store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use keylane_router::counters::PoolGauges;
use keylane_router::embedded::{Db, EmbeddedStore, NewMessage, Options};
use keylane_router::health::Trouble;
use keylane_router::message::{Identity, Key};
use keylane_router::plan::Keyless;
use keylane_router::source::Source;
use keylane_router::store::{LaneName, Store};
use keylane_router::{By, Router, VerbError};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::broker::Broker;
use super::case::{
    Act, Case, KeylessCase, Kind, MessageCase, PlanCase, ScopeCase, SourceCase, Verb, target,
};
use super::door::Door;
use super::machine::{SimulatedLeases, SimulatedMachine};
use super::store::{Guarded, note_all};
use super::target::{Targets, payload};
use super::world::{Death, Event, Place, What, World};

/// More events than any case that makes progress has.
const MOST_EVENTS: usize = 60_000;
/// How many configurations are tried in the end.
const MOST_TRIES: usize = 100;
/// How often the calm phase looks whether everything is resolved.
const LOOK: Duration = Duration::from_millis(500);

/// What became of a run.
#[derive(Debug)]
pub struct Run {
    /// Everything that happened.
    pub history: Vec<Event>,
    /// How it ended.
    pub end: End,
    /// Problems of readiness at the end, in words.
    pub problems: Vec<String>,
    /// What the last life counted: the self-audit's violations over all lives, and what was left.
    pub left: Left,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything is resolved.
    Finished,
    /// Nothing happens any more, and not everything is resolved.
    StandsStill,
    /// Things happen without end.
    Endless,
    /// The router could not be started, or a call of the test kit failed.
    Broken(String),
}

/// What is left when everything is resolved, and what was counted.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each is what its name says")]
pub struct Left {
    pub depth: u64,
    pub stored: u64,
    pub gauges: Vec<PoolGauges>,
    /// Of all lives.
    pub ordering_violations: u64,
    /// Of the last life: received, and resolved by any outcome.
    pub received: u64,
    pub resolved: u64,
}

/// What lives on between lives.
struct Outside {
    world: Arc<World>,
    folder: PathBuf,
    brokers: BTreeMap<String, Broker>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The configuration in force, and those before it.
    plan: usize,
    before: Vec<usize>,
    /// How often a start was refused in a row.
    refused: u32,
    /// Messages before this one are published.
    published: usize,
    /// Acts before this one are done.
    acted: usize,
    /// How many configurations were tried in the end, so that all queues are read.
    tried: usize,
    problems: Vec<String>,
    left: Left,
}

/// Runs a case to its end.
pub fn run(case: &Case) -> Run {
    let case = Arc::new(case.clone());
    let world = World::new(case.clone());
    let folder = folder();
    let outside = Arc::new(Outside {
        brokers: brokers(&case, &world),
        folder: folder.path().to_owned(),
        world: world.clone(),
        progress: Mutex::default(),
    });
    let end = lives(&outside);
    let progress = std::mem::take(&mut *outside.progress());
    Run {
        history: world.take_history(),
        end,
        problems: progress.problems,
        left: progress.left,
    }
}

/// Stands for a run's history: equal histories have equal digests.
pub fn digest(run: &Run) -> String {
    let mut hash = Sha256::new();
    for event in &run.history {
        hash.update(format!("{event:?}\n"));
    }
    let bytes = hash.finalize();
    bytes
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// On a RAM disk where there is one.
fn folder() -> tempfile::TempDir {
    let ram = Path::new("/dev/shm");
    let made = match ram.is_dir() {
        true => tempfile::tempdir_in(ram),
        false => tempfile::tempdir(),
    };
    made.expect("a folder for the run")
}

fn brokers(case: &Case, world: &Arc<World>) -> BTreeMap<String, Broker> {
    let mut brokers = BTreeMap::new();
    for source in case.plans.iter().flat_map(|plan| plan.sources.values()) {
        if source.kind != Kind::Embedded {
            let broker = || Broker::new(&source.queue, source, world.clone());
            brokers.entry(source.queue.clone()).or_insert_with(broker);
        }
    }
    brokers
}

fn lives(outside: &Arc<Outside>) -> End {
    let world = &outside.world;
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let ended = runtime.block_on(async {
            world.begin_life(outside.progress().plan);
            let life = Life::run(outside);
            let ended = tokio::select! {
                biased;
                () = world.crashed() => Ok(Death::Crash),
                ended = life => ended,
            };
            let pause = world.with_chance(|chance| chance.millis(1, 3_000));
            world.end_life(ended.clone().unwrap_or(Death::End), pause);
            ended
        });
        drop(runtime);
        match ended {
            Ok(Death::Crash | Death::Stop) if world.events() < MOST_EVENTS => {}
            Ok(Death::Crash | Death::Stop) => return End::Endless,
            Ok(Death::End) => return End::Finished,
            Err(end) => return end,
        }
    }
}

impl Outside {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic while locked")
    }

    fn plan(&self) -> PlanCase {
        let at = self.progress().plan;
        self.world.case.plans[at].clone()
    }

    /// The next life begins with this configuration.
    fn next_plan(&self, plan: usize) {
        let mut progress = self.progress();
        let before = std::mem::replace(&mut progress.plan, plan);
        progress.before.push(before);
    }

    fn previous_plan(&self) {
        let mut progress = self.progress();
        progress.plan = progress.before.pop().expect("there was one before");
    }

    /// The process cannot start. A fault is over at the next try; a configuration that is refused
    /// goes back to the one before.
    fn refused(&self, text: String) -> Result<Death, End> {
        let mut progress = self.progress();
        progress.refused += 1;
        let (plan, before) = (progress.plan, progress.before.pop());
        if progress.refused > 5 {
            let Some(before) = before else {
                return Err(End::Broken(text));
            };
            (progress.plan, progress.refused) = (before, 0);
        } else {
            progress.before.extend(before);
        }
        drop(progress);
        self.world.note(What::Refused { plan, text });
        Ok(Death::Crash)
    }
}

/// One life of the process.
struct Life {
    outside: Arc<Outside>,
    world: Arc<World>,
    db: Db,
    store: EmbeddedStore,
    router: Router,
    /// The sources that are read, as they were configured.
    sources: Mutex<BTreeMap<String, SourceCase>>,
    /// Reloads come one after the other.
    changing: tokio::sync::Mutex<()>,
}

impl Life {
    async fn run(outside: &Arc<Outside>) -> Result<Death, End> {
        let begun = async {
            let life = Arc::new(Self::begin(outside).await?);
            life.read_sources(&outside.plan()).await?;
            Ok(life)
        };
        let life = match begun.await {
            Ok(life) => life,
            Err(text) => return outside.refused(text),
        };
        outside.progress().refused = 0;
        life.router.check_stored_keys();
        let publisher = life.clone();
        tokio::spawn(async move { publisher.publish_all().await });
        tokio::select! {
            biased;
            ended = life.clone().script() => ended,
            end = life.hangs() => Err(end),
        }
    }

    async fn begin(outside: &Arc<Outside>) -> Result<Self, String> {
        let world = outside.world.clone();
        let machine = Arc::new(SimulatedMachine(world.clone()));
        let options = Options {
            machine: machine.clone(),
            tiny_memory: world.case.tiny,
            dedup_window: Duration::from_secs(24 * 3600),
            ..Options::default()
        };
        let db = Db::open(&outside.folder, options).map_err(|error| error.to_string())?;
        let store = db.store();
        // All that earlier lives have written.
        note_all(&store, &world).await;
        let guarded = Guarded {
            store: store.clone(),
            world: world.clone(),
        };
        let router = Router::builder()
            .plan(outside.plan().plan())
            .store(guarded)
            .dispatch(Targets(world.clone()))
            .lease_clock(SimulatedLeases(world.clone()))
            .machine(machine)
            .start()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            outside: outside.clone(),
            world,
            db,
            store,
            router,
            sources: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        })
    }

    /// Reads what the configuration says and nothing else.
    async fn read_sources(&self, plan: &PlanCase) -> Result<(), String> {
        let read = self.sources().clone();
        for (name, source) in &read {
            if plan.sources.get(name) != Some(source) {
                self.router.remove_source(name).await;
                self.sources().remove(name);
            }
        }
        for (name, source) in &plan.sources {
            if !self.sources().contains_key(name) {
                self.read(name, source).await?;
                self.sources().insert(name.clone(), source.clone());
            }
        }
        Ok(())
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<String, SourceCase>> {
        self.sources.lock().expect("no panic while locked")
    }

    async fn read(&self, name: &str, source: &SourceCase) -> Result<(), String> {
        match self.outside.brokers.get(&source.queue) {
            Some(broker) => {
                let reader = broker.read(name, source);
                self.add(name, source, reader).await
            }
            None => {
                let keyless = match source.keyless {
                    Some(KeylessCase::Parallel) => Keyless::Parallel,
                    _ => Keyless::Serial,
                };
                let reader = self.db.source(name, &source.queue, keyless).await;
                let reader = reader.map_err(|error| error.to_string())?;
                self.add(name, source, reader).await
            }
        }
    }

    async fn add(&self, name: &str, case: &SourceCase, source: impl Source) -> Result<(), String> {
        let door = Door {
            name: name.into(),
            source,
            world: self.world.clone(),
            remote: case.kind != Kind::Embedded,
        };
        let added = self.router.add_source(name, door, case.plan());
        added.await.map_err(|error| error.to_string())
    }

    /// Publishes each message at its time, in order; what was not accepted by the last life comes
    /// first.
    async fn publish_all(&self) {
        loop {
            let n = self.outside.progress().published;
            let Some(message) = self.world.case.messages.get(n) else {
                return;
            };
            self.sleep_until(message.at).await;
            let times = 1 + usize::from(message.twice);
            for _ in 0..times {
                while !self.publish(n, message).await {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            self.outside.progress().published = n + 1;
        }
    }

    async fn publish(&self, n: usize, message: &MessageCase) -> bool {
        let body = self.body(n, message);
        let key = message.key.as_deref();
        if let Some(broker) = self.outside.brokers.get(&message.queue) {
            broker.publish(n, key, body);
        } else {
            let new = NewMessage {
                pool: message.pool.as_deref().map(Into::into),
                delay: Duration::from_millis(message.delay),
                ..NewMessage::new(format!("m{n}"), key.map(Key::from), body)
            };
            let published = self.db.publish(&message.queue, vec![new], true).await;
            if !self.world.is_open() {
                std::future::pending::<()>().await;
            }
            if published.is_err() {
                return false;
            }
        }
        self.world.note(What::Accepted { n });
        true
    }

    fn body(&self, n: usize, message: &MessageCase) -> Bytes {
        let payload = payload(n, message.size);
        if message.malformed {
            return format!("this is no message; {payload}").into();
        }
        let plans = self.world.case.plans.iter();
        let mut sources = plans.flat_map(|plan| plan.sources.values());
        let raw = sources.any(|s| s.queue == message.queue && s.raw_pool.is_some());
        if raw {
            return payload.into();
        }
        let key = message.key.as_deref();
        let mut body = json!({
            "id": format!("m{n}"),
            "mediationType": "HTTP",
            "mediationTarget": target(message.origin, key),
        });
        if let Some(pool) = &message.pool {
            body["poolCode"] = json!(pool);
        }
        let payload: serde_json::Value = serde_json::from_str(&payload).expect("it is JSON");
        body["payload"] = payload;
        body.to_string().into()
    }

    async fn sleep_until(&self, at: u64) {
        let left = Duration::from_millis(at).saturating_sub(self.world.now());
        tokio::time::sleep(left).await;
    }

    async fn script(self: Arc<Self>) -> Result<Death, End> {
        loop {
            let at = self.outside.progress().acted;
            let Some(act) = self.world.case.acts.get(at).cloned() else {
                break;
            };
            self.watch_until(act.at).await?;
            self.outside.progress().acted = at + 1;
            match act.act {
                Act::Crash => {
                    self.world.note(What::Acted {
                        act: Act::Crash,
                        result: Ok(()),
                    });
                    self.world.crash();
                    std::future::pending::<()>().await;
                }
                Act::Restart {
                    deadline,
                    second,
                    plan,
                } => return self.restart(deadline, second, plan).await,
                act => {
                    let life = self.clone();
                    tokio::spawn(async move { life.act(act).await });
                }
            }
        }
        self.watch_until(self.world.case.calm).await?;
        self.calm().await
    }

    /// Waits, and writes down what readiness says meanwhile.
    async fn watch_until(&self, at: u64) -> Result<(), End> {
        let until = Duration::from_millis(at);
        while self.world.now() < until {
            let left = until - self.world.now();
            tokio::time::sleep(left.min(Duration::from_secs(5))).await;
            self.note_problems();
            if self.world.events() > MOST_EVENTS {
                return Err(End::Endless);
            }
        }
        Ok(())
    }

    fn note_problems(&self) {
        for problem in self.router.problems() {
            let stalled = matches!(
                problem.trouble,
                Trouble::StalledKey(_) | Trouble::StalledPool(_) | Trouble::StalledSource(_)
            );
            if stalled || problem.trouble == Trouble::Order {
                let text = problem.text;
                self.world.note(What::Problem { text });
            }
        }
    }

    async fn restart(
        &self,
        deadline: u64,
        second: Option<u64>,
        plan: Option<usize>,
    ) -> Result<Death, End> {
        let act = Act::Restart {
            deadline,
            second,
            plan,
        };
        if let Some(plan) = plan {
            self.outside.next_plan(plan);
        }
        let cutter = self.router.clone();
        if let Some(second) = second {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(second)).await;
                cutter.cut();
            });
        }
        let began = Instant::now();
        self.router.stop(Duration::from_millis(deadline)).await;
        let took = began.elapsed();
        let result = match took < Duration::from_millis(deadline) + Duration::from_secs(10) {
            true => Ok(()),
            false => Err(format!("the stop took {took:?}")),
        };
        self.world.note(What::Acted { act, result });
        self.note_counters();
        self.db.clone().close().await;
        Ok(Death::Stop)
    }

    async fn act(&self, act: Act) {
        let result = match &act {
            Act::Reload { plan } => self.reload(*plan).await,
            Act::Verb {
                verb,
                source,
                pool,
                key,
            } => self.verb(*verb, source, pool, key).await,
            Act::Cut { queue } => {
                self.world.note(What::Cut {
                    queue: queue.clone(),
                });
                if let Some(broker) = self.outside.brokers.get(queue) {
                    broker.cut();
                }
                Ok(())
            }
            Act::Suspend { takes } => {
                self.world.suspend(Duration::from_millis(*takes));
                Ok(())
            }
            Act::Crash | Act::Restart { .. } => unreachable!("these end the life"),
        };
        self.world.note(What::Acted { act, result });
    }

    async fn reload(&self, to: usize) -> Result<(), String> {
        let _one_at_a_time = self.changing.lock().await;
        let plan = &self.world.case.plans[to];
        self.world.note(What::Reloading { plan: to });
        // From here on the next life begins with it, even if this one ends before it is in force.
        self.outside.next_plan(to);
        if let Err(error) = self.router.reload(plan.plan()).await {
            self.outside.previous_plan();
            return Err(error.to_string());
        }
        self.read_sources(plan).await
    }

    async fn verb(&self, verb: Verb, source: &str, pool: &str, key: &str) -> Result<(), String> {
        let lane = self.lane(source, pool, key);
        let by = By {
            who: "operator".to_owned(),
            why: "simulated".to_owned(),
        };
        let router = &self.router;
        let done: Result<(), VerbError> = match verb {
            Verb::Pause => router.pause(lane, by).await,
            Verb::Resume => router.resume(lane, by).await,
            Verb::Retry => router.retry_now(lane, by).await,
            Verb::Park => router.park(lane, by).await,
            Verb::Replay => router.replay(lane, by).await,
            Verb::Skip => {
                let Some(head) = self.some_head(&lane) else {
                    return Err("nothing to skip".to_owned());
                };
                router.skip(lane, head, by).await
            }
            Verb::Drop => router.drop_parked(lane, by).await.map(drop),
        };
        done.map_err(|error| error.to_string())
    }

    /// The message of a lane's key that was attempted last: the head, or the one before it.
    fn some_head(&self, lane: &LaneName) -> Option<Identity> {
        let key = lane.key.as_ref().map(ToString::to_string);
        self.world.last_attempted(key.as_deref())
    }

    fn lane(&self, source: &str, pool: &str, key: &str) -> LaneName {
        let plan = self.outside.plan();
        let shared = plan
            .pools
            .get(pool)
            .is_some_and(|pool| pool.lane_scope == ScopeCase::Pool);
        let source = if shared { "*" } else { source };
        LaneName::keyed(source, pool, key)
    }

    /// Nothing goes wrong any more: everything must be resolved.
    async fn calm(&self) -> Result<Death, End> {
        self.world.calm_down();
        let patience = self.patience();
        loop {
            tokio::time::sleep(LOOK).await;
            self.help().await;
            if self.is_done() {
                break;
            }
            if !self.reads_all() {
                return self.read_all().await;
            }
            if self.world.events() > MOST_EVENTS {
                return Err(self.ends(End::Endless));
            }
            if self.world.now() > self.world.last_progress() + patience {
                // Readiness must tell of it by then.
                let stall_after = Duration::from_millis(self.outside.plan().stall_after);
                tokio::time::sleep(stall_after * 2).await;
                self.note_problems();
                return Err(self.ends(End::StandsStill));
            }
        }
        self.note_problems();
        // What is settled last is told within this.
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.ends(End::Finished);
        self.router.stop(Duration::from_secs(5)).await;
        self.db.clone().close().await;
        Ok(Death::End)
    }

    /// Completes when nothing has moved for long, as when an act never ends.
    async fn hangs(&self) -> End {
        let patience = self.patience() + Duration::from_secs(600);
        let calm = Duration::from_millis(self.world.case.calm);
        while self.world.now() < self.world.last_progress().max(calm) + patience {
            tokio::time::sleep(LOOK).await;
        }
        self.note_problems();
        self.ends(End::StandsStill)
    }

    /// Longer than anything waits by configuration, twice.
    fn patience(&self) -> Duration {
        let plans = self.world.case.plans.iter();
        let waits = plans.flat_map(|plan| {
            let pools = plan.pools.values().flat_map(|pool| {
                [
                    pool.busy_max,
                    pool.return_delay,
                    pool.retry_max,
                    pool.timeout,
                    pool.drain.unwrap_or(0),
                ]
            });
            let leases = plan.sources.values().map(|source| source.lease * 2);
            pools.chain(leases).chain([plan.breaker.open])
        });
        let delays = self.world.case.messages.iter().map(|m| m.delay);
        let longest = waits.chain(delays).max().unwrap_or(0);
        Duration::from_millis(longest * 2) + Duration::from_secs(70)
    }

    /// Whether something reads every queue.
    fn reads_all(&self) -> bool {
        let read = self.sources();
        let of_queue = |queue: &str| read.values().any(|source| source.queue == queue);
        let all = &self.world.case.plans[0].sources;
        all.values().all(|source| of_queue(&source.queue))
    }

    /// Restarts with another configuration, because nothing reads one of the queues: its source was
    /// removed or refused. Each configuration has its turn, as one may be refused until the stored
    /// messages are delivered.
    async fn read_all(&self) -> Result<Death, End> {
        let tried = {
            let mut progress = self.outside.progress();
            progress.tried += 1;
            progress.tried - 1
        };
        if tried == MOST_TRIES {
            return Err(self.ends(End::StandsStill));
        }
        for _ in 0..20 {
            self.help().await;
            tokio::time::sleep(LOOK).await;
        }
        let plans = self.world.case.plans.len();
        let plan = plans - 1 - tried % plans;
        self.restart(5_000, None, Some(plan)).await
    }

    /// The operator ends pauses and replays what is parked.
    async fn help(&self) {
        let by = || By {
            who: "operator".to_owned(),
            why: "calm".to_owned(),
        };
        for lane in self.store.pauses() {
            let _ = self.router.resume(lane, by()).await;
        }
        for parked in self.store.parked() {
            if parked.messages == 0 {
                // Of a source that never was, perhaps: there is nothing to replay.
                let _ = self.router.drop_parked(parked.lane, by()).await;
            } else if !parked.replaying {
                let _ = self.router.replay(parked.lane, by()).await;
            }
        }
    }

    fn depth(&self) -> u64 {
        let brokers = self.outside.brokers.values().map(|b| b.depth() as u64);
        let queues = self.db.queues();
        brokers.chain(queues.iter().map(|queue| queue.depth)).sum()
    }

    fn stored(&self) -> u64 {
        self.store.parked().iter().map(|lane| lane.messages).sum()
    }

    fn is_done(&self) -> bool {
        let published = self.outside.progress().published == self.world.case.messages.len();
        published && self.depth() == 0 && self.stored() == 0 && self.store.parked().is_empty()
    }

    fn ends(&self, end: End) -> End {
        self.note_counters();
        let problems = self.router.problems();
        let text = |problem: keylane_router::health::Problem| problem.text;
        let mut progress = self.outside.progress();
        progress.problems = problems.into_iter().map(text).collect();
        progress.left.depth = self.depth();
        progress.left.stored = self.stored();
        progress.left.gauges = self.router.pools();
        end
    }

    fn note_counters(&self) {
        let mut progress = self.outside.progress();
        let left = &mut progress.left;
        (left.received, left.resolved) = (0, 0);
        for (_, counters) in self.router.counters().all() {
            left.ordering_violations += counters.ordering_violations.get();
            left.received += counters.received.get();
        }
    }
}

/// Where a message may be stored that is not resolved.
pub(crate) fn is_stay(place: Place) -> bool {
    place != Place::DeadLetter
}
