//! What the checker found: counts, and each violation with the part of the history that shows it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::history::Event;

/// The verdict on a history.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How much of everything there was.
    pub counts: Counts,
    /// How many violations of each kind there are.
    pub totals: BTreeMap<ViolationKind, u64>,
    /// The first of each kind.
    pub violations: Vec<Violation>,
}

/// What a history holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Events read.
    pub events: u64,
    /// Lanes met.
    pub keys: u64,
    /// Messages published.
    pub published: u64,
    /// Messages delivered at least once.
    pub delivered: u64,
    /// Attempts started.
    pub attempts: u64,
    /// Attempts after the first of a message that was not delivered yet.
    pub retries: u64,
    /// Deliveries after the first, by cause.
    pub duplicates: BTreeMap<Cause, u64>,
    /// To a dead-letter store, or to the broker's.
    pub dead_lettered: u64,
    /// Skipped by an operator.
    pub skipped: u64,
    /// Dropped by a policy or an operator.
    pub dropped: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Returns to the source.
    pub returned: u64,
    /// Parked at the end.
    pub parked: u64,
    /// Without an end in a history that was cut.
    pub unfinished: u64,
    /// Crashes of the router.
    pub crashes: u64,
    /// Events that name no message of the history.
    pub unplaced: u64,
}

impl Counts {
    pub(super) fn duplicate(&mut self, cause: Cause) {
        *self.duplicates.entry(cause).or_default() += 1;
    }
}

/// Why a message was delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The router died or was started anew.
    Crash,
    /// The router gave up waiting.
    Timeout,
    /// The answer did not arrive whole.
    AnswerCut,
    /// The source did not hear the ack.
    AckLost,
    /// The loan ended.
    LeaseLost,
    /// Queues were dealt anew.
    Rebalance,
    /// There is none: a violation.
    Unexplained,
}

impl Cause {
    /// Whether the source gives the message again although the router had settled it.
    pub(super) fn is_of_the_source(self) -> bool {
        matches!(self, Self::AckLost | Self::LeaseLost | Self::Rebalance)
    }
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationKind {
    /// Published or acknowledged, and never delivered or stored.
    Lost,
    /// Started before the one ahead of it had its first resolution.
    Overtaken,
    /// Started while its lane was full or it was running itself.
    Overlapping,
    /// Delivered again without a legal cause, or beyond what the cause explains.
    Duplicated,
}

/// One violation.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// What happened.
    pub kind: ViolationKind,
    /// The lane's source, if the history has it.
    pub source: Option<String>,
    /// The lane's pool, if the history has it.
    pub pool: Option<String>,
    /// The lane's key; `None` = keyless.
    pub key: Option<String>,
    /// The message.
    pub n: Option<u64>,
    /// What is wrong, for people.
    pub text: String,
    /// The shortest part of the history that shows it.
    pub excerpt: Vec<Event>,
}

impl Report {
    pub(super) fn new(events: u64) -> Self {
        Self {
            counts: Counts {
                events,
                ..Counts::default()
            },
            totals: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Counts one violation and says the how-manieth of its kind it is.
    pub(super) fn add(&mut self, kind: ViolationKind) -> u64 {
        let total = self.totals.entry(kind).or_default();
        *total += 1;
        *total
    }

    /// Whether nothing is wrong.
    pub fn is_green(&self) -> bool {
        self.totals.is_empty()
    }

    /// How many violations of this kind there are.
    pub fn total(&self, kind: ViolationKind) -> u64 {
        self.totals.get(&kind).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.counts)?;
        for violation in &self.violations {
            write!(f, "\n{violation}")?;
        }
        for (kind, total) in &self.totals {
            writeln!(f, "{kind}: {total}")?;
        }
        match self.totals.is_empty() {
            true => writeln!(
                f,
                "green: nothing lost, overtaken, overlapping or duplicated"
            ),
            false => writeln!(f, "red"),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "events       {} of {} keys", self.events, self.keys)?;
        writeln!(f, "published    {}", self.published)?;
        writeln!(f, "delivered    {}", self.delivered)?;
        writeln!(
            f,
            "attempts     {} ({} retries)",
            self.attempts, self.retries
        )?;
        let total: u64 = self.duplicates.values().sum();
        write!(f, "duplicates   {total}")?;
        for (cause, count) in &self.duplicates {
            write!(f, ", {cause} {count}")?;
        }
        writeln!(f)?;
        let rest = [
            ("dead letters", self.dead_lettered),
            ("skipped", self.skipped),
            ("dropped", self.dropped),
            ("cancelled", self.cancelled),
            ("returned", self.returned),
            ("parked", self.parked),
            ("unfinished", self.unfinished),
            ("crashes", self.crashes),
            ("unplaced", self.unplaced),
        ];
        for (name, count) in rest.into_iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "{name:<12} {count}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind)?;
        for part in [&self.source, &self.pool].into_iter().flatten() {
            write!(f, "{part} / ")?;
        }
        match &self.key {
            Some(key) => write!(f, "{key:?}")?,
            None => write!(f, "keyless")?,
        }
        if let Some(n) = self.n {
            write!(f, " message {n}")?;
        }
        writeln!(f, ": {}", self.text)?;
        for event in &self.excerpt {
            writeln!(f, "    {event}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "crash",
            Self::Timeout => "timeout",
            Self::AnswerCut => "answer cut",
            Self::AckLost => "ack lost",
            Self::LeaseLost => "lease lost",
            Self::Rebalance => "rebalance",
            Self::Unexplained => "unexplained",
        })
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Overtaken => "overtaken",
            Self::Overlapping => "overlapping",
            Self::Duplicated => "duplicated",
        })
    }
}
