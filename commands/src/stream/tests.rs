//! Replies, and commands on streams that are not in memory.

use super::super::testing;
use super::super::{Awaited, Stop};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

/// Runs a command of words between blanks; returns its reply on one line, or its error.
fn run(store: &mut Store, command: &str) -> String {
    testing::run_line(store, &DataSettings::default(), Proto::Resp2, command)
}

fn store(commands: &[&str]) -> Store {
    let mut store = testing::store(false);
    for command in commands {
        let reply = run(&mut store, command);
        assert!(!reply.starts_with("ERR"), "{command}: {reply}");
    }
    store
}

fn check(store: &mut Store, cases: &[(&str, &str)]) {
    for (command, reply) in cases {
        assert_eq!(run(store, command), *reply, "{command}");
    }
}

const SMALLER: &str =
    "ERR The ID specified in XADD is equal or smaller than the target stream top item";

#[test]
fn ids_follow_the_time_and_the_last_one() {
    let mut store = store(&[]);
    check(
        &mut store,
        &[
            ("xadd s * f v", "$9 1000000-0"),
            ("xadd s * f v", "$9 1000000-1"),
            ("xadd s 1000000-* f v", "$9 1000000-2"),
            ("xadd s 2000000-* f v", "$9 2000000-0"),
            ("xadd s * f v", "$9 2000000-1"),
            ("xadd s 5-* f v", SMALLER),
            ("xadd s 2000000-1 f v", SMALLER),
            ("xadd s 0-0 f v", "ERR The ID specified in XADD must be greater than 0-0"),
            ("xadd new 0-* f v", "$3 0-1"),
            ("xadd new nomkstream * f", "ERR wrong number of arguments for 'xadd' command"),
            ("xadd none nomkstream * f v", "$-1"),
            (
                "xadd new 18446744073709551615-18446744073709551615 f v",
                "$41 18446744073709551615-18446744073709551615",
            ),
            (
                "xadd new * f v",
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ),
            ("xlen s", ":5"),
            ("xlen none", ":0"),
        ],
    );
}

#[test]
fn trims_are_checked_before_anything_is_added() {
    let mut store = store(&["xadd s 1-1 f v", "xadd s 2-1 f v"]);
    check(
        &mut store,
        &[
            (
                "xadd s maxlen 1 minid 1 * f v",
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ),
            ("xadd s maxlen -1 * f v", "ERR The MAXLEN argument must be >= 0."),
            ("xadd s maxlen ~ 1 limit -1 * f v", "ERR The LIMIT argument must be >= 0."),
            (
                "xadd s maxlen = 1 limit 1 * f v",
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            ),
            (
                "xadd s limit 1 * f v",
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ),
            (
                "xtrim s limit 0 limit 0",
                "ERR syntax error, XTRIM must be called with a trimming strategy",
            ),
            ("xtrim s maxlen x", "ERR value is not an integer or out of range"),
            ("xlen s", ":2"),
            ("xtrim s minid 2", ":1"),
            ("xtrim none maxlen 0", ":0"),
            ("xadd s maxlen 1 3-1 f v", "$3 3-1"),
            ("xrange s - +", "*1 *2 $3 3-1 *2 $1 f $1 v"),
        ],
    );
}

#[test]
fn a_stream_stays_when_its_last_entry_is_gone() {
    let mut store = store(&["xadd s 5-1 f v", "xdel s 5-1 5-1 9-9"]);
    check(
        &mut store,
        &[
            ("xlen s", ":0"),
            ("type s", "+stream"),
            ("xadd s 5-1 f v", SMALLER),
            (
                "xsetid s 4-0",
                "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
            ),
            (
                "xsetid s 7-0 entriesadded 9 maxdeletedid 8-0",
                "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
            ),
            ("xsetid s 7-0 entriesadded -9", "ERR entries_added must be positive"),
            ("xsetid s 7-0 entriesadded 9 maxdeletedid 6-0", "+OK"),
            ("xsetid none 7-0", "ERR no such key"),
            ("xread streams s $", "*-1"),
            ("xrange s - +", "*0"),
            ("xrange s - + count 0", "*-1"),
        ],
    );
}

