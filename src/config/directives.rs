//! The one table of directives: every name of the configuration file, the command line, the
//! environment and CONFIG. Names, defaults and bounds are those of Valkey 8.1.1 except where the
//! directive is this server's own.

use super::directive::{self as check, Directive, Kind, Range};
use super::structured::Structure;
use Kind::{
    AutoInteger, AutoMemory, AutoMemoryOrPercent, Integer, Memory, Octal, OneOf, OptionalText,
    SomeOf, Structured, Text, YesNo,
};
use flagstone_storage::slot::MAX_SHARDS;

const INT_MAX: i128 = i32::MAX as i128;
const LONG_MAX: i128 = i64::MAX as i128;
/// Bounds that many directives share.
const INT: Range = (0, INT_MAX);
const LONG: Range = (0, LONG_MAX);
const ULONG: Range = (0, u64::MAX as i128);
const PORT: Range = (0, 65535);
const SHARDS: Range = (1, MAX_SHARDS as i128);
const BYTES: Range = (0, LONG_MAX);
const MIB: i128 = 1024 * 1024;

/// Maximum of `journal-commit-window-ms`: the lease on the data is renewed that often.
const MAX_COMMIT_WINDOW_MS: i128 = 1000;

const FSYNC: &[&str] = &["everysec", "always", "no"];
const REPL_ACK: &[&str] = &["none", "async", "sync"];
const CLUSTER_REPLICA: &[&str] = &["no", "yes", "standby"];
const LOG_LEVELS: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];
const PROTECTED_ACTION: &[&str] = &["no", "yes", "local"];
const SHUTDOWN: &[&str] = &["default", "save", "nosave", "now", "force"];
const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
const FACILITIES: &[&str] =
    &["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"];

// Reasons why a directive has no effect here.
const JOURNAL: &str = "the journal, which is always on, takes the place of the append-only file";
const SAVING: &str = "every write is stored when it is answered; there are no periodic snapshots";
const NO_FORK: &str = "the server never forks";
const THREADS: &str = "threads are set by workers, net-workers and background-workers";
const ALLOCATOR: &str = "the allocator needs no tuning or defragmentation";
const REPLICATION: &str =
    "data sets are received in a file, and each replica is sent one of its own";
const CLUSTER: &str = "servers of a cluster share a bucket, and need no such thing";
const HANDSHAKES: &str = "handshakes run on a thread of their own";
const NO_RDMA: &str = "this server does not speak RDMA";
const INIT_SYSTEM: &str = "the process stays in the foreground; the init system supervises it";
const STDERR_LOG: &str = "the log has one format and goes to standard error or the log file";
const PACE: &str = "background work has a pace of its own";
const LAZY: &str = "removal of a key takes constant time, whatever its size";
const TABLES: &str = "there is no hash table to rehash in the background";
const NO_CRASH_REPORT: &str = "there is no crash report";
const DEBUGGING: &str = "a knob of the reference's own tests";
const COMPACT: &str = "memory encodings differ here; only the reported encoding follows settings";

