//! A panic takes no delivery with it: what it drops unsettled is kept, to go back to its place.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::delivery::Delivery;

thread_local! {
    /// Whether this thread is inside of [`keeping`]. What is dropped is dropped there, on it.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Vec<Delivery>> = const { RefCell::new(Vec::new()) };
}

/// Does the work; if it panics, answers with the deliveries it had not settled, in no order.
pub(crate) async fn keeping<T>(work: impl Future<Output = T>) -> Result<T, Vec<Delivery>> {
    let mut work = pin!(work);
    poll_fn(move |cx| {
        let before = KEEPS.replace(true);
        let poll = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        KEEPS.set(before);
        match poll {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(KEPT.take())),
        }
    })
    .await
}

/// Whether what is dropped now is dropped by a panic, and may be kept.
pub(crate) fn keeps() -> bool {
    std::thread::panicking() && KEEPS.try_with(Cell::get).unwrap_or(false)
}

pub(crate) fn keep(delivery: Delivery) {
    KEPT.with_borrow_mut(|kept| kept.push(delivery));
}
