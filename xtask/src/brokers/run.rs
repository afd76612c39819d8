//! A run: the brokers that were started together, in one temporary folder that says all there is to know of them.
//!
//! ```text
//! <tmp>/keylane-brokers-<clone>-<run>/
//!   owner        locked while the process lives that the run belongs to; a run of `brokers up` has none
//!   closing      there once the run is being ended: nothing may be started any more
//!   kafka/       see `server`
//! ```

use std::env;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::broker::Broker;
use super::marked;
use crate::{Result, place};

const PREFIX: &str = "keylane-brokers-";

/// A run of this clone.
pub(crate) struct Run {
    name: String,
    folder: PathBuf,
}

impl Run {
    /// The run that the commands are about, unless told otherwise: the tests' own below `xtask test`.
    pub(crate) fn current() -> Result<Self> {
        match env::var("KEYLANE_BROKERS_RUN") {
            Ok(folder) if folder.contains('/') => Self::at(Path::new(&folder)),
            Ok(name) if !name.is_empty() => Self::named(&name),
            _ => Self::named("up"),
        }
    }

    /// By its folder: below `cargo test` we cannot tell which clone we are of.
    fn at(folder: &Path) -> Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(PREFIX) {
            let folder = folder.display();
            return Err(format!(
                "KEYLANE_BROKERS_RUN: {folder} is no run's folder; give a run's name"
            )
            .into());
        }
        Ok(Self {
            name: name.into_owned(),
            folder: folder.to_owned(),
        })
    }

    pub(crate) fn named(name: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
            return Err(format!(
                "`{name}` cannot be a run's name; use up to 40 letters, digits, `-` and `_`"
            )
            .into());
        }
        let clone = fingerprint(place::root().as_os_str().as_encoded_bytes());
        let folder = temporary()?.join(format!("{PREFIX}{clone}-{name}"));
        Ok(Self {
            name: name.to_owned(),
            folder,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes its folder, for us alone.
    pub(crate) fn create(&self) -> Result<()> {
        let mut folder = DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&self.folder)?;
        if !is_ours(&self.folder) {
            let folder = self.folder.display();
            return Err(format!(
                "{folder} belongs to somebody else; set TMPDIR to a folder of yours"
            )
            .into());
        }
        Ok(())
    }

    /// Makes it the run of this process: as soon as the process is gone, however it ended, anybody may clear it away.
    /// The answer has to be kept.
    pub(crate) fn own(&self) -> Result<File> {
        self.create()?;
        // Locked before it has its name: nobody may ever see it unlocked while we live.
        let draft = self.folder.join("owner.new");
        let file = File::create(&draft)?;
        file.lock()?;
        fs::rename(draft, self.folder.join("owner"))?;
        Ok(file)
    }

    /// It belongs to no process any more, and stays until somebody ends it.
    pub(crate) fn release(&self, owner: File) -> Result<()> {
        fs::remove_file(self.folder.join("owner"))?;
        drop(owner);
        Ok(())
    }

    /// From here on nothing of it is started.
    fn close(&self) -> Result<()> {
        if self.folder.exists() {
            File::create(self.folder.join("closing"))?;
        }
        // A start that did not see it is over when its lock can be had; what it started is there to be killed.
        for broker in self.brokers() {
            if let Ok(lock) = File::create(self.folder.join(broker.name()).join("lock")) {
                lock.lock()?;
            }
        }
        Ok(())
    }

    pub(crate) fn is_closing(&self) -> bool {
        !self.folder.exists() || self.folder.join("closing").exists()
    }

    /// The brokers that it has, running or not.
    pub(crate) fn brokers(&self) -> Vec<Broker> {
        let has = |broker: &Broker| self.folder.join(broker.name()).join("ports").exists();
        Broker::ALL.into_iter().filter(has).collect()
    }

    /// Ends it: all that runs of it is killed, because with its folder go its data.
    pub(crate) fn remove(&self) -> Result<()> {
        self.close()?;
        remove(&self.folder)
    }
}

fn remove(folder: &Path) -> Result<()> {
    if !marked::kill(folder) {
        return Err(format!("processes of {} do not end", folder.display()).into());
    }
    // Somebody who was just about to start something may put one more file in.
    let removed = marked::until(Duration::from_secs(5), || {
        let _ = fs::remove_dir_all(folder);
        !folder.exists()
    });
    if removed {
        return Ok(());
    }
    Err(format!("{} cannot be removed", folder.display()).into())
}

/// The folders of all runs of this user, of all clones.
pub(crate) fn all() -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(temporary()?)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_ours(&entry.path()) {
            all.push(entry.path());
        }
    }
    Ok(all)
}

/// Clears away the runs whose process is gone.
pub(crate) fn sweep() -> Result<()> {
    for folder in all()? {
        let Ok(owner) = File::open(folder.join("owner")) else {
            continue;
        };
        if owner.try_lock().is_ok() {
            remove(&folder)?;
        }
    }
    Ok(())
}

fn is_ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::getuid().as_raw())
}

fn temporary() -> Result<PathBuf> {
    Ok(std::path::absolute(env::temp_dir())?)
}

/// Short and the same on every day (FNV-1a). Not for secrets.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A run that no other test has, cleared away in any case.
    fn run(name: &str) -> Run {
        let run = Run::named(&format!("unit-{}-{name}", std::process::id())).unwrap();
        let _ = fs::remove_dir_all(&run.folder);
        run
    }

    #[test]
    fn a_name_that_is_no_folder_is_refused_with_the_remedy() {
        for name in ["", "../up", "a b"] {
            let error = Run::named(name).err().unwrap().to_string();
            assert!(
                error.contains(&format!("`{name}`")) && error.contains("letters"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_run_is_swept_once_its_process_is_gone_with_what_it_left_running() {
        let run = run("swept");
        let owner = run.own().unwrap();
        let mut left = Command::new("sleep");
        let mut left = marked::start(left.arg("600"), &run.folder.join("kafka")).unwrap();
        sweep().unwrap();
        assert!(run.folder.exists() && left.try_wait().unwrap().is_none());
        drop(owner);
        sweep().unwrap();
        assert!(!run.folder.exists());
        assert!(!left.wait().unwrap().success());
    }

    #[test]
    fn a_run_that_belongs_to_no_process_is_not_swept() {
        let run = run("kept");
        let owner = run.own().unwrap();
        run.release(owner).unwrap();
        sweep().unwrap();
        assert!(run.folder.exists());
        run.remove().unwrap();
        assert!(!run.folder.exists());
    }

    #[test]
    fn a_closed_or_removed_run_starts_nothing() {
        let run = run("closed");
        run.create().unwrap();
        assert!(!run.is_closing());
        run.close().unwrap();
        assert!(run.is_closing());
        run.remove().unwrap();
        assert!(run.is_closing());
    }
}
