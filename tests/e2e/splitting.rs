//! Shards of a cluster that are split while clients use them.

use super::Server;
use super::mirrored::reader;
use super::pubsub::Raw;
use super::servers::{Cluster, asked, client, settle, shards_of, slots_of, until};
use redis::cluster::ClusterConnection;
use redis::{Commands, Value, cmd};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A lease with which a busy machine takes no server for dead.
const QUIET: Duration = Duration::from_secs(3);

const KEYS: usize = 400;

fn name(n: usize) -> String {
    format!("key:{n}")
}

/// Returns the number of keys of all servers, by DBSIZE and by SCAN.
fn counted(servers: &[&Server]) -> (usize, usize) {
    let mut seen = BTreeSet::new();
    let mut size = 0;
    for server in servers {
        let mut client = server.client();
        size += cmd("DBSIZE").query::<usize>(&mut client).expect("a number");
        for key in client.scan::<String>().expect("keys") {
            assert!(seen.insert(key.expect("a key")), "no key is seen twice");
        }
    }
    (size, seen.len())
}

/// Returns the shard that has a slot, by `flagstone cluster status --json`.
fn shard_of(cluster: &Cluster, slot: u16) -> u16 {
    let map = cluster.map();
    let shards = map["shards"].as_array().expect("shards").clone();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u16;
    let found = shards.iter().find(|shard| match shard["slots"].as_array() {
        Some(slots) => (number(&slots[0])..=number(&slots[1])).contains(&slot),
        None => u32::from(slot) * 6 / 16384 == u32::from(number(&shard["id"])),
    });
    number(&found.expect("a shard")["id"])
}

#[test]
fn shards_are_split_while_they_are_written_to() {
    let cluster = Cluster::with_lease(QUIET);
    let mut servers = cluster.servers(2);
    let all: Vec<&Server> = servers.iter().collect();
    let ended = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut round) = (client(&all), 0_usize);
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                for n in 0..KEYS {
                    let number: usize = client.incr(name(n), 1).expect("answered");
                    assert_eq!(number, round, "{}", name(n));
                }
            }
            round
        });
        for shard in ["0", "3", "5"] {
            let said = cluster.told(&["split", shard]);
            assert!(said.starts_with(&format!("shard {shard} has the slots ")), "{said}");
        }
        ended.store(true, Ordering::Relaxed);
        rounds = writer.join().expect("it went on");
    });
    check(&mut client(&all), rounds);
    assert_eq!(counted(&all), (KEYS, KEYS));
    let status = cluster.told(&["status"]);
    assert!(status.contains("all 16384 slots have an owner"), "{status}");
    assert_eq!(cluster.map()["shards"].as_array().map(Vec::len), Some(9));

    // The new ones move like others, and are taken over.
    let (to, owner) = (format!("127.0.0.1:{}", all[0].port()), all[1].port());
    cluster.told(&["move", "6,7,8", "--to", &to]);
    check(&mut client(&all), rounds);
    cluster.told(&["move", "6,7", "--to", &format!("127.0.0.1:{owner}")]);
    servers.pop().expect("the second one").kill();
    let left = [&servers[0]];
    until("the other one has all slots", || slots_of(left[0]) == 16384);
    check(&mut client(&left), rounds);
    assert_eq!(counted(&left), (KEYS, KEYS));

    // All servers end, and start again.
    servers[0].stop();
    servers[0].restart();
    settle(&[&servers[0]]);
    check(&mut client(&[&servers[0]]), rounds);
    assert_eq!(counted(&[&servers[0]]), (KEYS, KEYS));
}

fn check(client: &mut ClusterConnection, rounds: usize) {
    for n in 0..KEYS {
        assert_eq!(client.get::<_, usize>(name(n)).expect("a number"), rounds, "{}", name(n));
    }
}

#[test]
fn a_split_that_cannot_be_done_is_refused_or_called_off() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let mut client = client(&[&servers[0]]);
    let _: () = client.set("key", "value").expect("stored");
    for (words, error) in [
        (&["split", "77"][..], "there is no shard 77"),
        (&["split", "1", "--at", "5"], "cannot be split at slot 5"),
        (&["split", "0", "--at", "0"], "cannot be split at slot 0"),
    ] {
        let (status, text) = cluster.refused(words);
        assert!(status == Some(1) && text.contains(error), "{words:?}: {text}");
    }
    cluster.told(&["split", "0", "--at", "100"]);
    assert!(cluster.told(&["status"]).contains("6      100-"), "{}", cluster.told(&["status"]));
    // It is done, so it is not done again.
    assert!(cluster.refused(&["split", "0", "--at", "100"]).1.contains("slot 100"));
    // Its files are still those of shard 0.
    let (_, text) = cluster.refused(&["split", "6", "--timeout", "1"]);
    assert!(text.contains("not done within 1 s"), "{text}");
    until("the server says why", || servers[0].log().contains("still reads files of the shard"));
    assert_eq!(cluster.told(&["split", "6", "--cancel"]).trim(), "shard 6 is not to be split");
    assert_eq!(client.get::<_, String>("key").expect("answered"), "value");
}

