//! A copy of the workspace that may be broken.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, place};

/// The copy, with its build and logs beside it in the cache.
///
/// It stays at one place per workspace, because cargo builds anew what has moved.
pub(crate) struct Tree {
    home: PathBuf,
    /// Held while the copy is in use: two runs would break each other's code.
    _lock: File,
}

impl Tree {
    /// Brings the copy up to date with what git tracks and what it would track.
    pub(crate) fn copy(root: &Path) -> Result<Self> {
        let home = home_of(root)?;
        fs::create_dir_all(home.join("logs"))?;
        let lock = File::create(home.join("lock"))?;
        lock.try_lock()
            .map_err(|_| "another `cargo xtask mutants` of this workspace is running")?;
        mirror(root, &files_of(root)?, &home.join("tree"))?;
        Ok(Self { home, _lock: lock })
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.home.join("tree")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn build(&self) -> PathBuf {
        self.home.join("target")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.home.join("logs").join(name).with_extension("log")
    }
}

fn home_of(root: &Path) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    root.hash(&mut hasher);
    Ok(place::cache()?
        .join("mutants")
        .join(format!("{:016x}", hasher.finish())))
}

fn files_of(root: &Path) -> Result<HashSet<PathBuf>> {
    let list = Command::new("git")
        .current_dir(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .map_err(|error| format!("git, which lists the files to copy, cannot be run: {error}"))?;
    if !list.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&list.stderr).trim()
        )
        .into());
    }
    let names = String::from_utf8(list.stdout)?;
    // Git still lists what was deleted and not yet committed.
    Ok(names
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|name| root.join(name).is_file())
        .collect())
}

/// Makes `to` hold exactly `files` of `from`. Equal ones are not written, so that cargo sees only what changed.
fn mirror(from: &Path, files: &HashSet<PathBuf>, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    remove_others(to, to, files)?;
    for name in files {
        let (old, new) = (to.join(name), fs::read(from.join(name))?);
        if fs::read(&old).is_ok_and(|old| old == new) {
            continue;
        }
        fs::create_dir_all(old.parent().expect("it lies below the copy's root"))?;
        fs::write(old, new)?;
    }
    Ok(())
}

fn remove_others(folder: &Path, top: &Path, files: &HashSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            remove_others(&path, top, files)?;
        } else if !path
            .strip_prefix(top)
            .is_ok_and(|name| files.contains(name))
        {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test alone, gone at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("keylane-xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("from/src")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }

        fn mirror(&self, files: &[&str]) {
            let files = files.iter().map(PathBuf::from).collect();
            mirror(&self.0.join("from"), &files, &self.0.join("to")).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_copy_holds_the_listed_files_and_no_others() {
        let scratch = Scratch::new("copy");
        scratch.write("from/src/a.rs", "a");
        scratch.write("from/src/b.rs", "b");
        scratch.mirror(&["src/a.rs", "src/b.rs"]);
        scratch.write("to/src/left-by-a-test", "x");
        scratch.mirror(&["src/a.rs"]);
        let left: Vec<_> = fs::read_dir(scratch.0.join("to/src"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["a.rs"]);
    }

    #[test]
    fn what_an_interrupted_run_left_broken_is_mended_and_the_rest_is_left_untouched() {
        let scratch = Scratch::new("mend");
        scratch.write("from/src/a.rs", "a");
        scratch.write("from/src/b.rs", "b");
        scratch.mirror(&["src/a.rs", "src/b.rs"]);
        let written = |name: &str| {
            fs::metadata(scratch.0.join(name))
                .unwrap()
                .modified()
                .unwrap()
        };
        let untouched = written("to/src/b.rs");
        scratch.write("to/src/a.rs", "broken");
        scratch.mirror(&["src/a.rs", "src/b.rs"]);
        assert_eq!(
            fs::read_to_string(scratch.0.join("to/src/a.rs")).unwrap(),
            "a"
        );
        assert_eq!(written("to/src/b.rs"), untouched);
    }
}
