//! Routers in processes of their own, to be killed or frozen.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::cases::flaky;
use super::rig::{Bench, PATIENCE, SOURCE, Setup, fail, first_violations};
use super::store::MemoryStore;
use super::subject::Queue;
use super::suite::End;
use super::target::{Answer, Target};
use super::watched::{Watch, Watched};
use crate::Router;
use crate::chance::Chance;
use crate::history::{self, By, Event, EventKind, History, Recorder, Report};
use crate::plan::Instances;
use crate::source::{Features, Source};

/// Tells a child where its history goes.
const HISTORY: &str = "KEYLANE_CONFORMANCE_HISTORY";
/// Tells a child that it shares its queue with others.
const SHARED: &str = "KEYLANE_CONFORMANCE_SHARED";
/// Attempts at once.
const CONCURRENCY: usize = 8;
/// A router that stops has nothing to do for this long.
const QUIET: Duration = Duration::from_millis(300);

/// What it has out at once.
pub(super) const WINDOW: u64 = 100;

/// What a crash may repeat: what runs, and as many that are not settled, or as many as the source
/// settles at once.
pub(super) fn unsettled(features: &Features) -> u64 {
    (CONCURRENCY + CONCURRENCY.max(features.settles)) as u64
}

/// Runs a router on the queue until the input of this process ends, or it is killed. What
/// [`Queue::child`] starts must call this and nothing else.
///
/// # Panics
/// When it was not started by the suite.
pub async fn run_child<Q: Queue>(queue: Q) {
    let path = std::env::var(HISTORY).expect("the suite sets it");
    let history = Arc::new(Recorder::to_file(path).expect("the history can be written"));
    let setup = setup();
    let store = queue.store();
    let store = store.unwrap_or_else(|| Arc::new(MemoryStore::default()));
    let source = queue.connect(SOURCE.into(), &setup.source).await;
    let source = source.expect("the source can be made");
    let quiet = QUIET + source.features().lease.unwrap_or_default().min(QUIET);
    let watch = Watch::new(source.features(), history.clone());
    let target = Target::new(history.clone(), watch.clone(), setup.script).keeping_nothing();
    let source = Watched::new(source, watch.clone());
    let router = Router::builder()
        .plan(setup.plan)
        .shared_store(store)
        .dispatch(target)
        .history(history);
    let router = router.source(SOURCE, source).start().await;
    let router = router.expect("the router starts");
    input_ends().await;
    nothing_comes(&watch, quiet).await;
    router.stop(Duration::from_secs(10)).await;
}

fn setup() -> Setup {
    // Another process, another row of chances.
    let flaky = flaky(Arc::new(Chance::new(std::process::id().into())));
    let shared = std::env::var_os(SHARED).is_some();
    // Long enough to be found in the middle of something.
    let pause = Duration::from_millis(if shared { 10 } else { 1 });
    let mut setup = Setup::new();
    if shared {
        setup.source.instances = Instances::Many;
    }
    setup
        .patient()
        .window(WINDOW as usize)
        .pool(|pool| pool.concurrency = std::num::NonZeroUsize::new(CONCURRENCY))
        .script(move |call| {
            let answer = flaky(call);
            let after = answer.after.max(pause);
            Answer { after, ..answer }
        })
}

/// Whoever started this process has closed its end of the pipe, or is gone.
async fn input_ends() {
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await;
}

/// Nothing is out and nothing was received for so long: loans that ended have come again.
async fn nothing_comes(watch: &Watch, quiet: Duration) {
    loop {
        let received = watch.received();
        tokio::time::sleep(quiet).await;
        if watch.out() == 0 && watch.received() == received {
            return;
        }
    }
}

/// The routers of one case, one after the other or side by side.
pub(super) struct Children<'a> {
    bench: &'a Bench,
    file: HistoryFile,
    /// At least one.
    running: Vec<Running>,
    /// Whether they share the queue.
    shared: bool,
}

/// A file of its own that goes with this.
struct HistoryFile(PathBuf);

