//! What the executor says in spans and in the log.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};

use keylane::{Executor, Gate, Handler, Listener, Queued, Reply, TaskInfo};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::support::Door;

/// Writes down the executor's spans and events, each as a line. Clones are the same list.
#[derive(Clone, Default)]
struct Traced {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Traced {
    /// Hears this thread as long as the guard lives.
    fn listen() -> (Self, DefaultGuard) {
        static ALWAYS: OnceLock<[Dispatch; 2]> = OnceLock::new();
        // Whether anybody listens is remembered for each place in the code. With fewer than two that
        // always want to be asked, another test that comes by first settles it for all threads.
        ALWAYS.get_or_init(|| [(); 2].map(|()| Dispatch::new(Self::default())));
        let traced = Self::default();
        let guard = tracing::subscriber::set_default(traced.clone());
        (traced, guard)
    }

    fn push(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn note(&self, metadata: &Metadata<'_>, visit: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{} {}", metadata.level(), metadata.name()));
        visit(&mut line);
        self.push(line.0);
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// What the log says, without where in the code it says so.
    fn errors(&self) -> Vec<String> {
        let lines = self.lines();
        let said = lines.iter().filter(|line| line.starts_with("ERROR"));
        said.map(|line| {
            line[line.find(" message=").unwrap_or(0)..]
                .trim()
                .to_owned()
        })
        .collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Traced {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("keylane")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.note(event.metadata(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {
        self.push("enter".to_owned());
    }

    fn exit(&self, _: &Id) {
        self.push("exit".to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn each_task_runs_in_a_span_that_names_its_executor_and_its_slot() {
    let (traced, _listens) = Traced::listen();
    let executor = Executor::builder().name("orders").build().unwrap();
    let inside = traced.clone();
    let task = async move {
        tokio::task::yield_now().await;
        inside.push("works".to_owned());
    };
    executor.submit("a", task).await;
    executor.post("b", async {}).unwrap();
    executor.all_idle().await;
    let expected = [
        "DEBUG task executor=\"orders\" slot=0",
        "enter",
        "exit",
        "enter",
        "works",
        "exit",
        "DEBUG task executor=\"orders\" slot=0",
        "enter",
        "exit",
    ];
    assert_eq!(traced.lines(), expected);
}

/// Panics when it is told of a start.
struct Startled;

impl Listener<&'static str> for Startled {
    fn started(&self, _: &TaskInfo<&'static str>, _: std::time::Duration) {
        panic!("started");
    }
}

#[tokio::test(start_paused = true)]
async fn every_panic_is_a_line_in_the_log_that_names_the_executor_and_who_it_was() {
    let (traced, _listens) = Traced::listen();
    let executor = Executor::builder()
        .name("orders")
        .queue_limit_per_key(0)
        .lane_concurrency_by(|_: &&str| panic!("limits"))
        .reject_with(|_| panic!("decides"))
        .listener(Startled)
        .build()
        .unwrap();
    let door = Door::closed();
    let first = executor.submit("a", door.passes(()));
    executor.submit("a", async {}).await;
    door.let_in(1);
    first.await;
    executor.submit("a", async { panic!("works") }).await;
    let lines = traced.errors();
    for what in [
        "a lane_concurrency_by panicked: limits",
        "a rejection handler panicked: decides",
        "a listener panicked: started",
        "a task panicked: works",
    ] {
        let line = format!("message={what} executor=\"orders\"");
        assert!(lines.contains(&line), "{what}: {lines:#?}");
    }
    let panics = executor.stats().panics;
    assert_eq!(lines.len() as u64, panics, "{lines:#?}");
}

/// Panics wherever it is asked.
struct Clumsy;

impl Handler<&'static str, u8> for Clumsy {
    fn gate(&self, job: &u8) -> Gate {
        assert!(*job != 0, "gate");
        Gate::Go
    }

    async fn handle(&self, job: u8, _: usize) -> Reply<u8> {
        assert!(job != 1, "handle");
        Reply::Flush { job: Some(job) }
    }

    async fn flushed(&self, _: &'static str, _: Vec<Queued<u8>>) -> Vec<Queued<u8>> {
        panic!("flushed")
    }
}

#[tokio::test(start_paused = true)]
async fn every_panic_around_jobs_is_a_line_in_the_log_too() {
    let (traced, _listens) = Traced::listen();
    let builder = Executor::builder().name("parcels");
    let jobs = builder.build_with(Clumsy).unwrap();
    for job in 0..3 {
        jobs.push("a", job).unwrap();
        jobs.all_idle().await;
    }
    let lines = traced.errors();
    let expected = [
        "gate panicked: gate",
        "flush panicked: flushed",
        "handler panicked: handle",
    ]
    .map(|what| format!("message=a {what} executor=\"parcels\""));
    for line in expected {
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
}
