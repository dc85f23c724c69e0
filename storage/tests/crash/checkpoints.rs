//! Checkpoints of random histories: each, branched or restored, is what the model was at its lsn,
//! and so is any moment behind one.

use crate::histories::{DATABASES, History, number};
use crate::image::Probe;
use crate::model::Model;
use crate::store::Watched;
use crate::world::{World, fresh, options};
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Catalog, Checkpoint, Image, Quiet, Retention, Source, backup, branch,
    list_backups, restore, take,
};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::OpenOptions;
use flagstone_storage::journal::{Lsn, RealDisk};
use flagstone_storage::place::Place;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

const NOW: u64 = 1_800_000_000_000;
const STEPS: u32 = 160;

fn open(dir: &Path, model: Model) -> World {
    let probe = Arc::new(Probe::new(dir, model.clone(), Box::new(|_| false)));
    let store = |place: &Place| -> anyhow::Result<Place> {
        let files = Arc::new(LocalFileSystem::new_with_prefix(place.dir().unwrap())?);
        Ok(Place::within(files, ObjectPath::default(), place.to_string()))
    };
    // Segments are short, so that many are dropped.
    let options =
        OpenOptions { archive: true, segment_bytes: 16 << 10, ..options(dir, DATABASES as u32) };
    World::open_on(options, model, probe, Arc::new(RealDisk), &store).unwrap()
}

fn source(dir: &Path, world: &World) -> Source {
    Source {
        dir: dir.into(),
        layout: world.partition.store.layout().clone(),
        origin: 1,
        journal: world.journal.clone(),
        engines: world.partition.shards.values().map(|s| s.engine().clone()).collect(),
        clock: Clock::default(),
    }
}

