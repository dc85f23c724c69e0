//! Checkpoints of random histories: each, branched or restored, equals the model at its lsn, and so
//! does any moment after one.

use crate::histories::{DATABASES, History, number};
use crate::image::Probe;
use crate::model::Model;
use crate::store::Watched;
use crate::world::{World, fresh, options};
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Catalog, Checkpoint, CheckpointSource, Quiet, Retention, backup, branch,
    list_backups, restore, take, take_stopped,
};
use flagstone_storage::clock::{Clock, ManualTime};
use flagstone_storage::directory::{Location, OpenOptions, ShardSplitter};
use flagstone_storage::journal::{Lsn, RealDisk};
use flagstone_storage::place::Place;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

pub(crate) const NOW: u64 = 1_800_000_000_000;
const STEPS: u32 = 160;

pub(crate) fn open(location: &Location, model: Model) -> World {
    open_with_lease(location, model, options(Path::new("replaced"), 1).lease)
}

/// Like [`open`], with another lease of a former owner.
pub(crate) fn open_with_lease(location: &Location, model: Model, lease: Duration) -> World {
    let images = location.store.dir().unwrap_or(Path::new("nowhere"));
    let probe = Arc::new(Probe::new(images, model.clone(), Box::new(|_| false)));
    let store = |place: &Place| -> anyhow::Result<Place> {
        let Some(dir) = place.dir() else { return Ok(place.clone()) };
        let files = Arc::new(LocalFileSystem::new_with_prefix(dir)?);
        Ok(Place::within(files, ObjectPath::default(), place.to_string()))
    };
    // Segments are short, so that many are dropped.
    let options = OpenOptions {
        store: location.store.clone(),
        journal: location.journal.clone(),
        archive: true,
        segment_bytes: 16 << 10,
        // The machine may be slow; the store is not.
        store_timeout: Duration::from_secs(60),
        lease,
        ..options(Path::new("replaced"), DATABASES as u32)
    };
    let disk = Arc::new(RealDisk);
    World::open_on(options, model, probe, disk, Arc::new(store)).unwrap()
}

pub(crate) fn source(store: &Place, scratch: &Path, world: &World) -> CheckpointSource {
    CheckpointSource {
        store: store.clone(),
        scratch: scratch.into(),
        layout: world.partition.store.layout().clone(),
        origin: 1,
        journal: world.journal.clone(),
        engines: world
            .partition
            .shards
            .values()
            .map(|s| s.engine().clone())
            .collect::<Vec<_>>()
            .into(),
        clock: Clock::default(),
    }
}

pub(crate) fn local(dir: &Path) -> Place {
    Place::local(dir).unwrap()
}

/// Kind of the store and of the journal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Local,
    Bucket,
    BucketAndLocalJournal,
    LocalAndBucketJournal,
}

const KINDS: [Kind; 4] =
    [Kind::Local, Kind::Bucket, Kind::BucketAndLocalJournal, Kind::LocalAndBucketJournal];

/// A history with checkpoints.
pub(crate) struct Run {
    pub(crate) root: tempfile::TempDir,
    bucket: Place,
    kind: Kind,
    pub(crate) location: Location,
    pub(crate) history: History,
    number: u32,
    pub(crate) taken: Vec<Checkpoint>,
    under_way: Option<JoinHandle<anyhow::Result<Checkpoint>>>,
    /// Splits wait for the end of a checkpoint, as in the server.
    splitter: Option<Arc<ShardSplitter>>,
}

