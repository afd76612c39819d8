//! What is counted, once each: the numbers behind `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub use crate::error_type::ErrorType;

/// The upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// One number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// This many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long things took.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len()],
    nanos: Counter,
    count: Counter,
}

impl Histogram {
    /// It took this long.
    pub fn note(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].one();
        }
        self.nanos
            .add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.count.one();
    }

    /// How many were noted.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

/// Calls of targets of one class: how many there were and how long they took, by what went wrong.
#[derive(Debug)]
pub struct Calls {
    delivered: OnceLock<Box<Histogram>>,
    /// By the place of their word in the list. Most words never happen: nothing is there for them.
    failed: [OnceLock<Box<Histogram>>; ErrorType::COUNT],
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            delivered: OnceLock::new(),
            failed: std::array::from_fn(|_| OnceLock::new()),
        }
    }
}

impl Calls {
    /// One took this long, and went wrong like this or not at all.
    pub(crate) fn note(&self, error: Option<ErrorType>, took: Duration) {
        let place = match error {
            Some(error) => &self.failed[error.index()],
            None => &self.delivered,
        };
        place.get_or_init(Box::default).note(took);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.by_error().map(|(_, took)| took.count()).sum()
    }

    /// How long they took, by what went wrong; only what happened.
    pub fn by_error(&self) -> impl Iterator<Item = (Option<ErrorType>, &Histogram)> {
        let failed = ErrorType::all().map(|error| (Some(error), &self.failed[error.index()]));
        let all = std::iter::once((None, &self.delivered)).chain(failed);
        all.filter_map(|(error, took)| Some((error, &**took.get()?)))
    }
}

/// What happened to the messages of one source in one pool.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "each is what its name says")]
pub struct Counters {
    pub received: Counter,
    pub redelivered: Counter,
    pub delivered: Counter,
    pub dead_lettered: Counter,
    pub dropped: Counter,
    pub skipped: Counter,
    pub parked: Counter,
    pub spilled: Counter,
    pub returned: Counter,
    pub lost_leases: Counter,
    /// Acks and returns that came after the lease had ended: their messages come again.
    pub late_settlements: Counter,
    pub attempts_delivered: Calls,
    pub attempts_not_yet: Calls,
    pub attempts_busy: Calls,
    pub attempts_failed: Calls,
    pub attempts_refused: Calls,
    pub attempts_cut: Calls,
    pub wait_seconds: Histogram,
    /// First starts that came after a later one of their key, as far as was looked.
    pub ordering_violations: Counter,
    /// Whether the source has positions to look at.
    audited: AtomicBool,
}

/// Source and pool.
pub type Labels = (Arc<str>, Arc<str>);

/// All counters, by source and pool.
#[derive(Debug, Default)]
pub struct Registry {
    by: Mutex<BTreeMap<Labels, Arc<Counters>>>,
    /// Messages that asked for a pool that does not exist.
    pub unknown_pool: Counter,
}

/// How many messages there are right now in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub struct PoolGauges {
    pub pool: Arc<str>,
    pub lanes: usize,
    pub queued: usize,
    pub in_flight: usize,
    pub unsettled: usize,
    /// Attempts that take too long.
    pub stalled: usize,
    /// Keys whose head fails for good.
    pub blocked: usize,
    /// Keys that the store cannot take.
    pub waits_for_store: usize,
    pub bytes: u64,
}

impl Registry {
    /// The counters of this source in this pool.
    pub fn of(&self, source: &Arc<str>, pool: &Arc<str>) -> Arc<Counters> {
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        by.entry((source.clone(), pool.clone()))
            .or_default()
            .clone()
    }

    /// How much was finished in a pool: attempts that ended, and messages that left.
    pub(crate) fn finished_in(&self, pool: &str) -> u64 {
        let by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pool = by.iter().filter(|((_, name), _)| &**name == pool);
        let finished = |counters: &Counters| {
            let left: u64 = counters
                .resolved()
                .iter()
                .map(|(_, count)| count.get())
                .sum();
            let called = counters.attempts();
            left + called.iter().map(|(_, calls)| calls.get()).sum::<u64>()
        };
        of_pool.map(|(_, counters)| finished(counters)).sum()
    }

