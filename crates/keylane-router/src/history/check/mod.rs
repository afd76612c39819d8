//! Judges a history: one pass over its events in the order of time, nothing looked at twice.
//!
//! What is never legal: a message *lost*, *overtaken* by one behind it, *overlapping* with another
//! of its lane or with itself, *duplicated* without a cause. A cause is in the history: the router
//! died, gave up on the target, or never heard its answer; the source never heard the ack; the loan
//! ended. After a crash each key repeats at most a contiguous tail of what it had delivered, in
//! order, and all keys together no more than a given bound.
//!
//! A `return` resolves nothing by itself: the message comes again, and what is behind it must
//! still wait for that.

#[cfg(test)]
mod properties;
mod report;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::place::{NOWHERE, Places, place};
use super::{By, EventKind, History, NO_NUMBER, Row};

pub use report::{Cause, Counts, Report, Violation, ViolationKind};

/// What the run promised.
#[derive(Clone, Debug)]
pub struct Options {
    /// Attempts of one lane that may be under way together. With more than one, first attempts
    /// must still start in order.
    pub lane_concurrency: usize,
    /// How many messages may be delivered again because of one crash, for example twice the
    /// concurrency; `None` = not bounded.
    pub max_duplicates_per_crash: Option<u64>,
    /// A message without an end is *unfinished* rather than lost, if the history says that it was
    /// cut.
    pub allow_unfinished: bool,
    /// A `refused` answer resolves its message. For histories without the router's own events,
    /// where the dead letter that follows is not seen.
    pub refused_resolves: bool,
    /// Of each kind of violation at most so many are described; all are counted.
    pub described: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lane_concurrency: 1,
            max_duplicates_per_crash: None,
            allow_unfinished: false,
            refused_resolves: false,
            described: 20,
        }
    }
}

/// Judges the history.
pub fn check(mut history: History, options: &Options) -> Report {
    history.sort_by_time();
    let places = place(&history);
    let mut checker = Checker::new(&history, &places, options);
    for row in 0..history.rows.len() {
        checker.step(row);
    }
    checker.finish()
}

/// "No such row".
const NO_ROW: u32 = u32::MAX;
/// Attempts given up by the router but not yet by the target, remembered per lane.
const GHOSTS: usize = 64;

/// What is known of one message.
#[derive(Clone, Copy, Debug)]
struct Seen {
    publish: u32,
    last: u32,
    first_start: u32,
    /// The number of the attempt that started last.
    started: u32,
    /// The row of the first resolution.
    resolved: u32,
    /// The row of the latest delivery.
    delivered: u32,
    delivered_epoch: u32,
    /// In which epoch a repetition because of a crash was last granted.
    repeated_epoch: u32,
    /// Why the source or the router may not know of a delivery.
    unsettled: Option<Cause>,
    /// The router waits no longer for the attempt of this number, which the target has not seen yet.
    given_up_early: Option<(u32, Cause)>,
    /// Dropped or cancelled: must not start any more.
    gone: bool,
    /// In a store of ours, where it waits for an operator.
    parked: bool,
    /// In a store of ours at some time: the source need not have it.
    stored: bool,
    reported: bool,
}

const UNSEEN: Seen = Seen {
    publish: NO_ROW,
    last: NO_ROW,
    first_start: NO_ROW,
    started: 0,
    resolved: NO_ROW,
    delivered: NO_ROW,
    delivered_epoch: 0,
    repeated_epoch: 0,
    unsettled: None,
    given_up_early: None,
    gone: false,
    parked: false,
    stored: false,
    reported: false,
};

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    message: u32,
    number: u32,
    row: u32,
    epoch: u32,
    /// Why the router no longer waits for it.
    given_up: Option<Cause>,
    /// Why it started although the message was delivered.
    repeat: Option<Cause>,
}

#[derive(Debug)]
struct Lane {
    /// The first message that has no resolution (or, with concurrency above 1, no start).
    head: u32,
    running: Vec<Attempt>,
    ghosts: VecDeque<Attempt>,
    /// Repetition after the crash of `tail_epoch`: the next message it must come to.
    tail_epoch: u32,
    tail_next: u32,
    /// In which epoch a message was last started that was no repetition.
    fresh_epoch: u32,
    fresh_row: u32,
    fresh_message: u32,
    /// The last head that was reported as overtaken: each is, once.
    overtaken: u32,
}

