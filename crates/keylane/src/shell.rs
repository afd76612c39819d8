//! The thin shell around [`Lanes`]: one lock, runners that take starts in batches, a timer.
//!
//! Who touches what: submitters put into `inbox`, a short lock of its own; runners take that into
//! `state`, where the lanes are, some at a time, report what ended, and take the next batch, all under
//! one lock.
//! A runner is a task that exists only while there is something to start; it polls each started
//! run once, and what is not ready then becomes a task of its own.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use hashbrown::HashMap;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::lanes::{
    FlushId, Flushed, Found, Hold, ItemId, LaneLimits, Lanes, Limits, Next, Spec, Ticket, Time,
};
use crate::permits::{Kick, Permits};
use crate::rt::{AtomicBool, Mutex, MutexGuard, Spawner, contain, lock, try_lock};
use crate::stops::Stops;

/// The most starts that are taken under one lock, and before a runner lets others run.
const BATCH: usize = if cfg!(keylane_shuttle) { 2 } else { 64 };
/// As [`BATCH`], where others poll what is started: they are to find enough of it.
const LARGE_BATCH: usize = 4 * BATCH;
/// How many submits are looked up before the first of them goes into its lane.
const TOGETHER: usize = 16;
/// How long a batch should keep its runner busy, in nanoseconds.
const BATCH_NANOS: u32 = 50_000;
/// How long a poll takes, in nanoseconds, where a second runner pays.
const HELP_NANOS: u32 = 1_000;
/// How long a runner goes on before it lets others run.
const TURN: std::time::Duration = std::time::Duration::from_micros(500);
/// The most lanes of one flush that are dealt with at a time: a drain flushes them all, and each
/// takes a task.
const FLUSHES: usize = if cfg!(keylane_shuttle) { 2 } else { 256 };

/// The most ends whose memory is kept when they are reported.
const MOST_KEPT: usize = BATCH * BATCH;

/// How many threads leave ends without meeting each other.
const PLACES: usize = if cfg!(keylane_shuttle) { 2 } else { 8 };

/// What is to be done with what a flush took, and what of it stays in its place.
pub(crate) type Flushing<J> = Pin<Box<dyn Future<Output = Vec<(u64, J)>> + Send>>;

/// A run that ended, with its permit.
type EndedRun<W> = (Ticket, Ended<<W as Types>::Job, <W as Types>::After>);

/// The types of [`Work`]. Apart from it and without bounds, because the compiler proves `Send` of
/// a future that holds a shell for every lifetime of its key, `'static` or not.
pub(crate) trait Types {
    type Job;
    type Run;
    /// What remains to be done once the permit is free.
    type After;
}

/// What the shell runs, and how.
pub(crate) trait Work<K>:
    Types<
        Job: Send + 'static,
        Run: Future<Output = Ended<Self::Job, Self::After>> + Send + Unpin + 'static,
        After: Send + 'static,
    > + Sized
    + Send
    + Sync
    + 'static
{
    /// What keeps the job at the front of a lane from starting, if anything does. Asked under the
    /// lock: quick and pure.
    fn gate(&self, job: &Self::Job) -> Option<Until>;
    fn start(&self, job: Self::Job, slot: usize) -> Self::Run;
    /// Polls a run for the first time. `before` is when the run before it ended, if that was just now:
    /// one reading of the clock tells the end of one and the beginning of the next.
    fn poll_first(
        &self,
        run: &mut Self::Run,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Poll<Ended<Self::Job, Self::After>> {
        *before = None;
        Pin::new(run).poll(cx)
    }
    /// Looks at what starting the job will need, so that it is near when that comes.
    fn fetch(&self, job: &Self::Job);
    /// Whether the job's run may be asked to stop, because dropping it does that.
    fn stoppable(&self, job: &Self::Job) -> bool;
    /// Asks a run to stop that cannot be cut off at this moment, because somebody else is in the
    /// middle of it; `false` when nobody is.
    fn stops_by_itself(&self, run: &Self::Run, stop: Stop) -> bool;
    /// The run is cut off before its end.
    fn abandon(&self, run: Self::Run, stop: Stop) -> Option<Self::After>;
    /// The permit is free: results may be seen now.
    fn after(&self, after: Self::After);
    /// Deals with what a flush took behind so many that run, and answers what is to go back to its
    /// place.
    fn flushed(
        self: &Arc<Self>,
        key: K,
        jobs: Vec<(u64, Self::Job)>,
        running: usize,
    ) -> Flushing<Self::Job>;
    /// Deals with a panic of the user's code.
    fn panicked(&self, who: &str, message: &str);
    /// What a new lane of this key is like. User code may run: never under the lock.
    fn spec(&self, key: &K) -> Spec;
    /// Whether [`Work::spec`] depends on the key at all.
    fn has_specs(&self) -> bool;
    /// Is told how much there is after each change.
    #[cfg(feature = "metrics")]
    fn observe(&self, queued: usize, running: usize, live_keys: usize);
}

/// How a run ended. Nearly all are done with nothing left to do, so that is small: it is handed on
/// several times, and jobs may be large.
pub(crate) enum Ended<J, A> {
    Done(Option<A>),
    Hold { job: Box<J>, hold: Until },
    Flush { job: Option<Box<J>> },
}

/// How long a put-back job is held.
pub(crate) enum Until {
    At(Instant),
    Released,
}

/// What ended a run before its time.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    /// Its key was shut down.
    Key,
    /// Everything was, or the runtime went.
    All,
}

struct Inbox<K, J> {
    /// Submitted, not yet in the lanes.
    queue: VecDeque<(K, J)>,
    /// The sequence of the next submit.
    next_seq: u64,
    /// Submits go straight to the lanes, because they can be refused or need a spec.
    direct: bool,
    closed: bool,
    /// Runners that will look at the lanes again before they end.
    runners: usize,
    /// Something changed for the runners since they last looked.
    again: bool,
}

