//! Who may be handed out next: a queue's waiting messages by lane, as plain data.
//!
//! No clock, no file and no lock inside. The file has the truth (every row, in order of its
//! sequence); the shelf knows what a cursor has read of it so far, what is out, and which lanes
//! are ready. The rules:
//!
//! * What waits of a lane is handed out by sequence.
//! * While anything of a lane is out, nothing else of it is handed out. What is being acked is not
//!   out any more if nobody else reads the queue: acks of one reader become durable in order.
//! * No more of a lane is handed out at once than its capacity.
//! * A lane waits as a whole: for its first message's delay, and for the delay of a return.
//! * Keyless messages are one lane, or with [`Keyless::Parallel`] each stands for itself.
//!
//! A lane remembers what waits as *runs*: stretches of the queue without another lane's message in
//! between. A million messages of one key in a row are one run. A lane with many runs keeps the
//! first of them here and the others in a side index (see `claim`).
//!
//! A lane is one key in one pool, named by the pool that a message's code means. When that changes,
//! what waits is read again and gets its new lane. What is out then may belong to any lane of its
//! key from now on, so it locks all of them until it is settled; a delay holds all of them too.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::map::Map;
use crate::message::Key;
use crate::plan::Keyless;
use crate::source::{PoolCodes, SettleError};

/// With fewer lanes than this ready, the cursor looks further ahead for others.
const LANES_AHEAD: usize = 8;
/// With this many lanes whose next messages are known and only wait for what is out, and hardly any
/// others, there is no hurry to look for more.
const LANES_BLOCKED: usize = 64;
/// How long the cursor rests then before it reads the next chunk.
const REST: Duration = Duration::from_millis(50);

/// How much of a queue is kept in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Runs a lane may always keep in memory.
    pub(super) runs_always: usize,
    /// Runs a lane keeps in memory while there is room for all.
    pub(super) runs_of_lane: usize,
    /// Runs of all lanes in memory (2^18 are about 10 MiB).
    pub(super) runs_of_all: usize,
    /// How far the cursor looks ahead in one claim when something is ready already.
    pub(super) rows_ahead: usize,
    /// Rows the cursor reads at once.
    pub(super) chunk: usize,
    /// Runs of one lane that come back from the side index at once.
    pub(super) refill: usize,
    /// So many acked rows leave their tables together.
    pub(super) purge: usize,
    /// So many of the furthest acked rows of a queue stay: what is around them is out.
    pub(super) purge_later: usize,
}

impl Limits {
    pub(super) const USUAL: Self = Self {
        runs_always: 16,
        runs_of_lane: 1 << 14,
        runs_of_all: 1 << 18,
        rows_ahead: 4096,
        chunk: 1024,
        refill: 512,
        purge: 1024,
        purge_later: 1024,
    };
    /// For tests: so small that every path is walked with a handful of messages.
    pub(super) const TINY: Self = Self {
        runs_always: 1,
        runs_of_lane: 2,
        runs_of_all: 6,
        rows_ahead: 4,
        chunk: 3,
        refill: 2,
        purge: 3,
        purge_later: 2,
    };
}

/// A place in the table of lanes.
pub(super) type LaneId = u32;

/// A stretch of the queue that belongs to one lane. `last` is its last row; how many rows are in
/// between is `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) count: u64,
    /// Not before then. Only a run of one has it.
    pub(super) due: Option<Instant>,
}

impl Run {
    fn one(seq: u64, due: Option<Instant>) -> Self {
        Self {
            first: seq,
            last: seq,
            count: 1,
            due,
        }
    }

    fn extend(&mut self, seq: u64) {
        self.last = seq;
        self.count += 1;
    }
}

/// Where a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Just made, locked, or empty but for what is out.
    Aside,
    /// In `ready`, once.
    Ready,
    /// Waits for the due entry with this stamp.
    Held(u64),
    /// A claim has it in its hands.
    Claiming,
}

/// There may be many: what few have is apart.
#[derive(Debug)]
struct Lane {
    name: Box<[u8]>,
    parallel: bool,
    /// Its name is no longer used: it has what was out when pool codes changed their meaning.
    renamed: bool,
    /// Something waits behind what is out; counted in [`Shelf::blocked`].
    blocked: bool,
    place: Place,
    /// Not handed out yet, in order.
    runs: Runs,
    /// Messages that are out and not being acked.
    out: u32,
    /// Messages whose ack is on the way, and that lock the lane no more.
    ending: u32,
    /// Messages of a parallel lane that wait for their own delay; not in `waiting`.
    later: u32,
    /// Messages in `returned`, `runs` and the side index.
    waiting: u64,
    rare: Option<Box<Rare>>,
}

/// The runs of a lane. All that is known of most is out: those need no buffer.
#[derive(Debug, Default)]
#[allow(clippy::box_collection)] // a pointer in each lane instead of a whole deque
struct Runs(Option<Box<VecDeque<Run>>>);

impl Runs {
    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |runs| runs.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn front(&self) -> Option<&Run> {
        self.0.as_ref()?.front()
    }

    fn back_mut(&mut self) -> Option<&mut Run> {
        self.0.as_mut()?.back_mut()
    }

    fn pop_front_if(&mut self, so: impl FnOnce(&mut Run) -> bool) -> Option<Run> {
        self.0.as_mut()?.pop_front_if(so)
    }

    /// To be added to.
    fn more(&mut self) -> &mut VecDeque<Run> {
        self.0.get_or_insert_default()
    }

    fn clear(&mut self) {
        self.0 = None;
    }
}

/// What few lanes have.
#[derive(Debug, Default)]
struct Rare {
    /// Given back: before everything in the lane's runs.
    returned: BTreeSet<u64>,
    /// So many runs are in the side index, behind the lane's runs.
    aside: u64,
    /// A return's delay.
    hold: Option<Instant>,
}

