//! Garbage: the bytes of deleted rows on disk, and when merging all files is worth it.
//!
//! A deleted row takes its space until its tombstone meets it in a compaction, and the tombstone
//! until it reaches the last sorted run. Every batch that deletes rows carries the row `C garbage`:
//! the bytes deleted since the shard was created. A run holds all rows up to some point in time, so
//! the value of that row in the last run is the garbage already collected, and its newest value
//! minus that is the garbage left. So no counter has to be reset when a compaction ends, and the
//! process may be killed at any time.

use super::{Engine, OpenDb};
use crate::control::{garbage_bytes, garbage_key, garbage_value};
use anyhow::{Context, Result};
use bytes::Bytes;
use slatedb::compactor::SourceId;
use slatedb::manifest::{SsTableId, VersionedManifest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All files are merged when at least one part in so many of their bytes is garbage.
const PARTS: u64 = 5;

/// Pause after a merge that collected nothing.
const RETRY: Duration = Duration::from_secs(120);

/// Counter of garbage, shared by an engine and its compaction scheduler.
#[derive(Debug)]
pub(super) struct Garbage {
    /// Garbage below this is never worth a merge.
    least: u64,
    /// Bytes deleted since the shard was created.
    total: AtomicU64,
    weighed: Mutex<Weighed>,
}

#[derive(Debug, Default)]
struct Weighed {
    /// The last run when it was last examined, and the garbage collected by then.
    last: Option<SsTableId>,
    collected: u64,
    request: Option<Request>,
    /// The time of the last request, and the garbage collected by then.
    asked: Option<(Instant, u64)>,
}

/// A request to merge all rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The last run at the time of the request (see [`last_run`]).
    pub(super) last: Option<SsTableId>,
    /// The files of level 0 that hold the tombstones.
    pub(super) level0: Vec<SourceId>,
}

/// Returns the identity of the last run: its first file, which every compaction writes anew.
pub(super) fn last_run(manifest: &VersionedManifest) -> Option<SsTableId> {
    Some(manifest.compacted().last()?.sst_views().first()?.sst.id)
}

impl Garbage {
    pub(super) fn new(least: u64) -> Self {
        Self { least, total: AtomicU64::new(0), weighed: Mutex::default() }
    }

    /// Adds deleted bytes, and returns the total.
    pub(super) fn add(&self, bytes: u64) -> u64 {
        self.total.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    fn weighed(&self) -> MutexGuard<'_, Weighed> {
        self.weighed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the merge that is requested, if any.
    pub(super) fn request(&self) -> Option<Request> {
        self.weighed().request.clone()
    }

    /// Returns true if so much garbage justifies a merge of files of `size` bytes.
    fn is_worth(&self, garbage: u64, size: u64) -> bool {
        garbage >= self.least.max(size / PARTS)
    }
}

impl Weighed {
    /// Returns true if a merge may be requested at `now`. After one that collected nothing, the
    /// next one waits.
    fn may_ask(&self, now: Instant) -> bool {
        let in_vain =
            |(at, collected)| collected == self.collected && now.duration_since(at) < RETRY;
        self.request.is_none() && !self.asked.is_some_and(in_vain)
    }
}

impl Engine {
    /// Reads how much was deleted before the engine was opened.
    pub(super) async fn load_garbage(&self) -> Result<()> {
        if let Some(value) = self.get(&garbage_key()).await? {
            let garbage = self.opened().garbage;
            garbage.add(garbage_bytes(&value).context("the garbage row is damaged")?);
        }
        Ok(())
    }

    /// Writes a row, and counts half of the files as garbage: the shard is about to be split. So all files are
    /// merged soon, in both of the engines that will have them, and rows that do not count there are left out.
    pub(crate) async fn expect_halves(&self, row: (Bytes, Option<Bytes>)) -> Result<()> {
        self.write_deleting(vec![row], self.half()).await?;
        Ok(())
    }