/// Something that ended everything under way at once.
#[derive(Debug)]
struct Incident {
    cause: Cause,
    row: u32,
    /// The last epoch that it ended.
    ended: u32,
    /// Messages delivered before it and after the one before it that came again.
    repeats: u64,
}

struct Checker<'a> {
    history: &'a History,
    places: &'a Places,
    options: &'a Options,
    /// Whether starts by the target are recorded: then a router's own are the same ones.
    target_starts: bool,
    seen: Vec<Seen>,
    lanes: Vec<Lane>,
    /// Grows with each crash and restart; what began in an earlier one was cut by it.
    epoch: u32,
    incidents: Vec<Incident>,
    down: bool,
    cut: bool,
    report: Report,
}

impl<'a> Checker<'a> {
    fn new(history: &'a History, places: &'a Places, options: &'a Options) -> Self {
        let is_target_start =
            |row: &Row| row.kind == EventKind::Start && row.by == Some(By::Target);
        let lane = |first| Lane {
            head: first,
            running: Vec::new(),
            ghosts: VecDeque::new(),
            tail_epoch: 0,
            tail_next: 0,
            fresh_epoch: 0,
            fresh_row: NO_ROW,
            fresh_message: 0,
            overtaken: NOWHERE,
        };
        Self {
            history,
            places,
            options,
            target_starts: history.rows.iter().any(is_target_start),
            seen: vec![UNSEEN; places.number.len()],
            lanes: places.lanes.iter().map(|p| lane(p.first)).collect(),
            epoch: 1,
            incidents: Vec::new(),
            down: false,
            cut: false,
            report: Report::new(history.rows.len() as u64),
        }
    }

    fn step(&mut self, row: usize) {
        let event = self.history.rows[row];
        let message = self.places.message_of_row[row];
        let row = u32::try_from(row).expect("fewer than 2^32 events");
        if message == NOWHERE {
            self.step_of_all(row, &event);
        } else {
            self.step_of_message(row, &event, message);
            self.seen[message as usize].last = row;
        }
    }

    fn step_of_all(&mut self, row: u32, event: &Row) {
        match event.kind {
            EventKind::Crash if event.by == Some(By::Target) => {
                self.incident(row, Cause::AnswerCut)
            }
            EventKind::Crash => {
                self.report.counts.crashes += 1;
                self.incident(row, Cause::Crash);
                self.down = true;
            }
            EventKind::Restart => self.restart(row, event.by),
            EventKind::Rebalance => self.incident(row, Cause::Rebalance),
            EventKind::Cut => {
                self.cut = true;
                self.incident(row, Cause::AnswerCut);
            }
            _ => self.report.counts.unplaced += 1,
        }
    }

    fn incident(&mut self, row: u32, cause: Cause) {
        self.incidents.push(Incident {
            cause,
            row,
            ended: self.epoch,
            repeats: 0,
        });
        self.epoch += 1;
    }

    fn restart(&mut self, row: u32, by: Option<By>) {
        if by == Some(By::Target) {
            return;
        }
        if self.down {
            // A request that was in the network when the router died reaches the target after the
            // crash: it, too, ended with that router.
            if let Some(crash) = self.incidents.last_mut() {
                crash.ended = self.epoch;
            }
            self.epoch += 1;
        } else {
            self.incident(row, Cause::Crash);
        }
        self.down = false;
    }

    fn step_of_message(&mut self, row: u32, event: &Row, message: u32) {
        match event.kind {
            EventKind::Publish => self.publish(row, message),
            EventKind::Start => self.start(row, event, message),
            EventKind::End => self.end(row, event, message),
            EventKind::Timeout => self.give_up(event, message, Cause::Timeout),
            EventKind::Cut => self.give_up(event, message, Cause::AnswerCut),
            EventKind::AckLost => self.seen_mut(message).unsettled = Some(Cause::AckLost),
            EventKind::LeaseLost => self.lose(event, message, Cause::LeaseLost),
            EventKind::Rebalance => self.lose(event, message, Cause::Rebalance),
            EventKind::Store => self.store(row, event, message),
            EventKind::Reject => self.dead_letter(row, message),
            EventKind::Skip => {
                self.report.counts.skipped += 1;
                self.resolve(row, message);
            }
            EventKind::Drop => {
                self.report.counts.dropped += 1;
                self.leave(row, message);
            }
            EventKind::Cancel => {
                self.report.counts.cancelled += 1;
                self.leave(row, message);
            }
            EventKind::Ack => self.ack(row, message),
            EventKind::Return => self.give_back(event, message),
            EventKind::Receive | EventKind::Crash | EventKind::Restart => {}
        }
    }

