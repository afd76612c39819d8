//! How many CPUs this process may use: the cgroup's quota, not the machine's count.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// The cgroup's quota rounded up, at least 1, at most the CPUs the process may run on.
///
/// Not `available_parallelism` alone: it rounds a quota of 1.5 CPUs down to 1.
pub(crate) fn cpus() -> NonZeroUsize {
    let allowed = allowed_cpus().or_else(|| std::thread::available_parallelism().ok());
    let allowed = allowed.unwrap_or(NonZeroUsize::MIN);
    quota_cpus().map_or(allowed, |quota| quota.min(allowed))
}

fn allowed_cpus() -> Option<NonZeroUsize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    NonZeroUsize::new(count_list(list.trim()))
}

/// `0-3,8` is 5.
fn count_list(list: &str) -> usize {
    let count = |part: &str| match part.split_once('-') {
        None => part.parse::<usize>().map_or(0, |_| 1),
        Some((from, to)) => match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) if from <= to => to - from + 1,
            _ => 0,
        },
    };
    list.split(',').map(count).sum()
}

/// The smallest quota of our cgroup and those around it.
fn quota_cpus() -> Option<NonZeroUsize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(group_folder)
        .flat_map(|(root, path)| folders(root, path))
        .filter_map(|f| quota_in(&f))
        .min()
}

/// A line of `/proc/self/cgroup` as the folder it is mounted in and the path inside.
fn group_folder(line: &str) -> Option<(&'static str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    match controllers {
        "" => Some(("/sys/fs/cgroup", path)),
        _ if controllers.split(',').any(|c| c == "cpu") => Some(("/sys/fs/cgroup/cpu", path)),
        _ => None,
    }
}

fn folders(root: &'static str, path: &str) -> Vec<PathBuf> {
    let inner = Path::new(path.trim_start_matches('/'));
    inner
        .ancestors()
        .map(|part| Path::new(root).join(part))
        .collect()
}

fn quota_in(folder: &Path) -> Option<NonZeroUsize> {
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    if let Some(max) = read("cpu.max") {
        let (quota, period) = max.trim().split_once(' ')?;
        return whole_cpus(quota, period);
    }
    whole_cpus(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// `None` when there is no quota (`max`, `-1`).
fn whole_cpus(quota: &str, period: &str) -> Option<NonZeroUsize> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    NonZeroUsize::new(usize::try_from(quota.div_ceil(period)).ok()?.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(quota: &str, period: &str) -> Option<usize> {
        whole_cpus(quota, period).map(NonZeroUsize::get)
    }

    #[test]
    fn a_quota_is_rounded_up_and_at_least_one() {
        assert_eq!(whole("150000", "100000"), Some(2));
        assert_eq!(whole("200000", "100000"), Some(2));
        assert_eq!(whole("1000", "100000\n"), Some(1));
    }

    #[test]
    fn no_quota_is_none() {
        assert_eq!(whole("max", "100000"), None);
        assert_eq!(whole("-1", "100000"), None);
    }

    #[test]
    fn both_versions_of_cgroups_are_found() {
        assert_eq!(group_folder("0::/a/b"), Some(("/sys/fs/cgroup", "/a/b")));
        assert_eq!(
            group_folder("4:cpu,cpuacct:/x"),
            Some(("/sys/fs/cgroup/cpu", "/x"))
        );
        assert_eq!(group_folder("5:memory:/x"), None);
        let found = folders("/r", "/a/b");
        assert_eq!(
            found,
            [Path::new("/r/a/b"), Path::new("/r/a"), Path::new("/r/")]
        );
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_list("0-3,8"), 5);
        assert_eq!(count_list("2"), 1);
    }

    #[test]
    fn there_is_always_a_cpu() {
        assert!(cpus().get() >= 1);
    }
}
