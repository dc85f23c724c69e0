//! Several servers of one cluster over a directory that is used like a bucket.

use super::Server;
use super::checkpoints::{done, run};
use super::http::Web;
use redis::cluster::{ClusterClient, ClusterConnection};
use redis::{Commands, Value};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// The cluster's store, and the options of its servers.
pub(crate) struct Cluster {
    pub(crate) bucket: TempDir,
    lease: Duration,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self::with_lease(LEASE)
    }

    /// A lease that is long enough for a busy machine, where no server has to be taken over.
    pub(crate) fn with_lease(lease: Duration) -> Self {
        Self { bucket: tempfile::tempdir().expect("a temporary directory"), lease }
    }

    pub(crate) fn store(&self) -> String {
        format!("bucket+file://{}/data", self.bucket.path().display())
    }

    /// Runs `flagstone cluster` with some words, which must succeed, and returns what it prints.
    pub(crate) fn told(&self, words: &[&str]) -> String {
        done(&[&["cluster"], words, &["--store", &self.store()]].concat())
    }

    /// Runs `flagstone cluster` with some words, which must fail, and returns its status and error.
    pub(crate) fn refused(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = run(&[&["cluster"], words, &["--store", &self.store()]].concat());
        assert!(!output.status.success(), "{words:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn map(&self) -> serde_json::Value {
        serde_json::from_str(&self.told(&["status", "--json"])).expect("JSON")
    }

    /// Returns the options of a server.
    fn options(&self) -> Vec<String> {
        let (store, lease) = (self.store(), self.lease.as_millis().to_string());
        let words =
            ["--cluster-enabled", "yes", "--store", &store, "--shards", "6", "--workers", "2"];
        let words = words.into_iter().chain(["--cluster-lease-ms", &lease]);
        words.map(str::to_owned).collect()
    }

    pub(crate) fn server(&self) -> Server {
        self.server_with(&[])
    }

    /// Starts a server with more options.
    pub(crate) fn server_with(&self, more: &[&str]) -> Server {
        let options = self.options();
        Server::start(&[&options.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())
    }

    /// Starts a server with an HTTP port, and with more options.
    pub(crate) fn web(&self, more: &[&str]) -> Web {
        let options = self.options();
        Web::start(&[&options.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())
    }

    /// Starts some servers, and waits until each serves some slots.
    pub(crate) fn servers(&self, number: usize) -> Vec<Server> {
        let servers: Vec<Server> = (0..number).map(|_| self.server()).collect();
        settle(&servers.iter().collect::<Vec<_>>());
        servers
    }
}

pub(crate) fn asked(server: &Server, words: [&str; 2]) -> String {
    let mut client = server.client();
    match redis::cmd(words[0]).arg(words[1]).query(&mut client) {
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(Value::BulkString(text)) => String::from_utf8(text).expect("a text"),
        other => panic!("{words:?}: {other:?}"),
    }
}

/// Returns the number of slots that each server says are its own.
pub(crate) fn slots_of(server: &Server) -> usize {
    let nodes = asked(server, ["CLUSTER", "NODES"]);
    let myself = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let ranges = myself.split(' ').skip(8).filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
    });
    ranges.sum()
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until these servers share all slots, each about as many.
pub(crate) fn settle(servers: &[&Server]) {
    until("the servers share the slots", || {
        let slots: Vec<usize> = servers.iter().map(|server| slots_of(server)).collect();
        let least = 16384 / 6 * (6 / servers.len());
        slots.iter().sum::<usize>() == 16384 && slots.iter().all(|slots| *slots >= least)
    });
}

/// A client of the cluster, as applications have it.
pub(crate) fn client(servers: &[&Server]) -> ClusterConnection {
    let nodes: Vec<String> =
        servers.iter().map(|server| format!("redis://127.0.0.1:{}/", server.port())).collect();
    let builder = ClusterClient::builder(nodes).retries(60).min_retry_wait(20).max_retry_wait(400);
    builder.build().expect("a client").get_connection().expect("a connection")
}

/// Writes all keys, and lengthens all lists, in the round behind the one before.
pub(crate) fn fill(client: &mut ClusterConnection, round: usize) {
    for n in 0..200 {
        let (key, list) = (format!("key:{n}"), format!("list:{}", n % 20));
        insist(|_| client.set(&key, format!("{n} {round}")));
        let before = 10 * (round - 1) + n / 20;
        insist(|is_first| match is_first || client.llen::<_, usize>(&list)? == before {
            true => client.rpush::<_, _, usize>(&list, n).map(drop),
            false => Ok(()),
        });
    }
}

/// Writes until that is stored: on a busy disk, a server with a short lease does not always know that it is.
/// `write` is told if it is the first time.
fn insist(mut write: impl FnMut(bool) -> redis::RedisResult<()>) {
    let mut done = write(true);
    for _ in 0..100 {
        match done {
            Err(error) if error.code() == Some("MISCONF") => {
                std::thread::sleep(Duration::from_millis(100));
                done = write(false);
            }
            done => return done.expect("stored"),
        }
    }
    done.expect("stored");
}

pub(crate) fn check(client: &mut ClusterConnection, round: usize) {
    for n in 0..200 {
        let value: Option<String> = client.get(format!("key:{n}")).expect("answered");
        assert_eq!(value, Some(format!("{n} {round}")), "key:{n}");
    }
    for n in 0..20 {
        let length: usize = client.llen(format!("list:{n}")).expect("answered");
        assert_eq!(length, 10 * round, "list:{n}");
    }
}

#[test]
fn a_server_of_a_cluster_starts_with_serve_stale_data_and_says_that_it_has_no_effect() {
    let cluster = Cluster::new();
    let server = cluster.server_with(&["--serve-stale-data", "yes"]);
    settle(&[&server]);
    let log = server.log();
    assert!(log.contains("serve-stale-data has no effect in a cluster"), "{log}");
    assert!(asked(&server, ["CLUSTER", "INFO"]).contains("cluster_state:ok\r\n"));
}

#[test]
fn servers_share_the_slots_and_redirect() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    let all: Vec<&Server> = servers.iter().collect();
    fill(&mut client(&all), 1);
    check(&mut client(&[all[1]]), 1);
    let mut moved = 0;
    for server in &servers {
        let mut plain = server.client();
        for n in 0..50 {
            let key = format!("key:{n}");
            match redis::cmd("GET").arg(&key).query::<String>(&mut plain) {
                Ok(value) => assert_eq!(value, format!("{n} 1")),
                Err(error) => {
                    assert_eq!(error.code(), Some("MOVED"), "{error}");
                    moved += 1;
                }
            }
        }
        let keys: usize = redis::cmd("DBSIZE").query(&mut plain).expect("answered");
        assert!(keys > 20 && keys < 220, "{keys}");
        let (_, page): (u64, Vec<String>) =
            redis::cmd("SCAN").arg(0).arg("COUNT").arg(1000).query(&mut plain).expect("answered");
        assert!(page.len() <= keys, "a scan shows the server's own keys");
        let error = redis::cmd("MSET").arg(&["a", "1", "b", "2"]).query::<Value>(&mut plain);
        assert_eq!(error.expect_err("refused").code(), Some("CROSSSLOT"));
        let error =
            redis::cmd("CLUSTER").arg(&["MEET", "127.0.0.1", "1"]).query::<Value>(&mut plain);
        assert!(error.expect_err("refused").to_string().contains("flagstone cluster"));
    }
    assert_eq!(moved, 100, "each key is on one of three servers");
    let ids: Vec<String> = all.iter().map(|server| asked(server, ["CLUSTER", "MYID"])).collect();
    for server in &all {
        let nodes = asked(server, ["CLUSTER", "NODES"]);
        assert!(ids.iter().all(|id| nodes.contains(id.as_str())), "{nodes}");
        assert!(asked(server, ["CLUSTER", "INFO"]).contains("cluster_size:3\r\n"));
    }
}

