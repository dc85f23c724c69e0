//! Writes of keys that are not in memory, which do not wait for the rows that they replace.

use super::Server;
use super::checkpoints::done;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const OPTIONS: [&str; 8] =
    ["--workers", "2", "--shards", "3", "--memory-budget", "32mb", "--handover-interval-ms", "100"];

pub(crate) fn run(client: &mut redis::Connection, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.query(client).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

pub(crate) fn number(client: &mut redis::Connection, words: &[&str]) -> i64 {
    match run(client, words) {
        redis::Value::Int(n) => n,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// Returns a field of INFO.
pub(crate) fn info(client: &mut redis::Connection, field: &str) -> String {
    let text: String = redis::cmd("INFO").arg("everything").query(client).expect("a text");
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().to_owned()
}

/// Waits until a database has so many keys: those that have expired go by themselves.
fn has(client: &mut redis::Connection, keys: usize, at: &str) {
    let begun = Instant::now();
    loop {
        let found = number(client, &["DBSIZE"]);
        if found == keys as i64 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{at}: {found} keys, not {keys}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const NAMES: [&str; 9] = ["plain", "timed", "due", "long", "hash", "set", "list", "zset", "stream"];

/// Sets keys of every type, some with an expiry, and returns those that stay.
fn fill(client: &mut redis::Connection) -> BTreeSet<String> {
    for n in 0..200 {
        let key = |name: &str| format!("{name}{n}");
        run(client, &["SET", &key("plain"), "old"]);
        run(client, &["SET", &key("timed"), "old", "EX", "1000"]);
        run(client, &["SET", &key("due"), "old", "PX", "1"]);
        run(client, &["SET", &key("long"), &"x".repeat(20_000)]);
        run(client, &["HSET", &key("hash"), "a", "1", "b", &"y".repeat(100)]);
        run(client, &["HEXPIRE", &key("hash"), "900", "FIELDS", "1", "a"]);
        run(client, &["SADD", &key("set"), "a", "b", &"z".repeat(100)]);
        run(client, &["RPUSH", &key("list"), &"l".repeat(2000), "2"]);
        run(client, &["ZADD", &key("zset"), "1", "a", "2", &"m".repeat(100)]);
        run(client, &["XADD", &key("stream"), "*", "field", &"s".repeat(2000)]);
    }
    let names = NAMES.iter().filter(|name| **name != "due");
    names.flat_map(|name| (0..200).map(move |n| format!("{name}{n}"))).collect()
}

#[test]
fn replacements_of_cold_keys_of_any_type_are_counted_exactly() {
    let mut server = Server::start(&OPTIONS);
    let mut client = server.client();
    let mut keys = fill(&mut client);
    for round in 0..3 {
        // Nothing is in memory behind a restart.
        match round {
            1 => server.kill(),
            _ => server.stop(),
        }
        server.restart();
        client = server.client();
        let mut timed = BTreeMap::new();
        for n in (round..200).step_by(2) {
            for (place, name) in NAMES.iter().chain(&["new"]).enumerate() {
                let key = format!("{name}{n}");
                match (n + place) % 4 {
                    0 => run(&mut client, &["SET", &key, "new"]),
                    1 => run(&mut client, &["SET", &key, "new", "EX", "5000"]),
                    2 => run(&mut client, &["PSETEX", &key, "6000000", "new"]),
                    _ => run(&mut client, &["MSET", &key, "new", "{a}other", "1"]),
                };
                timed.insert(key, matches!((n + place) % 4, 1 | 2));
            }
        }
        keys.extend(timed.keys().cloned().chain(["{a}other".to_owned()]));
        has(&mut client, keys.len(), &format!("round {round}"));
        let passes = info(&mut client, "old_row_passes").parse::<u64>().expect("a number");
        assert!(passes > 0, "no write was blind in round {round}");
        // The figure is a moment old.
        let begun = Instant::now();
        while info(&mut client, "unresolved_writes") != "0" {
            assert!(begun.elapsed() < Duration::from_secs(10), "they stay unresolved");
        }
        for (key, is_timed) in timed {
            assert_eq!(number(&mut client, &["TTL", &key]) > 1000, is_timed, "{key}");
        }
        server.kill();
        server.restart();
        client = server.client();
        has(&mut client, keys.len(), &format!("after a kill in round {round}"));
    }
    server.stop();
    let data = server.dir().join("data").display().to_string();
    let checked = done(&["check", "--dir", &data]);
    assert!(checked.contains("shards"), "{checked}");
}
