//! CONFIG SET: a value that it accepts is in effect when it answers, or has no effect and the log
//! says so.

use super::{Server, free_port};
use redis::{RedisError, Value};
use std::fs;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directive, a value that is not its default, commands, and a check of the last reply that
/// passes with that value alone.
type Row = (&'static str, &'static str, &'static [&'static str], fn(&str) -> bool);

const ROWS: &[Row] = &[
    ("hash-max-listpack-entries", "1", &["HSET k a 1 b 2", "OBJECT ENCODING k"], is_table),
    ("hash-max-listpack-value", "1", &["HSET k a 11", "OBJECT ENCODING k"], is_table),
    ("list-max-listpack-size", "1", &["RPUSH k a b", "OBJECT ENCODING k"], |r| {
        r.contains("quicklist")
    }),
    ("set-max-intset-entries", "1", &["SADD k 1 2", "OBJECT ENCODING k"], |r| {
        !r.contains("intset")
    }),
    ("set-max-listpack-entries", "1", &["SADD k a b", "OBJECT ENCODING k"], is_table),
    ("set-max-listpack-value", "1", &["SADD k aa", "OBJECT ENCODING k"], is_table),
    ("zset-max-listpack-entries", "1", &["ZADD k 1 a 2 b", "OBJECT ENCODING k"], is_skiplist),
    ("zset-max-listpack-value", "1", &["ZADD k 1 aa", "OBJECT ENCODING k"], is_skiplist),
    ("stream-node-max-entries", "1", &["XADD k 1 a 1", "XADD k 2 a 1", "XINFO STREAM k"], |r| {
        r.contains("\"radix-tree-keys\"'), int(2)")
    }),
    ("stream-node-max-bytes", "1", &["XADD k 1 a 1", "XADD k 2 a 1", "XINFO STREAM k"], |r| {
        r.contains("\"radix-tree-keys\"'), int(2)")
    }),
    ("hll-sparse-max-bytes", "1", &["PFADD k a b c", "PFDEBUG ENCODING k"], |r| {
        r.contains("dense")
    }),
    ("proto-max-bulk-len", "1mb", &["SETRANGE k 2000000 x"], |r| r.contains("maximum allowed")),
    ("rdbcompression", "no", &["SETRANGE k 1000 x", "DUMP k"], |r| r.len() > 1000),
    ("script-instruction-limit", "100000", &["EVAL for(i=1,1000000)do(end) 0"], |_| true),
    (
        "acl-pubsub-default",
        "allchannels",
        &["ACL DELUSER somebody", "ACL SETUSER somebody", "ACL LIST"],
        |r| r.contains("user somebody off sanitize-payload &*"),
    ),
    ("acllog-max-len", "0", &["ACL LOG RESET", "AUTH nobody x", "ACL LOG"], |r| {
        !r.contains("nobody")
    }),
    ("requirepass", "secret", &["RESET", "PING"], |r| r.contains("NOAUTH")),
    ("maxmemory", "100kb", &["SET k v"], |r| r.contains("OOM")),
    (
        "maxmemory-policy",
        "allkeys-lru",
        &["SET k v", "CONFIG SET maxmemory 1mb", "SET k v"],
        is_okay,
    ),
    ("repl-backlog-size", "2mb", &["INFO replication"], |r| {
        r.contains("repl_backlog_size:2097152")
    }),
    ("import-mode", "yes", &["CLIENT IMPORT-SOURCE ON"], is_okay),
    ("min-replicas-to-write", "1", &["SET k v"], |r| r.contains("NOREPLICAS")),
    ("repl-ack", "async", &["SET k v"], |r| r.contains("NOREPLICAS")),
    ("repl-group-size", "5", &["CONFIG SET repl-ack async", "INFO replication"], |r| {
        r.contains("repl_ack_replicas:2")
    }),
    ("min-replicas-max-lag", "0", &["CONFIG SET min-replicas-to-write 1", "SET k v"], is_okay),
    (
        "commandlog-execution-slower-than",
        "0",
        &["SLOWLOG RESET", "ECHO hello", "SLOWLOG GET"],
        |r| r.contains("hello"),
    ),
    (
        "commandlog-slow-execution-max-len",
        "0",
        &["CONFIG SET slowlog-log-slower-than 0", "SLOWLOG RESET", "ECHO hello", "SLOWLOG LEN"],
        |r| r == "int(0)",
    ),
    (
        "commandlog-request-larger-than",
        "10",
        &["COMMANDLOG RESET large-request", "ECHO hello", "COMMANDLOG GET 9 large-request"],
        |r| r.contains("hello"),
    ),
    (
        "commandlog-large-request-max-len",
        "0",
        &[
            "CONFIG SET commandlog-request-larger-than 0",
            "COMMANDLOG RESET large-request",
            "COMMANDLOG LEN large-request",
        ],
        |r| r == "int(0)",
    ),
    (
        "commandlog-reply-larger-than",
        "10",
        &["COMMANDLOG RESET large-reply", "ECHO hello", "COMMANDLOG GET 9 large-reply"],
        |r| r.contains("hello"),
    ),
    (
        "commandlog-large-reply-max-len",
        "0",
        &[
            "CONFIG SET commandlog-reply-larger-than 0",
            "COMMANDLOG RESET large-reply",
            "COMMANDLOG LEN large-reply",
        ],
        |r| r == "int(0)",
    ),
    ("latency-monitor-threshold", "1", &["LATENCY RESET", "LATENCY DOCTOR"], |r| {
        !r.contains("monitoring is off")
    }),
    (
        "latency-tracking",
        "no",
        &["CONFIG RESETSTAT", "ECHO hello", "LATENCY HISTOGRAM echo"],
        |r| !r.contains("calls"),
    ),
    ("latency-tracking-info-percentiles", "90", &["ECHO hello", "INFO latencystats"], |r| {
        r.contains(":p90=")
    }),
    ("availability-zone", "north", &["HELLO"], |r| r.contains("north")),
    ("extended-redis-compatibility", "yes", &["HELLO"], |r| !r.contains("valkey")),
];

