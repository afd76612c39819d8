//! The lock file: it says which process owns the data folder.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::{OpenError, private};

/// Owns the data folder while it lives; the system takes it back when the process dies.
#[derive(Debug)]
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock or says who has it.
    pub(super) fn try_take(folder: &Path) -> Result<Self, OpenError> {
        let (path, file) = open(folder)?;
        match file.try_lock() {
            Ok(()) => Self::sign(path, file),
            Err(TryLockError::WouldBlock) => Err(OpenError::Held {
                by: holder(&path),
                lock: path,
            }),
            Err(TryLockError::Error(source)) => Err(OpenError::Folder { path, source }),
        }
    }

    /// Waits for the lock without polling: a thread sleeps in the system's own queue. When nobody
    /// waits any more, the thread gives the lock back as soon as it gets it.
    pub(super) async fn wait(folder: &Path) -> Result<Self, OpenError> {
        let (path, file) = open(folder)?;
        let (send, receive) = oneshot::channel();
        let at = path.clone();
        std::thread::Builder::new()
            .name("keylane-standby".into())
            .spawn(move || {
                let taken = file.lock().map(|()| file);
                // An unwanted lock is dropped, and with it released.
                let _ = send.send(taken);
            })
            .map_err(|source| OpenError::Folder { path, source })?;
        match receive.await.expect("the standby thread always answers") {
            Ok(file) => Self::sign(at, file),
            Err(source) => Err(OpenError::Folder { path: at, source }),
        }
    }

    fn sign(path: PathBuf, mut file: File) -> Result<Self, OpenError> {
        let pid = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(pid.as_bytes()))
            .map_err(|source| OpenError::Folder { path, source })?;
        Ok(Self { _file: file })
    }
}

fn open(folder: &Path) -> Result<(PathBuf, File), OpenError> {
    let path = folder.join("keylane.lock");
    // Not truncated: the holder's pid stays readable for whoever is refused.
    let file = private()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    match file {
        Ok(file) => Ok((path, file)),
        Err(source) => Err(OpenError::Folder { path, source }),
    }
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), pid) if !pid.is_empty() => format!("process {pid}"),
        _ => "another process".into(),
    }
}