    fn publish(&mut self, row: u32, message: u32) {
        let seen = self.seen_mut(message);
        // The same number again is a producer that did not hear the answer.
        if seen.publish == NO_ROW {
            seen.publish = row;
            self.report.counts.published += 1;
        }
    }

    fn start(&mut self, row: u32, event: &Row, message: u32) {
        if self.target_starts && event.by != Some(By::Target) {
            return;
        }
        self.report.counts.attempts += 1;
        self.expire(message);
        self.check_overlap(row, message);
        self.check_order(row, message);
        let repeat = self.check_repeat(row, message);
        self.begin(row, event, message, repeat);
    }

    /// Takes out of the lane's running attempts those that a crash has ended.
    fn expire(&mut self, message: u32) {
        let epoch = self.epoch;
        let cause = self.incidents.last().map_or(Cause::Crash, |i| i.cause);
        let lane = &mut self.lanes[self.places.lane_of_message[message as usize] as usize];
        let ended = |attempt: &mut Attempt| attempt.epoch < epoch;
        let cut: Vec<Attempt> = lane.running.extract_if(.., ended).collect();
        for mut attempt in cut {
            attempt.given_up.get_or_insert(cause);
            lane.remember(attempt);
        }
    }

    fn check_overlap(&mut self, row: u32, message: u32) {
        let index = self.lane_of(message);
        let limit = match self.places.lanes[index].ordered() {
            true => self.options.lane_concurrency,
            false => usize::MAX,
        };
        let lane = &mut self.lanes[index];
        let full = lane.running.len() >= limit;
        let mut same = false;
        // Out of the lane with them: an attempt that never ends is reported once.
        let others: Vec<Attempt> = lane
            .running
            .extract_if(.., |a| {
                same |= a.message == message;
                full || a.message == message
            })
            .collect();
        if others.is_empty() {
            return;
        }
        others.iter().for_each(|&attempt| lane.remember(attempt));
        let text = match same {
            true => "it starts while an attempt of the same message is under way",
            false => "it starts while its lane has all its attempts under way",
        };
        let rows = others.iter().map(|a| a.row).collect();
        self.violation(ViolationKind::Overlapping, message, text.into(), rows, row);
    }

    fn check_order(&mut self, row: u32, message: u32) {
        let index = self.lane_of(message);
        let place = &self.places.lanes[index];
        if !place.ordered() {
            return;
        }
        let lane = &mut self.lanes[index];
        let strict = self.options.lane_concurrency == 1;
        while lane.head < place.end && self.seen[lane.head as usize].is_past(strict) {
            lane.head += 1;
        }
        if lane.head < message && lane.overtaken != lane.head {
            lane.overtaken = lane.head;
            let text = format!(
                "it starts before message {} of its lane has {}",
                self.places.number[lane.head as usize],
                if strict { "an end" } else { "started" },
            );
            let ahead = lane.head;
            self.overtaken(row, message, ahead, text);
        }
    }

    fn overtaken(&mut self, row: u32, message: u32, ahead: u32, text: String) {
        let rows = self.seen[ahead as usize].first_and_last();
        self.violation(ViolationKind::Overtaken, message, text, rows, row);
    }

    /// Why this start repeats a delivery, if it does; without a cause it is a violation.
    fn check_repeat(&mut self, row: u32, message: u32) -> Option<Cause> {
        let seen = self.seen[message as usize];
        if seen.gone {
            let text = "it was dropped or cancelled, and starts all the same".into();
            let rows = vec![seen.resolved];
            self.violation(ViolationKind::Duplicated, message, text, rows, row);
            return Some(Cause::Unexplained);
        }
        if seen.delivered == NO_ROW {
            self.fresh_start(row, message);
            return None;
        }
        let comes_again = seen.unsettled.filter(|cause| cause.is_of_the_source());
        if comes_again.is_some() {
            return comes_again;
        }
        if seen.delivered_epoch < self.epoch {
            return Some(self.repeat_after_crash(row, message));
        }
        if seen.unsettled.is_none() {
            let text = "it was delivered, and starts again without a cause".into();
            let rows = vec![seen.delivered];
            self.violation(ViolationKind::Duplicated, message, text, rows, row);
        }
        Some(seen.unsettled.unwrap_or(Cause::Unexplained))
    }

