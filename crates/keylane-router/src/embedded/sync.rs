//! Puts the log on disk behind the writer's back: who need not wait for the disk does not.
//!
//! What is committed and not on disk yet survives the end of the process, and not that of the
//! machine. A sync follows, one at a time and no more often than each [`APART`]: a power cut undoes
//! the acks since the last one or two, and what they ended is delivered again.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From the beginning of a sync to that of the next. On a quick disk a sync could follow each commit,
/// and took a twentieth of all CPU then.
const APART: Duration = Duration::from_millis(5);

/// Owned by the writer's thread; ended with it.
#[derive(Debug)]
pub(super) struct Syncer {
    /// Room for one: who finds it taken is covered by the sync that follows. `None` without a thread.
    wanted: Option<SyncSender<()>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Acks that were committed so far. Written by the writer.
    committed: AtomicU64,
    /// Acks that were committed before a sync that succeeded. Written by the syncer.
    synced: AtomicU64,
    /// A sync failed: nobody knows what of the log is on disk. Taken by the writer.
    failed: AtomicBool,
}

impl Syncer {
    /// Starts the thread that syncs the log of this file.
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        let log = PathBuf::from(log);
        Self::start_with(move || sync(&log))
    }

    /// Never syncs: everything that is committed counts as synced.
    pub(super) fn threadless() -> Self {
        Self {
            wanted: None,
            shared: Arc::default(),
            thread: None,
        }
    }

    pub(super) fn start_with(
        mut sync: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (wanted, requests) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new().name("keylane-sync".into());
        let thread = thread.spawn({
            let shared = shared.clone();
            move || {
                while requests.recv().is_ok() {
                    let begun = Instant::now();
                    let committed = shared.committed.load(Ordering::SeqCst);
                    match sync() {
                        Ok(()) => shared.synced.store(committed, Ordering::SeqCst),
                        Err(error) => {
                            tracing::warn!(%error, "the log of keylane.db could not be synced");
                            shared.failed.store(true, Ordering::SeqCst);
                        }
                    }
                    std::thread::sleep(APART.saturating_sub(begun.elapsed()));
                }
            }
        })?;
        Ok(Self {
            wanted: Some(wanted),
            shared,
            thread: Some(thread),
        })
    }

    /// So many more acks were committed, and are not on disk.
    pub(super) fn committed(&self, acks: usize) {
        self.shared
            .committed
            .fetch_add(acks as u64, Ordering::SeqCst);
        let Some(wanted) = &self.wanted else {
            let committed = self.shared.committed.load(Ordering::SeqCst);
            return self.shared.synced.store(committed, Ordering::SeqCst);
        };
        match wanted.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => self.fail(),
        }
    }

    /// Acks that may not be on disk.
    pub(super) fn behind(&self) -> u64 {
        let synced = self.shared.synced.load(Ordering::SeqCst);
        self.shared.committed.load(Ordering::SeqCst) - synced
    }

    /// The log is not to be relied on, still.
    pub(super) fn fail(&self) {
        self.shared.failed.store(true, Ordering::SeqCst);
    }

    /// Whether a sync failed since this was asked last.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.failed.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// By name each time: the log is another file after the writer's connection was opened anew. Where
/// there is none, everything in it was folded into the file.
fn sync(log: &Path) -> io::Result<()> {
    // Windows syncs only what may be written to.
    match OpenOptions::new().write(true).open(log) {
        Ok(log) => log.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says when a sync begins, and lets it end when told to. The last is dropped first: a test that
    /// fails waits for no sync.
    fn gated() -> (mpsc::Receiver<()>, Syncer, mpsc::Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (go, may_end) = mpsc::channel::<()>();
        let syncer = Syncer::start_with(move || {
            begun.send(()).expect("the test listens");
            may_end.recv().map_err(|_| io::ErrorKind::Other.into())
        });
        (begins, syncer.expect("starts"), go)
    }

    #[test]
    fn what_is_committed_during_a_sync_is_covered_by_the_next() {
        let (begins, syncer, go) = gated();
        syncer.committed(1);
        begins.recv().expect("a sync begins");
        syncer.committed(10);
        syncer.committed(100);
        assert_eq!(syncer.behind(), 111);
        go.send(()).expect("it waits");
        begins.recv().expect("another begins");
        assert_eq!(syncer.behind(), 110);
        go.send(()).expect("it waits");
        while syncer.behind() > 0 {
            std::thread::yield_now();
        }
        assert!(!syncer.has_failed());
    }

    #[test]
    fn what_was_committed_is_on_disk_when_it_ends() {
        let (begins, syncer, go) = gated();
        syncer.committed(1);
        begins.recv().expect("a sync begins");
        // Too late for the sync that is on its way.
        syncer.committed(10);
        let shared = syncer.shared.clone();
        go.send(()).expect("it waits");
        go.send(()).expect("it waits");
        drop(syncer);
        assert_eq!(shared.synced.load(Ordering::SeqCst), 11);
    }

    #[test]
    fn a_sync_that_fails_is_told_once_and_nothing_counts_as_synced() {
        let syncer = Syncer::start_with(|| Err(io::ErrorKind::Other.into())).expect("starts");
        syncer.committed(5);
        while !syncer.has_failed() {
            std::thread::yield_now();
        }
        assert_eq!(syncer.behind(), 5);
        assert!(!syncer.has_failed());
    }

    #[test]
    fn a_log_that_is_gone_is_on_disk_already() {
        let folder = tempfile::tempdir().expect("a temp folder");
        assert!(sync(&folder.path().join("keylane.db-wal")).is_ok());
    }
}
