//! What was submitted, on its way into the lanes.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::task::{Context, Poll};

use super::{BATCH, Inbox, Shell, State, Work};
use crate::lanes::{Found, LaneLimits, Lanes, Limits, Spec, Ticket};
use crate::rt::{Mutex, lock};

/// How many submits are looked up before the first of them goes into its lane.
const TOGETHER: usize = 16;
/// Lanes of so many keys are all near. Of more keys, those with a lane are kept few.
const FEW_KEYS: usize = 512;

/// A submit on its way. The user's code hashes the key where it is submitted: there a panic harms nobody
/// else, and the key is near.
pub(super) struct Submit<K, J> {
    key: K,
    hash: u64,
    job: J,
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
    /// Puts a job at the end of its lane; answers its sequence.
    pub(crate) fn push(&self, key: K, job: W::Job) -> Result<u64, NotTaken<W::Job>> {
        let hash = self.hasher.hash_one(&key);
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
        inbox.queue.push_back(Submit { key, hash, job });
        let start = inbox.runners == 0;
        inbox.runners += usize::from(start);
        let many = inbox.queue.len() == BATCH;
        let unwatched = !start && self.is_unwatched(&mut inbox);
        drop(inbox);
        if start {
            self.start_runner();
        } else if unwatched {
            self.watch_runners();
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
    pub(super) fn with_spec<R>(
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
        if self.remember && self.work.comes_again(key) {
            state.remembered.insert(key.clone(), spec.clone());
        }
        Some(spec.clone())
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
}

impl<K, W> Shell<K, W>
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
    W: Work<K>,
{
    /// As [`State::take_in`], and what may start at once goes into the batch until that has so many.
    /// Nothing more is taken in for it than could, unless `beyond` says so.
    pub(super) fn take_in_and_start(
        &self,
        state: &mut State<K, W::Job>,
        batch: &mut Vec<(Ticket, W::Job)>,
        full: usize,
        beyond: bool,
    ) {
        state.take_inbox(&self.inbox.0);
        let most = match beyond {
            true => self.intake(),
            false => self.intake().min(full - batch.len()),
        };
        state.push_taken(most, |lanes, key, found, job| {
            let room = found.is_new() && batch.len() < full && lanes.may_start_new();
            if room && lanes.may_start_found(found) {
                batch.push((lanes.start_found(key, found), job));
            } else {
                push(lanes, key, found, job);
            }
        });
    }
}

impl<K: std::hash::Hash + Eq + Clone, J> State<K, J> {
    /// What was submitted goes into the lanes, so much of it at the most. The inbox is free again as
    /// soon as its queue is taken.
    pub(super) fn take_in(&mut self, inbox: &Mutex<Inbox<K, J>>, most: usize) {
        self.take_inbox(inbox);
        self.push_taken(most, push);
    }

    /// Everything that was submitted goes into the lanes.
    pub(super) fn take_all(&mut self, inbox: &mut Inbox<K, J>) {
        self.push_taken(usize::MAX, push);
        std::mem::swap(&mut self.taken, &mut inbox.queue);
        self.push_taken(usize::MAX, push);
    }

    fn take_inbox(&mut self, inbox: &Mutex<Inbox<K, J>>) {
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut lock(inbox).queue);
        }
    }

    /// `take` takes a job in.
    #[inline]
    fn push_taken(&mut self, most: usize, mut take: impl FnMut(&mut Lanes<K, J>, K, Found, J)) {
        let (before, all) = (self.lanes.live(), self.taken.len().min(most));
        let (mut left, mut known) = (all, 0);
        while left > 0 {
            // As with starts and ends: what is far away is fetched together.
            let mut found = [Found::default(); TOGETHER];
            let mut last: Option<(u64, Found)> = None;
            let mut count = 0;
            for (submit, found) in self.taken.iter().take(left).zip(&mut found) {
                *found = match last {
                    // A key that is hot comes several times in a row.
                    Some((same, found)) if same == submit.hash => found,
                    _ => self.lanes.fetch_for(submit.hash),
                };
                last = Some((submit.hash, *found));
                count += 1;
            }
            for (Submit { key, job, .. }, found) in self.taken.drain(..count).zip(found) {
                known += usize::from(!found.is_new());
                take(&mut self.lanes, key, found, job);
            }
            left -= count;
        }
        if all > 0 {
            // As many of all keys have a lane as of those that were taken in.
            let live = (before + self.lanes.live()) / 2;
            self.many_keys = live * all > FEW_KEYS * known;
        }
        if self.taken.is_empty() && self.taken.capacity() > 4 * BATCH * BATCH {
            self.taken = VecDeque::new();
        }
    }
}

/// Puts a job into its lane.
#[inline]
fn push<K: std::hash::Hash + Eq + Clone, J>(lanes: &mut Lanes<K, J>, key: K, found: Found, job: J) {
    let pushed = lanes.push_found(key, found, job, |_| Spec::default());
    debug_assert!(
        pushed.is_ok(),
        "what can be refused goes straight to the lanes"
    );
}

pub(super) fn must_be_direct(limits: &Limits) -> bool {
    limits.queue != usize::MAX || limits.lane.queue != usize::MAX
}
