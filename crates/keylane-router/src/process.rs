//! Outcome → what happens to the message, and to its lane: one table.

use std::time::Duration;

use crate::jitter;
use crate::outcome::{Outcome, Reason};
use crate::plan::{OnExhausted, OnRefused, PoolPlan};
use crate::store::Stay;

/// The hold after "not yet" without a time.
const NOT_YET: Duration = Duration::from_secs(30);

/// What follows from an outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// It was delivered.
    Ack,
    /// The lane waits this long, and the head keeps its place. No attempt was used.
    Wait(Duration),
    /// A failed attempt is written down, then the lane waits this long.
    Retry(Reason, Duration),
    /// A failed attempt is written down, then the lane waits this long: for somebody to do something.
    Block(Reason, Duration),
    /// A failed attempt is written down; the head becomes a dead letter.
    DeadLetter { class: &'static str, reason: Reason },
    /// The message is forgotten, as a policy named `drop` says.
    Drop(Reason),
    /// A failed attempt is written down; the head goes back with everything behind it.
    Return(Reason),
    /// A failed attempt is written down; the key is stored whole.
    Park(Reason),
}

/// What the table needs to know of the head besides the outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Before this attempt.
    pub(crate) stay: Stay,
    /// How often in a row it was told to wait.
    pub(crate) waits: u32,
    /// How long it has been here.
    pub(crate) age: Duration,
    /// It has no key, so it is never parked or blocked.
    pub(crate) keyless: bool,
    /// Whether its source can take it back in order and with a delay. Not so for a stored message.
    pub(crate) returns: bool,
    /// For the back-off's jitter.
    pub(crate) random: u64,
}

/// The table.
pub(crate) fn judge(plan: &PoolPlan, outcome: Outcome, head: Head) -> Next {
    match outcome {
        Outcome::Delivered => Next::Ack,
        Outcome::NotYet { after } if head.age < plan.patience => {
            wait(plan, after.unwrap_or(NOT_YET), head)
        }
        Outcome::Busy { after, .. } if head.age < plan.patience => {
            wait(plan, after.unwrap_or(Duration::ZERO), head)
        }
        Outcome::NotYet { .. } => failed(plan, impatient(Reason::default()), head),
        Outcome::Busy { reason, .. } => failed(plan, impatient(reason), head),
        Outcome::Failed(reason) => failed(plan, reason, head),
        Outcome::Refused(reason) => match plan.on_refused {
            OnRefused::DeadLetter => Next::DeadLetter {
                class: "refused",
                reason,
            },
            OnRefused::Retry => failed(plan, reason, head),
            OnRefused::Drop => Next::Drop(reason),
        },
    }
}

/// Never shorter than the first back-off (doubling while the same answer repeats), never longer
/// than `busy_max`.
fn wait(plan: &PoolPlan, asked: Duration, head: Head) -> Next {
    let least = doubled(plan.retry.initial, head.waits);
    Next::Wait(asked.max(least).min(plan.busy_max))
}

fn failed(plan: &PoolPlan, reason: Reason, head: Head) -> Next {
    let failures = head.stay.failed.saturating_add(1);
    if (failures as usize) < plan.retry.max_attempts.get() {
        return Next::Retry(reason, back_off(plan, head));
    }
    match exhausted(plan, head) {
        OnExhausted::Return => Next::Return(reason),
        OnExhausted::DeadLetter => Next::DeadLetter {
            class: "exhausted",
            reason,
        },
        OnExhausted::Park => Next::Park(reason),
        OnExhausted::Block => Next::Block(reason, plan.retry.max),
    }
}

/// What the policy comes to for this head.
pub(crate) fn exhausted(plan: &PoolPlan, head: Head) -> OnExhausted {
    match plan.on_exhausted {
        OnExhausted::Return if head.returns => OnExhausted::Return,
        OnExhausted::DeadLetter => OnExhausted::DeadLetter,
        _ if head.keyless => OnExhausted::DeadLetter,
        OnExhausted::Park => OnExhausted::Park,
        // What is to go back and cannot, because its key is on disk, waits there.
        OnExhausted::Block | OnExhausted::Return => OnExhausted::Block,
    }
}

fn back_off(plan: &PoolPlan, head: Head) -> Duration {
    let base = doubled(plan.retry.initial, head.stay.failed).min(plan.retry.max);
    // Up to a quarter more or less, so that lanes that failed together do not come together.
    jitter::between(head.random, base, 0.75, 1.25).min(plan.retry.max)
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(times.min(30)).unwrap_or(u32::MAX))
}

