//! A router in a process of its own, to be killed.

use super::subject::Queue;

/// Runs a router on the queue until it is killed.
pub async fn run_child<Q: Queue>(queue: Q) {
    drop(queue);
}
