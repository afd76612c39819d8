//! What each guard costs: the router with it and without it, in turn. Guards that have no switch
//! (the check of the dialled address, time limits, limits of answers) are measured by themselves,
//! call by call.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::HeaderMap;
use keylane_router::dispatch::{
    Attempt, HttpDispatch, HttpOptions, Secrets, TargetList, answer, headers,
};
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::outcome::Outcome;
use keylane_router::plan::{Plan, PoolPlan, Targets};
use keylane_router::source::Features;

use super::Result;
use super::goals::{Report, listed, median};
use super::instant;
use super::rig::{Pace, Rig};
use super::target::{Setting, Target};

const KEYS: usize = 10_000;
const CONCURRENCY: usize = 64;
const WINDOW: usize = 1000;
const ROUNDS: usize = 4;
const ROUND: Duration = Duration::from_millis(1000);

/// One guard: how it is put on, where all that have a switch are off.
struct Guard {
    name: &'static str,
    plan: fn(&mut Plan),
    features: fn(&mut Features),
}

const GUARDS: [Guard; 6] = [
    Guard {
        name: "signing with one secret",
        plan: |plan| {
            let secret = ["whsec_c2VjcmV0IG9mIHRoZSBiZW5jaG1hcmsuLi4="];
            pool(plan).signing_secrets = Secrets::parse(secret).expect("a secret");
        },
        features: |_| {},
    },
    Guard {
        name: "a list of targets",
        plan: |plan| {
            let list = [
                "public",
                "*.example.com",
                "10.0.0.0/8",
                "127.0.0.0/8",
                "!10.1.0.0/16",
            ];
            pool(plan).targets = Targets::Only(TargetList::parse(list).expect("a list"));
        },
        features: |_| {},
    },
    Guard {
        name: "the breaker",
        plan: |plan| plan.breaker = Plan::default().breaker,
        features: |_| {},
    },
    Guard {
        name: "the audit of the order",
        plan: |_| {},
        features: |features| features.positions = true,
    },
    Guard {
        name: "leases",
        plan: |_| {},
        features: |features| features.lease = Some(Duration::from_secs(30)),
    },
    Guard {
        name: "the watchdog",
        plan: |plan| plan.stall_after = Plan::default().stall_after,
        features: |_| {},
    },
];

fn pool(plan: &mut Plan) -> &mut PoolPlan {
    plan.pools.entry("default".into()).or_default()
}

/// All guards with a switch are off.
fn bare(plan: &mut Plan) {
    plan.breaker.failures = 0.0;
    plan.stall_after = Duration::ZERO;
}

/// Each guard alone, with and without in turn.
pub(super) async fn measure(target: &mut Target, data: &Path, report: &mut Report) -> Result<()> {
    let mut rig = Rig::new(data, &target.url, KEYS).await?;
    target.begin(Setting {
        keys: KEYS,
        ..Setting::default()
    })?;
    for guard in &GUARDS {
        let (mut cpu, mut rate) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let missing = 300_000_usize.saturating_sub(rig.db.queues()[0].depth as usize);
            rig.fill(missing).await?;
            // Whoever is first in a round is second in the next.
            let on_first = round % 2 == 0;
            let first = run(&rig, guard, on_first).await?;
            let second = run(&rig, guard, !on_first).await?;
            let (on, off) = if on_first {
                (first, second)
            } else {
                (second, first)
            };
            cpu.push(on.cpu_micros / off.cpu_micros);
            rate.push(on.per_second / off.per_second);
        }
        let name = format!("{}: CPU with it to without", guard.name);
        let note = format!("runs {}; rate {}", listed(&cpu), listed(&rate));
        report.value(&name, median(&cpu), "", note);
    }
    without_a_switch(&target.url, report).await;
    report.order("guards", target.seen()?.violations);
    rig.close().await;
    Ok(())
}

async fn run(rig: &Rig, guard: &Guard, on: bool) -> Result<Pace> {
    let plan = |plan: &mut Plan| {
        bare(plan);
        if on {
            (guard.plan)(plan);
        }
    };
    let features = |features: &mut Features| {
        features.positions = false;
        if on {
            (guard.features)(features);
        }
    };
    let router = rig.router_with(CONCURRENCY, WINDOW, plan, features).await?;
    instant::run(rig, router, ROUND).await
}

/// Calls of one guard that are measured together.
const CALLS: u32 = 100_000;

/// What each guard that is always there takes of a message's time.
async fn without_a_switch(url: &str, report: &mut Report) {
    let dispatch = HttpDispatch::new(HttpOptions {
        loopback: true,
        listeners: vec![([127, 0, 0, 1], 1).into()],
        ..HttpOptions::default()
    });
    let (message, attempt) = (message(url), attempt());
    let address = ([127, 0, 0, 1], 9).into();
    let cost = each(|| async { dispatch.may_call(&message, &attempt, address) }).await;
    tell("the check of the target and the address", cost, report);
    let cost = each(|| dispatch.set_limits_of(&attempt)).await;
    tell("the time limits", cost, report);
    let (none, body) = (HeaderMap::new(), Bytes::from_static(b"{\"ack\":true}"));
    let cost = each(|| async { dispatch.take_answer(&none, body.clone()) }).await;
    tell("the limits of the answer", cost, report);
    let judge = || async {
        let body = answer::Body::Whole(&body);
        answer::outcome(hyper::StatusCode::OK, &none, body) == Outcome::Delivered
    };
    let cost = each(judge).await;
    tell("the judgement of the answer", cost, report);
    let cost = each(|| async { headers::of(&message, &attempt).is_ok() }).await;
    tell("the headers, which no message can forge", cost, report);
}

/// The time of one call, the shortest of some rounds.
async fn each<T, F: Future<Output = T>>(call: impl Fn() -> F) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        for _ in 0..CALLS / 5 {
            std::hint::black_box(call().await);
        }
        best = best.min(begun.elapsed() / (CALLS / 5));
    }
    best
}

fn tell(name: &str, cost: Duration, report: &mut Report) {
    let note = "has no switch: measured alone".to_owned();
    let name = format!("{name}: each call");
    report.value(&name, cost.as_secs_f64() * 1e6, "µs", note);
}

fn message(url: &str) -> Message {
    Message {
        id: "4711-12".into(),
        key: Some(Key::from("k4711")),
        pool: None,
        target: url.into(),
        mediation_type: "HTTP".into(),
        auth_token: None,
        tenant: None,
        payload: Bytes::from(super::rig::payload(1)),
        content_type: "application/json".into(),
        headers: Vec::new(),
    }
}

fn attempt() -> Attempt {
    Attempt {
        identity: Identity {
            source: "bench".into(),
            id: BrokerId::Sequence(1),
        },
        number: 1,
        round: 0,
        pool: "default".into(),
        position: Some(123_456),
        slot: 0,
        timeout: PoolPlan::default().timeout,
        targets: Arc::new(Targets::Any),
        secrets: Secrets::default(),
        lease: None,
    }
}
