//! Copies that are refused, fail, or are killed: no remains hinder the next copy, and no unusable
//! copy is reported as made.

use crate::checkpoints::{Kind, Run, local};
use flagstone_storage::checkpoint::{
    BackupOptions, Checkpoint, Progress, Quiet, backup, branch, restore,
};
use flagstone_storage::directory::Location;
use flagstone_storage::place::Place;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a run whose rows are in files, with a checkpoint.
fn run_with_files(seed: u64, kind: Kind) -> (Run, Checkpoint) {
    let mut run = Run::new(seed, kind);
    run.steps(40);
    run.history.world.settle();
    run.begin();
    run.finish();
    let taken = run.taken.last().unwrap().clone();
    (run, taken)
}

fn back_up(run: &Run, taken: &Checkpoint, to: &Place) -> anyhow::Result<()> {
    let options = BackupOptions::default();
    let done = backup(&run.location, &taken.id, to, options, &Quiet);
    run.history.world.block_on(done).map(drop)
}

/// Returns all files below a directory; none if it does not exist.
fn all_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_in(&path));
        }
        found.push(path);
    }
    found
}

fn objects_in(run: &Run, place: &Place) -> Vec<String> {
    let listing = place.store().list(Some(place.root())).try_collect::<Vec<_>>();
    let listed = run.history.world.block_on(listing).unwrap();
    listed.into_iter().map(|meta| meta.location.to_string()).collect()
}

/// Changes all files with rows of a directory, but not their sizes.
fn damage(dir: &Path) {
    for file in all_in(dir).iter().filter(|path| path.extension().is_some_and(|e| e == "sst")) {
        let mut bytes = fs::read(file).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        // Unlinked first, so that it is not written through a link.
        fs::remove_file(file).unwrap();
        fs::write(file, bytes).unwrap();
    }
}

#[test]
fn a_refused_restore_leaves_nothing_and_tells_no_names() {
    let (run, taken) = run_with_files(21, Kind::Local);
    let store = run.location.store.clone();
    let taken_place = run.root.path().join("taken");
    fs::create_dir(&taken_place).unwrap();
    fs::write(taken_place.join("a secret name"), "text").unwrap();
    let to = local(&taken_place);
    let branched = run.history.world.block_on(branch(&store, &taken.id, &to));
    let restored = run.history.world.block_on(restore(&run.location, &to, None, None, &Quiet));
    for error in [branched.unwrap_err(), restored.unwrap_err()] {
        let text = format!("{error:#}");
        assert!(text.contains("is not empty") && !text.contains("secret"), "{text}");
    }
    assert_eq!(all_in(&taken_place), [taken_place.join("a secret name")]);
    // Directories made for the copy are removed as well, others stay.
    let (outer, inner) = (run.root.path().join("outer"), run.root.path().join("outer/a/b"));
    fs::create_dir(&outer).unwrap();
    let to = local(&inner);
    let missing = branch(&store, "20260101-000000.000", &to);
    run.history.world.block_on(missing).unwrap_err();
    assert!(outer.exists() && all_in(&outer).is_empty());
    run.history.world.block_on(branch(&store, &taken.id, &to)).unwrap();
    run.check(&to, taken.lsn, "where one was refused");
    run.history.world.close();
}

#[test]
fn a_failed_restore_is_not_in_the_way_of_the_next_one() {
    for bucket in [false, true] {
        let (mut run, taken) = run_with_files(22, if bucket { Kind::Bucket } else { Kind::Local });
        let backups = run.root.path().join("backups");
        back_up(&run, &taken, &local(&backups)).unwrap();
        let from = Location::from(local(&backups));
        damage(&backups);
        let to = run.fresh();
        let restoring = restore(&from, &to, None, None, &Quiet);
        let error = format!("{:#}", run.history.world.block_on(restoring).unwrap_err());
        assert!(error.contains("damaged"), "{error}");
        match to.dir() {
            Some(dir) => assert_eq!(all_in(dir), Vec::<PathBuf>::new()),
            None => assert_eq!(objects_in(&run, &to), Vec::<String>::new()),
        }
        fs::remove_dir_all(&backups).unwrap();
        back_up(&run, &taken, &local(&backups)).unwrap();
        run.history.world.block_on(restore(&from, &to, None, None, &Quiet)).unwrap();
        run.check(&to, taken.lsn, "the second try");
        run.history.world.close();
    }
}

/// Panics as soon as so many files have been read.
struct Dies(AtomicU32);

impl Progress for Dies {
    fn expect(&self, _bytes: u64) {}

