//! The ordering rule as plain data: which item of which lane may start now.
//!
//! No task, no lock, no clock and no I/O in here: time comes in as an argument, and everything
//! that touches order is a method on [`Lanes`]. The executor is a thin shell around it.
//!
//! A lane is the queue of one key. It exists only while it holds or runs something (a pause, and a
//! key's rate until its bucket is full, are kept a little longer and counted apart). Every step
//! costs the same whatever the number of keys: nothing here scans lanes, except
//! [`Lanes::reconfigure`] and the other methods that say so.

mod holds;
mod items;
mod rate;
mod slots;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use holds::Holds;
use items::Items;
use rate::Bucket;
use slots::Slots;
use turns::{Link, Turns};

use crate::near;

pub use holds::Hold;
pub use rate::Rate;

/// A point in time: nanoseconds since an epoch of the caller's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// How long before this that was; nothing if it was not before.
    pub(crate) fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The limits of all lanes together, and of a lane that has none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many items may run at once.
    pub total: usize,
    /// How many items may wait only because `total` run already.
    pub queue: usize,
    /// How often items may start.
    pub rate: Option<Rate>,
    /// How many starts a lane has before the next ready lane's turn; 0 counts as 1.
    pub turn: u32,
    /// The limits of each lane.
    pub lane: LaneLimits,
}

/// The limits of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// How many items of the lane may run at once; 0 counts as 1.
    pub concurrency: usize,
    /// How many items may wait because of their own key.
    pub queue: usize,
    /// How often items of the lane may start.
    pub rate: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            total: usize::MAX,
            queue: usize::MAX,
            rate: None,
            turn: 1,
            lane: LaneLimits::default(),
        }
    }
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self {
            concurrency: 1,
            queue: usize::MAX,
            rate: None,
        }
    }
}

/// What is special about a new lane.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Its own limits instead of [`Limits::lane`].
    pub limits: Option<LaneLimits>,
    /// Whose lane it is, for fairness.
    pub tenant: Option<Arc<str>>,
    /// The tenant's share; 0 counts as 1.
    pub weight: u32,
}

/// Names a waiting item, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemId {
    lane: u32,
    seq: u64,
}

impl ItemId {
    /// The item's place in the order of all submits; never used twice.
    pub fn sequence(&self) -> u64 {
        self.seq
    }
}

/// A started item: the permit it holds. Give it to exactly one of [`Lanes::done`],
/// [`Lanes::hold`] and [`Lanes::flush_from`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is not given back keeps its permit for ever"]
pub struct Ticket {
    slot: u32,
    seq: u64,
}

impl Ticket {
    /// The number of the permit: below the most that ever ran at once.
    pub fn slot(&self) -> usize {
        self.slot as usize
    }

    /// The item's sequence.
    pub fn sequence(&self) -> u64 {
        self.seq
    }
}

/// Where a key's lane probably is: another key may have the same hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    hash: u64,
    lane: Option<u32>,
}

impl Found {
    /// Whether there was none.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.lane.is_none()
    }
}

/// The answer of [`Lanes::next`].
#[derive(Debug)]
pub enum Next<J> {
    /// This job starts now.
    Start(Ticket, J),
    /// No lane is ready; one may become so by itself at [`Lanes::wake_at`].
    Nothing,
    /// Lanes are ready, but as many run as may.
    NoPermit,
    /// Lanes are ready, but the rate of all says wait until then.
    RateUntil(Time),
}

/// Refused for lack of room: the job comes back.
#[derive(Debug)]
pub struct Full<J> {
    /// What was refused.
    pub job: J,
    /// Whose queue is full.
    pub limit: FullOf,
}

/// Which queue limit refused an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullOf {
    /// The key's own.
    Key,
    /// That of all keys together.
    Total,
}

/// What a flush took: everything that waited in one lane, oldest first.
#[derive(Debug)]
#[must_use = "the lane waits for `flush_done`"]
pub struct Flushed<K, J> {
    /// The lane's key.
    pub key: K,
    /// What waited, oldest first, with its sequence.
    pub jobs: Vec<(u64, J)>,
    /// How many of the lane ran when this was taken: only [`Lanes::flush_behind`] waits for none.
    pub running: usize,
    /// For [`Lanes::flush_done`].
    pub id: FlushId,
}

/// Names a lane that waits for [`Lanes::flush_done`].
#[derive(Debug, PartialEq, Eq)]
pub struct FlushId {
    lane: u32,
}

/// What one lane is like right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// Items between start and done.
    pub running: usize,
    /// Items that wait or are held.
    pub waiting: usize,
    /// The limits in force.
    pub limits: LaneLimits,
    /// Whether somebody paused it.
    pub paused: bool,
    /// Whether and how long its front is held.
    pub hold: Hold,
    /// The time before which its rate allows no start, when that is what it waits for.
    pub rate_until: Option<Time>,
    /// Whether a flush has taken what waited and is not over.
    pub flushing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    No,
    /// Nothing starts; what waits is taken as soon as nothing runs.
    Wanted,
    /// What waits is taken now, whatever runs.
    Now,
    /// What waited was taken; nothing starts until that is dealt with,
    Out,
    /// and then what has come meanwhile is taken as if [`Flush::Wanted`],
    OutWanted,
    /// or as if [`Flush::Now`].
    OutNow,
}

/// What few lanes have.
#[derive(Default)]
struct Extra {
    limits: Option<LaneLimits>,
    bucket: Bucket,
    /// The lane's entry in `timers`.
    timer: Option<Time>,
    /// The front may not start before `bucket` allows it.
    rate_wait: bool,
    /// Items beyond the queue limits, at the end of `items`, and the first one's sequence.
    over: usize,
    over_from: u64,
    /// Its place in `want_room`.
    wants_room: Option<u64>,
    holds: Holds,
    /// Counted in `unreleased` of all.
    unreleased: bool,
    /// Somebody waits until the lane is empty.
    watched: bool,
}