    /// All of them.
    pub fn all(&self) -> Vec<(Labels, Arc<Counters>)> {
        let by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        by.iter()
            .map(|(labels, counters)| (labels.clone(), counters.clone()))
            .collect()
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self, pools: &[PoolGauges]) -> String {
        let all = self.all();
        let mut out = String::new();
        let series = |out: &mut String, name: &str, help: &str, kind: &str| {
            let _ = writeln!(
                out,
                "# HELP keylane_{name} {help}\n# TYPE keylane_{name} {kind}"
            );
        };
        series(
            &mut out,
            "messages_received_total",
            "Messages taken from a source.",
            "counter",
        );
        for (labels, counters) in &all {
            line(
                &mut out,
                "messages_received_total",
                labels,
                "",
                counters.received.get(),
            );
        }
        let name = "messages_resolved_total";
        series(&mut out, name, "Messages that left, by how.", "counter");
        for (labels, counters) in &all {
            for (outcome, counter) in counters.resolved() {
                line(
                    &mut out,
                    name,
                    labels,
                    &format!(",outcome=\"{outcome}\""),
                    counter.get(),
                );
            }
        }
        series(
            &mut out,
            "attempts_total",
            "Calls of targets, by class of outcome and what went wrong.",
            "counter",
        );
        for (labels, counters) in &all {
            for (more, took) in counters.calls() {
                line(&mut out, "attempts_total", labels, &more, took.count());
            }
        }
        series(
            &mut out,
            "attempt_seconds",
            "How long calls took, by class of outcome and what went wrong.",
            "histogram",
        );
        for (labels, counters) in &all {
            for (more, took) in counters.calls() {
                histogram(&mut out, "attempt_seconds", labels, &more, took);
            }
        }
        series(
            &mut out,
            "wait_seconds",
            "From receipt to the first attempt.",
            "histogram",
        );
        for (labels, counters) in &all {
            histogram(&mut out, "wait_seconds", labels, "", &counters.wait_seconds);
        }
        let name = "late_settlements_total";
        let help = "Acks and returns that came after their lease had ended.";
        series(&mut out, name, help, "counter");
        for (labels, counters) in &all {
            line(&mut out, name, labels, "", counters.late_settlements.get());
        }
        render_violations(&mut out, &all);
        series(
            &mut out,
            "unknown_pool_total",
            "Messages that named no known pool.",
            "counter",
        );
        let _ = writeln!(
            out,
            "keylane_unknown_pool_total {}",
            self.unknown_pool.get()
        );
        render_gauges(&mut out, pools);
        render_blocked(&mut out, pools);
        out
    }
}

impl Counters {
    pub(crate) fn set_audited(&self, audited: bool) {
        self.audited.store(audited, Ordering::Relaxed);
    }

