//! `/metrics`: what the router says it did is what happened (R14).

use std::collections::{BTreeMap, BTreeSet};

use keylane_router::testing::{Answer, Request, Target};

use crate::server::{Folder, messages};

/// All series with their values. Wants what a scraper wants.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    let (mut series, mut known) = (BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(known.insert((what, name)), "twice: {line}");
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let base = name.split('{').next().unwrap();
        let base = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| {
                base.strip_suffix(end)
                    .filter(|b| known.contains(&("TYPE", *b)))
            })
            .unwrap_or(base);
        assert!(known.contains(&("TYPE", base)), "no type: {line}");
        assert!(known.contains(&("HELP", base)), "no help: {line}");
        let value = value.parse().expect("a number");
        assert!(series.insert(name.to_owned(), value).is_none(), "{line}");
    }
    series
}

fn sum(series: &BTreeMap<String, f64>, name: &str) -> f64 {
    let start = format!("{name}{{");
    let matching = series
        .iter()
        .filter(|(series, _)| series.starts_with(&start));
    matching.map(|(_, value)| value).sum()
}

#[tokio::test]
async fn the_numbers_add_up() {
    let target = Target::start(
        |request: &Request| match (request.key.as_str(), request.attempt) {
            ("refused", _) => Answer::status(400),
            ("fails", 1) => Answer::status(500),
            _ => Answer::ok(),
        },
    )
    .await;
    let folder = Folder::with_config("[pools.default.retry]\ninitial = \"10ms\"\n");
    let server = folder.start().await;
    for key in ["good", "refused", "fails"] {
        server.publish(messages(&target, key, 5)).await;
    }
    server.empty().await;

    let answer = server.get("/metrics").await;
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let series = parsed(answer.text());
    let of = |name: &str| series[name];
    assert_eq!(sum(&series, "keylane_messages_received_total"), 15.0);
    assert_eq!(sum(&series, "keylane_messages_resolved_total"), 15.0);
    let resolved = "keylane_messages_resolved_total{source=\"default\",pool=\"default\",outcome=";
    assert_eq!(of(&format!("{resolved}\"delivered\"}}")), 10.0);
    assert_eq!(of(&format!("{resolved}\"dead-lettered\"}}")), 5.0);
    let requests = target.recorder().requests().len();
    assert_eq!(requests, 20);
    assert_eq!(sum(&series, "keylane_attempts_total"), 20.0);
    assert_eq!(sum(&series, "keylane_attempt_seconds_count"), 20.0);
    for metric in ["attempts_total", "attempt_seconds_count"] {
        let labels = "source=\"default\",pool=\"default\"";
        let of = |more: &str| of(&format!("keylane_{metric}{{{labels},class=\"{more}\"}}"));
        assert_eq!(of("delivered"), 10.0);
        assert_eq!(of("failed\",error_type=\"status-500"), 5.0);
        assert_eq!(of("refused\",error_type=\"status-400"), 5.0);
    }
    assert_eq!(of("keylane_queue_messages{queue=\"default\"}"), 0.0);
    assert_eq!(of("keylane_dead_letters"), 5.0);
    assert_eq!(of("keylane_in_flight{pool=\"default\"}"), 0.0);
    assert!(of("process_resident_memory_bytes") > 1e6);
}