#[test]
fn others_take_over_from_a_server_that_was_killed() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(3);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    for round in 1..=2 {
        let mut killed = servers.remove(0);
        killed.kill();
        let left: Vec<&Server> = servers.iter().collect();
        settle(&left);
        let mut of_rest = client(&left);
        check(&mut of_rest, round);
        fill(&mut of_rest, round + 1);
        killed.restart();
        servers.push(killed);
        settle(&servers.iter().collect::<Vec<_>>());
        check(&mut client(&servers.iter().collect::<Vec<_>>()), round + 1);
    }
}

#[test]
fn the_shards_of_a_server_that_leaves_go_to_others_and_the_last_one_parks_them() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    let mut leaving = servers.remove(0);
    leaving.stop();
    settle(&[&servers[0]]);
    check(&mut client(&[&servers[0]]), 1);
    servers[0].stop();
    // Nobody serves it now; a server with another id takes all of it back, without a wait.
    let begun = Instant::now();
    let next = cluster.server();
    settle(&[&next]);
    assert!(begun.elapsed() < PATIENCE);
    let mut of_next = client(&[&next]);
    check(&mut of_next, 1);
    fill(&mut of_next, 2);
    leaving.restart();
    settle(&[&next, &leaving]);
    check(&mut client(&[&next, &leaving]), 2);
}

