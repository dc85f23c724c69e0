//! The location of a data directory.

use super::create_private_dir;
use crate::place::{Place, names, put};
use anyhow::{Context, Result};

const ARCHIVE: &str = "archive";

/// An empty object in the archive of a journal in a bucket, which has no directories.
pub(crate) const ARCHIVE_MARK: &str = "on";

/// The places of a data directory's shards and of its journal.
#[derive(Clone, Debug)]
pub struct Location {
    pub store: Place,
    /// Place of the journal; `None`: `journal` in the store.
    pub journal: Option<Place>,
}

impl From<Place> for Location {
    /// Creates a location with the journal in the store.
    fn from(store: Place) -> Self {
        Self { store, journal: None }
    }
}

impl Location {
    /// Returns the place of the journal.
    pub fn journal(&self) -> Place {
        self.journal.clone().unwrap_or_else(|| self.store.join("journal"))
    }

    /// Returns the place for parts of the journal that it has dropped: beside it, where they can be
    /// moved without being read.
    pub fn archive(&self) -> Place {
        match &self.journal {
            None => self.store.join(ARCHIVE),
            Some(journal) => journal.beside(&format!("-{ARCHIVE}")),
        }
    }

    /// Creates the archive, empty: it is there from the first start that keeps dropped parts, for commands
    /// that open the directory without the server's settings.
    pub(super) async fn begin_archive(&self) -> Result<()> {
        let archive = self.archive();
        match archive.dir() {
            Some(dir) => create_private_dir(dir).with_context(|| format!("creating {archive}")),
            None => put(&archive.join(ARCHIVE_MARK), Vec::new()).await,
        }
    }

    /// Returns true if there is an archive: dropped parts are to go there.
    pub(crate) async fn is_archiving(&self) -> Result<bool> {
        let archive = self.archive();
        if let Some(dir) = archive.dir() {
            // A link to a disk that is away counts, too.
            return Ok(dir.symlink_metadata().is_ok());
        }
        let (files, dirs) = names(&archive).await?;
        Ok(!files.is_empty() || !dirs.is_empty())
    }
}
