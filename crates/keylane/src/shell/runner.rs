//! Runners: tasks that take starts in batches and poll each once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use super::driven::Driven;
use super::ends::{EndedRun, Ends, MOST_KEPT};
use super::first_polls::RunnerId;
use super::{Ended, Inbox, Shell, Types, Until, Work};
use crate::lanes::Ticket;
use crate::rt::{lock, try_lock};

/// How long a runner goes on before it lets others run.
const TURN: std::time::Duration = std::time::Duration::from_micros(500);
/// How long a poll takes, in nanoseconds, where a second runner pays.
const HELP_NANOS: u32 = 1_000;

/// What one runner carries from lock to lock. Dropped before it has retired (the runtime goes), it
/// leaves that to other runners.
struct Runner<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    shell: Arc<Shell<K, W>>,
    id: RunnerId,
    ended: Vec<EndedRun<W>>,
    batch: Vec<(Ticket, W::Job)>,
    /// Reported, and their results not yet seen.
    ends: Ends<W>,
    /// No two of a lane run at once, so that their order is not up to who polls them first.
    one_by_one: bool,
    /// Not everything that was submitted is in the lanes.
    untaken: bool,
    /// Somebody else had the lock when this was last tried.
    waited: bool,
    /// Results were let be seen since others could run.
    published: bool,
    retired: bool,
    /// It is the collector: whoever leaves an end counts on it.
    collects: bool,
    /// How many changes there had been when the batch was taken.
    changes: u32,
}

impl<K, W> Runner<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn new(shell: Arc<Shell<K, W>>, collects: bool) -> Self {
        Self {
            id: shell.next_runner.fetch_add(1, Ordering::Relaxed),
            shell,
            ended: Vec::new(),
            batch: Vec::new(),
            ends: Ends::default(),
            one_by_one: true,
            untaken: false,
            waited: false,
            published: false,
            retired: false,
            collects,
            changes: 0,
        }
    }

    /// Takes starts until there are none.
    async fn run(mut self) {
        let mut began = tokio::time::Instant::now();
        while !self.retired {
            let Some(helped) = self.turn() else {
                crate::rt::yield_now().await;
                continue;
            };
            if self.batch.is_empty() && !self.untaken {
                self.retired = self.shell.retire(self.collects);
                continue;
            }
            self.stop_collecting();
            let (now, spawned) = self.poll_batch();
            if self.shell.has_surplus_runner() && self.lets_go() {
                // Dropped, it reports what ended.
                return;
            }
            if crate::rt::now_and_then() {
                continue;
            }
            let calls = helped || spawned;
            if !calls && now.duration_since(began) < TURN && !cfg!(keylane_shuttle) {
                continue;
            }
            if !self.lets_go() {
                continue;
            }
            if calls || std::mem::take(&mut self.published) {
                // One of the two is found by an idle worker; what was spawned goes first, while it
                // is near; and who waits for results may go on beside it.
                crate::rt::move_over().await;
            } else {
                crate::rt::yield_now().await;
            }
            began = tokio::time::Instant::now();
        }
    }

    /// Whether nothing was taken for this runner that it has not polled.
    fn lets_go(&self) -> bool {
        self.one_by_one || lock(&self.shell.state.0).first_polls.let_go(self.id)
    }

    /// From here on it may take its time: whoever leaves an end does not count on it any more.
    fn stop_collecting(&mut self) {
        if std::mem::take(&mut self.collects) {
            self.shell.collected();
        }
    }

    /// One lock: report what ended, take in what was submitted, take the next batch. Answers whether
    /// another runner was called; nothing where somebody else has the lock, and this worker may have
    /// better to do than to wait for it.
    fn turn(&mut self) -> Option<bool> {
        let shell = self.shell.clone();
        // Lanes that are this runner's do not wait for it to be its worker's turn again.
        let state = match std::mem::take(&mut self.waited) || !self.one_by_one {
            true => Some(lock(&shell.state.0)),
            false => try_lock(&shell.state.0),
        };
        let Some(mut state) = state else {
            self.waited = true;
            return None;
        };
        shell.pace.0.turns.fetch_add(1, Ordering::Relaxed);
        self.changes = shell.changes.load(Ordering::Acquire);
        if self.ended.capacity() == 0 {
            self.ended = std::mem::take(&mut lock(&shell.spare));
        }
        shell.take_ends(&mut self.ended);
        shell.report(&mut state, &mut self.ended, &mut self.ends);
        let full = shell.take_starts(&mut state, self.id, &mut self.batch);
        if self.batch.is_empty() && self.ended.capacity() <= MOST_KEPT {
            *lock(&shell.spare) = std::mem::take(&mut self.ended);
        }
        self.untaken = !state.taken.is_empty();
        self.one_by_one = shell.is_one_by_one(&state);
        let mut out = shell.finish(&mut state);
        let more = std::mem::take(&mut out.run) && full;
        drop(state);
        shell.free(&mut self.ends);
        if !self.ends.are_unseen() {
            self.published = true;
            self.stop_collecting();
            shell.let_see(&mut self.ends);
        }
        let helped = more && shell.another_runner();
        shell.deliver(out);
        Some(helped)
    }

    /// Starts a batch, and what that makes way for as long as the batch would have been larger.
    /// Answers when it was through, and whether there are new tasks.
    fn poll_batch(&mut self) -> (tokio::time::Instant, bool) {
        let before = tokio::time::Instant::now();
        let most = self.shell.batch();
        let mut count = self.batch.len();
        let mut spawned = self.poll_each();
        while count < most && self.go_on(most - count) {
            count += self.batch.len();
            spawned |= self.poll_each();
        }
        let now = tokio::time::Instant::now();
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
            self.changes = shell.changes.load(Ordering::Acquire);
            let ends = &mut self.ends;
            shell.report(&mut state, &mut self.ended, ends);
            shell.fill(&mut state, self.id, &mut self.batch, most);
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
            if shell.changes.load(Ordering::Acquire) != self.changes {
                self.ended.push(put_back(ticket, job));
                continue;
            }
            let mut run = shell.work.start(job, ticket.slot());
            // It has not begun: whether dropping it would stop it is no question.
            if let Some(stop) = shell.stops.asked(&ticket) {
                let after = shell.work.abandon(run, stop);
                let ended = Ended::Done(after);
                self.ended.push(EndedRun::of_runner(ticket, ended));
                continue;
            }
            if polls {
                run = match shell.work.poll(run, &mut cx, &mut before) {
                    Err(run) => run,
                    Ok(ended) => {
                        self.ended.push(EndedRun::of_runner(ticket, ended));
                        continue;
                    }
                };
            }
            pending += 1;
            let driven = Driven::new(shell.clone(), run, ticket, polls);
            shell.spawner.spawn(driven);
        }
        match self.ended.is_empty() {
            true => shell.note_pending(pending),
            false => shell.note_ready(),
        }
        pending > 0
    }
}

