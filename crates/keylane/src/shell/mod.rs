//! The thin shell around [`Lanes`]: one lock, runners that take starts in batches, a timer.
//!
//! Who touches what: submitters put into `inbox`, a short lock of its own; runners take that into
//! `state`, where the lanes are, some at a time, report what ended, and take the next batch, all under
//! one lock.
//! A runner is a task that exists only while there is something to start; it polls each started
//! run once, and what is not ready then becomes a task of its own.
//!
//! The way of a job through the files: `submit`, `starts`, `runner` (or, for what is not ready at
//! once, `driven`), `ends`. What the shell runs is a [`Work`], in `work`.

mod driven;
mod ends;
mod first_polls;
mod flush;
mod idle;
mod relief;
mod runner;
mod starts;
mod submit;
mod timer;
mod work;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::{Notify, oneshot};

use self::ends::EndedRun;
use self::first_polls::FirstPolls;
use self::idle::{Publishing, tell};
use self::starts::BATCH_NANOS;
pub(crate) use self::submit::NotTaken;
use self::submit::{Submit, must_be_direct};
use self::timer::TimerOut;
pub(crate) use self::work::{Ended, Flushing, Stop, Types, Until, Work};
use crate::clock::Clock;
use crate::lanes::{Flushed, Hold, ItemId, Lanes, Limits, Spec, Time};
use crate::permits::{Kick, Permits};
use crate::rt::{AtomicBool, Mutex, MutexGuard, Spawner, lock};
use crate::stops::Stops;

/// The most starts that are taken under one lock, and before a runner lets others run.
const BATCH: usize = if cfg!(keylane_shuttle) { 2 } else { 64 };
/// How many threads leave ends without meeting each other.
const PLACES: usize = if cfg!(keylane_shuttle) { 2 } else { 8 };

struct Inbox<K, J> {
    /// Submitted, not yet in the lanes.
    queue: VecDeque<Submit<K, J>>,
    /// The sequence of the next submit.
    next_seq: u64,
    /// Submits go straight to the lanes, because they can be refused or need a spec.
    direct: bool,
    closed: bool,
    /// Runners that will look at the lanes again before they end.
    runners: usize,
    /// One of them comes for ends that were left, and starts nothing before it has looked for more.
    collector: bool,
    /// Something changed for the runners since they last looked.
    again: bool,
    /// Somebody sees to it that a runner in the middle of a long poll is not waited for.
    watched: bool,
}

struct State<K, J> {
    lanes: Lanes<K, J>,
    /// Taken from the inbox, and before everything there; not yet in the lanes.
    taken: VecDeque<Submit<K, J>>,
    /// Whether what was taken in last was of many keys.
    many_keys: bool,
    first_polls: FirstPolls<J>,
    /// Waiting for a key, or for everything, to be idle.
    idle_of: HashMap<K, Vec<oneshot::Sender<()>>>,
    idle_all: Vec<oneshot::Sender<()>>,
    /// Waiting for room, by sequence.
    room: HashMap<u64, Option<Waker>>,
    /// Limits that were asked for, to be remembered until evicted.
    remembered: HashMap<K, Spec>,
    /// Changes with everything that makes what was said about a key outdated.
    version: u64,
    /// Whether everything that waits is on its way out.
    draining: bool,
    /// When the timer task will wake, if there is one.
    timer: Option<Time>,
    timer_task: bool,
    /// When the rate of all allows the next start.
    rate_at: Option<Time>,
}

/// What is to be done once the lock is free.
struct Out<K, J> {
    flushes: Vec<Flushed<K, J>>,
    wakers: Vec<Waker>,
    idle: Vec<oneshot::Sender<()>>,
    timer: TimerOut,
    run: bool,
}

/// Has its cache lines for itself: what submitters write is not on a line that runners read.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// What runners write all the time.
struct Pace {
    /// What one poll of a started run took lately, in nanoseconds.
    poll_nanos: AtomicU32,
    /// How often a runner came to the lanes.
    turns: AtomicU32,
}