impl Lane {
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    fn has_returned(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| !rare.returned.is_empty())
    }

    fn aside(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.aside)
    }

    fn hold(&self) -> Option<Instant> {
        self.rare.as_ref()?.hold
    }

    /// A hold that is over is none, and what has nothing rare any more needs no place for it.
    fn tidy(&mut self, now: Instant) {
        if let Some(rare) = &mut self.rare {
            rare.hold = rare.hold.filter(|hold| *hold > now);
            if rare.returned.is_empty() && rare.aside == 0 && rare.hold.is_none() {
                self.rare = None;
            }
        }
    }

    /// A loan of it is over.
    fn ended(&mut self, locked: bool) {
        match locked {
            true => self.out -= 1,
            false => self.ending -= 1,
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.later == 0 && self.out == 0 && self.ending == 0
    }

    /// Whether the next message is only known to the side index.
    fn wants_refill(&self) -> bool {
        !self.has_returned() && self.runs.is_empty() && self.aside() > 0
    }

    /// Until when the first waiting message must wait.
    fn held_until(&self) -> Option<Instant> {
        let head = match self.has_returned() {
            true => None,
            false => self.runs.front().and_then(|run| run.due),
        };
        self.hold().max(head)
    }

    /// Takes about `room` messages from the front: returned ones one by one, runs whole. How much
    /// of the last run is wanted is the caller's sum.
    fn take(&mut self, mut room: u64, now: Instant) -> Vec<Run> {
        let mut taken = Vec::new();
        while room > 0 {
            let returned = self.rare.as_mut().map(|rare| &mut rare.returned);
            if let Some(seq) = returned.and_then(BTreeSet::pop_first) {
                taken.push(Run::one(seq, None));
                room -= 1;
                continue;
            }
            match self
                .runs
                .pop_front_if(|run| run.due.is_none_or(|due| due <= now))
            {
                Some(run) => {
                    room = room.saturating_sub(run.count);
                    taken.push(run);
                }
                None => break,
            }
        }
        taken
    }
}

/// A key of which something was out, or held, when its lane got another name.
#[derive(Debug, Default)]
struct Renamed {
    /// Messages under old names that lock the key.
    out: u32,
    /// Until when lanes of the key wait.
    hold: Option<Instant>,
    /// Lanes of the key that wait for those messages.
    waits: Vec<LaneId>,
}

impl Renamed {
    fn is_over(&self, now: Instant) -> bool {
        self.out == 0 && self.hold.is_none_or(|until| until <= now)
    }
}

fn name_of(lanes: &[Option<Lane>], id: LaneId) -> &[u8] {
    &lanes[id as usize].as_ref().expect("a live lane").name
}

/// What becomes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The lane, if it still waits with this stamp.
    Lane(LaneId, u64),
    /// One message of a parallel lane.
    Message(LaneId, u64),
}

/// A loan.
#[derive(Debug)]
struct Out {
    lane: LaneId,
    claim: u64,
    state: Loan,
    /// Counted in its lane's `out`, else in `ending`.
    locks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loan {
    /// Not settled yet.
    Open,
    /// Its ack is on the way to the disk.
    Acking,
    /// Its row has left the queue with a store's transaction; the ack is a formality.
    Gone,
}

/// What a claim has to do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Read rows behind `after`; `newest` is the newest known to be there.
    Scan { after: u64, newest: u64 },
    /// Read runs of these lanes from the side index.
    Refill(Vec<LaneId>),
    /// Read these messages.
    Take(Vec<Pick>),
    /// Nothing can be claimed now.
    Wait,
}

/// What a claim takes of one lane.
#[derive(Debug)]
pub(super) struct Pick {
    pub(super) lane: LaneId,
    pub(super) key: Option<Key>,
    pub(super) runs: Vec<Run>,
    /// At most so many of them.
    pub(super) take: u64,
}

/// What a claim got of a lane, and the runs it leaves.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) lane: LaneId,
    pub(super) seqs: Vec<u64>,
    /// Rows that were not there any more or cannot be read.
    pub(super) missing: u64,
    pub(super) rest: Vec<Run>,
}

/// The claim state of one queue.
#[derive(Debug)]
pub(super) struct Shelf {
    limits: Limits,
    keyless: Keyless,
    /// What pool codes mean; `None` while each is a pool of its own.
    codes: Option<Arc<PoolCodes>>,
    /// By key. Empty, but for a while after a change of the codes.
    renamed: Map<Box<[u8]>, Renamed>,
    /// Something of a renamed lane went back: its row is to be read again.
    stale: bool,
    /// Every row up to here is known.
    cursor: u64,
    /// The newest row that was committed.
    newest: u64,
    /// Handed out since the cursor last moved.
    handed_out: usize,
    /// Where the cursor need not hurry, it rests until then.
    resting: Option<Instant>,
    /// The row the cursor passed last, and its lane: the next one of that lane continues its run.
    tail: Option<(LaneId, u64)>,
    lanes: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    /// The live lanes by the hashes of their names.
    names: HashTable<LaneId>,
    hasher: RandomState,
    ready: VecDeque<LaneId>,
    /// Waiting messages of the lanes in `ready`.
    ready_messages: u64,
    /// Lanes with something waiting behind what is out.
    blocked: usize,
    dues: BinaryHeap<Reverse<(Instant, Due)>>,
    /// Messages of parallel lanes that wait for their own delay, and are to be read again.
    delayed: Map<u64, Instant>,
    out: Map<u64, Out>,
    /// Acked, and their rows are still in the table.
    acked: BTreeSet<u64>,
    /// Acked, and their rows are not in the table any more; a claim that began before that still
    /// sees them.
    purged: BTreeSet<u64>,
    /// Runs on their way to the side index.
    overflow: Vec<(LaneId, Run)>,
    /// Runs in memory, of all lanes.
    runs: usize,
    stamps: u64,
    claims: u64,
}

