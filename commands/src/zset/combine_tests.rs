//! Combined scores, arguments, encodings, and the rows requested of sorted sets that are not in
//! memory.

use crate::DataSettings;
use crate::Stop;
use crate::testing::{NOW_MS, store, try_run};
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

/// Returns settings with limits that few members exceed.
fn settings() -> DataSettings {
    DataSettings {
        set_max_intset_entries: 3,
        set_max_listpack_entries: 3,
        zset_max_listpack_entries: 3,
        zset_max_listpack_value: 5,
        ..DataSettings::default()
    }
}

fn try_once(store: &mut Store, proto: Proto, command: &str) -> Result<String, Stop> {
    let words: Vec<&str> = command.split(' ').collect();
    try_run(store, &settings(), proto, NOW_MS, &words)
}

/// Runs a command that misses nothing; returns its reply, or its error text.
fn run(store: &mut Store, command: &str) -> String {
    match try_once(store, Proto::Resp2, command) {
        Ok(reply) => reply.replace("\r\n", " ").trim_end().to_owned(),
        Err(Stop::Error(text)) => text.to_string(),
        Err(other) => panic!("{command}: {other:?}"),
    }
}

/// Runs a command, and returns members and scores without the protocol around them.
fn words(store: &mut Store, command: &str) -> String {
    let reply = run(store, command);
    let words = reply.split(' ').filter(|word| !word.starts_with(['$', '*']));
    words.collect::<Vec<_>>().join(" ")
}

fn some() -> Store {
    let mut store = store(false);
    for command in [
        "zadd a 1 x 2 y 3 z",
        "zadd b 10 y 20 z 30 w 40 v",
        "zadd i inf p -inf q 5 r",
        "zadd j -inf p -inf q 6 r",
        "sadd s x y",
        "set str 1",
    ] {
        run(&mut store, command);
    }
    store
}

#[test]
fn scores_are_combined() {
    let mut store = some();
    for (command, want) in [
        ("zunion 2 a b withscores", "x 1 y 12 z 23 w 30 v 40"),
        ("zunion 2 b a", "x y z w v"),
        ("zunion 2 a b weights 10 -1 withscores", "v -40 w -30 x 10 y 10 z 10"),
        ("zunion 2 a b aggregate min withscores", "x 1 y 2 z 3 w 30 v 40"),
        ("zunion 3 a none s aggregate max withscores", "x 1 y 2 z 3"),
        ("zinter 2 a b withscores", "y 12 z 23"),
        ("zinter 2 a a weights 2 3 withscores", "x 5 y 10 z 15"),
        ("zinter 2 s b withscores", "y 11"),
        ("zinter 2 a none", ""),
        ("zdiff 2 a b withscores", "x 1"),
        ("zdiff 3 b a s withscores", "w 30 v 40"),
        ("zdiff 2 s b withscores", "x 1"),
        ("zdiff 2 a a", ""),
        ("zdiff 2 none a", ""),
        ("zintercard 2 a b", ":2"),
        ("zintercard 2 a b limit 1", ":1"),
        ("zintercard 2 a b limit 0", ":2"),
        ("zintercard 2 a none limit 7", ":0"),
    ] {
        assert_eq!(words(&mut store, command), want, "{command}");
    }
    let reply = try_once(&mut store, Proto::Resp3, "zunion 2 a s withscores").unwrap();
    assert!(reply.starts_with("*3\r\n*2\r\n$1\r\nx\r\n,2\r\n"), "{reply}");
}

#[test]
fn infinities_make_no_nan() {
    let mut store = some();
    for (command, want) in [
        ("zunion 2 i j withscores", "q -inf p 0 r 11"),
        ("zinter 2 i j withscores", "q -inf p 0 r 11"),
        ("zunion 1 i weights 0 withscores", "p 0 q 0 r 0"),
        // A NaN adds nothing to a union, but leaves nothing of an intersection.
        ("zunion 2 a a weights 1 inf withscores", "x inf y inf z inf"),
        ("zunion 2 j i weights 1 0 withscores", "p -inf q -inf r 6"),
        ("zinter 2 j i weights 1 0 withscores", "p 0 q 0 r 6"),
        ("zunion 2 j i weights 0 1 aggregate min withscores", "q -inf p 0 r 0"),
        ("zinter 2 j i weights 1 0 aggregate max withscores", "p -inf q -inf r 6"),
    ] {
        assert_eq!(words(&mut store, command), want, "{command}");
    }
}

