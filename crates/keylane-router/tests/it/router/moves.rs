//! R6, R11: stored keys while pools come, go and come back, and sources change. A key is in one
//! lane, in order, and nothing of it is lost.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use keylane_router::dispatch::{Dispatch, handler_fn};
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{
    Envelope, LaneScope, OnExhausted, Overflow, Plan, PoolPlan, SourcePlan,
};
use keylane_router::store::{AuditEntry, LaneName, Store, Stored};
use keylane_router::{By, Router, StartError};
use tokio::sync::watch;

use super::odd_store::{Does, OddStore};
use super::test_source::{Fed, Feeder, Settled, TestSource, test_source};
use super::top::quick_plan;

/// A target that fails or hangs for some keys. Messages are called `key/n`.
#[derive(Clone, Default)]
struct Target {
    calls: Arc<Mutex<Vec<String>>>,
    ill: Arc<Mutex<HashSet<String>>>,
    hangs: watch::Sender<HashSet<String>>,
}

impl Target {
    fn dispatch(&self) -> impl Dispatch + use<> {
        let target = self.clone();
        handler_fn(move |message| {
            let (target, id) = (target.clone(), message.id.to_string());
            async move { target.call(id).await }
        })
    }

    async fn call(&self, id: String) -> Outcome {
        let key = id.split_once('/').map_or("k", |id| id.0).to_owned();
        self.calls.lock().unwrap().push(id);
        let mut hangs = self.hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs.contains(&key)).await;
        match self.ill.lock().unwrap().contains(&key) {
            true => Outcome::Failed(Reason::default()),
            false => Outcome::Delivered,
        }
    }

    fn hang(&self, key: &str) {
        self.hangs
            .send_modify(|hangs| hangs.extend([key.to_owned()]));
    }

    fn answer(&self, key: &str) {
        self.hangs.send_modify(|hangs| hangs.retain(|of| of != key));
    }

    fn fail(&self, key: &str) {
        self.ill.lock().unwrap().insert(key.to_owned());
    }

    fn heal(&self) {
        self.ill.lock().unwrap().clear();
        self.hangs.send_modify(HashSet::clear);
    }

    /// The numbers of a key's calls, each once for all of its attempts in a row.
    fn calls(&self, key: &str) -> Vec<u64> {
        let calls = self.calls.lock().unwrap();
        // Raw messages are called by their broker's ids, and are all of one key.
        let of_key = calls
            .iter()
            .map(|id| id.split_once('/').unwrap_or(("k", id)));
        let of_key = of_key.filter(|(of, _)| *of == key);
        let mut calls: Vec<u64> = of_key.map(|(_, n)| n.parse().unwrap()).collect();
        calls.dedup();
        calls
    }
}

/// A key is spilled when it has more than two messages.
fn pool() -> PoolPlan {
    let mut pool = quick_plan().pools["default"].clone();
    pool.overflow = Some(Overflow::Spill);
    pool.lane_capacity = NonZeroUsize::new(2).unwrap();
    pool.retry.max_attempts = NonZeroUsize::MIN;
    pool.on_exhausted = OnExhausted::Park;
    pool.drain = Some(Duration::from_secs(30));
    pool
}

fn plan(pools: &[&str]) -> Plan {
    let pools = pools.iter().chain(&["default"]);
    Plan {
        pools: pools.map(|name| ((*name).into(), pool())).collect(),
        ..quick_plan()
    }
}

/// A router on the test source, on the paused clock.
struct Rig {
    store: OddStore,
    router: Router,
    feeder: Feeder,
    target: Target,
    next: u64,
    /// The last number of each key.
    fed: BTreeMap<&'static str, u64>,
}

impl Rig {
    async fn new(plan: Plan) -> Self {
        Self::on(plan, OddStore::new(|_| Does::Well)).await
    }

    async fn on(plan: Plan, store: OddStore) -> Self {
        Self::with(plan, store, |source| source).await
    }

