//! Builds an executor and reports everything that is wrong at once.

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use crate::clock::Clock;
use crate::executor::{Executor, Owner};
use crate::handler::{Handler, JobExecutor, Jobs};
use crate::lanes::Rate;
use crate::listener::{Common, Listener};
use crate::permits::Permits;
use crate::reject::{Decision, Policy, RejectHandler, Rejection};
use crate::rt::Spawner;
use crate::rules::{KeyRules, Limits, LiveLimits};
use crate::shell::Shell;
use crate::tasks::Tasks;

/// Makes an [`Executor`]. Every option has a default: lane concurrency 1, everything else
/// unlimited, policy [`Policy::Abort`].
pub struct Builder<K> {
    name: Arc<str>,
    limits: Limits,
    rules: KeyRules<K>,
    policy: Policy,
    handler: Option<RejectHandler<K>>,
    listener: Option<Arc<dyn Listener<K>>>,
    permits: Option<Permits>,
    resolve_once: bool,
    runtime: Option<tokio::runtime::Handle>,
    /// What was wrong with single keys.
    key_errors: Vec<String>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Builder<K> {
    pub(crate) fn new() -> Self {
        Self {
            name: Arc::from("keylane"),
            limits: Limits::default(),
            rules: KeyRules::default(),
            policy: Policy::default(),
            handler: None,
            listener: None,
            permits: None,
            resolve_once: false,
            runtime: None,
            key_errors: Vec::new(),
        }
    }

    /// The name in spans, logs and metrics. Default: `keylane`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// How many tasks run at once, of all keys. Default: no limit.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.limits.concurrency = Some(most);
        self
    }

    /// Another name for the same limit as [`concurrency`](Self::concurrency); the smaller counts.
    pub fn max_in_flight(mut self, most: usize) -> Self {
        self.limits.max_in_flight = Some(most);
        self
    }

    /// How many tasks of one key run at once. Default 1: strict order. With more, first starts
    /// still happen in submit order, each up to its first wait before the next.
    pub fn lane_concurrency(mut self, most: usize) -> Self {
        self.limits.lane_concurrency = most;
        self
    }

    /// Lane concurrency of single keys. Asked before
    /// [`lane_concurrency_by`](Self::lane_concurrency_by) and the default.
    pub fn lane_concurrency_for(mut self, keys: impl IntoIterator<Item = (K, usize)>) -> Self
    where
        K: fmt::Debug,
    {
        let keys = keys.into_iter().inspect(|entry| {
            self.key_errors.extend(zero("lane_concurrency_for", entry));
        });
        self.rules.concurrency_for.extend(keys);
        self
    }

    /// Lane concurrency by a function: asked when a key's lane is made. 0 counts as 1; a panic
    /// means the default.
    pub fn lane_concurrency_by(mut self, by: impl Fn(&K) -> usize + Send + Sync + 'static) -> Self {
        self.rules.concurrency_by = Some(Arc::new(by));
        self
    }

    /// How many tasks of one key are in flight at once; the smaller of this and its lane
    /// concurrency counts. Default: no limit.
    pub fn max_in_flight_per_key(mut self, most: usize) -> Self {
        self.limits.max_in_flight_per_key = Some(most);
        self
    }

    /// As [`max_in_flight_per_key`](Self::max_in_flight_per_key) for single keys.
    pub fn max_in_flight_for(mut self, keys: impl IntoIterator<Item = (K, usize)>) -> Self
    where
        K: fmt::Debug,
    {
        let keys = keys.into_iter().inspect(|entry| {
            self.key_errors.extend(zero("max_in_flight_for", entry));
        });
        self.rules.in_flight_for.extend(keys);
        self
    }

    /// How many tasks may wait only because [`concurrency`](Self::concurrency) or
    /// [`max_in_flight`](Self::max_in_flight) is reached. What waits for its key counts there
    /// ([`queue_limit_per_key`](Self::queue_limit_per_key)); what could start but for a rate or for
    /// [`shared_permits`](Self::shared_permits) counts nowhere. 0: none. Default: no limit.
    pub fn queue_limit(mut self, most: usize) -> Self {
        self.limits.queue_limit = Some(most);
        self
    }

