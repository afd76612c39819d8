//! `/api/test/…`: targets to try things out with, and what they saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use super::chance;
use super::problem::Problem;

/// How a test target answers.
type Answer = (StatusCode, Value);

/// How many requests each target got.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    by_target: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests under way.
    under_way: AtomicU64,
}

impl Stats {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.by_target
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request until the result is dropped.
    fn begin(&self, target: &'static str) -> UnderWay<'_> {
        *self.lock().entry(target).or_default() += 1;
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    fn shown(&self) -> Value {
        let by_target = self.lock();
        let total: u64 = by_target.values().sum();
        let under_way = self.under_way.load(Ordering::Relaxed);
        json!({"total": total, "underWay": under_way, "targets": *by_target})
    }
}

struct UnderWay<'a>(&'a Stats);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers as the target of this name does.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    Path(target): Path<String>,
) -> Result<Response, Problem> {
    let Some(target) = TARGETS.iter().find(|known| known.name == target) else {
        let names = TARGETS.map(|target| target.name).join(", ");
        return Err(Problem::not_found(format!("the test targets are {names}")));
    };
    let _counted = app.tests.begin(target.name);
    if !target.wait.is_zero() {
        tokio::time::sleep(target.wait).await;
    }
    let (status, body) = (target.answer)();
    Ok((status, Json(body)).into_response())
}

struct Target {
    name: &'static str,
    wait: Duration,
    answer: fn() -> Answer,
}

const TARGETS: [Target; 8] = [
    Target::after("fast", Duration::from_millis(100), accepted),
    Target::after("slow", Duration::from_secs(20), accepted),
    Target::new("faulty", faulty),
    Target::new("fail", failed),
    Target::new("server-error", failed),
    Target::new("success", accepted),
    Target::new("pending", pending),
    Target::new("client-error", refused),
];

impl Target {
    const fn new(name: &'static str, answer: fn() -> Answer) -> Self {
        Self::after(name, Duration::ZERO, answer)
    }

    const fn after(name: &'static str, wait: Duration, answer: fn() -> Answer) -> Self {
        Self { name, wait, answer }
    }
}

fn accepted() -> Answer {
    (StatusCode::OK, json!({"ack": true}))
}

fn pending() -> Answer {
    (StatusCode::OK, json!({"ack": false}))
}

fn refused() -> Answer {
    (StatusCode::BAD_REQUEST, json!({"error": "client error"}))
}

fn failed() -> Answer {
    let body = json!({"error": "server error"});
    (StatusCode::INTERNAL_SERVER_ERROR, body)
}

fn faulty() -> Answer {
    match chance::below(10) {
        0..6 => accepted(),
        6..8 => refused(),
        _ => failed(),
    }
}

/// What the targets saw.
pub(super) async fn stats(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.tests.shown())
}

/// Counts from 0 again; answers what was counted.
pub(super) async fn reset(State(app): State<Arc<App>>) -> Json<Value> {
    let counted = app.tests.shown();
    app.tests.lock().clear();
    Json(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_answers_in_its_proportions() {
        let mut seen = BTreeMap::new();
        for _ in 0..10_000 {
            *seen.entry(faulty().0.as_u16()).or_insert(0) += 1;
        }
        let near = |status: u16, expected: i32| (seen[&status] - expected).abs() < 400;
        assert!(
            near(200, 6000) && near(400, 2000) && near(500, 2000),
            "{seen:?}"
        );
    }
}
