//! Checkpoints: states of all shards at one lsn, kept in the data directory, wherever it is.
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
mod catalog;
mod copy;
mod files;
mod history;
mod image;
mod restore;
mod scratch;
mod stopped;
mod take;
mod target;
#[cfg(test)]
mod tests;

use crate::checked;
use crate::engine::checkpoint::EngineCheckpoint;
use crate::journal::Lsn;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::Path;

pub use backup::{Backup, BackupDone, BackupOptions, backup, list_backups};
pub use catalog::{Catalog, InUse};
pub use copy::{Progress, Quiet};
pub(crate) use files::remove_tree;
pub use history::prune_archive;
pub use image::{Image, Piece};
pub(crate) use image::{engine_dir, sizes};
pub(crate) use restore::branch_state;
pub use restore::{AsOf, Restored, branch, restore};
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
    /// Returns the least lsn that is a cut over all its shards.
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

fn read_description<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let damaged = || format!("{what} is damaged");
    checked::verify(bytes).with_context(damaged)?;
    let Version { format } = serde_json::from_slice(bytes).with_context(damaged)?;
    if format != FORMAT {
        bail!("{what} has format {format}; this program knows format {FORMAT} only");
    }
    serde_json::from_slice(bytes).with_context(damaged)
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
