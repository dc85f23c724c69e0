//! The section of INFO that is our own.

use super::Page;
use crate::node::LoopStats;
use flagstone_storage::engine::EngineFigures;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ratio and cost of compression, of all engines.
#[derive(Default)]
struct Packing {
    plain: u64,
    packed: u64,
    sampled: u64,
    compress_ns: u64,
    decompress_ns: u64,
}

impl Packing {
    fn with(self, engine: EngineFigures) -> Self {
        Self {
            plain: self.plain + engine.plain_bytes,
            packed: self.packed + engine.packed_bytes,
            sampled: self.sampled + engine.sampled_bytes,
            compress_ns: self.compress_ns + engine.compress_ns,
            decompress_ns: self.decompress_ns + engine.decompress_ns,
        }
    }

    /// Returns the size of the files' rows in thousandths of their size before compression.
    fn permille(&self) -> u64 {
        self.packed * 1000 / self.plain.max(1)
    }

    fn us_per_mib(&self, ns: u64) -> u64 {
        (u128::from(ns) * (1 << 20) / 1000 / u128::from(self.sampled.max(1))) as u64
    }
}

impl Page<'_> {
    /// Writes figures about single turns of the workers' threads.
    pub(super) fn debug(&mut self) {
        let max = |of: fn(&LoopStats) -> &AtomicU64| {
            let all = self.node.figures.stats.iter().map(|s| of(&s.turns).load(Ordering::Relaxed));
            all.max().unwrap_or(0)
        };
        let (longest_us, most_commands) = (max(|s| &s.longest_us), max(|s| &s.most_commands));
        self.fields(&[
            ("eventloop_duration_aof_sum", &0),
            ("eventloop_duration_cron_sum", &self.sum(|s| &s.turns.cron_us)),
            ("eventloop_duration_max", &longest_us),
            ("eventloop_cmd_per_cycle_max", &most_commands),
        ]);
    }

    /// The server's part in a cluster.
    pub(super) fn membership(&mut self) {
        let Some(cluster) = &self.node.cluster else { return };
        let (map, others) = (cluster.map(), cluster.others());
        let silent = others.iter().filter(|member| !cluster.is_connected(member.life)).count();
        let parked = map.shards().iter().filter(|shard| shard.owner.is_none()).count();
        self.fields(&[
            ("cluster_life", &cluster.life()),
            ("cluster_map", &map.number()),
            ("cluster_lease_ms", &map.lease().as_millis()),
            ("cluster_shards_owned", &map.owned_by(cluster.life()).count()),
            ("cluster_shards_served", &cluster.served().count()),
            ("cluster_shards_parked", &parked),
            ("cluster_servers", &(others.len() + 1)),
            ("cluster_servers_silent", &silent),
        ]);
        if self.node.health.replica.is_mirroring() {
            let lag = cluster.mirrors.lag().map_or(-1, |lag| lag.as_millis().cast_signed());
            self.fields(&[
                ("cluster_replica_shards", &cluster.mirrors.shown()),
                ("cluster_replica_lag_ms", &lag),
            ]);
        }
    }

    pub(super) fn flagstone(&mut self) {
        let node = self.node;
        let settings = self.worker.settings();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let engines = node.engines.figures().into_iter().map(|(_, figures)| figures);
        let packing = engines.fold(Packing::default(), Packing::with);
        self.fields(&[
            ("workers", &node.shard_workers),
            ("net_workers", &settings.net_workers),
            ("background_workers", &settings.background_workers),
            ("shards", &node.layout.shards()),
            ("accept_mode", &settings.accept_mode.as_str()),
            ("appendfsync", &settings.appendfsync.as_str()),
            ("memory_budget", &settings.memory_budget),
            ("hot_bytes", &self.sum(|s| &s.store.hot_bytes)),
            ("hot_squeezed_bytes", &node.pressure.squeeze.bytes()),
            ("hot_dropped_entries", &self.sum(|s| &s.store.dropped)),
            ("pending_bytes", &self.sum(|s| &s.engine.pending_bytes)),
            ("pending_limit_bytes", &node.pending_limit()),
            ("engine_level0_permille", &(node.level0_use() * 1000.0).round()),
            ("compression", &settings.compression.as_str()),
            ("engine_plain_bytes", &packing.plain),
            ("engine_packed_bytes", &packing.packed),
            ("engine_packed_permille", &packing.permille()),
            ("compress_us_per_mib", &packing.us_per_mib(packing.compress_ns)),
            ("decompress_us_per_mib", &packing.us_per_mib(packing.decompress_ns)),
            ("writers_rate_bytes", &node.pressure.pace.rate()),
            ("writers_paused_us", &node.pressure.pace.paused_us()),
            ("stalled_shards", &self.stalled_shards()),
            ("unresolved_writes", &self.sum(|s| &s.engine.unresolved)),
            ("old_row_passes", &self.sum(|s| &s.engine.passes)),
            ("key_filter_bytes", &self.sum(|s| &s.engine.filter_bytes)),
            ("point_read_bytes", &self.sum(|s| &s.engine.point_bytes)),
            ("point_reads_cached", &self.sum(|s| &s.engine.point_cached)),
            ("point_reads_disk", &self.sum(|s| &s.engine.point_disk)),
            ("point_reads_elsewhere", &self.sum(|s| &s.engine.point_elsewhere)),
            ("commands_local", &self.sum(|s| &s.local)),
            ("commands_remote", &self.sum(|s| &s.remote)),
            ("commands_parked", &self.sum(|s| &s.parked)),
            ("tls_handshakes", &get(&node.clients.handshakes)),
            ("tls_failed_handshakes", &get(&node.clients.failed_handshakes)),
            ("commits", &self.sum(|s| &s.commits)),
            ("failed_commits", &self.sum(|s| &s.failed_commits)),
            ("store_puts", &self.requests(|requests| &requests.puts)),
            ("store_gets", &self.requests(|requests| &requests.gets)),
            ("store_lists", &self.requests(|requests| &requests.lists)),
            ("store_deletes", &self.requests(|requests| &requests.deletes)),
            ("store_put_bytes", &self.requests(|requests| &requests.put_bytes)),
            ("store_get_bytes", &self.requests(|requests| &requests.get_bytes)),
            ("clock_ahead_ms", &node.clock.ahead_ms()),
            ("clock_jumps", &node.clock.jumps()),
        ]);
        self.journal();
    }

    fn journal(&mut self) {
        let node = self.node;
        let journal = node.journal.stats();
        let backlog: u64 = journal.backlog.iter().map(|(_, bytes)| bytes).sum();
        self.fields(&[
            ("journal_end_lsn", &node.journal.end()),
            ("journal_durable_lsn", &node.journal.durable()),
            ("journal_segments", &journal.segments),
            ("journal_spare_segments", &journal.spares),
            ("journal_unarchived_segments", &journal.left),
            ("journal_bytes", &journal.bytes),
            ("journal_appends", &journal.appends),
            ("journal_appended_bytes", &journal.appended_bytes),
            ("journal_syncs", &journal.syncs),
            ("journal_commit_window_ms", &node.journal.commit_window().as_millis()),
            ("journal_backlog_bytes", &backlog),
            ("journal_replayed_records", &node.figures.start.replayed),
            ("journal_unflushed_operations", &node.unflushed_ops()),
            ("journal_refusing", &i32::from(journal.refusing)),
            ("journal_waiting_bytes", &journal.waiting_bytes),
            ("journal_away", &i32::from(node.health.is_cut_off())),
            ("journal_lease_left_ms", &node.health.lease_left_ms().unwrap_or(0)),
            ("journal_failed", &i32::from(node.journal.failed().is_some())),
        ]);
    }
}