    /// Like [`expect_halves`](Self::expect_halves), without a row.
    pub(crate) async fn count_half_as_garbage(&self) -> Result<()> {
        let half = self.half();
        if half > 0 {
            self.write_deleting(Vec::new(), half).await?;
        }
        Ok(())
    }

    /// Returns half of the bytes of its files.
    fn half(&self) -> u64 {
        let manifest = self.db().manifest();
        manifest.all_sst_views().map(|view| view.sst.estimate_size()).sum::<u64>() / 2
    }

    /// Checks whether the garbage justifies a merge of all files, and requests it. No other writes
    /// may run meanwhile.
    pub(crate) async fn check_garbage(&self) -> Result<()> {
        let OpenDb { db, garbage, readers, writes, .. } = self.opened();
        let _reading = readers.begin();
        let manifest = db.manifest();
        let last = last_run(&manifest);
        let total = garbage.total.load(Ordering::Relaxed);
        if garbage.weighed().last != last {
            let collected = self.collected(&manifest).await?;
            if total > 0 && manifest.l0().front().map(|view| view.sst.id) < last {
                // The collector deletes merged files only if they are older than the newest file of
                // level 0, so one is written.
                self.write(vec![(garbage_key(), Some(garbage_value(total)))]).await?;
                self.flush().await?;
            }
            let mut weighed = garbage.weighed();
            weighed.last = last;
            weighed.collected = collected;
            weighed.request = None;
        }
        let size = manifest.all_sst_views().map(|view| view.sst.estimate_size()).sum();
        let wanted = {
            let weighed = garbage.weighed();
            let left = total.saturating_sub(weighed.collected);
            garbage.is_worth(left, size) && weighed.may_ask(Instant::now())
        };
        if !wanted {
            return Ok(());
        }
        self.flush().await?;
        let manifest = db.manifest();
        let level0 = manifest.l0().iter().map(|view| SourceId::SstView(view.id)).collect();
        let mut weighed = garbage.weighed();
        weighed.asked = Some((Instant::now(), weighed.collected));
        weighed.request = Some(Request { last, level0 });
        // The scheduler looks for it.
        writes.changes().note();
        tracing::debug!(total, collected = weighed.collected, size, "everything is to be merged");
        Ok(())
    }

    /// Returns the bytes of deletes whose tombstones have reached the last run.
    async fn collected(&self, manifest: &VersionedManifest) -> Result<u64> {
        let Some(run) = manifest.compacted().last() else { return Ok(0) };
        // Control rows are few and come first: they are in the first file.
        let Some(view) = run.sst_views().first() else { return Ok(0) };
        let file = self.opened().files.open_with_handle(view.sst.clone())?;
        let key = garbage_key();
        let block = file.index().await?.partition_point(|first| *first <= key[..]);
        // The newest version of a row comes first; it may be in the block before.
        for block in block.saturating_sub(2)..block {
            let rows = file.read_block(block).await?;
            if let Some(row) = rows.iter().find(|row| row.key == key) {
                let value = row.value.as_bytes().context("the garbage row was deleted")?;
                return garbage_bytes(&value).context("the garbage row is damaged");
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_garbage_is_not_worth_a_merge() {
        let garbage = Garbage::new(100);
        assert!(!garbage.is_worth(99, 0));
        assert!(garbage.is_worth(100, 500));
        assert!(!garbage.is_worth(100, 1000));
        assert!(garbage.is_worth(200, 1000));
    }

    #[test]
    fn a_merge_that_got_rid_of_nothing_is_not_asked_for_again_soon() {
        let now = Instant::now();
        let mut weighed = Weighed::default();
        assert!(weighed.may_ask(now));
        weighed.asked = Some((now, 0));
        assert!(!weighed.may_ask(now));
        assert!(weighed.may_ask(now + RETRY));
        weighed.collected = 5;
        assert!(weighed.may_ask(now));
    }
}