impl Run {
    pub(crate) fn new(seed: u64, kind: Kind) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        let dir = local(&fresh(root.path(), &mut number));
        let bucket = Place::within(Arc::new(InMemory::new()), "a/prefix".into(), "memory");
        let location = match kind {
            Kind::Local => Location::from(dir),
            Kind::Bucket => Location::from(bucket.join("data")),
            Kind::BucketAndLocalJournal => {
                Location { store: bucket.join("data"), journal: Some(dir.join("log")) }
            }
            Kind::LocalAndBucketJournal => {
                Location { store: dir, journal: Some(bucket.join("log")) }
            }
        };
        let mut model = Model { now_ms: NOW, ..Model::default() };
        model.dbs.resize_with(DATABASES, Default::default);
        let world = open(&location, model);
        world.probe.keep_models(world.journal.clone());
        let history = History { world, random: StdRng::seed_from_u64(seed) };
        let (taken, under_way, splitter) = (Vec::new(), None, None);
        Self { root, bucket, kind, location, history, number, taken, under_way, splitter }
    }

    /// Begins a checkpoint; the history goes on.
    pub(crate) fn begin(&mut self) {
        let world = &mut self.history.world;
        self.splitter = world.splitter.take();
        let source = source(&self.location.store, self.root.path(), world);
        let taking = async move { take(&source, u64::MAX).await };
        self.under_way = Some(world.runtime.as_ref().unwrap().spawn(taking));
    }

    pub(crate) fn finish(&mut self) {
        if let Some(taking) = self.under_way.take() {
            self.taken.push(self.history.world.block_on(taking).unwrap().unwrap());
            self.history.world.splitter = self.splitter.take();
        }
    }

    pub(crate) fn steps(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.history.random.random_range(0..14) {
                0 if self.under_way.is_none() => self.begin(),
                1 => self.finish(),
                _ => {}
            }
            self.history.step();
        }
        self.history.world.commit();
        self.finish();
    }

    /// Kills the process, and starts another one, which must have everything committed.
    pub(crate) fn kill(self) -> Self {
        let model = self.history.world.model.clone();
        self.replaced(model, || {})
    }

    /// Like [`kill`](Self::kill), with a change of the directory before the start, which must have the data
    /// of `model` then.
    pub(crate) fn replaced(self, model: Model, change: impl FnOnce()) -> Self {
        let Self { history: History { world, random }, .. } = self;
        world.journal.sync_now().unwrap();
        drop(world);
        change();
        let world = open(&self.location, model);
        world.probe.keep_models(world.journal.clone());
        Self { history: History { world, random }, ..self }
    }

    /// Returns an empty place in the store of this one.
    pub(crate) fn fresh(&mut self) -> Place {
        let dir = fresh(self.root.path(), &mut self.number);
        match self.kind {
            Kind::Local | Kind::LocalAndBucketJournal => local(&dir),
            _ => self.bucket.join(&self.number.to_string()),
        }
    }

    /// Opens a directory, which must equal the model at an lsn.
    pub(crate) fn check(&self, at_place: &Place, lsn: Lsn, at: &str) {
        let location = at_place.clone().into();
        let mut copy = open(&location, self.history.world.probe.model_at(lsn));
        copy.verify(at);
        copy.close();
        if let Some(dir) = at_place.dir() {
            std::fs::remove_dir_all(dir).unwrap();
        }
    }

    fn restore(&mut self, from: &Location, id: Option<&str>, as_of: Option<AsOf>) -> (Place, Lsn) {
        let to = self.fresh();
        // Records that are only in memory cannot be restored.
        self.history.world.journal.sync_now().unwrap();
        let restored = restore(from, &to, id, as_of, &Quiet);
        let restored = self.history.world.block_on(restored).unwrap();
        (to, restored.lsn)
    }

    fn back_up(&self, checkpoint: &Checkpoint, to: &Place, options: BackupOptions) -> (usize, u64) {
        let done = backup(&self.location, &checkpoint.id, to, options, &Quiet);
        let done = self.history.world.block_on(done).unwrap();
        (done.copied_files, done.copied_bytes)
    }
}

