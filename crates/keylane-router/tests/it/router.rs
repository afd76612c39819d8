//! The router on the embedded queue: real files, real HTTP; and on a test source where the
//! embedded queue cannot show a case.

mod audit;
mod cascade;
mod failure_table;
mod faults;
mod lease_model;
mod leases;
mod order;
mod pools;
mod redelivery;
mod rounds;
mod stop;
#[cfg(target_os = "linux")]
mod stopped;
mod test_source;
pub(crate) mod top;
