//! The router on the embedded queue: real files, real HTTP; and on a test source where the
//! embedded queue cannot show a case.

mod answers;
mod audit;
mod away;
mod broker;
mod cascade;
mod exhausted;
mod failure_table;
mod faults;
mod lease_model;
mod leases;
mod log;
mod lost_wake;
mod move_model;
mod moves;
mod odd_store;
mod order;
mod origins;
mod panics;
mod parked;
mod pools;
mod redelivery;
mod room;
mod rounds;
mod side_by_side;
mod skip;
mod soak;
mod spans;
mod spill;
mod spill_crash;
mod stop;
#[cfg(target_os = "linux")]
mod stopped;
mod store_trouble;
mod tenants;
mod test_source;
pub(crate) mod top;
mod watch;
mod workers;
