use crate::DataSettings;
use crate::Stop;
use crate::testing::{NOW_MS, store, try_run};
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_wire::resp::Proto;
use std::collections::BTreeSet;

fn try_once(store: &mut Store, command: &str) -> Result<String, Stop> {
    let words: Vec<&str> = command.split(' ').collect();
    try_run(store, &DataSettings::default(), Proto::Resp2, NOW_MS, &words)
}

/// Runs a command; returns the texts and numbers of its reply, separated by spaces; `-` for null.
fn run(store: &mut Store, command: &str) -> String {
    match try_once(store, command) {
        Ok(reply) => {
            let lines = reply.split("\r\n").filter(|line| !line.starts_with('*'));
            let texts = lines.filter(|line| !line.starts_with('$') || *line == "$-1");
            let texts: Vec<_> = texts.map(|line| line.replace("$-1", "-")).collect();
            texts.join(" ").trim().to_owned()
        }
        Err(Stop::Error(text)) => text.to_string(),
        Err(other) => panic!("{command}: {other:?}"),
    }
}

/// Returns a store with a set `s` and a list `l` of 1 to 4, a sorted set `z` of them in the order 3
/// 1 4 2, and their weights.
fn filled() -> Store {
    let mut store = store(false);
    for command in [
        "sadd s 1 2 3 4",
        "sadd words b a B 10 9",
        "mset w_1 3 w_2 1 w_3 2 d_1 one d_2 two d_4 four",
        "hset h_1 f x g y",
        "hset h_2 f z",
        "rpush l 2 1 4 3",
        "zadd z 2 1 4 2 1 3 3 4",
    ] {
        run(&mut store, command);
    }
    store
}

#[test]
fn elements_are_put_into_order() {
    let mut store = filled();
    for (command, reply) in [
        ("sort none", ""),
        ("sort none by w_* get d_*", ""),
        ("sort s", "1 2 3 4"),
        ("sort s desc", "4 3 2 1"),
        ("sort s desc asc limit 1 2", "2 3"),
        ("sort s limit -5 2", "1 2"),
        ("sort s limit 9 2", ""),
        ("sort s limit 1 -7", "2 3 4"),
        ("sort s limit 0 0", ""),
        ("sort words alpha", "10 9 B a b"),
        ("sort words alpha desc limit 0 2", "b a"),
        // A missing weight is 0. Elements of equal weight are compared themselves.
        ("sort s by w_*", "4 2 3 1"),
        ("sort s by w_* desc", "1 3 2 4"),
        ("sort s by d_* alpha", "3 4 1 2"),
        ("sort s by h_*->f alpha desc", "2 1 3 4"),
        ("sort s by w_* get # get d_*", "4 four 2 two 3 - 1 one"),
        ("sort s get h_*->f get h_*->g get h_*", "x y - z - - - - - - - -"),
        ("sort s get fixed get h_*-> limit 0 1", "- -"),
        ("sort l by nosort", "2 1 4 3"),
        ("sort l by nosort desc limit 1 2", "4 1"),
        ("sort z by nosort", "3 1 4 2"),
        ("sort z by nosort limit 1 2", "1 4"),
        ("sort z by nosort desc limit 0 3", "2 4 1"),
        ("sort z by nosort limit 7 3", ""),
        ("sort z", "1 2 3 4"),
        ("sort_ro l desc", "4 3 2 1"),
    ] {
        assert_eq!(run(&mut store, command), reply, "{command}");
    }
}

#[test]
fn a_sorted_set_that_was_sorted_is_a_skiplist() {
    let mut store = filled();
    let encoding = |store: &mut Store| store.peek(0, b"z").unwrap().unwrap().value.encoding();
    assert_eq!(encoding(&mut store), "listpack");
    run(&mut store, "sort_ro z by nosort limit 0 1");
    assert_eq!(encoding(&mut store), "skiplist");
    assert_eq!(run(&mut store, "sort z by nosort"), "3 1 4 2");
}

