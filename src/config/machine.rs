//! Resources of the machine, or of the process's cgroup.

use std::fs;
use std::path::Path;
use std::thread;

/// Mount point of control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Assumed memory if the machine's is unknown: 1 GiB.
const FALLBACK_MEMORY_BYTES: u64 = 1 << 30;

/// The resources from which `auto` settings are derived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// CPUs this process may use, at least one.
    pub(super) cpus: usize,
    /// Memory this process may use, in bytes.
    pub(super) memory_bytes: u64,
}

impl Machine {
    /// Reads affinity, control groups and installed memory.
    pub(super) fn detect() -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let limit = cgroup_memory_bytes(Path::new(CGROUP_ROOT));
        let installed = installed_memory_bytes();
        let memory_bytes =
            limit.into_iter().chain(installed).min().unwrap_or(FALLBACK_MEMORY_BYTES);
        Self { cpus, memory_bytes }
    }

    /// Returns the number of workers for the machine, and the reason for the log.
    ///
    /// On two CPUs, the kernel's network, the journal's syncs and merges take a good part of one: a
    /// second worker costs more per command than it adds (docs/performance.md has the figures).
    pub(super) fn workers(self) -> (usize, &'static str) {
        match self.cpus {
            2 => (1, "one for two CPUs: the other serves the network, syncs and merges"),
            cpus => (cpus, "one per CPU"),
        }
    }
}

/// Returns the least memory limit on the way from this process's control group to the root, if any.
fn cgroup_memory_bytes(root: &Path) -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut limits = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (base, file) = if controllers.is_empty() {
            (root.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = base.join(group.trim_start_matches('/'));
        let levels = group.ancestors().take_while(|level| level.starts_with(&base));
        limits.extend(levels.filter_map(|level| number_in(&level.join(file))));
    }
    limits.into_iter().min()
}

/// Reads a number from a file; `None` when it says `max` or is missing.
fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns `MemTotal` of `/proc/meminfo`.
fn installed_memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_have_one_worker() {
        let workers = |cpus| Machine { cpus, memory_bytes: FALLBACK_MEMORY_BYTES }.workers().0;
        assert_eq!([1, 2, 3, 16].map(workers), [1, 1, 3, 16]);
    }
}
