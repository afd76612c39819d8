//! R1, R6, R11: random histories of reloads, renames and restarts with stored and live keys and
//! arrivals in between: no key is in two lanes, every key stays in order, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::{Dispatch, handler_fn};
use keylane_router::embedded::{Db, NewMessage, Options};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{
    Envelope, Keyless, OnExhausted, Overflow, Plan, PoolPlan, SourceKind, SourcePlan,
};
use keylane_router::source::{Features, Received, Room, Source, SourceError};
use keylane_router::store::Store;
use keylane_router::{By, Router};
use proptest::prelude::*;
use tokio::sync::watch;

use super::broker::{Broker, BrokerSource, Sent};
use super::top::quick_plan;

/// Keys, and the pool codes that their messages name.
const KEYS: [(&str, &str); 4] = [("k", "a"), ("l", "b"), ("m", "default"), ("n", "a")];
const SOURCES: [&str; 2] = ["s", "t"];
const POOLS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug)]
enum Op {
    Publish(usize, usize),
    Fails(usize),
    Hangs(usize),
    Heal,
    Replay,
    /// Which pools there are beside the default one.
    Pools(bool, bool),
    /// What the source is called, and where raw messages go.
    Source(usize, usize),
    Restart,
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS.len();
    prop_oneof![
        6 => (key(), 1..5_usize).prop_map(|(key, count)| Op::Publish(key, count)),
        2 => key().prop_map(Op::Fails),
        2 => key().prop_map(Op::Hangs),
        1 => Just(Op::Heal),
        1 => Just(Op::Replay),
        4 => (any::<bool>(), any::<bool>()).prop_map(|(a, b)| Op::Pools(a, b)),
        2 => (0..2_usize, 0..2_usize).prop_map(|(name, pool)| Op::Source(name, pool)),
        1 => Just(Op::Restart),
        4 => (1..60_u64).prop_map(Op::Wait),
    ]
}

/// The target. It judges each start of a message.
#[derive(Clone, Default)]
struct Target {
    state: Arc<Mutex<State>>,
    hangs: watch::Sender<HashSet<String>>,
}

#[derive(Default)]
struct State {
    fails: HashSet<String>,
    delivered: HashMap<String, BTreeSet<u64>>,
    running: HashSet<String>,
    /// Of raw messages, by the broker's ids.
    names: HashMap<String, (String, u64)>,
    wrong: Vec<String>,
}

impl Target {
    fn dispatch(&self) -> impl Dispatch + use<> {
        let target = self.clone();
        handler_fn(move |message| {
            let (target, id) = (target.clone(), message.id.to_string());
            async move { target.call(&id).await }
        })
    }

    async fn call(&self, id: &str) -> Outcome {
        let (key, n) = self.start(id);
        // Cut off, it does not run any more.
        let _running = Running(&self.state, &key);
        let mut hangs = self.hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs.contains(&key)).await;
        let mut state = self.state.lock().unwrap();
        if state.fails.contains(&key) {
            return Outcome::Failed(Reason::default());
        }
        state.delivered.entry(key.clone()).or_default().insert(n);
        Outcome::Delivered
    }

    fn start(&self, id: &str) -> (String, u64) {
        let mut state = self.state.lock().unwrap();
        let (key, n) = match id.split_once('/') {
            Some((key, n)) => (key.to_owned(), n.parse().unwrap()),
            None => state.names[id].clone(),
        };
        let done = state.delivered.get(&key).cloned().unwrap_or_default();
        if let Some(missing) = (1..n).find(|n| !done.contains(n)) {
            let text = format!("{key}/{n} started before {key}/{missing} was delivered");
            state.wrong.push(text);
        }
        if !state.running.insert(key.clone()) {
            state
                .wrong
                .push(format!("{key}/{n} started beside another"));
        }
        (key, n)
    }
}

struct Running<'a>(&'a Mutex<State>, &'a str);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().running.remove(self.1);
    }
}

/// The broker's source, of one queue under any name, with bodies that name pools or are raw.
struct Named {
    inner: BrokerSource,
    raw: bool,
}

impl Source for Named {
    type Receipt = u64;
    type Settler = Broker;

