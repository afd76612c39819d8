//! What is wrong with a config: all of it, each with its place and the remedy.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The compiled-in `keylane.toml`.
    Default,
    /// A line of the config file.
    File {
        /// The file.
        path: Arc<PathBuf>,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Where it stands; `None` when it is about no single place.
    pub(crate) origin: Option<Origin>,
    /// The option, as `pools.mail.rate`; empty for the file as a whole.
    pub(crate) option: String,
    /// What is wrong and what would be right.
    pub(crate) text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.option.is_empty() {
            write!(f, "{}: ", self.option)?;
        }
        f.write_str(&self.text)
    }
}

/// Everything that is wrong; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The known name that is most like this one, if any is like it at all.
pub(crate) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distances = known
        .into_iter()
        .map(|other| (distance(name, other), other));
    let (distance, nearest) = distances.min()?;
    let bearable = name
        .chars()
        .count()
        .max(nearest.chars().count())
        .div_ceil(2);
    (distance <= bearable).then_some(nearest)
}

/// How many letters must be put in, taken out or changed.
pub(crate) fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in two.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let known = ["concurrency", "lane_concurrency", "rate"];
        assert_eq!(nearest("concurency", known), Some("concurrency"));
        assert_eq!(nearest("zzzzzzzzzz", known), None);
    }
}
