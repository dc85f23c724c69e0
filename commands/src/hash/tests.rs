//! Commands on hashes that are partly in memory, on expired fields, and commands that change
//! nothing.

use super::super::Stop;
use super::super::testing::{NOW_MS, store, try_run};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{Hash, Value, decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

/// Runs a command once at a given time; returns its reply, or why it stopped.
fn try_at(store: &mut Store, now_ms: u64, words: &[&str]) -> Result<String, Stop> {
    let settings = DataSettings { hash_max_listpack_entries: 3, ..DataSettings::default() };
    try_run(store, &settings, Proto::Resp2, now_ms, words)
}

/// Runs a command that misses nothing at a given time, and returns its reply.
fn at(store: &mut Store, now_ms: u64, words: &[&str]) -> String {
    try_at(store, now_ms, words).unwrap()
}

fn hash_of<'a>(store: &'a mut Store, key: &[u8]) -> &'a mut Hash {
    match &mut store.entry_for_part(0, key).unwrap().value {
        Value::Hash(hash) => hash,
        _ => panic!("no hash"),
    }
}

fn encoding(store: &mut Store, key: &[u8]) -> &'static str {
    store.entry_for_part(0, key).unwrap().value.encoding()
}

/// Runs a command on a store that has only the meta row of a big hash `h`; returns the rows it
/// missed, in order, and its reply. Missing rows are loaded from `disk`.
fn run_cold(disk: &mut Store, words: &[&str]) -> (Vec<String>, String) {
    let mut row = Vec::new();
    disk.entry_for_part(0, b"h").unwrap().value.unpack(7);
    encode_meta(&mut row, disk.entry(0, b"h").unwrap().unwrap());
    let mut store = store(true);
    store.apply_loaded(0, decode_entry(b"h", 0, &row).unwrap());
    let mut missed = Vec::new();
    loop {
        let need = match try_at(&mut store, NOW_MS, words) {
            Ok(reply) => return (missed, reply),
            Err(Stop::Miss(mut needs)) => needs.pop().unwrap(),
            Err(other) => panic!("{words:?}: {other:?}"),
        };
        assert!(!store.is_dirty(), "{words:?} changed something before it missed");
        let (known, hash) = (hash_of(disk, b"h"), hash_of(&mut store, b"h"));
        match need.part.unwrap() {
            Part::Fields(names) => {
                missed.push(names.iter().map(|n| String::from_utf8_lossy(n)).collect());
                for name in names {
                    hash.apply_loaded(&name, known.peek(&name).unwrap().cloned());
                }
            }
            part @ (Part::All | Part::Page { .. }) => {
                missed.push(if part == Part::All { "*" } else { "page" }.into());
                known.iter().for_each(|(name, field)| hash.apply_loaded(name, Some(field.clone())));
                hash.mark_complete();
            }
            part => panic!("a small hash has no {part:?}"),
        }
    }
}

#[test]
fn fields_that_are_not_in_memory_are_asked_for_before_anything_changes() {
    let mut disk = store(false);
    at(&mut disk, NOW_MS, &["hset", "h", "a", "1", "b", "2", "c", "3", "d", "4"]);
    disk.seal();
    for (words, missed, reply) in [
        (&["hget", "h", "a"][..], &["a"][..], "$1\r\n1\r\n"),
        (&["hmget", "h", "a", "x"], &["ax"], "*2\r\n$1\r\n1\r\n$-1\r\n"),
        (&["hexists", "h", "x"], &["x"], ":0\r\n"),
        (&["hstrlen", "h", "a"], &["a"], ":1\r\n"),
        (&["hlen", "h"], &[], ":4\r\n"),
        (&["hset", "h", "a", "9", "x", "9"], &["ax"], ":1\r\n"),
        (&["hsetnx", "h", "a", "9"], &["a"], ":0\r\n"),
        (&["hdel", "h", "a", "x", "a"], &["axa"], ":1\r\n"),
        (&["hincrby", "h", "a", "4"], &["a"], ":5\r\n"),
        (&["hincrbyfloat", "h", "x", "0.5"], &["x"], "$3\r\n0.5\r\n"),
        (&["hexpire", "h", "9", "FIELDS", "2", "a", "x"], &["ax"], "*2\r\n:1\r\n:-2\r\n"),
        (&["hpersist", "h", "FIELDS", "1", "a"], &["a"], "*1\r\n:-1\r\n"),
        (&["httl", "h", "FIELDS", "1", "a"], &["a"], "*1\r\n:-1\r\n"),
        (&["hgetdel", "h", "FIELDS", "1", "a"], &["a"], "*1\r\n$1\r\n1\r\n"),
        (&["hgetex", "h", "PX", "5", "FIELDS", "1", "a"], &["a"], "*1\r\n$1\r\n1\r\n"),
        (&["hsetex", "h", "FNX", "FIELDS", "1", "a", "9"], &["a"], ":0\r\n"),
        (&["hsetex", "h", "EX", "5", "FIELDS", "1", "a", "9"], &["a"], ":1\r\n"),
        (&["hsetex", "h", "EXAT", "5", "FIELDS", "1", "a", "9"], &["a"], ":1\r\n"),
        (&["hrandfield", "h", "0"], &[], "*0\r\n"),
        (&["hscan", "h", "0", "MATCH", "x"], &["page"], "*2\r\n$1\r\n0\r\n*0\r\n"),
    ] {
        assert_eq!(
            run_cold(&mut disk, words),
            (missed.iter().map(|&names| names.into()).collect(), reply.into()),
            "{words:?}"
        );
    }
}

