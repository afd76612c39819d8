//! The defaults and policies of the Java library `group-concurrency`, for those who come from it.
//! What it calls a group is a key here.
//!
//! Three things it does otherwise are options: limits are resolved once for each key
//! (`resolve_once`), caller-runs means at once and outside all limits (`Policy::RunUnlimited`), and
//! shutting a group down stops what runs (`Mode::Now`). There as here, a rejection handler wins over
//! the policy.
//!
//! `cargo run -p keylane --example as-group-concurrency`

use std::sync::Arc;
use std::time::Duration;

use keylane::{Decision, Executor, Mode, Policy, Reason, Status, TaskResult, Why};
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> Result<(), keylane::BuildErrors> {
    policies().await?;
    a_handler().await?;
    shutting_down_a_group().await
}

/// One runs, one waits, the third finds no room: what becomes of it is the policy's word.
async fn policies() -> Result<(), keylane::BuildErrors> {
    for policy in [Policy::Abort, Policy::Discard, Policy::RunUnlimited] {
        let executor = original().on_reject(policy).build()?;
        let [first, second, third] = three(&executor).await;
        println!(
            "{policy:?}: {:?}, {:?}, {:?}",
            first.status, second.status, third.status
        );
        assert!(first.is_done() && second.is_done());
        match policy {
            Policy::Abort => assert!(matches!(third.status, Status::Failed(_))),
            Policy::Discard => {
                let full = Reason::KeyFull { limit: 1 };
                assert!(matches!(third.status, Status::Rejected(reason) if reason == full));
            }
            _ => assert!(third.is_done(), "it ran beside the others, at once"),
        }
    }
    Ok(())
}

/// A handler's value is the result of the task it was asked about.
async fn a_handler() -> Result<(), keylane::BuildErrors> {
    let executor = original()
        .on_reject(Policy::Abort)
        .reject_with(|_| Decision::Value(Box::new("from the handler")))
        .build()?;
    let [_, _, third] = three(&executor).await;
    println!("handler: {:?}", third.status);
    assert_eq!(third.ok(), Some("from the handler"));
    Ok(())
}

/// What runs is stopped, what waits is cancelled, and the group can be used again.
async fn shutting_down_a_group() -> Result<(), keylane::BuildErrors> {
    let executor = original().build()?;
    let runs = executor.submit("g", std::future::pending::<&str>());
    let waits = executor.submit("g", async { "never" });
    executor.shutdown_key(&"g", Mode::Now);
    for result in [runs.await, waits.await] {
        println!("shut down: {:?}", result.status);
        assert!(matches!(
            result.status,
            Status::Cancelled(Why::KeyShutDown | Why::ShutDown)
        ));
    }
    assert_eq!(
        executor.submit("g", async { "again" }).await.ok(),
        Some("again")
    );
    let left = executor.shutdown(Duration::from_secs(1)).await;
    assert!(left.is_nothing());
    Ok(())
}

/// Concurrency 1 by default and nothing else limited, as in the original; a queue of 1 per group
/// so that there is something to refuse.
fn original() -> keylane::Builder<&'static str> {
    Executor::builder()
        .resolve_once(true)
        .queue_limit_per_key(1)
}

/// Three tasks of one group; the first two end only after the third was submitted.
async fn three(executor: &Executor<&'static str>) -> [TaskResult<&'static str, &'static str>; 3] {
    let go = Arc::new(Notify::new());
    let gone = go.clone();
    let first = executor.submit("g", async move {
        gone.notified().await;
        "first"
    });
    let second = executor.submit("g", async { "second" });
    let third = executor.submit("g", async { "third" });
    let third = third.await;
    go.notify_one();
    [first.await, second.await, third]
}
