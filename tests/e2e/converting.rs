//! The data of a single server becomes that of a cluster, by the command.

use super::Server;
use super::checkpoints::run;
use super::servers::{Cluster, LEASE, client, settle, until};
use redis::cluster::ClusterConnection;
use redis::{Commands, ConnectionLike, FromRedisValue, cmd, pipe};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;

const FLAT: usize = 300;
const BIG: usize = 20_000;

impl Cluster {
    /// Starts a single server on the store.
    fn single(&self) -> Server {
        Server::start(&["--store", &self.store(), "--shards", "6", "--workers", "2"])
    }

    fn convert(&self) -> String {
        self.told(&["convert", "--lease", &LEASE.as_millis().to_string()])
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(self.store().trim_start_matches("bucket+file://")).join(name)
    }
}

fn asked<T: FromRedisValue>(client: &mut impl ConnectionLike, words: &[&str]) -> T {
    cmd(words[0])
        .arg(&words[1..])
        .query(client)
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Fills a server with values of all types, small and large, after there was other data.
fn fill(server: &Server) {
    let client = &mut server.client();
    for n in 0..200 {
        let () = client.set(format!("old:{n}"), n).expect("stored");
    }
    let () = asked(client, &["FLUSHALL"]);
    let mut stored = pipe();
    for n in 0..FLAT {
        stored.set(format!("s{n}"), n).ignore();
        stored.hset(format!("h{}", n % 20), n, "x").ignore();
        stored.rpush(format!("l{}", n % 20), n).ignore();
        stored.sadd(format!("t{}", n % 20), n).ignore();
        stored.zadd(format!("z{}", n % 20), n, n).ignore();
        stored.xadd(format!("x{}", n % 20), format!("{}-1", n + 1), &[("n", n)]).ignore();
    }
    for n in 0..BIG {
        stored.hset("big", n, "value").ignore();
    }
    stored.set("long", "y".repeat(1 << 20)).ignore();
    stored.pset_ex("ends", "x", 100_000_000).ignore();
    stored.pset_ex("ended", "x", 1).ignore();
    stored.del("s299").ignore();
    let () = stored.query(client).expect("stored");
}

/// Checks what `fill` has stored.
fn check(client: &mut ClusterConnection) {
    for n in 0..FLAT - 1 {
        assert_eq!(asked::<usize>(client, &["GET", &format!("s{n}")]), n);
    }
    for n in 0..20 {
        for (length, name) in
            [("HLEN", "h"), ("LLEN", "l"), ("SCARD", "t"), ("ZCARD", "z"), ("XLEN", "x")]
        {
            let key = format!("{name}{n}");
            assert_eq!(asked::<usize>(client, &[length, &key]), FLAT / 20, "{key}");
        }
        let list: Vec<usize> = asked(client, &["LRANGE", &format!("l{n}"), "0", "-1"]);
        assert!(list.into_iter().eq((n..FLAT).step_by(20)));
    }
    assert_eq!(asked::<usize>(client, &["HLEN", "big"]), BIG);
    assert_eq!(asked::<String>(client, &["HGET", "big", "17777"]), "value");
    assert_eq!(asked::<usize>(client, &["STRLEN", "long"]), 1 << 20);
    let left: u64 = asked(client, &["PTTL", "ends"]);
    assert!((90_000_000..=100_000_000).contains(&left), "{left}");
    for gone in ["s299", "ended", "old:0"] {
        assert_eq!(asked::<usize>(client, &["EXISTS", gone]), 0, "{gone}");
    }
}

/// Returns the number of keys of all servers.
fn size(servers: &[&Server]) -> usize {
    servers.iter().map(|server| asked::<usize>(&mut server.client(), &["DBSIZE"])).sum()
}

#[test]
fn a_cluster_has_all_that_the_single_server_had_and_loses_nothing_of_it() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    fill(&single);
    single.stop();
    single.restart();
    // Some keys are in memory, others are not, and the journal has a tail.
    let mut before = single.client();
    let () = before.set("s1", 1).expect("stored");
    let () = before.set("tail", "x").expect("stored");
    until("the key with an end is gone", || asked::<usize>(&mut before, &["EXISTS", "ended"]) == 0);
    let keys: usize = asked(&mut before, &["DBSIZE"]);
    single.kill();
    let would = cluster.told(&["convert", "--check"]);
    assert!(would.contains("can be converted") && would.contains("6 shards"), "{would}");
    let told = cluster.convert();
    assert!(told.contains(&format!("is a cluster's now: {keys} keys, 6 shards")), "{told}");
    assert!(single.refused(&["--store", &cluster.store()]).contains("is the data of a cluster"));
    for words in [&["convert"][..], &["convert", "--check"]] {
        let (status, error) = cluster.refused(words);
        assert_eq!(status, Some(1));
        assert!(error.contains("is the data of a cluster already"), "{error}");
    }
    let mut servers = [cluster.server(), cluster.server()];
    settle(&servers.iter().collect::<Vec<_>>());
    let all: Vec<&Server> = servers.iter().collect();
    let mut client = client(&all);
    check(&mut client);
    assert_eq!(size(&all), keys);
    for n in 0..100 {
        let () = client.set(format!("new:{n}"), n).expect("stored");
        let _: usize = client.rpush("l0", n).expect("stored");
    }
    servers[0].kill();
    settle(&[&servers[1]]);
    let mut client = super::servers::client(&[&servers[1]]);
    assert_eq!(asked::<usize>(&mut client, &["LLEN", "l0"]), FLAT / 20 + 100);
    for _ in 0..100 {
        let _: usize = client.rpop("l0", None).expect("popped");
    }
    check(&mut client);
    assert_eq!(asked::<String>(&mut client, &["GET", "tail"]), "x");
    assert_eq!(asked::<usize>(&mut client, &["GET", "new:99"]), 99);
    assert_eq!(size(&[&servers[1]]), keys + 100);
    let () = asked(&mut servers[1].client(), &["FLUSHALL"]);
    assert_eq!(size(&[&servers[1]]), 0);
}

