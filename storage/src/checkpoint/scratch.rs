//! Local directories for temporary files.

use crate::place::remove_dir;
use anyhow::{Context, Result};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// Creates an empty directory at `dir`, removing one that an earlier process has left.
    pub(super) fn at(dir: PathBuf) -> Result<Self> {
        remove_dir(&dir)?;
        // The files hold data, and other users may read the directory for temporary files.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.with_context(|| format!("creating {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Creates an empty directory in the system's directory for temporary files.
    pub(super) fn temporary() -> Result<Self> {
        Self::at(std::env::temp_dir().join(format!("flagstone-{:016x}", rand::random::<u64>())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.dir) {
            tracing::warn!("what was needed meanwhile stays: {error:#}");
        }
    }
}
