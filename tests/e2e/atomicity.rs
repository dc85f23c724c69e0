//! A command on keys of several shards is stored whole or not at all.

use super::Server;
use redis::Commands;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Kills of a run; `FLAGSTONE_TEST_KILLS` asks for more.
fn kills() -> u64 {
    std::env::var("FLAGSTONE_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// Two keys in different shards of two.
const LEFT: &str = "{a}";
const RIGHT: &str = "{b}";

fn write_pairs(server: &Server, lane: u64, first: u64) {
    let mut client = server.client();
    for n in first.. {
        let pairs = [(format!("{LEFT}{lane}"), n), (format!("{RIGHT}{lane}"), n)];
        if client.mset::<_, _, ()>(&pairs).is_err() {
            return;
        }
    }
}

/// Lanes of a pipeline.
const PIPELINED: u64 = 8;

/// The same in pipelines, each of which runs in one loan.
fn write_pairs_together(server: &Server, first: u64) {
    let mut client = server.client();
    for n in first.. {
        let mut pipeline = redis::pipe();
        for lane in 0..PIPELINED {
            pipeline.mset(&[(format!("{LEFT}p{lane}"), n), (format!("{RIGHT}p{lane}"), n)]);
        }
        if pipeline.query::<()>(&mut client).is_err() {
            return;
        }
    }
}

fn rename_back_and_forth(server: &Server, lane: u64) {
    let mut client = server.client();
    let (a, b) = (format!("{LEFT}r{lane}"), format!("{RIGHT}r{lane}"));
    loop {
        let here = client.exists::<_, bool>(&a);
        let moved = match here {
            Ok(true) => client.rename::<_, _, ()>(&a, &b),
            Ok(false) => client.rename::<_, _, ()>(&b, &a),
            Err(_) => return,
        };
        if moved.is_err() {
            return;
        }
    }
}

#[test]
fn mset_and_rename_over_shards_are_never_torn_by_kill_9() {
    for mode in ["always", "everysec"] {
        let options = ["--workers", "2", "--shards", "2", "--appendfsync", mode];
        let options = [&options[..], &["--handover-interval-ms", "100"]].concat();
        let mut server = Server::start(&options);
        let mut client = server.client();
        for lane in 0..3 {
            let () = client.set(format!("{LEFT}r{lane}"), lane).expect("stored");
        }
        drop(client);
        for kill in 0..kills() {
            std::thread::scope(|scope| {
                for lane in 0..3 {
                    let server = &server;
                    scope.spawn(move || write_pairs(server, lane, kill * 1_000_000 + 1));
                    scope.spawn(move || rename_back_and_forth(server, lane));
                }
                let server = &server;
                scope.spawn(move || write_pairs_together(server, kill * 1_000_000 + 1));
                std::thread::sleep(Duration::from_millis(60 + kill * 37 % 150));
                server.kill_shared();
            });
            server.reap();
            server.restart();
            let mut client = server.client();
            let mut before = u64::MAX;
            for lane in 0..PIPELINED {
                let (left, right): (Option<u64>, Option<u64>) = client
                    .mget(&[format!("{LEFT}p{lane}"), format!("{RIGHT}p{lane}")])
                    .expect("an answer");
                assert_eq!(left, right, "an MSET of a pipeline was torn in {mode}");
                let n = left.unwrap_or_default();
                assert!(n <= before, "a later MSET of a pipeline is stored alone in {mode}");
                before = n;
            }
            for lane in 0..3u64 {
                let (left, right): (Option<u64>, Option<u64>) = client
                    .mget(&[format!("{LEFT}{lane}"), format!("{RIGHT}{lane}")])
                    .expect("an answer");
                assert_eq!(left, right, "an MSET was torn in {mode}");
                let (a, b): (Option<u64>, Option<u64>) = client
                    .mget(&[format!("{LEFT}r{lane}"), format!("{RIGHT}r{lane}")])
                    .expect("an answer");
                assert_eq!(a.xor(b), Some(lane), "a RENAME was torn in {mode}: {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn an_mget_over_shards_is_a_snapshot() {
    let server = Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "no"]);
    std::thread::scope(|scope| {
        scope.spawn(|| write_pairs(&server, 7, 1));
        let mut client = server.client();
        for _ in 0..2000 {
            let (left, right): (Option<u64>, Option<u64>) =
                client.mget(&[format!("{LEFT}7"), format!("{RIGHT}7")]).expect("an answer");
            assert_eq!(left, right);
        }
        server.kill_shared();
    });
}

#[test]
fn an_mset_behind_a_flushall_is_stored() {
    let options = ["--workers", "3", "--shards", "3", "--appendfsync", "no"];
    let mut server = Server::start(&options);
    for round in 0..10u64 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for lane in 0..3u64 {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let mut client = server.client();
                    for n in (1u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        // From every worker, on keys of two.
                        let pairs = [(format!("{LEFT}{lane}"), n), (format!("{RIGHT}{lane}"), n)];
                        let () = client.mset(&pairs).expect("stored");
                    }
                });
            }
            let mut client = server.client();
            for _ in 0..20 {
                let () = redis::cmd("FLUSHALL").query(&mut client).expect("flushed");
            }
            stop.store(true, Ordering::Relaxed);
        });
        let keys: Vec<_> =
            (0..3).flat_map(|lane| [LEFT, RIGHT].map(|side| format!("{side}{lane}"))).collect();
        let before: Vec<Option<u64>> = server.client().mget(&keys).expect("an answer");
        server.kill();
        server.restart();
        let after: Vec<Option<u64>> = server.client().mget(&keys).expect("an answer");
        assert_eq!(before, after, "in round {round}");
    }
}

/// A client that has its reply tells another one, which looks at whole databases: on any worker, while
/// others keep the workers busy.
#[test]
fn whoever_hears_of_a_command_finds_its_keys() {
    let options = ["--workers", "3", "--shards", "3", "--appendfsync", "no"];
    let server = Server::start(&options);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..3 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = server.client();
                while !stop.load(Ordering::Relaxed) {
                    let (left, right) = (format!("{LEFT}n{lane}"), format!("{RIGHT}n{lane}"));
                    let () = client.mset(&[(left, 1), (right, 1)]).expect("stored");
                }
            });
        }
        let (mut writers, mut readers) =
            ([(); 4].map(|()| server.client()), [(); 4].map(|()| server.client()));
        for n in 0..500 {
            let (writer, reader) = (&mut writers[n % 4], &mut readers[n / 4 % 4]);
            let _: () = redis::cmd("SELECT").arg(1).query(writer).expect("an answer");
            let _: () = redis::cmd("SELECT").arg(1).query(reader).expect("an answer");
            let pairs = [(format!("{LEFT}{n}"), n), (format!("{RIGHT}{n}"), n), (n.to_string(), n)];
            let () = writer.mset(&pairs).expect("stored");
            let keys: usize = redis::cmd("DBSIZE").query(reader).expect("an answer");
            assert_eq!(keys, 3 * (n + 1));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
