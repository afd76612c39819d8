//! `POST /api/v1/config/reload`: puts the config file in force again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::App;
use super::problem::{Error, Problem};
use crate::reload::ReloadError;

/// Answers the generation now in force, once its sources read.
pub(super) async fn reload(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.check_taking()?;
    // On its own: a caller that goes away must not leave a change half-way.
    let reloaded = tokio::spawn(async move { app.in_force.reload().await });
    match reloaded.await {
        Ok(Ok(generation)) => Ok(Json(json!({"generation": generation}))),
        Ok(Err(error)) => Err(not_reloaded(error)),
        Err(_) => Err(failed("the reload broke off; the log has more")),
    }
}

fn not_reloaded(error: ReloadError) -> Problem {
    match error {
        ReloadError::Wrong(problems) => {
            let detail = "nothing was changed; `errors` has all that is wrong with it";
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Problem::new(status, "config", "The config is wrong", detail)
                .errors(problems.into_iter().map(Error::new))
        }
        ReloadError::Source(text) => failed(format!("a source could not be changed: {text}")),
    }
}

fn failed(detail: impl Into<String>) -> Problem {
    let title = "The config is not wholly in force";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "reload", title, detail)
}