#[test]
fn errors_come_in_the_order_of_the_reference() {
    let mut store = filled();
    run(&mut store, "set string x");
    for (command, error) in [
        ("sort string limit a b", "ERR value is not an integer or out of range"),
        ("sort string limit 1", "ERR syntax error"),
        ("sort string by", "ERR syntax error"),
        ("sort_ro string store x", "ERR syntax error"),
        ("sort string", "WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("sort words", "ERR One or more scores can't be converted into double"),
        ("sort s by d_*", "ERR One or more scores can't be converted into double"),
    ] {
        assert_eq!(run(&mut store, command), error, "{command}");
    }
}

#[test]
fn weights_are_read_as_c_reads_them() {
    let mut store = filled();
    for (weight, good) in [
        ("1e3", true),
        ("\t\n\x0b 5", true),
        ("0x1p4", true),
        ("-inf", true),
        ("7\0x", true),
        ("", true),
        ("7 ", false),
        ("nan", false),
        ("1e999", false),
        ("5e-324", false),
        ("\n", false),
        ("-", false),
    ] {
        let words = ["set", "w_1", weight];
        try_run(&mut store, &DataSettings::default(), Proto::Resp2, NOW_MS, &words).unwrap();
        assert_eq!(!run(&mut store, "sort s by w_*").starts_with("ERR"), good, "{weight:?}");
    }
}

#[test]
fn the_stored_result_is_a_list() {
    let mut store = filled();
    run(&mut store, "set t x ex 100");
    assert_eq!(run(&mut store, "sort s by w_* get d_* store t"), ":4");
    assert_eq!(run(&mut store, "ttl t"), ":-1");
    assert_eq!(run(&mut store, "type t"), "+list");
    assert_eq!(run(&mut store, "sort t by nosort"), "four two  one");
    // A set has no order of its own that could be stored.
    assert_eq!(run(&mut store, "sort words by nosort desc store t"), ":5");
    assert_eq!(run(&mut store, "sort t by nosort"), "b a B 9 10");
    assert_eq!(run(&mut store, "sort none store t"), ":0");
    assert_eq!(run(&mut store, "exists t"), ":0");
    assert_eq!(run(&mut store, "sort l store l"), ":4");
    assert_eq!(run(&mut store, "sort l by nosort"), "1 2 3 4");
}

#[test]
fn keys_that_are_missing_are_asked_for_at_once() {
    let mut disk = store(false);
    let numbers: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    run(&mut disk, &format!("sadd s {}", numbers.join(" ")));
    let mut store = store(true);
    store.apply_loaded(0, disk.lend(0, b"s").unwrap());
    let Err(Stop::Miss(needs)) = try_once(&mut store, "sort s by w_* get d_* get d_*->f") else {
        panic!("nothing was missing");
    };
    let keys: BTreeSet<_> = needs.iter().map(|need| String::from_utf8_lossy(&need.key)).collect();
    assert_eq!((needs.len(), keys.len()), (1000, 1000));
    assert!(keys.contains("w_999") && needs.iter().all(|need| need.part.is_none()));
    let query = "sort s by nosort get d_* get # get d_* store t";
    let Err(Stop::Miss(needs)) = try_once(&mut store, query) else {
        panic!("nothing was missing");
    };
    // The same key is requested once.
    assert_eq!(needs.len(), 1000);
    assert!(!store.is_dirty());
}

/// Copied for each element, the values would take 20 GB.
#[test]
fn elements_with_one_large_value_do_not_copy_it() {
    const LEN: usize = 1 << 20;
    let mut store = store(false);
    let elements = vec!["a"; 20_000].join(" ");
    run(&mut store, &format!("rpush l {elements} b"));
    run(&mut store, &format!("set w_a {}", "x".repeat(LEN)));
    run(&mut store, &format!("set w_b w{}", "x".repeat(LEN - 1)));
    assert_eq!(run(&mut store, "sort l by w_* alpha limit 0 2"), "b a");
    assert_eq!(run(&mut store, "sort l by w_* alpha desc limit 19999 2"), "a b");
    let refusal =
        "OOM the value takes more memory than a command may make (a part of memory-budget)";
    assert_eq!(run(&mut store, "sort l by nosort get w_* store t"), refusal);
    assert_eq!(run(&mut store, "exists t"), ":0");
    // The elements themselves take no more than they did.
    assert_eq!(run(&mut store, "sort l alpha store t"), ":20001");
    assert_eq!(run(&mut store, "sort l by w_* alpha limit 0 2 get # get w_* store t"), ":4");
    assert_eq!(run(&mut store, "sort t by nosort limit 2 1"), "a");
    assert_eq!(run(&mut store, "sort t by nosort limit 1 1").len(), LEN);
}

#[test]
fn large_texts_are_compared_as_their_bytes_are() {
    use super::SortText;
    use flagstone_storage::value::Str;
    let mut texts = vec![Vec::new(), b"a".to_vec(), b"7".to_vec(), b"a\0b".to_vec()];
    for len in [16_383, 16_384, 16_385, 32_768, 40_000] {
        for (at, byte) in [(0, b'b'), (len - 1, b'b'), (len - 1, 0), (16_000, 0), (len / 2, b'c')] {
            let mut text = vec![b'a'; len];
            text[at] = byte;
            texts.push(text);
        }
    }
    let strings: Vec<Str> = texts.iter().map(|text| Str::new(text)).collect();
    let c_string = |text: &[u8]| text.split(|&byte| byte == 0).next().unwrap().to_vec();
    for (x, a) in texts.iter().zip(&strings) {
        for (y, b) in texts.iter().zip(&strings) {
            let (a, b) = (SortText::of(a), SortText::of(b));
            assert_eq!(a.compare(&b, true), x.cmp(y));
            assert_eq!(a.compare(&b, false), c_string(x).cmp(&c_string(y)));
            assert_eq!(a.compare(&SortText::Bytes(y), true), x.cmp(y));
        }
    }
}

/// Returns a store with a list of so many numbers, and a string of 1 MiB of each of these bytes; no chunk of
/// them is in memory.
fn with_cold_strings(bytes: &str) -> Store {
    let mut store = store(false);
    for (n, byte) in bytes.chars().enumerate() {
        run(&mut store, &format!("rpush l {n}"));
        run(&mut store, &format!("set w_{n} {}", byte.to_string().repeat(1 << 20)));
    }
    let round = store.seal().round;
    // No key is durable, so all stay.
    (0..8).for_each(|_| store.evict(0, round - 1, 2048, |_, _| false));
    store
}

fn missing(store: &mut Store, command: &str) -> Vec<Option<Part>> {
    match try_once(store, command) {
        Err(Stop::Miss(needs)) => needs.into_iter().map(|need| need.part).collect(),
        other => panic!("{command}: nothing was missing: {other:?}"),
    }
}

#[test]
fn of_large_weights_no_more_is_loaded_than_tells_that_they_are_no_numbers() {
    let mut store = with_cold_strings("vwz");
    let first = vec![Some(Part::Chunks(vec![0])); 3];
    assert_eq!(missing(&mut store, "sort l by w_*"), first);
    let whole = missing(&mut store, "sort l by w_* alpha");
    assert!(whole.len() == 3 && whole.iter().all(|part| !first.contains(part)), "{whole:?}");
}

#[test]
fn values_are_not_loaded_for_a_list_that_would_be_too_large() {
    let mut store = with_cold_strings("vwz");
    let words = "sort l by nosort get w_* store t".split(' ').collect::<Vec<_>>();
    let mut within = |value_max_made| {
        let settings = DataSettings { value_max_made, ..DataSettings::default() };
        try_run(&mut store, &settings, Proto::Resp2, NOW_MS, &words)
    };
    assert!(matches!(within(4 << 20), Err(Stop::Miss(_))));
    assert!(matches!(within(3 << 20), Err(Stop::Error(text)) if text.starts_with(b"OOM ")));
}

#[test]
fn numbers_are_found_in_large_texts() {
    use super::SortText;
    use flagstone_storage::value::Str;
    let number = |text: &[u8]| {
        let string = Str::new(text);
        SortText::of(&string).number().map(std::borrow::Cow::into_owned)
    };
    let long = |byte: &str| byte.repeat(100_000);
    assert_eq!(number(long("v").as_bytes()), None);
    assert_eq!(number((long("1") + "v").as_bytes()), Some((long("1") + "v").into_bytes()));
    assert_eq!(number(b"7\0v"), Some(b"7".to_vec()));
    assert_eq!(number(("7\0".to_owned() + &long("v")).as_bytes()), Some(b"7".to_vec()));
    assert_eq!(number(("7 v\0".to_owned() + &long("1")).as_bytes()), None);
    for text in ["", " 5", "-1e5", "+INFINITY", "-inf", "0x1P-4", "0xabcdefABCDEF", "\x0b1"] {
        assert_eq!(number(text.as_bytes()), Some(text.as_bytes().to_vec()), "{text}");
    }
    // Zeros behind the point are a number, however many.
    let mut store = filled();
    run(&mut store, &format!("set w_1 2.{}1", long("0")));
    assert_eq!(run(&mut store, "sort s by w_*"), "4 2 1 3");
    assert!(run(&mut store, &format!("set w_1 2{}", long("v"))).contains("OK"));
    assert!(run(&mut store, "sort s by w_*").starts_with("ERR One or more scores"));
}
