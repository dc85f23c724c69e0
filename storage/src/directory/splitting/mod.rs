//! Splitting a shard of one server while it runs: its upper slots become a shard of their own (RFC 22).
//!
//! Everything of the shard is in its engine, which is closed. The new shard begins with the same files, so
//! nothing is copied; `local.rs` and `bucket.rs` tell how, and which write makes one shard two. Rows of the other
//! one's slots do not count in either of them ([`OwnSlots`](crate::engine::OwnSlots)), and are gone once all files
//! of that time are merged.

mod bucket;
mod local;

pub(super) use bucket::remove_remains;
pub(super) use local::end_splits;
pub(crate) use local::unnamed_shards;

use super::engines::{EngineOpener, share};
use super::{Manifest, OpenStore, manifest_of, read_control};
use crate::control::slots_row;
use crate::engine::{Claim, Engine};
use crate::place::Place;
use crate::shard::Shard;
use crate::slot::SplitPlan;
use anyhow::{Context, Result};
use bucket::FirstShard;
use std::sync::Arc;
use std::time::Duration;

/// Reason why a shard was not split.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// It is whole as before.
    #[error("{0:#}")]
    CalledOff(anyhow::Error),
    /// It is not known if a start would find one shard or two: no record may be written any more.
    #[error("it is not known if the split is stored: {0:#}")]
    Unknown(anyhow::Error),
}

/// Splits shards of a directory that is open.
pub struct ShardSplitter {
    store: Place,
    opener: EngineOpener,
    open_store: Arc<OpenStore<'static>>,
    /// The journal's epoch.
    epoch: u64,
    /// Bytes of the filters of keys, all shards together.
    presence_bytes: usize,
    /// In a bucket.
    first: Option<FirstShard>,
}

impl std::fmt::Debug for ShardSplitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardSplitter").field("store", &self.store).finish_non_exhaustive()
    }
}

impl ShardSplitter {
    /// Part of the room for files of level 0 that may be in use when a shard is split: flushes need some, and would wait
    /// for merges.
    pub const CROWDED: f64 = 0.5;

    /// `first`: the engine of the first shard, and the time limit for the store; `epoch`: that of the journal;
    /// `presence_bytes`: of the filters of keys, all shards together.
    pub(super) fn new(
        (opener, open_store): (EngineOpener, Arc<OpenStore<'static>>),
        store: &Place,
        manifest: Manifest,
        (first, limit): (&Engine, Duration),
        epoch: u64,
        presence_bytes: usize,
    ) -> Self {
        let first = store.dir().is_none().then(|| FirstShard::new(first, manifest, limit));
        Self { store: store.clone(), opener, open_store, epoch, presence_bytes, first }
    }

    /// Returns true if the first shard's engine, in a bucket, has room for the row of a split; else it is merged soon.
    pub fn has_room(&self) -> bool {
        self.first.as_ref().is_none_or(FirstShard::has_room)
    }

    /// Closes the engine of a shard that has flushed all its records, makes that of the new shard, and makes the
    /// one shard two. Returns the new shard. The other engine is to be opened again, whatever the
    /// outcome, and no record may name the shards meanwhile. Must run on the background runtime.
    ///
    /// # Errors
    /// See [`SplitError`].
    pub async fn split(
        self: &Arc<Self>,
        engine: &Engine,
        plan: &SplitPlan,
    ) -> Result<Shard, SplitError> {
        match (&self.first, self.store.dir()) {
            (Some(first), _) => self.split_in_bucket(first, engine, plan).await,
            (None, Some(dir)) => self.split_locally(dir, engine, plan).await,
            (None, None) => unreachable!("{} is a bucket", self.store),
        }
    }

    /// Opens the engine of the new shard, the last one of `manifest`, whose files are there.
    async fn open_new(&self, plan: &SplitPlan, manifest: &Manifest) -> Result<Shard> {
        let homes = manifest.homes();
        let new = homes.last().context("a directory has shards")?;
        let upper = self.opener.open(new, &*self.open_store, Claim::Owner).await?;
        let opened = async {
            let slots = slots_row(Some(&plan.upper()));
            upper.write(vec![manifest.identity(plan.into).row(), slots]).await?;
            upper.flush().await?;
            read_control(new, &upper, &self.store).await
        };
        match opened.await {
            Ok(control) => {
                let presence_bytes = share(self.presence_bytes, plan.upper().len());
                Ok(Shard::new(plan.into, upper, self.epoch, control, presence_bytes))
            }
            Err(error) => {
                let _ = upper.close().await;
                Err(error)
            }
        }
    }
}
