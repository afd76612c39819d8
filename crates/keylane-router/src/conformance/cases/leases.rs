//! Loans that end unless they are renewed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::conformance::rig::{Rig, Setup, ensure, keys};
use crate::conformance::subject::Fault;
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::Answer;

/// The source's lease, or the case is left out.
pub(super) fn lease(rig: &Rig) -> Result<Duration, End> {
    rig.needs(rig.features.lease.is_some(), "lease")?;
    Ok(rig.features.lease.unwrap_or_default())
}

pub(super) async fn lease_renewed(rig: Rig) -> Result<Summary, End> {
    let lease = lease(&rig)?;
    // The head runs, and those behind it wait, for longer than the lease.
    let setup = Setup::new().script(move |call| match call.n {
        0 => Answer::delivered().after(lease * 5 / 2),
        _ => Answer::delivered(),
    });
    let run = rig.start(setup).await?;
    run.publish(&keys(4), 0..3).await?;
    run.delivered(12).await?;
    let (received, renewed) = (run.watch.received(), run.watch.renewed());
    let target = run.target.clone();
    run.finish().await?;
    let calls = target.all_calls();
    ensure(renewed > 0, || "nothing was renewed".to_owned())?;
    ensure((received, calls) == (12, 12), || {
        format!("12 messages, {received} received and {calls} calls: loans ended")
    })?;
    Ok(format!(
        "12 messages held for 2.5 leases, {renewed} renewals"
    ))
}

pub(super) async fn lease_lost(rig: Rig) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::EndLeases])?;
    let lease = lease(&rig)?;
    let setup = Setup::new().script(move |call| match call.n % 3 {
        0 => Answer::delivered().after(lease / 2),
        _ => Answer::delivered(),
    });
    let run = rig.start_to_cut(setup).await?;
    // Enough to run while each is done.
    let each = 9.max(6 * rig.times);
    let all = 10 * each as usize;
    run.publish(&keys(10), 0..each).await?;
    for _ in 0..rig.times {
        run.until("something runs", || run.target.running() > 5)
            .await?;
        run.fault(Fault::EndLeases).await?;
        tokio::time::sleep(lease / 8).await;
    }
    run.delivered(all).await?;
    let report = run.finish().await?;
    let again: u64 = report.counts.duplicates.values().sum();
    Ok(format!("{all} messages, {again} delivered again"))
}

pub(super) async fn renewals_lost(rig: Rig) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::LoseRenewals])?;
    let lease = lease(&rig)?;
    let setup = Setup::new().script(move |call| match call.n % 3 {
        0 => Answer::delivered().after(lease * 3 / 2),
        _ => Answer::delivered(),
    });
    let run = rig.start_to_cut(setup).await?;
    // Enough to run while each is done.
    let each = 4.max(2 * rig.times);
    let all = 10 * each as usize;
    run.publish(&keys(10), 0..each).await?;
    for _ in 0..rig.times {
        run.until("something runs", || run.target.running() > 5)
            .await?;
        run.fault(Fault::LoseRenewals).await?;
        tokio::time::sleep(lease / 8).await;
    }
    run.delivered(all).await?;
    let report = run.finish().await?;
    let again: u64 = report.counts.duplicates.values().sum();
    Ok(format!("{all} messages, {again} delivered again"))
}

/// What a lost lease needs to be seen: nothing comes again before the broker is back.
pub(super) async fn lease_lost_while_away(rig: Rig) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::Away, Fault::Back])?;
    let lease = lease(&rig)?;
    let asked = Mutex::new(HashSet::new());
    let setup = Setup::new().script(move |call| {
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let first = asked.insert((call.key.clone(), call.n));
        match (call.n % EACH_AWAY, call.key.as_bytes().last()) {
            // Delivered in time, and not acked.
            (0, Some(b'0'..=b'2')) => Answer::delivered().after(lease / 2),
            // They run, or are held, when their leases end.
            (0, Some(b'3'..=b'5')) if first => Answer::not_yet(lease * 7 / 4),
            (0, Some(b'6')) if first => Answer::refused().after(lease * 3 / 2),
            (0, _) => Answer::delivered().after(lease * 3 / 2),
            _ => Answer::delivered(),
        }
    });
    let run = rig.start_to_cut(setup).await?;
    // A lease of a real broker takes its time.
    let rounds = match rig.subject.in_memory() {
        true => rig.times,
        false => rig.times.div_ceil(2),
    };
    for round in 0..rounds {
        let first = round * EACH_AWAY;
        run.publish(&keys(10), first..first + 1).await?;
        let all = 10 * (first + 1);
        run.until("every head was called", || run.target.all_calls() >= all)
            .await?;
        // What is behind them has some of its lease left when theirs end.
        tokio::time::sleep(lease / 4).await;
        run.publish(&keys(10), first + 1..first + EACH_AWAY).await?;
        tokio::time::sleep(lease / 8).await;
        run.bench_fault(Fault::Away).await?;
        tokio::time::sleep(lease * 2).await;
        run.bench_fault(Fault::Back).await?;
        run.delivered(10 * (first + EACH_AWAY) as usize).await?;
    }
    let all = 10 * EACH_AWAY * rounds;
    let report = run.finish().await?;
    let again: u64 = report.counts.duplicates.values().sum();
    let given_up = report.counts.dead_lettered;
    ensure(given_up == 0, || {
        format!("{given_up} messages became dead letters on loans that were over")
    })?;
    ensure(again == 0 || !rig.features.identity, || {
        format!("{all} messages, {again} were delivered again to a target that had them")
    })?;
    Ok(format!("{all} messages, {again} delivered again"))
}

/// Messages of a key in each round of [`lease_lost_while_away`].
const EACH_AWAY: u64 = 4;