/// A history with checkpoints.
struct Run {
    root: tempfile::TempDir,
    dir: PathBuf,
    history: History,
    number: u32,
    taken: Vec<Checkpoint>,
    under_way: Option<JoinHandle<anyhow::Result<Checkpoint>>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        let dir = fresh(root.path(), &mut number);
        let mut model = Model { now_ms: NOW, ..Model::default() };
        model.dbs.resize_with(DATABASES, Default::default);
        let world = open(&dir, model);
        world.probe.keep_models(world.journal.clone());
        let history = History { world, random: StdRng::seed_from_u64(seed) };
        Self { root, dir, history, number, taken: Vec::new(), under_way: None }
    }

    /// Begins a checkpoint, and goes on.
    fn begin(&mut self) {
        let world = &self.history.world;
        let source = source(&self.dir, world);
        let taking = async move { take(&source, u64::MAX).await };
        self.under_way = Some(world.runtime.as_ref().unwrap().spawn(taking));
    }

    fn finish(&mut self) {
        if let Some(taking) = self.under_way.take() {
            self.taken.push(self.history.world.block_on(taking).unwrap().unwrap());
        }
    }

    fn steps(&mut self, steps: u32) {
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

    fn fresh(&mut self) -> PathBuf {
        fresh(self.root.path(), &mut self.number)
    }

    /// Opens a directory, which must be what the model was at an lsn.
    fn check(&self, dir: &Path, lsn: Lsn, at: &str) {
        let mut copy = open(dir, self.history.world.probe.model_at(lsn));
        copy.verify(at);
        copy.close();
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn place(&self) -> Place {
        Place::local(&self.dir).unwrap()
    }

    fn restore(&mut self, from: &Place, id: Option<&str>, as_of: Option<AsOf>) -> (PathBuf, Lsn) {
        let dir = self.fresh();
        let restored = restore(from, &dir, id, as_of, &Quiet);
        let restored = self.history.world.block_on(restored).unwrap();
        (dir, restored.lsn)
    }

    fn back_up(&self, checkpoint: &Checkpoint, to: &Place, options: BackupOptions) -> (usize, u64) {
        let catalog = Catalog::of(&self.dir);
        let done = self.history.world.block_on(async {
            let (checkpoint, _in_use) = catalog.open(&checkpoint.id)?;
            let records = catalog.records(&checkpoint.id);
            let image = Image::of_checkpoint(&self.place(), &checkpoint, records).await?;
            backup(&image, &self.dir, to, options, &Quiet).await
        });
        let done = done.unwrap();
        (done.copied_files, done.copied_bytes)
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    run.steps(STEPS);
    let taken = run.taken.clone();
    assert!(taken.len() >= 2, "seed {seed}: {} checkpoints", taken.len());
    let place = run.place();
    let backups = match seed % 2 {
        0 => Place::within(Arc::new(InMemory::new()), "some/prefix".into(), "memory"),
        _ => Place::local(run.root.path().join("backups")).unwrap(),
    };
    for checkpoint in &taken {
        let at = format!("seed {seed}, checkpoint at {}", checkpoint.lsn);
        let dir = run.fresh();
        let made = branch(&place, &checkpoint.id, &dir);
        let made = run.history.world.block_on(made).unwrap();
        assert_eq!(made.lsn, checkpoint.lsn, "{at}");
        run.check(&dir, checkpoint.lsn, &format!("{at}, branched"));
        run.back_up(checkpoint, &backups, BackupOptions::default());
    }
    let listed = run.history.world.block_on(list_backups(&backups)).unwrap();
    assert_eq!(listed.len(), taken.len(), "seed {seed}");
    let picked = run.history.random.random_range(0..taken.len());
    let (dir, lsn) = run.restore(&backups, Some(&taken[picked].id), None);
    assert_eq!(lsn, taken[picked].lsn);
    run.check(&dir, lsn, &format!("seed {seed}, backup at {lsn}, restored"));
    // Any moment that a checkpoint is not behind, from the directory and from its backups.
    let first = taken[0].reaches().max(taken[0].after + 1);
    for (from, last) in
        [(&place, run.history.world.journal.end()), (&backups, taken[taken.len() - 1].lsn)]
    {
        for _ in 0..3 {
            let asked = run.history.random.random_range(first..=last);
            let (dir, lsn) = run.restore(from, None, Some(AsOf::Lsn(asked)));
            assert_eq!(lsn, asked, "seed {seed}");
            run.check(&dir, lsn, &format!("seed {seed}, as of {lsn} from {from}"));
        }
    }
    run.history.world.close();
}

#[test]
fn what_checkpoints_and_backups_hold_is_what_there_was() {
    let first = number("FLAGSTONE_SEED", 1);
    for seed in first..first + number("FLAGSTONE_SEEDS", 4) {
        println!("seed {seed}");
        run(seed);
    }
}

#[test]
fn a_moment_is_restored_to_the_record() {
    let mut run = Run::new(77);
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
    let place = run.place();
    // Both records of a time, and nothing of what is a ms later.
    for &(ms, end) in &ends {
        for asked in [ms, ms + 9] {
            let (dir, lsn) = run.restore(&place, None, Some(AsOf::Time(asked)));
            assert_eq!(lsn, end, "as of {asked}");
            run.check(&dir, lsn, &format!("as of {asked}"));
        }
    }
    let dir = run.fresh();
    let beyond = restore(&place, &dir, None, Some(AsOf::Lsn(10_000)), &Quiet);
    let error = run.history.world.block_on(beyond).unwrap_err().to_string();
    assert!(error.contains("not everything"), "{error}");
    run.history.world.close();
}

#[test]
fn a_backup_copies_what_is_new_and_finds_what_is_damaged() {
    let mut run = Run::new(5);
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
    // A file that is damaged has the size that it had.
    let objects = run.root.path().join("backups/objects");
    let file = std::fs::read_dir(&objects).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let dir = run.fresh();
    let restoring = restore(&to, &dir, Some(&first.id), None, &Quiet);
    let error = format!("{:#}", run.history.world.block_on(restoring).unwrap_err());
    assert!(error.contains("damaged"), "{error}");
    assert!(!dir.join("flagstone.json").exists());
    // It is copied again by one that looks.
    run.begin();
    run.finish();
    let third = run.taken.last().unwrap().clone();
    let looked = run.back_up(&third, &to, BackupOptions { verify: true, keep: Some(1) });
    assert!(looked.1 >= bytes.len() as u64, "{looked:?}");
    let left = run.history.world.block_on(list_backups(&to)).unwrap();
    assert_eq!(left.iter().map(|b| b.id()).collect::<Vec<_>>(), [&third.id]);
    let (dir, lsn) = run.restore(&to, None, None);
    run.check(&dir, lsn, "the backup that was repaired");
    run.history.world.close();
}

#[test]
fn what_is_in_use_is_not_removed() {
    let mut run = Run::new(6);
    for _ in 0..3 {
        run.history.world.set(0, b"key", b"value", 0);
        run.history.world.commit();
        run.begin();
        run.finish();
    }
    let catalog = Catalog::of(&run.dir);
    let engines = source(&run.dir, &run.history.world).engines;
    let retention = Retention { keep: 1, max_age_ms: 0 };
    let ids = || catalog.list().unwrap().into_iter().map(|c| c.id).collect::<Vec<_>>();
    let all = ids();
    let (_, in_use) = catalog.open(&all[0]).unwrap();
    let gone = run.history.world.block_on(catalog.retain(&engines, retention, 0)).unwrap();
    assert_eq!(gone, [all[1].clone()]);
    assert_eq!(ids(), [all[0].clone(), all[2].clone()]);
    let dir = run.fresh();
    run.history.world.block_on(branch(&run.place(), &all[0], &dir)).unwrap();
    run.check(&dir, run.taken[0].lsn, "one that was to be removed");
    drop(in_use);
    let gone = run.history.world.block_on(catalog.retain(&engines, retention, 0)).unwrap();
    assert_eq!(gone, [all[0].clone()]);
    run.history.world.close();
}

/// A place in memory, with what was there before each change of it.
fn watched_place() -> (Place, Arc<Mutex<Vec<Arc<InMemory>>>>) {
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
    let mut run = Run::new(8);
    for _ in 0..3 {
        run.steps(30);
        run.begin();
        run.finish();
    }
    let (place, points) = watched_place();
    let all = run.taken.clone();
    let some = [&all[0], &all[all.len() - 2]];
    for checkpoint in some {
        run.back_up(checkpoint, &place, BackupOptions { keep: Some(1), verify: false });
    }
    let points = std::mem::take(&mut *points.lock().unwrap());
    assert!(points.len() >= 20, "{} points", points.len());
    let last = all.last().unwrap();
    for (n, point) in points.into_iter().enumerate() {
        let at = format!("point {n}");
        let place = Place::within(point, "".into(), "memory");
        let listed = run.history.world.block_on(list_backups(&place)).unwrap();
        for backup in &listed {
            let (dir, lsn) = run.restore(&place, Some(backup.id()), None);
            run.check(&dir, lsn, &at);
        }
        run.back_up(last, &place, BackupOptions { keep: Some(1), verify: false });
        if n % 4 == 0 {
            let (dir, lsn) = run.restore(&place, None, None);
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
    let mut kept = std::collections::BTreeMap::new();
    for round in 0..3 {
        for _ in 0..25 {
            history.step();
        }
        history.world.commit();
        let world = &history.world;
        *picking.lock().unwrap() = round > 0;
        let source = source(&dir, world);
        let made = world.block_on(take(&source, u64::MAX)).unwrap();
        kept.insert(made.id, world.model.clone());
        let retention = Retention { keep: 1, max_age_ms: 0 };
        world.block_on(Catalog::of(&dir).retain(&source.engines, retention, 0)).unwrap();
        *picking.lock().unwrap() = false;
    }
    let images = history.world.probe.images();
    assert!(images.len() >= 12, "{} images", images.len());
    for (n, image) in images.iter().enumerate() {
        let at = &image.at;
        let dir = fresh(root.path(), &mut number);
        let mut copy = World::reopen(image, &dir, Box::new(|_| false));
        copy.verify(at);
        let (catalog, source) = (Catalog::of(&dir), source(&dir, &copy));
        copy.block_on(catalog.clean(&source.engines)).unwrap();
        let listed = catalog.list().unwrap();
        assert!(!listed.is_empty(), "{at}: the one before is gone");
        let place = Place::local(&dir).unwrap();
        for checkpoint in listed.iter().filter(|_| n % 3 == 0) {
            let to = fresh(root.path(), &mut number);
            copy.block_on(branch(&place, &checkpoint.id, &to)).unwrap();
            open(&to, kept[&checkpoint.id].clone()).verify(at);
        }
        copy.block_on(take(&source, u64::MAX)).unwrap();
        assert_eq!(catalog.list().unwrap().len(), listed.len() + 1, "{at}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
