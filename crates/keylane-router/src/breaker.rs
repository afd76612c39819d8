//! Circuit breakers, one per target origin and shared by pools: an origin that fails is left alone
//! for a while instead of being called by every lane in turn.
//!
//! The window is over lanes, not calls. Closed, all calls go through; the first attempt of a
//! message is its lane's result, which replaces the lane's older one. Retries do not count, so that
//! one failing key is one result, however often it is called. When enough lanes are in the window
//! and enough of them failed, the breaker opens. After a while it is half open: it lets a few
//! probes through, whatever their attempt number. One that fails opens it again; when as many have
//! succeeded as there are probes, it closes.
//!
//! [`Table`] is the rule as plain data, with time passed in. [`Breakers`] puts a lock around it
//! and makes a call a value that gives its slot back when dropped. Which lanes wait for an origin
//! is the caller's business: a [`Change`] says when to look again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::map::Map;
use crate::outcome::Outcome;
use crate::plan::BreakerPlan;

/// How many origins are known at once, unless told otherwise.
pub const ORIGINS: usize = 10_000;

/// Whether a call may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Yes.
    Go,
    /// No, not before then; [`ChangeKind::Opened`] said so too.
    OpenUntil(Instant),
    /// Half open, and as many probes are under way as may be. [`Change`] tells when one is free.
    NoSlot,
}

/// How a call ended, as far as the origin's health goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The origin answered, whatever it said, and the answer is no breaker failure.
    Answered,
    /// A breaker failure.
    Failed,
    /// Nothing was learnt: the call was cut by us, or never made.
    Unknown,
}

impl Verdict {
    /// What an outcome says about the origin.
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Delivered | Outcome::NotYet { .. } => Self::Answered,
            Outcome::Busy { reason, .. } | Outcome::Failed(reason) | Outcome::Refused(reason) => {
                match (reason.breaker_failure, reason.status) {
                    (true, _) => Self::Failed,
                    (false, Some(_)) => Self::Answered,
                    // No answer and no failure: no call was made.
                    (false, None) => Self::Unknown,
                }
            }
        }
    }
}

/// Something those who wait for an origin must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which origin.
    pub origin: Arc<str>,
    /// What changed.
    pub kind: ChangeKind,
}

/// What changed for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Open until then; at that time wake as many as there are `probes`.
    Opened(Instant),
    /// Still open, until then: a probe failed, or the plan changed.
    OpenUntil(Instant),
    /// A probe ended without a result: wake one.
    SlotFree,
    /// Closed: wake all.
    Closed,
}

/// A call that was let through; hand it to [`Table::end`] exactly once.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    place: usize,
    /// Whose result it is while the breaker is closed; none for a retry.
    lane: Option<u64>,
    /// Which of the entry's states the call belongs to; results of earlier ones say nothing.
    era: u64,
}

/// All breakers as plain data.
#[derive(Debug)]
pub struct Table {
    plan: BreakerPlan,
    capacity: usize,
    places: Map<Arc<str>, usize>,
    entries: Vec<Entry>,
    /// Where the search for an entry to forget goes on.
    hand: usize,
    /// How many entries are not closed: whether the search can succeed.
    unwell: usize,
    /// Counts states over all entries, so that a ticket never fits another entry's state.
    eras: u64,
}

#[derive(Debug)]
struct Entry {
    origin: Arc<str>,
    era: u64,
    state: State,
    /// Used since the hand last passed.
    used: bool,
}

/// An origin whose breaker is not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwell {
    /// Which origin.
    pub origin: Arc<str>,
    /// When it opened first.
    pub since: Instant,
    /// Until when it is open; `None` while it is half open.
    pub until: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Closed(Window),
    Open {
        /// Since it was closed last.
        since: Instant,
        until: Instant,
    },
    HalfOpen {
        since: Instant,
        /// Probes under way.
        running: usize,
        /// Probes that succeeded.
        good: usize,
    },
}

/// The last results, one of each lane.
#[derive(Debug, Default)]
struct Window {
    /// Oldest first.
    results: BTreeMap<u64, Seen>,
    /// Where the result of a lane is.
    of: Map<u64, u64>,
    failures: usize,
    next: u64,
}

/// The result of a lane.
#[derive(Debug)]
struct Seen {
    lane: u64,
    failed: bool,
    at: Instant,
}

