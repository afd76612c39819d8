//! R6, R7, R9: one bad key, or one dead origin, takes no more than its part, on a source without
//! key lock, delay or return and with a small window; a spilled key keeps its order.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::embedded::{Db, Options};
use keylane_router::history::{self, By, Event, EventKind, Recorder};
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Instances, OnExhausted, Overflow, Plan, PoolPlan};
use keylane_router::store::{AuditEntry, DeadLetter, LaneName, Move, Store, Stored};
use keylane_router::{By as Who, Router, StartError, VerbError};
use tokio::sync::Semaphore;

use super::broker::{Broker, Sent, name, window};
use super::odd_store::{Does, OddStore};
use super::top::{Top, ill_while, quick_plan, until};

const WINDOW: usize = 8;

/// What the target does with messages of a key.
#[derive(Clone)]
enum Answer {
    Well,
    Fails,
    /// Until the semaphore has a permit.
    Hangs(Arc<Semaphore>),
}

/// The target: well, but for some keys.
#[derive(Clone)]
pub(crate) struct Target {
    history: Arc<Recorder>,
    bad: Arc<Mutex<HashMap<String, Answer>>>,
}

impl Target {
    pub(crate) fn new(history: Arc<Recorder>) -> Self {
        Self {
            history,
            bad: Arc::default(),
        }
    }

    fn set(&self, key: &str, answer: Answer) {
        self.bad.lock().unwrap().insert(key.to_owned(), answer);
    }

    fn answer(&self, key: &str) -> Answer {
        let bad = self.bad.lock().unwrap();
        bad.get(key).cloned().unwrap_or(Answer::Well)
    }

    fn heal(&self) {
        self.bad.lock().unwrap().clear();
    }

    fn note(&self, message: &Message, attempt: u32, kind: EventKind, outcome: Option<&str>) {
        let (key, n) = message.id.split_once('/').unwrap();
        let mut event = Event::of(key, n.parse().unwrap(), kind, By::Target);
        event = event.attempt(attempt).id(message.id.clone());
        if let Some(outcome) = outcome {
            event = event.outcome(outcome);
        }
        self.history.record(event).unwrap();
    }
}

impl Dispatch for Target {
    #[allow(clippy::manual_async_fn, reason = "the trait's own form")]
    fn attempt<'a>(
        &'a self,
        message: &'a Message,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Outcome> + Send + 'a {
        async move {
            self.note(message, attempt.number, EventKind::Start, None);
            let key = message.id.split_once('/').unwrap().0;
            let answer = self.answer(key);
            let (outcome, text) = match answer {
                Answer::Fails => {
                    let class = "status-500".into();
                    let reason = Reason {
                        class,
                        ..Reason::default()
                    };
                    (Outcome::Failed(reason), "failed")
                }
                Answer::Hangs(until) => {
                    until.acquire().await.unwrap().forget();
                    (Outcome::Delivered, "delivered")
                }
                Answer::Well => (Outcome::Delivered, "delivered"),
            };
            self.note(message, attempt.number, EventKind::End, Some(text));
            outcome
        }
    }

    /// Keys `o3-…` go to the origin `o3`.
    fn origin(&self, target: &str) -> Option<Arc<str>> {
        let (_, origin) = target.rsplit_once('/')?;
        Some(origin.into())
    }
}

/// A router on a broker with a backlog.
struct Rig {
    folder: tempfile::TempDir,
    db: Db,
    broker: Broker,
    router: Router,
    history: Arc<Recorder>,
    target: Target,
    published: HashMap<String, u64>,
}

/// Failing keys are tried again for ever, seldom.
fn plan() -> Plan {
    let mut plan = quick_plan();
    let pool = pool(&mut plan);
    pool.retry.initial = Duration::from_secs(3600);
    pool.retry.max = Duration::from_secs(3600);
    pool.on_exhausted = OnExhausted::Block;
    plan
}

/// Failing keys are tried again at once.
fn restless() -> Plan {
    let mut plan = plan();
    let pool = pool(&mut plan);
    pool.retry.initial = Duration::from_millis(5);
    pool.retry.max = Duration::from_millis(20);
    plan
}