#[test]
fn arguments_are_checked_in_order() {
    let mut store = some();
    for (command, want) in [
        ("zunion x a", "ERR value is not an integer or out of range"),
        ("zunion 0 a", "ERR at least 1 input key is needed for 'zunion' command"),
        ("zdiffstore t -1 a", "ERR at least 1 input key is needed for 'zdiffstore' command"),
        ("zunion 2 str", "ERR syntax error"),
        (
            "zunion 2 a str weights",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        ("zunion 2 a b weights 1", "ERR syntax error"),
        ("zunion 2 a b weights 1 x", "ERR weight value is not a float"),
        ("zunion 2 a b weights 1 nan", "ERR weight value is not a float"),
        ("zunion 2 a b aggregate avg", "ERR syntax error"),
        ("zunion 2 a b aggregate", "ERR syntax error"),
        ("zunionstore t 2 a b withscores", "ERR syntax error"),
        ("zdiff 2 a b weights 1 2", "ERR syntax error"),
        ("zdiff 2 a b aggregate sum", "ERR syntax error"),
        ("zinter 2 a b limit 1", "ERR syntax error"),
        ("zintercard 2 a b withscores", "ERR syntax error"),
        ("zintercard 2 a b limit", "ERR syntax error"),
        ("zintercard 2 a b limit -1", "ERR LIMIT can't be negative"),
        ("zintercard 2 a b limit x", "ERR LIMIT can't be negative"),
    ] {
        assert_eq!(run(&mut store, command), want, "{command}");
    }
}

#[test]
fn results_are_stored() {
    let mut store = some();
    for (command, want, encoding) in [
        ("zunionstore t 2 a b", ":5", "skiplist"),
        ("zinterstore t 2 a b weights 1 2", ":2", "listpack"),
        ("zdiffstore b 2 b a", ":2", "listpack"),
        ("zunionstore str 1 s", ":2", "listpack"),
        ("zunionstore a 2 a s aggregate max", ":3", "listpack"),
    ] {
        assert_eq!(run(&mut store, command), want, "{command}");
        let key = command.split(' ').nth(1).unwrap();
        let value = &store.entry_for_part(0, key.as_bytes()).unwrap().value;
        assert_eq!((value.type_name(), value.encoding()), ("zset", encoding), "{command}");
    }
    assert_eq!(words(&mut store, "zrange t 0 -1 withscores"), "y 22 z 43");
    assert_eq!(run(&mut store, "zinterstore t 2 a none"), ":0");
    assert!(!store.exists(0, b"t").unwrap());
    store.seal();
    assert_eq!(run(&mut store, "zinterstore t 2 a none"), ":0");
    assert!(store.seal().ops.is_empty());
}

/// Returns a store with some keys in memory, and a big sorted set of which only the meta row is.
fn cold() -> Store {
    let mut disk = some();
    run(&mut disk, "zunionstore big 2 a b");
    disk.seal();
    disk.entry_for_part(0, b"big").unwrap().value.unpack(7);
    let mut store = store(true);
    for key in ["a", "big", "none"] {
        let mut row = Vec::new();
        let entry = match disk.entry(0, key.as_bytes()).unwrap() {
            Some(entry) => {
                encode_meta(&mut row, entry);
                decode_entry(key.as_bytes(), 0, &row).unwrap()
            }
            None => disk.lend(0, key.as_bytes()).unwrap(),
        };
        store.apply_loaded(0, entry);
    }
    store
}

#[test]
fn big_sorted_sets_are_asked_for_the_needed_parts() {
    // Looking up a quarter of the members or more requests the whole set.
    let names = |names: &[&str]| {
        Some(Part::Fields(names.iter().map(|name| name.as_bytes().into()).collect()))
    };
    for (command, want) in [
        ("zunion 2 a big", Some(Part::All)),
        ("zinter 2 a big", Some(Part::All)),
        ("zdiff 2 one big", names(&["x"])),
        ("zinter 2 big one", names(&["x"])),
        ("zinterstore big 2 big one", names(&["x"])),
        ("zintercard 2 big one", names(&["x"])),
        ("zdiff 2 big one", Some(Part::All)),
        ("zinter 2 big none", None),
        ("zdiff 2 none big", None),
    ] {
        let mut store = cold();
        let words: Vec<&str> = "zadd one 1 x".split(' ').collect();
        store.apply_loaded(0, crate::testing::store(false).lend(0, b"one").unwrap());
        try_run(&mut store, &settings(), Proto::Resp2, NOW_MS, &words).unwrap();
        match (try_once(&mut store, Proto::Resp2, command), want) {
            (Err(Stop::Miss(needs)), Some(want)) => {
                let [need] = &*needs else { panic!("{command}: {needs:?}") };
                assert_eq!((&*need.key, &need.part), (&b"big"[..], &Some(want)), "{command}");
            }
            (Ok(reply), None) => assert_eq!(reply, "*0\r\n", "{command}"),
            (other, _) => panic!("{command}: {other:?}"),
        }
    }
}

/// Each member was looked up in each key: 20 billion look-ups here.
#[test]
fn a_union_of_many_keys_walks_each_of_them_once() {
    const KEYS: usize = 100_000;
    let mut store = store(false);
    let mut union = format!("zunion {KEYS}");
    for n in 0..KEYS {
        run(&mut store, &format!("zadd k{n} 1 all {n} m{n}"));
        union += &format!(" k{n}");
    }
    let reply = words(&mut store, &(union + " withscores"));
    assert!(reply.starts_with("m0 0 m1 1 m2 2 "), "{}", &reply[..50]);
    assert!(reply.ends_with(&format!("m99999 99999 all {KEYS}")), "{}", &reply[reply.len() - 50..]);
}

/// Members with their scores.
type Pairs = Vec<(String, f64)>;

/// The score of a member in the sources, added by hand in their order by size.
fn expected(store: &mut Store, keys: &[&str], weights: &[f64], how: &str) -> Vec<(String, u64)> {
    let mut by_size: Vec<(usize, f64, Pairs)> = Vec::new();
    for (key, weight) in keys.iter().zip(weights) {
        let reply = words(store, &format!("zrange {key} 0 -1 withscores"));
        let found: Vec<&str> = reply.split_whitespace().collect();
        let pairs: Pairs =
            found.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect();
        by_size.push((pairs.len(), *weight, pairs));
    }
    by_size.sort_by_key(|(len, ..)| *len);
    let zero = |score: f64| if score.is_nan() { 0.0 } else { score };
    let mut sums = Pairs::new();
    for (_, weight, pairs) in by_size {
        for (name, score) in pairs {
            let score = zero(weight * score);
            match sums.iter_mut().find(|(other, _)| *other == name) {
                None => sums.push((name, score)),
                Some((_, sum)) => {
                    *sum = match how {
                        "sum" => zero(*sum + score),
                        "min" if score < *sum => score,
                        "max" if score > *sum => score,
                        _ => *sum,
                    }
                }
            }
        }
    }
    sums.sort_by(|a, b| a.1.partial_cmp(&b.1).unwrap().then_with(|| a.0.cmp(&b.0)));
    sums.into_iter().map(|(name, sum)| (name, sum.to_bits())).collect()
}

#[test]
fn the_sums_of_a_union_are_added_in_the_order_of_size() {
    let mut store = store(false);
    // Sums of these depend on their order.
    for command in [
        "zadd a 0.1 x 0.2 y inf z 1e300 v",
        "zadd b 0.3 x 1e17 y -inf z 7 u",
        "zadd c 1e-17 x 0.7 y 3 z -1e300 v 1 t 2 s",
        "zadd d 0.1 x",
    ] {
        run(&mut store, command);
    }
    let keys = ["c", "a", "b", "d", "a"];
    for weights in [[1.0, 1.0, 1.0, 1.0, 1.0], [0.3, -1.0, 0.0, 1e17, 2.0], [-0.0; 5]] {
        for how in ["sum", "min", "max"] {
            let texts: Vec<String> = weights.iter().map(f64::to_string).collect();
            let (keys_text, weights_text) = (keys.join(" "), texts.join(" "));
            let command =
                format!("zunion 5 {keys_text} weights {weights_text} aggregate {how} withscores");
            let reply = words(&mut store, &command);
            let found: Vec<&str> = reply.split_whitespace().collect();
            let bits = |text: &str| text.parse::<f64>().unwrap().to_bits();
            let found: Vec<(String, u64)> =
                found.chunks(2).map(|pair| (pair[0].to_owned(), bits(pair[1]))).collect();
            assert_eq!(found, expected(&mut store, &keys, &weights, how), "{weights_text} {how}");
        }
    }
}
