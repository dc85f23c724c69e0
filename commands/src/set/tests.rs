//! Commands on sets that are partly in memory, the encodings after commands, and commands that
//! change nothing.

use super::super::Stop;
use super::super::testing::{NOW_MS, store, try_run};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::store::{Need, Part};
use flagstone_storage::value::{Set, Typed, decode_entry, encode_meta};
use flagstone_wire::resp::Proto;

/// Returns settings with limits that few members exceed.
fn settings() -> DataSettings {
    DataSettings {
        set_max_intset_entries: 4,
        set_max_listpack_entries: 3,
        set_max_listpack_value: 5,
        ..DataSettings::default()
    }
}

fn try_once(store: &mut Store, words: &[&str]) -> Result<String, Stop> {
    try_run(store, &settings(), Proto::Resp2, NOW_MS, words)
}

/// Runs a command that misses nothing.
fn run(store: &mut Store, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    try_once(store, &words).unwrap()
}

fn set_of<'a>(store: &'a mut Store, key: &[u8]) -> &'a mut Set {
    Set::of_mut(&mut store.entry_for_part(0, key).unwrap().value).unwrap()
}

fn encoding(store: &mut Store, key: &str) -> &'static str {
    store.entry_for_part(0, key.as_bytes()).unwrap().value.encoding()
}

/// Loads a need from `disk`; returns its description, unless it was a key itself.
fn learn(store: &mut Store, disk: &mut Store, need: Need) -> Option<String> {
    let Some(part) = need.part else {
        let mut row = Vec::new();
        let entry = match disk.entry(0, &need.key).unwrap() {
            Some(entry) => {
                encode_meta(&mut row, entry);
                decode_entry(&need.key, 0, &row).unwrap()
            }
            None => disk.lend(0, &need.key).unwrap(),
        };
        store.apply_loaded(0, entry);
        return None;
    };
    let (known, set) = (set_of(disk, &need.key), set_of(store, &need.key));
    let what = match part {
        Part::Fields(names) => {
            for name in &names {
                set.apply_loaded(name, known.contains(name).unwrap());
            }
            names.iter().map(|name| String::from_utf8_lossy(name)).collect()
        }
        part => {
            known.members().into_iter().for_each(|name| set.apply_loaded(name, true));
            set.mark_complete();
            if part == Part::All { "*".to_owned() } else { "page".to_owned() }
        }
    };
    Some(format!("{}:{what}", String::from_utf8_lossy(&need.key)))
}

/// Runs a command on an empty store; returns the parts of sets that it missed, in order, and its
/// reply.
fn run_cold(disk: &mut Store, command: &str) -> (Vec<String>, String) {
    let words: Vec<&str> = command.split(' ').collect();
    let mut store = store(true);
    let mut missed = Vec::new();
    loop {
        match try_once(&mut store, &words) {
            Ok(reply) => return (missed, reply),
            Err(Stop::Miss(mut needs)) => {
                let need = needs.pop().unwrap();
                assert!(!store.is_dirty(), "{command} changed something before it missed");
                missed.extend(learn(&mut store, disk, need));
            }
            Err(other) => panic!("{command}: {other:?}"),
        }
    }
}

/// Returns a store with big sets, `big` of a to j and `more` of c to n, and small ones.
fn disk() -> Store {
    let mut disk = store(false);
    run(&mut disk, "sadd big a b c d e f g h i j");
    run(&mut disk, "sadd more c d e f g h i j k l m n");
    run(&mut disk, "sadd small a x");
    run(&mut disk, "sadd ints 1 2");
    disk.seal();
    for (key, version) in [(b"big".as_slice(), 7), (b"more", 8)] {
        disk.entry_for_part(0, key).unwrap().value.unpack(version);
    }
    disk
}

