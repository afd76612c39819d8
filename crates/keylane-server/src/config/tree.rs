//! A config as it was written: values in tables, each with the place it comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::errors::{Origin, Problem};

/// A table's values by name.
pub(crate) type Table = BTreeMap<String, Node>;

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// What was written.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    /// From the environment or a flag: whatever the option that reads it can make of it.
    Raw(String),
    List(Vec<Node>),
    Table(Table),
    /// TOML that no option takes (a date).
    Other(String),
}

impl Node {
    /// The value, with raw text turned into what it looks like.
    pub(crate) fn resolved(&self) -> Value {
        match &self.value {
            Value::Raw(raw) => resolve_raw(raw, &self.origin),
            value => value.clone(),
        }
    }

    /// The value's own values, if it is a table.
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The value as text, if it is one or came raw.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) | Value::Raw(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            // JSON's escapes are TOML's.
            Self::Text(text) | Self::Raw(text) => {
                f.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
            }
            Self::List(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|n| n.value.to_string()).collect();
                write!(f, "[{}]", parts.join(", "))
            }
            Self::Table(table) => {
                let part = |(name, node): (&String, &Node)| format!("{name} = {}", node.value);
                let parts: Vec<String> = table.iter().map(part).collect();
                write!(f, "{{ {} }}", parts.join(", "))
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

fn resolve_raw(raw: &str, origin: &Origin) -> Value {
    let Ok(parsed) = DeValue::parse(raw.trim()) else {
        return Value::Text(raw.into());
    };
    match value(parsed.get_ref(), &|_| origin.clone()) {
        Value::Other(_) => Value::Text(raw.into()),
        value => value,
    }
}

/// The tables of a TOML text. `path` is `None` for the compiled-in one.
pub(crate) fn parse(text: &str, path: Option<PathBuf>) -> Result<Table, Vec<Problem>> {
    let path = path.map(Arc::new);
    let origin = |offset: usize| match &path {
        None => Origin::Default,
        Some(path) => Origin::File {
            path: Arc::clone(path),
            line: text[..offset.min(text.len())].matches('\n').count() + 1,
        },
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table_of(table.get_ref(), &origin));
    }
    let problem = |error: &toml::de::Error| Problem {
        origin: Some(origin(error.span().map_or(0, |span| span.start))),
        option: String::new(),
        text: format!("this is not TOML: {}", error.message()),
    };
    Err(errors.iter().map(problem).collect())
}

fn table_of(table: &DeTable<'_>, origin: &impl Fn(usize) -> Origin) -> Table {
    let entry = |(name, node): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        (name.to_string(), node_of(node, origin))
    };
    table.iter().map(entry).collect()
}

fn node_of(node: &toml::Spanned<DeValue<'_>>, origin: &impl Fn(usize) -> Origin) -> Node {
    Node {
        value: value(node.get_ref(), origin),
        origin: origin(node.span().start),
    }
}

fn value(written: &DeValue<'_>, origin: &impl Fn(usize) -> Origin) -> Value {
    match written {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::Other(number.to_string()), Value::Integer),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or_else(|_| Value::Other(number.to_string()), Value::Float),
        DeValue::Datetime(date) => Value::Other(date.to_string()),
        DeValue::Array(list) => Value::List(list.iter().map(|n| node_of(n, origin)).collect()),
        DeValue::Table(table) => Value::Table(table_of(table, origin)),
    }
}

/// Sets one value deep in the tables.
pub(crate) fn set(table: &mut Table, path: &[String], node: Node) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        table.insert(first.clone(), node);
        return;
    }
    let empty = || Node {
        value: Value::Table(Table::new()),
        origin: node.origin.clone(),
    };
    let inner = table.entry(first.clone()).or_insert_with(empty);
    if !matches!(inner.value, Value::Table(_)) {
        *inner = empty();
    }
    if let Value::Table(inner) = &mut inner.value {
        set(inner, rest, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(text: &str, name: &str) -> usize {
        match &parse(text, Some("f".into())).unwrap()[name].origin {
            Origin::File { line, .. } => *line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_know_their_line() {
        assert_eq!(line_of("a = 1\n\nb = 2\n", "b"), 3);
    }

    #[test]
    fn all_syntax_errors_are_reported() {
        let problems = parse("a = \nb = [1\nc == 2\n", Some("f".into())).unwrap_err();
        assert!(problems.len() > 1, "{problems:?}");
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            lines
                .iter()
                .all(|line| line.contains(": this is not TOML: ")),
            "{lines:?}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with("f:1: ")),
            "{lines:?}"
        );
    }

    #[test]
    fn hexadecimal_and_separated_numbers_are_read() {
        let table = parse("a = 0x10\nb = 1_000", None).unwrap();
        assert_eq!(table["a"].value.to_string(), "16");
        assert_eq!(table["b"].value.to_string(), "1000");
    }
}
