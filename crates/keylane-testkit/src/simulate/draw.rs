//! Makes a case from a seed: a configuration over the whole option space, hard traffic, failing
//! targets, faults and acts.

use super::case::{
    Act, ActCase, Answer, BreakerCase, Call, CascadeCase, Case, Effect, ExhaustedCase, FaultCase,
    KeyCase, KeylessCase, Kind, MessageCase, OverflowCase, PlanCase, PoolCase, RefusedCase,
    ScopeCase, SourceCase, TargetCase, Verb,
};
use super::chance::Chance;

/// Pool codes of messages; `ghost` is never configured.
const CODES: [&str; 5] = ["default", "a", "b", "c", "ghost"];
const ORIGINS: u64 = 3;

/// The case of a seed.
pub fn draw(seed: u64) -> Case {
    let mut draw = Draw {
        chance: Chance::new(seed, 0),
        span: 0,
    };
    draw.case(seed)
}

struct Draw {
    chance: Chance,
    /// How long traffic lasts, in milliseconds.
    span: u64,
}

impl Draw {
    fn case(&mut self, seed: u64) -> Case {
        self.span = *self.chance.pick(&[3_000, 10_000, 30_000, 60_000]);
        let mut case = Case {
            seed,
            tiny: self.chance.one_in(2),
            plans: vec![self.plan()],
            ..Case::default()
        };
        let keys = self.keys();
        self.acts(&mut case, &keys);
        // The last one fits whatever is stored.
        let mut last = case.plans[0].clone();
        for pool in last.pools.values_mut() {
            pool.lane_scope = ScopeCase::Source;
        }
        case.plans.push(last);
        self.messages(&mut case, &keys);
        self.targets(&mut case, &keys);
        self.faults(&mut case, &keys);
        case.calm = self.span + 15_000;
        for plan in &mut case.plans {
            repair(plan);
        }
        case
    }

