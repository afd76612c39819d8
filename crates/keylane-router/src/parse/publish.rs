//! What is published over the API: one message or an array of them, checked before any is stored.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::envelope::{Fields, escaped};
use crate::dispatch::headers;
use crate::dispatch::target::TargetUrl;
use crate::message::Key;

/// A message to be stored in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its id; made up when the publisher gave none.
    pub id: Arc<str>,
    /// What dedup goes by: `deduplicationId`, else the id.
    pub deduplication_id: Arc<str>,
    /// The ordering key.
    pub key: Option<Key>,
    /// The pool it asks for.
    pub pool: Option<Arc<str>>,
    /// Not to be delivered before this time has passed.
    pub delay: Duration,
    /// The envelope to store: the publisher's bytes, with the `id` that was made up.
    pub body: Bytes,
}

/// One thing that is wrong with a request, for `errors[]` of problem+json.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where, as a JSON pointer: `/3/mediationTarget`.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
    /// What would help.
    pub remedy: String,
}

impl Problem {
    pub(super) fn new(pointer: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            pointer: pointer.to_owned(),
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }
}

/// Reads a request's body: one message, or an array of them. All problems of all messages at
/// once, or all messages in order.
pub fn read(body: &Bytes) -> Result<Vec<Publication>, Vec<Problem>> {
    let Some(items) = items(body)? else {
        return one(body, "").map(|publication| vec![publication]);
    };
    let (mut publications, mut problems) = (Vec::with_capacity(items.len()), Vec::new());
    for (number, item) in items.into_iter().enumerate() {
        match one(
            &body.slice_ref(item.get().as_bytes()),
            &format!("/{number}"),
        ) {
            Ok(publication) => publications.push(publication),
            Err(found) => problems.extend(found),
        }
    }
    match problems.is_empty() {
        true => Ok(publications),
        false => Err(problems),
    }
}

/// The messages of an array; `None` when it is none.
fn items(body: &Bytes) -> Result<Option<Vec<&RawValue>>, Vec<Problem>> {
    if body.trim_ascii_start().first() != Some(&b'[') {
        return Ok(None);
    }
    let remedy = "send one message or an array of them";
    let items: Vec<&RawValue> = serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let detail = format!("it is no valid JSON (line {line}, column {column})");
        vec![Problem::new("", detail, remedy)]
    })?;
    if items.is_empty() {
        return Err(vec![Problem::new("", "there is no message in it", remedy)]);
    }
    Ok(Some(items))
}

fn one(body: &Bytes, pointer: &str) -> Result<Publication, Vec<Problem>> {
    let below = |problem: Problem| Problem {
        pointer: format!("{pointer}{}", problem.pointer),
        ..problem
    };
    let checked = Fields::read(body).and_then(|fields| match strict(&fields, body) {
        problems if problems.is_empty() => Ok(fields),
        problems => Err(problems),
    });
    match checked {
        Ok(fields) => Ok(publication(fields, body)),
        Err(problems) => Err(problems.into_iter().map(below).collect()),
    }
}

/// What would be let pass from a broker, where it is too late, but can be mended by a publisher.
fn strict(fields: &Fields<'_>, body: &Bytes) -> Vec<Problem> {
    let mut problems = Vec::new();
    if fields.mediation_type.eq_ignore_ascii_case("HTTP")
        && let Err(error) = TargetUrl::parse(&fields.target)
    {
        let remedy = "send a URL like `https://example.com/hook`";
        problems.push(Problem::new("/mediationTarget", error.to_string(), remedy));
    }
    if let Some(token) = &fields.auth_token
        && !headers::can_be_sent("authorization", token)
    {
        // Not what it is: it may be a secret all the same.
        let detail = "it has characters that no header can carry";
        let remedy = "send visible ASCII characters, without a line break at the end";
        problems.push(Problem::new("/authToken", detail, remedy));
    }
    for name in &fields.not_theirs {
        let pointer = format!("/headers/{}", escaped(name));
        let detail = "a message cannot set this header";
        problems.push(Problem::new(&pointer, detail, "leave it out"));
    }
    if fields.id.is_none() && has_id(body) {
        let remedy = "send a string, or leave it out to have one made";
        problems.push(Problem::new("/id", "it is null or blank", remedy));
    }
    problems
}

/// Whether there is a field `id` at all. Asked only when it has no value.
fn has_id(body: &Bytes) -> bool {
    let fields: Option<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(body).ok();
    fields.is_some_and(|fields| fields.contains_key("id"))
}

fn publication(fields: Fields<'_>, body: &Bytes) -> Publication {
    let (id, body) = match fields.id {
        Some(id) => (id.into(), body.clone()),
        None => with_id(body),
    };
    Publication {
        deduplication_id: match fields.deduplication_id {
            Some(own) => own.into(),
            None => id.clone(),
        },
        key: fields.key.map(|key| Key::from(&*key)),
        pool: fields.pool.map(Into::into),
        delay: fields.delay,
        id,
        body,
    }
}

/// Makes an id up, and puts it first into the object.
fn with_id(body: &Bytes) -> (Arc<str>, Bytes) {
    let id = Uuid::now_v7().to_string();
    let fields = &body.trim_ascii_start()[1..];
    let mut with_id = BytesMut::with_capacity(body.len() + id.len() + 10);
    with_id.put(&b"{\"id\":\""[..]);
    with_id.put(id.as_bytes());
    with_id.put(&b"\""[..]);
    if fields.trim_ascii_start().first() != Some(&b'}') {
        with_id.put(&b","[..]);
    }
    with_id.put(fields);
    (id.into(), with_id.freeze())
}
