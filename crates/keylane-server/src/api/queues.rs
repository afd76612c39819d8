//! `GET /api/v1/queues`: how much is in each queue.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::App;

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let queues = app.db.queues();
    let queues = queues
        .iter()
        .map(|queue| json!({"name": queue.name, "depth": queue.depth, "out": queue.out}));
    Json(queues.collect())
}
