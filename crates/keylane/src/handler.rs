//! The other form of the executor: many jobs, one function, and a say in what a lane does next.

use std::future::Future;
use std::hash::Hash;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::BuildErrors;
use crate::lanes::{Full, LaneState, Spec, Time};
use crate::listener::Common;
use crate::rt::{contain, contain_all};
use crate::rules::{KeyRules, Limits, LiveLimits};
use crate::shell::{Ended, Flushing, NotTaken, Shell, Stop, Types, Until, Work};
use crate::stats::{KeyStats, Stats};

/// What is done with jobs.
pub trait Handler<K, J>: Send + Sync + 'static {
    /// Whether the job at the front of its lane may start. Asked before rates and permits; a lane
    /// that may not is held as this says, taking no permit. Asked under the executor's lock: be
    /// quick, and do not call the executor. A panic counts as [`Gate::Go`].
    fn gate(&self, job: &J) -> Gate {
        let _ = job;
        Gate::Go
    }

    /// Does the job. `slot` is the number of its permit: nothing else that runs
    /// has it, and it is below the highest concurrency there was. A panic
    /// is contained: the job is gone and its lane goes on.
    fn handle(&self, job: J, slot: usize) -> impl Future<Output = Reply<J>> + Send;

    /// Deals with everything that waited in a lane, oldest first, after [`Reply::Flush`] or
    /// [`JobExecutor::flush`], and answers what is to stay in its place. The lane waits for this.
    /// A panic is contained: the jobs are gone and the lane goes on.
    fn flushed(&self, key: K, jobs: Vec<Queued<J>>) -> impl Future<Output = Vec<Queued<J>>> + Send;

    /// As [`flushed`](Self::flushed), for what [`JobExecutor::flush_behind`] took while `running`
    /// of the lane ran. Those may end meanwhile; nothing of the lane starts until this answers.
    fn flushed_behind(
        &self,
        key: K,
        jobs: Vec<Queued<J>>,
        running: usize,
    ) -> impl Future<Output = Vec<Queued<J>>> + Send {
        let _ = running;
        self.flushed(key, jobs)
    }
}

/// The answer of [`Handler::gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may start.
    Go,
    /// Not before then.
    Until(Instant),
    /// Not before [`JobExecutor::release`].
    UntilReleased,
}

/// What became of a job, and what its lane does next.
#[derive(Debug)]
pub enum Reply<J> {
    /// It is resolved; the lane goes on.
    Done,
    /// It goes back to its place and the lane is held.
    Hold {
        /// The job.
        job: J,
        /// Until when; `None` means until [`JobExecutor::release`].
        until: Option<Instant>,
    },
    /// It goes back to its place (or, with `None`, is resolved), and when nothing of the lane runs
    /// any more, everything in it is handed to [`Handler::flushed`].
    Flush {
        /// The job, if it is not resolved.
        job: Option<J>,
    },
}

/// A job with its place in its lane.
#[derive(Debug)]
pub struct Queued<J> {
    /// The job.
    pub job: J,
    seq: u64,
}

impl<J> Queued<J> {
    /// A job at the place it was taken from, for a [`Handler`] that had to take it out of this.
    pub fn at(sequence: u64, job: J) -> Self {
        Self { job, seq: sequence }
    }

    /// The job's place in the order of all pushes; never used twice.
    pub fn sequence(&self) -> u64 {
        self.seq
    }
}

/// Why [`JobExecutor::push`] did not take a job; it comes back.
#[derive(Debug)]
pub enum NotPushed<J> {
    /// There is no room.
    Full(Full<J>),
    /// The executor was shut down.
    ShutDown(J),
}

impl<J> NotPushed<J> {
    /// The job.
    pub fn into_job(self) -> J {
        match self {
            Self::Full(full) => full.job,
            Self::ShutDown(job) => job,
        }
    }
}

/// Runs jobs through one handler, in order per key. Cheap to clone; made by
/// [`Builder::build_with`](crate::Builder::build_with).
///
/// Unlike [`Executor`](crate::Executor), dropping it stops nothing: jobs are precious, so only
/// [`drain`](Self::drain) ends it. Drain it before its runtime goes: what waits in it then stays there.
pub struct JobExecutor<K, J, H>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    J: Send + 'static,
    H: Handler<K, J>,
{
    shell: Arc<Shell<K, Jobs<K, J, H>>>,
}

impl<K, J, H> Clone for JobExecutor<K, J, H>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    J: Send + 'static,
    H: Handler<K, J>,
{
    fn clone(&self) -> Self {
        Self {
            shell: self.shell.clone(),
        }
    }
}

