//! The naive model: a `Vec` per key, everything looked for by going through all there is.

use keylane::lanes::{FullOf, Hold, Time};

use super::history::{KEYS, LaneSetup, RateSetup, Setup, TENANTS};

/// Where an item is. It begins as waiting and ends as resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Waiting,
    Running,
    /// Taken by a flush that is not over.
    Out,
    Resolved,
}

/// All that ever was submitted, by sequence.
pub(super) struct Record {
    pub(super) key: u8,
    pub(super) place: Place,
    pub(super) started: bool,
}

pub(super) struct Item {
    pub(super) seq: u64,
    pub(super) hold: Hold,
    /// Pushed beyond the queue limits and not let in yet.
    pub(super) over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    No,
    Wanted,
    Now,
    Out,
    /// Out, and wanted again.
    OutWanted,
    OutNow,
}

pub(super) struct Lane {
    pub(super) waiting: Vec<Item>,
    pub(super) running: Vec<u64>,
    pub(super) flush: Flush,
    pub(super) paused: bool,
    pub(super) watched: bool,
    /// It was looked at, and its rate said wait.
    pub(super) rate_wait: bool,
    pub(super) bucket: Bucket,
}

/// One rate limit: when all that was spent is earned again, and the starts since the rate changed.
#[derive(Default)]
pub(super) struct Bucket {
    pub(super) full_at: u64,
    pub(super) starts: Vec<u64>,
}

/// Who had how many starts while somebody else was ready.
#[derive(Default)]
pub(super) struct Waits {
    /// By the lane that is ready, then by the lane that had the starts.
    pub(super) lanes: [[u32; KEYS]; KEYS],
    /// By the tenant that is ready, then by the tenant that had the starts.
    pub(super) tenants: [[u32; TENANTS]; TENANTS],
    /// Starts of the first since both of two tenants are ready.
    pub(super) shares: [[u32; TENANTS]; TENANTS],
}

pub(super) struct Model {
    pub(super) setup: Setup,
    pub(super) now: u64,
    pub(super) lanes: [Lane; KEYS],
    pub(super) records: Vec<Record>,
    pub(super) bucket: Bucket,
    pub(super) waits: Waits,
    pub(super) most_running: usize,
}

impl Model {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            now: 0,
            lanes: [(); KEYS].map(|()| Lane::new()),
            records: Vec::new(),
            bucket: Bucket::default(),
            waits: Waits::default(),
            most_running: 0,
        }
    }

    pub(super) fn lane(&mut self, key: u8) -> &mut Lane {
        &mut self.lanes[key as usize]
    }

    pub(super) fn of(&self, key: u8) -> &Lane {
        &self.lanes[key as usize]
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u8> + use<> {
        0..KEYS as u8
    }

    /// The sequence of the next item that is accepted.
    pub(super) fn next_seq(&self) -> u64 {
        self.records.len() as u64
    }

    pub(super) fn submit(&mut self, key: u8, over: bool) {
        let seq = self.next_seq();
        self.records.push(Record {
            key,
            place: Place::Waiting,
            started: false,
        });
        let hold = Hold::Free;
        self.lane(key).waiting.push(Item { seq, hold, over });
    }

    pub(super) fn tick(&mut self, now: u64) {
        let due = self.lanes_due_by(now);
        self.now = self.now.max(now);
        for key in self.keys() {
            if due[key as usize] {
                let now = Time(self.now);
                let lane = self.lane(key);
                lane.rate_wait = false;
                if let Some(front) = lane.waiting.first_mut()
                    && matches!(front.hold, Hold::Until(at) if at <= now)
                {
                    front.hold = Hold::Free;
                }
            }
        }
        self.note_who_is_ready();
    }

    /// The gate's answer for the front of this lane.
    pub(super) fn gated(&mut self, key: u8, answer: Hold) {
        let rate_allows = self.key_rate_allows(key);
        let lane = self.lane(key);
        lane.waiting[0].hold = answer;
        lane.rate_wait = answer == Hold::Free && !rate_allows;
        self.note_who_is_ready();
    }

    /// The front of this lane starts.
    pub(super) fn start(&mut self, key: u8) -> u64 {
        let now = self.now;
        let seq = self.lane(key).waiting.remove(0).seq;
        self.lane(key).running.push(seq);
        let record = &mut self.records[seq as usize];
        record.place = Place::Running;
        record.started = true;
        if let Some(rate) = self.lane_setup(key).rate {
            self.lane(key).bucket.spend(rate, now);
        }
        if let Some(rate) = self.setup.rate {
            self.bucket.spend(rate, now);
        }
        self.most_running = self.most_running.max(self.running());
        self.count_start(key);
        self.note_who_is_ready();
        seq
    }

    /// A running item ends; its place is said by who calls.
    pub(super) fn end(&mut self, seq: u64, place: Place) -> u8 {
        let record = &mut self.records[seq as usize];
        assert_eq!(record.place, Place::Running, "the harness ends what runs");
        record.place = place;
        let key = record.key;
        self.lane(key).running.retain(|&other| other != seq);
        key
    }

    pub(super) fn put_back(&mut self, seq: u64, hold: Hold) {
        let record = &mut self.records[seq as usize];
        record.place = Place::Waiting;
        let key = record.key;
        let lane = self.lane(key);
        let over = false;
        lane.waiting.push(Item { seq, hold, over });
        lane.waiting.sort_by_key(|item| item.seq);
    }

    pub(super) fn want_flush(&mut self, key: u8) {
        let live = self.live(key);
        let lane = self.lane(key);
        lane.flush = match lane.flush {
            Flush::No if !live => Flush::No,
            Flush::Out | Flush::OutWanted | Flush::OutNow => Flush::OutWanted,
            _ => Flush::Wanted,
        };
    }

    pub(super) fn want_flush_behind(&mut self, key: u8) {
        let lane = self.lane(key);
        lane.flush = match lane.flush {
            Flush::No if !lane.waiting.is_empty() => Flush::Now,
            Flush::Out => Flush::OutNow,
            other => other,
        };
    }

    /// What was taken is dealt with.
    pub(super) fn flush_done(&mut self, key: u8) {
        let lane = self.lane(key);
        match std::mem::replace(&mut lane.flush, Flush::No) {
            Flush::OutWanted => self.want_flush(key),
            Flush::OutNow => self.want_flush_behind(key),
            _ => {}
        }
    }

    /// Takes one waiting item out.
    pub(super) fn resolve_waiting(&mut self, seq: u64) {
        let record = &mut self.records[seq as usize];
        assert_eq!(record.place, Place::Waiting, "the harness takes what waits");
        record.place = Place::Resolved;
        let key = record.key;
        self.lane(key).waiting.retain(|item| item.seq != seq);
    }

    /// Takes all that waits in this lane.
    pub(super) fn take_waiting(&mut self, key: u8, place: Place) -> Vec<u64> {
        let items = std::mem::take(&mut self.lane(key).waiting);
        let seqs: Vec<u64> = items.iter().map(|item| item.seq).collect();
        for &seq in &seqs {
            self.records[seq as usize].place = place;
        }
        seqs
    }

    pub(super) fn evict(&mut self, key: u8) -> Vec<u64> {
        self.lane(key).rate_wait = false;
        self.take_waiting(key, Place::Resolved)
    }

    pub(super) fn reconfigure(&mut self, setup: Setup) {
        let (now, old) = (self.now, std::mem::replace(&mut self.setup, setup));
        self.bucket.change(old.rate, setup.rate, now);
        for key in self.keys() {
            let (before, after) = (old.of(key).rate, setup.of(key).rate);
            self.lane(key).rate_wait = false;
            self.lane(key).bucket.change(before, after, now);
        }
        self.waits = Waits::default();
    }
}

