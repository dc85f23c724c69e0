//! Replicas in a cluster: servers that own nothing, and show the shards of all others from the bucket.

use super::Server;
use super::checkpoints::run;
use super::pubsub::Raw;
use super::servers::{Cluster, LEASE, asked, slots_of, until};
use redis::cluster::ClusterClient;
use redis::{Commands, Connection, Value, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A lease with which a busy machine takes no server for dead.
const QUIET: Duration = Duration::from_secs(3);

impl Cluster {
    pub(crate) fn replica(&self) -> Server {
        self.replica_with(&[])
    }

    fn replica_with(&self, more: &[&str]) -> Server {
        let store = self.store();
        let words = ["--cluster-enabled", "yes", "--cluster-replica", "yes", "--store", &store];
        Server::start(&[&words[..], &["--workers", "2"], more].concat())
    }

    fn client(&self, servers: &[Server]) -> redis::cluster::ClusterConnection {
        let nodes: Vec<String> =
            servers.iter().map(|it| format!("redis://127.0.0.1:{}", it.port())).collect();
        ClusterClient::new(nodes).expect("addresses").get_connection().expect("a cluster")
    }
}

/// Returns a connection that may read, once all shards are shown.
pub(crate) fn reader(replica: &Server) -> Connection {
    until("all shards are shown", || {
        let info = asked(replica, ["INFO", "everything"]);
        info.contains("cluster_replica_shards:6\r\n") && !info.contains("cluster_replica_lag_ms:-1")
    });
    let mut client = replica.client();
    cmd("READONLY").exec(&mut client).expect("a reader");
    client
}

fn field(replica: &Server, name: &str) -> i64 {
    let info = asked(replica, ["INFO", "everything"]);
    let found = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    found.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name}: {info}"))
}

/// Waits until a reader sees a value.
fn sees(client: &mut Connection, key: &str, value: &str) {
    until("the replica has it", || {
        let found: Result<Option<String>, _> = client.get(key);
        found.is_ok_and(|found| found.as_deref() == Some(value))
    });
}

fn error(client: &mut Connection, words: &[&str]) -> String {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    let error = command.query::<Value>(client).expect_err("it is refused");
    error.code().unwrap_or_default().to_owned()
}

#[test]
fn a_replica_shows_what_the_others_have_and_nothing_else() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(2);
    let replica = cluster.replica();
    let mut writer = cluster.client(&servers);
    let mut client = reader(&replica);
    for n in 0..300 {
        let _: () = writer.set(format!("key{n}"), n).expect("written");
    }
    let _: () = writer.hset_multiple("hash", &[("a", 1), ("b", 2)]).expect("written");
    for n in 0..300 {
        sees(&mut client, &format!("key{n}"), &n.to_string());
    }
    until("the hash is there", || client.hlen::<_, usize>("hash").is_ok_and(|len| len == 2));
    // A value in memory changes, is deleted, and comes back with another type.
    let _: () = writer.hset("hash", "a", 7).expect("written");
    until("the field has changed", || {
        client.hget::<_, _, i64>("hash", "a").is_ok_and(|it| it == 7)
    });
    let _: () = writer.del("key7").expect("deleted");
    until("it is gone", || client.exists::<_, bool>("key7").is_ok_and(|it| !it));
    let _: () = writer.rpush("key7", &["x", "y"]).expect("written");
    until("it is a list", || client.llen::<_, usize>("key7").is_ok_and(|len| len == 2));
    let transaction: Vec<Value> = redis::pipe()
        .atomic()
        .get("{key8}")
        .get("{key8}x")
        .query(&mut client)
        .expect("a transaction");
    assert_eq!(transaction.len(), 2);
    // Nothing is written here, and nothing is read without READONLY.
    assert_eq!(error(&mut client, &["SET", "key1", "x"]), "MOVED");
    assert_eq!(
        error(&mut client, &["EVAL", "return redis.call('GET', KEYS[1])", "1", "key1"]),
        "MOVED"
    );
    cmd("CONFIG").arg("SET").arg("replica-read-only").arg("no").exec(&mut client).expect("set");
    assert_eq!(error(&mut client, &["FLUSHALL"]), "READONLY");
    assert_eq!(error(&mut client, &["FUNCTION", "FLUSH"]), "READONLY");
    let _: () = writer.pfadd("sketch", &["a", "b", "c"]).expect("added");
    until("the sketch is there", || client.pfcount::<_, i64>("sketch").is_ok_and(|it| it == 3));
    let mut other = replica.client();
    assert_eq!(error(&mut other, &["GET", "key1"]), "MOVED");
    // Clients of a cluster find it, and see that it has data.
    assert!(field(&replica, "slave_repl_offset") > 0 && field(&replica, "master_repl_offset") > 0);
    let id = asked(&replica, ["CLUSTER", "MYID"]);
    let nodes = asked(&servers[0], ["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.starts_with(&id)).expect("it is known");
    assert!(line.contains(" slave ") && slots_of(&replica) == 0, "{line}");
    let slots: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query(&mut other).expect("slots");
    assert!(slots.iter().all(|range| range.len() == 4), "an owner and a replica each");
    let role: Vec<Value> = cmd("ROLE").query(&mut other).expect("a role");
    assert_eq!(role[0], Value::BulkString(b"slave".to_vec()));
    assert!(cluster.refused(&["move", "0", "--to", &id]).1.contains("is a replica"));
}

#[test]
fn wait_counts_the_replicas_that_show_the_write() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let mut writer = servers[0].client();
    let waits = |writer: &mut Connection, replicas: usize, timeout_ms: usize| {
        cmd("WAIT").arg(replicas).arg(timeout_ms).query::<usize>(writer).expect("a number")
    };
    let _: () = writer.set("key", 0).expect("written");
    assert_eq!(waits(&mut writer, 1, 50), 0);
    let (first, mut second) = (cluster.replica(), cluster.replica());
    let mut clients = [reader(&first), reader(&second)];
    for n in 1..40 {
        let _: () = writer.set("key", n).expect("written");
        assert_eq!(waits(&mut writer, 2, 30_000), 2);
        for client in &mut clients {
            assert_eq!(client.get::<_, i64>("key").expect("read"), n);
        }
    }
    let aof: Vec<i64> =
        cmd("WAITAOF").arg(1).arg(2).arg(30_000).query(&mut writer).expect("numbers");
    assert_eq!(aof, [1, 2]);
    // One that does not answer does not count, and one that has ended is forgotten.
    second.kill();
    let _: () = writer.set("key", 100).expect("written");
    assert_eq!(waits(&mut writer, 2, 300), 1);
    assert_eq!(clients[0].get::<_, i64>("key").expect("read"), 100);
    let refused = cmd("WAIT").arg(0).arg(1).query::<i64>(&mut clients[0]);
    assert!(refused.is_err(), "a replica has no replicas");
}

