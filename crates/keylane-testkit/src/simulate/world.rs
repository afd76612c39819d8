//! What all models share: time, chance, faults, the history, and whether the process lives.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use keylane_router::message::Identity;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::case::{Act, Answer, Call, Case, Effect, FaultCase};
use super::chance::Chance;

/// Something that happened. Messages are named by their number in the case.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum What {
    /// The publisher was told that it is on disk, or that it had been published before.
    Accepted {
        n: usize,
    },
    /// The router has it from its source.
    Received {
        n: usize,
        source: String,
    },
    Start {
        n: usize,
        pool: String,
        attempt: u32,
    },
    End {
        n: usize,
        answer: Ending,
    },
    Acked {
        n: usize,
    },
    /// A settlement of it was not carried out, or not answered.
    Unsettled {
        n: usize,
        call: Call,
    },
    Returned {
        n: usize,
    },
    /// Its loan ended without a settlement.
    Lost {
        n: usize,
    },
    Stored {
        n: usize,
        place: Place,
    },
    /// An operator deleted it.
    Dropped {
        n: usize,
    },
    Acted {
        act: Act,
        result: Result<(), String>,
    },
    /// A reload begins.
    Reloading {
        plan: usize,
    },
    /// A life of the process ended.
    Ended {
        how: Death,
    },
    /// A new life began, with this configuration.
    Began {
        plan: usize,
    },
    /// The process could not start.
    Refused {
        plan: usize,
        text: String,
    },
    Suspended,
    Cut {
        queue: String,
    },
    /// Nothing goes wrong from now on.
    Calm,
    /// `problems()` names this.
    Problem {
        text: String,
    },
    Fault {
        call: Call,
        effect: Effect,
    },
}

/// How an attempt ended, as its target knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Ending {
    Delivered,
    Refused,
    Failed,
    Waits,
    /// The router gave it up.
    Cut,
}

/// Where a message is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Place {
    Spilled,
    Parked,
    DeadLetter,
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum Death {
    Crash,
    Stop,
    End,
}

/// An event, when it happened and in which life of the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Since the beginning of the run.
    pub at: Duration,
    /// From 1.
    pub life: u32,
    /// What happened.
    pub what: What,
}

/// The shared state of a run.
pub(crate) struct World {
    pub(crate) case: Arc<Case>,
    state: Mutex<State>,
    crashed: Notify,
}

struct State {
    chance: Chance,
    life: u32,
    open: bool,
    /// The run's time when this life began, and the runtime's.
    began: (Duration, Option<Instant>),
    /// How long the machine slept in all.
    slept: Duration,
    calm: bool,
    faults: Vec<FaultCase>,
    calls: BTreeMap<(Call, Option<String>), u32>,
    /// The process ends when the work that runs is done.
    dies_after: bool,
    /// What messages are known by.
    identities: BTreeMap<usize, Identity>,
    history: Vec<Event>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Go,
    Fails(Effect),
    /// The process is dead: the call never returns.
    Never,
}

