//! Histories: what happened in a run, written down as events, and the checker that finds any
//! loss, overtaking, overlap or unexplained duplicate in them.
//!
//! A history is JSON Lines, one [`Event`] each, with the time of one monotonic clock and the
//! producer's own number of the message within its key. [`Recorder`] writes it, [`History`] reads
//! it, [`check()`] judges it and needs nothing else.
//!
//! ```
//! use keylane_router::history::{check, By, Event, EventKind, History, Options};
//!
//! let mut history = History::default();
//! history.push(&Event::of("k1", 0, EventKind::Publish, By::Producer).at(1));
//! history.push(&Event::of("k1", 0, EventKind::Start, By::Target).at(2));
//! history.push(&Event::of("k1", 0, EventKind::End, By::Target).outcome("delivered").at(3));
//! assert!(check(history, &Options::default()).is_green());
//! ```

mod check;
mod place;
mod record;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use check::{Cause, Counts, Options, Report, Violation, ViolationKind, check};
pub use record::{Recorder, now};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The producer's message was accepted.
    Publish,
    /// The router took it from the source.
    Receive,
    /// An attempt begins.
    Start,
    /// An attempt ends; `outcome` says how (`delivered`, `failed`, `busy`, `not-yet`, `refused`).
    End,
    /// The source was told that it may forget the message.
    Ack,
    /// The message went back to the source, together with everything behind it.
    Return,
    /// The message went to the broker's own dead letter.
    Reject,
    /// The message is in a store; `outcome` says which (`parked` and `spilled` are places, anything
    /// else or nothing is a dead letter and resolves the message).
    Store,
    /// An operator skipped it.
    Skip,
    /// A policy or an operator dropped it.
    Drop,
    /// It was cancelled.
    Cancel,
    /// The router gave up waiting for the target's answer.
    Timeout,
    /// The source did not hear an ack.
    AckLost,
    /// The loan of the message ended while it was held.
    LeaseLost,
    /// Queues were dealt anew among instances.
    Rebalance,
    /// The router (or, by `target`, the target) died.
    Crash,
    /// It is back.
    Restart,
    /// With a message: the target's answer to it was cut. Without: whatever was under way has an
    /// unknown end, and the record may stop before the run did.
    Cut,
}

impl EventKind {
    /// Whether the event is about one message and makes no sense without it.
    fn needs_message(self) -> bool {
        matches!(
            self,
            Self::Publish | Self::Start | Self::End | Self::Skip | Self::Drop | Self::Cancel
        )
    }
}

/// Who saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// The target of the attempts.
    Target,
    /// The router.
    Router,
    /// Whoever publishes.
    Producer,
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of one monotonic clock.
    pub t: u64,
    /// What happened.
    pub kind: EventKind,
    /// The source's name.
    pub source: Option<Arc<str>>,
    /// The pool's name.
    pub pool: Option<Arc<str>>,
    /// The ordering key; absent for keyless messages and for events about no message.
    pub key: Option<Arc<str>>,
    /// The producer's number within the key.
    pub n: Option<u64>,
    /// The batch it was received with.
    pub batch: Option<Arc<str>>,
    /// The message's id; names the message for a router that does not know `n`.
    pub id: Option<Arc<str>>,
    /// Which attempt, from 1.
    pub attempt: Option<u32>,
    /// How an attempt ended, or which store.
    pub outcome: Option<Arc<str>>,
    /// Who saw it.
    pub by: Option<By>,
}

impl Event {
    /// An event about no message.
    pub fn new(kind: EventKind, by: By) -> Self {
        Self {
            t: 0,
            kind,
            source: None,
            pool: None,
            key: None,
            n: None,
            batch: None,
            id: None,
            attempt: None,
            outcome: None,
            by: Some(by),
        }
    }

    /// An event about message `n` of `key`.
    pub fn of(key: impl Into<Arc<str>>, n: u64, kind: EventKind, by: By) -> Self {
        Self {
            key: Some(key.into()),
            n: Some(n),
            ..Self::new(kind, by)
        }
    }

    /// The same at another time; a [`Recorder`] sets its own.
    pub fn at(mut self, t: u64) -> Self {
        self.t = t;
        self
    }

