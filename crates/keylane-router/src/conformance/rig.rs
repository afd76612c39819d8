//! What a case works with: a router on a queue of the subject, a target, and their history.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::store::MemoryStore;
use super::subject::{AnyQueue, AnySubject, Attach, Fault, Published};
use super::suite::End;
use super::target::{Answer, Call, Target, label};
use super::watched::Watch;
use crate::Router;
use crate::chance::Chance;
use crate::history::{self, By, Event, EventKind, History, Recorder, Report};
use crate::lease::LeaseClock;
use crate::plan::{Envelope, Plan, PoolPlan, SourceKind, SourcePlan};
use crate::source::{Features, Order};
use crate::store::{LaneName, Store};

/// As long as this a case waits for what must come to pass.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// How long a stop may take for what runs.
const STOP: Duration = Duration::from_secs(10);
/// The most messages given to a broker at once.
const PUBLISH: usize = 200;
/// The source's name.
pub(super) const SOURCE: &str = "s";
/// Where messages go; the target is in this process, and nobody calls it.
const URL: &str = "http://target.invalid/";

/// The subject, and by which chances a case goes.
pub(super) struct Rig {
    pub(super) subject: Arc<dyn AnySubject>,
    pub(super) features: Features,
    /// How often each fault is caused.
    pub(super) times: u64,
    pub(super) chance: Arc<Chance>,
}

/// How a router is set up.
pub(super) struct Setup {
    pub(super) plan: Plan,
    pub(super) source: SourcePlan,
    pub(super) script: Box<dyn Fn(&Call) -> Answer + Send + Sync>,
}

impl Setup {
    /// Short waits, a window of 100, and a target that takes everything.
    pub(super) fn new() -> Self {
        let mut plan = Plan::default();
        let mut pool = PoolPlan::default();
        pool.retry.initial = Duration::from_millis(4);
        pool.retry.max = Duration::from_millis(20);
        pool.retry.max_attempts = NonZeroUsize::new(3).expect("not zero");
        pool.return_delay = Duration::from_millis(5);
        plan.pools.insert("default".into(), pool);
        plan.breaker.failures = 0.0;
        let source = SourcePlan {
            kind: SourceKind::Custom,
            ..SourcePlan::custom()
        };
        Self {
            plan,
            source,
            script: Box::new(|_| Answer::delivered()),
        }
        .window(100)
    }

    /// Changes the pool.
    pub(super) fn pool(mut self, change: impl FnOnce(&mut PoolPlan)) -> Self {
        change(self.plan.pools.get_mut("default").expect("it is there"));
        self
    }

    pub(super) fn window(mut self, window: usize) -> Self {
        self.source.window = NonZeroUsize::new(window).expect("not zero");
        self
    }

    /// Retries as often as it takes.
    pub(super) fn patient(self) -> Self {
        self.pool(|pool| pool.retry.max_attempts = NonZeroUsize::MAX)
    }

    pub(super) fn script(
        mut self,
        script: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.script = Box::new(script);
        self
    }

    pub(super) fn raw(mut self) -> Self {
        self.source.envelope = Envelope::Raw {
            pool: "default".into(),
            target: URL.into(),
        };
        self
    }
}

/// A queue, and the history of what became of its messages.
pub(super) struct Bench {
    pub(super) queue: Arc<dyn AnyQueue>,
    pub(super) history: Arc<Recorder>,
    /// Whether messages of a key are judged by their order.
    ordered: bool,
}

/// A router at work.
pub(super) struct Run {
    bench: Bench,
    pub(super) router: Router,
    pub(super) watch: Arc<Watch>,
    pub(super) target: Target,
    pub(super) store: Arc<dyn Store>,
    pub(super) plan: Plan,
    pub(super) source: SourcePlan,
}

impl Deref for Run {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

/// Why a case is left out whose fault cannot be had.
pub(super) fn cannot_do(fault: Fault) -> String {
    format!("its subject cannot do {fault:?}")
}

impl Rig {
    /// Leaves the case out unless the source has this.
    pub(super) fn needs(&self, has: bool, feature: &str) -> Result<(), End> {
        match has {
            true => Ok(()),
            false => Err(End::Excluded(format!("the source declares no {feature}"))),
        }
    }

    /// Leaves the case out unless the subject can do all of these.
    pub(super) fn needs_faults(&self, faults: &[Fault]) -> Result<(), End> {
        match faults.iter().find(|fault| !self.subject.can(**fault)) {
            None => Ok(()),
            Some(fault) => Err(End::Excluded(cannot_do(*fault))),
        }
    }

    pub(super) fn returns(&self) -> bool {
        self.features.returns()
    }

    /// A number below `end`.
    pub(super) fn below(&self, end: u64) -> u64 {
        self.chance.next() % end
    }

    pub(super) async fn queue(&self) -> Result<Arc<dyn AnyQueue>, End> {
        let made = self.subject.queue().await;
        made.map_err(|text| End::Failed(format!("no queue could be made: {text}")))
    }

