//! Backups over several lives: any moment from the first one on can be restored from them and from the
//! directory, unless the archive that had its records was pruned; then it is refused.

use crate::checkpoints::{Kind, Run, open};
use crate::histories::number;
use crate::model::Model;
use flagstone_storage::checkpoint::{
    ArchiveLimits, AsOf, BackupOptions, Checkpoint, Quiet, backup, prune_archive, restore,
};
use flagstone_storage::directory::Location;
use flagstone_storage::journal::Lsn;
use flagstone_storage::place::Place;
use object_store::memory::InMemory;
use rand::RngExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lives of a directory, and steps of a random history in each.
const LIVES: u32 = 3;
const STEPS: u32 = 50;

/// Moments that are restored, from each place.
const MOMENTS: usize = 6;

/// A directory with backups of some of its checkpoints.
struct BackedUp {
    run: Run,
    backups: Place,
    stored: Vec<Checkpoint>,
    /// The model of each record of all lives.
    models: BTreeMap<Lsn, Model>,
    /// True if records may be gone from the archive.
    is_pruned: bool,
}

impl BackedUp {
    fn new(seed: u64, kind: Kind) -> Self {
        let run = Run::new(seed, kind);
        let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
        Self { run, backups, stored: Vec::new(), models: BTreeMap::new(), is_pruned: false }
    }

    fn chance(&mut self, of: u32) -> bool {
        self.run.history.random.random_range(0..of) == 0
    }

    /// Lives once, takes some checkpoints, backs some of them up, late or at once, and is killed.
    fn live(mut self, prunes: bool) -> Self {
        for _ in 0..2 {
            self.run.steps(STEPS);
            if self.run.taken.is_empty() {
                self.run.begin();
                self.run.finish();
            }
            for checkpoint in self.run.taken.clone() {
                let is_stored = self.stored.iter().any(|it| it.id == checkpoint.id);
                if !is_stored && (self.stored.is_empty() || self.chance(2)) {
                    self.back_up(checkpoint);
                }
            }
            if prunes && self.chance(2) {
                let archive = self.run.location.archive();
                let limits = ArchiveLimits { now_ms: 0, kept_ms: u64::MAX, max_bytes: 20_000 };
                let pruned = prune_archive(&archive, limits);
                self.run.history.world.block_on(pruned).unwrap();
                self.is_pruned = true;
            }
        }
        self.models.extend(self.run.history.world.probe.models());
        Self { run: self.run.kill(), ..self }
    }

    fn back_up(&mut self, checkpoint: Checkpoint) {
        let (from, options) = (&self.run.location, BackupOptions::default());
        let made = backup(from, &checkpoint.id, &self.backups, options, &Quiet);
        self.run.history.world.block_on(made).unwrap();
        self.stored.push(checkpoint);
    }

    /// Restores moments from the first backup on, up to `last`, and compares each with the model.
    fn restore_some(&mut self, from: &Location, (first, last): (Lsn, Lsn), at: &str) -> usize {
        let mut restored = 0;
        for _ in 0..MOMENTS {
            let asked = self.run.history.random.random_range(first..=last);
            let (to, at) = (self.run.fresh(), format!("{at}, as of {asked} from {}", from.store));
            self.run.history.world.journal.sync_now().unwrap();
            let restoring = restore(from, &to, None, Some(AsOf::Lsn(asked)), &Quiet);
            match self.run.history.world.block_on(restoring) {
                Ok(made) => {
                    // Between two lives there are lsns without a record.
                    let known = self.models.range(..=asked).next_back();
                    let (lsn, model) = known.expect("a model");
                    assert!(made.lsn >= *lsn && made.lsn <= asked, "{at}: {}", made.lsn);
                    let mut copy = open(&to.into(), model.clone());
                    copy.verify(&at);
                    copy.close();
                    restored += 1;
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    let is_gone = ["not everything", "missing", "of later than that"];
                    let is_right = self.is_pruned && is_gone.iter().any(|it| text.contains(it));
                    assert!(is_right, "{at}: {text}");
                }
            }
        }
        restored
    }
}

fn run(seed: u64, kind: Kind) -> usize {
    println!("seed {seed}, {kind:?}");
    let mut this = BackedUp::new(seed, kind);
    for _ in 0..LIVES {
        this = this.live(seed.is_multiple_of(3));
    }
    let first = this.stored.iter().min_by_key(|it| it.lsn).unwrap();
    let first = first.reaches().max(first.after + 1);
    let last = this.stored.iter().map(|it| it.lsn).max().unwrap();
    let end = *this.models.last_key_value().unwrap().0;
    let at = format!("seed {seed}, {kind:?}");
    let (of_backups, of_itself) = (this.backups.clone().into(), this.run.location.clone());
    let restored = this.restore_some(&of_backups, (first, last), &at)
        + this.restore_some(&of_itself, (first, end.max(first)), &at);
    this.run.history.world.close();
    restored
}

#[test]
fn moments_of_several_lives_are_restored() {
    let first = number("FLAGSTONE_SEED", 1);
    let mut restored = 0;
    for seed in first..first + number("FLAGSTONE_SEEDS", 3) {
        restored += run(seed, Kind::Local);
    }
    assert!(restored > MOMENTS, "{restored} moments restored");
}

#[test]
fn so_they_are_with_a_bucket() {
    let first = number("FLAGSTONE_SEED", 1);
    for seed in first..first + number("FLAGSTONE_SEEDS", 1) {
        for kind in [Kind::Bucket, Kind::BucketAndLocalJournal, Kind::LocalAndBucketJournal] {
            run(seed, kind);
        }
    }
}