struct State<K, J> {
    lanes: Lanes<K, J>,
    /// Taken from the inbox, and before everything there; not yet in the lanes.
    taken: VecDeque<(K, J)>,
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

enum TimerOut {
    Fine,
    Start,
    Earlier,
}

/// Has its cache lines for itself: what submitters write is not on a line that runners read.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

pub(crate) struct Shell<K, W: Types> {
    pub(crate) work: Arc<W>,
    inbox: Apart<Mutex<Inbox<K, W::Job>>>,
    /// Runs that ended as tasks of their own, to be reported by the next runner that looks. Threads
    /// have their own places for that, as far as there are enough.
    ends: [Apart<Mutex<Vec<EndedRun<W>>>>; PLACES],
    /// Empty, to be filled with ends. Locked inside `state`.
    spare: Mutex<Vec<EndedRun<W>>>,
    state: Apart<Mutex<State<K, W::Job>>>,
    stops: Stops,
    spawner: Spawner,
    workers: usize,
    epoch: Instant,
    permits: Option<Permits>,
    remember: bool,
    timer_changed: Notify,
    /// Whether `permits` will kick this executor.
    wants_permit: AtomicBool,
    /// What one poll of a started run took lately, in nanoseconds.
    poll_nanos: AtomicU32,
    /// How many runs in a row were not ready at their first poll, up to a batch of them.
    pending: AtomicU32,
    /// Whether anything waited in the lanes when they were last looked at.
    waits: AtomicBool,
    /// Ends that were reported and whose results cannot be seen yet. Locked inside `state`.
    publishing: Mutex<Publishing>,
    me: Weak<Self>,
}

impl<K, W: Types> Shell<K, W> {
    pub(crate) fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    fn time_of(&self, instant: Instant) -> Time {
        let since = instant.saturating_duration_since(self.epoch);
        Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn instant_of(&self, time: Time) -> Instant {
        // Further away than any timer: a hold of years must not overflow the clock.
        let most = 10 * 365 * 86_400 * 1_000_000_000;
        self.epoch + std::time::Duration::from_nanos(time.0.min(most))
    }
}

/// Why a submit was not taken; the job comes back.
pub(crate) enum NotTaken<J> {
    Closed(J),
    Full {
        full: crate::lanes::Full<J>,
        /// The queue limit of the job's key.
        key_limit: usize,
    },
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    pub(crate) fn new(
        work: W,
        limits: Limits,
        spawner: Spawner,
        permits: Option<Permits>,
        remember: bool,
    ) -> Arc<Self> {
        let workers = spawner.workers();
        Arc::new_cyclic(|me| Self {
            inbox: Apart(Mutex::new(Inbox {
                queue: VecDeque::new(),
                next_seq: 0,
                direct: must_be_direct(&limits) || work.has_specs(),
                closed: false,
                runners: 0,
                again: false,
            })),
            ends: std::array::from_fn(|_| Apart(Mutex::new(Vec::new()))),
            spare: Mutex::new(Vec::new()),
            state: Apart(Mutex::new(State {
                lanes: Lanes::new(limits),
                taken: VecDeque::new(),
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
            stops: Stops::new(),
            work: Arc::new(work),
            spawner,
            workers,
            epoch: Instant::now(),
            permits,
            remember,
            timer_changed: Notify::new(),
            wants_permit: AtomicBool::new(false),
            poll_nanos: AtomicU32::new(BATCH_NANOS),
            pending: AtomicU32::new(0),
            waits: AtomicBool::new(false),
            publishing: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Puts a job at the end of its lane; answers its sequence.
    pub(crate) fn push(&self, key: K, job: W::Job) -> Result<u64, NotTaken<W::Job>> {
        let mut inbox = lock(&self.inbox.0);
        if inbox.closed {
            return Err(NotTaken::Closed(job));
        }
        if inbox.direct {
            drop(inbox);
            return self.push_direct(key, job);
        }
        let seq = inbox.next_seq;
        inbox.next_seq += 1;
        inbox.queue.push_back((key, job));
        let start = inbox.runners == 0;
        inbox.runners += usize::from(start);
        let many = inbox.queue.len() == BATCH;
        drop(inbox);
        if start {
            self.start_runner();
        } else if many && (self.are_pending() || self.worth_help()) {
            self.nudge();
        }
        Ok(seq)
    }

    fn push_direct(&self, key: K, job: W::Job) -> Result<u64, NotTaken<W::Job>> {
        self.with_spec(key, |state, inbox, key, spec| {
            if inbox.closed {
                return Err(NotTaken::Closed(job));
            }
            let key_limit = self.limits_in(state, &key, &spec).queue;
            let pushed = state.lanes.push(key, job, |_| spec);
            inbox.next_seq = state.lanes.next_sequence();
            let full = |full| NotTaken::Full { full, key_limit };
            pushed.map(|item| item.sequence()).map_err(full)
        })
    }

    /// As [`Self::push`], but takes its place even without room; `true` when there was room. If
    /// not, [`Self::poll_room`] tells when there is.
    pub(crate) fn push_over(&self, key: K, job: W::Job) -> Result<(u64, bool), W::Job> {
        self.with_spec(key, |state, inbox, key, spec| {
            if inbox.closed {
                return Err(job);
            }
            let (item, room) = state.lanes.push_over(key, job, |_| spec);
            inbox.next_seq = state.lanes.next_sequence();
            if !room {
                state.room.insert(item.sequence(), None);
            }
            Ok((item.sequence(), room))
        })
    }

    /// Nothing of this key starts until it is resumed.
    pub(crate) fn pause(&self, key: K) {
        self.with_spec(key, |state, _, key, spec| state.lanes.pause(key, |_| spec));
    }

    /// The limits a lane of this key has or would have.
    pub(crate) fn limits_of(&self, key: K) -> LaneLimits {
        self.with_spec(key, |state, _, key, spec| {
            self.limits_in(state, &key, &spec)
        })
    }

    fn limits_in(&self, state: &State<K, W::Job>, key: &K, spec: &Spec) -> LaneLimits {
        let default = state.lanes.limits().lane;
        if !self.work.has_specs() {
            return default;
        }
        match state.lanes.state_of(key) {
            Some(lane) if state.lanes.knows(key) => lane.limits,
            _ => spec.limits.unwrap_or(default),
        }
    }

    pub(crate) fn poll_room(&self, seq: u64, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state.0);
        match state.room.get_mut(&seq) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// As [`Self::with`], with what a lane of this key is to be like if it has none. The user's
    /// code says that and is asked outside the lock; its answer counts only if the lane is still
    /// missing and the limits are still those it was asked under.
    fn with_spec<R>(
        &self,
        key: K,
        change: impl FnOnce(&mut State<K, W::Job>, &mut Inbox<K, W::Job>, K, Spec) -> R,
    ) -> R {
        let mut asked = None;
        loop {
            let mut state = lock(&self.state.0);
            if let Some(spec) = self.spec_now(&mut state, &key, &asked) {
                return self.change(state, |state, inbox| change(state, inbox, key, spec));
            }
            let version = state.version;
            drop(state);
            asked = Some((version, self.work.spec(&key)));
        }
    }

    /// What a lane of this key is to be like; `None` when that has to be asked for.
    fn spec_now(
        &self,
        state: &mut State<K, W::Job>,
        key: &K,
        asked: &Option<(u64, Spec)>,
    ) -> Option<Spec> {
        if !self.work.has_specs() || state.lanes.knows(key) {
            return Some(Spec::default());
        }
        if let Some(spec) = state.remembered.get(key) {
            return Some(spec.clone());
        }
        let (version, spec) = asked.as_ref()?;
        if *version != state.version {
            return None;
        }
        if self.remember {
            state.remembered.insert(key.clone(), spec.clone());
        }
        Some(spec.clone())
    }

    /// Takes a waiting job out of its lane.
    pub(crate) fn cancel(&self, key: &K, seq: u64) -> Option<W::Job> {
        self.with(|state, _| {
            let item: ItemId = state.lanes.item(key, seq)?;
            let job = state.lanes.cancel(item)?;
            state.room.remove(&seq);
            Some(job)
        })
    }

    pub(crate) fn evict(&self, key: &K) -> Vec<W::Job> {
        self.with(|state, _| {
            state.remembered.remove(key);
            state.version += 1;
            state.lanes.evict(key)
        })
    }

    /// Stops what runs of this key.
    pub(crate) fn abort(&self, key: &K) {
        self.stop_running(|lanes| lanes.running_of(key), Stop::Key);
    }

    /// Stops everything that runs.
    pub(crate) fn abort_all(&self) {
        self.stop_running(|lanes| lanes.all_running(), Stop::All);
    }

    fn stop_running(&self, which: impl FnOnce(&Lanes<K, W::Job>) -> Vec<(usize, u64)>, stop: Stop) {
        // Under the lock of the lanes: what is said of a run comes before its end is reported.
        let running = self.with(|state, _| self.stops.ask(which(&state.lanes), stop));
        running.into_iter().for_each(Waker::wake);
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

    /// Tells when everything is idle; `None` when it is so now. Takes nothing in: that may be much,
    /// and runners are at it.
    pub(crate) fn watch_all_idle(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = lock(&self.state.0);
        if self.is_idle(&state) && !lock(&self.publishing).wait_for_all() {
            return None;
        }
        Some(wait_among(&mut state.idle_all))
    }

    /// Tells when this key is idle; `None` when it is so now.
    pub(crate) fn watch_idle(&self, key: &K) -> Option<oneshot::Receiver<()>> {
        self.with(|state, _| {
            if state.lanes.watch(key) {
                return Some(wait_among(state.idle_of.entry(key.clone()).or_default()));
            }
            let mut publishing = lock(&self.publishing);
            if publishing.open.is_empty() {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            publishing.wait(sender);
            Some(receiver)
        })
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

    /// Who waited for what is idle now, every result of it seen.
    fn idle_now(&self, state: &mut State<K, W::Job>) -> Vec<oneshot::Sender<()>> {
        let of_keys = state.take_idle_keys();
        let all = !state.idle_all.is_empty() && self.is_idle(state);
        if of_keys.is_empty() && !all {
            return Vec::new();
        }
        let mut publishing = lock(&self.publishing);
        if !publishing.open.is_empty() {
            of_keys.into_iter().for_each(|key| publishing.wait(key));
            publishing.idle |= all;
            return Vec::new();
        }
        drop(publishing);
        let mut idle = of_keys;
        if all {
            idle.append(&mut state.idle_all);
        }
        idle
    }

    /// Whether nothing waits or runs; what was submitted a moment ago waits too.
    fn is_idle(&self, state: &State<K, W::Job>) -> bool {
        state.lanes.is_idle() && state.taken.is_empty() && lock(&self.inbox.0).queue.is_empty()
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
        }
    }

    fn start_runner(&self) {
        if let Some(shell) = self.me.upgrade() {
            // Made inside: where the runtime is gone, there is no runner, and nothing to take over.
            self.spawner
                .spawn(async move { Runner::new(shell).run().await });
        }
    }

    /// A runner that was just started may be where only this worker looks, which goes on
    /// submitting: whatever is spawned next puts it where idle ones look.
    fn nudge(&self) {
        self.spawner.spawn(std::future::ready(()));
    }

    /// Starts a runner that first lets others run: thousands of runs may end in the same moment,
    /// and are then reported at once.
    fn start_collector(&self) {
        if let Some(shell) = self.me.upgrade() {
            let runner = Runner::new(shell);
            self.spawner.spawn(async move {
                crate::rt::yield_now().await;
                runner.run().await;
            });
        }
    }

    fn start_flushes(&self, flushes: Vec<Flushed<K, W::Job>>) {
        if flushes.is_empty() {
            return;
        }
        let Some(shell) = self.me.upgrade() else {
            return;
        };
        let draining = lock(&self.state.0).draining;
        let tasks = flushes.len().min(FLUSHES);
        let flushes = Arc::new(Mutex::new(flushes.into_iter()));
        for _ in 0..tasks {
            let (shell, flushes) = (shell.clone(), flushes.clone());
            self.spawner.spawn(async move {
                loop {
                    let Some(flushed) = lock(&flushes).next() else {
                        break;
                    };
                    shell.flush(flushed, draining).await;
                }
            });
        }
    }

    async fn flush(&self, flushed: Flushed<K, W::Job>, draining: bool) {
        let Flushed {
            key,
            jobs,
            running,
            id,
        } = flushed;
        if jobs.is_empty() {
            return self.lanes(|lanes| lanes.flush_done(id, jobs));
        }
        let keep = self.work.flushed(key.clone(), jobs, running).await;
        self.end_flush(&key, id, keep, draining);
    }

    /// What a flush keeps goes on, unless the executor drains: then what was taken before that is
    /// handed out once more, and what is kept even so stays where it is.
    fn end_flush(&self, key: &K, id: FlushId, keep: Vec<(u64, W::Job)>, drained: bool) {
        self.with(|state, _| {
            if drained {
                state.lanes.pause(key.clone(), |_| Spec::default());
            }
            state.lanes.flush_done(id, keep);
        });
    }

    fn start_timer(&self) {
        if let Some(shell) = self.me.upgrade() {
            self.spawner.spawn(keep_time(shell));
        }
    }

    /// What may start, and until when.
    fn hold_of(&self, until: &Until) -> Hold {
        match until {
            Until::At(at) => Hold::Until(self.time_of(*at)),
            Until::Released => Hold::UntilReleased,
        }
    }

    /// How many starts to take at once, going by what a poll took lately.
    fn batch(&self) -> usize {
        if cfg!(keylane_shuttle) {
            // What is explored must not depend on the clock.
            return BATCH;
        }
        let most = if self.are_pending() {
            LARGE_BATCH
        } else {
            BATCH
        };
        let nanos = self.poll_nanos.load(Ordering::Relaxed).max(1);
        ((BATCH_NANOS / nanos) as usize).clamp(1, most)
    }

    /// The most submits that a runner takes in before it takes starts: not fewer than those, so that
    /// the rest does not wait for ever, and not so many that nothing runs meanwhile.
    fn intake(&self) -> usize {
        if cfg!(keylane_shuttle) {
            1
        } else if self.are_pending() {
            LARGE_BATCH
        } else {
            2 * BATCH
        }
    }

    /// Whether the runs of late were not ready at their first poll.
    #[inline]
    fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) as usize >= BATCH
    }

    fn note_pending(&self, count: usize) {
        if !self.are_pending() {
            let old = self.pending.load(Ordering::Relaxed);
            self.pending
                .store(old.saturating_add(count as u32), Ordering::Relaxed);
        }
    }

    fn note_ready(&self) {
        if self.pending.load(Ordering::Relaxed) != 0 {
            self.pending.store(0, Ordering::Relaxed);
        }
    }

    fn is_one_by_one(&self, state: &State<K, W::Job>) -> bool {
        state.lanes.limits().lane.concurrency <= 1 && !self.work.has_specs()
    }

    fn note_polls(&self, polls: usize, took: std::time::Duration) {
        let each = took.as_nanos() as u64 / polls.max(1) as u64;
        let old = u64::from(self.poll_nanos.load(Ordering::Relaxed));
        let new = (old * 3 + each * 5) / 8;
        self.poll_nanos
            .store(new.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
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

/// What one runner carries from lock to lock. Dropped before it has retired (the runtime goes), it
/// leaves that to other runners.
struct Runner<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    shell: Arc<Shell<K, W>>,
    ended: Vec<EndedRun<W>>,
    batch: Vec<(Ticket, W::Job)>,
    /// Reported, and their results not yet seen.
    ends: Ends<W::After>,
    /// No two of a lane run at once, so that their order is not up to who polls them first.
    one_by_one: bool,
    /// Not everything that was submitted is in the lanes.
    untaken: bool,
    /// Somebody else had the lock when this was last tried.
    waited: bool,
    /// Results were let be seen since others could run.
    published: bool,
    retired: bool,
}

impl<K, W> Runner<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn new(shell: Arc<Shell<K, W>>) -> Self {
        Self {
            shell,
            ended: Vec::new(),
            batch: Vec::new(),
            ends: Ends::default(),
            one_by_one: false,
            untaken: false,
            waited: false,
            published: false,
            retired: false,
        }
    }

    /// Takes starts until there are none.
    async fn run(mut self) {
        let mut began = std::time::Instant::now();
        while !self.retired {
            let Some(helped) = self.turn() else {
                crate::rt::yield_now().await;
                continue;
            };
            if self.batch.is_empty() && !self.untaken {
                self.retired = self.shell.retire();
                continue;
            }
            let (now, spawned) = self.poll_batch();
            if self.shell.has_surplus_runner() {
                // Dropped, it reports what ended and leaves the rest to the others.
                return;
            }
            if crate::rt::now_and_then() {
                continue;
            }
            if helped || spawned {
                // One of the two is found by an idle worker; and what was spawned goes first, while
                // it is near.
                crate::rt::move_over().await;
            } else if now.duration_since(began) < TURN && !cfg!(keylane_shuttle) {
                continue;
            } else if std::mem::take(&mut self.published) {
                // Who waits for results may go on beside it.
                crate::rt::move_over().await;
            } else {
                crate::rt::yield_now().await;
            }
            began = std::time::Instant::now();
        }
    }

    /// One lock: report what ended, take in what was submitted, take the next batch. Answers whether
    /// another runner was called; nothing where somebody else has the lock, and this worker may have
    /// better to do than to wait for it.
    fn turn(&mut self) -> Option<bool> {
        let shell = self.shell.clone();
        let state = match std::mem::take(&mut self.waited) {
            true => Some(lock(&shell.state.0)),
            false => try_lock(&shell.state.0),
        };
        let Some(mut state) = state else {
            self.waited = true;
            return None;
        };
        if self.ended.capacity() == 0 {
            self.ended = std::mem::take(&mut lock(&shell.spare));
        }
        state.take_in(&shell.inbox.0, shell.intake());
        shell.take_ends(&mut self.ended);
        let ends = &mut self.ends;
        shell.report(&mut state, &mut self.ended, ends);
        let full = shell.fill(&mut state, &mut self.batch, shell.batch());
        if self.batch.is_empty() && self.ended.capacity() <= MOST_KEPT {
            *lock(&shell.spare) = std::mem::take(&mut self.ended);
        }
        self.untaken = !state.taken.is_empty();
        self.one_by_one = shell.is_one_by_one(&state);
        let mut out = shell.finish(&mut state);
        let more = std::mem::take(&mut out.run) && full;
        drop(state);
        self.published |= !ends.afters.is_empty();
        shell.publish(ends);
        let helped = more && shell.another_runner();
        shell.deliver(out);
        Some(helped)
    }

    /// Starts a batch, and what that makes way for as long as the batch would have been larger.
    /// Answers when it was through, and whether there are new tasks.
    fn poll_batch(&mut self) -> (std::time::Instant, bool) {
        let before = std::time::Instant::now();
        let most = self.shell.batch();
        let mut count = self.batch.len();
        let mut spawned = self.poll_each();
        while count < most && self.go_on(most - count) {
            count += self.batch.len();
            spawned |= self.poll_each();
        }
        let now = std::time::Instant::now();
        if count > 0 {
            self.shell.note_polls(count, now.duration_since(before));
        }
        (now, spawned)
    }

    /// Takes what may start now that some have ended, as much of it as one lane gives. What else
    /// follows from their ends, and their results, is left to the next turn, as with any batch.
    fn go_on(&mut self, most: usize) -> bool {
        let shell = &self.shell;
        if self.ended.is_empty() || shell.permits.is_some() {
            return false;
        }
        let mut state = lock(&shell.state.0);
        if state.lanes.waiting() > 0 {
            let ends = &mut self.ends;
            shell.report(&mut state, &mut self.ended, ends);
            shell.fill(&mut state, &mut self.batch, most);
            self.one_by_one = shell.is_one_by_one(&state);
        }
        !self.batch.is_empty()
    }

    /// Polls each run once; what is not ready becomes a task of its own. Where hardly any is ready,
    /// they become that unpolled: one poll less, and not all of them by this runner. Answers whether
    /// there are new tasks.
    fn poll_each(&mut self) -> bool {
        let shell = &self.shell;
        let mut cx = Context::from_waker(Waker::noop());
        let mut before = None;
        let polls = !(self.one_by_one && shell.are_pending());
        // What waited long is far away: fetched one by one while the one before runs, each would
        // be waited for; these are under way together.
        if polls && self.batch.len() > 1 {
            for (_, job) in &self.batch {
                shell.work.fetch(job);
            }
        }
        let mut pending = 0;
        for (ticket, job) in self.batch.drain(..) {
            let stoppable = shell.work.stoppable(&job);
            let mut run = shell.work.start(job, ticket.slot());
            if polls
                && let Poll::Ready(ended) = shell.work.poll_first(&mut run, &mut cx, &mut before)
            {
                self.ended.push((ticket, ended));
                continue;
            }
            pending += 1;
            let driven = Driven::new(shell.clone(), run, ticket, stoppable);
            shell.spawner.spawn(driven);
        }
        match self.ended.is_empty() {
            true => shell.note_pending(pending),
            false => shell.note_ready(),
        }
        pending > 0
    }
}

impl<K, W> Drop for Runner<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn drop(&mut self) {
        if !self.retired {
            let (ended, batch) = (&mut self.ended, &mut self.batch);
            self.shell.take_over(ended, batch, &mut self.ends);
        }
    }
}

/// Ends that were reported: how many permits that freed, and what is to be seen of them.
struct Ends<A> {
    freed: usize,
    afters: Vec<A>,
    /// Their number among those being published, if there is anything to be seen of them.
    number: u64,
}

impl<A> Default for Ends<A> {
    fn default() -> Self {
        Self {
            freed: 0,
            afters: Vec::new(),
            number: 0,
        }
    }
}

/// Which results are on their way to be seen: runners report under the lock of the lanes and let
/// results be seen after it, each at its own pace.
#[derive(Default)]
struct Publishing {
    next: u64,
    /// Reported, and their results not yet seen; no more than there are runners.
    open: Vec<u64>,
    /// Those who wait for a key to be idle: its lane is, and results below this number remain.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    /// All lanes were idle while results remained: whoever waits for that is to be told.
    idle: bool,
}

impl Publishing {
    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.push(self.next);
        self.next
    }

    /// The results of this number can be seen; answers who waited for that.
    fn end(&mut self, number: u64) -> Vec<oneshot::Sender<()>> {
        self.open.retain(|open| *open != number);
        let seen = self.open.iter().min().map_or(u64::MAX, |least| least - 1);
        let ready = self.waiting.extract_if(.., |(until, _)| *until <= seen);
        ready.map(|(_, sender)| sender).collect()
    }

    /// Whoever this is waits for all results that were reported.
    fn wait(&mut self, sender: oneshot::Sender<()>) {
        self.waiting.push((self.next, sender));
    }

    /// Whoever waits for all to be idle is to be told of the last result; `false` when there is
    /// none to wait for.
    fn wait_for_all(&mut self) -> bool {
        self.idle |= !self.open.is_empty();
        self.idle
    }

    /// Whether somebody is to be told that no result remains.
    fn is_last(&mut self) -> bool {
        self.open.is_empty() && std::mem::take(&mut self.idle)
    }
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn take_ends(&self, ended: &mut Vec<EndedRun<W>>) {
        for place in &self.ends {
            let mut left = lock(&place.0);
            ended.append(&mut left);
            if left.capacity() > MOST_KEPT {
                *left = Vec::new();
            }
        }
    }

    /// Tells the lanes what ended.
    fn report(
        &self,
        state: &mut State<K, W::Job>,
        ended: &mut Vec<EndedRun<W>>,
        ends: &mut Ends<W::After>,
    ) {
        // What was not ready at once has been away for a while.
        let far = self.are_pending();
        let mut ended = ended.drain(..);
        while !ended.as_slice().is_empty() {
            // As with starts: what is far away is fetched together.
            let together = &ended.as_slice()[..BATCH.min(ended.len())];
            if together.len() > 1 {
                let tickets = together.iter().map(|(ticket, _)| ticket);
                state.lanes.fetch(tickets.clone());
                if far {
                    state.lanes.fetch_for_retiring(tickets);
                }
            }
            for (ticket, ended) in ended.by_ref().take(BATCH) {
                self.report_one(state, ticket, ended, ends);
            }
        }
    }

    #[inline]
    fn report_one(
        &self,
        state: &mut State<K, W::Job>,
        ticket: Ticket,
        ended: Ended<W::Job, W::After>,
        ends: &mut Ends<W::After>,
    ) {
        ends.freed += 1;
        self.stops.forget_asked(&ticket);
        match ended {
            Ended::Done(None) => state.lanes.done(ticket),
            Ended::Done(Some(after)) => {
                state.lanes.done(ticket);
                if ends.afters.is_empty() {
                    ends.number = lock(&self.publishing).begin();
                }
                ends.afters.push(after);
            }
            Ended::Hold { job, hold } => {
                let hold = self.hold_of(&hold);
                state.lanes.hold(ticket, *job, hold);
            }
            Ended::Flush { job } => state.lanes.flush_from(ticket, job.map(|job| *job)),
        }
    }

    /// The permits are free: gives shared ones back, then lets the results be seen.
    fn publish(&self, ends: &mut Ends<W::After>) {
        let freed = std::mem::take(&mut ends.freed);
        if let Some(permits) = &self.permits {
            permits.give(freed);
        }
        if ends.afters.is_empty() {
            return;
        }
        for after in ends.afters.drain(..) {
            self.work.after(after);
        }
        let mut publishing = lock(&self.publishing);
        let idle = publishing.end(ends.number);
        let last = publishing.is_last();
        drop(publishing);
        tell(idle);
        if last {
            self.tell_idle();
        }
    }

    /// The last result can be seen: whoever waits for all to be idle may go on.
    fn tell_idle(&self) {
        let idle = {
            let mut state = lock(&self.state.0);
            if !self.is_idle(&state) || lock(&self.publishing).wait_for_all() {
                return;
            }
            std::mem::take(&mut state.idle_all)
        };
        tell(idle);
    }

    /// Takes so many starts in turn; answers whether there may be more.
    #[inline]
    fn fill(
        &self,
        state: &mut State<K, W::Job>,
        batch: &mut Vec<(Ticket, W::Job)>,
        most: usize,
    ) -> bool {
        let now = self.tick(state);
        while batch.len() < most {
            match self.next(state, now) {
                Some(start) => batch.push(start),
                None => return false,
            }
        }
        true
    }

    /// What time it is, for starts.
    #[inline]
    fn tick(&self, state: &mut State<K, W::Job>) -> Time {
        state.rate_at = None;
        if !state.lanes.needs_clock() {
            return Time(0);
        }
        let now = self.now();
        state.lanes.tick(now);
        now
    }

    /// The next start in turn.
    #[inline]
    fn next(&self, state: &mut State<K, W::Job>, now: Time) -> Option<(Ticket, W::Job)> {
        if state.lanes.ready() == 0 || !self.take_permit() {
            return None;
        }
        let gate = |_: &K, job: &W::Job| {
            let until = contain(|| self.work.gate(job)).unwrap_or_else(|message| {
                self.work.panicked("gate", &message);
                None
            });
            until.map_or(Hold::Free, |until| self.hold_of(&until))
        };
        match state.lanes.next(now, gate) {
            Next::Start(ticket, job) => Some((ticket, job)),
            other => {
                if let Next::RateUntil(at) = other {
                    state.rate_at = Some(at);
                }
                self.give_permit();
                None
            }
        }
    }

    #[inline]
    fn take_permit(&self) -> bool {
        let Some(permits) = &self.permits else {
            return true;
        };
        permits.take_or_wait(|| {
            let first = !self.wants_permit.swap(true, Ordering::SeqCst);
            first.then(|| self.me.clone() as Weak<dyn Kick>)
        })
    }

    fn give_permit(&self) {
        if let Some(permits) = &self.permits {
            permits.give(1);
        }
    }

    /// More could start than this runner took: another worker may take that.
    fn another_runner(&self) -> bool {
        let mut inbox = lock(&self.inbox.0);
        if inbox.runners >= self.workers || !self.worth_help() {
            inbox.again = true;
            return false;
        }
        inbox.runners += 1;
        drop(inbox);
        self.start_runner();
        true
    }

    /// Whether there are more runners than pay: they were started when polls took longer.
    fn has_surplus_runner(&self) -> bool {
        (!self.worth_help() || crate::rt::now_and_then()) && lock(&self.inbox.0).runners > 1
    }

    /// Whether polling takes longer than what two runners would take from each other: the lock,
    /// and everything they touch on its way from core to core.
    fn worth_help(&self) -> bool {
        cfg!(keylane_shuttle)
            || self.poll_nanos.load(Ordering::Relaxed) >= HELP_NANOS
            || self.are_pending()
    }

    /// The runner found nothing to start: it ends, unless something changed since it looked.
    fn retire(&self) -> bool {
        let mut inbox = lock(&self.inbox.0);
        if !inbox.queue.is_empty() || std::mem::take(&mut inbox.again) {
            return false;
        }
        inbox.runners -= 1;
        true
    }

    /// A run of its own ended. Where nobody else is at the lanes, its task reports that and goes
    /// on with the next start, which saves a runner and a task for it.
    fn end_and_go_on(&self, ended: EndedRun<W>) -> Option<(Ticket, W::Job)> {
        let locked = match self.waits.load(Ordering::Relaxed) {
            true => try_lock(&self.state.0),
            false => None,
        };
        let Some(mut state) = locked else {
            self.leave_end(ended);
            return None;
        };
        state.take_in(&self.inbox.0, self.intake());
        let mut ends = Ends::default();
        self.report_one(&mut state, ended.0, ended.1, &mut ends);
        let now = self.tick(&mut state);
        let next = self.next(&mut state, now);
        let out = self.finish(&mut state);
        drop(state);
        self.publish(&mut ends);
        self.deliver(out);
        next
    }

    /// A run of its own ended: a runner will report it, with all that end about now.
    fn leave_end(&self, ended: EndedRun<W>) {
        {
            let place = crate::rt::place_of_thread(PLACES);
            let mut ends = lock(&self.ends[place].0);
            let first = ends.is_empty();
            ends.push(ended);
            if !first {
                // Whoever left the first one here saw to it that a runner comes.
                return;
            }
        }
        let mut inbox = lock(&self.inbox.0);
        // Also beside another runner: that one may be in the middle of a long poll.
        if inbox.runners < self.workers {
            inbox.runners += 1;
            drop(inbox);
            self.start_collector();
        } else {
            inbox.again = true;
        }
    }
}

/// A run under way. Dropped before its end, because the runtime goes, it frees its permit.
struct Driven<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    shell: Arc<Shell<K, W>>,
    run: Option<(W::Run, Ticket)>,
    /// It may be asked to stop.
    stoppable: bool,
    /// It was asked to, and is seen to its end because somebody else is in the middle of it.
    stopping: bool,
    /// It can be woken to be told so.
    registered: bool,
    /// The run was polled and is not ready.
    pending: bool,
    /// How many runs it went on with.
    starts: u32,
}

impl<K, W> Driven<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn new(shell: Arc<Shell<K, W>>, run: W::Run, ticket: Ticket, stoppable: bool) -> Self {
        Self {
            shell,
            run: Some((run, ticket)),
            stoppable,
            stopping: false,
            registered: false,
            pending: false,
            starts: 0,
        }
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<EndedRun<W>> {
        let (run, _) = self.run.as_mut().expect("polled until it is ready");
        match Pin::new(run).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => {
                let ticket = self.take_run().1;
                Poll::Ready((ticket, ended))
            }
        }
    }

    /// The run is over, or is to be.
    fn take_run(&mut self) -> (W::Run, Ticket) {
        let (run, ticket) = self.run.take().expect("it is not over yet");
        if std::mem::take(&mut self.registered) {
            self.shell.stops.forget(&ticket);
        }
        (run, ticket)
    }

    /// How the run was asked to stop, if it was.
    fn asked(&self) -> Option<Stop> {
        let (_, ticket) = self.run.as_ref()?;
        self.shell.stops.asked(ticket)
    }

    /// How the run is to stop, if it is and does not already.
    fn is_to_stop(&self) -> Option<Stop> {
        let may = self.stoppable && !self.stopping;
        may.then(|| self.asked()).flatten()
    }

    /// The run goes on: whoever wants to stop it has to wake it. Answers how it is to stop, if that
    /// was asked for meanwhile.
    fn register(&mut self, cx: &Context<'_>) -> Option<Stop> {
        if !self.stoppable || self.registered || self.stopping {
            return None;
        }
        let (_, ticket) = self.run.as_ref()?;
        let stop = self.shell.stops.register(ticket, cx.waker());
        self.registered = stop.is_none();
        stop
    }

    /// Cuts the run off, unless somebody else is in the middle of it: its permit is free when that is
    /// over. `true` when it is over now.
    fn stop(&mut self, stop: Stop) -> bool {
        let (run, _) = self.run.as_ref().expect("it is not over yet");
        self.stopping = self.shell.work.stops_by_itself(run, stop);
        if self.stopping {
            return false;
        }
        self.abandon(stop);
        true
    }

    fn abandon(&mut self, stop: Stop) {
        let (run, ticket) = self.take_run();
        let after = self.shell.work.abandon(run, stop);
        self.shell.end_one((ticket, Ended::Done(after)));
    }
}

/// Sees the run to its end, and those that it goes on with. By hand, because there is one for every
/// run that is under way, and a future of the compiler's would have it twice.
impl<K, W> Future for Driven<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut stop = this.is_to_stop();
        loop {
            if let Some(stop) = stop.take()
                && this.stop(stop)
            {
                return Poll::Ready(());
            }
            let Poll::Ready(ended) = this.poll_run(cx) else {
                this.pending = true;
                stop = this.register(cx);
                if stop.is_some() {
                    continue;
                }
                return Poll::Pending;
            };
            if !std::mem::take(&mut this.pending) {
                this.shell.note_ready();
            }
            let Some((ticket, job)) = this.shell.end_and_go_on(ended) else {
                return Poll::Ready(());
            };
            this.stoppable = this.shell.work.stoppable(&job);
            this.stopping = false;
            let run = this.shell.work.start(job, ticket.slot());
            this.run = Some((run, ticket));
            stop = this.is_to_stop();
            this.starts = this.starts.wrapping_add(1);
            if (this.starts as usize).is_multiple_of(BATCH) {
                // Others may run first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl<K, W> Drop for Driven<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn drop(&mut self) {
        // The runtime goes.
        if self.run.is_some() {
            let stop = self.asked().unwrap_or(Stop::All);
            self.abandon(stop);
        }
    }
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// Reports one end and leaves the rest to the runners.
    fn end_one(&self, ended: EndedRun<W>) {
        let mut state = lock(&self.state.0);
        let mut ends = Ends::default();
        self.report_one(&mut state, ended.0, ended.1, &mut ends);
        let out = self.finish(&mut state);
        drop(state);
        self.publish(&mut ends);
        self.deliver(out);
    }

    /// A runner is gone in the middle of its work: what it had not reported is reported, what it
    /// had not started goes back to its place, and others go on.
    fn take_over(
        &self,
        ended: &mut Vec<EndedRun<W>>,
        batch: &mut Vec<(Ticket, W::Job)>,
        ends: &mut Ends<W::After>,
    ) {
        let unstarted = batch.drain(..).map(|(ticket, job)| {
            let (job, hold) = (Box::new(job), Until::At(self.epoch));
            (ticket, Ended::Hold { job, hold })
        });
        ended.extend(unstarted);
        self.take_ends(ended);
        lock(&self.inbox.0).runners -= 1;
        let mut state = lock(&self.state.0);
        self.report(&mut state, ended, ends);
        let out = self.finish(&mut state);
        drop(state);
        self.publish(ends);
        self.deliver(out);
        self.look_again();
    }
}

/// The timer: exists only while something is to happen by itself at a known time.
async fn keep_time<K, W>(shell: Arc<Shell<K, W>>)
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    loop {
        let at = {
            let mut state = lock(&shell.state.0);
            state.timer_task = state.timer.is_some();
            state.timer
        };
        let Some(at) = at else {
            return;
        };
        let changed = shell.timer_changed.notified();
        if tokio::time::timeout_at(shell.instant_of(at), changed)
            .await
            .is_err()
        {
            let now = shell.now();
            shell.with(|state, _| {
                state.timer = None;
                state.rate_at = None;
                state.lanes.tick(now);
            });
        }
    }
}

impl<K: std::hash::Hash + Eq + Clone, J> State<K, J> {
    /// What was submitted goes into the lanes, so much of it at the most. The inbox is free again as
    /// soon as its queue is taken.
    fn take_in(&mut self, inbox: &Mutex<Inbox<K, J>>, most: usize) {
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut lock(inbox).queue);
        }
        self.push_taken(most);
    }

