//! What the router logs, on the thread of a test.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;

/// Keeps what is of a level, or more urgent.
#[derive(Clone)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    level: tracing::Level,
}

impl Log {
    /// Keeps the warnings and errors of this thread from now on, as long as the guard lives.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::start_at(tracing::Level::WARN)
    }

    /// As [`Log::start`], from another level on.
    pub(crate) fn start_at(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let lines = Arc::default();
        let log = Self { lines, level };
        let here = keylane_router::conformance::listen(log.clone());
        (log, here)
    }

    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let lines = lines.iter().filter(|line| line.contains(words));
        lines.cloned().collect()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Log {
    /// Asked each time: tests beside this one want other levels of the same places.
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("keylane")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.lines.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