#[test]
fn wait_on_a_server_without_shards_counts_the_replicas_that_show_what_it_has_given_away() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(2);
    let replica = cluster.replica();
    let mut client = reader(&replica);
    let mut writer = servers[0].client();
    let keys = (0..100).map(|n| format!("key{n}"));
    let own = keys.into_iter().find(|key| writer.set::<_, _, ()>(key, 1).is_ok());
    let own = own.expect("a key of its own");
    cluster.told(&["drain", &asked(&servers[0], ["CLUSTER", "MYID"])]);
    until("it has given all its shards away", || slots_of(&servers[0]) == 0);
    let waited: usize = cmd("WAIT").arg(1).arg(30_000).query(&mut writer).expect("a number");
    assert_eq!(waited, 1);
    assert_eq!(client.get::<_, i64>(&own).expect("shown"), 1);
    let aof: Vec<i64> =
        cmd("WAITAOF").arg(1).arg(1).arg(30_000).query(&mut writer).expect("numbers");
    assert_eq!(aof, [1, 1]);
}

#[test]
fn a_replica_goes_on_beyond_its_room_for_records() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let replica = cluster.replica_with(&["--memory-budget", "64mb"]);
    let mut writer = servers[0].client();
    let mut client = reader(&replica);
    // More than what a replica of this size may have in memory, and the owner need not flush.
    for n in 0..240 {
        let _: () = writer.set(format!("big{n}"), vec![b'x'; 100_000]).expect("written");
    }
    let _: () = writer.set("last", "1").expect("written");
    sees(&mut client, "last", "1");
    for n in 0..240 {
        assert_eq!(client.strlen::<_, usize>(format!("big{n}")).expect("read"), 100_000);
    }
    let _: () = writer.set("last", "2").expect("written");
    sees(&mut client, "last", "2");
}

#[test]
fn times_generations_and_waiters_follow() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(2);
    let replica = cluster.replica();
    let mut writer = cluster.client(&servers);
    let mut client = reader(&replica);
    let _: () = writer.pset_ex("short", "v", 5000).expect("written");
    let _: () = writer.set("long", "v").expect("written");
    sees(&mut client, "short", "v");
    sees(&mut client, "long", "v");
    until("its time is over", || client.exists::<_, bool>("short").is_ok_and(|it| !it));
    // A watched key, a tracked one, and a stream that somebody waits for.
    cmd("WATCH").arg("long").exec(&mut client).expect("watched");
    let mut waiting = Raw::connect(&replica);
    waiting.expect("READONLY", "+OK");
    waiting.send("XREAD BLOCK 0 STREAMS stream 0\r\n");
    std::thread::sleep(Duration::from_millis(100));
    let _: String = writer.xadd("stream", "5-1", &[("f", "v")]).expect("added");
    waiting.hear("*1 *2 $6 stream *1 *2 $3 5-1 *2 $1 f $1 v");
    let _: () = writer.set("long", "w").expect("written");
    let mut other = reader(&replica);
    sees(&mut other, "long", "w");
    cmd("MULTI").exec(&mut client).expect("begun");
    cmd("GET").arg("long").exec(&mut client).expect("queued");
    assert_eq!(cmd("EXEC").query::<Value>(&mut client).expect("an answer"), Value::Nil);
    let _: () = cmd("FLUSHALL").query(&mut writer).expect("emptied");
    until("nothing is left", || {
        client.dbsize_of() == 0 && !client.exists::<_, bool>("long").unwrap_or(true)
    });
    let _: () = writer.set("long", "x").expect("written");
    sees(&mut client, "long", "x");
}