fn pool(plan: &mut Plan) -> &mut PoolPlan {
    plan.pools.get_mut("default").unwrap()
}

async fn start(db: &Db, plan: Plan, broker: &Broker, target: &Target) -> Router {
    let mut plan = plan;
    let source = plan.sources.remove("s").unwrap_or_else(|| window(WINDOW));
    plan.sources.insert("s".into(), source);
    Router::builder()
        .plan(plan)
        .store(db.store())
        .history(target.history.clone())
        .dispatch(target.clone())
        .source("s", broker.source("s"))
        .start()
        .await
        .unwrap()
}

fn open(folder: &Path, options: Options) -> Db {
    Db::open(folder, options).unwrap()
}

impl Rig {
    async fn new(plan: Plan, bad: &[&str]) -> Self {
        Self::with(plan, bad, Options::default()).await
    }

    async fn with(plan: Plan, bad: &[&str], options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = open(folder.path(), options);
        let history = Arc::new(Recorder::in_memory());
        let target = Target::new(history.clone());
        for key in bad {
            target.set(key, Answer::Fails);
        }
        let broker = Broker::default();
        let router = start(&db, plan, &broker, &target).await;
        Self {
            folder,
            db,
            broker,
            router,
            history,
            target,
            published: HashMap::new(),
        }
    }

    /// Publishes the next message of each of these keys.
    fn publish(&mut self, keys: &[&str]) {
        self.publish_large(keys, 10);
    }

    fn publish_large(&mut self, keys: &[&str], bytes: usize) {
        let mut sent = Vec::new();
        for key in keys {
            let n = self.published.entry((*key).to_owned()).or_default();
            *n += 1;
            let message = Sent {
                key: Some((*key).to_owned()),
                n: *n,
                bytes,
            };
            let line = Event::of(*key, *n, EventKind::Publish, By::Producer);
            self.history.record(line.id(name(&message))).unwrap();
            sent.push(message);
        }
        self.broker.publish(sent);
    }

    fn delivered(&self, key: &str) -> u64 {
        let delivered = |event: &&Event| {
            event.kind == EventKind::End
                && event.key.as_deref() == Some(key)
                && event.outcome.as_deref() == Some("delivered")
        };
        self.history.events().iter().filter(delivered).count() as u64
    }

    async fn all_delivered(&self, keys: &[&str]) {
        for key in keys {
            let published = self.published[*key];
            until(&format!("{key} is delivered"), || {
                self.delivered(key) >= published
            })
            .await;
        }
    }

    fn stored(&self) -> u64 {
        let parked = self.db.store().parked();
        parked.iter().map(|lane| lane.messages).sum()
    }

    fn is_spilled(&self, key: &str) -> bool {
        let lane = self.db.store().parked_lane(&lane(key));
        lane.is_some_and(|lane| lane.spilled)
    }

    async fn empty(&self) {
        until("broker and store are empty", || {
            self.broker.is_empty() && self.db.store().parked().is_empty()
        })
        .await;
    }

    /// Everything was delivered, once and in order.
    fn is_green(&self) {
        let report = self.check();
        assert!(report.is_green(), "{report:#?}");
        let published: u64 = self.published.values().sum();
        assert_eq!(report.counts.delivered, published, "{report:?}");
    }

    fn check(&self) -> history::Report {
        let mut all = history::History::default();
        for event in self.history.events() {
            all.push(&event);
        }
        history::check(all, &history::Options::default())
    }

    /// Ends the router in order and starts another on the same file.
    async fn restart(mut self, plan: Plan) -> Self {
        self.router.stop(Duration::from_secs(5)).await;
        self.db.close().await;
        self.db = open(self.folder.path(), Options::default());
        self.router = start(&self.db, plan, &self.broker, &self.target).await;
        self
    }

    async fn stop(self) {
        self.router.stop(Duration::from_secs(5)).await;
    }
}

