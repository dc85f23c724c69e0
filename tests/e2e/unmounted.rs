//! The directory of a `bucket+file:` store goes away while servers run, as if its file system were not mounted any more, and an
//! empty one is in its place.

use super::Server;
use super::checkpoints::run;
use super::servers::{Cluster, asked, settle, until};
use redis::{Commands, Connection, cmd};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(1);

/// Puts an empty directory in the place of one, and returns where that is now.
fn unmount(bucket: &Path) -> PathBuf {
    let away = bucket.join("away");
    fs::rename(bucket.join("data"), &away).expect("it goes away");
    fs::create_dir(bucket.join("data")).expect("a mount point");
    away
}

fn mount(bucket: &Path, away: &Path) {
    let data = bucket.join("data");
    assert_eq!(fs::read_dir(&data).expect("a mount point").count(), 0, "nothing was put there");
    fs::remove_dir(&data).expect("a mount point");
    fs::rename(away, &data).expect("it is back");
}

fn fails(client: &mut Connection, key: &str) -> bool {
    client.set::<_, _, ()>(key, "lost").is_err()
}

#[test]
fn a_server_of_a_cluster_acknowledges_nothing_without_its_bucket() {
    let cluster = Cluster::with_lease(LEASE);
    let server = cluster.servers(1).remove(0);
    let mut client = server.client();
    let _: () = client.set("key", "v").expect("stored");
    let away = unmount(cluster.bucket.path());
    assert!(fails(&mut client, "other"));
    until("it answers nothing", || client.get::<_, String>("key").is_err());
    assert!(fails(&mut client, "other"));
    mount(cluster.bucket.path(), &away);
    // Nobody else was there to take its shards over.
    until("it answers again", || client.get::<_, String>("key").is_ok_and(|value| value == "v"));
    let _: () = client.set("key", "w").expect("stored");
    drop((client, server));
    let next = cluster.server();
    settle(&[&next]);
    assert_eq!(next.client().get::<_, String>("key").expect("read"), "w");
}

#[test]
fn a_single_server_acknowledges_nothing_without_its_bucket() {
    let bucket = tempfile::tempdir().expect("a directory");
    let store = format!("bucket+file://{}/data", bucket.path().display());
    let mut server = Server::start(&["--store", &store, "--store-timeout-ms", "1000"]);
    let mut client = server.client();
    let _: () = client.set("key", "v").expect("stored");
    let away = unmount(bucket.path());
    assert!(fails(&mut client, "key"));
    mount(bucket.path(), &away);
    until("it stores again", || client.set::<_, _, ()>("key", "w").is_ok());
    drop(client);
    server.kill();
    server.restart();
    assert_eq!(server.client().get::<_, String>("key").expect("read"), "w");
}

#[test]
fn a_server_of_a_cluster_ends_whatever_is_asked_and_answers_others_while_clients_pause() {
    let cluster = Cluster::with_lease(LEASE);
    let mut servers = cluster.servers(2);
    let (mut first, second) = (servers.remove(0), servers.remove(0));
    let silent = |server: &Server| {
        asked(server, ["INFO", "everything"]).contains("cluster_servers_silent:1\r\n")
    };
    let mut client = first.client();
    cmd("CLIENT").arg("PAUSE").arg(60_000).exec(&mut client).expect("paused");
    std::thread::sleep(3 * LEASE);
    assert!(!silent(&second), "servers do not wait for a pause of clients");
    cmd("CLIENT").arg("UNPAUSE").exec(&mut client).expect("goes on");
    let _ = cmd("SHUTDOWN").arg("SAVE").exec(&mut client);
    assert_eq!(first.reap(), Some(0));
    settle(&[&second]);
}

#[test]
fn a_server_that_nobody_reaches_does_not_join() {
    let cluster = Cluster::new();
    let (store, dir) = (cluster.store(), cluster.bucket.path().display().to_string());
    let socket = format!("{dir}/socket");
    let words = ["--cluster-enabled", "yes", "--store", &store, "--dir", &dir, "--port", "0"];
    let words = [&words[..], &["--cluster-announce-ip", "127.0.0.1"]].concat();
    let refused = run(&[&words[..], &["--unixsocket", &socket]].concat());
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&[refused.stdout, refused.stderr].concat()).into_owned();
    assert!(said.contains("needs a port that clients and other servers reach"), "{said}");
}
