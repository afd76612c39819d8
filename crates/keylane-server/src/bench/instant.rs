//! A target that answers at once: what the router itself costs, beside bare clients that make the
//! same calls in turn with it; and whether that stays so with long queues and over time.

use std::path::Path;
use std::time::Duration;

use keylane_router::Router;

use super::goals::{Goal, Report, listed, median};
use super::rig::{Mark, Pace, Rig, until_delivered};
use super::target::{Setting, Target};
use super::{Result, RouterArgs, floor};

/// Attempts at a time, of the router and of the bare clients.
const CONCURRENCY: usize = 64;
/// Messages out at once: the default of a source.
const WINDOW: usize = 1000;
const ROUNDS: usize = 5;
/// Of the comparison with bare clients: many and short, because the sides take turns, and what else
/// the machine does should meet them all alike. With five of 1.5 s, the median of their ratios
/// differed by a fifth from run to run on a machine whose speed changes every few seconds.
const TURNS: usize = 15;
const TURN: Duration = Duration::from_millis(700);
const ROUND: Duration = Duration::from_millis(1500);
/// Not counted at the beginning of a run: connections are opened, the first claim is made.
const WARM_UP: Duration = Duration::from_millis(300);
const STOP: Duration = Duration::from_secs(10);

/// One number of keys: the router and the bare clients in turn.
pub(super) async fn measure(
    target: &mut Target,
    data: &Path,
    args: &RouterArgs,
    report: &mut Report,
) -> Result<()> {
    let all = [(100, "100"), (10_000, "10 k"), (1_000_000, "1 M")];
    let chosen = |keys: &usize| args.keys.is_empty() || args.keys.contains(keys);
    for (keys, name) in all.into_iter().filter(|(keys, _)| chosen(keys)) {
        let name = format!("instant, {name} keys");
        let rounds = if args.full { 2 * TURNS } else { TURNS };
        // Enough for the fastest machine; a round ends early when nothing is left.
        let messages = (rounds * 60_000).max(keys);
        let mut rig = Rig::new(data, &target.url, keys).await?;
        rig.fill(messages).await?;
        begin(target, keys)?;
        let mut runs = Runs::default();
        for _ in 0..rounds {
            runs.client
                .push(floor::client(&target.url, CONCURRENCY, TURN).await?);
            let router = rig.router(CONCURRENCY, WINDOW).await?;
            runs.router.push(run(&rig, router, TURN).await?);
            runs.raw
                .push(floor::connections(&target.url, CONCURRENCY, TURN).await?);
        }
        runs.tell(&name, report);
        report.order(&name, target.seen()?.violations);
        rig.close().await;
    }
    Ok(())
}

/// The runs of the router and of those it is compared with, round by round.
#[derive(Default)]
struct Runs {
    router: Vec<Pace>,
    client: Vec<Pace>,
    raw: Vec<Pace>,
}

impl Runs {
    fn tell(&self, name: &str, report: &mut Report) {
        for (who, runs) in [
            ("router", &self.router),
            ("hyper-util client", &self.client),
            ("hyper connections", &self.raw),
        ] {
            let rates: Vec<f64> = runs.iter().map(|run| run.per_second).collect();
            let cpu: Vec<f64> = runs.iter().map(|run| run.cpu_micros).collect();
            let note = format!(
                "{:.1} µs CPU a message; runs {}",
                median(&cpu),
                listed(&rates)
            );
            report.value(&format!("{name}: {who}"), median(&rates), "/s", note);
        }
        let pairs = self.router.iter().zip(&self.client);
        let ratios: Vec<f64> = pairs
            .map(|(router, client)| router.per_second / client.per_second)
            .collect();
        let note = format!("{CONCURRENCY} at a time; runs {}", listed(&ratios));
        let row = format!("{name}: of the client's rate");
        report.goal(&row, median(&ratios), "", Goal::AtLeast(0.6), note);
        let pairs = self.client.iter().zip(&self.router);
        let cpu: Vec<f64> = pairs
            .map(|(client, router)| client.cpu_micros / router.cpu_micros)
            .collect();
        let note = format!("its CPU a message to the router's; runs {}", listed(&cpu));
        let row = format!("{name}: of the client's CPU");
        report.value(&row, median(&cpu), "", note);
    }
}

