//! An OK means that the write is stored.

use super::Server;
use redis::Commands;
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Connections that write while the server is killed.
const WRITERS: u64 = 4;

/// Writes keys with growing values by pipelines until the connection breaks; notes the acknowledged
/// values.
fn write_until_killed(server: &Server, writer: u64, acked: &Mutex<Vec<u64>>, total: &AtomicU64) {
    let mut client = server.client();
    for round in 1u64.. {
        let mut pipe = redis::pipe();
        for n in 0..16u64 {
            pipe.set(format!("w{writer}:{n}:{}", round % 50), round).ignore();
        }
        if pipe.query::<()>(&mut client).is_err() {
            return;
        }
        acked.lock().expect("no panic")[(round % 50) as usize] = round;
        total.fetch_add(16, Ordering::Relaxed);
    }
}

fn kill_under_load(server: &mut Server, after: u64) -> Vec<Vec<u64>> {
    let acked: Vec<_> = (0..WRITERS).map(|_| Arc::new(Mutex::new(vec![0u64; 50]))).collect();
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (writer, acked) in (0u64..).zip(&acked) {
            let (server, total) = (&*server, &total);
            scope.spawn(move || write_until_killed(server, writer, acked, total));
        }
        while total.load(Ordering::Relaxed) < after {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.kill_shared();
    });
    server.reap();
    acked.iter().map(|a| a.lock().expect("no panic").clone()).collect()
}

fn check(server: &Server, acked: &[Vec<u64>]) {
    let mut client = server.client();
    for (writer, rounds) in acked.iter().enumerate() {
        for (slot, &round) in rounds.iter().enumerate() {
            for n in 0..16 {
                let found: Option<u64> =
                    client.get(format!("w{writer}:{n}:{slot}")).expect("an answer");
                assert!(
                    found.unwrap_or(0) >= round,
                    "lost: w{writer}:{n}:{slot} was acknowledged as {round}, found {found:?}"
                );
            }
        }
    }
}

fn survives_kills(mode: &str, workers: &str) {
    let handover = ["--handover-interval-ms", "150"];
    let options =
        [&["--appendfsync", mode, "--workers", workers, "--shards", "2"][..], &handover].concat();
    let mut server = Server::start(&options);
    for kill in 0..4u64 {
        let acked = kill_under_load(&mut server, 4000 + kill * 1500);
        server.restart();
        check(&server, &acked);
    }
}

#[test]
fn kill_9_loses_nothing_in_always() {
    survives_kills("always", "2");
}

#[test]
fn kill_9_loses_nothing_in_always_with_one_worker() {
    survives_kills("always", "1");
}

#[test]
fn kill_9_loses_nothing_in_everysec() {
    survives_kills("everysec", "2");
}

#[test]
fn kill_9_loses_nothing_in_no() {
    survives_kills("no", "2");
}

#[test]
fn sigterm_loses_nothing_in_any_mode() {
    for mode in ["no", "everysec", "always"] {
        let mut server = Server::start(&["--appendfsync", mode, "--workers", "2", "--shards", "2"]);
        let mut client = server.client();
        for n in 0..2000u32 {
            let () = client.set(format!("k{n}"), n).expect("stored");
        }
        drop(client);
        server.stop();
        // The shard directories are complete by themselves.
        std::fs::remove_dir_all(server.dir().join("data/journal")).expect("removed");
        server.restart();
        let mut client = server.client();
        for n in 0..2000u32 {
            assert_eq!(client.get::<_, u32>(format!("k{n}")).expect("an answer"), n, "{mode}");
        }
        let size: u32 = redis::cmd("DBSIZE").query(&mut client).expect("a size");
        assert_eq!(size, 2000);
    }
}

#[test]
fn another_number_of_workers_finds_every_key() {
    let mut server = Server::start(&["--workers", "2", "--shards", "4"]);
    let mut client = server.client();
    for n in 0..500u32 {
        let () = client.set(format!("k{n}"), n).expect("stored");
        let () = client.hset(format!("h{n}"), "f", n).expect("stored");
    }
    for workers in ["1", "3", "4", "2"] {
        drop(client);
        server.stop();
        server.restart_with(&["--workers", workers]);
        client = server.client();
        for n in 0..500u32 {
            assert_eq!(client.get::<_, u32>(format!("k{n}")).expect("an answer"), n);
            assert_eq!(client.hget::<_, _, u32>(format!("h{n}"), "f").expect("an answer"), n);
        }
        let size: u32 = redis::cmd("DBSIZE").query(&mut client).expect("a size");
        assert_eq!(size, 1000);
    }
}