    /// Ways in which a message leaves.
    pub fn resolved(&self) -> [(&'static str, &Counter); 8] {
        [
            ("delivered", &self.delivered),
            ("dead-lettered", &self.dead_lettered),
            ("dropped", &self.dropped),
            ("skipped", &self.skipped),
            ("parked", &self.parked),
            ("spilled", &self.spilled),
            ("returned", &self.returned),
            ("lost-lease", &self.lost_leases),
        ]
    }

    /// Calls by class.
    pub fn attempts(&self) -> [(&'static str, &Calls); 6] {
        [
            ("delivered", &self.attempts_delivered),
            ("not-yet", &self.attempts_not_yet),
            ("busy", &self.attempts_busy),
            ("failed", &self.attempts_failed),
            ("refused", &self.attempts_refused),
            ("cut", &self.attempts_cut),
        ]
    }

    /// What happened of these, with its labels.
    fn calls(&self) -> Vec<(String, &Histogram)> {
        let mut labelled = Vec::new();
        for (class, calls) in self.attempts() {
            for (error, took) in calls.by_error() {
                let error = error.map(|error| format!(",error_type=\"{}\"", error.as_str()));
                let labels = format!(",class=\"{class}\"{}", error.unwrap_or_default());
                labelled.push((labels, took));
            }
        }
        labelled
    }
}

/// Absent where nobody looks: a 0 would say that all is well.
fn render_violations(out: &mut String, all: &[(Labels, Arc<Counters>)]) {
    let name = "ordering_violations_total";
    let audited = |counters: &Counters| counters.audited.load(Ordering::Relaxed);
    let mut audited = all
        .iter()
        .filter(|(_, counters)| audited(counters))
        .peekable();
    if audited.peek().is_some() {
        let help = "First starts after a later one of their key, among the keys that are watched.";
        let _ = writeln!(
            out,
            "# HELP keylane_{name} {help}\n# TYPE keylane_{name} counter"
        );
    }
    for (labels, counters) in audited {
        line(out, name, labels, "", counters.ordering_violations.get());
    }
}

fn line(out: &mut String, name: &str, (source, pool): &Labels, more: &str, value: u64) {
    let (source, pool) = (escape(source), escape(pool));
    let _ = writeln!(
        out,
        "keylane_{name}{{source=\"{source}\",pool=\"{pool}\"{more}}} {value}"
    );
}

fn histogram(out: &mut String, name: &str, labels: &Labels, more: &str, histogram: &Histogram) {
    let mut below = 0;
    for (bound, bucket) in BOUNDS.iter().zip(&histogram.buckets) {
        below += bucket.get();
        line(
            out,
            &format!("{name}_bucket"),
            labels,
            &format!("{more},le=\"{bound}\""),
            below,
        );
    }
    let count = histogram.count.get();
    line(
        out,
        &format!("{name}_bucket"),
        labels,
        &format!("{more},le=\"+Inf\""),
        count,
    );
    line(out, &format!("{name}_count"), labels, more, count);
    let seconds = histogram.nanos.get() as f64 / 1e9;
    let (source, pool) = (escape(&labels.0), escape(&labels.1));
    let _ = writeln!(
        out,
        "keylane_{name}_sum{{source=\"{source}\",pool=\"{pool}\"{more}}} {seconds}"
    );
}

type GaugeOf = fn(&PoolGauges) -> u64;

fn render_gauges(out: &mut String, pools: &[PoolGauges]) {
    let gauges: [(&str, &str, GaugeOf); 7] = [
        ("lanes", "Keys that have something here.", |pool| {
            pool.lanes as u64
        }),
        (
            "queued_messages",
            "Messages waiting or held here.",
            |pool| pool.queued as u64,
        ),
        ("queued_bytes", "Bytes of the messages here.", |pool| {
            pool.bytes
        }),
        ("in_flight", "Attempts under way.", |pool| {
            pool.in_flight as u64
        }),
        ("unsettled", "Messages a crash would repeat.", |pool| {
            pool.unsettled as u64
        }),
        (
            "stalled_attempts",
            "Attempts that do not end in their time.",
            |pool| pool.stalled as u64,
        ),
        (
            "blocked_keys",
            "Keys that wait for a head which fails for good.",
            |pool| pool.blocked as u64,
        ),
    ];
    for (name, help, value) in gauges {
        let _ = writeln!(
            out,
            "# HELP keylane_{name} {help}\n# TYPE keylane_{name} gauge"
        );
        for pool in pools {
            let _ = writeln!(
                out,
                "keylane_{name}{{pool=\"{}\"}} {}",
                escape(&pool.pool),
                value(pool)
            );
        }
    }
}

/// Why keys wait that will not go on by themselves.
fn render_blocked(out: &mut String, pools: &[PoolGauges]) {
    let reasons: [(&str, GaugeOf); 2] = [
        ("block", |pool| pool.blocked as u64),
        ("store", |pool| pool.waits_for_store as u64),
    ];
    let _ = writeln!(
        out,
        "# HELP keylane_lanes_blocked Keys that wait for somebody to do something, by why: their head fails for good, the store cannot take them.\n# TYPE keylane_lanes_blocked gauge"
    );
    for pool in pools {
        for (reason, value) in reasons {
            let (name, value) = (escape(&pool.pool), value(pool));
            let _ = writeln!(
                out,
                "keylane_lanes_blocked{{pool=\"{name}\",reason=\"{reason}\"}} {value}"
            );
        }
    }
}

/// A name as the value of a label in Prometheus' text format.
pub fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