/// The router for a while, or until the queue is empty.
pub(super) async fn run(rig: &Rig, router: Router, time: Duration) -> Result<Pace> {
    tokio::time::sleep(WARM_UP).await;
    let begun = Mark::of(&router);
    let left = rig.db.queues().iter().map(|queue| queue.depth).sum::<u64>();
    let last = begun.delivered_and(left.saturating_sub(2 * WINDOW as u64));
    let ended = until_delivered(&router, last, time).await;
    router.stop(STOP).await;
    Ok(begun.until(&ended))
}

/// Queues of 10 k, 100 k and 1 M messages, then the rate over time.
pub(super) async fn measure_flat(
    target: &mut Target,
    data: &Path,
    full: bool,
    report: &mut Report,
) -> Result<()> {
    const KEYS: usize = 10_000;
    let mut ratios = Vec::new();
    for (backlog, name) in [(10_000, "10 k"), (100_000, "100 k"), (1_000_000, "1 M")] {
        let mut rig = Rig::new(data, &target.url, KEYS).await?;
        begin(target, KEYS)?;
        let (mut runs, mut cpus) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let missing = backlog - rig.db.queues()[0].depth as usize;
            rig.fill(missing).await?;
            let client = floor::client(&target.url, CONCURRENCY, ROUND / 2).await?;
            let router = drain(&rig, backlog as u64, ROUND).await?;
            runs.push(router.per_second / client.per_second);
            cpus.push(router.cpu_micros);
        }
        let note = format!(
            "of the client's rate; runs {}; µs CPU a message {}",
            listed(&runs),
            listed(&cpus)
        );
        let name = format!("backlog {name}");
        report.value(&name, median(&runs), "", note);
        report.order(&name, target.seen()?.violations);
        ratios.push(median(&runs));
        rig.close().await;
    }
    let flat = ratios[2] / ratios[0];
    let note = format!("100 k: {:.2}", ratios[1] / ratios[0]);
    report.goal(
        "backlog 1 M: of the rate with 10 k",
        flat,
        "",
        Goal::AtLeast(0.8),
        note,
    );
    over_time(target, data, full, report).await
}

/// From the first deliveries on, until the queue is nearly empty or the time is over. Without a
/// warm-up: a short queue would be empty after it.
async fn drain(rig: &Rig, backlog: u64, time: Duration) -> Result<Pace> {
    let router = rig.router(CONCURRENCY, WINDOW).await?;
    let begun = until_delivered(&router, backlog / 20, STOP).await;
    let ended = until_delivered(&router, backlog - backlog / 20, time).await;
    router.stop(STOP).await;
    Ok(begun.until(&ended))
}

async fn over_time(
    target: &mut Target,
    data: &Path,
    full: bool,
    report: &mut Report,
) -> Result<()> {
    const KEYS: usize = 10_000;
    let slice = Duration::from_secs(if full { 10 } else { 3 });
    let mut rig = Rig::new(data, &target.url, KEYS).await?;
    begin(target, KEYS)?;
    rig.fill(if full { 5_000_000 } else { 1_500_000 }).await?;
    let router = rig.router(CONCURRENCY, WINDOW).await?;
    tokio::time::sleep(WARM_UP).await;
    let mut marks = vec![Mark::of(&router)];
    for _ in 0..6 {
        tokio::time::sleep(slice).await;
        marks.push(Mark::of(&router));
    }
    router.stop(STOP).await;
    let paces: Vec<Pace> = marks.windows(2).map(|two| two[0].until(&two[1])).collect();
    let rates: Vec<f64> = paces.iter().map(|pace| pace.per_second).collect();
    let cpu: Vec<f64> = paces.iter().map(|pace| pace.cpu_micros).collect();
    let name = format!("over {} s", 6 * slice.as_secs());
    let note = format!(
        "µs CPU a message {}; rates {}",
        listed(&cpu),
        listed(&rates)
    );
    let last = rates[5] / rates[0];
    let least = Goal::AtLeast(0.8);
    report.goal(
        &format!("{name}: last sixth of the first"),
        last,
        "",
        least,
        note,
    );
    report.order(&name, target.seen()?.violations);
    rig.close().await;
    Ok(())
}

fn begin(target: &mut Target, keys: usize) -> Result<()> {
    target.begin(Setting {
        keys,
        ..Setting::default()
    })
}