    /// How many tasks of one key may wait for that key. 0: none. Default: no limit.
    pub fn queue_limit_per_key(mut self, most: usize) -> Self {
        self.limits.queue_limit_per_key = Some(most);
        self
    }

    /// As [`queue_limit_per_key`](Self::queue_limit_per_key) for single keys.
    pub fn queue_limit_for(mut self, keys: impl IntoIterator<Item = (K, usize)>) -> Self {
        self.rules.queue_for.extend(keys);
        self
    }

    /// What happens to a task for which there is no room. Default: [`Policy::Abort`].
    pub fn on_reject(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Decides about each task for which there is no room; wins over
    /// [`on_reject`](Self::on_reject). The task holds no permit meanwhile; a panic of the handler
    /// is a rejection.
    pub fn reject_with(
        mut self,
        handler: impl Fn(&Rejection<K>) -> Decision + Send + Sync + 'static,
    ) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Is told what happens to tasks.
    pub fn listener(mut self, listener: impl Listener<K>) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// How often tasks may start, of all keys. A task that waits for it holds its turn, not a
    /// permit. Default: no limit.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.limits.rate = Some(rate);
        self
    }

    /// How often tasks of each key may start. Default: no limit.
    pub fn per_key_rate(mut self, rate: Rate) -> Self {
        self.limits.per_key_rate = Some(rate);
        self
    }

    /// As [`per_key_rate`](Self::per_key_rate) by a function; `None` means the default.
    pub fn per_key_rate_by(
        mut self,
        by: impl Fn(&K) -> Option<Rate> + Send + Sync + 'static,
    ) -> Self {
        self.rules.rate_by = Some(Arc::new(by));
        self
    }

    /// How many tasks of a key start before the next ready key's turn. Default 1.
    pub fn turn(mut self, starts: u32) -> Self {
        self.limits.turn = starts;
        self
    }

    /// Whose key it is. Tenants share the executor fairly, however many keys each has; the keys of
    /// a tenant take turns. Default: no tenants.
    pub fn tenant_by<T: Into<Arc<str>>>(
        self,
        by: impl Fn(&K) -> T + Send + Sync + 'static,
    ) -> Self {
        self.maybe_tenant_by(move |key| Some(by(key).into()))
    }

    /// As [`tenant_by`](Self::tenant_by), where not every key is somebody's: those that are
    /// nobody's share as one tenant does.
    pub fn maybe_tenant_by(
        mut self,
        by: impl Fn(&K) -> Option<Arc<str>> + Send + Sync + 'static,
    ) -> Self {
        self.rules.tenant_by = Some(Arc::new(by));
        self
    }

    /// A tenant's share: one of weight 3 has three starts where one of weight 1 has one. 0 counts
    /// as 1. Default 1.
    pub fn weight_by(mut self, by: impl Fn(&str) -> u32 + Send + Sync + 'static) -> Self {
        self.rules.weight_by = Some(Arc::new(by));
        self
    }

    /// Remember what the functions above said about a key until it is evicted or the limits are
    /// changed, instead of asking again whenever its lane is made anew. Costs memory for every key
    /// ever seen. Default: false.
    pub fn resolve_once(mut self, once: bool) -> Self {
        self.resolve_once = once;
        self
    }

    /// Permits shared with other executors.
    pub fn shared_permits(mut self, permits: Permits) -> Self {
        self.permits = Some(permits);
        self
    }

