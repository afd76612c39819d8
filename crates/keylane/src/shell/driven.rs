//! A run under way, as a task of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::ends::{EndedRun, Ends};
use super::{BATCH, Ended, Shell, Stop, Work};
use crate::lanes::Ticket;
use crate::rt::try_lock;

/// A run under way. Dropped before its end, because the runtime goes, it frees its permit.
pub(super) struct Driven<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    shell: Arc<Shell<K, W>>,
    run: Option<(W::Run, Ticket)>,
    /// Dropping the run stops it.
    stoppable: bool,
    /// The run was polled.
    begun: bool,
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
    pub(super) fn new(shell: Arc<Shell<K, W>>, run: W::Run, ticket: Ticket, begun: bool) -> Self {
        let stoppable = shell.work.stoppable(&run);
        Self {
            shell,
            run: Some((run, ticket)),
            stoppable,
            begun,
            stopping: false,
            registered: false,
            pending: false,
            starts: 0,
        }
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<EndedRun<W>> {
        let (run, ticket) = self.run.take().expect("polled until it is ready");
        self.begun = true;
        match self.shell.work.poll_apart(run, cx) {
            Err(run) => {
                self.run = Some((run, ticket));
                Poll::Pending
            }
            Ok(ended) => Poll::Ready(self.ended(ticket, ended)),
        }
    }

    fn ended(&mut self, ticket: Ticket, ended: Ended<W::Job, W::After>) -> EndedRun<W> {
        EndedRun::of_task(ticket, ended, std::mem::take(&mut self.registered))
    }

    /// How the run was asked to stop, if it was.
    fn asked(&self) -> Option<Stop> {
        let (_, ticket) = self.run.as_ref()?;
        self.shell.stops.asked(ticket)
    }

    /// How the run is to stop, if it is and does not already.
    fn is_to_stop(&self) -> Option<Stop> {
        // What has not begun stops, whatever it is.
        let may = (self.stoppable || !self.begun) && !self.stopping;
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
        let (run, ticket) = self.run.take().expect("it is not over yet");
        let after = self.shell.work.abandon(run, stop);
        let ended = self.ended(ticket, Ended::Done(after));
        self.shell.end_one(ended);
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
            let run = this.shell.work.start(job, ticket.slot());
            this.stoppable = this.shell.work.stoppable(&run);
            this.begun = false;
            this.stopping = false;
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
        self.report_alone(&mut state, ended, &mut ends);
        let next = match self.is_one_by_one(&state) {
            true => {
                let now = self.tick(&mut state);
                self.next(&mut state, now)
            }
            // Runners see to the order of first polls.
            false => None,
        };
        let out = self.finish(&mut state);
        drop(state);
        self.publish(&mut ends);
        self.deliver(out);
        next
    }
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
