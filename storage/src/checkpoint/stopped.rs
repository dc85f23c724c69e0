//! Checkpoints of a data directory that no server has open.

use super::files::names;
use super::scratch::Scratch;
use super::{Catalog, Checkpoint, Source, take};
use crate::clock::Clock;
use crate::directory::{Directory, Location, OpenOptions, is_data_directory};
use crate::journal::{Options, SyncMode};
use crate::lease::LEASE;
use anyhow::{Result, bail};
use std::time::Duration;

/// Rows that are replayed before the engines get them.
const REPLAY_BYTES: usize = 64 << 20;

/// Memory for caches and memtables: not much is read.
const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: usize = 64 << 20;
const JOURNAL_BYTES: usize = 16 << 20;

/// How long a store in a bucket is waited for.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// How to open a data directory to read what it has, not to serve it. If there is an archive of its
/// journal, what is dropped goes there.
pub async fn offline_options(location: &Location) -> Result<OpenOptions> {
    let (files, dirs) = names(&location.archive()).await?;
    let archive = !files.is_empty() || !dirs.is_empty();
    Ok(OpenOptions {
        store: location.store.clone(),
        journal: location.journal.clone(),
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
        replay_bytes: REPLAY_BYTES,
        cache: None,
        journal_bytes: JOURNAL_BYTES,
        lease: LEASE,
    })
}

/// Takes a checkpoint of a data directory that nobody has open. It is recovered, as by the start of
/// a server, and closed again; its shards are complete then.
pub async fn take_stopped(location: &Location) -> Result<Checkpoint> {
    if !is_data_directory(&location.store).await? {
        bail!("{} is no data directory", location.store);
    }
    let clock = Clock::default();
    let scratch = Scratch::temporary()?;
    let opened = Directory::open(offline_options(location).await?, clock.clone()).await?;
    let source = Source {
        store: location.store.clone(),
        scratch: scratch.path().to_owned(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines(),
        clock,
    };
    Catalog::of(&location.store).clean(&source.engines).await?;
    let taken = take(&source, u64::MAX).await;
    opened.close().await?;
    taken
}
