//! Deleted rows free their space.

use super::*;
use crate::encoding::RowKey;
use crate::materialise::sweep;
use crate::place::{Share, Shares};
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use slatedb::db_cache::SplitCache;
use std::time::Instant;
use tokio::runtime::Runtime;

const DEAD: u64 = 7;
const LIVE: u64 = 9;

/// A process with an engine.
struct Process {
    runtime: Runtime,
    engine: Engine,
}

impl Process {
    fn start(store: &Arc<InMemory>) -> Self {
        Self::start_with(store, None)
    }

    fn start_with(store: &Arc<InMemory>, compression: Option<Compression>) -> Self {
        Self::start_at(store, compression, Clock::default())
    }

    fn start_at(store: &Arc<InMemory>, compression: Option<Compression>, clock: Clock) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let upkeep = Upkeep {
            least_garbage: 64 << 10,
            compression,
            poll: Duration::from_millis(100),
            collect: Duration::from_millis(200),
            ..Upkeep::default()
        };
        let cache = Arc::new(SplitCache::new().build());
        let place = Place::within(store.clone(), "db".into(), "memory");
        let open = Engine::open(&place, cache, 1, clock, &upkeep);
        let engine = runtime.block_on(open).unwrap();
        Self { runtime, engine }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }

    fn write(&self, rows: impl Iterator<Item = (Bytes, Option<Bytes>)>) {
        let rows: Vec<_> = rows.collect();
        for rows in rows.chunks(8192) {
            self.runtime.block_on(self.engine.write(rows.to_vec())).unwrap();
        }
    }

    fn put(&self, version: u64, rows: Range<u32>) {
        let value = Bytes::from_static(&[7; 20]);
        self.write(rows.map(|n| (element(version, n), Some(value.clone()))));
    }

    fn flush(&self) {
        self.runtime.block_on(self.engine.flush()).unwrap();
    }

    /// Sweeps, and returns true if there is more to do.
    fn sweep(&self) -> bool {
        self.runtime.block_on(sweep(&self.engine, Vec::new())).unwrap().1
    }

    /// Sweeps as a worker does until the files are small.
    fn wait_for_space(&self, store: &InMemory, bytes: u64) {
        let begun = Instant::now();
        while size(store) > bytes {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes are left", size(store));
            self.sweep();
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the garbage collector, which leaves files that a merge or a flush may need: some
    /// remain after that.
    fn wait_for_collector(&self, store: &InMemory, bytes: u64) {
        let begun = Instant::now();
        while size(store) >= bytes {
            assert!(begun.elapsed() < Duration::from_secs(180), "{} bytes", size(store));
            self.put(DEAD, 0..100);
            self.flush();
            self.sweep();
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn count(&self, version: u64) -> usize {
        let mut head = Vec::new();
        RowKey::elements(&mut head, 1, version);
        self.runtime.block_on(self.engine.scan(prefix_range(&head), usize::MAX)).unwrap().len()
    }
}

fn element(version: u64, n: u32) -> Bytes {
    let mut key = Vec::new();
    RowKey::elements(&mut key, 1, version);
    key.extend_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
    key.into()
}

/// Returns the bytes of all data files.
fn size(store: &InMemory) -> u64 {
    let files = store.list(Some(&"db/compacted".into())).try_collect::<Vec<_>>();
    let files = futures::executor::block_on(files).unwrap();
    files.iter().map(|file| file.size).sum()
}

/// Deletes most rows, and kills the process after some sweeps; 70,000 rows take two.
fn delete_and_kill(sweeps: u32) {
    let store = Arc::new(InMemory::new());
    let mut process = Process::start(&store);
    process.put(LIVE, 0..500);
    process.put(DEAD, 0..70_000);
    process.flush();
    let before = size(&store);
    process.write(std::iter::once((RowKey::dead(1, DEAD).into(), Some(Bytes::new()))));
    process.flush();
    if sweeps > 0 {
        let more = (0..sweeps).map(|_| process.sweep()).last();
        assert_eq!(more, Some(sweeps == 1));
        process.flush();
        process.kill();
        process = Process::start(&store);
    }
    // The remaining rows are smaller than any file of the dead version's rows or tombstones.
    process.wait_for_space(&store, before / 50);
    assert_eq!((process.count(LIVE), process.count(DEAD)), (500, 0));
    // No further merge is requested.
    assert!(!process.sweep());
    assert_eq!(process.engine.opened().garbage.request(), None);
    process.kill();
}

/// Returns the paths of all data files.
fn files(store: &InMemory) -> Vec<Path> {
    let files = store.list(Some(&"db/compacted".into())).try_collect::<Vec<_>>();
    futures::executor::block_on(files).unwrap().into_iter().map(|file| file.location).collect()
}

/// Writes all rows of a version again, in several files, with a value of this byte.
fn overwrite(process: &Process, version: u64, byte: u8) {
    let value = Bytes::from(vec![byte; 1000]);
    for from in (0..OVERWRITTEN).step_by(1000) {
        process.write((from..from + 1000).map(|n| (element(version, n), Some(value.clone()))));
        process.flush();
    }
}

/// Waits until none of these files is left.
fn wait_until_gone(process: &Process, store: &InMemory, replaced: &[Path]) {
    // A merge that was killed goes on when it is stale, and keeps files until then.
    let limit = 2 * stale_after(&Upkeep::default());
    let begun = Instant::now();
    while files(store).iter().any(|file| replaced.contains(file)) {
        assert!(begun.elapsed() < limit, "replaced files are left");
        // The collector leaves files that are newer than the newest one of level 0.
        process.put(DEAD, 0..10);
        process.flush();
        std::thread::sleep(Duration::from_millis(200));
    }
}

const OVERWRITTEN: u32 = 8000;

#[test]
fn a_long_walk_while_everything_is_merged_sees_its_snapshot() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    overwrite(&process, LIVE, 1);
    let held = files(&store);
    let (merged, is_merged) = std::sync::mpsc::channel();
    let (at_first, is_at_first) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let process = &process;
        let walk = scope.spawn(move || {
            let mut head = Vec::new();
            RowKey::elements(&mut head, 1, LIVE);
            let (mut seen, mut is_first) = (0, true);
            let each = |_, value: Bytes| {
                if std::mem::take(&mut is_first) {
                    at_first.send(()).unwrap();
                    is_merged.recv().unwrap();
                }
                assert_eq!(value[0], 1);
                seen += 1;
                true
            };
            let walked = process.engine.walk(prefix_range(&head), each);
            (process.runtime.block_on(walked).unwrap(), seen)
        });
        is_at_first.recv().unwrap();
        overwrite(process, LIVE, 2);
        // Meanwhile the collector runs again and again.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            process.put(DEAD, 0..10);
            process.flush();
            std::thread::sleep(Duration::from_millis(100));
        }
        let manifest = process.engine.db().manifest();
        let used: Vec<String> =
            manifest.all_sst_views().map(|view| view.sst.id.value().to_string()).collect();
        let is_used = |file: &Path| used.iter().any(|id| file.as_ref().contains(id.as_str()));
        assert!(!held.iter().any(is_used), "they are merged");
        merged.send(()).unwrap();
        let (rest, seen) = walk.join().unwrap();
        assert_eq!((rest, seen), (None, OVERWRITTEN));
    });
    wait_until_gone(&process, &store, &held);
    assert_eq!(process.count(LIVE), OVERWRITTEN as usize);
    process.kill();
}

