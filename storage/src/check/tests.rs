//! Each kind of damage is found and reported with its location.

use super::*;
use crate::checkpoint::take_stopped;
use crate::encoding::{Row, RowKey, prefix_range, row};
use crate::engine::Engine;
use crate::value::{Hash, List, Set, SetEncoding, Str, Value, Zset};
use bytes::Bytes;
use futures::FutureExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use std::sync::{Arc, Mutex};

const NOW: u64 = 1_800_000_000_000;

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Listener for Told {
    fn problem(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    fn rows(&self, _count: u64) {}
}

fn location(dir: &Path) -> Location {
    Place::local(dir).unwrap().into()
}

/// Returns a value that has rows of its own.
fn hash() -> Value {
    let mut hash = Hash::new();
    for n in 0..1000 {
        hash.set(format!("field{n}").as_bytes(), b"value", 0);
    }
    Value::Hash(Box::new(hash))
}

fn zset() -> Value {
    let mut zset = Zset::new(true);
    for n in 0..600 {
        zset.set(format!("member{n}").as_bytes(), f64::from(n));
    }
    Value::Zset(Box::new(zset))
}

fn list() -> Value {
    let mut list = List::new();
    (0..500).for_each(|n| list.push(format!("element {n}").as_bytes(), false));
    Value::List(Box::new(list))
}

fn set() -> Value {
    let mut set = Set::new(SetEncoding::Table);
    for n in 0..6000 {
        set.add(format!("a member {n}").as_bytes());
    }
    Value::Set(Box::new(set))
}

/// Writes a data directory with values of several types.
async fn fill(location: &Location) {
    let mut options = offline_options(location).await.unwrap();
    (options.databases, options.default_shards) = (2, 2);
    let opened = Directory::open(options, Clock::default()).await.unwrap();
    let journal = opened.journal.clone();
    let (mut partitions, _lock) = opened.into_partitions(1, 1);
    let mut partition = partitions.remove(0);
    partition.store.begin(NOW, true);
    let big = Value::Str(Str::new(&vec![b'x'; 50_000]));
    let values =
        [("hash", hash()), ("zset", zset()), ("list", list()), ("set", set()), ("big", big)];
    for (name, value) in values {
        partition.store.entry_mut(0, name.as_bytes()).unwrap().value = value;
    }
    for n in 0..200u64 {
        let mut entry = partition.store.entry_mut(1, format!("key{n}").as_bytes()).unwrap();
        entry.value = Value::Str(Str::new(b"value"));
        entry.expire_at_ms = NOW * 2 + n;
    }
    partition.commit(NOW).unwrap();
    partition.close().await.unwrap();
    journal.close().unwrap();
}

/// Returns the problems after rows were written into the engine that has the key `name`.
async fn damaged(
    name: &str,
    damage: impl AsyncFn(&Engine, &[u8], u64) -> Vec<(Bytes, Option<Bytes>)>,
) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    fill(&location(root.path())).await;
    let options = offline_options(&location(root.path())).await.unwrap();
    let opened = Directory::open(options, Clock::default()).await.unwrap();
    let mut written = false;
    for engine in opened.engines() {
        let metas = engine.scan(prefix_range(&[row::META]), usize::MAX).await.unwrap();
        for (meta, value) in metas {
            let Some(Row::Meta { key, .. }) = Row::parse(&meta) else { panic!("a meta row") };
            if key == name.as_bytes() {
                let version = crate::value::decode_entry(key, 0, &value).unwrap().value.version();
                let rows = damage(&engine, &meta, version).await;
                engine.write(rows).await.unwrap();
                written = true;
            }
        }
    }
    assert!(written, "there is no key {name}");
    opened.close().await.unwrap();
    let told = Told::default();
    let report = check(&location(root.path()), &told).await.unwrap();
    let told = told.0.into_inner().unwrap();
    assert_eq!(report.problems, told.len() as u64);
    assert!(!root.path().join(CHECKING).exists());
    told
}

/// Returns the element rows of a version, and their prefix.
async fn elements(engine: &Engine, meta: &[u8], version: u64) -> Vec<(Bytes, Bytes)> {
    let Some(Row::Meta { slot, .. }) = Row::parse(meta) else { panic!("a meta row") };
    let mut head = Vec::new();
    RowKey::elements(&mut head, slot, version);
    engine.scan(prefix_range(&head), usize::MAX).await.unwrap()
}

