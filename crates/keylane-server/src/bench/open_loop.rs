//! A target that takes 100 ms, and messages that come at random times whatever happens to those
//! before them: how much later they arrive than in a perfect queue per key.

use std::path::Path;
use std::time::Duration;

use keylane_router::history;

use super::Result;
use super::goals::{Goal, Report};
use super::rig::{Random, Rig, message, publish};
use super::target::{Arrival, Setting, Target};

const KEYS: usize = 100;
/// Of all keys together, per second.
const RATE: f64 = 200.0;
/// Of key 0, per second: it is busy 70 % of the time.
const HOTTEST: f64 = 7.0;
const DELAY: Duration = Duration::from_millis(100);
/// More than can ever run: the keys are what limits.
const CONCURRENCY: usize = 100;

/// One message: when it was published, and when that was answered.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    key: usize,
    number: u64,
    called: u64,
    stored: u64,
}

/// Publishes at random times for a while and compares.
pub(super) async fn measure(
    target: &mut Target,
    data: &Path,
    full: bool,
    report: &mut Report,
) -> Result<()> {
    let seconds = if full { 60.0 } else { 20.0 };
    let rig = Rig::new(data, &target.url, KEYS).await?;
    target.begin(Setting {
        delay: DELAY,
        keys: KEYS,
        timed: true,
    })?;
    let router = rig.router(CONCURRENCY, 1000).await?;
    let schedule = schedule(seconds);
    let (db, url) = (rig.db.clone(), target.url.clone());
    // A thread of its own, so that a busy router does not slow those who publish.
    let sent = tokio::task::spawn_blocking(move || publish_all(&db, &url, &schedule)).await??;
    while rig.db.queues()[0].depth > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    router.stop(Duration::from_secs(1)).await;
    let seen = target.seen()?;
    tell(&sent, &seen.arrivals, report);
    report.order("open loop", seen.violations);
    rig.close().await;
    Ok(())
}

/// When which key gets a message, in seconds from the beginning.
fn schedule(seconds: f64) -> Vec<(f64, usize)> {
    let mut random = Random(7);
    let mut all = Vec::new();
    for key in 0..KEYS {
        let rate = match key {
            0 => HOTTEST,
            _ => (RATE - HOTTEST) / (KEYS - 1) as f64,
        };
        let mut at = random.pause(rate);
        while at < seconds {
            all.push((at, key));
            at += random.pause(rate);
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn publish_all(
    db: &keylane_router::embedded::Db,
    url: &str,
    schedule: &[(f64, usize)],
) -> Result<Vec<Sent>> {
    // One thread: what is spawned first submits first.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let begun = tokio::time::Instant::now();
        let mut numbers = [0; KEYS];
        let mut tasks = Vec::new();
        for (at, key) in schedule {
            tokio::time::sleep_until(begun + Duration::from_secs_f64(*at)).await;
            numbers[*key] += 1;
            let (db, number, key) = (db.clone(), numbers[*key], *key);
            let batch = vec![message(url, key, number)];
            tasks.push(tokio::spawn(async move {
                let called = history::now();
                publish(&db, batch).await?;
                let stored = history::now();
                Result::Ok(Sent {
                    key,
                    number,
                    called,
                    stored,
                })
            }));
        }
        let mut sent = Vec::new();
        for task in tasks {
            sent.push(task.await??);
        }
        Ok(sent)
    })
}

fn tell(sent: &[Sent], arrivals: &[Arrival], report: &mut Report) {
    let from_call = over_ideal(sent, arrivals, |sent| sent.called);
    let from_answer = over_ideal(sent, arrivals, |sent| sent.stored);
    let mut stores: Vec<f64> = sent
        .iter()
        .map(|sent| millis(sent.called, sent.stored))
        .collect();
    stores.sort_by(f64::total_cmp);
    let mut service: Vec<f64> = arrivals
        .iter()
        .map(|arrival| millis(arrival.came, arrival.answered))
        .collect();
    service.sort_by(f64::total_cmp);
    let note = |times: &[f64]| {
        let (count, last) = (times.len(), times.last().copied().unwrap_or_default());
        format!("{count} messages, the worst {last:.1} ms")
    };
    report.goal(
        "open loop: p50 over ideal, from publish",
        part(&from_call, 0.5),
        "ms",
        Goal::AtMost(1.0),
        note(&from_call),
    );
    report.goal(
        "open loop: p99 over ideal, from publish",
        part(&from_call, 0.99),
        "ms",
        Goal::AtMost(5.0),
        note(&from_call),
    );
    for (name, times) in [
        ("over ideal, from the publish's answer", &from_answer),
        ("the publish itself", &stores),
        ("the target's own time", &service),
    ] {
        let text = format!("p99 {:.2} ms; {}", part(times, 0.99), note(times));
        report.value(&format!("open loop: {name}"), part(times, 0.5), "ms", text);
    }
}

/// How much later than in a perfect queue each message arrived, in milliseconds, sorted. In a
/// perfect queue a message arrives when it is sent, or when the one before it was answered; the
/// target takes the time it really took.
fn over_ideal(sent: &[Sent], arrivals: &[Arrival], from: impl Fn(&Sent) -> u64) -> Vec<f64> {
    let mut by_key: Vec<Vec<&Arrival>> = vec![Vec::new(); KEYS];
    for arrival in arrivals {
        by_key[arrival.key].push(arrival);
    }
    let mut free = [0; KEYS];
    let mut late = Vec::new();
    for sent in sent {
        let Some(arrival) = by_key[sent.key].get(sent.number as usize - 1) else {
            continue;
        };
        let ideal = free[sent.key].max(from(sent));
        free[sent.key] = ideal + (arrival.answered - arrival.came);
        late.push(millis(ideal, arrival.came));
    }
    late.sort_by(f64::total_cmp);
    late
}

fn millis(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e6
}

fn part(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part) as usize;
    let at = at.min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_waits_for_the_one_before_it_even_in_a_perfect_queue() {
        let sent = |number, called| Sent {
            key: 0,
            number,
            called,
            stored: called,
        };
        let arrival = |number, came, answered| Arrival {
            key: 0,
            number,
            came,
            answered,
        };
        let ms = 1_000_000;
        let sent = [sent(1, 0), sent(2, 10 * ms)];
        let arrivals = [arrival(1, ms, 101 * ms), arrival(2, 103 * ms, 203 * ms)];
        let late = over_ideal(&sent, &arrivals, |sent| sent.called);
        assert_eq!(late, [1.0, 3.0]);
    }

    #[test]
    fn the_schedule_has_the_rates_it_should() {
        let all = schedule(100.0);
        let hottest = all.iter().filter(|(_, key)| *key == 0).count();
        assert!((all.len() as f64 - 20_000.0).abs() < 600.0, "{}", all.len());
        assert!((hottest as f64 - 700.0).abs() < 120.0, "{hottest}");
    }
}
