//! `keylane config check` and `keylane config show`.

use std::fmt::Write as _;

use super::section::Setting;
use super::{Config, Layers};
use crate::cli::{BAD_USAGE, OK};

/// Says whether the config is right; exit code 0, or 2 with everything that is wrong.
pub(crate) fn check(layers: Layers) -> u8 {
    run(layers, |config| {
        let notices = config
            .notices
            .iter()
            .map(|notice| format!("notice: {notice}\n"));
        notices.chain(["ok\n".to_owned()]).collect()
    })
}

/// Prints the config in force as TOML, each value with where it comes from.
pub(crate) fn show(layers: Layers) -> u8 {
    run(layers, |config| as_toml(&config.settings))
}

fn run(layers: Layers, print: impl Fn(&Config) -> String) -> u8 {
    match Config::load(layers) {
        Ok(config) => {
            print!("{}", print(&config));
            OK
        }
        Err(problems) => {
            eprint!("{problems}");
            BAD_USAGE
        }
    }
}

fn as_toml(settings: &[Setting]) -> String {
    let mut text = String::new();
    let mut before = "";
    // What stands at the top must come before the first table.
    let (top, rest): (Vec<&Setting>, Vec<_>) = settings.iter().partition(|s| s.table.is_empty());
    for setting in top.into_iter().chain(rest) {
        let table = setting.table.as_str();
        // The entries of a list of tables begin with the same option each.
        let next_entry = table.ends_with(']') && setting.name == "match";
        if before != table || next_entry {
            let _ = writeln!(text, "\n{}", header(table));
        }
        let line = format!("{} = {}", setting.name, setting.value);
        let _ = writeln!(text, "{line:<40} # {}", setting.origin);
        before = table;
    }
    text
}

fn header(table: &str) -> String {
    match table
        .strip_suffix(']')
        .and_then(|table| table.rsplit_once('['))
    {
        Some((outer, name)) => format!("[[{outer}{name}]]"),
        None => format!("[{table}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{documented, tree};

    fn shown(text: &str) -> String {
        let written = tree::parse(text, Some("my.toml".into())).unwrap();
        let config = Config::from_tables(&written, &documented()).unwrap();
        as_toml(&config.settings)
    }

    #[test]
    fn what_is_shown_is_a_config_that_means_the_same() {
        let text = "max_in_flight = 7\n[pools.\"a b\"]\nrate = \"5/s\"\n[[pools.\"a b\".keys]]\nmatch = \"x*\"\nlane_capacity = 3\n[[pools.\"a b\".keys]]\nmatch = \"y*\"\nlane_capacity = 4\n";
        let load = |text: &str| {
            let written = tree::parse(text, Some("my.toml".into())).unwrap();
            Config::from_tables(&written, &documented()).unwrap().plan
        };
        let again = shown(text);
        assert_eq!(load(&again), load(text), "{again}");
    }

    #[test]
    fn each_value_says_where_it_comes_from() {
        let text = shown("max_in_flight = 7\n");
        let has = |start: &str, end: &str| {
            text.lines()
                .any(|line| line.starts_with(start) && line.ends_with(end))
        };
        assert!(has("max_in_flight = 7", "# my.toml:1"), "{text}");
        assert!(has("stop_deadline = \"30s\"", "# default"), "{text}");
    }
}