    async fn with(
        plan: Plan,
        store: OddStore,
        change: impl FnOnce(TestSource) -> TestSource,
    ) -> Self {
        let target = Target::default();
        let (source, feeder) = test_source("t");
        let builder = Router::builder().plan(plan).store(store.clone());
        let builder = builder.dispatch(target.dispatch());
        let source = change(source.confirming());
        let router = builder.source("t", source).start().await;
        Self {
            store,
            router: router.unwrap(),
            feeder,
            target,
            next: 0,
            fed: BTreeMap::new(),
        }
    }

    /// Feeds so many messages of a key that name this pool.
    fn feed(&mut self, key: &'static str, pool: &str, count: u64) {
        let mut batch = Vec::new();
        for _ in 0..count {
            self.next += 1;
            let n = self.fed.entry(key).or_default();
            *n += 1;
            batch.push(Fed {
                id: self.next,
                key: Some(key),
                body: format!(
                    r#"{{"id":"{key}/{n}","poolCode":"{pool}","mediationTarget":"http://t/"}}"#
                ),
            });
        }
        self.feeder.feed(batch);
    }

    fn stored(&self, pool: &str, key: &str) -> u64 {
        let lane = self
            .store
            .inner
            .parked_lane(&LaneName::keyed("t", pool, key));
        lane.map_or(0, |lane| lane.messages)
    }

    async fn reload(&self, plan: Plan) {
        self.router.reload(plan).await.unwrap();
    }

    fn pools(&self) -> Vec<Arc<str>> {
        self.router
            .pools()
            .into_iter()
            .map(|pool| pool.pool)
            .collect()
    }

    /// Everything is delivered, in order, and was acked once; nothing is stored.
    async fn ends_in_order(&self) {
        let settled = self.feeder.settled(self.next as usize).await;
        let acked = |settled: &Settled| matches!(settled, Settled::Acked(..));
        assert!(settled.iter().all(acked), "{settled:?}");
        for (key, last) in &self.fed {
            let wanted: Vec<u64> = (1..=*last).collect();
            eventually("all are called", || {
                self.target.calls(key).len() >= wanted.len()
            })
            .await;
            assert_eq!(self.target.calls(key), wanted, "{key}");
        }
        eventually("nothing is stored", || self.store.inner.parked().is_empty()).await;
        let counters = self.router.counters();
        let violations = self
            .pools()
            .into_iter()
            .chain(["mail".into()])
            .map(|pool| counters.of(&"t".into(), &pool).ordering_violations.get());
        assert_eq!(violations.sum::<u64>(), 0);
    }
}

/// Waits on the paused clock.
async fn eventually(what: &str, so: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never came to pass: {what}");
}

fn by() -> By {
    By {
        who: "ann".to_owned(),
        why: "a test".to_owned(),
    }
}