#[test]
fn replaced_files_go_after_a_kill_too() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    overwrite(&process, LIVE, 1);
    let replaced = files(&store);
    overwrite(&process, LIVE, 2);
    process.kill();
    let process = Process::start(&store);
    wait_until_gone(&process, &store, &replaced);
    assert_eq!(process.count(LIVE), OVERWRITTEN as usize);
    process.kill();
}

#[test]
fn files_are_readable_and_merged_whatever_their_compression() {
    let store = Arc::new(InMemory::new());
    let text = Bytes::from(r#"{"user":"alice","active":true,"score":17},"#.repeat(20));
    let all = [None, Some(Compression::Lz4), Some(Compression::Zstd), None];
    let mut sizes = Vec::new();
    for (round, compression) in (0..).zip(all) {
        let process = Process::start_with(&store, compression);
        let before = size(&store);
        let rows = (0..2000).map(|n| (element(LIVE, round * 2000 + n), Some(text.clone())));
        process.write(rows);
        process.flush();
        sizes.push(size(&store) - before);
        let mut head = Vec::new();
        RowKey::elements(&mut head, 1, LIVE);
        let rows = process.engine.scan(prefix_range(&head), usize::MAX);
        let rows = process.runtime.block_on(rows).unwrap();
        assert_eq!(rows.len(), (round as usize + 1) * 2000);
        assert!(rows.iter().all(|(_, value)| *value == text));
        let key = element(LIVE, 7);
        assert_eq!(process.runtime.block_on(process.engine.get(&key)).unwrap(), Some(text.clone()));
        process.kill();
    }
    assert!(sizes[1] < sizes[0] / 2 && sizes[2] < sizes[0] / 2, "{sizes:?}");
    assert!(sizes[3] > sizes[1] * 2, "{sizes:?}");
    // Files of all kinds become one run.
    let process = Process::start_with(&store, Some(Compression::Zstd));
    process.put(DEAD, 0..70_000);
    process.write(std::iter::once((RowKey::dead(1, DEAD).into(), Some(Bytes::new()))));
    process.flush();
    process.wait_for_space(&store, sizes[0] / 2);
    // Files may have been merged between two sweeps.
    while process.sweep() {}
    assert_eq!((process.count(LIVE), process.count(DEAD)), (8000, 0));
    process.kill();
}

/// Each read begins before the last one ends.
#[test]
fn replaced_files_go_although_there_is_always_a_read() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    let files = || {
        let listed = store.list(Some(&"db/compacted".into())).try_collect::<Vec<_>>();
        process.runtime.block_on(listed).unwrap()
    };
    process.put(LIVE, 0..100);
    process.flush();
    let first = files().pop().expect("a file").location;
    let mut reading = process.engine.begin_read();
    let begun = Instant::now();
    while files().iter().any(|file| file.location == first) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the file stays");
        process.put(LIVE, 0..100);
        process.flush();
        std::thread::sleep(Duration::from_millis(50));
        reading = process.engine.begin_read();
    }
    drop(reading);
    process.kill();
}

