//! The steps of a run with how each ended, and the summary of them.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

/// How a step ended.
pub(crate) enum Verdict {
    Ok,
    Failed(String),
    Skipped(String),
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Skipped(_) => "SKIPPED",
        }
    }

    /// Good if both are; the reasons of both where they are not.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Verdict::Failed(one), Verdict::Failed(other)) => {
                Verdict::Failed(format!("{one}, {other}"))
            }
            (failed @ Verdict::Failed(_), _) | (_, failed @ Verdict::Failed(_)) => failed,
            (skipped @ Verdict::Skipped(_), _) => skipped,
            (Verdict::Ok, other) => other,
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            Verdict::Ok => None,
            Verdict::Failed(why) | Verdict::Skipped(why) => Some(why),
        }
    }
}

/// An error is a failed step: the steps after it still run.
impl From<crate::Result<Verdict>> for Verdict {
    fn from(result: crate::Result<Verdict>) -> Self {
        result.unwrap_or_else(|error| Verdict::Failed(error.to_string()))
    }
}

struct Step {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
}

/// All steps so far. Displayed it is a table, then the reasons of whatever is not ok.
#[derive(Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

impl Report {
    /// Runs a step under a heading and writes down how it ended.
    pub(crate) fn step(
        &mut self,
        name: &'static str,
        run: impl FnOnce() -> crate::Result<Verdict>,
    ) {
        println!("\n=== {name}");
        let start = Instant::now();
        let verdict = Verdict::from(run());
        self.steps.push(Step {
            name,
            verdict,
            took: start.elapsed(),
        });
    }

    /// Appends the steps that another saw meanwhile.
    pub(crate) fn add_all(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    /// Whether no step failed. Skipped ones are no failure.
    pub(crate) fn is_good(&self) -> bool {
        !self
            .steps
            .iter()
            .any(|step| matches!(step.verdict, Verdict::Failed(_)))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:<10}{:>8}", "step", "result", "seconds")?;
        for Step {
            name,
            verdict,
            took,
        } in &self.steps
        {
            writeln!(
                f,
                "{name:<14}{:<10}{:>8.1}",
                verdict.word(),
                took.as_secs_f64()
            )?;
        }
        for Step { name, verdict, .. } in &self.steps {
            if let Some(why) = verdict.why() {
                writeln!(f, "{} {name}: {why}", verdict.word())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_and_an_error_make_the_report_bad() {
        let mut report = Report::default();
        report.step("one", || Ok(Verdict::Ok));
        report.step("two", || Ok(Verdict::Skipped("no network".into())));
        assert!(report.is_good());
        report.step("three", || Err("broken".into()));
        assert!(!report.is_good());
    }

    #[test]
    fn of_two_verdicts_every_failure_is_kept() {
        let failed = |why: &str| Verdict::Failed(why.to_owned());
        let both = failed("a").and(Verdict::Ok).and(failed("b"));
        assert_eq!(both.why(), Some("a, b"));
        let skipped = Verdict::Ok.and(Verdict::Skipped("s".to_owned()));
        assert_eq!(skipped.word(), "SKIPPED");
        assert_eq!(skipped.and(failed("c")).why(), Some("c"));
        assert_eq!(Verdict::Ok.and(Verdict::Ok).word(), "ok");
    }

    #[test]
    fn reasons_follow_the_table() {
        let mut report = Report::default();
        report.step("docs", || Ok(Verdict::Failed("exit status: 1".into())));
        report.step("advisories", || Ok(Verdict::Skipped("no network".into())));
        let text = report.to_string();
        assert!(
            text.ends_with("FAILED docs: exit status: 1\nSKIPPED advisories: no network\n"),
            "{text}"
        );
    }
}