#[test]
fn cold_data_is_read_from_the_engine() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    let big = "x".repeat(200_000);
    let () = client.set("big", &big).expect("stored");
    let fields: Vec<(String, u32)> = (0..2000).map(|n| (format!("f{n}"), n)).collect();
    let () = client.hset_multiple("hash", &fields).expect("stored");
    drop(client);
    server.stop();
    server.restart();
    let mut client = server.client();
    assert_eq!(client.hget::<_, _, u32>("hash", "f77").expect("an answer"), 77);
    assert_eq!(client.hlen::<_, u32>("hash").expect("an answer"), 2000);
    let () = client.hset("hash", "f77", 78).expect("stored");
    assert!(!client.hexists::<_, _, bool>("hash", "nosuch").expect("an answer"));
    let range: String = client.getrange("big", 100_000, 100_004).expect("an answer");
    assert_eq!(range, "xxxxx");
    let () = client.setrange("big", 150_000, "yy").expect("stored");
    server.kill();
    server.restart();
    let mut client = server.client();
    let all: std::collections::HashMap<String, u32> = client.hgetall("hash").expect("an answer");
    assert_eq!((all.len(), all["f77"], all["f78"]), (2000, 78, 78));
    let whole: String = client.get("big").expect("an answer");
    assert_eq!(whole.len(), 200_000);
    assert_eq!(&whole[149_999..150_003], "xyyx");
}

#[test]
fn cold_rows_are_read_from_files_where_the_command_runs() {
    const KEYS: u32 = 20_000;
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(1000) {
        let mut pipe = redis::pipe();
        for n in keys {
            pipe.set(format!("k{n}"), format!("value {n}")).ignore();
            pipe.hset(format!("h{}", n % 3), format!("f{n}"), n).ignore();
        }
        let () = pipe.query(&mut client).expect("stored");
    }
    drop(client);
    server.stop();
    server.restart();
    let mut client = server.client();
    let reads = |client: &mut redis::Connection, name: &str| -> u64 {
        std::thread::sleep(Duration::from_millis(100));
        let info: redis::InfoDict = redis::cmd("INFO").query(client).expect("INFO");
        info.get(name).expect("a number")
    };
    // The indexes are read in the background.
    let begun = Instant::now();
    while reads(&mut client, "point_read_bytes") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "no file is open for point reads");
    }
    for n in (0..KEYS).step_by(7) {
        let value: String = client.get(format!("k{n}")).expect("an answer");
        assert_eq!(value, format!("value {n}"));
        let field: u32 = client.hget(format!("h{}", n % 3), format!("f{n}")).expect("an answer");
        assert_eq!(field, n);
        let absent: Option<u32> =
            client.hget(format!("h{}", n % 3), format!("g{n}")).expect("an answer");
        assert_eq!(absent, None);
    }
    let from_files =
        reads(&mut client, "point_reads_cached") + reads(&mut client, "point_reads_disk");
    let elsewhere = reads(&mut client, "point_reads_elsewhere");
    assert!(from_files > 3 * u64::from(KEYS / 7), "{from_files} reads of files");
    assert!(elsewhere < from_files / 10, "{elsewhere} reads through SlateDB");
}

#[test]
fn a_damaged_or_foreign_directory_is_refused_by_name() {
    let mut server = Server::start(&[]);
    let mut client = server.client();
    for n in 0..100u32 {
        let () = client.set(format!("k{n}"), n).expect("stored");
    }
    assert!(server.refused(&["--port", "1"]).contains("in use by another process"));
    server.kill();
    assert!(server.refused(&["--shards", "77"]).contains("shards"));
    let manifest = server.dir().join("data/flagstone.json");
    let good = std::fs::read_to_string(&manifest).expect("read");
    std::fs::write(&manifest, good.replace("\"format\": 1", "\"format\": 99")).expect("written");
    assert!(server.refused(&[]).contains("format 99"));
    std::fs::write(&manifest, "{").expect("written");
    assert!(server.refused(&[]).contains("flagstone.json is damaged"));
    std::fs::write(&manifest, good).expect("written");
    server.restart();
    assert_eq!(server.client().get::<_, u32>("k99").expect("an answer"), 99);
}

#[test]
fn a_second_server_does_not_share_the_port() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let other = server.dir().join("other");
    let said = server.refused(&["--dir", &other.display().to_string()]);
    assert!(said.contains("listening on tcp 127.0.0.1"), "{said}");
    let pong: String = redis::cmd("PING").query(&mut server.client()).expect("an answer");
    assert_eq!(pong, "PONG");
}

/// Writes keys of both workers at once until the connection breaks.
fn write_across(server: &Server, total: &AtomicU64) {
    let mut client = server.client();
    for round in 0u64.. {
        let mut pipe = redis::pipe();
        for n in 0..20u64 {
            let key = |shard: &str| format!("{shard}{}", (round + n) % 50);
            pipe.mset(&[(key("{a}"), round), (key("{b}"), round)]).ignore();
        }
        if pipe.query::<()>(&mut client).is_err() {
            return;
        }
        total.fetch_add(20, Ordering::Relaxed);
    }
}

#[test]
fn a_clean_stop_under_commands_on_several_workers_leaves_nothing_to_replay() {
    let mut server = Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "no"]);
    for stop in 0..8 {
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| write_across(&server, &total));
            }
            while total.load(Ordering::Relaxed) < 1000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.signal(Signal::TERM);
        });
        server.stop();
        server.restart();
        let info: String =
            redis::cmd("INFO").arg("flagstone").query(&mut server.client()).expect("an answer");
        assert!(info.contains("\r\njournal_replayed_records:0\r\n"), "stop {stop}: {info}");
    }
}
