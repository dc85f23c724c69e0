//! Collections with large elements that are not in memory: who looks at a few of them, or at none, holds a
//! few of them at a time.

use super::Server;
use super::followers::Reader;
use super::large_replies::{most_beside, refused};
use redis::{Commands, cmd};
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Bytes that no look may take beside what the server has: the hash has twice as much.
const MOST: u64 = 72 << 20;

const FIELDS: usize = 144;

fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size(&entry.path()),
        // It may have been removed since.
        meta => meta.map_or(0, |meta| meta.len()),
    });
    bytes.sum()
}

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a server that has nothing of a hash of 144 MiB, of a list and of a set of 100 MiB in memory. A field is due.
fn with_large_elements() -> Server {
    let options = [
        "--workers",
        "1",
        "--shards",
        "1",
        "--memory-budget",
        "64mb",
        "--handover-interval-ms",
        "50",
        // So that a reply may not have much more than others for one long string.
        "--proto-max-bulk-len",
        "2mb",
    ];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for n in 0..FIELDS {
        let () = client.hset("hash", n, vec![b'f'; MIB]).expect("stored");
    }
    for n in 0..100u8 {
        let () = client.sadd("set", vec![n; MIB]).expect("stored");
        let () = client.rpush("list", vec![vec![b'e'; 48 << 10]; 22]).expect("stored");
    }
    let due = cmd("HPEXPIRE").arg(&["hash", "1000", "FIELDS", "1", "7"]).exec(&mut client);
    due.expect("it expires");
    drop(client);
    server.stop();
    server.restart();
    server
}

#[test]
fn looks_at_large_elements_take_the_memory_of_a_few() {
    let server = with_large_elements();
    let mut client = server.client();
    let expired = most_beside(&server, || {
        until(|| {
            let info: String = cmd("INFO").arg("stats").query(&mut client).expect("figures");
            info.contains("expired_subkeys:1\r\n")
        });
    });
    assert!(expired < MOST, "expiry of a field: {expired}");
    let mut found = 0;
    let scanned = most_beside(&server, || {
        let (cursor, pairs): (u64, Vec<(String, Vec<u8>)>) = cmd("HSCAN")
            .arg("hash")
            .arg(0)
            .arg("COUNT")
            .arg(4)
            .query(&mut client)
            .expect("scanned");
        assert_ne!(cursor, 0);
        found = pairs.len();
    });
    assert!(scanned < MOST && (1..4).contains(&found), "HSCAN of {found}: {scanned}");
    let drawn = most_beside(&server, || {
        let drawn: Vec<u32> =
            cmd("HRANDFIELD").arg("hash").arg(6).query(&mut client).expect("drawn");
        assert_eq!(drawn.len(), 6);
    });
    assert!(drawn < MOST, "HRANDFIELD: {drawn}");
    // The fields are loaded until it is known that there is no room for them.
    let asked = most_beside(&server, || {
        refused(&mut client, cmd("HMGET").arg("hash").arg((0..FIELDS).collect::<Vec<_>>()));
    });
    assert!(asked < MOST * 3 / 2, "HMGET: {asked}");
    // How large such a reply is at least is known before. For a hash of which a field has expired it is not.
    let asked = most_beside(&server, || refused(&mut client, cmd("SMEMBERS").arg("set")));
    assert!(asked < MOST / 2, "SMEMBERS: {asked}");
    let indexed = most_beside(&server, || {
        let element: Vec<u8> = client.lindex("list", 1100).expect("read");
        assert_eq!(element.len(), 48 << 10);
    });
    assert!(indexed < MOST, "LINDEX: {indexed}");
    // The rows of a deleted value are found by their keys.
    let before = size(server.dir());
    let swept = most_beside(&server, || {
        let () = client.del("hash").expect("deleted");
        until(|| size(server.dir()) < before - 100 * MIB as u64);
    });
    assert!(swept < MOST, "sweep: {swept}");
}

#[test]
fn a_data_set_with_large_values_is_made_one_by_one() {
    let options = ["--workers", "1", "--shards", "1", "--memory-budget", "64mb"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for n in 0..36 {
        let () = client.set(n, vec![b'v'; 4 * MIB]).expect("stored");
    }
    drop(client);
    server.stop();
    server.restart();
    let mut reader = Reader::connect(&server);
    let made = most_beside(&server, || {
        reader.ask("PSYNC ? -1");
        assert!(!reader.data_set().is_empty());
    });
    // The values have twice as much. How much of it the sockets hold depends on when they are read.
    assert!(made < MOST * 4 / 3, "{made}");
}
