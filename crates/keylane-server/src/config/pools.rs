//! Reads the pools and checks each against itself.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use keylane_router::dispatch::{Secrets, TargetList};
use keylane_router::plan::{
    Cascade, KeyPlan, LaneScope, OnExhausted, OnRefused, Overflow, PoolPlan, RetryPlan, Targets,
    TimeoutPlan,
};

use super::parse::{self, Wrong};
use super::section::Section;
use super::tree::{Node, Table, Value};

/// All pools; `default` is always there.
pub(super) fn read(
    pools: Section<'_>,
    defaults: &Table,
    automatic: NonZeroUsize,
    notices: &mut Vec<String>,
) -> BTreeMap<Arc<str>, PoolPlan> {
    let mut plans = BTreeMap::new();
    for (name, section) in pools.named(|_| Some(defaults)) {
        plans.insert(Arc::from(name), read_pool(section, automatic));
    }
    if !plans.contains_key("default") {
        let plan = read_pool(pools.sub("default"), automatic);
        plans.insert(Arc::from("default"), plan);
    }
    notices.extend(plans.iter().filter_map(|(name, plan)| notice(name, plan)));
    plans
}

fn notice(name: &str, plan: &PoolPlan) -> Option<String> {
    (plan.cascade == Cascade::Batch).then(|| {
        format!(
            "pool `{name}`: cascade = \"batch\" keeps the order of a key only within each batch; \
             after a failure later batches of that key may overtake"
        )
    })
}

fn read_pool(pool: Section<'_>, automatic: NonZeroUsize) -> PoolPlan {
    let plan = PoolPlan {
        concurrency: pool.get("concurrency", |node| parse::concurrency(node, automatic)),
        lane_concurrency: pool.get("lane_concurrency", parse::at_least_one),
        lane_capacity: pool.get("lane_capacity", parse::at_least_one),
        lane_scope: pool.get("lane_scope", lane_scope),
        rate: pool.get("rate", parse::rate),
        per_key_rate: pool.get("per_key_rate", parse::rate),
        overflow: pool.get("overflow", overflow),
        cascade: pool.get("cascade", cascade),
        on_refused: pool.get("on_refused", on_refused),
        on_exhausted: pool.get("on_exhausted", on_exhausted),
        targets: pool.get("targets", targets),
        signing_secrets: pool.get("signing_secrets", signing_secrets),
        byte_budget: pool.get("byte_budget", parse::size),
        max_message: pool.get("max_message", parse::size),
        return_delay: pool.get("return_delay", parse::duration),
        busy_max: pool.get("busy_max", parse::some_time),
        patience: pool.get("patience", parse::some_time),
        drain: pool.get("drain", drain),
        timeout: read_timeout(pool.sub("timeout")),
        retry: read_retry(pool.sub("retry")),
        keys: read_keys(&pool),
    };
    check(&pool, &plan);
    pool.finish();
    plan
}

fn read_timeout(timeout: Section<'_>) -> TimeoutPlan {
    let plan = TimeoutPlan {
        connect: timeout.get("connect", parse::some_time),
        first_byte: timeout.get("first_byte", parse::some_time),
        idle_body: timeout.get("idle_body", parse::some_time),
        total: timeout.get("total", parse::some_time),
    };
    for (name, part) in [
        ("connect", plan.connect),
        ("first_byte", plan.first_byte),
        ("idle_body", plan.idle_body),
    ] {
        // Only where it was written: a short `total` alone shortens the documented parts.
        if part > plan.total && timeout.is_written(name) {
            timeout.problem(
                name,
                "it is longer than `total`; raise `total` or lower this",
            );
        }
    }
    timeout.finish();
    plan
}

fn read_retry(retry: Section<'_>) -> RetryPlan {
    let plan = RetryPlan {
        max_attempts: retry.get("max_attempts", parse::at_least_one),
        initial: retry.get("initial", parse::some_time),
        max: retry.get("max", parse::some_time),
    };
    if plan.initial > plan.max {
        let text = "`initial` is longer than `max`; raise `max` or lower `initial`";
        retry.conflict(["max", "initial"], text);
    }
    retry.finish();
    plan
}

fn read_keys(pool: &Section<'_>) -> Vec<KeyPlan> {
    let mut plans: Vec<KeyPlan> = Vec::new();
    for section in pool.list("keys") {
        if let Some(plan) = read_key(&section, &plans) {
            plans.push(plan);
        }
        section.finish();
    }
    plans
}