/// What follows from the state.
impl Model {
    pub(super) fn lane_setup(&self, key: u8) -> LaneSetup {
        self.setup.of(key)
    }

    pub(super) fn concurrency(&self, key: u8) -> usize {
        self.lane_setup(key).concurrency.max(1)
    }

    pub(super) fn running(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running.len()).sum()
    }

    pub(super) fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    pub(super) fn live(&self, key: u8) -> bool {
        let lane = self.of(key);
        !lane.waiting.is_empty() || !lane.running.is_empty() || lane.flush != Flush::No
    }

    pub(super) fn dormant(&self, key: u8) -> bool {
        let lane = self.of(key);
        !self.live(key) && (lane.paused || lane.bucket.full_at > self.now)
    }

    pub(super) fn tenant(&self, key: u8) -> usize {
        self.setup.tenant[key as usize] as usize
    }

    pub(super) fn weight(&self, tenant: usize) -> u32 {
        self.setup.weight[tenant].max(1)
    }

    /// How many more of this lane may start as far as the lane is concerned.
    pub(super) fn free(&self, key: u8) -> usize {
        let lane = self.of(key);
        let held = lane
            .waiting
            .first()
            .is_some_and(|front| front.hold != Hold::Free);
        if held || lane.paused || lane.rate_wait || lane.flush != Flush::No {
            return 0;
        }
        self.concurrency(key).saturating_sub(lane.running.len())
    }

    /// Something of this lane could start, if its rate is not asked.
    pub(super) fn may_be_asked(&self, key: u8) -> bool {
        !self.of(key).waiting.is_empty() && self.free(key) > 0
    }

    pub(super) fn ready(&self, key: u8) -> bool {
        self.may_be_asked(key) && self.key_rate_allows(key)
    }

    /// Whether an item of this key, pushed now, would be the next to start, and nothing but its lane's
    /// place has to be kept for that.
    pub(super) fn starts_if_pushed(&self, key: u8) -> bool {
        let Setup { total, queue, .. } = self.setup;
        let exists = self.live(key) || self.dormant(key);
        let before_it = self.keys().any(|other| self.may_be_asked(other));
        !exists && !before_it && self.running() < total && queue == usize::MAX
    }

    pub(super) fn key_rate_allows(&self, key: u8) -> bool {
        let rate = self.lane_setup(key).rate;
        rate.is_none_or(|rate| self.of(key).bucket.next_at(rate) <= self.now)
    }

    /// When time alone changes something about this lane.
    pub(super) fn timer(&self, key: u8) -> Option<u64> {
        let lane = self.of(key);
        match lane.waiting.first().map(|front| front.hold) {
            Some(Hold::Until(Time(at))) => Some(at),
            Some(Hold::UntilReleased) => None,
            Some(Hold::Free) => {
                let rate = self.lane_setup(key).rate.filter(|_| lane.rate_wait)?;
                Some(lane.bucket.next_at(rate))
            }
            None => {
                let full_at = lane.bucket.full_at;
                (!self.live(key) && full_at > self.now).then_some(full_at)
            }
        }
    }

    fn lanes_due_by(&self, now: u64) -> [bool; KEYS] {
        let due = |key| self.timer(key).is_some_and(|at| at <= now.max(self.now));
        std::array::from_fn(|key| due(key as u8))
    }

    /// Items that have room and do not wait to be let in.
    pub(super) fn inside(&self, key: u8) -> usize {
        let waiting = &self.of(key).waiting;
        waiting.iter().filter(|item| !item.over).count()
    }

    pub(super) fn over(&self, key: u8) -> usize {
        self.of(key).waiting.len() - self.inside(key)
    }

    /// Items that only the limits of all keep from starting.
    pub(super) fn held_back_by_all(&self) -> usize {
        let of = |key| self.inside(key).min(self.free(key));
        self.keys().map(of).sum()
    }

    /// How many items the limits of all leave room for.
    pub(super) fn room_of_all(&self) -> usize {
        let permits = self.setup.total.saturating_sub(self.running());
        permits.saturating_add(self.setup.queue)
    }

    /// Whether the next item behind those inside has room too.
    pub(super) fn room_for_next(&self, key: u8) -> Result<(), FullOf> {
        let (inside, free) = (self.inside(key), self.free(key));
        if inside < free {
            let room = self.held_back_by_all() < self.room_of_all();
            return room.then_some(()).ok_or(FullOf::Total);
        }
        let room = inside - free < self.lane_setup(key).queue;
        room.then_some(()).ok_or(FullOf::Key)
    }

    /// Whether a push of this key has room: nothing goes past those that wait to be let in.
    pub(super) fn room(&self, key: u8) -> Result<(), FullOf> {
        match self.over(key) {
            0 => self.room_for_next(key),
            _ => Err(FullOf::Key),
        }
    }

    fn tenant_ready(&self, tenant: usize) -> bool {
        let mut keys = self.keys();
        keys.any(|key| self.tenant(key) == tenant && self.ready(key))
    }

    /// Whoever is not ready has no claim to a turn: counting begins anew.
    pub(super) fn note_who_is_ready(&mut self) {
        for key in self.keys() {
            if !self.ready(key) {
                self.waits.lanes[key as usize] = [0; KEYS];
            }
        }
        for one in 0..TENANTS {
            if !self.tenant_ready(one) {
                self.waits.tenants[one] = [0; TENANTS];
                for other in 0..TENANTS {
                    self.waits.shares[one][other] = 0;
                    self.waits.shares[other][one] = 0;
                }
            }
        }
    }

    fn count_start(&mut self, key: u8) {
        let (mine, tenant) = (key as usize, self.tenant(key));
        for other in self.keys().filter(|&other| other != key) {
            if self.tenant(other) == tenant && self.ready(other) {
                self.waits.lanes[other as usize][mine] += 1;
            }
        }
        self.waits.lanes[mine] = [0; KEYS];
        for other in (0..TENANTS).filter(|&other| other != tenant) {
            if self.tenant_ready(other) {
                self.waits.tenants[other][tenant] += 1;
                self.waits.shares[tenant][other] += 1;
            }
        }
        self.waits.tenants[tenant] = [0; TENANTS];
    }
}

impl Lane {
    fn new() -> Self {
        Self {
            waiting: Vec::new(),
            running: Vec::new(),
            flush: Flush::No,
            paused: false,
            watched: false,
            rate_wait: false,
            bucket: Bucket::default(),
        }
    }
}

impl Bucket {
    pub(super) fn next_at(&self, rate: RateSetup) -> u64 {
        let ahead = rate.interval() * u64::from(rate.burst.max(1) - 1);
        self.full_at.saturating_sub(ahead)
    }

    fn spend(&mut self, rate: RateSetup, now: u64) {
        self.full_at = self.full_at.max(now) + rate.interval();
        self.starts.push(now);
    }

    /// No debt outlasts what could be owed at the new rate.
    fn change(&mut self, old: Option<RateSetup>, new: Option<RateSetup>, now: u64) {
        let most = new.map_or(0, |rate| rate.interval() * u64::from(rate.burst.max(1)));
        self.full_at = self.full_at.min(now + most);
        if old != new {
            self.starts.clear();
        }
    }
}

impl RateSetup {
    fn interval(self) -> u64 {
        self.per.div_ceil(u64::from(self.count))
    }
}
