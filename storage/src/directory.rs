//! The data directory.

use crate::clock::Clock;
use crate::journal::{Journal, LocalJournal, Options, SyncMode};
use crate::partition::Partition;
use crate::slot::Layout;
use crate::store::{Store, Versions};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to open a data directory.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub dir: PathBuf,
    pub shards: Option<u16>,
    pub default_shards: u16,
    pub databases: u32,
    pub segment_bytes: u64,
    pub mode: SyncMode,
    pub everysec_bound: Duration,
    pub inline_sync: bool,
    pub memory_budget: u64,
    pub block_cache_bytes: Option<u64>,
    pub handover_interval: Duration,
    pub journal_max_bytes: u64,
}

/// See [`Opened`].
pub struct Directory;

/// An open data directory.
pub struct Opened {
    pub layout: Arc<Layout>,
    pub journal: Arc<dyn Journal>,
    pub next_generation: u32,
    versions: Arc<Versions>,
    databases: u32,
}

impl Directory {
    pub async fn open(
        options: OpenOptions,
        _clock: Clock,
        _background: tokio::runtime::Handle,
    ) -> Result<Opened> {
        let dir = options.dir.join("journal");
        std::fs::create_dir_all(&dir)?;
        let recovery = LocalJournal::recover(
            &dir,
            Options { mode: options.mode, inline_sync: options.inline_sync, ..Options::default() },
        )?;
        let epoch = recovery.max_epoch() + 1;
        let journal: Arc<dyn Journal> = recovery.start(epoch, 1)?;
        Ok(Opened {
            layout: Arc::new(Layout { shards: options.default_shards, seed: 0 }),
            journal,
            next_generation: 1000,
            versions: Arc::new(Versions::new(epoch)),
            databases: options.databases,
        })
    }
}

impl Opened {
    pub fn into_partitions(self, _shard_workers: usize, total: usize) -> Vec<Partition> {
        let generations: Vec<u32> = (1..=self.databases).collect();
        (0..total)
            .map(|_| {
                Partition::new(
                    Store::new(self.layout.clone(), self.versions.clone(), &generations, false),
                    BTreeMap::new(),
                    self.journal.clone(),
                )
            })
            .collect()
    }
}
