//! Figures of an engine: its files by level, and how much it has flushed, merged and read.
//!
//! SlateDB tells of its work through a recorder of metrics. This one keeps the few counters that
//! operators look at, and discards all others.

use super::{Engine, MAX_LEVEL0};
use slatedb_common::metrics::{
    CounterFn, GaugeFn, HistogramFn, MetricsRecorder, NoopMetricsRecorder, UpDownCounterFn,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of SlateDB's metrics.
const FLUSHED_BYTES: &str = "slatedb.db.l0_flush_bytes";
const MERGED_BYTES: &str = "slatedb.compactor.bytes_compacted";
const CACHE_ACCESSES: &str = "slatedb.db_cache.access_count";

/// Figures of one engine. Sizes are estimates from the sizes of the files, in bytes; counters begin
/// when the engine is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineFigures {
    /// Files of level 0.
    pub level0_files: u64,
    /// Number of files of level 0 at which the engine flushes nothing more.
    pub level0_limit: u64,
    /// Sorted runs below them.
    pub runs: u64,
    /// Files of these runs.
    pub run_files: u64,
    /// Bytes of level 0, of all runs, and of the last run.
    pub level0_bytes: u64,
    pub run_bytes: u64,
    pub last_run_bytes: u64,
    /// Bytes that flushes have written.
    pub flushed_bytes: u64,
    /// Bytes that merges have written.
    pub merged_bytes: u64,
    /// Lookups of blocks, indexes and filters in SlateDB's caches that found them, and that did
    /// not.
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Bytes of the rows in the files that are open for point reads, before and after they were
    /// compressed. Both are zero in a store in a bucket.
    pub plain_bytes: u64,
    pub packed_bytes: u64,
    /// Bytes of the blocks on which compression was measured, one of each compressed file that was
    /// opened, and the times that these took, in nanoseconds.
    pub sampled_bytes: u64,
    pub compress_ns: u64,
    pub decompress_ns: u64,
}

impl EngineFigures {
    /// Returns the bytes that merges have yet to bring into the last run.
    pub fn debt_bytes(&self) -> u64 {
        self.level0_bytes + self.run_bytes.saturating_sub(self.last_run_bytes)
    }
}

/// A counter that SlateDB increments.
#[derive(Debug, Default)]
struct Meter(AtomicU64);

impl CounterFn for Meter {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }
}

impl Meter {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of an engine that are kept.
#[derive(Debug, Default)]
pub(super) struct Meters {
    flushed: Arc<Meter>,
    merged: Arc<Meter>,
    hits: Arc<Meter>,
    misses: Arc<Meter>,
}

impl MetricsRecorder for Meters {
    fn register_counter(
        &self,
        name: &str,
        description: &str,
        labels: &[(&str, &str)],
    ) -> Arc<dyn CounterFn> {
        let meter = match name {
            FLUSHED_BYTES => &self.flushed,
            MERGED_BYTES => &self.merged,
            CACHE_ACCESSES if labels.contains(&("result", "hit")) => &self.hits,
            CACHE_ACCESSES => &self.misses,
            _ => return NoopMetricsRecorder::new().register_counter(name, description, labels),
        };
        meter.clone()
    }

    fn register_gauge(
        &self,
        name: &str,
        description: &str,
        labels: &[(&str, &str)],
    ) -> Arc<dyn GaugeFn> {
        NoopMetricsRecorder::new().register_gauge(name, description, labels)
    }

    fn register_up_down_counter(
        &self,
        name: &str,
        description: &str,
        labels: &[(&str, &str)],
    ) -> Arc<dyn UpDownCounterFn> {
        NoopMetricsRecorder::new().register_up_down_counter(name, description, labels)
    }

    fn register_histogram(
        &self,
        name: &str,
        description: &str,
        labels: &[(&str, &str)],
        boundaries: &[f64],
    ) -> Arc<dyn HistogramFn> {
        NoopMetricsRecorder::new().register_histogram(name, description, labels, boundaries)
    }
}

impl Engine {
    /// Returns its figures, as of its last manifest. Reads no file.
    pub fn figures(&self) -> EngineFigures {
        let opened = self.opened();
        let status = opened.db.subscribe();
        let status = status.borrow();
        let (level0, runs) = (status.current_manifest.l0(), status.current_manifest.compacted());
        let (size, cost) = (opened.points.packed_size(), opened.points.codec_cost());
        let run_bytes = runs.iter().map(|run| run.estimate_size()).sum();
        EngineFigures {
            level0_files: level0.len() as u64,
            level0_limit: MAX_LEVEL0 as u64,
            runs: runs.len() as u64,
            run_files: runs.iter().map(|run| run.sst_views().len() as u64).sum(),
            level0_bytes: level0.iter().map(|view| view.sst.estimate_size()).sum(),
            run_bytes,
            last_run_bytes: runs.last().map_or(0, |run| run.estimate_size()),
            flushed_bytes: opened.meters.flushed.get(),
            merged_bytes: opened.meters.merged.get(),
            cache_hits: opened.meters.hits.get(),
            cache_misses: opened.meters.misses.get(),
            plain_bytes: size.plain,
            packed_bytes: size.packed,
            sampled_bytes: cost.plain,
            compress_ns: cost.compress_ns,
            decompress_ns: cost.decompress_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_looked_at_are_kept_and_others_are_not() {
        let meters = Meters::default();
        meters.register_counter(FLUSHED_BYTES, "", &[]).increment(7);
        // Each worker of a compactor registers its own.
        meters.register_counter(MERGED_BYTES, "", &[("worker_id", "a")]).increment(2);
        meters.register_counter(MERGED_BYTES, "", &[("worker_id", "b")]).increment(3);
        let hit = [("entry_kind", "index"), ("result", "hit")];
        meters.register_counter(CACHE_ACCESSES, "", &hit).increment(11);
        let miss = [("entry_kind", "index"), ("result", "miss")];
        meters.register_counter(CACHE_ACCESSES, "", &miss).increment(13);
        meters.register_counter("slatedb.db.write_ops", "", &[]).increment(17);
        let kept = [&meters.flushed, &meters.merged, &meters.hits, &meters.misses];
        assert_eq!(kept.map(|meter| meter.get()), [7, 5, 11, 13]);
    }
}
