//! Tasks **in order per key, concurrently across keys**.
//!
//! Submit a task under a key. Tasks of one key run one after the other, in the order in which they
//! were submitted (or up to N at a time); tasks of different keys run side by side. Limits are
//! exact, and a key that has nothing to do costs nothing.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use keylane::Executor;
//!
//! let executor = Executor::builder().concurrency(64).build().unwrap();
//! let created = executor.submit("order-1", async { "created" });
//! let paid = executor.submit("order-1", async { "paid" }); // starts when `created` has ended
//! let other = executor.submit("order-2", async { "created" }); // does not wait for either
//! assert_eq!(paid.await.ok(), Some("paid"));
//! assert!(created.is_done());
//! # other.await;
//! # }
//! ```
//!
//! # What order means
//!
//! * With lane concurrency 1 (the default) task *k + 1* of a key starts after task *k* has ended
//!   and its permits are free, always, whoever submits from wherever: the order is the order in
//!   which the submits took place.
//! * With lane concurrency *N* the *first starts* of a key's tasks happen in submit order, and
//!   never more than *N* run at once.
//! * In the [job form](JobExecutor) a job can be [put back](Reply::Hold): it keeps its place, and
//!   its lane waits with it, taking no permit.
//!
//! # Reading on
//!
//! [`Executor`] and its [`Builder`], [`TaskHandle`], [`Task`]; [`JobExecutor`] with [`Handler`] for
//! many jobs and one function; [`lanes`] for the rule itself, as plain data without a runtime.

mod builder;
mod executor;
#[cfg(feature = "metrics")]
mod export;
mod handle;
mod handler;
mod job;
pub mod lanes;
mod listener;
mod permits;
mod reject;
mod result;
mod rt;
mod rules;
mod run_all;
mod shell;
mod stats;
mod task;
mod tasks;

pub use builder::{BuildErrors, Builder};
pub use executor::{Executor, Left, Mode, SubmitWhenRoom, TaskBuilder};
pub use handle::{SharedHandle, TaskHandle};
pub use handler::{Gate, Handler, JobExecutor, NotPushed, Queued, Reply};
pub use lanes::Rate;
pub use listener::{Listener, TaskInfo};
pub use permits::Permits;
pub use reject::{Decision, Policy, Rejection};
pub use result::{Kind, Reason, Refused, Status, TaskResult, Why};
pub use rules::Limits;
pub use run_all::RunAll;
pub use stats::{KeyLimits, KeyStats, Stats};
pub use task::{Blocking, Cancelled, Fallible, Task, TaskError, Verdict, blocking, fallible};