    /// Everything that was submitted goes into the lanes.
    fn take_all(&mut self, inbox: &mut Inbox<K, J>) {
        self.push_taken(usize::MAX);
        std::mem::swap(&mut self.taken, &mut inbox.queue);
        self.push_taken(usize::MAX);
    }

    fn push_taken(&mut self, most: usize) {
        let mut left = self.taken.len().min(most);
        while left > 0 {
            // As with starts and ends: what is far away is fetched together.
            let mut found = [Found::default(); TOGETHER];
            let mut last: Option<(&K, Found)> = None;
            let mut count = 0;
            for ((key, _), found) in self.taken.iter().take(left).zip(&mut found) {
                *found = match last {
                    // A key that is hot comes several times in a row.
                    Some((same, found)) if same == key => found,
                    _ => self.lanes.fetch_for(key),
                };
                last = Some((key, *found));
                count += 1;
            }
            for ((key, job), found) in self.taken.drain(..count).zip(found) {
                let pushed = self.lanes.push_found(key, found, job, |_| Spec::default());
                debug_assert!(
                    pushed.is_ok(),
                    "what can be refused goes straight to the lanes"
                );
            }
            left -= count;
        }
        if self.taken.is_empty() && self.taken.capacity() > 4 * BATCH * BATCH {
            self.taken = VecDeque::new();
        }
    }

    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for seq in self.lanes.take_admitted() {
            wakers.extend(self.room.remove(&seq).flatten());
        }
        wakers
    }

