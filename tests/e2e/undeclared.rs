//! Commands whose keys follow from data: SORT with BY and GET. A command sees one moment, wherever
//! its keys are, in memory or not.

use super::Server;
use redis::{Commands, Connection};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Little memory: most keys are cold.
const SMALL: [&str; 2] = ["--memory-budget", "16mb"];

fn start(workers: &str) -> Server {
    let options = ["--workers", workers, "--shards", "4", "--appendfsync", "no"];
    let handover = ["--handover-interval-ms", "100"];
    Server::start(&[&options[..], &SMALL, &handover].concat())
}

fn sort(client: &mut Connection, args: &[&str]) -> Vec<Option<u64>> {
    redis::cmd("SORT").arg(args).query(client).expect("an answer")
}

fn add(client: &mut Connection, key: &str, elements: std::ops::Range<u64>) {
    let elements: Vec<u64> = elements.collect();
    let () = client.sadd(key, elements).expect("stored");
}

/// Uses up the memory, so that unused values get cold, until told to stop.
fn fill(server: &Server, stop: &AtomicBool) {
    let mut client = server.client();
    let value = "x".repeat(50_000);
    for n in (0u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let () = client.set(format!("fill{}", n % 400), &value).expect("stored");
    }
}

#[test]
fn sort_finds_its_keys_on_every_shard_and_in_the_cold() {
    const COUNT: u64 = 1000;
    for workers in ["1", "2"] {
        let mut server = start(workers);
        let mut client = server.client();
        add(&mut client, "s", 0..COUNT);
        let pairs = |name: &str, value: &dyn Fn(u64) -> u64| -> Vec<(String, u64)> {
            (0..COUNT).map(|n| (format!("{name}{n}"), value(n))).collect()
        };
        let () = client.mset(&pairs("w_", &|n| COUNT - n)).expect("stored");
        let () = client.mset(&pairs("d_", &|n| n * 2)).expect("stored");
        for n in 0..COUNT {
            let () = client.hset(format!("h_{n}"), "f", n * 3).expect("stored");
        }
        let want: Vec<Option<u64>> =
            (0..COUNT).rev().flat_map(|n| [Some(n), Some(n * 2), Some(n * 3), None]).collect();
        let query = ["s", "BY", "w_*", "GET", "#", "GET", "d_*", "GET", "h_*->f", "GET", "no*"];
        assert_eq!(sort(&mut client, &query), want);
        for restart in [Server::kill, Server::stop] {
            restart(&mut server);
            server.restart();
            client = server.client();
            let began = Instant::now();
            assert_eq!(sort(&mut client, &query), want, "{workers} workers");
            assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
        }
    }
}

/// Groups of keys that are set together; each is used too seldom to stay in memory.
const GROUPS: u64 = 50;

/// Sets the ten keys of one group after the other to the same number, and a key that is elsewhere.
fn write_equal(server: &Server, name: &str, seed: u64, stop: &AtomicBool) {
    let mut client = server.client();
    for n in (seed..).step_by(7).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let group = n % GROUPS;
        let mut keys: Vec<_> = (0..10).map(|k| (format!("{name}{group}_{k}"), n)).collect();
        keys.push(("{b}other".to_owned(), n));
        // Some writers go through the keys in the other direction.
        if seed.is_multiple_of(2) {
            keys.reverse();
        }
        let () = client.mset(&keys).expect("stored");
    }
}

/// Reads groups of keys that writers set to equal numbers, at least a hundred times.
fn read_equal(server: &Server, name: &str, seed: u64, enough: &AtomicBool) {
    let mut client = server.client();
    let mut left: u32 = 100;
    for round in (seed..).step_by(13) {
        if left == 0 && enough.load(Ordering::Relaxed) {
            return;
        }
        left = left.saturating_sub(1);
        let pattern = format!("{name}{}_*", round % GROUPS);
        let by = if round.is_multiple_of(2) { "nosort" } else { &pattern };
        let found = sort(&mut client, &[&format!("{name}s"), "BY", by, "GET", &pattern]);
        assert_eq!(found.len(), 10);
        assert!(found[0].is_some(), "keys were not found: {found:?}");
        assert!(found.iter().all(|n| *n == found[0]), "an MSET was seen in part: {found:?}");
    }
}

