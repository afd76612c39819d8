//! Spans of attempts, kept on the thread of a test.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;

/// What a span says of itself, by the names of its fields.
pub(crate) type Fields = BTreeMap<&'static str, String>;

/// Keeps the spans of attempts.
#[derive(Clone, Default)]
pub(crate) struct Spans {
    all: Arc<Mutex<Vec<Kept>>>,
}

#[derive(Default)]
struct Kept {
    fields: Fields,
    entered: bool,
}

impl Spans {
    /// Keeps those of this thread from now on, as long as the guard lives.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let spans = Self::default();
        let here = keylane_router::conformance::listen(spans.clone());
        (spans, here)
    }

    /// Those of messages with this id, as they were made.
    pub(crate) fn of(&self, id: &str) -> Vec<Fields> {
        let all = self.all.lock().unwrap();
        let of = all
            .iter()
            .filter(|kept| kept.fields["messaging.message.id"] == id);
        of.map(|kept| kept.fields.clone()).collect()
    }

    /// How many there are; each was entered.
    pub(crate) fn entered(&self) -> usize {
        let all = self.all.lock().unwrap();
        assert!(all.iter().all(|span| span.entered));
        all.len()
    }
}

impl Visit for Kept {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Spans {
    /// Asked each time: tests beside this one want other things of the same places.
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "keylane_router::attempt"
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut kept = Kept::default();
        span.record(&mut kept);
        let mut all = self.all.lock().unwrap();
        all.push(kept);
        span::Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut all = self.all.lock().unwrap();
        values.record(&mut all[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, id: &span::Id) {
        self.all.lock().unwrap()[id.into_u64() as usize - 1].entered = true;
    }

    fn exit(&self, _: &span::Id) {}
}

/// The part that all spans of this queue have.
pub(crate) fn assert_is_of(span: &Fields, system: &str, queue: &str) {
    let name = format!("{queue} receive");
    let wanted = [
        ("otel.name", &*name),
        ("otel.kind", "consumer"),
        ("messaging.system", system),
        ("messaging.destination.name", queue),
        ("messaging.operation.name", "receive"),
        ("messaging.operation.type", "process"),
    ];
    for (field, value) in wanted {
        assert_eq!(span.get(field).map(String::as_str), Some(value), "{span:?}");
    }
}

pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const PARENT: &str = "00f067aa0ba902b7";
