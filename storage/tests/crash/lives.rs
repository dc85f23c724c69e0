//! Lives: a data directory is killed several times, with or without flushes between, some of its
//! shards idle or none. Then copies of it are made in every possible way, and each of them is
//! served, written, flushed, killed and started again, and must have all keys every time.

use crate::checkpoints::{Kind, Run, open, source};
use crate::histories::number;
use crate::model::Model;
use crate::world::{SHARDS, World};
use flagstone_storage::check::{Listener, check};
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Quiet, backup, branch, offline_options, restore, take, take_stopped,
};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Location, OpenOptions, reshard};
use flagstone_storage::place::Place;
use object_store::memory::InMemory;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of unclean starts.
const KILLS: u32 = 5;

/// Keys that are written between two kills.
const KEYS: u32 = 12;

/// Events before the copies are made.
#[derive(Clone, Copy, Debug)]
struct Life {
    seed: u64,
    kind: Kind,
    kills: u32,
    /// True if all keys are in one shard.
    idle: bool,
    /// Chance in ten that the shards are flushed before a kill.
    flushes: u32,
}

struct Told(Mutex<Vec<String>>);

impl Listener for Told {
    fn problem(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    fn rows(&self, _count: u64) {}
}

/// Sets some keys, all in one shard if the others are to be idle.
fn write(world: &mut World, random: &mut StdRng, idle: bool) {
    for _ in 0..KEYS {
        let n = random.random_range(0..1000);
        let name = if idle { format!("{{t}}{n}") } else { format!("key{n}") };
        let value = format!("value {}", random.random::<u64>());
        world.set(0, name.as_bytes(), value.as_bytes(), 0);
    }
    world.commit();
}

fn flush(world: &mut World) {
    for shard in 0..SHARDS {
        world.hand_over(shard, None);
        world.flush(shard);
    }
}

/// Asserts that a copy equals `model`, and is a data directory like any other, over writes,
/// flushes, kills and stops.
fn serve(location: &Location, mut model: Model, at: &str) {
    let mut random = StdRng::seed_from_u64(7);
    for turn in 0..2 {
        let at = format!("{at}, turn {turn}");
        let mut world = open(location, model);
        world.verify(&at);
        // Writes to every shard: none may have closed itself.
        write(&mut world, &mut random, false);
        flush(&mut world);
        world.verify(&format!("{at}, flushed"));
        world.journal.sync_now().unwrap();
        model = world.model.clone();
        if turn == 1 {
            world.close();
        }
    }
    open(location, model).verify(&format!("{at}, in the end"));
}

impl Life {
    fn run(self) {
        println!("{self:?}");
        let mut run = Run::new(self.seed, self.kind);
        let mut random = StdRng::seed_from_u64(self.seed);
        for _ in 0..self.kills {
            write(&mut run.history.world, &mut random, self.idle);
            if random.random_range(0..10) < self.flushes {
                flush(&mut run.history.world);
            }
            run = run.kill();
        }
        write(&mut run.history.world, &mut random, self.idle);
        self.copies(&mut run);
        // The original can still be used, and is sound.
        run.history.world.journal.sync_now().unwrap();
        let (location, model) = (run.location.clone(), run.history.world.model.clone());
        drop(run.history);
        self.stopped(&location, &model);
        serve(&location, model, &format!("{self:?}: itself"));
    }

    /// Makes each kind of copy of an open directory, and some copies of copies.
    fn copies(self, run: &mut Run) {
        run.begin();
        run.finish();
        let taken = run.taken.last().unwrap().clone();
        let model = run.history.world.probe.model_at(taken.lsn);
        let store = run.location.store.clone();
        let at = |what: &str| format!("{self:?}: {what}");
        let branched = run.fresh();
        run.history.world.block_on(branch(&store, &taken.id, &branched)).unwrap();
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        let options = BackupOptions::default();
        let done = backup(&run.location, &taken.id, &backups, options, &Quiet);
        run.history.world.block_on(done).unwrap();
        let (restored, moment) = (run.fresh(), run.fresh());
        let from = Location::from(backups);
        run.history.world.block_on(restore(&from, &restored, None, None, &Quiet)).unwrap();
        let as_of = Some(AsOf::Lsn(taken.lsn));
        let going = restore(&run.location, &moment, None, as_of, &Quiet);
        run.history.world.block_on(going).unwrap();
        self.copies_of_a_copy(run, &Location::from(branched.clone()), model.clone());
        serve(&restored.into(), model.clone(), &at("a backup, restored"));
        serve(&moment.into(), model, &at("a moment"));
    }

    /// Kills a branch several times, and makes a branch and a backup of it.
    fn copies_of_a_copy(self, run: &mut Run, location: &Location, model: Model) {
        let mut random = StdRng::seed_from_u64(self.seed + 1);
        let mut world = open(location, model);
        for _ in 0..self.kills.min(3) {
            write(&mut world, &mut random, self.idle);
            world.journal.sync_now().unwrap();
            let model = world.model.clone();
            drop(world);
            world = open(location, model);
        }
        world.verify(&format!("{self:?}: a branch"));
        let model = world.model.clone();
        let source = source(&location.store, run.root.path(), &world);
        let made = world.block_on(take(&source, u64::MAX)).unwrap();
        let (second, restored) = (run.fresh(), run.fresh());
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        world.block_on(async {
            branch(&location.store, &made.id, &second).await.unwrap();
            let options = BackupOptions::default();
            backup(location, &made.id, &backups, options, &Quiet).await.unwrap();
            restore(&backups.into(), &restored, None, None, &Quiet).await.unwrap();
        });
        drop(world);
        serve(&second.into(), model.clone(), &format!("{self:?}: a branch of a branch"));
        serve(&restored.into(), model, &format!("{self:?}: a backup of a branch"));
    }

    /// Makes the copies of a directory that no server has open.
    fn stopped(self, location: &Location, model: &Model) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let to = Place::within(Arc::new(InMemory::new()), "other".into(), "memory");
        runtime.block_on(async {
            let told = Told(Mutex::default());
            let report = check(location, &told).await.unwrap();
            let problems = told.0.into_inner().unwrap();
            assert!(problems.is_empty() && report.problems == 0, "{self:?}: {problems:?}");
            if self.kind == Kind::Local {
                take_stopped(location).await.unwrap();
            }
            let options = offline_options(location).await.unwrap();
            let options = OpenOptions { lease: Duration::from_millis(50), ..options };
            reshard(options, to.clone(), SHARDS, Clock::default(), &|_| {}).await.unwrap();
        });
        serve(&to.into(), model.clone(), &format!("{self:?}: resharded"));
    }
}

/// Runs seeds for all numbers of kills.
fn lives(kind: Kind, some: usize) {
    let first = number("FLAGSTONE_SEED", 1);
    for seed in first..first + number("FLAGSTONE_SEEDS", 1) {
        let mut random = StdRng::seed_from_u64(seed);
        for kills in (0..=KILLS).rev().step_by(some) {
            let idle = random.random_range(0..4) > 0;
            let flushes = [0, 0, 5, 10][random.random_range(0..4)];
            let kills = (kills + KILLS + seed as u32) % (KILLS + 1);
            Life { seed: 10 * seed + u64::from(kills), kind, kills, idle, flushes }.run();
        }
    }
}

#[test]
fn copies_of_a_directory_that_was_killed_some_times_go_on_as_it_does() {
    lives(Kind::Local, 3);
}

#[test]
fn copies_of_a_directory_in_a_bucket_go_on_as_it_does() {
    lives(Kind::Bucket, 3);
}
