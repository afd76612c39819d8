//! What must hold for any bytes a stranger sends: called by the fuzz targets, and by the tests with
//! their corpus and with random inputs.
//!
//! Each function panics when something does not hold.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dispatch::address::Place;
use crate::dispatch::answer::{self, Body};
use crate::dispatch::target::TargetUrl;
use crate::dispatch::{
    Attempt, HttpDispatch, HttpOptions, Secrets, TargetList, headers, retry_after,
};
use crate::message::{BrokerId, Identity, Message};
use crate::outcome::{Outcome, Reason};
use crate::parse::{self, Incoming};
use crate::plan::{Envelope, PoolPlan, Targets};

/// Nobody waits longer than a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A function to be called with any bytes.
pub type Check = fn(&[u8]);

/// All of them, by the name of their fuzz target.
pub const ALL: [(&str, Check); 5] = [
    ("message", message),
    ("answer", answer),
    ("answer_bytes", answer_bytes),
    ("retry_after", retry_after),
    ("target_url", target_url),
];

/// A body from a source. What is read as a message can be sent, or is refused in words that hold
/// nothing of it.
pub fn message(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let identity = identity();
    let incoming = || Incoming {
        identity: &identity,
        key: None,
        headers: &[],
        body: &body,
    };
    let raw = Envelope::Raw {
        pool: "p".into(),
        target: "http://h/".into(),
    };
    let read = parse::parse(&raw, incoming()).expect("a raw body is a message");
    assert_eq!(read.payload, body);
    if let Ok(message) = parse::parse(&Envelope::Keylane, incoming()) {
        let _ = TargetUrl::parse(&message.target);
        if let Ok(headers) = headers::of(&message, &attempt()) {
            assert_ours(&headers, &message);
        }
    }
    // What the API takes, a source's reader takes too.
    if let Ok(publications) = parse::publish::read(&body) {
        assert!(!bytes.is_empty() || publications.is_empty());
    }
}

/// A message sets none of the headers that are ours.
fn assert_ours(headers: &HeaderMap, message: &Message) {
    assert!(headers.len() <= message.headers.len() + 12);
    assert!(!headers.contains_key("host"));
    assert!(!headers.contains_key("transfer-encoding"));
    assert!(!headers.contains_key("connection"));
    assert!(!headers.contains_key("webhook-signature"));
    let token = headers.get("authorization").is_some();
    assert_eq!(token, message.auth_token.is_some());
    assert_eq!(headers.get_all("keylane-attempt").iter().count(), 1);
    for value in headers.values() {
        assert!(!value.as_bytes().contains(&b'\n') && !value.as_bytes().contains(&b'\r'));
    }
}

/// An answer's status, `Retry-After` and body: the first two bytes are the status, the third says
/// how long the header is.
pub fn answer(bytes: &[u8]) {
    let [a, b, length, rest @ ..] = bytes else {
        return;
    };
    let Ok(status) = StatusCode::from_u16(u16::from_le_bytes([*a, *b]) % 1100) else {
        return;
    };
    let (header, body) = rest.split_at(rest.len().min((*length).into()));
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(header) {
        headers.insert(RETRY_AFTER, value);
    }
    assert_sound(
        status.is_success(),
        &answer::outcome(status, &headers, Body::Whole(body)),
    );
}

/// Bytes that a target sends as its answer. It ends, whatever they are.
pub fn answer_bytes(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let bytes = bytes.to_vec();
    let outcome = runtime.block_on(async move {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let peer = tokio::spawn(async move {
            let mut request = [0; 4096];
            let _ = far.read(&mut request).await;
            let _ = far.write_all(&bytes).await;
            let _ = far.shutdown().await;
            // Gone only with the connection: what it sent can be read.
            while far.read(&mut request).await.is_ok_and(|n| n > 0) {}
        });
        let message = Message {
            id: "m".into(),
            key: None,
            pool: None,
            target: "http://h/".into(),
            mediation_type: "HTTP".into(),
            auth_token: None,
            tenant: None,
            payload: Bytes::from_static(b"{}"),
            content_type: "application/json".into(),
            headers: Vec::new(),
        };
        let outcome = dispatch().attempt_over(&message, &attempt(), near).await;
        peer.abort();
        outcome
    });
    assert_sound(true, &outcome);
}

/// One for all: making one reads the system's certificates.
fn dispatch() -> &'static HttpDispatch {
    static DISPATCH: std::sync::OnceLock<HttpDispatch> = std::sync::OnceLock::new();
    DISPATCH.get_or_init(|| HttpDispatch::new(HttpOptions::default()))
}

/// Only a 2xx is delivered; waits are bounded; what is kept is small and named.
fn assert_sound(may_be_delivered: bool, outcome: &Outcome) {
    let reason: &Reason = match outcome {
        Outcome::Delivered => return assert!(may_be_delivered),
        Outcome::NotYet { after } => {
            assert!(may_be_delivered);
            return assert!(after.is_none_or(|after| after <= LONGEST));
        }
        Outcome::Busy { after, reason } => {
            assert!(after.is_none_or(|after| after <= LONGEST));
            reason
        }
        Outcome::Failed(reason) | Outcome::Refused(reason) => reason,
    };
    assert!(reason.answer.len() <= 512);
    assert!(!reason.class.is_empty() && reason.class.len() <= 20);
    assert!(!reason.text.is_empty() && reason.text.len() <= 300);
}

/// `Retry-After`, and after a zero byte `Date`.
pub fn retry_after(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let mut headers = HeaderMap::new();
    for name in [RETRY_AFTER, DATE] {
        if let Some(Ok(value)) = parts.next().map(HeaderValue::from_bytes) {
            headers.insert(name, value);
        }
    }
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for now in [now, SystemTime::UNIX_EPOCH] {
        let wait = retry_after::read(&headers, now);
        assert!(wait.is_none_or(|wait| wait <= LONGEST));
    }
}

/// A target's URL. What is read has a host and a port, no login and no control characters, says the
/// same when it is read again, and is a list's entry that names it.
pub fn target_url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(target) = TargetUrl::parse(text) else {
        return;
    };
    assert!(!target.host().is_empty() && target.port() > 0);
    assert!(matches!(target.scheme(), "http" | "https"));
    assert!(!target.origin().contains('@'));
    assert!(
        target
            .origin()
            .bytes()
            .all(|byte| byte > b' ' && byte != 0x7f)
    );
    let path = target.path().to_string();
    assert!(path.starts_with('/'), "{path:?}");
    assert!(path.bytes().all(|byte| byte > b' ' && byte != 0x7f));
    let origin = TargetUrl::parse(target.origin()).expect("an origin is a URL");
    assert_eq!(origin.origin(), target.origin());
    if let Some(ip) = target.ip() {
        let _ = Place::of(ip);
        let list = TargetList::parse([&**target.origin()]).expect("an address is an entry");
        assert!(list.may_allow(&target));
    }
}

fn identity() -> Identity {
    Identity {
        source: "s".into(),
        id: BrokerId::Sequence(1),
    }
}

fn attempt() -> Attempt {
    let limit = Duration::from_secs(5);
    let mut timeout = PoolPlan::default().timeout;
    (timeout.connect, timeout.first_byte) = (limit, limit);
    (timeout.idle_body, timeout.total) = (limit, limit);
    Attempt {
        identity: identity(),
        number: 1,
        round: 0,
        pool: "p".into(),
        position: None,
        slot: 0,
        timeout,
        targets: Arc::new(Targets::Any),
        secrets: Secrets::default(),
        lease: None,
    }
}
