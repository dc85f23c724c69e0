//! Positions, encodings, and commands on lists that are not in memory.

use super::super::Stop;
use super::super::testing::{self, NOW_MS};
use super::{position, range_of};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

fn store() -> Store {
    testing::store(false)
}

/// Runs a command once; returns its reply, or why it stopped.
fn try_run(store: &mut Store, words: &[&str]) -> Result<String, Stop> {
    let settings = DataSettings { list_max_listpack_size: 4, ..DataSettings::default() };
    let reply = testing::try_run(store, &settings, Proto::Resp2, NOW_MS, words)?;
    Ok(reply.replace("\r\n", " "))
}

/// Runs a command that misses nothing, and returns its reply.
fn run(store: &mut Store, words: &[&str]) -> String {
    try_run(store, words).unwrap()
}

fn encoding(store: &mut Store, key: &[u8]) -> &'static str {
    store.entry_for_part(0, key).unwrap().value.encoding()
}

#[test]
fn ranges_are_cut_to_the_list() {
    for (start, stop, range) in [
        (0, -1, (0, 5)),
        (-3, -2, (2, 2)),
        (-9, 1, (0, 2)),
        (3, 99, (3, 2)),
        (3, 2, (0, 0)),
        (5, 9, (0, 0)),
        (0, -6, (0, 0)),
        (0, -5, (0, 1)),
        (i64::MIN, i64::MAX, (0, 5)),
        (i64::MAX, i64::MIN, (0, 0)),
    ] {
        assert_eq!(range_of(5, start, stop), range, "{start} {stop}");
    }
    assert_eq!((position(5, -5), position(5, -6), position(5, 7)), (Some(0), None, Some(7)));
}

#[test]
fn a_list_grows_and_shrinks_into_its_encodings() {
    let mut store = store();
    run(&mut store, &["rpush", "l", "a", "b", "c", "d"]);
    assert_eq!(encoding(&mut store, b"l"), "listpack");
    run(&mut store, &["lpush", "l", "e"]);
    assert_eq!(encoding(&mut store, b"l"), "quicklist");
    assert_eq!(run(&mut store, &["lpop", "l", "2"]), "*2 $1 e $1 a ");
    assert_eq!(encoding(&mut store, b"l"), "quicklist");
    assert_eq!(run(&mut store, &["lmove", "l", "other", "right", "left"]), "$1 d ");
    assert_eq!(encoding(&mut store, b"l"), "listpack");
    assert_eq!(run(&mut store, &["linsert", "l", "before", "x", &"y".repeat(9000)]), ":-1 ");
    assert_eq!(encoding(&mut store, b"l"), "quicklist");
    assert_eq!(run(&mut store, &["ltrim", "l", "0", "-1"]), "+OK ");
    assert_eq!(encoding(&mut store, b"l"), "listpack");
}

#[test]
fn a_list_moves_onto_itself() {
    let mut store = store();
    run(&mut store, &["rpush", "l", "a"]);
    assert_eq!(run(&mut store, &["rpoplpush", "l", "l"]), "$1 a ");
    run(&mut store, &["rpush", "l", "b", "c"]);
    assert_eq!(run(&mut store, &["lmove", "l", "l", "left", "right"]), "$1 a ");
    assert_eq!(run(&mut store, &["lrange", "l", "0", "-1"]), "*3 $1 b $1 c $1 a ");
}

#[test]
fn cold_lists_are_asked_for_the_needed_parts() {
    let mut store = store();
    let elements: Vec<String> = (0..5000).map(|n| format!("element {n}")).collect();
    let words: Vec<&str> =
        ["rpush", "l"].into_iter().chain(elements.iter().map(|e| &**e)).collect();
    run(&mut store, &words);
    store.seal();
    let mut row = Vec::new();
    encode_meta(&mut row, store.entry_for_part(0, b"l").unwrap());
    let cold = decode_entry(b"l", 0, &row).unwrap().value;
    assert_eq!(cold.encoding(), "quicklist");
    store.entry_for_part(0, b"l").unwrap().value = cold;
    let mut missed = |words: &[&str]| match try_run(&mut store, words) {
        Err(Stop::Miss(need)) => need.into_iter().next().and_then(|need| need.part),
        other => panic!("{words:?} did not miss: {other:?}"),
    };
    for (words, from_end) in [
        (&["lpush", "l", "x"][..], false),
        (&["rpush", "l", "x"], true),
        (&["rpop", "l", "3"], true),
        (&["lrange", "l", "0", "5"], false),
        (&["lrange", "l", "-5", "-1"], true),
        (&["ltrim", "l", "1", "-1"], false),
        (&["lmove", "l", "other", "right", "left"], true),
        (&["lset", "l", "-1", "x"], true),
    ] {
        let Some(Part::Page { reverse, limit, .. }) = missed(words) else { panic!("{words:?}") };
        assert_eq!((reverse, limit), (from_end, 8), "{words:?}");
    }
    assert!(matches!(missed(&["lindex", "l", "2500"]), Some(Part::Index { .. })));
    for words in [&["lrange", "l", "0", "-1"][..], &["dump", "l"]] {
        assert_eq!(missed(words), Some(Part::All));
    }
    for words in [&["lrange", "l", "3", "2"][..], &["lpop", "l", "0"]] {
        assert_eq!(run(&mut store, words), "*0 ");
    }
    assert_eq!(run(&mut store, &["llen", "l"]), ":5000 ");
    assert_eq!(run(&mut store, &["ltrim", "l", "1", "0"]), "+OK ");
    assert_eq!(run(&mut store, &["llen", "l"]), ":0 ");
}
