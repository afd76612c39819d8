//! What waits costs memory, what is idle costs nothing. Each figure is taken in a process of its
//! own, where nothing was allocated before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane::Executor;
use tokio::sync::{Notify, Semaphore};

use crate::report::{Report, print_table};
use crate::usage::{alone, cpu_of_others, resident, runtime};

const MILLION: usize = 1_000_000;

pub(crate) fn run(report: &mut Report) {
    let mb = |bytes: f64| bytes / 1e6;
    let lane = in_own_process("waiting-lanes");
    report.goal(
        "memory of a waiting lane with one task, its 26-byte key included",
        "≤ 256 B",
        format!("{lane:.0} B"),
        lane <= 256.0,
    );
    let queued = in_own_process("one-lane");
    report.goal(
        "1 M tasks queued in one lane",
        "≤ 200 MB",
        format!("{:.0} MB", mb(queued)),
        mb(queued) <= 200.0,
    );
    let kept = in_own_process("ten-million-keys");
    report.goal(
        "RSS growth after 10 M keys, ≤ 1000 live at once",
        "≤ 5 MB",
        format!("{:.1} MB", mb(kept)),
        mb(kept) <= 5.0,
    );
    let drained = in_own_process("drained-lanes");
    let idle = in_own_process("idle");
    report.goal(
        "CPU of an idle executor over 2 s",
        "0",
        format!("{idle:.0} ns"),
        idle == 0.0,
    );
    println!("\n### Memory and idle CPU\n");
    let row = [
        format!("{lane:.0}"),
        format!("{:.0}", mb(queued)),
        format!("{:.1}", mb(kept)),
        format!("{:.1}", mb(drained)),
        format!("{idle:.0}"),
    ];
    let head = [
        "B per waiting lane",
        "MB for 1 M in one lane",
        "MB more after 10 M keys",
        "MB more after 1 M lanes drained",
        "idle ns in 2 s",
    ];
    print_table(&head, &[row]);
}

fn in_own_process(part: &str) -> f64 {
    let text = alone([part]);
    let value = text.trim().parse();
    value.unwrap_or_else(|_| panic!("{part} answered {text:?}"))
}

/// The child's part: prints one number.
pub(crate) fn measure_alone(part: &str) {
    let value = match part {
        "waiting-lanes" => waiting(key) / MILLION as f64,
        "one-lane" => waiting(|_| key(0)),
        "drained-lanes" => drained(),
        "ten-million-keys" => many_keys(),
        "idle" => idle(),
        _ => panic!("no such part: {part}"),
    };
    println!("{value}");
}

fn key(n: usize) -> Arc<str> {
    Arc::from(format!("customer-{n:017}"))
}

/// An executor whose only permit is taken until `Notify` is told.
fn blocked() -> (Executor<Arc<str>>, Arc<Notify>) {
    let executor = Executor::builder().concurrency(1).build().expect("fine");
    let go = Arc::new(Notify::new());
    let gone = go.clone();
    let blocker = async move { gone.notified().await };
    executor.post("the blocker".into(), blocker).expect("room");
    (executor, go)
}

async fn post_a_million(executor: &Executor<Arc<str>>, key: fn(usize) -> Arc<str>) {
    static RAN: AtomicU64 = AtomicU64::new(0);
    for n in 0..MILLION {
        let task = async {
            RAN.fetch_add(1, Ordering::Relaxed);
        };
        executor.post(key(n), task).expect("room");
        if n.is_multiple_of(64) {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(executor.stats().queued, MILLION);
}

/// Bytes more with a million tasks waiting.
fn waiting(key: fn(usize) -> Arc<str>) -> f64 {
    runtime().block_on(async {
        let measured = tokio::spawn(async move {
            let (executor, _go) = blocked();
            let before = resident();
            post_a_million(&executor, key).await;
            resident() as f64 - before as f64
        });
        measured.await.expect("no panic")
    })
}

/// Bytes more after a million lanes have come and gone.
fn drained() -> f64 {
    runtime().block_on(async {
        let measured = tokio::spawn(async {
            let (executor, go) = blocked();
            let before = resident();
            post_a_million(&executor, key).await;
            go.notify_one();
            executor.all_idle().await;
            resident() as f64 - before as f64
        });
        measured.await.expect("no panic")
    })
}

fn many_keys() -> f64 {
    const LIVE: u32 = 1_000;
    static ROOM: Semaphore = Semaphore::const_new(LIVE as usize);
    runtime().block_on(async {
        let measured = tokio::spawn(async {
            let executor = Executor::builder().build().expect("fine");
            let before = resident();
            for n in 0..10 * MILLION {
                ROOM.acquire().await.expect("never closed").forget();
                let task = async { ROOM.add_permits(1) };
                executor.post(key(n), task).expect("room");
            }
            executor.all_idle().await;
            resident() as f64 - before as f64
        });
        measured.await.expect("no panic")
    })
}

/// Nanoseconds of CPU in two seconds, of all threads of the runtime.
fn idle() -> f64 {
    let runtime = runtime();
    let executor = runtime.block_on(async {
        let executor = Executor::builder().build().expect("fine");
        for n in 0..1_000 {
            executor.post(n % 10, async {}).expect("room");
        }
        executor.all_idle().await;
        executor
    });
    // Until the workers have gone to sleep.
    std::thread::sleep(Duration::from_millis(200));
    let before = cpu_of_others();
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_of_others() - before;
    drop(executor);
    used.as_nanos() as f64
}
