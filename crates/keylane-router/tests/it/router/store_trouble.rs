//! R3, R8: a store that fails or panics holds the lane that needs it, says so, and loses nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::handler_fn;
use keylane_router::health::Trouble;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnExhausted, Plan};

use super::odd_store::{Does, OddStore};
use super::test_source::{Fed, Feeder, Settled, test_source};
use super::top::{as_the_original, body, quick_plan};

/// Calls `answer` for each message; notes their order.
struct Rig {
    router: Router,
    feeder: Feeder,
    calls: Arc<Mutex<Vec<String>>>,
}

async fn rig(plan: Plan, store: OddStore, answer: fn(&str, usize) -> Outcome) -> Rig {
    let (source, feeder) = test_source("t");
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = calls.clone();
    let dispatch = handler_fn(move |message| {
        let mut noted = noted.lock().unwrap();
        noted.push(message.id.to_string());
        let times = noted.iter().filter(|id| **id == *message.id).count();
        let outcome = answer(&message.id, times);
        async move { outcome }
    });
    let mut plan = plan;
    plan.stall_after = Duration::ZERO;
    let router = Router::builder()
        .plan(plan)
        .store(store)
        .dispatch(dispatch)
        .source("t", source)
        .start()
        .await
        .unwrap();
    Rig {
        router,
        feeder,
        calls,
    }
}

impl Rig {
    fn is_in_trouble(&self) -> bool {
        let problems = self.router.problems();
        problems.iter().any(|known| known.trouble == Trouble::Store)
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

fn fed(id: u64, key: &str) -> Fed<'_> {
    Fed {
        id,
        key: Some(key),
        body: body("http://unused/", &id.to_string()),
    }
}

const MOMENT: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn a_write_that_succeeds_does_not_hide_one_that_cannot() {
    let full = Arc::new(AtomicBool::new(true));
    let is_full = full.clone();
    let store =
        OddStore::new(
            move |call| match call == "dead_letter" && is_full.load(Ordering::SeqCst) {
                true => Does::Fails,
                false => Does::Well,
            },
        );
    let rig = rig(quick_plan(), store, |id, times| match (id, times) {
        ("1", _) => Outcome::Refused(Reason::default()),
        ("2", 1) => Outcome::Failed(Reason::default()),
        _ => Outcome::Delivered,
    })
    .await;
    rig.feeder.feed(vec![fed(1, "refused")]);
    tokio::time::sleep(MOMENT).await;
    assert!(rig.is_in_trouble());
    let shown = rig.router.counters().render(&rig.router.pools());
    let waits = "keylane_lanes_blocked{pool=\"default\",reason=\"store\"} 1\n";
    assert!(shown.contains(waits), "{shown}");
    // Its failed attempt can be written down.
    rig.feeder.feed(vec![fed(2, "other")]);
    assert_eq!(rig.feeder.settled(1).await, [Settled::Acked(2, 2)]);
    assert!(rig.is_in_trouble(), "the first waits for the store still");
    full.store(false, Ordering::SeqCst);
    rig.feeder.settled(2).await;
    assert!(!rig.is_in_trouble());
    let shown = rig.router.counters().render(&rig.router.pools());
    assert!(shown.contains(&waits.replace(" 1", " 0")), "{shown}");
}

/// Panics the first two times.
fn panics(which: &'static str) -> OddStore {
    let times = Arc::new(AtomicUsize::new(0));
    OddStore::new(
        move |call| match call == which && times.fetch_add(1, Ordering::SeqCst) < 2 {
            true => Does::Panics,
            false => Does::Well,
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_failed_attempt_is_written_down_keeps_the_message_in_its_place() {
    let store = panics("failed_attempt");
    let rig = rig(quick_plan(), store, |id, times| match (id, times) {
        ("1", 1..=2) => Outcome::Failed(Reason::default()),
        _ => Outcome::Delivered,
    })
    .await;
    rig.feeder.feed(vec![fed(1, "k"), fed(2, "k")]);
    let settled = rig.feeder.settled(2).await;
    assert_eq!(settled, [Settled::Acked(1, 1), Settled::Acked(2, 2)]);
    assert_eq!(rig.calls(), ["1", "1", "1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_key_is_parked_keeps_it_whole_and_in_order() {
    let mut plan = as_the_original();
    plan.pools.get_mut("default").unwrap().on_exhausted = OnExhausted::Park;
    let rig = rig(plan, panics("park"), |id, _| match id {
        "1" => Outcome::Failed(Reason::default()),
        _ => Outcome::Delivered,
    })
    .await;
    rig.feeder.feed(vec![fed(1, "k"), fed(2, "k")]);
    let settled = rig.feeder.settled(2).await;
    assert_eq!(settled, [Settled::Acked(1, 1), Settled::Acked(2, 2)]);
    assert_eq!(rig.calls(), ["1"], "the second is parked behind the first");
}
