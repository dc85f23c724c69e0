//! Checkpoints: states of all shards at one lsn, kept in the data directory, whether local or in a
//! bucket.
//!
//! Each shard's engine keeps the files of one of its states, each at a different time. The
//! journal's records from the least applied lsn of these states up to one lsn that is not before
//! any row in them make one cut over all shards: with these records replayed, it has every commit
//! up to that lsn, whole, and none behind it.
//!
//! A checkpoint is its description, `checkpoints/<id>.json`, and its records, a journal of their
//! own in `checkpoints/<id>/`. The description is written last and removed first: without it, the
//! other files are no checkpoint.

mod ageing;
mod backup;
mod catalog;
mod choice;
mod copy;
mod history;
mod image;
#[cfg(test)]
mod kept_tests;
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
use crate::slot::{Layout, check_division};
use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;

pub use ageing::Ageing;
pub use backup::{Backup, BackupDone, BackupOptions, backup, list_backups, refuse_inside};
pub use catalog::{Catalog, InUse};
pub use copy::{Progress, Quiet};
pub use history::{oldest_archived_ms, prune_archive};
pub use image::{Image, ImageFile};
pub(crate) use restore::branch_state;
pub use restore::{AsOf, Restored, branch, discard_branch, restore};
pub use stopped::{offline_options, take_stopped};
pub use take::{CANCELLED, CheckpointSource, SourceEngines, take, take_unless};

/// The directory of checkpoints, in a data directory.
pub const CHECKPOINTS: &str = "checkpoints";

/// The branch that is sent to a replica, in the store of the data.
pub const COPYING: &str = "copying";

/// The version of descriptions, and that of those of data whose shards were split.
const FORMAT: u32 = 1;
const SPLIT_FORMAT: u32 = 2;

/// A checkpoint as described in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub format: u32,
    pub id: String,
    pub created_ms: u64,
    /// The checkpoint has every record up to this lsn, and none behind it.
    pub lsn: Lsn,
    /// Greatest time of these records, which may have come after it was begun. Descriptions of earlier
    /// versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<u64>,
    /// Its records begin behind this lsn.
    pub after: Lsn,
    /// The journal's epoch when it was taken.
    pub epoch: u64,
    /// Bytes of its records.
    pub record_bytes: u64,
    /// Salt of the journal: identifies the data directory that it was taken of.
    pub origin: u32,
    /// Seed of the hashes that its rows carry.
    pub seed: u64,
    pub shards: Vec<EngineCheckpoint>,
    /// How its shards were split since the creation, if any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    division: Option<CheckpointDivision>,
}

/// The slots of the shards of a checkpoint. Programs that know only the first version of descriptions would
/// give the rows to other shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CheckpointDivision {
    /// Number of shards at the creation.
    created: u16,
    /// First and last slot of each shard.
    slots: Vec<(u16, u16)>,
}

impl CheckpointDivision {
    fn of(layout: &Layout) -> Option<Self> {
        let slots = layout.division()?.into_iter().map(|it| (it.start, it.end.saturating_sub(1)));
        Some(Self { created: layout.created(), slots: slots.collect() })
    }

    /// Returns the version of descriptions with it.
    fn format(division: Option<&Self>) -> u32 {
        if division.is_some() { SPLIT_FORMAT } else { FORMAT }
    }
}

impl Checkpoint {
    /// Returns the layout of its shards.
    ///
    /// # Errors
    /// If the description names other slots than each one once.
    fn layout(&self) -> Result<Layout> {
        let Some(division) = &self.division else {
            // Their number was that of a data directory.
            return Ok(Layout::new(self.shards.len() as u16, self.seed));
        };
        let slots = division.slots.iter().map(|(first, last)| *first..last.saturating_add(1));
        let slots: Vec<_> = slots.collect();
        let checked = check_division(division.created, &slots);
        checked.map_err(|what| anyhow!("the description of checkpoint {}: {what}", self.id))?;
        if slots.len() != self.shards.len() {
            bail!("the description of checkpoint {}: the number of its shards", self.id);
        }
        Ok(Layout::divided(division.created, self.seed, Some(slots)))
    }

    /// Returns the least lsn that is a cut over all its shards.
    pub fn reaches(&self) -> Lsn {
        self.shards.iter().map(|shard| shard.reaches).max().unwrap_or(0)
    }
}

/// Limits of an archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLimits {
    /// The time by which the ages of segments count, in ms since 1970.
    pub now_ms: u64,
    /// How long they are kept; 0: there is no archive any more.
    pub kept_ms: u64,
    pub max_bytes: u64,
}

/// Limits of the checkpoints that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Number of the newest checkpoints to keep.
    pub keep: usize,
    /// Greatest age of a checkpoint to keep; 0: any age.
    pub max_age_ms: u64,
}

fn read_description<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct DescriptionVersion {
        format: u32,
    }
    let damaged = || format!("{what} is damaged");
    checked::verify(bytes).with_context(damaged)?;
    let DescriptionVersion { format } = serde_json::from_slice(bytes).with_context(damaged)?;
    if !(FORMAT..=SPLIT_FORMAT).contains(&format) {
        bail!("{what} has format {format}; this program knows formats {FORMAT} and {SPLIT_FORMAT}");
    }
    serde_json::from_slice(bytes).with_context(damaged)
}

fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("syncing {}", dir.display()))
}
