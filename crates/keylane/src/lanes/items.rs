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

/// The items of a lane by sequence. The first has its place in the lane itself: most lanes hold
/// one, and need no memory besides.
pub(super) struct Items<J> {
    front: Option<Item<J>>,
    /// Nothing in here without a front.
    behind: Option<Box<Behind<J>>>,
}

impl<J> Items<J> {
    pub(super) fn new() -> Self {
        Self {
            front: None,
            behind: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        let behind = self.behind.as_ref().map_or(0, |behind| behind.len());
        usize::from(self.front.is_some()) + behind
    }

    pub(super) fn is_empty(&self) -> bool {
        self.front.is_none()
    }

    pub(super) fn front(&self) -> Option<&Item<J>> {
        self.front.as_ref()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Item<J>> {
        self.front.as_mut()
    }

    pub(super) fn push_back(&mut self, item: Item<J>) {
        if self.front.is_none() {
            self.front = Some(item);
        } else {
            self.behind.get_or_insert_default().push_back(item);
        }
    }

    /// Puts an item at its place by sequence.
    pub(super) fn insert(&mut self, item: Item<J>) {
        let Some(front) = &mut self.front else {
            self.front = Some(item);
            return;
        };
        let later = if item.seq < front.seq {
            std::mem::replace(front, item)
        } else {
            item
        };
        self.behind.get_or_insert_default().insert(later);
    }

    pub(super) fn pop_front(&mut self) -> Option<Item<J>> {
        let next = self.behind.as_mut().and_then(|behind| behind.pop_front());
        std::mem::replace(&mut self.front, next)
    }

    /// Takes the item with this sequence out of wherever it is.
    pub(super) fn remove(&mut self, seq: u64) -> Option<J> {
        if self.front.as_ref()?.seq == seq {
            return self.pop_front().map(Item::into_job);
        }
        self.behind.as_mut()?.remove(seq)
    }

    /// Ends all holds. Only the front and what was put back can be held, and what was put back
    /// has a sequence below `put_back_to`.
    pub(super) fn release(&mut self, put_back_to: u64) {
        if let Some(front) = &mut self.front {
            front.hold = Hold::Free;
        }
        let behind = self.behind.iter_mut().flat_map(|b| b.queue.iter_mut());
        for item in behind.take_while(|item| item.seq < put_back_to) {
            item.hold = Hold::Free;
        }
    }

    /// The sequence of the first live item behind this sequence.
    pub(super) fn next_after(&self, seq: u64) -> Option<u64> {
        let front = self.front.as_ref()?;
        if front.seq > seq {
            return Some(front.seq);
        }
        self.behind.as_ref()?.next_after(seq)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &J> {
        let behind = self.behind.iter().flat_map(|behind| behind.queue.iter());
        let items = self.front.iter().chain(behind);
        items.filter_map(|item| item.job.as_ref())
    }

    pub(super) fn take(&mut self) -> Vec<(u64, J)> {
        let behind = self.behind.take().map(|behind| behind.queue);
        let items = self.front.take().into_iter();
        items
            .chain(behind.into_iter().flatten())
            .filter_map(|item| Some((item.seq, item.job?)))
            .collect()
    }
}

/// A queue by sequence from whose middle items can be cancelled: a cancelled item leaves a mark
/// that is not counted, never at either end, and never more marks than live items.
struct Behind<J> {
    queue: VecDeque<Item<J>>,
    marks: u32,
}

impl<J> Default for Behind<J> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            marks: 0,
        }
    }
}

impl<J> Behind<J> {
    fn len(&self) -> usize {
        self.queue.len() - self.marks as usize
    }

    fn push_back(&mut self, item: Item<J>) {
        self.queue.push_back(item);
    }

    fn insert(&mut self, item: Item<J>) {
        let at = self.queue.partition_point(|other| other.seq < item.seq);
        if at == self.queue.len() {
            self.push_back(item);
        } else {
            self.queue.insert(at, item);
        }
    }

    fn pop_front(&mut self) -> Option<Item<J>> {
        let item = self.queue.pop_front()?;
        self.tidy();
        Some(item)
    }

    fn remove(&mut self, seq: u64) -> Option<J> {
        let at = self
            .queue
            .binary_search_by_key(&seq, |item| item.seq)
            .ok()?;
        let job = self.queue[at].job.take()?;
        self.marks += 1;
        self.tidy();
        Some(job)
    }

    fn next_after(&self, seq: u64) -> Option<u64> {
        let at = self.queue.partition_point(|item| item.seq <= seq);
        let mut live = self.queue.range(at..).filter(|item| item.job.is_some());
        live.next().map(|item| item.seq)
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
