//! What bad keys cost the others, on a source that can neither lock a key nor take anything back:
//! the rate of the good ones beside their rate alone, in turn in one run.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_router::Router;
use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::embedded::{Db, Options};
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnExhausted, Plan, SourcePlan};
use keylane_router::source::{
    BatchId, Features, Received, Room, SettleError, Settler, Source, SourceError,
};

use super::Result;
use super::goals::{Goal, Report, listed, median};

const CONCURRENCY: usize = 64;
const KEYS: u64 = 1000;
/// A target that takes its time: the pool's permits, not the processor, are what is scarce.
const TARGET_TAKES: Duration = Duration::from_millis(5);
/// Keys are spilled at the beginning; what is measured is how it goes on.
const WARM_UP: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
const STOP: Duration = Duration::from_secs(5);

/// Who is bad; one message of a hundred is theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    Nobody,
    /// One key fails.
    Key,
    /// The head of every bad key fails, and there are a hundred of them.
    Heads,
    /// One origin of ten is dead, with as many keys.
    Origin,
    /// One key fails, with bodies that fill the pool's budget.
    Large,
}

pub(super) async fn measure(data: &Path, report: &mut Report) -> Result<()> {
    let all = [
        (Bad::Key, "one failing key"),
        (Bad::Heads, "a hundred failing keys"),
        (Bad::Origin, "one dead origin of ten"),
        (Bad::Large, "a failing key with large bodies"),
    ];
    for (bad, name) in all {
        let mut ratios = Vec::new();
        let mut alone = Vec::new();
        let mut overtaken = 0;
        for _ in 0..ROUNDS {
            let good = run(data, Bad::Nobody).await?;
            let beside = run(data, bad).await?;
            ratios.push(beside.rate / good.rate);
            alone.push(good.rate);
            overtaken += good.overtaken + beside.overtaken;
        }
        let of_rate = format!("flow, {name}: of the others' rate");
        let note = format!("alone {} /s; runs {}", listed(&alone), listed(&ratios));
        report.goal(&of_rate, median(&ratios), "", Goal::AtLeast(0.95), note);
        let in_order = format!("flow, {name}: out of order");
        let note = "by the source's positions, in all runs".to_owned();
        report.goal(&in_order, overtaken as f64, "", Goal::AtMost(0.0), note);
    }
    Ok(())
}

/// What a run came to.
struct Run {
    /// Good messages delivered a second.
    rate: f64,
    /// First starts that came after a later message of their key.
    overtaken: u64,
}

async fn run(data: &Path, bad: Bad) -> Result<Run> {
    let folder = tempfile::tempdir_in(data)?;
    let db = Db::open(folder.path(), Options::default())?;
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").expect("there is always one");
    pool.concurrency = NonZeroUsize::new(CONCURRENCY);
    pool.on_exhausted = OnExhausted::Block;
    if bad == Bad::Large {
        pool.byte_budget = 4 << 20;
    }
    plan.sources.insert("flow".into(), SourcePlan::custom());
    let router = Router::builder()
        .plan(plan)
        .store(db.store())
        .dispatch(Target)
        .source("flow", Endless { bad, next: 0 });
    let router = router.start().await?;
    tokio::time::sleep(WARM_UP).await;
    let counters = router.counters().of(&"flow".into(), &"default".into());
    let (begun, before) = (Instant::now(), counters.delivered.get());
    tokio::time::sleep(ROUND).await;
    let delivered = counters.delivered.get() - before;
    let rate = delivered as f64 / begun.elapsed().as_secs_f64();
    router.stop(STOP).await;
    db.close().await;
    let overtaken = counters.ordering_violations.get();
    Ok(Run { rate, overtaken })
}

/// Well, but for messages that are called `bad`.
struct Target;

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, message: &'a Message, _: &'a Attempt) -> Outcome {
        if &*message.id == "bad" {
            return Outcome::Failed(Reason::default());
        }
        tokio::time::sleep(TARGET_TAKES).await;
        Outcome::Delivered
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        Some(target.into())
    }
}

/// Never empty; takes nothing back.
struct Endless {
    bad: Bad,
    next: u64,
}

impl Endless {
    fn message(&mut self) -> Received<()> {
        self.next += 1;
        let n = self.next;
        let is_bad = self.bad != Bad::Nobody && n.is_multiple_of(100);
        let key = match (is_bad, self.bad) {
            (false, _) => format!("key-{}", n % KEYS),
            (true, Bad::Key | Bad::Large | Bad::Nobody) => "bad".to_owned(),
            (true, Bad::Heads | Bad::Origin) => format!("bad-{}", n / 100 % 100),
        };
        let origin = match (is_bad, self.bad) {
            (true, Bad::Origin) => 0,
            // Failing keys have origins of their own: what is to be seen is not the breaker.
            (true, _) => 100 + n,
            (false, _) => 1 + n % 9,
        };
        let id = if is_bad { "bad" } else { "good" };
        let filler = "x".repeat(match self.bad == Bad::Large && is_bad {
            true => 900 << 10,
            false => 300,
        });
        let body = format!(
            r#"{{"id":"{id}","mediationTarget":"http://origin-{origin}/","payload":"{filler}"}}"#
        );
        Received {
            identity: Identity {
                source: "flow".into(),
                id: BrokerId::Sequence(n),
            },
            key: Some(Key::new(key)),
            tenant: None,
            position: Some(n),
            batch: BatchId(n),
            body: body.into(),
            headers: Vec::new(),
            receipt: (),
        }
    }
}

impl Source for Endless {
    type Receipt = ();
    type Settler = Acks;

    fn features(&self) -> Features {
        Features {
            identity: true,
            confirmed_acks: true,
            positions: true,
            ..Features::none("bench")
        }
    }

    async fn receive(&mut self, room: Room) -> std::result::Result<Vec<Received<()>>, SourceError> {
        // As much as a broker would hand out at once.
        let count = room.messages.min(100);
        Ok((0..count).map(|_| self.message()).collect())
    }

    fn settler(&self) -> Acks {
        Acks
    }

    async fn close(self) {}
}

#[derive(Clone)]
struct Acks;

type Settled = Vec<std::result::Result<(), SettleError>>;

impl Settler for Acks {
    type Receipt = ();

    async fn ack(&self, receipts: Vec<()>) -> Settled {
        receipts.into_iter().map(Ok).collect()
    }

    async fn give_back(&self, receipts: Vec<()>, _: Duration) -> Settled {
        receipts.into_iter().map(Ok).collect()
    }

    async fn reject(&self, receipts: Vec<()>) -> Settled {
        receipts.into_iter().map(Ok).collect()
    }

    async fn renew(&self, receipts: Vec<()>) -> Settled {
        receipts.into_iter().map(Ok).collect()
    }
}
