//! A durable queue with numbered messages, and a router on it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use keylane_router::Router;
use keylane_router::dispatch::HttpDispatch;
use keylane_router::embedded::{Db, EmbeddedSource, NewMessage, Options};
use keylane_router::message::Key;
use keylane_router::plan::{Keyless, Plan, PoolPlan, SourcePlan};
use keylane_router::source::{Features, Received, Room, Source, SourceError};

use super::{Result, machine};

/// Bytes of a message's payload.
pub(super) const PAYLOAD: usize = 298;
const QUEUE: &str = "bench";
/// Messages of one publish while a queue is filled.
const FILL: usize = 2000;

/// A queue in a folder of its own, gone when this is dropped.
pub(super) struct Rig {
    pub(super) db: Db,
    url: String,
    /// By key: the number of its last message.
    numbers: Vec<u64>,
    random: Random,
    _folder: tempfile::TempDir,
}

/// How many were delivered at which time, and what that had cost by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    at: Instant,
    cpu: Duration,
    delivered: u64,
}

/// What lies between two marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) per_second: f64,
    pub(super) cpu_micros: f64,
}

impl Mark {
    pub(super) fn now(delivered: u64) -> Self {
        Self {
            at: Instant::now(),
            cpu: machine::cpu(),
            delivered,
        }
    }

    pub(super) fn of(router: &Router) -> Self {
        Self::now(delivered(router))
    }

    /// How long after `begun` this is.
    pub(super) fn since(&self, begun: Instant) -> Duration {
        self.at - begun
    }

    /// This many and so many more.
    pub(super) fn delivered_and(&self, more: u64) -> u64 {
        self.delivered + more
    }

    pub(super) fn until(&self, later: &Self) -> Pace {
        let count = (later.delivered - self.delivered) as f64;
        Pace {
            per_second: count / (later.at - self.at).as_secs_f64(),
            cpu_micros: (later.cpu - self.cpu).as_secs_f64() * 1e6 / count,
        }
    }
}

impl Rig {
    pub(super) async fn new(data: &Path, url: &str, keys: usize) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("keylane-bench-")
            .tempdir_in(data)?;
        let db = Db::open(folder.path(), Options::default())?;
        db.source(QUEUE, QUEUE, Keyless::Serial).await?;
        Ok(Self {
            db,
            url: url.to_owned(),
            numbers: vec![0; keys],
            random: Random(1),
            _folder: folder,
        })
    }

    /// The next message of a key.
    pub(super) fn message(&mut self, key: usize) -> NewMessage {
        self.numbers[key] += 1;
        message(&self.url, key, self.numbers[key])
    }

    /// Puts messages of keys drawn by lot into the queue.
    pub(super) async fn fill(&mut self, count: usize) -> Result<()> {
        let keys = self.numbers.len();
        let drawn = (0..count).map(|_| self.random.below(keys)).collect();
        self.put(drawn).await
    }

    /// Puts a message of each of these keys into the queue, in this order.
    pub(super) async fn put(&mut self, keys: Vec<usize>) -> Result<()> {
        for part in keys.chunks(FILL) {
            let batch = part.iter().map(|key| self.message(*key)).collect();
            self.db.publish(QUEUE, batch, false).await?;
        }
        Ok(())
    }

    /// A router with one pool that makes so many attempts at a time.
    pub(super) async fn router(&self, concurrency: usize, window: usize) -> Result<Router> {
        self.router_with(concurrency, window, |_| {}, |_| {}).await
    }

    /// As [`Self::router`], with another plan, on a queue that says something else of itself.
    pub(super) async fn router_with(
        &self,
        concurrency: usize,
        window: usize,
        change: impl FnOnce(&mut Plan),
        features: impl FnOnce(&mut Features),
    ) -> Result<Router> {
        let pool = PoolPlan {
            concurrency: NonZeroUsize::new(concurrency),
            ..PoolPlan::default()
        };
        let source_plan = SourcePlan {
            window: NonZeroUsize::new(window).expect("a window is not zero"),
            ..SourcePlan::embedded(QUEUE)
        };
        let mut plan = Plan::default();
        plan.pools.insert("default".into(), pool);
        plan.sources.insert(QUEUE.into(), source_plan);
        change(&mut plan);
        let source = self.db.source(QUEUE, QUEUE, Keyless::Serial).await?;
        let mut featured = source.features();
        features(&mut featured);
        let source = Featured {
            source,
            features: featured,
        };
        let router = Router::builder()
            .plan(plan)
            .store(self.db.store())
            .dispatch(HttpDispatch::new(Default::default()))
            .source(QUEUE, source);
        Ok(router.start().await?)
    }

    pub(super) async fn close(self) {
        self.db.close().await;
    }
}

/// The queue, saying something else of itself.
struct Featured {
    source: EmbeddedSource,
    features: Features,
}

impl Source for Featured {
    type Receipt = <EmbeddedSource as Source>::Receipt;
    type Settler = <EmbeddedSource as Source>::Settler;

    fn features(&self) -> Features {
        self.features.clone()
    }

    async fn receive(
        &mut self,
        room: Room,
    ) -> std::result::Result<Vec<Received<Self::Receipt>>, SourceError> {
        self.source.receive(room).await
    }

    fn settler(&self) -> Self::Settler {
        self.source.settler()
    }

    async fn close(self) {
        self.source.close().await;
    }
}

pub(super) async fn publish(db: &Db, batch: Vec<NewMessage>) -> Result<()> {
    db.publish(QUEUE, batch, false).await?;
    Ok(())
}

/// Message `number` of `key`, with the usual payload.
pub(super) fn message(url: &str, key: usize, number: u64) -> NewMessage {
    let id = format!("{key}-{number}");
    let payload = payload(number);
    let body = format!(r#"{{"id":"{id}","mediationTarget":"{url}","payload":{payload}}}"#);
    NewMessage::new(id, Some(Key::new(key_name(key))), body)
}

pub(super) fn key_name(key: usize) -> String {
    format!("k{key}")
}

/// `{"n":12,"text":"xxx…"}`.
pub(super) fn payload(number: u64) -> String {
    let begin = format!(r#"{{"n":{number},"text":""#);
    let rest = PAYLOAD - begin.len() - 2;
    format!("{begin}{}\"}}", "x".repeat(rest))
}

pub(super) fn delivered(router: &Router) -> u64 {
    let all = router.counters().all();
    all.iter()
        .map(|(_, counters)| counters.delivered.get())
        .sum()
}

/// Waits until so many are delivered or the time is over.
pub(super) async fn until_delivered(router: &Router, count: u64, most: Duration) -> Mark {
    let end = Instant::now() + most;
    loop {
        let mark = Mark::of(router);
        if mark.delivered >= count || mark.at >= end {
            return mark;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// SplitMix64: the same row of numbers in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// The time to the next event of a Poisson process.
    pub(super) fn pause(&mut self, per_second: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - unit).ln() / per_second
    }
}
