//! Standbys: replicas in a cluster that become owners when one is lost, or when a user wants it.

use super::Server;
use super::mirrored::reader;
use super::pubsub::Raw;
use super::servers::{Cluster, asked, check, client, fill, settle, shards_of, slots_of, until};
use redis::{Commands, Value, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lease within which busy machines keep their servers, and lost ones are missed soon.
const LEASE: Duration = Duration::from_secs(1);

impl Cluster {
    fn standby(&self) -> Server {
        let store = self.store();
        let words = ["--cluster-enabled", "yes", "--cluster-replica", "standby", "--store", &store];
        Server::start(&[&words[..], &["--workers", "2", "--shards", "6"]].concat())
    }

    /// Starts an owner, which is filled, and a standby that shows its shards.
    fn owner_and_standby(&self) -> (Server, Server) {
        let owner = self.servers(1).remove(0);
        let standby = self.standby();
        drop(reader(&standby));
        fill(&mut client(&[&owner]), 1);
        (owner, standby)
    }

    fn parked(&self) -> usize {
        let map = self.map();
        let shards = map["shards"].as_array().expect("shards").iter();
        shards.filter(|shard| shard["owner"].is_null()).count()
    }
}

fn role(server: &Server) -> Value {
    let role: Vec<Value> = cmd("ROLE").query(&mut server.client()).expect("a role");
    role[0].clone()
}

#[test]
fn a_standby_takes_the_place_of_an_owner_that_is_lost() {
    let cluster = Cluster::with_lease(LEASE);
    let mut servers = cluster.servers(2);
    let mut standby = cluster.standby();
    let mut reading = reader(&standby);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    until("the last key is shown", || {
        reading.get::<_, Option<String>>("key:199").is_ok_and(|it| it.is_some())
    });
    assert!(cluster.told(&["status"]).contains("  standby  "));
    assert!(shards_of(&cluster.map(), &asked(&standby, ["CLUSTER", "MYID"])).is_empty());
    let mut waiting = Raw::connect(&standby);
    waiting.expect("READONLY", "+OK");
    waiting.send("XREAD BLOCK 0 STREAMS stream 0\r\n");
    let kept = shards_of(&cluster.map(), &asked(&servers[1], ["CLUSTER", "MYID"]));
    servers[0].kill();
    settle(&[&servers[1], &standby]);
    let after = shards_of(&cluster.map(), &asked(&servers[1], ["CLUSTER", "MYID"]));
    assert_eq!(kept, after, "the other one has what it had");
    let mut of_both = client(&[&servers[1], &standby]);
    check(&mut of_both, 1);
    fill(&mut of_both, 2);
    assert!(waiting.lines(1).starts_with('-'), "its shard is not shown any more");
    assert_eq!(role(&standby), Value::BulkString(b"master".to_vec()));
    assert!(!asked(&standby, ["INFO", "everything"]).contains("cluster_replica"));
    let elsewhere = (0..200).find_map(|n| {
        let found = reading.get::<_, Option<String>>(format!("key:{n}"));
        found.err().and_then(|error| error.code().map(str::to_owned))
    });
    assert_eq!(elsewhere.as_deref(), Some("MOVED"), "READONLY shows nothing of others here");
    // It is lost as well, before it has flushed anything.
    standby.kill();
    servers[0].restart();
    settle(&[&servers[0], &servers[1]]);
    check(&mut client(&[&servers[0], &servers[1]]), 2);
    // Its next start does what its settings say.
    standby.restart();
    let mut reading = reader(&standby);
    assert_eq!(reading.get::<_, String>("key:7").expect("read"), "7 2");
    assert_eq!((role(&standby), slots_of(&standby)), (Value::BulkString(b"slave".to_vec()), 0));
}

/// Nobody else is left who could serve the shards.
#[test]
fn a_standby_that_is_lost_as_the_only_owner_starts_as_an_owner_and_can_be_flushed() {
    let cluster = Cluster::with_lease(LEASE);
    let (mut owner, mut standby) = cluster.owner_and_standby();
    owner.kill();
    settle(&[&standby]);
    standby.kill();
    standby.restart();
    settle(&[&standby]);
    assert!(standby.log().contains("it starts as an owner"), "{}", standby.log());
    check(&mut client(&[&standby]), 1);
    // What it had shown of others does not keep it from changing all of it.
    owner.restart();
    settle(&[&owner, &standby]);
    standby.stop();
    standby.restart();
    drop(reader(&standby));
    owner.kill();
    settle(&[&standby]);
    until("it is no replica any more", || role(&standby) == Value::BulkString(b"master".to_vec()));
    cmd("FLUSHALL").exec(&mut standby.client()).expect("flushed");
    assert_eq!(cmd("DBSIZE").query::<usize>(&mut standby.client()).expect("a number"), 0);
}

#[test]
fn a_second_process_in_the_same_directory_ends_before_it_joins() {
    let cluster = Cluster::with_lease(LEASE);
    let server = cluster.servers(1).remove(0);
    fill(&mut client(&[&server]), 1);
    let store = cluster.store();
    let port = super::free_port().to_string();
    // It has the directory of the running one, and a port of its own.
    let text = server.refused(&["--cluster-enabled", "yes", "--store", &store, "--port", &port]);
    assert!(text.contains("is in use by another process"), "{text}");
    check(&mut client(&[&server]), 1);
}

#[test]
fn a_replica_answers_of_all_keys_once_it_shows_all_shards() {
    let cluster = Cluster::with_lease(LEASE);
    let mut servers = cluster.servers(2);
    for n in 0..100 {
        let mut writer = client(&servers.iter().collect::<Vec<_>>());
        let _: () = writer.set(format!("key:{n}"), n).expect("stored");
    }
    // From its first moment on.
    let mut replica = cluster.replica();
    for _ in 0..3 {
        assert_eq!(cmd("DBSIZE").query::<usize>(&mut replica.client()).expect("waits"), 100);
        replica.stop();
        replica.restart();
    }
    while let Some(mut server) = servers.pop() {
        server.stop();
    }
    until("the shards are parked", || cluster.parked() == 6);
    replica.stop();
    replica.restart();
    let answer = cmd("DBSIZE").query::<usize>(&mut replica.client());
    let code = answer.expect_err("nothing is shown").code().map(str::to_owned);
    assert_eq!(code.as_deref(), Some("TRYAGAIN"));
}

#[test]
fn a_standby_succeeds_the_last_owner() {
    let cluster = Cluster::with_lease(LEASE);
    let (mut owner, mut standby) = cluster.owner_and_standby();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut most = 0;
            while !has_ended.load(Ordering::Acquire) {
                most = most.max(cluster.parked());
            }
            most
        });
        owner.stop();
        has_ended.store(true, Ordering::Release);
        assert_eq!(looks.join().expect("no panic"), 0, "the owner gives them to the standby");
    });
    settle(&[&standby]);
    check(&mut client(&[&standby]), 1);
    fill(&mut client(&[&standby]), 2);
    owner.restart();
    settle(&[&owner, &standby]);
    standby.stop();
    settle(&[&owner]);
    standby.restart();
    drop(reader(&standby));
    // An owner that is drained has no other server that could take its shards.
    cluster.told(&["drain", &format!("127.0.0.1:{}", owner.port())]);
    settle(&[&standby]);
    check(&mut client(&[&standby]), 2);
    owner.stop();
    owner.restart();
    settle(&[&owner, &standby]);
    standby.stop();
    standby.restart();
    drop(reader(&standby));
    owner.kill();
    settle(&[&standby]);
    check(&mut client(&[&standby]), 2);
}