impl Window {
    fn push(&mut self, lane: u64, failed: bool, now: Instant, plan: &BreakerPlan) {
        if let Some(&place) = self.of.get(&lane) {
            self.forget(place);
        }
        let at = now;
        self.results.insert(self.next, Seen { lane, failed, at });
        self.of.insert(lane, self.next);
        self.failures += usize::from(failed);
        self.next += 1;
        self.keep(plan.window.get());
        self.keep_since(now, plan.open);
    }

    fn lanes(&self) -> usize {
        self.results.len()
    }

    fn forget(&mut self, place: u64) {
        if let Some(seen) = self.results.remove(&place) {
            self.of.remove(&seen.lane);
            self.failures -= usize::from(seen.failed);
        }
    }

    /// Forgets all but the last lanes.
    fn keep(&mut self, lanes: usize) {
        while self.results.len() > lanes {
            let first = self.results.first_key_value();
            let (&place, _) = first.expect("there are more than none");
            self.forget(place);
        }
    }

    /// Forgets what is older than that.
    fn keep_since(&mut self, now: Instant, age: Duration) {
        while let Some((&place, first)) = self.results.first_key_value()
            && now.saturating_duration_since(first.at) > age
        {
            self.forget(place);
        }
    }
}

impl Table {
    /// No origin known yet; at most `capacity` of them (at least 1).
    pub fn new(plan: BreakerPlan, capacity: usize) -> Self {
        Self {
            plan,
            capacity: capacity.max(1),
            places: Map::default(),
            entries: Vec::new(),
            hand: 0,
            unwell: 0,
            eras: 0,
        }
    }

    /// Puts another plan in force. What is known of the origins stays: a breaker is open for as
    /// long as the new plan says from when it opened, and those who wait are told. Switched off,
    /// everything is closed and forgotten.
    pub fn set_plan(&mut self, plan: BreakerPlan) -> Vec<Change> {
        let old = std::mem::replace(&mut self.plan, plan);
        if !self.plan.is_on() {
            return self.forget_all();
        }
        let mut changes = Vec::new();
        let probes = self.plan.probes.get();
        for place in 0..self.entries.len() {
            match &mut self.entries[place].state {
                State::Closed(window) => window.keep(self.plan.window.get()),
                State::Open { until, .. } => {
                    *until = shifted(*until, old.open, self.plan.open);
                    let kind = ChangeKind::OpenUntil(*until);
                    changes.push(self.change(place, kind));
                }
                State::HalfOpen { good, .. } if *good >= probes => {
                    changes.push(self.close(place));
                }
                State::HalfOpen { .. } => {
                    let more = probes.saturating_sub(old.probes.get());
                    let free = (0..more).map(|_| self.change(place, ChangeKind::SlotFree));
                    changes.extend(free);
                }
            }
        }
        changes
    }

    fn forget_all(&mut self) -> Vec<Change> {
        let unwell = self.unwell().map(|unwell| Change {
            origin: unwell.origin,
            kind: ChangeKind::Closed,
        });
        let changes = unwell.collect();
        self.places.clear();
        self.entries.clear();
        self.hand = 0;
        self.unwell = 0;
        changes
    }

    /// Whether a call of this origin may start now. Changes nothing.
    pub fn check(&self, origin: &str, now: Instant) -> Gate {
        let Some(&place) = self.places.get(origin) else {
            return Gate::Go;
        };
        match self.entries[place].state {
            State::Closed(_) => Gate::Go,
            State::Open { until, .. } if now < until => Gate::OpenUntil(until),
            State::Open { .. } => Gate::Go,
            State::HalfOpen { running, good, .. } if running + good < self.plan.probes.get() => {
                Gate::Go
            }
            State::HalfOpen { .. } => Gate::NoSlot,
        }
    }