fn run(seed: u64, kind: Kind) {
    println!("seed {seed}, {kind:?}");
    let mut run = Run::new(seed, kind);
    run.steps(STEPS);
    let taken = run.taken.clone();
    assert!(taken.len() >= 2, "seed {seed}: {} checkpoints", taken.len());
    let place = run.location.store.clone();
    let backups = match seed % 2 {
        0 => Place::within(Arc::new(InMemory::new()), "some/prefix".into(), "memory"),
        _ => Place::local(run.root.path().join("backups")).unwrap(),
    };
    for checkpoint in &taken {
        let at = format!("seed {seed}, checkpoint at {}", checkpoint.lsn);
        let to = run.fresh();
        let made = branch(&place, &checkpoint.id, &to);
        let made = run.history.world.block_on(made).unwrap();
        assert_eq!(made.lsn, checkpoint.lsn, "{at}");
        run.check(&to, checkpoint.lsn, &format!("{at}, branched"));
        run.back_up(checkpoint, &backups, BackupOptions::default());
    }
    let listed = run.history.world.block_on(list_backups(&backups)).unwrap();
    assert_eq!(listed.len(), taken.len(), "seed {seed}");
    let picked = run.history.random.random_range(0..taken.len());
    let backups = Location::from(backups);
    let (dir, lsn) = run.restore(&backups, Some(&taken[picked].id), None);
    assert_eq!(lsn, taken[picked].lsn);
    run.check(&dir, lsn, &format!("seed {seed}, backup at {lsn}, restored"));
    // Any moment not before a checkpoint, from the directory and from its backups.
    let first = taken[0].reaches().max(taken[0].after + 1);
    let data = run.location.clone();
    for (from, last) in
        [(&data, run.history.world.journal.end()), (&backups, taken[taken.len() - 1].lsn)]
    {
        for _ in 0..3 {
            let asked = run.history.random.random_range(first..=last);
            let (dir, lsn) = run.restore(from, None, Some(AsOf::Lsn(asked)));
            assert_eq!(lsn, asked, "seed {seed}");
            run.check(&dir, lsn, &format!("seed {seed}, as of {lsn} from {}", from.store));
        }
    }
    run.history.world.close();
}

#[test]
fn checkpoints_and_backups_hold_the_data_of_their_moment() {
    let first = number("FLAGSTONE_SEED", 1);
    for seed in first..first + number("FLAGSTONE_SEEDS", 4) {
        run(seed, Kind::Local);
    }
}

#[test]
fn so_it_is_in_a_bucket_and_of_a_journal_in_one() {
    let first = number("FLAGSTONE_SEED", 1);
    for seed in first..first + number("FLAGSTONE_SEEDS", 2) {
        KINDS[1..].iter().for_each(|kind| run(seed, *kind));
    }
}

/// Returns the names and sizes of files with rows below a place.
fn rows_in(run: &Run, place: &Place) -> BTreeMap<String, u64> {
    let listing = place.store().list(Some(place.root())).try_collect::<Vec<_>>();
    let listed = run.history.world.block_on(listing).unwrap();
    let rows = listed.iter().filter(|meta| meta.location.extension() == Some("sst"));
    rows.map(|meta| (meta.location.filename().unwrap().to_owned(), meta.size)).collect()
}

#[test]
fn a_branch_in_a_bucket_has_no_copies_and_is_a_parent_and_backed_up_as_any() {
    for seed in [12, 13] {
        let mut run = Run::new(seed, Kind::Bucket);
        run.steps(60);
        run.history.world.settle();
        run.begin();
        run.finish();
        let taken = run.taken.last().unwrap().clone();
        let (store, first) = (run.location.store.clone(), run.fresh());
        run.history.world.block_on(branch(&store, &taken.id, &first)).unwrap();
        let of_parent = rows_in(&run, &store);
        let own = rows_in(&run, &first);
        assert!(!of_parent.is_empty());
        assert!(!own.keys().any(|name| of_parent.contains_key(name)), "{own:?}");
        // The branch can be used by itself, and has checkpoints.
        let location = Location::from(first.clone());
        let mut world = open(&location, run.history.world.probe.model_at(taken.lsn));
        world.probe.keep_models(world.journal.clone());
        world.set(0, b"only in the branch", b"value", 0);
        world.commit();
        let source = source(&first, run.root.path(), &world);
        let made = world.block_on(take(&source, u64::MAX)).unwrap();
        let model = world.probe.model_at(made.lsn);
        let (second, backups) = (run.fresh(), run.bucket.join("backups"));
        let elsewhere = Place::within(Arc::new(InMemory::new()), "".into(), "memory");
        world.block_on(async {
            branch(&first, &made.id, &second).await.unwrap();
            let options = BackupOptions::default;
            for to in [&backups, &elsewhere] {
                backup(&location, &made.id, to, options(), &Quiet).await.unwrap();
            }
        });
        world.close();
        let mut copies = vec![second];
        for from in [backups, elsewhere.clone()] {
            copies.push(run.restore(&Location::from(from), None, None).0);
        }
        let restored = elsewhere.join("restored");
        let restoring = restore(&location, &restored, Some(&made.id), None, &Quiet);
        run.history.world.block_on(restoring).unwrap();
        copies.push(restored);
        for copy in copies {
            let at = format!("seed {seed}, {copy}");
            let mut copy = open(&Location::from(copy), model.clone());
            copy.verify(&at);
            copy.close();
        }
        run.history.world.close();
    }
}