/// Begins with a cache line of its own: lanes are visited in no order, and most steps read all of
/// one.
#[repr(align(64))]
struct Lane<K, J> {
    key: K,
    hash: u64,
    items: Items<J>,
    link: Link,
    tenant: u32,
    running: u32,
    /// Starts in its present turn.
    turn_used: u32,
    /// The number of its latest start among all; of a new lane, that of the latest there was.
    started: u32,
    /// Its part of [`Lanes::go`].
    go: u32,
    paused: bool,
    flush: Flush,
    /// Its limits are to be asked for again.
    stale: bool,
    /// Neither holds nor runs anything.
    dormant: bool,
    extra: Option<Box<Extra>>,
}

impl<K, J> Lane<K, J> {
    fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    #[inline]
    fn limits(&self, default: &Limits) -> LaneLimits {
        let own = self.extra.as_ref().and_then(|extra| extra.limits);
        own.unwrap_or(default.lane)
    }

    #[inline]
    fn over(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.over)
    }

    #[inline]
    fn rate_wait(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.rate_wait)
    }

    /// Something other than limits keeps the front from starting.
    #[inline]
    fn blocked(&self) -> bool {
        self.paused
            || self.flush != Flush::No
            || self.rate_wait()
            || self.front_hold() != Hold::Free
    }

    /// Nothing but its items and what runs of it says what may happen: neither the lane nor the limits
    /// of all have anything that needs keeping count of.
    #[inline]
    fn is_plain(&self, limits: &Limits) -> bool {
        limits.queue == usize::MAX
            && self.extra.is_none()
            && self.flush == Flush::No
            && !self.paused
    }

    #[inline]
    fn front_hold(&self) -> Hold {
        match (&self.extra, self.items.front_seq()) {
            (Some(extra), Some(front)) => extra.holds.of_front(front),
            _ => Hold::Free,
        }
    }

    fn set_hold(&mut self, seq: u64, hold: Hold) {
        if hold != Hold::Free || self.extra.is_some() {
            self.extra().holds.set(seq, hold);
        }
    }

    /// How many more may run by the lane's own limits.
    #[inline]
    fn free(&self, default: &Limits) -> usize {
        if self.blocked() {
            return 0;
        }
        let most = self.limits(default).concurrency.max(1);
        most.saturating_sub(self.running as usize)
    }

    #[inline]
    fn is_ready(&self, default: &Limits) -> bool {
        !self.items.is_empty() && self.free(default) > 0
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.running == 0 && self.flush == Flush::No
    }
}

/// Has what stands before what it is to hash brought near: there are the counts of what is counted, and
/// what an allocator notes. Makes nothing of it.
struct Touch;

