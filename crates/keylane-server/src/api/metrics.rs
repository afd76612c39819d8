//! `/metrics`: what the router counted, what its queues and stores hold, what the process takes.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use keylane_router::counters::escape;
use keylane_router::health::Trouble;

use super::App;

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let mut text = app.router.counters().render(&app.router.pools());
    stalls(&mut text, &app);
    let help = "Target origins whose breaker is not closed.";
    let open = app.router.open_breakers();
    gauge(&mut text, "keylane_open_breakers", help, open);
    queues(&mut text, &app);
    stores(&mut text, &app).await;
    process(&mut text);
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], text)
}

fn queues(text: &mut String, app: &App) {
    let queues = app.db.queues();
    // Names of queues need no escapes: they are letters, digits, `.`, `_` and `-`.
    head(text, "keylane_queue_messages", "gauge", "In the queue.");
    for queue in &queues {
        let (name, depth) = (&queue.name, queue.depth);
        let _ = writeln!(text, "keylane_queue_messages{{queue=\"{name}\"}} {depth}");
    }
    head(text, "keylane_queue_messages_out", "gauge", "Of them, out.");
    for queue in &queues {
        let (name, out) = (&queue.name, queue.out);
        let _ = writeln!(text, "keylane_queue_messages_out{{queue=\"{name}\"}} {out}");
    }
}

/// Every source and pool, so that an alert sees the 0 as well.
fn stalls(text: &mut String, app: &App) {
    let problems = app.router.problems();
    let stalled = |trouble| u8::from(problems.iter().any(|problem| problem.trouble == trouble));
    head(text, "keylane_source_stalled", "gauge", "1 while it is.");
    for name in app.router.sources() {
        let value = stalled(Trouble::StalledSource(name.clone()));
        let name = escape(&name);
        let _ = writeln!(text, "keylane_source_stalled{{source=\"{name}\"}} {value}");
    }
    head(text, "keylane_pool_stalled", "gauge", "1 while it is.");
    for pool in app.router.pools() {
        let value = stalled(Trouble::StalledPool(pool.pool.clone()));
        let name = escape(&pool.pool);
        let _ = writeln!(text, "keylane_pool_stalled{{pool=\"{name}\"}} {value}");
    }
}

async fn stores(text: &mut String, app: &App) {
    let store = app.router.store();
    // A store that cannot be read has no number: no series is better than a wrong one.
    if let Ok(letters) = store.dead_letter_count().await {
        let help = "Dead letters in the store.";
        gauge(text, "keylane_dead_letters", help, letters);
    }
    let parked = store.parked();
    let messages: u64 = parked.iter().map(|lane| lane.messages).sum();
    gauge(text, "keylane_parked_lanes", "Parked keys.", parked.len());
    let help = "Messages of parked keys.";
    gauge(text, "keylane_parked_messages", help, messages);
}

/// By the names that all exporters use.
fn process(text: &mut String) {
    if let Some(bytes) = resident_bytes() {
        let help = "Memory of the process.";
        gauge(text, "process_resident_memory_bytes", help, bytes);
    }
    if let Some(seconds) = cpu_seconds() {
        let (name, help) = ("process_cpu_seconds_total", "CPU time of the process.");
        head(text, name, "counter", help);
        let _ = writeln!(text, "{name} {seconds}");
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name before it may hold anything, but for a closing bracket after the last.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    // Linux counts for programs in hundredths of a second, whatever it does inside.
    Some((ticks()? + ticks()?) as f64 / 100.0)
}

fn gauge(text: &mut String, name: &str, help: &str, value: impl Display) {
    head(text, name, "gauge", help);
    let _ = writeln!(text, "{name} {value}");
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_what_it_takes() {
        assert!(resident_bytes().unwrap() > 100_000);
        assert!(cpu_seconds().unwrap() >= 0.0);
    }
}