impl<K, J, H> JobExecutor<K, J, H>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    J: Send + 'static,
    H: Handler<K, J>,
{
    pub(crate) fn new(shell: Arc<Shell<K, Jobs<K, J, H>>>) -> Self {
        Self { shell }
    }

    /// Puts a job at the end of its key's lane.
    ///
    /// # Errors
    /// [`NotPushed`] with the job.
    pub fn push(&self, key: K, job: J) -> Result<(), NotPushed<J>> {
        match self.shell.push(key, job) {
            Ok(_) => Ok(()),
            Err(NotTaken::Full { full, .. }) => Err(NotPushed::Full(full)),
            Err(NotTaken::Closed(job)) => Err(NotPushed::ShutDown(job)),
        }
    }

    /// Ends the holds of a key's lane: what was held may start. `false` without such a lane.
    pub fn release(&self, key: &K) -> bool {
        self.shell.lanes(|lanes| lanes.release(key))
    }

    /// Ends what a key's lane waits for without a time ([`Gate::UntilReleased`]); holds until a time
    /// stay. Returns whether its front waited for this and can start now.
    pub fn release_waiting(&self, key: &K) -> bool {
        self.shell.lanes(|lanes| lanes.release_waiting(key))
    }

    /// How many lanes wait for a release, with their front or behind it.
    pub fn waiting_for_release(&self) -> usize {
        self.shell.lanes(|lanes| lanes.waiting_for_release())
    }

    /// The keys of those lanes: costs O(keys).
    pub fn keys_waiting_for_release(&self) -> Vec<K> {
        self.shell.lanes(|lanes| lanes.keys_waiting_for_release())
    }

    /// Hands everything in a key's lane to [`Handler::flushed`] as soon as nothing of it runs.
    /// `false` without such a lane.
    pub fn flush(&self, key: &K) -> bool {
        self.shell.lanes(|lanes| lanes.flush(key))
    }

    /// Hands everything that waits in a key's lane to [`Handler::flushed_behind`] now, while what
    /// runs of it goes on. `false` without such a lane.
    pub fn flush_behind(&self, key: &K) -> bool {
        self.shell.lanes(|lanes| lanes.flush_behind(key))
    }

    /// Takes the job at the front of a key's lane if it waits there and `which` says so. That is
    /// asked under the executor's lock: be quick, and do not call the executor.
    pub fn take_head(&self, key: &K, which: impl FnOnce(&J) -> bool) -> Option<J> {
        self.shell.lanes(|lanes| lanes.take_head(key, which))
    }

    /// Nothing of this key starts until [`resume`](Self::resume).
    pub fn pause(&self, key: K) {
        self.shell.pause(key);
    }

    /// Ends a pause; `false` if there was none.
    pub fn resume(&self, key: &K) -> bool {
        self.shell.lanes(|lanes| lanes.resume(key))
    }

    /// Looks at what waits under a key, oldest first, and at how its lane is; under the executor's
    /// lock: be quick, and do not call the executor.
    pub fn inspect<R>(
        &self,
        key: &K,
        look: impl FnOnce(KeyStats, &mut dyn Iterator<Item = &J>) -> R,
    ) -> Option<R> {
        self.shell.lanes(|lanes| {
            let stats = KeyStats::of(lanes.state_of(key)?);
            Some(look(stats, &mut lanes.waiting_of(key)))
        })
    }

    /// How a key's lane is; `None` when it has none.
    pub fn lane(&self, key: &K) -> Option<LaneState> {
        self.shell.lanes(|lanes| lanes.state_of(key))
    }

    /// The instant of a [`Time`] in a [`LaneState`].
    pub fn instant(&self, time: Time) -> Instant {
        self.shell.clock.instant_of(time)
    }

    /// The keys that have something waiting or running, or are paused: costs O(keys).
    pub fn keys(&self) -> Vec<K> {
        self.shell.lanes(|lanes| lanes.keys())
    }

    /// How many lanes could start something, were there permits and the rate.
    pub fn ready(&self) -> usize {
        self.shell.lanes(|lanes| lanes.ready())
    }

    /// What is going on.
    pub fn stats(&self) -> Stats {
        self.shell.lanes(|lanes| Stats {
            running: lanes.running(),
            queued: lanes.waiting(),
            live_keys: lanes.live(),
            done: 0,
            failed: 0,
            cancelled: 0,
            rejected: 0,
            panics: self
                .shell
                .work
                .common
                .panics
                .load(std::sync::atomic::Ordering::Relaxed),
        })
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.shell.work.limits.get()
    }

    /// Changes the limits while everything goes on; what the builder's functions say about keys is
    /// asked for anew.
    ///
    /// # Errors
    /// [`BuildErrors`] when a value cannot be meant; nothing has changed then.
    pub fn set_limits(&self, limits: Limits) -> Result<(), BuildErrors> {
        BuildErrors::check(&limits)?;
        let live = &self.shell.work.limits;
        let change = live.set(limits);
        let latest = || live.is_latest(change);
        self.shell.set_limits(limits.for_lanes(), latest);
        Ok(())
    }

    /// Waits until nothing of this key waits or runs. Cancel-safe.
    pub async fn idle(&self, key: &K) {
        if let Some(idle) = self.shell.watch_idle(key) {
            let _ = idle.await;
        }
    }

    /// Waits until nothing waits or runs. Cancel-safe.
    pub async fn all_idle(&self) {
        if let Some(idle) = self.shell.watch_all_idle() {
            let _ = idle.await;
        }
    }

    /// Takes no more jobs, starts nothing more, hands what waits to [`Handler::flushed`] lane by
    /// lane as soon as nothing of the lane runs, and waits for what runs. `false` when that took
    /// longer than the deadline: what runs still does, and what [`Handler::flushed`] wants to keep
    /// stays where it is and does not start.
    ///
    /// Cancel-safe: dropped, the executor is draining all the same.
    pub async fn drain(&self, deadline: Duration) -> bool {
        self.shell.drain();
        self.shell.timeout(deadline, self.all_idle()).await.is_ok()
    }
}

