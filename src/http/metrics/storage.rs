//! Figures of the journal, the shards, their engines, and the stores.

use super::super::LoadedServer;
use super::text::MetricsText;
use crate::node::Node;
use flagstone_storage::engine::EngineFigures;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn put(text: &mut MetricsText, running: &LoadedServer) {
    put_journal(text, running);
    put_shards(text, &running.node);
    put_stores(text, &running.node);
}

fn put_journal(text: &mut MetricsText, running: &LoadedServer) {
    let node = &running.node;
    let journal = &*node.journal;
    let stats = journal.stats();
    text.counter("journal_appends", "Records appended.").value(stats.appends);
    text.counter("journal_appended_bytes", "Bytes appended.").value(stats.appended_bytes);
    text.counter("journal_syncs", "Syncs; appends divided by them are the records of a sync.")
        .value(stats.syncs);
    text.gauge("journal_end_lsn", "Position of the last record.").value(journal.end());
    text.gauge("journal_durable_lsn", "Position up to which all is durable.")
        .value(journal.durable());
    text.gauge("journal_unsynced_age_seconds", "Age of the oldest record that is not durable.")
        .value(running.watcher.unsynced(journal).as_secs_f64());
    text.gauge("journal_bytes", "Bytes of all segments in use.").value(stats.bytes);
    text.gauge("journal_limit_bytes", "journal-max-size.")
        .value(node.config.settings().journal_max_size);
    text.gauge("journal_segments", "Segments that hold records.").value(stats.segments);
    text.gauge("journal_spare_segments", "Segments that are prepared.").value(stats.spares);
    text.gauge("journal_unarchived_segments", "Dropped segments or objects that stay.")
        .value(stats.left);
    text.gauge("journal_waiting_bytes", "Bytes in memory that wait for a remote store.")
        .value(stats.waiting_bytes);
    text.gauge("journal_refusing", "1 while writes are refused for lack of space.")
        .value(u8::from(stats.refusing));
    text.gauge("journal_failed", "1 if no write is accepted until a restart.")
        .value(u8::from(journal.failed().is_some()));
    text.gauge("journal_away", "1 while the journal's store does not answer.")
        .value(u8::from(node.health.is_cut_off()));
    text.gauge("journal_replayed_records", "Records that the start has replayed.")
        .value(node.figures.start.replayed);
    if let Some(left_ms) = node.health.lease_left_ms() {
        text.gauge("journal_lease_left_seconds", "Time that the lease lasts without an answer.")
            .value(left_ms as f64 / 1000.0);
    }
    text.gauge(
        "journal_backlog_bytes",
        "Bytes of records that the shard's engine has not flushed; they are replayed at a start.",
    );
    for shard in 0..node.layout.shards() {
        let backlog = stats.backlog.iter().find(|(id, _)| *id == shard);
        text.sample(&[("shard", &shard)], backlog.map_or(0, |(_, bytes)| *bytes));
    }
}

/// A figure of each engine: its name, its meaning, and its value.
type OfEngine = (&'static str, &'static str, fn(&EngineFigures) -> f64);

const ENGINE_GAUGES: &[OfEngine] = &[
    (
        "engine_level0_files",
        "Files of level 0; at engine_level0_limit the engine flushes no more.",
        |e| e.level0_files as f64,
    ),
    ("engine_level0_limit", "Files of level 0 at most.", |e| e.level0_limit as f64),
    ("engine_runs", "Sorted runs below level 0.", |e| e.runs as f64),
    ("engine_files", "Files of all levels.", |e| (e.level0_files + e.run_files) as f64),
    ("engine_level0_bytes", "Bytes of the files of level 0.", |e| e.level0_bytes as f64),
    ("engine_run_bytes", "Bytes of the sorted runs.", |e| e.run_bytes as f64),
    ("engine_plain_bytes", "Bytes of the rows in open files, before they were compressed.", |e| {
        e.plain_bytes as f64
    }),
    ("engine_packed_bytes", "Bytes of the rows in open files.", |e| e.packed_bytes as f64),
    ("engine_debt_bytes", "Bytes that merges have yet to bring into the last run.", |e| {
        e.debt_bytes() as f64
    }),
    (
        "engine_space_amplification_ratio",
        "Bytes of all files divided by those of the last run.",
        |e| (e.level0_bytes + e.run_bytes) as f64 / e.last_run_bytes.max(1) as f64,
    ),
    ("engine_read_amplification", "Places where a row may be: files of level 0, and runs.", |e| {
        (e.level0_files + e.runs) as f64
    }),
];

