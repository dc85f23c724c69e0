//! Replies in both protocols, the encodings after commands, commands that change nothing, and
//! sorted sets that are not in memory.

use super::super::Stop;
use super::super::testing::{run_line, store, try_line};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

/// Returns settings with limits that few members exceed.
fn settings() -> DataSettings {
    DataSettings {
        zset_max_listpack_entries: 3,
        zset_max_listpack_value: 5,
        ..DataSettings::default()
    }
}

fn try_once(store: &mut Store, proto: Proto, command: &str) -> Result<String, Stop> {
    try_line(store, &settings(), proto, command)
}

/// Runs a command that misses nothing; returns its reply, or its error text.
fn run_in(store: &mut Store, proto: Proto, command: &str) -> String {
    run_line(store, &settings(), proto, command)
}

fn run(store: &mut Store, command: &str) -> String {
    run_in(store, Proto::Resp2, command)
}

fn encoding(store: &mut Store, key: &str) -> &'static str {
    store.entry_for_part(0, key.as_bytes()).unwrap().value.encoding()
}

#[test]
fn replies_have_the_form_of_the_protocol() {
    let mut store = store(false);
    run(&mut store, "zadd z 1 a 2.5 b -inf c");
    for (command, resp2, resp3) in [
        ("zscore z b", "$3 2.5", ",2.5"),
        ("zscore z x", "$-1", "_"),
        ("zrank z b withscore", "*2 :2 $3 2.5", "*2 :2 ,2.5"),
        ("zrevrank z x withscore", "*-1", "_"),
        ("zmscore z c x", "*2 $4 -inf $-1", "*2 ,-inf _"),
        ("zrange z 0 0 withscores", "*2 $1 c $4 -inf", "*1 *2 $1 c ,-inf"),
        ("zrange z (1 +inf byscore", "*1 $1 b", "*1 $1 b"),
        ("zrange none 0 -1", "*0", "*0"),
        ("zadd z xx incr 1 x", "$-1", "_"),
        ("zadd z incr 0 b", "$3 2.5", ",2.5"),
        ("zmpop 2 none z max count 0", "ERR count should be greater than 0", ""),
        ("zmpop 1 none min", "*-1", "_"),
        ("zrandmember z 5 withscores", "*6", "*3"),
        ("zpopmin none 2", "*0", "*0"),
    ] {
        assert!(run(&mut store, command).starts_with(resp2), "{command}");
        assert!(run_in(&mut store, Proto::Resp3, command).starts_with(resp3), "{command}");
    }
    assert_eq!(run_in(&mut store, Proto::Resp3, "zpopmax z 1"), "*1 *2 $1 b ,2.5");
    assert_eq!(run_in(&mut store, Proto::Resp3, "zpopmax z"), "*2 $1 a ,1");
    assert_eq!(run(&mut store, "zmpop 1 z min"), "*2 $1 z *1 *2 $1 c $4 -inf");
    assert!(!store.exists(0, b"z").unwrap());
}

#[test]
fn encodings_follow_the_limits() {
    let mut store = store(false);
    run(&mut store, "zadd z 1 a 2 b 3 c");
    run(&mut store, "zadd z xx 1 toolong");
    assert_eq!(encoding(&mut store, "z"), "skiplist");
    run(&mut store, "zadd y 1 a 2 b 3 c");
    assert_eq!(encoding(&mut store, "y"), "listpack");
    run(&mut store, "zincrby y 1 d");
    assert_eq!(encoding(&mut store, "y"), "skiplist");
    run(&mut store, "zrem y d");
    assert_eq!(encoding(&mut store, "y"), "skiplist");
    run(&mut store, "zrangestore x y 0 1");
    assert_eq!(encoding(&mut store, "x"), "listpack");
    // More pairs than members.
    run(&mut store, "zadd w 1 a 1 a 1 a 1 a");
    assert_eq!(encoding(&mut store, "w"), "skiplist");
    // Only a skiplist has a negative zero.
    run(&mut store, "zadd w -0 b");
    assert_eq!(run(&mut store, "zscore w b"), "$2 -0");
    run(&mut store, "zadd v -0 b");
    assert_eq!(run(&mut store, "zscore v b"), "$1 0");
}

