//! What each guard costs: the router with it and without it, in turn.
//!
//! Guards that have no switch (time limits, limits of answers, the check of the dialled address)
//! are measured call by call in the router's example `dispatch_cost`.

use std::path::Path;
use std::time::Duration;

use keylane_router::dispatch::{Secrets, TargetList};
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
