//! The HTTP API: its routes, and what they share.

mod backup;
mod chance;
mod health;
mod home;
mod in_flight;
mod metrics;
mod problem;
mod publish;
mod queues;
mod raw;
mod reload;
mod seed;
mod test_targets;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router as Routes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use keylane_router::Router;
use keylane_router::embedded::Db;
use tokio_util::sync::CancellationToken;

use crate::reload::InForce;
use crate::sources::Sources;
use health::Publishing;
use problem::Problem;
use test_targets::Stats;

/// What the routes and the signals act on.
pub(crate) struct App {
    pub(crate) db: Db,
    pub(crate) router: Router,
    pub(crate) sources: Arc<Sources>,
    pub(crate) in_force: InForce,
    /// Cancelled by the first signal, read by publishes and readiness.
    pub(crate) stopping: CancellationToken,
    /// Where the API listens.
    address: SocketAddr,
    /// How publishes fare: they write it, readiness reads it.
    publishing: Publishing,
    /// What the test targets saw.
    tests: Stats,
}

impl App {
    pub(crate) fn new(
        db: Db,
        router: Router,
        sources: Arc<Sources>,
        in_force: InForce,
        address: SocketAddr,
    ) -> Self {
        Self {
            db,
            router,
            sources,
            in_force,
            stopping: CancellationToken::new(),
            address,
            publishing: Publishing::default(),
            tests: Stats::default(),
        }
    }
}

/// All routes.
pub(crate) fn routes(app: Arc<App>) -> Routes {
    let publish = post(publish::publish).layer(DefaultBodyLimit::max(publish::BODY_LIMIT));
    Routes::new()
        .route("/", get(home::home))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/api/v1/queues", get(queues::list))
        .route("/api/v1/queues/{queue}/messages", publish)
        .route("/api/v1/in-flight", get(in_flight::ask))
        .route("/api/v1/config/reload", post(reload::reload))
        .route("/api/v1/backup", post(backup::backup))
        .merge(dev_routes(app.clone()))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_way)
        .layer(from_fn(refuse_strange_pages))
        .with_state(app)
}

/// There only while `[dev] enabled` is on.
fn dev_routes(app: Arc<App>) -> Routes<Arc<App>> {
    Routes::new()
        .route("/api/seed/messages", post(seed::seed))
        .route("/api/test/stats", get(test_targets::stats))
        .route("/api/test/stats/reset", post(test_targets::reset))
        .route("/api/test/{target}", post(test_targets::answer))
        .route_layer(from_fn_with_state(app, only_in_dev))
}

async fn only_in_dev(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.in_force.dev().enabled {
        true => next.run(request).await,
        false => nothing_here().await.into_response(),
    }
}

/// A page of another site, opened in a browser on this machine, must not act here. Programs send
/// no `Origin`; a page of ours sends this server's own.
async fn refuse_strange_pages(request: Request, next: Next) -> Response {
    if !is_from_elsewhere(request.headers()) {
        return next.run(request).await;
    }
    let detail = "requests from pages of other sites are not taken";
    let title = "That page may not do this";
    Problem::new(StatusCode::FORBIDDEN, "origin", title, detail).into_response()
}

fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let header = |name| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let host = header(header::HOST).unwrap_or_default();
    header(header::ORIGIN).is_some_and(|origin| !is_own_page(origin, host))
}

/// Also the name must be one that no stranger can point at this machine.
fn is_own_page(origin: &str, host: &str) -> bool {
    let Ok(host) = host.parse::<Authority>() else {
        return false;
    };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let is_local = name.parse::<IpAddr>().is_ok() || name == "localhost";
    is_local && origin == format!("http://{host}")
}

async fn nothing_here() -> Problem {
    Problem::not_found("there is no such route; GET / says what runs here")
}

async fn not_that_way() -> Problem {
    let detail = "the route is there, but not for this method";
    let title = "The method is not allowed";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", title, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_server_are_its_own() {
        assert!(is_own_page("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(is_own_page("http://localhost:8080", "localhost:8080"));
        assert!(is_own_page("http://[::1]:8080", "[::1]:8080"));
        assert!(!is_own_page("http://evil.example", "127.0.0.1:8080"));
        assert!(!is_own_page("null", "127.0.0.1:8080"));
        // A name that its owner made point here.
        assert!(!is_own_page(
            "http://evil.example:8080",
            "evil.example:8080"
        ));
    }
}
