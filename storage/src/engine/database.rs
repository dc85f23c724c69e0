//! The database of an engine: SlateDB's writer, or a reader of the files of another process.

use super::pinned::PinnedFiles;
use anyhow::Result;
use bytes::Bytes;
use slatedb::config::ScanOptions;
use slatedb::manifest::VersionedManifest;
use slatedb::{Db, DbIterator, DbStatus, Error};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;

/// See the module's description.
#[derive(Clone)]
pub(super) enum Database {
    Own(Db),
    /// The files of one manifest, which does not change: [`pinned`](super::pinned).
    Pinned(Arc<PinnedFiles>),
}

impl Database {
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Own(db) => db.get(key).await,
            Self::Pinned(files) => files.reader.get(key).await,
        }
    }

    pub(super) async fn scan(
        &self,
        range: Range<Vec<u8>>,
        options: &ScanOptions,
    ) -> Result<DbIterator, Error> {
        match self {
            Self::Own(db) => db.scan_with_options(range, options).await,
            Self::Pinned(files) => files.reader.scan_with_options(range, options).await,
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<DbStatus> {
        match self {
            Self::Own(db) => db.subscribe(),
            Self::Pinned(files) => files.reader.subscribe(),
        }
    }

    /// Returns true if it has closed itself, or was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.subscribe().borrow().close_reason.is_some()
    }

    pub(super) fn manifest(&self) -> VersionedManifest {
        match self {
            Self::Own(db) => db.manifest(),
            Self::Pinned(files) => files.reader.manifest(),
        }
    }

    /// Returns the writer.
    ///
    /// # Errors
    /// If the files belong to another process.
    pub(super) fn writer(&self) -> Result<&Db> {
        match self {
            Self::Own(db) => Ok(db),
            Self::Pinned(_) => anyhow::bail!("the files belong to another server"),
        }
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        match self {
            Self::Own(db) => db.close().await,
            Self::Pinned(files) => files.reader.close().await,
        }
    }
}
