//! What waits in one lane, ordered by sequence.

use std::collections::VecDeque;

use super::Time;

/// Whether an item may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It may.
    Free,
    /// Not before this time.
    Until(Time),
    /// Not before somebody releases it.
    UntilReleased,
}

/// One waiting item. `job` is `None` for a cancelled one whose place is not yet reclaimed.
pub(super) struct Item<J> {
    pub(super) seq: u64,
    pub(super) hold: Hold,
    job: Option<J>,
}

impl<J> Item<J> {
    pub(super) fn new(seq: u64, hold: Hold, job: J) -> Self {
        Self {
            seq,
            hold,
            job: Some(job),
        }
    }

    pub(super) fn into_job(self) -> J {
        self.job.expect("the front is never a cancelled one")
    }

    pub(super) fn job(&self) -> &J {
        self.job
            .as_ref()
            .expect("the front is never a cancelled one")
    }
}

/// A queue by sequence from whose middle items can be cancelled: a cancelled item leaves a mark
/// that is not counted, never at either end, and never more marks than live items.
pub(super) struct Items<J> {
    queue: VecDeque<Item<J>>,
    marks: u32,
}

impl<J> Items<J> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            marks: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() - self.marks as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn front(&self) -> Option<&Item<J>> {
        self.queue.front()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Item<J>> {
        self.queue.front_mut()
    }

    pub(super) fn push_back(&mut self, item: Item<J>) {
        if self.queue.capacity() == 0 {
            // Most lanes hold one item: the default first growth would hold four.
            self.queue.reserve_exact(1);
        }
        self.queue.push_back(item);
    }

    /// Puts an item at its place by sequence.
    pub(super) fn insert(&mut self, item: Item<J>) {
        let at = self.queue.partition_point(|other| other.seq < item.seq);
        if at == self.queue.len() {
            self.push_back(item);
        } else {
            self.queue.insert(at, item);
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Item<J>> {
        let item = self.queue.pop_front()?;
        self.tidy();
        Some(item)
    }

    /// Takes the item with this sequence out of wherever it is.
    pub(super) fn remove(&mut self, seq: u64) -> Option<J> {
        let at = self
            .queue
            .binary_search_by_key(&seq, |item| item.seq)
            .ok()?;
        let job = self.queue[at].job.take()?;
        self.marks += 1;
        self.tidy();
        Some(job)
    }

    /// Ends all holds: that of the front, and those behind it, which all have a sequence below
    /// `held_to`.
    pub(super) fn release(&mut self, held_to: u64) {
        let mut items = self.queue.iter_mut();
        if let Some(front) = items.next() {
            front.hold = Hold::Free;
        }
        for item in items.take_while(|item| item.seq < held_to) {
            item.hold = Hold::Free;
        }
    }

    /// The sequence of the first live item behind this sequence.
    pub(super) fn next_after(&self, seq: u64) -> Option<u64> {
        let at = self.queue.partition_point(|item| item.seq <= seq);
        let mut live = self.queue.range(at..).filter(|item| item.job.is_some());
        live.next().map(|item| item.seq)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &J> {
        self.queue.iter().filter_map(|item| item.job.as_ref())
    }

    pub(super) fn take(&mut self) -> Vec<(u64, J)> {
        self.marks = 0;
        std::mem::take(&mut self.queue)
            .into_iter()
            .filter_map(|item| Some((item.seq, item.job?)))
            .collect()
    }

    fn tidy(&mut self) {
        if self.marks > 0 {
            self.trim_ends();
            if self.marks as usize * 2 > self.queue.len() {
                self.queue.retain(|item| item.job.is_some());
                self.marks = 0;
            }
        }
        if self.queue.capacity() > 64 && self.queue.len() * 4 < self.queue.capacity() {
            self.queue.shrink_to(self.queue.len() * 2);
        }
    }

    fn trim_ends(&mut self) {
        while self.queue.front().is_some_and(|item| item.job.is_none()) {
            self.queue.pop_front();
            self.marks -= 1;
        }
        while self.queue.back().is_some_and(|item| item.job.is_none()) {
            self.queue.pop_back();
            self.marks -= 1;
        }
    }
}