    /// A message starts that was not delivered yet: a repetition of the lane's tail must be over.
    fn fresh_start(&mut self, row: u32, message: u32) {
        let index = self.lane_of(message);
        if self.follows_tail(index) {
            let next = self.tail_next(index, message);
            if next < message {
                let text = format!(
                    "its key repeats after a crash, but leaves out message {}",
                    self.places.number[next as usize]
                );
                let rows = vec![self.seen[next as usize].delivered];
                self.crash_violation(message, text, rows, row);
            }
        }
        let lane = &mut self.lanes[index];
        (lane.fresh_epoch, lane.fresh_row) = (self.epoch, row);
        lane.fresh_message = message;
    }

    fn repeat_after_crash(&mut self, row: u32, message: u32) -> Cause {
        let seen = self.seen[message as usize];
        let incident = self.incident_after(seen.delivered_epoch);
        let cause = incident.cause;
        if seen.repeated_epoch == self.epoch {
            return cause; // a retry within a repetition that was granted
        }
        self.seen_mut(message).repeated_epoch = self.epoch;
        if seen.repeated_epoch <= seen.delivered_epoch {
            self.count_repeat(row, message, seen.delivered_epoch);
        }
        if self.strict_lane(self.lane_of(message)) {
            self.check_tail(row, message);
        }
        cause
    }

    /// The one that a delivery did not outlive: later ones found it undone already.
    fn incident_after(&mut self, delivered_epoch: u32) -> &mut Incident {
        let at = self
            .incidents
            .partition_point(|incident| incident.ended < delivered_epoch);
        let incident = self.incidents.get_mut(at);
        incident.expect("a later epoch has an incident")
    }

    fn count_repeat(&mut self, row: u32, message: u32, delivered_epoch: u32) {
        let incident = self.incident_after(delivered_epoch);
        incident.repeats += 1;
        let (repeats, crash) = (incident.repeats, incident.row);
        if let Some(bound) = self.options.max_duplicates_per_crash
            && repeats == bound + 1
        {
            let text = format!("more than {bound} messages come again after one crash");
            let rows = vec![crash];
            self.violation(ViolationKind::Duplicated, message, text, rows, row);
        }
    }

    fn check_tail(&mut self, row: u32, message: u32) {
        let index = self.lane_of(message);
        let lane = &self.lanes[index];
        if lane.fresh_epoch == self.epoch && lane.fresh_message > message {
            let text = "it comes again after a crash, behind a message that follows it".into();
            let rows = vec![lane.fresh_row];
            self.crash_violation(message, text, rows, row);
        } else if lane.tail_epoch == self.epoch {
            let next = self.tail_next(index, message);
            if next != message {
                let text = "its key repeats after a crash, but not in order or not all of it";
                self.crash_violation(message, text.into(), Vec::new(), row);
            }
        }
        let lane = &mut self.lanes[index];
        (lane.tail_epoch, lane.tail_next) = (self.epoch, message + 1);
    }

    /// The next message of the repeated tail, at most `up_to`; what was not delivered before the
    /// crash (a dead letter, or what is newer) is passed over.
    fn tail_next(&mut self, index: usize, up_to: u32) -> u32 {
        let epoch = self.epoch;
        let lane = &mut self.lanes[index];
        let in_tail = |seen: &Seen| seen.delivered != NO_ROW && seen.delivered_epoch < epoch;
        while lane.tail_next < up_to && !in_tail(&self.seen[lane.tail_next as usize]) {
            lane.tail_next += 1;
        }
        lane.tail_next
    }

    fn follows_tail(&self, index: usize) -> bool {
        self.strict_lane(index) && self.lanes[index].tail_epoch == self.epoch
    }

    fn strict_lane(&self, index: usize) -> bool {
        self.options.lane_concurrency == 1 && self.places.lanes[index].ordered()
    }