fn lane(key: &str) -> LaneName {
    LaneName::keyed("s", "default", Key::from(key))
}

fn me() -> Who {
    Who {
        who: "test".to_owned(),
        why: "to see".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failing_key_is_spilled_and_the_others_go_on() {
    let mut rig = Rig::new(plan(), &["bad"]).await;
    for _ in 0..40 {
        rig.publish(&["bad", "good", "bad", "fine"]);
    }
    rig.all_delivered(&["good", "fine"]).await;
    assert!(rig.is_spilled("bad"));
    assert_eq!(rig.delivered("bad"), 0);
    assert!(rig.broker.most_out() <= WINDOW);
    until("all is acked", || rig.broker.is_empty()).await;
    until("only that is stored", || rig.stored() == 80).await;
    rig.target.heal();
    rig.router.retry_now(lane("bad"), me()).await.unwrap();
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_heads_of_all_keys_fail_and_a_key_that_comes_later_goes_on() {
    let keys: Vec<String> = (0..60).map(|key| format!("bad{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut rig = Rig::new(restless(), &keys).await;
    for _ in 0..3 {
        rig.publish(&keys);
    }
    rig.publish(&["late"; 20]);
    rig.all_delivered(&["late"]).await;
    assert!(rig.broker.most_out() <= WINDOW);
    rig.target.heal();
    rig.all_delivered(&keys).await;
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_origin_among_ten_does_not_stop_the_others() {
    let mut plan = restless();
    plan.breaker.failures = 0.5;
    plan.breaker.window = NonZeroUsize::new(4).unwrap();
    plan.breaker.min_lanes = NonZeroUsize::new(4).unwrap();
    plan.breaker.open = Duration::from_secs(3600);
    let keys: Vec<String> = (0..100).map(|key| format!("o{}-{key}", key % 10)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let (dead, alive): (Vec<&str>, Vec<&str>) = keys.iter().partition(|key| key.starts_with("o0-"));
    let mut rig = Rig::new(plan.clone(), &dead).await;
    for _ in 0..4 {
        rig.publish(&keys);
    }
    rig.all_delivered(&alive).await;
    assert!(dead.iter().all(|key| rig.delivered(key) == 0));
    rig.target.heal();
    // The breaker is shut again by what is configured, not by waiting for an hour.
    plan.breaker.failures = 0.0;
    rig.router.reload(plan).await.unwrap();
    rig.all_delivered(&dead).await;
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_larger_than_the_budget_do_not_stop_the_others() {
    let mut plan = restless();
    pool(&mut plan).byte_budget = 4 << 10;
    let mut rig = Rig::new(plan, &["huge", "large"]).await;
    for _ in 0..5 {
        rig.publish_large(&["huge"], 20 << 10);
        rig.publish_large(&["large"], 3 << 10);
        rig.publish(&["small"; 4]);
    }
    rig.all_delivered(&["small"]).await;
    assert_eq!(rig.delivered("huge") + rig.delivered("large"), 0);
    rig.target.heal();
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_head_is_under_way_for_long_is_spilled_with_it() {
    let mut rig = Rig::new(plan(), &[]).await;
    let door = Arc::new(Semaphore::new(0));
    rig.target.set("slow", Answer::Hangs(door.clone()));
    rig.publish(&["slow"]);
    let runs = || rig.router.pools()[0].in_flight == 1;
    until("its head runs", runs).await;
    rig.publish(&["slow"]);
    for _ in 0..19 {
        rig.publish(&["slow", "slow", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("all is acked", || rig.broker.is_empty()).await;
    // The head is one of them, and runs.
    until("only that is stored", || rig.stored() == 40).await;
    assert_eq!(rig.router.pools()[0].in_flight, 1);
    door.add_permits(40);
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

/// A router whose store says when it is asked to spill, and waits until it may.
struct SlowSpill {
    router: Router,
    broker: Broker,
    store: OddStore,
    asked: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl SlowSpill {
    async fn start(target: &Target) -> Self {
        let (asked, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let store = OddStore::new({
            let (asked, go) = (asked.clone(), go.clone());
            move |call| match call {
                "spill" => {
                    asked.add_permits(1);
                    Does::Waits(go.clone(), Box::new(Does::Well))
                }
                _ => Does::Well,
            }
        });
        let mut plan = plan();
        plan.sources.insert("s".into(), window(WINDOW));
        let broker = Broker::default();
        let builder = Router::builder().plan(plan).store(store.clone());
        let builder = builder.dispatch(target.clone());
        let router = builder.source("s", broker.source("s")).start().await;
        Self {
            router: router.unwrap(),
            broker,
            store,
            asked,
            go,
        }
    }
}

fn sent(key: &str, n: u64) -> Sent {
    Sent {
        key: Some(key.to_owned()),
        n,
        bytes: 10,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_while_its_key_is_being_spilled_follows_it_at_once() {
    let target = Target::new(Arc::new(Recorder::in_memory()));
    let (door, others) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    target.set("slow", Answer::Hangs(door.clone()));
    for key in ["a", "b", "c", "d"] {
        target.set(key, Answer::Hangs(others.clone()));
    }
    let rig = SlowSpill::start(&target).await;
    // One key has more than a quarter of the window.
    rig.broker
        .publish((1..=3).map(|n| sent("slow", n)).collect::<Vec<_>>());
    rig.broker
        .publish(["a", "b", "c", "d"].map(|key| sent(key, 1)).to_vec());
    rig.asked.acquire().await.unwrap().forget();
    others.add_permits(4);
    rig.broker.publish(vec![sent("slow", 4), sent("slow", 5)]);
    until("they are in the lane", || rig.router.pools()[0].queued == 2).await;
    rig.go.add_permits(100);
    until("all is acked", || rig.broker.is_empty()).await;
    assert_eq!(rig.store.inner.parked()[0].messages, 5);
    door.add_permits(5);
    until("all is delivered", || rig.store.inner.parked().is_empty()).await;
    rig.router.stop(Duration::from_secs(5)).await;
}

/// The wait of the head goes with it to the store; the operator's wish comes in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_to_be_tried_at_once_while_it_is_spilled_is() {
    let target = Target::new(Arc::new(Recorder::in_memory()));
    target.set("bad", Answer::Fails);
    let rig = SlowSpill::start(&target).await;
    rig.broker.publish(
        (1..=2 * WINDOW as u64)
            .map(|n| sent("bad", n))
            .collect::<Vec<_>>(),
    );
    rig.asked.acquire().await.unwrap().forget();
    target.heal();
    rig.router.retry_now(lane("bad"), me()).await.unwrap();
    rig.go.add_permits(1000);
    until("all is delivered", || {
        rig.broker.is_empty() && rig.store.inner.parked().is_empty()
    })
    .await;
    rig.router.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyless_messages_that_are_held_side_by_side_make_room_too() {
    let mut rig = Rig::new(plan(), &["none"]).await;
    let keyless = (0..30).map(|n| Sent {
        key: None,
        n,
        bytes: 10,
    });
    rig.broker.publish(keyless.collect::<Vec<_>>());
    rig.publish(&["good"; 10]);
    rig.all_delivered(&["good"]).await;
    assert!(rig.stored() >= 30 - WINDOW as u64);
    rig.target.heal();
    for stored in rig.db.store().parked() {
        let _ = rig.router.retry_now(stored.lane, me()).await;
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spilled_key_goes_on_in_order_after_a_restart() {
    let mut rig = Rig::new(plan(), &["bad"]).await;
    for _ in 0..30 {
        rig.publish(&["bad", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("all is acked", || rig.broker.is_empty()).await;
    let mut rig = rig.restart(plan()).await;
    until("only that is stored", || rig.stored() == 30).await;
    rig.publish(&["bad", "good"]);
    rig.target.heal();
    let _ = rig.router.retry_now(lane("bad"), me()).await;
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_for_a_spilled_key_goes_behind_it() {
    let mut rig = Rig::new(plan(), &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("it is spilled", || rig.is_spilled("bad")).await;
    for _ in 0..10 {
        rig.publish(&["bad"]);
    }
    until("all is stored", || {
        rig.stored() == 20 && rig.broker.is_empty()
    })
    .await;
    let rows = rig
        .db
        .store()
        .parked_rows(lane("bad"), 0, 100)
        .await
        .unwrap();
    let ids: Vec<BrokerId> = rows
        .iter()
        .map(|row| row.message.identity.id.clone())
        .collect();
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!(
        rows[0].message.headers,
        [("from".into(), "the broker".into())]
    );
    rig.target.heal();
    rig.router.retry_now(lane("bad"), me()).await.unwrap();
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_stays_until_its_source_has_heard_that_it_is_ours() {
    let mut plan = restless();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    let mut rig = Rig::new(plan, &["bad"]).await;
    rig.broker.set_deaf(true);
    rig.publish(&["bad", "bad", "bad"]);
    until("it is spilled", || rig.stored() == 3).await;
    rig.target.heal();
    rig.all_delivered(&["bad"]).await;
    // If it died now, the source would give them all out again; the rows say that they are ours.
    tokio::time::sleep(Duration::from_millis(50)).await;
    until("only that is stored", || rig.stored() == 3).await;
    rig.broker.set_deaf(false);
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_is_spilled_although_it_makes_progress() {
    let mut plan = restless();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    pool(&mut plan).concurrency = NonZeroUsize::new(2);
    let mut rig = Rig::new(plan, &[]).await;
    for _ in 0..200 {
        rig.publish(&["a", "a", "a", "b"]);
    }
    rig.empty().await;
    rig.is_green();
    let counters = rig.router.counters().of(&"s".into(), &"default".into());
    assert!(counters.spilled.get() > 0);
    assert_eq!(counters.ordering_violations.get(), 0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_that_run_several_at_once_are_spilled_whole_too() {
    let mut plan = restless();
    pool(&mut plan).lane_capacity = NonZeroUsize::new(3).unwrap();
    pool(&mut plan).lane_concurrency = NonZeroUsize::new(2).unwrap();
    let mut rig = Rig::new(plan, &[]).await;
    for _ in 0..100 {
        rig.publish(&["a", "a", "a", "b"]);
    }
    rig.empty().await;
    assert_eq!((rig.delivered("a"), rig.delivered("b")), (300, 100));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_full_acks_nothing_says_so_and_goes_on_by_itself() {
    let options = Options {
        store_budget: 64 << 10,
        ..Options::default()
    };
    let mut rig = Rig::with(restless(), &["bad"], options).await;
    let letter = DeadLetter {
        number: 0,
        message: Stored {
            identity: Identity {
                source: "other".into(),
                id: BrokerId::Sequence(1),
            },
            lane: lane("other"),
            body: vec![0; 63 << 10].into(),
            headers: Vec::new(),
            position: None,
        },
        reason: "test".to_owned(),
        text: String::new(),
        at: SystemTime::now(),
        attempts: Vec::new(),
    };
    rig.db.store().dead_letter(vec![letter]).await.unwrap();
    for _ in 0..10 {
        rig.publish_large(&["bad", "good"], 400);
    }
    until("the trouble is known", || !rig.router.problems().is_empty()).await;
    let acked = rig.broker.acked() as u64;
    assert!(
        acked <= rig.delivered("good"),
        "nothing of the bad key is acked"
    );
    assert_eq!(rig.stored(), 0);
    let audit = AuditEntry {
        at: SystemTime::now(),
        who: "test".to_owned(),
        verb: "trim".to_owned(),
        lane: None,
        identity: None,
        why: String::new(),
    };
    let numbers = rig.db.store().dead_letters(0, 10).await.unwrap();
    let numbers = numbers.iter().map(|letter| letter.number).collect();
    rig.target.heal();
    rig.db
        .store()
        .trim_dead_letters(numbers, audit)
        .await
        .unwrap();
    rig.empty().await;
    until("it is well again", || rig.router.problems().is_empty()).await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spilled_key_can_be_parked_skipped_and_replayed() {
    let mut rig = Rig::new(restless(), &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("all is stored", || rig.stored() == 10).await;
    rig.router.park(lane("bad"), me()).await.unwrap();
    until("nothing of it is in memory", || {
        rig.router.pools()[0].lanes == 0
    })
    .await;
    assert!(!rig.is_spilled("bad"));
    let attempts = rig.check().counts.attempts;
    let rows = rig.db.store().parked_rows(lane("bad"), 0, 2).await.unwrap();
    let (first, second) = (
        rows[0].message.identity.clone(),
        rows[1].message.identity.clone(),
    );
    let wrong = rig.router.skip(lane("bad"), second, me()).await;
    assert_eq!(wrong, Err(VerbError::Conflict));
    rig.router.skip(lane("bad"), first, me()).await.unwrap();
    until("only that is stored", || rig.stored() == 9).await;
    assert_eq!(rig.check().counts.attempts, attempts, "it was parked");
    rig.target.heal();
    rig.router.replay(lane("bad"), me()).await.unwrap();
    rig.empty().await;
    assert_eq!(rig.delivered("bad"), 9);
    assert_eq!(rig.db.store().dead_letter_count().await.unwrap(), 1);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_held_head_of_a_spilled_key_can_be_skipped() {
    let mut plan = plan();
    pool(&mut plan).retry.initial = Duration::from_millis(200);
    pool(&mut plan).retry.max = Duration::from_millis(200);
    let mut rig = Rig::new(plan, &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("all is stored", || rig.stored() == 10).await;
    let rows = rig.db.store().parked_rows(lane("bad"), 0, 1).await.unwrap();
    let head = rows[0].message.identity.clone();
    // It may be in the store alone for a moment.
    loop {
        match rig.router.skip(lane("bad"), head.clone(), me()).await {
            Ok(()) => break,
            Err(VerbError::Refused(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(other) => panic!("{other}"),
        }
    }
    until("it is a dead letter", || rig.stored() == 9).await;
    rig.target.heal();
    rig.empty().await;
    assert_eq!(rig.delivered("bad"), 9);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spilled_head_without_hope_is_parked_if_that_is_the_policy() {
    let mut plan = restless();
    pool(&mut plan).on_exhausted = OnExhausted::Park;
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(6).unwrap();
    let mut rig = Rig::new(plan, &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    rig.all_delivered(&["good"]).await;
    until("it is parked", || {
        let lane = rig.db.store().parked_lane(&lane("bad"));
        lane.is_some_and(|lane| !lane.replaying && lane.messages == 10)
    })
    .await;
    rig.target.heal();
    rig.router.replay(lane("bad"), me()).await.unwrap();
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_keys_of_a_removed_pool_go_where_its_messages_go() {
    let mut with_mail = restless();
    let mut mail = with_mail.pools["default"].clone();
    mail.drain = Some(Duration::from_millis(50));
    with_mail.pools.insert("default".into(), mail.clone());
    let mut rig = Rig::new(with_mail.clone(), &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    until("it is spilled", || rig.is_spilled("bad")).await;
    // As if the pool had been called otherwise before.
    rig.router.stop(Duration::from_secs(5)).await;
    let store = rig.db.store();
    let gone = LaneName {
        pool: "gone".into(),
        ..lane("bad")
    };
    let (from, of, to) = (lane("bad"), None, gone);
    let moved = store.move_lanes(vec![Move::Lane { from, of, to }]);
    moved.await.unwrap();
    drop(store);
    let mut rig = rig.restart(with_mail).await;
    assert!(rig.db.store().parked_lane(&lane("bad")).is_some());
    rig.publish(&["bad"]);
    rig.target.heal();
    rig.empty().await;
    rig.is_green();
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_wait_a_stuck_key_stops_its_source_and_nothing_is_lost() {
    let mut plan = restless();
    pool(&mut plan).overflow = Some(Overflow::Wait);
    pool(&mut plan).lane_capacity = NonZeroUsize::new(2).unwrap();
    let mut rig = Rig::new(plan, &["bad"]).await;
    for _ in 0..10 {
        rig.publish(&["bad", "good"]);
    }
    until("it has begun", || rig.delivered("good") > 0).await;
    assert_eq!(rig.stored(), 0);
    rig.target.heal();
    rig.empty().await;
    rig.is_green();
    assert_eq!(rig.broker.returned(), 0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_spilled_key_is_returned_also_where_its_source_could() {
    let mut plan = restless();
    let pool = pool(&mut plan);
    pool.overflow = Some(Overflow::Spill);
    pool.on_exhausted = OnExhausted::Return;
    // A key may have a quarter of it: two messages.
    pool.byte_budget = 1200;
    pool.retry.initial = Duration::from_millis(50);
    pool.retry.max = Duration::from_millis(50);
    let ill = Arc::new(AtomicBool::new(true));
    let top = Top::new(plan, ill_while(&ill)).await;
    let messages: Vec<(&str, u64)> = (1..=10).map(|n| ("k", n)).collect();
    top.publish_all(&messages).await;
    let stored = || {
        top.db
            .store()
            .parked()
            .iter()
            .map(|lane| lane.messages)
            .sum::<u64>()
    };
    until("it is spilled", || stored() == 10).await;
    // Three attempts are a round.
    until("it is blocked", || top.counters().attempts_failed.get() > 6).await;
    assert_eq!(top.counters().returned.get(), 0);
    let rows = top.db.store().parked();
    let rows = top.db.store().parked_rows(rows[0].lane.clone(), 0, 1);
    let head = rows.await.unwrap().remove(0).message.identity;
    assert_eq!(
        top.db.store().stay(&head).round,
        0,
        "it began no other round"
    );
    ill.store(false, Ordering::SeqCst);
    until("the store is empty", || stored() == 0).await;
    assert!(top.is_green());
    top.router.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn spill_is_refused_where_it_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), Options::default());
    let start = |plan: Plan| {
        let builder = Router::builder().plan(plan).store(db.store());
        let history = Arc::new(Recorder::in_memory());
        let builder = builder.dispatch(Target::new(history));
        let source = Broker::default().source("s");
        let start: Pin<Box<dyn Future<Output = Result<Router, StartError>>>> =
            Box::pin(builder.source("s", source).start());
        start
    };
    let mut many = quick_plan();
    let mut source = window(WINDOW);
    source.instances = Instances::Many;
    many.sources.insert("s".into(), source);
    // Unset it is `wait` with many.
    start(many.clone()).await.unwrap();
    pool(&mut many).overflow = Some(Overflow::Spill);
    let Err(refused) = start(many).await else {
        panic!("it started");
    };
    assert!(
        refused.to_string().contains("instances = \"many\""),
        "{refused}"
    );
}

#[tokio::test]
async fn what_lives_with_one_instance_is_refused_with_many() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), Options::default());
    let mut plan = quick_plan();
    let mut source = window(WINDOW);
    source.instances = Instances::Many;
    plan.sources.insert("s".into(), source);
    let start = |plan: Plan| {
        let target = Target::new(Arc::new(Recorder::in_memory()));
        let builder = Router::builder().plan(plan).store(db.store());
        let source = Broker::default().source("s");
        builder.dispatch(target).source("s", source).start()
    };
    let router = start(plan.clone()).await.unwrap();
    for refused in [
        router.pause(lane("k"), me()).await,
        router.park(lane("k"), me()).await,
    ] {
        let Err(VerbError::Refused(text)) = refused else {
            panic!("not refused: {refused:?}");
        };
        assert!(text.contains("instances = \"many\""), "{text}");
    }
    assert!(db.store().parked().is_empty() && db.store().pauses().is_empty());
    router.stop(Duration::from_secs(5)).await;
    pool(&mut plan).on_exhausted = OnExhausted::Park;
    let Err(refused) = start(plan).await else {
        panic!("it started");
    };
    let text = refused.to_string();
    assert!(text.contains("on_exhausted = \"park\""), "{text}");
}
