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
    let mut more: Vec<Value> = app.publishing.problem().into_iter().collect();
    if app.stopping.is_cancelled() {
        more.push(json!({"trouble": "stopping", "detail": "the router is stopping"}));
    }
    let (status, body) = readiness(&app.router.problems(), more);
    (status, Json(body)).into_response()
}

fn readiness(known: &[Problem], more: Vec<Value>) -> (StatusCode, Value) {
    // An order that was broken is shown for ever; to take the program out would mend nothing. Nor
    // for one key, while the others go on.
    let keeps_from_work = |problem: &Problem| {
        !matches!(
            problem.trouble,
            Trouble::Order
                | Trouble::Recovered
                | Trouble::StalledKey(_)
                | Trouble::BlockedKey(_)
                | Trouble::OpenBreaker
                | Trouble::NoSource(_)
        )
    };
    let works = more.is_empty() && !known.iter().any(keeps_from_work);
    let problems: Vec<Value> = known.iter().map(told).chain(more).collect();
    let (code, status) = match works {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    let mut body = json!({"status": status});
    if !problems.is_empty() {
        body["problems"] = json!(problems);
    }
    (code, body)
}

fn told(problem: &Problem) -> Value {
    let trouble = match &problem.trouble {
        Trouble::Store => json!({"trouble": "store"}),
        Trouble::Source(name) => json!({"trouble": "source", "source": name}),
        Trouble::Order => json!({"trouble": "order"}),
        Trouble::Recovered => json!({"trouble": "recovered"}),
        Trouble::StalledSource(name) => json!({"trouble": "source stalled", "source": name}),
        Trouble::StalledPool(name) => json!({"trouble": "pool stalled", "pool": name}),
        Trouble::StalledKey(name) => json!({"trouble": "key stalled", "pool": name}),
        Trouble::NoSource(name) => json!({"trouble": "source missing", "source": name}),
        Trouble::OpenBreaker => json!({"trouble": "breaker open"}),
        Trouble::BlockedKey(name) => json!({"trouble": "key blocked", "pool": name}),
    };
    let mut told = trouble;
    told["detail"] = json!(problem.text);
    told["times"] = json!(problem.times);
    // A clock that was set back makes it new.
    let since = problem.since.elapsed().unwrap_or_default();
    told["forSeconds"] = json!(since.as_secs());
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(trouble: Trouble) -> Problem {
        Problem {
            trouble,
            text: "details".to_owned(),
            since: std::time::SystemTime::now(),
            times: 2,
        }
    }

    #[test]
    fn a_broken_order_is_shown_and_the_program_stays_ready() {
        let (status, body) = readiness(&[problem(Trouble::Order)], Vec::new());
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body["status"], "ready");
        assert_eq!(body["problems"][0]["trouble"], "order");
        assert_eq!(body["problems"][0]["times"], 2);
    }

    #[test]
    fn a_stalled_key_is_shown_and_a_stalled_pool_makes_it_not_ready() {
        let key = problem(Trouble::StalledKey("p".into()));
        let (status, body) = readiness(std::slice::from_ref(&key), Vec::new());
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body["problems"][0]["trouble"], "key stalled");
        let pool = problem(Trouble::StalledPool("p".into()));
        let (status, body) = readiness(&[key, pool], Vec::new());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["problems"][1]["pool"], "p");
    }

    #[test]
    fn an_open_breaker_is_shown_and_the_program_stays_ready() {
        let (status, body) = readiness(&[problem(Trouble::OpenBreaker)], Vec::new());
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body["problems"][0]["trouble"], "breaker open");
    }

    #[test]
    fn whatever_keeps_it_from_work_makes_it_not_ready() {
        let both = [problem(Trouble::Store), problem(Trouble::Order)];
        let (status, body) = readiness(&both, Vec::new());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["problems"].as_array().map(Vec::len), Some(2));
        let (status, _) = readiness(&[], vec![json!({"trouble": "stopping"})]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let all_is_well = (StatusCode::OK, json!({"status": "ready"}));
        assert_eq!(readiness(&[], Vec::new()), all_is_well);
    }
}
