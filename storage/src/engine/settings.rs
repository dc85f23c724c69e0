//! The settings of SlateDB.

use super::{BATCH_BYTES, Upkeep, memtables, scheduler};
use slatedb::BlockCachePolicy;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, CompressionCodec, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, ObjectStoreCacheOptions, Settings,
};
use slatedb::db_cache::CacheTarget;
use slatedb::{BloomFilterPolicy, FilterPolicy};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a merge reads at a time from each of its inputs: fewer would mean many reads, more
/// would save few.
const FETCH_BYTES: RangeInclusive<usize> = 64 << 10..=512 << 10;

/// Number of such reads in memory for each input: one that is being merged, and one that is read
/// ahead.
const READ_AHEAD: usize = 2;

/// Bytes that all merges of an engine read ahead at most.
pub(super) const MOST_READ_AHEAD: usize = scheduler::INPUTS * READ_AHEAD * *FETCH_BYTES.end();

/// Bytes of a file that a merge writes. Its filter and its index, about 2 % of it, are each cached
/// as a whole, and the hashes of all its keys are in memory while it is written. On the other hand
/// every file has an entry in the manifest, which each flush rewrites.
const FILE_BYTES: usize = 64 << 20;

/// How long the engine tries to write its manifest before it closes itself. Closing would not help:
/// the store will answer again, and unflushed rows are in the journal.
const MANIFEST_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a file that are read into the disk cache at a time: a request to a bucket takes about
/// as long for one block as for these.
const CACHED_BYTES: usize = 256 << 10;

/// Files of the disk cache that each engine keeps open.
const CACHED_FILES: usize = 128;

/// How long a manifest stays after this process has found it, in a remote store and on a local disk,
/// where there are several new ones a second.
const MANIFEST_AGE: Duration = Duration::from_secs(300);
const LOCAL_MANIFEST_AGE: Duration = Duration::from_secs(60);

/// Age below which no file is deleted, by the clock of the engine.
const NEW_FILES: Duration = Duration::from_secs(1);

/// Minimum interval at which a running merge is noted, so that the next process may go on with it.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Maximum number of files of level 0: beyond it, the engine flushes nothing more until some are
/// merged.
pub(super) const MAX_LEVEL0: usize = 64;

/// Bits for each key in the filters of files of level 0. A read may look into dozens of them, so SlateDB's 10
/// bits, which are wrong for one key in 120, would make one read in four look into a block for nothing; 16
/// are wrong for one in 2,000. Merged files have the 10.
const LEVEL0_FILTER_BITS: u32 = 16;

/// Returns how an engine makes the filters of its files of level 0.
pub(super) fn level0_filters() -> Vec<Arc<dyn FilterPolicy>> {
    vec![Arc::new(BloomFilterPolicy::new(LEVEL0_FILTER_BITS))]
}

/// How blocks of new files are compressed. Files say how theirs are, so those of before stay
/// readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Lz4,
    /// Zstandard, level 3.
    Zstd,
}

impl Compression {
    fn codec(self) -> CompressionCodec {
        match self {
            Self::Lz4 => CompressionCodec::Lz4,
            Self::Zstd => CompressionCodec::Zstd,
        }
    }
}

/// Returns the interval at which a merge says that it goes on. In a bucket that is a paid request; but
/// as long as a merge of a killed process seems to run, its files are not merged.
fn heartbeat(upkeep: &Upkeep) -> Duration {
    (2 * upkeep.poll).max(HEARTBEAT)
}

/// Returns the time after which a merge that a killed process had begun goes on.
pub(super) fn stale_after(upkeep: &Upkeep) -> Duration {
    3 * heartbeat(upkeep)
}

