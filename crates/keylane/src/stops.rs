//! How runs under way are asked to stop.
//!
//! Every run that goes on comes by twice, to say how it is woken and that it is over. That is no
//! business of the lanes and not done under their lock.

use std::sync::atomic::Ordering;
use std::task::Waker;

use crate::lanes::Ticket;
use crate::rt::{AtomicBool, Mutex, MutexGuard, lock};
use crate::shell::{Apart, Stop};

/// How many locks there are.
const PLACES: usize = if cfg!(keylane_shuttle) { 2 } else { 16 };
/// So many slots in a row have the same lock: what started together ends together.
const TOGETHER: usize = if cfg!(keylane_shuttle) { 1 } else { 64 };

/// What is known of the runs in each slot.
pub(crate) struct Stops {
    places: [Apart<Mutex<Place>>; PLACES],
    /// Whether anybody was ever asked to stop.
    any: AtomicBool,
}

#[derive(Default)]
struct Place {
    /// The sequence of the run in each slot, and what is known of it.
    slots: Vec<Option<(u64, Known)>>,
    /// How many of them are taken.
    taken: usize,
}

enum Known {
    /// It goes on, and this wakes it.
    Goes(Waker),
    /// It is to stop.
    Asked(Stop),
}

impl Stops {
    pub(crate) fn new() -> Self {
        Self {
            places: std::array::from_fn(|_| Apart(Mutex::default())),
            any: AtomicBool::new(false),
        }
    }

    /// The run goes on: this wakes it when it is to stop. Answers how, if it was asked to already.
    pub(crate) fn register(&self, ticket: &Ticket, waker: &Waker) -> Option<Stop> {
        let (place, at) = self.place(ticket.slot());
        let mut place = lock(place);
        if let Some(stop) = place.asked(at, ticket.sequence()) {
            return Some(stop);
        }
        place.set(at, ticket.sequence(), Known::Goes(waker.clone()));
        None
    }

    /// Whether, and how, this run is to stop.
    pub(crate) fn asked(&self, ticket: &Ticket) -> Option<Stop> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let (place, at) = self.place(ticket.slot());
        lock(place).asked(at, ticket.sequence())
    }

    /// These runs that were registered are over: nobody wakes them any more.
    pub(crate) fn forget<'a>(
        &self,
        tickets: impl Iterator<Item = &'a Ticket>,
        wakers: &mut Vec<Waker>,
    ) {
        let mut locked: Option<(usize, MutexGuard<'_, Place>)> = None;
        for ticket in tickets {
            let (place, at) = place_of(ticket.slot());
            let mut guard = match locked.take() {
                Some((of, guard)) if of == place => guard,
                other => {
                    // One at a time.
                    drop(other);
                    lock(&self.places[place].0)
                }
            };
            wakers.extend(guard.take_waker(at, ticket.sequence()));
            locked = Some((place, guard));
        }
    }

    /// The permit of a run is free: what it was asked in the end does not count for the next run of
    /// the same item. Answers what that was.
    pub(crate) fn forget_asked(&self, ticket: &Ticket) -> Option<Stop> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let (place, at) = self.place(ticket.slot());
        let known = lock(place).take(at, ticket.sequence())?;
        match known {
            Known::Asked(stop) => Some(stop),
            Known::Goes(_) => None,
        }
    }

    /// Asks these runs, by slot and sequence, to stop: answers who is to be woken for that.
    pub(crate) fn ask(&self, running: Vec<(usize, u64)>, stop: Stop) -> Vec<Waker> {
        if running.is_empty() {
            return Vec::new();
        }
        self.any.store(true, Ordering::Release);
        let mut wakers = Vec::new();
        for (slot, seq) in running {
            let (place, at) = self.place(slot);
            let mut place = lock(place);
            if place.asked(at, seq).is_some() {
                // Who asked first says why.
                continue;
            }
            if let Some(Known::Goes(waker)) = place.take(at, seq) {
                wakers.push(waker);
            }
            place.set(at, seq, Known::Asked(stop));
        }
        wakers
    }

    /// Where this slot is.
    fn place(&self, slot: usize) -> (&Mutex<Place>, usize) {
        let (place, at) = place_of(slot);
        (&self.places[place].0, at)
    }
}

#[cfg(test)]
impl Stops {
    /// Of how many runs something is known.
    pub(crate) fn len(&self) -> usize {
        self.places.iter().map(|place| lock(&place.0).taken).sum()
    }
}

/// In which place a slot is, and where in there.
fn place_of(slot: usize) -> (usize, usize) {
    let (group, in_group) = (slot / TOGETHER, slot % TOGETHER);
    (group % PLACES, group / PLACES * TOGETHER + in_group)
}

impl Place {
    fn asked(&self, at: usize, seq: u64) -> Option<Stop> {
        match self.slots.get(at) {
            Some(Some((of, Known::Asked(stop)))) if *of == seq => Some(*stop),
            _ => None,
        }
    }

    fn set(&mut self, at: usize, seq: u64, known: Known) {
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let before = self.slots[at].replace((seq, known));
        self.taken += usize::from(before.is_none());
    }

    /// Who wakes this run, if it was not asked to stop; that is not kept.
    fn take_waker(&mut self, at: usize, seq: u64) -> Option<Waker> {
        if self.asked(at, seq).is_some() {
            return None;
        }
        match self.take(at, seq)? {
            Known::Goes(waker) => Some(waker),
            Known::Asked(_) => None,
        }
    }

    /// What is known of this run; nothing of it is kept.
    fn take(&mut self, at: usize, seq: u64) -> Option<Known> {
        let slot = self.slots.get_mut(at)?;
        let (_, known) = slot.take_if(|(of, _)| *of == seq)?;
        self.taken -= 1;
        if self.taken == 0 && self.slots.capacity() > 4 * TOGETHER {
            self.slots = Vec::new();
        }
        Some(known)
    }
}