#[test]
fn a_replica_takes_the_place_of_its_primary_when_it_is_told_to_fail_over() {
    let cluster = Cluster::with_lease(LEASE);
    let (owner, standby) = cluster.owner_and_standby();
    let ask = |server: &Server, words: &[&str]| {
        cmd("CLUSTER").arg("FAILOVER").arg(words).query::<String>(&mut server.client())
    };
    let refused = ask(&owner, &[]).expect_err("it is no replica").to_string();
    assert!(refused.contains("You should send CLUSTER FAILOVER to a replica"), "{refused}");
    let refused = ask(&standby, &["SOON"]).expect_err("no option").to_string();
    assert!(refused.contains("syntax error"), "{refused}");
    assert_eq!(ask(&standby, &["FORCE"]).as_deref(), Ok("OK"));
    let id = asked(&standby, ["CLUSTER", "MYID"]);
    until("it has all shards", || shards_of(&cluster.map(), &id).len() == 6);
    until("both know it", || (slots_of(&standby), slots_of(&owner)) == (16384, 0));
    let mut both = client(&[&owner, &standby]);
    check(&mut both, 1);
    fill(&mut both, 2);
    check(&mut both, 2);
    assert_eq!(role(&standby), Value::BulkString(b"master".to_vec()));
}

#[test]
fn replicas_are_promoted_by_hand() {
    let cluster = Cluster::with_lease(LEASE);
    // It has seen no owner, so there is none to succeed.
    let standby = cluster.standby();
    std::thread::sleep(2 * LEASE);
    assert_eq!((cluster.parked(), slots_of(&standby)), (6, 0));
    let name = format!("127.0.0.1:{}", standby.port());
    let told = cluster.told(&["promote", &name]);
    assert!(told.contains("is an owner, and is to have 6 shards"), "{told}");
    settle(&[&standby]);
    fill(&mut client(&[&standby]), 1);
    let replica = cluster.replica();
    drop(reader(&replica));
    let id = asked(&replica, ["CLUSTER", "MYID"]);
    let told = cluster.told(&["promote", &id[..10]]);
    assert_eq!(told.lines().count(), 4, "{told}");
    settle(&[&standby, &replica]);
    check(&mut client(&[&standby, &replica]), 1);
    fill(&mut client(&[&standby, &replica]), 2);
    check(&mut client(&[&standby, &replica]), 2);
    let again = cluster.told(&["promote", &id[..10]]);
    assert!(again.contains("is to have 3 shards"), "{again}");
    let other = cluster.replica();
    let name = format!("127.0.0.1:{}", other.port());
    assert!(cluster.refused(&["drain", &name]).1.contains("is a replica, and owns no shard"));
    assert!(cluster.refused(&["promote", "nobody:1"]).1.contains("has no server"));
}
