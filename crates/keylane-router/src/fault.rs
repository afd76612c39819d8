//! Places where a test makes the process die or a step fail, each at its name.
//!
//! Built with the feature `fault` only; otherwise a point is nothing at all.

/// The process dies here if `KEYLANE_FAULT` names this point, or `name*3` at the third passing.
#[cfg(feature = "fault")]
pub(crate) fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("KEYLANE_FAULT").ok()?;
        let (name, nth) = text.split_once('*').unwrap_or((&text, "1"));
        Some((name.to_owned(), nth.parse().unwrap_or(1)))
    });
    let Some((armed, nth)) = armed else {
        return;
    };
    if armed == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *nth {
        // Not an exit: nothing is flushed, closed or waited for.
        std::process::abort();
    }
}

#[cfg(not(feature = "fault"))]
pub(crate) fn point(_: &str) {}
