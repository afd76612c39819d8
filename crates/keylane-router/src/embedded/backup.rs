//! A live copy of the file, while publishers and readers go on.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Db, private, schema};

/// No copy was made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is there already.
    #[error("{0} exists; name a new file")]
    Exists(PathBuf),
    /// The copy could not be written.
    #[error("{file}: {text}")]
    Failed {
        /// Where to.
        file: PathBuf,
        /// What went wrong.
        text: String,
    },
}

impl Db {
    /// Copies the file as it is at one moment to `to`, which must not exist. The copy is complete
    /// and on disk when this answers; put in a data folder as `keylane.db` it is opened like any.
    pub async fn backup(&self, to: impl Into<PathBuf>) -> Result<(), BackupError> {
        let (from, to) = (self.shared.file.clone(), to.into());
        let file = to.clone();
        let copied = tokio::task::spawn_blocking(move || copy(&from, &to)).await;
        copied.unwrap_or_else(|panic| Err(failed(&file, panic)))
    }
}

/// Under another name first: a copy that was cut short is never taken for one.
fn copy(from: &Path, to: &Path) -> Result<(), BackupError> {
    if to.exists() {
        return Err(BackupError::Exists(to.into()));
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let _ = std::fs::remove_file(&partial);
    let written = make_private(&partial)
        .and_then(|()| vacuum_into(from, &partial))
        .and_then(|()| std::fs::rename(&partial, to).map_err(|error| failed(to, error)))
        .and_then(|()| sync_folder(to));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// Messages carry tokens: nobody else may read the copy, wherever it is put.
fn make_private(partial: &Path) -> Result<(), BackupError> {
    let made = private().write(true).create_new(true).open(partial);
    made.map(drop).map_err(|error| failed(partial, error))
}

/// Not SQLite's backup API: that begins anew whenever another connection writes, and here one
/// always does. `VACUUM INTO` reads one snapshot.
fn vacuum_into(from: &Path, partial: &Path) -> Result<(), BackupError> {
    let connection = schema::open_reader(from).map_err(|error| failed(from, error))?;
    let name = partial
        .to_str()
        .ok_or_else(|| failed(partial, "the path is not UTF-8"))?;
    connection
        .execute("VACUUM INTO ?", [name])
        .map_err(|error| failed(partial, error))?;
    File::open(partial)
        .and_then(|file| file.sync_all())
        .map_err(|error| failed(partial, error))
}

fn sync_folder(file: &Path) -> Result<(), BackupError> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| failed(file, error))
}

fn failed(file: &Path, error: impl ToString) -> BackupError {
    BackupError::Failed {
        file: file.into(),
        text: error.to_string(),
    }
}
