//! What waits in one lane, ordered by sequence.

use std::collections::VecDeque;

/// One waiting item. `job` is `None` for a cancelled one whose place is not yet reclaimed.
struct Item<J> {
    seq: u64,
    job: Option<J>,
}

/// A queue by sequence from whose middle items can be cancelled: a cancelled item leaves a mark
/// that is not counted, never at either end, and never more marks than live items.
///
/// The first item is kept apart: most lanes hold one, which then needs no memory of its own and
/// is found where the lane is.
pub(super) struct Items<J> {
    /// Without a job, the lane is empty.
    front: Item<J>,
    rest: VecDeque<Item<J>>,
    marks: u32,
}

impl<J> Items<J> {
    pub(super) fn new() -> Self {
        Self {
            front: Item { seq: 0, job: None },
            rest: VecDeque::new(),
            marks: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(!self.is_empty()) + self.rest.len() - self.marks as usize
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.front.job.is_none()
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&J> {
        self.front.job.as_ref()
    }

    #[inline]
    pub(super) fn front_seq(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.front.seq)
    }

    #[inline]
    pub(super) fn push_back(&mut self, seq: u64, job: J) {
        let item = Item {
            seq,
            job: Some(job),
        };
        if self.is_empty() {
            self.front = item;
        } else {
            self.make_room();
            self.rest.push_back(item);
        }
    }

    /// Puts an item at its place by sequence.
    pub(super) fn insert(&mut self, seq: u64, job: J) {
        if self.is_empty() || self.last_seq() < seq {
            return self.push_back(seq, job);
        }
        let mut item = Item {
            seq,
            job: Some(job),
        };
        if seq < self.front.seq {
            std::mem::swap(&mut self.front, &mut item);
        }
        let at = self.rest.partition_point(|other| other.seq < item.seq);
        self.make_room();
        self.rest.insert(at, item);
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<(u64, J)> {
        let job = self.front.job.take()?;
        let seq = self.front.seq;
        self.close_up();
        Some((seq, job))
    }

    /// Takes the item with this sequence out of wherever it is.
    pub(super) fn remove(&mut self, seq: u64) -> Option<J> {
        if self.front.seq == seq {
            return self.pop_front().map(|(_, job)| job);
        }
        let at = self.rest.binary_search_by_key(&seq, |item| item.seq).ok()?;
        let job = self.rest[at].job.take()?;
        self.marks += 1;
        self.tidy();
        Some(job)
    }

    /// The sequence of the first live item behind this sequence.
    pub(super) fn next_after(&self, seq: u64) -> Option<u64> {
        if let Some(front) = self.front_seq()
            && front > seq
        {
            return Some(front);
        }
        let at = self.rest.partition_point(|item| item.seq <= seq);
        let mut live = self.rest.range(at..).filter(|item| item.job.is_some());
        live.next().map(|item| item.seq)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &J> {
        let rest = self.rest.iter().filter_map(|item| item.job.as_ref());
        self.front.job.iter().chain(rest)
    }

    pub(super) fn take(&mut self) -> Vec<(u64, J)> {
        let Self { front, rest, .. } = std::mem::replace(self, Self::new());
        std::iter::once(front)
            .chain(rest)
            .filter_map(|item| Some((item.seq, item.job?)))
            .collect()
    }

    fn last_seq(&self) -> u64 {
        self.rest.back().map_or(self.front.seq, |last| last.seq)
    }

    /// Grows by doubling from one: the default would begin with four.
    #[inline]
    fn make_room(&mut self) {
        if self.rest.len() == self.rest.capacity() {
            self.rest.reserve_exact(self.rest.len().max(1));
        }
    }

    /// The front left: the next live item takes its place.
    #[inline]
    fn close_up(&mut self) {
        while let Some(item) = self.rest.pop_front() {
            if item.job.is_some() {
                self.front = item;
                break;
            }
            self.marks -= 1;
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        if self.marks > 0 {
            while self.rest.back().is_some_and(|item| item.job.is_none()) {
                self.rest.pop_back();
                self.marks -= 1;
            }
            if self.marks as usize * 2 > self.rest.len() {
                self.rest.retain(|item| item.job.is_some());
                self.marks = 0;
            }
        }
        if self.rest.capacity() > 64 && self.rest.len() * 4 < self.rest.capacity() {
            self.rest.shrink_to(self.rest.len() * 2);
        }
    }
}
