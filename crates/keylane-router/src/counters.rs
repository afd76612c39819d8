//! What is counted, once each: the numbers behind `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    pub attempts_delivered: Counter,
    pub attempts_not_yet: Counter,
    pub attempts_busy: Counter,
    pub attempts_failed: Counter,
    pub attempts_refused: Counter,
    pub attempts_cut: Counter,
    pub attempt_seconds: Histogram,
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
            left + counters.attempt_seconds.count() + counters.attempts_cut.get()
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
            "Calls of targets, by class of outcome.",
            "counter",
        );
        for (labels, counters) in &all {
            for (class, counter) in counters.attempts() {
                line(
                    &mut out,
                    "attempts_total",
                    labels,
                    &format!(",class=\"{class}\""),
                    counter.get(),
                );
            }
        }
        series(
            &mut out,
            "attempt_seconds",
            "How long calls took.",
            "histogram",
        );
        for (labels, counters) in &all {
            histogram(
                &mut out,
                "attempt_seconds",
                labels,
                &counters.attempt_seconds,
            );
        }
        series(
            &mut out,
            "wait_seconds",
            "From receipt to the first attempt.",
            "histogram",
        );
        for (labels, counters) in &all {
            histogram(&mut out, "wait_seconds", labels, &counters.wait_seconds);
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
    pub fn attempts(&self) -> [(&'static str, &Counter); 6] {
        [
            ("delivered", &self.attempts_delivered),
            ("not-yet", &self.attempts_not_yet),
            ("busy", &self.attempts_busy),
            ("failed", &self.attempts_failed),
            ("refused", &self.attempts_refused),
            ("cut", &self.attempts_cut),
        ]
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

fn histogram(out: &mut String, name: &str, labels: &Labels, histogram: &Histogram) {
    let mut below = 0;
    for (bound, bucket) in BOUNDS.iter().zip(&histogram.buckets) {
        below += bucket.get();
        line(
            out,
            &format!("{name}_bucket"),
            labels,
            &format!(",le=\"{bound}\""),
            below,
        );
    }
    let count = histogram.count.get();
    line(
        out,
        &format!("{name}_bucket"),
        labels,
        ",le=\"+Inf\"",
        count,
    );
    line(out, &format!("{name}_count"), labels, "", count);
    let seconds = histogram.nanos.get() as f64 / 1e9;
    let (source, pool) = (escape(&labels.0), escape(&labels.1));
    let _ = writeln!(
        out,
        "keylane_{name}_sum{{source=\"{source}\",pool=\"{pool}\"}} {seconds}"
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
