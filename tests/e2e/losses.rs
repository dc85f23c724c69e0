//! Clusters whose journals have lost objects, and an operator who accepts that.

use super::Server;
use super::servers::{Cluster, asked, check, client, fill, shards_of, until};
use redis::Commands;
use std::fs;
use std::path::PathBuf;

/// Returns the life of a server in the map.
fn life_of(map: &serde_json::Value, id: &str) -> u64 {
    let members = map["members"].as_array().expect("members");
    let member = members.iter().find(|member| member["node"] == id && member["state"] == "open");
    member.expect("the server")["life"].as_u64().expect("a number")
}

fn journal(cluster: &Cluster, life: u64) -> PathBuf {
    cluster.bucket.path().join(format!("data/lives/{life:020}"))
}

fn served(server: &Server) -> usize {
    let info = asked(server, ["INFO", "everything"]);
    let line = info.lines().find(|line| line.starts_with("cluster_shards_served:"));
    line.expect("their number")["cluster_shards_served:".len()..].trim().parse().expect("a number")
}

#[test]
fn the_others_serve_the_shards_of_a_server_whose_journal_is_given_up() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    fill(&mut client(&servers.iter().collect::<Vec<_>>()), 1);
    let map = cluster.map();
    let ids: Vec<String> = servers.iter().map(|it| asked(it, ["CLUSTER", "MYID"])).collect();
    let (lost, kept) = (life_of(&map, &ids[0]), life_of(&map, &ids[1]));
    let number = lost.to_string();
    let why = cluster.told(&["give-up", &kept.to_string(), "--lose-writes"]);
    assert!(why.contains("nothing to give up"), "{why}");
    let (_, why) = cluster.refused(&["give-up", "99", "--lose-writes"]);
    assert!(why.contains("has no life 99"), "{why}");
    servers[0].kill();
    fs::remove_dir_all(journal(&cluster, lost)).expect("removed");
    let of_lost = shards_of(&map, &ids[0]).len();
    until("the loss is told", || servers[1].log().contains(&format!("give-up {lost}")));
    assert_eq!(served(&servers[1]), 6 - of_lost);
    let (status, why) = cluster.refused(&["give-up", &number]);
    assert!(status == Some(1) && why.contains("nothing was changed"), "{status:?} {why}");
    assert_eq!(life_of(&cluster.map(), &ids[0]), lost, "nothing was changed");
    let told = cluster.told(&["give-up", &number, "--lose-writes"]);
    for part in ["is missing", "stored up to lsn", "Lost are", "is given up: servers take"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    until("all shards are served", || served(&servers[1]) == 6);
    let mut left = client(&[&servers[1]]);
    let keys: Vec<bool> =
        (0..200).map(|n| left.exists(format!("key:{n}")).expect("told")).collect();
    assert!(keys.iter().any(|is_there| *is_there), "those of the other server are there");
    let _: () = redis::cmd("FLUSHALL").query(&mut left).expect("flushed");
    fill(&mut left, 1);
    check(&mut left, 1);
    servers[0].restart();
    until("it joins", || served(&servers[0]) == 3);
    check(&mut client(&[&servers[0], &servers[1]]), 1);
}

#[test]
fn a_cluster_starts_again_without_a_journal_that_is_given_up_while_no_server_runs() {
    let cluster = Cluster::new();
    let mut server = cluster.server();
    until("it serves", || served(&server) == 6);
    fill(&mut client(&[&server]), 1);
    let life = life_of(&cluster.map(), &asked(&server, ["CLUSTER", "MYID"]));
    let number = life.to_string();
    fs::rename(journal(&cluster, life), cluster.bucket.path().join("away")).expect("renamed");
    let (_, why) = cluster.refused(&["give-up", &number, "--lose-writes"]);
    assert!(why.contains("is running"), "{why}");
    server.kill();
    // It has renewed its lease meanwhile.
    let _ = fs::remove_dir_all(journal(&cluster, life));
    let why = server.refused(&[]);
    assert!(why.contains("is missing") && why.contains(&format!("give-up {life}")), "{why}");
    // It may come back until then.
    fs::rename(cluster.bucket.path().join("away"), journal(&cluster, life)).expect("renamed");
    let why = cluster.told(&["give-up", &number, "--lose-writes"]);
    assert!(why.contains("nothing to give up"), "{why}");
    fs::remove_dir_all(journal(&cluster, life)).expect("removed");
    cluster.told(&["give-up", &number, "--lose-writes"]);
    assert!(cluster.told(&["give-up", &number]).contains("given up already"));
    server.restart();
    until("it serves again", || served(&server) == 6);
    let mut again = client(&[&server]);
    let _: () = redis::cmd("FLUSHALL").query(&mut again).expect("flushed");
    fill(&mut again, 1);
    check(&mut again, 1);
}

#[test]
fn a_journal_that_breaks_counts_up_to_there() {
    let cluster = Cluster::new();
    let mut server = cluster.server();
    until("it serves", || served(&server) == 6);
    let mut writer = client(&[&server]);
    for n in 0..60 {
        let _: () = writer.set(format!("key:{n}"), n).expect("stored");
    }
    drop(writer);
    let life = life_of(&cluster.map(), &asked(&server, ["CLUSTER", "MYID"]));
    server.kill();
    let objects = journal(&cluster, life).join(format!("{life:020}"));
    let mut all: Vec<PathBuf> = fs::read_dir(&objects)
        .expect("the journal")
        .map(|entry| entry.expect("an object").path())
        .collect();
    all.sort();
    let broken = &all[all.len() - 5];
    let mut bytes = fs::read(broken).expect("read");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(broken, bytes).expect("written");
    assert!(server.refused(&[]).contains("give-up"));
    let (_, why) = cluster.refused(&["give-up", &life.to_string()]);
    assert!(why.contains("nothing was changed"), "{why}");
    let told = cluster.told(&["give-up", &life.to_string(), "--lose-writes"]);
    assert!(told.contains("breaks behind lsn") && told.contains("ends at the break"), "{told}");
    server.restart();
    until("it serves again", || served(&server) == 6);
    let mut again = client(&[&server]);
    let kept = |n: usize, again: &mut redis::cluster::ClusterConnection| {
        again.get::<_, Option<usize>>(format!("key:{n}")).expect("answered")
    };
    let found: Vec<usize> = (0..60).filter(|n| kept(*n, &mut again) == Some(*n)).collect();
    let whole: Vec<usize> = (0..found.len()).collect();
    assert!(found == whole && (50..60).contains(&found.len()), "{found:?}");
}