#[test]
fn a_moment_is_restored_to_the_record() {
    KINDS.into_iter().for_each(restore_moments);
}

fn restore_moments(kind: Kind) {
    let mut run = Run::new(77, kind);
    run.begin();
    run.finish();
    let mut ends = Vec::new();
    for n in 0..12u64 {
        let world = &mut run.history.world;
        world.model.now_ms = NOW + 10 * n;
        world.set(0, b"key", n.to_string().as_bytes(), 0);
        world.commit();
        world.set(0, format!("other{n}").as_bytes(), b"value", 0);
        world.commit();
        ends.push((world.model.now_ms, world.journal.end()));
    }
    let place = run.location.clone();
    // Both records of one time, and none that is a ms later.
    let some = if kind == Kind::Local { 1 } else { 4 };
    for &(ms, end) in ends.iter().step_by(some) {
        for asked in [ms, ms + 9] {
            let (dir, lsn) = run.restore(&place, None, Some(AsOf::Time(asked)));
            assert_eq!(lsn, end, "as of {asked}");
            run.check(&dir, lsn, &format!("as of {asked}"));
        }
    }
    let to = run.fresh();
    let beyond = restore(&place, &to, None, Some(AsOf::Lsn(10_000)), &Quiet);
    let error = run.history.world.block_on(beyond).unwrap_err().to_string();
    assert!(error.contains("not everything"), "{error}");
    run.history.world.close();
}

#[test]
fn a_moment_in_the_making_of_a_checkpoint_is_restored_to_the_record() {
    for kind in KINDS {
        for hands_over in [false, true] {
            restore_moments_of_a_making(kind, hands_over);
        }
    }
}

/// Takes a checkpoint by a clock that shows so much, with whatever was written before.
fn take_at(run: &Run, ms: u64) -> Checkpoint {
    let wall_us = (ms * 1000).into();
    let clock = Clock::manual(Arc::new(ManualTime { wall_us, ..ManualTime::default() }));
    let source = source(&run.location.store, run.root.path(), &run.history.world);
    let source = CheckpointSource { clock, ..source };
    run.history.world.block_on(take(&source, u64::MAX)).unwrap()
}

fn restore_moments_of_a_making(kind: Kind, hands_over: bool) {
    let mut run = Run::new(31, kind);
    let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
    let (mut ends, mut ids) = (Vec::new(), Vec::new());
    for n in 0..4 {
        run.history.world.model.now_ms = NOW + 10 * n;
        run.history.world.set(0, b"key", n.to_string().as_bytes(), 0);
        run.history.world.commit();
        ends.push(run.history.world.journal.end());
        if hands_over && n == 3 {
            run.history.world.settle();
        }
        // The second one is begun behind the second write, and has the next two as well.
        if n == 0 || n == 3 {
            let made = take_at(&run, NOW + 5 * n);
            run.back_up(&made, &backups, BackupOptions::default());
            ids.push(made.id);
        }
    }
    let (data, backups) = (run.location.clone(), Location::from(backups));
    for (from, after_ms, end) in [
        (&data, 15, ends[1]),
        (&data, 25, ends[2]),
        (&data, 30, ends[3]),
        (&backups, 15, ends[1]),
        (&backups, 25, ends[2]),
    ] {
        let at = format!("{kind:?}, handed over: {hands_over}, {after_ms} ms, {}", from.store);
        let (dir, lsn) = run.restore(from, None, Some(AsOf::Time(NOW + after_ms)));
        assert_eq!(lsn, end, "{at}");
        run.check(&dir, lsn, &at);
    }
    if hands_over {
        for from in [&data, &backups] {
            let (to, as_of) = (run.fresh(), Some(AsOf::Time(NOW + 5)));
            let restoring = restore(from, &to, Some(&ids[1]), as_of, &Quiet);
            let error = format!("{:#}", run.history.world.block_on(restoring).unwrap_err());
            assert!(error.contains("of later than that"), "{kind:?}: {error}");
        }
    }
    run.history.world.close();
}