    fn begin(&mut self, row: u32, event: &Row, message: u32, repeat: Option<Cause>) {
        let epoch = self.epoch;
        let seen = self.seen_mut(message);
        seen.parked = false;
        let again = seen.first_start != NO_ROW;
        if !again {
            seen.first_start = row;
        }
        seen.started = event.attempt;
        let early = seen.given_up_early.take();
        let given_up = early.filter(|(number, _)| *number == event.attempt);
        self.report.counts.retries += u64::from(again && repeat.is_none());
        let attempt = Attempt {
            message,
            number: event.attempt,
            row,
            epoch,
            given_up: given_up.map(|(_, cause)| cause),
            repeat,
        };
        let index = self.lane_of(message);
        match attempt.given_up {
            Some(_) => self.lanes[index].remember(attempt),
            None => self.lanes[index].running.push(attempt),
        }
    }

    fn end(&mut self, row: u32, event: &Row, message: u32) {
        self.expire(message);
        let delivered = self.history.is_text(event.outcome, "delivered");
        if self.target_starts && event.by == Some(By::Router) {
            // What the target has is the target's to say; but with a failure the router is no
            // longer waiting for it.
            if !delivered {
                self.abandon(event, message, Cause::AnswerCut);
            }
            return;
        }
        let running = self.take_attempt(event, message);
        let attempt = running.or_else(|| self.take_ghost(event, message));
        if delivered {
            self.deliver(row, message, attempt);
        } else if self.options.refused_resolves && self.history.is_text(event.outcome, "refused") {
            self.resolve(row, message);
        }
    }

    fn deliver(&mut self, row: u32, message: u32, attempt: Option<Attempt>) {
        let given_up = attempt.and_then(|a| a.given_up);
        let repeat = attempt.and_then(|a| a.repeat);
        let epoch = attempt.map_or(self.epoch, |a| a.epoch);
        let seen = self.seen_mut(message);
        let first = seen.delivered == NO_ROW;
        let cause = repeat.or(given_up).or(seen.unsettled);
        if given_up.is_none() {
            seen.unsettled = None;
        } else if first {
            seen.unsettled = given_up;
        }
        seen.delivered = row;
        seen.delivered_epoch = seen.delivered_epoch.max(epoch);
        self.resolve(row, message);
        match first {
            true => self.report.counts.delivered += 1,
            false => self
                .report
                .counts
                .duplicate(cause.unwrap_or(Cause::Unexplained)),
        }
    }

    /// The running attempt that this event is about: the one with its number, else the oldest.
    fn take_attempt(&mut self, event: &Row, message: u32) -> Option<Attempt> {
        let index = self.lane_of(message);
        let running = &mut self.lanes[index].running;
        let found = position(running.iter(), event, message)?;
        Some(running.remove(found))
    }

    fn take_ghost(&mut self, event: &Row, message: u32) -> Option<Attempt> {
        let index = self.lane_of(message);
        let ghosts = &mut self.lanes[index].ghosts;
        let found = position(ghosts.iter(), event, message)?;
        ghosts.remove(found)
    }

    /// The router waits no longer for an attempt's answer, whether or not the target gives one.
    fn give_up(&mut self, event: &Row, message: u32, cause: Cause) {
        self.expire(message);
        if !self.abandon(event, message, cause) {
            let seen = self.seen_mut(message);
            seen.unsettled = Some(cause);
            if event.attempt != seen.started {
                seen.given_up_early = Some((event.attempt, cause));
            }
        }
    }

    /// The loan is over: what runs settles nothing, and the message comes again.
    fn lose(&mut self, event: &Row, message: u32, cause: Cause) {
        self.give_up(event, message, cause);
        self.seen_mut(message).unsettled = Some(cause);
    }

    fn give_back(&mut self, event: &Row, message: u32) {
        self.report.counts.returned += 1;
        self.expire(message);
        self.seen_mut(message).given_up_early = None;
        self.abandon(event, message, Cause::AnswerCut);
    }

    /// Ends the running attempt for the router; false when there is none.
    fn abandon(&mut self, event: &Row, message: u32, cause: Cause) -> bool {
        let Some(mut attempt) = self.take_attempt(event, message) else {
            return false;
        };
        attempt.given_up = Some(cause);
        let index = self.lane_of(message);
        self.lanes[index].remember(attempt);
        true
    }

    fn store(&mut self, row: u32, event: &Row, message: u32) {
        let parked = self.history.is_text(event.outcome, "parked");
        let spilled = self.history.is_text(event.outcome, "spilled");
        if !parked && !spilled {
            self.dead_letter(row, message);
        }
        let seen = self.seen_mut(message);
        seen.stored = true;
        seen.parked = parked;
    }

