//! Figures of this process from the operating system.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Resident memory.
    pub(crate) resident: u64,
    /// Maximum of the resident memory.
    pub(crate) peak: u64,
    /// Memory of the machine.
    pub(crate) installed: u64,
}

/// CPU time used, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
}

/// Reads `/proc`; a missing figure is zero.
pub(crate) fn memory() -> Memory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let resident = kib(&status, "VmRSS:");
    Memory {
        resident,
        peak: kib(&status, "VmHWM:").max(resident),
        installed: kib(&machine, "MemTotal:"),
    }
}

/// Returns the resident memory of this process in bytes.
pub(crate) fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Room on a disk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Bytes that processes without privileges may still write.
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Returns the room on the disk of a directory.
pub(crate) fn disk(dir: &Path) -> Option<Disk> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: a statvfs of zeros is a valid one.
    let mut room: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call; the path ends with a zero.
    let result = unsafe { libc::statvfs(path.as_ptr(), &raw mut room) };
    let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(room.f_frsize);
    (result == 0).then(|| Disk { free: bytes(room.f_bavail), total: bytes(room.f_blocks) })
}

/// Returns the bytes in a line such as `VmRSS:  1234 kB`.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Returns the CPU time of the process, of its children, and of this thread.
pub(crate) fn cpu() -> (CpuTime, CpuTime, CpuTime) {
    (usage(libc::RUSAGE_SELF), usage(libc::RUSAGE_CHILDREN), usage(libc::RUSAGE_THREAD))
}

fn usage(who: libc::c_int) -> CpuTime {
    // SAFETY: an rusage of zeros is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the call to fill. On failure it stays zero.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    CpuTime { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }
}

/// Returns the name, release and architecture of the operating system.
pub(crate) fn system() -> String {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().to_owned()
    };
    format!("{} {} {}", read("ostype"), read("osrelease"), std::env::consts::ARCH)
}
