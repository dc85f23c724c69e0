//! Compares the keyspace events of commands with those that the reference publishes.

use super::Stop;
use super::testing::{NOW_MS, try_run};
use crate::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::notes::{Interest, Note, NoteKind};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::slot::Layout;
use flagstone_storage::store::Versions;
use flagstone_wire::resp::Proto;
use std::sync::Arc;

const CASES: &str = include_str!("../../tests/data/keyspace_events.txt");

fn store(partial: bool) -> Store {
    let layout = Arc::new(Layout::new(2, 1));
    let mut store = Store::new(layout, Arc::new(Versions::new(1)), &[1, 2, 3], partial);
    store.notes.want(Interest { changes: true, events: NotifyFlags::all() });
    store
}

fn shown(note: &Note) -> Option<String> {
    let NoteKind::Event(_, name) = note.what else { return None };
    let key = String::from_utf8_lossy(&note.key);
    let db = if note.db == 0 { String::new() } else { format!("@{}", note.db) };
    Some(format!("{name} {key}{db}"))
}

/// Runs a command until it misses nothing, and returns the events of all runs. Missing data moves
/// over from `disk`.
fn events(store: &mut Store, disk: &mut Store, now_ms: u64, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let mut notes = Vec::new();
    loop {
        let ran = try_run(store, &DataSettings::default(), Proto::Resp2, now_ms, &words);
        let Err(Stop::Miss(needs)) = ran else { break };
        store.notes.retry(0);
        notes.append(&mut store.notes.take());
        for need in needs {
            assert_eq!(need.part, None);
            store.apply_loaded(need.db, disk.lend(need.db, &need.key).unwrap());
        }
    }
    notes.append(&mut store.notes.take());
    let shown: Vec<String> = notes.iter().filter_map(shown).collect();
    shown.join(", ")
}

/// Returns the cases, each with its time.
fn cases() -> impl Iterator<Item = (u64, &'static str, &'static str)> {
    let mut now_ms = NOW_MS;
    CASES.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        if let Some(ms) = line.strip_prefix("wait ") {
            now_ms += ms.parse::<u64>().unwrap();
            return None;
        }
        let (command, events) = line.split_once(" =>").unwrap();
        Some((now_ms, command, events.trim()))
    })
}

#[test]
fn commands_tell_the_events_of_the_reference() {
    let (mut hot, mut disk) = (store(false), store(false));
    for (now_ms, command, expected) in cases() {
        assert_eq!(events(&mut hot, &mut disk, now_ms, command), expected, "{command}");
    }
}

#[test]
fn commands_that_miss_keys_tell_the_same_once() {
    let mut disk = store(false);
    for (now_ms, command, expected) in cases() {
        let mut cold = store(true);
        assert_eq!(events(&mut cold, &mut disk, now_ms, command), expected, "{command}");
        cold.seal();
        for (db, entry) in cold.drain() {
            disk.lend(db, entry.key());
            disk.adopt(db, entry);
        }
    }
}

#[test]
fn events_without_a_listener_are_not_made() {
    let (mut hot, mut disk) = (store(false), store(false));
    hot.notes.want(Interest { changes: false, events: NotifyFlags::STRING });
    assert_eq!(events(&mut hot, &mut disk, NOW_MS, "set a 1"), "set a");
    assert_eq!(events(&mut hot, &mut disk, NOW_MS, "del a"), "");
    assert!(hot.notes.is_empty());
}

#[test]
fn a_change_of_the_encoding_alone_is_no_change() {
    let (mut hot, mut disk) = (store(false), store(false));
    let mut run = |command: &str| {
        events(&mut hot, &mut disk, NOW_MS, command);
    };
    run("zadd z 1 a 2 b");
    run("sadd s 1 2");
    let many: Vec<String> = (0..200).map(|n| format!("1 m{n}")).collect();
    let long = "x".repeat(70);
    hot.seal();
    for command in [
        "sort z alpha".to_owned(),
        "sort_ro z alpha".to_owned(),
        format!("zadd z xx 1 {long}"),
        format!("zadd z xx {}", many.join(" ")),
        format!("sadd s {}", ["1"; 600].join(" ")),
    ] {
        events(&mut hot, &mut disk, NOW_MS, &command);
        assert_eq!(hot.seal().keys().count(), 0, "{command}");
    }
    let encoding = |hot: &mut Store, key: &str| {
        let ran = try_run(
            hot,
            &DataSettings::default(),
            Proto::Resp2,
            NOW_MS,
            &["object", "encoding", key],
        );
        ran.unwrap()
    };
    assert!(encoding(&mut hot, "z").contains("skiplist"));
    assert!(encoding(&mut hot, "s").contains("hashtable"));
}