#[test]
fn a_server_that_slept_answers_nothing_of_what_it_has_lost() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    let mut asleep = servers.remove(0);
    let mut held = asleep.client();
    asleep.signal(Signal::STOP);
    settle(&[&servers[0]]);
    fill(&mut client(&[&servers[0]]), 2);
    asleep.signal(Signal::CONT);
    for n in 0..200 {
        match redis::cmd("GET").arg(format!("key:{n}")).query::<String>(&mut held) {
            Ok(value) => panic!("it shows {value}"),
            Err(error) => assert!(error.code() != Some("WRONGTYPE"), "{error}"),
        }
    }
    asleep.reap();
    asleep.restart();
    settle(&[&servers[0], &asleep]);
    check(&mut client(&[&asleep]), 2);
}

#[test]
fn a_single_server_and_its_commands_refuse_the_data_of_a_cluster() {
    let cluster = Cluster::new();
    let mut server = cluster.server();
    settle(&[&server]);
    let store = cluster.store();
    let alone = ["--cluster-enabled", "no", "--store", &store];
    server.stop();
    assert!(server.refused(&alone).contains("is the data of a cluster"));
    let to = cluster.bucket.path().join("to").display().to_string();
    for words in [&["check"][..], &["backup", "--stopped", "--to", &to]] {
        let output = run(&[words, &["--dir", &store]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("is the data of a cluster"), "{words:?}: {error}");
    }
}

/// Returns the shards that the map gives to a server.
pub(crate) fn shards_of(map: &serde_json::Value, id: &str) -> Vec<u16> {
    let members = map["members"].as_array().expect("members").iter();
    let mut open = members.filter(|it| it["node"] == *id && it["state"] == "open");
    let life = &open.next().expect("an open life")["life"];
    let shards = map["shards"].as_array().expect("shards").iter();
    let owned = shards.filter(|shard| shard["owner"] == *life);
    owned.map(|shard| shard["id"].as_u64().expect("a number") as u16).collect()
}

#[test]
fn a_shard_that_a_user_moves_stays_where_it_is() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    let all: Vec<&Server> = servers.iter().collect();
    fill(&mut client(&all), 1);
    let ids: Vec<String> = all.iter().map(|server| asked(server, ["CLUSTER", "MYID"])).collect();
    let status = cluster.told(&["status"]);
    assert!(status.starts_with("all 16384 slots have an owner"), "{status}");
    assert!(ids.iter().all(|id| status.contains(&id[..8]) && !status.contains(id)), "{status}");
    assert!(cluster.told(&["status", "--wide"]).contains(&ids[0]));
    let map = cluster.map();
    assert!(map.get("secret").is_none(), "{map}");
    // One that another server has: the others get one of its former shards in exchange.
    let one = shards_of(&map, &ids[0])[0].to_string();
    let told = cluster.told(&["move", &one, "--to", &ids[1][..8]]);
    assert!(told.starts_with(&format!("shard {one} is at {}", &ids[1][..8])), "{told}");
    settle(&all);
    assert!(shards_of(&cluster.map(), &ids[1]).contains(&one.parse().expect("a number")));
    // All: there is nothing to exchange, and nobody takes any back.
    let address = format!("127.0.0.1:{}", servers[2].port());
    let told = cluster.told(&["move", "0,1,2,3,4,5", "--to", &address]);
    assert_eq!(told.lines().count(), 6, "{told}");
    until("one server has all", || slots_of(&servers[2]) == 16384);
    let number = cluster.map()["number"].clone();
    std::thread::sleep(6 * LEASE);
    let map = cluster.map();
    assert_eq!(shards_of(&map, &ids[2]).len(), 6);
    assert_eq!(map["number"], number, "no server wants a change");
    check(&mut client(&all), 1);
    cluster.told(&["move", "0,1,2,3,4,5", "--unpin"]);
    settle(&all);
    check(&mut client(&all), 1);
    for (words, status, reason) in [
        (&["move", "9", "--to", &address][..], 1, "there is no shard 9"),
        (&["move", "0", "--to", "nobody:1"], 1, "the cluster has no server `nobody:1`"),
        (&["drain", "nobody:1"], 1, "the cluster has no server `nobody:1`"),
        (&["move", "0"], 2, "--to <NODE>"),
    ] {
        let refused = cluster.refused(words);
        assert!(refused.0 == Some(status) && refused.1.contains(reason), "{words:?}: {refused:?}");
    }
}

