//! A body as a message: the JSON envelope that publishers send, or a raw payload.
//!
//! `envelope` has the fields and their rules, [`publish`] is the same seen from the side of who
//! sends: there every problem is told at once.

mod envelope;
pub mod publish;

use std::sync::Arc;

use bytes::Bytes;

use crate::message::{Identity, Key, Message};
use crate::plan::Envelope;
use crate::source::Received;
use crate::store::Stored;
use envelope::Fields;

pub use publish::{Problem, Publication};

type Headers = [(Arc<str>, Arc<str>)];

/// A body with what its source said of it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Source plus the broker's own id; stands in for an `id` that is not there.
    pub identity: &'a Identity,
    /// The broker's own key. Wins over the body's.
    pub key: Option<&'a Key>,
    /// The broker's own headers.
    pub headers: &'a Headers,
    /// The body.
    pub body: &'a Bytes,
}

impl<'a, R> From<&'a Received<R>> for Incoming<'a> {
    fn from(received: &'a Received<R>) -> Self {
        Self {
            identity: &received.identity,
            key: received.key.as_ref(),
            headers: &received.headers,
            body: &received.body,
        }
    }
}

impl<'a> From<&'a Stored> for Incoming<'a> {
    fn from(stored: &'a Stored) -> Self {
        Self {
            identity: &stored.identity,
            key: stored.lane.key.as_ref(),
            headers: &stored.headers,
            body: &stored.body,
        }
    }
}

/// A body that is no message. Holds no part of it: it may carry secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Malformed {
    /// What is wrong with it, with the JSON pointer of where.
    pub text: String,
}

/// Reads a body as a message. The payload is a slice of the body, not a copy.
pub fn parse<'a>(
    envelope: &Envelope,
    incoming: impl Into<Incoming<'a>>,
) -> Result<Message, Malformed> {
    let incoming = incoming.into();
    let mut message = match envelope {
        Envelope::Keylane => keylane(&incoming)?,
        Envelope::Raw { pool, target } => raw(&incoming, pool, target),
    };
    pass_trace_on(&incoming, &mut message);
    Ok(message)
}

fn keylane(incoming: &Incoming<'_>) -> Result<Message, Malformed> {
    let fields = Fields::read(incoming.body).map_err(|problems| Malformed {
        text: problems
            .iter()
            .map(|problem| format!("{}: {}", problem.pointer, problem.detail))
            .collect::<Vec<_>>()
            .join("; "),
    })?;
    let id = fields.id.clone();
    let id = id.unwrap_or_else(|| incoming.identity.id.to_string().into());
    let key = incoming.key.filter(|key| !is_blank(key)).cloned();
    Ok(Message {
        key: key.or(fields.key),
        pool: fields.pool,
        target: fields.target,
        mediation_type: fields.mediation_type,
        auth_token: fields.auth_token,
        tenant: fields.tenant,
        payload: fields.payload.unwrap_or_else(|| pointer_payload(&id)),
        content_type: fields.content_type,
        headers: fields.headers,
        id,
    })
}

fn raw(incoming: &Incoming<'_>, pool: &Arc<str>, target: &Arc<str>) -> Message {
    Message {
        id: incoming.identity.id.to_string().into(),
        key: incoming.key.filter(|key| !is_blank(key)).cloned(),
        pool: Some(pool.clone()),
        target: target.clone(),
        mediation_type: envelope::http(),
        auth_token: None,
        tenant: None,
        payload: incoming.body.clone(),
        content_type: header(incoming.headers, "content-type")
            .unwrap_or_else(|| "application/octet-stream".into()),
        headers: Vec::new(),
    }
}

/// A blank group id means "keyless": publishers that always fill the field in mean that.
fn is_blank(key: &Key) -> bool {
    key.as_bytes().trim_ascii().is_empty()
}

/// What the target gets of a message without a payload: whom to ask about.
fn pointer_payload(id: &str) -> Bytes {
    let id = serde_json::to_string(id).expect("a string is JSON");
    format!("{{\"messageId\":{id}}}").into()
}

/// The trace goes on even if only the broker's headers carry it; the message's own wins.
fn pass_trace_on(incoming: &Incoming<'_>, message: &mut Message) {
    if header(&message.headers, "traceparent").is_some() {
        return;
    }
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = header(incoming.headers, name)
            && crate::dispatch::headers::can_be_sent(name, &value)
        {
            message.headers.push((name.into(), value));
        }
    }
}

fn header(headers: &Headers, name: &str) -> Option<Arc<str>> {
    let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone())
}