#[test]
fn a_server_that_runs_loses_its_data_and_acknowledges_nothing_more() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let mut before = single.client();
    let () = before.set("key", "before").expect("stored");
    cluster.convert();
    assert!(before.set::<_, _, ()>("key", "after").is_err(), "it has lost the data");
    assert_ne!(single.reap(), Some(0));
    let server = cluster.server();
    settle(&[&server]);
    assert_eq!(asked::<String>(&mut server.client(), &["GET", "key"]), "before");
}

/// A server that is asleep while its data is given away writes the old `flagstone.json` when it wakes;
/// a conversion may also be killed before it has put the new one.
#[test]
fn a_conversion_is_completed_by_the_same_command() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let () = single.client().set("key", "value").expect("stored");
    single.signal(Signal::STOP);
    let old = fs::read(cluster.file("flagstone.json")).expect("its file");
    cluster.convert();
    let map = cluster.map();
    single.signal(Signal::CONT);
    assert_ne!(single.reap(), Some(0));
    for has_map in [true, false] {
        fs::write(cluster.file("flagstone.json"), &old).expect("written");
        if !has_map {
            fs::remove_dir_all(cluster.file("cluster")).expect("removed");
        }
        for mode in ["no", "yes"] {
            let start = ["--store", &cluster.store(), "--cluster-enabled", mode];
            assert!(single.refused(&start).contains("flagstone cluster convert"));
        }
        let would = cluster.told(&["convert", "--check"]);
        assert!(would.contains("an earlier conversion was interrupted"), "{would}");
        cluster.convert();
        assert_eq!(cluster.map() == map, has_map);
        assert_eq!(cluster.map()["next_life"], map["next_life"]);
    }
    let server = cluster.server();
    settle(&[&server]);
    assert_eq!(asked::<String>(&mut server.client(), &["GET", "key"]), "value");
}

