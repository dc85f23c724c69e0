//! The memory of an engine's memtables.
//!
//! SlateDB makes a file of a memtable once the file would have `l0_sst_size_bytes`. In memory a
//! short row takes five times the room that it has in a file, because it is a node of a skip list.
//! So the engine counts that memory, and has a memtable flushed when it has its size.

use super::{BATCH_BYTES, Engine, FLUSH, Upkeep, within};
use anyhow::{Context, Result};
use slatedb::Db;
use slatedb::config::{FlushOptions, FlushType};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Minimum and maximum memory of a memtable in bytes before it is flushed: smaller ones would leave
/// too many files; larger ones would write files as big as merges of smaller ones do.
pub(super) const MEMTABLE_BYTES: RangeInclusive<usize> = 4 << 20..=128 << 20;

/// Memory in bytes of a row in a memtable beside its key and value: a node of the skip list with two
/// keys, a value, their sequence number and times, and links.
const ROW_MEMORY: usize = 192;

const MEMTABLE: FlushOptions = FlushOptions { flush_type: FlushType::MemTable };

/// Returns the memory of a memtable of an engine in bytes.
pub(super) fn limit(upkeep: &Upkeep) -> usize {
    upkeep.memtable_bytes.clamp(*MEMTABLE_BYTES.start(), *MEMTABLE_BYTES.end())
}

/// Returns the size of a file in bytes at which SlateDB itself flushes a memtable: only a batch that is
/// larger than others gets there.
pub(super) fn file_limit(upkeep: &Upkeep) -> usize {
    limit(upkeep) + BATCH_BYTES
}

/// Returns the memory in bytes that so many rows take in a memtable, whose keys and values have `bytes`.
pub(super) fn memory_of(rows: usize, bytes: usize) -> usize {
    rows * ROW_MEMORY + bytes
}

/// Counts the memory of the memtable that takes rows, and the flushes of those before it.
#[derive(Debug)]
pub(super) struct Memtables {
    limit: usize,
    bytes: AtomicUsize,
    flushes: Arc<Semaphore>,
}

impl Memtables {
    pub(super) fn new(upkeep: &Upkeep) -> Self {
        let flushes = Arc::new(Semaphore::new(upkeep.flushes));
        Self { limit: limit(upkeep), bytes: AtomicUsize::new(0), flushes }
    }

    /// Notes rows that the memtable has taken, which have so many bytes of memory. A full one is
    /// flushed in the background; if too many are already, this waits for one of them.
    pub(super) async fn took(&self, db: &Db, bytes: usize) -> Result<()> {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < self.limit {
            return Ok(());
        }
        let permit = self.flushes.clone().acquire_owned().await?;
        self.begin_anew();
        let db = db.clone();
        tokio::spawn(async move {
            // An engine that cannot flush closes itself, and says why to those who ask.
            let _ = db.flush_with_options(MEMTABLE).await;
            drop(permit);
        });
        Ok(())
    }