pub(super) fn compactor_options(upkeep: &Upkeep) -> CompactorOptions {
    let fetch_bytes = upkeep.merge_bytes / (scheduler::INPUTS * READ_AHEAD);
    let worker = CompactionWorkerOptions {
        compactions_poll_interval: upkeep.poll,
        heartbeat_interval: heartbeat(upkeep),
        max_concurrent_compactions: scheduler::AT_ONCE,
        max_sst_size: FILE_BYTES,
        max_fetch_tasks: READ_AHEAD - 1,
        bytes_to_fetch: fetch_bytes.clamp(*FETCH_BYTES.start(), *FETCH_BYTES.end()),
        // Each part of a merge would read ahead separately.
        max_subcompactions: 1,
        compression_codec: upkeep.compression.map(Compression::codec),
        ..CompactionWorkerOptions::default()
    };
    CompactorOptions {
        poll_interval: upkeep.poll,
        manifest_update_timeout: MANIFEST_LIMIT,
        commit_compacted_interval: upkeep.poll,
        max_concurrent_compactions: scheduler::AT_ONCE,
        checkpoint_lifetime: upkeep.keep_files.unwrap_or(NEW_FILES),
        worker_heartbeat_timeout: stale_after(upkeep),
        worker: Some(worker),
        ..CompactorOptions::default()
    }
}

/// Returns the parts of a file that are cached when it is written: not its rows. Rows in use are in the hot tier
/// already; those of the file would only displace rows that were read. Point reads hold filters of
/// their own, and scans use none.
pub(super) fn cache_policy(has_points: bool) -> BlockCachePolicy {
    let targets = [CacheTarget::Index, CacheTarget::Filters];
    let targets = if has_points { &targets[..1] } else { &targets[..] };
    BlockCachePolicy::default().with_flush_targets(targets).with_compaction_output_targets(targets)
}

pub(super) fn cache_options(upkeep: &Upkeep) -> ObjectStoreCacheOptions {
    let (dir, bytes) = upkeep.disk_cache.clone().unzip();
    ObjectStoreCacheOptions {
        root_folder: dir,
        max_cache_size_bytes: bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        part_size_bytes: CACHED_BYTES,
        max_open_file_handles: CACHED_FILES,
        ..ObjectStoreCacheOptions::default()
    }
}

/// Returns how long a manifest, or a list of merges, stays after this process has found it.
pub(super) fn versions_age(upkeep: &Upkeep) -> Duration {
    upkeep.keep_files.map_or(LOCAL_MANIFEST_AGE, |_| MANIFEST_AGE)
}

pub(super) fn engine_settings(upkeep: &Upkeep) -> Settings {
    let file_bytes = memtables::file_limit(upkeep);
    let directory = |min_age| {
        Some(GarbageCollectorDirectoryOptions {
            interval: Some(upkeep.collect),
            min_age,
            ..GarbageCollectorDirectoryOptions::default()
        })
    };
    Settings {
        wal_enabled: false,
        compression_codec: upkeep.compression.map(Compression::codec),
        l0_flush_parallelism: upkeep.flushes,
        flush_interval: None,
        l0_sst_size_bytes: file_bytes,
        l0_max_ssts: MAX_LEVEL0,
        l0_max_ssts_per_key: MAX_LEVEL0,
        // Below twice the memtable and a batch the engine would wait for itself.
        max_unflushed_bytes: 3 * file_bytes + 2 * BATCH_BYTES,
        // Until this process knows of the new files, it reads replaced ones.
        manifest_poll_interval: upkeep.poll,
        manifest_update_timeout: MANIFEST_LIMIT,
        // Background work retries until the store answers; reads have a limit.
        object_store_max_retries: None,
        object_store_cache_options: cache_options(upkeep),
        // The builder gets them.
        compactor_options: None,
        garbage_collector_options: Some(GarbageCollectorOptions {
            // The collector's filter keeps manifests and lists of merges for longer.
            manifest_options: directory(NEW_FILES),
            compacted_options: directory(upkeep.keep_files.unwrap_or(NEW_FILES)),
            compactions_options: directory(NEW_FILES),
            wal_options: None,
            wal_fence_options: None,
            // Local directories have no conditional overwrite.
            boundary_files_enabled: false,
            ..GarbageCollectorOptions::default()
        }),
        ..Settings::default()
    }
}
