//! Judges a run by its history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::case::{Act, CascadeCase, Case, KeylessCase, Kind, MessageCase, PlanCase, RefusedCase};
use super::run::{End, Run, is_stay};
use super::world::{Ending, Event, Place, What};

/// A call may come so long after the start that took its token: it waits for the store first.
const BEHIND: Duration = Duration::from_millis(300);

/// A rule of the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Rule {
    Order,
    Loss,
    Overlap,
    Limits,
    Rates,
    Standstill,
    Duplicates,
    EarlyAck,
    AtRest,
    Metrics,
    Readiness,
    /// The router itself did not see what is wrong.
    Unseen,
    Stop,
    Broken,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which rule.
    pub rule: Rule,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Everything that is wrong with a run.
pub fn judge(case: &Case, run: &Run) -> Vec<Fault> {
    let mut judge = Judge::new(case);
    for event in &run.history {
        judge.event(event);
    }
    judge.at_the_end(run);
    judge.faults
}

/// What keeps an order together: a queue, a pool code, a key.
type Line = (String, String, Option<String>);

#[derive(Default)]
struct Message {
    accepted: bool,
    resolved: bool,
    /// Delivered in this life.
    delivered_here: bool,
    /// Something of this life explains a second attempt.
    excused: bool,
    stored: bool,
    acked: bool,
    started: bool,
    running: bool,
}

struct Judge<'a> {
    case: &'a Case,
    faults: Vec<Fault>,
    messages: Vec<Message>,
    /// Accepted messages of each line, in order.
    lines: BTreeMap<Line, Vec<usize>>,
    /// Before these of its line, everything is resolved.
    done: BTreeMap<Line, usize>,
    running: BTreeMap<usize, Runs>,
    /// The configuration in force, and one that is being put in force.
    plan: usize,
    next: Option<usize>,
    told: BTreeSet<Rule>,
    starts: BTreeMap<String, Vec<Duration>>,
    audited: bool,
    violated: bool,
}

/// What must be true of everything before a message of its key when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    Resolved,
    /// So many may run at once, and fewer are not started.
    Started(usize),
    /// Order is promised per batch only.
    Nothing,
}

struct Runs {
    pool: String,
}

impl<'a> Judge<'a> {
    fn new(case: &'a Case) -> Self {
        Self {
            case,
            faults: Vec::new(),
            messages: case.messages.iter().map(|_| Message::default()).collect(),
            lines: BTreeMap::new(),
            done: BTreeMap::new(),
            running: BTreeMap::new(),
            plan: 0,
            next: None,
            told: BTreeSet::new(),
            starts: BTreeMap::new(),
            audited: false,
            violated: false,
        }
    }

    /// The first fault of each rule is enough.
    fn wrong(&mut self, rule: Rule, at: Duration, text: &str) {
        if self.told.insert(rule) {
            let text = format!("at {} ms: {text}", at.as_millis());
            self.faults.push(Fault { rule, text });
        }
    }

    fn event(&mut self, event: &Event) {
        let at = event.at;
        match &event.what {
            What::Accepted { n } => self.accepted(*n),
            What::Start { n, pool, attempt } => self.start(at, *n, pool, *attempt),
            What::End { n, answer } => self.end(*n, *answer),
            What::Acked { n } => self.acked(at, *n),
            What::Unsettled { n, .. } | What::Lost { n } | What::Returned { n } => {
                self.messages[*n].excused = true;
            }
            What::Stored { n, place } => {
                self.messages[*n].stored |= is_stay(*place);
                if *place == Place::DeadLetter {
                    self.resolved(*n);
                }
            }
            What::Dropped { n } => self.resolved(*n),
            What::Reloading { plan } => self.next = Some(*plan),
            What::Acted { act, result } => self.acted(at, act, result),
            What::Ended { .. } => {
                self.running.clear();
                for message in &mut self.messages {
                    message.running = false;
                    message.delivered_here = false;
                    // Stored and not acked, its source has it too.
                    message.excused = message.stored && !message.acked;
                }
            }
            What::Began { plan } => {
                (self.plan, self.next) = (*plan, None);
                self.starts.clear();
            }
            What::Suspended | What::Cut { .. } => {
                for message in &mut self.messages {
                    message.excused = true;
                }
            }
            What::Problem { text } => self.problem(at, text),
            What::Received { .. } | What::Calm | What::Fault { .. } | What::Refused { .. } => {}
        }
    }