/// How the shell runs jobs.
pub(crate) struct Jobs<K, J, H> {
    handler: Arc<H>,
    common: Common<K>,
    rules: KeyRules<K>,
    limits: LiveLimits,
    jobs: PhantomData<fn(J)>,
}

impl<K, J, H> Jobs<K, J, H> {
    pub(crate) fn new(handler: H, common: Common<K>, rules: KeyRules<K>, limits: Limits) -> Self {
        Self {
            handler: Arc::new(handler),
            common,
            rules,
            limits: LiveLimits::new(limits),
            jobs: PhantomData,
        }
    }
}

/// One job under way.
pub(crate) struct RunJob<J>(Pin<Box<dyn Future<Output = Reply<J>> + Send>>);

impl<K, J, H> Types for Jobs<K, J, H> {
    type Job = J;
    type Run = RunJob<J>;
    /// A panic's message, to be reported.
    type After = String;
}

impl<K, J, H> Work<K> for Jobs<K, J, H>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    J: Send + 'static,
    H: Handler<K, J>,
{
    const GATED: bool = true;

    fn gate(&self, job: &J) -> Option<Until> {
        match self.handler.gate(job) {
            Gate::Go => None,
            Gate::Until(at) => Some(Until::At(at)),
            Gate::UntilReleased => Some(Until::Released),
        }
    }

    fn start(&self, job: J, slot: usize) -> RunJob<J> {
        let handler = self.handler.clone();
        RunJob(Box::pin(async move { handler.handle(job, slot).await }))
    }

    fn poll(
        &self,
        mut run: RunJob<J>,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
    ) -> Result<Ended<J, String>, RunJob<J>> {
        *before = None;
        let reply = match contain(|| run.0.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return Err(run),
            Ok(Poll::Ready(reply)) => reply,
            Err(message) => return Ok(Ended::Done(Some(message))),
        };
        Ok(match reply {
            Reply::Done => Ended::Done(None),
            Reply::Hold { job, until } => Ended::Hold {
                job: Box::new(job),
                hold: until.map_or(Until::Released, Until::At),
            },
            Reply::Flush { job } => Ended::Flush {
                job: job.map(Box::new),
            },
        })
    }

    fn fetch(&self, _: &J) {}

    fn is_asked(&self, _: &J) -> bool {
        false
    }

    fn stoppable(&self, _: &RunJob<J>) -> bool {
        // Nobody asks it to: what runs is seen to its end, or goes with the runtime.
        false
    }

    fn stops_by_itself(&self, _: &RunJob<J>, _: Stop) -> bool {
        false
    }

    fn abandon(&self, run: RunJob<J>, _: Stop) -> Option<String> {
        contain(|| drop(run)).err()
    }

    fn after(&self, panicked: String) {
        self.common.panicked("handler", &panicked);
    }

    fn flushed(self: &Arc<Self>, key: K, jobs: Vec<(u64, J)>, running: usize) -> Flushing<J> {
        let work = self.clone();
        let jobs = jobs
            .into_iter()
            .map(|(seq, job)| Queued { job, seq })
            .collect();
        Box::pin(async move {
            let flushed = async {
                match running {
                    0 => work.handler.flushed(key, jobs).await,
                    _ => work.handler.flushed_behind(key, jobs, running).await,
                }
            };
            let keep = contain_all(flushed).await.unwrap_or_else(|message| {
                work.common.panicked("flush", &message);
                Vec::new()
            });
            keep.into_iter()
                .map(|queued| (queued.seq, queued.job))
                .collect()
        })
    }

    fn panicked(&self, who: &str, message: &str) {
        self.common.panicked(who, message);
    }

    fn spec(&self, key: &K) -> Spec {
        let report = |who: &str, message: &str| self.common.panicked(who, message);
        self.rules.spec(key, &self.limits.get(), report)
    }

    fn has_specs(&self) -> bool {
        !self.rules.is_empty()
    }

    #[cfg(feature = "metrics")]
    fn observe(&self, queued: usize, running: usize, live_keys: usize) {
        self.common.exported.set(queued, running, live_keys);
    }
}