fn assert_told(told: &[String], what: &str) {
    assert!(told.iter().any(|text| text.contains(what)), "{what}: {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_directory_is_sound() {
    let root = tempfile::tempdir().unwrap();
    fill(&location(root.path())).await;
    let told = Told::default();
    let report = check(&location(root.path()), &told).await.unwrap();
    assert_eq!(told.0.into_inner().unwrap(), Vec::<String>::new());
    assert_eq!((report.shards, report.keys, report.problems), (2, 205, 0));
    assert!(report.rows > 205 + 1000 + 600 + 6000 + 200, "{report:?}");
    assert_eq!(
        report.sizes.to_string(),
        "db0_distrib_strings_sizes:32K=1\ndb0_distrib_hashes_items:512=1\n\
         db0_distrib_sets_items:4K=1\ndb0_distrib_lists_items:256=1\n\
         db0_distrib_zsets_items:512=1\ndb1_distrib_strings_sizes:4=200\n"
    );
    // The directory has not changed.
    assert_eq!(check(&location(root.path()), &Told::default()).await.unwrap(), report);
}

fn in_a_bucket() -> Location {
    Place::within(Arc::new(InMemory::new()), "a/prefix".into(), "memory").into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_store_in_a_bucket_is_sound() {
    let location = in_a_bucket();
    fill(&location).await;
    take_stopped(&location).await.unwrap();
    let before = place::sizes(&location.store).await.unwrap();
    let told = Told::default();
    let report = check(&location, &told).await.unwrap();
    assert_eq!(told.0.into_inner().unwrap(), Vec::<String>::new());
    assert_eq!((report.shards, report.keys, report.problems), (2, 205, 0));
    assert_eq!(report.checkpoints, 1);
    assert!(report.rows > 205 + 1000 + 600 + 6000 + 200, "{report:?}");
    assert_eq!(place::sizes(&location.store).await.unwrap(), before);
    // An object of the journal is lost.
    let journal = location.journal();
    let last = place::sizes(&journal).await.unwrap().into_keys().next_back().unwrap();
    let object = journal.path(&last);
    let header = journal.store().get(&object).await.unwrap().bytes().await.unwrap();
    let mut damaged = header.to_vec();
    damaged[70] ^= 1;
    journal.store().put(&object, damaged.into()).await.unwrap();
    let told = Told::default();
    assert_eq!(check(&location, &told).await.unwrap().problems, 1);
    assert_told(&told.0.into_inner().unwrap(), &last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_shares_its_parents_files_is_sound() {
    let bucket = in_a_bucket().store;
    let location: Location = bucket.join("parent").into();
    fill(&location).await;
    let report = check(&location, &Told::default()).await.unwrap();
    let mut from = location;
    // A branch, and a branch of that; neither was ever opened.
    for name in ["first", "second"] {
        let to = bucket.join(name);
        branch_state(&from, &to).await.unwrap();
        from = to.into();
        let told = Told::default();
        let branch = check(&from, &told).await.unwrap();
        assert_eq!(told.0.into_inner().unwrap(), Vec::<String>::new(), "{name}");
        assert_eq!((branch.keys, branch.rows), (report.keys, report.rows), "{name}");
    }
}

/// A server that writes during a check.
struct Writer(Place, AtomicU64);

impl Listener for Writer {
    fn problem(&self, _what: &str) {}

    fn rows(&self, _count: u64) {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        if number < 2 {
            let object = self.0.path(&format!("{:020}/{number:020}", 9));
            let put = async { self.0.store().put(&object, "of somebody".into()).await };
            put.now_or_never().expect("it is in memory").unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_beside_a_running_server_is_not_fooled() {
    let location = in_a_bucket();
    fill(&location).await;
    let writer = Writer(location.journal(), AtomicU64::new(0));
    let error = check(&location, &writer).await.unwrap_err().to_string();
    assert!(error.contains("was written to meanwhile"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_that_are_missing_are_missed() {
    for name in ["hash", "zset", "list", "set"] {
        let told = damaged(name, async |engine, meta, version| {
            let rows = elements(engine, meta, version).await;
            vec![(rows[rows.len() / 2].0.clone(), None)]
        });
        assert_told(&told.await, &format!("\"{name}\""));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_that_are_damaged_are_found() {
    for name in ["hash", "zset", "list"] {
        let told = damaged(name, async |engine, meta, version| {
            let rows = elements(engine, meta, version).await;
            vec![(rows[0].0.clone(), Some(Bytes::from_static(&[0xff; 3])))]
        });
        assert_told(&told.await, &format!("\"{name}\""));
    }
    let told = damaged("big", async |engine, meta, version| {
        let (mut key, value) = elements(engine, meta, version).await.pop().unwrap();
        key = [&key[..key.len() - 1], &[99][..]].concat().into();
        vec![(key, Some(value))]
    });
    assert_told(&told.await, "\"big\"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_of_no_key_are_found() {
    let told = damaged("hash", async |_, meta, _| vec![(meta.to_vec().into(), None)]);
    let told = told.await;
    assert_told(&told, "1000 elements of version");
    assert_told(&told, "counters of 1 and 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_expiry_index_is_compared_both_ways() {
    let time = async |engine: &Engine, meta: &[u8]| {
        let Some(Row::Meta { key, .. }) = Row::parse(meta) else { panic!("a meta row") };
        let times = engine.scan(prefix_range(&[row::TIME]), usize::MAX).await.unwrap();
        times.into_iter().find(|(time, _)| time.ends_with(key)).unwrap().0
    };
    let told = damaged("key107", async |engine, meta, _| vec![(time(engine, meta).await, None)]);
    let told = told.await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_told(&told, "key \"key107\" (slot");
    assert_told(&told, "has no expiry row");
    let told = damaged("key107", async |engine, meta, _| {
        let mut key = time(engine, meta).await.to_vec();
        key[8] ^= 1;
        vec![(key.into(), Some(Bytes::new()))]
    });
    assert_told(&told.await, "an expiry row at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meta_rows_that_cannot_be_read_are_found() {
    let told = damaged("key7", async |_, meta, _| {
        vec![(meta.to_vec().into(), Some(Bytes::from_static(&[99, 0])))]
    });
    assert_told(&told.await, "key \"key7\" (slot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_journal_is_found() {
    let root = tempfile::tempdir().unwrap();
    fill(&location(root.path())).await;
    let journal = root.path().join("journal");
    let names = std::fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().path());
    let first = names.filter(|path| path.extension().is_some_and(|e| e == "seg")).min().unwrap();
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[700] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    let told = Told::default();
    let report = check(&location(root.path()), &told).await.unwrap();
    assert_eq!(report.problems, 1);
    assert_told(&told.0.into_inner().unwrap(), "the journal is damaged");
}
