//! Connections that end at the worst moment, brokers that go and come back.

use std::time::Duration;

use super::leases::lease;
use super::order::flaky;
use crate::conformance::rig::{Rig, Run, Setup, ensure, keys};
use crate::conformance::subject::Fault;
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::Answer;
use crate::conformance::watched::Step;
use crate::history::Report;

const KEYS: usize = 30;
/// Messages of a key in each round.
const EACH: u64 = 8;

pub(super) async fn cut_before_receive(rig: Rig) -> Result<Summary, End> {
    cut_at(rig, Step::Receive, 3).await
}

pub(super) async fn cut_while_holding(rig: Rig) -> Result<Summary, End> {
    cut_at(rig, Step::Hold, 100).await
}

pub(super) async fn cut_while_settling(rig: Rig) -> Result<Summary, End> {
    cut_at(rig, Step::Settle, 10).await
}

pub(super) async fn cut_while_renewing(rig: Rig) -> Result<Summary, End> {
    let lease = lease(&rig)?;
    rig.needs_faults(&[Fault::Cut])?;
    let setup = Setup::new().script(move |call| match call.n % EACH {
        0 => Answer::delivered().after(lease * 3 / 2),
        _ => Answer::delivered(),
    });
    let run = rig.start_to_cut(setup).await?;
    for round in 0..rig.times {
        cut_in_round(&rig, &run, round, (Step::Renew, 1)).await?;
    }
    let report = run.finish().await?;
    Ok(summary(&rig, &report))
}

/// Cuts all connections at one of the first `among` of these steps, in each round.
async fn cut_at(rig: Rig, step: Step, among: u64) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::Cut])?;
    let setup = Setup::new().patient();
    let run = rig
        .start_to_cut(setup.script(flaky(rig.chance.clone())))
        .await?;
    for round in 0..rig.times {
        cut_in_round(&rig, &run, round, (step, among)).await?;
    }
    let report = run.finish().await?;
    Ok(summary(&rig, &report))
}

async fn cut_in_round(
    rig: &Rig,
    run: &Run,
    round: u64,
    (step, among): (Step, u64),
) -> Result<(), End> {
    let (queue, watch) = (run.queue.clone(), run.watch.clone());
    run.watch.at(step, rig.below(among), async move {
        if let Err(text) = queue.fault(Fault::Cut).await {
            panic!("the connections could not be cut: {text}");
        }
        watch.loans_end();
    });
    let numbers = round * EACH..(round + 1) * EACH;
    run.publish(&keys(KEYS), numbers.clone()).await?;
    run.delivered(KEYS * numbers.end as usize).await?;
    ensure(run.watch.has_happened(), || {
        format!("there was no {step:?} to cut in: this shows nothing")
    })
}

fn summary(rig: &Rig, report: &Report) -> Summary {
    let again: u64 = report.counts.duplicates.values().sum();
    format!(
        "{} times, {} messages, {again} delivered again",
        rig.times, report.counts.published
    )
}

pub(super) async fn broker_stopped_and_started(rig: Rig) -> Result<Summary, End> {
    broker_goes(rig, Fault::Stop).await
}

pub(super) async fn broker_killed(rig: Rig) -> Result<Summary, End> {
    broker_goes(rig, Fault::Kill).await
}

async fn broker_goes(rig: Rig, how: Fault) -> Result<Summary, End> {
    rig.needs_faults(&[how, Fault::Start])?;
    let setup = Setup::new().patient();
    let run = rig
        .start_to_cut(setup.script(flaky(rig.chance.clone())))
        .await?;
    if how == Fault::Kill {
        run.queue.kept().await;
    }
    for round in 0..rig.times {
        let before = KEYS * (round * EACH) as usize;
        run.publish(&keys(KEYS), round * EACH..(round + 1) * EACH)
            .await?;
        let some = before + 1 + rig.below(100) as usize;
        run.delivered(some).await?;
        run.fault(how).await?;
        tokio::time::sleep(Duration::from_millis(50 + rig.below(200))).await;
        run.fault(Fault::Start).await?;
        run.delivered(before + KEYS * EACH as usize).await?;
    }
    let report = run.finish().await?;
    Ok(summary(&rig, &report))
}