#[test]
fn in_a_bucket_replaced_files_stay_for_a_while() {
    let upkeep = Upkeep::remote(Duration::from_secs(1));
    let kept = upkeep.keep_files.unwrap();
    assert_eq!(compactor_options(&upkeep).checkpoint_lifetime, kept);
    let options = engine_settings(&upkeep).garbage_collector_options.unwrap();
    assert_eq!(options.compacted_options.unwrap().min_age, kept);
}

/// The time is a day ahead of that of the files, as when the system's clock was set back.
#[test]
fn no_manifest_is_deleted_soon_by_a_clock_that_is_ahead() {
    let store = Arc::new(InMemory::new());
    let clock = Clock::default();
    clock.at_least(clock.now_ms() + 24 * 3_600_000);
    let process = Process::start_at(&store, None, clock);
    let newest = || {
        let admin = admin(store.clone(), "db");
        process.runtime.block_on(admin.read_manifest(None)).unwrap().unwrap().id()
    };
    let rounds = Instant::now();
    // For some rounds of the collector.
    while rounds.elapsed() < Duration::from_secs(2) {
        process.put(LIVE, 0..100);
        process.flush();
    }
    let made = newest();
    let left = store.list(Some(&"db/manifest".into())).try_collect::<Vec<_>>();
    let left = process.runtime.block_on(left).unwrap().len() as u64;
    assert!(made > 10 && left >= made, "of {made} manifests {left} are left");
    process.kill();
}

#[test]
fn the_space_of_a_dead_version_comes_back() {
    delete_and_kill(0);
}

#[test]
fn the_space_comes_back_after_a_kill_while_sweeping() {
    delete_and_kill(1);
}

#[test]
fn the_space_comes_back_after_a_kill_before_the_merge() {
    delete_and_kill(2);
}

#[test]
fn merges_read_ahead_what_they_are_given_within_bounds() {
    for (given, taken) in [(0, 3 << 20), (6 << 20, 6 << 20), (1 << 30, 24 << 20)] {
        let upkeep = Upkeep { merge_bytes: given, ..Upkeep::default() };
        let worker = compactor_options(&upkeep).worker.unwrap();
        let each = (1 + worker.max_fetch_tasks) * worker.bytes_to_fetch;
        let all = each * worker.max_subcompactions * scheduler::INPUTS;
        assert_eq!(all, taken);
    }
}

#[test]
fn merges_are_measured_where_they_read() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    for n in 0..8 {
        process.put(LIVE, n * 4000..n * 4000 + 4000);
        process.flush();
    }
    let begun = Instant::now();
    while process.engine.figures().runs == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is merged");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (taken, read) = process.engine.merge_pace().counted();
    // The rows, and of the files that were merged more than the rows' values.
    assert!(taken >= 8 * 4000 * 30, "{taken}");
    assert!(read >= 4 * 4000 * 20, "{read}");
    process.kill();
}

