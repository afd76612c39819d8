//! `GET /api/v1/in-flight?id=a&id=b`: which of these messages are held here right now.

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
    Ok(Json(json!({"held": held, "notHeld": not_held})))
}
