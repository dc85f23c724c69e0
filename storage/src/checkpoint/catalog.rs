//! The checkpoints of a data directory.

use super::copy::{Quiet, copy_tree};
use super::scratch::Scratch;
use super::{CHECKPOINTS, Checkpoint, Retention, read_description};
use crate::directory::remove_staged;
use crate::engine::Engine;
use crate::place::{Place, names, put, read, remove_tree};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use object_store::{Error, ObjectStoreExt};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// Part of the names of directories of records that a backup copies, behind the id of its checkpoint.
const HISTORY: &str = ".history";

/// Returns the id of the checkpoint whose backup has made a directory; `None`: no backup has made it.
fn history_of(name: &str) -> Option<&str> {
    name.split_once(HISTORY).map(|(id, _)| id)
}

/// The checkpoints of a data directory.
#[derive(Clone, Debug)]
pub struct Catalog {
    place: Place,
}

/// Keeps a checkpoint in a local directory from being removed, by a lock that ends with the
/// process. In a bucket it has no effect.
#[derive(Debug)]
pub struct InUse(#[allow(dead_code, reason = "holds the lock")] Option<File>);

impl Catalog {
    /// Creates the catalog of the data directory whose shards are in `store`.
    pub fn of(store: &Place) -> Self {
        Self { place: store.join(CHECKPOINTS) }
    }

    fn description(&self, id: &str) -> Place {
        self.place.join(&format!("{id}.json"))
    }

    /// Returns the place of a checkpoint's records.
    pub(super) fn records(&self, id: &str) -> Place {
        self.place.join(id)
    }

    /// Returns a checkpoint's records in a local directory, to which they are copied from a bucket.
    pub(crate) async fn local_records(&self, id: &str) -> Result<(PathBuf, Option<Scratch>)> {
        let records = self.records(id);
        if let Some(dir) = records.dir() {
            return Ok((dir.to_owned(), None));
        }
        let scratch = Scratch::temporary()?;
        copy_tree(&records, &Place::local(scratch.path())?, &Quiet).await?;
        Ok((scratch.path().to_owned(), Some(scratch)))
    }

    /// Returns a directory in which a backup gathers the records before a checkpoint, if it is a
    /// local directory. Each one is another: several backups may copy a checkpoint at the same time.
    pub(super) fn history(&self, id: &str) -> Option<PathBuf> {
        let name = format!("{id}{HISTORY}-{:016x}", rand::random::<u64>());
        self.place.dir().map(|dir| dir.join(name))
    }

    /// Returns all checkpoints, oldest first.
    pub async fn list(&self) -> Result<Vec<Checkpoint>> {
        let mut all = Vec::new();
        for name in names(&self.place).await?.0 {
            if let Some(id) = name.strip_suffix(".json") {
                // A checkpoint may be removed meanwhile.
                all.extend(self.read(id).await?);
            }
        }
        all.sort_by(|a: &Checkpoint, b| (a.lsn, &a.id).cmp(&(b.lsn, &b.id)));
        Ok(all)
    }

    async fn read(&self, id: &str) -> Result<Option<Checkpoint>> {
        let place = self.description(id);
        let found = read(&place).await?;
        found.map(|bytes| read_description(&place.to_string(), &bytes)).transpose()
    }

    /// Returns true if the checkpoint exists.
    pub async fn has(&self, id: &str) -> Result<bool> {
        Ok(self.read(id).await?.is_some())
    }

    /// Returns the checkpoint `id`, with a lock: while that is held, a checkpoint in a local
    /// directory is not removed.
    pub async fn open(&self, id: &str) -> Result<(Checkpoint, InUse)> {
        let place = self.description(id);
        let lock = place.dir().map(lock_shared).transpose()?;
        let found = self.read(id).await?;
        let found = found.with_context(|| {
            format!("{place}: there is no checkpoint {id}, or not any more (checkpoint-keep)")
        })?;
        Ok((found, InUse(lock)))
    }

    /// Returns the outcome of copying a checkpoint. An error says so if the checkpoint was removed meanwhile.
    pub(super) async fn explained<T>(&self, id: &str, copied: Result<T>) -> Result<T> {
        match copied {
            Err(error) if !self.has(id).await.unwrap_or(true) => Err(error.context(format!(
                "checkpoint {id} was removed while it was copied: keep more of them (checkpoint-keep)"
            ))),
            copied => copied,
        }
    }

    /// Writes a description: from then on the checkpoint exists.
    pub(super) async fn publish(&self, checkpoint: &Checkpoint) -> Result<()> {
        let described = crate::checked::to_vec(checkpoint)?;
        let written = put(&self.description(&checkpoint.id), described).await;
        if written.is_err() {
            // The place may have it nevertheless, and what belongs to it is about to be removed.
            let _ = self.withdraw(&checkpoint.id).await;
        }
        written
    }

    async fn withdraw(&self, id: &str) -> Result<()> {
        let place = self.description(id);
        match place.store().delete(place.root()).await {
            Ok(()) => self.place.dir().map_or(Ok(()), super::sync_dir),
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("deleting {place}")),
        }
    }

    /// Removes checkpoints beyond the retention, except those in use, and returns the ids of the
    /// removed ones. The newest one always stays.
    pub async fn retain(
        &self,
        engines: &[Engine],
        retention: Retention,
        now_ms: u64,
    ) -> Result<Vec<String>> {
        let mut gone = Vec::new();
        let newest_first = self.list().await?.into_iter().rev();
        for (n, checkpoint) in newest_first.enumerate().skip(1) {
            let age = now_ms.saturating_sub(checkpoint.created_ms);
            let is_old = retention.max_age_ms != 0 && age > retention.max_age_ms;
            if (n >= retention.keep.max(1) || is_old) && self.remove(engines, &checkpoint).await? {
                gone.push(checkpoint.id);
            }
        }
        Ok(gone)
    }

    /// Removes a checkpoint; false if it is in use.
    pub async fn remove(&self, engines: &[Engine], checkpoint: &Checkpoint) -> Result<bool> {
        let place = self.description(&checkpoint.id);
        let removing = || format!("removing {place}");
        match place.dir() {
            Some(path) => {
                let Some(_lock) = try_lock(path)? else { return Ok(false) };
                fs::remove_file(path).with_context(removing)?;
                if let Some(dir) = self.place.dir() {
                    super::sync_dir(dir)?;
                }
            }
            None => place.store().delete(place.root()).await.with_context(removing)?,
        }
        for (engine, shard) in engines.iter().zip(&checkpoint.shards) {
            engine.drop_checkpoint(&shard.id).await?;
        }
        remove_tree(&self.records(&checkpoint.id)).await?;
        if place.dir().is_some() {
            // No backup copies it, so these are of backups that were killed.
            let (_, dirs) = names(&self.place).await?;
            for name in dirs.iter().filter(|name| history_of(name) == Some(&checkpoint.id)) {
                remove_tree(&self.place.join(name)).await?;
            }
        }
        Ok(true)
    }

    /// Removes the remains of checkpoints that were never finished, or were being removed, and releases the files
    /// kept for branches that are gone. No checkpoint may be in the making.
    pub async fn clean(&self, engines: &[Engine]) -> Result<()> {
        self.tidy(engines, None).await?;
        if let Some(dir) = self.place.dir().filter(|dir| dir.is_dir()) {
            remove_staged(dir).with_context(|| format!("cleaning {}", dir.display()))?;
        }
        try_join_all(engines.iter().map(Engine::drop_branches)).await?;
        Ok(())
    }

    /// Removes the remains of checkpoints that were never finished, or were being removed: records, and
    /// checkpoints of engines that no description names. `newest` is named, whatever the place lists. No
    /// checkpoint may be in the making.
    pub(super) async fn tidy(&self, engines: &[Engine], newest: Option<&Checkpoint>) -> Result<()> {
        let mut there = self.list().await?;
        there.extend(newest.cloned());
        let ids: BTreeSet<&str> = there.iter().map(|c| c.id.as_str()).collect();
        for name in names(&self.place).await?.1 {
            let of_backup = history_of(&name);
            let is_known = ids.contains(of_backup.unwrap_or(&name));
            // A backup that copies a checkpoint has a lock on it, and its history beside it.
            let unused = match of_backup.filter(|_| is_known) {
                Some(id) => self.description(id).dir().map(try_lock).transpose()?.flatten(),
                None => None,
            };
            if !is_known || unused.is_some() {
                remove_tree(&self.place.join(&name)).await?;
            }
        }
        let tidying = engines.iter().enumerate().map(|(shard, engine)| {
            let kept = there.iter().filter_map(|c| c.shards.get(shard)).map(|s| s.id.clone());
            let kept = kept.collect();
            async move { engine.keep_checkpoints(&kept).await }
        });
        try_join_all(tidying).await?;
        Ok(())
    }
}

fn lock_shared(path: &Path) -> Result<File> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    file.lock_shared().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// Tries to lock a file; `None` if it is locked elsewhere.
fn try_lock(path: &Path) -> Result<Option<File>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("locking {}", path.display()))
        }
    }
}
