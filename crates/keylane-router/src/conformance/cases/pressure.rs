//! More than fits: what cannot be held is not received.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::conformance::rig::{Rig, Setup, ensure, keys};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::Answer;

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
