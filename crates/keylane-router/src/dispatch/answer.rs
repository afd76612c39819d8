//! The failure table: what an answer of the target, or its absence, means for the message.
//!
//! | answer | outcome | breaker |
//! |---|---|---|
//! | 2xx; body absent, not JSON, over the limit, or without `"ack": false` | delivered | – |
//! | 2xx with `{"ack": false, "delaySeconds": N}` | not yet | – |
//! | 408, 425, 429; 503 with a `Retry-After` that can be read | busy | 408 and 503 |
//! | 501 | refused | – |
//! | other 5xx | failed | counts |
//! | 101, 3xx, 421 | failed | – |
//! | 401, 403, 404, 407, 410 | failed | – |
//! | other 4xx | refused | – |
//! | what is no HTTP status (600 and above) | failed | counts |
//! | connect, DNS, TLS, protocol error, timeout, reset, 2xx with its body cut | failed | counts |
//!
//! The breaker is about an origin being ill, and one origin has many targets: an answer that a
//! healthy server gives on purpose (a wrong path, a missing token, a redirect, "slow down") is no
//! sign of illness and must not stop the others.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;

use super::retry_after;
use crate::outcome::{Outcome, Reason};

/// How much of an answer's body is kept with the reason.
const KEPT: usize = 512;

/// As for `Retry-After`: no sum of times may overflow.
const LONGEST_DELAY: f64 = 366.0 * 24.0 * 3600.0;

/// What was read of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// It is larger than we read; this is its beginning.
    OverLimit(&'a [u8]),
    /// The peer ended it, or our time was up, before it was complete; this is what came.
    Cut(&'a [u8], Failure),
}

impl<'a> Body<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Whole(bytes) | Self::OverLimit(bytes) | Self::Cut(bytes, _) => bytes,
        }
    }
}

/// Why there is no (complete) answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: refused, unreachable, …
    Connect,
    /// No connection within the limit.
    ConnectTimeout,
    /// The host's name has no address.
    Dns,
    /// The TLS handshake failed.
    Tls,
    /// The peer does not speak HTTP as we do.
    Protocol,
    /// No answer within the limit.
    FirstByteTimeout,
    /// The attempt took longer than its limit.
    TotalTimeout,
    /// Nothing more of the answer's body within the limit.
    IdleBodyTimeout,
    /// The connection ended before an answer came.
    Reset,
    /// The connection ended within the answer's body.
    CutBody,
}

impl Failure {
    /// The short word for metrics and policies.
    pub fn class(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Protocol => "protocol",
            Self::ConnectTimeout
            | Self::FirstByteTimeout
            | Self::TotalTimeout
            | Self::IdleBodyTimeout => "timeout",
            Self::Reset => "reset",
            Self::CutBody => "cut-body",
        }
    }

    /// The sentence for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Connect => "the target could not be reached",
            Self::ConnectTimeout => "no connection to the target within `timeout.connect`",
            Self::Dns => "the target's host name could not be resolved",
            Self::Tls => "the TLS handshake with the target failed",
            Self::Protocol => "the target does not answer in valid HTTP",
            Self::FirstByteTimeout => "no answer of the target within `timeout.first_byte`",
            Self::TotalTimeout => "the attempt took longer than `timeout.total`",
            Self::IdleBodyTimeout => {
                "nothing more of the target's answer within `timeout.idle_body`"
            }
            Self::Reset => "the target ended the connection without an answer",
            Self::CutBody => "the target ended the connection within its answer",
        }
    }
}

/// The outcome of an answer: the whole table for answers that came.
pub fn outcome(status: StatusCode, headers: &HeaderMap, body: Body<'_>) -> Outcome {
    let code = status.as_u16();
    let reason = |breaker| answered(code, body.bytes(), breaker);
    match code {
        200..=299 => success(code, body),
        408 => busy(headers, reason(true)),
        425 | 429 => busy(headers, reason(false)),
        503 => match retry_after::read(headers, SystemTime::now()) {
            Some(after) => Outcome::Busy {
                after: Some(after),
                reason: reason(true),
            },
            None => Outcome::Failed(reason(true)),
        },
        501 => Outcome::Refused(reason(false)),
        401 | 403 | 404 | 407 | 410 | 421 => Outcome::Failed(reason(false)),
        100..=199 | 300..=399 => Outcome::Failed(reason(false)),
        400..=499 => Outcome::Refused(reason(false)),
        _ => Outcome::Failed(reason(true)),
    }
}

/// The outcome of an attempt that got no answer. `detail` is what the network said of it; it must
/// hold no secret.
pub fn failed(failure: Failure, detail: Option<&str>) -> Outcome {
    Outcome::Failed(Reason {
        class: Cow::Borrowed(failure.class()),
        text: match detail {
            Some(detail) => format!("{}: {detail}", failure.text()),
            None => failure.text().to_owned(),
        },
        breaker_failure: true,
        ..Reason::default()
    })
}

