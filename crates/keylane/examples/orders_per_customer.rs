//! Orders of one customer are handled in the order they came, those of others beside them.
//!
//! `cargo run -p keylane --example orders_per_customer`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane::Executor;

#[tokio::main]
async fn main() -> Result<(), keylane::BuildErrors> {
    let executor = Executor::<String>::builder().name("orders").build()?;
    let log = Arc::new(Mutex::new(Vec::new()));

    let begun = Instant::now();
    for step in ["placed", "paid", "shipped"] {
        for customer in ["ann", "bob", "cem", "dia"] {
            let log = log.clone();
            let handled = async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                println!("{customer}: {step}");
                log.lock().unwrap().push((customer, step));
            };
            executor.submit(customer.to_owned(), handled);
        }
    }
    executor.all_idle().await;
    let took = begun.elapsed();

    let log = log.lock().unwrap();
    for customer in ["ann", "bob", "cem", "dia"] {
        let steps: Vec<_> = log.iter().filter(|(c, _)| *c == customer).collect();
        assert!(
            steps
                .iter()
                .map(|(_, s)| *s)
                .eq(["placed", "paid", "shipped"])
        );
    }
    println!("12 orders of 50 ms, 3 for each of 4 customers, took {took:?}");
    assert!(
        took < Duration::from_millis(400),
        "customers wait for nobody"
    );
    Ok(())
}
