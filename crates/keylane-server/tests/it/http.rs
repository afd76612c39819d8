//! Real HTTP, for tests that talk to the program.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// What the program answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the API answers text")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body, if it is a problem with this status.
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail"] {
            assert!(problem[field].is_string(), "{field}: {problem}");
        }
        problem
    }
}

/// One request on a connection of its own; `None` when nobody answered.
pub(crate) async fn ask(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Option<Answer> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut request = axum::http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).expect("a request");
    let response = client.request(request).await.ok()?;
    let (head, body) = response.into_parts();
    Some(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: body.collect().await.ok()?.to_bytes(),
    })
}
