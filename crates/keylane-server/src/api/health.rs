//! `/livez` and `/readyz`: for whoever watches the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keylane_router::health::{Problem, Trouble};
use serde_json::{Value, json};

use super::App;

/// How long a publish that could not be stored counts. Not for ever: where nobody publishes to
/// what is not ready, nobody would find out that it is well again.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Whether publishes can be stored.
#[derive(Debug, Default)]
pub(crate) struct Publishing {
    failed: Mutex<Option<(Instant, String)>>,
}

impl Publishing {
    pub(super) fn works(&self) {
        *self.lock() = None;
    }

    pub(super) fn fails(&self, why: String) {
        *self.lock() = Some((Instant::now(), why));
    }

    fn problem(&self) -> Option<Value> {
        let failed = self.lock();
        let (at, why) = failed.as_ref()?;
        (at.elapsed() < REMEMBERED).then(|| json!({"trouble": "publish", "detail": why}))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The program answers: that is all it says.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

/// Whether it does its work; with everything that is wrong.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let known = app.router.problems();
    // An order that was broken is shown for ever; taking the program out would mend nothing.
    let (past, now): (Vec<_>, Vec<_>) = known
        .iter()
        .partition(|problem| problem.trouble == Trouble::Order);
    let past: Vec<Value> = past.into_iter().map(told).collect();
    let mut problems: Vec<Value> = now.into_iter().map(told).collect();
    problems.extend(app.publishing.problem());
    if app.stopping.is_cancelled() {
        problems.push(json!({"trouble": "stopping", "detail": "the router is stopping"}));
    }
    if problems.is_empty() && past.is_empty() {
        return Json(json!({"status": "ready"})).into_response();
    }
    if problems.is_empty() {
        return Json(json!({"status": "ready", "problems": past})).into_response();
    }
    problems.extend(past);
    let body = json!({"status": "not ready", "problems": problems});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

fn told(problem: &Problem) -> Value {
    let trouble = match &problem.trouble {
        Trouble::Store => json!({"trouble": "store"}),
        Trouble::Source(name) => json!({"trouble": "source", "source": name}),
        Trouble::Order => json!({"trouble": "order"}),
    };
    let mut told = trouble;
    told["detail"] = json!(problem.text);
    told["times"] = json!(problem.times);
    // A clock that was set back makes it new.
    let since = problem.since.elapsed().unwrap_or_default();
    told["forSeconds"] = json!(since.as_secs());
    told
}
