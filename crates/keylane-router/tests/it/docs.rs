//! What the docs say of sources is what the sources declare.

use std::fmt::Write;
use std::path::Path;

use keylane_router::conformance::CASES;
use keylane_router::source::{Declared, Order, Several, declared};

/// Set by `cargo xtask docs`: the page is written, not compared.
const WRITE: &str = "KEYLANE_WRITE_DOCS";

const HEAD: &str = "| source | key from | order of a key | without a key | what comes again has the same id | given back in order | with a delay | one key at a time | lease | acks are confirmed | dead letters of its own | several instances keep order |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn several(several: Several) -> &'static str {
    match several {
        Several::OneOwner => "one owner: a second is refused",
        Several::OneActive => "one is active, the others wait",
        Several::KeyLock => "the broker's lock on a key",
        Several::KeyOwner => "each key belongs to one of them",
        Several::Partitions => "each partition belongs to one of them",
        Several::Nothing => "no",
    }
}

fn order(order: Order) -> &'static str {
    match order {
        Order::Kept => "kept",
        Order::UntilReconnect => "until a reconnect",
        Order::AsItComes => "as they arrive",
        Order::NoKeys => "no",
    }
}

fn row(declared: &Declared) -> String {
    let features = &declared.features;
    let lease = features.lease.map_or_else(
        || "as long as the connection".to_owned(),
        |lease| format!("{lease:?}, renewed"),
    );
    let keyless = match features.keyless_serial {
        true => "one after the other",
        false => "side by side",
    };
    let cells = [
        declared.name,
        declared.key_from,
        order(features.order),
        keyless,
        yes(features.identity),
        yes(features.ordered_return),
        yes(features.delayed_return),
        yes(features.key_lock),
        &lease,
        yes(features.confirmed_acks),
        yes(features.dead_letter),
        several(features.several),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// The rows of all sources of this build, and why each does not promise more.
fn sources() -> Vec<String> {
    let why = |declared: &Declared| format!("* **{}**: {}\n", declared.name, declared.why_not_more);
    let all = declared();
    let rows = all.iter().map(row);
    rows.chain(all.iter().map(why)).collect()
}

fn table() -> String {
    let parts = sources();
    let (rows, why) = parts.split_at(parts.len() / 2);
    format!("{HEAD}{}\n{}", rows.concat(), why.concat())
}

fn cases() -> String {
    let mut text = "| case | what must hold |\n|---|---|\n".to_owned();
    for case in CASES {
        let _ = writeln!(text, "| `{}` | {} |", case.name, case.asks);
    }
    text
}

/// The page with what is between the marks of `name` replaced.
fn with(page: &str, name: &str, text: &str) -> String {
    let begin = format!("<!-- {name}: made by `cargo xtask docs` -->\n");
    let end = format!("<!-- end of {name} -->");
    let (before, rest) = page.split_once(&begin).expect("the page has the mark");
    let (_, after) = rest.split_once(&end).expect("the page has its end");
    format!("{before}{begin}\n{text}\n{end}{after}")
}

#[test]
fn the_page_of_sources_is_what_they_declare() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    if std::env::var_os(WRITE).is_some() {
        let page = with(&page, "sources", &table());
        let page = with(&page, "cases", &cases());
        return std::fs::write(&path, page).expect("the page can be written");
    }
    // Line by line: a build with fewer sources has fewer rows.
    for line in sources().iter().map(String::as_str).chain(cases().lines()) {
        assert!(
            page.contains(line.trim_end()),
            "docs/sources.md is stale; run `cargo xtask docs`. It lacks: {line}"
        );
    }
}
