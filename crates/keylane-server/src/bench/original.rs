//! Batches through a target that takes 100 ms, ten at a time: what limits is the number of groups,
//! or the number of attempts. And a thousand attempts at once.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Result;
use super::goals::{Goal, Report};
use super::rig::{Mark, Rig, until_delivered};
use super::target::{Setting, Target};

const DELAY: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

/// Groups, messages of each, seconds.
const TABLE: [(usize, usize, f64); 5] = [
    (1, 100, 10.0),
    (5, 20, 2.0),
    (10, 10, 1.0),
    (100, 1, 1.0),
    (15, 10, 1.5),
];

/// The table, then the thousand.
pub(super) async fn measure(target: &mut Target, data: &Path, report: &mut Report) -> Result<()> {
    for (groups, each, seconds) in TABLE {
        let name = format!("{groups} groups × {each}, 10 at a time");
        let mut rig = Rig::new(data, &target.url, groups).await?;
        begin(target, groups)?;
        let router = rig.router(10, 1000).await?;
        let keys = (0..each).flat_map(|_| 0..groups).collect();
        rig.put(keys).await?;
        // Published: they are on disk, and the first are on their way.
        let begun = Instant::now();
        let ended = until_delivered(&router, (groups * each) as u64, LONGEST).await;
        let took = ended.since(begun).as_secs_f64();
        let goal = Goal::Within {
            of: seconds,
            part: 0.04,
        };
        let late = format!("{:+.1} %", (took / seconds - 1.0) * 100.0);
        report.goal(&name, took, "s", goal, late);
        router.stop(LONGEST).await;
        report.order(&name, target.seen()?.violations);
        rig.close().await;
    }
    thousand(target, data, report).await
}

async fn thousand(target: &mut Target, data: &Path, report: &mut Report) -> Result<()> {
    const KEYS: usize = 20_000;
    let name = "1000 at a time, 100 ms";
    let mut rig = Rig::new(data, &target.url, KEYS).await?;
    begin(target, KEYS)?;
    rig.fill(80_000).await?;
    let router = rig.router(1000, 5000).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Mark::of(&router);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let pace = begun.until(&Mark::of(&router));
    let note = format!("{:.1} µs CPU a message", pace.cpu_micros);
    report.goal(name, pace.per_second, "/s", Goal::AtLeast(9000.0), note);
    router.stop(LONGEST).await;
    report.order(name, target.seen()?.violations);
    rig.close().await;
    Ok(())
}

fn begin(target: &mut Target, keys: usize) -> Result<()> {
    target.begin(Setting {
        delay: DELAY,
        keys,
        timed: false,
    })
}
