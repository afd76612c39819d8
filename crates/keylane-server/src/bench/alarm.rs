//! Waits to a fraction of a millisecond. The runtime's own timers end up to a millisecond late,
//! and all that are due in one millisecond end together.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use tokio::sync::oneshot;

/// A thread that wakes who asked for it, in the order of their times.
pub(super) struct Alarm {
    orders: mpsc::Sender<Order>,
}

struct Order {
    at: Instant,
    wake: oneshot::Sender<()>,
}

impl Alarm {
    /// Starts the thread; it ends when nobody can ask any more.
    pub(super) fn start() -> Self {
        let (orders, asked) = mpsc::channel();
        std::thread::spawn(move || run(&asked));
        Self { orders }
    }

    /// Ends at this time.
    pub(super) fn at(&self, at: Instant) -> impl Future<Output = ()> + Send + use<> {
        let (wake, woken) = oneshot::channel();
        let asked = self.orders.send(Order { at, wake });
        asked.expect("the thread runs as long as anybody can ask");
        async move { woken.await.expect("the thread wakes everybody") }
    }
}

fn run(asked: &mpsc::Receiver<Order>) {
    // By time, then in the order of asking.
    let mut due: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0.. {
        wake_due(&mut due);
        let order = match due.keys().next() {
            None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((at, _)) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match order {
            Ok(Order { at, wake }) => drop(due.insert((at, number), wake)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn wake_due(due: &mut BTreeMap<(Instant, u64), oneshot::Sender<()>>) {
    while let Some(first) = due.first_entry()
        && first.key().0 <= Instant::now()
    {
        // Who asked may have gone meanwhile.
        let _ = first.remove().send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn nobody_is_woken_early_and_nobody_is_forgotten() {
        let alarm = Alarm::start();
        let begun = Instant::now();
        let wait = |millis| {
            let at = begun + Duration::from_millis(millis);
            let woken = alarm.at(at);
            async move {
                woken.await;
                assert!(Instant::now() >= at);
            }
        };
        tokio::join!(wait(4), wait(2), wait(0), wait(2));
    }
}
