//! More than fits: what cannot be held is not received.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::conformance::child::Children;
use crate::conformance::rig::{Rig, Setup, ensure, keys, large_envelope};
use crate::conformance::subject::Published;
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::{Answer, label};

const KEYS: usize = 500;
const EACH: u64 = 40;
const ALL: usize = KEYS * EACH as usize;
const WINDOW: usize = 200;
/// Nothing is answered until this many virtual or real milliseconds have passed.
const STALL: Duration = Duration::from_millis(500);

pub(super) async fn back_pressure(rig: Rig) -> Result<Summary, End> {
    let queue = rig.queue().await?;
    let begun = tokio::time::Instant::now();
    // The first calls take their time; by then everything that could be received was.
    let setup = Setup::new()
        .window(WINDOW)
        .pool(|pool| pool.concurrency = NonZeroUsize::new(8))
        .script(move |_| {
            let stalled = begun.elapsed() < STALL;
            Answer::delivered().after(if stalled { STALL } else { Duration::ZERO })
        });
    let run = rig.start_on(queue, setup).await?;
    run.publish(&keys(KEYS), 0..EACH).await?;
    run.delivered(100).await?;
    let queued: usize = run.router.pools().iter().map(|pool| pool.queued).sum();
    ensure(queued <= WINDOW, || {
        format!("{queued} messages are in lanes; the window is {WINDOW}")
    })?;
    run.delivered(ALL).await?;
    let most = run.watch.most_out();
    // On a machine that stands still for a while loans end here before the broker sees it.
    let counters = run.router.counters().all();
    let lost: u64 = counters.iter().map(|(_, of)| of.lost_leases.get()).sum();
    run.finish().await?;
    ensure(most as u64 <= WINDOW as u64 + lost, || {
        format!("{most} messages were out, {lost} leases lost; the window is {WINDOW}")
    })?;
    Ok(format!("{ALL} messages, at most {most} of {WINDOW} out"))
}

/// Larger than what a router may hold of them, many times over.
const LARGE: usize = 64 << 10;
const LARGE_KEYS: usize = 50;
const LARGE_EACH: u64 = 40;
/// A window of them, copies on their way, and what an allocator keeps: well below all of them.
const GROWTH: u64 = 110 << 20;

pub(super) async fn memory_is_bounded(rig: Rig) -> Result<Summary, End> {
    if rig.subject.in_memory() {
        return Err(End::Excluded(
            "its broker is in the router's own memory".to_owned(),
        ));
    }
    let bench = rig.bench().await?;
    if bench.queue.child().await.is_none() || !cfg!(target_os = "linux") {
        return Err(End::Excluded(
            "there is no process of its own for a router that could be weighed".to_owned(),
        ));
    }
    for n in 0..LARGE_EACH {
        for batch in keys(LARGE_KEYS).chunks(10) {
            let large = |key: &String| Published {
                body: large_envelope(&label(key, n), LARGE),
                ..bench.message(key, n)
            };
            bench.put(batch.iter().map(large).collect()).await?;
        }
    }
    let all = LARGE_KEYS as u64 * LARGE_EACH;
    let mut children = Children::new(&bench).await?;
    let grown = children.grown_by(all).await?;
    children.finish(all).await?;
    bench.empty().await?;
    ensure(grown < GROWTH, || {
        format!(
            "{} MiB of messages waited, and the router grew by {} MiB",
            (all * LARGE as u64) >> 20,
            grown >> 20
        )
    })?;
    Ok(format!(
        "{} MiB waited, the router grew by {} MiB",
        (all * LARGE as u64) >> 20,
        grown >> 20
    ))
}