/// The new shard's files cannot be made, as something is in the way.
#[test]
fn a_shard_whose_split_fails_is_served_on_and_split_later() {
    let cluster = Cluster::with_lease(Duration::from_secs(4));
    let servers = cluster.servers(1);
    let mut client = client(&[&servers[0]]);
    let in_the_way: Vec<_> = (1..10)
        .map(|life| cluster.bucket.path().join(format!("data/shard-6-{life}")))
        .inspect(|path| std::fs::write(path, "in the way").expect("written"))
        .collect();
    let key = (0..KEYS).map(name).find(|key| {
        let slot = cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut servers[0].client());
        shard_of(&cluster, slot.expect("a slot")) == 0
    });
    let key = key.expect("a key of shard 0");
    let _: () = client.set(&key, "before").expect("stored");
    cluster.told(&["split", "0", "--no-wait"]);
    until("it has failed", || servers[0].log().contains("shard 0 is not split yet"));
    let failed = Instant::now();
    let _: () = client.set(&key, "behind").expect("stored");
    assert!(failed.elapsed() < Duration::from_secs(3), "it was taken again at once");
    assert_eq!(cluster.map()["shards"].as_array().map(Vec::len), Some(6));
    in_the_way.iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
    until("it is split", || cluster.map()["shards"].as_array().map(Vec::len) == Some(7));
    assert_eq!(client.get::<_, String>(&key).expect("answered"), "behind");
}

/// Its wish stays, and others carry it out.
#[test]
fn a_server_is_drained_although_a_shard_waits_to_be_split() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(2);
    let first = shard_of_server(&cluster, &servers[0]);
    cluster.told(&["split", &first.to_string()]);
    // It reads the files of the first one for minutes.
    cluster.told(&["split", "6", "--no-wait"]);
    until("it cannot be split yet", || {
        servers.iter().any(|server| server.log().contains("still reads files of the shard"))
    });
    let told = cluster.told(&["drain", &asked(&servers[0], ["CLUSTER", "MYID"])]);
    assert!(told.contains("has no shards"), "{told}");
    assert_eq!(slots_of(&servers[1]), 16384);
    let map = cluster.map();
    assert!(map["shards"][6]["split_at"].as_u64().is_some(), "{map}");
}

/// Returns a shard of a server.
fn shard_of_server(cluster: &Cluster, server: &Server) -> u16 {
    shards_of(&cluster.map(), &asked(server, ["CLUSTER", "MYID"]))[0]
}

/// Clients that wait on a server that keeps the slot are sent to the same server again.
#[test]
fn clients_that_wait_or_watch_hear_of_a_split() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let server = &servers[0];
    let mut watcher = server.client();
    let _: () = watcher.set("{waits}watched", 1).expect("stored");
    cmd("WATCH").arg("{waits}watched").exec(&mut watcher).expect("watched");
    let slot = cmd("CLUSTER").arg("KEYSLOT").arg("{waits}").query(&mut server.client());
    let slot: u16 = slot.expect("a slot");
    let shard = shard_of(&cluster, slot).to_string();
    let mut raw = Raw::connect(server);
    raw.send("BLPOP {waits}list 0\r\n");
    until("it waits", || asked(server, ["INFO", "clients"]).contains("blocked_clients:1\r\n"));
    let mut applications: Vec<ClusterConnection> = (0..4).map(|_| client(&[server])).collect();
    let elements = std::thread::scope(|scope| {
        let waiting: Vec<_> = applications
            .iter_mut()
            .enumerate()
            .map(|(n, client)| {
                scope.spawn(move || {
                    client.blpop::<_, (String, usize)>(format!("{{waits}}list{n}"), 0.0)
                })
            })
            .collect();
        until("all wait", || asked(server, ["INFO", "clients"]).contains("blocked_clients:5\r\n"));
        cluster.told(&["split", &shard]);
        assert_eq!(raw.lines(1), format!("-MOVED {slot} 127.0.0.1:{}", server.port()));
        let mut pusher = client(&[server]);
        for n in 0..waiting.len() {
            let _: usize = pusher.rpush(format!("{{waits}}list{n}"), n).expect("pushed");
        }
        let joined = waiting.into_iter().map(|one| one.join().expect("it went on"));
        joined.map(|popped| popped.expect("an element").1).collect::<Vec<usize>>()
    });
    assert_eq!(elements, [0, 1, 2, 3]);
    let aborted: Value =
        redis::pipe().atomic().get("{waits}watched").query(&mut watcher).expect("nil");
    assert_eq!(aborted, Value::Nil, "the watched key counts as changed");
    assert_eq!(watcher.get::<_, usize>("{waits}watched").expect("answered"), 1);
}

#[test]
fn a_replica_shows_both_parts_of_a_shard_that_was_split() {
    let cluster = Cluster::with_lease(QUIET);
    let servers = cluster.servers(1);
    let replica = cluster.replica();
    let mut writer = client(&[&servers[0]]);
    let mut readonly = reader(&replica);
    for n in 0..KEYS {
        let _: () = writer.set(name(n), 0).expect("stored");
    }
    for (round, shard) in [(1, "0"), (2, "2"), (3, "4")] {
        cluster.told(&["split", shard]);
        for n in 0..KEYS {
            let _: () = writer.set(name(n), round).expect("stored");
        }
        until("the replica has both parts", || {
            (0..KEYS).all(|n| readonly.get::<_, usize>(name(n)).is_ok_and(|it| it == round))
        });
    }
    let shown = format!("cluster_replica_shards:{}\r\n", 9);
    until("all are shown", || asked(&replica, ["INFO", "everything"]).contains(&shown));
    until("the counts agree", || {
        cmd("DBSIZE").query::<usize>(&mut readonly).is_ok_and(|size| size == KEYS)
    });
}
