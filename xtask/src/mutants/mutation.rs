//! One way to break the code, and the test that must notice.

use std::fmt::{self, Display};

/// One exact piece of one file, replaced.
#[derive(Debug)]
pub(crate) struct Mutation {
    /// What is done to the code, in a few words with dashes: `push-to-the-front`.
    pub(crate) name: &'static str,
    /// The invariant it violates: `L2`.
    pub(crate) invariant: &'static str,
    /// From the workspace's root: `crates/keylane/src/lanes.rs`.
    pub(crate) file: &'static str,
    /// Must occur in the file exactly once.
    pub(crate) find: &'static str,
    pub(crate) replace: &'static str,
    /// Green on the unbroken code, red on the broken.
    pub(crate) test: TestRun,
}

/// `cargo test` of one program of one crate below `crates/`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct TestRun {
    pub(crate) package: &'static str,
    /// Which test program, in cargo's words: `&["--test", "it"]` or `&["--lib"]`.
    pub(crate) target: &'static [&'static str],
    /// Tests with this in their name; empty means all.
    pub(crate) filter: &'static str,
    /// For the build and the run: `&[("KEYLANE_HISTORIES", "20000")]`.
    pub(crate) env: &'static [(&'static str, &'static str)],
}

impl Mutation {
    /// The broken text, or why there is none.
    pub(crate) fn apply(&self, text: &str) -> Result<String, String> {
        let Mutation { name, file, .. } = self;
        match text.matches(self.find).count() {
            1 if self.find == self.replace => {
                Err(format!("mutation `{name}` changes nothing in {file}"))
            }
            1 => Ok(text.replacen(self.find, self.replace, 1)),
            n => Err(format!(
                "mutation `{name}`: its text occurs {n} times in {file}; it must occur once"
            )),
        }
    }
}

impl Display for TestRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.env {
            write!(f, "{name}={value} ")?;
        }
        write!(
            f,
            "cargo test -p {} {} {}",
            self.package,
            self.target.join(" "),
            self.filter
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn replacing(find: &'static str, replace: &'static str) -> Mutation {
        let test = TestRun {
            package: "keylane",
            target: &["--lib"],
            filter: "lanes",
            env: &[("N", "1")],
        };
        Mutation {
            name: "push-front",
            invariant: "L2",
            file: "src/lanes.rs",
            find,
            replace,
            test,
        }
    }

    #[test]
    fn the_one_occurrence_is_replaced_and_nothing_else() {
        let broken = replacing("push_back(", "push_front(").apply("a();\nq.push_back(x);\nb();\n");
        assert_eq!(broken.unwrap(), "a();\nq.push_front(x);\nb();\n");
    }

    #[test]
    fn a_find_may_span_lines() {
        let broken = replacing("one();\n    two();", "two();\n    one();")
            .apply("{\n    one();\n    two();\n}\n");
        assert_eq!(broken.unwrap(), "{\n    two();\n    one();\n}\n");
    }

    #[test]
    fn a_missing_or_repeated_text_is_an_error_that_names_mutation_and_file() {
        for (text, count) in [
            ("nothing here", "0 times"),
            ("push_back( push_back(", "2 times"),
        ] {
            let error = replacing("push_back(", "push_front(")
                .apply(text)
                .unwrap_err();
            assert!(
                error.contains("`push-front`") && error.contains("src/lanes.rs"),
                "{error}"
            );
            assert!(error.contains(count), "{error}");
        }
    }

    #[test]
    fn a_replacement_that_changes_nothing_is_an_error() {
        assert!(replacing("x", "x").apply("x").is_err());
    }

    #[test]
    fn a_test_run_reads_as_its_command() {
        assert_eq!(
            replacing("a", "b").test.to_string(),
            "N=1 cargo test -p keylane --lib lanes"
        );
    }
}
