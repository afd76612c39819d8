//! The conformance suite on the sources that need no broker.

mod bad;
#[cfg(feature = "embedded")]
mod embedded;

/// A source that promises next to nothing: what holds here is the router's own doing.
mod on_a_bad_source {
    keylane_router::conformance_tests!(super::bad::Bad::new());
}

/// The same broker with a lock on keys, leases and a return: what a good queue service promises.
mod on_a_locking_source {
    keylane_router::conformance_tests!(super::bad::Bad::locking());
}

#[cfg(feature = "embedded")]
mod on_the_embedded_queue {
    keylane_router::conformance_tests!(super::embedded::Embedded);
}
