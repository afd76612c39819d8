//! `GET /`: what runs here, for whoever opens it in a browser.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Html;

use super::App;

pub(super) async fn home(State(app): State<Arc<App>>) -> Html<String> {
    let mut rows = String::new();
    for queue in app.db.queues() {
        // Names of queues need no escapes: they are letters, digits, `.`, `_` and `-`.
        let (name, depth, out) = (queue.name, queue.depth, queue.out);
        let _ = writeln!(
            rows,
            "<tr><td>{name}</td><td>{depth}</td><td>{out}</td></tr>"
        );
    }
    let state = match app.router.problems().len() {
        0 => "ready".to_owned(),
        problems => format!("{problems} problems"),
    };
    Html(page(&state, &rows))
}

fn page(state: &str, rows: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Keylane</title>
<h1>Keylane {version}</h1>
<p>A message router: in order per key, concurrently across keys.</p>
<p>State: <a href="/readyz">{state}</a>. Numbers: <a href="/metrics">metrics</a>.</p>
<table>
<tr><th>queue</th><th>messages</th><th>out</th></tr>
{rows}</table>
<p>Publish by <code>POST /api/v1/queues/{{queue}}/messages</code>;
queues as JSON: <a href="/api/v1/queues">/api/v1/queues</a>.</p>
</html>
"#
    )
}
