//! The count of tests, read from what the test programs print.

use std::fmt::{self, Display};

/// Sums up the `test result:` lines of any number of test programs. Displayed it is one line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// What libtest calls ignored.
    pub(crate) skipped: usize,
    /// The failed tests' names.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Takes in one line of output; lines of other kinds change nothing.
    pub(crate) fn see(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.add(counts);
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }

    /// Takes in what another saw.
    pub(crate) fn add_all(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s`
    fn add(&mut self, counts: &str) {
        let (_, counts) = counts.split_once(". ").unwrap_or_default();
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<usize>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.see(line));
        tally
    }

    #[test]
    fn the_results_of_several_programs_are_summed() {
        let tally = tally(
            "running 3 tests\n\
             test lanes::a ... ok\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             test lanes::b ... FAILED\n\
             test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.50s\n",
        );
        assert_eq!(tally.to_string(), "7 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["lanes::b"]);
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(
            tally("test lanes::a ... ok\n5 passed\n\ntest result: \n"),
            Tally::default()
        );
    }
}
