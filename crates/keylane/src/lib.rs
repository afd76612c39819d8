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
//!   never more than *N* run at once. The first step of a task, up to its first wait, is over before
//!   that of the next begins, on whatever worker; after that they run as they come. So work that
//!   never waits goes one after the other within its key: make it [`blocking`]. (At the moment when
//!   lane concurrency is raised from 1, a task that was just started may still be in its first step.)
//! * In the [job form](JobExecutor) a job can be [put back](Reply::Hold): it keeps its place, and
//!   its lane waits with it, taking no permit.
//!
//! # Options
//!
//! Each is a method of [`Builder`]; [`Executor::set_limits`] changes those marked *live* while the
//! executor runs.
//!
//! | option | default | |
//! |---|---|---|
//! | [`name`](Builder::name) | `keylane` | in spans, logs and metrics |
//! | [`concurrency`](Builder::concurrency), [`max_in_flight`](Builder::max_in_flight) | no limit | running at once, of all keys; the smaller counts; *live* |
//! | [`lane_concurrency`](Builder::lane_concurrency) | 1 | running at once, of one key; *live* |
//! | [`lane_concurrency_for`](Builder::lane_concurrency_for) | none | the same for single keys; asked first |
//! | [`lane_concurrency_by`](Builder::lane_concurrency_by) | none | the same by a function; asked second |
//! | [`max_in_flight_per_key`](Builder::max_in_flight_per_key) | no limit | the smaller of this and lane concurrency counts; *live* |
//! | [`max_in_flight_for`](Builder::max_in_flight_for) | none | the same for single keys |
//! | [`queue_limit`](Builder::queue_limit) | no limit | waiting only for the limit of all; 0 means none may; *live* |
//! | [`queue_limit_per_key`](Builder::queue_limit_per_key) | no limit | waiting for their own key; 0 means none may; *live* |
//! | [`queue_limit_for`](Builder::queue_limit_for) | none | the same for single keys |
//! | [`on_reject`](Builder::on_reject) | [`Policy::Abort`] | what becomes of a task without room |
//! | [`reject_with`](Builder::reject_with) | none | a function that decides; wins over the policy |
//! | [`listener`](Builder::listener) | none | is told what happens to tasks |
//! | [`rate`](Builder::rate) | no limit | starts per time, of all keys; *live* |
//! | [`per_key_rate`](Builder::per_key_rate) | no limit | starts per time, of each key; *live* |
//! | [`per_key_rate_by`](Builder::per_key_rate_by) | none | the same by a function |
//! | [`turn`](Builder::turn) | 1 | starts of a key before the next ready key's turn; *live* |
//! | [`tenant_by`](Builder::tenant_by) | no tenants | whose key it is, for fair shares |
//! | [`maybe_tenant_by`](Builder::maybe_tenant_by) | no tenants | the same, where not every key is somebody's |
//! | [`weight_by`](Builder::weight_by) | 1 | a tenant's share |
//! | [`resolve_once`](Builder::resolve_once) | false | keep what the functions said until the key is evicted or the limits change |
//! | [`shared_permits`](Builder::shared_permits) | none | a limit shared with other executors |
//! | [`runtime`](Builder::runtime) | the current one | the tokio runtime to run on |
//!
//! # Cancellation safety
//!
//! What happens when a future of this crate is dropped before it is ready:
//!
//! | future | dropped |
//! |---|---|
//! | [`TaskHandle`], [`SharedHandle`] | the wait ends, the task goes on (under [`Policy::CallerRuns`] the task is cancelled: its handle is what runs it) |
//! | [`TaskHandle::wait_timeout`] | nothing is lost; wait again |
//! | [`Executor::submit_when_room`] | the place is given up and the task does not run |
//! | [`Executor::run_all`] | what was submitted goes on (under [`Policy::CallerRuns`] what it was to run itself is cancelled) |
//! | [`Executor::idle`], [`Executor::all_idle`], and those of [`JobExecutor`] | nothing is lost; wait again |
//! | [`Executor::shutdown`] | the executor takes nothing more, but nothing is stopped; call it again |
//! | [`JobExecutor::drain`] | the executor is draining all the same; call it again |
//!
//! A task that is cancelled while it runs is dropped at its next await: what it may lose there is up
//! to the task. Blocking work is never cut off.
//!
//! # What to know
//!
//! * A task that awaits another of its own key waits for ever: the other starts when this one has
//!   ended. So does a task that awaits any other at [`concurrency(1)`](Builder::concurrency), and
//!   so do as many as there are permits, each of which awaits one that has none. Submit the next
//!   step and end, or await it outside.
//! * A task that holds a clone of its executor keeps it alive: it does not stop when all other
//!   clones are dropped. [`shutdown`](Executor::shutdown) ends it all the same.
//! * Tasks that start together are polled one after the other by one worker, up to the first wait of
//!   each. One that computes for long before it waits, or blocks in place, delays those behind it, up
//!   to 255 tasks of whatever keys; what is submitted later is not delayed by more than about a
//!   millisecond. Such work belongs into [`blocking`], and must where it waits for another task.
//! * A key's `Hash`, `Eq`, `Clone` and `Drop` run under the executor's lock: they must not call it.
//! * A key is cloned a few times for each task. For text, take `Arc<str>` rather than `String`.
//!
//! # Observing
//!
//! [`Executor::stats`] and [`Executor::stats_of`] say what is going on, a [`Listener`] hears of every
//! task, and a [`TaskResult`] says how long its task waited and ran. Beside that:
//!
//! Each task runs in a [`tracing`] span `task` of level debug, with the fields `executor` (the
//! [`name`](Builder::name)) and `slot` (a number that no other has while it runs, below the most
//! that ever ran at once). Jobs of a [`JobExecutor`] have none, nor do tasks outside the limits
//! ([`Policy::RunUnlimited`]); what blocks ([`blocking`]) or is run by its handle
//! ([`Policy::CallerRuns`]) is not inside its span.
//!
//! The log has one kind of line, of level error and with the field `executor`:
//! `a … panicked: <message>`. It is written for each panic that was contained, of a `task`, a
//! `result` that nobody took, a `listener`, a `rejection handler`, one of the builder's functions (by its name, as
//! `lane_concurrency_by`), and in the job form of a `handler`, a `gate` or a `flush`. How a task
//! failed is not logged: that is in its result, and a listener hears it.
//!
//! The feature `metrics` exports these through the [`metrics`](https://docs.rs/metrics) facade, each
//! with the label `executor`. The recorder must be there before the executor is built. No label is
//! ever a key.
//!
//! | metric | kind | |
//! |---|---|---|
//! | `keylane_executor_queued` | gauge | tasks or jobs that wait |
//! | `keylane_executor_running` | gauge | tasks or jobs between start and end |
//! | `keylane_executor_live_keys` | gauge | keys that have something waiting or running |
//! | `keylane_executor_rejected_total` | counter | as [`Stats::rejected`]; of a [`JobExecutor`] always 0 |
//!
//! # Reading on
//!
//! [`Executor`] and its [`Builder`], [`TaskHandle`], [`Task`]; [`JobExecutor`] with [`Handler`] for
//! many jobs and one function; [`lanes`] for the rule itself, as plain data without a runtime.

mod builder;
mod cell;
mod clock;
mod executor;
#[cfg(feature = "metrics")]
mod export;
mod handle;
mod handler;
mod job;
mod joint;
pub mod lanes;
mod listener;
mod near;
mod permits;
mod reject;
mod result;
mod rt;
mod rules;
mod run_all;
mod shell;
mod stats;
mod stops;
mod task;
mod tasks;
mod tracked;

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

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