    fn advance(&self, _bytes: u64) {
        assert!(self.0.fetch_sub(1, Ordering::Relaxed) > 1, "killed");
    }
}

#[test]
fn remains_of_a_killed_restore_are_removed_by_the_next_one() {
    let (mut run, taken) = run_with_files(23, Kind::Local);
    let backups = Place::within(Arc::new(InMemory::new()), "some".into(), "memory");
    back_up(&run, &taken, &backups).unwrap();
    let from = Location::from(backups);
    for after in 1..5 {
        let to = run.fresh();
        let dies = Dies(AtomicU32::new(after));
        let killed = catch_unwind(AssertUnwindSafe(|| {
            // A kill ends the writes that are under way. The runtime waits for them as it is
            // dropped.
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(restore(&from, &to, None, None, &dies)).map(drop)
        }));
        assert!(killed.is_err(), "after {after} files");
        let dir = to.dir().unwrap();
        assert!(dir.join("unfinished").exists() && !dir.join("flagstone.json").exists());
        run.history.world.block_on(restore(&from, &to, None, None, &Quiet)).unwrap();
        assert!(!dir.join("unfinished").exists());
        run.check(&to, taken.lsn, &format!("killed after {after} files"));
    }
    run.history.world.close();
}

#[test]
fn data_that_cannot_be_opened_becomes_no_backup_and_no_branch() {
    let (mut run, taken) = run_with_files(24, Kind::Local);
    let store = run.location.store.clone();
    let (backups, to) = (run.root.path().join("backups"), run.fresh());
    let data = store.dir().unwrap().to_owned();
    let whole = run.root.path().join("whole");
    for shard in 0..3 {
        let compacted = format!("shard-{shard}/db/compacted");
        fs::create_dir_all(whole.join(&compacted)).unwrap();
        for file in all_in(&data.join(&compacted)) {
            fs::copy(&file, whole.join(&compacted).join(file.file_name().unwrap())).unwrap();
        }
    }
    damage(&data);
    let error = format!("{:#}", back_up(&run, &taken, &local(&backups)).unwrap_err());
    assert!(error.contains("is damaged"), "{error}");
    let left: Vec<_> = all_in(&backups).into_iter().filter(|path| path.is_file()).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    let branched = run.history.world.block_on(branch(&store, &taken.id, &to));
    let error = format!("{:#}", branched.unwrap_err());
    assert!(error.contains("cannot be opened"), "{error}");
    assert_eq!(all_in(to.dir().unwrap()), Vec::<PathBuf>::new());
    // Both are made once the files are restored.
    for file in all_in(&whole).iter().filter(|path| path.is_file()) {
        fs::copy(file, data.join(file.strip_prefix(&whole).unwrap())).unwrap();
    }
    back_up(&run, &taken, &local(&backups)).unwrap();
    run.history.world.block_on(branch(&store, &taken.id, &to)).unwrap();
    run.check(&to, taken.lsn, "branched again");
}

/// Flips a bit of each file with rows in a part that an opening does not read: the statistics, which
/// end where the description begins.
fn flip_the_statistics(dir: &Path) {
    let is_compacted = |path: &&PathBuf| {
        path.extension().is_some_and(|e| e == "sst")
            && path.parent().is_some_and(|dir| dir.ends_with("compacted"))
    };
    for file in all_in(dir).iter().filter(is_compacted) {
        let mut bytes = fs::read(file).unwrap();
        let at = bytes.len() - 10;
        let description = u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        bytes[description - 6] ^= 1;
        // Unlinked first, so that it is not written through a link.
        fs::remove_file(file).unwrap();
        fs::write(file, bytes).unwrap();
    }
}

#[test]
fn a_file_with_a_damaged_part_is_neither_backed_up_nor_restored() {
    let (mut run, taken) = run_with_files(25, Kind::Local);
    let data = run.location.store.dir().unwrap().to_owned();
    let (backups, to) = (run.root.path().join("backups"), run.fresh());
    flip_the_statistics(&data);
    let error = format!("{:#}", back_up(&run, &taken, &local(&backups)).unwrap_err());
    assert!(error.contains("is damaged") && error.contains(".sst"), "{error}");
    let left: Vec<_> = all_in(&backups).into_iter().filter(|path| path.is_file()).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    let restoring = restore(&run.location, &to, Some(&taken.id), None, &Quiet);
    let error = format!("{:#}", run.history.world.block_on(restoring).unwrap_err());
    assert!(error.contains("is damaged") && error.contains(".sst"), "{error}");
    assert_eq!(all_in(to.dir().unwrap()), Vec::<PathBuf>::new());
    run.history.world.close();
}
