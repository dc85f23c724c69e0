//! The engine of one shard: a SlateDB instance without a WAL, written only by hand-overs and sweeps.

pub(crate) mod checkpoint;
mod fences;
pub(crate) mod files;
mod garbage;
pub(crate) mod peek;
mod scheduler;
#[cfg(test)]
mod tests;
pub(crate) mod trial;

use crate::clock::Clock;
use crate::control::{garbage_key, garbage_value};
use crate::journal::Lsn;
use crate::place::Place;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use garbage::Garbage;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, FlushOptions, FlushType,
    GarbageCollectorDirectoryOptions, GarbageCollectorOptions, ObjectStoreCacheOptions,
    ScanOptions, Settings, SstBlockSize, WriteOptions,
};
use slatedb::db_cache::{CacheTarget, DbCache};
use slatedb::manifest::VersionedManifest;
use slatedb::{
    BlockCachePolicy, CompactorBuilder, Db, IterationOrder, SstReader, VersionedCompactions,
    WriteBatch,
};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use std::future::Future;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// Bytes of a memtable before it is flushed: smaller ones would leave too many files. Of big ones the
/// files are as big as what merges of smaller ones would make of them.
const MEMTABLE_BYTES: RangeInclusive<usize> = 4 << 20..=128 << 20;

/// Bytes that a merge reads at a time of each of its inputs: less would be many reads, more would
/// save few.
const FETCH_BYTES: RangeInclusive<usize> = 64 << 10..=512 << 10;

/// How often that is in memory for each input: what is being merged, and what is read ahead.
const READ_AHEAD: usize = 2;

/// Bytes of a file that a merge writes. Its filter and its index, some 2 % of it, are each cached as
/// a whole, and the hashes of all its keys are in memory while it is written. But every file has a
/// place in the manifest, which each flush writes anew.
const FILE_BYTES: usize = 64 << 20;

/// How long the opening of an engine may take in a store that may not answer.
const OPENING: Duration = Duration::from_secs(120);

/// For how long the engine tries to write its manifest. It closes itself then, which helps nobody:
/// the store will answer again, and what waits until then is in the journal.
const MANIFEST_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a file that are read and kept on a local disk at a time: a request to a bucket takes
/// about as long for one block as for these.
const CACHED_BYTES: usize = 256 << 10;

/// Files of the disk's cache that are kept open, of each engine.
const CACHED_FILES: usize = 128;

/// How an engine keeps its files.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// Bytes of a memtable before it is flushed, within bounds.
    pub memtable_bytes: usize,
    /// Bytes that merges read ahead, within bounds.
    pub merge_bytes: usize,
    /// Deleted rows of fewer bytes than this are never a reason to merge all files.
    pub least_garbage: u64,
    /// How often it is looked whether files are to be merged, and whether some were.
    pub poll: Duration,
    /// For how long replaced files are kept: no read may take longer.
    pub keep_files: Duration,
    /// How often it is looked whether files can be deleted.
    pub collect: Duration,
    /// Where files that were read are kept on a local disk, and how many bytes of them.
    pub disk_cache: Option<(PathBuf, u64)>,
    /// How long a read may take. A local disk answers, or says that it cannot.
    pub read_limit: Option<Duration>,
    /// An engine that is not there is not created.
    pub must_exist: bool,
}

impl Upkeep {
    /// For a store in which each look is a request that is paid for.
    pub fn remote(read_limit: Duration) -> Self {
        Self {
            poll: Duration::from_secs(5),
            keep_files: Duration::from_secs(600),
            collect: Duration::from_secs(300),
            read_limit: Some(read_limit),
            ..Self::default()
        }
    }
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            memtable_bytes: *MEMTABLE_BYTES.end(),
            merge_bytes: scheduler::INPUTS * READ_AHEAD * *FETCH_BYTES.end(),
            least_garbage: 8 << 20,
            poll: Duration::from_secs(1),
            keep_files: Duration::from_secs(120),
            collect: Duration::from_secs(30),
            disk_cache: None,
            read_limit: None,
            must_exist: false,
        }
    }
}

/// Size of a block of a file. The index has an entry for each: with smaller ones, the indexes of a
/// data set ten times the memory budget would not fit into their cache, and a read that misses
/// there costs that of a whole index.
const BLOCK: SstBlockSize = SstBlockSize::Block16Kib;

/// Rows from which on a scan reads more than a block at a time, and from which on it reads a lot.
const SHORT_SCAN: usize = 64;
const LONG_SCAN: usize = 4096;
const PAGE_READ_BYTES: usize = 32 << 10;
const LONG_READ_BYTES: usize = 512 << 10;

