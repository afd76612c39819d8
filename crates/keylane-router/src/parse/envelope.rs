//! The JSON envelope's fields, each with its rule.
//!
//! Fields are first kept as raw JSON and then read one by one, so that all problems are found and
//! the payload is not touched. `null` is the same as absent; unknown fields are ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{Problem, is_blank};
use crate::dispatch::headers;

/// A message may be delayed by this much.
const LONGEST_DELAY: f64 = 366.0 * 24.0 * 3600.0;

/// The mediation type when none is given.
pub(super) const HTTP: &str = "HTTP";
const JSON: &str = "application/json";
/// The type of a payload that may be anything.
pub(super) const BYTES: &str = "application/octet-stream";

/// An envelope whose fields are all in order.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) id: Option<Cow<'a, str>>,
    pub(super) pool: Option<Cow<'a, str>>,
    pub(super) auth_token: Option<Cow<'a, str>>,
    pub(super) mediation_type: Cow<'a, str>,
    pub(super) target: Cow<'a, str>,
    /// Never blank.
    pub(super) key: Option<Cow<'a, str>>,
    pub(super) payload: Option<Cow<'a, [u8]>>,
    pub(super) content_type: Cow<'a, str>,
    pub(super) headers: Vec<(Arc<str>, Arc<str>)>,
    /// Names in `headers` that a message cannot set; they are not in `headers`.
    pub(super) not_theirs: Vec<String>,
    pub(super) tenant: Option<Cow<'a, str>>,
    pub(super) delay: Duration,
    pub(super) deduplication_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    pool_code: Option<&'a RawValue>,
    #[serde(borrow)]
    auth_token: Option<&'a RawValue>,
    #[serde(borrow)]
    mediation_type: Option<&'a RawValue>,
    #[serde(borrow)]
    mediation_target: Option<&'a RawValue>,
    #[serde(borrow)]
    message_group_id: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    content_type: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    tenant: Option<&'a RawValue>,
    #[serde(borrow)]
    delay_seconds: Option<&'a RawValue>,
    #[serde(borrow)]
    deduplication_id: Option<&'a RawValue>,
}

impl<'a> Fields<'a> {
    /// Reads an envelope; all problems at once, their pointers beginning at the envelope.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Vec<Problem>> {
        // Serde would take an array for a struct.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(vec![Problem::new(
                "",
                "it is no JSON object",
                "send an object with `id`, `mediationTarget` and `payload`",
            )]);
        }
        let wire: Wire<'_> =
            serde_json::from_slice(body).map_err(|error| vec![not_json(&error)])?;
        let mut reader = Reader::default();
        let fields = reader.fields(&wire);
        match reader.problems.is_empty() {
            true => Ok(fields),
            false => Err(reader.problems),
        }
    }
}

/// Says where, but not what: the text around it may hold a secret.
fn not_json(error: &serde_json::Error) -> Problem {
    let what = match error.classify() {
        serde_json::error::Category::Data => "a field is given twice",
        _ => "it is no valid JSON",
    };
    let detail = format!("{what} (line {}, column {})", error.line(), error.column());
    Problem::new("", detail, "send one JSON object per message")
}

