//! The limit of open files, raised for clients and for the files of the data.

/// Maximum number of files that the server itself opens; of a low limit it gets half.
const OWN_FILES: u64 = 1024;

/// Raises the limit for so many clients, if the system allows that.
///
/// # Errors
/// The number of clients that fit.
pub fn make_room(clients: u32) -> Result<(), u32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for the call to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Ok(());
    }
    let wanted = u64::from(clients) + OWN_FILES;
    if limit.rlim_cur >= wanted {
        return Ok(());
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = wanted.min(limit.rlim_max);
    // SAFETY: `limit` is a valid rlimit.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0;
    let files = if failed { before } else { limit.rlim_cur };
    let fitting = files - OWN_FILES.min(files / 2);
    match u32::try_from(fitting) {
        Ok(fitting) if fitting < clients => Err(fitting.max(1)),
        _ => Ok(()),
    }
}