    fn dead_letter(&mut self, row: u32, message: u32) {
        self.report.counts.dead_lettered += 1;
        self.resolve(row, message);
    }

    fn leave(&mut self, row: u32, message: u32) {
        self.resolve(row, message);
        self.seen_mut(message).gone = true;
    }

    fn resolve(&mut self, row: u32, message: u32) {
        let seen = self.seen_mut(message);
        seen.parked = false;
        if seen.resolved == NO_ROW {
            seen.resolved = row;
        }
    }

    fn ack(&mut self, row: u32, message: u32) {
        let seen = self.seen[message as usize];
        if seen.resolved != NO_ROW || seen.stored || seen.reported {
            return;
        }
        self.seen_mut(message).reported = true;
        let text = "the source may forget it, and nobody has it".into();
        let rows = seen.first_and_last();
        self.violation(ViolationKind::Lost, message, text, rows, row);
    }

    fn finish(mut self) -> Report {
        let forgiven = self.options.allow_unfinished && self.cut;
        for message in 0..u32::try_from(self.seen.len()).expect("as many as were placed") {
            let seen = self.seen[message as usize];
            if seen.publish == NO_ROW || seen.resolved != NO_ROW || seen.reported {
                continue;
            }
            if seen.parked {
                self.report.counts.parked += 1;
            } else if forgiven {
                self.report.counts.unfinished += 1;
            } else {
                let text = "it was published and never came to an end".into();
                let before = if seen.last == seen.publish {
                    vec![]
                } else {
                    vec![seen.publish]
                };
                self.violation(ViolationKind::Lost, message, text, before, seen.last);
            }
        }
        self.report.counts.keys = self.lanes.len() as u64;
        self.report
    }

    fn crash_violation(&mut self, message: u32, text: String, mut rows: Vec<u32>, row: u32) {
        rows.extend(self.incidents.last().map(|incident| incident.row));
        self.violation(ViolationKind::Duplicated, message, text, rows, row);
    }

    fn violation(
        &mut self,
        kind: ViolationKind,
        message: u32,
        text: String,
        mut rows: Vec<u32>,
        row: u32,
    ) {
        if self.report.add(kind) > self.options.described as u64 {
            return;
        }
        rows.push(row);
        rows.sort_unstable();
        let place = &self.places.lanes[self.lane_of(message)];
        let number = self.places.number[message as usize];
        let name = |text| self.history.text(text).as_deref().map(String::from);
        let event = |&row: &u32| self.history.event(&self.history.rows[row as usize]);
        self.report.violations.push(Violation {
            kind,
            source: name(place.source),
            pool: name(place.pool),
            key: name(place.key),
            n: (number != NO_NUMBER).then_some(number),
            text,
            excerpt: rows.iter().map(event).collect(),
        });
    }

    fn lane_of(&self, message: u32) -> usize {
        self.places.lane_of_message[message as usize] as usize
    }

    fn seen_mut(&mut self, message: u32) -> &mut Seen {
        &mut self.seen[message as usize]
    }
}

impl Seen {
    /// Whether those behind it may start.
    fn is_past(&self, strict: bool) -> bool {
        self.resolved != NO_ROW || (!strict && self.first_start != NO_ROW)
    }

    /// The rows that show how far it has come.
    fn first_and_last(&self) -> Vec<u32> {
        let rows = [self.publish, self.last].into_iter();
        let mut rows: Vec<u32> = rows.filter(|&row| row != NO_ROW).collect();
        rows.dedup();
        rows
    }
}

impl Lane {
    /// Keeps an attempt that was given up, so that a late end finds it.
    fn remember(&mut self, attempt: Attempt) {
        if self.ghosts.len() == GHOSTS {
            self.ghosts.pop_front();
        }
        self.ghosts.push_back(attempt);
    }
}

/// The attempt of this number, else the oldest where one of the two has no number.
fn position<'x>(
    mut attempts: impl Iterator<Item = &'x Attempt> + Clone,
    event: &Row,
    message: u32,
) -> Option<usize> {
    let numbered = |a: &Attempt| a.message == message && a.number == event.attempt;
    let exact = attempts.clone().position(numbered);
    let unnumbered = |a: &Attempt| a.number == 0 || event.attempt == 0;
    exact.or_else(|| attempts.position(|a| a.message == message && unnumbered(a)))
}