/// The outcome of a message that cannot be sent as it is. No call was made.
pub fn refused(class: &'static str, text: impl Into<String>) -> Outcome {
    Outcome::Refused(Reason {
        class: Cow::Borrowed(class),
        text: text.into(),
        ..Reason::default()
    })
}

/// The outcome of a message that is no longer ours. No call was made, and no attempt is used.
pub fn lease_lost() -> Outcome {
    Outcome::Busy {
        after: None,
        reason: Reason {
            class: Cow::Borrowed("lease"),
            text: "its lease ended before the request was written".to_owned(),
            ..Reason::default()
        },
    }
}

fn success(code: u16, body: Body<'_>) -> Outcome {
    match body {
        Body::Whole(bytes) => match not_yet(bytes) {
            Some(after) => Outcome::NotYet { after },
            None => Outcome::Delivered,
        },
        Body::OverLimit(_) => Outcome::Delivered,
        Body::Cut(bytes, failure) => Outcome::Failed(Reason {
            class: Cow::Borrowed(failure.class()),
            text: failure.text().to_owned(),
            status: Some(code),
            answer: kept(bytes),
            breaker_failure: true,
        }),
    }
}

/// `Some` when the body is a JSON object with `"ack": false`; in it the delay it asks for.
fn not_yet(body: &[u8]) -> Option<Option<Duration>> {
    // Most answers are no objects or empty: do not start the parser for them.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    // Raw values, because only two fields matter and the last of equal names counts.
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(body).ok()?;
    if fields.get("ack")?.get() != "false" {
        return None;
    }
    Some(fields.get("delaySeconds").and_then(|raw| delay(raw.get())))
}

fn delay(number: &str) -> Option<Duration> {
    let seconds: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(seconds.min(LONGEST_DELAY)).ok()
}

fn busy(headers: &HeaderMap, reason: Reason) -> Outcome {
    Outcome::Busy {
        after: retry_after::read(headers, SystemTime::now()),
        reason,
    }
}

fn answered(code: u16, body: &[u8], breaker_failure: bool) -> Reason {
    Reason {
        class: Cow::Owned(format!("status-{code}")),
        text: format!("the target answered {code}"),
        status: Some(code),
        answer: kept(body),
        breaker_failure,
    }
}

