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
