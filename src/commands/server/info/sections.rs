//! The sections of INFO on shards, durability, stores, engines and the clients' memory, which are
//! our own.

use super::Page;
use crate::clients::{Client, ClientState};
use crate::node::{Node, REPLAYED_OPS_PER_S};
use crate::process;
use flagstone_storage::engine::EngineFigures;
use flagstone_storage::place::Requests;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of records that a start replays in about a second.
const REPLAYED_BYTES: f64 = 1e9;

const DAY_S: f64 = 86_400.0;

/// A counter of the requests to a store.
type RequestCounter = fn(&Requests) -> &AtomicU64;

impl Page<'_> {
    /// Writes a line for each shard that is here.
    pub(super) fn shards(&mut self) {
        let (node, journal) = (self.node, self.node.journal.stats());
        let stalled = node.health.stalls.list();
        for (shard, engine) in node.engines.figures() {
            let slots = node.layout.slots_of(shard);
            let backlog = journal.backlog.iter().find(|(id, _)| *id == shard);
            self.line(format_args!(
                "shard{shard}:worker={},slots={}-{},stalled={},pending_bytes={},\
                journal_backlog_bytes={},files={},level0_files={},level0_limit={},runs={},bytes={},\
                debt_bytes={}",
                node.worker_of_shard(shard),
                slots.start,
                slots.end - 1,
                u8::from(stalled.contains(&shard)),
                node.health.stalls.pending_bytes(shard),
                backlog.map_or(0, |(_, bytes)| *bytes),
                engine.level0_files + engine.run_files,
                engine.level0_files,
                engine.level0_limit,
                engine.runs,
                engine.level0_bytes + engine.run_bytes,
                engine.debt_bytes(),
            ));
        }
    }

    pub(super) fn durability(&mut self) {
        let (node, settings) = (self.node, self.worker.settings());
        let journal = node.journal.stats();
        let longest = journal.backlog.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let (end, durable) = (node.journal.end(), node.journal.durable());
        let has_failed = node.journal.failed().is_some();
        let accepts = !has_failed && !journal.refusing && !node.health.is_cut_off();
        let saves = node.checkpoints.stats();
        let disk = process::disk(&settings.dir);
        let by_ops = node.unflushed_ops() as f64 / REPLAYED_OPS_PER_S as f64;
        let restart_s = by_ops.max(longest as f64 / REPLAYED_BYTES);
        self.fields(&[
            ("durability_mode", &settings.appendfsync.as_str()),
            ("journal_accepts_writes", &u8::from(accepts)),
            ("journal_failed", &u8::from(has_failed)),
            ("journal_refusing", &u8::from(journal.refusing)),
            ("journal_away", &u8::from(node.health.is_cut_off())),
            ("stalled_shards", &self.stalled_shards()),
            ("durable_lsn", &durable),
            ("unsynced_records", &end.saturating_sub(durable)),
            ("journal_syncs", &journal.syncs),
            ("journal_appends", &journal.appends),
            ("journal_bytes", &journal.bytes),
            ("journal_limit_bytes", &settings.journal_max_size),
            ("restart_estimate_seconds", &format_args!("{restart_s:.1}")),
            ("last_checkpoint_time", &(saves.last_save_ms / 1000)),
            ("last_checkpoint_ok", &u8::from(saves.last_ok)),
            ("changes_since_checkpoint", &node.changes().saturating_sub(saves.changes)),
            ("disk_free_bytes", &disk.map_or(0, |disk| disk.free)),
            ("disk_size_bytes", &disk.map_or(0, |disk| disk.total)),
        ]);
    }

    /// Writes the requests to the stores of the data and of the journal, and their price.
    pub(super) fn store(&mut self) {
        let node = self.node;
        let place = &node.checkpoints.source.store;
        let [data, journal] = &node.figures.requests;
        let is_remote = place.dir().is_none();
        let mut dollars = if is_remote { data.dollars() } else { 0.0 };
        if node.journal.is_remote() && !Arc::ptr_eq(data, journal) {
            dollars += journal.dollars();
        }
        let per_day = dollars / node.figures.start.at.elapsed().as_secs_f64().max(1.0) * DAY_S;
        self.fields(&[
            ("store", place),
            ("store_remote", &u8::from(is_remote)),
            ("journal_remote", &u8::from(node.journal.is_remote())),
            ("store_owner", &u8::from(node.health.owns_store())),
        ]);
        let each: [(&str, RequestCounter); 6] = [
            ("store_puts", |requests| &requests.puts),
            ("store_gets", |requests| &requests.gets),
            ("store_lists", |requests| &requests.lists),
            ("store_deletes", |requests| &requests.deletes),
            ("store_put_bytes", |requests| &requests.put_bytes),
            ("store_get_bytes", |requests| &requests.get_bytes),
        ];
        for (name, counter) in each {
            self.field(name, self.requests(counter));
        }
        self.field("store_dollars", format_args!("{dollars:.6}"));
        self.field("store_dollars_per_day", format_args!("{per_day:.4}"));
    }

    pub(super) fn engine(&mut self) {
        let all = engine_figures(self.node);
        let sum = |figure: fn(&EngineFigures) -> u64| all.iter().map(figure).sum::<u64>();
        let bytes = sum(|e| e.level0_bytes + e.run_bytes);
        let (flushed, merged) = (sum(|e| e.flushed_bytes), sum(|e| e.merged_bytes));
        let (hits, misses) = (sum(|e| e.cache_hits), sum(|e| e.cache_misses));
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let read = all.iter().map(|e| e.level0_files + e.runs).max().unwrap_or(0);
        let last_run = sum(|e| e.last_run_bytes);
        let merging = self.node.merge_pace().map_or(1000.0, |pace| pace.share() * 1000.0);
        // Before the first merge there is no run to compare with.
        let space = if last_run == 0 { 1.0 } else { ratio(bytes, last_run) };
        self.fields(&[
            ("engine_files", &sum(|e| e.level0_files + e.run_files)),
            ("engine_level0_files", &sum(|e| e.level0_files)),
            ("engine_runs", &sum(|e| e.runs)),
            ("engine_bytes", &bytes),
            ("engine_debt_bytes", &sum(EngineFigures::debt_bytes)),
            ("engine_flushed_bytes", &flushed),
            ("engine_merged_bytes", &merged),
            (
                "engine_write_amplification",
                &format_args!("{:.2}", ratio(flushed + merged, flushed)),
            ),
            ("engine_space_amplification", &format_args!("{space:.2}")),
            ("engine_read_amplification", &read),
            ("engine_cache_hits", &hits),
            ("engine_cache_misses", &misses),
            ("engine_cache_hit_ratio", &format_args!("{:.4}", ratio(hits, hits + misses))),
            ("engine_level0_permille", &(self.node.level0_use() * 1000.0).round()),
            ("engine_merge_permille", &merging.round()),
            ("writers_rate_bytes", &self.node.pressure.pace.rate()),
            ("writers_paused_us", &self.node.pressure.pace.paused_us()),
        ]);
    }

    /// Writes the memory of the connections by its use.
    pub(super) fn client_memory(&mut self) {
        let clients = self.node.clients.all();
        let limit = Node::client_memory_limit(&self.worker.settings());
        let sum = |figure: fn(&Client) -> u64| -> u64 { clients.iter().map(|c| figure(c)).sum() };
        let of = |states: ClientState| -> u64 {
            clients.iter().filter(|c| c.is(states)).map(|c| c.memory()).sum()
        };
        let largest = clients.iter().max_by_key(|client| client.memory());
        self.fields(&[
            ("client_memory_bytes", &sum(Client::memory)),
            ("client_memory_limit_bytes", &limit.all),
            ("client_memory_query_bytes", &sum(|c| c.query_bytes.load(Ordering::Relaxed))),
            ("client_memory_argument_bytes", &sum(|c| c.argument_bytes.load(Ordering::Relaxed))),
            ("client_memory_queued_bytes", &sum(|c| c.queued_bytes.load(Ordering::Relaxed))),
            ("client_memory_push_bytes", &sum(|c| c.outbox.size().1 as u64)),
            ("client_memory_subscribers_bytes", &of(ClientState::PUBSUB)),
            ("client_memory_blocked_bytes", &of(ClientState::BLOCKED)),
            ("client_memory_largest_bytes", &largest.map_or(0, |client| client.memory())),
            ("client_memory_largest_id", &largest.map_or(0, |client| client.id)),
        ]);
    }
}

fn engine_figures(node: &Node) -> Vec<EngineFigures> {
    node.engines.figures().into_iter().map(|(_, figures)| figures).collect()
}
