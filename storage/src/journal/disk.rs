//! The few file operations of the journal, as traits, so that a test can lose writes that were not
//! synced.

use rustix::io::{Errno, pwritev};
use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A directory tree. Changes of names are durable after [`Disk::sync_dir`].
pub trait Disk: Send + Sync {
    /// Creates `dir` and its parents durably; no error if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns the names in `dir`, in no order; those that are not UTF-8 are left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Creates an empty file, replacing an existing one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Renames atomically, replacing an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns the bytes that are free for files in `dir`; `None` if that is unknown.
    fn free(&self, _dir: &Path) -> Option<u64> {
        None
    }
}

/// An open file. It stays usable after a rename.
pub trait File: Send + Sync {
    /// Returns its length in bytes.
    fn size(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all slices in sequence from `offset` on, consuming them. After an error any part of
    /// them may have been written.
    fn write_all_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&self) -> io::Result<()>;
}

/// Returns the error of making a directory, which tells of a link at its place: that the file exists says
/// nothing if what it points to is away.
pub(crate) fn of_link(error: io::Error, dir: &Path) -> io::Error {
    let Ok(target) = fs::read_link(dir) else { return error };
    let why = if dir.exists() { "which is no directory" } else { "where nothing is" };
    let text = format!("{} is a link to {}, {why}", dir.display(), target.display());
    io::Error::new(error.kind(), text)
}

/// The operating system's files.
#[derive(Debug, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        self.create_dir(parent)?;
        fs::create_dir(dir).map_err(|error| of_link(error, dir))?;
        self.sync_dir(parent)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Arc::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn free(&self, dir: &Path) -> Option<u64> {
        let disk = rustix::fs::statvfs(dir).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

impl File for fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&self, mut slices: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0); // drops empty ones in front
        while !slices.is_empty() {
            let written = match pwritev(self, slices, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            IoSlice::advance_slices(&mut slices, written);
            offset += written as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Size of the pieces in which long ranges are copied or wiped.
pub(super) const CHUNK: usize = 1 << 20;

/// Writes zeros over `length` bytes from `offset` on.
pub(super) fn write_zeros(file: &dyn File, mut offset: u64, mut length: u64) -> io::Result<()> {
    static ZEROS: [u8; CHUNK] = [0; CHUNK];
    while length > 0 {
        let piece = length.min(CHUNK as u64);
        file.write_all_at(&mut [IoSlice::new(&ZEROS[..piece as usize])], offset)?;
        offset += piece;
        length -= piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_a_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (link, target) = (root.path().join("archive"), root.path().join("disk"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let shown = format!("{} is a link to {}, ", link.display(), target.display());
        let told = || RealDisk.create_dir(&link).unwrap_err().to_string();
        assert_eq!(told(), format!("{shown}where nothing is"));
        fs::write(&target, "").unwrap();
        assert_eq!(told(), format!("{shown}which is no directory"));
        fs::remove_file(&target).unwrap();
        fs::create_dir(&target).unwrap();
        RealDisk.create_dir(&link).unwrap();
    }
}
