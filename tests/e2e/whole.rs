//! Commands on all keys of a server of a cluster, while it does not serve all shards that are its own.

use super::Server;
use super::checkpoints::run;
use super::servers::{Cluster, asked, client, settle, until};
use super::tracking::Keeper;
use redis::{Commands, Connection, RedisResult, Value, cmd, pipe};
use std::time::{Duration, Instant};

const KEYS: usize = 60;

/// Long enough that a busy machine does not count as a store that is away.
const LEASE: Duration = Duration::from_millis(1000);

/// Starts a server of a cluster.
fn server(cluster: &Cluster) -> Server {
    let (store, lease) = (cluster.store(), LEASE.as_millis().to_string());
    let place = ["--cluster-enabled", "yes", "--store", &store, "--cluster-lease-ms", &lease];
    Server::start(&[&place[..], &["--shards", "6", "--workers", "2"]].concat())
}

fn two_servers(cluster: &Cluster) -> Vec<Server> {
    let servers = vec![server(cluster), server(cluster)];
    settle(&servers.iter().collect::<Vec<_>>());
    servers
}

fn ask(client: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

fn number(client: &mut Connection, words: &[&str]) -> i64 {
    match ask(client, words) {
        Ok(Value::Int(number)) => number,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// Stores some keys, one of which is `key`.
fn fill(server: &Server) {
    let mut client = server.client();
    let mut stored = pipe();
    stored.set("key", 0).ignore();
    (1..KEYS).for_each(|n| _ = stored.set(format!("key:{n}"), n).ignore());
    let () = stored.query(&mut client).expect("stored");
}

/// Stores some keys in a cluster.
fn fill_all(servers: &[&Server], keys: usize) {
    let mut client = client(servers);
    for n in 0..keys {
        let () = client.set(format!("key:{n}"), n).expect("stored");
    }
}

/// Kills a server and starts it again, so that it owns shards of its former life that it does not serve.
fn restarted(server: &mut Server) -> Connection {
    server.kill();
    server.restart();
    server.client()
}

/// Returns a field of INFO.
fn info(server: &Server, field: &str) -> usize {
    let all = asked(server, ["INFO", "everything"]);
    let line = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("a field").parse().expect("a number")
}

#[test]
fn looks_at_all_keys_wait_for_the_shards_of_a_server_that_has_just_started() {
    let cluster = Cluster::new();
    let mut server = server(&cluster);
    settle(&[&server]);
    fill(&server);
    let slot = number(&mut server.client(), &["CLUSTER", "KEYSLOT", "key"]).to_string();
    type Check<'a> = &'a dyn Fn(&mut Connection);
    let is_all = |words: &[&str], client: &mut Connection| {
        assert_eq!(number(client, words), KEYS as i64, "{words:?}");
    };
    let keys = |reply: &Value| reply.as_sequence().map_or(0, <[Value]>::len);
    let checks: [Check<'_>; 10] = [
        &|client| is_all(&["DBSIZE"], client),
        &|client| is_all(&["EVAL", "return redis.call('dbsize')", "0"], client),
        &|client| is_all(&["EVAL", "return #redis.call('keys', '*')", "0"], client),
        &|client| {
            let sizes: (i64, i64) =
                pipe().atomic().cmd("DBSIZE").cmd("DBSIZE").query(client).expect("sizes");
            assert_eq!(sizes, (KEYS as i64, KEYS as i64));
        },
        &|client| assert_eq!(keys(&ask(client, &["KEYS", "*"]).expect("keys")), KEYS),
        &|client| {
            let page = ask(client, &["SCAN", "0", "COUNT", "1000"]).expect("a page");
            assert_eq!(keys(&page.as_sequence().expect("two")[1]), KEYS);
        },
        &|client| assert_ne!(ask(client, &["RANDOMKEY"]).expect("a key"), Value::Nil),
        &|client| assert_eq!(number(client, &["CLUSTER", "COUNTKEYSINSLOT", &slot]), 1),
        &|client| {
            let words = ["CLUSTER", "GETKEYSINSLOT", &slot, "5"];
            assert_eq!(keys(&ask(client, &words).expect("keys")), 1);
        },
        &|client| {
            let words = ["CLUSTER", "SLOT-STATS", "SLOTSRANGE", &slot, &slot];
            let stats = format!("{:?}", ask(client, &words).expect("slots"));
            assert!(stats.contains("int(1)"), "{stats}");
        },
    ];
    for check in checks {
        check(&mut restarted(&mut server));
    }
    restarted(&mut server);
    let (file, port) = (server.dir().join("all.rdb"), server.port().to_string());
    let output = run(&["export", &file.display().to_string(), "-p", &port]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with(&format!("{KEYS} keys written")), "{said}{output:?}");
}

#[test]
fn a_flush_is_one_of_all_shards_that_are_the_servers_own() {
    let cluster = Cluster::new();
    let mut server = server(&cluster);
    settle(&[&server]);
    for words in
        [&["FLUSHALL"][..], &["FLUSHDB", "ASYNC"], &["EVAL", "return redis.call('flushall')", "0"]]
    {
        fill(&server);
        let mut client = restarted(&mut server);
        assert_eq!(ask(&mut client, words).expect("flushed"), Value::Okay, "{words:?}");
        settle(&[&server]);
        assert_eq!(number(&mut client, &["DBSIZE"]), 0, "{words:?}");
    }
    fill(&server);
    let mut client = restarted(&mut server);
    let () = pipe().atomic().cmd("FLUSHALL").query(&mut client).expect("flushed");
    assert_eq!(number(&mut client, &["DBSIZE"]), 0);
    // A last one that leaves in order parks its shards.
    fill(&server);
    server.stop();
    server.restart();
    let mut client = server.client();
    assert_eq!(ask(&mut client, &["FLUSHALL"]).expect("flushed"), Value::Okay);
    settle(&[&server]);
    assert_eq!(number(&mut client, &["DBSIZE"]), 0);
}

#[test]
fn a_survivor_flushes_what_it_takes_over_as_well() {
    let cluster = Cluster::new();
    let mut servers = two_servers(&cluster);
    fill_all(&servers.iter().collect::<Vec<_>>(), KEYS);
    servers.remove(0).kill();
    until("it owns all shards", || info(&servers[0], "cluster_shards_owned") == 6);
    let mut client = servers[0].client();
    assert_eq!(ask(&mut client, &["FLUSHALL"]).expect("flushed"), Value::Okay);
    settle(&[&servers[0]]);
    assert_eq!(number(&mut client, &["DBSIZE"]), 0);
}

/// Shards go to the server that is flushed first, so none may be on its way there when it says that it has
/// flushed all of its own.
#[test]
fn no_shard_that_moves_escapes_the_flushes_of_both_servers() {
    let cluster = Cluster::new();
    let servers = two_servers(&cluster);
    let all: Vec<&Server> = servers.iter().collect();
    for to in [0, 1, 0] {
        fill_all(&all, 100);
        let address = format!("127.0.0.1:{}", servers[to].port());
        std::thread::scope(|scope| {
            scope.spawn(|| cluster.told(&["move", "0,1,2,3,4,5", "--to", &address]));
            let number_of = || cluster.map()["number"].as_u64().expect("a number");
            let before = number_of();
            until("the moves are asked for", || number_of() > before);
            for server in [&servers[to], &servers[1 - to]] {
                let mut client = server.client();
                // Moves may take longer than a command waits.
                until("it is flushed", || match ask(&mut client, &["FLUSHALL"]) {
                    Ok(reply) => reply == Value::Okay,
                    Err(error) => {
                        assert_eq!(error.code(), Some("TRYAGAIN"), "{error}");
                        false
                    }
                });
            }
        });
        let left = all.iter().map(|server| number(&mut server.client(), &["DBSIZE"]));
        assert_eq!(left.sum::<i64>(), 0);
    }
}

#[test]
fn a_shard_that_cannot_be_served_is_not_passed_over() {
    let cluster = Cluster::new();
    let mut server = server(&cluster);
    settle(&[&server]);
    fill(&server);
    // Before that, its files are made anew, and its journal has everything.
    until("the files of all shards count", || {
        let map = cluster.map();
        map["shards"].as_array().expect("shards").iter().all(|it| it["is_begun"] == true)
    });
    server.kill();
    let shard = cluster.bucket.path().join("data/shard-2");
    let away = shard.with_extension("away");
    std::fs::rename(&shard, &away).expect("renamed");
    server.restart();
    until("all others are served", || info(&server, "cluster_shards_served") == 5);
    let mut client = server.client();
    for words in [&["DBSIZE"][..], &["FLUSHALL"], &["EVAL", "return redis.call('dbsize')", "0"]] {
        let begun = Instant::now();
        let error = ask(&mut client, words).expect_err("a shard is missing");
        let is_late = error.code() == Some("TRYAGAIN") || error.to_string().contains("TRYAGAIN");
        assert!(is_late, "{words:?}: {error}");
        assert!(begun.elapsed() >= Duration::from_secs(4), "{words:?}: it waits");
    }
    let (file, port) = (server.dir().join("all.rdb"), server.port().to_string());
    let output = run(&["export", &file.display().to_string(), "-p", &port]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!file.exists());
    std::fs::rename(&away, &shard).expect("renamed");
    settle(&[&server]);
    assert_eq!(number(&mut client, &["DBSIZE"]), KEYS as i64);
}

#[test]
fn clients_that_track_prefixes_forget_all_when_a_shard_leaves() {
    let cluster = Cluster::new();
    let servers = two_servers(&cluster);
    let mut keepers: Vec<Keeper> =
        servers.iter().map(|server| Keeper::new(server, &["BCAST"])).collect();
    std::thread::sleep(LEASE);
    for keeper in &mut keepers {
        keeper.ping();
        assert!(keeper.hear().is_empty());
    }
    let address = format!("127.0.0.1:{}", servers[0].port());
    cluster.told(&["move", "0,1,2,3,4,5", "--to", &address]);
    assert_eq!(keepers[1].wait_told(3), ["*", "*", "*"], "one for each shard");
    keepers[0].ping();
    assert!(keepers[0].hear().is_empty(), "what has come was never read here");
}