    fn features(&self) -> Features {
        self.inner.features()
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some("q".into())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<u64>>, SourceError> {
        let mut received = self.inner.receive(room).await?;
        for message in received.iter_mut().filter(|_| !self.raw) {
            let value: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
            let id = value["id"].as_str().unwrap();
            message.body = body(id).into();
        }
        Ok(received)
    }

    fn settler(&self) -> Broker {
        self.inner.settler()
    }

    async fn close(self) {
        self.inner.close().await;
    }
}

fn body(id: &str) -> String {
    let key = id.split_once('/').unwrap().0;
    let pool = KEYS.iter().find(|(of, _)| *of == key).unwrap().1;
    format!(
        r#"{{"id":"{id}","messageGroupId":"{key}","poolCode":"{pool}","mediationTarget":"http://t/"}}"#
    )
}

/// Where messages are published and stored.
enum Place {
    Broker(Broker, MemoryStore),
    File(
        Db,
        #[allow(dead_code, reason = "removed when dropped")] tempfile::TempDir,
    ),
}

struct World {
    place: Place,
    raw: bool,
    router: Router,
    target: Target,
    pools: (bool, bool),
    source: (usize, usize),
    published: BTreeMap<&'static str, u64>,
    ids: u64,
}

fn pool() -> PoolPlan {
    let mut pool = quick_plan().pools["default"].clone();
    pool.overflow = Some(Overflow::Spill);
    pool.lane_capacity = NonZeroUsize::new(2).unwrap();
    pool.retry.max_attempts = NonZeroUsize::new(2).unwrap();
    pool.on_exhausted = OnExhausted::Park;
    pool.drain = Some(Duration::from_millis(20));
    pool
}

fn plan(place: &Place, raw: bool, pools: (bool, bool), source: (usize, usize)) -> Plan {
    let mut plan = quick_plan();
    plan.pools.insert("default".into(), pool());
    for (name, is_there) in POOLS.into_iter().zip([pools.0, pools.1]) {
        if is_there {
            plan.pools.insert(name.into(), pool());
        }
    }
    let kind = match place {
        Place::Broker(..) => SourceKind::Custom,
        Place::File(..) => SourceKind::Embedded { queue: "q".into() },
    };
    let envelope = match raw {
        true => Envelope::Raw {
            pool: POOLS[source.1].into(),
            target: "http://t/".into(),
        },
        false => Envelope::Keylane,
    };
    let of = SourcePlan {
        kind,
        envelope,
        window: NonZeroUsize::new(8).unwrap(),
        ..SourcePlan::custom()
    };
    plan.sources.insert(SOURCES[source.0].into(), of);
    plan
}

fn store(place: &Place) -> Arc<dyn Store> {
    match place {
        Place::Broker(_, store) => Arc::new(store.clone()),
        Place::File(db, _) => Arc::new(db.store()),
    }
}

async fn start(place: &Place, raw: bool, plan: Plan, target: &Target) -> Router {
    let builder = Router::builder()
        .plan(plan.clone())
        .shared_store(store(place));
    let router = builder.dispatch(target.dispatch()).start().await.unwrap();
    add(place, raw, &plan, &router).await;
    router
}

async fn add(place: &Place, raw: bool, plan: &Plan, router: &Router) {
    let (name, of) = plan.sources.first_key_value().unwrap();
    let added = match place {
        Place::Broker(broker, _) => {
            let inner = broker.source(name);
            router
                .add_source(name.clone(), Named { inner, raw }, of.clone())
                .await
        }
        Place::File(db, _) => {
            let source = db.source(name.clone(), "q", Keyless::Serial).await.unwrap();
            router.add_source(name.clone(), source, of.clone()).await
        }
    };
    added.unwrap();
}

impl World {
    async fn new(place: Place, raw: bool) -> Self {
        let target = Target::default();
        let (pools, source) = ((true, false), (0, 0));
        let plan = plan(&place, raw, pools, source);
        let router = start(&place, raw, plan, &target).await;
        Self {
            place,
            raw,
            router,
            target,
            pools,
            source,
            published: BTreeMap::new(),
            ids: 0,
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.place, self.raw, self.pools, self.source)
    }

    async fn step(&mut self, op: &Op) {
        match op {
            Op::Publish(key, count) => self.publish(KEYS[*key].0, *count).await,
            Op::Fails(key) => {
                let mut state = self.target.state.lock().unwrap();
                state.fails.insert(KEYS[*key].0.to_owned());
            }
            Op::Hangs(key) => {
                let key = KEYS[*key].0.to_owned();
                self.target.hangs.send_modify(|hangs| hangs.extend([key]));
            }
            Op::Heal => self.heal(),
            Op::Replay => self.replay().await,
            Op::Pools(a, b) => {
                self.pools = (*a, *b);
                self.router.reload(self.plan()).await.unwrap();
            }
            Op::Source(name, pool) => self.change_source((*name, *pool)).await,
            Op::Restart => {
                self.judge();
                self.router.cut();
                self.router.stop(Duration::from_millis(10)).await;
                let plan = self.plan();
                self.router = start(&self.place, self.raw, plan, &self.target).await;
            }
            Op::Wait(millis) => tokio::time::sleep(Duration::from_millis(*millis)).await,
        }
        self.judge();
    }

