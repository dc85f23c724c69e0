//! A disk on which names are changed only while the data directory is where it was opened.

use super::disk::{Disk, File};
use crate::place::HomeDir;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// See the module's description. Files that are open stay usable wherever they are.
pub(crate) struct HomeDisk {
    inner: Arc<dyn Disk>,
    home: HomeDir,
}

impl HomeDisk {
    /// Returns the disk as it is seen from a directory, which must exist.
    pub(crate) fn new(inner: Arc<dyn Disk>, home: &Path) -> io::Result<Self> {
        Ok(Self { inner, home: HomeDir::open(home)? })
    }
}

impl Disk for HomeDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.home.check()?;
        self.inner.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.home.check()?;
        self.inner.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.home.check()?;
        self.inner.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.home.check()?;
        self.inner.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.home.check()?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.home.check()?;
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.home.check()?;
        self.inner.sync_dir(dir)
    }

    fn free(&self, dir: &Path) -> Option<u64> {
        self.inner.free(dir)
    }
}
