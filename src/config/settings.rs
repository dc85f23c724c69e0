//! The typed settings of the server.

use std::path::PathBuf;
use std::str::FromStr;

use super::choices::{
    AcceptMode, AppendFsync, Choice, ClusterReplica, Compression, EndpointType, HttpTls, LogFormat,
    LogLevel, MaxmemoryPolicy, ProtectedAction, RdbVersionCheck, ReplAck, SupervisedBy,
    TlsClientAuth,
};
use super::directives;
use super::group;
use super::machine::Machine;
use super::networks::{Network, networks};
use flagstone_commands::DataSettings;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::value::AccessCounting;

/// The canonical text of every directive, in the table's order.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Values(Vec<String>);

impl Values {
    /// Creates the values with every directive at its default.
    pub(super) fn defaults() -> Self {
        Self(directives::TABLE.iter().map(|directive| directive.default.to_owned()).collect())
    }

    pub(super) fn at(&self, index: usize) -> &str {
        &self.0[index]
    }

    pub(super) fn put(&mut self, index: usize, value: String) {
        self.0[index] = value;
    }

    /// Returns the value of a directive of the table.
    pub(super) fn text(&self, name: &str) -> &str {
        let index = directives::TABLE.iter().position(|directive| directive.name == name);
        self.at(index.expect("the table knows every directive that the settings read"))
    }

    /// Parses the value of a directive whose kind guarantees that it is a `T`.
    fn number<T: FromStr>(&self, name: &str) -> T {
        self.text(name).parse().ok().expect("the table's bounds fit the type of the setting")
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name) == "yes"
    }

    fn optional_text(&self, name: &str) -> Option<String> {
        let value = self.text(name);
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// Parses a number; `None` for `auto`.
    fn unless_auto<T: FromStr>(&self, name: &str) -> Option<T> {
        (self.text(name) != "auto").then(|| self.number(name))
    }

    fn choice<T: Choice>(&self, name: &str) -> T {
        T::from_word(self.text(name)).expect("the table lists the words of the choice")
    }
}

/// Limits beyond which a client that reads too slowly is closed. Zero: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputBufferLimit {
    pub hard_bytes: u64,
    pub soft_bytes: u64,
    /// Time for which the soft limit may be exceeded.
    pub soft_seconds: u32,
}

/// The [`OutputBufferLimit`] of each class of client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputBufferLimits {
    pub normal: OutputBufferLimit,
    pub replica: OutputBufferLimit,
    pub pubsub: OutputBufferLimit,
}

/// Limit of a log of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLimit {
    /// Value from which a command is logged; the greatest: never.
    pub from: u64,
    /// Number of entries that are kept.
    pub max_len: usize,
}

/// `maxmemory-clients`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientMemory {
    /// A share of the memory budget.
    Auto,
    Bytes(u64),
    /// Percent of `maxmemory`, or of the memory budget where that is 0; 1 to 100.
    Percent(u8),
}

