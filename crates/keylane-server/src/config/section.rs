//! Reads one table of a config, option by option; what nobody asked for is unknown.
//!
//! An option's name, meaning and check stand in one place: where it is read. A wrong value is
//! written down and its default taken, so that everything wrong is found at once.

use std::cell::RefCell;

use super::errors::{Origin, Problem, nearest};
use super::parse::Wrong;
use super::tree::{Node, Table, Value};

/// What was found while reading.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    problems: RefCell<Vec<Problem>>,
    settings: RefCell<Vec<Setting>>,
}

/// An option in force.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The table it stands in, as in TOML's brackets; empty at the top.
    pub(crate) table: String,
    /// Its name.
    pub(crate) name: &'static str,
    /// As TOML.
    pub(crate) value: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
}

impl Findings {
    pub(crate) fn add(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn into_parts(self) -> (Vec<Problem>, Vec<Setting>) {
        (self.problems.into_inner(), self.settings.into_inner())
    }
}

/// One table: what was written over what is documented.
pub(crate) struct Section<'a> {
    findings: &'a Findings,
    path: String,
    written: Option<&'a Table>,
    defaults: Option<&'a Table>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The table at the top.
    pub(crate) fn top(findings: &'a Findings, written: &'a Table, defaults: &'a Table) -> Self {
        Self::new(findings, String::new(), Some(written), Some(defaults))
    }

    fn new(
        findings: &'a Findings,
        path: String,
        written: Option<&'a Table>,
        defaults: Option<&'a Table>,
    ) -> Self {
        let known = RefCell::default();
        Self {
            findings,
            path,
            written,
            defaults,
            known,
        }
    }

