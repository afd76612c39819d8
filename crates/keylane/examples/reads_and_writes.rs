//! Two keys as two classes of work: at most 2 writes and 8 reads at once, whatever is asked for.
//!
//! `cargo run -p keylane --example reads_and_writes`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keylane::{Executor, Status, TaskResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    Read,
    Write,
}

#[tokio::main]
async fn main() -> Result<(), keylane::BuildErrors> {
    let executor = Executor::<Class>::builder()
        .lane_concurrency_for([(Class::Write, 2), (Class::Read, 8)])
        .build()?;

    let running: Arc<[AtomicUsize; 2]> = Arc::default();
    let tasks = (0..60).map(|n| {
        let class = if n % 3 == 0 {
            Class::Write
        } else {
            Class::Read
        };
        (class, call(class, running.clone()))
    });
    let results = executor.run_all(tasks).await;

    for (class, limit) in [(Class::Write, 2), (Class::Read, 8)] {
        let of_class = results.iter().filter(|result| result.key == Some(class));
        let most = of_class.filter_map(at_start).max();
        println!("{class:?}: {most:?} at once");
        assert_eq!(most, Some(limit));
    }
    Ok(())
}

fn at_start(result: &TaskResult<Class, usize>) -> Option<usize> {
    match result.status {
        Status::Done(running) => Some(running),
        _ => None,
    }
}

/// Answers how many of its class ran when it started, itself included.
async fn call(class: Class, running: Arc<[AtomicUsize; 2]>) -> usize {
    let now = running[class as usize].fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(Duration::from_millis(10)).await;
    running[class as usize].fetch_sub(1, Ordering::SeqCst);
    now
}
