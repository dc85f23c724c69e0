//! Figures of the workers and of the commands.

use super::super::LoadedServer;
use super::text::{MetricKind, MetricsText};
use crate::command::registry;
use crate::node::{Counters, Times, WorkerStats};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// A figure of each worker: its name, its meaning, and the counter.
type OfWorker = (&'static str, &'static str, fn(&WorkerStats) -> &AtomicU64);

/// Counts since the start.
const COUNTERS: &[OfWorker] = &[
    ("worker_commands", "Commands of the worker's connections.", |s| &s.commands),
    (
        "worker_local_commands",
        "Commands that ran in place, on the worker of their connection.",
        |s| &s.local,
    ),
    ("worker_remote_commands", "Commands that came from other workers' connections.", |s| {
        &s.remote
    }),
    ("worker_remote_batches", "Messages that brought them.", |s| &s.remote_batches),
    ("worker_parked_commands", "Commands that waited for locks or for data from disk.", |s| {
        &s.parked
    }),
    (
        "worker_socket_reads",
        "Reads from sockets; commands divided by them are the size of batches.",
        |s| &s.reads,
    ),
    ("worker_socket_writes", "Writes to sockets.", |s| &s.writes),
    ("worker_received_bytes", "Bytes read from sockets.", |s| &s.bytes_in),
    ("worker_sent_bytes", "Bytes written to sockets.", |s| &s.bytes_out),
    ("worker_commits", "Rounds appended to the journal.", |s| &s.commits),
    ("worker_failed_commits", "Rounds that could not be appended.", |s| &s.failed_commits),
    ("worker_changes", "Changes of keys; divided by commits they are the size of rounds.", |s| {
        &s.store.changes
    }),
    ("worker_keyspace_hits", "Lookups of keys that exist.", |s| &s.store.hits),
    ("worker_keyspace_misses", "Lookups of keys that do not exist.", |s| &s.store.misses),
    ("worker_expired_keys", "Keys that have expired.", |s| &s.store.expired),
    ("worker_expired_fields", "Fields of hashes that have expired.", |s| &s.store.expired_fields),
    ("worker_evicted_keys", "Keys deleted because of maxmemory.", |s| &s.store.evicted),
    ("worker_dropped_entries", "Entries evicted from memory, which are on disk.", |s| {
        &s.store.dropped
    }),
    ("worker_error_replies", "Error replies.", |s| &s.error_replies),
    ("worker_old_row_passes", "Passes that read rows which blind writes have replaced.", |s| {
        &s.engine.passes
    }),
    ("worker_query_limit_closes", "Connections closed by client-query-buffer-limit.", |s| {
        &s.query_limit_closes
    }),
];

/// Current values.
const GAUGES: &[OfWorker] = &[
    ("worker_connections", "Connections of the worker.", |s| &s.connections),
    ("worker_parked_bytes", "Bytes of commands that wait for locks or data.", |s| &s.parked_bytes),
    ("worker_hot_bytes", "Bytes of decoded values in memory.", |s| &s.store.hot_bytes),
    ("worker_pending_bytes", "Bytes of rows that are not handed to the engine.", |s| {
        &s.engine.pending_bytes
    }),
    ("worker_lent_bytes", "Bytes of the values' memory that pending rows may use.", |s| {
        &s.engine.loan_bytes
    }),
    ("worker_unflushed_operations", "Operations that a start would replay.", |s| {
        &s.engine.unflushed_ops
    }),
    ("worker_filter_bytes", "Bytes of the filters of keys.", |s| &s.engine.filter_bytes),
    ("worker_point_index_bytes", "Bytes of indexes and filters for reads of single rows.", |s| {
        &s.engine.point_bytes
    }),
    ("worker_unresolved_writes", "Blind writes whose replaced rows are not known yet.", |s| {
        &s.engine.unresolved
    }),
    ("worker_awaited_keys", "Keys that blocked clients wait for.", |s| &s.audience.awaited_keys),
    ("worker_tracked_keys", "Keys that tracking clients have read.", |s| &s.audience.tracked_keys),
];