impl Hasher for Touch {
    fn write(&mut self, bytes: &[u8]) {
        let counts = 2 * size_of::<usize>();
        near::fetch(bytes.as_ptr().wrapping_sub(counts));
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// The running items, by slot.
#[derive(Default)]
struct Running {
    slots: Vec<Option<(u32, u64)>>,
    free: Vec<u32>,
}

impl Running {
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    fn insert(&mut self, lane: u32, seq: u64) -> u32 {
        let entry = Some((lane, seq));
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            return slot;
        }
        self.slots.push(entry);
        (self.slots.len() - 1) as u32
    }

    /// The lane the ticket belongs to.
    #[inline]
    fn remove(&mut self, ticket: &Ticket) -> u32 {
        let entry = self.slots[ticket.slot as usize].take();
        let (lane, seq) = entry.expect("a ticket is given back once");
        debug_assert_eq!(
            seq, ticket.seq,
            "a ticket is given back to the lanes it came from"
        );
        self.free.push(ticket.slot);
        if self.len() == 0 && self.slots.capacity() > 1024 {
            *self = Self::default();
        }
        lane
    }
}

/// Lanes of items: strict order within a lane, turns between lanes, exact limits.
pub struct Lanes<K, J> {
    limits: Limits,
    hasher: RandomState,
    index: HashTable<u32>,
    lanes: Slots<Lane<K, J>>,
    turns: Turns,
    running: Running,
    bucket: Bucket,
    timers: BTreeSet<(Time, u32)>,
    /// The latest time that was passed in.
    now: Time,
    next_seq: u64,
    waiting: usize,
    dormant: usize,
    /// Lanes of which something is held without a time.
    unreleased: usize,
    /// Waiting items that only the limits of all keep from starting; kept where those are bounded.
    go: usize,
    /// Lanes whose next item waits for room in the queue of all, in the order they came.
    want_room: BTreeMap<u64, u32>,
    admitted: Vec<u64>,
    flushed: Vec<Flushed<K, J>>,
    emptied: Vec<K>,
    visited: u64,
    /// Some lane has had a rate of its own.
    clock: bool,
}

impl<K: Hash + Eq + Clone, J> Lanes<K, J> {
    /// No lanes yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            hasher: RandomState::default(),
            index: HashTable::new(),
            lanes: Slots::new(),
            turns: Turns::new(),
            running: Running::default(),
            bucket: Bucket::default(),
            timers: BTreeSet::new(),
            now: Time(0),
            next_seq: 0,
            waiting: 0,
            dormant: 0,
            unreleased: 0,
            go: 0,
            want_room: BTreeMap::new(),
            admitted: Vec::new(),
            flushed: Vec::new(),
            emptied: Vec::new(),
            visited: 0,
            clock: false,
        }
    }

    /// Puts a job at the end of its key's lane. `spec` is asked when the lane is new.
    ///
    /// # Errors
    /// [`Full`] with the job when its queue has no room; nothing has changed then.
    pub fn push(
        &mut self,
        key: K,
        job: J,
        spec: impl FnOnce(&K) -> Spec,
    ) -> Result<ItemId, Full<J>> {
        let index = self.lane_for(key, spec);
        self.push_into(index, job)
    }

    /// What hashes keys here.
    pub(crate) fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// Looks at what a push of a key with this hash will need, so that it is near when that comes.
    pub(crate) fn fetch_for(&self, hash: u64) -> Found {
        let same = |&index: &u32| self.lanes[index].hash == hash;
        let lane = self.index.find(hash, same).copied();
        Found { hash, lane }
    }

    /// As [`Self::push`], with what [`Self::fetch_for`] answered for the key; no lane may have gone
    /// since.
    pub(crate) fn push_found(
        &mut self,
        key: K,
        found: Found,
        job: J,
        spec: impl FnOnce(&K) -> Spec,
    ) -> Result<ItemId, Full<J>> {
        let index = match found.lane {
            Some(index) if self.lanes[index].key == key && !self.lanes[index].stale => index,
            _ => self.lane_hashed(key, found.hash, spec),
        };
        self.push_into(index, job)
    }

    /// Starts a job at once, where [`Lanes::push`] and then [`Lanes::next`] would: its key has no
    /// lane, nothing else is ready, and no limit of all is in its way. Most keys have one job at a
    /// time, which then need not go through a queue. Its lane is like those of most keys (no
    /// [`Spec`] is asked for), and no gate is asked.
    ///
    /// # Errors
    /// The key and the job, to be pushed; nothing has changed then.
    pub fn start_new(&mut self, key: K, job: J) -> Result<(Ticket, J), (K, J)> {
        if !self.may_start_new() {
            return Err((key, job));
        }
        let found = self.fetch_for(self.hasher.hash_one(&key));
        match self.may_start_found(found) {
            true => Ok((self.start_found(key, found), job)),
            false => Err((key, job)),
        }
    }

    /// Whether the job of a key without a lane would be the next to start.
    #[inline]
    pub(crate) fn may_start_new(&self) -> bool {
        self.turns.ready() == 0
            && self.running.len() < self.limits.total
            && self.limits.queue == usize::MAX
            && !self.needs_clock()
    }

    /// Whether a key that this was answered for still has no lane. Another key's with the same hash is as
    /// good a reason to push.
    #[inline]
    pub(crate) fn may_start_found(&self, found: Found) -> bool {
        let same = |&index: &u32| self.lanes[index].hash == found.hash;
        found.is_new() && self.index.find(found.hash, same).is_none()
    }

    /// As [`Self::start_new`], after [`Self::may_start_new`] and [`Self::may_start_found`] with what
    /// [`Self::fetch_for`] answered; no lane may have gone since.
    #[inline]
    pub(crate) fn start_found(&mut self, key: K, found: Found) -> Ticket {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.visited += 1;
        let index = self.new_lane(key, found.hash, Spec::default());
        let lane = &mut self.lanes[index];
        lane.running = 1;
        lane.turn_used = 1;
        lane.started = self.turns.served_alone();
        let slot = self.running.insert(index, seq);
        Ticket { slot, seq }
    }

    fn push_into(&mut self, index: u32, job: J) -> Result<ItemId, Full<J>> {
        match self.room(index) {
            Ok(()) => Ok(self.append(index, job)),
            Err(limit) => {
                self.refresh(index);
                Err(Full { job, limit })
            }
        }
    }

    /// Puts a job at the end of its key's lane even when there is no room: the answer says whether
    /// there was. If not, [`Lanes::take_admitted`] names the item once there is, and until then
    /// further pushes of that key are refused. It keeps its place either way.
    pub fn push_over(&mut self, key: K, job: J, spec: impl FnOnce(&K) -> Spec) -> (ItemId, bool) {
        let index = self.lane_for(key, spec);
        let admitted = self.room(index).is_ok();
        if !admitted {
            let seq = self.next_seq;
            let extra = self.lanes[index].extra();
            if extra.over == 0 {
                extra.over_from = seq;
            }
            extra.over += 1;
        }
        (self.append(index, job), admitted)
    }

    /// The next job to start, in turn. `gate` is asked for the front of each lane that could
    /// start; a lane it does not let through is held as it says.
    pub fn next(&mut self, now: Time, mut gate: impl FnMut(&K, &J) -> Hold) -> Next<J> {
        self.tick(now);
        while let Some(index) = self.turns.peek() {
            if self.running.len() >= self.limits.total {
                return Next::NoPermit;
            }
            self.visited += 1;
            let lane = &mut self.lanes[index];
            let front = lane.items.front().expect("a ready lane has a front");
            let hold = gate(&lane.key, front);
            let rated = lane.limits(&self.limits).rate.is_some();
            if hold != Hold::Free || rated && !self.key_rate_allows(index) {
                self.hold_front(index, hold);
                self.refresh_all(index);
                continue;
            }
            if let Some(at) = self.rate_says_wait() {
                return Next::RateUntil(at);
            }
            return self.start(index);
        }
        Next::Nothing
    }

    /// Looks at what the end of each of these will need, so that all of it is near when that comes.
    pub(crate) fn fetch<'a>(&self, tickets: impl Iterator<Item = &'a Ticket>) {
        for lane in tickets.map(|ticket| self.lane_of(ticket)) {
            std::hint::black_box(self.lanes[lane].running);
        }
    }

    /// As [`Self::fetch`] and after it, for lanes that will be gone.
    pub(crate) fn fetch_for_retiring<'a>(&self, tickets: impl Iterator<Item = &'a Ticket>) {
        for lane in tickets.map(|ticket| self.lane_of(ticket)) {
            let Lane { hash, items, .. } = &self.lanes[lane];
            if items.is_empty() {
                std::hint::black_box(self.index.find(*hash, |&other| other == lane));
            }
        }
    }

    /// As [`Self::fetch`] and after it, for the keys of lanes that will be gone: a key that is counted is
    /// waited for when it is dropped, each by itself.
    pub(crate) fn fetch_keys<'a>(&self, tickets: impl Iterator<Item = &'a Ticket>) {
        let mut touch = Touch;
        for lane in tickets.map(|ticket| &self.lanes[self.lane_of(ticket)]) {
            if lane.items.is_empty() && lane.running == 1 {
                lane.key.hash(&mut touch);
            }
        }
    }

    /// The lane of what runs.
    #[inline]
    pub(crate) fn lane_of(&self, running: &Ticket) -> u32 {
        let slot = self.running.slots[running.slot as usize];
        slot.expect("it runs").0
    }

    /// The item is resolved: its permit is free.
    pub fn done(&mut self, ticket: Ticket) {
        let index = self.end(&ticket);
        self.refresh_all(index);
    }

    /// The item goes back to its place by sequence and is held there; its permit is free.
    pub fn hold(&mut self, ticket: Ticket, job: J, hold: Hold) {
        let index = self.end(&ticket);
        self.put_back(index, ticket.seq, job);
        self.lanes[index].set_hold(ticket.seq, hold);
        self.refresh_all(index);
    }

    /// The item ends (or, with `job`, goes back to its place), and everything that waits in its
    /// lane is taken as soon as nothing of it runs: see [`Lanes::take_flushed`].
    pub fn flush_from(&mut self, ticket: Ticket, job: Option<J>) {
        let index = self.end(&ticket);
        if let Some(job) = job {
            self.put_back(index, ticket.seq, job);
        }
        self.want_flush(index);
        self.refresh_all(index);
    }

    /// Everything that waits in this key's lane is taken as soon as nothing of it runs. `false`
    /// when there is no such lane.
    pub fn flush(&mut self, key: &K) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        self.want_flush(index);
        self.refresh_all(index);
        true
    }

    /// Everything that waits in this key's lane is taken now, and what runs goes on. `false` when
    /// there is no such lane.
    pub fn flush_behind(&mut self, key: &K) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        self.want_flush_behind(index);
        self.refresh_all(index);
        true
    }

    /// What flushes have taken since the last call. Each lane waits for its
    /// [`Lanes::flush_done`].
    pub fn take_flushed(&mut self) -> Vec<Flushed<K, J>> {
        std::mem::take(&mut self.flushed)
    }

    /// Ends a flush: `keep` goes back to its places, and the lane goes on with that and with what
    /// arrived meanwhile.
    pub fn flush_done(&mut self, flush: FlushId, keep: Vec<(u64, J)>) {
        let index = flush.lane;
        for (seq, job) in keep {
            self.put_back(index, seq, job);
        }
        match std::mem::replace(&mut self.lanes[index].flush, Flush::No) {
            Flush::OutWanted => self.want_flush(index),
            Flush::OutNow => self.want_flush_behind(index),
            _ => {}
        }
        self.refresh_all(index);
    }

    /// Time goes on: holds that end by `now` end. [`Lanes::next`] does this by itself.
    #[inline]
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if !self.timers.is_empty() {
            self.expire_due();
        }
    }

    fn expire_due(&mut self) {
        while let Some(&(at, index)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            self.expire(index);
        }
    }

    /// When [`Lanes::tick`] has something to do, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Time> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Ends the holds of this key's lane. `false` when there is no such lane.
    pub fn release(&mut self, key: &K) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        let lane = &mut self.lanes[index];
        if let Some(extra) = &mut lane.extra {
            extra.holds.clear();
        }
        self.refresh_all(index);
        true
    }

    /// Ends the holds of this key's lane that have no time; holds until a time stay. What releases a
    /// lane releases all of it, whatever its front is held for. Returns whether the front waited for
    /// this and can start now.
    pub fn release_waiting(&mut self, key: &K) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        let lane = &mut self.lanes[index];
        let waited = lane.front_hold() == Hold::UntilReleased;
        if let Some(extra) = &mut lane.extra {
            extra.holds.release_waiting();
        }
        self.refresh_all(index);
        waited && self.lanes[index].link.is_listed() && self.rate_of_lane_allows(index)
    }

    /// Lanes of which something is held without a time.
    pub fn waiting_for_release(&self) -> usize {
        self.unreleased
    }

    /// The keys of those lanes: costs O(lanes).
    pub fn keys_waiting_for_release(&self) -> Vec<K> {
        let lanes = self.lanes.indices().into_iter();
        let lanes = lanes.map(|index| &self.lanes[index]);
        let waits = |lane: &&Lane<K, J>| lane.extra.as_ref().is_some_and(|extra| extra.unreleased);
        lanes.filter(waits).map(|lane| lane.key.clone()).collect()
    }

    /// Nothing of this key starts until [`Lanes::resume`]. Works for keys that have no lane yet.
    pub fn pause(&mut self, key: K, spec: impl FnOnce(&K) -> Spec) {
        let index = self.lane_for(key, spec);
        self.lanes[index].paused = true;
        self.refresh_all(index);
    }

    /// Ends a pause; `false` when there was none.
    pub fn resume(&mut self, key: &K) -> bool {
        let Some(index) = self.find(key) else {
            return false;
        };
        let was = std::mem::replace(&mut self.lanes[index].paused, false);
        self.refresh_all(index);
        was
    }

    /// Takes a waiting item out of its lane: it never starts, its place is free at once. `None`
    /// when it does not wait (any more).
    pub fn cancel(&mut self, item: ItemId) -> Option<J> {
        let lane = self.lanes.get_mut(item.lane)?;
        let job = lane.items.remove(item.seq)?;
        lane.set_hold(item.seq, Hold::Free);
        self.waiting -= 1;
        self.no_longer_over(item);
        self.refresh_all(item.lane);
        Some(job)
    }

    /// The sequence the next pushed item will have.
    pub fn next_sequence(&self) -> u64 {
        self.next_seq
    }

    /// Names an item by its key and sequence, whether or not it (still) waits.
    pub fn item(&self, key: &K, seq: u64) -> Option<ItemId> {
        let lane = self.find(key)?;
        Some(ItemId { lane, seq })
    }

    /// Whether the item with this sequence runs in this slot.
    pub fn is_running(&self, slot: usize, seq: u64) -> bool {
        let entry = self.running.slots.get(slot).copied().flatten();
        entry.is_some_and(|(_, running)| running == seq)
    }

    /// The slots of everything that runs, with their sequences: costs O(running).
    pub fn all_running(&self) -> Vec<(usize, u64)> {
        let slots = self.running.slots.iter().enumerate();
        slots
            .filter_map(|(slot, entry)| entry.map(|(_, seq)| (slot, seq)))
            .collect()
    }

    /// Takes the front of a key's lane if it waits and `which` says so.
    pub fn take_head(&mut self, key: &K, which: impl FnOnce(&J) -> bool) -> Option<J> {
        let lane = self.find(key)?;
        let items = &self.lanes[lane].items;
        let seq = items.front_seq()?;
        which(items.front()?).then(|| self.cancel(ItemId { lane, seq }))?
    }

    /// Takes everything that waits in this key's lane, oldest first, at once, and forgets the
    /// limits of its own. What runs goes on and still counts; a pause stays.
    pub fn evict(&mut self, key: &K) -> Vec<J> {
        let Some(index) = self.find(key) else {
            return Vec::new();
        };
        let lane = &mut self.lanes[index];
        lane.stale = true;
        let jobs = lane.items.take();
        if let Some(extra) = &mut lane.extra {
            extra.over = 0;
            extra.rate_wait = false;
            extra.holds.clear();
        }
        self.admitted.extend(jobs.iter().map(|(seq, _)| *seq));
        self.waiting -= jobs.len();
        self.refresh_all(index);
        jobs.into_iter().map(|(_, job)| job).collect()
    }

    /// Changes limits while everything goes on: increases act at once; after a decrease nothing
    /// starts until fewer run than the new limit. Asks `spec` for every lane: costs O(lanes).
    pub fn reconfigure(&mut self, limits: Limits, mut spec: impl FnMut(&K) -> Spec) {
        self.limits = limits;
        self.bucket.rebase(limits.rate, self.now);
        let lanes = self.lanes.indices();
        for &index in &lanes {
            let own = spec(&self.lanes[index].key);
            self.respec(index, own);
            self.count_go(index);
        }
        // Only now: room is given away when it is known what all lanes take of it.
        for index in lanes {
            self.refresh(index);
        }
        self.admit_waiting();
    }

    /// Every lane's waiting items are to be flushed: costs O(lanes).
    pub fn flush_all(&mut self) {
        for index in self.lanes.indices() {
            self.want_flush(index);
            self.refresh(index);
        }
        self.admit_waiting();
    }

    /// Everything that waits, oldest first within each key: costs O(lanes + items).
    pub fn evict_all(&mut self) -> Vec<J> {
        let keys = self.keys();
        keys.iter().flat_map(|key| self.evict(key)).collect()
    }

    /// The keys that have a lane, dormant ones included: costs O(lanes).
    pub fn keys(&self) -> Vec<K> {
        let lanes = self.lanes.indices().into_iter();
        lanes.map(|index| self.lanes[index].key.clone()).collect()
    }

    /// Asks to be told by [`Lanes::take_emptied`] when this key holds and runs nothing; `false`
    /// when that is so already.
    pub fn watch(&mut self, key: &K) -> bool {
        match self.find(key) {
            Some(index) if !self.lanes[index].dormant => {
                self.lanes[index].extra().watched = true;
                true
            }
            _ => false,
        }
    }

    /// Watched keys that have become empty since the last call.
    pub fn take_emptied(&mut self) -> Vec<K> {
        std::mem::take(&mut self.emptied)
    }

    /// Items pushed over the limits that have room now, or have started.
    pub fn take_admitted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.admitted)
    }

    /// The key of a started item.
    pub fn key_of(&self, ticket: &Ticket) -> &K {
        let entry = self.running.slots[ticket.slot as usize];
        let (lane, _) = entry.expect("the ticket was not given back yet");
        &self.lanes[lane].key
    }

    /// The started items of a key, as (slot, sequence): costs O(running).
    pub fn running_of(&self, key: &K) -> Vec<(usize, u64)> {
        let Some(index) = self.find(key) else {
            return Vec::new();
        };
        let slots = self.running.slots.iter().enumerate();
        let of_lane = slots.filter_map(|(slot, entry)| {
            entry.and_then(|(lane, seq)| (lane == index).then_some((slot, seq)))
        });
        of_lane.collect()
    }

    /// What one key's lane is like; `None` when it has none.
    pub fn state_of(&self, key: &K) -> Option<LaneState> {
        let lane = &self.lanes[self.find(key)?];
        let limits = lane.limits(&self.limits);
        let extra = lane.extra.as_ref();
        Some(LaneState {
            running: lane.running as usize,
            waiting: lane.items.len(),
            limits,
            paused: lane.paused,
            hold: lane.front_hold(),
            rate_until: extra
                .filter(|extra| extra.rate_wait)
                .and_then(|extra| extra.timer),
            flushing: matches!(lane.flush, Flush::Out | Flush::OutWanted | Flush::OutNow),
        })
    }

    /// What waits in one key's lane, in order.
    pub fn waiting_of(&self, key: &K) -> impl Iterator<Item = &J> {
        let lane = self.find(key).map(|index| &self.lanes[index]);
        lane.into_iter().flat_map(|lane| lane.items.jobs())
    }

    /// Whether this key has a lane, so that `spec` will not be asked for it.
    pub fn knows(&self, key: &K) -> bool {
        self.find(key).is_some_and(|index| !self.lanes[index].stale)
    }

    /// Items that wait or are held.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Items between start and done.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Lanes that hold or run something.
    pub fn live(&self) -> usize {
        self.lanes.len() - self.dormant
    }

    /// Keys kept only for a pause or for a rate whose bucket is not full yet.
    pub fn dormant(&self) -> usize {
        self.dormant
    }

    /// Tenants that have lanes.
    pub fn tenants(&self) -> usize {
        self.turns.tenants()
    }

    /// Lanes that could start something.
    pub fn ready(&self) -> usize {
        self.turns.ready()
    }

    /// Whether there is nothing waiting, running or being flushed.
    pub fn is_idle(&self) -> bool {
        self.live() == 0
    }

    /// Whether times matter: something is held until a time, or there is a rate.
    pub fn needs_clock(&self) -> bool {
        self.clock
            || !self.timers.is_empty()
            || self.limits.rate.is_some()
            || self.limits.lane.rate.is_some()
    }

    /// How many lanes [`Lanes::next`] has looked at in all: the cost of the steps.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let same = |&index: &u32| self.lanes[index].hash == hash && self.lanes[index].key == *key;
        self.index.find(hash, same).copied()
    }

    fn lane_for(&mut self, key: K, spec: impl FnOnce(&K) -> Spec) -> u32 {
        let hash = self.hasher.hash_one(&key);
        self.lane_hashed(key, hash, spec)
    }

    fn lane_hashed(&mut self, key: K, hash: u64, spec: impl FnOnce(&K) -> Spec) -> u32 {
        let same = |&index: &u32| self.lanes[index].hash == hash && self.lanes[index].key == key;
        if let Some(&index) = self.index.find(hash, same) {
            if self.lanes[index].stale {
                let own = spec(&self.lanes[index].key);
                self.respec(index, own);
                // What waited for its old rate may start now, and takes its part of the room.
                self.count_go(index);
            }
            return index;
        }
        let spec = spec(&key);
        self.new_lane(key, hash, spec)
    }

    #[inline]
    fn new_lane(&mut self, key: K, hash: u64, spec: Spec) -> u32 {
        // The same as everybody's need no place of their own; new ones are asked for anew.
        let own = spec.limits.filter(|limits| *limits != self.limits.lane);
        self.clock |= own.is_some_and(|limits| limits.rate.is_some());
        let lane = Lane {
            key,
            hash,
            items: Items::new(),
            link: Link::OUT,
            tenant: self.turns.join(spec.tenant, spec.weight),
            running: 0,
            turn_used: 0,
            started: self.turns.latest(),
            go: 0,
            paused: false,
            flush: Flush::No,
            stale: false,
            dormant: false,
            extra: own.map(|limits| {
                Box::new(Extra {
                    limits: Some(limits),
                    ..Extra::default()
                })
            }),
        };
        if self.index.len() == self.index.capacity() {
            self.resize_index();
        }
        let index = self.lanes.insert(lane);
        self.index
            .insert_unique(hash, index, |&other| self.lanes[other].hash);
        index
    }

    /// Whether one more item of this lane has room.
    #[inline]
    fn room(&self, index: u32) -> Result<(), FullOf> {
        let lane = &self.lanes[index];
        if lane.over() > 0 {
            return Err(FullOf::Key);
        }
        self.room_for_next(lane)
    }

    /// Whether the next item behind those that have room would have room too.
    #[inline]
    fn room_for_next(&self, lane: &Lane<K, J>) -> Result<(), FullOf> {
        if !self.bounded(lane) {
            return Ok(());
        }
        let inside = lane.items.len() - lane.over();
        let free = lane.free(&self.limits);
        if inside < free {
            let permits = self.limits.total.saturating_sub(self.running.len());
            let room = permits.saturating_add(self.limits.queue);
            return (self.go < room).then_some(()).ok_or(FullOf::Total);
        }
        let queue = lane.limits(&self.limits).queue;
        (inside - free < queue).then_some(()).ok_or(FullOf::Key)
    }

    #[inline]
    fn bounded(&self, lane: &Lane<K, J>) -> bool {
        self.limits.queue != usize::MAX || lane.limits(&self.limits).queue != usize::MAX
    }

    #[inline]
    fn append(&mut self, index: u32, job: J) -> ItemId {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.waiting += 1;
        let lane = &mut self.lanes[index];
        if std::mem::replace(&mut lane.dormant, false) {
            self.dormant -= 1;
        }
        lane.items.push_back(seq, job);
        self.refresh(index);
        ItemId { lane: index, seq }
    }

    fn put_back(&mut self, index: u32, seq: u64, job: J) {
        self.waiting += 1;
        self.lanes[index].items.insert(seq, job);
    }

    fn key_rate_allows(&mut self, index: u32) -> bool {
        let lane = &mut self.lanes[index];
        let Some(rate) = lane.limits(&self.limits).rate else {
            return true;
        };
        let extra = lane.extra();
        extra.rate_wait = extra.bucket.next_at(rate) > self.now;
        !extra.rate_wait
    }

    fn rate_of_lane_allows(&self, index: u32) -> bool {
        let lane = &self.lanes[index];
        match (lane.limits(&self.limits).rate, &lane.extra) {
            (Some(rate), Some(extra)) => extra.bucket.next_at(rate) <= self.now,
            _ => true,
        }
    }

    fn hold_front(&mut self, index: u32, hold: Hold) {
        let lane = &mut self.lanes[index];
        let front = lane.items.front_seq().expect("a ready lane has a front");
        lane.set_hold(front, hold);
    }

    fn rate_says_wait(&self) -> Option<Time> {
        let at = self.bucket.next_at(self.limits.rate?);
        (at > self.now).then_some(at)
    }

    #[inline]
    fn start(&mut self, index: u32) -> Next<J> {
        let now = self.now;
        let lane = &mut self.lanes[index];
        let (seq, job) = lane.items.pop_front().expect("a ready lane has a front");
        lane.running += 1;
        lane.turn_used += 1;
        if let Some(rate) = lane.limits(&self.limits).rate {
            lane.extra().bucket.spend(rate, now);
        }
        if let Some(rate) = self.limits.rate {
            self.bucket.spend(rate, now);
        }
        let ready = lane.is_ready(&self.limits);
        let turn_over = ready && lane.turn_used >= self.limits.turn.max(1);
        if turn_over {
            lane.turn_used = 0;
        }
        lane.started = self.turns.served();
        let plain = lane.is_plain(&self.limits);
        self.waiting -= 1;
        let slot = self.running.insert(index, seq);
        if !ready {
            self.turns.remove(&mut self.lanes, index);
        } else if turn_over {
            // It stays ready, and goes behind the others.
            self.turns.move_back(&mut self.lanes, index);
        }
        if !plain {
            if self.no_longer_over(ItemId { lane: index, seq }) {
                self.admitted.push(seq);
            }
            self.refresh_all(index);
        }
        Next::Start(Ticket { slot, seq }, job)
    }

    /// The item's permit is free; answers its lane.
    #[inline]
    fn end(&mut self, ticket: &Ticket) -> u32 {
        let index = self.running.remove(ticket);
        self.lanes[index].running -= 1;
        index
    }

    fn want_flush(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        lane.flush = match lane.flush {
            Flush::No if lane.is_empty() => Flush::No,
            Flush::No | Flush::Wanted | Flush::Now => Flush::Wanted,
            Flush::Out | Flush::OutWanted | Flush::OutNow => Flush::OutWanted,
        };
    }

    fn want_flush_behind(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        lane.flush = match lane.flush {
            Flush::No if !lane.items.is_empty() => Flush::Now,
            Flush::Out => Flush::OutNow,
            // Whoever wants all of it gets this too.
            other => other,
        };
    }

    /// The lane's timer went off.
    fn expire(&mut self, index: u32) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        let front = lane.items.front_seq();
        let extra = lane.extra();
        extra.timer = None;
        extra.rate_wait = false;
        if let Some(front) = front
            && matches!(extra.holds.of_front(front), Hold::Until(at) if at <= now)
        {
            extra.holds.set(front, Hold::Free);
        }
        self.refresh_all(index);
    }

    fn respec(&mut self, index: u32, spec: Spec) {
        let now = self.now;
        let lane = &mut self.lanes[index];
        lane.stale = false;
        if spec.limits.is_some() || lane.extra.is_some() {
            let default = self.limits.lane;
            let extra = lane.extra();
            extra.limits = spec.limits;
            extra.rate_wait = false;
            extra
                .bucket
                .rebase(spec.limits.unwrap_or(default).rate, now);
        }
        self.clock |= spec.limits.is_some_and(|limits| limits.rate.is_some());
        let joined = self.turns.join(spec.tenant, spec.weight);
        let old = self.lanes[index].tenant;
        if joined != old && self.lanes[index].link.is_listed() {
            self.turns.remove(&mut self.lanes, index);
        }
        self.lanes[index].tenant = joined;
        self.turns.leave(old);
    }

    /// An item left the lane: was it one beyond the limits? The next of those is the first then.
    fn no_longer_over(&mut self, item: ItemId) -> bool {
        let lane = &mut self.lanes[item.lane];
        let Some(extra) = &mut lane.extra else {
            return false;
        };
        if extra.over == 0 || item.seq < extra.over_from {
            return false;
        }
        extra.over -= 1;
        if item.seq == extra.over_from {
            extra.over_from = lane.items.next_after(item.seq).unwrap_or(u64::MAX);
        }
        true
    }

    /// As [`Self::refresh`], and gives freed room of all to those who wait for it.
    #[inline]
    fn refresh_all(&mut self, index: u32) {
        self.refresh(index);
        if !self.want_room.is_empty() {
            self.admit_waiting();
        }
    }

    /// Derives everything about a lane that follows from its state: its place among the ready
    /// ones, its timer, its room, whether it is still needed.
    #[inline]
    fn refresh(&mut self, index: u32) {
        let plain = self.lanes[index].is_plain(&self.limits);
        if !plain {
            self.take_flush(index);
            self.count_unreleased(index);
        }
        let empty = self.list(index);
        if !plain {
            self.count_room(index);
            self.set_timer(index);
        }
        if empty {
            self.retire(index);
        }
    }

    fn count_unreleased(&mut self, index: u32) {
        if let Some(extra) = &mut self.lanes[index].extra {
            let waits = extra.holds.wait_for_release();
            let counted = std::mem::replace(&mut extra.unreleased, waits);
            self.unreleased = self.unreleased - usize::from(counted) + usize::from(waits);
        }
    }

    fn take_flush(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let waits = lane.flush == Flush::Wanted && lane.running > 0;
        if waits || !matches!(lane.flush, Flush::Wanted | Flush::Now) {
            return;
        }
        lane.flush = Flush::Out;
        let jobs = lane.items.take();
        self.waiting -= jobs.len();
        if let Some(extra) = &mut lane.extra {
            extra.over = 0;
            extra.holds.clear();
        }
        let key = lane.key.clone();
        let running = lane.running as usize;
        self.admitted.extend(jobs.iter().map(|(seq, _)| *seq));
        self.flushed.push(Flushed {
            key,
            jobs,
            running,
            id: FlushId { lane: index },
        });
    }

    /// Puts the lane among the ready ones, or takes it from there; answers whether it is empty.
    #[inline]
    fn list(&mut self, index: u32) -> bool {
        let lane = &mut self.lanes[index];
        let ready = lane.is_ready(&self.limits);
        let empty = !ready && lane.is_empty();
        if ready == lane.link.is_listed() {
            return empty;
        }
        if !ready {
            self.turns.remove(&mut self.lanes, index);
        } else if (1..self.limits.turn).contains(&lane.turn_used) {
            self.turns.push_front(&mut self.lanes, index);
        } else {
            lane.turn_used = 0;
            self.turns.push_back(&mut self.lanes, index);
        }
        empty
    }

    /// Brings the lane's part of `go` up to date and lets those beyond the limits in as far as
    /// there is room.
    fn count_room(&mut self, index: u32) {
        if self.limits.queue == usize::MAX && self.lanes[index].over() == 0 {
            return;
        }
        loop {
            self.count_go(index);
            if self.lanes[index].over() == 0 {
                return;
            }
            match self.room_for_next(&self.lanes[index]) {
                Ok(()) => self.admit_one(index),
                Err(FullOf::Key) => return,
                Err(FullOf::Total) => return self.wait_for_room(index),
            }
        }
    }

    fn count_go(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let inside = lane.items.len() - lane.over();
        let go = inside.min(lane.free(&self.limits)).min(u32::MAX as usize) as u32;
        self.go = self.go - lane.go as usize + go as usize;
        lane.go = go;
    }

    fn wait_for_room(&mut self, index: u32) {
        let extra = self.lanes[index].extra();
        if extra.wants_room.is_none() {
            // A sequence that only one item can be the first over of: unique among the waiting.
            extra.wants_room = Some(extra.over_from);
            self.want_room.insert(extra.over_from, index);
        }
    }

    fn admit_one(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let extra = lane.extra.as_mut().expect("a lane with items over has it");
        self.admitted.push(extra.over_from);
        extra.over -= 1;
        extra.over_from = lane.items.next_after(extra.over_from).unwrap_or(u64::MAX);
    }

    /// Room of all may have become free: those who wait for it come in, first come first served.
    fn admit_waiting(&mut self) {
        while let Some(first) = self.want_room.first_entry() {
            let permits = self.limits.total.saturating_sub(self.running.len());
            if self.go >= permits.saturating_add(self.limits.queue) {
                return;
            }
            let index = first.remove();
            self.lanes[index].extra().wants_room = None;
            self.count_room(index);
        }
    }

    fn set_timer(&mut self, index: u32) {
        let at = self.timer_of(index);
        let lane = &mut self.lanes[index];
        let old = lane.extra.as_ref().and_then(|extra| extra.timer);
        if at == old {
            return;
        }
        lane.extra().timer = at;
        if let Some(old) = old {
            self.timers.remove(&(old, index));
        }
        if let Some(at) = at {
            self.timers.insert((at, index));
        }
    }

    /// When this lane wants to be looked at.
    fn timer_of(&self, index: u32) -> Option<Time> {
        let lane = &self.lanes[index];
        if lane.items.is_empty() {
            let extra = lane.extra.as_ref()?;
            let full_at = extra.bucket.full_at;
            return (lane.is_empty() && full_at > self.now).then_some(full_at);
        }
        match lane.front_hold() {
            Hold::Until(at) => Some(at),
            Hold::UntilReleased => None,
            Hold::Free => {
                let extra = lane.extra.as_ref().filter(|extra| extra.rate_wait)?;
                let rate = lane.limits(&self.limits).rate?;
                Some(extra.bucket.next_at(rate))
            }
        }
    }

    /// An empty lane goes, unless a pause or a rate still needs it.
    fn retire(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if let Some(extra) = &mut lane.extra
            && std::mem::take(&mut extra.watched)
        {
            self.emptied.push(lane.key.clone());
        }
        let timer = lane.extra.as_ref().and_then(|extra| extra.timer);
        if lane.paused || timer.is_some() {
            if !std::mem::replace(&mut lane.dormant, true) {
                self.dormant += 1;
            }
            return;
        }
        let (hash, tenant, go) = (lane.hash, lane.tenant, lane.go);
        self.dormant -= usize::from(lane.dormant);
        if let Some(place) = lane.extra.as_ref().and_then(|extra| extra.wants_room) {
            self.want_room.remove(&place);
        }
        self.go -= go as usize;
        self.turns.leave(tenant);
        let entry = self.index.find_entry(hash, |&other| other == index);
        entry.expect("every lane is in the index").remove();
        self.lanes.remove(index);
        self.shrink_index();
    }

    fn shrink_index(&mut self) {
        let (len, capacity) = (self.index.len(), self.index.capacity());
        if capacity > 1024 && len < capacity / 8 {
            self.resize_index();
        }
    }

    /// Makes the index anew, with room for twice as many. It would grow by itself, and look at the
    /// lanes in no order for that; they are many cache lines, and it is few.
    fn resize_index(&mut self) {
        let lanes = self.lanes.indices();
        let mut index = HashTable::with_capacity(2 * lanes.len());
        for lane in lanes {
            let hash = |&other: &u32| self.lanes[other].hash;
            index.insert_unique(hash(&lane), lane, hash);
        }
        self.index = index;
    }
}