/// Bytes of a batch of a hand-over at most, about.
pub const BATCH_BYTES: usize = 2 << 20;

/// How old a manifest is at least when it is deleted.
const MANIFEST_AGE: Duration = Duration::from_secs(300);

/// SlateDB's clock: ours, which does not step back (a clock that does ends its writer).
#[derive(Debug)]
struct EngineClock {
    clock: Clock,
    timer: DefaultSystemClock,
}

impl SystemClock for EngineClock {
    fn now(&self) -> DateTime<Utc> {
        let now_us = i64::try_from(self.clock.now_us()).unwrap_or(i64::MAX);
        DateTime::from_timestamp_micros(now_us).unwrap_or_default()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.timer.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        self.timer.ticker(duration)
    }
}

/// An open engine; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    db: Db,
    /// Reads its files.
    files: Arc<SstReader>,
    garbage: Arc<Garbage>,
    /// The sequence number of the last batch that was taken.
    written: Arc<AtomicU64>,
    turn: Arc<Mutex<Turn>>,
    read_limit: Option<Duration>,
    /// Where it is.
    place: Place,
}

/// What only the one who writes knows.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The lsn of the last cut that was handed over.
    pub(crate) lsn: Lsn,
    pub(crate) swept: Swept,
}

/// Where a sweep goes on. From the beginning it would read over all tombstones of the steps before.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// The first D row that was not looked at.
    pub(crate) dead: Vec<u8>,
    /// Of the rows with this prefix, all before a key are gone.
    pub(crate) rows: Option<(Vec<u8>, Vec<u8>)>,
}

impl Swept {
    /// The rows with this prefix that are left.
    pub(crate) fn range(&self, prefix: &[u8]) -> Range<Vec<u8>> {
        let mut range = prefix_range(prefix);
        if let Some((_, from)) = self.rows.as_ref().filter(|(swept, _)| swept == prefix) {
            range.start.clone_from(from);
        }
        range
    }

    /// The rows with this prefix up to `last` are gone.
    pub(crate) fn up_to(&mut self, prefix: Vec<u8>, last: &[u8]) {
        self.rows = Some((prefix, [last, &[0]].concat()));
    }
}