    /// As the program does.
    async fn change_source(&mut self, source: (usize, usize)) {
        let before = SOURCES[self.source.0];
        if source == self.source {
            return;
        }
        self.source = source;
        // What runs of the source is waited for.
        self.target.hangs.send_modify(HashSet::clear);
        let plan = self.plan();
        self.router.reload(plan.clone()).await.unwrap();
        assert!(self.router.remove_source(before).await);
        add(&self.place, self.raw, &plan, &self.router).await;
    }

    async fn publish(&mut self, key: &'static str, count: usize) {
        let mut messages = Vec::new();
        for _ in 0..count {
            let n = self.published.entry(key).or_default();
            *n += 1;
            self.ids += 1;
            let mut state = self.target.state.lock().unwrap();
            state
                .names
                .insert(self.ids.to_string(), (key.to_owned(), *n));
            messages.push(*n);
        }
        match &self.place {
            Place::Broker(broker, _) => broker.publish(messages.into_iter().map(|n| Sent {
                key: Some(key.to_owned()),
                n,
                bytes: 10,
            })),
            Place::File(db, _) => {
                let message = |n: u64| {
                    let id = format!("{key}/{n}");
                    let code = KEYS.iter().find(|(of, _)| *of == key).unwrap().1;
                    NewMessage {
                        pool: Some(code.into()),
                        ..NewMessage::new(id.clone(), Some(key.into()), body(&id))
                    }
                };
                let messages = messages.into_iter().map(message).collect();
                db.publish("q", messages, true).await.unwrap();
            }
        }
    }

    fn heal(&self) {
        self.target.state.lock().unwrap().fails.clear();
        self.target.hangs.send_modify(HashSet::clear);
    }

    async fn replay(&self) {
        let by = By {
            who: "ann".to_owned(),
            why: "a test".to_owned(),
        };
        for parked in store(&self.place).parked() {
            if !parked.replaying && parked.messages > 0 {
                // Refused while its pool is leaving.
                let _ = self.router.replay(parked.lane, by.clone()).await;
            }
        }
    }

    fn judge(&self) {
        let wrong = self.target.state.lock().unwrap().wrong.clone();
        assert!(wrong.is_empty(), "{wrong:?}");
        let mut lanes = BTreeSet::new();
        for parked in store(&self.place).parked() {
            if parked.messages > 0 {
                let key = parked.lane.key.clone();
                assert!(lanes.insert(key.clone()), "{key:?} is stored in two lanes");
            }
        }
        let mut violations = 0;
        for (pool, source) in [
            ("a", "s"),
            ("a", "t"),
            ("b", "s"),
            ("b", "t"),
            ("default", "s"),
            ("default", "t"),
        ] {
            let counters = self.router.counters().of(&source.into(), &pool.into());
            violations += counters.ordering_violations.get();
        }
        assert_eq!(violations, 0, "the router saw a violation");
    }

    /// Everything is delivered in the end.
    async fn end(mut self) {
        self.heal();
        let is_done = |world: &Self| {
            let state = world.target.state.lock().unwrap();
            let of = |key: &str| state.delivered.get(key).map_or(0, BTreeSet::len) as u64;
            world.published.iter().all(|(key, count)| of(key) == *count)
        };
        for _ in 0..4000 {
            self.replay().await;
            self.judge();
            if is_done(&self) && store(&self.place).parked().is_empty() {
                self.router.stop(Duration::from_secs(1)).await;
                return;
            }
            self.step(&Op::Wait(5)).await;
        }
        let delivered = self.target.state.lock().unwrap().delivered.clone();
        let stored = store(&self.place).parked();
        panic!(
            "{:?} were published, {delivered:?} delivered, and stored are {stored:?}",
            self.published
        );
    }
}

async fn history(place: Place, raw: bool, ops: Vec<Op>) {
    let mut world = World::new(place, raw).await;
    for op in &ops {
        world.step(op).await;
    }
    world.end().await;
}

fn runtime(paused: bool) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(paused);
    builder.build().unwrap()
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 5..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn r11_no_reload_rename_or_restart_overtakes_or_loses_a_stored_key(
        raw in any::<bool>(), ops in ops()
    ) {
        let place = Place::Broker(Broker::default(), MemoryStore::default());
        runtime(true).block_on(history(place, raw, ops));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn r11_no_reload_rename_or_restart_overtakes_or_loses_a_stored_key_of_the_embedded_queue(
        ops in ops()
    ) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            risk_losing_accepted_messages_on_power_loss: true,
            ..Options::default()
        };
        let db = Db::open(folder.path(), options).unwrap();
        runtime(false).block_on(history(Place::File(db, folder), false, ops));
    }
}
