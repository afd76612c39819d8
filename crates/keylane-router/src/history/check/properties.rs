//! A naive executor that is right by construction makes histories that must be green; each way of
//! spoiling one must be found.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::history::Event;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// One lane of the naive executor: messages before `settled` are acknowledged, those before `next`
/// delivered, those before `published` known.
#[derive(Default)]
struct NaiveLane {
    published: u64,
    next: u64,
    settled: u64,
    running: bool,
}

#[derive(Default)]
struct Naive {
    lanes: [NaiveLane; KEYS.len()],
    events: Vec<Event>,
}

impl Naive {
    fn run(choices: &[u8]) -> Vec<Event> {
        let mut naive = Self::default();
        choices.iter().for_each(|&choice| naive.step(choice));
        (0..KEYS.len()).for_each(|key| naive.drain(key));
        let events = naive.events.into_iter().enumerate();
        events.map(|(t, event)| event.at(t as u64)).collect()
    }

    fn step(&mut self, choice: u8) {
        let key = usize::from(choice) % KEYS.len();
        match choice / 3 {
            0..20 => self.publish(key),
            20..45 => self.start(key),
            45..65 => self.end(key, "delivered"),
            65..70 => self.end(key, "failed"),
            70..76 => self.settle(key),
            76..80 => self.give_back(key),
            _ => self.crash(),
        }
    }

    fn say(&mut self, key: usize, n: u64, kind: EventKind, by: By) {
        self.events.push(Event::of(KEYS[key], n, kind, by));
    }

    fn publish(&mut self, key: usize) {
        let n = self.lanes[key].published;
        self.lanes[key].published += 1;
        self.say(key, n, EventKind::Publish, By::Producer);
    }

    fn start(&mut self, key: usize) {
        let lane = &mut self.lanes[key];
        if !lane.running && lane.next < lane.published {
            lane.running = true;
            let n = lane.next;
            self.say(key, n, EventKind::Start, By::Target);
        }
    }

    fn end(&mut self, key: usize, outcome: &str) {
        let lane = &mut self.lanes[key];
        if !std::mem::take(&mut lane.running) {
            return;
        }
        let n = lane.next;
        lane.next += u64::from(outcome == "delivered");
        let event = Event::of(KEYS[key], n, EventKind::End, By::Target);
        self.events.push(event.outcome(outcome));
    }

    fn settle(&mut self, key: usize) {
        let lane = &mut self.lanes[key];
        let delivered: Range<u64> = lane.settled..lane.next;
        lane.settled = lane.next;
        delivered.for_each(|n| self.say(key, n, EventKind::Ack, By::Router));
    }

    fn give_back(&mut self, key: usize) {
        let lane = &self.lanes[key];
        if !lane.running {
            let held = lane.next..lane.published;
            held.for_each(|n| self.say(key, n, EventKind::Return, By::Router));
        }
    }

    fn crash(&mut self) {
        for lane in &mut self.lanes {
            lane.running = false;
            lane.next = lane.settled;
        }
        self.events.push(Event::new(EventKind::Crash, By::Router));
        self.events.push(Event::new(EventKind::Restart, By::Router));
    }

    fn drain(&mut self, key: usize) {
        while self.lanes[key].next < self.lanes[key].published {
            self.start(key);
            self.end(key, "delivered");
        }
    }
}

fn verdict(events: &[Event]) -> Report {
    let mut history = History::default();
    history.extend(events);
    check(history, &Options::default())
}

/// The place of the first event of this kind of a message.
fn first(events: &[Event], key: &str, n: u64, kind: EventKind) -> Option<usize> {
    let is_it = |e: &Event| e.kind == kind && e.key.as_deref() == Some(key) && e.n == Some(n);
    events.iter().position(is_it)
}

fn first_delivery(events: &[Event], key: &str, n: u64) -> Option<usize> {
    deliveries(events, key, n).next()
}

fn deliveries<'e>(events: &'e [Event], key: &'e str, n: u64) -> impl Iterator<Item = usize> + 'e {
    let delivered = move |e: &Event| {
        e.outcome.as_deref() == Some("delivered") && e.key.as_deref() == Some(key) && e.n == Some(n)
    };
    (0..events.len()).filter(move |&index| delivered(&events[index]))
}

