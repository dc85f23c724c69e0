//! Opens the engines of a directory, and divides their memory.

use super::{Manifest, OpenOptions, OpenStore, ShardHome, remove_staged};
use crate::clock::Clock;
use crate::engine::points::{MAX_FILES, PointLimits};
use crate::engine::{Claim, Engine, MergePermits, Upkeep};
use crate::place::Place;
use crate::slot::SLOTS;
use anyhow::{Context, Result};
use futures::future::try_join_all;
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use slatedb::db_cache::{DbCache, SplitCache};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of parts of a cache, each of which has its own lock.
const CACHE_PARTS: usize = 8;

/// Least bytes of a part of the cache of filters and indexes: these are up to 1 MiB each, and two
/// that do not fit together would be read again for each row.
const META_PART_BYTES: u64 = 16 << 20;

/// Returns the part of a whole that a shard with so many slots has.
pub(crate) fn share(whole: usize, slots: usize) -> usize {
    whole / usize::from(SLOTS) * slots + whole % usize::from(SLOTS) * slots / usize::from(SLOTS)
}

/// Opens the engines of a directory, which share a cache and its memory.
pub(crate) struct EngineOpener {
    store: Place,
    /// The local directory for cached files, and the bytes that a shard may take there.
    disk_cache: Option<(PathBuf, u64)>,
    cache: Arc<dyn DbCache>,
    clock: Clock,
    upkeep: Upkeep,
    /// Number of shards at the creation of the directory.
    created: u16,
}

impl EngineOpener {
    pub(crate) fn new(options: &OpenOptions, manifest: &Manifest, clock: &Clock) -> Self {
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
        let cache = SplitCache::new()
            .with_block_cache(Some(Arc::new(block)))
            .with_meta_cache(Some(Arc::new(meta)))
            .build();
        let shards = manifest.created.max(1);
        let upkeep = match options.store.dir() {
            Some(_) => Upkeep::default(),
            None => Upkeep::remote(options.store_timeout),
        };
        let points = PointLimits {
            bytes: point_bytes as usize / usize::from(shards),
            files: MAX_FILES / usize::from(shards),
        };
        // The only engine of a node flushes a second memtable while the disk writes the first; several
        // engines keep the disk busy with one each. A bucket answers late.
        let flushes = if is_local && shards > 1 { 1 } else { upkeep.flushes };
        let upkeep = Upkeep {
            compression: options.compression,
            memtable_bytes: options.memtable_bytes / usize::from(shards),
            merge_bytes: options.merge_bytes / usize::from(shards),
            merges: MergePermits::new(shards, options.merges),
            flushes,
            // A shard that has an identity must exist.
            must_exist: manifest.identified,
            points,
            ..upkeep
        };
        let disk_cache = options.cache.clone().filter(|_| !is_local);
        Self {
            store: options.store.clone(),
            disk_cache: disk_cache.map(|(dir, bytes)| (dir, bytes / u64::from(shards))),
            cache: Arc::new(cache),
            clock: clock.clone(),
            upkeep,
            created: shards,
        }
    }

    /// Opens the engine of a shard. Must run on the background runtime.
    pub(crate) async fn open(
        &self,
        home: &ShardHome,
        open_store: &OpenStore<'_>,
        claim: Claim,
    ) -> Result<Engine> {
        let (id, shard) = (home.id, home.place(&self.store));
        if let Some(dir) = shard.dir() {
            fs::create_dir_all(dir).with_context(|| format!("creating {shard}"))?;
            remove_staged(dir).with_context(|| format!("cleaning {shard}"))?;
        }
        let opening = || format!("opening {shard}");
        let place = match home.is_split_off() {
            true => open_store(&shard.join("db").with_shared().await?).with_context(opening)?,
            false => open_store(&shard).with_context(opening)?.join("db"),
        };
        let (cache, upkeep) = (self.cache_of(id), self.upkeep_of(home));
        let opened = Engine::claim(&place, cache, self.clock.clone(), &upkeep, claim).await;
        opened.with_context(|| match home.is_split_off() {
            true => format!(
                "shard {id} ({shard}), which may read files of the shard that it was split from"
            ),
            false => format!("shard {id} ({shard})"),
        })
    }

    /// Opens the engines of all shards of one server concurrently.
    pub(super) async fn open_all(
        &self,
        manifest: &Manifest,
        open_store: &OpenStore<'_>,
    ) -> Result<Vec<Engine>> {
        let homes = manifest.homes();
        try_join_all(homes.iter().map(|home| self.open(home, open_store, Claim::Owner))).await
    }

    /// Opens the engine of a shard of another process for reading, as it is stored now. Must run on the
    /// background runtime.
    pub(crate) async fn pin(&self, home: &ShardHome) -> Result<Engine> {
        let mut place = home.engine_place(&self.store);
        if home.is_split_off() {
            place = place.with_shared().await?;
        }
        let (cache, upkeep) = (self.cache_of(home.id), self.upkeep_of(home));
        let pinned = Engine::pin(&place, cache, self.clock.clone(), &upkeep).await;
        pinned.with_context(|| format!("shard {}", home.id))
    }

    fn cache_of(&self, id: u16) -> (Arc<dyn DbCache>, u64) {
        (self.cache.clone(), u64::from(id))
    }

    fn upkeep_of(&self, home: &ShardHome) -> Upkeep {
        let disk_cache = self.disk_cache.as_ref();
        let disk_cache = disk_cache.map(|(dir, bytes)| (dir.join(home.name()), *bytes));
        let (slots, made_by) = (home.slots.clone(), home.maker());
        let upkeep = Upkeep { disk_cache, slots, made_by, ..self.upkeep.clone() };
        match &home.slots {
            Some(own) => self.part_of(upkeep, own.0.len()),
            None => upkeep,
        }
    }

    /// Returns the settings of a shard with so many slots: parts of a shard that was split share its memory, and
    /// its part of the cache on the disk.
    fn part_of(&self, upkeep: Upkeep, slots: usize) -> Upkeep {
        let whole = (usize::from(SLOTS) / usize::from(self.created)).max(slots);
        let disk_cache = upkeep.disk_cache;
        Upkeep {
            memtable_bytes: upkeep.memtable_bytes * slots / whole,
            merge_bytes: upkeep.merge_bytes * slots / whole,
            disk_cache: disk_cache.map(|(dir, bytes)| (dir, bytes * slots as u64 / whole as u64)),
            ..upkeep
        }
    }
}

/// Opens all engines of a directory.
pub(super) async fn open_engines(
    options: &OpenOptions,
    manifest: &Manifest,
    clock: &Clock,
    open_store: &OpenStore<'_>,
) -> Result<Vec<Engine>> {
    EngineOpener::new(options, manifest, clock).open_all(manifest, open_store).await
}
