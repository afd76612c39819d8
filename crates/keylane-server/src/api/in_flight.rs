//! `GET /api/v1/in-flight?id=a&id=b`: which of these messages are held here right now, in memory.
//! Those of stored keys (spilled, parked) are named by the broker's ids, not by the ones in their
//! bodies: `stored` says how many there are that were not looked through.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde_json::{Value, json};

use super::App;
use super::problem::Problem;

pub(super) async fn ask(
    State(app): State<Arc<App>>,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let wrong = || Problem::bad_request("name the messages by their ids: ?id=a&id=b");
    let Query(asked) = asked.map_err(|_| wrong())?;
    if asked.is_empty() || asked.iter().any(|(name, _)| name != "id") {
        return Err(wrong());
    }
    let ids = asked.iter().map(|(_, id)| id.as_str());
    let held = app.router.held(ids.clone());
    let (held, not_held): (Vec<&str>, Vec<&str>) = ids.partition(|id| held.contains(id));
    let stored = app.router.store().parked();
    let stored: u64 = stored.iter().map(|lane| lane.messages).sum();
    Ok(Json(
        json!({"held": held, "notHeld": not_held, "stored": stored}),
    ))
}