/// Waits until so many keys have been dropped from memory.
fn wait_for_drops(server: &Server, count: u64) {
    let mut client = server.client();
    let deadline = Instant::now() + Duration::from_secs(100);
    loop {
        let text: String =
            redis::cmd("INFO").arg("flagstone").query(&mut client).expect("an answer");
        let info = redis::InfoDict::new(&text);
        let dropped: u64 = info.get("hot_dropped_entries").expect("a number");
        if dropped >= count || Instant::now() > deadline {
            assert!(dropped >= count, "only {dropped} keys were dropped");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sort_sees_all_or_nothing_of_an_mset() {
    for workers in ["1", "3"] {
        let server = start(workers);
        let mut client = server.client();
        // Keys all over the shards, and keys of one shard that are lent to a coordinator.
        let names = ["w", "{a}w"];
        for name in names {
            add(&mut client, &format!("{name}s"), 0..10);
            let keys = (0..GROUPS).flat_map(|g| (0..10).map(move |k| format!("{name}{g}_{k}")));
            let first: Vec<_> = keys.map(|key| (key, 0)).collect();
            let () = client.mset(&first).expect("stored");
        }
        let (enough, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for (name, seed) in names.iter().flat_map(|name| (1..4).map(move |seed| (name, seed))) {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || write_equal(server, name, seed, stop));
            }
            scope.spawn(|| fill(&server, &stop));
            let readers = names.map(|name| {
                let (server, enough) = (&server, &enough);
                [1, 2].map(|seed| scope.spawn(move || read_equal(server, name, seed, enough)))
            });
            wait_for_drops(&server, 500);
            enough.store(true, Ordering::Relaxed);
            let done: Vec<_> =
                readers.into_iter().flatten().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(done.into_iter().all(|reader| reader.is_ok()), "with {workers} workers");
        });
    }
}

#[test]
fn a_sort_gets_its_answer_while_its_keys_change() {
    for workers in ["1", "2"] {
        let server = start(workers);
        add(&mut server.client(), "s", 0..50);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for lane in 1..4u64 {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let mut client = server.client();
                    let mut pipe = redis::pipe();
                    for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let element = lane * 1_000_000_000 + n;
                        pipe.clear();
                        pipe.sadd("s", element).ignore();
                        pipe.set(format!("w_{element}"), element).ignore();
                        pipe.srem("s", element - 20).ignore();
                        let () = pipe.query(&mut client).expect("stored");
                    }
                });
            }
            let mut client = server.client();
            let began = Instant::now();
            for _ in 0..50 {
                let found = sort(&mut client, &["s", "BY", "w_*", "GET", "#"]);
                assert!(found.len() >= 50);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
        });
    }
}

#[test]
fn commands_behind_a_sort_do_not_overtake_it() {
    for workers in ["1", "2"] {
        let server = start(workers);
        let mut client = server.client();
        for round in 0..50u64 {
            let found: (Vec<u64>,) = redis::pipe()
                .sadd("s", &[1, 2, 3])
                .ignore()
                .mset(&[("w_1", round), ("w_2", round), ("w_3", round)])
                .ignore()
                .cmd("SORT")
                .arg(&["s", "BY", "nosort", "GET", "w_*"])
                .set("w_1", 1000)
                .ignore()
                .set("w_2", 1000)
                .ignore()
                .set("w_3", 1000)
                .ignore()
                .query(&mut client)
                .expect("an answer");
            assert_eq!(found.0, [round; 3]);
        }
    }
}
