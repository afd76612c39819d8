//! Routers that end under load, well or badly; the next one finds everything.

use std::time::Duration;

use super::order::flaky;
use crate::conformance::child;
use crate::conformance::rig::{Rig, Setup, ensure, keys};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::Answer;
use crate::history;

const KEYS: usize = 40;
const EACH: u64 = 20;
const ALL: usize = KEYS * EACH as usize;

pub(super) async fn router_drained(rig: Rig) -> Result<Summary, End> {
    let flaky = flaky(rig.chance.clone());
    let pause = Duration::from_millis(2);
    let setup = Setup::new().patient().script(move |call| {
        let answer = flaky(call);
        let after = answer.after.max(pause);
        Answer { after, ..answer }
    });
    let mut run = rig.start(setup).await?;
    run.publish(&keys(KEYS), 0..EACH).await?;
    for _ in 0..rig.times {
        let some = run.target.delivered() + 1 + rig.below(ALL as u64 / (rig.times + 2)) as usize;
        run.delivered(some.min(ALL)).await?;
        run.stop().await;
        let after = run.target.all_calls();
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure(run.target.all_calls() == after, || {
            "a call began after the router had stopped".to_owned()
        })?;
        run.router = run.another().await?;
    }
    run.delivered(ALL).await?;
    let report = run.finish().await?;
    let again: u64 = report.counts.duplicates.values().sum();
    ensure(again == 0, || {
        format!("{again} messages were delivered again after a drain")
    })?;
    Ok(format!("{ALL} messages, drained {} times", rig.times))
}

pub(super) async fn router_killed(rig: Rig) -> Result<Summary, End> {
    let mut bench = rig.bench().await?;
    bench.expect_cuts(&rig.features);
    bench.publish(&keys(KEYS), 0..EACH).await?;
    if bench.queue.child().await.is_none() {
        return Err(End::Excluded(
            "its subject has no process of its own for a router".to_owned(),
        ));
    }
    let mut children = child::Children::new(&bench).await?;
    for _ in 0..rig.times {
        let more = 1 + rig.below(ALL as u64 / (rig.times + 2));
        children.kill_after(more).await?;
    }
    children.finish(ALL as u64).await?;
    // A loan may have ended on a machine that stood still: then its ack did not count.
    if !matches!(bench.queue.left().await, Ok(None | Some(0))) {
        children.finish_rest().await?;
    }
    bench.empty().await?;
    // Acks without an answer may die with the process, read by nobody.
    let unheard = match rig.features.confirmed_acks {
        true => 0,
        false => child::WINDOW,
    };
    let options = history::Options {
        max_duplicates_per_crash: Some(child::unsettled(&rig.features) + unheard),
        ..history::Options::default()
    };
    let report = children.verdict(&options)?;
    let again: u64 = report.counts.duplicates.values().sum();
    Ok(format!(
        "{ALL} messages, killed {} times, {again} delivered again",
        rig.times
    ))
}
