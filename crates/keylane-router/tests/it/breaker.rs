//! Circuit breakers: when they open, which calls they let through, and that every lane that waits is
//! told when to come again.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane_router::breaker::{Breakers, Call, Change, ChangeKind, Gate, Table, Ticket, Verdict};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::BreakerPlan;
use proptest::prelude::*;

fn plan(failures: f64, window: usize, probes: usize) -> BreakerPlan {
    BreakerPlan {
        failures,
        window: NonZeroUsize::new(window).expect("not zero"),
        min_lanes: NonZeroUsize::new(window).expect("not zero"),
        open: Duration::from_secs(30),
        probes: NonZeroUsize::new(probes).expect("not zero"),
    }
}

fn origin(name: &str) -> Arc<str> {
    format!("http://{name}:80").into()
}

/// Breakers, their changes, one origin and a time.
struct Case {
    breakers: Breakers,
    changes: Arc<Mutex<Vec<Change>>>,
    origin: Arc<str>,
    now: Instant,
    /// Each call is another lane's.
    lanes: Cell<u64>,
}

impl Case {
    fn new(plan: BreakerPlan) -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = changes.clone();
        Self {
            breakers: Breakers::new(plan, move |change| seen.lock().expect("sound").push(change)),
            changes,
            origin: origin("a"),
            now: Instant::now(),
            lanes: Cell::new(100),
        }
    }

    fn begin(&self) -> Result<Call, Gate> {
        self.lanes.set(self.lanes.get() + 1);
        let lane = Some(self.lanes.get());
        self.breakers.begin(&self.origin, lane, self.now)
    }

    fn call(&self, verdict: Verdict) {
        let call = self.begin().expect("it is let through");
        call.end(verdict, self.now);
    }

    /// The first attempt of a message of this lane, or a retry.
    fn call_of(&self, lane: Option<u64>, verdict: Verdict) {
        let call = self.breakers.begin(&self.origin, lane, self.now);
        call.expect("it is let through").end(verdict, self.now);
    }

    fn check(&self) -> Gate {
        self.breakers.check(&self.origin, self.now)
    }

    fn changes(&self) -> Vec<ChangeKind> {
        let changes = std::mem::take(&mut *self.changes.lock().expect("sound"));
        changes.into_iter().map(|change| change.kind).collect()
    }

    /// Fails until it is open, and waits until it is half open.
    fn half_opened(plan: BreakerPlan) -> Self {
        let mut case = Self::new(plan.clone());
        for _ in 0..plan.window.get() {
            case.call(Verdict::Failed);
        }
        case.now += plan.open;
        case.changes();
        case
    }
}