    fn acted(&mut self, at: Duration, act: &Act, result: &Result<(), String>) {
        match (act, result) {
            (Act::Reload { plan }, Ok(())) => {
                (self.plan, self.next) = (*plan, None);
                self.starts.clear();
            }
            (Act::Reload { .. }, Err(_)) => self.next = None,
            (Act::Restart { .. }, Err(text)) => self.wrong(Rule::Stop, at, text),
            _ => {}
        }
    }

    fn problem(&mut self, at: Duration, text: &str) {
        if text.contains("started after") {
            self.audited = true;
        } else {
            self.wrong(Rule::Readiness, at, &format!("readiness says: {text}"));
        }
    }

    fn line(&self, n: usize) -> Option<Line> {
        let message = &self.case.messages[n];
        // Dead letters without an attempt are in nobody's way.
        if self.is_unfit(message) || message.key.is_none() && !self.is_serial(&message.queue) {
            return None;
        }
        if matches!(self.kind(&message.queue), Kind::Standard | Kind::Plain) {
            return None;
        }
        let code = message.pool.clone().unwrap_or_else(|| "default".to_owned());
        Some((message.queue.clone(), code, message.key.clone()))
    }

    /// Whether it may be a dead letter without an attempt.
    fn is_unfit(&self, message: &MessageCase) -> bool {
        let pools = self.case.plans.iter().flat_map(|plan| plan.pools.values());
        // The envelope and the payload's number are less than this.
        let bytes = message.size as u64 + 400;
        message.malformed || pools.map(|pool| pool.max_message).any(|most| bytes > most)
    }

    fn kind(&self, queue: &str) -> Kind {
        let plans = self.case.plans.iter();
        let mut sources = plans.flat_map(|plan| plan.sources.values());
        let source = sources.find(|source| source.queue == queue);
        source.map_or(Kind::Embedded, |source| source.kind)
    }

    /// Whether keyless messages of a queue are in order under every configuration.
    fn is_serial(&self, queue: &str) -> bool {
        let plans = self.case.plans.iter();
        let sources = plans.flat_map(|plan| plan.sources.values());
        let mut of_queue = sources.filter(|source| source.queue == queue);
        of_queue.all(|source| match source.keyless {
            Some(keyless) => keyless == KeylessCase::Serial,
            None => matches!(source.kind, Kind::Embedded | Kind::Fifo),
        })
    }

    fn accepted(&mut self, n: usize) {
        if std::mem::replace(&mut self.messages[n].accepted, true) {
            return;
        }
        if let Some(line) = self.line(n) {
            self.lines.entry(line).or_default().push(n);
        }
    }

    fn resolved(&mut self, n: usize) {
        self.messages[n].resolved = true;
    }

    fn plans(&self) -> impl Iterator<Item = &'a PlanCase> + use<'a> {
        let plans = &self.case.plans;
        [Some(self.plan), self.next]
            .into_iter()
            .flatten()
            .map(|at| &plans[at])
    }

    fn start(&mut self, at: Duration, n: usize, pool: &str, _attempt: u32) {
        if self.messages[n].running {
            let text = format!("m{n} is started while it runs");
            self.wrong(Rule::Overlap, at, &text);
        }
        if self.messages[n].delivered_here && !self.messages[n].excused {
            let text = format!("m{n} is started again after its delivery, without a cause");
            self.wrong(Rule::Duplicates, at, &text);
        }
        self.order(at, n);
        self.messages[n].started = true;
        self.messages[n].running = true;
        let pool = pool.to_owned();
        self.running.insert(n, Runs { pool: pool.clone() });
        self.overlap(at, n);
        self.limits(at, &pool);
        self.rate(at, &pool);
    }

    /// What is promised of the order of a message's key, under every configuration in which it may
    /// have run.
    fn promise(&self, n: usize) -> Promise {
        let message = &self.case.messages[n];
        let plans = self.case.plans.iter();
        let pools = plans.flat_map(|plan| {
            let mut of_queue = plan
                .sources
                .values()
                .filter(|source| source.queue == message.queue);
            let raw = of_queue.find_map(|source| source.raw_pool.as_deref());
            let code = raw.or(message.pool.as_deref()).unwrap_or("default");
            [plan.pools.get(code), plan.pools.get("default")]
        });
        let mut promise = Promise::Resolved;
        for pool in pools.flatten() {
            if pool.cascade == CascadeCase::Batch {
                return Promise::Nothing;
            }
            let at_once = pool.lane_concurrency_of(message.key.as_deref());
            if at_once > 1 {
                promise = match promise {
                    Promise::Started(most) => Promise::Started(most.max(at_once)),
                    _ => Promise::Started(at_once),
                };
            }
        }
        promise
    }

