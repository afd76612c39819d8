//! The target of the suite's messages: in this process, by a script, and it writes down every call.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::watched::{Step, Watch};
use crate::dispatch::{Attempt, Dispatch};
use crate::history::{By, Event, EventKind, Recorder};
use crate::message::Message;
use crate::outcome::{Outcome, Reason};

/// One call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The label of its key; keys themselves may be any bytes.
    pub(super) key: Arc<str>,
    /// The producer's number within the key.
    pub(super) n: u64,
}

/// What the target does with a call.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) after: Duration,
    pub(super) outcome: Outcome,
}

impl Answer {
    pub(super) fn delivered() -> Self {
        Self {
            after: Duration::ZERO,
            outcome: Outcome::Delivered,
        }
    }

    pub(super) fn failed() -> Self {
        let reason = Reason {
            class: "status-500".into(),
            text: "the script says so".to_owned(),
            ..Reason::default()
        };
        Self {
            outcome: Outcome::Failed(reason),
            ..Self::delivered()
        }
    }

    pub(super) fn refused() -> Self {
        let reason = Reason {
            class: "status-400".into(),
            text: "the script says so".to_owned(),
            ..Reason::default()
        };
        Self {
            outcome: Outcome::Refused(reason),
            ..Self::delivered()
        }
    }

    pub(super) fn not_yet(after: Duration) -> Self {
        let after = Some(after);
        Self {
            outcome: Outcome::NotYet { after },
            ..Self::delivered()
        }
    }

    pub(super) fn after(mut self, time: Duration) -> Self {
        self.after = time;
        self
    }
}

type Script = Box<dyn Fn(&Call) -> Answer + Send + Sync>;

/// Records and answers calls. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Target(Arc<Inner>);

struct Inner {
    history: Arc<Recorder>,
    watch: Arc<Watch>,
    script: Script,
    /// Whether it keeps the messages it got, to be looked at.
    keeps: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: HashMap<Arc<str>, u32>,
    delivered: HashSet<Arc<str>>,
    running: usize,
    got: HashMap<Arc<str>, Message>,
}

impl Target {
    pub(super) fn new(
        history: Arc<Recorder>,
        watch: Arc<Watch>,
        script: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            history,
            watch,
            script: Box::new(script),
            keeps: true,
            seen: Mutex::default(),
        }))
    }

    /// The same, before it is called: it keeps nothing of what it gets.
    pub(super) fn keeping_nothing(self) -> Self {
        let mut inner = Arc::into_inner(self.0).expect("it has no clones yet");
        inner.keeps = false;
        Self(Arc::new(inner))
    }

    /// How many messages were delivered, each counted once.
    pub(super) fn delivered(&self) -> usize {
        self.lock().delivered.len()
    }

    /// How many calls there were of this message.
    pub(super) fn calls(&self, label: &str) -> u32 {
        self.lock().calls.get(label).copied().unwrap_or(0)
    }

    /// How many calls there were in all.
    pub(super) fn all_calls(&self) -> u64 {
        self.lock().calls.values().map(|n| u64::from(*n)).sum()
    }

    pub(super) fn running(&self) -> usize {
        self.lock().running
    }

    /// The message as the target got it.
    pub(super) fn got(&self, label: &str) -> Option<Message> {
        self.lock().got.get(label).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, event: Event) {
        // A history with holes proves nothing.
        let recorded = self.0.history.record(event);
        recorded.expect("the history can be written");
    }

    /// One more of them runs, until what this answers is dropped.
    fn begin(&self, label: &Arc<str>, message: &Message) -> (u32, Running) {
        let mut seen = self.lock();
        let calls = seen.calls.entry(label.clone()).or_default();
        *calls += 1;
        let calls = *calls;
        seen.running += 1;
        if self.0.keeps {
            seen.got.insert(label.clone(), message.clone());
        }
        (calls, Running(self.clone()))
    }
}

struct Running(Target);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

impl Dispatch for Target {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let label = label_of_message(message);
        let Some((label, (key, n))) = label.and_then(|l| Some((l.clone(), parts(&l)?))) else {
            return Answer::failed().outcome;
        };
        let (times, _running) = self.begin(&label, message);
        let event = |kind| {
            Event::of(key.clone(), n, kind, By::Target)
                .attempt(times)
                .id(label.clone())
        };
        self.record(event(EventKind::Start));
        if attempt.lease.is_some() {
            self.0.watch.call_begins(&label);
        }
        if let Some(what) = self.0.watch.step(Step::Hold) {
            what.await;
        }
        let call = Call {
            key: key.clone(),
            n,
        };
        let answer = (self.0.script)(&call);
        if !answer.after.is_zero() {
            tokio::time::sleep(answer.after).await;
        }
        self.record(event(EventKind::End).outcome(word(&answer.outcome)));
        if answer.outcome == Outcome::Delivered {
            self.lock().delivered.insert(label);
        }
        answer.outcome
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::NotYet { .. } => "not-yet",
        Outcome::Busy { .. } => "busy",
        Outcome::Failed(_) => "failed",
        Outcome::Refused(_) => "refused",
    }
}

/// What the suite calls message `n` of a key; it is the id of its body.
pub(super) fn label(key: &str, n: u64) -> Arc<str> {
    format!("{key}#{n}").into()
}

/// The key's label and the number.
pub(super) fn parts(label: &str) -> Option<(Arc<str>, u64)> {
    let (key, n) = label.rsplit_once('#')?;
    Some((key.into(), n.parse().ok()?))
}

/// The label in a body: the id of an envelope, or what the whole body says.
pub(super) fn label_of(body: &[u8]) -> Option<Arc<str>> {
    #[derive(serde::Deserialize)]
    struct Id<'a> {
        #[serde(borrow)]
        id: std::borrow::Cow<'a, str>,
    }
    let label: Arc<str> = match serde_json::from_slice::<Id<'_>>(body) {
        Ok(found) => found.id.into(),
        Err(_) => std::str::from_utf8(body).ok()?.into(),
    };
    parts(&label).map(|_| label)
}

fn label_of_message(message: &Message) -> Option<Arc<str>> {
    let by_id = parts(&message.id).map(|_| message.id.clone());
    by_id.or_else(|| label_of(&message.payload))
}