#[test]
fn files_with_little_garbage_are_left_alone() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    process.put(LIVE, 0..40_000);
    process.put(DEAD, 0..4000);
    process.write(std::iter::once((RowKey::dead(1, DEAD).into(), Some(Bytes::new()))));
    process.flush();
    assert!(!process.sweep());
    assert!(process.engine.opened().garbage.add(0) >= 64 << 10);
    assert_eq!(process.engine.opened().garbage.request(), None);
    process.kill();
}

#[test]
fn a_part_of_a_version_can_be_dead() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    let mut head = Vec::new();
    RowKey::elements(&mut head, 1, LIVE);
    let row = |element: &[u8]| Bytes::from([&head[..], element].concat());
    let rows = (0..10_000u32).flat_map(|n| {
        [1, 2, 3].map(|part| (row(&[&[part][..], &n.to_be_bytes()].concat()), Some(Bytes::new())))
    });
    process.write(rows);
    let dead = RowKey::dead_elements(&head, &[2]);
    process.write(std::iter::once((dead.clone().into(), Some(Bytes::new()))));
    process.flush();
    assert!(!process.sweep());
    let left = process.runtime.block_on(process.engine.scan(prefix_range(&head), usize::MAX));
    let left: Vec<u8> = left.unwrap().iter().map(|(key, _)| key[head.len()]).collect();
    assert_eq!(left.len(), 20_000);
    assert!(!left.contains(&2));
    assert_eq!(process.runtime.block_on(process.engine.get(&dead)).unwrap(), None);
    process.kill();
}

#[test]
fn a_checkpoint_keeps_its_files_as_long_as_it_is_there() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    process.put(LIVE, 0..40_000);
    let made = process.runtime.block_on(process.engine.checkpoint("one")).unwrap();
    let held = size(&store);
    let files = |manifest: u64| {
        let admin = admin(store.clone(), "db");
        let manifest = process.runtime.block_on(admin.read_manifest(Some(manifest))).unwrap();
        let manifest = manifest.expect("the manifest stays");
        manifest.all_sst_views().map(|view| view.sst.id.value().to_string()).collect::<Vec<_>>()
    };
    let named = files(made.manifest);
    assert!(!named.is_empty());
    // Deletes everything and merges it away, several times over.
    process.write(std::iter::once((RowKey::dead(1, LIVE).into(), Some(Bytes::new()))));
    process.flush();
    for n in 0..4 {
        process.put(DEAD, n * 1000..n * 1000 + 1000);
        process.flush();
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        process.sweep();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(process.count(LIVE), 0);
    for name in &named {
        let path = format!("db/compacted/{name}.sst").into();
        let there = process.runtime.block_on(async { store.head(&path).await.is_ok() });
        assert!(there, "{name} is gone");
    }
    assert!(size(&store) >= held);
    // Another process keeps those ids that it is given.
    process.kill();
    let process = Process::start(&store);
    let kept = std::collections::BTreeSet::from([made.id.clone()]);
    process.runtime.block_on(process.engine.keep_checkpoints(&kept)).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(size(&store) >= held);
    process.runtime.block_on(process.engine.keep_checkpoints(&Default::default())).unwrap();
    process.wait_for_collector(&store, held / 2);
    process.kill();
}

/// Returns the object at a path, read through a store.
fn object(process: &Process, store: &dyn ObjectStore, path: &str) -> Option<Bytes> {
    let path = Path::from(path);
    process.runtime.block_on(async { store.get(&path).await.ok()?.bytes().await.ok() })
}

