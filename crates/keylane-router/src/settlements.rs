//! Settlements on their way to their source. A call costs about the same for one as for many, so
//! they are gathered, as long as nobody has to wait for that.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::delivery::Settled;
use crate::message::BrokerId;
use crate::unsettled::Pressure;

/// The most settlements handed on at once.
const MOST: usize = 1024;
/// So many are worth a call of their own: fewer wait for those that are about to come.
const WORTH_A_CALL: usize = 64;
/// How often others are let go first meanwhile.
const TURNS: usize = 4;
/// How long a call over the network that is not full waits for what is out.
const MOMENT: Duration = Duration::from_millis(2);

/// Where deliveries of one source leave their settlements.
pub(crate) struct ToSettle {
    send: mpsc::UnboundedSender<Settled<BrokerId>>,
    left: Arc<Left>,
}

/// The settling task's side.
pub(crate) struct Settlements {
    receive: mpsc::UnboundedReceiver<Settled<BrokerId>>,
    left: Arc<Left>,
    pressure: Arc<Pressure>,
}

#[derive(Default)]
struct Left {
    /// How many are not taken yet; below 0 for a moment, when one is taken before it is counted.
    count: AtomicIsize,
    /// So many are waited for.
    wanted: AtomicIsize,
    enough: Notify,
}

/// Bounded by the window of the source.
pub(crate) fn channel(pressure: Arc<Pressure>) -> (ToSettle, Settlements) {
    let (send, receive) = mpsc::unbounded_channel();
    let left = Arc::<Left>::default();
    let to_settle = ToSettle {
        send,
        left: left.clone(),
    };
    let settlements = Settlements {
        receive,
        left,
        pressure,
    };
    (to_settle, settlements)
}

impl ToSettle {
    /// `false` when the source is gone.
    pub(crate) fn send(&self, settled: Settled<BrokerId>) -> bool {
        let sent = self.send.send(settled).is_ok();
        let count = self.left.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == self.left.wanted.load(Ordering::Relaxed) {
            self.left.enough.notify_waiters();
        }
        sent
    }
}

impl Settlements {
    /// Adds what is to be settled to what waits already, and waits for it if nothing does. `false`
    /// when there is nothing, and never will be. A call settles so many of what is out.
    pub(crate) async fn next(
        &mut self,
        waiting: &mut Vec<Settled<BrokerId>>,
        call: NonZeroUsize,
        out: impl Fn() -> usize,
    ) -> bool {
        if waiting.is_empty() {
            let received = self.receive.recv_many(waiting, MOST).await;
            self.took(received);
            if received == 0 {
                return false;
            }
        }
        self.take(waiting);
        match call.get() {
            1 => self.gather(waiting).await,
            call => {
                // Late or not, what is there goes.
                let _ = tokio::time::timeout(MOMENT, self.fill(waiting, call, out)).await;
                self.take(waiting);
            }
        }
        true
    }

    /// Waits until a call is full, or everything that is out waits for it, or somebody for that.
    async fn fill(
        &mut self,
        waiting: &mut Vec<Settled<BrokerId>>,
        call: usize,
        out: impl Fn() -> usize,
    ) {
        loop {
            let more = call.min(out()).saturating_sub(waiting.len());
            if more == 0 || self.pressure.is_felt() {
                return;
            }
            self.wait_for(more, std::future::pending()).await;
            self.take(waiting);
        }
    }

    /// Lets in what is about to come. Where nothing more comes, it waits for nobody.
    async fn gather(&mut self, waiting: &mut Vec<Settled<BrokerId>>) {
        for _ in 0..TURNS {
            let before = waiting.len();
            if before >= WORTH_A_CALL {
                break;
            }
            self.wait_for(WORTH_A_CALL - before, tokio::task::yield_now())
                .await;
            self.take(waiting);
            if waiting.len() == before {
                break;
            }
        }
    }

    /// Lets others go first: until this many more are there, or somebody waits for what is there, or
    /// it has been long enough.
    async fn wait_for(&self, more: usize, long_enough: impl Future<Output = ()>) {
        let more = more as isize;
        let mut enough = std::pin::pin!(self.left.enough.notified());
        let mut felt = std::pin::pin!(self.pressure.felt());
        enough.as_mut().enable();
        felt.as_mut().enable();
        self.left.wanted.store(more, Ordering::Relaxed);
        if self.left.count.load(Ordering::Relaxed) >= more || self.pressure.is_felt() {
            return;
        }
        tokio::select! {
            biased;
            () = enough => {}
            () = felt => {}
            () = long_enough => {}
        }
    }

    fn take(&mut self, waiting: &mut Vec<Settled<BrokerId>>) {
        let before = waiting.len();
        while waiting.len() < MOST
            && let Ok(settled) = self.receive.try_recv()
        {
            waiting.push(settled);
        }
        self.took(waiting.len() - before);
    }

