//! Tenants share one executor fairly, by weight, however many keys each of them has.
//!
//! `cargo run -p keylane --example tenants`

use std::sync::{Arc, Mutex};

use keylane::Executor;

#[tokio::main]
async fn main() -> Result<(), keylane::BuildErrors> {
    // A key is "tenant/document". `big` has a hundred keys, `small` has two and thrice the weight.
    let executor = Executor::<String>::builder()
        .concurrency(1)
        .tenant_by(|key: &String| key.split('/').next().unwrap_or_default().to_owned())
        .weight_by(|tenant| if tenant == "small" { 3 } else { 1 })
        .build()?;

    let started = Arc::new(Mutex::new(Vec::new()));
    // Both have everything submitted before the first one starts.
    let gate = Arc::new(tokio::sync::Notify::new());
    let open = gate.clone();
    executor.submit("gate".to_owned(), async move { gate.notified().await });
    for n in 0..300 {
        submit(&executor, "big", format!("big/{}", n % 100), &started);
        submit(&executor, "small", format!("small/{}", n % 2), &started);
    }
    open.notify_one();
    executor.all_idle().await;

    let started = started.lock().unwrap();
    let early = &started[..200];
    let small = early.iter().filter(|tenant| **tenant == "small").count();
    println!(
        "of the first 200 starts, small has {small} and big {}",
        200 - small
    );
    assert!((149..=151).contains(&small), "three for one");
    assert_eq!(started.len(), 600);
    Ok(())
}

fn submit(
    executor: &Executor<String>,
    tenant: &'static str,
    key: String,
    started: &Arc<Mutex<Vec<&'static str>>>,
) {
    let started = started.clone();
    executor.submit(key, async move { started.lock().unwrap().push(tenant) });
}
