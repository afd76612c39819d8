//! Until when we may act on what we hold, by a clock that goes on while the machine sleeps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::lane::LaneId;
use crate::message::BrokerId;
use crate::pool::Pool;
use crate::source::Bond;

/// What leases are measured by. It must go on while the machine is suspended and never be set.
pub trait LeaseClock: Send + Sync + 'static {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The system's clock since it was started, suspends included.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl LeaseClock for BootClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    // The monotonic clocks of the others go on in suspend, or they have no better one.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn now(&self) -> Duration {
        static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        BEGAN.get_or_init(std::time::Instant::now).elapsed()
    }
}

/// What all leases of one source have in common.
pub(crate) struct Terms {
    pub(crate) clock: Arc<dyn LeaseClock>,
    /// How long a lease lasts without renewal.
    pub(crate) length: Duration,
    /// What is out of this source.
    pub(crate) book: Weak<dyn Book>,
    /// The source takes no more, and wants everything back.
    pub(crate) stop: CancellationToken,
}

impl Terms {
    /// The end of a lease that began then.
    fn end(&self, began: Duration) -> u64 {
        nanos(began.saturating_add(self.length))
    }
}

/// What a source has out, as far as leases go.
pub(crate) trait Book: Send + Sync {
    /// Forgets those of a lane's messages whose leases are lost, all at one moment: one that comes
    /// again before is in its lane, one that comes after is a new one, and so is everything behind
    /// it. Answers which were forgotten.
    fn forget_lost(&self, messages: &[Lost<'_>]) -> Vec<bool>;
}

/// A message that may be forgotten.
pub(crate) struct Lost<'a> {
    pub(crate) id: &'a BrokerId,
    /// Its target has it: if it comes again it is acked without a call.
    pub(crate) delivered: bool,
}

/// The lease of one message: shared by whoever renews it and whoever acts on it.
pub struct Lease {
    /// In nanoseconds of the clock; 0 when the broker said that it is over. Written under the lock
    /// of the source's book.
    until: AtomicU64,
    /// Since when its message is out, at the earliest. As `until`.
    lent: AtomicU64,
    terms: Arc<Terms>,
    /// What the message was lent over, where the loan ends with that. Written under the lock of the
    /// source's book.
    bond: Mutex<Option<Bond>>,
    /// Where its message is. Written before the message is put there.
    place: Mutex<Option<(Weak<Pool>, LaneId)>>,
}

impl Lease {
    pub(crate) fn new(terms: Arc<Terms>, began: Duration, bond: Option<Bond>) -> Arc<Self> {
        Arc::new(Self {
            until: AtomicU64::new(terms.end(began)),
            lent: AtomicU64::new(nanos(began)),
            terms,
            bond: Mutex::new(bond),
            place: Mutex::default(),
        })
    }

    /// Whether the message may be acted on now.
    pub fn holds(&self) -> bool {
        !self.left().is_zero()
    }

    /// How long it still holds.
    pub(crate) fn left(&self) -> Duration {
        if self.bond().as_ref().is_some_and(|bond| !bond.holds()) {
            return Duration::ZERO;
        }
        let until = Duration::from_nanos(self.until.load(Ordering::SeqCst));
        until.saturating_sub(self.terms.clock.now())
    }

    /// It began anew then: it was renewed.
    pub(crate) fn begin(&self, at: Duration) {
        self.until.store(self.terms.end(at), Ordering::SeqCst);
    }

    /// The message came again then, over this.
    pub(crate) fn begin_over(&self, at: Duration, bond: Option<Bond>) {
        *self.bond() = bond;
        self.lent.store(nanos(at), Ordering::SeqCst);
        self.begin(at);
    }

    /// Since when its message is out, at the earliest.
    pub(crate) fn lent(&self) -> Duration {
        Duration::from_nanos(self.lent.load(Ordering::SeqCst))
    }

    /// Its message is forgotten here. Where the broker does not know that by itself, everything
    /// else that was lent over the same connection goes with it, and comes again in order.
    pub(crate) fn give_up(&self) {
        if let Some(bond) = &*self.bond() {
            bond.cut();
        }
    }

    /// The broker says that it is over.
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    pub(crate) fn put(&self, pool: &Arc<Pool>, lane: &LaneId) {
        *self.place() = Some((Arc::downgrade(pool), lane.clone()));
    }

    /// The lane its message was put into.
    pub(crate) fn lane(&self) -> Option<(Arc<Pool>, LaneId)> {
        let place = self.place();
        let (pool, lane) = place.as_ref()?;
        Some((pool.upgrade()?, lane.clone()))
    }

    /// `None` when nothing of the source is out any more.
    pub(crate) fn book(&self) -> Option<Arc<dyn Book>> {
        self.terms.book.upgrade()
    }

    /// Whether its source wants everything back.
    pub(crate) fn source_stops(&self) -> bool {
        self.terms.stop.is_cancelled()
    }

    fn bond(&self) -> std::sync::MutexGuard<'_, Option<Bond>> {
        self.bond.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<(Weak<Pool>, LaneId)>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Lease {
    /// A long one that no source knows of.
    pub(crate) fn of_nobody() -> Arc<Self> {
        struct Nobody;

        impl Book for Nobody {
            fn forget_lost(&self, messages: &[Lost<'_>]) -> Vec<bool> {
                vec![false; messages.len()]
            }
        }

        let terms = Terms {
            clock: Arc::new(BootClock),
            length: Duration::from_secs(3600),
            book: Weak::<Nobody>::new(),
            stop: CancellationToken::new(),
        };
        Self::new(Arc::new(terms), BootClock.now(), None)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?} left)", self.left())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_goes_on() {
        let first = BootClock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(BootClock.now() > first);
    }
}
