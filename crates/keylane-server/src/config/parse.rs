//! Single values: durations, sizes, rates, numbers and words, each with what is allowed.

use std::num::NonZeroUsize;
use std::time::Duration;

use keylane_router::plan::Rate;

use super::tree::{Node, Table, Value};

/// Why a value cannot be taken: what would be right.
pub(crate) type Wrong = String;

/// Longer than anyone means, short enough for every clock.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

/// `"1h30m"`.
pub(crate) fn duration(node: &Node) -> Result<Duration, Wrong> {
    const ALLOWED: &str = "give a duration such as \"250ms\", \"30s\", \"5m\" or \"1h30m\"";
    let found = node.text().and_then(parse_duration).ok_or(ALLOWED)?;
    match found > LONGEST {
        true => Err("the longest is \"3650d\"".into()),
        false => Ok(found),
    }
}

/// A duration that is not zero.
pub(crate) fn some_time(node: &Node) -> Result<Duration, Wrong> {
    match duration(node)? {
        Duration::ZERO => Err("it must be longer than 0".into()),
        time => Ok(time),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let letters = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let milliseconds = number.checked_mul(milliseconds(unit.trim())?)?;
        total = total.checked_add(Duration::from_millis(milliseconds))?;
        rest = after;
    }
    Some(total)
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn milliseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    })
}

/// `"64MiB"` or a number of bytes; not zero.
pub(crate) fn size(node: &Node) -> Result<u64, Wrong> {
    let found = match node.resolved() {
        Value::Integer(bytes) => u64::try_from(bytes).ok(),
        Value::Text(text) => parse_size(&text),
        _ => None,
    };
    // SQLite and files count in signed 64 bits.
    found
        .filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok())
        .ok_or_else(|| "give a size such as \"512KB\", \"64MiB\" or \"10GiB\"".into())
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text.trim())?;
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KB" | "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// `"100/s"`, `{ count, per, burst }`, or `"unlimited"`.
pub(crate) fn rate(node: &Node) -> Result<Option<Rate>, Wrong> {
    const ALLOWED: &str = "give a rate such as \"100/s\", \"6000/m\", \"1/10s\", \
        { count = 100, per = \"1s\", burst = 20 }, or \"unlimited\"";
    let found = match node.resolved() {
        Value::Text(text) if text == "unlimited" => return Ok(None),
        Value::Text(text) => parse_rate(&text),
        Value::Table(table) => rate_table(&table),
        _ => None,
    };
    found.map(Some).ok_or_else(|| ALLOWED.into())
}

fn parse_rate(text: &str) -> Option<Rate> {
    let (count, per) = text.split_once('/')?;
    let per = per.trim();
    let per = match per.starts_with(|c: char| c.is_ascii_digit()) {
        true => parse_duration(per)?,
        false => parse_duration(&format!("1{per}"))?,
    };
    checked_rate(count.trim().parse().ok()?, per, None)
}

fn rate_table(table: &Table) -> Option<Rate> {
    if table
        .keys()
        .any(|name| !["count", "per", "burst"].contains(&name.as_str()))
    {
        return None;
    }
    let number = |name| match table.get(name).map(Node::resolved) {
        None => Some(None),
        Some(Value::Integer(number)) => u32::try_from(number).ok().map(Some),
        Some(_) => None,
    };
    let per = duration(table.get("per")?).ok()?;
    checked_rate(number("count")??, per, number("burst")?)
}

fn checked_rate(count: u32, per: Duration, burst: Option<u32>) -> Option<Rate> {
    let burst = match burst {
        Some(burst) => burst,
        None => usual_burst(count, per)?,
    };
    (count > 0 && burst > 0 && !per.is_zero() && per <= LONGEST).then_some(Rate {
        count,
        per,
        burst,
    })
}

/// What falls into 100 ms, at least 1: enough to keep a fast rate smooth with coarse timers, and
/// never a minute's worth at once.
fn usual_burst(count: u32, per: Duration) -> Option<u32> {
    let in_100_ms = u128::from(count) * 100_000_000 / per.as_nanos().max(1);
    u32::try_from(in_100_ms.max(1)).ok()
}

/// A whole number of at least 1.
pub(crate) fn at_least_one(node: &Node) -> Result<NonZeroUsize, Wrong> {
    whole(node)
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| "give a whole number of at least 1".into())
}

/// A whole number; 0 means none.
pub(crate) fn zero_is_none(node: &Node) -> Result<Option<NonZeroUsize>, Wrong> {
    whole(node)
        .map(NonZeroUsize::new)
        .ok_or_else(|| "give a whole number; 0 = no limit".into())
}

fn whole(node: &Node) -> Option<usize> {
    match node.resolved() {
        // Limits become permits and lengths: keep them where no arithmetic can overflow.
        Value::Integer(number) => u32::try_from(number).ok().map(|number| number as usize),
        _ => None,
    }
}

