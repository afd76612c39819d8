//! Several routers on one queue, each with a thread and a connection of its own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::leases::lease;
use crate::conformance::child::{self, Children};
use crate::conformance::rig::{Bench, Rig, SOURCE, Setup, ensure, eventually, fail, keys, router};
use crate::conformance::store::MemoryStore;
use crate::conformance::subject::{AnyQueue, Attach};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::{Answer, Target};
use crate::conformance::watched::Watch;
use crate::history::{self, By, Event, EventKind, Recorder};
use crate::plan::{Instances, Plan, SourcePlan};
use crate::source::Several;
use crate::store::Store;

const KEYS: usize = 30;
/// Messages of a key in each round.
const EACH: u64 = 20;

/// What the routers share: queue, target and history.
struct Crowd {
    bench: Bench,
    watch: Arc<Watch>,
    target: Target,
    plan: Plan,
    source: SourcePlan,
}

/// A router on a thread of its own.
struct Instance {
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// Stop as one should.
    Leave,
    /// Be gone, from one moment to the next.
    Die,
    /// Do nothing at all for so long.
    Freeze(Duration),
}

/// What an instance's thread is given.
struct Place {
    queue: Arc<dyn AnyQueue>,
    history: Arc<Recorder>,
    watch: Arc<Watch>,
    target: Target,
    plan: Plan,
    source: SourcePlan,
}

impl Crowd {
    /// One whose connections will be lost.
    async fn to_be_cut(rig: &Rig) -> Result<Self, End> {
        let mut crowd = Self::new(rig).await?;
        crowd.bench.expect_cuts(&rig.features);
        Ok(crowd)
    }

    async fn new(rig: &Rig) -> Result<Self, End> {
        let pause = Duration::from_millis(2);
        let mut setup = Setup::new().window(50);
        setup.source.instances = Instances::Many;
        let bench = rig.bench().await?;
        let watch = Watch::new(rig.features.clone(), bench.history.clone());
        let script = move |_: &_| Answer::delivered().after(pause);
        Ok(Self {
            target: Target::new(bench.history.clone(), watch.clone(), script),
            watch,
            bench,
            plan: setup.plan,
            source: setup.source,
        })
    }

    /// One more router reads the queue.
    async fn joins(&self) -> Result<Instance, End> {
        let place = Place {
            queue: self.bench.queue.clone(),
            history: self.bench.history.clone(),
            watch: self.watch.another_instance(),
            target: self.target.clone(),
            plan: self.plan.clone(),
            source: self.source.clone(),
        };
        let (orders, received) = mpsc::unbounded_channel();
        let (ready, started) = oneshot::channel();
        let thread = std::thread::spawn(move || place.run(received, ready));
        let instance = Instance {
            orders,
            thread: Some(thread),
        };
        match started.await {
            Ok(result) => result.map(|()| instance),
            Err(_) => fail("an instance ended before it began".to_owned()),
        }
    }

    async fn publish(&self, round: u64) -> Result<(), End> {
        let numbers = round * EACH..(round + 1) * EACH;
        self.bench.publish(&keys(KEYS), numbers).await
    }

    async fn delivered(&self, count: usize) -> Result<(), End> {
        let so = || self.target.delivered() >= count;
        let waited = eventually("", so).await;
        waited.map_err(|_| {
            let delivered = self.target.delivered();
            End::Failed(format!("{delivered} of {count} messages were delivered"))
        })
    }

    /// Queues are dealt anew when instances come and go, where keys or partitions have owners.
    fn dealt_anew(&self, rig: &Rig) {
        if matches!(
            rig.features.several,
            Several::KeyOwner | Several::Partitions
        ) {
            self.bench
                .record(Event::new(EventKind::Rebalance, By::Router));
        }
    }

    fn verdict(&self) -> Result<history::Report, End> {
        self.bench
            .verdict(&history::Options::default(), &self.watch)
    }
}

impl Instance {
    fn order(&self, order: Order) {
        // Whoever is gone has done what it was told.
        let _ = self.orders.send(order);
    }

    /// Gives the order and waits for the end of the thread.
    async fn ends(mut self, order: Order) {
        self.order(order);
        let thread = self.thread.take();
        let joined = tokio::task::spawn_blocking(move || thread.map(JoinHandle::join));
        let _ = joined.await;
    }
}

impl Place {
    fn run(
        self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        ready: oneshot::Sender<Result<(), End>>,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        runtime.block_on(async {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
            let made = router(&self.plan, &store, &self.target, &self.history).await;
            let router = match made {
                Ok(router) => router,
                Err(end) => return drop(ready.send(Err(end))),
            };
            let (source, watch) = (self.source.clone(), self.watch.clone());
            let attached = self.queue.attach(&router, SOURCE.into(), source, watch);
            let _ = ready.send(attached.await.map_err(End::from));
            loop {
                match orders.recv().await {
                    Some(Order::Freeze(time)) => std::thread::sleep(time),
                    Some(Order::Die) => return self.dies(),
                    Some(Order::Leave) | None => break,
                }
            }
            router.stop(Duration::from_secs(10)).await;
        });
        // Nothing of it goes on, wherever it was.
        runtime.shutdown_background();
    }

    fn dies(&self) {
        for kind in [EventKind::Crash, EventKind::Restart] {
            let recorded = self.history.record(Event::new(kind, By::Router));
            recorded.expect("the history can be written");
        }
    }
}

/// A case is for sources that keep order over several instances.
fn needs_several(rig: &Rig) -> Result<(), End> {
    rig.needs(
        rig.features.several.is_ordered(),
        "order over several instances",
    )
}

