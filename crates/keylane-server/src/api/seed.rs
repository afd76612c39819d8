//! `POST /api/seed/messages`: makes messages for the test targets.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use keylane_router::dispatch::target::TargetUrl;
use keylane_router::embedded::NewMessage;
use keylane_router::message::Key;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use super::chance;
use super::problem::Problem;
use super::publish::not_published;

/// The most messages of one request.
const MOST: u64 = 100_000;
/// Messages stored in one transaction.
const CHUNK: usize = 1000;
/// What `endpoint=random` draws from.
const ENDPOINTS: [&str; 4] = ["fast", "slow", "faulty", "fail"];

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Asked {
    count: u64,
    endpoint: String,
    queue: String,
    message_group_mode: Mode,
}

/// Which keys the messages have.
#[derive(Clone, Copy, Deserialize)]
enum Mode {
    /// Each its own.
    #[serde(rename = "unique")]
    Unique,
    /// One of eight, at random.
    #[serde(rename = "1of8")]
    OneOfEight,
    /// All the same.
    #[serde(rename = "single")]
    Single,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            count: 10,
            endpoint: "fast".into(),
            queue: "default".into(),
            message_group_mode: Mode::OneOfEight,
        }
    }
}

impl Mode {
    fn key(self, number: u64) -> String {
        match self {
            Self::Unique => format!("msg-{number}"),
            Self::OneOfEight => format!("group-{}", chance::below(8)),
            Self::Single => "single-group".into(),
        }
    }
}

pub(super) async fn seed(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    app.check_taking()?;
    let Query(asked) = asked.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let target = target(&app, &asked.endpoint)?;
    if !(1..=MOST).contains(&asked.count) {
        let detail = format!("count is from 1 to {MOST}");
        return Err(Problem::bad_request(detail));
    }
    app.ready_queue(&asked.queue).await?;
    let messages: Vec<NewMessage> = (0..asked.count)
        .map(|number| message(asked.message_group_mode.key(number), &target()))
        .collect();
    let mut ids = Vec::with_capacity(messages.len());
    for chunk in messages.chunks(CHUNK) {
        let published = app.store(&asked.queue, chunk.to_vec()).await;
        let published = published.map_err(|error| not_published(error, &[]))?;
        ids.extend(published.ids);
    }
    Ok(Json(
        json!({"count": ids.len(), "queue": asked.queue, "ids": ids}),
    ))
}

/// What makes the URL of each message.
fn target(app: &App, endpoint: &str) -> Result<Box<dyn Fn() -> String + Send>, Problem> {
    let own = format!("http://{}/api/test/", app.address);
    if endpoint == "random" {
        let draw = || ENDPOINTS[chance::below(ENDPOINTS.len() as u64) as usize];
        return Ok(Box::new(move || format!("{own}{}", draw())));
    }
    if ENDPOINTS.contains(&endpoint) {
        let url = format!("{own}{endpoint}");
        return Ok(Box::new(move || url.clone()));
    }
    if TargetUrl::parse(endpoint).is_ok() {
        let url = endpoint.to_owned();
        return Ok(Box::new(move || url.clone()));
    }
    let known = ENDPOINTS.join(", ");
    let detail = format!("endpoint is one of {known}, random, or a URL");
    Err(Problem::bad_request(detail))
}

fn message(key: String, target: &str) -> NewMessage {
    let id = Uuid::now_v7().to_string();
    let body = json!({
        "id": id,
        "poolCode": "default",
        "messageGroupId": key,
        "mediationType": "HTTP",
        "mediationTarget": target,
    });
    NewMessage {
        pool: Some("default".into()),
        ..NewMessage::new(id, Some(Key::new(key)), body.to_string())
    }
}
