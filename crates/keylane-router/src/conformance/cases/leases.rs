//! Loans that end unless they are renewed.

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