/// A runner that was called. Dropped before it came, because the runtime is gone, it is not waited for.
struct Coming<K, W>(Option<Arc<Shell<K, W>>>)
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>;

impl<K, W> Coming<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn came(mut self) -> Arc<Shell<K, W>> {
        self.0.take().expect("it comes once")
    }
}

impl<K, W> Drop for Coming<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    fn drop(&mut self) {
        if let Some(shell) = &self.0 {
            shell.never_comes();
        }
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
            let ends = &mut self.ends;
            self.shell
                .take_over(self.id, self.collects, ended, batch, ends);
        }
    }
}

impl<K, J> Inbox<K, J> {
    /// A runner goes.
    fn go(&mut self, collects: bool) {
        self.runners -= 1;
        self.collector &= !collects;
    }
}

/// What was taken and not begun goes back to its place, and starts again if it may.
fn put_back<W: Types>(ticket: Ticket, job: W::Job) -> EndedRun<W> {
    let (job, hold) = (Box::new(job), Until::Now);
    EndedRun::of_runner(ticket, Ended::Hold { job, hold })
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    pub(super) fn start_runner(&self) {
        if let Some(shell) = self.me.upgrade() {
            let comes = Coming(Some(shell));
            self.spawner.spawn(async move {
                // Made inside: a runner that never came has nothing that others take over.
                Runner::new(comes.came(), false).run().await;
            });
        }
    }

    /// A runner that was just started may be where only this worker looks, which goes on
    /// submitting: whatever is spawned next puts it where idle ones look.
    pub(super) fn nudge(&self) {
        self.spawner.spawn(std::future::ready(()));
    }

    /// Starts a runner that first lets others run: thousands of runs may end in the same moment,
    /// and are then reported at once.
    pub(super) fn start_collector(&self) {
        if let Some(shell) = self.me.upgrade() {
            let runner = Runner::new(shell, true);
            self.spawner.spawn(async move {
                crate::rt::yield_now().await;
                runner.run().await;
            });
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
    pub(super) fn worth_help(&self) -> bool {
        cfg!(keylane_shuttle)
            || self.pace.0.poll_nanos.load(Ordering::Relaxed) >= HELP_NANOS
            || self.are_pending()
    }

    /// The runner found nothing to start: it ends, unless something changed since it looked.
    fn retire(&self, collects: bool) -> bool {
        let mut inbox = lock(&self.inbox.0);
        if !inbox.queue.is_empty() || std::mem::take(&mut inbox.again) {
            return false;
        }
        inbox.go(collects);
        true
    }

    /// The collector does something else now: ends that were left meanwhile are another's.
    fn collected(&self) {
        let mut inbox = lock(&self.inbox.0);
        inbox.collector = false;
        if self.any_ends.load(Ordering::Acquire) {
            self.call_collector(inbox);
        }
    }

    /// A runner that was called is not coming: whoever counted on it to report an end is not let down.
    fn never_comes(&self) {
        lock(&self.inbox.0).go(false);
        let mut ended = Vec::new();
        self.take_ends(&mut ended);
        ended.into_iter().for_each(|ended| self.end_one(ended));
    }

    /// A runner is gone in the middle of its work: what it had not reported is reported, what it
    /// had not started goes back to its place, and others go on.
    fn take_over(
        &self,
        runner: RunnerId,
        collects: bool,
        ended: &mut Vec<EndedRun<W>>,
        batch: &mut Vec<(Ticket, W::Job)>,
        ends: &mut Ends<W>,
    ) {
        // In this order: whoever leaves an end now does not count on this runner.
        lock(&self.inbox.0).go(collects);
        self.take_ends(ended);
        let mut state = lock(&self.state.0);
        batch.extend(state.first_polls.gone(runner));
        ended.extend(batch.drain(..).map(|(ticket, job)| put_back(ticket, job)));
        self.report(&mut state, ended, ends);
        let out = self.finish(&mut state);
        drop(state);
        self.publish(ends);
        self.deliver(out);
        self.look_again();
    }
}
