//! The router looks at its own order: first starts by the source's positions.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_router::dispatch::handler_fn;
use keylane_router::embedded::{Db, Options};
use keylane_router::health::Trouble;
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Cascade, OnExhausted, Plan, PoolPlan};
use keylane_router::store::{LaneName, Store};
use keylane_router::testing::{Answer, random};
use keylane_router::{By, Router};

use super::test_source::{Fed, Feeder, TestSource, test_source};
use super::top::{Top, body, ill_while, quick_plan, until};

const METRIC: &str = "keylane_ordering_violations_total";

/// The metric's lines, without those that explain it.
fn shown(router: &Router) -> Vec<String> {
    let text = router.counters().render(&router.pools());
    let lines = text.lines().filter(|line| line.starts_with(METRIC));
    lines.map(str::to_owned).collect()
}

fn is_quiet(router: &Router) {
    let zero = format!(r#"{METRIC}{{source="default",pool="default"}} 0"#);
    assert_eq!(shown(router), [zero]);
    assert_eq!(router.problems(), []);
}

fn pool(plan: &mut Plan) -> &mut PoolPlan {
    plan.pools.get_mut("default").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sees_no_violation_in_retries_returns_and_whatever_else_is_usual() {
    let answers = vec![
        (60, Answer::ok()),
        (25, Answer::status(500)),
        (5, Answer::status(429).header("retry-after", "0")),
        (5, Answer::not_yet(0)),
        (3, Answer::Reset),
        (2, Answer::CutBody),
    ];
    let mut plan = quick_plan();
    pool(&mut plan).retry.max_attempts = NonZeroUsize::new(2).unwrap();
    pool(&mut plan).on_exhausted = OnExhausted::Return;
    let top = Top::new(plan, random(11, answers)).await;
    let keys: Vec<String> = (0..20).map(|k| format!("key-{k}")).collect();
    for round in 0..4 {
        let of_a_key = |key| (0..5).map(move |n| (key, round * 5 + n));
        let messages: Vec<(&str, u64)> =
            keys.iter().map(String::as_str).flat_map(of_a_key).collect();
        top.publish_all(&messages).await;
    }
    top.drained().await;
    is_quiet(&top.router);
    let counters = top.counters();
    assert!(counters.returned.get() > 0, "nothing went back");
    assert_eq!(counters.delivered.get(), 400);
    top.router.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn it_sees_no_violation_when_a_key_is_parked_and_replayed() {
    let ill = Arc::new(AtomicBool::new(true));
    let mut plan = quick_plan();
    pool(&mut plan).on_exhausted = OnExhausted::Park;
    let top = Top::new(plan, ill_while(&ill)).await;
    top.publish_all(&[("a", 1), ("a", 2), ("a", 3)]).await;
    top.drained().await;
    ill.store(false, Ordering::SeqCst);
    let lane = LaneName::keyed("default", "default", "a");
    let by = By {
        who: "test".to_owned(),
        why: "well again".to_owned(),
    };
    top.router.replay(lane.clone(), by).await.unwrap();
    top.publish("a", 4).await;
    until("nothing is parked", || {
        top.db.store().parked_lane(&lane).is_none()
    })
    .await;
    top.publish("a", 5).await;
    top.drained().await;
    assert_eq!(top.starts("a"), [1, 1, 1, 1, 2, 3, 4, 5]);
    is_quiet(&top.router);
}

/// A router on a test source that delivers everything.
struct OnTestSource {
    _folder: tempfile::TempDir,
    router: Router,
    feeder: Feeder,
}

impl OnTestSource {
    async fn new(plan: Plan, change: impl FnOnce(TestSource) -> TestSource) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Options::default()).unwrap();
        let (source, feeder) = test_source("t");
        let builder = Router::builder()
            .plan(plan)
            .store(db.store())
            .dispatch(handler_fn(|_| async { Outcome::Delivered }));
        let router = builder.source("t", change(source)).start().await.unwrap();
        Self {
            _folder: folder,
            router,
            feeder,
        }
    }

    /// Hands these out, each one when the one before it is settled: a broker that does not keep
    /// its own order.
    async fn deliver(&self, ids: &[u64], key: Option<&str>) {
        let before = self.feeder.settled(0).await.len();
        for (done, id) in ids.iter().enumerate() {
            let body = body("http://127.0.0.1:1/", &id.to_string());
            self.feeder.feed(vec![Fed { id: *id, key, body }]);
            self.feeder.settled(before + done + 1).await;
        }
    }

    fn violations(&self) -> u64 {
        let counters = self.router.counters().of(&"t".into(), &"default".into());
        counters.ordering_violations.get()
    }
}

#[tokio::test]
async fn it_counts_a_message_that_starts_after_a_later_one_of_its_key_and_says_which() {
    let top = OnTestSource::new(quick_plan(), |source| source).await;
    top.deliver(&[3, 1, 4, 2, 5], Some("g")).await;
    let two = format!(r#"{METRIC}{{source="t",pool="default"}} 2"#);
    assert_eq!(shown(&top.router), [two]);
    let problems = top.router.problems();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!((&problem.trouble, problem.times), (&Trouble::Order, 2));
    let said = "source `t`, pool `default`, key `g`: the message at position 2 was started after the one at 4";
    assert!(problem.text.starts_with(said), "{}", problem.text);
}

#[tokio::test]
async fn it_does_not_compare_keys_and_looks_at_serial_keyless_messages_too() {
    let top = OnTestSource::new(quick_plan(), TestSource::serial).await;
    // First, so that no key has its place in the table.
    top.deliver(&[3], None).await;
    top.deliver(&[9], Some("a")).await;
    top.deliver(&[5], Some("b")).await;
    top.deliver(&[4], None).await;
    assert_eq!(top.violations(), 0);
    top.deliver(&[2], None).await;
    assert_eq!(top.violations(), 1);
}

#[tokio::test]
async fn it_compares_messages_of_a_key_whose_codes_mean_one_pool() {
    let top = OnTestSource::new(quick_plan(), |source| source).await;
    let codes = [r#""poolCode":"default","#, "", r#""poolCode":"nobody","#];
    for (done, (id, code)) in [3, 1, 2].into_iter().zip(codes).enumerate() {
        let body = format!(r#"{{"id":"{id}",{code}"mediationTarget":"http://127.0.0.1:1/"}}"#);
        let key = Some("g");
        top.feeder.feed(vec![Fed { id, key, body }]);
        top.feeder.settled(done + 1).await;
    }
    assert_eq!(top.violations(), 2);
}

#[tokio::test]
async fn a_message_that_comes_again_after_it_was_called_is_no_violation() {
    let top = OnTestSource::new(quick_plan(), TestSource::confirming).await;
    top.deliver(&[1, 2, 3, 2, 3, 4], Some("g")).await;
    let counters = top.router.counters().of(&"t".into(), &"default".into());
    assert_eq!(counters.attempts_delivered.get(), 6, "2 and 3 twice");
    assert_eq!(top.violations(), 0);
}

#[tokio::test]
async fn where_a_source_has_no_positions_nothing_is_said() {
    let top = OnTestSource::new(quick_plan(), TestSource::without_positions).await;
    top.deliver(&[3, 1], Some("g")).await;
    assert_eq!(top.violations(), 0);
    let text = top.router.counters().render(&top.router.pools());
    assert!(!text.contains(METRIC), "{text}");
}

#[tokio::test]
async fn where_no_order_of_starts_is_promised_nothing_is_counted() {
    let mut several = quick_plan();
    pool(&mut several).lane_concurrency = NonZeroUsize::new(2).unwrap();
    let mut by_batch = quick_plan();
    pool(&mut by_batch).cascade = Cascade::Batch;
    for plan in [several, by_batch] {
        let top = OnTestSource::new(plan, |source| source).await;
        top.deliver(&[3, 1], Some("g")).await;
        assert_eq!(top.violations(), 0);
        top.router.reload(quick_plan()).await.unwrap();
        top.deliver(&[2, 5, 4], Some("g")).await;
        assert_eq!(top.violations(), 1, "only 4 came late under the new rule");
    }
}

#[tokio::test]
async fn positions_of_a_source_and_of_its_successor_are_not_compared() {
    let top = OnTestSource::new(quick_plan(), |source| source).await;
    top.deliver(&[7], Some("g")).await;
    assert!(top.router.remove_source("t").await);
    let (source, feeder) = test_source("t");
    let plan = keylane_router::plan::SourcePlan::custom();
    top.router.add_source("t", source, plan).await.unwrap();
    let top = OnTestSource { feeder, ..top };
    top.deliver(&[1, 2], Some("g")).await;
    assert_eq!(top.violations(), 0);
}