pub(super) async fn instance_joins(rig: Rig) -> Result<Summary, End> {
    if rig.features.several == Several::OneOwner {
        return second_is_refused(&rig).await;
    }
    needs_several(&rig)?;
    rounds(&rig, Crowd::new(&rig).await?, async |crowd, _| {
        crowd.dealt_anew(&rig);
        let joined = crowd.joins().await?;
        Ok(Some(joined))
    })
    .await
}

/// One owner: whoever comes second is told why not.
async fn second_is_refused(rig: &Rig) -> Result<Summary, End> {
    let run = rig.start(Setup::new()).await?;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let second = router(&run.plan, &store, &run.target, &run.history).await?;
    let mut source = run.source.clone();
    source.instances = Instances::Many;
    let attached = run
        .queue
        .attach(&second, SOURCE.into(), source, run.watch.clone());
    let attached = attached.await;
    second.stop(Duration::from_secs(1)).await;
    run.publish(&keys(5), 0..5).await?;
    run.delivered(25).await?;
    run.finish().await?;
    match attached {
        Err(Attach::Refused(text)) => Ok(format!("a second instance is refused: {text}")),
        other => fail(format!(
            "one owner is declared, and a second instance got {other:?}"
        )),
    }
}

pub(super) async fn instance_leaves(rig: Rig) -> Result<Summary, End> {
    needs_several(&rig)?;
    rounds(&rig, Crowd::new(&rig).await?, async |crowd, other| {
        crowd.dealt_anew(&rig);
        other.ends(Order::Leave).await;
        Ok(None)
    })
    .await
}

pub(super) async fn instance_dies(rig: Rig) -> Result<Summary, End> {
    needs_several(&rig)?;
    let crowd = Crowd::to_be_cut(&rig).await?;
    rounds(&rig, crowd, async |crowd, other| {
        crowd.dealt_anew(&rig);
        other.ends(Order::Die).await;
        Ok(None)
    })
    .await
}

pub(super) async fn instance_frozen(rig: Rig) -> Result<Summary, End> {
    needs_several(&rig)?;
    let long = match rig.features.lease {
        Some(_) => 3 * lease(&rig)?,
        None => Duration::from_secs(3),
    };
    let mut bench = rig.bench().await?;
    bench.expect_cuts(&rig.features);
    // A broker in memory would stand still with its router, and a process that is stopped for so long
    // loses its connection: order must be promised beyond that.
    let ordered = rig.features.order == crate::source::Order::Kept;
    let apart = cfg!(unix) && ordered && !rig.subject.in_memory();
    if apart && bench.queue.child().await.is_some() {
        return process_frozen(&rig, &bench, long).await;
    }
    let crowd = Crowd::to_be_cut(&rig).await?;
    rounds(&rig, crowd, async |crowd, other| {
        crowd.dealt_anew(&rig);
        other.order(Order::Freeze(long));
        tokio::time::sleep(long).await;
        crowd.dealt_anew(&rig);
        Ok(Some(other))
    })
    .await
}

/// Two processes, one of which the system stops: its connections stay open, and nobody answers.
/// The first is the one that reads where only one does, then the other is: they take turns.
async fn process_frozen(rig: &Rig, bench: &Bench, long: Duration) -> Result<Summary, End> {
    let each = KEYS as u64 * EACH;
    let mut children = Children::shared(bench).await?;
    let mut all = 0;
    for round in 0..rig.times {
        let numbers = round * EACH..(round + 1) * EACH;
        bench.publish(&keys(KEYS), numbers).await?;
        all += each;
        children.deliver(1 + rig.below(each / 4)).await?;
        if round == 0 {
            children.joins().await?;
        }
        let frozen = (round % 2) as usize;
        children.freeze(frozen)?;
        match round % 2 {
            // It finds everything done.
            0 => children.until_all(all).await?,
            // It finds the other in the middle of what it had.
            _ => tokio::time::sleep(long).await,
        }
        children.thaw(frozen)?;
        children.until_all(all).await?;
    }
    children.finish(all).await?;
    if !matches!(bench.queue.left().await, Ok(None | Some(0))) {
        children.finish_rest().await?;
    }
    bench.empty().await?;
    let options = history::Options {
        max_duplicates_per_crash: Some(2 * child::WINDOW),
        ..history::Options::default()
    };
    let report = children.verdict(&options)?;
    let again: u64 = report.counts.duplicates.values().sum();
    Ok(format!(
        "{all} messages, {} times a process, {again} delivered again",
        rig.times
    ))
}

/// In each round two instances share the work, and in the middle of it something happens to the
/// second.
async fn rounds(
    rig: &Rig,
    crowd: Crowd,
    happens: impl AsyncFn(&Crowd, Instance) -> Result<Option<Instance>, End>,
) -> Result<Summary, End> {
    let first = crowd.joins().await?;
    let mut all = 0;
    for round in 0..rig.times {
        let second = crowd.joins().await?;
        crowd.publish(round).await?;
        crowd
            .delivered(all + 1 + rig.below(KEYS as u64 * EACH / 2) as usize)
            .await?;
        let left = happens(&crowd, second).await?;
        all += KEYS * EACH as usize;
        crowd.delivered(all).await?;
        crowd.dealt_anew(rig);
        if let Some(left) = left {
            left.ends(Order::Leave).await;
        }
    }
    crowd.bench.empty().await?;
    first.ends(Order::Leave).await;
    let report = crowd.verdict()?;
    let again: u64 = report.counts.duplicates.values().sum();
    ensure(report.counts.delivered == all as u64, || {
        format!("{} of {all} were delivered", report.counts.delivered)
    })?;
    Ok(format!(
        "{all} messages, {} times, {again} delivered again",
        rig.times
    ))
}
