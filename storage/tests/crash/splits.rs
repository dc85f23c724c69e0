//! Shards that are split while the storage is in use.

use crate::histories::History;
use crate::model::Model;
use crate::world::{World, fresh, options};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Directory, OpenOptions, SplitError, reshard};
use flagstone_storage::place::Place;
use flagstone_storage::slot::SplitPlan;
use rand::RngExt;
use std::path::{Path, PathBuf};

/// Most shards of a history.
const MOST: u16 = 7;

impl History {
    /// Splits a shard somewhere, if there are not too many.
    pub(crate) fn split(&mut self) {
        let shards = self.world.shards();
        if shards >= MOST {
            return;
        }
        let shard = self.random.random_range(0..shards);
        let slots = self.world.partition.store.layout().slots_of(shard);
        let at = slots.start + 1;
        let at = self.random.random::<bool>().then(|| self.random.random_range(at..slots.end));
        self.world.split(shard, at);
    }
}

impl World {
    /// Returns the number of shards.
    pub(crate) fn shards(&self) -> u16 {
        self.partition.store.layout().shards()
    }

    /// Splits a shard, like a worker does.
    pub(crate) fn split(&mut self, id: u16, at: Option<u16>) {
        let Some(splitter) = self.splitter.clone() else { return };
        self.commit();
        self.forget_jobs(id);
        for _ in 0..2 {
            self.hand_over(id, None);
            self.flush(id);
        }
        assert!(self.partition.shards[&id].is_flushed());
        let plan = SplitPlan::new(self.partition.store.layout(), id, at).unwrap();
        let engine = self.partition.shards[&id].engine().clone();
        let upper = match self.block_on(splitter.split(&engine, &plan)) {
            Ok(upper) => upper,
            // In a bucket it may read files of the one that it was split from.
            Err(SplitError::CalledOff(why)) if why.to_string().contains("reads files") => {
                return self.open_one_again(id);
            }
            Err(error) => panic!("{error}"),
        };
        self.probe.point(|| format!("shard {id} was split on the disk"));
        self.partition.split(&plan, upper).unwrap();
        self.open_one_again(id);
    }
}

fn model() -> Model {
    let mut model = Model { now_ms: 1_800_000_000_000, ..Model::default() };
    model.dbs.resize_with(3, Default::default);
    model
}

pub(crate) fn set_all(world: &mut World, mark: u8) {
    for n in 0..60 {
        world.set(n % 3, format!("key{n}").as_bytes(), &[mark; 100], 0);
    }
    world.commit();
}

/// Returns the number of files and directories of splits that have not ended.
fn remains(dir: &Path, shards: u16) -> usize {
    let homes = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let shard = name.strip_prefix("shard-").map(|id| id.parse::<u16>().unwrap());
        name == "splitting" || shard >= Some(shards) || path.join("unfinished").exists()
    };
    homes.filter(is_left).count()
}

/// A kill at any write of a split leaves one shard or two; and so it goes on.
#[test]
fn a_split_may_be_killed_at_any_step() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut world = World::open(&dir, model(), Box::new(|_| true));
    set_all(&mut world, 1);
    world.settle();
    set_all(&mut world, 2);
    world.probe.images();
    world.split(1, None);
    let images = world.probe.images();
    world.verify("behind the split");
    set_all(&mut world, 3);
    world.split(3, Some(9000));
    world.verify("behind the second one");
    let last = world.probe.now("killed");
    drop(world);
    assert!(images.len() > 5, "{} steps", images.len());
    let mut found = std::collections::BTreeSet::new();
    for image in images.iter().chain([&last]) {
        let dir = fresh(root.path(), &mut number);
        let mut again = World::reopen(image, &dir, Box::new(|_| false));
        found.insert(again.shards());
        assert_eq!(remains(&dir, again.shards()), 0, "{}", image.at);
        again.verify(&image.at);
        // The first split that was not cut off, or another one.
        again.split(1, None);
        again.verify(&image.at);
        again.settle();
        again.verify_no_garbage(&image.at);
        again.close();
        let mut again = World::open(&dir, image.model.clone(), Box::new(|_| false));
        again.verify(&image.at);
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [3, 4, 5]);
}

/// Every key counts once, and no row of the other half is copied.
#[test]
fn shards_that_were_split_become_others() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut dir = fresh(root.path(), &mut number);
    let mut world = World::open(&dir, model(), Box::new(|_| false));
    set_all(&mut world, 1);
    world.split(0, None);
    world.split(0, None);
    set_all(&mut world, 2);
    world.split(2, None);
    let image = world.probe.now("killed");
    drop(world);
    image.unpack(&dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for shards in [2, 5] {
        let to = fresh(root.path(), &mut number);
        let old = OpenOptions { shards: None, ..options(&dir, 3) };
        let place = Place::local(&to).unwrap();
        let copied = runtime.block_on(async move {
            let (copied, _locks) =
                reshard(old, place, shards, Clock::default(), &|_| ()).await.unwrap();
            copied
        });
        assert_eq!(copied.keys, 60);
        dir = to;
        let mut again = World::open(&dir, image.model.clone(), Box::new(|_| false));
        again.verify("with other shards");
        again.split(1, None);
        again.verify("with other shards, one of which was split");
        again.close();
    }
}

/// The keys of a directory are counted without its server, too.
#[test]
fn a_directory_whose_shards_were_split_is_opened_with_all_its_keys() {
    let root = tempfile::tempdir().unwrap();
    let dir = fresh(root.path(), &mut 0);
    let mut world = World::open(&dir, model(), Box::new(|_| false));
    set_all(&mut world, 1);
    for shard in [0, 1, 3] {
        world.split(shard, None);
    }
    world.close();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let opening = Directory::open(options(&dir, 3), Clock::default());
    let opened = runtime.block_on(opening).unwrap();
    assert_eq!((opened.keys_from(0), opened.engines().len()), (60, 6));
}