    /// The same with an outcome.
    pub fn outcome(mut self, outcome: impl Into<Arc<str>>) -> Self {
        self.outcome = Some(outcome.into());
        self
    }

    /// The same with the attempt's number.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// The same with the message's id.
    pub fn id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same in this source and pool.
    pub fn within(mut self, source: impl Into<Arc<str>>, pool: impl Into<Arc<str>>) -> Self {
        self.source = Some(source.into());
        self.pool = Some(pool.into());
        self
    }

    /// Writes the event as one line, in one call of `write`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line::from(self)).map_err(io::Error::from)?;
        line.push(b'\n');
        out.write_all(&line)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = serde_json::to_string(&Line::from(self)).map_err(|_| fmt::Error)?;
        f.write_str(&line)
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Line::from(self).serialize(serializer)
    }
}

/// An event as it is written. Borrows, so that reading millions of lines allocates little.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    t: u64,
    ev: EventKind,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    source: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pool: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    batch: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    #[serde(default, rename = "try", skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    outcome: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
}

impl<'a> From<&'a Event> for Line<'a> {
    fn from(event: &'a Event) -> Self {
        let text = |part: &'a Option<Arc<str>>| part.as_deref().map(Cow::Borrowed);
        Self {
            t: event.t,
            ev: event.kind,
            source: text(&event.source),
            pool: text(&event.pool),
            key: text(&event.key),
            n: event.n,
            batch: text(&event.batch),
            id: text(&event.id),
            attempt: event.attempt,
            outcome: text(&event.outcome),
            by: event.by,
        }
    }
}

impl Line<'_> {
    /// What the format asks for beyond its grammar.
    fn flaw(&self) -> Option<String> {
        let named = self.n.is_some() || self.id.is_some();
        if self.ev.needs_message() && !named {
            return Some("names no message: it needs `n` or `id`".into());
        }
        if self.ev == EventKind::End && self.outcome.is_none() {
            return Some("an `end` needs an `outcome`, for example \"delivered\"".into());
        }
        None
    }
}

/// A line that is no event.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes could not be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not an event.
    #[error("line {line}: {text}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        text: String,
    },
}

/// "No such text" among the interned ones.
const NONE: u32 = u32::MAX;
/// "No number".
const NO_NUMBER: u64 = u64::MAX;

/// An event of fixed size: ten million of them fit into memory.
#[derive(Clone, Copy, Debug)]
struct Row {
    t: u64,
    n: u64,
    source: u32,
    pool: u32,
    key: u32,
    batch: u32,
    id: u32,
    attempt: u32,
    outcome: u32,
    kind: EventKind,
    by: Option<By>,
}

/// Events held compactly, in the order they were pushed; [`check()`] sorts them by time.
#[derive(Debug, Default)]
pub struct History {
    rows: Vec<Row>,
    texts: Vec<Arc<str>>,
    known: HashMap<Arc<str>, u32>,
}

impl History {
    /// Adds one event.
    pub fn push(&mut self, event: &Event) {
        self.add(&Line::from(event));
    }

    /// Messages are known by their ids alone from now on, and have no order: what a source that
    /// promises none is judged by.
    #[cfg(feature = "conformance")]
    pub(crate) fn forget_order(&mut self) {
        for row in self.rows.iter_mut().filter(|row| row.id != NONE) {
            (row.key, row.n) = (NONE, NO_NUMBER);
        }
    }

    /// Adds all events of a JSON Lines text. An unfinished last line (a writer was killed) is left
    /// out; any other line that is no event is an error.
    pub fn read(&mut self, mut input: impl BufRead) -> Result<(), ReadError> {
        let mut buffer = Vec::new();
        for line in 1.. {
            buffer.clear();
            if input.read_until(b'\n', &mut buffer)? == 0 {
                break;
            }
            if buffer.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<Line<'_>>(&buffer) {
                Ok(event) => match event.flaw() {
                    None => self.add(&event),
                    Some(text) => return Err(ReadError::Line { line, text }),
                },
                Err(_) if buffer.last() != Some(&b'\n') => break,
                Err(error) => {
                    let text = error.to_string();
                    return Err(ReadError::Line { line, text });
                }
            }
        }
        Ok(())
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn add(&mut self, line: &Line<'_>) {
        let row = Row {
            t: line.t,
            n: line.n.unwrap_or(NO_NUMBER),
            source: self.intern(line.source.as_deref()),
            pool: self.intern(line.pool.as_deref()),
            key: self.intern(line.key.as_deref()),
            batch: self.intern(line.batch.as_deref()),
            id: self.intern(line.id.as_deref()),
            attempt: line.attempt.unwrap_or(0),
            outcome: self.intern(line.outcome.as_deref()),
            kind: line.ev,
            by: line.by,
        };
        self.rows.push(row);
    }

