//! Permits shared by several executors.

use keylane::{Executor, Mode, Permits, Rate};

use crate::support::{Door, MS, Peak, assert_nothing_left, settle};

fn sharing(permits: &Permits) -> Executor<usize> {
    Executor::builder()
        .shared_permits(permits.clone())
        .lane_concurrency(9)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn executors_that_share_permits_never_run_more_together() {
    let permits = Permits::new(3);
    let executors = [sharing(&permits), sharing(&permits), sharing(&permits)];
    let peak = Peak::default();
    for n in 0..60 {
        executors[n % 3].post(n % 5, peak.sleeps(MS)).unwrap();
    }
    for executor in &executors {
        executor.all_idle().await;
        assert_nothing_left(executor);
    }
    assert_eq!((peak.most(), permits.in_use()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_freed_by_one_executor_wakes_the_other() {
    let permits = Permits::new(1);
    let (one, two) = (sharing(&permits), sharing(&permits));
    let door = Door::closed();
    one.submit(0, door.passes(()));
    door.reached().await;
    let waits = two.submit(0, async {});
    settle().await;
    assert!(!waits.is_done());
    assert_eq!((permits.in_use(), two.stats().queued), (1, 1));
    door.let_in(1);
    assert!(waits.await.is_done());
    assert_eq!(permits.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_may_start_nothing_keeps_no_permit() {
    let permits = Permits::new(2);
    let limits = [
        Executor::builder().concurrency(1),
        Executor::builder().rate(Rate::per_second(1)),
    ];
    for limited in limits {
        let limited = limited.shared_permits(permits.clone()).build().unwrap();
        let door = Door::closed();
        let both = [0, 1].map(|key: usize| limited.submit(key, door.passes(())));
        settle().await;
        // One runs; the other waits for something else than a permit.
        assert_eq!((permits.in_use(), limited.stats().queued), (1, 1));
        let other = sharing(&permits);
        assert!(other.submit(0, async {}).await.is_done());
        door.let_in(2);
        for one in both {
            assert!(one.await.is_done());
        }
        assert_eq!(permits.in_use(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_permits_can_change() {
    let permits = Permits::new(1);
    let executor = sharing(&permits);
    let door = Door::closed();
    for _ in 0..8 {
        executor.submit(0, door.passes(()));
    }
    settle().await;
    assert_eq!(permits.in_use(), 1);
    permits.set(4);
    settle().await;
    assert_eq!(permits.in_use(), 4);
    permits.set(2);
    for used in [3, 2, 2, 2] {
        door.let_in(1);
        settle().await;
        assert_eq!(permits.in_use(), used);
    }
}

#[tokio::test(start_paused = true)]
async fn permits_come_back_from_cancelled_stopped_panicked_and_dropped_tasks() {
    let permits = Permits::new(2);
    let executor = sharing(&permits);
    let door = Door::closed();
    let running = executor.submit(0, door.passes(()));
    executor.submit(1, door.passes(()));
    door.reached().await;
    door.reached().await;
    running.cancel();
    running.await;
    assert_eq!(permits.in_use(), 1);
    executor.shutdown_key(&1, Mode::Now);
    executor.idle(&1).await;
    assert_eq!(permits.in_use(), 0);
    executor.submit(0, async { panic!("out") }).await;
    assert_eq!(permits.in_use(), 0);
    executor.submit(0, door.passes(()));
    door.reached().await;
    drop(executor);
    settle().await;
    assert_eq!(permits.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_executor_dropped_while_it_waits_for_a_permit_is_no_obstacle() {
    let permits = Permits::new(1);
    let (one, two, three) = (sharing(&permits), sharing(&permits), sharing(&permits));
    let door = Door::closed();
    one.submit(0, door.passes(()));
    door.reached().await;
    let dropped = two.submit(0, async {});
    settle().await;
    let waits = three.submit(0, async {});
    drop(two);
    assert!(!dropped.await.is_done());
    door.let_in(1);
    assert!(waits.await.is_done());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_between_executors_that_share_one_permit() {
    let permits = Permits::new(1);
    let (one, two) = (sharing(&permits), sharing(&permits));
    for round in 0..10_000 {
        let task = move || async move {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
        };
        let both = tokio::join!(one.submit(0, task()), two.submit(0, task()));
        assert!(both.0.is_done() && both.1.is_done());
    }
    assert_eq!(permits.in_use(), 0);
}