#[test]
fn commands_that_change_nothing_store_nothing() {
    let mut store = store(false);
    run(&mut store, "zadd z 1 a 2 b");
    store.seal();
    for (command, reply) in [
        ("zadd z 1 a", ":0"),
        ("zadd z ch gt 0 a", ":0"),
        ("zadd z nx 9 a", ":0"),
        ("zadd none xx 9 a", ":0"),
        ("zincrby z 0 a", "$1 1"),
        ("zrem z x", ":0"),
        ("zpopmin z 0", "*0"),
        ("zremrangebyscore z 5 6", ":0"),
        ("zremrangebyrank z 2 3", ":0"),
        ("zadd z nan x", "ERR value is not a valid float"),
        ("zincrby z x a", "ERR value is not a valid float"),
        ("zremrangebylex z a b", "ERR min or max not valid string range item"),
        ("zcount z a b", "ERR min or max is not a float"),
    ] {
        assert_eq!(run(&mut store, command), reply, "{command}");
        assert!(store.seal().ops.is_empty(), "{command}");
    }
}

#[test]
fn a_negative_offset_counts_from_the_end_of_a_skiplist() {
    let mut store = store(false);
    run(&mut store, "zadd small 1 a 2 b 3 c");
    run(&mut store, "zadd large 1 a 2 b 3 c 4 d");
    assert_eq!(run(&mut store, "zrangebyscore small 1 9 limit -2 9"), "*0");
    assert_eq!(run(&mut store, "zrangebyscore large 1 9 limit -2 9"), "*2 $1 c $1 d");
    assert_eq!(run(&mut store, "zrevrangebyscore large 9 1 limit -2 1"), "*1 $1 b");
    assert_eq!(run(&mut store, "zrangebyscore large 1 9 limit -5 9"), "*0");
}

/// Returns a store that has only the meta row of a big sorted set.
fn cold() -> Store {
    let mut disk = store(false);
    run(&mut disk, "zadd z 1 a 2 b 3 c 4 d 5 e");
    disk.seal();
    disk.entry_for_part(0, b"z").unwrap().value.unpack(7);
    let mut row = Vec::new();
    encode_meta(&mut row, disk.entry(0, b"z").unwrap().unwrap());
    let mut store = store(true);
    store.apply_loaded(0, decode_entry(b"z", 0, &row).unwrap());
    store
}

#[test]
fn missing_parts_are_asked_for_before_anything_changes() {
    let mut store = cold();
    assert_eq!(run(&mut store, "zcard z"), ":5");
    for (command, missing) in [
        ("zadd z 1 a 2 x", "a x"),
        ("zrem z a x", "a x"),
        ("zmscore z a b", "a b"),
        ("zrank z a", "a"),
        ("zpopmin z", "page"),
        ("zpopmax z 2", "page back"),
        ("zrange z 1 2", "page"),
        ("zrange z 1 -1 rev", "page back"),
        ("zrangebyscore z 2 3", "page"),
        ("zcount z 2 3", "page"),
        ("zremrangebyrank z 0 1", "page"),
        ("zremrangebyscore z -inf 3", "page"),
        ("zrandmember z", "page"),
        ("zscan z 0", "page"),
    ] {
        let Err(Stop::Miss(need)) = try_once(&mut store, Proto::Resp2, command) else {
            panic!("{command} misses nothing")
        };
        let what = match need.into_iter().next().and_then(|need| need.part) {
            Some(Part::Fields(names)) => {
                let names: Vec<_> = names.iter().map(|n| String::from_utf8_lossy(n)).collect();
                names.join(" ")
            }
            Some(Part::Page { reverse: true, .. }) => "page back".to_owned(),
            Some(Part::Page { .. }) => "page".to_owned(),
            other => panic!("{command}: {other:?}"),
        };
        assert_eq!(what, missing, "{command}");
        assert!(store.seal().ops.is_empty(), "{command}");
    }
    // The whole sorted set is removed without being read.
    assert_eq!(run(&mut store, "zremrangebyrank z 0 -1"), ":5");
    assert!(!store.exists(0, b"z").unwrap());
}
