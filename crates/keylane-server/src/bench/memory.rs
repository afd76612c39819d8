//! What many waiting keys take in memory, and what a router takes of a processor with nothing to do,
//! or with nothing that it may do.

use std::path::Path;
use std::time::Duration;

use super::Result;
use super::goals::{Goal, Report};
use super::machine;
use super::rig::Rig;
use super::target::{Setting, Target};

const KEYS: usize = 100_000;
const IDLE: Duration = Duration::from_secs(5);

/// A message of each of 100 k keys in the lanes, behind a target that never answers; then none.
pub(super) async fn measure(
    target: &mut Target,
    data: &Path,
    rss_at_start: u64,
    report: &mut Report,
) -> Result<()> {
    idle(target, data, report).await?;
    let mut rig = Rig::new(data, &target.url, KEYS).await?;
    target.begin(Setting {
        delay: Duration::from_secs(3600),
        keys: KEYS,
        timed: false,
    })?;
    rig.put((0..KEYS).collect()).await?;
    let filled = machine::rss();
    let router = rig.router(64, 2 * KEYS).await?;
    let held = || -> usize {
        let pools = router.pools();
        pools.iter().map(|pool| pool.queued + pool.in_flight).sum()
    };
    while held() < KEYS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let grown = mebibytes(machine::rss().saturating_sub(rss_at_start));
    let note = format!(
        "above {:.1} MB at the start; {:.1} of it after publishing",
        mebibytes(rss_at_start),
        mebibytes(filled.saturating_sub(rss_at_start))
    );
    report.goal(
        "100 k keys in memory",
        grown,
        "MB",
        Goal::AtMost(150.0),
        note,
    );
    router.cut();
    router.stop(Duration::ZERO).await;
    report.order("100 k keys in memory", target.seen()?.violations);
    rig.close().await;
    // Last, because what it leaves in the allocator's hands would count above.
    dead_origin(data, report).await
}

/// A message of each of 100 k keys waits for an origin that does not answer.
async fn dead_origin(data: &Path, report: &mut Report) -> Result<()> {
    // A port that was free a moment ago: nobody answers there.
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let url = format!("http://{free}/");
    let mut rig = Rig::new(data, &url, KEYS).await?;
    rig.put((0..KEYS).collect()).await?;
    let router = rig.router(64, 2 * KEYS).await?;
    while router.pools().iter().map(|pool| pool.queued).sum::<usize>() < KEYS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = machine::cpu();
    tokio::time::sleep(IDLE).await;
    let part = (machine::cpu() - before).as_secs_f64() / IDLE.as_secs_f64();
    let note = format!("over {} s, all lanes held", IDLE.as_secs());
    let most = Goal::AtMost(0.5);
    report.goal(
        "100 k lanes of a dead origin",
        part * 100.0,
        "% CPU",
        most,
        note,
    );
    router.cut();
    router.stop(Duration::ZERO).await;
    rig.close().await;
    Ok(())
}

async fn idle(target: &mut Target, data: &Path, report: &mut Report) -> Result<()> {
    let rig = Rig::new(data, &target.url, 1).await?;
    let router = rig.router(64, 1000).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = machine::cpu();
    tokio::time::sleep(IDLE).await;
    let part = (machine::cpu() - before).as_secs_f64() / IDLE.as_secs_f64();
    let note = format!("over {} s", IDLE.as_secs());
    report.goal("idle", part * 100.0, "% CPU", Goal::AtMost(0.1), note);
    router.stop(Duration::from_secs(1)).await;
    rig.close().await;
    Ok(())
}
