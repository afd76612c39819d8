//! The test target's events as lines of a history, for the checker.

use super::target::{Event, EventKind, Recorder, Request};
use crate::history::{self, By};

impl Recorder for history::Recorder {
    /// Requests without the producer's number are no part of a history and are left out.
    fn record(&self, event: Event, request: &Request) {
        let Some(n) = event.number else {
            return;
        };
        let kind = match event.kind {
            EventKind::Start => history::EventKind::Start,
            EventKind::End => history::EventKind::End,
        };
        let mut line = history::Event::of(event.key, n, kind, By::Target).attempt(event.attempt);
        if let Some(outcome) = event.outcome {
            line = line.outcome(outcome);
        }
        if let Some(id) = request
            .headers
            .get("webhook-id")
            .and_then(|id| id.to_str().ok())
        {
            line = line.id(id);
        }
        // A history with holes proves nothing: better no run than a green one.
        self.record(line).expect("the history can be written");
    }
}
