//! Errors of the API: `application/problem+json`, with everything that is wrong at once.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// When to come again after a 503.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// One answer that is an error. Holds nothing of what was sent: that may carry secrets.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Error>,
}

/// One of the things that are wrong.
#[derive(Debug, Serialize)]
pub(crate) struct Error {
    /// Where, as a JSON pointer into the request's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Problem {
    /// A problem of this kind (`unknown-queue`).
    pub(crate) fn new(
        status: StatusCode,
        kind: &str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind: format!("urn:keylane:problem:{kind}"),
            title,
            status,
            detail: detail.into(),
            errors: Vec::new(),
        }
    }

    /// With all that is wrong.
    pub(crate) fn errors(mut self, errors: impl IntoIterator<Item = Error>) -> Self {
        self.errors.extend(errors);
        self
    }

    /// The request cannot be read.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        let title = "The request is wrong";
        Self::new(StatusCode::BAD_REQUEST, "bad-request", title, detail)
    }

    /// There is nothing of that name.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        let title = "There is nothing here";
        Self::new(StatusCode::NOT_FOUND, "not-found", title, detail)
    }

    /// It may work later.
    pub(crate) fn unavailable(kind: &str, title: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, title, detail)
    }
}

impl Error {
    /// Something is wrong, at no particular place.
    pub(crate) fn new(detail: impl Into<String>) -> Self {
        Self {
            pointer: None,
            detail: detail.into(),
            remedy: None,
        }
    }

    /// Something is wrong at this place of the body.
    pub(crate) fn at(
        pointer: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            pointer: Some(pointer.into()),
            detail: detail.into(),
            remedy: Some(remedy.into()),
        }
    }
}

impl From<keylane_router::parse::Problem> for Error {
    fn from(problem: keylane_router::parse::Problem) -> Self {
        Self::at(problem.pointer, problem.detail, problem.remedy)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

fn number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}