pub(crate) struct Shell<K, W: Types> {
    pub(crate) work: Arc<W>,
    inbox: Apart<Mutex<Inbox<K, W::Job>>>,
    /// Runs that ended as tasks of their own, to be reported by the next runner that looks. Threads
    /// have their own places for that, as far as there are enough.
    ends: [Apart<Mutex<Vec<EndedRun<W>>>>; PLACES],
    /// Whether there are any; said after they are there.
    any_ends: AtomicBool,
    /// Empty, to be filled with ends. Locked inside `state`.
    spare: Mutex<Vec<EndedRun<W>>>,
    state: Apart<Mutex<State<K, W::Job>>>,
    stops: Stops,
    /// What waited and ran when everything was stopped.
    stopped: OnceLock<(usize, usize)>,
    spawner: Spawner,
    /// That of the lanes.
    hasher: RandomState,
    workers: usize,
    pub(crate) clock: Clock,
    permits: Option<Permits>,
    remember: bool,
    timer_changed: Notify,
    /// Whether `permits` will kick this executor.
    wants_permit: AtomicBool,
    pace: Apart<Pace>,
    /// How many runs in a row were not ready at their first poll, up to a batch of them.
    pending: AtomicU32,
    /// Changes when something must not start any more that might before.
    changes: AtomicU32,
    /// The number of the next runner.
    next_runner: AtomicU32,
    /// Whether anything waited in the lanes when they were last looked at.
    waits: AtomicBool,
    /// Ends that were reported and whose results cannot be seen yet. Locked inside `state`.
    publishing: Mutex<Publishing>,
    me: Weak<Self>,
}

impl<K, W: Types> Shell<K, W> {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    pub(crate) fn new(
        work: W,
        clock: Clock,
        limits: Limits,
        spawner: Spawner,
        permits: Option<Permits>,
        remember: bool,
    ) -> Arc<Self> {
        let workers = spawner.workers();
        let lanes = Lanes::new(limits);
        let hasher = lanes.hasher();
        Arc::new_cyclic(|me| Self {
            inbox: Apart(Mutex::new(Inbox {
                queue: VecDeque::new(),
                next_seq: 0,
                direct: must_be_direct(&limits) || work.has_specs(),
                closed: false,
                runners: 0,
                collector: false,
                again: false,
                watched: false,
            })),
            ends: std::array::from_fn(|_| Apart(Mutex::new(Vec::new()))),
            any_ends: AtomicBool::new(false),
            spare: Mutex::new(Vec::new()),
            state: Apart(Mutex::new(State {
                lanes,
                taken: VecDeque::new(),
                many_keys: false,
                first_polls: FirstPolls::new(),
                idle_of: HashMap::new(),
                idle_all: Vec::new(),
                room: HashMap::new(),
                remembered: HashMap::new(),
                version: 0,
                draining: false,
                timer: None,
                timer_task: false,
                rate_at: None,
            })),
            hasher,
            stops: Stops::new(),
            stopped: OnceLock::new(),
            work: Arc::new(work),
            spawner,
            workers,
            clock,
            permits,
            remember,
            timer_changed: Notify::new(),
            wants_permit: AtomicBool::new(false),
            pace: Apart(Pace {
                poll_nanos: AtomicU32::new(BATCH_NANOS),
                turns: AtomicU32::new(0),
            }),
            pending: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            next_runner: AtomicU32::new(0),
            waits: AtomicBool::new(false),
            publishing: Mutex::default(),
            me: me.clone(),
        })
    }