impl Shelf {
    /// Of a queue whose newest row is `newest` (0: none).
    pub(super) fn new(newest: u64, limits: Limits) -> Self {
        Self {
            limits,
            keyless: Keyless::Serial,
            codes: None,
            renamed: Map::default(),
            stale: false,
            cursor: 0,
            newest,
            handed_out: 0,
            resting: None,
            tail: None,
            lanes: Vec::new(),
            free: Vec::new(),
            names: HashTable::new(),
            hasher: RandomState::default(),
            ready: VecDeque::new(),
            ready_messages: 0,
            blocked: 0,
            dues: BinaryHeap::new(),
            delayed: Map::default(),
            out: Map::default(),
            acked: BTreeSet::new(),
            purged: BTreeSet::new(),
            overflow: Vec::new(),
            runs: 0,
            stamps: 0,
            claims: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Messages that are out.
    pub(super) fn out(&self) -> usize {
        self.out.len()
    }

    /// Lanes in memory.
    pub(super) fn lanes(&self) -> usize {
        self.names.len()
    }

    /// Rows up to `seq` were committed.
    pub(super) fn published(&mut self, seq: u64) {
        self.newest = self.newest.max(seq);
    }

    /// What pool codes mean to it.
    pub(super) fn codes(&self) -> Option<Arc<PoolCodes>> {
        self.codes.clone()
    }

    /// Whether the queue is to be read anew before a claim under these rules.
    pub(super) fn is_outdated(&self, keyless: Keyless, codes: &Option<Arc<PoolCodes>>) -> bool {
        self.stale || self.keyless != keyless || !is_same(&self.codes, codes)
    }

    /// Whether a claim would find something to do.
    pub(super) fn may_claim(&mut self, now: Instant) -> bool {
        self.tick(now);
        self.stale || !self.ready.is_empty() || (!self.at_end() && !self.rests(now))
    }

    /// When the next held lane is due, or the cursor's rest is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.dues.peek().map(|Reverse((due, _))| *due);
        let rest = self.resting.filter(|_| !self.at_end());
        [due, rest].into_iter().flatten().min()
    }

    /// Forgets what waits, so that the cursor reads it again; what is out stays out and keeps its
    /// lane locked, holds stay. The side index must be emptied with it.
    pub(super) fn rebuild(
        &mut self,
        keyless: Keyless,
        codes: Option<Arc<PoolCodes>>,
        now: Instant,
    ) {
        let renames = !is_same(&self.codes, &codes);
        self.keyless = keyless;
        self.codes = codes;
        self.stale = false;
        self.renamed.retain(|_, key| !key.is_over(now));
        for key in self.renamed.values_mut() {
            key.waits.clear();
        }
        self.cursor = 0;
        self.tail = None;
        self.ready.clear();
        self.ready_messages = 0;
        self.blocked = 0;
        for Reverse((due, what)) in self.dues.drain() {
            if let Due::Message(_, seq) = what {
                self.delayed.insert(seq, due);
            }
        }
        self.overflow.clear();
        self.runs = 0;
        for id in 0..self.lanes.len() as LaneId {
            let Some(lane) = &mut self.lanes[id as usize] else {
                continue;
            };
            lane.parallel = keyless == Keyless::Parallel && key_of(&lane.name).is_none();
            lane.place = Place::Aside;
            if let Some(rare) = &mut lane.rare {
                rare.returned.clear();
                rare.aside = 0;
            }
            lane.runs.clear();
            lane.waiting = 0;
            lane.later = 0;
            lane.blocked = false;
            lane.tidy(now);
            if renames && !lane.parallel && !lane.renamed {
                self.rename(id);
            }
            let lane = self.lane(id);
            // A held lane keeps its entry though it is empty for now: its hold must meet it again.
            if lane.out == 0 && lane.ending == 0 && lane.hold().is_none() {
                self.remove(id);
            }
        }
    }

    /// What is out of this lane, and its hold, are the whole key's from now on.
    fn rename(&mut self, id: LaneId) {
        self.forget_name(id);
        let lane = self.lanes[id as usize].as_mut().expect("a live lane");
        lane.renamed = true;
        let hold = lane.rare.take().and_then(|rare| rare.hold);
        if lane.out > 0 || hold.is_some() {
            let key = self.renamed.entry(key_part(&lane.name).into()).or_default();
            key.out += lane.out;
            key.hold = key.hold.max(hold);
        }
    }

    /// One message less of this renamed lane locks its key.
    fn unlock_renamed(&mut self, id: LaneId, now: Instant) {
        let name: Box<[u8]> = key_part(&self.lane(id).name).into();
        let Some(key) = self.renamed.get_mut(&name) else {
            return;
        };
        key.out -= 1;
        if key.out > 0 {
            return;
        }
        let hold = key.hold;
        let waits = std::mem::take(&mut key.waits);
        if key.is_over(now) {
            self.renamed.remove(&name);
        }
        for id in waits {
            let lane = self.lanes[id as usize].as_mut();
            if let Some(lane) = lane.filter(|lane| key_part(&lane.name) == &*name) {
                if hold.is_some() {
                    let rare = lane.rare();
                    rare.hold = rare.hold.max(hold);
                }
                self.replace(id, now);
            }
        }
    }

    /// Whether something of its key is out under another name; the lane is told when it is not.
    fn waits_for_renamed(&mut self, id: LaneId) -> bool {
        if self.renamed.is_empty() {
            return false;
        }
        let lane = self.lanes[id as usize].as_ref().expect("a live lane");
        let key = self.renamed.get_mut(key_part(&lane.name));
        let Some(key) = key.filter(|key| key.out > 0) else {
            return false;
        };
        if !key.waits.contains(&id) {
            key.waits.push(id);
        }
        true
    }

    /// What a claim has to do next; `scanned` is how many rows it has read so far, `capacity` says
    /// how many messages of a lane may be out, by its name.
    pub(super) fn step(
        &mut self,
        room: usize,
        scanned: usize,
        now: Instant,
        capacity: impl Fn(&[u8]) -> u64,
    ) -> Step {
        self.tick(now);
        if self.wants_scan(room, scanned, now) {
            self.resting = (!self.in_hurry()).then(|| now + REST);
            self.handed_out = 0;
            return Step::Scan {
                after: self.cursor,
                newest: self.newest,
            };
        }
        if self.ready.is_empty() {
            return Step::Wait;
        }
        let shares = self.shares(room as u64, capacity);
        let mut refills = Vec::new();
        let mut picks = Vec::new();
        for (id, share) in shares {
            let lane = self.lane_mut(id);
            lane.place = Place::Claiming;
            match lane.wants_refill() {
                true => refills.push(id),
                false => picks.extend(self.pick(id, share, now)),
            }
        }
        match refills.is_empty() {
            true => Step::Take(picks),
            false => {
                // The lanes picked already wait for the next step, first in line.
                for pick in picks.into_iter().rev() {
                    self.put_back(pick.lane, pick.runs);
                    self.make_ready_first(pick.lane);
                }
                Step::Refill(refills)
            }
        }
    }

    /// Read on while what is ready does not fill the room, or is all of a few lanes. But only so far:
    /// what is ready must not wait for a long way through one lane's backlog. And where lanes go back
    /// and are ready again, as many rows are read as were handed out: others wait behind them.
    fn wants_scan(&self, room: usize, scanned: usize, now: Instant) -> bool {
        if self.at_end() {
            return false;
        }
        if self.handed_out >= self.limits.chunk {
            return true;
        }
        if !self.in_hurry() {
            return self.ready.is_empty() && !self.rests(now);
        }
        let enough =
            self.ready_messages >= room as u64 && self.ready.len() >= LANES_AHEAD.min(room);
        !enough && (self.ready.is_empty() || scanned < self.limits.rows_ahead)
    }

    /// Whether reading on may find much. Where most lanes only wait for what is out, the next rows
    /// are most likely of the same lanes: they will be ready soon, and what is read far ahead of
    /// them has to be kept. What is left to be read in one go is read at once in any case.
    fn in_hurry(&self) -> bool {
        let few = self.blocked < LANES_BLOCKED || self.blocked * 2 < self.lanes();
        few || self.newest - self.cursor.min(self.newest) <= self.limits.chunk as u64
    }

    fn rests(&self, now: Instant) -> bool {
        !self.in_hurry() && self.resting.is_some_and(|until| now < until)
    }

    fn at_end(&self) -> bool {
        self.cursor >= self.newest
    }

    /// Takes lanes from the ready ones, as many as the room allows, and divides the room evenly;
    /// what one lane does not need goes to the others. While the cursor has not seen everything
    /// no lane gets more than half: there may be others. And none gets more than its part of all
    /// that may be out: lanes that are locked now would find no room when their turn comes. Nor
    /// does it get more than its capacity: nothing of it is out when it is ready.
    fn shares(&mut self, room: u64, capacity: impl Fn(&[u8]) -> u64) -> Vec<(LaneId, u64)> {
        let most = if self.at_end() {
            room
        } else {
            room.div_ceil(2)
        };
        let most = most.min(self.part(room));
        let lanes = self.ready.len().min(room as usize);
        let mut shares: Vec<(LaneId, u64)> = Vec::with_capacity(lanes);
        let mut limits: Vec<u64> = Vec::with_capacity(lanes);
        for _ in 0..lanes {
            let id = self.ready.pop_front().expect("counted");
            let lane = self.lanes[id as usize].as_ref().expect("a live lane");
            self.ready_messages -= lane.waiting;
            let limit = match lane.parallel {
                true => most,
                false => most.min(capacity(&lane.name).max(1)),
            };
            shares.push((id, 0));
            limits.push(lane.waiting.min(limit));
        }
        let mut left = room;
        let mut hungry: Vec<usize> = (0..lanes).collect();
        while left > 0 && !hungry.is_empty() {
            let part = (left / hungry.len() as u64).max(1);
            hungry.retain(|&at| {
                let (_, share) = &mut shares[at];
                let more = part.min(left).min(limits[at] - *share);
                *share += more;
                left -= more;
                *share < limits[at]
            });
        }
        shares
    }

    /// One lane's part of what may be out, if others wait for what is out already.
    fn part(&self, room: u64) -> u64 {
        if self.blocked == 0 {
            return room;
        }
        let lanes = self.ready.len() + self.blocked;
        let all = room + self.out.len() as u64;
        all.div_ceil(lanes as u64)
    }

    fn pick(&mut self, id: LaneId, share: u64, now: Instant) -> Option<Pick> {
        let lane = self.lane_mut(id);
        debug_assert!(lane.parallel || lane.out == 0, "a locked lane is not ready");
        let before = lane.runs.len();
        let runs = lane.take(share, now);
        let key = key_of(&lane.name);
        let popped = before - lane.runs.len();
        if lane.runs.is_empty() {
            // Most lanes are short: their empty buffers would take more than their messages.
            lane.runs.clear();
        }
        self.runs -= popped;
        if runs.is_empty() {
            self.release(id, now);
            return None;
        }
        Some(Pick {
            lane: id,
            key,
            runs,
            take: share,
        })
    }

    /// A row behind the cursor.
    pub(super) fn arrived(&mut self, seq: u64, name: &[u8], due: Option<Instant>, now: Instant) {
        self.cursor = seq;
        if self.is_over(seq) || self.out.contains_key(&seq) {
            // Read again after a rebuild, or by the next process. A run must not reach over it.
            self.tail = None;
            return;
        }
        let id = self.lane_named(name);
        let due = match self.delayed.is_empty() {
            true => due,
            false => due.max(self.delayed.remove(&seq)).filter(|due| *due > now),
        };
        if let Some(due) = due
            && self.lane(id).parallel
        {
            self.tail = None;
            self.lane_mut(id).later += 1;
            self.dues.push(Reverse((due, Due::Message(id, seq))));
            return;
        }
        if due.is_some() || !self.continue_run(id, seq) {
            self.append(id, Run::one(seq, due));
        }
        self.tail = due.is_none().then_some((id, seq));
        let lane = self.lane_mut(id);
        lane.waiting += 1;
        match lane.place {
            Place::Ready => self.ready_messages += 1,
            Place::Aside => self.replace(id, now),
            Place::Held(_) | Place::Claiming => {}
        }
    }

    /// A row that cannot be read: the cursor passes it, and no run reaches over it.
    pub(super) fn passed(&mut self, seq: u64) {
        self.cursor = seq;
        self.tail = None;
    }

    /// A scan that began when `newest` was the newest row has seen all there was.
    pub(super) fn seen_all(&mut self, newest: u64) {
        self.cursor = self.cursor.max(newest);
    }

    /// Only the run that ends with the row right before this one may go on: a run with another
    /// lane's row in it would hand that out too.
    fn continue_run(&mut self, id: LaneId, seq: u64) -> bool {
        let Some((_, before)) = self.tail.filter(|(lane, _)| *lane == id) else {
            return false;
        };
        let lane = self.lanes[id as usize].as_mut().expect("a live lane");
        let last = match lane.aside() {
            0 => lane.runs.back_mut(),
            _ => match self.overflow.last_mut() {
                Some((of, run)) if *of == id => Some(run),
                _ => None,
            },
        };
        match last {
            Some(run) if run.last == before && run.due.is_none() => {
                run.extend(seq);
                true
            }
            _ => false,
        }
    }

    fn append(&mut self, id: LaneId, run: Run) {
        let (limits, all) = (self.limits, self.runs);
        let lane = self.lane_mut(id);
        let own = lane.runs.len();
        let room =
            own < limits.runs_always || (own < limits.runs_of_lane && all < limits.runs_of_all);
        if lane.aside() == 0 && room {
            lane.runs.more().push_back(run);
            self.runs += 1;
        } else {
            lane.rare().aside += 1;
            self.overflow.push((id, run));
        }
    }

    /// What has to go to the side index, before anything else is done.
    pub(super) fn take_overflow(&mut self) -> Vec<(LaneId, Run)> {
        std::mem::take(&mut self.overflow)
    }

    /// The side index's next runs of a lane.
    pub(super) fn refilled(&mut self, id: LaneId, runs: Vec<Run>, now: Instant) {
        self.runs += runs.len();
        let lane = self.lane_mut(id);
        let rare = lane.rare();
        rare.aside -= (runs.len() as u64).min(rare.aside);
        if runs.is_empty() {
            // Cannot be, and must not be waited for if it is: count only what is there.
            rare.aside = 0;
            lane.waiting = rare.returned.len() as u64;
        }
        lane.runs.more().extend(runs);
        self.release(id, now);
    }

    /// What a claim took is out from now on. Answers the claim's number.
    pub(super) fn claimed(&mut self, taken: Vec<Taken>, now: Instant) -> u64 {
        self.claims += 1;
        let claim = self.claims;
        let mut unserved = Vec::new();
        let mut handed_out = 0;
        for taken in taken {
            let served = !taken.seqs.is_empty() || taken.missing > 0;
            let lane = self.lane_mut(taken.lane);
            lane.out += taken.seqs.len() as u32;
            handed_out += taken.seqs.len();
            lane.waiting -= (taken.seqs.len() as u64 + taken.missing).min(lane.waiting);
            for seq in taken.seqs {
                let out = Out {
                    lane: taken.lane,
                    claim,
                    state: Loan::Open,
                    locks: true,
                };
                self.out.insert(seq, out);
            }
            self.put_back(taken.lane, taken.rest);
            match served {
                true => self.release(taken.lane, now),
                false => unserved.push(taken.lane),
            }
        }
        self.handed_out += handed_out;
        // The room was used up before their turn came: they are first next time.
        for id in unserved.into_iter().rev() {
            self.make_ready_first(id);
        }
        claim
    }

    /// What a claim took and did not use goes back to the front. Where returned messages are left
    /// it was made of such, and belongs among them: they come before all runs.
    fn put_back(&mut self, id: LaneId, rest: Vec<Run>) {
        let lane = self.lane_mut(id);
        if !lane.parallel && lane.has_returned() {
            debug_assert!(rest.iter().all(|run| run.count == 1));
            lane.rare()
                .returned
                .extend(rest.into_iter().map(|run| run.first));
            return;
        }
        self.runs += rest.len();
        let lane = self.lane_mut(id);
        for run in rest.into_iter().rev() {
            lane.runs.more().push_front(run);
        }
    }

    /// An ack begins: the loan stands until [`Shelf::acked`]. `alone` says that whatever is acked of
    /// this lane from now on becomes durable after this: then the lane is locked no longer. Answers
    /// whether there is a row to delete.
    pub(super) fn acking(
        &mut self,
        seq: u64,
        claim: u64,
        alone: bool,
        now: Instant,
    ) -> Result<bool, SettleError> {
        let out = self.open_loan(seq, claim)?;
        if out.state == Loan::Gone {
            self.settle(seq, now);
            return Ok(false);
        }
        out.state = Loan::Acking;
        if alone && std::mem::replace(&mut out.locks, false) {
            let id = out.lane;
            let lane = self.lane_mut(id);
            lane.out -= 1;
            lane.ending += 1;
            if lane.renamed {
                self.unlock_renamed(id, now);
            }
            self.replace(id, now);
        }
        Ok(true)
    }

    /// The ack is on disk, the rows are not deleted yet.
    pub(super) fn acked(&mut self, seqs: &[u64], now: Instant) {
        self.acked.extend(seqs);
        self.deleted(seqs, now);
    }

    /// The ack is on disk, and the rows are deleted.
    pub(super) fn deleted(&mut self, seqs: &[u64], now: Instant) {
        for seq in seqs {
            self.settle(*seq, now);
        }
    }

    /// As the file has it at the beginning.
    pub(super) fn acked_before(&mut self, seqs: Vec<u64>) {
        self.acked.extend(seqs);
    }

    /// The acked rows that are still in the table, in order.
    pub(super) fn acked_rows(&self) -> Vec<u64> {
        self.acked.iter().copied().collect()
    }

    /// The acked rows up to this one have left the table.
    pub(super) fn purged(&mut self, last: u64) {
        let stay = self.acked.split_off(&(last + 1));
        self.purged.append(&mut self.acked);
        self.acked = stay;
    }

    /// A claim begins: it sees nothing of what left the table before.
    pub(super) fn claim_begins(&mut self) {
        self.purged.clear();
    }

    /// Whether a row that may still be seen is acked.
    fn is_over(&self, seq: u64) -> bool {
        self.acked.contains(&seq) || self.purged.contains(&seq)
    }

    /// The ack could not be written: the loan goes on.
    pub(super) fn ack_failed(&mut self, seqs: &[u64]) {
        for seq in seqs {
            if let Some(out) = self.out.get_mut(seq) {
                out.state = Loan::Open;
            }
        }
    }

    /// The message comes again, in its place; its lane waits until `hold`.
    pub(super) fn give_back(
        &mut self,
        seq: u64,
        claim: u64,
        hold: Option<Instant>,
        now: Instant,
    ) -> Result<(), SettleError> {
        let out = self.open_loan(seq, claim)?;
        let (id, gone, locks) = (out.lane, out.state == Loan::Gone, out.locks);
        self.out.remove(&seq);
        let lane = self.lane_mut(id);
        lane.ended(locks);
        if lane.renamed {
            self.give_back_renamed(id, (!gone).then_some(hold), locks, now);
            return Ok(());
        }
        match hold {
            // A store has it: it does not come again.
            _ if gone => {}
            Some(due) if lane.parallel => {
                lane.later += 1;
                self.dues.push(Reverse((due, Due::Message(id, seq))));
            }
            hold => {
                let rare = lane.rare();
                rare.hold = rare.hold.max(hold);
                self.return_one(id, seq);
            }
        }
        self.replace(id, now);
        Ok(())
    }

    /// A message of a renamed lane comes again, unless a store has it. Its row says which lane it is
    /// in now, so all that waits is read again.
    fn give_back_renamed(
        &mut self,
        id: LaneId,
        again: Option<Option<Instant>>,
        locks: bool,
        now: Instant,
    ) {
        if let Some(hold) = again {
            self.stale = true;
            let key = key_part(&self.lane(id).name).into();
            let key: &mut Renamed = self.renamed.entry(key).or_default();
            key.hold = key.hold.max(hold);
        }
        if locks {
            self.unlock_renamed(id, now);
        }
        self.replace(id, now);
    }

    /// Whether the loan still stands.
    pub(super) fn is_open(&self, seq: u64, claim: u64) -> bool {
        self.out.get(&seq).is_some_and(|out| out.claim == claim)
    }

    /// A store's transaction took these rows out of the queue.
    pub(super) fn gone(&mut self, seqs: &[u64]) {
        for seq in seqs {
            if let Some(out) = self.out.get_mut(seq) {
                out.state = Loan::Gone;
            }
        }
    }

    fn open_loan(&mut self, seq: u64, claim: u64) -> Result<&mut Out, SettleError> {
        match self.out.get_mut(&seq) {
            Some(out) if out.claim == claim && out.state != Loan::Acking => Ok(out),
            _ => Err(SettleError::Lost(format!(
                "message {seq} was settled already"
            ))),
        }
    }

    fn settle(&mut self, seq: u64, now: Instant) {
        if let Some(out) = self.out.remove(&seq) {
            let lane = self.lane_mut(out.lane);
            lane.ended(out.locks);
            if lane.renamed && out.locks {
                self.unlock_renamed(out.lane, now);
            }
            self.replace(out.lane, now);
        }
    }

    fn return_one(&mut self, id: LaneId, seq: u64) {
        let lane = self.lane_mut(id);
        lane.rare().returned.insert(seq);
        lane.waiting += 1;
        if lane.place == Place::Ready {
            self.ready_messages += 1;
        }
    }

    /// Lanes and messages whose time has come become ready.
    fn tick(&mut self, now: Instant) {
        while let Some(Reverse((due, what))) = self.dues.peek().copied() {
            if due > now {
                return;
            }
            self.dues.pop();
            match what {
                Due::Lane(id, stamp) => {
                    let held = |lane: &Lane| lane.place == Place::Held(stamp);
                    if self.lanes[id as usize].as_ref().is_some_and(held) {
                        self.lane_mut(id).place = Place::Aside;
                        self.replace(id, now);
                    }
                }
                Due::Message(id, seq) => {
                    self.lane_mut(id).later -= 1;
                    self.return_one(id, seq);
                    self.replace(id, now);
                }
            }
        }
    }

    /// A claim is done with the lane.
    fn release(&mut self, id: LaneId, now: Instant) {
        self.lane_mut(id).place = Place::Aside;
        self.replace(id, now);
    }

    /// Puts a lane where it belongs now: gone, aside, held or at the end of the ready ones. One
    /// that is ready or in a claim's hands stays so.
    fn replace(&mut self, id: LaneId, now: Instant) {
        let lane = self.lane_mut(id);
        if matches!(lane.place, Place::Ready | Place::Claiming) {
            return;
        }
        lane.place = Place::Aside;
        lane.tidy(now);
        let (parallel, out) = (lane.parallel, lane.out > 0);
        let locked = !parallel && (out || self.waits_for_renamed(id));
        let lane = self.lane_mut(id);
        let blocked = locked && lane.waiting > 0;
        let was = std::mem::replace(&mut lane.blocked, blocked);
        self.blocked = self.blocked + usize::from(blocked) - usize::from(was);
        let lane = self.lane_mut(id);
        if lane.is_empty() {
            return self.remove(id);
        }
        if locked || lane.waiting == 0 {
            return;
        }
        match lane.held_until().filter(|until| *until > now) {
            Some(until) => self.hold(id, until),
            None => {
                lane.place = Place::Ready;
                self.ready_messages += lane.waiting;
                self.ready.push_back(id);
            }
        }
    }

    fn make_ready_first(&mut self, id: LaneId) {
        let lane = self.lane_mut(id);
        lane.place = Place::Ready;
        self.ready_messages += lane.waiting;
        self.ready.push_front(id);
    }

    fn hold(&mut self, id: LaneId, until: Instant) {
        self.stamps += 1;
        let stamp = self.stamps;
        self.lane_mut(id).place = Place::Held(stamp);
        self.dues.push(Reverse((until, Due::Lane(id, stamp))));
    }

    fn lane_named(&mut self, name: &[u8]) -> LaneId {
        let hash = self.hasher.hash_one(name);
        let lanes = &self.lanes;
        if let Some(id) = self.names.find(hash, |id| *name_of(lanes, *id) == *name) {
            return *id;
        }
        let lane = Lane {
            parallel: self.keyless == Keyless::Parallel && key_of(name).is_none(),
            name: name.into(),
            renamed: false,
            blocked: false,
            place: Place::Aside,
            runs: Runs::default(),
            out: 0,
            ending: 0,
            later: 0,
            waiting: 0,
            rare: self.hold_of_key(name),
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.lanes[id as usize] = Some(lane);
                id
            }
            None => {
                if self.lanes.len() == self.lanes.capacity() {
                    // Not twice as much: there may be a million.
                    self.lanes.reserve_exact(64.max(self.lanes.len() / 4));
                }
                self.lanes.push(Some(lane));
                (self.lanes.len() - 1) as LaneId
            }
        };
        let (lanes, hasher) = (&self.lanes, &self.hasher);
        let hash_of = |id: &LaneId| hasher.hash_one(name_of(lanes, *id));
        self.names.insert_unique(hash, id, hash_of);
        id
    }

