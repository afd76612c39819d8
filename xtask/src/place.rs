//! Where things are: the workspace, and the cache outside of it.

use std::env;
use std::path::{Path, PathBuf};

use crate::Result;

/// The workspace's root, wherever the command was called from.
pub(crate) fn root() -> PathBuf {
    // Cargo's word at run time comes first: the clone may have moved since xtask was built.
    let xtask =
        env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&xtask)
        .parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}

/// A folder for what is dear to make and belongs to no clone.
pub(crate) fn cache() -> Result<PathBuf> {
    cache_from(|name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    })
}

fn cache_from(var: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(own) = var("KEYLANE_CACHE") {
        return Ok(std::path::absolute(own)?);
    }
    let caches = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    let caches = caches.ok_or("no HOME to keep the cache in; set KEYLANE_CACHE to a folder")?;
    Ok(caches.join("keylane"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<PathBuf> {
        move |name| {
            vars.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| PathBuf::from(value))
        }
    }

    #[test]
    fn the_cache_is_ours_then_the_desktops_then_below_home() {
        let all = with(&[
            ("KEYLANE_CACHE", "/own"),
            ("XDG_CACHE_HOME", "/xdg"),
            ("HOME", "/home/me"),
        ]);
        assert_eq!(cache_from(all).unwrap(), Path::new("/own"));
        let desktop = with(&[("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me")]);
        assert_eq!(cache_from(desktop).unwrap(), Path::new("/xdg/keylane"));
        let home = with(&[("HOME", "/home/me")]);
        assert_eq!(
            cache_from(home).unwrap(),
            Path::new("/home/me/.cache/keylane")
        );
    }

    #[test]
    fn without_a_home_the_remedy_is_named() {
        let error = cache_from(with(&[])).unwrap_err().to_string();
        assert!(error.contains("KEYLANE_CACHE"), "{error}");
    }
}