    /// Starts a call, or says why not (never [`Gate::Go`]). `lane` is the lane whose message is
    /// called for the first time; `None` for a retry, which counts only as a probe. Making room for
    /// a new origin may forget another, and then the change is that one's.
    pub fn begin(
        &mut self,
        origin: &Arc<str>,
        lane: Option<u64>,
        now: Instant,
    ) -> Result<(Ticket, Option<Change>), Gate> {
        match self.check(origin, now) {
            Gate::Go => {}
            wait => return Err(wait),
        }
        let (place, change) = self.place(origin);
        self.eras += 1;
        let entry = &mut self.entries[place];
        entry.used = true;
        match &mut entry.state {
            State::Closed(_) => {}
            State::HalfOpen { running, .. } => *running += 1,
            State::Open { since, .. } => {
                entry.state = State::HalfOpen {
                    since: *since,
                    running: 1,
                    good: 0,
                };
                entry.era = self.eras;
            }
        }
        let era = entry.era;
        Ok((Ticket { place, lane, era }, change))
    }

    /// Ends a call.
    pub fn end(&mut self, ticket: Ticket, verdict: Verdict, now: Instant) -> Option<Change> {
        let entry = self.entries.get_mut(ticket.place)?;
        if entry.era != ticket.era {
            return None;
        }
        match &mut entry.state {
            State::Closed(window) => {
                let lane = ticket.lane.filter(|_| verdict != Verdict::Unknown)?;
                window.push(lane, verdict == Verdict::Failed, now, &self.plan);
                if self.plan.opens(window) {
                    self.unwell += 1;
                    let until = self.open(ticket.place, now, now);
                    return Some(self.change(ticket.place, ChangeKind::Opened(until)));
                }
                None
            }
            State::HalfOpen {
                since,
                running,
                good,
            } => match verdict {
                Verdict::Unknown => {
                    *running -= 1;
                    Some(self.change(ticket.place, ChangeKind::SlotFree))
                }
                Verdict::Failed => {
                    let since = *since;
                    let until = self.open(ticket.place, since, now);
                    Some(self.change(ticket.place, ChangeKind::OpenUntil(until)))
                }
                Verdict::Answered => {
                    *running -= 1;
                    *good += 1;
                    let enough = *good >= self.plan.probes.get();
                    enough.then(|| self.close(ticket.place))
                }
            },
            // No ticket belongs to an open era.
            State::Open { .. } => None,
        }
    }

    /// Whether nothing keeps lanes from this origin.
    pub fn is_closed(&self, origin: &str) -> bool {
        let place = self.places.get(origin);
        place.is_none_or(|&place| matches!(self.entries[place].state, State::Closed(_)))
    }

    /// How many origins are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no origin is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Origins whose breakers are not closed now.
    pub fn unwell(&self) -> impl Iterator<Item = Unwell> {
        self.entries.iter().filter_map(|entry| {
            let (since, until) = match entry.state {
                State::Closed(_) => return None,
                State::Open { since, until } => (since, Some(until)),
                State::HalfOpen { since, .. } => (since, None),
            };
            Some(Unwell {
                origin: entry.origin.clone(),
                since,
                until,
            })
        })
    }

    /// Answers until when it is open.
    fn open(&mut self, place: usize, since: Instant, now: Instant) -> Instant {
        let until = now + self.plan.open;
        self.set(place, State::Open { since, until });
        until
    }

    fn close(&mut self, place: usize) -> Change {
        self.unwell -= 1;
        self.set(place, State::Closed(Window::default()));
        self.change(place, ChangeKind::Closed)
    }

    fn set(&mut self, place: usize, state: State) {
        self.eras += 1;
        self.entries[place].state = state;
        self.entries[place].era = self.eras;
    }

    fn change(&self, place: usize, kind: ChangeKind) -> Change {
        Change {
            origin: self.entries[place].origin.clone(),
            kind,
        }
    }

    fn place(&mut self, origin: &Arc<str>) -> (usize, Option<Change>) {
        if let Some(&place) = self.places.get(origin) {
            return (place, None);
        }
        self.eras += 1;
        let entry = Entry {
            origin: origin.clone(),
            era: self.eras,
            state: State::Closed(Window::default()),
            used: true,
        };
        let (place, change) = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            (self.entries.len() - 1, None)
        } else {
            self.replace(entry)
        };
        self.places.insert(origin.clone(), place);
        (place, change)
    }

    /// Puts `entry` where one is that was not used lately; one that is not closed only goes when
    /// there is no other.
    fn replace(&mut self, entry: Entry) -> (usize, Option<Change>) {
        let place = self.forgettable();
        let old = std::mem::replace(&mut self.entries[place], entry);
        self.places.remove(&old.origin);
        if matches!(old.state, State::Closed(_)) {
            return (place, None);
        }
        self.unwell -= 1;
        let change = Change {
            origin: old.origin,
            kind: ChangeKind::Closed,
        };
        (place, Some(change))
    }

    fn forgettable(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let all_unwell = self.unwell == self.entries.len();
            let entry = &mut self.entries[place];
            if all_unwell {
                return place;
            }
            if !matches!(entry.state, State::Closed(_)) {
                continue;
            }
            // A second chance: used entries go only when the hand comes round again.
            if !std::mem::take(&mut entry.used) {
                return place;
            }
        }
    }
}

