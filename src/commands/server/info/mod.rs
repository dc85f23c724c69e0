//! INFO: state and counters of the server.

mod listeners;
mod own;
mod replication;
mod sections;

use super::latency::times_of;
use crate::acl::DenialReason;
use crate::command::registry;
use crate::node::{Counters, EMPTY_BYTES, Node, WorkerStats};
use crate::process;
use crate::pubsub::SubscriptionKind;
use crate::routing::{Call, Waiting};
use crate::version::{COMPATIBLE_VERSION, REDIS_VERSION};
use crate::worker::{CRON_HZ, Worker};
use flagstone_storage::place::Requests;
use flagstone_wire::resp::Args;
use listeners::listeners;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sections in order, each with true if INFO shows it by default.
const SECTIONS: &[(&str, bool)] = &[
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("modules", true),
    ("commandstats", false),
    ("errorstats", true),
    ("latencystats", false),
    ("cluster", true),
    ("keyspace", true),
    ("flagstone", true),
    ("durability", true),
    ("engine", true),
    ("store", true),
    ("client_memory", true),
    ("shards", false),
    ("debug", false),
];

/// The section that INFO shows by its name only.
const ON_REQUEST: &str = "debug";

/// Fields of section "stats" that count mechanisms which this server does not have.
const ABSENT: [&str; 15] = [
    "active_defrag_hits",
    "active_defrag_misses",
    "active_defrag_key_hits",
    "active_defrag_key_misses",
    "total_active_defrag_time",
    "current_active_defrag_time",
    "io_threaded_reads_processed",
    "io_threaded_writes_processed",
    "io_threaded_freed_objects",
    "io_threaded_accept_processed",
    "io_threaded_poll_processed",
    "io_threaded_total_prefetch_batches",
    "io_threaded_total_prefetch_entries",
    "reply_buffer_shrinks",
    "reply_buffer_expands",
];

/// Number of keys and of expiries for each database.
pub(super) type Keyspace = Vec<(u64, u64)>;

/// `INFO [section …]`
pub(super) fn info<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let wanted = wanted(args);
        // A section without figures needs nothing of the workers.
        if wanted != ["modules"] {
            let publish = |worker: Rc<Worker>| async move { worker.publish_stats() };
            cx.worker.peers.on_all(true, publish).await.map_err(|_| "ERR a worker is gone")?;
        }
        let keyspace = match wanted.contains(&"keyspace") {
            true => keyspace(cx.worker).await?,
            false => Vec::new(),
        };
        let mut text = String::new();
        for section in wanted {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            Page { text: &mut text, node: cx.node, worker: cx.worker }.section(section, &keyspace);
        }
        cx.out.verbatim(*b"txt", text.as_bytes());
        Ok(())
    })
}

/// Returns the requested sections, each once, in order.
fn wanted(args: Args<'_>) -> Vec<&'static str> {
    let names: Vec<String> =
        args.iter().skip(1).map(|arg| String::from_utf8_lossy(arg).to_lowercase()).collect();
    let asked = |name: &str| names.iter().any(|n| n == name);
    let everything = asked("all") || asked("everything");
    let defaults = names.is_empty() || asked("default");
    SECTIONS
        .iter()
        .filter(|(name, shown)| {
            (everything && *name != ON_REQUEST)
                || (defaults && *shown)
                || asked(name)
                || (*name == "modules" && asked("module_list"))
        })
        .map(|(name, _)| *name)
        .collect()
}

pub(super) async fn keyspace(worker: &Worker) -> Result<Keyspace, String> {
    let databases = worker.node.config.settings().databases;
    let count = move |worker: Rc<Worker>| async move { worker.key_counts(databases).await };
    let all = worker.peers.on_all(true, count).await.map_err(|_| "ERR a worker is gone")?;
    let mut sums = vec![(0, 0); databases as usize];
    for counts in all {
        for (sum, (keys, expires)) in sums.iter_mut().zip(counts) {
            sum.0 += keys;
            sum.1 += expires;
        }
    }
    Ok(sums)
}

/// The text that is being written.
struct Page<'a> {
    text: &'a mut String,
    node: &'a Node,
    worker: &'a Worker,
}