const fn d(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Directive {
    Directive::new(name, kind, default, doc)
}

/// All directives, grouped by subject.
#[rustfmt::skip]
pub(super) static TABLE: &[Directive] = &[
    // Storage and threads: this server's own.
    d("dir", Text, "data", "the data directory").at_start().protected().check(check::dir),
    d("store", OptionalText, "", "where the data lies: a directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or bucket+file:///directory; empty: dir").at_start().protected(),
    d("journal", OptionalText, "", "where the journal lies, as store; empty: in the store").at_start().protected(),
    d("store-timeout-ms", Integer((100, 3_600_000)), "10000", "milliseconds that commands wait for a bucket that does not answer").at_start(),
    d("serve-stale-data", YesNo, "no", "yes: values in memory are still read while the journal's bucket, or a replica (repl-ack), does not answer, although another server may have taken over; no: such reads fail"),
    d("store-cache-size", Memory(BYTES), "0", "bytes of a bucket's files that are kept in dir once they were read; 0: none").at_start(),
    d("workers", AutoInteger((1, 1024)), "auto", "threads that own data; auto: one per CPU, one for two CPUs").at_start(),
    d("net-workers", Integer((0, 1024)), "0", "further threads that serve connections only; 0: the workers serve them").at_start(),
    d("background-workers", AutoInteger((1, 1024)), "auto", "threads for hand-over, flush and compaction; auto: a quarter of the CPUs, at least two").at_start(),
    d("shards", AutoInteger(SHARDS), "auto", "parts of the key space, fixed when the data directory is created; auto: one per CPU").at_start(),
    d("memory-budget", AutoMemory((16 * MIB, 4 * MIB * MIB)), "auto", "bytes all caches and buffers share; auto: half of the memory of the machine or cgroup").at_start(),
    d("block-cache-size", AutoMemory(BYTES), "auto", "bytes of the engine's block cache; auto: a share of memory-budget").at_start(),
    d("accept-mode", OneOf(&["reuseport", "round-robin"]), "reuseport", "how connections are spread over threads").at_start(),
    d("appendfsync", OneOf(FSYNC), "always", "what OK means: on disk (always), in the journal's file (everysec, no)"),
    d("everysec-bound", Integer((1, 3_600_000)), "1000", "milliseconds of writes that everysec may lose; writes stall beyond").at_start(),
    d("journal-commit-window-ms", Integer((0, MAX_COMMIT_WINDOW_MS)), "0", "milliseconds for which writes gather before an object is put for them into a journal in a bucket; no effect on a disk"),
    d("handover-interval-ms", Integer((10, 3_600_000)), "30000", "milliseconds between hand-overs of pending rows to the engine"),
    d("journal-segment-size", Memory((MIB, 16 * 1024 * MIB)), "67108864", "bytes of a journal segment").at_start(),
    d("journal-max-size", Memory((4 * MIB, LONG_MAX)), "4294967296", "bytes of journal, from three eighths of which on rows are handed over early and the engine is made to flush").at_start(),
    d("journal-archive-retention", Integer((0, 3_153_600_000)), "0", "seconds for which dropped journal segments are kept, so that any moment since a checkpoint can be restored; 0: they are used again").at_start(),
    d("journal-archive-max-size", Memory((0, LONG_MAX)), "10737418240", "bytes of such segments at most; the oldest go first"),
    d("checkpoint-interval", Integer((0, 3_153_600_000)), "0", "seconds between checkpoints; 0: only by BGSAVE and the like"),
    d("checkpoint-keep", Integer((1, 10_000)), "2", "checkpoints that are kept"),
    d("checkpoint-max-age", Integer((0, 3_153_600_000)), "0", "seconds after which a checkpoint goes, but for the newest; 0: never"),
    d("compression", OneOf(&["none", "lz4", "zstd"]), "none", "compression of the engine's new files").at_start(),

    // Network.
    d("port", Integer(PORT), "6379", "TCP port"),
    d("bind", Structured(Structure::Bind), "* -::*", "addresses to listen on; - before one: may be missing"),
    d("http-port", Integer(PORT), "0", "port of metrics, health, REST and the dashboard over HTTP; 0: none").at_start(),
    d("http-bind", Structured(Structure::Bind), "127.0.0.1 -::1", "addresses of the HTTP port; beyond loopback it answers only if there is a password").at_start(),
    d("http-tls", OneOf(&["no", "yes", "mutual"]), "no", "serve the HTTP port by HTTPS only, with tls-cert-file and tls-key-file; mutual: clients need a certificate").at_start(),
    d("unixsocket", OptionalText, "", "path of a Unix socket to listen on, too").immutable(),
    d("unixsocketgroup", OptionalText, "", "group of the Unix socket, by name or number; empty: that of the process").immutable(),
    d("unixsocketperm", Octal((0, 0o777)), "0", "permissions of the Unix socket, octal; 0: by umask").immutable(),
    d("tcp-backlog", Integer(INT), "511", "connections waiting to be accepted").immutable(),
    d("tcp-keepalive", Integer(INT), "300", "seconds between keep-alive probes; 0: none"),
    d("timeout", Integer(INT), "0", "seconds until an idle client is closed; 0: never"),
    d("maxclients", Integer((1, u32::MAX as i128)), "10000", "connections at once"),
    d("protected-mode", YesNo, "yes", "without a password, serve loopback clients only"),
    d("proxy-protocol", Structured(Structure::Networks), "", "addresses and networks of proxies whose connections begin with a PROXY header, which names the client; empty: none"),
    d("client-query-buffer-limit", Memory((MIB, LONG_MAX)), "1073741824", "bytes of a client's unparsed input"),
    d("proto-max-bulk-len", Memory((MIB, LONG_MAX)), "536870912", "bytes of one argument"),
    d("client-output-buffer-limit", Structured(Structure::ClientOutputBufferLimit), "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60", "class, hard bytes, soft bytes, soft seconds: when a slow reader is closed"),
    d("maxmemory-clients", AutoMemoryOrPercent, "auto", "bytes that all connections may take, or percent of maxmemory (of memory-budget where that is 0), before those that take most are closed; 0: no limit; auto: an eighth of memory-budget"),
    d("max-new-connections-per-cycle", Integer((1, 1000)), "10", "accepts per event loop turn").inert(THREADS),
    d("max-new-tls-connections-per-cycle", Integer((1, 1000)), "1", "TLS accepts per event loop turn").inert(HANDSHAKES),
    d("socket-mark-id", Integer((0, u32::MAX as i128)), "0", "mark of the listening sockets").immutable().inert("sockets carry no mark"),
    d("tracking-table-max-keys", Integer(LONG), "1000000", "keys remembered for client-side caching; 0: no limit"),

    // Access.
    d("requirepass", OptionalText, "", "password of the default user").sensitive(),
    d("aclfile", Text, "", "file of users, one a line; a relative path is in dir").immutable(),
    d("acl-pubsub-default", OneOf(&["allchannels", "resetchannels"]), "resetchannels", "channels a new user may use"),
    d("acllog-max-len", Integer(LONG), "128", "entries of ACL LOG"),
    d("enable-protected-configs", OneOf(PROTECTED_ACTION), "no", "who may change protected directives").immutable(),
    d("enable-debug-command", OneOf(PROTECTED_ACTION), "no", "who may use DEBUG").immutable(),
    d("enable-module-command", OneOf(PROTECTED_ACTION), "no", "who may use MODULE").immutable().inert("there are no modules"),

    // Data set.
    d("databases", Integer((1, INT_MAX)), "16", "number of databases").immutable(),
    d("maxmemory", Memory(ULONG), "0", "bytes of the data set, in memory and on disk, as the reference would need them in memory, beyond which keys are evicted by maxmemory-policy; 0: no limit"),
    d("maxmemory-policy", OneOf(POLICIES), "noeviction", "keys that are evicted beyond maxmemory; with noeviction none, and commands that need memory are refused"),
    d("maxmemory-samples", Integer((1, 64)), "5", "keys compared to find one to evict"),
    d("maxmemory-eviction-tenacity", Integer((0, 100)), "10", "how long keys are evicted before commands have a turn: 10 is half a millisecond, 100 as long as it takes"),
    d("lfu-log-factor", Integer(INT), "10", "how slowly the access counter of a key grows (LFU policies)"),
    d("lfu-decay-time", Integer(INT), "1", "minutes without access until the access counter of a key sinks by one (LFU policies)"),
    d("active-expire-effort", Integer((1, 10)), "1", "effort spent on keys that expired unread").inert(PACE),
    d("hz", Integer(INT), "10", "background rounds per second, 1 to 500").inert(PACE),
    d("hash-max-listpack-entries", Integer(LONG), "512", "fields up to which a hash is packed").alias("hash-max-ziplist-entries"),
    d("hash-max-listpack-value", Memory(LONG), "64", "bytes of a field or value up to which a hash is packed").alias("hash-max-ziplist-value"),
    d("list-max-listpack-size", Integer((i32::MIN as i128, INT_MAX)), "-2", "elements, or -1 to -5 for 4 to 64 KiB, of a list node").alias("list-max-ziplist-size"),
    d("list-compress-depth", Integer(INT), "0", "list nodes left uncompressed at the ends").inert(COMPACT),
    d("set-max-intset-entries", Integer(LONG), "512", "members up to which a set of integers is an intset"),
    d("set-max-listpack-entries", Integer(LONG), "128", "members up to which a set is packed"),
    d("set-max-listpack-value", Integer(LONG), "64", "bytes of a member up to which a set is packed"),
    d("zset-max-listpack-entries", Integer(LONG), "128", "members up to which a sorted set is packed").alias("zset-max-ziplist-entries"),
    d("zset-max-listpack-value", Memory(LONG), "64", "bytes of a member up to which a sorted set is packed").alias("zset-max-ziplist-value"),
    d("stream-node-max-bytes", Memory(LONG), "4096", "bytes of a stream node, 4096 at most; 0: 4096"),
    d("stream-node-max-entries", Integer(LONG), "100", "entries of a stream node; 0: no limit"),
    d("hll-sparse-max-bytes", Memory(LONG), "3000", "bytes up to which a HyperLogLog is sparse"),
    d("notify-keyspace-events", Structured(Structure::NotifyKeyspaceEvents), "", "classes of events published"),
    d("lazyfree-lazy-eviction", YesNo, "yes", "replicas get evicted keys as UNLINK, not as DEL"),
    d("lazyfree-lazy-expire", YesNo, "yes", "replicas get expired keys as UNLINK, not as DEL"),
    d("lazyfree-lazy-server-del", YesNo, "yes", "replicas get keys that SPOP or RESTORE removes as UNLINK, not as DEL"),
    d("lazyfree-lazy-user-del", YesNo, "yes", "DEL works as UNLINK").inert(LAZY),
    d("lazyfree-lazy-user-flush", YesNo, "yes", "FLUSHALL works in the background").inert(LAZY),
    d("activerehashing", YesNo, "yes", "rehash in idle time").inert(TABLES),

    // Observation.
    d("loglevel", OneOf(LOG_LEVELS), "notice", "least level that is logged; verbose is notice").alias("log-level"),
    d("logfile", Text, "", "file of the log, opened anew for each line; empty: standard error").immutable(),
    d("commandlog-execution-slower-than", Integer((-1, LONG_MAX)), "10000", "microseconds from which a command is logged as slow; -1: never").alias("slowlog-log-slower-than"),
    d("commandlog-slow-execution-max-len", Integer(LONG), "128", "entries of the log of slow commands").alias("slowlog-max-len"),
    d("commandlog-request-larger-than", Integer((-1, LONG_MAX)), "1048576", "bytes from which a request is logged; -1: never"),
    d("commandlog-large-request-max-len", Integer(LONG), "128", "entries of the log of large requests"),
    d("commandlog-reply-larger-than", Integer((-1, LONG_MAX)), "1048576", "bytes from which a reply is logged; -1: never"),
    d("commandlog-large-reply-max-len", Integer(LONG), "128", "entries of the log of large replies"),
    d("latency-monitor-threshold", Integer(LONG), "0", "milliseconds from which an event is recorded; 0: off"),
    d("latency-tracking", YesNo, "yes", "latency histograms per command"),
    d("latency-tracking-info-percentiles", Structured(Structure::Percentiles), "50 99 99.9", "percentiles in INFO latencystats"),
    d("hide-user-data-from-log", YesNo, "yes", "keep keys and values out of the log").inert("the server logs no keys and no values by itself"),
    d("log-format", OneOf(&["legacy", "logfmt", "text", "json"]), "legacy", "form of the log's lines; legacy is text"),
    d("log-timestamp-format", OneOf(&["legacy", "iso8601", "milliseconds"]), "legacy", "format of the log's time").inert(STDERR_LOG),
    d("syslog-enabled", YesNo, "no", "log to syslog").immutable().check(check::no_syslog).inert(STDERR_LOG),
    d("syslog-ident", Text, "valkey", "name in syslog").immutable().inert(STDERR_LOG),
    d("syslog-facility", OneOf(FACILITIES), "local0", "facility in syslog").immutable().inert(STDERR_LOG),
    d("always-show-logo", YesNo, "no", "show a logo at start").immutable().inert("there is no logo"),
    d("crash-log-enabled", YesNo, "yes", "report crashes").inert(NO_CRASH_REPORT),
    d("crash-memcheck-enabled", YesNo, "yes", "check memory on a crash").inert(NO_CRASH_REPORT),
    d("use-exit-on-panic", YesNo, "no", "exit instead of abort").hidden().inert(NO_CRASH_REPORT),
    d("watchdog-period", Integer(INT), "0", "milliseconds until a stall is reported").hidden().inert(NO_CRASH_REPORT),
    d("ignore-warnings", Text, "", "warnings to pass over at start").inert("no warning stops the start"),
    d("debug-context", Text, "", "text shown in crash reports").hidden().inert(NO_CRASH_REPORT),
    d("availability-zone", Text, "", "zone of this node, shown in HELLO and INFO"),

    // Behaviour of commands.
    d("busy-reply-threshold", Integer(LONG), "5000", "milliseconds after which a script makes others answer BUSY").alias("lua-time-limit"),
    d("script-instruction-limit", Integer(LONG), "10000000000", "Lua instructions after which a script is ended and taken back; 0: no limit"),
    d("lua-enable-insecure-api", YesNo, "no", "offer deprecated functions to scripts").alias("lua-enable-deprecated-api").hidden().protected().check(check::no_insecure_api).inert("deprecated functions are absent"),
    d("locale-collate", Text, "", "order of SORT ALPHA").inert("strings are compared by bytes"),
    d("extended-redis-compatibility", YesNo, "no", "present the server as Redis"),
    d("shutdown-timeout", Integer(INT), "10", "seconds that a stop waits until replicas have everything"),
    d("shutdown-on-sigint", SomeOf(SHUTDOWN), "default", "flags of the SHUTDOWN that SIGINT causes").check(check::shutdown_flags).inert(SAVING),
    d("shutdown-on-sigterm", SomeOf(SHUTDOWN), "default", "flags of the SHUTDOWN that SIGTERM causes").check(check::shutdown_flags).inert(SAVING),
    d("import-mode", YesNo, "no", "keys do not expire; clients see expired ones after CLIENT IMPORT-SOURCE ON only"),
    d("enable-debug-assert", YesNo, "no", "check internal assertions").immutable().hidden().inert(DEBUGGING),
    d("key-load-delay", Integer((i32::MIN as i128, INT_MAX)), "0", "microseconds between keys while loading").hidden().inert(DEBUGGING),
    d("loading-process-events-interval-bytes", Integer((1024, INT_MAX)), "2097152", "bytes loaded between events").hidden().inert(DEBUGGING),

    // RDB files.
    d("dbfilename", Text, "dump.rdb", "name of the RDB file that SAVE writes").protected().check(check::dbfilename).inert(SAVING),
    d("rdbcompression", YesNo, "yes", "compress strings in RDB files"),
    d("rdbchecksum", YesNo, "yes", "checksum RDB files").immutable().inert(SAVING),
    d("rdb-version-check", OneOf(&["strict", "relaxed"]), "strict", "relaxed: RDB files of a newer version are tried; strict: they are refused"),
    d("sanitize-dump-payload", OneOf(&["no", "yes", "clients"]), "no", "check payloads of RESTORE in depth").inert("payloads are always checked"),
    d("save", Structured(Structure::Save), "3600 1 300 100 60 10000", "seconds and changes after which an RDB file is written").inert(SAVING),
    d("stop-writes-on-bgsave-error", YesNo, "yes", "refuse writes after a failed snapshot").inert(SAVING),
    d("rdb-save-incremental-fsync", YesNo, "yes", "sync RDB files piecewise").inert(SAVING),
    d("rdb-key-save-delay", Integer((i32::MIN as i128, INT_MAX)), "0", "microseconds between keys while saving").hidden().inert(DEBUGGING),
    d("rdb-del-sync-files", YesNo, "no", "delete RDB files of replication").inert(REPLICATION),

    // The append-only file.
    d("appendonly", YesNo, "yes", "log every write").inert(JOURNAL),
    d("appendfilename", Text, "appendonly.aof", "base name of the append-only file").immutable().check(check::appendfilename).inert(JOURNAL),
    d("appenddirname", Text, "appendonlydir", "directory of the append-only file").immutable().check(check::appenddirname).inert(JOURNAL),
    d("no-appendfsync-on-rewrite", YesNo, "no", "pause syncs during a rewrite").inert(JOURNAL),
    d("auto-aof-rewrite-percentage", Integer(INT), "100", "growth that triggers a rewrite").inert(JOURNAL),
    d("auto-aof-rewrite-min-size", Memory(LONG), "67108864", "bytes below which no rewrite starts").inert(JOURNAL),
    d("aof-load-truncated", YesNo, "yes", "load a file with a torn end").inert(JOURNAL),
    d("aof-use-rdb-preamble", YesNo, "yes", "rewrite in RDB format").inert(JOURNAL),
    d("aof-timestamp-enabled", YesNo, "no", "write times into the file").inert(JOURNAL),
    d("aof-rewrite-incremental-fsync", YesNo, "yes", "sync rewrites piecewise").inert(JOURNAL),
    d("aof-disable-auto-gc", YesNo, "no", "keep files of the past").hidden().inert(JOURNAL),

    // The process.
    d("daemonize", YesNo, "no", "go to the background").immutable().inert(INIT_SYSTEM),
    d("supervised", OneOf(&["upstart", "systemd", "auto", "no"]), "no", "systemd: tell it of start, stop and health (Type=notify); auto: if it has started the server").immutable().check(check::no_upstart),
    d("pidfile", OptionalText, "", "file with the process id, as long as the server runs").immutable(),
    d("set-proc-title", YesNo, "yes", "show the address in the process title").immutable().inert("the process title stays as it was started"),
    d("proc-title-template", Text, "{title} {listen-addr} {server-mode}", "the process title").check(check::proc_title_template).inert("the process title stays as it was started"),
    d("disable-thp", YesNo, "yes", "switch transparent huge pages off").immutable().inert(NO_FORK),
    d("oom-score-adj", OneOf(&["no", "yes", "relative", "absolute"]), "no", "tell the kernel whom to kill first").inert(NO_FORK),
    d("oom-score-adj-values", Structured(Structure::OomScores), "0 200 800", "scores of primary, replica and child").inert(NO_FORK),
    d("server-cpulist", OptionalText, "", "CPUs of the server").alias("server_cpulist").immutable().inert(THREADS),
    d("bio-cpulist", OptionalText, "", "CPUs of background threads").alias("bio_cpulist").immutable().inert(THREADS),
    d("aof-rewrite-cpulist", OptionalText, "", "CPUs of the rewriting child").alias("aof_rewrite_cpulist").immutable().inert(NO_FORK),
    d("bgsave-cpulist", OptionalText, "", "CPUs of the saving child").alias("bgsave_cpulist").immutable().inert(NO_FORK),
    d("io-threads", Integer((1, 256)), "1", "threads that read and write sockets").immutable().inert(THREADS),
    d("events-per-io-thread", Integer(INT), "2", "events that wake a further thread").hidden().inert(THREADS),
    d("prefetch-batch-max-size", Integer((0, 128)), "16", "keys prefetched per batch").inert(THREADS),
    d("jemalloc-bg-thread", YesNo, "yes", "let the allocator have a thread").inert(ALLOCATOR),
    d("activedefrag", YesNo, "no", "defragment memory").check(check::active_defrag).inert(ALLOCATOR),
    d("active-defrag-cycle-min", Integer((1, 99)), "1", "least CPU percentage").inert(ALLOCATOR),
    d("active-defrag-cycle-max", Integer((1, 99)), "25", "greatest CPU percentage").inert(ALLOCATOR),
    d("active-defrag-cycle-us", Integer((0, 100_000)), "500", "microseconds of one cycle").inert(ALLOCATOR),
    d("active-defrag-threshold-lower", Integer((0, 1000)), "10", "fragmentation percentage to start at").inert(ALLOCATOR),
    d("active-defrag-threshold-upper", Integer((0, 1000)), "100", "fragmentation percentage of full effort").inert(ALLOCATOR),
    d("active-defrag-ignore-bytes", Memory((1, LONG_MAX)), "104857600", "fragmentation bytes passed over").inert(ALLOCATOR),
    d("active-defrag-max-scan-fields", Integer((1, LONG_MAX)), "1000", "elements scanned at once").inert(ALLOCATOR),

    // Replication.
    d("replicaof", Structured(Structure::ReplicaOf), "", "primary to copy, as host and port; REPLICAOF changes it").alias("slaveof").immutable(),
    d("primaryuser", OptionalText, "", "user at the primary").alias("masteruser").sensitive(),
    d("primaryauth", OptionalText, "", "password at the primary").alias("masterauth").sensitive(),
    d("replica-serve-stale-data", YesNo, "yes", "answer while disconnected").alias("slave-serve-stale-data"),
    d("replica-read-only", YesNo, "yes", "refuse writes on a replica").alias("slave-read-only"),
    d("replica-lazy-flush", YesNo, "yes", "flush in the background").alias("slave-lazy-flush").inert(REPLICATION),
    d("replica-ignore-maxmemory", YesNo, "yes", "leave eviction to the primary").alias("slave-ignore-maxmemory").inert(REPLICATION),
    d("replica-ignore-disk-write-errors", YesNo, "no", "go on after a failed write").inert(REPLICATION),
    d("replica-announced", YesNo, "yes", "show the replica to Sentinel").inert(REPLICATION),
    d("replica-announce-ip", OptionalText, "", "address to announce").alias("slave-announce-ip"),
    d("replica-announce-port", Integer(PORT), "0", "port to announce").alias("slave-announce-port"),
    d("replica-priority", Integer(INT), "100", "rank for promotion").alias("slave-priority"),
    d("repl-ack", OneOf(REPL_ACK), "none", "what a reply waits for: no replica (none), a replica has applied the write (async), has it on disk (sync)"),
    d("min-replicas-to-write", Integer(INT), "0", "replicas without which writes are refused; 0: none are needed").alias("min-slaves-to-write"),
    d("repl-group-size", Integer((0, 64)), "0", "servers of the group, this one included: with repl-ack, a majority has to have each write, and a server that is promoted hears others first; 0: not known"),
    d("min-replicas-max-lag", Integer(INT), "10", "seconds of lag of a good replica; 0: min-replicas-to-write has no effect").alias("min-slaves-max-lag"),
    d("repl-timeout", Integer((1, INT_MAX)), "60", "seconds until a link is given up"),
    d("repl-ping-replica-period", Integer((1, INT_MAX)), "10", "seconds between pings to replicas").alias("repl-ping-slave-period"),
    d("repl-backlog-size", Memory((1, LONG_MAX)), "10485760", "bytes of the stream for replicas that stay in memory"),
    d("repl-backlog-ttl", Integer(LONG), "3600", "seconds after which the stream ends if there are no replicas; 0: never"),
    d("repl-disable-tcp-nodelay", YesNo, "no", "save bandwidth to replicas").inert(REPLICATION),
    d("repl-diskless-sync", YesNo, "yes", "send the data set as it is read, without a file, to replicas that can take it so"),
    d("repl-diskless-sync-delay", Integer(INT), "5", "seconds to wait for more replicas").inert(REPLICATION),
    d("repl-diskless-sync-max-replicas", Integer(INT), "0", "replicas that end the wait").inert(REPLICATION),
    d("repl-diskless-load", OneOf(&["disabled", "on-empty-db", "swapdb", "flush-before-load"]), "disabled", "receive the data set without a file").inert(REPLICATION),
    d("dual-channel-replication-enabled", YesNo, "no", "send data set and changes in parallel").inert(REPLICATION),
    d("propagation-error-behavior", OneOf(&["ignore", "panic", "panic-on-replicas"]), "ignore", "what a failed propagation causes").inert(REPLICATION),
    d("bind-source-addr", OptionalText, "", "source address of outgoing connections").inert(REPLICATION),

    // Cluster.
    d("cluster-enabled", YesNo, "no", "answer clients of a cluster: one of several servers over a bucket, or, with a local directory, a cluster of one node that owns all slots").immutable(),
    d("cluster-replica", OneOf(CLUSTER_REPLICA), "no", "in a cluster of several servers, own no shard and show those of all others, for reads after READONLY; standby: until an owner is lost, whose shards it then owns").at_start(),
    d("cluster-lease-ms", Integer((100, 60_000)), "3000", "milliseconds for which a server may answer after it has proven that it owns its shards; fixed when a cluster is made").at_start(),
    d("cluster-config-file", Text, "nodes.conf", "file of the cluster's state").immutable().check(check::cluster_config_file).inert(CLUSTER),
    d("cluster-port", Integer(PORT), "0", "port of the cluster bus that clients are told; nobody listens on it").immutable(),
    d("cluster-announce-ip", OptionalText, "", "address to announce").check(check::announced_address),
    d("cluster-announce-client-ipv4", OptionalText, "", "IPv4 address to announce to clients").check(check::ipv4),
    d("cluster-announce-client-ipv6", OptionalText, "", "IPv6 address to announce to clients").check(check::ipv6),
    d("cluster-announce-port", Integer(PORT), "0", "port to announce"),
    d("cluster-announce-tls-port", Integer(PORT), "0", "TLS port to announce"),
    d("cluster-announce-bus-port", Integer(PORT), "0", "bus port to announce"),
    d("cluster-announce-hostname", OptionalText, "", "host name to announce").check(check::announced_hostname),
    d("cluster-announce-human-nodename", OptionalText, "", "node name to announce").check(check::announced_nodename),
    d("cluster-preferred-endpoint-type", OneOf(&["ip", "hostname", "unknown-endpoint"]), "ip", "address kind in redirections"),
    d("cluster-node-timeout", Integer(LONG), "15000", "milliseconds until a node counts as failed").inert(CLUSTER),
    d("cluster-ping-interval", Integer(LONG), "0", "milliseconds between pings").hidden().inert(CLUSTER),
    d("cluster-replica-validity-factor", Integer(INT), "10", "how stale a replica may be").alias("cluster-slave-validity-factor").inert(CLUSTER),
    d("cluster-replica-no-failover", YesNo, "no", "never promote this node").alias("cluster-slave-no-failover").inert(CLUSTER),
    d("cluster-migration-barrier", Integer(INT), "1", "replicas a primary keeps").inert(CLUSTER),
    d("cluster-allow-replica-migration", YesNo, "yes", "let replicas move").inert(CLUSTER),
    d("cluster-require-full-coverage", YesNo, "yes", "refuse all when slots are missing").inert(CLUSTER),
    d("cluster-allow-reads-when-down", YesNo, "no", "read while the cluster is down").inert(CLUSTER),
    d("cluster-allow-pubsubshard-when-down", YesNo, "yes", "publish while the cluster is down").inert(CLUSTER),
    d("cluster-link-sendbuf-limit", Memory(ULONG), "0", "bytes of a bus link's buffer").inert(CLUSTER),
    d("cluster-blacklist-ttl", Integer(ULONG), "60", "seconds a forgotten node stays out").inert(CLUSTER),
    d("cluster-manual-failover-timeout", Integer((1, INT_MAX)), "5000", "milliseconds of a manual failover").inert(CLUSTER),
    d("cluster-slot-stats-enabled", YesNo, "no", "statistics per slot").inert(CLUSTER),

    // TLS.
    d("tls-port", Integer(PORT), "0", "TCP port for TLS; 0: none"),
    d("tls-cluster", YesNo, "no", "MIGRATE and servers of a cluster secure their connections by TLS"),
    d("tls-replication", YesNo, "no", "secure the connection to the primary by TLS; it takes effect when the link connects"),
    d("tls-auth-clients", OneOf(&["no", "yes", "optional"]), "yes", "whether a client of tls-port needs a certificate that tls-ca-cert-file or tls-ca-cert-dir vouches for; optional: it may have one"),
    d("tls-cert-file", OptionalText, "", "certificate of the server, with those between it and its authority; PEM"),
    d("tls-key-file", OptionalText, "", "private key of the certificate; PEM, not encrypted"),
    d("tls-key-file-pass", OptionalText, "", "password of the key: none, as keys must not be encrypted").sensitive().check(check::no_key_password).inert(check::NO_KEY_PASSWORD),
    d("tls-client-cert-file", OptionalText, "", "certificate that the primary and the target of MIGRATE are shown; without it, tls-cert-file"),
    d("tls-client-key-file", OptionalText, "", "private key of tls-client-cert-file"),
    d("tls-client-key-file-pass", OptionalText, "", "password of that key: none, as keys must not be encrypted").sensitive().check(check::no_key_password).inert(check::NO_KEY_PASSWORD),
    d("tls-dh-params-file", OptionalText, "", "Diffie-Hellman parameters").inert("keys are exchanged on elliptic curves only"),
    d("tls-ca-cert-file", OptionalText, "", "certificates of the authorities that vouch for clients; PEM"),
    d("tls-ca-cert-dir", OptionalText, "", "directory with such files"),
    d("tls-protocols", OptionalText, "", "versions of TLS, TLSv1.2 and TLSv1.3; empty: both").check(check::tls_protocols),
    d("tls-ciphers", OptionalText, "", "ciphers of TLS 1.2, as a list of OpenSSL; empty: all that are good"),
    d("tls-ciphersuites", OptionalText, "", "ciphers of TLS 1.3, separated by colons; empty: all"),
    d("tls-prefer-server-ciphers", YesNo, "no", "choose the cipher by the server's order, not by the client's"),
    d("tls-session-caching", YesNo, "yes", "remember sessions, so that clients which return need no full handshake"),
    d("tls-session-cache-size", Integer(INT), "20480", "sessions that are remembered; 0: as many as fit in 16 MiB"),
    d("tls-session-cache-timeout", Integer(INT), "300", "seconds for which a session is remembered"),

    // RDMA.
    d("rdma-bind", Structured(Structure::Bind), "", "RDMA addresses").check(check::rdma_unsupported).inert(NO_RDMA),
    d("rdma-port", Integer(PORT), "0", "RDMA port").check(check::rdma_unsupported).inert(NO_RDMA),
    d("rdma-rx-size", Integer((64 * 1024, 16 * MIB)), "1048576", "bytes of the receive buffer").immutable().inert(NO_RDMA),
    d("rdma-completion-vector", Integer((-1, 1024)), "-1", "interrupt vector").immutable().inert(NO_RDMA),
];

/// Names of old configuration files that have no meaning any more.
pub(super) const OBSOLETE: &[&str] = &[
    "list-max-ziplist-entries",
    "list-max-ziplist-value",
    "lua-replicate-commands",
    "io-threads-do-reads",
    "dynamic-hz",
];

/// Finds a directive by name or alias, in any case: returns its index in the table and the name
/// that matched.
pub(super) fn find(name: &str) -> Option<(usize, &'static str)> {
    TABLE.iter().enumerate().find_map(|(index, directive)| {
        if directive.name.eq_ignore_ascii_case(name) {
            return Some((index, directive.name));
        }
        let alias = directive.alias?;
        alias.eq_ignore_ascii_case(name).then_some((index, alias))
    })
}