fn impatient(mut reason: Reason) -> Reason {
    if reason.text.is_empty() {
        reason.class = "not-yet".into();
        reason.text = "the target still says \"not yet\"".to_owned();
    }
    reason.text.push_str("; the pool's patience is over");
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn plan() -> PoolPlan {
        let mut plan = PoolPlan::default();
        plan.retry.max_attempts = NonZeroUsize::new(3).unwrap();
        plan
    }

    fn head() -> Head {
        Head {
            stay: Stay::default(),
            waits: 0,
            age: Duration::ZERO,
            keyless: false,
            returns: true,
            random: 0,
        }
    }

    fn last() -> Head {
        let stay = Stay {
            failed: 2,
            ..Stay::default()
        };
        Head { stay, ..head() }
    }

    fn reason() -> Reason {
        Reason {
            class: "status-500".into(),
            ..Reason::default()
        }
    }

    #[test]
    fn a_delivered_message_is_acked() {
        assert_eq!(judge(&plan(), Outcome::Delivered, head()), Next::Ack);
    }

    #[test]
    fn not_yet_waits_thirty_seconds_unless_told_otherwise() {
        let told = |after| judge(&plan(), Outcome::NotYet { after }, head());
        assert_eq!(told(None), Next::Wait(Duration::from_secs(30)));
        let five = Duration::from_secs(5);
        assert_eq!(told(Some(five)), Next::Wait(five));
    }

    #[test]
    fn a_wait_is_never_shorter_than_the_first_back_off_and_doubles() {
        let none = Outcome::Busy {
            after: Some(Duration::ZERO),
            reason: reason(),
        };
        for (waits, seconds) in [(0, 1), (1, 2), (4, 16), (30, 3600)] {
            let head = Head { waits, ..head() };
            let wait = Next::Wait(Duration::from_secs(seconds));
            assert_eq!(judge(&plan(), none.clone(), head), wait);
        }
    }

    #[test]
    fn a_wait_is_never_longer_than_busy_max() {
        let day = Some(Duration::from_secs(86_400));
        let next = judge(&plan(), Outcome::NotYet { after: day }, head());
        assert_eq!(next, Next::Wait(Duration::from_secs(3600)));
    }

    #[test]
    fn a_head_older_than_patience_counts_waits_as_failures() {
        let old = Head {
            age: Duration::from_secs(86_400),
            ..head()
        };
        let next = judge(&plan(), Outcome::NotYet { after: None }, old);
        assert!(matches!(next, Next::Retry(..)), "{next:?}");
    }

    #[test]
    fn a_failure_is_retried_in_place_with_growing_back_off() {
        for failed in 0..2 {
            let stay = Stay {
                failed,
                ..Stay::default()
            };
            let next = judge(&plan(), Outcome::Failed(reason()), Head { stay, ..head() });
            let Next::Retry(_, after) = next else {
                panic!("{next:?}");
            };
            let base = Duration::from_secs(1 << failed);
            assert!(
                after >= base.mul_f64(0.74) && after <= base.mul_f64(1.26),
                "{after:?}"
            );
        }
    }

    #[test]
    fn the_last_failure_follows_the_policy() {
        let with = |policy, head| {
            let plan = PoolPlan {
                on_exhausted: policy,
                ..plan()
            };
            judge(&plan, Outcome::Failed(reason()), head)
        };
        let blocked = Next::Block(reason(), plan().retry.max);
        let letter = Next::DeadLetter {
            class: "exhausted",
            reason: reason(),
        };
        let no_return = Head {
            returns: false,
            ..last()
        };
        let keyless = Head {
            keyless: true,
            ..no_return
        };
        let keyless_and_returns = Head {
            keyless: true,
            ..last()
        };
        assert_eq!(
            with(OnExhausted::Return, keyless_and_returns),
            Next::Return(reason())
        );
        assert_eq!(with(OnExhausted::Return, keyless), letter);
        assert_eq!(with(OnExhausted::Return, last()), Next::Return(reason()));
        assert_eq!(with(OnExhausted::Return, no_return), blocked);
        assert_eq!(with(OnExhausted::DeadLetter, last()), letter);
        assert_eq!(with(OnExhausted::Park, last()), Next::Park(reason()));
        assert_eq!(with(OnExhausted::Park, keyless), letter);
        assert_eq!(with(OnExhausted::Block, last()), blocked);
        assert_eq!(with(OnExhausted::Block, no_return), blocked);
        assert_eq!(with(OnExhausted::Block, keyless), letter);
        assert_eq!(with(OnExhausted::Block, keyless_and_returns), letter);
    }

    #[test]
    fn a_refused_message_follows_the_policy() {
        let with = |policy| {
            let plan = PoolPlan {
                on_refused: policy,
                ..plan()
            };
            judge(&plan, Outcome::Refused(reason()), head())
        };
        let refused = Next::DeadLetter {
            class: "refused",
            reason: reason(),
        };
        assert_eq!(with(OnRefused::DeadLetter), refused);
        assert_eq!(with(OnRefused::Drop), Next::Drop(reason()));
        assert!(matches!(with(OnRefused::Retry), Next::Retry(..)));
    }
}