trait DbSize {
    fn dbsize_of(&mut self) -> usize;
}

impl DbSize for Connection {
    fn dbsize_of(&mut self) -> usize {
        cmd("DBSIZE").query(self).expect("a number")
    }
}

/// Ends threads that look at a flag.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writers raise numbers while servers are moved, killed and started; a reader on the replica checks that
/// none goes back, and that what was acknowledged before the stated lag is there.
#[test]
fn reads_never_go_back_and_the_lag_is_never_understated() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(3);
    let replica = cluster.replica();
    let mut client = reader(&replica);
    let mut writer = cluster.client(&servers);
    let stop = AtomicBool::new(false);
    // Acknowledged numbers with the time of the acknowledgement, by key.
    let acknowledged: Vec<std::sync::Mutex<Vec<(Instant, i64)>>> =
        (0..12).map(|_| std::sync::Mutex::default()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                for (key, log) in acknowledged.iter().enumerate() {
                    if writer.set::<_, _, ()>(format!("n{key}"), n).is_ok() {
                        log.lock().expect("a log").push((Instant::now(), n));
                    }
                }
            }
        });
        scope.spawn(|| {
            let mut seen = vec![0; acknowledged.len()];
            while !stop.load(Ordering::Relaxed) {
                for (key, log) in acknowledged.iter().enumerate() {
                    let asked_at = Instant::now();
                    let lag = field(&replica, "cluster_replica_lag_ms");
                    let Ok(found) = client.get::<_, Option<i64>>(format!("n{key}")) else {
                        continue;
                    };
                    let found = found.unwrap_or(0);
                    assert!(found >= seen[key], "key {key}: {} then {found}", seen[key]);
                    seen[key] = found;
                    let Ok(lag) = u64::try_from(lag) else { continue };
                    let before = asked_at.checked_sub(Duration::from_millis(lag + 1));
                    let log = log.lock().expect("a log");
                    let known = log.iter().rev().find(|(at, _)| Some(*at) <= before);
                    let least = known.map_or(0, |(_, n)| *n);
                    assert!(
                        found >= least,
                        "key {key}: {found} with a lag of {lag} ms, not {least}"
                    );
                }
            }
        });
        // The others end with it, whatever happens.
        let _stopping = StopOnDrop(&stop);
        for round in 0..2 {
            let id = asked(&servers[1], ["CLUSTER", "MYID"]);
            cluster.told(&["move", &round.to_string(), "--to", &id]);
            servers[2].kill();
            std::thread::sleep(LEASE * 6);
            servers[2].restart();
            until("it serves again", || slots_of(&servers[2]) > 0);
        }
        std::thread::sleep(LEASE);
    });
    for (key, log) in acknowledged.iter().enumerate() {
        let last = log.lock().expect("a log").last().map_or(0, |(_, n)| *n);
        until("the replica has the last number", || {
            client.get::<_, Option<i64>>(format!("n{key}")).is_ok_and(|it| it.unwrap_or(0) >= last)
        });
    }
}

#[test]
fn a_replica_comes_and_goes_and_a_server_of_single_data_is_none() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let mut writer = servers[0].client();
    let _: () = writer.set("key", "v").expect("written");
    let mut replica = cluster.replica();
    sees(&mut reader(&replica), "key", "v");
    replica.stop();
    replica.restart();
    sees(&mut reader(&replica), "key", "v");
    replica.kill();
    let id = |replica: &Server| asked(replica, ["CLUSTER", "MYID"]);
    replica.restart();
    let mut client = reader(&replica);
    sees(&mut client, "key", "v");
    let _: () = writer.set("key", "w").expect("written");
    sees(&mut client, "key", "w");
    let known = id(&replica);
    replica.kill();
    let mut other = servers[0].client();
    until("clients are not told of it", || {
        let slots: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query(&mut other).expect("slots");
        slots.iter().all(|range| range.len() == 3)
    });
    let nodes = asked(&servers[0], ["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.starts_with(&known)).expect("it may come back");
    assert!(line.contains("disconnected"), "{line}");
    assert_eq!(slots_of(&servers[0]), 16_384);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (path, words) = (dir.path().display().to_string(), ["--cluster-enabled", "yes"]);
    let socket = format!("{path}/socket");
    let more = ["--cluster-replica", "yes", "--port", "0", "--unixsocket", &socket, "--dir", &path];
    let alone = run(&[&words[..], &more].concat());
    assert!(!alone.status.success());
    let said = [alone.stdout, alone.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("cluster-replica"));
}
