//! Checkpoints: states of all shards at one lsn, kept in the data directory.
//!
//! Each shard's engine keeps the files of one of its states, at a time of its own. The journal's
//! records from the least that one of them has applied, up to one lsn that is not before anything
//! that is in any of them, make one cut over all shards of them: with these replayed, every commit
//! up to there is in it, whole, and none of those behind it.
//!
//! A checkpoint is its description, `checkpoints/<id>.json`, and its records, a journal of their
//! own in `checkpoints/<id>/`. The description is written last and removed first: what is there
//! without it is nothing.

mod backup;
mod copy;
mod history;
mod image;
mod restore;
mod stopped;
mod take;
#[cfg(test)]
mod tests;

use crate::engine::Engine;
use crate::engine::checkpoint::EngineCheckpoint;
use crate::journal::Lsn;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

pub use backup::{Backup, BackupDone, BackupOptions, backup, list_backups};
pub use copy::{Progress, Quiet};
pub use history::{ARCHIVE, prune_archive};
pub use image::{Image, Piece};
pub(crate) use restore::branch_state;
pub use restore::{AsOf, Restored, branch, restore};
pub(crate) use stopped::{close as close_directory, options as open_as_it_is};
pub use stopped::{offline_options, take_stopped};
pub use take::{Source, take};

/// The directory of checkpoints, in a data directory.
pub const CHECKPOINTS: &str = "checkpoints";

/// The version of descriptions.
const FORMAT: u32 = 1;

/// A checkpoint, as its description has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub format: u32,
    pub id: String,
    pub created_ms: u64,
    /// Everything up to here is in it, and nothing else.
    pub lsn: Lsn,
    /// Its records begin behind this.
    pub after: Lsn,
    /// Of the journal when it was taken.
    pub epoch: u64,
    /// Bytes of its records.
    pub record_bytes: u64,
    /// Which data directory it is of: the salt of its journal.
    pub origin: u32,
    /// Seed of the hashes that its rows carry.
    pub seed: u64,
    pub shards: Vec<EngineCheckpoint>,
}

impl Checkpoint {
    /// The least lsn that is a cut over all its shards.
    pub fn reaches(&self) -> Lsn {
        self.shards.iter().map(|shard| shard.reaches).max().unwrap_or(0)
    }
}

/// How many checkpoints are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// This many of the newest ones.
    pub keep: usize,
    /// Those that are not older; 0: of any age.
    pub max_age_ms: u64,
}

/// The checkpoints of a data directory.
#[derive(Clone, Debug)]
pub struct Catalog {
    dir: PathBuf,
}

/// Keeps a checkpoint from being removed, by a lock that ends with the process.
#[derive(Debug)]
pub struct InUse(#[allow(dead_code, reason = "holds the lock")] File);

impl Catalog {
    /// Of the data directory `data`.
    pub fn of(data: &Path) -> Self {
        Self { dir: data.join(CHECKPOINTS) }
    }

    fn description(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Where its records are.
    pub fn records(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// Where a backup of it gathers what was before it.
    fn history(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}{HISTORY}"))
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> Result<Vec<Checkpoint>> {
        let mut all = Vec::new();
        for name in names(&self.dir)? {
            if let Some(id) = name.strip_suffix(".json") {
                // One may be removed meanwhile.
                all.extend(self.read(id)?);
            }
        }
        all.sort_by(|a: &Checkpoint, b| (a.lsn, &a.id).cmp(&(b.lsn, &b.id)));
        Ok(all)
    }

    fn read(&self, id: &str) -> Result<Option<Checkpoint>> {
        let path = self.description(id);
        match fs::read(&path) {
            Ok(bytes) => read_description(&path.display().to_string(), &bytes).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// The checkpoint `id`, which is not removed as long as the lock is held.
    pub fn open(&self, id: &str) -> Result<(Checkpoint, InUse)> {
        let path = self.description(id);
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        file.lock_shared().with_context(|| format!("locking {}", path.display()))?;
        let found = self.read(id)?;
        Ok((found.with_context(|| format!("checkpoint {id} was removed"))?, InUse(file)))
    }

    /// Writes a description: from here on the checkpoint is there.
    fn publish(&self, checkpoint: &Checkpoint) -> Result<()> {
        let path = self.description(&checkpoint.id);
        let text = serde_json::to_vec_pretty(checkpoint)?;
        write_durably(&path, &text).with_context(|| format!("writing {}", path.display()))
    }

    /// Removes what retention does not keep, but for what is in use; the ids of what is gone. The
    /// newest one always stays.
    pub async fn retain(
        &self,
        engines: &[Engine],
        retention: Retention,
        now_ms: u64,
    ) -> Result<Vec<String>> {
        let mut gone = Vec::new();
        let newest_first = self.list()?.into_iter().rev();
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
        let path = self.description(&checkpoint.id);
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        sync_dir(&self.dir)?;
        for (engine, shard) in engines.iter().zip(&checkpoint.shards) {
            engine.drop_checkpoint(&shard.id).await?;
        }
        remove_dir(&self.records(&checkpoint.id))?;
        remove_dir(&self.history(&checkpoint.id))?;
        Ok(true)
    }

    /// Removes what is left of checkpoints that were never finished, or that were being removed.
    /// Nobody may be taking one.
    pub async fn clean(&self, engines: &[Engine]) -> Result<()> {
        let there = self.list()?;
        let ids: BTreeSet<&str> = there.iter().map(|c| c.id.as_str()).collect();
        for name in names(&self.dir)? {
            let path = self.dir.join(&name);
            // A backup that copies a checkpoint has its history beside.
            let id = name.strip_suffix(HISTORY).unwrap_or(&name);
            if path.is_dir() && !ids.contains(id) {
                remove_dir(&path)?;
            } else if name.ends_with(UNFINISHED) {
                fs::remove_file(&path)?;
            }
        }
        for (shard, engine) in engines.iter().enumerate() {
            let kept = there.iter().filter_map(|c| c.shards.get(shard)).map(|s| s.id.clone());
            engine.keep_checkpoints(&kept.collect()).await?;
        }
        Ok(())
    }
}

/// Ends the names of directories of records that a backup copies.
const HISTORY: &str = ".history";

/// Ends the names of files that are not finished.
const UNFINISHED: &str = ".new";

fn read_description<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let damaged = || format!("{what} is damaged");
    let Version { format } = serde_json::from_slice(bytes).with_context(damaged)?;
    if format != FORMAT {
        bail!("{what} has format {format}; this program knows format {FORMAT} only");
    }
    serde_json::from_slice(bytes).with_context(damaged)
}

/// The names in a directory; none if it is not there.
fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", dir.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Puts a file in its place, whole and durable.
fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("syncing {}", dir.display()))
}

/// Removes a directory with all in it, if it is there.
pub(crate) fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}