/// After a kill, time goes on from the last record: behind the time of a checkpoint of before, if the system's clock
/// is.
#[test]
fn moments_before_the_time_of_an_idle_checkpoint_have_the_records_behind_it() {
    for kind in KINDS {
        let mut run = Run::new(37, kind);
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        let mut ends = Vec::new();
        for (n, checkpoints_ms) in [(0, &[1, 50][..]), (1, &[]), (2, &[60])] {
            run.history.world.model.now_ms = NOW + 10 * n;
            run.history.world.set(0, b"key", n.to_string().as_bytes(), 0);
            run.history.world.commit();
            ends.push(run.history.world.journal.end());
            run.history.world.settle();
            for ms in checkpoints_ms {
                let made = take_at(&run, NOW + ms);
                run.back_up(&made, &backups, BackupOptions::default());
            }
        }
        let (data, backups) = (run.location.clone(), Location::from(backups));
        for from in [&data, &backups] {
            for (after_ms, end) in [(5, ends[0]), (15, ends[1]), (25, ends[2])] {
                let at = format!("{kind:?}, {after_ms} ms, {}", from.store);
                let (dir, lsn) = run.restore(from, None, Some(AsOf::Time(NOW + after_ms)));
                assert_eq!(lsn, end, "{at}");
                run.check(&dir, lsn, &at);
            }
        }
        run.history.world.close();
    }
}

#[test]
fn a_backup_of_a_stopped_directory_has_the_moments_since_the_one_before() {
    for kind in [Kind::Local, Kind::Bucket, Kind::LocalAndBucketJournal] {
        let mut run = Run::new(41, kind);
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        let store = run.location.store.clone();
        let source = source(&store, run.root.path(), &run.history.world);
        let first = run.history.world.block_on(async {
            let path = store.path("flagstone.json");
            let manifest = store.store().get(&path).await.unwrap().bytes().await.unwrap();
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
            let origin = manifest["salt"].as_u64().unwrap() as u32;
            take(&CheckpointSource { origin, ..source }, u64::MAX).await.unwrap()
        });
        run.back_up(&first, &backups, BackupOptions::default());
        for n in 0..3 {
            run.history.world.set(0, b"key", n.to_string().as_bytes(), 0);
            run.history.world.commit();
        }
        let models = run.history.world.probe.models();
        let Run { history: History { world, .. }, location, root, mut number, .. } = run;
        world.close();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let backups = Location::from(backups);
        let options = BackupOptions::default();
        runtime.block_on(async {
            let made = take_stopped(&location).await.unwrap();
            backup(&location, &made.id, &backups.store, options, &Quiet).await.unwrap();
        });
        for (lsn, model) in models.into_iter().filter(|(lsn, _)| *lsn > first.lsn) {
            let to = local(&fresh(root.path(), &mut number));
            let restoring = restore(&backups, &to, None, Some(AsOf::Lsn(lsn)), &Quiet);
            assert_eq!(runtime.block_on(restoring).unwrap().lsn, lsn, "{kind:?}");
            let mut copy = open(&to.into(), model);
            copy.verify(&format!("{kind:?}, as of {lsn}"));
            copy.close();
        }
    }
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, to) = entry.map(|it| (it.path(), to.join(it.file_name()))).unwrap();
        if entry.is_dir() {
            copy_dir(&entry, &to);
        } else {
            std::fs::copy(&entry, &to).unwrap();
        }
    }
}

