//! Opens the engines of a directory, and divides their memory.

use super::{Manifest, OpenOptions, OpenStore, remove_staged, shard_place};
use crate::clock::Clock;
use crate::engine::points::{MAX_FILES, PointLimits};
use crate::engine::{Engine, MergePermits, Upkeep};
use anyhow::{Context, Result};
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use slatedb::db_cache::{DbCache, SplitCache};
use std::fs;
use std::sync::Arc;

/// Maximum number of parts of a cache, each of which has its own lock.
const CACHE_PARTS: usize = 8;

/// Least bytes of a part of the cache of filters and indexes: these are up to 1 MiB each, and two
/// that do not fit together would be read again for each row.
const META_PART_BYTES: u64 = 16 << 20;

/// Opens all engines concurrently, with one block cache.
pub(super) async fn open_engines(
    options: &OpenOptions,
    manifest: &Manifest,
    clock: &Clock,
    open_store: &OpenStore<'_>,
) -> Result<Vec<Engine>> {
    let block = FoyerCache::new_with_opts(FoyerCacheOptions {
        max_capacity: options.block_cache_bytes,
        shards: CACHE_PARTS,
    });
    let is_local = options.store.dir().is_some();
    let point_bytes = if is_local { options.meta_cache_bytes / 2 } else { 0 };
    let meta_bytes = options.meta_cache_bytes - point_bytes;
    let parts = (meta_bytes / META_PART_BYTES).clamp(1, CACHE_PARTS as u64);
    let meta = FoyerCache::new_with_opts(FoyerCacheOptions {
        max_capacity: meta_bytes,
        shards: parts as usize,
    });
    let cache: Arc<dyn DbCache> = Arc::new(
        SplitCache::new()
            .with_block_cache(Some(Arc::new(block)))
            .with_meta_cache(Some(Arc::new(meta)))
            .build(),
    );
    let shards = manifest.shards;
    let memtable_bytes = options.memtable_bytes / usize::from(shards.max(1));
    let merge_bytes = options.merge_bytes / usize::from(shards.max(1));
    let upkeep = match options.store.dir() {
        Some(_) => Upkeep::default(),
        None => Upkeep::remote(options.store_timeout),
    };
    // A shard that has an identity must exist.
    let must_exist = manifest.identified;
    let points = PointLimits {
        bytes: point_bytes as usize / usize::from(shards.max(1)),
        files: MAX_FILES / usize::from(shards.max(1)),
    };
    let merges = MergePermits::new(shards, options.merges);
    // The only engine of a node flushes a second memtable while the disk writes the first; several
    // engines keep the disk busy with one each. A bucket answers late.
    let flushes = if is_local && shards > 1 { 1 } else { upkeep.flushes };
    let compression = options.compression;
    let upkeep = Upkeep {
        compression,
        memtable_bytes,
        merge_bytes,
        merges,
        flushes,
        must_exist,
        points,
        ..upkeep
    };
    let mut opening = Vec::with_capacity(usize::from(shards));
    for id in 0..shards {
        let shard = shard_place(&options.store, id);
        if let Some(dir) = shard.dir() {
            fs::create_dir_all(dir).with_context(|| format!("creating {shard}"))?;
            remove_staged(dir).with_context(|| format!("cleaning {shard}"))?;
        }
        let place = open_store(&shard).with_context(|| format!("opening {shard}"))?.join("db");
        let (cache, clock) = (cache.clone(), clock.clone());
        let disk_cache = options.cache.as_ref().filter(|_| place.dir().is_none());
        let disk_cache = disk_cache.map(|(dir, bytes)| {
            (dir.join(format!("shard-{id}")), bytes / u64::from(shards.max(1)))
        });
        let upkeep = Upkeep { disk_cache, ..upkeep.clone() };
        opening.push(tokio::spawn(async move {
            Engine::open(&place, cache, u64::from(id), clock, &upkeep)
                .await
                .with_context(|| format!("shard {id} ({shard})"))
        }));
    }
    let mut engines = Vec::with_capacity(opening.len());
    for engine in opening {
        engines.push(engine.await??);
    }
    Ok(engines)
}
