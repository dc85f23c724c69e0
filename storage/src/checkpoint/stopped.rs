//! Checkpoints of a data directory that no server has open.

use super::{ARCHIVE, Catalog, Checkpoint, Source, take};
use crate::clock::Clock;
use crate::directory::{Directory, OpenOptions, is_data_directory};
use crate::journal::{Options, SyncMode};
use crate::lease::LEASE;
use crate::partition::Partition;
use crate::place::Place;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

/// Memory for caches and memtables: not much is read.
const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: usize = 64 << 20;
const JOURNAL_BYTES: usize = 16 << 20;

/// How long a store in a bucket is waited for.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// How to open a data directory as it is.
pub(crate) fn options(dir: &Path) -> Result<OpenOptions> {
    Ok(offline_options(Place::local(dir)?))
}

/// How to open a data directory to read what it has, not to serve it.
pub fn offline_options(store: Place) -> OpenOptions {
    let archive = store.dir().is_some_and(|dir| dir.join(ARCHIVE).is_dir());
    OpenOptions {
        store,
        journal: None,
        store_timeout: STORE_TIMEOUT,
        shards: None,
        default_shards: 1,
        databases: 0,
        segment_bytes: Options::default().segment_bytes,
        archive,
        mode: SyncMode::Always,
        everysec_bound: Duration::from_secs(1),
        inline_sync: true,
        block_cache_bytes: CACHE_BYTES,
        meta_cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        merge_bytes: 0,
        presence_bytes: 0,
        cache: None,
        journal_bytes: JOURNAL_BYTES,
        lease: LEASE,
    }
}

/// Takes a checkpoint of a data directory that nobody has open. It is recovered, as by the start of
/// a server, and closed again; its shards are complete then.
pub async fn take_stopped(dir: &Path) -> Result<Checkpoint> {
    if !is_data_directory(dir) {
        bail!("{} is no data directory", dir.display());
    }
    let clock = Clock::default();
    let opened = Directory::open(options(dir)?, clock.clone()).await?;
    let source = Source {
        dir: dir.to_owned(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines(),
        clock,
    };
    Catalog::of(dir).clean(&source.engines).await?;
    let taken = take(&source, u64::MAX).await;
    close(opened).await?;
    taken
}

/// Closes a data directory so that its shards are complete.
pub(crate) async fn close(opened: Directory) -> Result<()> {
    let journal = opened.journal.clone();
    let (partitions, _locks) = opened.into_partitions(1, 1);
    for partition in partitions {
        Partition::close(partition).await?;
    }
    journal.close()?;
    Ok(())
}