#[test]
fn all_pins_end_and_the_shards_are_shared_out() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    let all: Vec<&Server> = servers.iter().collect();
    fill(&mut client(&all), 1);
    let told = cluster.told(&["balance"]);
    assert!(told.ends_with("no shard is to move to even them out\n"), "{told}");
    let last = asked(&servers[1], ["CLUSTER", "MYID"]);
    cluster.told(&["move", "0,1,2,3,4,5", "--to", &last]);
    let told = cluster.told(&["balance"]);
    assert!(told.contains("0,1,2,3,4,5; without the pins, to move: 3"), "{told}");
    let told = cluster.told(&["balance", "--unpin"]);
    assert_eq!(told.matches(" is at ").count(), 3, "{told}");
    assert!(told.ends_with("all shards are shared out\n"), "{told}");
    assert_eq!(shards_of(&cluster.map(), &last).len(), 3);
    assert!(cluster.told(&["balance", "--unpin"]).ends_with("all shards are shared out\n"));
    check(&mut client(&all), 1);
    servers.iter_mut().for_each(Server::stop);
    let told = cluster.told(&["balance"]);
    assert!(told.contains("shards that no server has: 6"), "{told}");
    let (status, why) = cluster.refused(&["balance", "--unpin"]);
    assert!(status == Some(1) && why.contains("no server runs"), "{why}");
}

#[test]
fn a_drained_server_goes_on_without_shards_until_it_starts_again() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(3);
    let nothing = run(&["cluster", "status", "--store", "bucket+file:///nowhere/at/all"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("there is no cluster in"));
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    let id = asked(&servers[0], ["CLUSTER", "MYID"]);
    let told = cluster.told(&["drain", &id]);
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(told.ends_with("has no shards, and gets none until it starts again\n"), "{told}");
    assert_eq!(slots_of(&servers[0]), 0);
    assert!(cluster.told(&["status"]).contains("leaving"));
    settle(&[&servers[1], &servers[2]]);
    check(&mut client(&[&servers[0]]), 1);
    let refused = cluster.refused(&["move", "0", "--to", &id]).1;
    assert!(refused.contains("leaves the cluster"), "{refused}");
    cluster.told(&["drain", &format!("127.0.0.1:{}", servers[1].port())]);
    check(&mut client(&[&servers[1]]), 1);
    let refused = cluster.refused(&["drain", &asked(&servers[2], ["CLUSTER", "MYID"])]).1;
    assert!(refused.contains("no other server"), "{refused}");
    servers[0].stop();
    servers[0].restart();
    settle(&[&servers[0], &servers[2]]);
    check(&mut client(&[&servers[0]]), 1);
}

