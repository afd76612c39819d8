//! The request's headers: what the target is told, and what a message may not say.

use std::cell::Cell;
use std::fmt::Write;
use std::time::SystemTime;

use bytes::BytesMut;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::Attempt;
use crate::message::{Key, Message};

/// Keys longer than this are sent as their hash: a target's limit for headers is small.
pub const LONGEST_KEY: usize = 1024;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const KEY: HeaderName = HeaderName::from_static("keylane-key");
const KEY_TRUNCATED: HeaderName = HeaderName::from_static("keylane-key-truncated");
const ATTEMPT: HeaderName = HeaderName::from_static("keylane-attempt");
const POOL: HeaderName = HeaderName::from_static("keylane-pool");
const POSITION: HeaderName = HeaderName::from_static("keylane-position");

const AGENT: HeaderValue = HeaderValue::from_static(concat!("keylane/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Names a message cannot set: what is ours, what belongs to the connection, and what would make
/// the target answer in a way we do not read. In lower case.
const NOT_THEIRS: [&str; 18] = [
    "host",
    "origin",
    "authorization",
    "content-length",
    "content-type",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "expect",
    "accept-encoding",
    "range",
];

/// Why a message cannot be put into headers. Never holds the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A control character in the token.
    #[error("`authToken` has characters that no header can carry")]
    AuthToken,
    /// A control character in the content type.
    #[error("`contentType` has characters that no header can carry")]
    ContentType,
    /// Not a header name, or a control character in the value.
    #[error("`headers` has a name or value that no header can carry")]
    Header,
}

/// Whether a message's `headers` may set this one. Other names are left out.
pub fn is_theirs(name: &str) -> bool {
    let begins = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    !begins("webhook-")
        && !begins("keylane-")
        && !NOT_THEIRS
            .iter()
            .any(|ours| name.eq_ignore_ascii_case(ours))
}

/// Whether a header can be sent at all.
pub fn can_be_sent(name: &str, value: &str) -> bool {
    HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok()
}

/// As many as an attempt has that is signed and has a token; more make the map grow.
const USUAL: usize = 12;

thread_local! {
    /// The memory of a map that is not needed any more, so that one serves attempt after attempt: made
    /// anew for each, it is among the largest things that an attempt allocates.
    static SPARE: Cell<HeaderMap> = Cell::new(HeaderMap::new());
}

fn empty() -> HeaderMap {
    let mut headers = SPARE.take();
    headers.reserve(USUAL);
    headers
}

/// Nobody needs these any more.
pub(super) fn spare(mut headers: HeaderMap) {
    // A message that has many makes a large one.
    if headers.capacity() <= 2 * USUAL {
        headers.clear();
        SPARE.set(headers);
    }
}

/// All headers of one attempt, but for those the connection adds itself.
pub fn of(message: &Message, attempt: &Attempt) -> Result<HeaderMap, HeaderError> {
    let mut values = Values(BytesMut::with_capacity(256));
    let mut headers = empty();
    headers.insert(USER_AGENT, AGENT);
    theirs(message, &mut headers)?;
    if message.payload.is_empty() {
        // The client leaves the length of nothing out, and some servers insist on it.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    headers.insert(CONTENT_TYPE, content_type(message, &mut values)?);
    if let Some(token) = &message.auth_token {
        headers.insert(AUTHORIZATION, bearer(token, &mut values)?);
    }
    webhook(message, attempt, &mut headers, &mut values);
    if let Some(key) = &message.key {
        put_key(key, &mut headers, &mut values);
    }
    headers.insert(ATTEMPT, values.number(attempt.number.into()));
    headers.insert(POOL, values.visible(attempt.pool.as_bytes()));
    if let Some(position) = attempt.position {
        headers.insert(POSITION, values.number(position));
    }
    Ok(headers)
}

fn theirs(message: &Message, headers: &mut HeaderMap) -> Result<(), HeaderError> {
    for (name, value) in &message.headers {
        if !is_theirs(name) {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Header)?;
        let value = HeaderValue::from_str(value).map_err(|_| HeaderError::Header)?;
        headers.insert(name, value);
    }
    Ok(())
}

fn content_type(message: &Message, values: &mut Values) -> Result<HeaderValue, HeaderError> {
    if &*message.content_type == "application/json" {
        return Ok(JSON);
    }
    values
        .checked(&[message.content_type.as_bytes()])
        .ok_or(HeaderError::ContentType)
}

fn bearer(token: &str, values: &mut Values) -> Result<HeaderValue, HeaderError> {
    let mut value = values
        .checked(&[b"Bearer ", token.as_bytes()])
        .ok_or(HeaderError::AuthToken)?;
    // Keeps it out of debug output, and of HPACK's table.
    value.set_sensitive(true);
    Ok(value)
}

/// Made anew for each attempt: a target refuses what was signed long ago.
fn webhook(message: &Message, attempt: &Attempt, headers: &mut HeaderMap, values: &mut Values) {
    let id = values.visible(message.id.as_bytes());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let timestamp = values.number(now.unwrap_or_default().as_secs());
    if !attempt.secrets.is_empty() {
        // Over the id as it is sent: the target knows no other.
        let signature = attempt
            .secrets
            .sign(id.as_bytes(), timestamp.as_bytes(), &message.payload);
        let signature = HeaderValue::try_from(signature).expect("base64 is visible ASCII");
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(WEBHOOK_ID, id);
    headers.insert(WEBHOOK_TIMESTAMP, timestamp);
}

fn put_key(key: &Key, headers: &mut HeaderMap, values: &mut Values) {
    if key.as_bytes().len() <= LONGEST_KEY {
        headers.insert(KEY, values.encoded(key.as_bytes()));
        return;
    }
    headers.insert(KEY, values.hash(key.as_bytes()));
    headers.insert(KEY_TRUNCATED, HeaderValue::from_static("true"));
}

/// Makes header values as slices of one buffer: one allocation for all of a request.
struct Values(BytesMut);

impl Values {
    /// These bytes, one after the other, if a header can carry them.
    fn checked(&mut self, parts: &[&[u8]]) -> Option<HeaderValue> {
        for part in parts {
            self.0.extend_from_slice(part);
        }
        HeaderValue::from_maybe_shared(self.0.split().freeze()).ok()
    }

    /// Visible ASCII as it is; any other byte, and `%`, percent-encoded.
    fn visible(&mut self, bytes: &[u8]) -> HeaderValue {
        self.percent(bytes, |b| b.is_ascii_graphic() && b != b'%')
    }

    /// Percent-encoded but for the unreserved characters of RFC 3986.
    fn encoded(&mut self, bytes: &[u8]) -> HeaderValue {
        self.percent(bytes, |b| {
            b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')
        })
    }

    fn percent(&mut self, bytes: &[u8], plain: impl Fn(u8) -> bool) -> HeaderValue {
        for &byte in bytes {
            if plain(byte) {
                self.0.extend_from_slice(&[byte]);
            } else {
                write!(self.0, "%{byte:02X}").expect("a buffer grows");
            }
        }
        self.done()
    }

    fn number(&mut self, number: u64) -> HeaderValue {
        write!(self.0, "{number}").expect("a buffer grows");
        self.done()
    }

    /// SHA-256 in hex.
    fn hash(&mut self, bytes: &[u8]) -> HeaderValue {
        for byte in Sha256::digest(bytes) {
            write!(self.0, "{byte:02x}").expect("a buffer grows");
        }
        self.done()
    }

    fn done(&mut self) -> HeaderValue {
        HeaderValue::from_maybe_shared(self.0.split().freeze()).expect("only visible ASCII")
    }
}
