//! What is said on one thread, heard whatever other threads do.

use std::sync::OnceLock;

use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, span};

/// Has a subscriber hear this thread as long as the guard lives.
///
/// Use it where tests listen beside one another in one process:
/// [`tracing::subscriber::set_default`] alone may hear nothing. Whether anybody listens is
/// remembered for each place in the code, and where one thread alone listens, another that comes by
/// first settles it for all.
#[must_use = "it hears nothing after the guard is dropped"]
pub fn listen(subscriber: impl tracing::Subscriber + Send + Sync) -> DefaultGuard {
    static ALWAYS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    // Two, for of one alone a thread without it knows nothing.
    ALWAYS.get_or_init(|| [Dispatch::new(Asked), Dispatch::new(Asked)]);
    tracing::subscriber::set_default(subscriber)
}

/// Listens nowhere, and wants to be asked each time: so everybody is.
struct Asked;

impl tracing::Subscriber for Asked {
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts what it hears of this file.
    struct Counts(Arc<AtomicU64>);

    impl tracing::Subscriber for Counts {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == module_path!()
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    fn say() {
        tracing::error!("the same place for all");
    }

    #[test]
    fn what_a_thread_that_nobody_hears_said_first_is_heard_on_the_one_that_is() {
        let heard = Arc::default();
        let _here = listen(Counts(Arc::clone(&heard)));
        std::thread::spawn(say).join().unwrap();
        assert_eq!(heard.load(Ordering::SeqCst), 0, "of another thread");
        say();
        assert_eq!(heard.load(Ordering::SeqCst), 1);
    }
}
