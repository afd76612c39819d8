//! Runs that ended: reported to the lanes, then their results can be seen.

use std::sync::atomic::Ordering;

use super::{BATCH, Ended, PLACES, Shell, State, Stop, Types, Until, Work};
use crate::lanes::Ticket;
use crate::rt::{contain, lock};

/// The most ends whose memory is kept when they are reported.
pub(super) const MOST_KEPT: usize = BATCH * BATCH;

/// A run that ended, with its permit.
pub(super) type EndedRun<W> = (Ticket, Ended<<W as Types>::Job, <W as Types>::After>);

/// Ends that were reported: how many permits that freed, and what is to be seen of them.
pub(super) struct Ends<W: Types> {
    freed: usize,
    afters: Vec<W::After>,
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
        self.report_one(&mut state, ended.0, ended.1, &mut ends);
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
            if together.len() > 1 {
                let tickets = together.iter().map(|(ticket, _)| ticket);
                state.lanes.fetch(tickets.clone());
                if far {
                    state.lanes.fetch_for_retiring(tickets.clone());
                }
                if state.many_keys {
                    // The user's code, of which nothing is asked here.
                    let _ = contain(|| state.lanes.fetch_keys(tickets));
                }
            }
            for (ticket, ended) in ended.by_ref().take(BATCH) {
                self.report_one(state, ticket, ended, ends);
            }
        }
    }

    #[inline]
    pub(super) fn report_one(
        &self,
        state: &mut State<K, W::Job>,
        ticket: Ticket,
        ended: Ended<W::Job, W::After>,
        ends: &mut Ends<W>,
    ) {
        ends.freed += 1;
        let stop = self.stops.forget_asked(&ticket);
        match ended {
            Ended::Done(None) => state.lanes.done(ticket),
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
        let freed = std::mem::take(&mut ends.freed);
        if let Some(permits) = &self.permits {
            permits.give(freed);
        }
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
