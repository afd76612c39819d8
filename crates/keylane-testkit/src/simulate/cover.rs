//! Counts what was drawn, so that a gap in the drawing shows.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Act, Answer, Call, Case, Kind, PlanCase, PoolCase, Verb};
use super::draw::effects;

/// What a number of cases had.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Option values, faults, acts and answers, with the number of cases that had them.
    pub single: BTreeMap<String, u64>,
    /// Pairs of option values of one pool.
    pub pairs: BTreeMap<(String, String), u64>,
    /// Cases.
    pub cases: u64,
    /// Messages of each case.
    pub messages: Vec<usize>,
    /// Faults and acts of each case.
    pub events: Vec<usize>,
}

impl Coverage {
    /// Counts a case.
    pub fn add(&mut self, case: &Case) {
        self.cases += 1;
        self.messages.push(case.messages.len());
        self.events.push(case.faults.len() + case.acts.len());
        let mut single = BTreeSet::new();
        let mut pairs = BTreeSet::new();
        for plan in &case.plans {
            let plan_values = plan_values(plan);
            for pool in plan.pools.values() {
                let mut values = pool_values(pool);
                values.extend(plan_values.iter().cloned());
                values.sort();
                values.dedup();
                for (at, one) in values.iter().enumerate() {
                    for other in &values[at + 1..] {
                        if option(one) != option(other) {
                            pairs.insert((one.clone(), other.clone()));
                        }
                    }
                }
                single.extend(values);
            }
        }
        for fault in &case.faults {
            single.insert(format!("fault {:?} {:?}", fault.call, fault.effect));
        }
        for act in &case.acts {
            single.insert(match &act.act {
                Act::Verb { verb, .. } => format!("act {verb:?}"),
                Act::Reload { .. } => "act Reload".to_owned(),
                Act::Restart { second, plan, .. } => {
                    let second = second.is_some();
                    format!("act Restart second={second} plan={}", plan.is_some())
                }
                Act::Crash => "act Crash".to_owned(),
                Act::Cut { .. } => "act Cut".to_owned(),
                Act::Suspend { .. } => "act Suspend".to_owned(),
            });
        }
        for rule in &case.targets {
            let name = match rule.answer {
                Answer::Slow { .. } => "Slow".to_owned(),
                Answer::Busy { after } => format!("Busy after={}", after.is_some()),
                Answer::NotYet { after } => format!("NotYet after={}", after.is_some()),
                other => format!("{other:?}"),
            };
            single.insert(format!("answer {name}"));
        }
        for one in single {
            *self.single.entry(one).or_default() += 1;
        }
        for pair in pairs {
            *self.pairs.entry(pair).or_default() += 1;
        }
    }

    /// The sum of two.
    pub fn merge(&mut self, other: Self) {
        self.cases += other.cases;
        self.messages.extend(other.messages);
        self.events.extend(other.events);
        for (one, count) in other.single {
            *self.single.entry(one).or_default() += count;
        }
        for (pair, count) in other.pairs {
            *self.pairs.entry(pair).or_default() += count;
        }
    }

    /// The middle one of the cases' sizes: messages, and faults with acts.
    pub fn medians(&self) -> (usize, usize) {
        let median = |sizes: &[usize]| {
            let mut sizes = sizes.to_vec();
            sizes.sort_unstable();
            sizes.get(sizes.len() / 2).copied().unwrap_or(0)
        };
        (median(&self.messages), median(&self.events))
    }
}

impl Coverage {
    /// What was drawn too seldom for so many cases: values and events that are missing, and pairs
    /// of option values that few cases had.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps: Vec<String> = expected()
            .into_iter()
            .filter(|name| !self.single.contains_key(name))
            .map(|name| format!("{name}: never"))
            .collect();
        let options = self.single.keys().filter(|name| name.contains('='));
        let options: Vec<&String> = options.filter(|name| !name.contains(' ')).collect();
        for (at, one) in options.iter().enumerate() {
            for other in &options[at + 1..] {
                let pair = ((*one).clone(), (*other).clone());
                let count = self.pairs.get(&pair).copied().unwrap_or(0);
                if count < LEAST && option(one) != option(other) && is_possible(one, other) {
                    gaps.push(format!("{one} with {other}: {count}"));
                }
            }
        }
        gaps
    }
}

/// So many cases have each pair of option values, where there are [`ENOUGH`].
const LEAST: u64 = 20;
/// With so many cases every gap is a fault of the drawing.
pub const ENOUGH: u64 = 10_000;