/// A number, 0 for `automatic`, or `"unlimited"`.
pub(crate) fn concurrency(
    node: &Node,
    automatic: NonZeroUsize,
) -> Result<Option<NonZeroUsize>, Wrong> {
    match (node.text(), whole(node)) {
        (Some("unlimited"), _) => Ok(None),
        (_, Some(0)) => Ok(Some(automatic)),
        (_, Some(number)) => Ok(NonZeroUsize::new(number)),
        _ => Err("give a whole number, 0 (CPUs × 4) or \"unlimited\"".into()),
    }
}

/// A number from 0 to 1.
pub(crate) fn share(node: &Node) -> Result<f64, Wrong> {
    let found = match node.resolved() {
        Value::Float(number) => Some(number),
        Value::Integer(0) => Some(0.0),
        Value::Integer(1) => Some(1.0),
        _ => None,
    };
    found
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| "give a number from 0 to 1".into())
}

/// `true` or `false`.
pub(crate) fn yes_or_no(node: &Node) -> Result<bool, Wrong> {
    match node.resolved() {
        Value::Bool(value) => Ok(value),
        _ => Err("give true or false".into()),
    }
}

/// `true`, `false`, or `"auto"`.
pub(crate) fn switch(node: &Node) -> Result<Option<bool>, Wrong> {
    match node.resolved() {
        Value::Bool(value) => Ok(Some(value)),
        Value::Text(text) if text == "auto" => Ok(None),
        _ => Err("give true, false or \"auto\"".into()),
    }
}

/// Any text.
pub(crate) fn text(node: &Node) -> Result<String, Wrong> {
    node.text()
        .map(String::from)
        .ok_or_else(|| "give a text in quotes".into())
}

/// One of these words.
pub(crate) fn word<T: Clone>(node: &Node, words: &[(&str, T)]) -> Result<T, Wrong> {
    let found = words.iter().find(|(word, _)| node.text() == Some(word));
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        match words.split_last() {
            Some((last, [])) => format!("use {last}"),
            Some((last, rest)) => format!("use {} or {last}", rest.join(", ")),
            None => "nothing is allowed".into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::errors::Origin;

    fn node(value: Value) -> Node {
        let origin = Origin::Default;
        Node { value, origin }
    }

    fn written(text: &str) -> Node {
        node(Value::Text(text.into()))
    }

    #[test]
    fn durations_are_sums_of_units() {
        let found = |text| duration(&written(text)).map(|d| d.as_millis());
        assert_eq!(found("30s"), Ok(30_000));
        assert_eq!(found("250ms"), Ok(250));
        assert_eq!(found("1h30m"), Ok(5_400_000));
        assert_eq!(found("2d"), Ok(172_800_000));
        assert_eq!(found("0s"), Ok(0));
        for wrong in [
            "",
            "30",
            "s",
            "1x",
            "-1s",
            "1.5s",
            "99999999999999999999s",
            "9999d",
        ] {
            assert!(found(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        let found = |text| size(&written(text));
        assert_eq!(found("64MiB"), Ok(64 << 20));
        assert_eq!(found("512KB"), Ok(512_000));
        assert_eq!(found("10GiB"), Ok(10 << 30));
        assert_eq!(size(&node(Value::Integer(7))), Ok(7));
        for wrong in ["", "MiB", "1XB", "0B", "99999999TiB"] {
            assert!(found(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_have_a_small_burst_unless_told() {
        let found = |text| {
            rate(&written(text))
                .unwrap()
                .map(|r| (r.count, r.per.as_secs(), r.burst))
        };
        assert_eq!(found("100/s"), Some((100, 1, 10)));
        assert_eq!(found("6000/m"), Some((6000, 60, 10)));
        assert_eq!(found("1/10s"), Some((1, 10, 1)));
        assert_eq!(found("unlimited"), None);
        for wrong in ["100", "0/s", "/s", "1/", "1/0s", "x/s"] {
            assert!(rate(&written(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rate_may_be_a_table_also_when_it_comes_raw() {
        let raw = node(Value::Raw("{ count = 5, per = \"1m\", burst = 2 }".into()));
        let found = rate(&raw).unwrap().unwrap();
        assert_eq!((found.count, found.per.as_secs(), found.burst), (5, 60, 2));
        assert!(rate(&node(Value::Raw("{ count = 5, pre = \"1m\" }".into()))).is_err());
    }

    #[test]
    fn concurrency_is_a_number_automatic_or_unlimited() {
        let cpus = NonZeroUsize::new(8).unwrap();
        let found = |value| concurrency(&node(value), cpus).map(|c| c.map(NonZeroUsize::get));
        assert_eq!(found(Value::Integer(0)), Ok(Some(8)));
        assert_eq!(found(Value::Raw("3".into())), Ok(Some(3)));
        assert_eq!(found(Value::Text("unlimited".into())), Ok(None));
        assert!(found(Value::Integer(-1)).is_err());
        assert!(found(Value::Text("many".into())).is_err());
    }

    #[test]
    fn a_wrong_word_is_told_the_right_ones() {
        let words = [("a", 1), ("b", 2), ("c", 3)];
        assert_eq!(word(&written("b"), &words), Ok(2));
        assert_eq!(
            word(&written("x"), &words),
            Err("use \"a\", \"b\" or \"c\"".into())
        );
    }
}
