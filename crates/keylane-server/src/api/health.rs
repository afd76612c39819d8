//! `/livez` and `/readyz`: for whoever watches the program.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keylane_router::health::{Problem, Trouble};
use serde_json::{Value, json};

use super::App;

/// The program answers: that is all it says.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

/// Whether it does its work; with everything that is wrong.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let mut problems: Vec<Value> = app.router.problems().iter().map(told).collect();
    if app.stopping.is_cancelled() {
        problems.push(json!({"trouble": "stopping", "detail": "the router is stopping"}));
    }
    if problems.is_empty() {
        return Json(json!({"status": "ready"})).into_response();
    }
    let body = json!({"status": "not ready", "problems": problems});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

fn told(problem: &Problem) -> Value {
    let trouble = match &problem.trouble {
        Trouble::Store => json!({"trouble": "store"}),
        Trouble::Source(name) => json!({"trouble": "source", "source": name}),
    };
    let mut told = trouble;
    told["detail"] = json!(problem.text);
    told["times"] = json!(problem.times);
    // A clock that was set back makes it new.
    let since = problem.since.elapsed().unwrap_or_default();
    told["forSeconds"] = json!(since.as_secs());
    told
}