/// The end of a time that began when `until` was set, with another length.
fn shifted(until: Instant, old: Duration, new: Duration) -> Instant {
    match new >= old {
        true => until + (new - old),
        // A time in the past is as good as now.
        false => until.checked_sub(old - new).unwrap_or(until),
    }
}

impl BreakerPlan {
    fn opens(&self, window: &Window) -> bool {
        let lanes = window.lanes();
        // A plan that was not checked may ask for more lanes than the window has.
        let enough = lanes >= self.min_lanes.min(self.window).get();
        enough && window.failures as f64 >= self.failures * lanes as f64
    }

    /// Whether there are breakers at all.
    fn is_on(&self) -> bool {
        self.failures > 0.0
    }
}

type OnChange = dyn Fn(Change) + Send + Sync;

/// All breakers, shared. Cheap to clone.
#[derive(Clone)]
pub struct Breakers {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    on_change: Box<OnChange>,
}

impl Breakers {
    /// Breakers by this plan (a failure rate of 0 switches them off). `on_change` is called
    /// without a lock held, by whoever begins, ends or drops a call; it should be quick.
    pub fn new(plan: BreakerPlan, on_change: impl Fn(Change) + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                table: Mutex::new(Table::new(plan, ORIGINS)),
                on_change: Box::new(on_change),
            }),
        }
    }

    /// As [`Table::check`].
    pub fn check(&self, origin: &str, now: Instant) -> Gate {
        lock(&self.shared.table).check(origin, now)
    }

    /// As [`Table::set_plan`].
    pub fn set_plan(&self, plan: BreakerPlan) {
        let changes = lock(&self.shared.table).set_plan(plan);
        for change in changes {
            self.shared.tell(Some(change));
        }
    }

    /// As [`Table::begin`]; the call ends with [`Call::end`], or without a verdict when dropped.
    pub fn begin(&self, origin: &Arc<str>, lane: Option<u64>, now: Instant) -> Result<Call, Gate> {
        let mut call = Call {
            shared: self.shared.clone(),
            ticket: None,
        };
        let mut table = lock(&self.shared.table);
        if !table.plan.is_on() {
            // Switched off: nothing is counted.
            return Ok(call);
        }
        let (ticket, change) = table.begin(origin, lane, now)?;
        drop(table);
        call.ticket = Some(ticket);
        self.shared.tell(change);
        Ok(call)
    }

    /// As [`Table::is_closed`].
    pub fn is_closed(&self, origin: &str) -> bool {
        lock(&self.shared.table).is_closed(origin)
    }

    /// As [`Table::unwell`].
    pub fn unwell(&self) -> Vec<Unwell> {
        lock(&self.shared.table).unwell().collect()
    }
}

impl fmt::Debug for Breakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breakers")
            .field("table", &self.shared.table)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn end(&self, ticket: Ticket, verdict: Verdict, now: Instant) {
        let change = lock(&self.table).end(ticket, verdict, now);
        self.tell(change);
    }

    fn tell(&self, change: Option<Change>) {
        if let Some(change) = change {
            (self.on_change)(change);
        }
    }
}

fn lock(table: &Mutex<Table>) -> std::sync::MutexGuard<'_, Table> {
    table
        .lock()
        .expect("never poisoned: no code of others runs under it")
}

/// A call under way. Dropped, it gives its slot back and says nothing about the origin.
#[must_use = "dropped at once, the call counts as never made"]
pub struct Call {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
}

impl Call {
    /// The call came to this.
    pub fn end(mut self, verdict: Verdict, now: Instant) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.end(ticket, verdict, now);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // Without a verdict the time does not matter.
            self.shared.end(ticket, Verdict::Unknown, Instant::now());
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}
