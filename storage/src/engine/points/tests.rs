//! Point reads find the same rows as SlateDB.

use super::file::Access;
use super::{Point, Points};
use crate::clock::Clock;
use crate::engine::{Compression, Engine, Upkeep};
use crate::place::Place;
use bytes::Bytes;
use slatedb::db_cache::SplitCache;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Time after which a test gives up waiting.
const LONGEST: Duration = Duration::from_secs(60);

/// An engine in a local directory.
struct Local {
    runtime: Runtime,
    engine: Engine,
    dir: tempfile::TempDir,
}

/// Result of a point read that does not go to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Read {
    Known(Option<Bytes>),
    OnDisk,
    Elsewhere,
}

impl Local {
    fn open() -> Self {
        Self::open_with(|upkeep| upkeep)
    }

    fn open_with(change: impl FnOnce(Upkeep) -> Upkeep) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let upkeep = change(Upkeep {
            poll: Duration::from_millis(50),
            keep_files: None,
            collect: Duration::from_millis(200),
            ..Upkeep::default()
        });
        let place = Place::local(dir.path()).unwrap();
        let cache = Arc::new(SplitCache::new().build());
        let open = Engine::open(&place, cache, 1, Clock::default(), &upkeep);
        let engine = runtime.block_on(open).unwrap();
        let local = Self { runtime, engine, dir };
        local.settle();
        local
    }

    fn points(&self) -> Arc<Points> {
        self.engine.points()
    }

    fn write(&self, rows: Vec<(Bytes, Option<Bytes>)>) {
        self.runtime.block_on(self.engine.write(rows)).unwrap();
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.write(vec![(Bytes::copy_from_slice(key), Some(Bytes::copy_from_slice(value)))]);
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.runtime.block_on(self.engine.get(key)).unwrap()
    }

    /// Returns the result of a read from memory, and from the disk if that is needed.
    fn find(&self, key: &[u8]) -> Read {
        match self.find_cached(key) {
            Read::OnDisk => self.find_on_disk(key),
            read => read,
        }
    }

    fn find_cached(&self, key: &[u8]) -> Read {
        match self.points().find(key, true, |value| value.map(Bytes::copy_from_slice)) {
            Point::Known(value) => Read::Known(value),
            Point::OnDisk(_) => Read::OnDisk,
            Point::Elsewhere => Read::Elsewhere,
        }
    }

    fn find_on_disk(&self, key: &[u8]) -> Read {
        let Point::OnDisk(place) = self.points().find(key, false, |_| ()) else {
            return self.find_cached(key);
        };
        let read = self.engine.read_from_disk(vec![(7, key.to_vec(), place)]);
        match &self.runtime.block_on(read).unwrap()[..] {
            [(7, Some(value))] => Read::Known(value.clone()),
            [(7, None)] => Read::Elsewhere,
            other => panic!("{other:?}"),
        }
    }

    fn flush(&self) {
        self.runtime.block_on(self.engine.flush()).unwrap();
        self.settle();
    }

    /// Waits until the view is that of the manifest.
    fn settle(&self) {
        let begun = Instant::now();
        while !self.is_settled() {
            assert!(begun.elapsed() < LONGEST, "the view does not follow the manifest");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_settled(&self) -> bool {
        let manifest = self.engine.db().manifest();
        let files = manifest.l0().len() + manifest.compacted().len();
        let snapshot = self.points().snapshot();
        snapshot.view.as_ref().is_some_and(|view| {
            view.seq == manifest.last_l0_seq()
                && view.runs.len() == files
                && view.runs.iter().flatten().count() == manifest.all_sst_views().count()
        })
    }

    fn files(&self) -> Vec<PathBuf> {
        let dir = fs::read_dir(self.dir.path().join("compacted")).unwrap();
        dir.map(|entry| entry.unwrap().path()).collect()
    }

    /// Waits until all files of level 0 are merged.
    fn merge(&self) {
        let begun = Instant::now();
        while self.engine.db().manifest().l0().len() >= 4 {
            assert!(begun.elapsed() < LONGEST, "nothing merges the files");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.settle();
    }
}

/// A generator of pseudo-random numbers (xorshift64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Returns a key out of few, of which many begin alike.
    fn key(&mut self) -> Vec<u8> {
        let n = self.below(4000);
        match n % 4 {
            0 => format!("k{n}").into_bytes(),
            1 => [&b"prefix".repeat((n % 60) as usize)[..], &n.to_be_bytes()].concat(),
            2 => vec![b'x'; (n % 300 + 1) as usize],
            _ => (n as u32).wrapping_mul(2_654_435_761).to_be_bytes().to_vec(),
        }
    }

    fn value(&mut self) -> Bytes {
        let length = match self.below(40) {
            0 => 20_000 + self.below(60_000),
            1..4 => 0,
            _ => self.below(700),
        };
        let byte = self.below(256) as u8;
        vec![byte; length as usize].into()
    }
}

#[test]
fn random_rows_are_found_as_the_engine_finds_them() {
    let seed = std::env::var("FLAGSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(0x9e37_79b9_7f4a_7c15);
    for compression in [None, Some(Compression::Lz4), Some(Compression::Zstd)] {
        find_random_rows(seed, &Local::open_with(|upkeep| Upkeep { compression, ..upkeep }));
    }
}

fn find_random_rows(seed: u64, local: &Local) {
    let mut random = Random(seed);
    let mut model = BTreeMap::new();
    let mut known = 0_u64;
    for round in 0..30 {
        let rows: BTreeMap<Bytes, Option<Bytes>> = (0..random.below(400) + 1)
            .map(|_| {
                let value = (random.below(4) > 0).then(|| random.value());
                (random.key().into(), value)
            })
            .collect();
        model.extend(rows.clone());
        local.write(rows.into_iter().collect());
        if random.below(3) > 0 {
            local.flush();
        }
        for _ in 0..200 {
            let mut key = random.key();
            match random.below(20) {
                0 => key.push(0),
                1 => drop(key.pop()),
                2 => key = vec![0],
                3 => key = vec![255; 9],
                _ => {}
            }
            if key.is_empty() {
                continue;
            }
            let wanted = model.get(&key[..]).cloned().flatten();
            for read in [local.find(&key), local.find_on_disk(&key)] {
                if let Read::Known(value) = read {
                    assert_eq!(value, wanted, "seed {seed}, round {round}, key {key:?}");
                    known += 1;
                }
            }
        }
        if round % 20 == 19 {
            local.flush();
            local.merge();
            for (key, value) in &model {
                assert_eq!(local.find(key), Read::Known(value.clone()), "seed {seed}, {key:?}");
                assert_eq!(local.get(key), *value, "seed {seed}, {key:?}");
            }
        }
    }
    assert!(known > 2000, "of all reads only {known} were point reads");
    let keys: Vec<Box<[u8]>> = model.keys().map(|key| key[..].into()).collect();
    let take = |_: &[u8], row: Option<&[u8]>| row.map(Bytes::copy_from_slice);
    let rows = local.runtime.block_on(local.engine.get_many(&keys, take)).unwrap();
    let rows: Vec<_> = rows.into_iter().map(Result::unwrap).collect();
    assert_eq!(rows, model.into_values().collect::<Vec<_>>());
}

#[test]
fn a_row_in_a_memtable_is_never_missed() {
    let local = Local::open();
    assert_eq!(local.find(b"a"), Read::Known(None));
    local.put(b"a", b"1");
    assert_eq!(local.find(b"a"), Read::Elsewhere);
    assert_eq!(local.find(b"b"), Read::Known(None), "others are not affected");
    local.flush();
    assert_eq!(local.find(b"a"), Read::Known(Some("1".into())));
    local.put(b"a", b"2");
    assert_eq!(local.find(b"a"), Read::Elsewhere);
    local.write(vec![(Bytes::from_static(b"a"), None)]);
    assert_eq!(local.find(b"a"), Read::Elsewhere);
    local.flush();
    assert_eq!(local.find(b"a"), Read::Known(None));
}

/// Rows are written and flushed all the time; a reader that knows that a row was written finds it
/// or a later one.
#[test]
fn no_read_is_stale_while_rows_are_flushed() {
    const KEYS: u64 = 50;
    let local = Local::open();
    let written = Arc::new(std::sync::Mutex::new(0_u64));
    let (engine, last) = (local.engine.clone(), written.clone());
    let writing = local.runtime.spawn(async move {
        for n in 1..=3000_u64 {
            let row = (n % KEYS).to_be_bytes().to_vec().into();
            engine.write(vec![(row, Some(n.to_be_bytes().to_vec().into()))]).await.unwrap();
            *last.lock().unwrap() = n;
            if n.is_multiple_of(70) {
                engine.flush().await.unwrap();
            }
        }
    });
    let mut found = 0;
    while !writing.is_finished() {
        let known = *written.lock().unwrap();
        for n in known.saturating_sub(KEYS - 1).max(1)..=known {
            if let Read::Known(value) = local.find(&(n % KEYS).to_be_bytes()) {
                let value = value.unwrap_or_else(|| panic!("row {n} is missing"));
                let value = u64::from_be_bytes(value[..].try_into().unwrap());
                assert!(value >= n, "{value} is older than {n}");
                found += 1;
            }
        }
    }
    local.runtime.block_on(writing).unwrap();
    assert!(found > 0);
}

#[test]
fn a_reopened_engine_is_read_with_all_that_it_was_given() {
    let local = Local::open();
    local.put(b"old", b"1");
    local.flush();
    local.put(b"lost", b"1");
    let new = local.runtime.block_on(async {
        local.engine.close().await.unwrap();
        local.engine.open_again().await.unwrap()
    });
    // The old engine is closed, and its view is gone with it.
    let begun = Instant::now();
    while local.find(b"old") != Read::Elsewhere {
        assert!(begun.elapsed() < LONGEST, "a closed engine is read");
        std::thread::sleep(Duration::from_millis(2));
    }
    local.runtime.block_on(new.write(vec![("lost".into(), Some("2".into()))])).unwrap();
    local.engine.replace(&new);
    local.settle();
    assert_eq!(local.find(b"old"), Read::Known(Some("1".into())));
    assert_eq!(local.find(b"lost"), Read::Elsewhere);
    assert_eq!(local.get(b"lost"), Some("2".into()));
    local.flush();
    assert_eq!(local.find(b"lost"), Read::Known(Some("2".into())));
}

#[test]
fn damaged_files_are_left_to_the_engine() {
    let local = Local::open();
    local.write(
        (0..2000_u32)
            .map(|n| (n.to_be_bytes().to_vec().into(), Some(vec![7; 100].into())))
            .collect(),
    );
    local.flush();
    let key = 1000_u32.to_be_bytes();
    assert_eq!(local.find(&key), Read::Known(Some(vec![7; 100].into())));
    let [path] = &local.files()[..] else { panic!("{:?}", local.files()) };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    // Each block gets a wrong bit in its middle.
    let damaged: Vec<u8> = bytes
        .iter()
        .enumerate()
        .map(|(at, byte)| if at % 4096 == 2048 { byte ^ 16 } else { *byte })
        .collect();
    file.write_all_at(&damaged, 0).unwrap();
    assert_eq!(local.find(&key), Read::Elsewhere);
    assert_eq!(local.find_on_disk(&key), Read::Elsewhere);
    let error = local.runtime.block_on(local.engine.get(&key)).unwrap_err();
    assert!(format!("{error:#}").contains("checksum"), "{error:#}");
    file.write_all_at(&bytes, 0).unwrap();
    assert_eq!(local.find(&key), Read::Known(Some(vec![7; 100].into())));
    // A file that is cut off.
    file.set_len(100).unwrap();
    assert_eq!(local.find(&key), Read::Elsewhere);
    assert_eq!(local.find_on_disk(&key), Read::Elsewhere);
}

#[test]
fn a_file_of_another_format_is_left_to_the_engine() {
    let local = Local::open();
    local.put(b"a", b"1");
    local.flush();
    let [path] = &local.files()[..] else { panic!("{:?}", local.files()) };
    let file = File::options().write(true).open(path).unwrap();
    let end = file.metadata().unwrap().len();
    file.write_all_at(&[9], end - 1).unwrap();
    let manifest = local.engine.db().manifest();
    let handle = &manifest.l0()[0].sst;
    let reader = local.engine.opened().files;
    let index = local.runtime.block_on(async {
        reader.open_with_handle(handle.clone()).unwrap().index().await.unwrap()
    });
    let error = super::file::PointFile::open(path, handle, &index).unwrap_err();
    assert!(format!("{error:#}").contains("another format"), "{error:#}");
}

#[test]
fn limits_hold_and_the_rest_is_left_to_the_engine() {
    let limits = super::PointLimits { bytes: 1 << 20, files: 2 };
    let local = Local::open_with(|upkeep| Upkeep { points: limits, ..upkeep });
    for n in 0..3_u8 {
        local.put(&[n], &[n]);
        local.flush();
    }
    if local.engine.db().manifest().l0().len() == 3 {
        assert_eq!(local.find(&[2]), Read::Known(Some(Bytes::from_static(&[2]))));
        assert_eq!(local.find(&[0]), Read::Elsewhere);
        assert_eq!(local.get(&[0]), Some(Bytes::from_static(&[0])));
    }
    let limits = super::PointLimits { bytes: 10, files: 2 };
    let local = Local::open_with(|upkeep| Upkeep { points: limits, ..upkeep });
    local.put(b"a", b"1");
    local.flush();
    assert_eq!(local.find(b"a"), Read::Elsewhere);
    assert!(local.points().bytes() <= 10 + (Upkeep::default().memtable_bytes / 16));
}

/// A filter says no for nearly every absent key, so their blocks are not read.
#[test]
fn filters_are_understood() {
    let local = Local::open();
    let row = |n: u32| Bytes::from(n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec());
    local.write((0..5000).map(|n| (row(n), Some(Bytes::from_static(b"v")))).collect());
    local.flush();
    let snapshot = local.points().snapshot();
    let file = &snapshot.view.as_ref().unwrap().runs[0][0];
    let filter = file.filter.as_ref().expect("a file of this size has a filter");
    let may_have = |n| filter.may_have(super::bloom::hash(&row(n)));
    assert!((0..5000).all(may_have), "a filter never denies a row that is there");
    let wrong = (5000..25_000).filter(|n| may_have(*n)).count();
    assert!(wrong < 600, "{wrong} of 20,000 absent keys may be there");
    let mut buffer = Vec::new();
    let absent = (5000..).find(|n| !may_have(*n)).unwrap();
    let found = snapshot.find(&row(absent), Access::Locate, &mut buffer);
    assert_eq!(found, super::Sought::Absent, "no block is needed for that");
}

#[test]
fn deleted_files_stay_readable_in_a_snapshot() {
    let local = Local::open();
    local.put(b"a", b"1");
    local.flush();
    let snapshot = local.points().snapshot();
    local.files().iter().for_each(|path: &PathBuf| fs::remove_file::<&Path>(path).unwrap());
    let mut buffer = Vec::new();
    let found = snapshot.find(b"a", Access::Disk, &mut buffer);
    let super::Sought::Value(place) = found else { panic!("{found:?}") };
    assert_eq!(&buffer[place], b"1");
}

/// A snapshot of the engine makes files keep older versions of a row, over several blocks.
#[test]
fn of_many_versions_in_a_file_the_newest_is_found() {
    let local = Local::open();
    let held = local.engine.db().writer().unwrap().snapshot().unwrap();
    for (n, key) in [b"a", b"k", b"z"].repeat(100).into_iter().enumerate() {
        local.put(key, &[n as u8; 900]);
        if n % 50 == 20 {
            local.write(vec![(Bytes::from_static(b"l"), None)]);
        }
        local.put(format!("k{n}").as_bytes(), b"a neighbour");
    }
    local.put(b"l", b"last");
    local.flush();
    let blocks = local.points().snapshot().view.as_ref().unwrap().runs[0][0].open.clone().unwrap();
    assert!(blocks.bytes() > 100, "the versions take several blocks");
    for (n, key) in [(297, b"a"), (298, b"k"), (299, b"z")] {
        let wanted = Bytes::from(vec![n as u8; 900]);
        assert_eq!(local.find(key), Read::Known(Some(wanted.clone())));
        assert_eq!(local.get(key), Some(wanted));
    }
    assert_eq!(local.find(b"l"), Read::Known(Some("last".into())));
    assert_eq!(local.find(b"k7"), Read::Known(Some("a neighbour".into())));
    drop(held);
}

/// Bytes that no checksum protects may be anything: they are refused, or give a place in them.
#[test]
fn no_bytes_of_a_block_lead_out_of_it() {
    let mut random = Random(77);
    let mut block = Vec::new();
    for n in 0..40_u8 {
        // shared, unshared, length of the value; the key's end, the value; seq, flags
        block.extend([u8::from(n % 16 != 0), 1 + u8::from(n % 16 == 0), 3]);
        block.extend(if n % 16 == 0 { vec![b'k', n] } else { vec![n] });
        block.extend([1, 2, 3, 0, 0, 0, 0, 0, 0, 0, n, 0]);
    }
    // Rows 0, 16 and 32 begin at 0, and behind 15 rows of 16 bytes and one of 17.
    for offset in [0_u16, 257, 514] {
        block.extend(offset.to_be_bytes());
    }
    block.extend(3_u16.to_be_bytes());
    for n in 0..40_u8 {
        let found = super::block::find(&block, &[b'k', n]);
        assert!(matches!(found, Some(super::block::BlockRow::Value(_))), "row {n}: {found:?}");
    }
    for _ in 0..200_000 {
        let mut bytes = block.clone();
        for _ in 0..random.below(4) + 1 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        bytes.truncate(bytes.len() - (random.below(8) * random.below(20)) as usize);
        let key = [b'k', random.below(45) as u8];
        if let Some(super::block::BlockRow::Value(place)) = super::block::find(&bytes, &key) {
            assert!(bytes.get(place).is_some());
        }
        let _ = super::bloom::Bloom::parse(&bytes).map(|filter| filter.may_have(random.0));
    }
}

/// Where the system has hardly any block in memory, reads go to the disk without a try, until that
/// changes.
#[test]
fn tries_in_place_follow_the_page_cache() {
    std::thread::spawn(|| {
        let tries = |reads: u32| (0..reads).filter(|_| super::is_worth_trying()).count();
        assert_eq!(tries(100), 100);
        (0..200).for_each(|_| super::note_try(Access::InMemory, false));
        assert_eq!(tries(3200), 100);
        (0..10).for_each(|_| super::note_try(Access::InMemory, true));
        (0..200).for_each(|_| super::note_try(Access::Disk, false));
        assert_eq!(tries(100), 100);
    })
    .join()
    .unwrap();
}