#[test]
fn a_read_that_waits_knows_from_where() {
    let mut store = store(&["xadd a 7-1 f v"]);
    let command = "xread count 3 block 10 streams a b $ 5-0";
    let stop = testing::try_line(&mut store, &DataSettings::default(), Proto::Resp2, command);
    let Err(Stop::Block(block)) = stop else { panic!("{stop:?}") };
    assert_eq!(block.keys, [b"a"[..].into(), b"b"[..].into()]);
    assert_eq!((block.on, block.until_ms), (Awaited::Stream, testing::NOW_MS + 10));
    assert_eq!(block.replaced, [(8, b"7-1".to_vec())]);
}

#[test]
fn reads_answer_a_map_in_resp3() {
    let mut store = store(&["xadd a 1-1 f v", "xadd b 2-1 f v", "xadd b 3-1 f v"]);
    let entries = "*1 *2 $3 3-1 *2 $1 f $1 v";
    let two = format!("$1 a *1 *2 $3 1-1 *2 $1 f $1 v $1 b {entries}");
    let resp3 = |store: &mut Store, command| {
        testing::run_line(store, &DataSettings::default(), Proto::Resp3, command)
    };
    assert_eq!(resp3(&mut store, "xread streams a none b 0 0 2-1"), format!("%2 {two}"));
    assert_eq!(resp3(&mut store, "xread streams a 5"), "_");
    check(
        &mut store,
        &[
            ("xread count 1 streams b +", &format!("*1 *2 $1 b {entries}")[..]),
            ("xread block -1 streams a $", "ERR timeout is negative"),
            ("xread block x streams a $", "ERR timeout is not an integer or out of range"),
            (
                "xread streams a b 0",
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.",
            ),
            (
                "xread noack streams a 0",
                "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
            ),
            (
                "xread streams a >",
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            ),
            ("xread count 1 block", "ERR syntax error"),
        ],
    );
}

/// Returns a store that has only the meta row of a large stream.
fn cold() -> Store {
    let mut store = store(&[]);
    for n in 1..=1000 {
        run(&mut store, &format!("xadd s {n}-0 field {n}"));
    }
    store.seal();
    let mut row = Vec::new();
    encode_meta(&mut row, store.entry_for_part(0, b"s").unwrap());
    let mut cold = testing::store(true);
    cold.begin(testing::NOW_MS, true);
    cold.apply_loaded(0, decode_entry(b"s", 0, &row).unwrap());
    cold
}

fn misses(store: &mut Store, command: &str) -> Part {
    match testing::try_line(store, &DataSettings::default(), Proto::Resp2, command) {
        Err(Stop::Miss(mut needs)) => needs.pop().unwrap().part.unwrap(),
        other => panic!("{command}: {other:?}"),
    }
}

#[test]
fn adding_to_a_cold_stream_needs_nothing() {
    let mut store = cold();
    assert_eq!(run(&mut store, "xadd s 2000-0 f v"), "$6 2000-0");
    assert_eq!(run(&mut store, "xlen s"), ":1001");
    assert_eq!(run(&mut store, "xread streams s 1500"), "*1 *2 $1 s *1 *2 $6 2000-0 *2 $1 f $1 v");
    assert_eq!(run(&mut store, "xread streams s $"), "*-1");
    assert_eq!(run(&mut store, "xadd s maxlen 5000 * f v"), "$9 1000000-0");
}

#[test]
fn missing_parts_of_a_cold_stream_are_asked_for_before_it_changes() {
    let mut store = cold();
    for command in [
        "xrange s - + count 1",
        "xrange s 500 500",
        "xrevrange s + - count 1",
        "xdel s 500-0",
        "xtrim s maxlen 10",
        "xadd s maxlen 10 5000-0 f v",
        "xread streams s +",
        "xsetid s 999-0",
    ] {
        assert!(matches!(misses(&mut store, command), Part::Page { .. }), "{command}");
    }
    assert_eq!(misses(&mut store, "dump s"), Part::All);
    assert_eq!(run(&mut store, "xlen s"), ":1000");
    assert!(!store.is_dirty());
}
