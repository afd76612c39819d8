//! How a test target behaves: one answer per request, fixed, drawn by lot, or by a closure.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::target::Request;
use crate::chance::Chance;
use crate::dispatch::answer;
use crate::outcome::Outcome;

/// What a test target does with one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This status, these headers, this body.
    Status {
        /// The status code.
        code: u16,
        /// Extra headers.
        headers: Vec<(&'static str, String)>,
        /// The body.
        body: Bytes,
    },
    /// The answer after a while.
    After(Duration, Box<Answer>),
    /// Never answers; ends when the peer closes the connection.
    Hang,
    /// Closes the connection without an answer.
    Reset,
    /// 200 whose body stops in the middle without an end, the connection open.
    SlowBody,
    /// 200 whose body is shorter than its length says, the connection closed.
    CutBody,
}

impl Answer {
    /// A status without a body.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// 200.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// 200 with `{"ack": false, "delaySeconds": N}`.
    pub fn not_yet(delay_seconds: u64) -> Self {
        Self::ok().body(format!(
            "{{\"ack\":false,\"delaySeconds\":{delay_seconds}}}"
        ))
    }

    /// Adds a header; only to a status.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Status { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }

    /// Sets the body; only of a status.
    pub fn body(mut self, bytes: impl Into<Bytes>) -> Self {
        if let Self::Status { body, .. } = &mut self {
            *body = bytes.into();
        }
        self
    }

    /// Waits before it answers.
    pub fn after(self, delay: Duration) -> Self {
        Self::After(delay, Box::new(self))
    }

    /// The word for it in a history: what the router makes of it, by its own table.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::After(_, then) => then.outcome(),
            Self::Status {
                code,
                headers,
                body,
            } => judged(*code, headers, body),
            Self::Hang | Self::Reset | Self::SlowBody | Self::CutBody => "failed",
        }
    }
}

fn judged(code: u16, headers: &[(&'static str, String)], body: &[u8]) -> &'static str {
    let headers = headers.iter().map(|(name, value)| {
        let value = HeaderValue::try_from(value).expect("a script's header is one");
        (HeaderName::from_static(name), value)
    });
    let status = StatusCode::from_u16(code).expect("a script's status is one");
    match answer::outcome(status, &headers.collect(), answer::Body::Whole(body)) {
        Outcome::Delivered => "delivered",
        Outcome::NotYet { .. } => "not-yet",
        Outcome::Busy { .. } => "busy",
        Outcome::Failed(_) => "failed",
        Outcome::Refused(_) => "refused",
    }
}

/// Chooses the answer to a request. Every `Fn(&Request) -> Answer` is one.
pub trait Behaviour: Send + Sync + 'static {
    /// What to do with this one.
    fn answer(&self, request: &Request) -> Answer;

    /// Waits before an answer, by the runtime's clock unless told otherwise.
    fn wait(&self, until: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep_until(until))
    }
}

impl<F: Fn(&Request) -> Answer + Send + Sync + 'static> Behaviour for F {
    fn answer(&self, request: &Request) -> Answer {
        self(request)
    }
}

/// The same answer to everything.
pub fn fixed(answer: Answer) -> impl Behaviour {
    move |_: &Request| answer.clone()
}

/// Draws each answer by lot, with weights; the same seed draws the same row of answers.
pub fn random(seed: u64, answers: Vec<(u32, Answer)>) -> Draw {
    assert!(answers.iter().any(|(weight, _)| *weight > 0), "no weights");
    Draw {
        chance: Chance::new(seed),
        answers,
    }
}

/// Made by [`random`].
#[derive(Debug)]
pub struct Draw {
    chance: Chance,
    answers: Vec<(u32, Answer)>,
}

impl Behaviour for Draw {
    fn answer(&self, _: &Request) -> Answer {
        let total: u64 = self
            .answers
            .iter()
            .map(|(weight, _)| u64::from(*weight))
            .sum();
        let mut left = self.chance.next() % total;
        for (weight, answer) in &self.answers {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return answer.clone(),
            }
        }
        unreachable!("the lot is below the sum of the weights")
    }
}