impl Drop for HistoryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A process that is killed with this.
struct Running(Child);

impl Running {
    /// Waits for its end, which should be a good one.
    async fn stops(&mut self) -> Result<(), End> {
        let patience = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return fail(format!("the router ended with {status}")),
                _ if tokio::time::Instant::now() > patience => {
                    return fail("the router did not stop".to_owned());
                }
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Stands still from now on; answers when it does.
    #[cfg(unix)]
    fn freeze(&self) -> Result<(), String> {
        use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
        let pid = self.pid()?;
        kill_process(pid, Signal::STOP).map_err(|error| error.to_string())?;
        let waited = waitpid(Some(pid), WaitOptions::UNTRACED);
        match waited.map_err(|error| error.to_string())? {
            Some((_, status)) if status.stopped() => Ok(()),
            other => Err(format!("it ended instead: {other:?}")),
        }
    }

    #[cfg(unix)]
    fn thaw(&self) -> Result<(), String> {
        use rustix::process::{Signal, kill_process};
        kill_process(self.pid()?, Signal::CONT).map_err(|error| error.to_string())
    }

    #[cfg(unix)]
    fn pid(&self) -> Result<rustix::process::Pid, String> {
        let pid = i32::try_from(self.0.id()).map_err(|error| error.to_string())?;
        rustix::process::Pid::from_raw(pid).ok_or_else(|| "no process has the id 0".to_owned())
    }

    #[cfg(not(unix))]
    fn freeze(&self) -> Result<(), String> {
        Err("processes cannot be frozen here".to_owned())
    }

    #[cfg(not(unix))]
    fn thaw(&self) -> Result<(), String> {
        Err("processes cannot be frozen here".to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> Children<'a> {
    /// One router, which has the queue to itself.
    pub(super) async fn new(bench: &'a Bench) -> Result<Self, End> {
        Self::begin(bench, false).await
    }

    /// One router, and others may join.
    pub(super) async fn shared(bench: &'a Bench) -> Result<Self, End> {
        Self::begin(bench, true).await
    }

    async fn begin(bench: &'a Bench, shared: bool) -> Result<Self, End> {
        let name = format!("keylane-conformance-{}.jsonl", uuid::Uuid::now_v7());
        let file = HistoryFile(std::env::temp_dir().join(name));
        let mut children = Self {
            bench,
            file,
            running: Vec::new(),
            shared,
        };
        children.joins().await?;
        Ok(children)
    }

    /// One more router reads the queue.
    pub(super) async fn joins(&mut self) -> Result<(), End> {
        let child = start(self.bench, &self.file, self.shared).await?;
        self.running.push(child);
        Ok(())
    }

    /// Lets this router stand still, and all that it has under way with it.
    pub(super) fn freeze(&self, which: usize) -> Result<(), End> {
        let frozen = self.running[which].freeze();
        frozen.map_err(|text| End::Failed(format!("a router could not be frozen: {text}")))?;
        // What it has out may come again elsewhere.
        let event = Event::new(EventKind::Rebalance, By::Router);
        self.bench.record(event);
        Ok(())
    }

    /// Lets it go on.
    pub(super) fn thaw(&self, which: usize) -> Result<(), End> {
        let thawed = self.running[which].thaw();
        thawed.map_err(|text| End::Failed(format!("a router could not go on: {text}")))
    }

    /// Kills the router once it has delivered so many more, and starts the next.
    pub(super) async fn kill_after(&mut self, more: u64) -> Result<(), End> {
        self.deliver(more).await?;
        self.running.clear();
        let crash = Event::new(EventKind::Crash, By::Router);
        self.bench.record(crash);
        let restart = Event::new(EventKind::Restart, By::Router);
        self.bench.record(restart);
        self.joins().await
    }

    /// Waits until so many more were delivered.
    pub(super) async fn deliver(&mut self, more: u64) -> Result<(), End> {
        let wanted = self.delivered()? + more;
        self.wait_for(|me| Ok(me.delivered()? >= wanted)).await
    }

    /// How many bytes the router has grown by at the most while it delivered so many. What it has when
    /// it opens its history, before it connects, is what it begins with.
    pub(super) async fn grown_by(&mut self, delivered: u64) -> Result<u64, End> {
        let pid = self.running[0].0.id();
        self.wait_for(|me| Ok(me.file.0.exists())).await?;
        let before = memory(pid)?;
        let most = std::cell::Cell::new(before);
        self.wait_for(|me| {
            most.set(most.get().max(memory(pid)?));
            Ok(me.delivered()? >= delivered)
        })
        .await?;
        Ok(most.get() - before)
    }

    /// Waits until all was delivered, and lets the last router stop as it should.
    pub(super) async fn finish(&mut self, all: u64) -> Result<(), End> {
        self.until_all(all).await?;
        self.stops().await
    }

    /// Another router finds what is left, if anything.
    pub(super) async fn finish_rest(&mut self) -> Result<(), End> {
        self.running.clear();
        self.joins().await?;
        self.stops().await
    }

    async fn stops(&mut self) -> Result<(), End> {
        for child in &mut self.running {
            drop(child.0.stdin.take());
        }
        for child in &mut self.running {
            child.stops().await?;
        }
        Ok(())
    }

    pub(super) fn verdict(&self, options: &history::Options) -> Result<Report, End> {
        let report = self.bench.check(self.history()?, options);
        match report.is_green() {
            true => Ok(report),
            false => fail(first_violations(&report)),
        }
    }

    /// Waits until all was delivered, each counted once.
    pub(super) async fn until_all(&mut self, all: u64) -> Result<(), End> {
        self.wait_for(|me| {
            let report = me.bench.check(me.history()?, &history::Options::default());
            Ok(report.counts.delivered >= all)
        })
        .await
    }

    async fn wait_for(&mut self, so: impl Fn(&Self) -> Result<bool, End>) -> Result<(), End> {
        let patience = tokio::time::Instant::now() + PATIENCE;
        while !so(self)? {
            for child in &mut self.running {
                if let Ok(Some(status)) = child.0.try_wait() {
                    return fail(format!("the router ended by itself with {status}"));
                }
            }
            if tokio::time::Instant::now() > patience {
                let report = self
                    .bench
                    .check(self.history()?, &history::Options::default());
                return fail(format!("the router stands still: {}", report.counts));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Deliveries so far, repeated ones included.
    fn delivered(&self) -> Result<u64, End> {
        let text = std::fs::read(&self.file.0).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        let delivered = lines.filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains("\"outcome\":\"delivered\"")
        });
        Ok(delivered.count() as u64)
    }

    /// What all routers wrote, and what we did.
    fn history(&self) -> Result<History, End> {
        let mut history = History::default();
        history.extend(&self.bench.history.events());
        let text = std::fs::read(&self.file.0).unwrap_or_default();
        let read = history.read(&*text);
        read.map_err(|error| End::Failed(format!("the history cannot be read: {error}")))?;
        Ok(history)
    }
}

/// What a process has allocated, in bytes; its program and files are no part of it.
fn memory(pid: u32) -> Result<u64, End> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|error| End::Failed(format!("it cannot be weighed: {error}")))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .ok_or_else(|| End::Failed("its status has no RssAnon".to_owned()))
}

async fn start(bench: &Bench, file: &HistoryFile, shared: bool) -> Result<Running, End> {
    let Some(mut command) = bench.queue.child().await else {
        return fail("its subject has no process for a router any more".to_owned());
    };
    if shared {
        command.env(SHARED, "1");
    }
    let child = command
        .env(HISTORY, &file.0)
        // Large bodies go back to the system when they are freed: what is weighed is what the router
        // holds, not what the C library keeps for later.
        .env("MALLOC_MMAP_THRESHOLD_", "32768")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let child = child.map_err(|error| End::Failed(format!("the router does not start: {error}")));
    Ok(Running(child?))
}
