//! Runs that ended: reported to the lanes, then their results can be seen.

use std::sync::atomic::Ordering;
use std::task::Waker;

use super::{BATCH, Ended, Inbox, PLACES, Shell, State, Stop, Types, Until, Work};
use crate::lanes::Ticket;
use crate::rt::{MutexGuard, contain, lock};

/// The most ends whose memory is kept when they are reported.
pub(super) const MOST_KEPT: usize = BATCH * BATCH;

/// A run that ended, with its permit.
pub(super) struct EndedRun<W: Types> {
    ticket: Ticket,
    ended: Ended<W::Job, W::After>,
    /// It could be woken to be stopped.
    registered: bool,
}

impl<W: Types> EndedRun<W> {
    /// Of a run that was no task of its own.
    pub(super) fn of_runner(ticket: Ticket, ended: Ended<W::Job, W::After>) -> Self {
        Self::of_task(ticket, ended, false)
    }

    pub(super) fn of_task(
        ticket: Ticket,
        ended: Ended<W::Job, W::After>,
        registered: bool,
    ) -> Self {
        Self {
            ticket,
            ended,
            registered,
        }
    }
}

/// Ends that were reported: how many permits that freed, and what is to be seen of them.
pub(super) struct Ends<W: Types> {
    freed: usize,
    afters: Vec<W::After>,
    /// What is left of those of which nothing is to be seen, and what keeps the memory of their tasks.
    /// Freed by whoever reports them: workers that free what they ended would wait for each other in
    /// the allocator, each having much of what the other one allocated.
    over: Vec<W::After>,
    tasks: Vec<Waker>,
    /// Went back to their place, but were to stop: they are not to begin again.
    stopped: Vec<(W::Job, Stop)>,
    /// Their number among those being published, if there is anything to be seen of them.
    number: u64,
}

impl<W: Types> Default for Ends<W> {
    fn default() -> Self {
        Self {
            freed: 0,
            afters: Vec::new(),
            over: Vec::new(),
            tasks: Vec::new(),
            stopped: Vec::new(),
            number: 0,
        }
    }
}

impl<W: Types> Ends<W> {
    /// Whether nothing is to be seen of them.
    pub(super) fn are_unseen(&self) -> bool {
        self.afters.is_empty() && self.stopped.is_empty()
    }
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// Reports one end and leaves the rest to the runners.
    pub(super) fn end_one(&self, ended: EndedRun<W>) {
        let mut state = lock(&self.state.0);
        let mut ends = Ends::default();
        self.report_alone(&mut state, ended, &mut ends);
        let out = self.finish(&mut state);
        drop(state);
        self.publish(&mut ends);
        self.deliver(out);
    }

    /// A run of its own ended: a runner will report it, with all that end about now.
    pub(super) fn leave_end(&self, ended: EndedRun<W>) {
        {
            let place = crate::rt::place_of_thread(PLACES);
            let mut ends = lock(&self.ends[place].0);
            let first = ends.is_empty();
            ends.push(ended);
            if !first {
                // Whoever left the first one here saw to it that a runner comes.
                return;
            }
            self.any_ends.store(true, Ordering::Release);
        }
        self.call_collector(lock(&self.inbox.0));
    }

    /// Has a runner come for ends that were left. One at a time: two would only wait for each other,
    /// at the lanes and in the allocator.
    pub(super) fn call_collector(&self, mut inbox: MutexGuard<'_, Inbox<K, W::Job>>) {
        // Also beside another runner: that one may be in the middle of a long poll.
        if inbox.collector || inbox.runners >= self.workers {
            inbox.again = true;
            return;
        }
        inbox.runners += 1;
        inbox.collector = true;
        drop(inbox);
        self.start_collector();
    }

    pub(super) fn take_ends(&self, ended: &mut Vec<EndedRun<W>>) {
        // Before they are taken: what is left from now on says so again.
        if !self.any_ends.load(Ordering::Acquire) || !self.any_ends.swap(false, Ordering::AcqRel) {
            return;
        }
        for place in &self.ends {
            let mut left = lock(&place.0);
            ended.append(&mut left);
            if left.capacity() > MOST_KEPT {
                *left = Vec::new();
            }
        }
    }