/// With a key that is spilled and one that keeps the pool from being drained, both in `mail`.
async fn with_spilled() -> Rig {
    let mut rig = Rig::new(plan(&["mail"])).await;
    rig.target.hang("k");
    rig.target.hang("other");
    rig.feed("k", "mail", 5);
    rig.feed("other", "mail", 1);
    eventually("it is spilled", || rig.stored("mail", "k") == 5).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn r11_a_pool_that_is_added_again_while_it_drains_is_the_same_pool() {
    let mut rig = with_spilled().await;
    rig.reload(plan(&[])).await;
    rig.feed("k", "mail", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut again = plan(&["mail"]);
    let mail = again.pools.get_mut("mail").unwrap();
    mail.concurrency = NonZeroUsize::new(1);
    rig.reload(again).await;
    assert_eq!(rig.pools(), ["default".into(), "mail".into()]);
    // Past the deadline of the drain that was called off.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.stored("mail", "k"), 6, "nothing has moved");
    rig.feed("k", "mail", 1);
    rig.feed("third", "mail", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(rig.target.calls("third").is_empty(), "one may run by now");
    rig.target.heal();
    rig.ends_in_order().await;
}

#[tokio::test(start_paused = true)]
async fn r11_a_parked_key_of_a_pool_that_is_added_again_stays_there() {
    let mut rig = Rig::new(plan(&["mail"])).await;
    rig.target.fail("k");
    rig.target.hang("other");
    rig.feed("other", "mail", 1);
    rig.feed("k", "mail", 3);
    eventually("it is parked", || rig.stored("mail", "k") == 3).await;
    rig.reload(plan(&[])).await;
    rig.reload(plan(&["mail"])).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    rig.feed("k", "mail", 1);
    eventually("it follows its key", || rig.stored("mail", "k") == 4).await;
    rig.target.heal();
    let replayed = rig.router.replay(LaneName::keyed("t", "mail", "k"), by());
    replayed.await.unwrap();
    rig.ends_in_order().await;
}

#[tokio::test(start_paused = true)]
async fn r11_a_pool_that_is_added_again_after_its_deadline_takes_and_feeds_its_keys_again() {
    let mut rig = with_spilled().await;
    rig.reload(plan(&[])).await;
    // Its attempts go on, and it takes nothing more.
    tokio::time::sleep(Duration::from_secs(45)).await;
    rig.feed("k", "mail", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.stored("mail", "k"), 5);
    rig.reload(plan(&["mail"])).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.pools(), ["default".into(), "mail".into()]);
    rig.target.heal();
    rig.ends_in_order().await;
}

#[tokio::test(start_paused = true)]
async fn r11_a_removed_pool_ends_when_its_lanes_have_moved_and_what_arrives_follows_them() {
    let mut rig = with_spilled().await;
    rig.reload(plan(&[])).await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    rig.target.answer("other");
    rig.feed("k", "mail", 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.pools(), ["default".into(), "mail".into()]);
    // Its head is delivered; the others move.
    rig.target.answer("k");
    rig.target.fail("k");
    eventually("the pool is gone", || rig.pools() == ["default".into()]).await;
    rig.feed("k", "mail", 1);
    eventually("it is parked there", || rig.stored("default", "k") > 0).await;
    rig.target.heal();
    let lane = LaneName::keyed("t", "default", "k");
    rig.router.replay(lane, by()).await.unwrap();
    rig.ends_in_order().await;
}

#[tokio::test(start_paused = true)]
async fn r11_a_removed_pool_stays_until_the_store_has_moved_its_lanes() {
    let full = Arc::new(Mutex::new(true));
    let is_full = full.clone();
    let store = OddStore::new(
        move |call| match call == "move_lanes" && *is_full.lock().unwrap() {
            true => Does::Fails,
            false => Does::Well,
        },
    );
    let mut rig = Rig::on(plan(&["mail"]), store).await;
    rig.target.fail("k");
    rig.feed("k", "mail", 3);
    eventually("it is parked", || rig.stored("mail", "k") == 3).await;
    rig.reload(plan(&[])).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!rig.router.problems().is_empty(), "the store fails");
    rig.feed("k", "mail", 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.stored("mail", "k") + rig.stored("default", "k"), 3);
    *full.lock().unwrap() = false;
    eventually("they have moved", || rig.stored("default", "k") == 4).await;
    assert_eq!(rig.pools(), ["default".into()]);
    rig.target.heal();
    let lane = LaneName::keyed("t", "default", "k");
    rig.router.replay(lane, by()).await.unwrap();
    rig.ends_in_order().await;
}

/// A message of a code that has a pool of its own follows that, whatever of its key is in the
/// default pool.
#[tokio::test(start_paused = true)]
async fn r11_a_key_of_an_added_pool_stays_there_while_it_has_something_there() {
    let mut rig = Rig::new(plan(&[])).await;
    rig.reload(plan(&["mail"])).await;
    rig.target.hang("k");
    rig.feed("k", "mail", 1);
    eventually("it runs", || rig.target.calls("k").len() == 1).await;
    rig.feeder.feed(vec![Fed {
        id: 100,
        key: Some("k"),
        body: r#"{"id":"x/1","mediationTarget":"http://t/"}"#.to_owned(),
    }]);
    rig.target.hang("x");
    eventually("the default pool has some", || {
        rig.target.calls("x").len() == 1
    })
    .await;
    rig.feed("k", "mail", 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.target.answer("x");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.target.calls("k"), [1], "the first runs still");
}

/// A message of `mail` with so many bytes beside its envelope.
fn heavy(id: u64, name: &str, bytes: usize) -> Fed<'_> {
    let payload = "x".repeat(bytes);
    Fed {
        id,
        key: Some(name.split_once('/').unwrap().0),
        body: format!(
            r#"{{"id":"{name}","poolCode":"mail","mediationTarget":"http://t/","payload":"{payload}"}}"#
        ),
    }
}