#[test]
fn backups_of_a_directory_that_was_rolled_back_do_not_go_on_from_those_before() {
    for has_second in [true, false] {
        let mut run = Run::new(51, Kind::Local);
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        let write = |run: &mut Run, ms: u64, name: &str| {
            run.history.world.model.now_ms = NOW + ms;
            for n in 0..4 {
                run.history.world.set(0, format!("{name}{n}").as_bytes(), b"value", 0);
                run.history.world.commit();
            }
        };
        let back_up = |run: &mut Run, ms: u64| {
            let made = take_at(run, NOW + ms);
            run.back_up(&made, &backups, BackupOptions::default());
            made.lsn
        };
        write(&mut run, 0, "old");
        let old = run.history.world.model.clone();
        let (dir, copy) =
            (run.location.store.dir().unwrap().to_owned(), run.root.path().join("copy"));
        run = run.replaced(old.clone(), || copy_dir(&dir, &copy));
        write(&mut run, 1000, "gone");
        write(&mut run, 1000, "gone too");
        let first = back_up(&mut run, 1500);
        run = run.replaced(old, || {
            std::fs::remove_dir_all(&dir).unwrap();
            copy_dir(&copy, &dir);
        });
        write(&mut run, 2000, "new");
        let from = Location::from(backups.clone());
        if has_second {
            let second = back_up(&mut run, 2500);
            assert!(second < first);
            let (dir, lsn) = run.restore(&from, None, None);
            assert_eq!(lsn, second);
            run.check(&dir, lsn, "the newest");
        }
        write(&mut run, 3000, "newer");
        write(&mut run, 3000, "newest");
        run.history.world.settle();
        let third = back_up(&mut run, 3500);
        assert!(third > first + 1);
        let as_of = Some(AsOf::Lsn(first + 1));
        if has_second {
            let (dir, lsn) = run.restore(&from, None, as_of);
            assert_eq!(lsn, first + 1);
            run.check(&dir, lsn, "a moment of the new history");
        } else {
            let to = run.fresh();
            let restoring = restore(&from, &to, None, as_of, &Quiet);
            let error = run.history.world.block_on(restoring).unwrap_err().to_string();
            assert!(error.contains("not everything"), "{error}");
        }
        run.history.world.close();
    }
}

#[test]
fn a_backup_copies_new_files_and_finds_damaged_ones() {
    let mut run = Run::new(5, Kind::Local);
    run.steps(60);
    run.history.world.settle();
    run.begin();
    run.finish();
    let to = Place::local(run.root.path().join("backups")).unwrap();
    let first = run.taken.last().unwrap().clone();
    let all = run.back_up(&first, &to, BackupOptions::default());
    run.begin();
    run.finish();
    let second = run.taken.last().unwrap().clone();
    let again = run.back_up(&second, &to, BackupOptions::default());
    assert!(again.1 < all.1, "{again:?} of {all:?}");
    // A damaged file keeps its size.
    let objects = run.root.path().join("backups/objects");
    let file = std::fs::read_dir(&objects).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (from, made) = (Location::from(to.clone()), run.fresh());
    let restoring = restore(&from, &made, Some(&first.id), None, &Quiet);
    let error = format!("{:#}", run.history.world.block_on(restoring).unwrap_err());
    assert!(error.contains("damaged"), "{error}");
    assert!(!made.dir().unwrap().join("flagstone.json").exists());
    // A backup that verifies copies it again.
    run.begin();
    run.finish();
    let third = run.taken.last().unwrap().clone();
    let looked =
        run.back_up(&third, &to, BackupOptions { verify: true, keep: Some(NonZeroUsize::MIN) });
    assert!(looked.1 >= bytes.len() as u64, "{looked:?}");
    let left = run.history.world.block_on(list_backups(&to)).unwrap();
    assert_eq!(left.iter().map(|b| b.id()).collect::<Vec<_>>(), [&third.id]);
    let (dir, lsn) = run.restore(&from, None, None);
    run.check(&dir, lsn, "the backup that was repaired");
    run.history.world.close();
}