    /// Tells the lanes what ended.
    pub(super) fn report(
        &self,
        state: &mut State<K, W::Job>,
        ended: &mut Vec<EndedRun<W>>,
        ends: &mut Ends<W>,
    ) {
        // What was not ready at once has been away for a while.
        let far = self.are_pending();
        let mut ended = ended.drain(..);
        while !ended.as_slice().is_empty() {
            // As with starts: what is far away is fetched together.
            let together = &ended.as_slice()[..BATCH.min(ended.len())];
            self.forget_tasks(together, ends);
            if together.len() > 1 {
                let tickets = together.iter().map(|ended| &ended.ticket);
                state.lanes.fetch(tickets.clone());
                if far {
                    state.lanes.fetch_for_retiring(tickets.clone());
                }
                if state.many_keys {
                    // The user's code, of which nothing is asked here.
                    let _ = contain(|| state.lanes.fetch_keys(tickets));
                }
            }
            for ended in ended.by_ref().take(BATCH) {
                self.report_one(state, ended, ends);
            }
        }
    }

    /// As [`Self::report`].
    pub(super) fn report_alone(
        &self,
        state: &mut State<K, W::Job>,
        ended: EndedRun<W>,
        ends: &mut Ends<W>,
    ) {
        self.forget_tasks(std::slice::from_ref(&ended), ends);
        self.report_one(state, ended, ends);
    }

    /// Nobody has to be able to wake them any more.
    fn forget_tasks(&self, ended: &[EndedRun<W>], ends: &mut Ends<W>) {
        let registered = ended.iter().filter(|ended| ended.registered);
        let tickets = registered.map(|ended| &ended.ticket);
        self.stops.forget(tickets, &mut ends.tasks);
    }

    #[inline]
    fn report_one(
        &self,
        state: &mut State<K, W::Job>,
        EndedRun { ticket, ended, .. }: EndedRun<W>,
        ends: &mut Ends<W>,
    ) {
        ends.freed += 1;
        let stop = self.stops.forget_asked(&ticket);
        match ended {
            Ended::Done(None) => state.lanes.done(ticket),
            Ended::Over(after) => {
                state.lanes.done(ticket);
                ends.over.push(after);
            }
            Ended::Done(Some(after)) => {
                state.lanes.done(ticket);
                self.begin_publishing(ends);
                ends.afters.push(after);
            }
            Ended::Hold {
                job,
                hold: Until::Now,
            } if let Some(stop) = self.stop_of(&job, stop) => {
                state.lanes.done(ticket);
                self.begin_publishing(ends);
                ends.stopped.push((*job, stop));
            }
            Ended::Hold { job, hold } => {
                let hold = self.hold_of(&hold);
                state.lanes.hold(ticket, *job, hold);
            }
            Ended::Flush { job } => state.lanes.flush_from(ticket, job.map(|job| *job)),
        }
    }

    /// How a job that has not begun is to stop, if it is.
    fn stop_of(&self, job: &W::Job, asked: Option<Stop>) -> Option<Stop> {
        asked.or_else(|| self.work.is_asked(job).then_some(Stop::Asked))
    }

    fn begin_publishing(&self, ends: &mut Ends<W>) {
        if ends.are_unseen() {
            ends.number = lock(&self.publishing).begin();
        }
    }

    /// The permits are free: gives shared ones back, then lets the results be seen.
    pub(super) fn publish(&self, ends: &mut Ends<W>) {
        self.free(ends);
        self.let_see(ends);
    }

    /// Gives shared permits back, and memory of which nothing is to be seen.
    pub(super) fn free(&self, ends: &mut Ends<W>) {
        let freed = std::mem::take(&mut ends.freed);
        if let Some(permits) = &self.permits {
            permits.give(freed);
        }
        ends.over.clear();
        ends.tasks.clear();
    }

    /// The user's code may run, and take its time.
    pub(super) fn let_see(&self, ends: &mut Ends<W>) {
        if ends.are_unseen() {
            return;
        }
        for (job, stop) in ends.stopped.drain(..) {
            // Its place is of no matter: it is not polled.
            let run = self.work.start(job, 0);
            ends.afters.extend(self.work.abandon(run, stop));
        }
        self.work.before_after(&ends.afters);
        let mut afters = ends.afters.drain(..);
        // A result that nobody takes is dropped here, and may panic: the others are not its business.
        while let Err(message) =
            contain(|| afters.by_ref().for_each(|after| self.work.after(after)))
        {
            self.work.panicked("result", &message);
        }
        self.seen(ends.number);
    }
}
