//! Moments whose records are damaged or missing: they are refused, with the name of what is missing, and
//! a backup tells which ones it lacks.

use crate::checkpoints::{Kind, Run, copy_dir};
use crate::world::fresh;
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Checkpoint, Quiet, backup, list_backups, restore,
};
use flagstone_storage::directory::Location;
use flagstone_storage::journal::{LocalJournal, Lsn, Options};
use flagstone_storage::place::Place;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the newest segment that was begun.
fn newest_segment(journal: &Path) -> PathBuf {
    let begun = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let number = path.file_stem().and_then(|name| name.to_str());
        let number = number.and_then(|name| u64::from_str_radix(name, 16).ok());
        bytes.starts_with(b"FLAGJRNL")
            && number.map(u64::to_le_bytes).is_some_and(|number| bytes[16..24] == number)
    };
    let paths = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "seg")).filter(begun).max().unwrap()
}

/// Takes a checkpoint of a run.
fn checkpoint(run: &mut Run) -> Checkpoint {
    run.history.world.settle();
    run.begin();
    run.finish();
    run.taken.last().unwrap().clone()
}

/// Restores a moment, and returns the error.
fn refusal(run: &Run, from: &Location, to: &Place, lsn: Lsn) -> Option<String> {
    let restoring = restore(from, to, None, Some(AsOf::Lsn(lsn)), &Quiet);
    let restored = run.history.world.block_on(restoring);
    restored.map(|it| assert_eq!(it.lsn, lsn)).err().map(|error| format!("{error:#}"))
}

#[test]
fn a_moment_behind_damage_of_the_journal_is_refused_and_the_file_named() {
    let mut run = Run::new(61, Kind::Local);
    run.steps(60);
    let taken = checkpoint(&mut run);
    run.steps(60);
    let last = run.history.world.journal.end();
    assert!(last > taken.lsn + 1);
    let dir = run.location.store.dir().unwrap().to_owned();
    let (copy, model) = (run.root.path().join("copy"), run.history.world.model.clone());
    let run = run.replaced(model, || copy_dir(&dir, &copy));
    let mut number = 500;
    let mut fresh = || Place::local(fresh(run.root.path(), &mut number)).unwrap();
    let whole = Location::from(Place::local(&copy).unwrap());
    assert_eq!(refusal(&run, &whole, &fresh(), last), None);
    let mut refused = 0;
    for kind in ["missing", "cut off", "flipped"] {
        let place = fresh();
        let damaged = place.dir().unwrap().to_owned();
        copy_dir(&copy, &damaged);
        let segment = newest_segment(&damaged.join("journal"));
        let mut bytes = fs::read(&segment).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        match kind {
            "missing" => fs::remove_file(&segment).unwrap(),
            "cut off" => fs::write(&segment, &bytes[..used / 2]).unwrap(),
            _ => {
                bytes[used / 2] ^= 1;
                fs::write(&segment, &bytes).unwrap();
            }
        }
        let is_seen = LocalJournal::recover(&damaged.join("journal"), Options::default()).is_err();
        let from = Location::from(place);
        let error = refusal(&run, &from, &fresh(), last).unwrap();
        assert!(error.contains("not everything up to then is known"), "{kind}: {error}");
        let name = segment.file_name().unwrap().to_str().unwrap();
        assert!(!is_seen || error.contains(name), "{kind}: {error}");
        refused += u32::from(is_seen);
        // A moment that is too late for the records that are left, whatever was asked for before.
        let to = fresh();
        let by_time = restore(&from, &to, None, Some(AsOf::Time(u64::MAX)), &Quiet);
        let by_time = run.history.world.block_on(by_time);
        assert!(!is_seen || by_time.is_err(), "{kind}");
        assert_eq!(refusal(&run, &from, &fresh(), taken.lsn), None, "{kind}");
    }
    assert!(refused > 0);
    run.history.world.close();
}

#[test]
fn a_backup_beside_an_archive_that_is_away_tells_which_moments_it_lacks() {
    let mut run = Run::new(62, Kind::Local);
    run.steps(60);
    let first = checkpoint(&mut run);
    run.steps(160);
    let second = checkpoint(&mut run);
    let archive = run.location.archive().dir().unwrap().to_owned();
    let aside = run.root.path().join("aside");
    let mut gaps = 0;
    for trouble in ["none", "a file", "a link to nothing", "an empty directory"] {
        let to = Place::local(run.root.path().join(trouble.replace(' ', "-"))).unwrap();
        let options = BackupOptions::default();
        let made = backup(&run.location, &first.id, &to, options, &Quiet);
        assert_eq!(run.history.world.block_on(made).unwrap().gap, None);
        if trouble != "none" {
            fs::rename(&archive, &aside).unwrap();
        }
        match trouble {
            "a file" => fs::write(&archive, "").unwrap(),
            "a link to nothing" => std::os::unix::fs::symlink("nowhere", &archive).unwrap(),
            "an empty directory" => fs::create_dir(&archive).unwrap(),
            _ => {}
        }
        let made = backup(&run.location, &second.id, &to, options, &Quiet);
        let gap = run.history.world.block_on(made).unwrap().gap;
        if trouble == "an empty directory" {
            fs::remove_dir_all(&archive).unwrap();
        } else if trouble != "none" {
            fs::remove_file(&archive).unwrap();
        }
        if trouble != "none" {
            fs::rename(&aside, &archive).unwrap();
        }
        let new = run.fresh();
        let refused = refusal(&run, &Location::from(to.clone()), &new, first.lsn + 1);
        assert_eq!(refused.is_some(), gap.is_some(), "{trouble}: {refused:?}, {gap:?}");
        let listed = run.history.world.block_on(list_backups(&to)).unwrap();
        assert!(trouble != "none" || !listed[1].history.is_empty() && gap.is_none(), "{gap:?}");
        if let (Some(gap), Some(refused)) = (gap, refused) {
            gaps += 1;
            assert!(gap.contains(archive.to_str().unwrap()), "{gap}");
            assert!(refused.contains(&second.id), "{refused}");
        }
    }
    assert_eq!(gaps, 3, "all records were in the journal still");
    run.history.world.close();
}
