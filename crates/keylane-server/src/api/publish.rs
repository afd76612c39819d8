//! `POST /api/v1/queues/{queue}/messages`: answered when the messages are on disk.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use keylane_router::embedded::{NewMessage, PublishError, Published};
use keylane_router::parse::{Publication, publish};
use keylane_router::plan::Envelope;
use serde::Serialize;

use super::problem::{Error, Problem};
use super::{App, raw};
use crate::sources::SourceError;

/// The largest request.
pub(super) const BODY_LIMIT: usize = 32 << 20;

/// Headers of the request that go on to the targets.
const PASSED_ON: [&str; 2] = ["traceparent", "tracestate"];

/// Headers that are stored with a message.
pub(super) type Kept = Vec<(Arc<str>, Arc<str>)>;

/// What was accepted.
#[derive(Serialize)]
pub(super) struct Accepted {
    accepted: usize,
    ids: Vec<Arc<str>>,
    duplicates: Vec<Arc<str>>,
}

impl From<Published> for Accepted {
    fn from(published: Published) -> Self {
        Self {
            accepted: published.ids.len(),
            ids: published.ids,
            duplicates: published.duplicates,
        }
    }
}

pub(super) async fn publish(
    State(app): State<Arc<App>>,
    Path(queue): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    app.check_taking()?;
    let (publications, kept) = match app.sources.envelope(&queue) {
        Envelope::Keylane => (envelopes(&headers, body)?, passed_on(&headers)),
        Envelope::Raw { pool, .. } => raw::read(&headers, body.map_err(unreadable)?, pool)?,
    };
    app.ready_queue(&queue).await?;
    let messages = publications.iter().map(|p| message(p, &kept)).collect();
    let published = app.store(&queue, messages).await;
    let published = published.map_err(|error| not_published(error, &publications))?;
    Ok((StatusCode::ACCEPTED, Json(published.into())))
}

fn envelopes(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Vec<Publication>, Problem> {
    check_json(headers)?;
    publish::read(&body.map_err(unreadable)?).map_err(wrong)
}

impl App {
    /// Whether anything is taken still.
    pub(super) fn check_taking(&self) -> Result<(), Problem> {
        if !self.stopping.is_cancelled() {
            return Ok(());
        }
        let detail = "nothing was stored; send it again when the router runs again";
        let title = "The router is stopping";
        Err(Problem::unavailable("stopping", title, detail))
    }

    /// Stores messages in a queue that somebody reads; readiness learns how that went.
    pub(super) async fn store(
        &self,
        queue: &str,
        messages: Vec<NewMessage>,
    ) -> Result<Published, PublishError> {
        let published = self.db.publish(queue, messages, false).await;
        match &published {
            Ok(_) => self.publishing.works(),
            Err(PublishError::Store(error)) => self.publishing.fails(error.to_string()),
            Err(_) => {}
        }
        published
    }

    /// Sees to it that somebody reads the queue.
    pub(super) async fn ready_queue(&self, queue: &str) -> Result<(), Problem> {
        let create = self.in_force.dev().create_queues;
        let ready = self.sources.ready(queue, create).await;
        ready.map_err(|error| no_queue(&error))
    }
}

fn no_queue(error: &SourceError) -> Problem {
    let text = error.to_string();
    match error {
        SourceError::Unknown(_) | SourceError::Taken(_) => {
            let title = "There is no such queue";
            Problem::new(StatusCode::NOT_FOUND, "unknown-queue", title, text)
        }
        SourceError::Name(_) => Problem::bad_request(text),
        SourceError::Store(_) | SourceError::Start(_) | SourceError::Broker(_) => {
            Problem::unavailable("store", "The queue cannot be made", text)
        }
    }
}

/// Nothing but JSON. A request without a type is taken for it.
fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let given = given.to_str().unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let detail = "send the messages as JSON, with content-type: application/json";
    let title = "The body is not said to be JSON";
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(Problem::new(status, "not-json", title, detail))
}

fn unreadable(rejection: BytesRejection) -> Problem {
    if rejection.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::bad_request("the body could not be read whole");
    }
    let mib = BODY_LIMIT >> 20;
    let detail = format!("a request has at most {mib} MiB; send the messages in several");
    let title = "The request is too large";
    let status = StatusCode::PAYLOAD_TOO_LARGE;
    Problem::new(status, "too-large", title, detail)
}

fn wrong(problems: Vec<keylane_router::parse::Problem>) -> Problem {
    let detail = "nothing of the request was stored; `errors` has all that is wrong with it";
    Problem::bad_request(detail).errors(problems.into_iter().map(Error::from))
}

/// What is kept with each message beside its body.
pub(super) fn passed_on(headers: &HeaderMap) -> Kept {
    let text = |name| headers.get(name)?.to_str().ok();
    let pairs = PASSED_ON.iter().map(|&name| (name, text(name)));
    pairs
        .filter_map(|(name, value)| Some((name.into(), value?.into())))
        .collect()
}

fn message(publication: &Publication, headers: &Kept) -> NewMessage {
    NewMessage {
        id: publication.id.clone(),
        dedup_id: Some(publication.deduplication_id.clone()),
        key: publication.key.clone(),
        pool: publication.pool.clone(),
        headers: headers.clone(),
        body: publication.body.clone(),
        delay: publication.delay,
    }
}

/// The problem of a publish that stored nothing.
pub(super) fn not_published(error: PublishError, publications: &[Publication]) -> Problem {
    let text = error.to_string();
    match error {
        PublishError::UnknownQueue(_) => {
            let title = "There is no such queue";
            Problem::new(StatusCode::NOT_FOUND, "unknown-queue", title, text)
        }
        PublishError::Conflict { id } => {
            let title = "An id was used before with another body";
            Problem::new(StatusCode::CONFLICT, "conflict", title, text)
                .errors([conflict(&id, publications)])
        }
        PublishError::Store(_) => {
            let title = "The messages cannot be stored";
            let detail = format!("{text}; nothing of the request was stored");
            Problem::unavailable("store", title, detail)
        }
    }
}

fn conflict(id: &str, publications: &[Publication]) -> Error {
    let at = publications.iter().position(|p| &*p.id == id);
    let pointer = match at {
        Some(at) if publications.len() > 1 => format!("/{at}/id"),
        _ => "/id".to_owned(),
    };
    let detail = "it was published before with another body";
    Error::at(pointer, detail, "use a new id")
}
