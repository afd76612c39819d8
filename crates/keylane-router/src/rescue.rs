//! A panic takes no delivery with it: what it drops unsettled is kept, to go back to its place.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::delivery::Delivery;

thread_local! {
    /// Whether this thread is inside of [`keeping`]. What is dropped is dropped there, on it.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Vec<Delivery>> = const { RefCell::new(Vec::new()) };
}

/// Does the work; if it panics, answers with the deliveries it had not settled, in no order.
pub(crate) fn keeping<F: Future>(work: F) -> Keeping<F> {
    Keeping { work }
}

pin_project! {
    /// By hand: an `async fn` has its argument in memory twice, and this is every attempt.
    pub(crate) struct Keeping<F> {
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Keeping<F> {
    type Output = Result<F::Output, Vec<Delivery>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.project().work;
        let before = KEEPS.replace(true);
        let poll = catch_unwind(AssertUnwindSafe(|| work.poll(cx)));
        KEEPS.set(before);
        match poll {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(KEPT.take())),
        }
    }
}

/// Whether what is dropped now is dropped by a panic, and may be kept.
pub(crate) fn keeps() -> bool {
    std::thread::panicking() && KEEPS.try_with(Cell::get).unwrap_or(false)
}

pub(crate) fn keep(delivery: Delivery) {
    KEPT.with_borrow_mut(|kept| kept.push(delivery));
}