/// Times again by place, after events were moved.
fn timed(mut events: Vec<Event>) -> Vec<Event> {
    (0..).zip(&mut events).for_each(|(t, event)| event.t = t);
    events
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

/// Runs long enough that message `n + 1` of the key exists.
fn run_with(choices: &[u8], key: usize, n: u64) -> Vec<Event> {
    let publishes = std::iter::repeat_n(key as u8, n as usize + 2);
    let all: Vec<u8> = publishes.chain(choices.iter().copied()).collect();
    Naive::run(&all)
}

proptest! {
    #[test]
    fn what_a_correct_executor_does_is_green(choices in choices()) {
        let events = Naive::run(&choices);
        let report = verdict(&events);
        prop_assert!(report.is_green(), "{report}");
        prop_assert_eq!(report.counts.published, report.counts.delivered);
    }

    #[test]
    fn two_starts_that_change_places_are_found(choices in choices(), key in 0..3usize, n in 0..4u64) {
        let mut events = run_with(&choices, key, n);
        let one = first(&events, KEYS[key], n, EventKind::Start).unwrap();
        let two = first(&events, KEYS[key], n + 1, EventKind::Start).unwrap();
        events.swap(one, two);
        prop_assert!(!verdict(&timed(events)).is_green());
    }

    #[test]
    fn a_delivery_that_is_missing_is_found(choices in choices(), key in 0..3usize, n in 0..4u64) {
        let mut events = run_with(&choices, key, n);
        prop_assume!(deliveries(&events, KEYS[key], n).count() == 1);
        events.remove(first_delivery(&events, KEYS[key], n).unwrap());
        prop_assert!(!verdict(&timed(events)).is_green());
    }

    #[test]
    fn a_start_that_happens_twice_is_found(choices in choices(), key in 0..3usize, n in 0..4u64) {
        let mut events = run_with(&choices, key, n);
        let start = first(&events, KEYS[key], n, EventKind::Start).unwrap();
        events.insert(start, events[start].clone());
        prop_assert!(!verdict(&timed(events)).is_green());
    }

    #[test]
    fn a_start_that_happens_too_early_is_found(choices in choices(), key in 0..3usize, n in 0..4u64) {
        let mut events = run_with(&choices, key, n);
        let start = first(&events, KEYS[key], n + 1, EventKind::Start).unwrap();
        let early = events.remove(start);
        events.insert(first_delivery(&events, KEYS[key], n).unwrap(), early);
        prop_assert!(!verdict(&timed(events)).is_green());
    }

    #[test]
    fn a_delivery_that_comes_again_is_found(choices in choices(), key in 0..3usize, n in 0..4u64) {
        let mut events = run_with(&choices, key, n);
        let end = deliveries(&events, KEYS[key], n).last().unwrap();
        let start = Event::of(KEYS[key], n, EventKind::Start, By::Target);
        let again = [start, events[end].clone()];
        events.splice(end + 1..end + 1, again);
        prop_assert!(!verdict(&timed(events)).is_green());
    }
}

/// Ten million events in a test would be slow unoptimised; a million shows that time and memory
/// grow with the events and not with their product with keys.
#[test]
fn a_million_events_of_many_keys_are_checked_in_one_pass() {
    let mut history = History::default();
    let mut t = 0;
    let mut say = |event: Event| {
        t += 1;
        history.push(&event.at(t));
    };
    for n in 0..10 {
        for key in 0..33_000 {
            let key: std::sync::Arc<str> = format!("k{key}").into();
            say(Event::of(key.clone(), n, EventKind::Publish, By::Producer));
            say(Event::of(key.clone(), n, EventKind::Start, By::Target));
            say(Event::of(key, n, EventKind::End, By::Target).outcome("delivered"));
        }
    }
    let report = check(history, &Options::default());
    assert!(report.is_green());
    assert_eq!(report.counts.delivered, 330_000);
}
