//! The targets: they answer as the case says and write down every call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use keylane_router::dispatch::{Attempt, Dispatch};
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};

use super::case::{Answer, Call, Effect};
use super::world::{Ending, Pass, What, World};

/// All origins.
pub(crate) struct Targets(pub(crate) Arc<World>);

impl Dispatch for Targets {
    async fn attempt(&self, message: &Message, attempt: &Attempt) -> Outcome {
        let world = &self.0;
        let n = number_in(&message.payload).expect("every payload has its number");
        let keys = [world.case.key_of(n).map(str::to_owned)];
        let crash_after = match world.pass(Call::Attempt, &keys) {
            Pass::Never => std::future::pending().await,
            Pass::Fails(Effect::CrashAfter) => true,
            Pass::Go | Pass::Fails(_) => false,
        };
        world.note(What::Start {
            n,
            pool: attempt.pool.to_string(),
            attempt: attempt.number,
        });
        let mut call = Called {
            world,
            n,
            ended: false,
        };
        let answer = world.answer(n, attempt.number);
        let limit = attempt.timeout.total;
        let takes = match answer {
            Answer::Slow { takes } => Duration::from_millis(takes),
            Answer::Never => limit,
            _ => world.with_chance(|chance| chance.millis(0, 8)),
        };
        tokio::time::sleep(takes.min(limit)).await;
        let outcome = match answer {
            _ if takes >= limit => failed("timeout", None, true),
            Answer::Success | Answer::Slow { .. } => Outcome::Delivered,
            Answer::Busy { after } => Outcome::Busy {
                after: after.map(Duration::from_millis),
                reason: reason("status-429", Some(429), false),
            },
            Answer::NotYet { after } => Outcome::NotYet {
                after: after.map(Duration::from_millis),
            },
            Answer::ServerError => failed("status-500", Some(500), true),
            Answer::NoConnection => failed("connect", None, true),
            Answer::ClientError => Outcome::Refused(reason("status-400", Some(400), false)),
            Answer::Never => failed("timeout", None, true),
            Answer::Panic => {
                call.ends(Ending::Failed);
                std::panic::panic_any("the simulated handler panics");
            }
        };
        call.ends(match &outcome {
            Outcome::Delivered => Ending::Delivered,
            Outcome::Refused(_) => Ending::Refused,
            Outcome::Failed(_) => Ending::Failed,
            Outcome::NotYet { .. } | Outcome::Busy { .. } => Ending::Waits,
        });
        if crash_after {
            world.crash();
            std::future::pending().await
        }
        outcome
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        let rest = target.strip_prefix("http://")?;
        let host = rest.split('/').next()?;
        Some(format!("http://{host}").into())
    }
}

fn reason(class: &'static str, status: Option<u16>, breaker_failure: bool) -> Reason {
    Reason {
        class: Cow::Borrowed(class),
        text: format!("the simulated target answers {class}"),
        status,
        answer: Vec::new(),
        breaker_failure,
    }
}

fn failed(class: &'static str, status: Option<u16>, breaker_failure: bool) -> Outcome {
    Outcome::Failed(reason(class, status, breaker_failure))
}

/// A call under way; dropped before its end, it was cut.
struct Called<'a> {
    world: &'a World,
    n: usize,
    ended: bool,
}

impl Called<'_> {
    fn ends(&mut self, answer: Ending) {
        self.ended = true;
        if self.world.is_open() {
            self.world.note(What::End { n: self.n, answer });
        }
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.ends(Ending::Cut);
        }
    }
}

/// The body of message `n`; [`number_in`] finds the number again.
pub(crate) fn payload(n: usize, size: usize) -> String {
    format!("{{\"n\":{n},\"x\":\"{}\"}}", "x".repeat(size))
}

/// The number of the message in a payload or body.
pub(crate) fn number_in(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, rest) = text.split_once("\"n\":")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}
