//! The limit of open files, raised for clients and for the files of the data.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum number of files that the server itself opens; of a low limit it gets half.
const OWN_FILES: u64 = 1024;

/// Raises the limit for so many clients, if the system allows that.
///
/// # Errors
/// The number of clients that fit.
pub fn make_room(clients: u32) -> Result<(), u32> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = u64::from(clients) + OWN_FILES;
    let before = limit.current.unwrap_or(u64::MAX);
    if before >= wanted {
        return Ok(());
    }
    let raised = wanted.min(limit.maximum.unwrap_or(u64::MAX));
    let done = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
    let files = if done.is_ok() { raised } else { before };
    let fitting = files - OWN_FILES.min(files / 2);
    match u32::try_from(fitting) {
        Ok(fitting) if fitting < clients => Err(fitting.max(1)),
        _ => Ok(()),
    }
}
