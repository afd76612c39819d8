//! Publishing to a queue with `envelope = "raw"`: the request's body is one message's payload.
//!
//! What an envelope would say comes in headers, by the names that targets get them by:
//! `keylane-key` (percent-encoded), `webhook-id`, `content-type`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use keylane_router::message::Key;
use keylane_router::parse::Publication;
use percent_encoding::percent_decode_str;
use uuid::Uuid;

use super::problem::Problem;
use super::publish::{Kept, passed_on};

/// The one message, and the headers to keep with it.
pub(super) fn read(
    headers: &HeaderMap,
    body: Bytes,
    pool: Arc<str>,
) -> Result<(Vec<Publication>, Kept), Problem> {
    let id: Arc<str> = match text(headers, "webhook-id")? {
        Some(id) => id.into(),
        None => Uuid::now_v7().to_string().into(),
    };
    let key = text(headers, "keylane-key")?;
    let key = key.map(|key| Key::new(percent_decode_str(key).collect::<Vec<u8>>()));
    let mut kept = passed_on(headers);
    if let Some(kind) = text(headers, header::CONTENT_TYPE.as_str())? {
        kept.push(("content-type".into(), kind.into()));
    }
    let publication = Publication {
        deduplication_id: id.clone(),
        key,
        pool: Some(pool),
        delay: Duration::ZERO,
        id,
        body,
    };
    Ok((vec![publication], kept))
}

/// The header's value; blank is as good as absent.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Problem> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(value) => Ok(Some(value.trim()).filter(|value| !value.is_empty())),
        Err(_) => Err(Problem::bad_request(format!(
            "header {name}: use visible ASCII"
        ))),
    }
}
