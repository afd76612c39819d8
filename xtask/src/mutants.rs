//! `cargo xtask mutants`: breaks a copy of the workspace on purpose, one mutation at a time, and checks that a test
//! goes red. A test that was never red shows nothing.

mod mutation;
mod table;
mod tree;
mod trial;

use std::collections::HashSet;

use crate::{Answer, Result, place};
use mutation::Mutation;
use table::MUTATIONS;
use tree::Tree;
use trial::{Trial, Verdict};

/// Tries the named mutations, or all. Good only when each was killed.
pub(crate) fn run(names: &[&str]) -> Result<Answer> {
    let chosen = choose(MUTATIONS, names)?;
    let tree = Tree::copy(&place::root())?;
    let trial = Trial::new(&tree);
    check_green(&trial, &chosen)?;
    let mut verdicts = Vec::new();
    for mutation in &chosen {
        let verdict = try_out(&trial, mutation)?;
        println!("{}: {verdict}", mutation.name);
        verdicts.push(verdict);
    }
    print_table(&chosen, &verdicts);
    let all_killed = verdicts
        .iter()
        .all(|verdict| matches!(verdict, Verdict::Killed { .. }));
    Ok(if all_killed {
        Answer::Good
    } else {
        Answer::Bad
    })
}

/// Every name must mean something: a mistyped one would otherwise pass as "all killed".
fn choose<'a>(all: &'a [Mutation], names: &[&str]) -> Result<Vec<&'a Mutation>> {
    let means =
        |mutation: &Mutation, name: &str| mutation.name == name || mutation.invariant == name;
    if let Some(unknown) = names
        .iter()
        .find(|name| !all.iter().any(|mutation| means(mutation, name)))
    {
        let known: Vec<_> = all.iter().map(|mutation| mutation.name).collect();
        return Err(format!(
            "no mutation is called `{unknown}`; there are: {}",
            known.join(", ")
        )
        .into());
    }
    let wanted =
        |mutation: &&Mutation| names.is_empty() || names.iter().any(|name| means(mutation, name));
    let chosen: Vec<_> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err("no mutations are listed in xtask/src/mutants/table.rs".into());
    }
    Ok(chosen)
}

/// A test that is red anyway, or that runs nothing, would "kill" or spare everything.
fn check_green(trial: &Trial, chosen: &[&Mutation]) -> Result<()> {
    let mut seen = HashSet::new();
    for mutation in chosen.iter().filter(|mutation| seen.insert(&mutation.test)) {
        println!("unbroken: {}", mutation.test);
        match trial.run("unbroken", &mutation.test)? {
            Verdict::Survived { passed: 0 } => {
                return Err(format!("{}: runs no test at all", mutation.test).into());
            }
            Verdict::Survived { .. } => {}
            verdict => {
                return Err(format!(
                    "{}: not green on the unbroken code: {verdict}",
                    mutation.test
                )
                .into());
            }
        }
    }
    Ok(())
}

fn try_out(trial: &Trial, mutation: &Mutation) -> Result<Verdict> {
    let file = trial.tree().file(mutation.file);
    let Ok(unbroken) = std::fs::read_to_string(&file) else {
        let reason = format!(
            "mutation `{}`: there is no {}",
            mutation.name, mutation.file
        );
        return Ok(Verdict::DoesNotApply(reason));
    };
    let broken = match mutation.apply(&unbroken) {
        Ok(broken) => broken,
        Err(reason) => return Ok(Verdict::DoesNotApply(reason)),
    };
    std::fs::write(&file, broken)?;
    let verdict = trial.run(mutation.name, &mutation.test);
    std::fs::write(&file, unbroken)?;
    verdict
}

fn print_table(chosen: &[&Mutation], verdicts: &[Verdict]) {
    let names = chosen.iter().map(|mutation| mutation.name);
    let width = names.map(str::len).fold("mutation".len(), usize::max);
    println!("\n{:<width$}  {:<9}  verdict", "mutation", "invariant");
    for (mutation, verdict) in chosen.iter().zip(verdicts) {
        println!(
            "{:<width$}  {:<9}  {verdict}",
            mutation.name, mutation.invariant
        );
    }
    let killed = verdicts
        .iter()
        .filter(|verdict| matches!(verdict, Verdict::Killed { .. }))
        .count();
    println!("{killed} of {} killed", verdicts.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use mutation::TestRun;

    const fn called(name: &'static str, invariant: &'static str) -> Mutation {
        let test = TestRun {
            package: "keylane",
            target: &["--lib"],
            filter: "",
            env: &[],
        };
        Mutation {
            name,
            invariant,
            file: "src/lib.rs",
            find: "a",
            replace: "b",
            test,
        }
    }

    const ALL: &[Mutation] = &[
        called("two-locks", "L1"),
        called("push-front", "L2"),
        called("scan", "L2"),
    ];

    fn names(chosen: &[&Mutation]) -> Vec<&'static str> {
        chosen.iter().map(|mutation| mutation.name).collect()
    }

    #[test]
    fn mutations_are_chosen_by_name_by_invariant_or_all() {
        assert_eq!(names(&choose(ALL, &["scan"]).unwrap()), ["scan"]);
        assert_eq!(
            names(&choose(ALL, &["L2"]).unwrap()),
            ["push-front", "scan"]
        );
        assert_eq!(
            names(&choose(ALL, &[]).unwrap()),
            ["two-locks", "push-front", "scan"]
        );
    }

    #[test]
    fn an_unknown_name_is_an_error_even_beside_a_known_one() {
        let error = choose(ALL, &["scan", "scam"]).unwrap_err().to_string();
        assert!(error.contains("`scam`"), "{error}");
    }

    #[test]
    fn nothing_to_try_is_an_error() {
        assert!(choose(&[], &[]).is_err());
    }

    #[test]
    fn every_listed_mutation_applies_to_todays_code_and_has_a_name_of_its_own() {
        let (mut seen, mut broken) = (HashSet::new(), Vec::new());
        for mutation in MUTATIONS {
            let text =
                std::fs::read_to_string(place::root().join(mutation.file)).expect(mutation.file);
            broken.extend(mutation.apply(&text).err().map(|error| error.to_string()));
            assert!(
                seen.insert(mutation.name),
                "two mutations are called {}",
                mutation.name
            );
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
