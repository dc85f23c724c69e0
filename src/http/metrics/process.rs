//! Figures of the process, its memory and disk, its clients, backups and clock.

use super::super::{HttpCounters, LoadedServer};
use super::text::{MetricKind, MetricsText};
use crate::allocator;
use crate::clients::ClientState;
use crate::commandlog::LogKind;
use crate::followers::FollowerState;
use crate::node::Node;
use crate::process;
use crate::pubsub::SubscriptionKind;
use crate::version::COMPATIBLE_VERSION;
use std::sync::atomic::Ordering;

pub(super) fn put(text: &mut MetricsText, running: &LoadedServer, http: &HttpCounters) {
    let node = &running.node;
    put_process(text, node);
    put_memory(text, node);
    put_disk(text, running);
    put_data_set(text, node);
    put_clients(text, node);
    put_replication(text, node);
    put_checkpoints(text, running);
    put_port(text, http);
}

fn put_process(text: &mut MetricsText, node: &Node) {
    let settings = node.config.settings();
    text.family(MetricKind::Info, "build", "Version of the server.")
        .sample(&[("version", &env!("CARGO_PKG_VERSION")), ("compatible", &COMPATIBLE_VERSION)], 1);
    text.family(MetricKind::Info, "settings", "Settings that other figures are read with.").sample(
        &[
            ("appendfsync", &settings.appendfsync.as_str()),
            ("store", &node.checkpoints.source.store),
        ],
        1,
    );
    text.gauge("start_time_seconds", "Time of the start, seconds since the Unix epoch.")
        .value(node.figures.start.at_ms as f64 / 1000.0);
    text.gauge("workers", "Workers that own shards.").value(node.shard_workers);
    let (own, ..) = process::cpu();
    text.counter("cpu_seconds", "CPU time of the process.");
    text.sample(&[("mode", &"user")], own.user_s).sample(&[("mode", &"system")], own.system_s);
    text.gauge("clock_ahead_seconds", "Lead of the server's time over the system's clock.")
        .value(node.clock.ahead_ms() as f64 / 1000.0);
    text.counter("clock_jumps", "Jumps of the system's clock by ten seconds or more.")
        .value(node.clock.jumps());
    text.gauge("command_log_entries", "Entries of the logs of commands (COMMANDLOG).");
    for kind in LogKind::ALL {
        text.sample(&[("log", &kind.name())], node.figures.command_logs.of(kind).len());
    }
}

fn put_memory(text: &mut MetricsText, node: &Node) {
    let (used, settings) = (process::memory(), node.config.settings());
    text.gauge("memory_resident_bytes", "Resident memory of the process.").value(used.resident);
    text.gauge("memory_peak_bytes", "Greatest resident memory so far.").value(used.peak);
    text.gauge("memory_committed_bytes", "Memory that the allocator has from the system.")
        .value(allocator::committed().0);
    text.gauge("memory_installed_bytes", "Memory of the machine.").value(used.installed);
    text.gauge("memory_budget_bytes", "memory-budget.").value(settings.memory_budget);
    text.gauge("memory_share_bytes", "Parts of the memory budget.");
    for (share, bytes) in [
        ("values", node.pressure.budget.hot as u64),
        ("pending", node.pressure.budget.pending as u64),
        ("blocks", node.pressure.budget.block_cache),
        ("indexes", node.pressure.budget.meta_cache),
        ("memtables", node.pressure.budget.memtables as u64),
        ("key_filters", node.pressure.budget.presence as u64),
        ("merges", node.pressure.budget.merges as u64),
    ] {
        text.sample(&[("share", &share)], bytes);
    }
}

fn put_data_set(text: &mut MetricsText, node: &Node) {
    text.gauge(
        "data_set_bytes",
        "Size of the data set, in memory and on disk: used_memory without buffers of clients.",
    )
    .value(node.health.data_set.bytes());
    text.gauge("data_set_limit_bytes", "maxmemory; 0: none.")
        .value(node.config.settings().maxmemory);
}

fn put_disk(text: &mut MetricsText, running: &LoadedServer) {
    let Some(room) = running.watcher.disk() else { return };
    text.gauge("disk_free_bytes", "Free bytes on the disk of the data directory.").value(room.free);
    text.gauge("disk_size_bytes", "Size of that disk.").value(room.total);
    if let Some(left) = running.watcher.until_full() {
        text.gauge("disk_full_in_seconds", "Time until it is full, by the last ten minutes.")
            .value(left.as_secs());
    }
}