#[test]
fn checkpoints_in_use_are_not_removed() {
    let mut run = Run::new(6, Kind::Local);
    for _ in 0..3 {
        run.history.world.set(0, b"key", b"value", 0);
        run.history.world.commit();
        run.begin();
        run.finish();
    }
    let store = run.location.store.clone();
    let catalog = Catalog::of(&store);
    let engines = source(&store, run.root.path(), &run.history.world).engines();
    let retention = Retention { keep: 1, max_age_ms: 0 };
    let ids = |run: &Run| {
        let listed = run.history.world.block_on(catalog.list()).unwrap();
        listed.into_iter().map(|c| c.id).collect::<Vec<_>>()
    };
    let all = ids(&run);
    let (_, in_use) = run.history.world.block_on(catalog.open(&all[0])).unwrap();
    let gone = run.history.world.block_on(catalog.retain(&engines, retention, 0)).unwrap();
    assert_eq!(gone, [all[1].clone()]);
    assert_eq!(ids(&run), [all[0].clone(), all[2].clone()]);
    let dir = run.fresh();
    run.history.world.block_on(branch(&store, &all[0], &dir)).unwrap();
    run.check(&dir, run.taken[0].lsn, "one that was to be removed");
    drop(in_use);
    let gone = run.history.world.block_on(catalog.retain(&engines, retention, 0)).unwrap();
    assert_eq!(gone, [all[0].clone()]);
    run.history.world.close();
}

/// Returns a place in memory, with its contents before each change.
pub(crate) fn watched_place() -> (Place, Arc<Mutex<Vec<Arc<InMemory>>>>) {
    let (store, points) = (Arc::new(InMemory::new()), Arc::<Mutex<Vec<_>>>::default());
    let (inner, noted) = (store.clone(), points.clone());
    let pick = Box::new(move |_| {
        noted.lock().unwrap().push(Arc::new(inner.fork()));
        false
    });
    let probe = Arc::new(Probe::new(Path::new("nowhere"), Model::default(), pick));
    (Place::within(Arc::new(Watched::new(store, probe)), "".into(), "memory"), points)
}

#[test]
fn a_backup_that_is_cut_off_anywhere_is_none_and_harms_none() {
    let mut run = Run::new(8, Kind::Local);
    for _ in 0..3 {
        run.steps(30);
        run.begin();
        run.finish();
    }
    let (place, points) = watched_place();
    let all = run.taken.clone();
    let some = [&all[0], &all[all.len() - 2]];
    for checkpoint in some {
        run.back_up(
            checkpoint,
            &place,
            BackupOptions { keep: Some(NonZeroUsize::MIN), verify: false },
        );
    }
    let points = std::mem::take(&mut *points.lock().unwrap());
    assert!(points.len() >= 20, "{} points", points.len());
    let last = all.last().unwrap();
    for (n, point) in points.into_iter().enumerate() {
        let at = format!("point {n}");
        let place = Place::within(point, "".into(), "memory");
        let listed = run.history.world.block_on(list_backups(&place)).unwrap();
        let from = Location::from(place.clone());
        for backup in &listed {
            let (dir, lsn) = run.restore(&from, Some(backup.id()), None);
            run.check(&dir, lsn, &at);
        }
        run.back_up(last, &place, BackupOptions { keep: Some(NonZeroUsize::MIN), verify: false });
        if n % 4 == 0 {
            let (dir, lsn) = run.restore(&from, None, None);
            assert_eq!(lsn, last.lsn, "{at}");
            run.check(&dir, lsn, &format!("{at}, the next one"));
        }
    }
    run.history.world.close();
}

