//! Talks to a running server, for the commands that need one.

use std::time::Duration;

use axum::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::cli::{BAD_USAGE, FAILED, NOT_FOUND, NOT_REACHED, OK, REFUSED};

/// How much of an answer is read.
const ANSWER_LIMIT: usize = 16 << 20;
/// How long a server may take; a backup of much data takes its time.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What a server said.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Why there is no answer; the exit code and what to print.
pub(crate) struct NoAnswer {
    pub(crate) code: u8,
    pub(crate) text: String,
}

/// Sends a POST without a body.
pub(crate) fn post(server: &str, path_and_query: &str) -> Result<Answer, NoAnswer> {
    let server = server.trim_end_matches('/');
    let uri: Uri = match format!("{server}{path_and_query}").parse() {
        Ok(uri) if server.starts_with("http://") => uri,
        _ => {
            let text = format!("{server}: name the server by a URL such as http://127.0.0.1:8080");
            return Err(NoAnswer {
                code: BAD_USAGE,
                text,
            });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = match runtime {
        Ok(runtime) => runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(uri)).await }),
        Err(error) => Ok(Err(anyhow::Error::from(error))),
    };
    match asked {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(not_reached(server, &format!("{error:#}"))),
        Err(_) => Err(not_reached(server, "it does not answer")),
    }
}

async fn ask(uri: Uri) -> anyhow::Result<Answer> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client
        .request(Request::post(uri).body(Full::<Bytes>::default())?)
        .await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_LIMIT);
    let body = body.collect().await.map_err(anyhow::Error::from_boxed)?;
    let body = body.to_bytes();
    Ok(Answer { status, body })
}

fn not_reached(server: &str, why: &str) -> NoAnswer {
    NoAnswer {
        code: NOT_REACHED,
        text: format!("{server}: {why}; is a server running there?"),
    }
}

impl Answer {
    /// The exit code it means.
    pub(crate) fn code(&self) -> u8 {
        match self.status {
            status if status.is_success() => OK,
            StatusCode::NOT_FOUND => NOT_FOUND,
            StatusCode::FORBIDDEN | StatusCode::CONFLICT => REFUSED,
            _ => FAILED,
        }
    }

    /// What a problem says, for people.
    pub(crate) fn detail(&self) -> String {
        let problem: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let detail = problem
            .as_ref()
            .and_then(|problem| problem["detail"].as_str());
        detail.map_or_else(|| self.status.to_string(), str::to_owned)
    }
}
