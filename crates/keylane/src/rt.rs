//! What the shell needs of a runtime: locks, spawning, the clock. Under `cfg(keylane_shuttle)`
//! these are shuttle's, so that the shell's interleavings can be explored.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

#[cfg(not(keylane_shuttle))]
mod imp {
    use std::future::Future;
    use std::time::Duration;

    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use tokio::task::{AbortHandle, yield_now};
    use tokio::time::Timeout;

    /// Where tasks are spawned.
    #[derive(Clone, Debug)]
    pub(crate) struct Spawner(pub(crate) tokio::runtime::Handle);

    impl Spawner {
        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            drop(self.0.spawn(task));
        }

        /// As [`Self::spawn`], for a task that may have to be stopped.
        pub(crate) fn spawn_abortable(
            &self,
            task: impl Future<Output = ()> + Send + 'static,
        ) -> AbortHandle {
            self.0.spawn(task).abort_handle()
        }

        pub(crate) fn workers(&self) -> usize {
            self.0.metrics().num_workers().max(1)
        }

        /// There is no other way to ask than to want one.
        pub(crate) fn has_timers(&self) -> bool {
            let _inside = self.enter();
            super::contain(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
        }

        /// With the timers of this runtime, whoever waits.
        pub(crate) fn timeout<F: Future>(&self, time: Duration, future: F) -> Timeout<F> {
            let _inside = self.enter();
            tokio::time::timeout(time, future)
        }

        /// Code that runs meanwhile finds the runtime, whatever thread it is on.
        pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
            self.0.enter()
        }
    }

    /// A number below `places` that is this thread's, and few others'.
    pub(crate) fn place_of_thread(places: usize) -> usize {
        use std::sync::atomic::{AtomicUsize, Ordering};

        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
        // While a thread ends, anybody's will do.
        NUMBER.try_with(|number| number % places).unwrap_or(0)
    }

    /// What depends on the clock elsewhere is explored in both ways under shuttle.
    pub(crate) fn now_and_then() -> bool {
        false
    }
}

#[cfg(keylane_shuttle)]
mod imp {
    use std::future::Future;
    use std::task::Poll;
    use std::time::Duration;

    pub(crate) use shuttle::future::{AbortHandle, yield_now};
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    /// Where tasks are spawned.
    #[derive(Clone, Debug)]
    pub(crate) struct Spawner;

    /// Everything is inside shuttle's runtime.
    pub(crate) struct Inside;

    impl Spawner {
        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            self.spawn_abortable(task);
        }

        pub(crate) fn spawn_abortable(
            &self,
            task: impl Future<Output = ()> + Send + 'static,
        ) -> AbortHandle {
            let handle = shuttle::future::spawn(task);
            let abort = handle.abort_handle();
            // Never detached: an execution lasts until every task has ended, or is a deadlock.
            std::mem::forget(handle);
            abort
        }

        pub(crate) fn workers(&self) -> usize {
            2
        }

        /// There is no clock: no time at all is over at once, any other never is.
        pub(crate) async fn timeout<F: Future>(
            &self,
            time: Duration,
            future: F,
        ) -> Result<F::Output, ()> {
            let mut future = std::pin::pin!(future);
            std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
                Poll::Ready(value) => Poll::Ready(Ok(value)),
                Poll::Pending if time.is_zero() => Poll::Ready(Err(())),
                Poll::Pending => Poll::Pending,
            })
            .await
        }

        pub(crate) fn enter(&self) -> Inside {
            Inside
        }
    }

    /// Threads are shuttle's tasks.
    pub(crate) fn place_of_thread(places: usize) -> usize {
        usize::from(shuttle::current::me()) % places
    }

    pub(crate) fn now_and_then() -> bool {
        shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.5)
    }
}

pub(crate) use imp::*;

/// Lets other tasks run, and other workers find this one.
pub(crate) async fn move_over() {
    let mut moved = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut moved, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Locks, also after a panic elsewhere while the lock was held. Of the user's code, a key's `Hash`,
/// `Eq`, `Clone` and `Drop` and a handler's gate run under our locks: they must not call the executor.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// As [`lock`], if nobody else has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Runs user code that may panic; answers the panic's message.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panic_message)
}

/// As [`contain`] for every poll of a future.
pub(crate) async fn contain_all<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match contain(|| future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(message) => Poll::Ready(Err(message)),
    })
    .await
}

fn panic_message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(panic) => {
                drop_panic(panic);
                "a panic without a message".to_owned()
            }
        },
    }
}

/// What a panic carries may panic when it is dropped. What that one carries is not tried again.
fn drop_panic(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
