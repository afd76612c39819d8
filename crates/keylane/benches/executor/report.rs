//! Goals beside what was measured, and on which machine.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) struct Report {
    load_before: String,
    goals: Vec<[String; 4]>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            load_before: load(),
            goals: Vec::new(),
        }
    }

    pub(crate) fn goal(&mut self, what: &str, goal: &str, measured: String, met: bool) {
        let verdict = if met { "ok" } else { "MISSED" };
        self.goals.push([
            what.to_owned(),
            goal.to_owned(),
            measured,
            verdict.to_owned(),
        ]);
    }

    pub(crate) fn print(&self) {
        println!("\n### Goals\n");
        print_table(&["what", "goal", "measured", ""], &self.goals);
        println!("\n{}", machine());
        println!(
            "load average before: {}, after: {}",
            self.load_before,
            load()
        );
    }
}

pub(crate) fn print_table<const N: usize>(head: &[&str; N], rows: &[[String; N]]) {
    println!("| {} |", head.join(" | "));
    println!("|{}", "---|".repeat(N));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown CPU", |line| {
        line.trim_start_matches(['\t', ' ', ':'])
    });
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("{cores} cores, {model}, {}", date(now.as_secs() / 86_400))
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

/// The date of a day counted from 1970-01-01.
fn date(days: u64) -> String {
    let mut left = days;
    let mut year = 1970;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}
