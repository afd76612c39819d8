//! What was measured, beside what was hoped for.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::machine;

/// What a value should be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Off by no more than this part of it.
    Within {
        of: f64,
        part: f64,
    },
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::Within { of, part } => (value - of).abs() <= of * part,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {}", number(*least)),
            Self::AtMost(most) => write!(f, "<= {}", number(*most)),
            Self::Within { of, part } => write!(f, "{} ± {} %", number(*of), part * 100.0),
        }
    }
}

/// One measured value.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    name: String,
    value: f64,
    unit: String,
    goal: Option<Goal>,
    met: Option<bool>,
    /// The single runs and what else there is to know.
    note: String,
}

/// Everything that was measured, and where.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    version: String,
    machine: String,
    /// Seconds since 1970.
    begun: u64,
    load_before: String,
    load_after: String,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine::describe(),
            begun: since.map_or(0, |since| since.as_secs()),
            load_before: machine::load(),
            load_after: String::new(),
            rows: Vec::new(),
        }
    }

    pub(super) fn end(&mut self) {
        self.load_after = machine::load();
    }

    pub(super) fn append(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }

    /// A value with a goal.
    pub(super) fn goal(&mut self, name: &str, value: f64, unit: &str, goal: Goal, note: String) {
        self.add(name, value, unit, Some(goal), note);
    }

    /// A value to know.
    pub(super) fn value(&mut self, name: &str, value: f64, unit: &str, note: String) {
        self.add(name, value, unit, None, note);
    }

    /// How many messages came out of order; none should.
    pub(super) fn order(&mut self, name: &str, violations: u64) {
        let name = format!("{name}: out of order");
        let none = Goal::AtMost(0.0);
        self.goal(&name, violations as f64, "", none, String::new());
    }

    fn add(&mut self, name: &str, value: f64, unit: &str, goal: Option<Goal>, note: String) {
        let row = Row {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            met: goal.map(|goal| goal.is_met(value)),
            goal,
            note,
        };
        eprintln!("{row}");
        self.rows.push(row);
    }

    pub(super) fn all_met(&self) -> bool {
        self.rows.iter().all(|row| row.met != Some(false))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let value = format!("{} {}", number(self.value), self.unit);
        let goal = self.goal.map(|goal| goal.to_string()).unwrap_or_default();
        write!(
            f,
            "{:44} {value:>16}  {goal:14} {met:6} {}",
            self.name, self.note
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "keylane {} on {}; load average {} before, {} after",
            self.version, self.machine, self.load_before, self.load_after
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        let with_goal = self.rows.iter().filter(|row| row.met.is_some()).count();
        let met = self.rows.iter().filter(|row| row.met == Some(true)).count();
        writeln!(f, "{met} of {with_goal} goals met")
    }
}

/// As many digits as one reads.
fn number(value: f64) -> String {
    match value.abs() {
        whole if whole.fract() == 0.0 || whole >= 1000.0 => format!("{value:.0}"),
        small if small < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.1}"),
    }
}

/// The middle one of some runs.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// All runs, for a note.
pub(super) fn listed(values: &[f64]) -> String {
    let numbers: Vec<String> = values.iter().map(|value| number(*value)).collect();
    numbers.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_or_missed() {
        assert!(Goal::AtLeast(0.6).is_met(0.6) && !Goal::AtLeast(0.6).is_met(0.59));
        assert!(Goal::AtMost(5.0).is_met(5.0) && !Goal::AtMost(5.0).is_met(5.1));
        let ten = Goal::Within {
            of: 10.0,
            part: 0.04,
        };
        assert!(ten.is_met(10.39) && !ten.is_met(10.41) && !ten.is_met(9.5));
    }

    #[test]
    fn the_median_is_the_middle_run() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
