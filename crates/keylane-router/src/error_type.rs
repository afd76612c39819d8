//! Why an attempt did not deliver, in a word of a fixed list: what spans and metrics call
//! `error.type`.

use crate::outcome::Outcome;

/// All there are. Targets choose their statuses and handlers their words: what is not here is the
/// last of them, so that nobody can make series without end.
const WORDS: &[&str] = &[
    "not-yet",
    "cut",
    "panic",
    "lease",
    "connect",
    "dns",
    "tls",
    "protocol",
    "timeout",
    "reset",
    "cut-body",
    "header",
    "mediation-type",
    "target",
    "target-not-allowed",
    "status-300",
    "status-301",
    "status-302",
    "status-303",
    "status-304",
    "status-307",
    "status-308",
    "status-400",
    "status-401",
    "status-402",
    "status-403",
    "status-404",
    "status-405",
    "status-406",
    "status-407",
    "status-408",
    "status-409",
    "status-410",
    "status-411",
    "status-412",
    "status-413",
    "status-414",
    "status-415",
    "status-416",
    "status-417",
    "status-421",
    "status-422",
    "status-423",
    "status-424",
    "status-425",
    "status-426",
    "status-428",
    "status-429",
    "status-431",
    "status-451",
    "status-500",
    "status-501",
    "status-502",
    "status-503",
    "status-504",
    "status-505",
    "status-507",
    "status-508",
    "status-511",
    "other",
];

/// A place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorType(usize);

impl ErrorType {
    /// How many there are.
    pub(crate) const COUNT: usize = WORDS.len();

    /// Why this delivered nothing; `None` if it did deliver.
    pub(crate) fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Delivered => None,
            Outcome::NotYet { .. } => Some(Self::named("not-yet")),
            Outcome::Busy { reason, .. } | Outcome::Failed(reason) | Outcome::Refused(reason) => {
                Some(Self::named(&reason.class))
            }
        }
    }

    /// The call was ended from here, by the deadline of a stop.
    pub(crate) fn cut() -> Self {
        Self::named("cut")
    }

    fn named(word: &str) -> Self {
        let known = WORDS.iter().position(|known| *known == word);
        Self(known.unwrap_or(WORDS.len() - 1))
    }

    /// All of them, as they are in the list.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        WORDS[self.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::answer::{self, Body, Failure};
    use crate::outcome::Reason;
    use http::{HeaderMap, StatusCode};

    fn word(outcome: &Outcome) -> Option<&'static str> {
        ErrorType::of(outcome).map(ErrorType::as_str)
    }

    #[test]
    fn every_failure_of_a_call_has_its_word() {
        let failures = [
            Failure::Connect,
            Failure::ConnectTimeout,
            Failure::Dns,
            Failure::Tls,
            Failure::Protocol,
            Failure::FirstByteTimeout,
            Failure::TotalTimeout,
            Failure::IdleBodyTimeout,
            Failure::Reset,
            Failure::CutBody,
        ];
        for failure in failures {
            let outcome = answer::failed(failure, None);
            assert_eq!(word(&outcome), Some(failure.class()));
        }
        assert_eq!(word(&answer::lease_lost()), Some("lease"));
        assert_eq!(word(&Outcome::NotYet { after: None }), Some("not-yet"));
        assert_eq!(word(&Outcome::Delivered), None);
        assert_eq!(ErrorType::cut().as_str(), "cut");
    }

    #[test]
    fn known_statuses_have_their_words_and_invented_ones_share_one() {
        let of = |code| {
            let status = StatusCode::from_u16(code).unwrap();
            word(&answer::outcome(
                status,
                &HeaderMap::new(),
                Body::Whole(b""),
            ))
        };
        assert_eq!(of(204), None);
        assert_eq!(of(404), Some("status-404"));
        assert_eq!(of(429), Some("status-429"));
        assert_eq!(of(503), Some("status-503"));
        assert_eq!(of(599), Some("other"));
        assert_eq!(of(999), Some("other"));
    }

    #[test]
    fn a_word_that_a_handler_made_up_is_not_taken_over() {
        let made_up = Reason {
            class: "customer-4711".into(),
            ..Reason::default()
        };
        assert_eq!(word(&Outcome::Failed(made_up.clone())), Some("other"));
        assert_eq!(word(&Outcome::Refused(made_up)), Some("other"));
    }
}
