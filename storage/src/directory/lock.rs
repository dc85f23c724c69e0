//! Locks of a data directory: an OS lock on the directory itself, and one on the file `lock` in it.
//!
//! The lock on the directory is decisive, as the directory cannot be exchanged unnoticed like a
//! file in it. Some network file systems lock only files that are open for writing; and earlier
//! versions look at the file only.

use super::create_private_dir;
use crate::place::Place;
use anyhow::{Context, Result, bail};
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Open files that lock local directories until they are dropped or the process ends.
pub type Locks = Vec<File>;

/// Locks the store and the journal if they are local directories.
pub(crate) fn lock_all(store: &Place, journal: Option<&Place>) -> Result<Locks> {
    let mut locks = Vec::new();
    for dir in [Some(store), journal].into_iter().flatten().filter_map(Place::dir) {
        create_private_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
        locks.extend(lock(dir)?);
    }
    Ok(locks)
}

/// Takes the locks of a data directory, for as long as the files are open.
///
/// # Errors
/// If another process has it, or if it cannot be locked.
pub fn lock(dir: &Path) -> Result<Locks> {
    let path = dir.join("lock");
    let opened = File::options().create(true).write(true).truncate(false).open(&path);
    let file = opened.with_context(|| format!("opening {}", path.display()))?;
    let mut locks = Vec::with_capacity(2);
    for (file, path) in [(file, &*path), (open_dir(dir)?, dir)] {
        match file.try_lock() {
            Ok(()) => locks.push(file),
            Err(TryLockError::WouldBlock) => {
                bail!("the data directory {} is in use by another process", dir.display())
            }
            Err(TryLockError::Error(error)) if is_unknown(&error) && path == dir => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
    }
    Ok(locks)
}

/// Returns true if a process has a data directory open.
pub fn is_open(dir: &Path) -> Result<bool> {
    let path = dir.join("lock");
    let file = match File::open(&path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let own = match File::open(dir) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("opening {}", dir.display())),
    };
    for file in file.into_iter().chain(own) {
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(true),
            Err(TryLockError::Error(error)) if is_unknown(&error) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", dir.display()));
            }
        }
    }
    Ok(false)
}

fn open_dir(dir: &Path) -> Result<File> {
    File::open(dir).with_context(|| format!("opening {}", dir.display()))
}

/// Returns true if a file system does not lock directories.
fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBADF | libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL)
    )
}