/// Reads fields and remembers what is wrong with them.
#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn fields<'a>(&mut self, wire: &Wire<'a>) -> Fields<'a> {
        let mediation_type = self.text("mediationType", wire.mediation_type);
        let mediation_type = mediation_type.unwrap_or(Cow::Borrowed(HTTP));
        let (headers, not_theirs, their_type) = self.headers(wire.headers);
        let content_type = self.content_type(wire.content_type).or(their_type);
        Fields {
            id: self.text("id", wire.id),
            pool: self.text("poolCode", wire.pool_code),
            auth_token: self.text("authToken", wire.auth_token),
            target: self.target(wire.mediation_target, &mediation_type),
            mediation_type,
            key: self.key(wire.message_group_id),
            payload: self.payload(wire),
            content_type: content_type.unwrap_or(Cow::Borrowed(default_type(wire))),
            headers,
            not_theirs,
            tenant: self.text("tenant", wire.tenant),
            delay: self.delay(wire.delay_seconds),
            deduplication_id: self.text("deduplicationId", wire.deduplication_id),
        }
    }

    /// A string; blank is absent.
    fn text<'a>(&mut self, name: &str, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        let text = self.string(name, raw)?;
        (!text.trim().is_empty()).then_some(text)
    }

    fn string<'a>(&mut self, name: &str, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        let raw = raw?.get();
        // Nothing escaped, the usual case: the text is there already.
        if let Some(inner) = raw
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            && !inner.contains('\\')
        {
            return Some(Cow::Borrowed(inner));
        }
        self.typed::<String>(name, raw, "a string").map(Cow::Owned)
    }

    fn typed<T: DeserializeOwned>(&mut self, name: &str, raw: &str, what: &str) -> Option<T> {
        let read = serde_json::from_str(raw).ok();
        if read.is_none() {
            self.problem(name, format!("it is not {what}"), format!("send {what}"));
        }
        read
    }

    fn target<'a>(&mut self, raw: Option<&'a RawValue>, mediation_type: &str) -> Cow<'a, str> {
        let before = self.problems.len();
        if let Some(target) = self.text("mediationTarget", raw) {
            return target;
        }
        // Handlers in the same process need no address.
        if mediation_type.eq_ignore_ascii_case("HTTP") && self.problems.len() == before {
            self.problem(
                "mediationTarget",
                "it is missing",
                "send the URL to deliver to",
            );
        }
        Cow::Borrowed("")
    }

    fn key<'a>(&mut self, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        let key = self.string("messageGroupId", raw)?;
        (!is_blank(key.as_bytes())).then_some(key)
    }

    fn payload<'a>(&mut self, wire: &Wire<'a>) -> Option<Cow<'a, [u8]>> {
        match (wire.payload, wire.payload_base64) {
            (Some(raw), None) => Some(Cow::Borrowed(raw.get().as_bytes())),
            (None, Some(raw)) => self.base64(raw).map(Cow::Owned),
            (None, None) => None,
            (Some(_), Some(_)) => {
                let detail = "there is a `payload` too";
                self.problem("payloadBase64", detail, "send one of the two");
                None
            }
        }
    }

    fn base64(&mut self, raw: &RawValue) -> Option<Vec<u8>> {
        let text = self.string("payloadBase64", Some(raw))?;
        let decoded = STANDARD.decode(text.as_bytes()).ok();
        if decoded.is_none() {
            let remedy = "use the standard alphabet, with padding";
            self.problem("payloadBase64", "it is not Base64", remedy);
        }
        decoded
    }

    fn content_type<'a>(&mut self, raw: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
        let text = self.text("contentType", raw)?;
        if !headers::can_be_sent("content-type", &text) {
            let detail = "it has characters that no header can carry";
            self.problem("contentType", detail, "send a media type");
        }
        Some(text)
    }

    fn delay(&mut self, raw: Option<&RawValue>) -> Duration {
        let Some(raw) = raw else {
            return Duration::ZERO;
        };
        let seconds = self.typed::<f64>("delaySeconds", raw.get(), "a number");
        match seconds {
            None => Duration::ZERO,
            Some(seconds) if (0.0..=LONGEST_DELAY).contains(&seconds) => {
                Duration::from_secs_f64(seconds)
            }
            Some(_) => {
                let remedy = "send seconds from 0 to a year (31622400)";
                self.problem("delaySeconds", "it is out of range", remedy);
                Duration::ZERO
            }
        }
    }

    /// What may be sent; the names of what may not; and `content-type`, which is a field of ours.
    #[allow(clippy::type_complexity)] // three lists of one loop, named at their only use
    fn headers<'a>(
        &mut self,
        raw: Option<&'a RawValue>,
    ) -> (Vec<(Arc<str>, Arc<str>)>, Vec<String>, Option<Cow<'a, str>>) {
        let (mut theirs, mut not_theirs, mut content_type) = (Vec::new(), Vec::new(), None);
        let what = "an object of strings";
        let all =
            raw.and_then(|raw| self.typed::<BTreeMap<String, String>>("headers", raw.get(), what));
        for (name, value) in all.unwrap_or_default() {
            if !headers::can_be_sent(&name, &value) {
                let pointer = format!("headers/{}", escaped(&name));
                let detail = "no header can have this name or value";
                self.problem(&pointer, detail, "use visible ASCII characters");
            } else if name.eq_ignore_ascii_case("content-type") {
                content_type = Some(Cow::Owned(value));
            } else if headers::is_theirs(&name) {
                theirs.push((name.into(), value.into()));
            } else {
                not_theirs.push(name);
            }
        }
        (theirs, not_theirs, content_type)
    }

    fn problem(&mut self, name: &str, detail: impl Into<String>, remedy: impl Into<String>) {
        let problem = Problem::new(&format!("/{name}"), detail, remedy);
        self.problems.push(problem);
    }
}

fn default_type(wire: &Wire<'_>) -> &'static str {
    match wire.payload_base64 {
        Some(_) => BYTES,
        None => JSON,
    }
}

/// A name as part of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