    fn order(&mut self, at: Duration, n: usize) {
        let Some(line) = self.line(n) else {
            return;
        };
        let promise = self.promise(n);
        let Some(of_line) = self
            .lines
            .get(&line)
            .filter(|_| promise != Promise::Nothing)
        else {
            return;
        };
        let done = self.done.entry(line.clone()).or_default();
        let passes = |message: &Message| match promise {
            Promise::Started(_) => message.resolved || message.started,
            Promise::Resolved | Promise::Nothing => message.resolved,
        };
        let passed = |first: &usize| passes(&self.messages[*first]);
        while of_line.get(*done).is_some_and(passed) {
            *done += 1;
        }
        let first = of_line.get(*done).copied();
        let place = of_line.iter().position(|other| *other == n);
        let (Some(first), Some(place)) = (first, place) else {
            return;
        };
        let before = of_line.get(*done..place).unwrap_or_default();
        let at_once = match promise {
            Promise::Started(at_once) => at_once,
            Promise::Resolved | Promise::Nothing => 1,
        };
        if before.iter().filter(|first| !passed(first)).count() >= at_once {
            // Where several of a lane may run at once, the router does not look.
            self.violated |= promise == Promise::Resolved;
            let text = format!("m{n} starts before m{first} of its key ({promise:?}, {line:?})");
            self.wrong(Rule::Order, at, &text);
        }
    }

    fn overlap(&mut self, at: Duration, n: usize) {
        let Some(line) = self.line(n) else {
            return;
        };
        let key = self.case.key_of(n);
        let pools = self.case.plans.iter().flat_map(|plan| plan.pools.values());
        let most = pools.map(|pool| pool.lane_concurrency_of(key)).max();
        let of_line = |other: &&usize| self.line(**other).as_ref() == Some(&line);
        let running = self.running.keys().filter(of_line).count();
        if running > most.unwrap_or(1) {
            let text = format!("{running} of a key run at once ({line:?})");
            self.wrong(Rule::Overlap, at, &text);
        }
    }

    fn limits(&mut self, at: Duration, pool: &str) {
        let of = |plan: &PlanCase| plan.pools.get(pool).map(|pool| pool.concurrency);
        let known: Vec<Option<usize>> = self.plans().filter_map(of).collect();
        let in_pool = |runs: &&Runs| runs.pool == pool;
        let running = self.running.values().filter(in_pool).count();
        // A removed pool has the limits it had.
        let most = known.iter().map(|most| most.unwrap_or(usize::MAX)).max();
        if most.is_some_and(|most| running > most) {
            let text = format!("{running} run in pool {pool}");
            self.wrong(Rule::Limits, at, &text);
        }
        let most = self
            .plans()
            .map(|plan| plan.max_in_flight.unwrap_or(usize::MAX));
        let (all, most) = (self.running.len(), most.max().unwrap_or(usize::MAX));
        if all > most {
            self.wrong(Rule::Limits, at, &format!("{all} run in all pools"));
        }
    }

    /// Never more than one and what the rate allows, in any stretch of one life and configuration.
    fn rate(&mut self, at: Duration, pool: &str) {
        let starts = self.starts.entry(pool.to_owned()).or_default();
        starts.push(at);
        let plans = &self.case.plans;
        let Some(rate) = plans[self.plan].pools.get(pool).and_then(|pool| pool.rate) else {
            return;
        };
        if self.next.is_some() {
            return;
        }
        let over = starts.iter().enumerate().find(|(first, began)| {
            let count = starts.len() - first;
            let stretch = (at - **began + BEHIND).as_secs_f64();
            count as f64 > 1.0 + stretch * f64::from(rate) + 1e-6
        });
        if let Some((first, began)) = over {
            let count = starts.len() - first;
            let text = format!(
                "{count} starts in pool {pool} since {} ms",
                began.as_millis()
            );
            self.wrong(Rule::Rates, at, &text);
        }
    }

    fn end(&mut self, n: usize, answer: Ending) {
        let pool = self.running.remove(&n).map(|runs| runs.pool);
        self.messages[n].running = false;
        match answer {
            Ending::Delivered => {
                self.messages[n].delivered_here = true;
                self.resolved(n);
            }
            Ending::Refused => {
                let pool = pool.unwrap_or_default();
                let drops = |plan: &PlanCase| {
                    let pool = plan.pools.get(&pool).or(plan.pools.get("default"));
                    pool.is_some_and(|pool| pool.on_refused == RefusedCase::Drop)
                };
                // A removed pool drops by what it was configured as.
                if self.case.plans.iter().any(drops) {
                    self.resolved(n);
                }
            }
            Ending::Failed | Ending::Waits | Ending::Cut => {}
        }
    }

