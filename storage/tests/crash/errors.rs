//! Directories that must not be opened, with the errors that say why; damaged journals.

use crate::image::{Image, Pick};
use crate::model::Model;
use crate::world::{World, fresh};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn no_images() -> Pick {
    Box::new(|_| false)
}

fn model() -> Model {
    let mut model = Model { now_ms: 1_800_000_000_000, ..Model::default() };
    model.dbs.resize_with(2, Default::default);
    model
}

fn refused(dir: &Path) -> String {
    match World::try_open(dir, model(), no_images()) {
        Ok(_) => panic!("it was opened"),
        Err(error) => format!("{error:#}"),
    }
}

fn fill(world: &mut World, mark: u8) {
    for n in 0..20u32 {
        world.set(0, format!("key{n}").as_bytes(), &[mark; 15_000], 0);
        world.commit();
    }
}

/// Returns an image with flushed rows and a tail in the journal.
fn image(root: &TempDir, number: &mut u32) -> Image {
    let mut world = World::open(&fresh(root.path(), number), model(), no_images());
    fill(&mut world, 1);
    world.settle();
    fill(&mut world, 2);
    world.probe.now("killed")
}

#[test]
fn an_incomplete_data_directory_is_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let image = image(&root, &mut number);
    let mut copy = |wanted: &dyn Fn(&Path) -> bool| {
        let dir = fresh(root.path(), &mut number);
        image.unpack_if(&dir, wanted);
        dir
    };
    let dir = copy(&|_| true);
    let manifest = dir.join("flagstone.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 99")).unwrap();
    let error = refused(&dir);
    assert!(error.contains("format 99") && error.contains("flagstone.json"), "{error}");
    for damaged in ["", "{", "{\"format\": 1}", &text[..text.len() / 2]] {
        fs::write(&manifest, damaged).unwrap();
        let error = refused(&dir);
        assert!(error.contains("flagstone.json is damaged"), "{error}");
    }
    let error = refused(&copy(&|name| name != Path::new("flagstone.json")));
    assert!(error.contains("not a whole data directory"), "{error}");
    let error = refused(&copy(&|name| !name.starts_with("journal")));
    assert!(error.contains("the journal ends at 0") && error.contains("missing"), "{error}");
    let whole = copy(&|_| true);
    let world = World::open(&whole, image.model.clone(), no_images());
    let error = refused(&whole);
    assert!(error.contains("in use by another process"), "{error}");
    drop(world);
    World::open(&whole, image.model.clone(), no_images()).verify("the lock is gone");
}

#[test]
fn half_written_objects_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let image = image(&root, &mut number);
    let dir = fresh(root.path(), &mut number);
    image.unpack(&dir);
    let staged = dir.join("shard-0/db/compacted/00000000000000000000000001.sst#1");
    fs::create_dir_all(staged.parent().unwrap()).unwrap();
    fs::write(&staged, "half").unwrap();
    World::open(&dir, image.model.clone(), no_images()).verify("swept");
    assert!(!staged.exists());
}

#[test]
fn an_older_copy_of_a_shard_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), no_images());
    fill(&mut world, 1);
    world.settle();
    let old = world.probe.now("old");
    for mark in 2..6 {
        fill(&mut world, mark);
        world.settle();
    }
    fill(&mut world, 9);
    let new = world.probe.now("new");
    let dir = fresh(root.path(), &mut number);
    new.unpack_if(&dir, |name| !name.starts_with("shard-1"));
    old.unpack_if(&dir, |name| name.starts_with("shard-1"));
    let error = refused(&dir);
    assert!(error.contains("shard 1") && error.contains("older"), "{error}");
}

/// Returns the journal's files of a directory, with their bytes in use.
fn segments(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.retain(|(_, bytes)| bytes.iter().any(|b| *b != 0));
    files.sort();
    files
}

#[test]
fn a_damaged_journal_is_refused_or_cut_behind_its_durable_records() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), no_images());
    let mut histories = Vec::new();
    let mut durable = 0;
    for n in 0..40u32 {
        world.set(0, format!("key{}", n % 7).as_bytes(), &vec![n as u8; 200 * n as usize], 0);
        world.commit();
        histories.push(world.model.clone());
        if n == 25 {
            world.journal.sync_now().unwrap();
            durable = histories.len();
        }
    }
    let image = world.probe.now("killed");
    drop(world);
    let (mut cut, mut refusals) = (0, 0);
    for case in 0..60usize {
        let dir = fresh(root.path(), &mut number);
        image.unpack(&dir);
        let files = segments(&dir);
        let (path, bytes) = &files[case % files.len()];
        let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
        let place = (case * 7919 + case * case * 31) % used;
        let mut bytes = bytes.clone();
        if case % 3 == 0 {
            bytes[place..].fill(0);
        } else {
            bytes[place] ^= 1 << (case % 8);
        }
        fs::write(path, bytes).unwrap();
        let at = format!("case {case}: {} at {place}", path.display());
        match World::try_open(&dir, model(), no_images()) {
            Err(error) => {
                let text = format!("{error:#}");
                assert!(text.contains("journal"), "{at}: {text}");
                refusals += 1;
            }
            Ok(mut world) => {
                let end = histories.iter().rposition(|model| {
                    let keys = |m: &Model| m.dbs[0].clone();
                    keys(model).iter().all(|(key, (value, at))| {
                        world.get(0, key).is_some_and(|found| found == ((**value).clone(), *at))
                    })
                });
                let end = end.unwrap_or_else(|| panic!("{at}: no prefix of the history"));
                assert!(end + 1 >= durable, "{at}: what was durable is lost");
                world.model = histories[end].clone();
                world.verify(&at);
                cut += 1;
            }
        }
    }
    println!("{cut} tails cut, {refusals} refused");
    assert!(cut > 0 && refusals > 0);
}