impl World {
    pub(crate) fn new(case: Arc<Case>) -> Arc<Self> {
        let state = State {
            chance: Chance::new(case.seed, 1),
            life: 0,
            open: false,
            began: (Duration::ZERO, None),
            slept: Duration::ZERO,
            calm: false,
            faults: case.faults.clone(),
            calls: BTreeMap::new(),
            dies_after: false,
            identities: BTreeMap::new(),
            history: Vec::new(),
        };
        Arc::new(Self {
            case,
            state: Mutex::new(state),
            crashed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    /// A process begins; called inside its runtime.
    pub(crate) fn begin_life(&self, plan: usize) {
        let mut state = self.lock();
        state.life += 1;
        state.open = true;
        state.dies_after = false;
        state.began.1 = Some(Instant::now());
        drop(state);
        self.note(What::Began { plan });
    }

    /// The process is over; `pause` passes before the next begins. Called before its runtime goes.
    pub(crate) fn end_life(&self, how: Death, pause: Duration) {
        self.note(What::Ended { how });
        let now = self.now();
        let mut state = self.lock();
        state.open = false;
        state.began = (now + pause, None);
    }

    /// Since the beginning of the run.
    pub(crate) fn now(&self) -> Duration {
        let state = self.lock();
        now(&state)
    }

    /// As [`World::now`], and the time that the machine slept.
    pub(crate) fn lease_now(&self) -> Duration {
        let state = self.lock();
        now(&state) + state.slept
    }

    pub(crate) fn suspend(&self, takes: Duration) {
        self.lock().slept += takes;
        self.note(What::Suspended);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().open
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.lock().calm
    }

    pub(crate) fn calm_down(&self) {
        self.lock().calm = true;
        self.note(What::Calm);
    }

    pub(crate) fn note(&self, what: What) {
        let mut state = self.lock();
        let event = Event {
            at: now(&state),
            life: state.life,
            what,
        };
        state.history.push(event);
    }

    pub(crate) fn with_chance<T>(&self, with: impl FnOnce(&mut Chance) -> T) -> T {
        with(&mut self.lock().chance)
    }

    pub(crate) fn events(&self) -> usize {
        self.lock().history.len()
    }

    pub(crate) fn take_history(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().history)
    }

    /// When something happened that is progress.
    pub(crate) fn last_progress(&self) -> Duration {
        let state = self.lock();
        let progress = |event: &&Event| {
            matches!(
                event.what,
                What::Start { .. }
                    | What::End { .. }
                    | What::Acked { .. }
                    | What::Stored { .. }
                    | What::Accepted { .. }
                    | What::Calm
                    | What::Began { .. }
            )
        };
        let last = state.history.iter().rev().find(progress);
        last.map_or(Duration::ZERO, |event| event.at)
    }

    /// A message was received under this identity.
    pub(crate) fn identified(&self, n: usize, identity: Identity) {
        self.lock().identities.insert(n, identity);
    }

    /// The message of this key that was attempted last.
    pub(crate) fn last_attempted(&self, key: Option<&str>) -> Option<Identity> {
        let state = self.lock();
        let mut starts = state
            .history
            .iter()
            .rev()
            .filter_map(|event| match event.what {
                What::Start { n, .. } => Some(n),
                _ => None,
            });
        let n = starts.find(|n| self.case.key_of(*n) == key)?;
        state.identities.get(&n).cloned()
    }

    /// A latency of this many milliseconds at most.
    pub(crate) async fn latency(&self, most: u64) {
        let takes = self.with_chance(|chance| chance.millis(0, most));
        tokio::time::sleep(takes).await;
    }

    /// A call that concerns messages of these keys: does it come to pass?
    pub(crate) fn pass(&self, call: Call, keys: &[Option<String>]) -> Pass {
        let mut state = self.lock();
        if !state.open {
            return Pass::Never;
        }
        let mut names: Vec<Option<String>> = keys.iter().flatten().cloned().map(Some).collect();
        names.sort();
        names.dedup();
        names.push(None);
        let mut effect = None;
        for name in names {
            let count = state.calls.entry((call, name.clone())).or_default();
            *count += 1;
            let nth = *count;
            let fits =
                |fault: &FaultCase| fault.call == call && fault.nth == nth && fault.key == name;
            if let Some(at) = state.faults.iter().position(fits) {
                effect = Some(state.faults.remove(at).effect);
            }
        }
        let Some(effect) = effect.filter(|_| !state.calm) else {
            return Pass::Go;
        };
        drop(state);
        self.note(What::Fault { call, effect });
        match effect {
            Effect::CrashBefore => {
                self.crash();
                Pass::Never
            }
            effect => Pass::Fails(effect),
        }
    }

    /// The doors of all models close; the runtime is dropped as soon as this poll ends.
    pub(crate) fn crash(&self) {
        self.lock().open = false;
        self.crashed.notify_one();
    }

    pub(crate) fn crash_when_done(&self) {
        self.lock().dies_after = true;
    }

    /// Work of the machine is done.
    pub(crate) fn work_done(&self) {
        if std::mem::take(&mut self.lock().dies_after) {
            self.crash();
        }
    }

    pub(crate) async fn crashed(&self) {
        self.crashed.notified().await;
    }

    /// Runs a call under [`World::pass`]: its effect is `call`, `failed` makes its error.
    pub(crate) async fn call<T>(
        &self,
        what: Call,
        keys: &[Option<String>],
        call: impl Future<Output = T>,
        failed: impl FnOnce(Effect) -> T,
    ) -> T {
        match self.pass(what, keys) {
            Pass::Go => {
                let value = call.await;
                self.if_open(value).await
            }
            Pass::Fails(Effect::CrashAfter) => {
                let _ = call.await;
                self.crash();
                std::future::pending().await
            }
            Pass::Fails(effect) => {
                self.latency(5).await;
                let failed = failed(effect);
                self.if_open(failed).await
            }
            Pass::Never => std::future::pending().await,
        }
    }

    async fn if_open<T>(&self, value: T) -> T {
        match self.is_open() {
            true => value,
            false => std::future::pending().await,
        }
    }

    /// How the target answers this attempt of message `n`.
    pub(crate) fn answer(&self, n: usize, attempt: u32) -> Answer {
        if self.is_calm() {
            return Answer::Success;
        }
        let now = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX);
        let Some(message) = self.case.messages.get(n) else {
            return Answer::Success;
        };
        for rule in &self.case.targets {
            let fits = rule.origin.is_none_or(|origin| origin == message.origin)
                && (rule.key.is_none() || rule.key == message.key)
                && (rule.first == 0 || attempt <= rule.first)
                && now >= rule.from
                && (rule.until == 0 || now < rule.until);
            if fits && self.with_chance(|chance| chance.one_in(rule.one_in.max(1))) {
                return rule.answer;
            }
        }
        Answer::Success
    }
}

fn now(state: &State) -> Duration {
    let (before, began) = state.began;
    before + began.map_or(Duration::ZERO, |began| began.elapsed())
}
