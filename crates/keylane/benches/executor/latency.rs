//! From submit to start on an idle executor, from a task of the runtime.

use std::time::{Duration, Instant};

use keylane::Executor;

use crate::report::{Report, print_table};
use crate::usage::runtime;

const SAMPLES: usize = 5_000;

pub(crate) fn run(report: &mut Report) {
    let runtime = runtime();
    let [p50, p99, most] = runtime.block_on(async {
        let measured = tokio::spawn(async {
            let executor = Executor::builder().build().expect("fine");
            let mut samples = Vec::with_capacity(SAMPLES);
            for _ in 0..SAMPLES {
                // Long enough for the workers to have gone to sleep.
                tokio::time::sleep(Duration::from_millis(1)).await;
                let submitted = Instant::now();
                let started = executor.submit(1, async move { submitted.elapsed() });
                samples.push(started.await.ok().expect("it runs"));
            }
            samples.sort_unstable();
            [SAMPLES / 2, SAMPLES * 99 / 100, SAMPLES - 1]
                .map(|at| samples[at].as_nanos() as f64 / 1e3)
        });
        measured.await.expect("no panic")
    });
    println!("\n### Submit → start on an idle executor, {SAMPLES} times\n");
    let row = [p50, p99, most].map(|micros| format!("{micros:.1}"));
    print_table(&["p50 µs", "p99 µs", "most µs"], &[row]);
    report.goal(
        "submit → start, idle, from a task",
        "p50 ≤ 10 µs, p99 ≤ 100 µs",
        format!("{p50:.1} µs, {p99:.1} µs"),
        p50 <= 10.0 && p99 <= 100.0,
    );
}
