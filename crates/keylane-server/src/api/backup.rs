//! `POST /api/v1/backup?file=…`: a live copy of queues and stores, on the server's own disk.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use keylane_router::embedded::BackupError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::problem::Problem;

#[derive(Deserialize)]
pub(super) struct Asked {
    file: PathBuf,
}

/// Answers when the copy is complete and on disk.
pub(super) async fn backup(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Ok(Query(Asked { file })) = asked else {
        return Err(Problem::bad_request("name the new file by ?file="));
    };
    if !file.is_absolute() {
        return Err(Problem::bad_request(
            "name the new file by its absolute path",
        ));
    }
    app.db.backup(&file).await.map_err(not_made)?;
    Ok(Json(json!({"file": file})))
}

fn not_made(error: BackupError) -> Problem {
    let title = "There is no backup";
    let status = match error {
        BackupError::Exists(_) => StatusCode::CONFLICT,
        BackupError::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Problem::new(status, "backup", title, error.to_string())
}