    /// The runtime to run on; its timers must be enabled. Default: the one this is built inside of.
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Builds the executor.
    ///
    /// # Errors
    /// [`BuildErrors`] with everything that is wrong.
    pub fn build(mut self) -> Result<Executor<K>, BuildErrors> {
        let spawner = self.check()?;
        let limits = self.limits.for_lanes();
        let clock = Clock::new();
        let tasks = Tasks {
            clock,
            common: Arc::new(Common::new(self.name, self.listener)),
            rules: self.rules,
            limits: LiveLimits::new(self.limits),
        };
        let remember = self.resolve_once;
        let shell = Shell::new(
            tasks,
            clock,
            limits,
            spawner.clone(),
            self.permits,
            remember,
        );
        Ok(Executor::new(Owner {
            shell,
            spawner,
            policy: self.policy,
            handler: self.handler,
            watch: OnceLock::new(),
        }))
    }

    /// Builds an executor for many jobs and one function instead. What concerns tasks and their
    /// handles (policy, rejection handler, listener) has no part in it.
    ///
    /// # Errors
    /// [`BuildErrors`] with everything that is wrong.
    pub fn build_with<J, H>(mut self, handler: H) -> Result<JobExecutor<K, J, H>, BuildErrors>
    where
        J: Send + 'static,
        H: Handler<K, J>,
    {
        let spawner = self.check()?;
        let limits = self.limits.for_lanes();
        let common = Common::new(self.name, self.listener);
        let jobs = Jobs::new(handler, common, self.rules, self.limits);
        let remember = self.resolve_once;
        let shell = Shell::new(jobs, Clock::new(), limits, spawner, self.permits, remember);
        Ok(JobExecutor::new(shell))
    }

    fn check(&mut self) -> Result<Spawner, BuildErrors> {
        let mut errors = self.problems();
        let spawner = spawner(self.runtime.take()).map_err(|error| errors.push(error));
        match spawner {
            Ok(spawner) if errors.is_empty() => Ok(spawner),
            _ => Err(BuildErrors { errors }),
        }
    }

    fn problems(&self) -> Vec<String> {
        let limits = self.limits.problems().into_iter();
        let limits = limits.map(|(option, value)| must_be_positive(option, value));
        limits.chain(self.key_errors.iter().cloned()).collect()
    }
}

fn zero<K: fmt::Debug>(option: &str, (key, value): &(K, usize)) -> Option<String> {
    (*value == 0).then(|| must_be_positive(&format!("{option}[{key:?}]"), 0))
}

fn must_be_positive(option: &str, value: usize) -> String {
    format!("{option} is {value}; it must be at least 1")
}

#[cfg(not(keylane_shuttle))]
pub(crate) fn spawner(runtime: Option<tokio::runtime::Handle>) -> Result<Spawner, String> {
    let found = runtime.map_or_else(tokio::runtime::Handle::try_current, Ok);
    let spawner = found.map(Spawner).map_err(|_| {
        "no runtime: build the executor inside a tokio runtime, or name one with `.runtime(…)`"
            .to_owned()
    })?;
    if spawner.has_timers() {
        return Ok(spawner);
    }
    Err("the runtime has no timers, which rates, deadlines and holds need: build it with `enable_time()`".into())
}

#[cfg(keylane_shuttle)]
pub(crate) fn spawner(_: Option<tokio::runtime::Handle>) -> Result<Spawner, String> {
    Ok(Spawner)
}

/// Everything that is wrong with the options of a [`Builder`]. Shown, each is a line of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildErrors {
    /// One sentence each.
    pub errors: Vec<String>,
}

impl BuildErrors {
    /// What is wrong with limits that are to be put in force.
    pub(crate) fn check(limits: &Limits) -> Result<(), Self> {
        let problems = limits.problems().into_iter();
        let errors: Vec<String> = problems
            .map(|(o, value)| must_be_positive(o, value))
            .collect();
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self { errors })
        }
    }
}

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errors.join("\n"))
    }
}

impl std::error::Error for BuildErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_a_line_of_its_own() {
        let two = Limits {
            turn: 0,
            concurrency: Some(0),
            ..Limits::default()
        };
        let errors = BuildErrors::check(&two).unwrap_err();
        let lines = "concurrency is 0; it must be at least 1\nturn is 0; it must be at least 1";
        assert_eq!(errors.to_string(), lines);
    }
}
