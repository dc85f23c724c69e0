//! Commands on keys that are not in memory request them before they change anything.

use super::super::Stop;
use super::super::testing::{NOW_MS, store, try_run};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_wire::resp::Proto;

/// Runs a command; returns the keys it missed, in order, and its reply. Missing keys move over from
/// `disk`.
pub(crate) fn run(store: &mut Store, disk: &mut Store, words: &[&str]) -> (Vec<String>, String) {
    let settings = DataSettings::default();
    let mut missed = Vec::new();
    loop {
        match try_run(store, &settings, Proto::Resp2, NOW_MS, words) {
            Ok(reply) => return (missed, reply),
            Err(Stop::Error(text)) => return (missed, text.to_string()),
            Err(Stop::Miss(mut needs)) => {
                let need = needs.pop().unwrap();
                assert!(!store.is_dirty(), "{words:?} changed something before it missed");
                missed.push(String::from_utf8(need.key.to_vec()).unwrap());
                let entry = disk.lend(0, &need.key).unwrap();
                store.apply_loaded(0, entry);
            }
            Err(stop) => panic!("{stop:?}"),
        }
    }
}

/// Returns an empty store, and a disk filled by `setup`.
pub(crate) fn cold(setup: &[&[&str]]) -> (Store, Store) {
    let mut disk = store(false);
    for words in setup {
        run(&mut disk, &mut store(false), words);
    }
    disk.seal();
    (store(true), disk)
}

#[test]
fn cold_keys_are_asked_for_before_anything_changes() {
    for (words, missed, reply) in [
        (&["get", "a"][..], &["a"][..], "$1\r\n1\r\n"),
        (&["getdel", "a"], &["a"], "$1\r\n1\r\n"),
        (&["getex", "a", "PX", "5"], &["a"], "$1\r\n1\r\n"),
        (&["set", "a", "2", "GET"], &["a"], "$1\r\n1\r\n"),
        (&["set", "a", "2", "IFEQ", "1"], &["a"], "+OK\r\n"),
        (&["set", "none", "2", "XX"], &["none"], "$-1\r\n"),
        (&["append", "a", "2"], &["a"], ":2\r\n"),
        (&["setrange", "a", "1", "2"], &["a"], ":2\r\n"),
        (&["incrby", "a", "4"], &["a"], ":5\r\n"),
        (&["incrbyfloat", "a", "0.5"], &["a"], "$3\r\n1.5\r\n"),
        (&["mget", "a", "none", "b"], &["a", "none", "b"], "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\nx\r\n"),
        (&["mset", "none", "1", "b", "2"], &["none", "b"], "+OK\r\n"),
        (&["msetnx", "none", "1", "b", "2"], &["none", "b"], ":0\r\n"),
        (&["lcs", "a", "b"], &["a", "b"], "$0\r\n\r\n"),
    ] {
        let (mut store, mut disk) = cold(&[&["set", "a", "1"], &["set", "b", "x"]]);
        assert_eq!(
            run(&mut store, &mut disk, words),
            (missed.iter().map(|&key| key.into()).collect(), reply.into()),
            "{words:?}"
        );
    }
}

#[test]
fn commands_that_change_nothing_store_nothing() {
    for words in [
        &["set", "a", "2", "NX"][..],
        &["set", "a", "2", "IFEQ", "9"],
        &["set", "none", "2", "PXAT", "1"],
        &["setnx", "a", "2"],
        &["setrange", "a", "5", ""],
        &["setrange", "none", "5", ""],
        &["getdel", "none"],
        &["getex", "a"],
        &["getex", "a", "PERSIST"],
        &["incrby", "a", "9223372036854775807"],
        &["incrbyfloat", "none", "x"],
        &["msetnx", "none", "1", "a", "2"],
    ] {
        let mut store = store(false);
        run(&mut store, &mut self::store(false), &["set", "a", "1"]);
        store.seal();
        run(&mut store, &mut self::store(false), words);
        assert!(!store.is_dirty(), "{words:?}");
    }
}

#[test]
fn a_time_that_has_come_deletes() {
    for words in [&["set", "a", "2", "PXAT", "1000000"][..], &["getex", "a", "EXAT", "1000"]] {
        let mut store = store(false);
        run(&mut store, &mut self::store(false), &["set", "a", "1"]);
        run(&mut store, &mut self::store(false), words);
        assert!(!store.exists(0, b"a").unwrap(), "{words:?}");
    }
}
