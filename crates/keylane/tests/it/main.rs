//! The tests of the crate, in one program.

#[cfg(not(keylane_shuttle))]
mod handles;
#[cfg(not(keylane_shuttle))]
mod jobs;
#[cfg(not(keylane_shuttle))]
mod keys;
mod lanes_cost;
mod lanes_model;
#[cfg(not(keylane_shuttle))]
mod limits;
#[cfg(not(keylane_shuttle))]
mod listener;
#[cfg(all(feature = "metrics", not(keylane_shuttle)))]
mod metrics;
#[cfg(not(keylane_shuttle))]
mod million;
#[cfg(not(keylane_shuttle))]
mod order;
#[cfg(not(keylane_shuttle))]
mod outputs;
#[cfg(not(keylane_shuttle))]
mod panics;
#[cfg(not(keylane_shuttle))]
mod permits;
#[cfg(not(keylane_shuttle))]
mod rates;
#[cfg(not(keylane_shuttle))]
mod rejection;
#[cfg(not(keylane_shuttle))]
mod run_all;
#[cfg(not(keylane_shuttle))]
mod shutdown;
#[cfg(keylane_shuttle)]
mod shuttle;
#[cfg(not(keylane_shuttle))]
mod support;
#[cfg(not(keylane_shuttle))]
mod tenants;
#[cfg(not(keylane_shuttle))]
mod tracing;
