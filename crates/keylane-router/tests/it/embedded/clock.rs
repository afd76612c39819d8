//! A clock that moves when the test says so.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keylane_router::machine::Machine;
use tokio::sync::watch;

/// Monotonic and wall clock, each moved by hand.
pub(crate) struct TestClock {
    base: Instant,
    /// Since the base, and how far the wall clock was set forward or back on top of that.
    state: watch::Sender<(Duration, i64)>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            state: watch::Sender::new((Duration::ZERO, 0)),
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.state.send_modify(|(since, _)| *since += by);
    }

    pub(crate) fn set_wall_forward(&self, by: Duration) {
        let by = by.as_secs() as i64;
        self.state.send_modify(|(_, step)| *step += by);
    }

    pub(crate) fn set_wall_back(&self, by: Duration) {
        let by = by.as_secs() as i64;
        self.state.send_modify(|(_, step)| *step -= by);
    }
}

impl Machine for TestClock {
    fn now(&self) -> Instant {
        self.base + self.state.borrow().0
    }

    fn wall(&self) -> SystemTime {
        let (since, step) = *self.state.borrow();
        let seconds = 1_800_000_000_i64 + step;
        UNIX_EPOCH + Duration::from_secs(seconds as u64) + since
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (base, mut state) = (self.base, self.state.subscribe());
        Box::pin(async move {
            // The sender lives as long as the test.
            let _ = state.wait_for(|(since, _)| base + *since >= at).await;
        })
    }
}
