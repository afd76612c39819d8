//! R12: leases are renewed in time, no attempt starts on a lost one, what came of an attempt whose
//! lease was lost settles nothing, and nothing overtakes what is given again.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::counters::Counters;
use keylane_router::dispatch::{
    Dispatch, HttpDispatch, HttpOptions, Resolve, Resolving, handler_fn,
};
use keylane_router::lease::LeaseClock;
use keylane_router::message::{BrokerId, Identity};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{OnExhausted, Overflow, Plan};
use keylane_router::source::SettleError;
use keylane_router::store::LaneName;
use keylane_router::testing::{Answer, Target, fixed};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::test_source::{Fed, Feeder, Settled, TestSource, test_source};
use super::top::{body, quick_plan, until};

const LEASE: Duration = Duration::from_secs(40);

/// Tokio's clock, and the time that the machine was asleep.
#[derive(Clone, Debug)]
pub(crate) struct TestClock {
    began: Instant,
    asleep: Arc<AtomicU64>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self {
            // Not 0: a lease that ends at 0 would be a lost one.
            began: Instant::now() - Duration::from_secs(1),
            asleep: Arc::default(),
        }
    }

    /// The machine sleeps: no timer notices.
    pub(crate) fn suspend(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.asleep.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl LeaseClock for TestClock {
    fn now(&self) -> Duration {
        self.began.elapsed() + Duration::from_nanos(self.asleep.load(Ordering::SeqCst))
    }
}

/// A router on a source that lends for a time.
struct Leased {
    router: Router,
    feeder: Feeder,
    clock: TestClock,
    target: InProcess,
}

/// A target in this process: writes down what is called, and answers when told to.
#[derive(Clone)]
struct InProcess {
    calls: Arc<Mutex<Vec<u64>>>,
    /// What is answered at once; the others wait for `go` and are delivered.
    answers: Arc<Mutex<HashMap<u64, Outcome>>>,
    go: Arc<Semaphore>,
    /// What is answered then instead of "delivered".
    late: Arc<Mutex<HashMap<u64, Outcome>>>,
}

impl InProcess {
    fn new() -> Self {
        Self {
            calls: Arc::default(),
            answers: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            late: Arc::default(),
        }
    }

    fn dispatch(&self) -> impl Dispatch + use<> {
        let this = self.clone();
        handler_fn(move |message| {
            let this = this.clone();
            async move {
                let id: u64 = message.id.parse().unwrap();
                this.calls.lock().unwrap().push(id);
                let answer = this.answers.lock().unwrap().get(&id).cloned();
                if let Some(answer) = answer {
                    return answer;
                }
                this.go.acquire().await.unwrap().forget();
                let late = this.late.lock().unwrap().remove(&id);
                late.unwrap_or(Outcome::Delivered)
            }
        })
    }

    fn answer(&self, id: u64, outcome: Outcome) {
        self.answers.lock().unwrap().insert(id, outcome);
    }

    fn calls(&self) -> Vec<u64> {
        self.calls.lock().unwrap().clone()
    }
}

/// Holds the lane without a write to the store: a thread's work would let the paused clock run.
fn busy(after: Duration) -> Outcome {
    Outcome::Busy {
        after: Some(after),
        reason: Reason::default(),
    }
}

async fn leased(of: impl FnOnce(TestSource) -> TestSource) -> Leased {
    let target = InProcess::new();
    with(of, target.dispatch(), TestClock::new(), target).await
}

async fn with(
    of: impl FnOnce(TestSource) -> TestSource,
    dispatch: impl Dispatch,
    clock: TestClock,
    target: InProcess,
) -> Leased {
    let (source, feeder) = test_source("t");
    let router = Router::builder()
        .plan(patient_plan())
        .store(MemoryStore::default())
        .dispatch(dispatch)
        .lease_clock(clock.clone())
        .source("t", of(source.leased(LEASE)))
        .start()
        .await
        .unwrap();
    Leased {
        router,
        feeder,
        clock,
        target,
    }
}

/// Waits as long as it is told to.
pub(crate) fn patient_plan() -> Plan {
    let mut plan = quick_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.busy_max = Duration::from_secs(36_000);
    pool.on_exhausted = OnExhausted::Block;
    plan
}

impl Leased {
    fn feed(&self, ids: impl IntoIterator<Item = u64>) -> u64 {
        self.feed_key("g", ids)
    }

    fn feed_key(&self, key: &str, ids: impl IntoIterator<Item = u64>) -> u64 {
        let fed = |id: u64| Fed {
            id,
            key: Some(key),
            body: body("http://127.0.0.1:1/", &id.to_string()),
        };
        self.feeder.feed(ids.into_iter().map(fed).collect())
    }

    async fn called(&self, ids: &[u64]) {
        until("it is called", || self.target.calls() == ids).await;
    }

    fn counters(&self) -> Arc<Counters> {
        self.router.counters().of(&"t".into(), &"default".into())
    }

    async fn lost(&self, count: u64) {
        until("leases are lost", || {
            self.counters().lost_leases.get() == count
        })
        .await;
    }

    async fn nothing_is_held(&self) {
        until("nothing is held", || {
            let pools = self.router.pools();
            let empty = pools.iter().all(|pool| pool.lanes == 0);
            empty && self.router.held(["1", "2", "3"]).is_empty()
        })
        .await;
    }

    /// When the leases of a message were renewed.
    fn renewed(&self, id: u64) -> Vec<Instant> {
        let renewed = self.feeder.settler.renewed.lock().unwrap();
        let of_it = renewed.iter().filter(|(receipt, _)| receipt.0 == id);
        of_it.map(|(_, at)| *at).collect()
    }

    fn not_renewed(&self, id: u64, error: Option<SettleError>) {
        let mut not_renewed = self.feeder.settler.not_renewed.lock().unwrap();
        match error {
            Some(error) => drop(not_renewed.insert(id, error)),
            None => drop(not_renewed.remove(&id)),
        }
    }

    /// R14: what was received is accounted for.
    fn balances(&self) {
        let counters = self.counters();
        let resolved: u64 = counters
            .resolved()
            .iter()
            .map(|(_, count)| count.get())
            .sum();
        assert_eq!(counters.received.get(), resolved);
    }
}

fn gone() -> Option<SettleError> {
    Some(SettleError::Lost("another has it".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn r12_what_waits_for_room_in_its_lane_is_renewed_in_time() {
    let top = leased(|source| source).await;
    let mut plan = patient_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.overflow = Some(Overflow::Wait);
    pool.lane_capacity = NonZeroUsize::MIN;
    top.router.reload(plan).await.unwrap();
    top.target.answer(1, busy(3 * LEASE));
    top.feed(1..=4);
    tokio::time::sleep(2 * LEASE).await;
    for id in 1..=4 {
        assert!(top.renewed(id).len() >= 3, "{id}: {:?}", top.renewed(id));
    }
    assert_eq!(top.counters().lost_leases.get(), 0);
    top.target.answers.lock().unwrap().clear();
    top.target.go.add_permits(4);
    top.feeder.settled(4).await;
    assert_eq!(top.target.calls(), [1, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn what_runs_waits_is_held_or_paused_is_renewed_in_time() {
    let top = leased(|source| source).await;
    top.target.answer(4, busy(Duration::from_secs(7200)));
    let paused = LaneName::keyed("t", "default", "paused");
    let by = keylane_router::By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    top.router.pause(paused, by).await.unwrap();
    top.feed([1, 2]);
    top.feed_key("held", [4]);
    top.feed_key("paused", [5]);
    until("called", || top.target.calls().len() == 2).await;
    let fed = Instant::now();
    tokio::time::sleep(LEASE * 10).await;
    assert_eq!(top.counters().lost_leases.get(), 0);
    for id in [1, 2, 4, 5] {
        let mut before = fed;
        for at in top.renewed(id).into_iter().chain([Instant::now()]) {
            let left = LEASE.saturating_sub(at - before);
            assert!(left > LEASE / 3, "{id} had only {left:?} left");
            before = at;
        }
    }
    top.target.go.add_permits(10);
    until("called", || top.target.calls().len() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_out_nothing_is_renewed() {
    let top = leased(|source| source).await;
    top.target.go.add_permits(10);
    top.feed([1]);
    top.feeder.settled(1).await;
    tokio::time::sleep(LEASE * 10).await;
    assert_eq!(top.renewed(1), []);
}

#[tokio::test(start_paused = true)]
async fn r12_no_attempt_starts_on_a_lost_lease() {
    let top = leased(|source| source).await;
    top.target.answer(1, busy(Duration::from_secs(1)));
    top.feed([1, 2, 3]);
    top.called(&[1]).await;
    // The hold ends before anybody looks at the leases: only the attempt itself can.
    top.clock.suspend(LEASE * 2);
    top.lost(3).await;
    top.nothing_is_held().await;
    assert_eq!(top.target.calls(), [1], "called on a lost lease");
    assert_eq!(top.feeder.all_settled(), []);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn r12_what_is_lost_comes_again_in_order() {
    let top = leased(|source| source).await;
    top.target.answer(1, busy(Duration::from_secs(1)));
    top.feed([1, 2, 3]);
    top.called(&[1]).await;
    top.clock.suspend(LEASE * 2);
    top.lost(3).await;
    top.target.answer(1, Outcome::Delivered);
    top.target.go.add_permits(10);
    top.feed([1, 2, 3]);
    top.feeder.settled(3).await;
    assert_eq!(top.target.calls(), [1, 1, 2, 3]);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn r12_what_came_of_an_attempt_settles_nothing_after_the_lease_and_is_not_called_again() {
    let top = leased(TestSource::confirming).await;
    top.feed([1, 2]);
    top.called(&[1]).await;
    top.clock.suspend(LEASE * 2);
    top.target.go.add_permits(1);
    top.lost(2).await;
    top.nothing_is_held().await;
    assert_eq!(top.feeder.all_settled(), []);
    // Its target has it: it needs no second call, but its ack.
    let again = top.feed([1, 2]);
    assert_eq!(top.feeder.settled(1).await, [Settled::Acked(1, again)]);
    top.target.go.add_permits(1);
    top.feeder.settled(2).await;
    assert_eq!(top.target.calls(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn r12_received_again_while_it_runs_it_is_settled_with_the_new_receipt() {
    let top = leased(TestSource::confirming).await;
    top.feed([1, 2]);
    top.called(&[1]).await;
    top.clock.suspend(LEASE * 2);
    let newest = top.feed([1, 2]);
    until("it came again", || top.counters().redelivered.get() == 2).await;
    top.target.go.add_permits(2);
    let settled = top.feeder.settled(2).await;
    assert_eq!(
        settled,
        [Settled::Acked(1, newest), Settled::Acked(2, newest + 1)]
    );
    assert_eq!(top.target.calls(), [1, 2]);
    assert_eq!(top.counters().lost_leases.get(), 0);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn r12_a_failed_attempt_on_a_lost_lease_is_written_down_and_settles_nothing() {
    let top = leased(TestSource::returning).await;
    let failed = Outcome::Failed(Reason::default());
    top.target.late.lock().unwrap().insert(1, failed);
    top.feed([1]);
    top.called(&[1]).await;
    top.clock.suspend(LEASE * 2);
    top.target.go.add_permits(1);
    top.lost(1).await;
    assert_eq!(top.feeder.all_settled(), []);
    let identity = Identity {
        source: "t".into(),
        id: BrokerId::Sequence(1),
    };
    assert_eq!(top.router.store().stay(&identity).failed, 1);
}

#[tokio::test(start_paused = true)]
async fn r12_what_is_behind_a_lost_head_goes_back_in_order_and_overtakes_nothing() {
    let top = leased(TestSource::returning).await;
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    let first = top.feed([1, 2, 3]);
    top.called(&[1]).await;
    top.not_renewed(1, gone());
    top.lost(1).await;
    let settled = top.feeder.settled(2).await;
    assert_eq!(
        settled,
        [
            Settled::Returned(2, first + 1),
            Settled::Returned(3, first + 2)
        ]
    );
    top.nothing_is_held().await;
    top.not_renewed(1, None);
    top.target.answer(1, Outcome::Delivered);
    top.target.go.add_permits(10);
    top.feed([1, 2, 3]);
    top.feeder.settled(5).await;
    assert_eq!(top.target.calls(), [1, 1, 2, 3]);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_behind_a_head_that_is_ours_waits_for_its_turn_or_comes_again_in_its_place() {
    let top = leased(TestSource::returning).await;
    top.feed([1, 2, 3]);
    top.called(&[1]).await;
    top.not_renewed(2, gone());
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(top.counters().lost_leases.get(), 0);
    top.not_renewed(2, None);
    let again = top.feed([2]);
    until("it came again", || top.counters().redelivered.get() == 1).await;
    top.target.go.add_permits(10);
    let settled = top.feeder.settled(3).await;
    assert_eq!(settled[1], Settled::Acked(2, again));
    assert_eq!(top.target.calls(), [1, 2, 3]);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn what_lost_its_lease_leaves_a_paused_lane() {
    let top = leased(|source| source).await;
    let lane = LaneName::keyed("t", "default", "g");
    let by = keylane_router::By {
        who: "test".to_owned(),
        why: "test".to_owned(),
    };
    top.router.pause(lane, by).await.unwrap();
    top.feed([1, 2]);
    until("received", || top.counters().received.get() == 2).await;
    top.clock.suspend(LEASE * 2);
    top.lost(2).await;
    top.nothing_is_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_when_it_ends_and_health_says_why() {
    let top = leased(|source| source).await;
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    top.feed([1]);
    top.called(&[1]).await;
    let away = SettleError::Again("the broker is away".to_owned());
    top.not_renewed(1, Some(away));
    let since = Instant::now();
    top.lost(1).await;
    assert!(since.elapsed() >= LEASE * 3 / 4, "{:?}", since.elapsed());
    let problems = top.router.problems();
    assert!(
        problems[0].text.contains("the broker is away"),
        "{problems:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn r12_what_a_stopped_process_finds_on_waking_is_renewed_before_it_is_touched() {
    let top = leased(|source| source).await;
    tokio::time::sleep(LEASE).await;
    // As a broker that answered while the process was stopped, and gave 2 to somebody else.
    top.clock.suspend(LEASE * 2);
    top.not_renewed(2, gone());
    let first = top.feed([1, 2, 3]);
    top.called(&[1]).await;
    assert_eq!(top.feeder.all_settled(), [Settled::Returned(3, first + 2)]);
    assert_eq!(top.counters().received.get(), 1);
    // What comes after that is new.
    tokio::time::sleep(LEASE).await;
    top.not_renewed(2, None);
    top.target.go.add_permits(10);
    top.feed([2, 3]);
    top.feeder.settled(4).await;
    assert_eq!(top.target.calls(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn r12_an_ack_that_waited_longer_than_the_lease_is_not_sent_and_counted() {
    let top = leased(TestSource::confirming).await;
    top.feeder.settler.failing_acks.store(1, Ordering::SeqCst);
    top.target.go.add_permits(1);
    top.feed([1]);
    until("tried", || {
        top.feeder.settler.failing_acks.load(Ordering::SeqCst) == 0
    })
    .await;
    top.clock.suspend(LEASE * 2);
    until("late", || top.counters().late_settlements.get() == 1).await;
    top.nothing_is_held().await;
    assert_eq!(top.feeder.all_settled(), []);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn r12_no_attempt_starts_on_what_was_lent_over_a_connection_that_ended() {
    let top = leased(|source| source).await;
    let connection = top.feeder.settler.connected();
    top.feed([1, 2, 3]);
    top.called(&[1]).await;
    connection.cut();
    top.target.go.add_permits(10);
    top.lost(3).await;
    top.nothing_is_held().await;
    assert_eq!(top.target.calls(), [1], "called after the connection ended");
    assert_eq!(top.feeder.all_settled(), []);
    // Over the next one it is lent anew. What was delivered needs only its ack.
    top.feeder.settler.connected();
    top.feed([1, 2, 3]);
    top.feeder.settled(3).await;
    assert_eq!(top.target.calls(), [1, 2, 3]);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn r12_what_comes_again_over_the_next_connection_keeps_its_place() {
    let top = leased(|source| source).await;
    let connection = top.feeder.settler.connected();
    top.feed([1, 2]);
    top.called(&[1]).await;
    connection.cut();
    top.feeder.settler.connected();
    let newest = top.feed([1, 2]);
    until("it came again", || top.counters().redelivered.get() == 2).await;
    top.target.go.add_permits(2);
    let settled = top.feeder.settled(2).await;
    assert_eq!(
        settled,
        [Settled::Acked(1, newest), Settled::Acked(2, newest + 1)]
    );
    assert_eq!(top.target.calls(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn r12_a_loan_that_ends_by_the_clock_ends_its_connection_and_all_that_was_lent_over_it() {
    let top = leased(|source| source).await;
    let connection = top.feeder.settler.connected();
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    top.feed_key("a", [1]);
    top.called(&[1]).await;
    let away = SettleError::Again("the broker is away".to_owned());
    top.not_renewed(1, Some(away));
    tokio::time::sleep(LEASE * 3 / 4).await;
    assert!(connection.holds());
    // Lent later, and to be renewed for long.
    top.feed_key("b", [2, 3]);
    until("called", || top.target.calls() == [1, 2]).await;
    until("the connection is given up", || !connection.holds()).await;
    top.target.go.add_permits(10);
    top.lost(3).await;
    top.nothing_is_held().await;
    assert_eq!(top.target.calls(), [1, 2], "3 was called on a lost lease");
}

#[tokio::test(start_paused = true)]
async fn r12_an_ack_that_came_too_late_ends_the_connection_it_was_for() {
    let top = leased(TestSource::confirming).await;
    let connection = top.feeder.settler.connected();
    top.feeder.settler.failing_acks.store(1, Ordering::SeqCst);
    top.target.go.add_permits(1);
    top.feed([1]);
    until("tried", || {
        top.feeder.settler.failing_acks.load(Ordering::SeqCst) == 0
    })
    .await;
    top.clock.suspend(LEASE * 2);
    until("late", || top.counters().late_settlements.get() == 1).await;
    assert!(
        !connection.holds(),
        "the broker still believes us to have it"
    );
}

/// Finds the target's address, and meanwhile the lease ends.
#[derive(Debug)]
struct SlowResolver(TestClock);

impl Resolve for SlowResolver {
    fn resolve<'a>(&'a self, _host: &'a str, port: u16) -> Resolving<'a> {
        self.0.suspend(LEASE * 2);
        Box::pin(async move { Ok(vec![([127, 0, 0, 1], port).into()]) })
    }
}

#[tokio::test]
async fn r12_a_request_is_not_written_when_the_lease_ended_while_its_connection_was_made() {
    let clock = TestClock::new();
    let target = Target::start(fixed(Answer::ok())).await;
    let options = HttpOptions {
        resolver: Arc::new(SlowResolver(clock.clone())),
        loopback: true,
        ..HttpOptions::default()
    };
    let dispatch = HttpDispatch::new(options);
    let top = with(|source| source, dispatch, clock, InProcess::new()).await;
    let url = target.url("/").replace("127.0.0.1", "slow.example");
    top.feeder.feed(vec![Fed {
        id: 1,
        key: Some("g"),
        body: body(&url, "1"),
    }]);
    top.lost(1).await;
    assert_eq!(top.counters().attempts_failed.get(), 0);
    assert_eq!(target.recorder().requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_out_for_nearly_as_long_as_it_may_be_goes_back_whole_and_in_order() {
    let longest = LEASE * 20;
    let top = leased(|source| source.returning().longest(longest)).await;
    let hours = Duration::from_secs(36_000);
    top.target.answer(1, busy(hours));
    for _ in 0..2 {
        // Also when it came again: that is another loan.
        let (begun, before) = (Instant::now(), top.feeder.all_settled().len());
        top.feed([1, 2, 3]);
        tokio::time::sleep(longest - LEASE * 3).await;
        assert_eq!(top.feeder.all_settled().len(), before);
        let settled = top.feeder.settled(before + 3).await;
        assert!(begun.elapsed() < longest - LEASE * 3 / 2);
        let returned: Vec<u64> = settled[before..]
            .iter()
            .map(|settled| match settled {
                Settled::Returned(id, _) => *id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(returned, [1, 2, 3]);
    }
    // Nothing was lost, and nothing called but the head.
    assert_eq!(top.counters().lost_leases.get(), 0);
    assert_eq!(top.target.calls(), [1, 1]);
    top.balances();
}

/// A broker's consumer timeout, with several instances: nothing is spilled there.
#[tokio::test(start_paused = true)]
async fn where_nothing_is_spilled_the_longest_loans_go_back_at_once_and_whole() {
    let longest = LEASE * 20;
    let top = leased(|source| source.taking_back().longest(longest)).await;
    let mut plan = patient_plan();
    plan.pools.get_mut("default").unwrap().overflow = Some(Overflow::Wait);
    top.router.reload(plan).await.unwrap();
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    let begun = Instant::now();
    top.feed([1, 2, 3]);
    tokio::time::sleep(longest - LEASE * 3).await;
    let settled = top.feeder.settled(3).await;
    assert!(begun.elapsed() < longest - LEASE, "it was too late");
    let returned = |settled: &Settled| match settled {
        Settled::Returned(id, _) => *id,
        other => panic!("{other:?}"),
    };
    assert_eq!(settled.iter().map(returned).collect::<Vec<_>>(), [1, 2, 3]);
    top.balances();
}

#[tokio::test(start_paused = true)]
async fn what_was_out_for_nearly_as_long_as_it_may_be_is_spilled_where_lanes_are() {
    let longest = LEASE * 20;
    let top = leased(|source| source.longest(longest)).await;
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    let begun = Instant::now();
    top.feed([1, 2, 3]);
    tokio::time::sleep(longest - LEASE * 3).await;
    until("they are spilled", || top.counters().spilled.get() == 3).await;
    assert!(begun.elapsed() < longest - LEASE, "it was too late");
    let settled = top.feeder.settled(3).await;
    let acked = settled.iter().all(|one| matches!(one, Settled::Acked(..)));
    assert!(acked, "{settled:?}");
    assert_eq!(top.target.calls(), [1], "order goes on in the store");
}

#[tokio::test(start_paused = true)]
async fn where_nothing_goes_back_in_order_the_longest_loan_ends_by_itself() {
    let longest = LEASE * 20;
    let top = leased(|source| source.longest(longest)).await;
    let mut plan = patient_plan();
    plan.pools.get_mut("default").unwrap().overflow = Some(Overflow::Wait);
    top.router.reload(plan).await.unwrap();
    top.target.answer(1, busy(Duration::from_secs(36_000)));
    top.feed([1]);
    top.called(&[1]).await;
    let begun = Instant::now();
    tokio::time::sleep(longest).await;
    top.lost(1).await;
    let last = *top.renewed(1).last().expect("it was renewed before");
    assert!(last - begun < longest - LEASE, "renewed for too long");
    assert!(top.feeder.all_settled().is_empty());
    top.nothing_is_held().await;
}

/// What is spilled needs every message that is under way, and nobody else.
#[tokio::test(start_paused = true)]
async fn r6_a_message_whose_lease_ended_before_its_call_keeps_nothing_from_being_spilled() {
    let top = leased(TestSource::confirming).await;
    let mut plan = patient_plan();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.lane_capacity = NonZeroUsize::new(2).unwrap();
    let unsettled = 2 * pool.concurrency.unwrap().get() as u64;
    top.router.reload(plan).await.unwrap();
    // As many are delivered and not acked as there may be: the next one waits with its call.
    top.feeder.settler.hanging.store(true, Ordering::SeqCst);
    for id in 100..100 + unsettled {
        top.target.answer(id, Outcome::Delivered);
        top.feed_key(&id.to_string(), [id]);
    }
    until("they are called", || {
        top.target.calls().len() as u64 == unsettled
    })
    .await;
    top.feed([1]);
    until("received", || {
        top.counters().received.get() == unsettled + 1
    })
    .await;
    top.clock.suspend(LEASE * 2);
    top.feeder.settler.hanging.store(false, Ordering::SeqCst);
    top.nothing_is_held().await;
    top.feed([1, 2, 3, 4]);
    until("it is spilled", || top.counters().spilled.get() >= 3).await;
    top.target.go.add_permits(4);
    let of_g = || top.target.calls()[unsettled as usize..].to_vec();
    until("all are called", || of_g().len() == 4).await;
    assert_eq!(of_g(), [1, 2, 3, 4]);
}