    fn take_idle_keys(&mut self) -> Vec<oneshot::Sender<()>> {
        let mut idle = Vec::new();
        for key in self.lanes.take_emptied() {
            idle.extend(self.idle_of.remove(&key).unwrap_or_default());
        }
        idle
    }

    fn set_timer(&mut self) -> TimerOut {
        let rate_at = self.rate_at.filter(|_| self.lanes.ready() > 0);
        let wanted = match (self.lanes.wake_at(), rate_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let Some(wanted) = wanted else {
            return self.unset_timer();
        };
        if self.timer.is_some_and(|at| at <= wanted) {
            return TimerOut::Fine;
        }
        self.timer = Some(wanted);
        if std::mem::replace(&mut self.timer_task, true) {
            TimerOut::Earlier
        } else {
            TimerOut::Start
        }
    }

    /// Where nothing is left, the timer is not either.
    fn unset_timer(&mut self) -> TimerOut {
        if self.timer.is_none() || !self.lanes.is_idle() {
            return TimerOut::Fine;
        }
        self.timer = None;
        TimerOut::Earlier
    }
}

fn wait_among(waiting: &mut Vec<oneshot::Sender<()>>) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    waiting.retain(|other| !other.is_closed());
    waiting.push(sender);
    receiver
}

fn tell(idle: Vec<oneshot::Sender<()>>) {
    for idle in idle {
        // Whoever asked may have stopped waiting.
        let _ = idle.send(());
    }
}

fn must_be_direct(limits: &Limits) -> bool {
    limits.queue != usize::MAX || limits.lane.queue != usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Lane, Tasks};

    #[test]
    fn what_every_run_under_way_has_is_small() {
        let bytes = size_of::<Driven<Lane<Arc<str>>, Tasks<Arc<str>>>>();
        assert!(bytes <= 64, "{bytes} bytes");
    }
}
