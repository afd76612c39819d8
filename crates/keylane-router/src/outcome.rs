//! What an attempt came to.

use std::time::Duration;

/// The result of one call of the target.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The target has it.
    Delivered,
    /// The target answered "not yet": hold the lane this long; uses no attempt.
    NotYet {
        /// How long the target asked to wait.
        after: Option<Duration>,
    },
    /// The target is busy: hold the lane this long; uses no attempt.
    Busy {
        /// How long the target asked to wait, when it said so.
        after: Option<Duration>,
        /// The target's answer.
        reason: Reason,
    },
    /// The attempt failed and may be retried.
    Failed(Reason),
    /// The target refuses this message: retrying it as it is makes no sense.
    Refused(Reason),
}

/// Why an attempt did not deliver: a short class for metrics and policies, a text for people and
/// the first bytes of the target's answer.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Reason {
    /// A short, bounded word: `status-503`, `connect`, `dns`, `tls`, `timeout`, `reset`, …
    pub class: std::borrow::Cow<'static, str>,
    /// A sentence for people; never holds a secret.
    pub text: String,
    /// The HTTP status, when there was one.
    pub status: Option<u16>,
    /// The first bytes of the answer's body (at most 512).
    pub answer: Vec<u8>,
    /// Whether the circuit breaker of the target's origin counts this as a failure.
    pub breaker_failure: bool,
}