#[test]
fn another_plan_acts_at_once_and_those_who_wait_are_told() {
    let mut case = Case::new(plan(0.5, 2, 1));
    case.call(Verdict::Failed);
    case.call(Verdict::Failed);
    let until = case.now + Duration::from_secs(30);
    assert_eq!(case.check(), Gate::OpenUntil(until));
    case.changes();

    // Open for a shorter time: counted from when it opened.
    let open = Duration::from_secs(10);
    case.breakers.set_plan(BreakerPlan {
        open,
        ..plan(0.5, 2, 1)
    });
    let until = case.now + open;
    assert_eq!(case.check(), Gate::OpenUntil(until));
    assert_eq!(case.changes(), [ChangeKind::OpenUntil(until)]);

    // Half open with a probe out: another slot.
    case.now = until;
    let _probe = case.begin().expect("a slot");
    assert_eq!(case.check(), Gate::NoSlot);
    case.breakers.set_plan(plan(0.5, 2, 2));
    assert_eq!(case.check(), Gate::Go);
    assert_eq!(case.changes(), [ChangeKind::SlotFree]);

    // Off: all may go, and nothing is counted.
    case.breakers.set_plan(plan(0.0, 2, 1));
    assert_eq!(case.changes(), [ChangeKind::Closed]);
    for _ in 0..5 {
        case.call(Verdict::Failed);
    }
    assert_eq!(case.check(), Gate::Go);

    // On again: it begins with nothing.
    case.breakers.set_plan(plan(1.0, 2, 1));
    case.call(Verdict::Failed);
    assert_eq!(case.check(), Gate::Go);
    case.call(Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn a_shorter_window_forgets_the_oldest_calls() {
    let case = Case::new(plan(1.0, 4, 1));
    for verdict in [Verdict::Failed, Verdict::Answered, Verdict::Failed] {
        case.call(verdict);
    }
    case.breakers.set_plan(plan(1.0, 2, 1));
    assert_eq!(case.check(), Gate::Go);
    // The last two are failures now.
    case.call(Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn it_opens_only_when_the_window_is_full_and_enough_of_it_failed() {
    let case = Case::new(plan(0.5, 4, 1));
    for verdict in [Verdict::Failed, Verdict::Failed, Verdict::Answered] {
        case.call(verdict);
        assert_eq!(case.check(), Gate::Go);
    }
    case.call(Verdict::Answered);
    let until = case.now + Duration::from_secs(30);
    assert_eq!(case.check(), Gate::OpenUntil(until));
    assert_eq!(case.changes(), [ChangeKind::Opened(until)]);
    let refused = case.begin();
    assert_eq!(refused.err(), Some(Gate::OpenUntil(until)));
}

#[test]
fn one_lane_is_one_result_however_often_it_fails() {
    let case = Case::new(plan(0.5, 2, 1));
    for _ in 0..100 {
        case.call_of(Some(1), Verdict::Failed);
        case.call_of(None, Verdict::Failed);
        assert_eq!(case.check(), Gate::Go);
    }
    // Another lane makes two; half of them failed.
    case.call_of(Some(2), Verdict::Answered);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn the_latest_result_of_a_lane_counts() {
    let case = Case::new(plan(1.0, 2, 1));
    case.call_of(Some(1), Verdict::Failed);
    case.call_of(Some(1), Verdict::Answered);
    case.call_of(Some(2), Verdict::Failed);
    assert_eq!(case.check(), Gate::Go);
    case.call_of(Some(1), Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn it_opens_with_fewer_lanes_than_the_window_has_but_not_with_fewer_than_it_takes() {
    let fifty = |min_lanes| BreakerPlan {
        min_lanes: NonZeroUsize::new(min_lanes).expect("not zero"),
        ..plan(0.5, 50, 1)
    };
    let case = Case::new(fifty(5));
    for lane in 1..5 {
        case.call_of(Some(lane), Verdict::Failed);
        assert_eq!(case.check(), Gate::Go);
    }
    case.call_of(Some(5), Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn results_older_than_it_stays_open_do_not_count() {
    let mut case = Case::new(plan(0.5, 3, 1));
    case.call(Verdict::Failed);
    case.call(Verdict::Failed);
    case.now += Duration::from_secs(31);
    case.call(Verdict::Failed);
    assert_eq!(case.check(), Gate::Go);
    case.now += Duration::from_secs(30);
    case.call(Verdict::Answered);
    assert_eq!(case.check(), Gate::Go);
    case.call(Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn fewer_probes_than_have_succeeded_close_it() {
    let case = Case::half_opened(plan(1.0, 2, 3));
    case.call(Verdict::Answered);
    case.call(Verdict::Answered);
    case.breakers.set_plan(plan(1.0, 2, 2));
    assert_eq!(case.changes(), [ChangeKind::Closed]);
    assert_eq!(case.check(), Gate::Go);
}

#[test]
fn calls_without_a_verdict_do_not_count() {
    let case = Case::new(plan(1.0, 2, 1));
    case.call(Verdict::Failed);
    case.call(Verdict::Unknown);
    drop(case.begin());
    assert_eq!(case.check(), Gate::Go);
    case.call(Verdict::Failed);
    assert!(matches!(case.check(), Gate::OpenUntil(_)));
}

#[test]
fn half_open_lets_as_many_probes_through_as_it_may() {
    let case = Case::half_opened(plan(1.0, 2, 2));
    let one = case.begin().expect("a slot");
    let _two = case.begin().expect("a slot");
    assert_eq!(case.check(), Gate::NoSlot);
    drop(one);
    assert_eq!(case.changes(), [ChangeKind::SlotFree]);
    assert_eq!(case.check(), Gate::Go);
}

#[test]
fn half_open_closes_when_as_many_probes_as_it_has_were_no_failures() {
    let case = Case::half_opened(plan(1.0, 2, 2));
    // Retries are probes as well.
    case.call_of(None, Verdict::Answered);
    assert_eq!(case.changes(), []);
    let last = case.begin().expect("a slot");
    assert_eq!(case.check(), Gate::NoSlot, "one succeeded, one runs");
    last.end(Verdict::Answered, case.now);
    assert_eq!(case.changes(), [ChangeKind::Closed]);
    // The window begins anew.
    case.call(Verdict::Failed);
    assert_eq!(case.check(), Gate::Go);
}

#[test]
fn half_open_opens_again_on_a_failure() {
    let case = Case::half_opened(plan(1.0, 2, 2));
    let late = case.begin().expect("a slot");
    case.call(Verdict::Failed);
    let until = case.now + Duration::from_secs(30);
    assert_eq!(case.changes(), [ChangeKind::OpenUntil(until)]);
    // The other probe belongs to a time that is over.
    late.end(Verdict::Answered, case.now);
    assert_eq!(case.check(), Gate::OpenUntil(until));
    assert_eq!(case.changes(), []);
}

#[test]
fn a_call_from_before_it_opened_says_nothing_about_the_probes() {
    let mut case = Case::new(plan(1.0, 2, 1));
    let early = case.begin().expect("closed");
    case.call(Verdict::Failed);
    case.call(Verdict::Failed);
    case.now += Duration::from_secs(30);
    let _probe = case.begin().expect("a slot");
    early.end(Verdict::Failed, case.now);
    assert_eq!(case.check(), Gate::NoSlot);
}

#[test]
fn one_origin_says_nothing_about_another() {
    let case = Case::new(plan(1.0, 1, 1));
    case.call(Verdict::Failed);
    assert_eq!(case.breakers.check(&origin("b"), case.now), Gate::Go);
    assert_eq!(case.breakers.unwell().len(), 1);
}

#[test]
fn a_rate_of_zero_is_off() {
    let case = Case::new(plan(0.0, 1, 1));
    for _ in 0..10 {
        case.call(Verdict::Failed);
    }
    assert_eq!(case.check(), Gate::Go);
}

#[test]
fn a_full_table_forgets_closed_origins_first() {
    let now = Instant::now();
    let mut table = Table::new(plan(1.0, 1, 1), 10);
    let (ticket, _) = table.begin(&origin("ill"), Some(1), now).expect("closed");
    table.end(ticket, Verdict::Failed, now);
    for n in 0..100 {
        let (ticket, change) = table
            .begin(&origin(&n.to_string()), Some(1), now)
            .expect("closed");
        assert_eq!(change, None);
        table.end(ticket, Verdict::Answered, now);
    }
    assert_eq!(table.len(), 10);
    assert!(matches!(
        table.check(&origin("ill"), now),
        Gate::OpenUntil(_)
    ));
}

#[test]
fn an_open_origin_that_must_be_forgotten_is_told_as_closed() {
    let now = Instant::now();
    let mut table = Table::new(plan(1.0, 1, 1), 2);
    for name in ["a", "b"] {
        let (ticket, _) = table.begin(&origin(name), Some(1), now).expect("closed");
        table.end(ticket, Verdict::Failed, now);
    }
    let (_, change) = table.begin(&origin("c"), Some(1), now).expect("closed");
    let change = change.expect("one had to go");
    assert_eq!(change.kind, ChangeKind::Closed);
    assert_eq!(table.check(&change.origin, now), Gate::Go);
    assert_eq!(table.len(), 2);
}

#[test]
fn an_outcome_says_whether_the_origin_is_well() {
    let reason = |breaker_failure, status| Reason {
        breaker_failure,
        status,
        ..Reason::default()
    };
    let cases = [
        (Outcome::Delivered, Verdict::Answered),
        (Outcome::NotYet { after: None }, Verdict::Answered),
        (Outcome::Failed(reason(true, None)), Verdict::Failed),
        (Outcome::Failed(reason(false, Some(404))), Verdict::Answered),
        (
            Outcome::Refused(reason(false, Some(400))),
            Verdict::Answered,
        ),
        (Outcome::Refused(reason(false, None)), Verdict::Unknown),
    ];
    for (outcome, verdict) in cases {
        assert_eq!(Verdict::of(&outcome), verdict, "{outcome:?}");
    }
}

/// The rule once more, without tricks: every origin for ever, every result kept.
struct Model {
    plan: BreakerPlan,
    origins: HashMap<usize, Naive>,
}

#[derive(Default, Clone)]
struct Naive {
    /// Every result: lane, whether it failed, and when.
    results: Vec<(u64, bool, Instant)>,
    open_until: Option<Instant>,
    /// The numbers of probes under way, while half open, and how many succeeded.
    probes: Option<(Vec<usize>, usize)>,
    /// Calls that began since the last change of state, with their lanes.
    current: HashMap<usize, Option<u64>>,
}

impl Model {
    fn gate(&self, origin: usize, now: Instant) -> Gate {
        let Some(naive) = self.origins.get(&origin) else {
            return Gate::Go;
        };
        match (naive.open_until, &naive.probes) {
            (Some(until), _) if now < until => Gate::OpenUntil(until),
            (_, Some((runs, good))) if runs.len() + good >= self.plan.probes.get() => Gate::NoSlot,
            _ => Gate::Go,
        }
    }

    fn begin(&mut self, origin: usize, call: usize, lane: Option<u64>) {
        let naive = self.origins.entry(origin).or_default();
        if naive.open_until.take().is_some() {
            naive.probes = Some((Vec::new(), 0));
            naive.current.clear();
        }
        if let Some((runs, _)) = &mut naive.probes {
            runs.push(call);
        }
        naive.current.insert(call, lane);
    }

    fn end(&mut self, origin: usize, call: usize, verdict: Verdict, now: Instant) {
        let plan = self.plan.clone();
        let naive = self.origins.entry(origin).or_default();
        let Some(lane) = naive.current.remove(&call) else {
            return;
        };
        let open = Naive {
            open_until: Some(now + plan.open),
            ..Naive::default()
        };
        match (&mut naive.probes, verdict) {
            (Some((runs, _)), Verdict::Unknown) => runs.retain(|run| *run != call),
            (Some(_), Verdict::Failed) => *naive = open,
            (Some((runs, good)), Verdict::Answered) => {
                runs.retain(|run| *run != call);
                *good += 1;
                if *good == plan.probes.get() {
                    *naive = Naive::default();
                }
            }
            (None, Verdict::Unknown) => {}
            (None, verdict) => {
                let Some(lane) = lane else { return };
                naive.results.push((lane, verdict == Verdict::Failed, now));
                let mut lanes: Vec<(u64, bool)> = Vec::new();
                for (lane, failed, at) in naive.results.iter().rev() {
                    let known = lanes.iter().any(|(known, _)| known == lane);
                    if !known && lanes.len() < plan.window.get() && now - *at <= plan.open {
                        lanes.push((*lane, *failed));
                    }
                }
                let failed = lanes.iter().filter(|(_, failed)| *failed).count();
                let share = plan.failures * lanes.len() as f64;
                if lanes.len() >= plan.min_lanes.get() && failed as f64 >= share {
                    *naive = open;
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// At which origin, and of which lane, if it is a first attempt.
    Begin(usize, Option<u64>),
    End(usize, Verdict),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        3 => Just(Verdict::Failed),
        2 => Just(Verdict::Answered),
        1 => Just(Verdict::Unknown)
    ];
    let step = prop_oneof![
        4 => (0..3usize, proptest::option::weighted(0.8, 0..8u64))
            .prop_map(|(n, lane)| Step::Begin(n, lane)),
        4 => (any::<usize>(), verdict).prop_map(|(n, verdict)| Step::End(n, verdict)),
        1 => (1..40u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn it_does_what_the_naive_rule_does(
        steps in steps(),
        failures in 0.1..1.0f64,
        window in 1..6usize,
        min_lanes in 1..6usize,
        probes in 1..4usize,
    ) {
        let mut plan = plan(failures, window, probes);
        plan.min_lanes = plan.min_lanes.min(NonZeroUsize::new(min_lanes).expect("not zero"));
        let mut table = Table::new(plan.clone(), 10);
        let mut model = Model { plan, origins: HashMap::new() };
        let mut now = Instant::now();
        let mut running: Vec<(usize, usize, Ticket)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Pass(seconds) => now += Duration::from_secs(seconds),
                Step::Begin(n, lane) => match table.begin(&origin(&n.to_string()), lane, now) {
                    Ok((ticket, change)) => {
                        prop_assert_eq!(change, None);
                        prop_assert_eq!(model.gate(n, now), Gate::Go);
                        model.begin(n, number, lane);
                        running.push((n, number, ticket));
                    }
                    Err(gate) => prop_assert_eq!(model.gate(n, now), gate),
                },
                Step::End(_, _) if running.is_empty() => {}
                Step::End(which, verdict) => {
                    let (n, call, ticket) = running.swap_remove(which % running.len());
                    table.end(ticket, verdict, now);
                    model.end(n, call, verdict, now);
                }
            }
            for n in 0..3 {
                let gate = table.check(&origin(&n.to_string()), now);
                prop_assert_eq!(gate, model.gate(n, now));
            }
        }
    }

    /// Whoever waits is always told: after an open period a timer, else a change.
    #[test]
    fn whoever_is_kept_out_is_told_when_to_come_again(steps in steps(), capacity in 1..4usize) {
        let mut table = Table::new(plan(0.5, 2, 2), capacity);
        let mut now = Instant::now();
        let mut running: Vec<Ticket> = Vec::new();
        for step in steps {
            let mut before = Vec::new();
            for n in 0..3 {
                let origin = origin(&n.to_string());
                before.push((origin.clone(), table.check(&origin, now)));
            }
            let passed = matches!(step, Step::Pass(_));
            let change = match step {
                Step::Pass(seconds) => { now += Duration::from_secs(seconds); None }
                Step::Begin(n, lane) => match table.begin(&origin(&n.to_string()), lane, now) {
                    Ok((ticket, change)) => { running.push(ticket); change }
                    Err(_) => None,
                },
                Step::End(_, _) if running.is_empty() => None,
                Step::End(which, verdict) => {
                    let ticket = running.swap_remove(which % running.len());
                    table.end(ticket, verdict, now)
                }
            };
            for (origin, gate) in before {
                let freed = gate == Gate::NoSlot && table.check(&origin, now) != Gate::NoSlot;
                let ended = matches!(gate, Gate::OpenUntil(_)) && table.check(&origin, now) == Gate::Go;
                if freed || (ended && !passed) {
                    prop_assert_eq!(change.as_ref().map(|c| &c.origin), Some(&origin));
                }
            }
            prop_assert!(table.len() <= capacity);
        }
    }
}