    fn acked(&mut self, at: Duration, n: usize) {
        let message = &mut self.messages[n];
        message.acked = true;
        if !message.resolved && !message.stored {
            let text = format!("m{n} is acked, and neither resolved nor stored");
            self.wrong(Rule::EarlyAck, at, &text);
        }
    }

    fn at_the_end(&mut self, run: &Run) {
        let at = run.history.last().map_or(Duration::ZERO, |event| event.at);
        match &run.end {
            End::Finished => self.at_rest(at, run),
            End::StandsStill => {
                let text = format!(
                    "nothing happens any more: {} in queues, {} stored; {:?}; readiness: {:?}",
                    run.left.depth, run.left.stored, run.left.gauges, run.problems
                );
                self.wrong(Rule::Standstill, at, &text);
            }
            End::Endless => self.wrong(Rule::Standstill, at, "it goes on without end"),
            End::Broken(text) => self.wrong(Rule::Broken, at, text),
        }
        if self.violated && !self.audited && run.left.ordering_violations == 0 {
            self.wrong(
                Rule::Unseen,
                at,
                "the self-audit did not see the order violation",
            );
        }
        if run.end == End::StandsStill && run.problems.is_empty() {
            self.wrong(
                Rule::Unseen,
                at,
                "readiness does not tell of the standstill",
            );
        }
        if !self.violated && (self.audited || run.left.ordering_violations > 0) {
            let text = "the self-audit tells of an order violation, and there is none";
            self.wrong(Rule::Metrics, at, text);
        }
    }