/// The options of TLS connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsSettings {
    pub auth_clients: TlsClientAuth,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    /// Certificate and key as a client of another server; `None`: those of the server.
    pub client_cert_file: Option<String>,
    pub client_key_file: Option<String>,
    pub ca_cert_file: Option<String>,
    pub ca_cert_dir: Option<String>,
    /// Versions, separated by spaces; empty: all that are supported.
    pub protocols: String,
    /// Ciphers of TLS 1.2, as a list of OpenSSL; empty: all that are supported.
    pub ciphers: String,
    /// Ciphers of TLS 1.3, separated by colons; empty: all that are supported.
    pub ciphersuites: String,
    pub prefer_server_ciphers: bool,
    pub session_caching: bool,
    /// Maximum number of remembered sessions; zero: no limit.
    pub session_cache_size: usize,
    pub session_cache_timeout_seconds: u64,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $read:expr;)+) => {
        /// The settings that the server reads. Units are last in a name; sizes are bytes. Not
        /// `Debug`, since a password is among them.
        #[derive(Clone, PartialEq)]
        #[allow(clippy::struct_excessive_bools, reason = "each is a directive of its own")]
        pub struct Settings { $($(#[$doc])* pub $field: $type),+ }

        impl Settings {
            /// Parses canonical values; `auto` is resolved by the machine's resources.
            pub(super) fn read(values: &Values, machine: Machine) -> Self {
                Self { $($field: read_field(values, machine, $read)),+ }
            }
        }
    };
}

impl Settings {
    /// Returns true if a reply waits until all that it shows is on disk: replicas are sent nothing
    /// else.
    #[inline]
    pub fn replies_wait_for_disk(&self) -> bool {
        self.appendfsync == AppendFsync::Always || self.repl_ack != ReplAck::None
    }

    /// Returns the number of replicas that have to confirm a write with `repl-ack`.
    pub fn confirming(&self) -> usize {
        group::confirming(self.repl_group_size, self.min_replicas_to_write as usize)
    }

    /// Returns true if this server is one of a group of a known size whose replies wait for replicas.
    pub fn is_in_group(&self) -> bool {
        self.repl_group_size > 0 && self.repl_ack != ReplAck::None
    }

    /// Returns the number of other servers that have to be heard before this one takes over.
    pub fn awaited(&self) -> usize {
        match self.repl_ack {
            ReplAck::None => 0,
            _ => group::awaited(self.repl_group_size, self.confirming()),
        }
    }
}

fn read_field<T>(values: &Values, machine: Machine, read: impl Fn(&Values, Machine) -> T) -> T {
    read(values, machine)
}

settings! {
    // Storage and threads.
    /// The data directory, absolute.
    dir: PathBuf = |v, _| PathBuf::from(v.text("dir"));
    /// URL of the store; `None`: `dir`.
    store: Option<String> = |v, _| v.optional_text("store");
    /// URL of the journal; `None`: in the store.
    journal: Option<String> = |v, _| v.optional_text("journal");
    store_timeout_ms: u64 = |v, _| v.number("store-timeout-ms");
    serve_stale_data: bool = |v, _| v.flag("serve-stale-data");
    /// Zero: none.
    store_cache_size: u64 = |v, _| v.number("store-cache-size");
    workers: usize = |v, m| v.unless_auto("workers").unwrap_or(m.workers().0);
    /// Why there are so many, for the log.
    workers_reason: &'static str = |v, m| match v.text("workers") {
        "auto" => m.workers().1,
        _ => "as configured",
    };
    net_workers: usize = |v, _| v.number("net-workers");
    background_workers: usize = |v, m| v.unless_auto("background-workers").unwrap_or((m.cpus / 4).max(2));
    /// `None`: the number of an existing data directory, or the default of a new one.
    shards: Option<u32> = |v, _| v.unless_auto("shards");
    memory_budget: u64 = memory_budget;
    /// `None`: a share of the memory budget.
    block_cache_size: Option<u64> = |v, _| v.unless_auto("block-cache-size");
    accept_mode: AcceptMode = |v, _| v.choice("accept-mode");
    appendfsync: AppendFsync = |v, _| v.choice("appendfsync");
    everysec_bound_ms: u64 = |v, _| v.number("everysec-bound");
    commit_window_ms: u64 = |v, _| v.number("journal-commit-window-ms");
    handover_interval_ms: u64 = |v, _| v.number("handover-interval-ms");
    journal_segment_size: u64 = |v, _| v.number("journal-segment-size");
    journal_max_size: u64 = |v, _| v.number("journal-max-size");
    /// Zero: none.
    journal_archive_retention_seconds: u64 = |v, _| v.number("journal-archive-retention");
    journal_archive_max_size: u64 = |v, _| v.number("journal-archive-max-size");
    /// Zero: none.
    checkpoint_interval_seconds: u64 = |v, _| v.number("checkpoint-interval");
    checkpoint_keep: usize = |v, _| v.number("checkpoint-keep");
    /// Zero: of any age.
    checkpoint_max_age_seconds: u64 = |v, _| v.number("checkpoint-max-age");
    compression: Compression = |v, _| v.choice("compression");

    // Network.
    /// Zero: no TCP port.
    port: u16 = |v, _| v.number("port");
    /// Addresses as written; `*` and `-::*` mean all, a leading `-` means "may be missing".
    bind: Vec<String> = |v, _| v.text("bind").split_whitespace().map(str::to_owned).collect();
    /// Zero: no port for TLS.
    tls_port: u16 = |v, _| v.number("tls-port");
    tls: TlsSettings = |v, _| tls_settings(v);
    /// Path of a Unix socket to listen on.
    unixsocket: Option<String> = |v, _| v.optional_text("unixsocket");
    /// Group of its file, by name or number; `None`: that of the process.
    unixsocketgroup: Option<String> = |v, _| v.optional_text("unixsocketgroup");
    /// Permissions of its file; zero: by the umask.
    unixsocketperm: u32 = |v, _| u32::from_str_radix(v.text("unixsocketperm"), 8).unwrap_or(0o600);
    /// Zero: no HTTP port.
    http_port: u16 = |v, _| v.number("http-port");
    /// Addresses of the HTTP port, in the form of `bind`.
    http_bind: Vec<String> = |v, _| v.text("http-bind").split_whitespace().map(str::to_owned).collect();
    http_tls: HttpTls = |v, _| v.choice("http-tls");
    tcp_backlog: i32 = |v, _| v.number("tcp-backlog");
    /// Zero: none.
    tcp_keepalive_seconds: u32 = |v, _| v.number("tcp-keepalive");
    /// Zero: never.
    timeout_seconds: u32 = |v, _| v.number("timeout");
    maxclients: u32 = |v, _| v.number("maxclients");
    protected_mode: bool = |v, _| v.flag("protected-mode");
    /// Proxies whose connections begin with a header that names the client.
    proxy_protocol: Vec<Network> = |v, _| networks(v.text("proxy-protocol"));
    client_query_buffer_limit: usize = |v, _| v.number("client-query-buffer-limit");
    client_output_buffer_limit: OutputBufferLimits = |v, _| output_buffer_limits(v);
    maxmemory_clients: ClientMemory = |v, _| client_memory(v);
    tracking_table_max_keys: usize = |v, _| v.number("tracking-table-max-keys");

    // Access.
    requirepass: Option<String> = |v, _| v.optional_text("requirepass");
    /// Path of the file of users; a relative one is in `dir`.
    aclfile: Option<String> = |v, _| v.optional_text("aclfile");
    /// True if new users may use all channels.
    acl_pubsub_all: bool = |v, _| v.text("acl-pubsub-default") == "allchannels";
    acllog_max_len: usize = |v, _| v.number("acllog-max-len");
    enable_protected_configs: ProtectedAction = |v, _| v.choice("enable-protected-configs");
    enable_debug_command: ProtectedAction = |v, _| v.choice("enable-debug-command");

    // Data set.
    /// The settings that commands on keys read.
    data: DataSettings = |v, m| data_settings(v, memory_budget(v, m));
    /// A cluster has one database.
    databases: u32 = |v, _| if v.flag("cluster-enabled") { 1 } else { v.number("databases") };
    /// Zero: no limit.
    maxmemory: u64 = |v, _| v.number("maxmemory");
    maxmemory_policy: MaxmemoryPolicy = |v, _| v.choice("maxmemory-policy");
    maxmemory_samples: usize = |v, _| v.number("maxmemory-samples");
    maxmemory_eviction_tenacity: u32 = |v, _| v.number("maxmemory-eviction-tenacity");
    /// True if removals are sent to replicas as UNLINK: expired keys, evicted ones, those that commands
    /// remove in passing.
    lazy_removals: [bool; 3] = |v, _| ["lazyfree-lazy-expire", "lazyfree-lazy-eviction", "lazyfree-lazy-server-del"].map(|name| v.flag(name));
    notify_keyspace_events: NotifyFlags = |v, _| NotifyFlags::parse(v.text("notify-keyspace-events")).unwrap_or_default();

    // Cluster.
    cluster_enabled: bool = |v, _| v.flag("cluster-enabled");
    cluster_replica: ClusterReplica = |v, _| v.choice("cluster-replica");
    /// Of a new cluster.
    cluster_lease_ms: u64 = |v, _| v.number("cluster-lease-ms");
    /// Zero: the port for clients and 10000.
    cluster_port: u16 = |v, _| v.number("cluster-port");
    /// `None`: the address that the client has reached.
    cluster_announce_ip: Option<String> = |v, _| v.optional_text("cluster-announce-ip");
    cluster_announce_client_ipv4: Option<String> = |v, _| v.optional_text("cluster-announce-client-ipv4");
    cluster_announce_client_ipv6: Option<String> = |v, _| v.optional_text("cluster-announce-client-ipv6");
    /// Zero: `port`.
    cluster_announce_port: u16 = |v, _| v.number("cluster-announce-port");
    /// Zero: none.
    cluster_announce_tls_port: u16 = |v, _| v.number("cluster-announce-tls-port");
    /// Zero: `cluster-port`.
    cluster_announce_bus_port: u16 = |v, _| v.number("cluster-announce-bus-port");
    cluster_announce_hostname: Option<String> = |v, _| v.optional_text("cluster-announce-hostname");
    cluster_announce_human_nodename: Option<String> = |v, _| v.optional_text("cluster-announce-human-nodename");
    cluster_preferred_endpoint_type: EndpointType = |v, _| v.choice("cluster-preferred-endpoint-type");

    // Observation.
    loglevel: LogLevel = |v, _| v.choice("loglevel");
    log_format: LogFormat = |v, _| v.choice("log-format");
    supervised: SupervisedBy = |v, _| v.choice("supervised");
    logfile: Option<String> = |v, _| v.optional_text("logfile");
    pidfile: Option<String> = |v, _| v.optional_text("pidfile");
    /// Limits of the logs of commands, in the order of `LogKind`: microseconds, bytes, bytes.
    command_logs: [LogLimit; 3] = |v, _| [
        log_limit(v, "commandlog-execution-slower-than", "commandlog-slow-execution-max-len"),
        log_limit(v, "commandlog-request-larger-than", "commandlog-large-request-max-len"),
        log_limit(v, "commandlog-reply-larger-than", "commandlog-large-reply-max-len"),
    ];
    /// Zero: no event is recorded.
    latency_monitor_threshold_ms: u64 = |v, _| v.number("latency-monitor-threshold");
    latency_tracking: bool = |v, _| v.flag("latency-tracking");
    latency_percentiles: Vec<f64> = |v, _| v.text("latency-tracking-info-percentiles").split_whitespace().filter_map(|word| word.parse().ok()).collect();
    availability_zone: String = |v, _| v.text("availability-zone").to_owned();

    // Commands and RDB files.
    import_mode: bool = |v, _| v.flag("import-mode");
    shutdown_timeout_seconds: u64 = |v, _| v.number("shutdown-timeout");
    repl_ack: ReplAck = |v, _| v.choice("repl-ack");
    /// Zero: not known.
    repl_group_size: usize = |v, _| v.number("repl-group-size");
    min_replicas_to_write: u32 = |v, _| v.number("min-replicas-to-write");
    min_replicas_max_lag: u32 = |v, _| v.number("min-replicas-max-lag");
    replicaof: Option<String> = |v, _| v.optional_text("replicaof");
    primaryuser: Option<String> = |v, _| v.optional_text("primaryuser");
    primaryauth: Option<String> = |v, _| v.optional_text("primaryauth");
    replica_read_only: bool = |v, _| v.flag("replica-read-only");
    replica_serve_stale_data: bool = |v, _| v.flag("replica-serve-stale-data");
    replica_announce_ip: Option<String> = |v, _| v.optional_text("replica-announce-ip");
    replica_announce_port: u16 = |v, _| v.number("replica-announce-port");
    replica_priority: u32 = |v, _| v.number("replica-priority");
    /// True if MIGRATE secures its connections.
    tls_cluster: bool = |v, _| v.flag("tls-cluster");
    /// True if the connection to the primary is secured.
    tls_replication: bool = |v, _| v.flag("tls-replication");
    repl_timeout_seconds: u64 = |v, _| v.number("repl-timeout");
    repl_ping_replica_period_seconds: u64 = |v, _| v.number("repl-ping-replica-period");
    repl_backlog_size: usize = |v, _| v.number("repl-backlog-size");
    /// Zero: the stream for replicas never ends by itself.
    repl_backlog_ttl_seconds: u64 = |v, _| v.number("repl-backlog-ttl");
    repl_diskless_sync: bool = |v, _| v.flag("repl-diskless-sync");
    busy_reply_threshold_ms: u64 = |v, _| v.number("busy-reply-threshold");
    script_instruction_limit: u64 = |v, _| v.number("script-instruction-limit");
    extended_redis_compatibility: bool = |v, _| v.flag("extended-redis-compatibility");
}

impl Default for Settings {
    /// Creates the settings with every directive at its default, on this machine; `dir` relative.
    fn default() -> Self {
        Self::read(&Values::defaults(), Machine::detect())
    }
}

fn output_buffer_limits(values: &Values) -> OutputBufferLimits {
    let words: Vec<&str> = values.text("client-output-buffer-limit").split(' ').collect();
    let class = |row: usize| OutputBufferLimit {
        hard_bytes: words[row * 4 + 1].parse().unwrap_or(0),
        soft_bytes: words[row * 4 + 2].parse().unwrap_or(0),
        soft_seconds: words[row * 4 + 3].parse().unwrap_or(0),
    };
    OutputBufferLimits { normal: class(0), replica: class(1), pubsub: class(2) }
}

fn tls_settings(values: &Values) -> TlsSettings {
    TlsSettings {
        auth_clients: values.choice("tls-auth-clients"),
        cert_file: values.optional_text("tls-cert-file"),
        key_file: values.optional_text("tls-key-file"),
        client_cert_file: values.optional_text("tls-client-cert-file"),
        client_key_file: values.optional_text("tls-client-key-file"),
        ca_cert_file: values.optional_text("tls-ca-cert-file"),
        ca_cert_dir: values.optional_text("tls-ca-cert-dir"),
        protocols: values.text("tls-protocols").to_owned(),
        ciphers: values.text("tls-ciphers").to_owned(),
        ciphersuites: values.text("tls-ciphersuites").to_owned(),
        prefer_server_ciphers: values.flag("tls-prefer-server-ciphers"),
        session_caching: values.flag("tls-session-caching"),
        session_cache_size: values.number("tls-session-cache-size"),
        session_cache_timeout_seconds: values.number("tls-session-cache-timeout"),
    }
}

impl MaxmemoryPolicy {
    /// Returns true if the accesses to each key are counted.
    pub fn counts_accesses(self) -> bool {
        matches!(self, Self::AllkeysLfu | Self::VolatileLfu)
    }

    /// Returns true if only keys with an expiry are evicted.
    pub fn is_volatile(self) -> bool {
        matches!(
            self,
            Self::VolatileLru | Self::VolatileLfu | Self::VolatileRandom | Self::VolatileTtl
        )
    }
}

/// Part of the memory budget that a value may take which a command makes from fewer bytes, and the least
/// number of bytes that it may take.
const MADE_PART: u64 = 4;
const MADE_MIN: u64 = 64 << 20;

fn memory_budget(values: &Values, machine: Machine) -> u64 {
    values.unless_auto("memory-budget").unwrap_or(machine.memory_bytes / 2)
}

fn data_settings(values: &Values, memory_budget: u64) -> DataSettings {
    let policy: MaxmemoryPolicy = values.choice("maxmemory-policy");
    let version_check: RdbVersionCheck = values.choice("rdb-version-check");
    let made = (memory_budget / MADE_PART).max(MADE_MIN);
    DataSettings {
        proto_max_bulk_len: values.number("proto-max-bulk-len"),
        value_max_made: usize::try_from(made).unwrap_or(usize::MAX),
        hash_max_listpack_entries: values.number("hash-max-listpack-entries"),
        hash_max_listpack_value: values.number("hash-max-listpack-value"),
        list_max_listpack_size: values.number("list-max-listpack-size"),
        set_max_intset_entries: values.number("set-max-intset-entries"),
        set_max_listpack_entries: values.number("set-max-listpack-entries"),
        set_max_listpack_value: values.number("set-max-listpack-value"),
        zset_max_listpack_entries: values.number("zset-max-listpack-entries"),
        zset_max_listpack_value: values.number("zset-max-listpack-value"),
        stream_node_max_bytes: values.number("stream-node-max-bytes"),
        stream_node_max_entries: values.number("stream-node-max-entries"),
        hll_sparse_max_bytes: values.number("hll-sparse-max-bytes"),
        counts_accesses: policy.counts_accesses().then(|| AccessCounting {
            log_factor: values.number("lfu-log-factor"),
            decay_minutes: values.number("lfu-decay-time"),
        }),
        cluster_enabled: values.flag("cluster-enabled"),
        rdbcompression: values.flag("rdbcompression"),
        rdb_newer_versions: version_check == RdbVersionCheck::Relaxed,
    }
}

fn log_limit(values: &Values, threshold: &str, max_len: &str) -> LogLimit {
    let max_len = values.number(max_len);
    let from = u64::try_from(values.number::<i64>(threshold)).ok().filter(|_| max_len > 0);
    LogLimit { from: from.unwrap_or(u64::MAX), max_len }
}

fn client_memory(values: &Values) -> ClientMemory {
    let text = values.text("maxmemory-clients");
    if text == "auto" {
        return ClientMemory::Auto;
    }
    match text.strip_suffix('%').and_then(|percent| percent.parse().ok()) {
        Some(percent) => ClientMemory::Percent(percent),
        None => ClientMemory::Bytes(text.parse().unwrap_or(0)),
    }
}