impl Page<'_> {
    fn section(&mut self, name: &str, keyspace: &Keyspace) {
        let title = match name {
            "cpu" => "CPU".to_owned(),
            name => name[..1].to_uppercase() + &name[1..],
        };
        self.line(format_args!("# {title}"));
        match name {
            "server" => self.server(),
            "clients" => self.clients(),
            "memory" => self.memory(),
            "persistence" => self.persistence(),
            "stats" => {
                self.stats();
                self.absent();
            }
            "replication" => self.replication(),
            "cpu" => self.cpu(),
            "commandstats" => self.commandstats(),
            "errorstats" => self.errorstats(),
            "latencystats" => self.latencystats(),
            "cluster" => {
                self.field("cluster_enabled", i32::from(self.worker.settings().cluster_enabled));
            }
            "keyspace" => {
                for (db, (keys, expires)) in keyspace.iter().enumerate() {
                    if *keys > 0 {
                        self.line(format_args!("db{db}:keys={keys},expires={expires},avg_ttl=0"));
                    }
                }
            }
            "flagstone" => {
                self.flagstone();
                self.membership();
            }
            "durability" => self.durability(),
            "engine" => self.engine(),
            "store" => self.store(),
            "client_memory" => self.client_memory(),
            "shards" => self.shards(),
            "debug" => self.debug(),
            _ => {}
        }
    }

    fn line(&mut self, text: impl Display) {
        // Writing into a String cannot fail.
        let _ = write!(self.text, "{text}\r\n");
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}:{value}"));
    }

    fn fields(&mut self, fields: &[(&str, &dyn Display)]) {
        for (name, value) in fields {
            self.field(name, value);
        }
    }

    fn server(&mut self) {
        let node = self.node;
        let settings = self.worker.settings();
        let port = if settings.port == 0 { settings.tls_port } else { settings.port };
        let uptime_s = node.figures.start.at.elapsed().as_secs();
        let now_us = node.clock.now_us();
        let mode_field = match settings.extended_redis_compatibility {
            true => "redis_mode",
            false => "server_mode",
        };
        let mode = if settings.cluster_enabled { "cluster" } else { "standalone" };
        let executable = std::env::current_exe().unwrap_or_default();
        let file = node.config.file().map(|f| f.display().to_string()).unwrap_or_default();
        self.fields(&[
            ("redis_version", &REDIS_VERSION),
            ("server_name", &"valkey"),
            ("valkey_version", &COMPATIBLE_VERSION),
            ("valkey_release_stage", &"ga"),
            ("flagstone_version", &env!("CARGO_PKG_VERSION")),
            ("redis_git_sha1", &"00000000"),
            ("redis_git_dirty", &0),
            ("redis_build_id", &"0"),
            (mode_field, &mode),
            ("os", &process::system()),
            ("arch_bits", &usize::BITS),
            ("monotonic_clock", &"POSIX clock_gettime"),
            ("multiplexing_api", &"epoll"),
            ("atomicvar_api", &"c11-builtin"),
            ("gcc_version", &"0.0.0"),
            ("process_id", &std::process::id()),
            ("process_supervised", &node.figures.start.supervised),
            ("run_id", &node.figures.start.run_id),
            ("tcp_port", &port),
            ("server_time_usec", &now_us),
            ("uptime_in_seconds", &uptime_s),
            ("uptime_in_days", &(uptime_s / 86400)),
            ("hz", &CRON_HZ),
            ("configured_hz", &CRON_HZ),
            ("clients_hz", &CRON_HZ),
            ("lru_clock", &((now_us / 1_000_000) & 0xff_ffff)),
            ("executable", &executable.display()),
            ("config_file", &file),
            ("io_threads_active", &0),
            ("availability_zone", &settings.availability_zone),
        ]);
        if let Some(until_ms) = self.node.ending.waiting_until() {
            let left = until_ms.saturating_sub(self.node.clock.now_ms());
            self.field("shutdown_in_milliseconds", left);
        }
        for (n, listener) in listeners(&settings).iter().enumerate() {
            self.field(&format!("listener{n}"), listener);
        }
    }

    fn clients(&mut self) {
        use crate::clients::ClientState;
        let clients = self.node.clients.all();
        let with = |states: ClientState| clients.iter().filter(|c| c.is(states)).count();
        let watching: Vec<u64> =
            clients.iter().map(|c| c.watched.load(Ordering::Relaxed).into()).collect();
        let input = clients.iter().map(|c| c.query_bytes.load(Ordering::Relaxed)).max();
        let pause = self.node.pauses.now();
        let (reason, actions, left) = match pause {
            None => ("none", "none", 0),
            Some(pause) => {
                let left = pause.until_ms.saturating_sub(self.node.clock.now_ms());
                (pause.reason.name(), if pause.writes_only { "write" } else { "all" }, left)
            }
        };
        self.fields(&[
            ("connected_clients", &(clients.len() - with(ClientState::REPLICA))),
            ("cluster_connections", &0),
            ("maxclients", &self.worker.settings().maxclients),
            ("client_recent_max_input_buffer", &input.unwrap_or(0)),
            ("client_recent_max_output_buffer", &0),
            ("blocked_clients", &with(ClientState::BLOCKED)),
            ("tracking_clients", &with(ClientState::TRACKING)),
            ("pubsub_clients", &with(ClientState::PUBSUB)),
            ("watching_clients", &watching.iter().filter(|&&n| n > 0).count()),
            ("clients_in_timeout_table", &with(ClientState::TIMED)),
            ("total_watched_keys", &watching.iter().sum::<u64>()),
            ("total_blocking_keys", &self.sum(|s| &s.audience.awaited_keys)),
            ("total_blocking_keys_on_nokey", &self.sum(|s| &s.audience.awaited_absent_keys)),
            ("paused_reason", &reason),
            ("paused_actions", &actions),
            ("paused_timeout_milliseconds", &left),
        ]);
    }

    fn memory(&mut self) {
        let settings = self.worker.settings();
        let used = process::memory();
        let bytes = self.node.health.data_set.used();
        let clients: u64 = self.node.clients.all().iter().map(|c| c.memory()).sum();
        self.used_memory(bytes, used.resident);
        self.fields(&[
            ("allocator_allocated", &used.resident),
            ("allocator_active", &used.resident),
            ("allocator_resident", &used.resident),
            ("allocator_muzzy", &0),
        ]);
        // All of them are figures of the operating system.
        for name in ["allocator_frag", "allocator_rss", "rss_overhead"] {
            self.field(&format!("{name}_ratio"), "1.00");
            self.field(&format!("{name}_bytes"), 0);
        }
        self.sized("total_system_memory", used.installed);
        // The VMs run scripts and functions. Each thread has one.
        let figures = &self.node.code.scripts.vms;
        let vms = figures.bytes.load(Ordering::Relaxed);
        let per_vm = vms / figures.all.load(Ordering::Relaxed).max(1);
        let (scripts, script_bytes, _) = self.node.code.scripts.figures();
        let libraries = self.node.code.functions.now();
        self.sized("used_memory_lua", per_vm as u64);
        self.fields(&[
            ("used_memory_vm_eval", &vms),
            ("used_memory_scripts_eval", &script_bytes),
            ("number_of_cached_scripts", &scripts),
            ("used_memory_vm_functions", &0),
        ]);
        self.sized("used_memory_vm_total", vms as u64);
        self.fields(&[
            ("number_of_functions", &libraries.function_count()),
            ("number_of_libraries", &libraries.iter().len()),
            ("used_memory_functions", &libraries.bytes()),
        ]);
        let (backlog, for_slow) = self.node.followers.memory(settings.repl_backlog_size as u64);
        self.sized("used_memory_scripts", (script_bytes + libraries.bytes()) as u64);
        self.sized("maxmemory", settings.maxmemory);
        self.fields(&[
            ("maxmemory_policy", &settings.maxmemory_policy.as_str()),
            (
                "mem_fragmentation_ratio",
                &format_args!("{:.2}", used.resident as f64 / bytes as f64),
            ),
            ("mem_fragmentation_bytes", &(i128::from(used.resident) - i128::from(bytes))),
            ("mem_not_counted_for_evict", &0),
            ("mem_overhead_db_hashtable_rehashing", &0),
            ("mem_replication_backlog", &backlog),
            ("mem_total_replication_buffers", &(backlog + for_slow)),
            ("mem_replica_full_sync_buffer", &0),
            ("mem_clients_slaves", &for_slow),
            ("mem_clients_normal", &clients),
            ("mem_cluster_links", &0),
            ("mem_aof_buffer", &0),
            ("mem_allocator", &"mimalloc"),
            ("active_defrag_running", &0),
            ("lazyfree_pending_objects", &0),
            ("lazyfreed_objects", &0),
        ]);
    }

    /// Writes what `maxmemory` limits, next to the memory of the process.
    fn used_memory(&mut self, bytes: u64, resident: u64) {
        let peak = self.node.health.data_set.peak();
        let of_keys = self.node.health.data_set.bytes() - EMPTY_BYTES;
        let percent =
            |part: u64, whole: u64| format!("{:.2}%", part as f64 * 100.0 / whole.max(1) as f64);
        self.sized("used_memory", bytes);
        self.sized("used_memory_rss", resident);
        self.sized("used_memory_peak", peak);
        self.fields(&[
            ("used_memory_peak_perc", &percent(bytes, peak)),
            ("used_memory_overhead", &bytes.saturating_sub(of_keys)),
            ("used_memory_startup", &EMPTY_BYTES),
            ("used_memory_dataset", &of_keys),
            ("used_memory_dataset_perc", &percent(of_keys, bytes)),
        ]);
    }

    fn sized(&mut self, name: &str, bytes: u64) {
        self.field(name, bytes);
        self.field(&format!("{name}_human"), super::human(bytes));
    }

    fn persistence(&mut self) {
        let journal = self.node.journal.stats();
        let is_short = self.node.health.short_of_disk.load(Ordering::Relaxed);
        let is_failing = journal.last_refused || is_short || self.node.journal.failed().is_some();
        let last_write = if is_failing { "err" } else { "ok" };
        let save = self.node.checkpoints.stats();
        let seconds = |time: std::time::Duration| time.as_secs().cast_signed();
        let status = if save.last_ok { "ok" } else { "err" };
        self.fields(&[
            ("loading", &u8::from(self.node.health.replica.is_loading())),
            ("async_loading", &0),
            ("current_cow_peak", &0),
            ("current_cow_size", &0),
            ("current_cow_size_age", &0),
            ("current_fork_perc", &"0.00"),
            ("current_save_keys_processed", &0),
            ("current_save_keys_total", &0),
            ("rdb_changes_since_last_save", &self.node.changes().saturating_sub(save.changes)),
            ("rdb_bgsave_in_progress", &i32::from(save.running_since.is_some())),
            ("rdb_last_save_time", &(save.last_save_ms / 1000)),
            ("rdb_last_bgsave_status", &status),
            ("rdb_last_bgsave_time_sec", &save.last_took.map_or(-1, seconds)),
            (
                "rdb_current_bgsave_time_sec",
                &save.running_since.map_or(-1, |t| seconds(t.elapsed())),
            ),
            ("rdb_saves", &save.saves),
            ("rdb_last_cow_size", &0),
            ("rdb_last_load_keys_expired", &0),
            ("rdb_last_load_keys_loaded", &0),
            ("aof_enabled", &1),
            ("aof_rewrite_in_progress", &0),
            ("aof_rewrite_scheduled", &0),
            ("aof_last_rewrite_time_sec", &-1),
            ("aof_current_rewrite_time_sec", &-1),
            ("aof_last_bgrewrite_status", &"ok"),
            ("aof_rewrites", &0),
            ("aof_rewrites_consecutive_failures", &0),
            ("aof_last_write_status", &last_write),
            ("aof_last_cow_size", &0),
            ("module_fork_in_progress", &0),
            ("module_fork_last_cow_size", &0),
            ("aof_current_size", &journal.bytes),
            ("aof_base_size", &0),
            ("aof_pending_rewrite", &0),
            ("aof_buffer_length", &0),
            ("aof_pending_bio_fsync", &0),
            ("aof_delayed_fsync", &0),
        ]);
    }

    /// Returns a count of the requests to all stores.
    fn requests(&self, counter: impl Fn(&Requests) -> &AtomicU64) -> u64 {
        let [store, journal] = &self.node.figures.requests;
        let is_one = Arc::ptr_eq(store, journal);
        let of = |requests: &Arc<Requests>| counter(requests).load(Ordering::Relaxed);
        of(store) + if is_one { 0 } else { of(journal) }
    }

    fn sum(&self, counter: impl Fn(&WorkerStats) -> &AtomicU64) -> u64 {
        self.node.figures.stats.iter().map(|stats| counter(stats).load(Ordering::Relaxed)).sum()
    }

    /// Returns the ids of the shards that cannot store rows.
    fn stalled_shards(&self) -> String {
        let ids = self.node.health.stalls.list();
        ids.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
    }

    fn stats(&mut self) {
        let [commands, bytes_in, bytes_out, repl_in, repl_out, cycles, busy_us] =
            self.node.figures.rates.per_second();
        let (clients, followers) = (&self.node.clients, &self.node.followers);
        let syncs = followers.syncs.each_ref().map(|count| count.load(Ordering::Relaxed));
        let kib = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
        self.fields(&[
            ("total_connections_received", &clients.accepted.load(Ordering::Relaxed)),
            ("total_commands_processed", &self.sum(|s| &s.commands)),
            ("instantaneous_ops_per_sec", &commands),
            ("total_net_input_bytes", &self.sum(|s| &s.bytes_in)),
            ("total_net_output_bytes", &self.sum(|s| &s.bytes_out)),
            (
                "total_net_repl_input_bytes",
                &self.node.health.replica.bytes_in.load(Ordering::Relaxed),
            ),
            ("total_net_repl_output_bytes", &self.node.followers.bytes_out.load(Ordering::Relaxed)),
            ("instantaneous_input_kbps", &kib(bytes_in)),
            ("instantaneous_output_kbps", &kib(bytes_out)),
            ("instantaneous_input_repl_kbps", &kib(repl_in)),
            ("instantaneous_output_repl_kbps", &kib(repl_out)),
            ("rejected_connections", &clients.rejected.load(Ordering::Relaxed)),
            ("sync_full", &syncs[0]),
            ("sync_partial_ok", &syncs[1]),
            ("sync_partial_err", &syncs[2]),
            ("expired_keys", &self.sum(|s| &s.store.expired)),
            ("expired_fields", &self.sum(|s| &s.store.expired_fields)),
            // The name of Redis 8.
            ("expired_subkeys", &self.sum(|s| &s.store.expired_fields)),
            ("expired_stale_perc", &"0.00"),
            ("expired_time_cap_reached_count", &0),
            ("expire_cycle_cpu_milliseconds", &0),
            ("evicted_keys", &self.sum(|s| &s.store.evicted)),
            ("evicted_clients", &clients.evicted.load(Ordering::Relaxed)),
            ("evicted_scripts", &self.node.code.scripts.figures().2),
            ("total_eviction_exceeded_time", &0),
            ("current_eviction_exceeded_time", &0),
            ("keyspace_hits", &self.sum(|s| &s.store.hits)),
            ("keyspace_misses", &self.sum(|s| &s.store.misses)),
            ("pubsub_channels", &self.node.broadcast.pubsub.count(SubscriptionKind::Channel)),
            ("pubsub_patterns", &self.node.broadcast.pubsub.count(SubscriptionKind::Pattern)),
            ("pubsubshard_channels", &self.node.broadcast.pubsub.count(SubscriptionKind::Shard)),
            ("latest_fork_usec", &0),
            ("total_forks", &0),
            ("migrate_cached_sockets", &0),
            ("slave_expires_tracked_keys", &0),
            ("tracking_total_keys", &self.sum(|s| &s.audience.tracked_keys)),
            ("tracking_total_items", &self.sum(|s| &s.audience.tracked_reads)),
            ("tracking_total_prefixes", &self.node.broadcast.listeners.prefixes.count()),
            ("unexpected_error_replies", &0),
            ("total_error_replies", &self.sum(|s| &s.error_replies)),
            ("dump_payload_sanitizations", &0),
            ("total_reads_processed", &self.sum(|s| &s.reads)),
            ("total_writes_processed", &self.sum(|s| &s.writes)),
            ("client_query_buffer_limit_disconnections", &self.sum(|s| &s.query_limit_closes)),
            (
                "client_output_buffer_limit_disconnections",
                &self.node.clients.too_slow.load(Ordering::Relaxed),
            ),
            ("acl_access_denied_auth", &self.node.access.denials.denied(DenialReason::Auth)),
            ("acl_access_denied_cmd", &self.node.access.denials.denied(DenialReason::Command)),
            ("acl_access_denied_key", &self.node.access.denials.denied(DenialReason::Key)),
            ("acl_access_denied_channel", &self.node.access.denials.denied(DenialReason::Channel)),
        ]);
        self.event_loop(cycles, busy_us);
    }

    /// Writes the figures of the workers' threads. The arguments are those of a second.
    fn event_loop(&mut self, cycles: u64, busy_us: u64) {
        let commands_us: u64 = self.node.figures.stats.iter().map(|s| s.commands_us()).sum();
        self.fields(&[
            ("eventloop_cycles", &self.sum(|s| &s.turns.cycles)),
            ("eventloop_duration_sum", &self.sum(|s| &s.turns.busy_us)),
            ("eventloop_duration_cmd_sum", &commands_us),
            ("instantaneous_eventloop_cycles_per_sec", &cycles),
            ("instantaneous_eventloop_duration_usec", &(busy_us / cycles.max(1))),
        ]);
    }

    /// Writes the counts of mechanisms that this server does not have.
    fn absent(&mut self) {
        for name in ABSENT {
            self.field(name, 0);
        }
    }

    fn cpu(&mut self) {
        let (own, children, thread) = process::cpu();
        for (name, seconds) in [
            ("used_cpu_sys", own.system_s),
            ("used_cpu_user", own.user_s),
            ("used_cpu_sys_children", children.system_s),
            ("used_cpu_user_children", children.user_s),
            ("used_cpu_sys_main_thread", thread.system_s),
            ("used_cpu_user_main_thread", thread.user_s),
        ] {
            self.field(name, format_args!("{seconds:.6}"));
        }
    }

    fn commandstats(&mut self) {
        for command in registry::every() {
            let sum = |counter: fn(&Counters) -> &AtomicU64| {
                self.sum(|stats| counter(&stats.by_command[command.id]))
            };
            let calls = sum(|c| &c.calls);
            let (rejected, failed) = (sum(|c| &c.rejected), sum(|c| &c.failed));
            if calls + rejected + failed == 0 {
                continue;
            }
            let usec = sum(|c| &c.time_ns) / 1000;
            let each = usec as f64 / calls.max(1) as f64;
            let name = command.full_name;
            self.line(format_args!(
                "cmdstat_{name}:calls={calls},usec={usec},usec_per_call={each:.2},\
                rejected_calls={rejected},failed_calls={failed}"
            ));
        }
    }

    fn latencystats(&mut self) {
        let settings = self.worker.settings();
        for command in registry::every() {
            let Some(times) = times_of(self.node, command) else { continue };
            let each: Vec<String> = settings
                .latency_percentiles
                .iter()
                .map(|p| format!("p{p}={:.3}", times.percentile(*p) as f64 / 1000.0))
                .collect();
            let name = command.full_name;
            self.line(format_args!("latency_percentiles_usec_{name}:{}", each.join(",")));
        }
    }

    fn errorstats(&mut self) {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for stats in &self.node.figures.stats {
            for (code, n) in stats.errors() {
                *sums.entry(code).or_default() += n;
            }
        }
        for (code, n) in sums {
            let code = code.replace([':', '#', '\r', '\n'], "_");
            self.line(format_args!("errorstat_{code}:count={n}"));
        }
    }
}