    /// A fresh queue, and no router yet.
    pub(super) async fn bench(&self) -> Result<Bench, End> {
        Ok(self.bench_on(self.queue().await?))
    }

    fn bench_on(&self, queue: Arc<dyn AnyQueue>) -> Bench {
        Bench {
            queue,
            history: Arc::new(Recorder::in_memory()),
            ordered: self.in_order(),
        }
    }

    /// Whether messages of a key come in their order, as long as no connection is lost.
    pub(super) fn in_order(&self) -> bool {
        matches!(self.features.order, Order::Kept | Order::UntilReconnect)
    }

    /// Leaves the case out unless the source hands out keys.
    pub(super) fn needs_keys(&self) -> Result<(), End> {
        self.needs(self.features.order != Order::NoKeys, "keys")
    }

    /// A router on a fresh queue, whose connections will be lost.
    pub(super) async fn start_to_cut(&self, setup: Setup) -> Result<Run, End> {
        let mut run = self.start(setup).await?;
        run.bench.expect_cuts(&self.features);
        Ok(run)
    }

    /// A router on a fresh queue.
    pub(super) async fn start(&self, setup: Setup) -> Result<Run, End> {
        let queue = self.queue().await?;
        self.start_on(queue, setup).await
    }

    /// A router on this queue.
    pub(super) async fn start_on(
        &self,
        queue: Arc<dyn AnyQueue>,
        setup: Setup,
    ) -> Result<Run, End> {
        let bench = self.bench_on(queue);
        let watch = Watch::new(self.features.clone(), bench.history.clone());
        let target = Target::new(bench.history.clone(), watch.clone(), setup.script);
        let store = bench.queue.store();
        let store = store.unwrap_or_else(|| Arc::new(MemoryStore::default()));
        let run = Run {
            router: router(&setup.plan, &store, &target, &bench.history).await?,
            bench,
            watch,
            target,
            store,
            plan: setup.plan,
            source: setup.source,
        };
        run.attach(&run.router).await?;
        Ok(run)
    }
}

/// The runtime's clock, so that leases stand still when it is paused.
struct RuntimeClock(Instant);

impl Default for RuntimeClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl LeaseClock for RuntimeClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(super) async fn router(
    plan: &Plan,
    store: &Arc<dyn Store>,
    target: &Target,
    history: &Arc<Recorder>,
) -> Result<Router, End> {
    let builder = Router::builder()
        .plan(plan.clone())
        .shared_store(store.clone())
        .dispatch(target.clone())
        .history(history.clone())
        .lease_clock(RuntimeClock::default());
    let started = builder.start().await;
    started.map_err(|error| End::from(Attach::Start(error)))
}

impl Bench {
    /// Connections will be lost: not every source keeps its order over that.
    pub(super) fn expect_cuts(&mut self, features: &Features) {
        self.ordered = features.order == Order::Kept;
    }

    /// Publishes the messages of these numbers of each key: of all keys in turn.
    pub(super) async fn publish<K: AsRef<str>>(
        &self,
        keys: &[K],
        numbers: std::ops::Range<u64>,
    ) -> Result<(), End> {
        let mut messages = Vec::new();
        for n in numbers {
            for key in keys {
                messages.push(self.message(key.as_ref(), n));
            }
        }
        for batch in messages.chunks(PUBLISH) {
            self.put(batch.to_vec()).await?;
        }
        Ok(())
    }

    /// Message `n` of a key, noted as published.
    pub(super) fn message(&self, key: &str, n: u64) -> Published {
        self.note_published(key, n);
        Published {
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            body: envelope(&label(key, n)),
            headers: Vec::new(),
        }
    }

    pub(super) fn note_published(&self, key: &str, n: u64) {
        let event = Event::of(key, n, EventKind::Publish, By::Producer).id(label(key, n));
        self.record(event);
    }

    pub(super) fn record(&self, event: Event) {
        // A history with holes proves nothing.
        let recorded = self.history.record(event);
        recorded.expect("the history can be written");
    }

    pub(super) async fn put(&self, messages: Vec<Published>) -> Result<(), End> {
        let put = self.queue.publish(messages).await;
        put.map_err(|text| End::Failed(format!("messages could not be published: {text}")))
    }

    pub(super) async fn fault(&self, fault: Fault) -> Result<(), End> {
        let done = self.queue.fault(fault).await;
        done.map_err(|text| End::Failed(format!("{fault:?} could not be done: {text}")))
    }