    fn some<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match self.chance.one_in(2) {
            true => Some(draw(self)),
            false => None,
        }
    }

    fn plan(&mut self) -> PlanCase {
        let mut plan = PlanCase {
            stall_after: 60_000,
            breaker: self.breaker(),
            ..PlanCase::default()
        };
        if self.chance.one_in(4) {
            plan.max_in_flight = Some(self.chance.between(1, 8) as usize);
        }
        plan.pools.insert("default".to_owned(), self.pool());
        for name in ["a", "b"] {
            if self.chance.one_in(2) {
                plan.pools.insert(name.to_owned(), self.pool());
            }
        }
        let sources = self.chance.between(1, 3);
        for at in 1..=sources {
            let source = self.source(at);
            plan.sources.insert(format!("s{at}"), source);
        }
        plan
    }

    fn breaker(&mut self) -> BreakerCase {
        if self.chance.one_in(2) {
            return BreakerCase::default();
        }
        BreakerCase {
            failures: *self.chance.pick(&[0.0, 0.2, 0.5, 1.0]),
            window: *self.chance.pick(&[5, 8, 20]),
            min_lanes: *self.chance.pick(&[1, 2, 5]),
            open: *self.chance.pick(&[100, 1_000, 5_000]),
            probes: *self.chance.pick(&[1, 3]),
        }
    }

    fn pool(&mut self) -> PoolCase {
        let chance = &mut self.chance;
        let mut pool = PoolCase {
            concurrency: *chance.pick(&[Some(1), Some(2), Some(4), Some(16), None]),
            lane_concurrency: *chance.pick(&[1, 1, 1, 1, 2, 4]),
            lane_capacity: *chance.pick(&[1, 2, 5, 20, 500]),
            lane_scope: match chance.one_in(5) {
                true => ScopeCase::Pool,
                false => ScopeCase::Source,
            },
            cascade: match chance.one_in(10) {
                true => CascadeCase::Batch,
                false => CascadeCase::Key,
            },
            on_refused: *chance.pick(RefusedCase::ALL),
            byte_budget: *chance.pick(&[2_000, 4_000, 20_000, 64 << 20]),
            max_message: *chance.pick(&[1_500, 1 << 20]),
            return_delay: *chance.pick(&[0, 500, 2_000]),
            busy_max: *chance.pick(&[1_000, 10_000]),
            patience: *chance.pick(&[3_000, 60_000]),
            drain: *chance.pick(&[Some(0), Some(1_000), Some(5_000), None]),
            timeout: *chance.pick(&[500, 2_000, 5_000]),
            max_attempts: *chance.pick(&[1, 2, 3, 5]),
            retry_initial: *chance.pick(&[20, 200, 1_000]),
            retry_max: *chance.pick(&[1_000, 3_000]),
            ..PoolCase::default()
        };
        if chance.one_in(6) {
            pool.rate = Some(*chance.pick(&[5, 20, 100]));
        }
        if chance.one_in(8) {
            pool.per_key_rate = Some(*chance.pick(&[2, 10]));
        }
        pool.overflow = self.some(|draw| *draw.chance.pick(OverflowCase::ALL));
        pool.on_exhausted = *self.chance.pick(ExhaustedCase::ALL);
        if self.chance.one_in(4) {
            pool.keys.push(KeyCase {
                pattern: (*self.chance.pick(&["hot", "k1*", "k*"])).to_owned(),
                lane_concurrency: self.some(|draw| *draw.chance.pick(&[1, 2])),
                lane_capacity: self.some(|draw| *draw.chance.pick(&[1, 3, 50])),
                per_key_rate: None,
            });
        }
        pool
    }

    fn source(&mut self, at: u64) -> SourceCase {
        let chance = &mut self.chance;
        let kind = match at == 1 && chance.one_in(2) {
            true => Kind::Embedded,
            false => *chance.pick(Kind::ALL),
        };
        SourceCase {
            kind,
            queue: format!("q{at}"),
            window: *chance.pick(&[2, 8, 20, 100, 1_000]),
            workers: *chance.pick(&[None, None, None, None, Some(1), Some(2), Some(8)]),
            many: kind != Kind::Embedded && kind != Kind::Plain && chance.one_in(6),
            keyless: *chance.pick(&[
                None,
                None,
                Some(KeylessCase::Serial),
                Some(KeylessCase::Parallel),
            ]),
            raw_pool: match chance.one_in(10) {
                true => Some((*chance.pick(&CODES[..4])).to_owned()),
                false => None,
            },
            lease: *chance.pick(&[4_000, 10_000, 30_000]),
        }
    }

    fn keys(&mut self) -> Vec<String> {
        let many = *self.chance.pick(&[1, 3, 8, 40]);
        let mut keys: Vec<String> = (0..many).map(|at| format!("k{at}")).collect();
        keys.push("hot".to_owned());
        keys
    }

    /// What the operator and the world do, with the configurations that they need.
    fn acts(&mut self, case: &mut Case, keys: &[String]) {
        let many = self.chance.between(0, 8);
        let mut times: Vec<u64> = (0..many)
            .map(|_| self.chance.between(100, self.span + 5_000))
            .collect();
        times.sort_unstable();
        let mut in_force = 0;
        for at in times {
            let act = match self.chance.below(10) {
                0..=3 => {
                    let plan = self.changed(&case.plans, in_force);
                    case.plans.push(plan);
                    in_force = case.plans.len() - 1;
                    Act::Reload { plan: in_force }
                }
                4..=6 => self.verb(&case.plans[in_force], keys),
                7 => {
                    let changed = self.some(|draw| draw.changed(&case.plans, in_force));
                    let plan = changed.map(|changed| {
                        case.plans.push(changed);
                        in_force = case.plans.len() - 1;
                        in_force
                    });
                    Act::Restart {
                        deadline: *self.chance.pick(&[0, 500, 5_000]),
                        second: self.some(|draw| draw.chance.between(0, 300)),
                        plan,
                    }
                }
                8 => Act::Crash,
                _ => match self.chance.one_in(2) {
                    true => Act::Cut {
                        queue: format!("q{}", self.chance.between(1, 3)),
                    },
                    false => Act::Suspend {
                        takes: self.chance.between(1_000, 60_000),
                    },
                },
            };
            case.acts.push(ActCase { at, act });
        }
    }

    /// A configuration that differs from the one in force; often an earlier one comes back.
    fn changed(&mut self, plans: &[PlanCase], in_force: usize) -> PlanCase {
        if plans.len() > 1 && self.chance.one_in(3) {
            return self.chance.pick(plans).clone();
        }
        let mut plan = plans[in_force].clone();
        let pools: Vec<String> = plan.pools.keys().cloned().collect();
        let sources: Vec<String> = plan.sources.keys().cloned().collect();
        let pool = self.chance.pick(&pools).clone();
        match self.chance.below(10) {
            0 | 1 => {
                // Most often a pool other than the default goes.
                let other = pools.iter().find(|name| *name != "default");
                if let Some(other) = other {
                    plan.pools.remove(other);
                } else {
                    plan.pools.insert("a".to_owned(), self.pool());
                }
            }
            2 => {
                let name = (*self.chance.pick(&["a", "b", "c"])).to_owned();
                let new = self.pool();
                plan.pools.entry(name).or_insert(new);
            }
            3 => {
                let new = self.pool();
                let scope = plan.pools[&pool].lane_scope;
                let new = PoolCase {
                    lane_scope: scope,
                    ..new
                };
                plan.pools.insert(pool, new);
            }
            4 => {
                let pool = plan.pools.get_mut(&pool).expect("it is there");
                pool.lane_capacity = *self.chance.pick(&[1, 2, 5, 500]);
                pool.overflow = self.some(|draw| *draw.chance.pick(OverflowCase::ALL));
            }
            5 => {
                let pool = plan.pools.get_mut(&pool).expect("it is there");
                pool.lane_scope = *self.chance.pick(ScopeCase::ALL);
            }
            6 => plan.breaker = self.breaker(),
            7 if !sources.is_empty() => {
                let name = self.chance.pick(&sources);
                let source = plan.sources.get_mut(name).expect("it is there");
                match self.chance.below(4) {
                    0 => source.workers = *self.chance.pick(&[None, Some(1), Some(4)]),
                    1 => source.window = *self.chance.pick(&[2, 8, 100]),
                    2 if source.raw_pool.is_some() => {
                        source.raw_pool = Some((*self.chance.pick(&CODES[..4])).to_owned());
                    }
                    _ => source.keyless = Some(*self.chance.pick(KeylessCase::ALL)),
                }
            }
            8 if !sources.is_empty() => {
                let name = self.chance.pick(&sources).clone();
                let source = plan.sources.remove(&name).expect("it is there");
                if self.chance.one_in(2) {
                    // The same queue under another name.
                    plan.sources.insert(format!("{name}x"), source);
                }
            }
            _ => plan.max_in_flight = self.some(|draw| draw.chance.between(1, 4) as usize),
        }
        plan
    }

    fn verb(&mut self, plan: &PlanCase, keys: &[String]) -> Act {
        let pools: Vec<String> = plan.pools.keys().cloned().collect();
        let sources: Vec<String> = plan.sources.keys().cloned().collect();
        let source = match sources.is_empty() {
            true => "s1".to_owned(),
            false => self.chance.pick(&sources).clone(),
        };
        Act::Verb {
            verb: *self.chance.pick(Verb::ALL),
            source,
            pool: self.chance.pick(&pools).clone(),
            key: self.key(keys),
        }
    }

    /// The hot key half of the time.
    fn key(&mut self, keys: &[String]) -> String {
        match self.chance.one_in(2) {
            true => "hot".to_owned(),
            false => self.chance.pick(keys).clone(),
        }
    }

    fn messages(&mut self, case: &mut Case, keys: &[String]) {
        let many = self.chance.between(40, 260);
        let queues: Vec<(String, Kind, bool)> = case.plans[0]
            .sources
            .values()
            .map(|source| (source.queue.clone(), source.kind, source.raw_pool.is_some()))
            .collect();
        let (mixed, keyless) = (self.chance.one_in(2), *self.chance.pick(&[0, 1, 5]));
        // All codes of a run, so that keys of one pool are many.
        let codes: Vec<Option<String>> = match mixed {
            true => CODES
                .iter()
                .map(|code| Some((*code).to_owned()))
                .chain([None])
                .collect(),
            false => vec![self.some(|draw| (*draw.chance.pick(&CODES)).to_owned())],
        };
        // Bursts: many messages at one time.
        let bursts = self.chance.between(1, 20);
        let times: Vec<u64> = (0..bursts)
            .map(|_| self.chance.between(0, self.span))
            .collect();
        let mut messages: Vec<MessageCase> = Vec::new();
        for _ in 0..many {
            let (queue, kind, _) = self.chance.pick(&queues).clone();
            let chance = &mut self.chance;
            let keyed = kind == Kind::Fifo || !(keyless > 0 && chance.one_in(10 / keyless));
            let key = match chance.one_in(2) {
                true => "hot".to_owned(),
                false => chance.pick(keys).clone(),
            };
            let delayed = kind == Kind::Embedded && chance.one_in(25);
            messages.push(MessageCase {
                at: *chance.pick(&times),
                queue,
                key: keyed.then_some(key),
                pool: chance.pick(&codes).clone(),
                delay: if delayed { chance.between(1, 4_000) } else { 0 },
                twice: chance.one_in(40),
                size: *chance.pick(&[0, 0, 100, 600, 1_600]),
                origin: chance.below(ORIGINS) as u8,
                malformed: chance.one_in(100),
            });
        }
        messages.sort_by_key(|message| message.at);
        case.messages = messages;
    }

    fn targets(&mut self, case: &mut Case, keys: &[String]) {
        for _ in 0..self.chance.between(0, 4) {
            let from = self.chance.between(0, self.span);
            let until = from + self.chance.between(500, self.span);
            let chance = &mut self.chance;
            let answer = match chance.below(10) {
                0 => Answer::Slow {
                    takes: chance.between(50, 4_000),
                },
                1 => Answer::Busy {
                    after: *chance.pick(&[None, Some(0), Some(700), Some(20_000)]),
                },
                2 => Answer::NotYet {
                    after: *chance.pick(&[None, Some(0), Some(1_500)]),
                },
                3..=5 => Answer::ServerError,
                6 => Answer::NoConnection,
                7 => Answer::ClientError,
                8 => Answer::Never,
                _ => Answer::Panic,
            };
            let rule = TargetCase {
                origin: self.some(|draw| draw.chance.below(ORIGINS) as u8),
                key: self.some(|draw| draw.key(keys)),
                first: *self.chance.pick(&[0, 0, 1, 3]),
                one_in: *self.chance.pick(&[1, 2, 5]),
                from,
                until,
                answer,
            };
            case.targets.push(rule);
        }
    }

    fn faults(&mut self, case: &mut Case, keys: &[String]) {
        for _ in 0..self.chance.between(0, 5) {
            let call = *self.chance.pick(Call::ALL);
            let effect = *self.chance.pick(effects(call));
            let most = match call {
                Call::Commit | Call::Ack | Call::Attempt | Call::Receive => 60,
                _ => 4,
            };
            let keyed = !matches!(call, Call::Receive | Call::Commit | Call::Move);
            let key = match keyed && self.chance.one_in(3) {
                true => Some(self.key(keys)),
                false => None,
            };
            case.faults.push(FaultCase {
                call,
                key,
                nth: self.chance.between(1, most) as u32,
                effect,
            });
        }
    }
}