#[test]
fn what_a_cluster_cannot_have_is_refused_and_the_server_goes_on() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let refused = |what: &str| {
        let (status, error) = cluster.refused(&["convert"]);
        assert_eq!(status, Some(1));
        assert!(error.contains(what), "{what}: {error}");
    };
    let () = pipe().cmd("SELECT").arg(3).set("key", 1).query(&mut single.client()).expect("stored");
    single.stop();
    refused("1 keys in database 3");
    single.restart();
    let () = pipe().cmd("FLUSHALL").query(&mut single.client()).expect("flushed");
    let library = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
    let _: String = asked(&mut single.client(), &["FUNCTION", "LOAD", library]);
    let () = asked(&mut single.client(), &["SAVE"]);
    // It is refused at a look: the server goes on.
    refused("has 1 checkpoints");
    let () = single.client().set("key", "value").expect("stored");
    single.stop();
    let told = cluster.told(&["convert", "--remove-checkpoints"]);
    assert!(told.contains("1 checkpoints are removed"), "{told}");
    let server = cluster.server();
    settle(&[&server]);
    assert_eq!(asked::<i64>(&mut server.client(), &["FCALL", "f", "0"]), 7);
    let nowhere = Cluster::new();
    assert!(nowhere.refused(&["convert"]).1.contains("is no data directory"));
}

/// What is in the journal alone counts as well, whether its server runs or was killed.
#[test]
fn a_look_sees_what_the_journal_has() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let look = || cluster.told(&["convert", "--check"]);
    for n in 0..50 {
        let () = single.client().set(format!("key:{n}"), n).expect("stored");
    }
    let would = look();
    assert!(would.contains("can be converted: 50 keys"), "{would}");
    assert!(would.contains("its journal is not closed"), "{would}");
    let refused = |what: &str| {
        for words in [&["convert", "--check"][..], &["convert"]] {
            let (status, error) = cluster.refused(words);
            assert_eq!(status, Some(1));
            assert!(error.contains(what), "{what}: {error}");
        }
    };
    let () = pipe().cmd("SELECT").arg(3).set("key", 1).query(&mut single.client()).expect("stored");
    refused("1 keys in database 3");
    // The running server was not touched.
    let () = single.client().set("key:50", 50).expect("stored");
    single.kill();
    refused("1 keys in database 3");
    single.restart();
    single.stop();
    single.restart();
    refused("1 keys in database 3");
    // That the database is empty is in the journal alone, too.
    let () =
        pipe().cmd("SELECT").arg(3).cmd("FLUSHDB").query(&mut single.client()).expect("flushed");
    single.kill();
    let would = look();
    assert!(would.contains("can be converted: 51 keys"), "{would}");
    assert!(cluster.convert().contains("is a cluster's now: 51 keys"));
    let server = cluster.server();
    settle(&[&server]);
    assert_eq!(asked::<usize>(&mut server.client(), &["GET", "key:50"]), 50);
}

#[test]
fn a_look_at_a_stopped_server_says_nothing_of_a_running_one() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let () = single.client().set("key", "value").expect("stored");
    single.stop();
    let would = cluster.told(&["convert", "--check"]);
    assert!(would.contains("can be converted: 1 keys") && !would.contains("not closed"), "{would}");
}

/// It would be alone in what it takes for a cluster, and others would take its data.
#[test]
fn a_server_of_a_cluster_refuses_the_bucket_of_a_single_server() {
    let cluster = Cluster::new();
    let mut single = cluster.single();
    let () = single.client().set("key", "value").expect("stored");
    let start = ["--store", &cluster.store(), "--cluster-enabled", "yes"];
    let refused = |single: &Server| {
        let error = single.refused(&start);
        assert!(error.contains("is the data of a single server"), "{error}");
        assert!(error.contains("flagstone cluster convert"), "{error}");
    };
    single.stop();
    refused(&single);
    single.restart();
    assert_eq!(asked::<String>(&mut single.client(), &["GET", "key"]), "value");
    single.stop();
    cluster.convert();
    let server = cluster.server();
    settle(&[&server]);
    assert_eq!(asked::<String>(&mut server.client(), &["GET", "key"]), "value");
}

#[test]
fn stores_that_servers_cannot_share_are_wrong_arguments() {
    for store in ["", "nonsense", "/tmp/nonsense", "file:///tmp/nonsense", "ftp://x", "s3://"] {
        for words in [&["convert"][..], &["convert", "--check"], &["status"], &["drain", "x"]] {
            let output = run(&[&["cluster"], words, &["--store", store]].concat());
            assert_eq!(output.status.code(), Some(2), "{words:?} {store}: {output:?}");
        }
    }
}
