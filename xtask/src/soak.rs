//! `cargo xtask soak [broker]`: the conformance suite with every fault 20 times and other chances each time.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::brokers::{self, keeper::Kept};
use crate::process::cargo;
use crate::report::Report;
use crate::tally::Tally;
use crate::test::tallied;
use crate::{Answer, Result};

/// How often each fault is caused, and the variable that says so.
const TIMES: (&str, &str) = ("KEYLANE_CONFORMANCE_TIMES", "20");
const SEED: &str = "KEYLANE_CONFORMANCE_SEED";

/// Sources that need no broker, by the names of their test modules.
const WITHOUT_BROKER: [&str; 5] = ["embedded", "bad", "locking", "lending", "own"];

/// Runs the suite on one source, or on all.
pub(crate) fn run(name: Option<&str>) -> Result<Answer> {
    let needed = match name {
        Some(name) if WITHOUT_BROKER.contains(&name) => Vec::new(),
        Some(name) => brokers::chosen(&[name])?,
        None => brokers::chosen(&[])?,
    };
    let mut report = Report::default();
    let mut tally = Tally::default();
    let mut variables = settings()?;
    // Dropped at the end: the brokers live as long as it does.
    let mut kept = None;
    if !needed.is_empty() {
        let kept = kept.insert(Kept::begin(&needed)?);
        // Who names a broker wants that one.
        let required = name.map_or(Vec::new(), |_| needed.clone());
        report.step("brokers", || Ok(kept.ready(&required)));
        variables.extend(kept.variables()?);
    }
    report.step("soak", || {
        let mut test = cargo();
        test.args(["test", "--package", "keylane-router", "--all-features"]);
        test.args(["--test", "it", "--no-fail-fast", &filter(name)]);
        tallied(test.envs(variables), &mut tally)
    });
    println!("\n=== summary\n{report}{tally}");
    Ok(match report.is_good() {
        true => Answer::Good,
        false => Answer::Bad,
    })
}

fn filter(name: Option<&str>) -> String {
    format!("conformance::on_{}", name.unwrap_or_default())
}

/// What is not set already. The seed is a new one each time, and every case prints it.
fn settings() -> Result<Vec<(String, String)>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let set = |name: &str, usual: String| (name.to_owned(), env::var(name).unwrap_or(usual));
    Ok(vec![
        set(TIMES.0, TIMES.1.to_owned()),
        set(SEED, now.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chooses_the_tests_of_its_module() {
        assert_eq!(filter(Some("kafka")), "conformance::on_kafka");
        assert_eq!(filter(None), "conformance::on_");
    }

    #[test]
    fn an_unknown_name_is_told() {
        let error = run(Some("kafak")).err().expect("an error").to_string();
        assert!(error.contains("no broker is called `kafak`"), "{error}");
    }
}