/// What can happen at a call.
pub(crate) fn effects(call: Call) -> &'static [Effect] {
    match call {
        Call::Ack | Call::GiveBack | Call::Renew => Effect::ALL,
        Call::Attempt => &[Effect::CrashBefore, Effect::CrashAfter],
        _ => &[Effect::CrashBefore, Effect::CrashAfter, Effect::Error],
    }
}

/// Makes a drawn configuration one that the router takes.
pub(crate) fn repair(plan: &mut PlanCase) {
    let returns = |source: &SourceCase| matches!(source.kind, Kind::Embedded | Kind::Fifo);
    let all_return = plan.sources.values().all(returns);
    let many = plan.sources.values().any(|source| source.many);
    for pool in plan.pools.values_mut() {
        if !all_return {
            pool.lane_scope = ScopeCase::Source;
            if pool.on_exhausted == ExhaustedCase::Return {
                pool.on_exhausted = ExhaustedCase::Block;
            }
        }
        if many {
            if pool.on_exhausted == ExhaustedCase::Park {
                pool.on_exhausted = ExhaustedCase::DeadLetter;
            }
            if pool.overflow == Some(OverflowCase::Spill) {
                pool.overflow = Some(OverflowCase::Wait);
            }
        }
        if pool.lane_scope == ScopeCase::Pool && pool.overflow == Some(OverflowCase::Spill) {
            pool.overflow = Some(OverflowCase::Wait);
        }
        pool.retry_max = pool.retry_max.max(pool.retry_initial);
    }
}
