//! The span of an attempt, in OpenTelemetry's words for messaging.

use std::cell::LazyCell;
use std::sync::Arc;

use tracing::Span;
use tracing::field::Empty;

use crate::delivery::Delivery;
use crate::error_type::ErrorType;
use crate::message::Message;
use crate::pool::Shared;

/// Told of each span that somebody listens to, before it is entered.
pub(crate) type Link = Arc<dyn Fn(&Span, &Message) + Send + Sync>;

/// What spans say of a source.
#[derive(Clone)]
pub(crate) struct Described {
    /// Its broker, as OpenTelemetry calls it.
    system: &'static str,
    /// The queue it reads.
    destination: Arc<str>,
}

impl Described {
    pub(crate) fn new(kind: &'static str, destination: Arc<str>) -> Self {
        let system = match kind {
            "sqs" => "aws_sqs",
            "embedded" => "keylane",
            // The others are called the same there, or have no name there.
            kind => kind,
        };
        Self {
            system,
            destination,
        }
    }
}

impl Described {
    /// The queue it reads.
    pub(crate) fn queue(&self) -> &Arc<str> {
        &self.destination
    }
}

/// The span of one attempt of this message.
pub(crate) fn attempt(shared: &Shared, pool: &str, delivery: &Delivery, message: &Message) -> Span {
    let identity = &delivery.identity;
    // Values of fields are made only if somebody listens: so is all that is asked for here.
    let source = LazyCell::new(|| shared.described(&identity.source));
    let system = LazyCell::new(|| source.as_ref().map(|source| source.system));
    let queue = LazyCell::new(|| match &*source {
        Some(source) => &source.destination,
        None => &identity.source,
    });
    let parent = LazyCell::new(|| Parent::of(message));
    let span = tracing::debug_span!(
        target: "keylane_router::attempt",
        "attempt",
        pool,
        slot = delivery.slot,
        number = delivery.stay.next_attempt(),
        %identity,
        trace_id = parent.as_ref().map(|parent| parent.trace_id),
        parent_span_id = parent.as_ref().map(|parent| parent.span_id),
        otel.name = %format_args!("{} receive", *queue),
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = *system,
        messaging.destination.name = &***queue,
        messaging.operation.name = "receive",
        messaging.operation.type = "process",
        messaging.message.id = %identity.id,
        error.type = Empty,
    );
    if !span.is_disabled()
        && let Some(link) = &shared.link
    {
        link(&span, message);
    }
    span
}

/// The attempt of this span did not deliver.
pub(crate) fn failed(span: &Span, error: ErrorType) {
    span.record("error.type", error.as_str());
    span.record("otel.status_code", "ERROR");
}

/// Whose work goes on here: what a `traceparent` header says.
#[derive(Debug, PartialEq, Eq)]
struct Parent<'a> {
    trace_id: &'a str,
    span_id: &'a str,
}

impl<'a> Parent<'a> {
    fn of(message: &'a Message) -> Option<Self> {
        let named = |(name, _): &&(Arc<str>, Arc<str>)| name.eq_ignore_ascii_case("traceparent");
        let (_, value) = message.headers.iter().find(named)?;
        Self::read(value)
    }

    /// Reads it as the W3C says: lower-case hex, ids that are not 0, and from later versions what
    /// this one knows.
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let mut hex = |digits| parts.next().filter(|part| is_hex(part, digits));
        let (version, trace_id, span_id, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let more = parts.next().is_some();
        let known = version != "ff" && !(version == "00" && more);
        let some = |id: &str| id.bytes().any(|digit| digit != b'0');
        (known && some(trace_id) && some(span_id)).then_some(Self { trace_id, span_id })
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    text.len() == digits && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_read_as_the_w3c_says() {
        let parent = Parent {
            trace_id: TRACE,
            span_id: SPAN,
        };
        let good = [
            format!("00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-00"),
            format!("cc-{TRACE}-{SPAN}-01-what-comes-later"),
        ];
        for text in &good {
            assert_eq!(Parent::read(text).as_ref(), Some(&parent), "{text}");
        }
        let zeros = "0".repeat(32);
        let bad = [
            String::new(),
            "00-ab".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{SPAN}-{TRACE}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ];
        for text in &bad {
            assert_eq!(Parent::read(text), None, "{text}");
        }
    }
}
