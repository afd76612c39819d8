//! How many workers a consumer has, and how many messages it is handed ahead of them.

use std::fmt;
use std::num::NonZeroUsize;

/// The most workers.
const MOST_WORKERS: usize = 200;
/// The most messages out at once.
const MOST_PREFETCH: usize = 1000;
/// The most that is chosen without being asked for.
const USUAL_PREFETCH: usize = 500;
/// Workers for each CPU: handlers mostly wait for somebody else.
const WORKERS_PER_CPU: usize = 4;
/// Messages for each worker: those that wait are not fetched one by one.
const PREFETCH_PER_WORKER: usize = 10;

/// A number, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The number.
    pub number: NonZeroUsize,
    /// Where it comes from.
    pub how: How,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By the rules.
    Auto,
    /// As it was set.
    Explicit,
    /// Less than what was set: that was too much.
    Capped,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Auto => "auto",
            How::Explicit => "explicit",
            How::Capped => "capped",
        };
        write!(f, "{} ({how})", self.number)
    }
}

/// The workers for what was set, 0 being nothing: CPUs × 4, at most 200 (GB-32, GB-33, GB-36).
pub fn workers(set: usize, cpus: NonZeroUsize) -> Size {
    size(set, cpus.get() * WORKERS_PER_CPU, MOST_WORKERS)
}

/// The prefetch for what was set, 0 being nothing: workers × 10 up to 500, at most 1000 (GB-32,
/// GB-33, GB-35, GB-37).
pub fn prefetch(set: usize, workers: NonZeroUsize) -> Size {
    let auto = workers.get() * PREFETCH_PER_WORKER;
    size(set, auto.min(USUAL_PREFETCH), MOST_PREFETCH)
}

fn size(set: usize, auto: usize, most: usize) -> Size {
    let (number, how) = match set {
        0 => (auto.min(most), How::Auto),
        set if set > most => (most, How::Capped),
        set => (set, How::Explicit),
    };
    let number = NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN);
    Size { number, how }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("not zero")
    }

    fn is(n: usize, how: How) -> Size {
        Size {
            number: number(n),
            how,
        }
    }

    #[test]
    fn gb_32_without_a_number_there_are_four_workers_for_each_cpu() {
        assert_eq!(workers(0, number(2)), is(8, How::Auto));
        assert_eq!(workers(0, number(96)), is(200, How::Auto));
    }

    #[test]
    fn gb_33_what_is_set_is_kept() {
        assert_eq!(workers(3, number(8)), is(3, How::Explicit));
        assert_eq!(prefetch(7, number(3)), is(7, How::Explicit));
    }

    #[test]
    fn gb_35_prefetch_is_ten_for_each_worker_up_to_500() {
        for (of, expected) in [(1, 10), (5, 50), (20, 200), (60, 500), (100, 500)] {
            assert_eq!(prefetch(0, number(of)), is(expected, How::Auto));
        }
    }

    #[test]
    fn gb_36_gb_37_too_much_is_capped_and_says_so() {
        assert_eq!(workers(500, number(8)), is(200, How::Capped));
        assert_eq!(prefetch(5000, number(8)), is(1000, How::Capped));
        assert_eq!(workers(200, number(8)), is(200, How::Explicit));
        assert_eq!(workers(500, number(8)).to_string(), "200 (capped)");
    }
}