    fn intern(&mut self, text: Option<&str>) -> u32 {
        let Some(text) = text else { return NONE };
        if let Some(&known) = self.known.get(text) {
            return known;
        }
        let number = u32::try_from(self.texts.len()).expect("fewer than 2^32 different texts");
        let text: Arc<str> = Arc::from(text);
        self.texts.push(Arc::clone(&text));
        self.known.insert(text, number);
        number
    }

    fn text(&self, number: u32) -> Option<Arc<str>> {
        self.texts.get(number as usize).cloned()
    }

    fn is_text(&self, number: u32, text: &str) -> bool {
        self.texts
            .get(number as usize)
            .is_some_and(|t| &**t == text)
    }

    /// The row as the event it was.
    fn event(&self, row: &Row) -> Event {
        Event {
            t: row.t,
            kind: row.kind,
            source: self.text(row.source),
            pool: self.text(row.pool),
            key: self.text(row.key),
            n: (row.n != NO_NUMBER).then_some(row.n),
            batch: self.text(row.batch),
            id: self.text(row.id),
            attempt: (row.attempt != 0).then_some(row.attempt),
            outcome: self.text(row.outcome),
            by: row.by,
        }
    }

    /// Stable, so that of events with one time the one pushed first stays first.
    fn sort_by_time(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.t) {
            self.rows.sort_by_key(|row| row.t);
        }
    }
}

impl<'a> Extend<&'a Event> for History {
    fn extend<I: IntoIterator<Item = &'a Event>>(&mut self, events: I) {
        events.into_iter().for_each(|event| self.push(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"t":5,"ev":"ack-lost","source":"s","pool":"p","key":"k\"1","n":7,"batch":"b","id":"i","try":2,"outcome":"delivered","by":"router"}"#;

    fn read(text: &str) -> Result<History, ReadError> {
        let mut history = History::default();
        history.read(text.as_bytes()).map(|()| history)
    }

    #[test]
    fn an_event_is_written_as_it_was_read() {
        let history = read(LINE).unwrap();
        assert_eq!(history.event(&history.rows[0]).to_string(), LINE);
    }

    #[test]
    fn absent_parts_stay_absent() {
        let line = r#"{"t":1,"ev":"crash"}"#;
        let history = read(line).unwrap();
        assert_eq!(history.event(&history.rows[0]).to_string(), line);
    }

    #[test]
    fn a_bad_line_is_named() {
        let text = format!("{LINE}\n\n{{\"t\":1,\"ev\":\"begin\"}}\n");
        let error = read(&text).unwrap_err().to_string();
        assert!(
            error.starts_with("line 3: unknown variant `begin`"),
            "{error}"
        );
    }

    #[test]
    fn a_start_without_a_message_is_a_bad_line() {
        let error = read("{\"t\":1,\"ev\":\"start\",\"key\":\"a\"}\n").unwrap_err();
        assert!(error.to_string().contains("needs `n` or `id`"));
    }

    #[test]
    fn an_end_without_an_outcome_is_a_bad_line() {
        let error = read("{\"t\":1,\"ev\":\"end\",\"n\":1}\n").unwrap_err();
        assert!(error.to_string().contains("outcome"));
    }

    #[test]
    fn a_last_line_cut_by_a_kill_is_left_out() {
        let history = read(&format!("{LINE}\n{{\"t\":6,\"ev\":\"sta")).unwrap();
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn events_of_several_writers_are_put_in_the_order_of_time() {
        let mut history = History::default();
        let event = |t| Event::new(EventKind::Crash, By::Router).at(t);
        history.extend(&[event(3), event(1), event(2)]);
        history.sort_by_time();
        let times: Vec<u64> = history.rows.iter().map(|row| row.t).collect();
        assert_eq!(times, [1, 2, 3]);
    }
}
