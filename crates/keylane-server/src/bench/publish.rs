//! Publishing alone, without HTTP: answered when it is on disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Result;
use super::goals::{Goal, Report, listed, median};
use super::rig::{Rig, message, publish};

const TIME: Duration = Duration::from_secs(2);
const RUNS: usize = 3;
const KEYS: usize = 10_000;
/// Only in the bodies: nobody calls it.
const URL: &str = "http://127.0.0.1:9/hook";

/// Batches and single messages in turn.
pub(super) async fn measure(data: &Path, report: &mut Report) -> Result<()> {
    let (mut batches, mut alone, mut single) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        batches.push(rate(data, 4, 100).await?);
        alone.push(rate(data, 1, 100).await?);
        single.push(rate(data, 64, 1).await?);
    }
    report.value("sync of 4 kB", sync(data)?, "ms", String::new());
    let mut tell = |name: &str, runs: &[f64], least: f64| {
        let note = format!("runs {}", listed(runs));
        let goal = Goal::AtLeast(least);
        report.goal(name, median(runs), "/s", goal, note);
    };
    tell(
        "publish in process, batches of 100, 4 publishers",
        &batches,
        20_000.0,
    );
    tell(
        "publish in process, one by one, 64 publishers",
        &single,
        5_000.0,
    );
    let note = format!("runs {}", listed(&alone));
    let name = "publish in process, batches of 100, 1 publisher";
    report.value(name, median(&alone), "/s", note);
    Ok(())
}

/// Messages per second that were answered for.
async fn rate(data: &Path, publishers: usize, batch: usize) -> Result<f64> {
    let rig = Rig::new(data, URL, KEYS).await?;
    let published = Arc::new(AtomicU64::new(0));
    let numbers = Arc::new(AtomicU64::new(1));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..publishers {
        let (db, published, numbers) = (rig.db.clone(), published.clone(), numbers.clone());
        tasks.spawn(async move {
            while begun.elapsed() < TIME {
                let first = numbers.fetch_add(batch as u64, Ordering::Relaxed);
                let messages = (first..first + batch as u64)
                    .map(|number| message(URL, number as usize % KEYS, number))
                    .collect();
                publish(&db, messages).await?;
                published.fetch_add(batch as u64, Ordering::Relaxed);
            }
            Result::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let rate = published.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    rig.close().await;
    Ok(rate)
}

/// Milliseconds of one write with its sync: the floor under every commit.
fn sync(data: &Path) -> Result<f64> {
    const TIMES: u32 = 100;
    let mut file = tempfile::tempfile_in(data)?;
    let begun = Instant::now();
    for _ in 0..TIMES {
        std::io::Write::write_all(&mut file, &[0; 4096])?;
        file.sync_data()?;
    }
    Ok((begun.elapsed() / TIMES).as_secs_f64() * 1e3)
}