/// `None` when it has no pattern: that was noted.
fn read_key(keys: &Section<'_>, before: &[KeyPlan]) -> Option<KeyPlan> {
    let pattern = keys.find("match", parse::text);
    if !keys.is_written("match") {
        keys.problem("match", "it is missing; give a pattern such as \"vip:*\"");
    }
    let plan = KeyPlan {
        lane_concurrency: keys.find("lane_concurrency", parse::at_least_one),
        lane_capacity: keys.find("lane_capacity", parse::at_least_one),
        per_key_rate: keys.find("per_key_rate", parse::rate).flatten(),
        pattern: pattern?,
    };
    if plan.pattern.is_empty() {
        keys.problem("match", "the pattern is empty; give one such as \"vip:*\"");
    }
    if let Some(earlier) = before
        .iter()
        .find(|b| b.pattern == "*" || b.pattern == plan.pattern)
    {
        let text = format!(
            "it is never reached: {:?} stands before it and the first match counts",
            earlier.pattern
        );
        keys.problem("match", text);
    }
    let limits = ["lane_concurrency", "lane_capacity", "per_key_rate"];
    if !limits.iter().any(|name| keys.is_written(name)) {
        keys.problem(
            "match",
            format!("it sets no limit; give one of {}", limits.join(", ")),
        );
    }
    Some(plan)
}

fn check(pool: &Section<'_>, plan: &PoolPlan) {
    if plan.max_message > plan.byte_budget {
        let text = "`max_message` is above `byte_budget`; no such message would ever fit";
        pool.conflict(["max_message", "byte_budget"], text);
    }
    if plan.busy_max < plan.retry.initial {
        pool.problem(
            "busy_max",
            "it is shorter than `retry.initial`, the shortest wait there is",
        );
    }
    if plan.overflow == Some(Overflow::Spill) && plan.lane_scope == LaneScope::Pool {
        let text = "\"spill\" and lane_scope = \"pool\" exclude each other: what sources share is in none of their stores";
        pool.conflict(["overflow", "lane_scope"], text);
    }
}

fn lane_scope(node: &Node) -> Result<LaneScope, Wrong> {
    parse::word(
        node,
        &[("source", LaneScope::Source), ("pool", LaneScope::Pool)],
    )
}

fn overflow(node: &Node) -> Result<Option<Overflow>, Wrong> {
    let words = [
        ("auto", None),
        ("wait", Some(Overflow::Wait)),
        ("spill", Some(Overflow::Spill)),
    ];
    parse::word(node, &words)
}

fn cascade(node: &Node) -> Result<Cascade, Wrong> {
    parse::word(node, &[("key", Cascade::Key), ("batch", Cascade::Batch)])
}

fn on_refused(node: &Node) -> Result<OnRefused, Wrong> {
    let words = [
        ("dead-letter", OnRefused::DeadLetter),
        ("retry", OnRefused::Retry),
        ("drop", OnRefused::Drop),
    ];
    parse::word(node, &words)
}

fn on_exhausted(node: &Node) -> Result<OnExhausted, Wrong> {
    let words = [
        ("return", OnExhausted::Return),
        ("dead-letter", OnExhausted::DeadLetter),
        ("park", OnExhausted::Park),
        ("block", OnExhausted::Block),
    ];
    parse::word(node, &words)
}

fn targets(node: &Node) -> Result<Targets, Wrong> {
    const ALLOWED: &str = "use \"any\", \"public\" or a list such as [\"https://api.example.com\"]";
    match node.resolved() {
        Value::Text(text) if text == "any" => Ok(Targets::Any),
        Value::Text(text) if text == "public" => Ok(Targets::Public),
        Value::List(nodes) => {
            let texts: Option<Vec<&str>> = nodes.iter().map(Node::text).collect();
            let list = TargetList::parse(texts.ok_or(ALLOWED)?);
            list.map(Targets::Only).map_err(|error| error.to_string())
        }
        _ => Err(ALLOWED.into()),
    }
}

fn signing_secrets(node: &Node) -> Result<Secrets, Wrong> {
    const ALLOWED: &str = "give a list of secrets such as [\"whsec_…\"]";
    let Value::List(nodes) = node.resolved() else {
        return Err(ALLOWED.into());
    };
    let texts: Option<Vec<&str>> = nodes.iter().map(Node::text).collect();
    Secrets::parse(texts.ok_or(ALLOWED)?).map_err(|error| error.to_string())
}

fn drain(node: &Node) -> Result<Option<Duration>, Wrong> {
    if node.text() == Some("finish") {
        return Ok(None);
    }
    let drain = parse::duration(node).map(Some);
    drain.map_err(|remedy| format!("{remedy}, or \"finish\""))
}