    /// What a new lane of this key begins with.
    fn hold_of_key(&self, name: &[u8]) -> Option<Box<Rare>> {
        let key = self.renamed.get(key_part(name))?;
        let hold = Some(key.hold?);
        Some(Box::new(Rare {
            hold,
            ..Rare::default()
        }))
    }

    fn forget_name(&mut self, id: LaneId) {
        let hash = self.hasher.hash_one(name_of(&self.lanes, id));
        if let Ok(named) = self.names.find_entry(hash, |other| *other == id) {
            named.remove();
        }
    }

    fn remove(&mut self, id: LaneId) {
        if self.lanes[id as usize].is_some() {
            self.forget_name(id);
            self.lanes[id as usize] = None;
            self.free.push(id);
            self.tail = self.tail.filter(|(lane, _)| *lane != id);
        }
    }

    fn lane(&self, id: LaneId) -> &Lane {
        self.lanes[id as usize].as_ref().expect("a live lane")
    }

    fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        self.lanes[id as usize].as_mut().expect("a live lane")
    }
}

/// A lane's name within its queue: pool and key as one string of bytes.
pub(super) fn lane_name(into: &mut Vec<u8>, pool: Option<&str>, key: Option<&[u8]>) {
    into.clear();
    let pool_length = pool.map_or(0, |pool| pool.len() as u32 + 1);
    into.extend_from_slice(&pool_length.to_le_bytes());
    into.extend_from_slice(pool.unwrap_or_default().as_bytes());
    if let Some(key) = key {
        into.push(1);
        into.extend_from_slice(key);
    }
}

