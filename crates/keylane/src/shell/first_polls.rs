//! First polls of lanes of which several may run at once: in the order of their starts.
//!
//! As long as a runner has a start of a lane that it has not polled yet, the lane's next ones are its
//! too, whoever takes them; so the first step of one is over before the next begins. Where no two of a
//! lane run at once, there is nothing to see to.

use hashbrown::HashMap;

use crate::lanes::Ticket;

/// Tells runners apart.
pub(super) type RunnerId = u32;

pub(super) struct FirstPolls<J> {
    /// Who polls the starts of a lane.
    by: HashMap<u32, RunnerId>,
    /// What others took for a runner, in the order of their starts.
    handed: Vec<(RunnerId, u32, Ticket, J)>,
}

impl<J> FirstPolls<J> {
    pub(super) fn new() -> Self {
        Self {
            by: HashMap::new(),
            handed: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    /// This runner has polled all that it had: answers what was taken for it meanwhile.
    pub(super) fn polled(&mut self, runner: RunnerId) -> Vec<(Ticket, J)> {
        self.by.retain(|_, by| *by != runner);
        let handed = self.handed.extract_if(.., |(to, ..)| *to == runner);
        let mut starts = Vec::new();
        for (_, lane, ticket, job) in handed {
            self.by.insert(lane, runner);
            starts.push((ticket, job));
        }
        starts
    }

    /// As [`Self::polled`], of a runner that lets others run before it comes again: the lanes that it
    /// had are anybody's meanwhile. `false` when something was taken for it, which is to go first.
    pub(super) fn let_go(&mut self, runner: RunnerId) -> bool {
        if self.handed.iter().any(|(to, ..)| *to == runner) {
            return false;
        }
        self.by.retain(|_, by| *by != runner);
        true
    }

    /// This runner is gone: answers what was taken for it and never polled.
    pub(super) fn gone(&mut self, runner: RunnerId) -> Vec<(Ticket, J)> {
        let left = self.polled(runner);
        self.by.retain(|_, by| *by != runner);
        left
    }

    /// A runner took this start: it is its own to poll, unless the lane's starts are another's.
    pub(super) fn taken(
        &mut self,
        runner: RunnerId,
        lane: u32,
        start: (Ticket, J),
    ) -> Option<(Ticket, J)> {
        let by = *self.by.entry(lane).or_insert(runner);
        if by == runner {
            return Some(start);
        }
        self.handed.push((by, lane, start.0, start.1));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LaneLimits, Lanes, Limits, Next, Spec, Time};

    /// Starts of two lanes, by turns.
    fn starts(count: usize) -> Vec<(u32, (Ticket, usize))> {
        let limits = Limits {
            lane: LaneLimits {
                concurrency: count,
                ..Limits::default().lane
            },
            ..Limits::default()
        };
        let mut lanes = Lanes::new(limits);
        for n in 0..count {
            let pushed = lanes.push(n % 2, n, |_| Spec::default());
            assert!(pushed.is_ok());
        }
        let next = |_| match lanes.next(Time(0), |_, _| crate::lanes::Hold::Free) {
            Next::Start(ticket, n) => (lanes.lane_of(&ticket), (ticket, n)),
            _ => unreachable!("all may start"),
        };
        (0..count).map(next).collect()
    }

    fn numbers(starts: Vec<(Ticket, usize)>) -> Vec<usize> {
        starts.into_iter().map(|(_, n)| n).collect()
    }

    #[test]
    fn a_lanes_starts_are_handed_to_whoever_has_one_unpolled() {
        let mut polls = FirstPolls::new();
        let mut own = [Vec::new(), Vec::new()];
        for (n, (lane, start)) in starts(6).into_iter().enumerate() {
            // The first two to one runner each, the rest to the second.
            let runner = u32::from(n > 0);
            own[runner as usize].extend(polls.taken(runner, lane, start));
        }
        assert_eq!(own.map(numbers), [vec![0], vec![1, 3, 5]]);
        assert!(!polls.let_go(0), "something was handed to it");
        assert_eq!(numbers(polls.polled(0)), [2, 4]);
        assert_eq!(numbers(polls.polled(0)), []);
        assert!(!polls.is_empty());
        assert_eq!(numbers(polls.gone(1)), []);
        assert!(polls.is_empty());
    }

    #[test]
    fn what_a_runner_that_went_or_waits_had_is_anybodys() {
        let mut polls = FirstPolls::new();
        let mut starts = starts(4).into_iter();
        let mut is_own = |polls: &mut FirstPolls<usize>, runner| {
            let (lane, start) = starts.next().unwrap();
            polls.taken(runner, lane, start).is_some()
        };
        assert!(is_own(&mut polls, 0) && is_own(&mut polls, 0) && !is_own(&mut polls, 1));
        assert_eq!(numbers(polls.gone(0)), [2]);
        assert!(is_own(&mut polls, 1));
        assert!(polls.let_go(1) && polls.is_empty());
    }
}