fn kept(body: &[u8]) -> Vec<u8> {
    body[..body.len().min(KEPT)].to_vec()
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;

    use super::*;

    fn plain(code: u16) -> Outcome {
        outcome(status(code), &HeaderMap::new(), Body::Whole(b""))
    }

    fn with_body(code: u16, body: &[u8]) -> Outcome {
        outcome(status(code), &HeaderMap::new(), Body::Whole(body))
    }

    fn with_retry_after(code: u16, value: &'static str) -> Outcome {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, http::HeaderValue::from_static(value));
        outcome(status(code), &headers, Body::Whole(b""))
    }

    fn status(code: u16) -> StatusCode {
        StatusCode::from_u16(code).expect("a status")
    }

    fn secs(n: u64) -> Option<Duration> {
        Some(Duration::from_secs(n))
    }

    #[test]
    fn every_2xx_is_delivered() {
        for code in [200, 201, 202, 204, 205, 226, 299] {
            assert_eq!(plain(code), Outcome::Delivered, "{code}");
        }
    }

    #[test]
    fn a_2xx_body_without_ack_false_is_delivered() {
        let bodies: [&[u8]; 11] = [
            b"ok",
            b"{\"ack\":true}",
            b"{}",
            b"{\"ack\":\"false\"}",
            b"{\"ack\":null}",
            b"{\"ack\":0}",
            b"[{\"ack\":false}]",
            b"{\"inner\":{\"ack\":false}}",
            b"{\"ack\":false",
            b"\xff\xfe",
            b"false",
        ];
        for body in bodies {
            assert_eq!(with_body(200, body), Outcome::Delivered, "{body:?}");
        }
    }

    #[test]
    fn a_2xx_with_ack_false_is_not_yet() {
        let cases: [(&[u8], Option<Duration>); 8] = [
            (b"{\"ack\":false}", None),
            (b" {\"ack\" : false, \"delaySeconds\": 7 } ", secs(7)),
            (b"{\"delaySeconds\":0,\"ack\":false}", secs(0)),
            (
                b"{\"ack\":false,\"delaySeconds\":0.5}",
                Some(Duration::from_millis(500)),
            ),
            (b"{\"ack\":false,\"delaySeconds\":-1}", None),
            (b"{\"ack\":false,\"delaySeconds\":\"7\"}", None),
            (b"{\"ack\":false,\"delaySeconds\":null,\"x\":[1]}", None),
            (
                b"{\"ack\":false,\"delaySeconds\":1e300}",
                secs(366 * 24 * 3600),
            ),
        ];
        for (body, after) in cases {
            assert_eq!(with_body(202, body), Outcome::NotYet { after }, "{body:?}");
        }
    }

    #[test]
    fn the_last_of_equal_fields_counts() {
        let body = b"{\"ack\":true,\"ack\":false}";
        assert_eq!(with_body(200, body), Outcome::NotYet { after: None });
    }

    #[test]
    fn a_2xx_whose_body_is_over_the_limit_is_delivered() {
        let body = Body::OverLimit(b"{\"ack\":false}");
        assert_eq!(
            outcome(StatusCode::OK, &HeaderMap::new(), body),
            Outcome::Delivered
        );
    }

    #[test]
    fn a_2xx_whose_body_was_cut_is_failed() {
        let body = Body::Cut(b"{\"ack\":", Failure::CutBody);
        let Outcome::Failed(reason) = outcome(StatusCode::OK, &HeaderMap::new(), body) else {
            panic!("not failed");
        };
        assert_eq!(reason.class, "cut-body");
        assert_eq!(reason.status, Some(200));
        assert!(reason.breaker_failure);
    }

    #[test]
    fn busy_answers_hold_as_long_as_they_say() {
        for (code, breaker) in [(408, true), (425, false), (429, false), (503, true)] {
            let Outcome::Busy { after, reason } = with_retry_after(code, "9") else {
                panic!("{code} is not busy");
            };
            assert_eq!(after, secs(9), "{code}");
            assert_eq!(reason.status, Some(code));
            assert_eq!(reason.breaker_failure, breaker, "{code}");
        }
    }

    #[test]
    fn busy_answers_need_no_retry_after_but_503_does() {
        for code in [408, 425, 429] {
            let outcome = plain(code);
            assert!(
                matches!(outcome, Outcome::Busy { after: None, .. }),
                "{code}"
            );
        }
        for outcome in [plain(503), with_retry_after(503, "whenever")] {
            let Outcome::Failed(reason) = outcome else {
                panic!("503 is not failed");
            };
            assert!(reason.breaker_failure);
        }
    }

    #[test]
    fn other_5xx_are_failed_and_count_for_the_breaker() {
        for code in [500, 502, 504, 505, 507, 511, 599, 600, 999] {
            let Outcome::Failed(reason) = plain(code) else {
                panic!("{code} is not failed");
            };
            assert_eq!(reason.class, format!("status-{code}"));
            assert!(reason.breaker_failure, "{code}");
        }
    }

    #[test]
    fn upgrades_redirects_and_misdirected_requests_are_failed() {
        for code in [101, 300, 301, 302, 303, 304, 307, 308, 421] {
            let Outcome::Failed(reason) = plain(code) else {
                panic!("{code} is not failed");
            };
            assert!(!reason.breaker_failure, "{code}");
        }
    }

    #[test]
    fn what_a_deploy_or_a_token_mends_is_failed() {
        for code in [401, 403, 404, 407, 410] {
            let Outcome::Failed(reason) = plain(code) else {
                panic!("{code} is not failed");
            };
            assert!(!reason.breaker_failure, "{code}");
        }
    }

    #[test]
    fn other_4xx_and_501_are_refused() {
        for code in [
            400, 402, 405, 406, 409, 411, 413, 415, 418, 422, 426, 431, 451, 501,
        ] {
            let Outcome::Refused(reason) = plain(code) else {
                panic!("{code} is not refused");
            };
            assert!(!reason.breaker_failure, "{code}");
        }
    }

    #[test]
    fn the_status_counts_when_an_error_answer_is_cut() {
        let body = Body::Cut(b"bad", Failure::CutBody);
        let outcome = outcome(StatusCode::BAD_REQUEST, &HeaderMap::new(), body);
        assert!(matches!(outcome, Outcome::Refused(reason) if reason.answer == b"bad"));
    }

    #[test]
    fn the_first_bytes_of_an_answer_are_kept() {
        let Outcome::Failed(reason) = with_body(500, &[b'x'; 2000]) else {
            panic!("500 is not failed");
        };
        assert_eq!(reason.answer, vec![b'x'; 512]);
    }

    #[test]
    fn every_missing_answer_is_failed_and_counts_for_the_breaker() {
        let all = [
            (Failure::Connect, "connect"),
            (Failure::ConnectTimeout, "timeout"),
            (Failure::Dns, "dns"),
            (Failure::Tls, "tls"),
            (Failure::Protocol, "protocol"),
            (Failure::FirstByteTimeout, "timeout"),
            (Failure::TotalTimeout, "timeout"),
            (Failure::IdleBodyTimeout, "timeout"),
            (Failure::Reset, "reset"),
            (Failure::CutBody, "cut-body"),
        ];
        for (failure, class) in all {
            let Outcome::Failed(reason) = failed(failure, None) else {
                panic!("{failure:?} is not failed");
            };
            assert_eq!(reason.class, class);
            assert!(reason.breaker_failure);
            assert_eq!(reason.status, None);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_does_not_count_for_the_breaker() {
        let Outcome::Refused(reason) = refused("target", "no") else {
            panic!("not refused");
        };
        assert!(!reason.breaker_failure);
    }
}