fn is_table(reply: &str) -> bool {
    reply.contains("hashtable")
}

fn is_skiplist(reply: &str) -> bool {
    reply.contains("skiplist")
}

fn is_okay(reply: &str) -> bool {
    reply == "ok"
}

/// Directives whose effect the rows cannot show, with the test that does, or why none can.
const ELSEWHERE: &[(&str, &str)] = &[
    ("journal-commit-window-ms", "bucket::writes_gather_for_the_commit_window_of_now"),
    ("shutdown-timeout", "failover::a_stop_waits_until_replicas_have_everything"),
    ("lazyfree-lazy-expire", "followers::removals_are_sent_as_the_settings_say"),
    ("lazyfree-lazy-eviction", "followers::removals_are_sent_as_the_settings_say"),
    ("lazyfree-lazy-server-del", "followers::removals_are_sent_as_the_settings_say"),
    ("port", "other_addresses_are_listened_on_at_once"),
    ("bind", "other_addresses_are_listened_on_at_once"),
    ("tls-port", "tls::the_port_opens_and_closes_live"),
    ("tls-cert-file", "tls::certificates_change_live_and_a_bad_file_changes_nothing"),
    ("tls-key-file", "tls::certificates_change_live_and_a_bad_file_changes_nothing"),
    ("tls-ca-cert-file", "tls::certificates_change_live_and_a_bad_file_changes_nothing"),
    ("tls-ca-cert-dir", "tls::the_port_opens_and_closes_live"),
    ("tls-auth-clients", "tls::clients_need_a_certificate_as_the_setting_says"),
    ("tls-protocols", "tls::versions_and_ciphers_are_those_of_the_settings"),
    ("tls-ciphers", "tls::versions_and_ciphers_are_those_of_the_settings"),
    ("tls-ciphersuites", "tls::versions_and_ciphers_are_those_of_the_settings"),
    ("tls-prefer-server-ciphers", "tls::versions_and_ciphers_are_those_of_the_settings"),
    ("tls-session-caching", "tls::sessions_are_resumed_as_the_settings_say"),
    ("tls-session-cache-size", "the unit tests of the cache of sessions show it"),
    ("tls-session-cache-timeout", "the unit tests of the cache of sessions show it"),
    ("tls-cluster", "migrate::keys_go_over_tls"),
    ("tls-replication", "is read for each connection to a primary"),
    ("tls-client-cert-file", "is read for each connection to a primary"),
    ("tls-client-key-file", "is read for each connection to a primary"),
    ("primaryuser", "is read for each connection to a primary"),
    ("primaryauth", "replica::a_link_is_tried_again_and_says_why_it_is_down"),
    ("replica-announce-ip", "is read for each connection to a primary"),
    ("replica-announce-port", "is read for each connection to a primary"),
    ("repl-ping-replica-period", "followers::settings_of_a_primary_take_effect_at_once"),
    ("repl-backlog-ttl", "followers::settings_of_a_primary_take_effect_at_once"),
    ("repl-diskless-sync", "followers::settings_of_a_primary_take_effect_at_once"),
    ("repl-timeout", "roles::settings_of_a_replica_take_effect_at_once"),
    ("replica-priority", "roles::settings_of_a_replica_take_effect_at_once"),
    ("replica-read-only", "roles::settings_of_a_replica_take_effect_at_once"),
    ("replica-serve-stale-data", "roles::settings_of_a_replica_take_effect_at_once"),
    ("log-format", "operated::the_log_has_the_form_that_is_set"),
    ("proxy-protocol", "operated::a_trusted_proxy_names_its_clients_and_nobody_else_does"),
    ("loglevel", "the_log_follows_its_level_at_once"),
    ("maxclients", "clients_beyond_maxclients_are_refused_at_once"),
    ("timeout", "a_silent_client_is_closed_by_the_timeout_of_now"),
    ("notify-keyspace-events", "the tests of events set it by CONFIG SET"),
    ("busy-reply-threshold", "the tests of scripts set it by CONFIG SET"),
    ("appendfsync", "the tests of durability switch modes"),
    ("serve-stale-data", "needs a bucket that is away; it is read for each reply"),
    ("handover-interval-ms", "is read before each hand-over"),
    ("checkpoint-interval", "is read each second; the tests of checkpoints set it"),
    ("checkpoint-keep", "is read for each checkpoint"),
    ("checkpoint-max-age", "is read for each checkpoint"),
    ("journal-archive-max-size", "is read for each checkpoint"),
    ("tcp-keepalive", "is set on each connection that is accepted"),
    ("protected-mode", "is read for each connection that is not of this machine"),
    ("client-query-buffer-limit", "is read for each read of a connection"),
    ("client-output-buffer-limit", "the tests of publish/subscribe set it by CONFIG SET"),
    ("maxmemory-clients", "is read each time clients are looked at"),
    ("maxmemory-samples", "is read for each turn of the eviction"),
    ("maxmemory-eviction-tenacity", "is read for each turn of the eviction"),
    ("lfu-log-factor", "is read for each access; the tests of eviction use it"),
    ("lfu-decay-time", "is read for each access; the tests of eviction use it"),
    ("cluster-announce-ip", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-client-ipv4", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-client-ipv6", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-port", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-tls-port", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-bus-port", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-hostname", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-announce-human-nodename", "a_cluster_tells_what_it_is_to_announce"),
    ("cluster-preferred-endpoint-type", "a_cluster_tells_what_it_is_to_announce"),
    ("tracking-table-max-keys", "the tests of tracking set it by CONFIG SET"),
    ("rdb-version-check", "is read for each payload"),
];

/// The reply to a command as a text.
fn ask(client: &mut redis::Connection, line: &str) -> String {
    // A script has spaces of its own.
    let words: Vec<String> = match line.strip_prefix("EVAL ") {
        Some(_) => vec!["EVAL".into(), "for i=1,1000000 do end return 'done'".into(), "0".into()],
        None => line.split(' ').map(ToOwned::to_owned).collect(),
    };
    let mut command = redis::cmd(&words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    let reply: Result<Value, RedisError> = command.query(client);
    match reply {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    }
}

/// The program's own description of its directives.
static HELP: LazyLock<String> = LazyLock::new(|| {
    let help = Command::new(env!("CARGO_BIN_EXE_flagstone")).arg("--help").output();
    String::from_utf8_lossy(&help.expect("it runs").stdout).into_owned()
});

/// The directives that the program says may be changed while it runs.
fn live() -> Vec<String> {
    let names = HELP.lines().filter_map(|line| line.strip_prefix(" * --"));
    names.filter_map(|rest| rest.split(' ').next()).map(ToOwned::to_owned).collect()
}

#[test]
fn every_directive_that_may_be_set_is_known_to_take_effect() {
    let live = live();
    assert!(live.len() > 30, "{live:?}");
    let shown: Vec<&str> =
        ROWS.iter().map(|row| row.0).chain(ELSEWHERE.iter().map(|row| row.0)).collect();
    for name in &live {
        let places = shown.iter().filter(|shown| *shown == name).count();
        assert_eq!(places, 1, "{name}: is it in effect when CONFIG SET is answered?");
    }
    for name in shown {
        assert!(live.iter().any(|live| live == name), "{name} is not live any more");
    }
}

#[test]
fn settings_are_in_effect_when_config_set_is_answered() {
    let server = Server::start(&["--workers", "2"]);
    for (name, value, commands, shows) in ROWS {
        let mut admin = server.client();
        let run = || {
            let mut client = server.client();
            let replies: Vec<String> = commands.iter().map(|line| ask(&mut client, line)).collect();
            replies.last().expect("a command").clone()
        };
        let before = run();
        tidy(&mut admin);
        let old = ask(&mut admin, &format!("CONFIG GET {name}"));
        assert_eq!(ask(&mut admin, &format!("CONFIG SET {name} {value}")), "ok", "{name}");
        assert_ne!(ask(&mut admin, &format!("CONFIG GET {name}")), old, "{name}");
        let after = if *name == "requirepass" { ask(&mut server.client(), "PING") } else { run() };
        assert_ne!(before, after, "{name} changes nothing");
        assert!(shows(&after), "{name}: {after}");
        assert!(!shows(&before) || *name == "script-instruction-limit", "{name}: {before}");
        let mut reset = redis::cmd("CONFIG");
        reset.arg("SET").arg(name).arg(default_of(name)).exec(&mut admin).expect(name);
        tidy(&mut admin);
    }
}

/// Undoes the effects of the commands of a row.
fn tidy(admin: &mut redis::Connection) {
    for reset in [
        "maxmemory 0",
        "min-replicas-to-write 0",
        "repl-ack none",
        "slowlog-log-slower-than 10000",
        "commandlog-request-larger-than 1048576",
        "commandlog-reply-larger-than 1048576",
    ] {
        assert_eq!(ask(admin, &format!("CONFIG SET {reset}")), "ok");
    }
    assert_eq!(ask(admin, "FLUSHALL"), "ok");
}

/// From `--help`.
fn default_of(name: &str) -> String {
    let start = format!(" * --{name} ");
    let line = HELP.lines().find_map(|line| line.strip_prefix(&start)).expect("its line");
    if line == "\"\"" { String::new() } else { line.to_owned() }
}

fn connection(port: u16, host: &str) -> Option<redis::Connection> {
    let client = redis::Client::open(format!("redis://{host}:{port}/")).expect("an address");
    client.get_connection().ok()
}

/// The port that the server of `admin` listens on from now on. A port that was free a moment ago may
/// belong to another program when the server asks for it, so several are tried.
pub(crate) fn moved_to_a_free_port(admin: &mut redis::Connection) -> u16 {
    const TRIES: usize = 20;
    let mut refused = String::new();
    for port in std::iter::repeat_with(free_port).take(TRIES) {
        refused = ask(admin, &format!("CONFIG SET port {port}"));
        if refused == "ok" {
            return port;
        }
        assert!(refused.contains("Unable to listen on this port"), "{refused}");
    }
    panic!("{TRIES} free ports were refused: {refused}");
}

#[test]
fn other_addresses_are_listened_on_at_once() {
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--shards", "2", "--logfile", "log"]);
        let mut admin = server.client();
        let old = server.port();
        let new = moved_to_a_free_port(&mut admin);
        assert!(connection(old, "127.0.0.1").is_none(), "the old port is open");
        let mut fresh = connection(new, "127.0.0.1").expect("the new port is open");
        assert!(ask(&mut fresh, "INFO server").contains(&format!("tcp_port:{new}\\r\\n")));
        // The connection that was there goes on.
        assert_eq!(ask(&mut admin, "SET k v"), "ok");

        let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let taken = busy.local_addr().expect("its address").port();
        let reply = ask(&mut admin, &format!("CONFIG SET timeout 7 port {taken}"));
        assert!(reply.contains("Unable to listen on this port"), "{reply}");
        assert!(ask(&mut admin, "CONFIG GET port").contains(&new.to_string()));
        assert!(ask(&mut admin, "CONFIG GET timeout").contains("\"0\""), "nothing of it is set");
        assert!(connection(new, "127.0.0.1").is_some(), "the port that was open is open");

        assert!(connection(new, "127.0.0.2").is_none());
        let bind = |hosts: &str, admin: &mut redis::Connection| {
            let reply =
                redis::cmd("CONFIG").arg("SET").arg("bind").arg(hosts).query::<String>(admin);
            reply.map_err(|error| error.to_string())
        };
        assert_eq!(bind("127.0.0.1 127.0.0.2", &mut admin).expect("bound"), "OK");
        assert!(connection(new, "127.0.0.2").is_some() && connection(new, "127.0.0.1").is_some());
        assert!(
            bind("192.0.2.1", &mut admin).expect_err("no address of this machine").contains("bind")
        );
        assert!(connection(new, "127.0.0.2").is_some() && connection(new, "127.0.0.1").is_some());
        assert_eq!(bind("127.0.0.2", &mut admin).expect("bound"), "OK");
        assert!(connection(new, "127.0.0.1").is_none());
        for line in ["port 0", "bind"] {
            let value: Vec<&str> = line.split(' ').collect();
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg(value[0]).arg(value.get(1).copied().unwrap_or(""));
            assert!(set.query::<String>(&mut admin).is_err(), "{line}: nobody could connect");
        }
        let mut last = connection(new, "127.0.0.2").expect("still open");
        assert!(ask(&mut last, "GET k").contains('v'));
    }
}

#[test]
fn the_log_follows_its_level_at_once() {
    let server = Server::start(&["--logfile", "log", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    let mut logs = |level: &str, text: &str| {
        let script = redis::Script::new("redis.log(redis[ARGV[1]], ARGV[2]) return 1");
        let _: i64 = script.arg(level).arg(text).invoke(&mut client).expect("run");
        let log = fs::read_to_string(server.dir().join("log")).expect("the log");
        log.contains(text)
    };
    let mut admin = server.client();
    let mut set = |level: &str| ask(&mut admin, &format!("CONFIG SET loglevel {level}"));
    assert!(!logs("LOG_DEBUG", "one") && logs("LOG_NOTICE", "two"));
    assert_eq!(set("debug"), "ok");
    assert!(logs("LOG_DEBUG", "three"));
    assert_eq!(set("warning"), "ok");
    assert!(!logs("LOG_NOTICE", "four") && logs("LOG_WARNING", "five"));
    assert_eq!(set("nothing"), "ok");
    assert!(!logs("LOG_WARNING", "six"));
    assert_eq!(set("notice"), "ok");
    assert!(logs("LOG_NOTICE", "seven"));
}

#[test]
fn clients_beyond_maxclients_are_refused_at_once() {
    let server = Server::start(&[]);
    let mut admin = server.client();
    assert_eq!(ask(&mut admin, "CONFIG SET maxclients 1"), "ok");
    let refused = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port()));
    let refused = refused.expect("an address").get_connection();
    let refused = refused.and_then(|mut client| redis::cmd("PING").query::<String>(&mut client));
    assert!(refused.is_err());
    assert!(ask(&mut admin, "INFO clients").contains("maxclients:1\\r\\n"));
    // More than the system lets the process have is refused, with a number that it does.
    let reply = ask(&mut admin, "CONFIG SET maxclients 4000000000");
    assert!(reply.contains("not able to handle the specified number of clients"), "{reply}");
    assert!(ask(&mut admin, "CONFIG GET maxclients").contains("\"1\""));
}

#[test]
fn a_silent_client_is_closed_by_the_timeout_of_now() {
    use std::io::Read;
    let server = Server::start(&[]);
    let mut socket = server.socket();
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut admin = server.client();
    assert_eq!(ask(&mut admin, "CONFIG SET timeout 1"), "ok");
    let began = Instant::now();
    assert_eq!(socket.read(&mut [0; 16]).expect("the end"), 0);
    assert!(began.elapsed() < PATIENCE);
}

/// Its command may run, or it may read its reply, for longer than `timeout`.
#[test]
fn the_timeout_closes_nobody_who_waits_for_a_reply_or_reads_it() {
    use std::io::{Read, Write};
    const LONG: usize = 40 << 20;
    // The replies have all the memory that they need.
    let options = ["--maxmemory-clients", "0", "--enable-debug-command", "yes"];
    let server = Server::start(&[&["--workers", "2"], &options[..]].concat());
    let mut admin = server.client();
    let () = redis::cmd("SET").arg("long").arg("v".repeat(LONG)).query(&mut admin).expect("set");
    assert_eq!(ask(&mut admin, "CONFIG SET timeout 2"), "ok");
    let send = |commands: &str| {
        let mut socket = server.socket();
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.write_all(commands.as_bytes()).expect("sent");
        socket
    };
    let mut sleeper = send("DEBUG SLEEP 4\r\n");
    let mut reader = send("GET long\r\n");
    // One that reads nothing of it is idle, also if it is behind its QUIT.
    let idle = send("CLIENT SETNAME idle\r\nGET long\r\nQUIT\r\n");
    let mut left = LONG + format!("${LONG}\r\n\r\n").len();
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        let n = reader.read(&mut piece).expect("more of the reply");
        assert!(n > 0, "it ends {left} bytes too early");
        left -= n;
        // 40 pieces take four seconds.
        std::thread::sleep(Duration::from_micros((n as u64 * 100_000) >> 20));
        ask(&mut admin, "PING");
    }
    let mut reply = [0; 5];
    sleeper.read_exact(&mut reply).expect("the reply");
    assert_eq!(&reply, b"+OK\r\n");
    let deadline = Instant::now() + PATIENCE;
    while ask(&mut admin, "CLIENT LIST").contains(" name=idle ") {
        assert!(Instant::now() < deadline, "the idle one is not closed");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(idle);
}

/// Directives of Redis whose mechanism is absent are taken, and the log says so.
#[test]
fn directives_without_effect_are_named_in_the_log() {
    let server = Server::start(&["--logfile", "log"]);
    let mut admin = server.client();
    assert_eq!(ask(&mut admin, "CONFIG SET hz 50 lazyfree-lazy-user-del no"), "ok");
    let log = fs::read_to_string(server.dir().join("log")).expect("the log");
    for name in ["hz", "lazyfree-lazy-user-del"] {
        let line = format!("CONFIG SET: directive '{name}' has no effect: ");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    assert!(ask(&mut admin, "INFO server").contains("\\r\\nhz:10\\r\\n"), "the pace is what it is");
}

#[test]
fn a_request_for_more_parameters_than_there_are_is_refused() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let mut asked = |count: usize| {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET");
        (0..count).for_each(|_| _ = get.arg("port"));
        get.query::<Vec<String>>(&mut client)
    };
    assert_eq!(asked(1024).expect("answered").len(), 2);
    let refused = asked(1025).expect_err("too many").to_string();
    assert!(refused.contains("at most 1024 parameters"), "{refused}");
}
