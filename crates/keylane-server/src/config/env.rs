//! Options from the environment: `KEYLANE_POOLS__MAIL__CONCURRENCY=20`.

use super::errors::{Origin, distance};
use super::tree::{Node, Table, Value, set};

const PREFIX: &str = "KEYLANE_";

/// Variables of ours that are no options: how the command line finds things.
const NOT_OPTIONS: [&str; 5] = ["CONFIG", "LOG", "LOG_FORMAT", "SERVER", "TOKEN"];

/// Sets what the environment says, and returns the variables that look like none of `documented`.
///
/// Names are matched to those already in the table whatever their case and with `_` for `-`; a name
/// that is new is in lower case.
pub(crate) fn apply(
    table: &mut Table,
    documented: &Table,
    env: impl IntoIterator<Item = (String, String)>,
) -> Vec<String> {
    let mut ours: Vec<(String, String)> = env.into_iter().filter(|(n, _)| is_ours(n)).collect();
    ours.sort();
    let mut strange = Vec::new();
    for (name, value) in ours {
        let parts: Vec<&str> = name[PREFIX.len()..].split("__").collect();
        if is_strange(&parts, documented) {
            strange.push(name);
            continue;
        }
        let path = known_path(table, &parts);
        let node = Node {
            value: Value::Raw(value),
            origin: Origin::Env(name),
        };
        set(table, &path, node);
    }
    strange
}

fn is_ours(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| !rest.is_empty() && !NOT_OPTIONS.contains(&rest))
}

/// Kubernetes gives every pod near a service `keylane` variables such as `KEYLANE_SERVICE_HOST`:
/// those must not stop the program, while a slip in an option's name must.
fn is_strange(parts: &[&str], documented: &Table) -> bool {
    let [name] = parts else { return false };
    let name = name.to_lowercase();
    !documented.keys().any(|known| distance(&name, known) <= 2)
}

fn known_path(table: &Table, parts: &[&str]) -> Vec<String> {
    let mut inside = Some(table);
    let mut path = Vec::with_capacity(parts.len());
    for part in parts {
        let known = inside.and_then(|table| table.iter().find(|(name, _)| same(name, part)));
        inside = known.and_then(|(_, node)| match &node.value {
            Value::Table(table) => Some(table),
            _ => None,
        });
        path.push(known.map_or_else(|| part.to_lowercase(), |(name, _)| name.clone()));
    }
    path
}

fn same(name: &str, part: &str) -> bool {
    name.replace('-', "_").eq_ignore_ascii_case(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree::parse;

    fn applied(text: &str, name: &str, value: &str) -> String {
        let mut table = parse(text, None).unwrap();
        let documented = parse("listen = 1", None).unwrap();
        apply(&mut table, &documented, [(name.into(), value.into())]);
        Value::Table(table).to_string()
    }

    #[test]
    fn double_underscores_go_into_tables() {
        let found = applied("", "KEYLANE_POOLS__MAIL__LANE_CAPACITY", "20");
        assert_eq!(found, r#"{ pools = { mail = { lane_capacity = "20" } } }"#);
    }

    #[test]
    fn names_in_the_file_are_met_whatever_their_case() {
        let found = applied("[pools.Big-Mail]", "KEYLANE_POOLS__BIG_MAIL__RATE", "1/s");
        assert_eq!(found, r#"{ pools = { Big-Mail = { rate = "1/s" } } }"#);
    }

    #[test]
    fn a_slip_is_kept_to_be_reported_and_a_stranger_is_passed_over() {
        assert_eq!(applied("", "KEYLANE_LISTN", "x"), r#"{ listn = "x" }"#);
        assert_eq!(applied("", "KEYLANE_SERVICE_HOST", "x"), "{  }");
    }

    #[test]
    fn variables_that_are_no_options_are_left_alone() {
        for name in ["KEYLANE_TOKEN", "KEYLANE_CONFIG", "KEYLANE_", "PATH"] {
            assert_eq!(applied("", name, "x"), "{  }", "{name}");
        }
    }
}