    /// How many runs can be woken to be stopped.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.stops.len()
    }

    /// As [`Spawner::timeout`].
    pub(crate) async fn timeout<F: Future>(
        &self,
        time: std::time::Duration,
        future: F,
    ) -> Result<F::Output, ()> {
        self.spawner.timeout(time, future).await.map_err(drop)
    }

    /// Nothing of this key starts until it is resumed.
    pub(crate) fn pause(&self, key: K) {
        self.with_spec(key, |state, _, key, spec| {
            self.changes.fetch_add(1, Ordering::Release);
            state.lanes.pause(key, |_| spec);
        });
    }

    /// Takes a waiting job out of its lane, for this to end it; `false` when it does not wait.
    pub(crate) fn cancel(&self, key: &K, seq: u64, end: impl FnMut(W::Job)) -> bool {
        let take = |state: &mut State<K, W::Job>| {
            let item: ItemId = state.lanes.item(key, seq)?;
            let job = state.lanes.cancel(item)?;
            state.room.remove(&seq);
            Some(job)
        };
        self.take_out(|state| take(state).into_iter().collect(), end)
    }

    /// Takes everything that waits under a key out of its lane, for this to end it.
    pub(crate) fn evict(&self, key: &K, end: impl FnMut(W::Job)) {
        let take = |state: &mut State<K, W::Job>| {
            state.remembered.remove(key);
            state.version += 1;
            state.lanes.evict(key)
        };
        self.take_out(take, end);
    }

    /// What leaves its lane without a start is ended outside the lock; nobody is told that all is idle
    /// before. `false` when there was nothing.
    fn take_out(
        &self,
        take: impl FnOnce(&mut State<K, W::Job>) -> Vec<W::Job>,
        end: impl FnMut(W::Job),
    ) -> bool {
        let (jobs, unseen) = self.with(|state, _| {
            let jobs = take(state);
            let unseen = (!jobs.is_empty()).then(|| self.unseen());
            (jobs, unseen)
        });
        jobs.into_iter().for_each(end);
        unseen.is_some()
    }

    /// Stops what runs of this key.
    pub(crate) fn abort(&self, key: &K) {
        // Under the lock of the lanes: what is said of a run comes before its end is reported.
        let running = self.with(|state, _| {
            let running = state.lanes.running_of(key);
            self.stops.ask(running, Stop::Key)
        });
        running.into_iter().for_each(Waker::wake);
    }

    /// Takes nothing more, takes everything that waits out of its lane, for this to end it, and stops
    /// everything that runs.
    pub(crate) fn stop(&self, end: impl FnMut(W::Job)) {
        self.close();
        let mut wakers = Vec::new();
        let take = |state: &mut State<K, W::Job>| {
            let waiting = state.lanes.evict_all();
            let running = state.lanes.all_running();
            // Known before anybody can see that nothing is left.
            self.stopped.get_or_init(|| (waiting.len(), running.len()));
            wakers = self.stops.ask(running, Stop::All);
            waiting
        };
        self.take_out(take, end);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// How many waited, and how many ran, when everything was stopped; nothing when it was not.
    pub(crate) fn stopped(&self) -> Option<(usize, usize)> {
        self.stopped.get().copied()
    }

    /// No submit is taken any more; `false` when that was so already.
    pub(crate) fn close(&self) -> bool {
        !std::mem::replace(&mut lock(&self.inbox.0).closed, true)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.inbox.0).closed
    }

    /// Works on the lanes, everything submitted before included, and sees to what follows.
    pub(crate) fn lanes<R>(&self, change: impl FnOnce(&mut Lanes<K, W::Job>) -> R) -> R {
        self.with(|state, _| change(&mut state.lanes))
    }

    /// Hands out everything that waits, lane by lane; from now on nothing starts.
    pub(crate) fn drain(&self) {
        self.with(|state, inbox| {
            inbox.closed = true;
            state.draining = true;
            state.lanes.flush_all();
        });
    }

    /// Puts limits in force, if they are still the latest; what is said about single keys is asked
    /// for anew.
    pub(crate) fn set_limits(&self, limits: Limits, latest: impl Fn() -> bool) {
        let mut specs = HashMap::new();
        loop {
            // User code decides about keys: it is asked outside the lock, so lanes may come
            // meanwhile, which are then asked for too.
            let unasked = self.with(|state, inbox| {
                if !latest() {
                    // Whoever came later puts theirs in force.
                    return Vec::new();
                }
                let unasked = self.unasked(state, &specs);
                if unasked.is_empty() {
                    inbox.direct = must_be_direct(&limits) || self.work.has_specs();
                    state.remembered.clear();
                    state.version += 1;
                    self.changes.fetch_add(1, Ordering::Release);
                    let spec = |key: &K| specs.get(key).cloned().unwrap_or_default();
                    state.lanes.reconfigure(limits, spec);
                    state.rate_at = None;
                }
                unasked
            });
            if unasked.is_empty() {
                return;
            }
            for key in unasked {
                let spec = self.work.spec(&key);
                specs.insert(key, spec);
            }
        }
    }

    fn unasked(&self, state: &State<K, W::Job>, asked: &HashMap<K, Spec>) -> Vec<K> {
        if !self.work.has_specs() {
            return Vec::new();
        }
        let mut keys = state.lanes.keys();
        keys.retain(|key| !asked.contains_key(key));
        keys
    }

    /// Locks, takes in what was submitted, makes a change and does what follows from it.
    fn with<R>(&self, change: impl FnOnce(&mut State<K, W::Job>, &mut Inbox<K, W::Job>) -> R) -> R {
        self.change(lock(&self.state.0), change)
    }

    fn change<R>(
        &self,
        mut state: MutexGuard<'_, State<K, W::Job>>,
        change: impl FnOnce(&mut State<K, W::Job>, &mut Inbox<K, W::Job>) -> R,
    ) -> R {
        let answer = {
            let mut inbox = lock(&self.inbox.0);
            state.take_all(&mut inbox);
            change(&mut state, &mut inbox)
        };
        let out = self.finish(&mut state);
        drop(state);
        self.deliver(out);
        answer
    }

    /// What follows from a change of the lanes.
    fn finish(&self, state: &mut MutexGuard<'_, State<K, W::Job>>) -> Out<K, W::Job> {
        let wakers = state.take_wakers();
        let idle = self.idle_now(state);
        #[cfg(feature = "metrics")]
        self.work.observe(
            state.lanes.waiting(),
            state.lanes.running(),
            state.lanes.live(),
        );
        let untaken = !state.taken.is_empty();
        let waits = untaken || state.lanes.waiting() > 0;
        if waits != self.waits.load(Ordering::Relaxed) {
            self.waits.store(waits, Ordering::Relaxed);
        }
        let timer = state.set_timer();
        let limits = *state.lanes.limits();
        let can_start = state.lanes.ready() > 0
            && state.lanes.running() < limits.total
            && state.rate_at.is_none();
        let run = untaken || can_start;
        Out {
            flushes: state.lanes.take_flushed(),
            wakers,
            idle,
            timer,
            run,
        }
    }

    fn deliver(&self, out: Out<K, W::Job>) {
        for waker in out.wakers {
            waker.wake();
        }
        tell(out.idle);
        self.start_flushes(out.flushes);
        match out.timer {
            TimerOut::Fine => {}
            TimerOut::Start => self.start_timer(),
            TimerOut::Earlier => self.timer_changed.notify_one(),
        }
        if out.run {
            self.look_again();
        }
    }

    /// Makes sure that a runner looks at the lanes after this.
    fn look_again(&self) {
        let mut inbox = lock(&self.inbox.0);
        inbox.again = true;
        if inbox.runners == 0 {
            inbox.runners += 1;
            drop(inbox);
            self.start_runner();
        } else if self.is_unwatched(&mut inbox) {
            drop(inbox);
            self.watch_runners();
        }
    }

    /// What may start, and until when.
    fn hold_of(&self, until: &Until) -> Hold {
        match until {
            Until::Now => Hold::Free,
            Until::At(at) => Hold::Until(self.clock.time_of(*at)),
            Until::Released => Hold::UntilReleased,
        }
    }
}

impl<K, W> Kick for Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn kick(self: Arc<Self>) {
        self.wants_permit.store(false, Ordering::SeqCst);
        self.look_again();
    }
}

impl<K: std::hash::Hash + Eq + Clone, J> State<K, J> {
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for seq in self.lanes.take_admitted() {
            wakers.extend(self.room.remove(&seq).flatten());
        }
        wakers
    }
}