    fn took(&self, count: usize) {
        self.left.count.fetch_sub(count as isize, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Settlement;

    fn settled(id: u64) -> Settled<BrokerId> {
        Settled {
            loan: 0,
            id: BrokerId::Sequence(id),
            settlement: Settlement::Ack,
            counted: None,
        }
    }

    /// Of a source that settles each for itself.
    async fn one_by_one(
        settlements: &mut Settlements,
        waiting: &mut Vec<Settled<BrokerId>>,
    ) -> bool {
        let out = || usize::MAX;
        settlements.next(waiting, NonZeroUsize::MIN, out).await
    }

    /// One each time it is its turn.
    fn send_by_turns(to_settle: &Arc<ToSettle>, from: u64, count: u64) {
        let to_settle = to_settle.clone();
        tokio::spawn(async move {
            for id in from..from + count {
                to_settle.send(settled(id));
                tokio::task::yield_now().await;
            }
        });
    }

    #[tokio::test]
    async fn what_is_alone_waits_for_nobody() {
        let (to_settle, mut settlements) = channel(Arc::default());
        let mut waiting = Vec::new();
        to_settle.send(settled(1));
        assert!(one_by_one(&mut settlements, &mut waiting).await);
        assert_eq!(waiting.len(), 1);
        waiting.clear();
        drop(to_settle);
        assert!(!one_by_one(&mut settlements, &mut waiting).await);
    }

    #[tokio::test]
    async fn those_that_are_about_to_come_are_let_in() {
        let (to_settle, mut settlements) = channel(Arc::default());
        let to_settle = Arc::new(to_settle);
        for task in 0..40 {
            send_by_turns(&to_settle, 100 * task, 10);
        }
        let mut waiting = Vec::new();
        assert!(one_by_one(&mut settlements, &mut waiting).await);
        assert!(waiting.len() >= WORTH_A_CALL, "{}", waiting.len());
        assert!(waiting.len() < 3 * 40, "{}", waiting.len());
    }

    #[derive(Default)]
    struct Wakes(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn the_one_that_makes_it_worth_a_call_ends_the_wait() {
        let (to_settle, mut settlements) = channel(Arc::default());
        let mut waiting = Vec::new();
        to_settle.send(settled(0));
        let wakes = Arc::<Wakes>::default();
        let waker = wakes.clone().into();
        let mut next = std::pin::pin!(one_by_one(&mut settlements, &mut waiting));
        let mut poll = || {
            let cx = &mut std::task::Context::from_waker(&waker);
            next.as_mut().poll(cx).is_ready()
        };
        assert!(!poll());
        for id in 1..WORTH_A_CALL as u64 {
            assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "{id} wakes it");
            to_settle.send(settled(id));
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(poll(), "it goes on waiting");
    }

    #[tokio::test]
    async fn where_somebody_waits_for_it_nothing_is_gathered() {
        let pressure = Arc::<Pressure>::default();
        let (to_settle, mut settlements) = channel(pressure.clone());
        let to_settle = Arc::new(to_settle);
        to_settle.send(settled(1));
        send_by_turns(&to_settle, 2, 10);
        let pressed = pressure.press();
        let mut waiting = Vec::new();
        assert!(one_by_one(&mut settlements, &mut waiting).await);
        assert_eq!(waiting.len(), 1);

        // Also where he comes while it is gathered.
        drop(pressed);
        waiting.clear();
        to_settle.send(settled(1));
        tokio::spawn(async move {
            let _pressed = pressure.press();
            std::future::pending::<()>().await;
        });
        send_by_turns(&to_settle, 2, 10);
        assert!(one_by_one(&mut settlements, &mut waiting).await);
        assert!(waiting.len() < 5, "{}", waiting.len());
    }

    /// How many go into one call of ten, with so many out, and what comes after a while.
    async fn in_a_call(there: u64, out: usize, later: u64) -> (usize, Duration) {
        let (to_settle, mut settlements) = channel(Arc::default());
        for id in 0..there {
            to_settle.send(settled(id));
        }
        tokio::spawn(async move {
            tokio::time::sleep(MOMENT / 2).await;
            for id in 0..later {
                to_settle.send(settled(100 + id));
            }
            std::future::pending::<()>().await;
        });
        let (begun, mut waiting) = (tokio::time::Instant::now(), Vec::new());
        let ten = NonZeroUsize::new(10).unwrap();
        assert!(settlements.next(&mut waiting, ten, || out).await);
        (waiting.len(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_filled_with_what_comes_in_a_moment() {
        let late = |waited: Duration| waited.as_millis();
        for (there, out, later, in_it, waits) in [
            (3, 20, 7, 10, 1),
            (3, 20, 9, 12, 1),
            // A full call waits for nobody.
            (10, 20, 5, 10, 0),
            // Nothing else is out: nothing more can come.
            (3, 3, 5, 3, 0),
            (3, 5, 2, 5, 1),
            // No longer than a moment.
            (3, 20, 2, 5, 2),
            (3, 20, 0, 3, 2),
        ] {
            let (filled, waited) = in_a_call(there, out, later).await;
            let which = format!("{there} of {out}, then {later}");
            assert_eq!((filled, late(waited)), (in_it, waits), "{which}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_not_filled_while_somebody_waits_for_it() {
        let pressure = Arc::<Pressure>::default();
        let (to_settle, mut settlements) = channel(pressure.clone());
        to_settle.send(settled(1));
        let _pressed = pressure.press();
        let (begun, mut waiting) = (tokio::time::Instant::now(), Vec::new());
        let ten = NonZeroUsize::new(10).unwrap();
        assert!(settlements.next(&mut waiting, ten, || 20).await);
        assert!(begun.elapsed().is_zero());
    }
}