#[test]
fn members_that_are_not_in_memory_are_asked_for_before_anything_changes() {
    for (command, missed, reply) in [
        ("scard big", &[][..], ":10\r\n"),
        ("sismember big x", &["big:x"], ":0\r\n"),
        ("smismember big a x", &["big:ax"], "*2\r\n:1\r\n:0\r\n"),
        ("sadd big a x", &["big:ax"], ":1\r\n"),
        ("srem big a x a", &["big:axa"], ":1\r\n"),
        ("smove big small a", &["big:a"], ":1\r\n"),
        ("smove small big x", &["big:x"], ":1\r\n"),
        ("smove big more a", &["big:a", "more:a"], ":1\r\n"),
        ("smove big big x", &["big:x"], ":0\r\n"),
        ("sinter big small", &["big:ax"], "*1\r\n$1\r\na\r\n"),
        ("sinter big small more", &["big:ax", "more:a"], "*0\r\n"),
        ("sinter big none", &[], "*0\r\n"),
        ("sintercard 2 big more", &["big:*", "more:*"], ":8\r\n"),
        ("sintercard 2 big small LIMIT 1", &["big:ax"], ":1\r\n"),
        ("sintercard 2 big more LIMIT 2", &["big:page", "more:*"], ":2\r\n"),
        ("sinterstore none big small", &["big:ax"], ":1\r\n"),
        ("sinterstore big big small", &["big:ax"], ":1\r\n"),
        ("sdiff small big", &["big:ax"], "*1\r\n$1\r\nx\r\n"),
        ("sdiff big big", &[], "*0\r\n"),
        ("sdiff none big", &[], "*0\r\n"),
        ("sdiffstore none big small", &["big:*"], ":9\r\n"),
        ("sdiffstore none big small ints", &["big:*"], ":9\r\n"),
        ("sunionstore none big small more", &["big:*", "more:*"], ":15\r\n"),
        ("spop big 0", &[], "*0\r\n"),
        ("srandmember big 0", &[], "*0\r\n"),
        ("sscan big 0 MATCH a", &["big:page"], "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
    ] {
        let missed: Vec<String> = missed.iter().map(|&what| what.into()).collect();
        assert_eq!(run_cold(&mut disk(), command), (missed, reply.into()), "{command}");
    }
}

#[test]
fn random_members_of_a_set_on_disk_are_those_of_a_page() {
    for (command, missed) in [
        ("spop big", "big:page"),
        ("spop big 2", "big:page"),
        ("spop big 9", "big:*"),
        ("spop big 10", "big:*"),
        ("srandmember big", "big:page"),
        ("srandmember big 2", "big:page"),
        ("srandmember big -20", "big:*"),
        ("srandmember big 10", "big:*"),
    ] {
        assert_eq!(run_cold(&mut disk(), command).0, [missed], "{command}");
    }
}

#[test]
fn commands_that_change_nothing_store_nothing() {
    for command in [
        "sadd small a x a",
        "srem small y",
        "srem none y",
        "smove small ints y",
        "smove small small x",
        "smove none small x",
        "spop none",
        "spop none 3",
        "spop small 0",
        "srandmember small",
        "sinterstore none small ints",
        "sunionstore none gone",
        "sdiffstore none small small",
        "sscan small 0",
        "smembers ints",
    ] {
        let mut store = disk();
        run(&mut store, command);
        assert!(!store.is_dirty(), "{command}");
    }
}

#[test]
fn the_last_member_takes_the_key_along() {
    for command in [
        "srem small a x",
        "spop small 2",
        "spop small 9",
        "sinterstore small small ints",
        "sdiffstore small small small",
    ] {
        let mut store = disk();
        run(&mut store, command);
        assert!(!store.exists(0, b"small").unwrap(), "{command}");
    }
    let mut store = disk();
    run(&mut store, "smove small ints a");
    run(&mut store, "smove small ints x");
    assert!(!store.exists(0, b"small").unwrap());
    run(&mut store, "spop ints");
    run(&mut store, "spop ints 3");
    assert!(!store.exists(0, b"ints").unwrap());
}

#[test]
fn encodings_follow_the_limits() {
    for (commands, want) in [
        (&["sadd k 3 1 2 9"][..], "intset"),
        (&["sadd k 1 2 3 4", "sadd k 5"], "hashtable"),
        (&["sadd k 1 2 3 4 5"], "hashtable"),
        (&["sadd k a", "sadd k b", "sadd k c", "sadd k a"], "listpack"),
        (&["sadd k a", "sadd k b", "sadd k c", "sadd k d"], "hashtable"),
        // The number of arguments counts, even if they are not new.
        (&["sadd k a", "sadd k a a a a"], "hashtable"),
        (&["sadd k 1 2 3 4", "sadd k 1 1 1 1 1"], "hashtable"),
        (&["sadd k a", "sadd k 123456"], "hashtable"),
        (&["sadd k 12", "sadd k a"], "listpack"),
        (&["sadd k -12345", "sadd k a"], "hashtable"),
        (&["sadd k 1 2 3", "sadd k a"], "hashtable"),
        (&["sadd k 1", "sadd k abcdef"], "hashtable"),
        (&["sadd k 01"], "listpack"),
        (&["sadd k a", "srem k a", "sadd k 1"], "intset"),
        // Encodings that remain of a hashtable.
        (&["sadd k 1 2 3 4 5 6", "spop k 5"], "listpack"),
        (&["sadd k 1 2 3 4 5 6", "spop k 4"], "hashtable"),
        (&["sadd k 1 2 3 4", "spop k 3"], "intset"),
        (&["smove a k 1"], "intset"),
        (&["smove a k x"], "listpack"),
        (&["sinterstore k a b"], "intset"),
        (&["sinterstore k a a"], "listpack"),
        (&["sinterstore k t t"], "hashtable"),
        (&["sunionstore k b b"], "intset"),
        (&["sunionstore k a b"], "listpack"),
        (&["sunionstore k a b t"], "hashtable"),
        (&["sdiffstore k a b"], "listpack"),
        (&["sdiffstore k t l1 l2"], "listpack"),
        // Members are removed from a copy of the whole first set.
        (&["sdiffstore k t l1 l2 l2"], "hashtable"),
    ] {
        let mut store = store(false);
        for command in ["sadd a 1 x", "sadd b 1 2", "sadd t 5 6 7 v w", "sadd l1 5 6", "sadd l2 5"]
        {
            run(&mut store, command);
        }
        for command in commands {
            run(&mut store, command);
        }
        assert_eq!(encoding(&mut store, "k"), want, "{commands:?}");
    }
}

#[test]
fn small_sets_have_an_order() {
    let members = |words: &[&str]| {
        let bulks: String = words.iter().map(|w| format!("${}\r\n{w}\r\n", w.len())).collect();
        format!("*{}\r\n{bulks}", words.len())
    };
    let mut store = store(false);
    run(&mut store, "sadd k 30 -4 5");
    assert_eq!(run(&mut store, "smembers k"), members(&["-4", "5", "30"]));
    run(&mut store, "srem k 5");
    run(&mut store, "sadd k b");
    assert_eq!(run(&mut store, "smembers k"), members(&["-4", "30", "b"]));
    run(&mut store, "sadd i 9 -4 3");
    assert_eq!(run(&mut store, "sinter i k"), members(&["-4"]));
    assert_eq!(run(&mut store, "sunion i i"), members(&["-4", "3", "9"]));
    run(&mut store, "srem k -4");
    run(&mut store, "sunionstore u k i");
    let all = "*2\r\n$1\r\n0\r\n".to_owned() + &members(&["30", "b"]);
    assert_eq!(run(&mut store, "sscan k 0 COUNT 1"), all);
}

#[test]
fn sets_are_sets_in_resp3() {
    for (command, want) in [
        ("smembers small", '~'),
        ("sinter small small", '~'),
        ("sunion small ints", '~'),
        ("sdiff small ints", '~'),
        ("spop small 1", '~'),
        ("spop none 1", '~'),
        ("srandmember small 1", '*'),
        ("smismember small a", '*'),
        ("spop none", '_'),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let reply = try_run(&mut disk(), &settings(), Proto::Resp3, NOW_MS, &words).unwrap();
        assert!(reply.starts_with(want), "{command}: {reply}");
    }
}

#[test]
fn arguments_are_checked() {
    for (command, want) in [
        ("spop small -1", "ERR value is out of range, must be positive"),
        ("spop small x", "ERR value is out of range, must be positive"),
        ("spop small 1 2", "ERR syntax error"),
        ("srandmember small 1 2", "ERR syntax error"),
        ("srandmember small x", "ERR value is not an integer or out of range"),
        ("sintercard 0 small", "ERR numkeys should be greater than 0"),
        ("sintercard x small", "ERR numkeys should be greater than 0"),
        ("sintercard 2 small", "ERR Number of keys can't be greater than number of args"),
        ("sintercard 1 small LIMIT", "ERR syntax error"),
        ("sintercard 1 small LIMIT -1", "ERR LIMIT can't be negative"),
        ("sscan small x", "ERR invalid cursor"),
        ("sscan small 0 COUNT 0", "ERR syntax error"),
        ("sscan small 0 NOVALUES", "ERR NOVALUES option can only be used in HSCAN"),
        ("sscan small 0 NOSCORES", "ERR NOSCORES option can only be used in ZSCAN"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        match try_once(&mut disk(), &words) {
            Err(Stop::Error(text)) => assert_eq!(text.to_string(), want, "{command}"),
            other => panic!("{command}: {other:?}"),
        }
    }
}

#[test]
fn a_reply_with_all_members_is_at_least_as_long_as_is_foreseen() {
    let mut store = store(false);
    for n in [0, 1, 9, 100, 5000] {
        try_once(&mut store, &["SADD", "s", &"m".repeat(n), &n.to_string()]).unwrap();
        let reply = try_once(&mut store, &["SMEMBERS", "s"]).unwrap().len() as u64;
        let least = store.typed::<Set>(0, b"s").unwrap().unwrap().least_reply();
        assert!((1..=reply).contains(&least), "{n}: {least} {reply}");
        assert!(n < 5000 || least * 10 > reply * 9, "{least} {reply}");
    }
}
