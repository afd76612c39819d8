//! Tenants share the executor by their weights, however many keys each has.

use std::sync::{Arc, Mutex};

use keylane::Executor;

use crate::support::Door;

type Key = (&'static str, usize);

/// The first so many starts of `busy` tasks each, while all tenants stay ready.
async fn starts(
    executor: Executor<Key>,
    keys: &[(&'static str, usize)],
    first: usize,
) -> Vec<&'static str> {
    let door = Door::closed();
    executor.submit(("nobody", 0), door.passes(()));
    door.reached().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    for &(tenant, count) in keys {
        for key in 0..count {
            for _ in 0..first {
                let seen = seen.clone();
                let task = async move { seen.lock().unwrap().push(tenant) };
                executor.post((tenant, key), task).unwrap();
            }
        }
    }
    door.let_in(1);
    executor.all_idle().await;
    let seen = seen.lock().unwrap();
    seen[..first].to_vec()
}

fn share(starts: &[&str], tenant: &str) -> usize {
    starts.iter().filter(|name| **name == tenant).count()
}

#[tokio::test(start_paused = true)]
async fn tenants_have_equal_shares_however_many_keys_they_have() {
    let executor = Executor::builder()
        .concurrency(1)
        .tenant_by(|key: &Key| key.0)
        .build()
        .unwrap();
    let first = starts(executor, &[("many", 50), ("one", 1)], 40).await;
    assert_eq!((share(&first, "many"), share(&first, "one")), (20, 20));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_of_weight_three_has_three_starts_to_one() {
    let executor = Executor::builder()
        .concurrency(1)
        .tenant_by(|key: &Key| key.0)
        .weight_by(|tenant| if tenant == "gold" { 3 } else { 1 })
        .build()
        .unwrap();
    let first = starts(executor, &[("gold", 4), ("iron", 4)], 40).await;
    assert_eq!((share(&first, "gold"), share(&first, "iron")), (30, 10));
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_nobodys_share_as_one_tenant_does() {
    let executor = Executor::builder()
        .concurrency(1)
        .maybe_tenant_by(|key: &Key| (key.0 == "one").then(|| key.0.into()))
        .build()
        .unwrap();
    let first = starts(executor, &[("many", 25), ("more", 25), ("one", 1)], 40).await;
    assert_eq!(share(&first, "one"), 20);
}

#[tokio::test(start_paused = true)]
async fn without_tenants_keys_take_turns() {
    let executor = Executor::builder().concurrency(1).build().unwrap();
    let first = starts(executor, &[("many", 3), ("one", 1)], 40).await;
    assert_eq!((share(&first, "many"), share(&first, "one")), (30, 10));
}

#[tokio::test(start_paused = true)]
async fn a_function_about_tenants_that_panics_is_contained() {
    let executor = Executor::builder()
        .concurrency(1)
        .tenant_by(|key: &Key| {
            if key.0 == "odd" {
                panic!("who?")
            } else {
                key.0
            }
        })
        .weight_by(|_| panic!("how much?"))
        .build()
        .unwrap();
    let first = starts(executor.clone(), &[("odd", 1), ("even", 1)], 10).await;
    assert_eq!((share(&first, "odd"), share(&first, "even")), (5, 5));
    assert!(executor.stats().panics > 0);
}