/// The pool in a lane's name, and what is behind it.
fn split_name(name: &[u8]) -> Option<(Option<&str>, &[u8])> {
    let (length, rest) = name.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let (pool, key) = rest.split_at_checked(length.saturating_sub(1) as usize)?;
    let pool = std::str::from_utf8(pool).ok()?;
    Some(((length > 0).then_some(pool), key))
}

/// What a lane's name has behind the pool: the same for all lanes of a key, whatever their pool.
fn key_part(name: &[u8]) -> &[u8] {
    split_name(name).map_or(name, |(_, key)| key)
}

/// The pool in a lane's name.
pub(super) fn pool_of(name: &[u8]) -> Option<&str> {
    split_name(name)?.0
}

/// The key in a lane's name.
pub(super) fn key_of(name: &[u8]) -> Option<Key> {
    let (_, key) = key_part(name).split_first()?;
    Some(Key::new(key))
}

fn is_same(codes: &Option<Arc<PoolCodes>>, other: &Option<Arc<PoolCodes>>) -> bool {
    match (codes, other) {
        (Some(codes), Some(other)) => Arc::ptr_eq(codes, other),
        (None, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: &[u8]) -> u64 {
        u64::MAX
    }

    fn name(key: &str) -> Vec<u8> {
        let mut name = Vec::new();
        lane_name(&mut name, None, Some(key.as_bytes()));
        name
    }

    /// Claims what is ready, but reads nothing of it where `read` is not set, as when bytes run out.
    fn claim(
        shelf: &mut Shelf,
        rows: &[(u64, &str)],
        read: bool,
        now: Instant,
    ) -> Vec<(String, u64)> {
        let Step::Take(picks) = shelf.step(10, 0, now, any) else {
            panic!("nothing to take");
        };
        let mut got = Vec::new();
        let mut taken = Vec::new();
        for pick in picks {
            let key = pick.key.expect("has a key").to_string();
            let within = |run: &Run| {
                rows.iter()
                    .map(|row| row.0)
                    .filter(|seq| (run.first..=run.last).contains(seq))
                    .take(run.count as usize)
                    .collect::<Vec<_>>()
            };
            let (seqs, rest) = match read {
                false => (Vec::new(), pick.runs),
                true => (pick.runs.iter().flat_map(within).collect(), Vec::new()),
            };
            got.extend(seqs.iter().map(|seq| (key.clone(), *seq)));
            taken.push(Taken {
                lane: pick.lane,
                seqs,
                missing: 0,
                rest,
            });
        }
        shelf.claimed(taken, now);
        got
    }

    #[test]
    fn a_run_never_goes_on_behind_another_lanes_message() {
        let now = Instant::now();
        let rows = [(3, "a"), (4, "b"), (9, "a"), (10, "a")];
        let mut shelf = Shelf::new(9, Limits::USUAL);
        for (seq, key) in &rows[..3] {
            shelf.arrived(*seq, &name(key), None, now);
        }
        claim(&mut shelf, &rows, true, now);
        // 9 is acked, 3 comes back, is picked and, for want of room, not read.
        assert_eq!(shelf.acking(9, 1, false, now), Ok(true));
        shelf.acked(&[9], now);
        assert_eq!(shelf.give_back(3, 1, None, now), Ok(()));
        assert_eq!(claim(&mut shelf, &rows, false, now), []);

        shelf.published(10);
        shelf.arrived(10, &name("a"), None, now);

        let got = claim(&mut shelf, &rows, true, now);
        assert_eq!(got, [("a".to_owned(), 3), ("a".to_owned(), 10)]);
    }

    #[test]
    fn a_lane_waits_for_the_disk_only_where_another_reader_could_ack_what_follows() {
        for alone in [true, false] {
            let now = Instant::now();
            let rows = [(1, "a"), (2, "a")];
            let mut shelf = Shelf::new(1, Limits::USUAL);
            shelf.arrived(1, &name("a"), None, now);
            claim(&mut shelf, &rows, true, now);
            shelf.published(2);
            shelf.arrived(2, &name("a"), None, now);
            assert!(matches!(shelf.step(10, 0, now, any), Step::Wait));

            assert_eq!(shelf.acking(1, 1, alone, now), Ok(true));

            assert_eq!(shelf.may_claim(now), alone);
            if alone {
                let got = claim(&mut shelf, &rows, true, now);
                assert_eq!(got, [("a".to_owned(), 2)]);
            }
            // It could not be written, is tried again, and is written: nothing is left behind.
            shelf.ack_failed(&[1]);
            assert_eq!(shelf.acking(1, 1, alone, now), Ok(true));
            shelf.acked(&[1], now);
            if !alone {
                claim(&mut shelf, &rows, true, now);
            }
            assert_eq!(shelf.acking(2, 2, alone, now), Ok(true));
            shelf.acked(&[2], now);
            assert_eq!((shelf.lanes(), shelf.out()), (0, 0));
        }
    }

    #[test]
    fn where_most_lanes_wait_for_settlements_the_cursor_rests_between_chunks() {
        let now = Instant::now();
        let mut shelf = Shelf::new(10_000, Limits::USUAL);
        // Of each key one is out and one waits behind it.
        let rows: Vec<(u64, String)> = (0..2 * LANES_BLOCKED as u64)
            .map(|seq| (seq + 1, format!("k{}", seq % LANES_BLOCKED as u64)))
            .collect();
        let (first, second) = rows.split_at(LANES_BLOCKED);
        for (seq, key) in first {
            shelf.arrived(*seq, &name(key), None, now);
        }
        let Step::Take(picks) = shelf.step(LANES_BLOCKED, usize::MAX, now, any) else {
            panic!("nothing to take");
        };
        let taken = picks.into_iter().map(|pick| Taken {
            lane: pick.lane,
            seqs: pick.runs.iter().map(|run| run.first).collect(),
            missing: 0,
            rest: Vec::new(),
        });
        shelf.claimed(taken.collect(), now);
        for (seq, key) in second {
            shelf.arrived(*seq, &name(key), None, now);
        }

        // One chunk, then a rest of which the reader is told.
        assert!(shelf.may_claim(now));
        assert!(matches!(shelf.step(10, 0, now, any), Step::Scan { .. }));
        assert!(matches!(shelf.step(10, 1024, now, any), Step::Wait));
        assert!(!shelf.may_claim(now));
        assert_eq!(shelf.next_due(), Some(now + REST));
        assert!(shelf.may_claim(now + REST));
        // A lane that is ready is not kept waiting for it.
        shelf.acked(&[1], now);
        assert!(shelf.may_claim(now));
        shelf.published(10_001);
        // What is left in one go is read at once.
        shelf.seen_all(10_000);
        assert!(matches!(shelf.step(10, 0, now, any), Step::Scan { .. }));
    }

    #[test]
    fn a_lane_gets_no_more_than_its_part_of_all_that_may_be_out() {
        let now = Instant::now();
        let mut shelf = Shelf::new(40, Limits::USUAL);
        let rows: Vec<(u64, &str)> = (0..40)
            .map(|seq| (seq + 1, ["a", "b", "c", "d"][seq as usize % 4]))
            .collect();
        for (seq, key) in &rows {
            shelf.arrived(*seq, &name(key), None, now);
        }
        // Room for eight: two of each of the four.
        let Step::Take(picks) = shelf.step(8, 0, now, any) else {
            panic!("nothing to take");
        };
        assert!(picks.iter().all(|pick| pick.take == 2), "{picks:?}");
        let taken = picks.into_iter().map(|pick| Taken {
            lane: pick.lane,
            seqs: pick.runs.iter().map(|run| run.first).collect(),
            missing: 0,
            rest: Vec::new(),
        });
        shelf.claimed(taken.collect(), now);
        // One lane is settled and could have all the room; the others will want theirs.
        shelf.acked(&[1, 5], now);
        let Step::Take(picks) = shelf.step(8, 0, now, any) else {
            panic!("nothing to take");
        };
        let takes: Vec<u64> = picks.iter().map(|pick| pick.take).collect();
        assert_eq!(takes, [4]);
    }
}
