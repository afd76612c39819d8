//! What the router logs, on the thread of a test.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;

/// Keeps warnings and errors, or more.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>, tracing::Level);

impl Log {
    /// Keeps what this thread warns of from now on, as long as the guard lives.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::from_level(tracing::Level::WARN)
    }

    /// Keeps what this thread logs from this level on.
    pub(crate) fn from_level(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self(Arc::default(), level);
        let here = tracing::subscriber::set_default(log.clone());
        (log, here)
    }

    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
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
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= self.1 && metadata.target().starts_with("keylane")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
