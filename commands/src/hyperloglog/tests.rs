//! Sketches that are not in memory, and commands that change nothing.

use super::super::string::tests::{cold, run};
use super::super::testing::store;

const SETUP: &[&[&str]] =
    &[&["pfadd", "a", "1", "2"], &["pfadd", "b", "2", "3", "4"], &["set", "s", "x"]];

#[test]
fn cold_sketches_are_asked_for_before_anything_changes() {
    for (words, missed, reply) in [
        (&["pfadd", "a", "5"][..], &["a"][..], ":1\r\n"),
        (&["pfadd", "a", "2"], &["a"], ":0\r\n"),
        (&["pfadd", "none"], &["none"], ":1\r\n"),
        (&["pfcount", "a"], &["a"], ":2\r\n"),
        (&["pfcount", "a", "none", "b"], &["a", "none", "b"], ":4\r\n"),
        (&["pfmerge", "none"], &["none"], "+OK\r\n"),
        (&["pfmerge", "none", "a", "b"], &["none", "a", "b"], "+OK\r\n"),
        (&["pfdebug", "encoding", "a"], &["a"], "+sparse\r\n"),
        (&["pfdebug", "todense", "a"], &["a"], ":1\r\n"),
        (&["pfdebug", "decode", "none"], &["none"], "ERR The specified key does not exist"),
        (
            &["pfmerge", "a", "s", "b"],
            &["a", "s"],
            "WRONGTYPE Key is not a valid HyperLogLog string value.",
        ),
    ] {
        let (mut store, mut disk) = cold(SETUP);
        assert_eq!(
            run(&mut store, &mut disk, words),
            (missed.iter().map(|&key| key.into()).collect(), reply.into()),
            "{words:?}"
        );
    }
}

#[test]
fn commands_that_change_nothing_store_nothing() {
    let mut none = store(false);
    for words in [
        &["pfadd", "a", "1"][..],
        &["pfadd", "a"],
        &["pfadd", "s", "1"],
        &["pfcount", "a", "b"],
        &["pfcount", "b"],
        &["pfcount", "none"],
        &["pfmerge", "a", "s"],
        &["pfdebug", "decode", "a"],
        &["pfdebug", "nosuch", "a"],
        &["pfdebug", "simd", "on"],
    ] {
        let mut store = store(false);
        for setup in SETUP {
            run(&mut store, &mut none, setup);
        }
        // The estimate is cached in the sketch.
        assert_eq!(run(&mut store, &mut none, &["pfcount", "b"]).1, ":3\r\n");
        assert!(store.is_dirty());
        store.seal();
        run(&mut store, &mut none, words);
        assert!(!store.is_dirty(), "{words:?}");
    }
}

#[test]
fn merging_covers_all_sources() {
    let (mut store, mut none) = (store(false), store(false));
    let mut merged = |words: &[&str]| run(&mut store, &mut none, words).1;
    SETUP.iter().for_each(|setup| {
        merged(setup);
    });
    merged(&["pfmerge", "to", "a", "none"]);
    assert_eq!(merged(&["pfcount", "to"]), ":2\r\n");
    merged(&["pfmerge", "to", "b"]);
    assert_eq!(merged(&["pfcount", "to"]), ":4\r\n");
    assert_eq!(merged(&["pfdebug", "decode", "to"]).split(' ').count(), 9);
    // One dense source makes the target dense.
    merged(&["pfdebug", "todense", "b"]);
    merged(&["pfmerge", "to", "b"]);
    assert_eq!(merged(&["pfdebug", "encoding", "to"]), "+dense\r\n");
    assert_eq!(merged(&["pfcount", "to"]), ":4\r\n");
}