/// A redirection would send the client round in a circle: its keys are here, the other one is there.
#[test]
fn a_script_that_names_a_key_of_another_server_gets_an_error_that_it_may_catch() {
    let cluster = Cluster::new();
    let servers = cluster.servers(2);
    let mut plain = servers[0].client();
    let is_here = |plain: &mut redis::Connection, key: &String| {
        redis::cmd("GET").arg(key).query::<Option<String>>(plain).is_ok()
    };
    let keys: Vec<String> = (0..50).map(|n| format!("key:{n}")).collect();
    let (here, there): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| is_here(&mut plain, key));
    let mut eval = |script: &str, key: Option<&String>| {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(usize::from(key.is_some())).arg(key).arg(&there[0]);
        command.query::<String>(&mut plain).map_err(|error| error.to_string())
    };
    for declared in [None, Some(&here[0])] {
        let error = eval("return redis.call('SET', ARGV[1], 'x')", declared);
        let error = error.expect_err("not here");
        assert!(error.contains("non local key in a cluster node script"), "{error}");
        let caught = eval("redis.pcall('SET', ARGV[1], 'x') return 'caught'", declared);
        assert_eq!(caught.as_deref(), Ok("caught"));
    }
    let error = eval("return redis.call('SET', KEYS[1], 'x')", Some(&there[0]));
    let error = error.expect_err("not here");
    assert!(error.to_uppercase().contains("MOVED"), "{error}");
}

#[test]
fn checkpoints_are_refused_where_no_server_has_all_the_data() {
    let cluster = Cluster::new();
    let servers = cluster.servers(1);
    let mut plain = servers[0].client();
    for words in [&["BGSAVE"][..], &["SAVE"], &["BGREWRITEAOF"], &["FLAGSTONE", "CHECKPOINT"]] {
        let refused = redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut plain);
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("do not work in a cluster"), "{words:?}: {error}");
    }
    let store = cluster.store();
    let copy = format!("{store}-copy");
    for words in [
        &["checkpoints", "--dir", &store][..],
        &["backup", "--dir", &store, "--to", &copy],
        &["branch", "--dir", &store, "--to", &copy],
    ] {
        let output = run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.contains("is the data of a cluster"), "{words:?}: {error}");
    }
}

/// There is something new to flush at each look.
#[test]
fn a_shard_that_is_written_to_all_the_time_moves() {
    let cluster = Cluster::new();
    let servers = cluster.servers(2);
    let all: Vec<&Server> = servers.iter().collect();
    let (mut writing, mut reading) = (client(&all), client(&all));
    let ended = std::sync::atomic::AtomicBool::new(false);
    let key = "counter";
    let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u64>(&mut all[0].client());
    let shard = (slot.expect("a slot") * 6 / 16384).to_string();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                number = writing.incr::<_, _, u64>(key, 1).expect("answered");
                std::thread::sleep(Duration::from_millis(2));
            }
            number
        });
        for server in [all[0], all[1], all[0]] {
            let (begun, to) = (Instant::now(), format!("127.0.0.1:{}", server.port()));
            cluster.told(&["move", &shard, "--to", &to]);
            // A shard that cannot be flushed ahead is given away all the same after ten seconds.
            assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        let number = writer.join().expect("it went on");
        assert_eq!(reading.get::<_, u64>(key).expect("a number"), number);
    });
}