impl Engine {
    /// Opens (or creates) the engine in a place. Must run on the background runtime: its tasks stay
    /// there.
    pub async fn open(
        place: &Place,
        cache: Arc<dyn DbCache>,
        cache_id: u64,
        clock: Clock,
        upkeep: &Upkeep,
    ) -> Result<Self> {
        let (store, path) = (place.store(), place.root().clone());
        let context = || format!("opening the engine of {place}");
        let limit = upkeep.read_limit.map(|_| OPENING);
        // The files may be from a machine whose clock was ahead; SlateDB's must not step back.
        let admin = checkpoint::admin(store.clone(), path.as_ref());
        let manifest = within(limit, admin.read_manifest(None)).await.with_context(context)?;
        if manifest.is_none() && upkeep.must_exist {
            bail!(
                "{place} is missing, or empty: put the directory's files in place, or restore a backup"
            );
        }
        let merges = within(limit, admin.read_compactions(None)).await.with_context(context)?;
        clock.at_least(greatest_time_ms(manifest.as_ref(), merges.as_ref()));
        if let Some(manifest) = &manifest {
            fences::complete(place, manifest).await.with_context(context)?;
        }
        let clock = EngineClock { clock, timer: DefaultSystemClock::new() };
        let garbage = Arc::new(Garbage::new(upkeep.least_garbage));
        let compactor = CompactorBuilder::new(path.clone(), store.clone())
            .with_options(compactor_options(upkeep))
            .with_scheduler_supplier(Arc::new(scheduler::Supplier(garbage.clone())));
        let files = Arc::new(SstReader::new(path.clone(), store.clone(), None, None));
        let opening = Db::builder(path.clone(), store.clone())
            .with_settings(engine_settings(upkeep))
            .with_sst_block_size(BLOCK)
            .with_compactor_builder(compactor)
            .with_db_cache(cache, cache_id)
            .with_block_cache_policy(cache_policy())
            .with_system_clock(Arc::new(clock))
            .build();
        let db = within(limit, opening).await.with_context(context)?;
        let read_limit = upkeep.read_limit;
        let engine = Self {
            db,
            files,
            garbage,
            written: Arc::default(),
            turn: Arc::default(),
            read_limit,
            place: place.clone(),
        };
        engine.learn_garbage().await.with_context(context)?;
        Ok(engine)
    }

    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        within(self.read_limit, self.db.get(key)).await
    }

    /// Rows of a key range in order, `limit` at most.
    pub async fn scan(&self, range: Range<Vec<u8>>, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.scan_in(IterationOrder::Ascending, range, limit).await
    }

    /// The last rows of a key range, the very last first.
    pub async fn scan_back(
        &self,
        range: Range<Vec<u8>>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        self.scan_in(IterationOrder::Descending, range, limit).await
    }

    async fn scan_in(
        &self,
        order: IterationOrder,
        range: Range<Vec<u8>>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let mut rows = Vec::new();
        if range.start >= range.end {
            return Ok(rows);
        }
        // A long scan reads ahead, and leaves the cache to others.
        let (read_ahead_bytes, cache_blocks) = match limit {
            ..SHORT_SCAN => (1, true),
            SHORT_SCAN..LONG_SCAN => (PAGE_READ_BYTES, true),
            LONG_SCAN.. => (LONG_READ_BYTES, false),
        };
        let options =
            ScanOptions { read_ahead_bytes, cache_blocks, order, ..ScanOptions::default() };
        let opening = self.db.scan_with_options(range, &options);
        let mut iterator = within(self.read_limit, opening).await?;
        while rows.len() < limit
            && let Some(row) = within(self.read_limit, iterator.next()).await?
        {
            rows.push((row.key, row.value));
        }
        Ok(rows)
    }

    /// Whether each read may be a request to a bucket.
    pub(crate) fn is_remote(&self) -> bool {
        self.read_limit.is_some()
    }

    /// Gives the rows of a range to `each`, in order, until that says false. Where to go on comes
    /// back, if there may be more.
    pub(crate) async fn walk(
        &self,
        range: Range<Vec<u8>>,
        mut each: impl FnMut(Bytes, Bytes) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        if range.start >= range.end {
            return Ok(None);
        }
        let options = ScanOptions { read_ahead_bytes: LONG_READ_BYTES, ..ScanOptions::default() };
        let opening = self.db.scan_with_options(range, &options);
        let mut iterator = within(self.read_limit, opening).await?;
        while let Some(row) = within(self.read_limit, iterator.next()).await? {
            let key = row.key.clone();
            if !each(row.key, row.value) {
                return Ok(Some([&key[..], &[0]].concat()));
            }
        }
        Ok(None)
    }

    /// Waits until no hand-over, sweep or checkpoint is under way; none begins as long as it lives.
    pub async fn alone(&self) -> impl Send + '_ {
        self.turn().await
    }

    /// Waits until nobody else writes.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().await
    }

    /// Writes a batch, which must not be empty; its sequence number. It is not durable before [`Engine::durable`] says so.
    pub async fn write(&self, rows: Vec<(Bytes, Option<Bytes>)>) -> Result<u64> {
        self.write_deleting(rows, 0).await
    }

    /// Writes a batch that deletes rows whose values are known to have `value_bytes` in all.
    pub(crate) async fn write_deleting(
        &self,
        rows: Vec<(Bytes, Option<Bytes>)>,
        value_bytes: u64,
    ) -> Result<u64> {
        let mut batch = WriteBatch::new();
        let mut garbage = value_bytes;
        for (key, value) in rows {
            match value {
                Some(value) => batch.put_bytes(key, value),
                None => {
                    // The row and its tombstone.
                    garbage += 2 * key.len() as u64;
                    batch.delete(key);
                }
            }
        }
        if garbage > 0 {
            batch.put_bytes(garbage_key(), garbage_value(self.garbage.add(garbage)));
        }
        let handle = self.db.write_with_options(batch, &WriteOptions::default()).await?;
        self.written.fetch_max(handle.seqnum(), Ordering::Relaxed);
        Ok(handle.seqnum())
    }

    /// The sequence number of the last write since it was opened; 0: there was none.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Writes up to this sequence number are flushed.
    pub fn durable(&self) -> u64 {
        self.db.status().durable_seq
    }

    /// Why the engine has closed, if it has.
    pub fn closed(&self) -> Option<String> {
        self.db.status().close_reason.map(|reason| format!("{reason:?}"))
    }

    /// Flushes everything written so far.
    pub async fn flush(&self) -> Result<()> {
        Ok(self.db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await?)
    }

    pub async fn close(&self) -> Result<()> {
        Ok(self.db.close().await?)
    }
}