    /// Waits until the broker has nothing left.
    pub(super) async fn empty(&self) -> Result<(), End> {
        let looking = async {
            loop {
                match self.queue.left().await {
                    Ok(None | Some(0)) => return Ok(()),
                    Ok(Some(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(text) => return Err(End::Failed(text)),
                }
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(ended) => ended,
            Err(_) => fail(format!(
                "everything was resolved, and the broker still has {:?} messages",
                self.queue.left().await
            )),
        }
    }

    pub(super) fn judge(&self, options: &history::Options) -> Report {
        let mut history = History::default();
        history.extend(&self.history.events());
        self.check(history, options)
    }

    /// The checker's word on what the source promises.
    pub(super) fn check(&self, mut history: History, options: &history::Options) -> Report {
        if !self.ordered {
            history.forget_order();
        }
        history::check(history, options)
    }

    /// The checker's word, and the watch's.
    pub(super) fn verdict(&self, options: &history::Options, watch: &Watch) -> Result<Report, End> {
        let report = self.judge(options);
        if !report.is_green() {
            return fail(first_violations(&report));
        }
        match watch.faults().first() {
            Some(fault) => fail(fault.clone()),
            None => Ok(report),
        }
    }
}

impl Run {
    async fn attach(&self, router: &Router) -> Result<(), Attach> {
        let (source, watch) = (self.source.clone(), self.watch.clone());
        self.queue
            .attach(router, SOURCE.into(), source, watch)
            .await
    }

    /// Another router, on the same queue and with the same target and store.
    pub(super) async fn another(&self) -> Result<Router, End> {
        let made = router(&self.plan, &self.store, &self.target, &self.history).await?;
        self.attach(&made).await?;
        Ok(made)
    }

    /// Waits until so many messages were delivered, each counted once.
    pub(super) async fn delivered(&self, count: usize) -> Result<(), End> {
        let so = || self.target.delivered() >= count;
        let waited = self.until("", so).await;
        waited.map_err(|_| {
            let found = self.judge(&history::Options::default());
            End::Failed(format!(
                "{} of {count} messages were delivered; {} received, {} out, {} running; {:?} {:?}\n{}",
                self.target.delivered(),
                self.watch.received(),
                self.watch.out(),
                self.target.running(),
                self.router.problems(),
                self.router.pools(),
                first_violations(&found),
            ))
        })
    }

    /// Waits until something is so.
    pub(super) async fn until(&self, what: &str, so: impl Fn() -> bool) -> Result<(), End> {
        eventually(what, so).await
    }

    /// Waits until all is acked, stops the router and has the history judged.
    pub(super) async fn finish(self) -> Result<Report, End> {
        self.finish_by(&history::Options::default()).await
    }

    pub(super) async fn finish_by(self, options: &history::Options) -> Result<Report, End> {
        self.empty().await?;
        self.router.stop(STOP).await;
        self.verdict(options, &self.watch)
    }

    /// Does this to the broker of the run's queue.
    pub(super) async fn fault(&self, fault: Fault) -> Result<(), End> {
        let done = self.bench.fault(fault).await;
        if fault != Fault::LoseAck {
            self.watch.loans_end();
        }
        done
    }

    /// Does this to the broker; what is out is lent until its leases end.
    pub(super) async fn bench_fault(&self, fault: Fault) -> Result<(), End> {
        self.bench.fault(fault).await
    }

    /// Stops the router: what runs may finish, the rest goes back.
    pub(super) async fn stop(&self) {
        self.router.stop(STOP).await;
    }

    /// Another queue beside the run's own, with the same history.
    pub(super) fn beside(&self, queue: Arc<dyn AnyQueue>) -> Bench {
        Bench {
            queue,
            history: self.history.clone(),
            ordered: self.ordered,
        }
    }

    pub(super) fn lane(&self, key: &str) -> LaneName {
        LaneName::keyed(SOURCE, "default", key)
    }
}

/// Waits until something is so.
pub(super) async fn eventually(what: &str, so: impl Fn() -> bool) -> Result<(), End> {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(()) => Ok(()),
        Err(_) => fail(format!("it never came to pass that {what}")),
    }
}

pub(super) fn fail<T>(text: String) -> Result<T, End> {
    Err(End::Failed(text))
}

/// Fails the case unless this is so.
pub(super) fn ensure(so: bool, text: impl FnOnce() -> String) -> Result<(), End> {
    match so {
        true => Ok(()),
        false => fail(text()),
    }
}

/// The first violation of each kind, with the shortest history that shows it.
pub(super) fn first_violations(report: &Report) -> String {
    let mut text = String::new();
    for (kind, total) in &report.totals {
        let first = report.violations.iter().find(|v| v.kind == *kind);
        let first = first.map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("{total} × {first}"));
    }
    text
}

/// A message in our envelope.
pub(super) fn envelope(label: &str) -> Bytes {
    let body = serde_json::json!({
        "id": label,
        "mediationType": "HTTP",
        "mediationTarget": URL,
    });
    body.to_string().into()
}

/// One with a payload of so many bytes.
pub(super) fn large_envelope(label: &str, bytes: usize) -> Bytes {
    let body = serde_json::json!({
        "id": label,
        "mediationType": "HTTP",
        "mediationTarget": URL,
        "payload": "x".repeat(bytes),
    });
    body.to_string().into()
}

/// `k0`, `k1`, …
pub(super) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|k| format!("k{k}")).collect()
}