    /// Notes that further rows go into another memtable.
    fn begin_anew(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}

impl Engine {
    /// Flushes everything written so far.
    pub async fn flush(&self) -> Result<()> {
        let opened = self.opened();
        opened.memtables.begin_anew();
        let flushing = async { Ok(opened.db.writer()?.flush_with_options(MEMTABLE).await?) };
        let flushed = within(FLUSH, &opened.writes, flushing).await;
        flushed.with_context(|| format!("flushing {}", self.how.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::encoding::RowKey;
    use crate::materialise::write_cut;
    use crate::pending::Pending;
    use crate::place::Place;
    use crate::shard::Cut;
    use bytes::Bytes;
    use object_store::memory::InMemory;
    use slatedb::db_cache::SplitCache;
    use std::time::Duration;
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    /// Rows that take 8.7 MB in memtables, and less than 2 MB in files.
    const SHORT_ROWS: u32 = 40_000;

    fn row(n: u32) -> (Bytes, Option<Bytes>) {
        let mut key = Vec::new();
        RowKey::elements(&mut key, 1, 9);
        key.extend_from_slice(&n.to_be_bytes());
        (key.into(), Some(Bytes::from_static(&[7; 10])))
    }

    fn upkeep() -> Upkeep {
        Upkeep { memtable_bytes: 0, flushes: 1, ..Upkeep::default() }
    }

    async fn open(place: &Place, upkeep: &Upkeep) -> Engine {
        let cache = Arc::new(SplitCache::new().build());
        Engine::open(place, cache, 1, Clock::default(), upkeep).await.unwrap()
    }

    #[tokio::test]
    async fn short_rows_are_flushed_by_the_memory_that_they_take() {
        let place = Place::within(Arc::new(InMemory::new()), "db".into(), "memory");
        let engine = open(&place, &upkeep()).await;
        let rows: Vec<_> = (0..SHORT_ROWS).map(row).collect();
        let (memory, in_file) = (memory_of(rows.len(), 0), rows.len() * 45);
        assert!(memory > limit(&upkeep()) && in_file < limit(&upkeep()) / 2);
        let mut last = 0;
        for rows in rows.chunks(2048) {
            last = engine.write(rows.to_vec()).await.unwrap();
        }
        let flushed = async {
            while engine.durable() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), flushed).await.expect("nothing was flushed");
        engine.flush().await.unwrap();
        assert_eq!(engine.durable(), last);
    }

    #[tokio::test]
    async fn writes_wait_for_the_flush_before() {
        let place = Place::within(Arc::new(InMemory::new()), "db".into(), "memory");
        let engine = open(&place, &upkeep()).await;
        let opened = engine.opened();
        let flushing = opened.memtables.flushes.clone().acquire_owned().await.unwrap();
        let rows: Vec<_> = (0..SHORT_ROWS).map(row).collect();
        let writing = engine.write(rows);
        tokio::pin!(writing);
        assert!(timeout(Duration::from_millis(200), &mut writing).await.is_err());
        drop(flushing);
        timeout(Duration::from_secs(60), writing).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn rows_that_cannot_be_stored_are_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let (home, away) = (dir.path().join("home"), dir.path().join("away"));
        std::fs::create_dir(&home).unwrap();
        let engine = open(&Place::local(&home).unwrap(), &upkeep()).await;
        std::fs::rename(&home, &away).unwrap();
        std::fs::write(&home, b"no directory").unwrap();
        let writing = async {
            // The first memtable that is full is flushed, and the second one waits for that.
            for rows in (0..4 * SHORT_ROWS).map(row).collect::<Vec<_>>().chunks(2048) {
                engine.write(rows.to_vec()).await?;
            }
            Ok(())
        };
        let limit = Duration::from_millis(300);
        let stuck = timeout(Duration::from_secs(60), engine.unless_stuck(limit, writing)).await;
        let error = stuck.expect("it waits").unwrap_err().to_string();
        assert!(error.contains("takes no rows") && error.contains("Not a directory"), "{error}");
    }

    #[test]
    fn engines_that_wait_for_flushes_leave_threads_for_them() {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let writing = dirs.each_ref().map(|dir| {
            let (place, upkeep) = (Place::local(dir.path()).unwrap(), upkeep());
            runtime.spawn(async move {
                let engine = open(&place, &upkeep).await;
                let mut pending = Pending::default();
                for (key, value) in (0..2 * SHORT_ROWS).map(row) {
                    pending.set(&key, value.as_deref(), false);
                }
                let cut = Cut {
                    pending,
                    lsn: 7,
                    reaches: 7,
                    epoch: 1,
                    generations: Default::default(),
                    counters: Default::default(),
                };
                write_cut(&engine, Arc::new(cut)).await.unwrap();
                engine.close().await.unwrap();
            })
        });
        let both = async {
            for writing in writing {
                timeout(Duration::from_secs(60), writing).await.expect("it hangs").unwrap();
            }
        };
        runtime.block_on(both);
    }
}