/// The greatest time that an engine has written down: files and merges that are begun later must not
/// be named by an older one.
fn greatest_time_ms(
    manifest: Option<&VersionedManifest>,
    merges: Option<&VersionedCompactions>,
) -> u64 {
    let mut ids = Vec::new();
    if let Some(manifest) = manifest {
        ids.extend(manifest.all_sst_views().flat_map(|view| [view.id, view.sst.id.value()]));
        ids.extend(manifest.last_compacted_l0_sst_view_id());
        ids.extend(manifest.last_compacted_l0_sst_id());
    }
    for merge in merges.into_iter().flat_map(VersionedCompactions::recent_compactions) {
        ids.push(merge.id());
        ids.extend(merge.output_ssts().iter().map(|file| file.id.value()));
    }
    let tick = manifest.map_or(0, VersionedManifest::last_l0_clock_tick);
    let tick = u64::try_from(tick).unwrap_or(0);
    ids.iter().map(|id| id.timestamp_ms()).fold(tick, u64::max)
}

/// Waits for the engine, which tries without end to get an answer from its store.
async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, slatedb::Error>>,
) -> Result<T> {
    let Some(limit) = limit else { return Ok(work.await?) };
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => bail!("the store has not answered within {} ms", limit.as_millis()),
    }
}

/// The key range of all rows that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> Range<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    prefix.to_vec()..end
}

fn compactor_options(upkeep: &Upkeep) -> CompactorOptions {
    let fetch_bytes = upkeep.merge_bytes / (scheduler::INPUTS * READ_AHEAD);
    let worker = CompactionWorkerOptions {
        compactions_poll_interval: upkeep.poll,
        heartbeat_interval: 10 * upkeep.poll,
        max_concurrent_compactions: scheduler::AT_ONCE,
        max_sst_size: FILE_BYTES,
        max_fetch_tasks: READ_AHEAD - 1,
        bytes_to_fetch: fetch_bytes.clamp(*FETCH_BYTES.start(), *FETCH_BYTES.end()),
        // Each part of a merge would read ahead by itself.
        max_subcompactions: 1,
        ..CompactionWorkerOptions::default()
    };
    CompactorOptions {
        poll_interval: upkeep.poll,
        manifest_update_timeout: MANIFEST_LIMIT,
        commit_compacted_interval: upkeep.poll,
        max_concurrent_compactions: scheduler::AT_ONCE,
        checkpoint_lifetime: upkeep.keep_files,
        // Then a merge that a killed process had begun goes on.
        worker_heartbeat_timeout: 30 * upkeep.poll,
        worker: Some(worker),
        ..CompactorOptions::default()
    }
}

/// What is cached when a file is written: not its rows, which the hot tier has if anybody wants
/// them; they would only drive out what was read.
fn cache_policy() -> BlockCachePolicy {
    BlockCachePolicy::default().with_flush_targets(&[CacheTarget::Index, CacheTarget::Filters])
}

fn cache_options(upkeep: &Upkeep) -> ObjectStoreCacheOptions {
    let (dir, bytes) = upkeep.disk_cache.clone().unzip();
    ObjectStoreCacheOptions {
        root_folder: dir,
        max_cache_size_bytes: bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        part_size_bytes: CACHED_BYTES,
        max_open_file_handles: CACHED_FILES,
        ..ObjectStoreCacheOptions::default()
    }
}

fn engine_settings(upkeep: &Upkeep) -> Settings {
    let memtable_bytes =
        upkeep.memtable_bytes.clamp(*MEMTABLE_BYTES.start(), *MEMTABLE_BYTES.end());
    let directory = |min_age| {
        Some(GarbageCollectorDirectoryOptions {
            interval: Some(upkeep.collect),
            min_age,
            ..GarbageCollectorDirectoryOptions::default()
        })
    };
    Settings {
        wal_enabled: false,
        flush_interval: None,
        l0_sst_size_bytes: memtable_bytes,
        l0_max_ssts: 64,
        l0_max_ssts_per_key: 64,
        // Below twice the memtable and a batch the engine waits for itself.
        max_unflushed_bytes: 3 * memtable_bytes + 2 * BATCH_BYTES,
        // Reads go to replaced files until this process knows of the new ones.
        manifest_poll_interval: upkeep.poll,
        manifest_update_timeout: MANIFEST_LIMIT,
        // What goes on in the background tries on until the store answers; reads have a limit.
        object_store_max_retries: None,
        object_store_cache_options: cache_options(upkeep),
        // It is given to the builder.
        compactor_options: None,
        garbage_collector_options: Some(GarbageCollectorOptions {
            manifest_options: directory(MANIFEST_AGE),
            compacted_options: directory(upkeep.keep_files),
            compactions_options: directory(MANIFEST_AGE),
            wal_options: None,
            wal_fence_options: None,
            // A local directory has no conditional overwrite.
            boundary_files_enabled: false,
            ..GarbageCollectorOptions::default()
        }),
        ..Settings::default()
    }
}