#[test]
fn commands_that_change_nothing_store_nothing() {
    for words in [
        &["hget", "h", "x"][..],
        &["hsetnx", "h", "a", "9"],
        &["hdel", "h", "x"],
        &["hdel", "none", "x"],
        &["hexpire", "h", "9", "FIELDS", "1", "x"],
        &["hexpire", "h", "9", "XX", "FIELDS", "1", "a"],
        &["hpersist", "h", "FIELDS", "1", "a"],
        &["hgetdel", "h", "FIELDS", "1", "x"],
        &["hgetex", "h", "FIELDS", "1", "a"],
        &["hgetex", "h", "PERSIST", "FIELDS", "1", "a"],
        &["hsetex", "h", "FXX", "FIELDS", "1", "x", "9"],
        &["hsetex", "none", "FXX", "FIELDS", "1", "x", "9"],
        &["hsetex", "none", "EXAT", "5", "FIELDS", "1", "x", "9"],
        &["hrandfield", "h"],
        &["hscan", "h", "0"],
    ] {
        let mut store = store(false);
        at(&mut store, NOW_MS, &["hset", "h", "a", "1"]);
        store.seal();
        at(&mut store, NOW_MS, words);
        assert!(!store.is_dirty(), "{words:?}");
    }
}

#[test]
fn an_expired_field_is_hidden_and_goes_when_asked_for() {
    for (words, reply) in [
        (&["hget", "h", "a"][..], "$-1\r\n"),
        (&["hmget", "h", "a", "b"], "*2\r\n$-1\r\n$1\r\n2\r\n"),
        (&["hexists", "h", "a"], ":0\r\n"),
        (&["hstrlen", "h", "a"], ":0\r\n"),
        (&["hgetdel", "h", "FIELDS", "1", "a"], "*1\r\n$-1\r\n"),
        (&["hgetex", "h", "FIELDS", "1", "a"], "*1\r\n$-1\r\n"),
        (&["hsetex", "h", "FXX", "FIELDS", "1", "a", "9"], ":0\r\n"),
        (&["hrandfield", "h"], "$1\r\nb\r\n"),
    ] {
        let mut store = store(false);
        at(&mut store, NOW_MS, &["hset", "h", "a", "1", "b", "2"]);
        at(&mut store, NOW_MS, &["hpexpire", "h", "10", "FIELDS", "1", "a"]);
        let later = NOW_MS + 10;
        assert_eq!(at(&mut store, later, &["hgetall", "h"]), "*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
        assert_eq!(at(&mut store, later, &["hlen", "h"]), ":2\r\n");
        assert_eq!(at(&mut store, later, words), reply, "{words:?}");
        assert_eq!(at(&mut store, later, &["hlen", "h"]), ":1\r\n", "{words:?}");
        assert_eq!(store.stats.expired_fields, 1, "{words:?}");
    }
}

#[test]
fn the_last_field_takes_the_key_along() {
    for words in [
        &["hdel", "h", "a"][..],
        &["hget", "h", "a"],
        &["hmget", "h", "a"],
        &["hgetdel", "h", "FIELDS", "1", "a"],
        &["hgetex", "h", "PXAT", "5", "FIELDS", "1", "a"],
        &["hsetex", "h", "PXAT", "5", "FIELDS", "1", "a", "2"],
        &["hsetex", "h", "FXX", "FIELDS", "1", "a", "2"],
        &["hrandfield", "h", "5"],
    ] {
        let mut store = store(false);
        at(&mut store, NOW_MS, &["hset", "h", "a", "1"]);
        at(&mut store, NOW_MS, &["hpexpire", "h", "10", "FIELDS", "1", "a"]);
        at(&mut store, NOW_MS + 10, words);
        assert!(!store.exists(0, b"h").unwrap(), "{words:?}");
    }
    let mut store = store(false);
    at(&mut store, NOW_MS, &["hset", "h", "a", "1"]);
    at(&mut store, NOW_MS, &["hexpire", "h", "0", "FIELDS", "1", "a"]);
    assert!(!store.exists(0, b"h").unwrap());
}

#[test]
fn encodings_follow_the_limits() {
    let mut store = store(false);
    at(&mut store, NOW_MS, &["hset", "h", "a", "1", "b", "2", "c", "3"]);
    assert_eq!(encoding(&mut store, b"h"), "listpack");
    at(&mut store, NOW_MS, &["hexpire", "h", "9", "FIELDS", "1", "a"]);
    at(&mut store, NOW_MS, &["hset", "h", "a", "1"]);
    assert_eq!(encoding(&mut store, b"h"), "listpackex");
    at(&mut store, NOW_MS, &["hincrby", "h", "d", "1"]);
    assert_eq!(encoding(&mut store, b"h"), "hashtable");
    let long = "x".repeat(65);
    at(&mut store, NOW_MS, &["hset", "g", "a", &long]);
    assert_eq!(encoding(&mut store, b"g"), "hashtable");
}

#[test]
fn a_reply_with_all_fields_is_at_least_as_long_as_is_foreseen() {
    let mut store = store(false);
    for n in [0, 1, 9, 100, 5000] {
        let (long, timed) = ("f".repeat(n), format!("t{n}"));
        at(&mut store, NOW_MS, &["HSET", "h", &long, &"v".repeat(n), &timed, ""]);
        at(&mut store, NOW_MS, &["HPEXPIREAT", "h", "2000000", "FIELDS", "1", &timed]);
        let reply = at(&mut store, NOW_MS, &["HGETALL", "h"]).len() as u64;
        let least = hash_of(&mut store, b"h").least_reply(NOW_MS);
        assert!((1..=reply).contains(&least), "{n}: {least} {reply}");
        assert!(n < 5000 || least * 10 > reply * 9, "{least} {reply}");
    }
    let now = hash_of(&mut store, b"h").least_reply(2_000_000);
    assert_eq!(now, 0, "nobody knows how many have expired");
}
