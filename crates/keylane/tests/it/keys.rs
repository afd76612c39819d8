//! What keys are: anything that can be hashed, compared and cloned.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keylane::{Executor, Listener, TaskInfo, Why};

use crate::support::{Door, MS, assert_nothing_left, settle};

/// How many lanes these keys make while all of them wait.
async fn lanes_of<K>(keys: Vec<K>) -> usize
where
    K: std::hash::Hash + Eq + Clone + Send + Sync + 'static,
{
    let executor = Executor::builder().build().unwrap();
    let door = Door::closed();
    let count = keys.len();
    for key in keys {
        executor.submit(key, door.passes(()));
    }
    let lanes = executor.stats().live_keys;
    door.let_in(count);
    executor.all_idle().await;
    assert_nothing_left(&executor);
    lanes
}

// PL-21, PL-22, PL-23, PL-24, PL-25: keys compare by their bytes.
#[tokio::test(start_paused = true)]
async fn keys_compare_by_their_bytes() {
    let owned = |keys: &[&str]| keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    assert_eq!(lanes_of::<Vec<u8>>(owned(&["a", "a"])).await, 1);
    assert_eq!(lanes_of::<Vec<u8>>(owned(&["a", "b"])).await, 2);
    assert_eq!(lanes_of::<Vec<u8>>(owned(&["a", "A", "a "])).await, 3);
    assert_eq!(lanes_of::<Vec<u8>>(owned(&["", "", "\0"])).await, 2);
    assert_eq!(
        lanes_of(vec![vec![0xff, 0xfe], vec![0xff, 0xfe], vec![0xff]]).await,
        2
    );
}

// PL-26
#[tokio::test(start_paused = true)]
async fn no_key_equals_no_key() {
    let keys = vec![None, None, Some(b"a".to_vec()), Some(Vec::new())];
    assert_eq!(lanes_of(keys).await, 3);
}

#[tokio::test(start_paused = true)]
async fn shared_strings_and_bytes_are_keys_without_copying_their_text() {
    let text: Arc<str> = Arc::from("order-1");
    let executor = Executor::builder().build().unwrap();
    let result = executor.submit(text.clone(), async {}).await;
    assert!(Arc::ptr_eq(&result.key.unwrap(), &text));
    assert_eq!(lanes_of(vec![text.clone(), Arc::from("order-1")]).await, 1);
    let bytes: Arc<[u8]> = Arc::from(*b"order-1");
    assert_eq!(lanes_of(vec![bytes.clone(), bytes]).await, 1);
}

#[tokio::test(start_paused = true)]
async fn numbers_and_pairs_are_keys() {
    assert_eq!(lanes_of(vec![1_u64, 2, 1]).await, 2);
    assert_eq!(lanes_of(vec![("eu", 1), ("us", 1), ("eu", 1)]).await, 2);
}

/// All of these have the same hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alike(u32);

impl std::hash::Hash for Alike {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[tokio::test(start_paused = true)]
async fn keys_of_the_same_hash_have_lanes_of_their_own() {
    let executor = Executor::builder().build().unwrap();
    let door = Door::closed();
    let held = executor.submit(Alike(1), door.passes(1));
    door.reached().await;
    for key in [2, 3] {
        let mut other = executor.submit(Alike(key), async move { key });
        assert_eq!(other.wait_timeout(MS).await.ok(), Some(key));
    }
    let behind = executor.submit(Alike(1), async { 4 });
    settle().await;
    assert!(!behind.is_done(), "in the lane of its key");
    door.let_in(1);
    assert_eq!((held.await.ok(), behind.await.ok()), (Some(1), Some(4)));
}

// PL-18, PL-20
#[tokio::test(start_paused = true)]
async fn live_keys_and_queued_are_counted_and_gone_at_the_end() {
    let executor = Executor::builder().concurrency(1).build().unwrap();
    let door = Door::closed();
    executor.submit("a", door.passes(()));
    executor.submit("a", door.passes(()));
    assert_eq!(executor.stats().live_keys, 1);
    executor.submit("b", door.passes(()));
    executor.submit("c", door.passes(()));
    door.reached().await;
    let stats = executor.stats();
    assert_eq!((stats.live_keys, stats.queued), (3, 3));
    door.let_in(1);
    door.reached().await;
    assert_eq!(executor.stats().queued, 2);
    door.let_in(3);
    executor.all_idle().await;
    let stats = executor.stats();
    assert_eq!((stats.live_keys, stats.queued), (0, 0));
}

// PL-19
#[tokio::test(start_paused = true)]
async fn two_executors_count_apart() {
    let (one, two) = (
        Executor::builder().name("one").build().unwrap(),
        Executor::builder().name("two").build().unwrap(),
    );
    let door = Door::closed();
    one.submit("a", door.passes(()));
    two.submit("a", async {}).await;
    assert_eq!((one.stats().live_keys, two.stats().live_keys), (1, 0));
    assert_eq!((one.stats().done, two.stats().done), (0, 1));
    door.let_in(1);
}

/// Some of these cannot be hashed.
#[derive(Clone, PartialEq, Eq)]
struct Odd(bool);

impl std::hash::Hash for Odd {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        assert!(!self.0, "it has no hash");
        self.0.hash(state);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_hashed_harms_only_who_submits_it() {
    let executor = Executor::<Odd>::builder().build().unwrap();
    let submits = executor.clone();
    let odd = tokio::spawn(async move { drop(submits.submit(Odd(true), async {})) });
    assert!(odd.await.is_err());
    let other = executor.submit(Odd(false), async {});
    let soon = std::time::Duration::from_secs(5);
    let result = tokio::time::timeout(soon, other).await;
    assert!(result.expect("another key hangs").is_done());
}

/// Counts what it hears of beginnings and of ends.
#[derive(Clone, Default)]
struct Balance(Arc<AtomicUsize>, Arc<AtomicUsize>);

impl<K: 'static> Listener<K> for Balance {
    fn submitted(&self, _: &TaskInfo<K>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn cancelled(&self, _: &TaskInfo<K>, _: Why) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_hears_the_end_of_a_task_whose_key_cannot_be_hashed() {
    let balance = Balance::default();
    let builder = Executor::<Odd>::builder().listener(balance.clone());
    let submits = builder.build().unwrap();
    let odd = tokio::spawn(async move { drop(submits.submit(Odd(true), async {})) });
    assert!(odd.await.is_err());
    let heard = [balance.0, balance.1].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(heard, [1, 1]);
}