    fn at_rest(&mut self, at: Duration, run: &Run) {
        let lost = |message: &Message| message.accepted && !message.resolved;
        let lost: Vec<usize> = (0..self.messages.len())
            .filter(|n| lost(&self.messages[*n]))
            .collect();
        if !lost.is_empty() {
            self.wrong(Rule::Loss, at, &format!("lost: {lost:?}"));
        }
        for gauges in &run.left.gauges {
            let left = gauges.queued
                + gauges.in_flight
                + gauges.unsettled
                + gauges.blocked
                + gauges.waits_for_store
                + usize::try_from(gauges.bytes).unwrap_or(usize::MAX);
            if left > 0 {
                self.wrong(Rule::AtRest, at, &format!("something is left: {gauges:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Call, FaultCase, PoolCase, SourceCase};
    use super::super::run::Left;
    use super::*;

    /// Three messages of one key and a keyless one, an embedded queue, one pool.
    fn case() -> Case {
        let key = |key: Option<&str>| MessageCase {
            queue: "q".to_owned(),
            key: key.map(str::to_owned),
            ..MessageCase::default()
        };
        let mut plan = PlanCase::default();
        let pool = PoolCase {
            concurrency: Some(2),
            rate: Some(1),
            ..PoolCase::default()
        };
        plan.pools.insert("default".to_owned(), pool);
        let source = SourceCase {
            queue: "q".to_owned(),
            ..SourceCase::default()
        };
        plan.sources.insert("s".to_owned(), source);
        Case {
            plans: vec![plan],
            messages: vec![
                key(Some("k")),
                key(Some("k")),
                key(Some("k")),
                key(Some("l")),
            ],
            faults: vec![FaultCase {
                call: Call::Ack,
                key: None,
                nth: 1,
                effect: super::super::case::Effect::Error,
            }],
            ..Case::default()
        }
    }

    fn start(n: usize) -> What {
        What::Start {
            n,
            pool: "default".to_owned(),
            attempt: 1,
        }
    }

    fn end(n: usize, answer: Ending) -> What {
        What::End { n, answer }
    }

    /// What is wrong where these things happen, ten seconds apart.
    fn wrong(events: Vec<What>) -> Vec<Rule> {
        judged(&case(), events, End::Finished, Left::default(), 10)
    }

    fn judged(case: &Case, what: Vec<What>, end: End, left: Left, apart: u64) -> Vec<Rule> {
        let accepted = (0..case.messages.len()).map(|n| What::Accepted { n });
        let at = |(at, what): (usize, What)| Event {
            at: Duration::from_secs(at as u64 * apart),
            life: 1,
            what,
        };
        let run = Run {
            history: accepted.chain(what).enumerate().map(at).collect(),
            end,
            problems: Vec::new(),
            left,
        };
        let faults = judge(case, &run).into_iter();
        faults.map(|fault| fault.rule).collect()
    }

    fn delivered(n: usize) -> [What; 3] {
        [start(n), end(n, Ending::Delivered), What::Acked { n }]
    }

    fn all() -> Vec<What> {
        (0..4).flat_map(delivered).collect()
    }

    #[test]
    fn what_is_right_is_not_wrong() {
        assert_eq!(wrong(all()), []);
        let mut again = all();
        again.extend([What::Ended {
            how: super::super::world::Death::Crash,
        }]);
        again.extend([What::Began { plan: 0 }]);
        again.extend(delivered(2));
        assert_eq!(wrong(again), []);
    }

    #[test]
    fn a_start_before_its_predecessor_is_resolved_is_seen() {
        let mut events = vec![
            start(0),
            end(0, Ending::Failed),
            start(1),
            end(1, Ending::Delivered),
        ];
        events.extend(all());
        // Nothing tells of it either.
        assert_eq!(wrong(events), [Rule::Order, Rule::Duplicates, Rule::Unseen]);
    }

    #[test]
    fn a_message_that_is_nowhere_is_lost() {
        assert_eq!(wrong(all()[..9].to_vec()), [Rule::Loss]);
    }

    #[test]
    fn two_of_a_key_at_once_are_seen() {
        let events = vec![start(0), start(1)];
        let seen = wrong(events);
        assert!(seen.contains(&Rule::Overlap), "{seen:?}");
    }

    #[test]
    fn a_message_that_runs_twice_at_once_is_seen() {
        let seen = wrong(vec![start(3), start(3)]);
        assert!(seen.contains(&Rule::Overlap), "{seen:?}");
    }

    #[test]
    fn more_than_the_concurrency_is_seen() {
        let mut case = case();
        case.plans[0].pools.get_mut("default").unwrap().concurrency = Some(1);
        let events = vec![start(0), start(3)];
        let seen = judged(&case, events, End::Finished, Left::default(), 10);
        assert!(seen.contains(&Rule::Limits), "{seen:?}");
    }

    #[test]
    fn more_than_max_in_flight_is_seen() {
        let mut case = case();
        case.plans[0].max_in_flight = Some(1);
        let events = vec![start(0), start(3)];
        let seen = judged(&case, events, End::Finished, Left::default(), 10);
        assert!(seen.contains(&Rule::Limits), "{seen:?}");
    }

    #[test]
    fn more_than_the_rate_is_seen() {
        let seen = judged(&case(), all(), End::Finished, Left::default(), 0);
        assert_eq!(seen, [Rule::Rates]);
    }

    #[test]
    fn a_second_delivery_without_a_cause_is_seen() {
        let mut events = all();
        events.extend(delivered(3));
        assert_eq!(wrong(events.clone()), [Rule::Duplicates]);
        // A lost ack is a cause.
        let cause = What::Unsettled {
            n: 3,
            call: Call::Ack,
        };
        events.insert(3, cause);
        assert_eq!(wrong(events), []);
    }

    #[test]
    fn an_ack_of_what_is_nowhere_is_seen() {
        let mut events = vec![What::Acked { n: 3 }];
        events.extend(all());
        assert_eq!(wrong(events), [Rule::EarlyAck]);
    }

    #[test]
    fn a_standstill_is_seen() {
        let seen = judged(&case(), all(), End::StandsStill, Left::default(), 10);
        assert_eq!(seen, [Rule::Standstill, Rule::Unseen]);
        let seen = judged(&case(), all(), End::Endless, Left::default(), 10);
        assert_eq!(seen, [Rule::Standstill]);
    }

    #[test]
    fn what_is_left_at_rest_is_seen() {
        let gauges = keylane_router::counters::PoolGauges {
            unsettled: 1,
            ..Default::default()
        };
        let left = Left {
            gauges: vec![gauges],
            ..Left::default()
        };
        assert_eq!(
            judged(&case(), all(), End::Finished, left, 10),
            [Rule::AtRest]
        );
    }

    #[test]
    fn a_false_alarm_is_seen() {
        let left = Left {
            ordering_violations: 1,
            ..Left::default()
        };
        assert_eq!(
            judged(&case(), all(), End::Finished, left, 10),
            [Rule::Metrics]
        );
        let mut events = all();
        events.push(What::Problem {
            text: "pool `default` is stalled".to_owned(),
        });
        assert_eq!(wrong(events), [Rule::Readiness]);
    }

    #[test]
    fn a_stop_that_takes_too_long_is_seen() {
        let mut events = all();
        events.push(What::Acted {
            act: Act::Restart {
                deadline: 0,
                second: None,
                plan: None,
            },
            result: Err("it took an hour".to_owned()),
        });
        assert_eq!(wrong(events), [Rule::Stop]);
    }
}