#[test]
fn a_kill_while_a_checkpoint_is_taken_or_removed_leaves_whole_ones() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut model = Model { now_ms: NOW, ..Model::default() };
    model.dbs.resize_with(DATABASES, Default::default);
    let picking = Arc::new(Mutex::new(false));
    let picks = picking.clone();
    let world = World::open(&dir, model, Box::new(move |_| *picks.lock().unwrap()));
    let mut history = History { world, random: StdRng::seed_from_u64(9) };
    let mut kept = BTreeMap::new();
    for round in 0..3 {
        for _ in 0..25 {
            history.step();
        }
        history.world.commit();
        let world = &history.world;
        *picking.lock().unwrap() = round > 0;
        let source = source(&local(&dir), &dir, world);
        let made = world.block_on(take(&source, u64::MAX)).unwrap();
        kept.insert(made.id, world.model.clone());
        let retention = Retention { keep: 1, max_age_ms: 0 };
        world.block_on(Catalog::of(&local(&dir)).retain(&source.engines(), retention, 0)).unwrap();
        *picking.lock().unwrap() = false;
    }
    let images = history.world.probe.images();
    assert!(images.len() >= 12, "{} images", images.len());
    for (n, image) in images.iter().enumerate() {
        let at = &image.at;
        let dir = fresh(root.path(), &mut number);
        let mut copy = World::reopen(image, &dir, Box::new(|_| false));
        copy.verify(at);
        let (catalog, source) = (Catalog::of(&local(&dir)), source(&local(&dir), &dir, &copy));
        copy.block_on(catalog.clean(&source.engines())).unwrap();
        let listed = copy.block_on(catalog.list()).unwrap();
        assert!(!listed.is_empty(), "{at}: the one before is gone");
        let place = Place::local(&dir).unwrap();
        for checkpoint in listed.iter().filter(|_| n % 3 == 0) {
            let to = fresh(root.path(), &mut number);
            copy.block_on(branch(&place, &checkpoint.id, &local(&to))).unwrap();
            open(&local(&to).into(), kept[&checkpoint.id].clone()).verify(at);
        }
        copy.block_on(take(&source, u64::MAX)).unwrap();
        let now = copy.block_on(catalog.list()).unwrap();
        assert_eq!(now.len(), listed.len() + 1, "{at}");
        drop((source, copy));
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_bucket_is_whole_after_any_request() {
    let (bucket, points) = watched_place();
    let root = tempfile::tempdir().unwrap();
    let mut model = Model { now_ms: NOW, ..Model::default() };
    model.dbs.resize_with(DATABASES, Default::default);
    // The catalog is checked; the journal is elsewhere.
    let (mut number, retention) = (0, Retention { keep: 1, max_age_ms: 0 });
    let journal = Some(local(&fresh(root.path(), &mut number)));
    let location = Location { store: bucket.clone(), journal };
    let world = open(&location, model);
    let mut history = History { world, random: StdRng::seed_from_u64(10) };
    let catalog = Catalog::of(&bucket);
    let mut kept = BTreeMap::new();
    for round in 0..3 {
        (0..25).for_each(|_| history.step());
        history.world.commit();
        if round == 1 {
            points.lock().unwrap().clear();
        }
        let source = source(&bucket, root.path(), &history.world);
        let made = history.world.block_on(take(&source, u64::MAX)).unwrap();
        kept.insert(made.id, history.world.model.clone());
        history.world.block_on(catalog.retain(&source.engines(), retention, 0)).unwrap();
    }
    let points = std::mem::take(&mut *points.lock().unwrap());
    assert!(points.len() >= 12, "{} points", points.len());
    for (n, point) in points.into_iter().enumerate() {
        let place = Place::within(point, "".into(), "memory");
        let listed = history.world.block_on(Catalog::of(&place).list()).unwrap();
        assert!(!listed.is_empty(), "point {n}: the one before is gone");
        for checkpoint in listed.iter().filter(|_| n % 3 == 0) {
            let to = place.join("branch").join(&checkpoint.id);
            let made = history.world.block_on(branch(&place, &checkpoint.id, &to)).unwrap();
            assert_eq!(made.lsn, checkpoint.lsn);
            let mut copy = open(&to.into(), kept[&checkpoint.id].clone());
            copy.verify(&format!("point {n}"));
            copy.close();
        }
    }
    history.world.close();
}