pub(super) fn put(text: &mut MetricsText, running: &LoadedServer) {
    let node = &running.node;
    for (name, help, counter) in COUNTERS {
        text.counter(name, help);
        put_each(text, running, *counter);
    }
    for (name, help, gauge) in GAUGES {
        text.gauge(name, help);
        put_each(text, running, *gauge);
    }
    text.gauge("worker_cpu_wait_ratio", "Part of the time in which the worker waits for a CPU.");
    for (id, stats) in node.figures.stats.iter().enumerate() {
        let wait = stats.cpu_wait_permille.load(Ordering::Relaxed);
        text.sample(&[("worker", &id)], wait as f64 / 1000.0);
    }
    text.counter(
        "worker_row_reads",
        "Rows that commands read from files: in the system's memory, on disk, or by the engine.",
    );
    for (id, stats) in node.figures.stats.iter().enumerate() {
        for (source, counter) in [
            ("memory", &stats.engine.point_cached),
            ("disk", &stats.engine.point_disk),
            ("engine", &stats.engine.point_elsewhere),
        ] {
            let count = counter.load(Ordering::Relaxed);
            text.sample(&[("worker", &id), ("source", &source)], count);
        }
    }
    text.gauge("worker_mailbox_messages", "Messages that wait for the worker, by lane.");
    for id in 0..running.peers.mailboxes.len() {
        let depths = running.peers.depths(id);
        for (lane, depth) in ["urgent", "few", "normal"].iter().zip(depths) {
            text.sample(&[("worker", &id), ("lane", lane)], depth);
        }
    }
    put_commands(text, &node.figures.stats[..]);
}

fn put_each(
    text: &mut MetricsText,
    running: &LoadedServer,
    figure: fn(&WorkerStats) -> &AtomicU64,
) {
    for (id, stats) in running.node.figures.stats.iter().enumerate() {
        text.sample(&[("worker", &id)], figure(stats).load(Ordering::Relaxed));
    }
}

/// Writes the figures of the commands that have been called, summed over the workers.
fn put_commands(text: &mut MetricsText, stats: &[std::sync::Arc<WorkerStats>]) {
    let sum = |id: usize, counter: fn(&Counters) -> &AtomicU64| -> u64 {
        let of = |stats: &std::sync::Arc<WorkerStats>| {
            stats.by_command.get(id).map_or(0, |c| counter(c).load(Ordering::Relaxed))
        };
        stats.iter().map(of).sum()
    };
    let called: Vec<(&str, [u64; 4])> = registry::every()
        .map(|command| {
            let id = command.id;
            let figures = [
                sum(id, |c| &c.calls),
                sum(id, |c| &c.time_ns),
                sum(id, |c| &c.failed),
                sum(id, |c| &c.rejected),
            ];
            (command.full_name, figures)
        })
        .filter(|(_, [calls, _, failed, rejected])| calls + failed + rejected > 0)
        .collect();
    text.counter("command_calls", "Calls of the command.");
    for (name, [calls, ..]) in &called {
        text.sample(&[("command", name)], calls);
    }
    text.counter("command_seconds", "Time of a worker that the command has taken.");
    for (name, [_, time_ns, ..]) in &called {
        text.sample(&[("command", name)], *time_ns as f64 / 1e9);
    }
    text.counter("command_failures", "Calls that were answered with an error.");
    for (name, [_, _, failed, _]) in &called {
        text.sample(&[("command", name)], failed);
    }
    text.counter("command_rejections", "Calls that were refused before they ran.");
    for (name, [.., rejected]) in &called {
        text.sample(&[("command", name)], rejected);
    }
    text.family(
        MetricKind::Histogram,
        "command_latency_seconds",
        "Time of a worker that a call of the command has taken (latency-tracking).",
    );
    for command in registry::every() {
        let all = stats.iter().filter_map(|stats| stats.by_command.get(command.id));
        if let Some(times) = Times::of(all.map(|counters| &counters.times)) {
            let buckets = times.by_power().map(|(ns, count)| (ns as f64 / 1e9, count));
            let spent = sum(command.id, |c| &c.time_ns) as f64 / 1e9;
            let name: &dyn Display = &command.full_name;
            text.histogram(&[("command", name)], buckets, times.count(), spent);
        }
    }
    // Codes are bounded where they are counted.
    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    for (code, count) in stats.iter().flat_map(|stats| stats.errors()) {
        *errors.entry(code).or_default() += count;
    }
    text.counter("errors", "Error replies, by the first word of their text.");
    for (code, count) in errors {
        text.sample(&[("code", &code)], count);
    }
}
