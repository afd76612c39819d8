//! From a thread pool with a lock or a queue per key to lanes: blocking work stays blocking.
//!
//! Before:
//!
//! ```text
//! pool.execute(move || { let _turn = locks.lock(account); book(account, amount) });
//! ```
//!
//! A thread of the pool blocks for every task that waits for its turn, and who is next is up to
//! the lock. Now a waiting task is an entry in its lane, and the next is the one that came next.
//!
//! `cargo run -p keylane --example from_a_thread_pool`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane::{Executor, blocking};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The program need not be async: the executor runs on a runtime of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()?;
    let executor = Executor::<u32>::builder()
        .runtime(runtime.handle().clone())
        // The size the pool had: how many threads block at once.
        .concurrency(8)
        .build()?;

    let booked = Arc::new(Mutex::new(Vec::new()));
    let begun = Instant::now();
    let handles: Vec<_> = (0..40)
        .map(|n| {
            let (account, booked) = (n % 8, booked.clone());
            executor.submit(account, blocking(move || book(account, n, &booked)))
        })
        .collect();
    // As `Future.get()`: blocks this thread, which is none of the runtime's.
    let total: u32 = handles
        .into_iter()
        .filter_map(|handle| handle.join().ok())
        .sum();
    println!("booked {total} in {:?}", begun.elapsed());
    assert_eq!(total, (0..40).sum());

    let booked = booked.lock().unwrap();
    for account in 0..8 {
        let of_account = booked
            .iter()
            .filter(|(a, _)| *a == account)
            .map(|(_, n)| *n);
        assert!(of_account.is_sorted(), "account {account} is out of order");
    }
    let left = runtime.block_on(executor.shutdown(Duration::from_secs(1)));
    assert!(left.is_nothing());
    Ok(())
}

/// Something that blocks its thread, as a database driver does.
fn book(account: u32, amount: u32, booked: &Mutex<Vec<(u32, u32)>>) -> u32 {
    std::thread::sleep(Duration::from_millis(10));
    booked.lock().unwrap().push((account, amount));
    amount
}
