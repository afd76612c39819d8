//! Makes a failing case small: leaves out whatever it fails without.

use std::collections::BTreeSet;

use super::case::{BreakerCase, Case, PoolCase};
use super::judge::{Rule, judge};
use super::run::run;

/// A smaller case that breaks the same rule; at most `runs` are tried.
pub fn shrink(case: &Case, rule: Rule, runs: usize) -> Case {
    let mut shrink = Shrink {
        best: case.clone(),
        rule,
        left: runs,
    };
    loop {
        let before = shrink.best.clone();
        shrink.pass();
        if shrink.best == before || shrink.left == 0 {
            return shrink.best;
        }
    }
}

struct Shrink {
    best: Case,
    rule: Rule,
    left: usize,
}

impl Shrink {
    /// Takes the case if it fails in the same way.
    fn try_case(&mut self, case: Case) -> bool {
        if self.left == 0 || case == self.best {
            return false;
        }
        self.left -= 1;
        let found = judge(&case, &run(&case));
        let fails = found.iter().any(|fault| fault.rule == self.rule);
        if fails {
            self.best = case;
        }
        fails
    }

    fn pass(&mut self) {
        self.parts(|case| &mut case.acts);
        self.parts(|case| &mut case.faults);
        self.parts(|case| &mut case.targets);
        self.parts(|case| &mut case.messages);
        self.plans();
        self.sources();
        self.options();
    }

    /// Leaves out configurations that no act names, but for the last one, which is for the end.
    fn plans(&mut self) {
        let mut case = self.best.clone();
        let mut named: Vec<usize> = vec![0];
        let acts = case.acts.iter_mut();
        named.extend(acts.filter_map(|act| act.act.plan().copied()));
        named.push(case.plans.len() - 1);
        named.sort_unstable();
        named.dedup();
        for act in &mut case.acts {
            if let Some(plan) = act.act.plan() {
                *plan = named.binary_search(plan).expect("it is named");
            }
        }
        case.plans = named.iter().map(|at| case.plans[*at].clone()).collect();
        self.try_case(case);
    }

    /// Leaves out sources, in all configurations.
    fn sources(&mut self) {
        let plans = self.best.plans.iter();
        let queues = plans.flat_map(|plan| plan.sources.values().map(|s| s.queue.clone()));
        let queues: BTreeSet<String> = queues.collect();
        for queue in queues {
            let mut case = self.best.clone();
            for plan in &mut case.plans {
                plan.sources.retain(|_, source| source.queue != queue);
            }
            case.messages.retain(|message| message.queue != queue);
            self.try_case(case);
        }
    }

    /// Leaves out ever smaller parts of a list.
    fn parts<T>(&mut self, list: impl Fn(&mut Case) -> &mut Vec<T>) {
        let mut size = list(&mut self.best).len().div_ceil(2);
        while size > 0 && self.left > 0 {
            let mut at = 0;
            while at < list(&mut self.best).len() {
                let mut case = self.best.clone();
                let of = list(&mut case);
                let end = (at + size).min(of.len());
                of.drain(at..end);
                if !self.try_case(case) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Sets options to their defaults.
    fn options(&mut self) {
        self.change(|case| case.tiny = false);
        for at in 0..self.best.plans.len() {
            self.change(|case| case.plans[at].breaker = BreakerCase::default());
            self.change(|case| case.plans[at].max_in_flight = None);
            let pools: Vec<String> = self.best.plans[at].pools.keys().cloned().collect();
            for name in pools {
                if name != "default" {
                    self.change(|case| drop(case.plans[at].pools.remove(&name)));
                }
                for option in OPTIONS {
                    self.change(|case| {
                        if let Some(pool) = case.plans[at].pools.get_mut(&name) {
                            option(pool, &PoolCase::default());
                        }
                    });
                }
            }
            let sources: Vec<String> = self.best.plans[at].sources.keys().cloned().collect();
            for name in sources {
                self.change(|case| {
                    let source = case.plans[at].sources.get_mut(&name);
                    if let Some(source) = source {
                        (source.workers, source.keyless, source.many) = (None, None, false);
                    }
                });
                self.change(|case| {
                    if let Some(source) = case.plans[at].sources.get_mut(&name) {
                        source.window = 1_000;
                    }
                });
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Case)) {
        let mut case = self.best.clone();
        change(&mut case);
        self.try_case(case);
    }
}

type SetOption = fn(&mut PoolCase, &PoolCase);

const OPTIONS: &[SetOption] = &[
    |pool, usual| pool.concurrency = usual.concurrency,
    |pool, usual| pool.lane_concurrency = usual.lane_concurrency,
    |pool, usual| pool.lane_capacity = usual.lane_capacity,
    |pool, usual| pool.lane_scope = usual.lane_scope,
    |pool, usual| pool.rate = usual.rate,
    |pool, usual| pool.per_key_rate = usual.per_key_rate,
    |pool, usual| pool.overflow = usual.overflow,
    |pool, usual| pool.cascade = usual.cascade,
    |pool, usual| pool.on_refused = usual.on_refused,
    |pool, usual| pool.on_exhausted = usual.on_exhausted,
    |pool, usual| pool.byte_budget = usual.byte_budget,
    |pool, usual| pool.max_message = usual.max_message,
    |pool, usual| pool.return_delay = usual.return_delay,
    |pool, usual| pool.busy_max = usual.busy_max,
    |pool, usual| pool.patience = usual.patience,
    |pool, usual| pool.drain = usual.drain,
    |pool, usual| pool.timeout = usual.timeout,
    |pool, usual| pool.max_attempts = usual.max_attempts,
    |pool, usual| pool.retry_initial = usual.retry_initial,
    |pool, usual| pool.retry_max = usual.retry_max,
    |pool, usual| pool.keys.clone_from(&usual.keys),
];