const ENGINE_COUNTERS: &[OfEngine] = &[
    ("engine_flushed_bytes", "Bytes that flushes have written.", |e| e.flushed_bytes as f64),
    ("engine_merged_bytes", "Bytes that merges have written.", |e| e.merged_bytes as f64),
    (
        "engine_cache_hits",
        "Lookups of blocks, indexes and filters that were in the engine's caches.",
        |e| e.cache_hits as f64,
    ),
    ("engine_cache_misses", "Lookups that were not.", |e| e.cache_misses as f64),
    (
        "engine_compress_sampled_bytes",
        "Bytes of the blocks on which compression was measured.",
        |e| e.sampled_bytes as f64,
    ),
    ("engine_compress_seconds", "Time to compress these blocks.", |e| e.compress_ns as f64 / 1e9),
    ("engine_decompress_seconds", "Time to decompress these blocks.", |e| {
        e.decompress_ns as f64 / 1e9
    }),
];

fn put_shards(text: &mut MetricsText, node: &Node) {
    let engines = node.engines.figures();
    let shards = || engines.iter().map(|(shard, _)| *shard);
    text.gauge("shard_pending_bytes", "Bytes of rows that are not handed to the shard's engine.");
    for shard in shards() {
        text.sample(&[("shard", &shard)], node.health.stalls.pending_bytes(shard));
    }
    text.gauge("shard_stalled", "1 while the shard cannot store rows.");
    let stalled = node.health.stalls.list();
    for shard in shards() {
        text.sample(&[("shard", &shard)], u8::from(stalled.contains(&shard)));
    }
    text.gauge("shard_worker", "Worker that owns the shard.");
    for shard in shards() {
        text.sample(&[("shard", &shard)], node.worker_of_shard(shard));
    }
    for (name, help, value) in ENGINE_GAUGES {
        text.gauge(name, help);
        for (shard, figures) in &engines {
            text.sample(&[("shard", shard)], value(figures));
        }
    }
    for (name, help, value) in ENGINE_COUNTERS {
        text.counter(name, help);
        for (shard, figures) in &engines {
            text.sample(&[("shard", shard)], value(figures));
        }
    }
    text.gauge("pending_limit_bytes", "Bytes of pending rows beyond which writers wait.")
        .value(node.pending_limit());
    text.gauge("writers_rate_bytes", "Bytes a second that writers are slowed to; 0: they are not.")
        .value(node.pressure.pace.rate());
    text.gauge("merges_running_ratio", "Part of the time in which merges run, if there are any.")
        .value(node.merge_pace().map_or(1.0, |pace| pace.share()));
    text.counter("writers_paused_seconds", "Sum of the pauses of writers.")
        .value(node.pressure.pace.paused_us() as f64 / 1e6);
}

fn put_stores(text: &mut MetricsText, node: &Node) {
    let [data, journal] = &node.figures.requests;
    let mut stores = vec![("data", data, node.checkpoints.source.store.dir().is_none())];
    if !Arc::ptr_eq(data, journal) {
        stores.push(("journal", journal, node.journal.is_remote()));
    }
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    text.counter(
        "store_requests",
        "Requests to the store of the data, and to that of the journal.",
    );
    for (store, requests, _) in &stores {
        for (operation, counter) in [
            ("put", &requests.puts),
            ("get", &requests.gets),
            ("list", &requests.lists),
            ("delete", &requests.deletes),
        ] {
            text.sample(&[("store", store), ("operation", &operation)], get(counter));
        }
    }
    text.counter("store_sent_bytes", "Bytes of objects that were written.");
    for (store, requests, _) in &stores {
        text.sample(&[("store", store)], get(&requests.put_bytes));
    }
    text.counter("store_received_bytes", "Bytes of the ranges that were requested.");
    for (store, requests, _) in &stores {
        text.sample(&[("store", store)], get(&requests.get_bytes));
    }
    text.counter(
        "store_request_dollars",
        "Price of the requests to buckets, by the prices of S3 Standard.",
    );
    for (store, requests, _) in stores.iter().filter(|(.., is_remote)| *is_remote) {
        text.sample(&[("store", store)], requests.dollars());
    }
}
