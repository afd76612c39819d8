//! A body as a message: the JSON envelope that publishers send, or a raw payload.
//!
//! `envelope` has the fields and their rules, [`publish`] is the same seen from the side of who
//! sends: there every problem is told at once.

mod envelope;
pub mod publish;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::message::{Identity, Key, Message};
use crate::parcel::{Addresses, Parcel, Spelled};
use crate::plan::Envelope;
use crate::source::{MALFORMED, Received};
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
    let parcel = unpack(envelope, incoming, None, &mut Addresses::default())?;
    Ok(parcel.message(incoming.body))
}

/// Reads a body as a message to be kept beside it. The tenant is the one that its source gave it, if
/// any.
pub(crate) fn unpack<'a>(
    envelope: &Envelope,
    incoming: impl Into<Incoming<'a>>,
    tenant: Option<&str>,
    addresses: &mut Addresses,
) -> Result<Parcel, Malformed> {
    let incoming = incoming.into();
    let malformed = |(name, _): &&(Arc<str>, Arc<str>)| &**name == MALFORMED;
    if let Some((_, why)) = incoming.headers.iter().find(malformed) {
        let text = why.to_string();
        return Err(Malformed { text });
    }
    match envelope {
        Envelope::Keylane => keylane(&incoming, tenant, addresses),
        Envelope::Raw { pool, target } => Ok(raw(&incoming, pool, target, tenant, addresses)),
    }
}

fn keylane(
    incoming: &Incoming<'_>,
    tenant: Option<&str>,
    addresses: &mut Addresses,
) -> Result<Parcel, Malformed> {
    let body = incoming.body;
    let mut fields = Fields::read(body).map_err(|problems| Malformed {
        text: problems
            .iter()
            .map(|problem| format!("{}: {}", problem.pointer, problem.detail))
            .collect::<Vec<_>>()
            .join("; "),
    })?;
    let mut headers = std::mem::take(&mut fields.headers);
    pass_trace_on(incoming, &mut headers);
    let spelled = Spelled {
        pool: fields.pool.as_deref(),
        target: &fields.target,
        mediation_type: &fields.mediation_type,
        auth_token: fields.auth_token.as_deref(),
        tenant: tenant.or(fields.tenant.as_deref()),
        content_type: &fields.content_type,
    };
    let address = addresses.get(spelled, headers);
    let own_key = || fields.key.as_deref().map(Key::from);
    let key = given_key(incoming).or_else(own_key);
    let id = fields.id;
    let id = id.unwrap_or_else(|| Cow::Owned(incoming.identity.id.to_string()));
    let payload = fields.payload;
    let payload = payload.unwrap_or_else(|| Cow::Owned(pointer_payload(&id)));
    Ok(Parcel::new(body, id, payload, key, address))
}

fn raw(
    incoming: &Incoming<'_>,
    pool: &str,
    target: &str,
    tenant: Option<&str>,
    addresses: &mut Addresses,
) -> Parcel {
    let content_type = header(incoming.headers, "content-type");
    let spelled = Spelled {
        pool: Some(pool),
        target,
        mediation_type: envelope::HTTP,
        auth_token: None,
        tenant,
        content_type: content_type.as_deref().unwrap_or(envelope::BYTES),
    };
    let mut headers = Vec::new();
    pass_trace_on(incoming, &mut headers);
    let (id, key) = (incoming.identity.id.to_string(), given_key(incoming));
    Parcel::whole(incoming.body, id, key, addresses.get(spelled, headers))
}

/// What stands for a body that is no message, so that it takes its place in its lane.
pub(crate) fn stand_in<'a>(incoming: impl Into<Incoming<'a>>, tenant: Option<&str>) -> Parcel {
    let incoming = incoming.into();
    let spelled = Spelled {
        tenant,
        ..Spelled::default()
    };
    let (id, key) = (incoming.identity.id.to_string(), incoming.key.cloned());
    Parcel::whole(incoming.body, id, key, spelled.with(Vec::new()))
}

fn given_key(incoming: &Incoming<'_>) -> Option<Key> {
    let key = incoming.key.filter(|key| !is_blank(key.as_bytes()));
    key.cloned()
}

/// A blank group id means "keyless": publishers that always fill the field in mean that.
fn is_blank(key: &[u8]) -> bool {
    key.trim_ascii().is_empty()
}

/// What the target gets of a message without a payload: whom to ask about.
fn pointer_payload(id: &str) -> Vec<u8> {
    let id = serde_json::to_string(id).expect("a string is JSON");
    format!("{{\"messageId\":{id}}}").into()
}

/// The trace goes on even if only the broker's headers carry it; the message's own wins.
fn pass_trace_on(incoming: &Incoming<'_>, headers: &mut Vec<(Arc<str>, Arc<str>)>) {
    if header(headers, "traceparent").is_some() {
        return;
    }
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = header(incoming.headers, name)
            && crate::dispatch::headers::can_be_sent(name, &value)
        {
            headers.push((name.into(), value));
        }
    }
}

fn header(headers: &Headers, name: &str) -> Option<Arc<str>> {
    let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone())
}