/// Whether the router takes a configuration with both.
fn is_possible(one: &str, other: &str) -> bool {
    const REFUSED: &[(&str, &str)] = &[
        ("lane_scope=pool", "overflow=spill"),
        ("lane_scope=pool", "source.kind=Standard"),
        ("lane_scope=pool", "source.kind=Connection"),
        ("lane_scope=pool", "source.kind=Plain"),
        ("on_exhausted=return", "source.kind=Standard"),
        ("on_exhausted=return", "source.kind=Connection"),
        ("on_exhausted=return", "source.kind=Plain"),
        ("on_exhausted=park", "source.many=true"),
        ("overflow=spill", "source.many=true"),
        ("breaker.min_lanes=20", "breaker.window=5"),
    ];
    let refused = |(a, b): &(&str, &str)| (*a, *b) == (one, other) || (*b, *a) == (one, other);
    !REFUSED.iter().any(refused)
}

/// Everything with a name of its own that must be drawn.
fn expected() -> Vec<String> {
    let mut names = Vec::new();
    let mut values = |option: &str, values: &[&str]| {
        names.extend(values.iter().map(|value| format!("{option}={value}")));
    };
    values("overflow", &["unset", "wait", "spill"]);
    values("on_exhausted", &["block", "dead-letter", "park", "return"]);
    values("on_refused", &["dead-letter", "retry", "drop"]);
    values("cascade", &["key", "batch"]);
    values("lane_scope", &["source", "pool"]);
    values("source.keyless", &["unset", "Serial", "Parallel"]);
    values("source.workers", &["unset", "1", "some"]);
    values("source.many", &["true", "false"]);
    values("source.raw", &["true", "false"]);
    values("max_in_flight", &["true", "false"]);
    for second in ["true", "false"] {
        let act = format!("act Restart second={second} plan");
        values(&act, &["true", "false"]);
    }
    let kinds = Kind::ALL.iter().map(|kind| format!("source.kind={kind:?}"));
    names.extend(kinds);
    names.extend(Verb::ALL.iter().map(|verb| format!("act {verb:?}")));
    let acts = ["Reload", "Crash", "Cut", "Suspend"];
    names.extend(acts.map(|act| format!("act {act}")));
    let answers = [
        "Slow",
        "Busy after=true",
        "Busy after=false",
        "NotYet after=true",
        "NotYet after=false",
        "ServerError",
        "NoConnection",
        "ClientError",
        "Never",
        "Panic",
    ];
    names.extend(answers.map(|answer| format!("answer {answer}")));
    for call in Call::ALL {
        for effect in effects(*call) {
            names.push(format!("fault {call:?} {effect:?}"));
        }
    }
    names
}

fn option(value: &str) -> &str {
    value.split_once('=').map_or(value, |(option, _)| option)
}

fn pool_values(pool: &PoolCase) -> Vec<String> {
    let mut values = Vec::new();
    let table = toml::Table::try_from(pool).expect("a pool is a table");
    let options = [
        "concurrency",
        "lane_concurrency",
        "lane_capacity",
        "lane_scope",
        "rate",
        "per_key_rate",
        "overflow",
        "cascade",
        "on_refused",
        "on_exhausted",
        "byte_budget",
        "max_message",
        "return_delay",
        "busy_max",
        "patience",
        "drain",
        "timeout",
        "max_attempts",
        "retry_initial",
        "retry_max",
    ];
    for option in options {
        let value = match table.get(option) {
            None => "unset".to_owned(),
            Some(toml::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        values.push(format!("{option}={value}"));
    }
    values.push(format!("keys={}", !pool.keys.is_empty()));
    values
}

fn plan_values(plan: &PlanCase) -> Vec<String> {
    let mut values = vec![
        format!("max_in_flight={}", plan.max_in_flight.is_some()),
        format!("breaker.failures={}", plan.breaker.failures),
        format!("breaker.window={}", plan.breaker.window),
        format!("breaker.min_lanes={}", plan.breaker.min_lanes),
        format!("breaker.open={}", plan.breaker.open),
        format!("breaker.probes={}", plan.breaker.probes),
    ];
    for source in plan.sources.values() {
        values.push(format!("source.kind={:?}", source.kind));
        values.push(format!("source.window={}", source.window));
        values.push(match source.workers {
            None => "source.workers=unset".to_owned(),
            Some(1) => "source.workers=1".to_owned(),
            Some(_) => "source.workers=some".to_owned(),
        });
        values.push(format!("source.many={}", source.many));
        values.push(match source.keyless {
            None => "source.keyless=unset".to_owned(),
            Some(keyless) => format!("source.keyless={keyless:?}"),
        });
        values.push(format!("source.raw={}", source.raw_pool.is_some()));
    }
    values
}