/// The first two of the key go back while the batch waits for bytes; the next two come behind them
/// when no permit is free, and are more than the lane may have.
#[tokio::test(start_paused = true)]
async fn r6_what_follows_something_that_went_back_goes_back_and_is_not_spilled() {
    let mut plan = plan(&["mail"]);
    let mail = plan.pools.get_mut("mail").unwrap();
    mail.on_exhausted = OnExhausted::Return;
    mail.concurrency = NonZeroUsize::new(2);
    mail.byte_budget = 2200;
    let store = OddStore::new(|_| Does::Well);
    let rig = Rig::with(plan, store, TestSource::returning).await;
    for key in ["k", "x", "y"] {
        rig.target.hang(key);
    }
    let of_key = [
        (1, "k/1", 150),
        (2, "k/2", 150),
        (5, "k/3", 0),
        (6, "k/4", 0),
    ];
    let of_key = of_key.map(|(id, name, bytes)| heavy(id, name, bytes));
    let [first, second, third, fourth] = of_key.clone();
    let (y, x) = (heavy(3, "y/1", 1000), heavy(4, "x/1", 700));
    rig.feeder.feed(vec![first, second, y, x, third, fourth]);
    eventually("two run", || {
        rig.router.pools().iter().any(|pool| pool.in_flight == 2)
    })
    .await;
    rig.target.fail("k");
    rig.target.answer("k");
    rig.feeder.settled(2).await;
    // What waits for bytes goes back as soon as there are some.
    rig.target.heal();
    let settled = rig.feeder.settled(6).await;
    let back = settled.iter().filter_map(|settled| match settled {
        Settled::Returned(id, _) => Some(*id),
        Settled::Acked(..) => None,
    });
    assert_eq!(back.collect::<Vec<u64>>(), [1, 2, 5, 6]);
    rig.feeder.feed(of_key.to_vec());
    rig.feeder.settled(10).await;
    assert_eq!(rig.target.calls("k"), [1, 2, 3, 4]);
}

fn scoped(mut plan: Plan, pool: &str, scope: LaneScope) -> Plan {
    let of = plan.pools.get_mut(pool).unwrap();
    of.lane_scope = scope;
    of.overflow = None;
    of.lane_capacity = NonZeroUsize::new(100).unwrap();
    plan
}

const SCOPES: [[LaneScope; 2]; 2] = [
    [LaneScope::Source, LaneScope::Pool],
    [LaneScope::Pool, LaneScope::Source],
];

/// The lane of key `k` in a pool of this scope.
fn lane_of(scope: LaneScope, source: &str, pool: &str) -> LaneName {
    let source = match scope {
        LaneScope::Source => source,
        LaneScope::Pool => "*",
    };
    LaneName::keyed(source, pool, "k")
}

