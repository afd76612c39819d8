//! The tests in groups that run side by side: those of each broker, and all others.
//!
//! They mostly wait, and in most of the waits of one group nobody else of it can do anything: its
//! broker is stopped. So each group is a process of its own that has its broker to itself.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use crate::Result;
use crate::process::{cargo, run_marked};
use crate::report::Verdict;
use crate::tally::Tally;
use crate::test::judged;

/// Tests that use the same broker, by what is in their names.
struct Group {
    name: &'static str,
    words: &'static [&'static str],
}

/// Classic and Artemis have one source, and their tests name both.
const OF_BROKERS: [Group; 3] = [
    Group {
        name: "rabbitmq",
        words: &["rabbitmq"],
    },
    Group {
        name: "activemq",
        words: &["activemq", "artemis"],
    },
    Group {
        name: "sqs",
        words: &["sqs"],
    },
];

/// How many tests of a broker's group run at once: they wait more than they work.
const AT_ONCE: &str = "3";

/// Runs all groups. Each has its own `running`, and drops it when cargo has built what there was to
/// build.
pub(crate) fn run(
    variables: &[(String, String)],
    tally: &mut Tally,
    running: mpsc::Sender<()>,
) -> Result<Verdict> {
    let mut told = vec![("others", others())];
    told.extend(OF_BROKERS.iter().map(|group| (group.name, group.told())));
    let ended: Vec<Result<_>> = thread::scope(|scope| {
        let begin = |(name, told): &(&'static str, Vec<&'static str>)| {
            let (name, test, running) = (*name, test(told, variables), running.clone());
            scope.spawn(move || run_one(name, test, running))
        };
        let groups: Vec<_> = told.iter().map(begin).collect();
        drop(running);
        let ended = groups.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .map(|group| group.expect("it does not panic"))
            .collect()
    });
    let mut all = Verdict::Ok;
    for group in ended {
        let (verdict, seen) = group?;
        tally.add_all(seen);
        all = all.and(verdict);
    }
    Ok(all)
}

impl Group {
    fn told(&self) -> Vec<&'static str> {
        [&["--test-threads", AT_ONCE], self.words].concat()
    }
}

/// Leaves out what is in a broker's group.
fn others() -> Vec<&'static str> {
    let words = OF_BROKERS.iter().flat_map(|group| group.words);
    words.flat_map(|word| ["--skip", *word]).collect()
}

fn test(told: &[&str], variables: &[(String, String)]) -> Command {
    let mut test = cargo();
    // Not those of the docs, which are named after files.
    test.args(["test", "--workspace", "--all-features", "--tests"]);
    test.args(["--no-fail-fast", "--"]).args(told);
    test.envs(variables.iter().cloned());
    test
}

fn run_one(name: &str, mut test: Command, running: mpsc::Sender<()>) -> Result<(Verdict, Tally)> {
    let mut tally = Tally::default();
    let mut running = Some(running);
    let status = run_marked(&mut test, &format!("{name:<9}"), |line| {
        // It says nothing before.
        running.take();
        tally.see(line);
    })?;
    Ok((judged(status, &tally.failures), tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libtest chooses: by any of the words, and by none that is to be skipped.
    fn runs(told: &[&str], name: &str) -> bool {
        let mut told = told.iter();
        let (mut any, mut chosen) = (true, false);
        while let Some(word) = told.next() {
            match *word {
                "--test-threads" => drop(told.next()),
                "--skip" if name.contains(told.next().expect("a word")) => return false,
                "--skip" => {}
                word => {
                    any = false;
                    chosen |= name.contains(word);
                }
            }
        }
        any || chosen
    }

    #[test]
    fn every_test_is_in_one_group() {
        let names = [
            ("router::order::a_held_head_blocks_its_lane", "others"),
            ("conformance::on_embedded::cut_while_holding", "others"),
            ("conformance::on_rabbitmq_quorum::broker_killed", "rabbitmq"),
            ("conformance::on_artemis::queue_deleted", "activemq"),
            ("activemq::a_queue_of_artemis_is_not_read", "activemq"),
            ("sqs::tests::a_group_is_a_key", "sqs"),
        ];
        for (name, group) in names {
            let mut groups = Vec::new();
            if runs(&others(), name) {
                groups.push("others");
            }
            let of = OF_BROKERS.iter().filter(|group| runs(&group.told(), name));
            groups.extend(of.map(|group| group.name));
            assert_eq!(groups, [group], "{name}");
        }
    }
}