    /// The option's value; it has a documented default.
    pub(crate) fn get<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, Wrong>,
    ) -> T {
        self.find(name, &parse).unwrap_or_else(|| {
            let node = self.defaults.and_then(|defaults| defaults.get(name));
            let node = node.expect("keylane.toml documents a default of every option read so");
            parse(node).expect("keylane.toml has right values")
        })
    }

    /// The option's value, if it is set or has a documented default.
    pub(crate) fn find<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.know(name);
        let written = self.written.and_then(|table| table.get(name));
        let node = written.or_else(|| self.defaults?.get(name))?;
        match parse(node) {
            Ok(value) => {
                self.setting(name, node);
                Some(value)
            }
            Err(remedy) => {
                let value = masked(name, &node.value);
                self.problem(name, format!("{value} is not allowed; {remedy}"));
                None
            }
        }
    }

    /// The option's value, if it is set; for options whose default depends on something else.
    pub(crate) fn find_written<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.know(name);
        self.is_written(name).then(|| self.find(name, parse))?
    }

    /// A table in this one.
    pub(crate) fn sub(&self, name: &'static str) -> Section<'a> {
        self.know(name);
        let written = self.written.and_then(|table| table.get(name));
        let defaults = self
            .defaults
            .and_then(|table| table.get(name))
            .and_then(Node::table);
        self.inner(name, written, defaults)
    }

    /// The tables that users name (pools, sources) in this one, each over its `defaults`.
    pub(crate) fn named(
        &self,
        defaults: impl Fn(Option<&'a Table>) -> Option<&'a Table>,
    ) -> Vec<(&'a str, Section<'a>)> {
        let written = self.written.into_iter().flatten();
        let inner = |(name, node): (&'a String, &'a Node)| {
            let defaults = defaults(node.table());
            (name.as_str(), self.inner(name, Some(node), defaults))
        };
        written.map(inner).collect()
    }

    /// The tables of a list of tables.
    pub(crate) fn list(&self, name: &'static str) -> Vec<Section<'a>> {
        self.know(name);
        let Some(node) = self.written.and_then(|table| table.get(name)) else {
            return Vec::new();
        };
        let Value::List(nodes) = &node.value else {
            self.problem(name, format!("give tables: [[{}]]", self.path_of(name)));
            return Vec::new();
        };
        let inner = |node| self.inner(&format!("[{name}]"), Some(node), None);
        nodes.iter().map(inner).collect()
    }

    fn inner(
        &self,
        name: &str,
        written: Option<&'a Node>,
        defaults: Option<&'a Table>,
    ) -> Section<'a> {
        let path = self.path_of(name);
        if let Some(node) = written.filter(|node| node.table().is_none()) {
            let text = format!("{} is not allowed; give a table: [{path}]", node.value);
            self.findings.add(Problem {
                origin: Some(node.origin.clone()),
                option: path.clone(),
                text,
            });
        }
        Section::new(self.findings, path, written.and_then(Node::table), defaults)
    }

    /// Whether the option was written anywhere but in the defaults.
    pub(crate) fn is_written(&self, name: &str) -> bool {
        self.written.is_some_and(|table| table.contains_key(name))
    }

    /// Notes that something is wrong with an option.
    pub(crate) fn problem(&self, name: &str, text: impl Into<String>) {
        self.findings.add(Problem {
            origin: self.origin(name),
            option: self.path_of(name),
            text: text.into(),
        });
    }

    /// Notes that options do not go together, with the first of them that was written.
    pub(crate) fn conflict<const N: usize>(&self, names: [&str; N], text: &str) {
        let written = names.iter().find(|name| self.is_written(name));
        if let Some(name) = written.or(names.last()) {
            self.problem(name, text);
        }
    }

    /// Where the option's value comes from; for one that is not there, where its table does.
    fn origin(&self, name: &str) -> Option<Origin> {
        let written = self
            .written
            .and_then(|table| table.get(name).or(table.values().next()));
        written.map(|node| node.origin.clone())
    }

    /// Notes all names that no one asked for.
    pub(crate) fn finish(self) {
        let known = self.known.borrow();
        for name in self.written.into_iter().flat_map(Table::keys) {
            if known.contains(&name.as_str()) {
                continue;
            }
            let text = match nearest(name, known.iter().copied()) {
                Some(nearest) => format!("there is no such option; did you mean `{nearest}`?"),
                None => format!("there is no such option; known are {}", known.join(", ")),
            };
            self.problem(name, text);
        }
    }

    fn know(&self, name: &'static str) {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
    }

    fn setting(&self, name: &'static str, node: &Node) {
        self.findings.settings.borrow_mut().push(Setting {
            table: self.path.clone(),
            name,
            value: masked(name, &node.resolved()),
            origin: node.origin.clone(),
        });
    }

    fn path_of(&self, name: &str) -> String {
        let name = quoted(name);
        match self.path.as_str() {
            "" => name,
            path => format!("{path}.{name}"),
        }
    }
}

/// Names that TOML takes without quotes, and ours for lists of tables, stay as they are.
fn quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-[]".contains(c);
    match !name.is_empty() && name.chars().all(bare) {
        true => name.into(),
        false => Value::Text(name.into()).to_string(),
    }
}

/// The value as it may be printed.
fn masked(name: &str, value: &Value) -> String {
    let secret = ["secret", "password", "token"]
        .iter()
        .any(|word| name.contains(word));
    match (secret, value) {
        // How many there are is no secret, and that there is none is worth seeing.
        (true, Value::List(nodes)) => format!("[{}]", vec!["\"***\""; nodes.len()].join(", ")),
        (true, _) => "\"***\"".into(),
        (false, Value::Text(text) | Value::Raw(text)) => {
            Value::Text(without_password(text)).to_string()
        }
        (false, value) => value.to_string(),
    }
}

/// `scheme://user:password@host` with the password hidden.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.into();
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    match authority
        .rsplit_once('@')
        .and_then(|(login, _)| login.split_once(':'))
    {
        Some((user, password)) => {
            let after = &rest[user.len() + 1 + password.len()..];
            format!("{scheme}://{user}:***{after}")
        }
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_hidden() {
        assert_eq!(
            without_password("amqp://me:pa@ss@host/x@y"),
            "amqp://me:***@host/x@y"
        );
        assert_eq!(without_password("http://host:80/a"), "http://host:80/a");
        assert_eq!(without_password("plain"), "plain");
    }

    #[test]
    fn a_secret_is_hidden_whatever_it_is() {
        assert_eq!(masked("webhook_secret", &Value::Integer(5)), "\"***\"");
    }
}
