//! The lanes and the model side by side: each step is done to both and their answers compared.

use std::cell::Cell;

use keylane::lanes::{FlushId, Flushed, Full, Hold, ItemId, Lanes, Next, Ticket, Time};

use super::Checked;
use super::checks::{self, check};
use super::history::{Gate, Setup, Step};
use super::model::{Flush, Model, Place};

/// What is submitted: its number is its sequence. Not `Clone`: a lane cannot make two of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Job(pub(super) u64);

/// A flush that is not over.
pub(super) struct Out {
    pub(super) key: u8,
    id: FlushId,
    pub(super) jobs: Vec<(u64, Job)>,
}

pub(super) struct Beside {
    pub(super) lanes: Lanes<u8, Job>,
    pub(super) model: Model,
    pub(super) tickets: Vec<Ticket>,
    pub(super) out: Vec<Out>,
    ids: Vec<ItemId>,
    /// What this step lets in by taking it out.
    taken: Vec<u64>,
}

impl Beside {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            lanes: Lanes::new(setup.limits()),
            model: Model::new(setup),
            tickets: Vec::new(),
            out: Vec::new(),
            ids: Vec::new(),
            taken: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, step: Step) -> Checked {
        let visited = self.lanes.visited();
        self.taken.clear();
        let asked = self.perform(step)?;
        check!(checks::l13_only_lanes_that_are_asked_are_looked_at(
            self.lanes.visited() - visited,
            asked
        ))?;
        self.compare_flushed()?;
        self.compare_emptied()?;
        self.compare_admitted(step)?;
        self.model.note_who_is_ready();
        checks::after_each_step(self)
    }

    /// How many times the gate was asked.
    fn perform(&mut self, step: Step) -> Result<usize, String> {
        match step {
            Step::Next { later, gate } => return self.next(later, gate),
            Step::StartNew { key } => return self.start_new(key),
            Step::Push { key } => self.push(key),
            Step::PushOver { key } => self.push_over(key),
            Step::Done { nth } => self.done(nth),
            Step::Hold { nth, hold } => self.hold(nth, hold.from(self.model.now)),
            Step::FlushFrom { nth, put_back } => self.flush_from(nth, put_back),
            Step::Flush { key } => self.flush(key),
            Step::FlushBehind { key } => self.flush_behind(key),
            Step::FlushAll => self.flush_all(),
            Step::FlushDone { nth, keep } => self.flush_done(nth, keep),
            Step::Tick { later } => self.tick(later),
            Step::Release { key } => self.release(key),
            Step::ReleaseWaiting { key } => self.release_waiting(key),
            Step::Pause { key } => self.pause(key),
            Step::Resume { key } => self.resume(key),
            Step::Cancel { nth } => self.cancel(nth),
            Step::TakeHead { key, wanted } => self.take_head(key, wanted),
            Step::Evict { key } => self.evict(key),
            Step::EvictAll => self.evict_all(),
            Step::Reconfigure(setup) => self.reconfigure(setup),
            Step::Watch { key } => self.watch(key),
        }?;
        Ok(0)
    }

    fn push(&mut self, key: u8) -> Checked {
        let (seq, setup) = (self.model.next_seq(), self.model.setup);
        let (known, asked) = (self.lanes.knows(&key), Cell::new(false));
        let spec = |key: &u8| {
            asked.set(true);
            setup.spec(*key)
        };
        let pushed = self.lanes.push(key, Job(seq), spec);
        self.spec_was_asked(key, known, asked.get())?;
        let (expected, answer) = (self.model.room(key), pushed.as_ref());
        check!(checks::a_push_is_refused_exactly_for_lack_of_room(
            expected,
            answer.map(|_| ()).map_err(|full| full.limit)
        ))?;
        match pushed {
            Ok(id) => self.submitted(key, id, false),
            Err(Full { job, .. }) if job == Job(seq) => Ok(()),
            Err(full) => Err(format!("another job came back: {:?}", full.job)),
        }
    }

    /// As a push and a `next` with an open gate, or nothing at all.
    fn start_new(&mut self, key: u8) -> Result<usize, String> {
        let (seq, setup) = (self.model.next_seq(), self.model.setup);
        if !setup.is_plain(key) {
            return Ok(0);
        }
        let may = self.model.starts_if_pushed(key) && !self.lanes.needs_clock();
        match self.lanes.start_new(key, Job(seq)) {
            Ok((ticket, job)) if may => {
                self.model.submit(key, false);
                self.model.note_who_is_ready();
                checks::before_a_lane_is_asked(&self.model, key, seq)?;
                self.model.gated(key, Hold::Free);
                self.compare_next(Next::Start(ticket, job), Some((key, seq)))?;
                Ok(1)
            }
            Err(back) if !may && back == (key, Job(seq)) => Ok(0),
            answer => Err(format!("start_new of {key} says {answer:?}, it may: {may}")),
        }
    }

    fn push_over(&mut self, key: u8) -> Checked {
        let (seq, setup) = (self.model.next_seq(), self.model.setup);
        let (known, asked) = (self.lanes.knows(&key), Cell::new(false));
        let spec = |key: &u8| {
            asked.set(true);
            setup.spec(*key)
        };
        let (id, admitted) = self.lanes.push_over(key, Job(seq), spec);
        self.spec_was_asked(key, known, asked.get())?;
        let expected = self.model.room(key).is_ok();
        if admitted != expected {
            return Err(format!("push_over says {admitted}, the model {expected}"));
        }
        self.submitted(key, id, !admitted)
    }

    fn spec_was_asked(&mut self, key: u8, known: bool, asked: bool) -> Checked {
        if known == asked {
            return Err(format!("lane {key} known: {known}, spec asked: {asked}"));
        }
        if asked {
            self.model.lane(key).rate_wait = false;
        }
        Ok(())
    }

    fn submitted(&mut self, key: u8, id: ItemId, over: bool) -> Checked {
        if id.sequence() != self.model.next_seq() {
            return Err(format!("{id:?} is not the next in the order of submits"));
        }
        self.ids.push(id);
        self.model.submit(key, over);
        Ok(())
    }

    fn next(&mut self, later: u64, gate: Gate) -> Result<usize, String> {
        let now = self.model.now + later;
        let mut asked = Vec::new();
        let next = self.lanes.next(Time(now), |&key, job| {
            let answer = gate.answer(asked.len(), now);
            asked.push((key, job.0, answer));
            answer
        });
        self.model.tick(now);
        for (at, &(key, seq, answer)) in asked.iter().enumerate() {
            checks::before_a_lane_is_asked(&self.model, key, seq)?;
            self.model.gated(key, answer);
            if at + 1 < asked.len() && self.model.ready(key) {
                return Err(format!("L6: lane {key} was let through and passed over"));
            }
        }
        let last = asked.last().map(|&(key, seq, _)| (key, seq));
        self.compare_next(next, last)?;
        Ok(asked.len())
    }

    fn compare_next(&mut self, next: Next<Job>, last: Option<(u8, u64)>) -> Checked {
        match next {
            Next::Start(ticket, job) => {
                let Some((key, seq)) = last.filter(|&(_, seq)| seq == job.0) else {
                    return Err(format!("L6: {job:?} starts, asked was {last:?}"));
                };
                self.start(key, seq, ticket)
            }
            Next::Nothing => {
                check!(checks::l6_nothing_only_when_no_lane_is_ready(&self.model))
            }
            Next::NoPermit => {
                check!(checks::l6_no_permit_only_when_all_are_taken(&self.model))
            }
            Next::RateUntil(Time(at)) => {
                let key = last.map(|(key, _)| key);
                check!(checks::l6_the_rate_says_exactly_until_when(
                    &self.model,
                    key,
                    at
                ))
            }
        }
    }

    fn start(&mut self, key: u8, seq: u64, ticket: Ticket) -> Checked {
        checks::before_a_start(&self.model, key, seq)?;
        if ticket.sequence() != seq || *self.lanes.key_of(&ticket) != key {
            return Err(format!("{ticket:?} is not of lane {key}, item {seq}"));
        }
        let rates = check!(checks::l12_both_rates_allow_the_start(&self.model, key));
        self.taken.push(seq);
        self.tickets.push(ticket);
        self.model.start(key);
        checks::after_a_start(&self.model, key)?;
        rates
    }

    /// One of the tickets that are out, if any.
    fn ticket(&mut self, nth: usize) -> Option<Ticket> {
        let count = self.tickets.len();
        (count > 0).then(|| self.tickets.swap_remove(nth % count))
    }

    fn done(&mut self, nth: usize) -> Checked {
        if let Some(ticket) = self.ticket(nth) {
            self.model.end(ticket.sequence(), Place::Resolved);
            self.lanes.done(ticket);
        }
        Ok(())
    }

    fn hold(&mut self, nth: usize, hold: Hold) -> Checked {
        if let Some(ticket) = self.ticket(nth) {
            let seq = ticket.sequence();
            self.model.end(seq, Place::Waiting);
            self.model.put_back(seq, hold);
            self.lanes.hold(ticket, Job(seq), hold);
        }
        Ok(())
    }

    fn flush_from(&mut self, nth: usize, put_back: bool) -> Checked {
        if let Some(ticket) = self.ticket(nth) {
            let seq = ticket.sequence();
            let key = self.model.end(seq, Place::Resolved);
            if put_back {
                self.model.put_back(seq, Hold::Free);
            }
            self.model.want_flush(key);
            self.lanes.flush_from(ticket, put_back.then_some(Job(seq)));
        }
        Ok(())
    }

    fn flush(&mut self, key: u8) -> Checked {
        let exists = self.model.live(key) || self.model.dormant(key);
        self.model.want_flush(key);
        match self.lanes.flush(&key) == exists {
            true => Ok(()),
            false => Err(format!("flush of {key}; a lane exists: {exists}")),
        }
    }

    fn flush_behind(&mut self, key: u8) -> Checked {
        let exists = self.model.live(key) || self.model.dormant(key);
        self.model.want_flush_behind(key);
        match self.lanes.flush_behind(&key) == exists {
            true => Ok(()),
            false => Err(format!("flush behind {key}; a lane exists: {exists}")),
        }
    }

    fn flush_all(&mut self) -> Checked {
        for key in self.model.keys() {
            self.model.want_flush(key);
        }
        self.lanes.flush_all();
        Ok(())
    }

    fn flush_done(&mut self, nth: usize, keep: u32) -> Checked {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = self.out.swap_remove(nth % self.out.len());
        let mut kept = Vec::new();
        for (at, (seq, job)) in out.jobs.into_iter().enumerate() {
            if keep & (1 << (at % 32)) != 0 {
                self.model.put_back(seq, Hold::Free);
                kept.push((seq, job));
            } else {
                self.model.records[seq as usize].place = Place::Resolved;
            }
        }
        self.model.flush_done(out.key);
        self.lanes.flush_done(out.id, kept);
        Ok(())
    }

    fn tick(&mut self, later: u64) -> Checked {
        let now = self.model.now + later;
        self.lanes.tick(Time(now));
        self.model.tick(now);
        check!(checks::l9_a_tick_ends_what_ends_by_then(self))
    }

    fn release(&mut self, key: u8) -> Checked {
        for item in &mut self.model.lane(key).waiting {
            item.hold = Hold::Free;
        }
        self.lanes.release(&key);
        Ok(())
    }

    fn release_waiting(&mut self, key: u8) -> Checked {
        let waiting = &mut self.model.lane(key).waiting;
        let front = waiting.first().map(|front| front.hold);
        for item in waiting {
            if item.hold == Hold::UntilReleased {
                item.hold = Hold::Free;
            }
        }
        let starts = front == Some(Hold::UntilReleased) && self.model.ready(key);
        match self.lanes.release_waiting(&key) == starts {
            true => Ok(()),
            false => Err(format!("lane {key} can start: {starts}")),
        }
    }

    fn pause(&mut self, key: u8) -> Checked {
        let setup = self.model.setup;
        let (known, asked) = (self.lanes.knows(&key), Cell::new(false));
        self.lanes.pause(key, |key| {
            asked.set(true);
            setup.spec(*key)
        });
        self.model.lane(key).paused = true;
        self.spec_was_asked(key, known, asked.get())
    }

    fn resume(&mut self, key: u8) -> Checked {
        let was = std::mem::replace(&mut self.model.lane(key).paused, false);
        match self.lanes.resume(&key) == was {
            true => Ok(()),
            false => Err(format!("L14: resume of {key}; it was paused: {was}")),
        }
    }

    fn cancel(&mut self, nth: usize) -> Checked {
        let count = self.ids.len();
        if count == 0 {
            return Ok(());
        }
        let id = self.ids[count - 1 - nth % count];
        let record = &self.model.records[id.sequence() as usize];
        let (key, waits) = (record.key, record.place == Place::Waiting);
        let job = self.lanes.cancel(id);
        let expected = waits.then_some(Job(id.sequence()));
        if waits {
            self.model.resolve_waiting(id.sequence());
        }
        check!(checks::l11_only_what_waits_can_be_cancelled(job, expected))?;
        check!(checks::l11_a_cancelled_item_frees_its_place_at_once(
            self, key
        ))
    }

    fn take_head(&mut self, key: u8, wanted: bool) -> Checked {
        let front = self.model.of(key).waiting.first().map(|item| item.seq);
        let taken = self.lanes.take_head(&key, |job| {
            assert_eq!(Some(job.0), front, "the head is asked about");
            wanted
        });
        let expected = front.filter(|_| wanted).map(Job);
        if let Some(Job(seq)) = expected {
            self.model.resolve_waiting(seq);
        }
        check!(checks::l11_only_what_waits_can_be_cancelled(
            taken, expected
        ))?;
        check!(checks::l11_a_cancelled_item_frees_its_place_at_once(
            self, key
        ))
    }

    fn evict(&mut self, key: u8) -> Checked {
        let jobs = self.lanes.evict(&key);
        let expected = self.model.evict(key);
        self.taken.extend(&expected);
        check!(checks::l4_an_evict_gives_back_all_that_waits(
            jobs, expected
        ))
    }

    fn evict_all(&mut self) -> Checked {
        let mut jobs = self.lanes.evict_all();
        jobs.sort_by_key(|job| (self.model.records[job.0 as usize].key, job.0));
        let mut expected = Vec::new();
        let model = &mut self.model;
        for key in model.keys() {
            if model.live(key) {
                expected.extend(model.evict(key));
            }
        }
        self.taken.extend(&expected);
        check!(checks::l4_an_evict_gives_back_all_that_waits(
            jobs, expected
        ))
    }

    fn reconfigure(&mut self, setup: Setup) -> Checked {
        self.model.reconfigure(setup);
        self.lanes
            .reconfigure(setup.limits(), |key| setup.spec(*key));
        Ok(())
    }

    fn watch(&mut self, key: u8) -> Checked {
        let live = self.model.live(key);
        self.model.lane(key).watched = live;
        match self.lanes.watch(&key) == live {
            true => Ok(()),
            false => Err(format!("watch of {key}; it lives: {live}")),
        }
    }

    fn compare_flushed(&mut self) -> Checked {
        let mut flushed = self.lanes.take_flushed();
        flushed.sort_by_key(|flushed| flushed.key);
        let mut flushed = flushed.into_iter();
        for key in self.model.keys() {
            let lane = self.model.of(key);
            let running = lane.running.len();
            match lane.flush {
                Flush::Now => {}
                Flush::Wanted if running == 0 => {}
                _ => continue,
            }
            self.model.lane(key).flush = Flush::Out;
            let expected = self.model.take_waiting(key, Place::Out);
            self.taken.extend(&expected);
            let next = flushed.next();
            check!(checks::l10_a_flush_takes_exactly_what_waits(
                key, expected, running, &next
            ))?;
            let Flushed { key, jobs, id, .. } = next.expect("just checked");
            self.out.push(Out { key, id, jobs });
        }
        let more = flushed.next();
        check!(checks::l10_a_flush_waits_for_what_runs(&more))
    }

    fn compare_emptied(&mut self) -> Checked {
        let mut emptied = self.lanes.take_emptied();
        emptied.sort_unstable();
        let mut expected = Vec::new();
        for key in self.model.keys() {
            let live = self.model.live(key);
            let exists = live || self.model.dormant(key);
            let lane = self.model.lane(key);
            if !live && std::mem::take(&mut lane.watched) {
                expected.push(key);
            }
            lane.rate_wait &= exists;
        }
        match emptied == expected {
            true => Ok(()),
            false => Err(format!("told empty: {emptied:?}, are: {expected:?}")),
        }
    }

    fn compare_admitted(&mut self, step: Step) -> Checked {
        let mut lets_in = Vec::new();
        for seq in self.lanes.take_admitted() {
            if self.taken.contains(&seq) {
                continue;
            }
            let key = self.model.records[seq as usize].key;
            let lane = self.model.lane(key);
            match lane.waiting.iter_mut().find(|item| item.over) {
                Some(first) if first.seq == seq => first.over = false,
                _ => return Err(format!("item {seq} of lane {key} was let in")),
            }
            lets_in.push(key);
        }
        check!(checks::room_is_given_as_soon_as_there_is_some(&self.model))?;
        if matches!(step, Step::Next { .. } | Step::Tick { .. }) {
            return Ok(());
        }
        check!(checks::only_as_many_are_let_in_as_have_room(
            &self.model,
            &lets_in
        ))
    }

    /// Ends everything, and looks at what is left: nothing.
    pub(super) fn drain(&mut self) -> Checked {
        let mut setup = self.model.setup;
        setup.total = setup.total.max(1);
        self.step(Step::Reconfigure(setup))?;
        for key in self.model.keys() {
            self.step(Step::Resume { key })?;
        }
        let steps = 8 * (self.model.waiting() + self.model.running()) + 64;
        for _ in 0..steps {
            if self.lanes.is_idle() {
                break;
            }
            self.drain_a_little()?;
        }
        self.step(Step::Tick { later: 1_000 })?;
        check!(checks::l8_nothing_is_left_when_all_is_done(&self.lanes))
    }

    fn drain_a_little(&mut self) -> Checked {
        self.step(Step::FlushDone { nth: 0, keep: 0b10 })?;
        for key in self.model.keys() {
            if let Some(front) = self.model.of(key).waiting.first()
                && front.hold == Hold::UntilReleased
            {
                self.step(Step::Release { key })?;
            }
        }
        let (later, gate) = (3, Gate::OPEN);
        self.step(Step::Next { later, gate })?;
        self.step(Step::Done { nth: 0 })
    }
}