#[tokio::test(start_paused = true)]
async fn r11_a_reload_that_changes_the_scope_of_lanes_is_refused_and_changes_nothing() {
    for [before, after] in SCOPES {
        let store = OddStore::new(|_| Does::Well);
        let before = scoped(plan(&["mail"]), "mail", before);
        let rig = Rig::with(before.clone(), store, TestSource::returning).await;
        let mut after = scoped(plan(&["mail", "other"]), "mail", after);
        let refused = rig.router.reload(after.clone()).await;
        assert_eq!(refused, Err(StartError::ScopeChanged("mail".into())));
        assert_eq!(*rig.router.plan(), before);
        assert_eq!(rig.pools().len(), 2);
        // Also while the pool is leaving.
        rig.target.hang("k");
        rig.feeder.feed(vec![heavy(1, "k/1", 0)]);
        eventually("it runs", || rig.target.calls("k").len() == 1).await;
        rig.reload(plan(&[])).await;
        after.pools.remove("other");
        let refused = rig.router.reload(after.clone()).await;
        assert_eq!(refused, Err(StartError::ScopeChanged("mail".into())));
        rig.target.heal();
        eventually("it is gone", || rig.pools().len() == 1).await;
        // Its messages have run in the default pool since.
        let added = rig.router.reload(after.clone()).await;
        assert_eq!(added, of_another_scope(&after, 0));
    }
}

/// What follows when the pool `mail` comes, and keys are stored under the default pool.
fn of_another_scope(plan: &Plan, keys: usize) -> Result<(), StartError> {
    let pool: Arc<str> = "mail".into();
    match plan.pools[&pool].lane_scope == plan.pools["default"].lane_scope {
        true => Ok(()),
        false => Err(StartError::ScopeOfDefault { pool, keys }),
    }
}