/// A server that leaves flushes its shards, and its clients write to them up to then.
#[test]
fn a_server_that_leaves_under_load_gives_all_its_shards_away() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    let mut leaving = servers.remove(0);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let given = |server: &Server| server.log().matches("gave a shard away").count();
    let before = given(&leaving);
    let mut writing = client(&[&servers[0], &leaving]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..30).cycle() {
                if ended.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                // On a busy machine the store may be late: that is refused.
                let _ = writing.incr::<_, _, u64>(format!("counter:{n}"), 1);
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        leaving.stop();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(given(&leaving) - before, 3, "nobody takes them over: {}", leaving.log());
}

/// Clients have a limit of redirections, and a shard that moves must not cost more than a few.
#[test]
fn clients_are_not_sent_to_and_fro_while_shards_move() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    let ports: Vec<u16> = servers.iter().map(Server::port).collect();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let follow = |most: &mut usize| {
        let mut links: BTreeMap<u16, redis::Connection> = BTreeMap::new();
        let mut at = ports[0];
        let mut number = 0;
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            number += 1;
            let key = format!("key:{}", number % 60);
            let mut sent = 0;
            while sent < 1000 {
                let link = match links.entry(at) {
                    std::collections::btree_map::Entry::Occupied(link) => link.into_mut(),
                    std::collections::btree_map::Entry::Vacant(place) => {
                        let url = format!("redis://127.0.0.1:{at}/");
                        let client = redis::Client::open(url).expect("an address");
                        let Ok(link) = client.get_connection() else {
                            // The server that has left.
                            at = ports[0];
                            break;
                        };
                        place.insert(link)
                    }
                };
                match link.set::<_, _, ()>(&key, number) {
                    Ok(()) => break,
                    Err(error) if error.code() == Some("MOVED") => {
                        sent += 1;
                        let to = error.redirect_node().expect("an address").0;
                        at = to.rsplit(':').next().expect("a port").parse().expect("a port");
                    }
                    Err(_) => {
                        links.remove(&at);
                        at = ports[0];
                    }
                }
            }
            *most = (*most).max(sent);
        }
    };
    let mut most = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| follow(&mut most));
        for to in [0, 1, 0, 1] {
            let to = format!("127.0.0.1:{}", ports[to]);
            cluster.told(&["move", "0,1,2,3,4,5", "--to", &to]);
        }
        cluster.told(&["move", "0,1,2,3,4,5", "--unpin"]);
        servers.pop().expect("the second one").stop();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(most > 0 && most <= 6, "{most} redirections of one command");
}

/// The others of its group are intact.
#[test]
fn a_damaged_shard_keeps_no_other_one_from_being_served() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    let mut lost = servers.remove(0);
    let of_lost = shards_of(&cluster.map(), &asked(&lost, ["CLUSTER", "MYID"]));
    lost.kill();
    let shard = cluster.bucket.path().join(format!("data/shard-{}", of_lost[0]));
    std::fs::rename(&shard, shard.with_extension("away")).expect("renamed");
    let served = || {
        let info = asked(&servers[0], ["INFO", "everything"]);
        let line = info.lines().find(|line| line.starts_with("cluster_shards_served:"));
        line.expect("their number")["cluster_shards_served:".len()..].parse::<usize>()
    };
    until("all others are served", || served() == Ok(5));
    std::fs::rename(shard.with_extension("away"), &shard).expect("renamed");
    until("all are served", || served() == Ok(6));
    check(&mut client(&[&servers[0]]), 1);
}

#[test]
fn others_follow_a_server_to_another_port() {
    let cluster = Cluster::new();
    let servers = cluster.servers(2);
    let mut plain = servers[0].client();
    let port = super::config::moved_to_a_free_port(&mut plain);
    let address = format!("127.0.0.1:{port}@");
    for server in [&mut plain, &mut servers[1].client()] {
        until("the new address is known", || {
            redis::cmd("CLUSTER")
                .arg("NODES")
                .query::<String>(server)
                .expect("shown")
                .contains(&address)
        });
    }
    let answers =
        || asked(&servers[1], ["INFO", "everything"]).contains("cluster_servers_silent:0\r\n");
    until("it answers there", answers);
    std::thread::sleep(4 * LEASE);
    assert!(answers(), "nobody was taken over");
}
