//! Counts what was drawn, so that a gap in the drawing shows.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Act, Answer, Case, PlanCase, PoolCase};

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
                Act::Restart { second, .. } => format!("act Restart second={}", second.is_some()),
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
