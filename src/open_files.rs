//! The limit of open files, raised for clients and for the files of the data; and the opening of
//! files that operators name, which may be anything.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result as IoResult};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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

/// Opens a regular file for reading. The start of a pipe, or of a device, could wait for ever.
///
/// # Errors
/// Errors of opening it, or it is no regular file.
pub fn open_regular(path: &Path) -> IoResult<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::other("it is no regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "text").expect("written");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("linked");
        let mut text = String::new();
        open_regular(&path("link")).expect("opened").read_to_string(&mut text).expect("read");
        assert_eq!(text, "text");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .expect("a pipe");
        for other in [path("pipe"), directory.path().into(), "/dev/zero".into()] {
            let error = open_regular(&other).expect_err("no regular file").to_string();
            assert_eq!(error, "it is no regular file", "{}", other.display());
        }
    }
}