#[test]
fn files_stay_for_branches_until_they_are_gone_or_need_none() {
    let store = Arc::new(InMemory::new());
    let process = Process::start(&store);
    process.put(LIVE, 0..40_000);
    let made = process.runtime.block_on(process.engine.checkpoint("one")).unwrap();
    let held = size(&store);
    let admin = admin(store.clone(), "db");
    let manifest = process.runtime.block_on(admin.read_manifest(Some(made.manifest))).unwrap();
    let views = manifest.as_ref().unwrap().all_sst_views();
    let names: Vec<_> = views.map(|v| format!("compacted/{}.sst", v.sst.id.value())).collect();
    let base = Place::within(store.clone(), "".into(), "memory");
    // One branch exists, a second was never written to, a third is in the making.
    let mut kept = Vec::new();
    for path in ["there", "gone", "making"] {
        let id = checkpoint::keep_for_branch(&admin, Some(&made.id), path);
        kept.push(process.runtime.block_on(id).unwrap().id);
    }
    for id in &kept[..2] {
        let refreshed = admin.refresh_checkpoint(id.parse().unwrap(), None);
        process.runtime.block_on(refreshed).unwrap();
    }
    let files: Vec<_> =
        names.iter().map(|name| (name, object(&process, &store, &format!("db/{name}")))).collect();
    let sizes =
        files.iter().map(|(name, bytes)| ((*name).clone(), bytes.as_ref().unwrap().len() as u64));
    let share = Share { engine: "db".into(), checkpoint: kept[0].clone(), files: sizes.collect() };
    let engines = [("there/db".to_owned(), share)].into();
    let place = base.join("there");
    process.runtime.block_on(Shares::new(engines).write(&place)).unwrap();
    let ids = || -> Vec<String> {
        let listed = process.runtime.block_on(admin.list_checkpoints(None)).unwrap();
        listed.into_iter().map(|found| found.id.to_string()).collect()
    };
    process.runtime.block_on(process.engine.keep_checkpoints(&Default::default())).unwrap();
    process.runtime.block_on(process.engine.drop_branches()).unwrap();
    let left = ids();
    assert!(!left.contains(&made.id) && !left.contains(&kept[1]), "{left:?}");
    assert!(left.contains(&kept[0]) && left.contains(&kept[2]), "{left:?}");
    let given_up = admin.delete_checkpoint(kept[2].parse().unwrap());
    process.runtime.block_on(given_up).unwrap();
    // Everything is deleted and merged away, but the branch still sees it.
    process.write(std::iter::once((RowKey::dead(1, LIVE).into(), Some(Bytes::new()))));
    process.flush();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        process.put(DEAD, 0..100);
        process.flush();
        process.sweep();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(process.count(LIVE), 0);
    let branch = process.runtime.block_on(place.with_shared()).unwrap();
    for (name, bytes) in &files {
        let seen = object(&process, &*branch.store(), &format!("there/db/{name}"));
        assert_eq!(seen, *bytes, "{name}");
    }
    // It deletes the files that it does not need.
    assert_eq!(process.runtime.block_on(branch.release()).unwrap(), 0);
    for (n, name) in names.iter().enumerate() {
        let path = Path::from(format!("there/db/{name}"));
        process.runtime.block_on(branch.store().delete(&path)).unwrap();
        let is_last = n + 1 == names.len();
        assert_eq!(process.runtime.block_on(branch.release()).unwrap(), usize::from(is_last));
    }
    assert!(!ids().contains(&kept[0]));
    process.wait_for_collector(&store, held / 2);
    process.kill();
}

/// Another process has opened the engine since its writer epoch was seen: the claim fails, and closes
/// nothing.
#[test]
fn a_claim_holds_if_nobody_has_opened_the_engine_since() {
    let store = Arc::new(InMemory::new());
    let place = Place::within(store.clone(), "db".into(), "memory");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let claim = |claim| {
        let cache: Arc<dyn DbCache> = Arc::new(SplitCache::new().build());
        let (place, upkeep) = (place.clone(), Upkeep::default());
        async move { Engine::claim(&place, (cache, 1), Clock::default(), &upkeep, claim).await }
    };
    runtime.block_on(async {
        assert_eq!(Engine::writer_epoch(&place).await.unwrap(), 0);
        let first = claim(Claim::After(0)).await.unwrap();
        assert_eq!(Engine::writer_epoch(&place).await.unwrap(), 1);
        assert!(claim(Claim::After(0)).await.is_err(), "it was opened since");
        let row = |n: u32| vec![(element(LIVE, n), Some(Bytes::from_static(b"row")))];
        first.write(row(1)).await.unwrap();
        first.flush().await.unwrap();
        // The same process may open it again, until another one has.
        first.close().await.unwrap();
        let again = first.open_again().await.unwrap();
        again.write(row(2)).await.unwrap();
        again.flush().await.unwrap();
        let other = claim(Claim::After(2)).await.unwrap();
        assert!(again.open_again().await.is_err());
        other.write(row(3)).await.unwrap();
        other.flush().await.unwrap();
    });
}