#[tokio::test(start_paused = true)]
async fn r11_no_pool_comes_whose_messages_are_stored_in_lanes_of_another_scope() {
    for scope in [LaneScope::Source, LaneScope::Pool] {
        let store = OddStore::new(|_| Does::Well);
        parked_of_two(&store, LaneScope::Source, "default").await;
        let plan = scoped(plan(&["mail"]), "mail", scope);
        let builder = Router::builder().plan(plan.clone()).store(store);
        let started = builder.dispatch(Target::default().dispatch()).start().await;
        assert_eq!(started.map(drop), of_another_scope(&plan, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn r11_a_paused_key_of_a_pool_that_leaves_can_be_resumed() {
    let mut rig = Rig::new(plan(&["mail"])).await;
    let lane = LaneName::keyed("t", "mail", "k");
    rig.router.pause(lane.clone(), by()).await.unwrap();
    rig.feed("k", "mail", 2);
    let waits = || rig.router.pools().iter().any(|pool| pool.queued == 2);
    eventually("it waits", waits).await;
    rig.reload(plan(&[])).await;
    assert!(rig.target.calls("k").is_empty());
    rig.router.resume(lane, by()).await.unwrap();
    rig.ends_in_order().await;
}

#[tokio::test(start_paused = true)]
async fn r11_a_parked_key_of_a_removed_pool_keeps_its_order_in_a_pool_of_another_scope() {
    for [before, after] in SCOPES {
        let of = |pools: &[&str]| scoped(plan(pools), "default", after);
        let with_mail = scoped(of(&["mail"]), "mail", before);
        let store = OddStore::new(|_| Does::Well);
        let mut rig = Rig::with(with_mail, store, TestSource::returning).await;
        rig.target.fail("k");
        rig.feed("k", "mail", 3);
        let stored = |rig: &Rig, lane: &LaneName| {
            let lane = rig.store.inner.parked_lane(lane);
            lane.map_or(0, |lane| lane.messages)
        };
        let (old, new) = (lane_of(before, "t", "mail"), lane_of(after, "t", "default"));
        eventually("it is parked", || stored(&rig, &old) == 3).await;
        rig.reload(of(&[])).await;
        eventually("it has moved", || stored(&rig, &new) == 3).await;
        rig.feed("k", "mail", 2);
        eventually("it is behind", || stored(&rig, &new) == 5).await;
        rig.target.heal();
        rig.router.replay(new, by()).await.unwrap();
        rig.ends_in_order().await;
    }
}

/// Rows of two sources, in turns.
async fn parked_of_two(store: &OddStore, scope: LaneScope, pool: &str) {
    for n in 1..=4 {
        for source in ["s", "t"] {
            let lane = lane_of(scope, source, pool);
            let message = Stored {
                identity: Identity {
                    source: source.into(),
                    id: BrokerId::Sequence(n),
                },
                lane: lane.clone(),
                body: "x".into(),
                headers: Vec::new(),
                position: Some(n),
            };
            let parked = store.park(lane, "no hope".to_owned(), vec![message]);
            parked.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r11_a_start_with_another_scope_moves_what_is_stored_and_keeps_the_order_of_each_source() {
    for [before, after] in SCOPES {
        // Of a pool that is there, and of one that is not.
        for pool in ["default", "gone"] {
            let store = OddStore::new(|_| Does::Well);
            parked_of_two(&store, before, pool).await;
            let audit = AuditEntry {
                at: SystemTime::UNIX_EPOCH,
                who: "ann".to_owned(),
                verb: "pause".to_owned(),
                lane: None,
                identity: None,
                why: "a test".to_owned(),
            };
            let paused = lane_of(before, "t", "default");
            store.pause(paused, audit).await.unwrap();
            let mut plan = scoped(plan(&[]), "default", after);
            plan.sources.insert("t".into(), SourcePlan::custom());
            Rig::with(plan, store.clone(), TestSource::returning).await;
            let mut of: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
            for source in ["s", "t"] {
                let lane = lane_of(after, source, "default");
                let rows = store.parked_names(lane, 0, 100).await.unwrap();
                for (_, identity) in rows.into_iter().filter(|row| &*row.1.source == source) {
                    of.entry(identity.source)
                        .or_default()
                        .push(identity.id.to_string());
                }
            }
            let each = ["1", "2", "3", "4"].map(str::to_owned).to_vec();
            let wanted = [("s".into(), each.clone()), ("t".into(), each)];
            assert_eq!(of, BTreeMap::from(wanted), "{after:?} from {pool}");
            let lanes = store.inner.parked().into_iter().map(|lane| lane.lane);
            let lanes: BTreeSet<LaneName> = lanes.collect();
            let wanted = ["s", "t"].map(|source| lane_of(after, source, "default"));
            assert_eq!(lanes, BTreeSet::from(wanted));
            assert_eq!(store.pauses(), [lane_of(after, "t", "default")]);
        }
    }
}

/// With the source `t`, which has so many workers.
fn with_workers(workers: usize) -> Plan {
    let mut plan = plan(&[]);
    let source = SourcePlan {
        workers: NonZeroUsize::new(workers),
        ..SourcePlan::custom()
    };
    plan.sources.insert("t".into(), source);
    // A lane may have a quarter of it: less than two messages.
    let pool = plan.pools.get_mut("default").unwrap();
    pool.byte_budget = 300;
    pool.overflow = Some(Overflow::Spill);
    plan
}

#[tokio::test(start_paused = true)]
async fn r11_a_source_is_one_lane_or_not_as_long_as_keys_of_it_are_stored() {
    for [before, after] in [[1, 4], [4, 1]] {
        let store = OddStore::new(|_| Does::Well);
        let mut rig = Rig::with(with_workers(before), store.clone(), |source| source).await;
        rig.target.hang("k");
        rig.feed("k", "default", 5);
        eventually("it is spilled", || !store.inner.parked().is_empty()).await;
        let refused = rig.router.reload(with_workers(after)).await;
        let lanes = StartError::Lanes {
            source_name: "t".into(),
            one_lane: after == 1,
            keys: 1,
        };
        assert_eq!(refused, Err(lanes.clone()));
        assert!(lanes.to_string().contains("set workers back"), "{lanes}");
        assert_eq!(*rig.router.plan(), with_workers(before));
        // Nor by a restart.
        rig.router.cut();
        rig.router.stop(Duration::from_secs(1)).await;
        let start = |workers| {
            let (source, feeder) = test_source("t");
            let builder = Router::builder().plan(with_workers(workers));
            let builder = builder.store(store.clone()).dispatch(rig.target.dispatch());
            let start = builder.source("t", source.confirming()).start();
            async move { start.await.map(|router| (router, feeder)) }
        };
        assert_eq!(start(after).await.err(), Some(lanes));
        let (router, _feeder) = start(before).await.unwrap();
        rig.target.heal();
        eventually("nothing is stored", || store.inner.parked().is_empty()).await;
        router.stop(Duration::from_secs(1)).await;
        assert!(start(after).await.is_ok());
    }
}

/// The sources of a plan: by their names, the pools of their raw messages.
fn raw(sources: &[(&str, &str)]) -> Plan {
    let mut plan = plan(&["mail", "other"]);
    for (name, pool) in sources {
        let envelope = Envelope::Raw {
            pool: (*pool).into(),
            target: "http://t/".into(),
        };
        let source = SourcePlan {
            envelope,
            ..SourcePlan::custom()
        };
        plan.sources.insert((*name).into(), source);
    }
    plan
}

fn raw_fed(ids: std::ops::RangeInclusive<u64>) -> Vec<Fed<'static>> {
    let fed = |id| Fed {
        id,
        key: Some("k"),
        body: "raw".to_owned(),
    };
    ids.map(fed).collect()
}

/// How a source changes: its name, and the pool of its raw messages.
#[derive(Clone, Copy, Debug)]
enum Change {
    Reload,
    Restart,
}

/// A queue whose source is called `t` and sends to `mail`, and then is called `name` and sends to
/// `pool`. Returns the router, the feeder of the source as it is then, and the target.
async fn changed(
    (name, pool): (&str, &str),
    how: Change,
    parked: bool,
    store: &OddStore,
) -> (Router, Feeder, Target) {
    let target = Target::default();
    let (source, feeder) = test_source("t");
    let start = |plan, name: &str, source: TestSource| {
        let builder = Router::builder().plan(plan).store(store.clone());
        let builder = builder.dispatch(target.dispatch());
        builder
            .source(name, source.confirming().reading("q"))
            .start()
    };
    let router = start(raw(&[("t", "mail")]), "t", source).await.unwrap();
    match parked {
        true => target.fail("k"),
        false => target.hang("k"),
    }
    feeder.feed(raw_fed(1..=5));
    eventually("it is stored", || {
        let lane = store.inner.parked_lane(&LaneName::keyed("t", "mail", "k"));
        lane.is_some_and(|lane| lane.messages == 5)
    })
    .await;
    let (plan, (source, feeder)) = (raw(&[(name, pool)]), test_source(name));
    if let Change::Restart = how {
        router.cut();
        router.stop(Duration::from_secs(1)).await;
        let router = start(plan, name, source).await.unwrap();
        return (router, feeder, target);
    }
    router.reload(plan.clone()).await.unwrap();
    assert!(router.remove_source("t").await);
    let source_plan = plan.sources[name].clone();
    let (again, name) = (router.clone(), name.to_owned());
    let source = source.confirming().reading("q");
    let added = tokio::spawn(async move { again.add_source(name, source, source_plan).await });
    if !parked {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!added.is_finished(), "its head runs still");
        target.answer("k");
    }
    added.await.unwrap().unwrap();
    (router, feeder, target)
}

#[tokio::test(start_paused = true)]
async fn r11_stored_keys_of_a_source_that_changes_its_name_or_pool_are_not_overtaken() {
    for (name, pool) in [("t", "other"), ("u", "mail"), ("u", "other")] {
        for how in [Change::Reload, Change::Restart] {
            for parked in [true, false] {
                let case = format!("{name} {pool} {how:?} parked: {parked}");
                let store = OddStore::new(|_| Does::Well);
                let (router, feeder, target) = changed((name, pool), how, parked, &store).await;
                feeder.feed(raw_fed(6..=7));
                let lane = LaneName::keyed(name, pool, "k");
                if parked {
                    eventually("they are behind", || {
                        let lane = store.inner.parked_lane(&lane);
                        lane.is_some_and(|lane| lane.messages == 7)
                    })
                    .await;
                    target.heal();
                    router.replay(lane, by()).await.unwrap();
                }
                target.heal();
                eventually("all are called", || target.calls("k").len() >= 7).await;
                assert_eq!(target.calls("k"), [1, 2, 3, 4, 5, 6, 7], "{case}");
                eventually("nothing is stored", || store.inner.parked().is_empty()).await;
                assert_eq!(router.problems(), [], "{case}");
                let counters = router.counters().of(&name.into(), &pool.into());
                assert_eq!(counters.ordering_violations.get(), 0, "{case}");
                router.stop(Duration::from_secs(1)).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r11_names_are_not_exchanged_while_keys_are_stored_under_one_of_them() {
    for first in ["t", "u"] {
        let store = OddStore::new(|_| Does::Well);
        let (router, _feeder, target) = changed(("t", "mail"), Change::Restart, true, &store).await;
        assert!(router.remove_source("t").await);
        router
            .reload(raw(&[("t", "mail"), ("u", "mail")]))
            .await
            .unwrap();
        let add = |name: &'static str, queue: &'static str| {
            let (source, _) = test_source(name);
            let plan = raw(&[(name, "mail")]).sources[name].clone();
            router.add_source(name, source.reading(queue), plan)
        };
        let refused = match first {
            "t" => {
                add("t", "another").await.unwrap();
                add("u", "q").await
            }
            _ => {
                add("u", "q").await.unwrap();
                add("t", "another").await
            }
        };
        let exchanged = StartError::NameExchanged {
            source_name: "u".into(),
            queue: "q".into(),
            before: "t".into(),
            keys: 1,
        };
        assert_eq!(refused, Err(exchanged), "{first} first");
        target.heal();
        router.stop(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn r11_two_sources_that_read_one_queue_keep_their_names() {
    let store = OddStore::new(|_| Does::Well);
    let (router, _feeder, _target) = changed(("t", "mail"), Change::Restart, true, &store).await;
    let (source, _) = test_source("u");
    let plan = raw(&[("u", "mail")]).sources["u"].clone();
    router
        .add_source("u", source.reading("q"), plan)
        .await
        .unwrap();
    let lanes: Vec<LaneName> = store
        .inner
        .parked()
        .into_iter()
        .map(|lane| lane.lane)
        .collect();
    assert_eq!(lanes, [LaneName::keyed("t", "mail", "k")]);
    router.stop(Duration::from_secs(1)).await;
}

/// The lane is to leave when its only message has ended, and then there is nothing to leave.
#[tokio::test(start_paused = true)]
async fn r5_what_was_asked_of_a_lane_is_not_done_to_the_next_lane_of_its_key() {
    let mut rig = Rig::new(plan(&[])).await;
    rig.target.hang("k");
    rig.feed("k", "default", 1);
    eventually("it runs", || rig.target.calls("k").len() == 1).await;
    let router = rig.router.clone();
    let removed = tokio::spawn(async move { router.remove_source("t").await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.target.answer("k");
    assert!(removed.await.unwrap());
    let (source, feeder) = test_source("t");
    let added = rig
        .router
        .add_source("t", source.confirming(), SourcePlan::custom());
    added.await.unwrap();
    (rig.feeder, rig.next) = (feeder, 1);
    rig.target.hang("k");
    rig.feed("k", "default", 5);
    eventually("it is spilled", || rig.stored("default", "k") == 5).await;
    rig.target.answer("k");
    let settled = rig.feeder.settled(5).await;
    let acked = |settled: &Settled| matches!(settled, Settled::Acked(..));
    assert!(settled.iter().all(acked), "{settled:?}");
}
