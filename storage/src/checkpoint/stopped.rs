//! Checkpoints of a data directory that no server has open.

use super::scratch::Scratch;
use super::{Catalog, Checkpoint, CheckpointSource, take};
use crate::clock::Clock;
use crate::directory::{Directory, Location, OpenOptions, is_data_directory};
use crate::journal::{Options, SyncMode};
use crate::lease::LEASE;
use anyhow::{Result, bail};
use std::time::Duration;

/// Bytes of replayed rows that are gathered before the engines get them.
const REPLAY_BYTES: usize = 64 << 20;

/// Memory for caches and memtables: few rows are read.
const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: usize = 64 << 20;
const JOURNAL_BYTES: usize = 16 << 20;

/// Time limit for requests to a store in a bucket.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns options to open a data directory for reading, not for serving. If its journal has an
/// archive, dropped parts go there.
pub async fn offline_options(location: &Location) -> Result<OpenOptions> {
    Ok(OpenOptions {
        store: location.store.clone(),
        journal: location.journal.clone(),
        store_timeout: STORE_TIMEOUT,
        shards: None,
        default_shards: 1,
        databases: 0,
        segment_bytes: Options::default().segment_bytes,
        archive: location.is_archiving().await?,
        mode: SyncMode::Always,
        everysec_bound: Duration::from_secs(1),
        inline_sync: true,
        block_cache_bytes: CACHE_BYTES,
        meta_cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        merge_bytes: 0,
        merges: 1,
        compression: None,
        presence_bytes: 0,
        replay_bytes: REPLAY_BYTES,
        feed_bytes: 0,
        cache: None,
        journal_bytes: JOURNAL_BYTES,
        lease: LEASE,
    })
}

/// Takes a checkpoint of a data directory that no process has open. The directory is recovered, as
/// at a start, and closed again; its shards are complete then.
pub async fn take_stopped(location: &Location) -> Result<Checkpoint> {
    if !is_data_directory(&location.store).await? {
        bail!("{} is no data directory", location.store);
    }
    let clock = Clock::default();
    let scratch = Scratch::temporary()?;
    let opened = Directory::open(offline_options(location).await?, clock.clone()).await?;
    let source = CheckpointSource {
        store: location.store.clone(),
        scratch: scratch.path().to_owned(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines().into(),
        clock,
    };
    Catalog::of(&location.store).clean(&source.engines()).await?;
    let taken = take(&source, u64::MAX).await;
    opened.close().await?;
    taken
}