fn put_clients(text: &mut MetricsText, node: &Node) {
    let clients = node.clients.all();
    let with = |states: ClientState| clients.iter().filter(|client| client.is(states)).count();
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    text.gauge("clients", "Connections, by state; a connection may be in several.");
    text.sample(&[("state", &"connected")], clients.len())
        .sample(&[("state", &"blocked")], with(ClientState::BLOCKED))
        .sample(&[("state", &"subscribed")], with(ClientState::PUBSUB))
        .sample(&[("state", &"tracking")], with(ClientState::TRACKING));
    text.gauge("clients_limit", "maxclients.").value(node.config.settings().maxclients);
    text.gauge("clients_memory_bytes", "Memory of all connections.")
        .value(clients.iter().map(|client| client.memory()).sum::<u64>());
    text.counter("clients_accepted", "Connections accepted.").value(get(&node.clients.accepted));
    text.counter("clients_rejected", "Connections refused because of maxclients.")
        .value(get(&node.clients.rejected));
    text.counter("clients_evicted", "Connections closed because of their memory.")
        .value(get(&node.clients.evicted));
    text.counter("clients_too_slow", "Connections closed because they did not read.")
        .value(get(&node.clients.too_slow));
    text.counter("tls_handshakes", "TLS handshakes, by their end.");
    text.sample(&[("end", &"complete")], get(&node.clients.handshakes))
        .sample(&[("end", &"failed")], get(&node.clients.failed_handshakes));
    text.gauge("subscribed_names", "Channels and patterns with subscribers.");
    for (kind, of_kind) in [
        ("channel", SubscriptionKind::Channel),
        ("pattern", SubscriptionKind::Pattern),
        ("shard", SubscriptionKind::Shard),
    ] {
        text.sample(&[("kind", &kind)], node.broadcast.pubsub.count(of_kind));
    }
}

fn put_replication(text: &mut MetricsText, node: &Node) {
    let (replica, now_ms) = (&node.health.replica, node.clock.now_ms());
    if replica.has_primary() {
        let heard_ms = replica.link().heard_ms;
        text.gauge("replica_link_up", "1 while the stream of the primary is applied as it comes.")
            .value(u8::from(replica.is_up()));
        text.gauge("replica_offset_bytes", "Bytes of the primary's stream that are applied.")
            .value(replica.offset());
        if heard_ms != 0 {
            text.gauge("replica_silence_seconds", "Time since the primary last sent something.")
                .value(now_ms.saturating_sub(heard_ms) as f64 / 1000.0);
        }
    }
    let all = node.followers.all();
    text.gauge("replicas", "Replicas of this server, by state.");
    for state in FollowerState::ALL {
        let count = all.iter().filter(|follower| follower.state() == state).count();
        text.sample(&[("state", &state.as_str())], count);
    }
    if let Some(stream) = node.followers.figures() {
        text.gauge("replication_offset_bytes", "End of the stream for replicas.").value(stream.end);
        let online = all.iter().filter(|follower| follower.state() == FollowerState::Online);
        let behind = online.map(|follower| stream.end.saturating_sub(follower.applied())).max();
        text.gauge("replicas_behind_bytes", "Bytes that the last of the replicas has to apply.")
            .value(behind.unwrap_or(0));
    }
}

fn put_checkpoints(text: &mut MetricsText, running: &LoadedServer) {
    let stats = running.node.checkpoints.stats();
    if let Some(ms) = running.watcher.checkpoint_ms(&running.node) {
        text.gauge("checkpoint_time_seconds", "Time of the newest checkpoint, Unix epoch.")
            .value(ms as f64 / 1000.0);
    }
    text.counter("checkpoints", "Checkpoints begun since the start.").value(stats.saves);
    text.gauge("checkpoint_ok", "0 if the last checkpoint has failed.")
        .value(u8::from(stats.last_ok));
    text.gauge("checkpoint_running", "1 while one is being taken.")
        .value(u8::from(stats.running_since.is_some()));
    if let Some(took) = stats.last_took {
        text.gauge("checkpoint_duration_seconds", "Duration of the last one.")
            .value(took.as_secs_f64());
    }
    text.gauge("checkpoint_changes", "Changes since the last one.")
        .value(running.node.changes().saturating_sub(stats.changes));
}

fn put_port(text: &mut MetricsText, http: &HttpCounters) {
    text.counter("http_requests", "Requests to this port.")
        .value(http.requests.load(Ordering::Relaxed));
    text.counter("http_denied_requests", "Requests that were not allowed.")
        .value(http.denied.load(Ordering::Relaxed));
    text.counter("http_refused_connections", "Connections refused because there were too many.")
        .value(http.refused.load(Ordering::Relaxed));
    text.gauge("http_connections", "Connections of this port.")
        .value(http.connections.load(Ordering::Relaxed));
}
