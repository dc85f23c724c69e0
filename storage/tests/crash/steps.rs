//! Histories that lead to one point where a kill, a stop or a fault may do harm.

use crate::image::{Pick, Probe};
use crate::model::{Model, V};
use crate::world::{SHARDS, World, fresh, options};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Directory, OpenOptions, reshard};
use flagstone_storage::encoding::{Function, Library, OpWriter, Row, RowKey, row};
use flagstone_storage::engine::{Engine, prefix_range};
use flagstone_storage::journal::RealDisk;
use flagstone_storage::materialise::{each_hand_over_batch, hand_over, sweep};
use flagstone_storage::place::Place;
use flagstone_storage::scan::{Cursor, DueCursor};
use flagstone_storage::slot::{KeyHash, slot_of};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Hash, Str, Value};
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const NOW: u64 = 1_800_000_000_000;

fn no_images() -> Pick {
    Box::new(|_| false)
}

fn model(databases: usize) -> Model {
    let mut model = Model { now_ms: NOW, ..Model::default() };
    model.dbs.resize_with(databases, Default::default);
    model
}

fn world(dir: &Path, pick: Pick) -> World {
    World::open(dir, model(3), pick)
}

/// Kills the process: opens a copy and compares it.
fn kill(world: World, root: &TempDir, number: &mut u32) -> World {
    let image = world.probe.now("killed");
    drop(world);
    let mut again = World::reopen(&image, &fresh(root.path(), number), no_images());
    again.verify("after a kill");
    again
}

/// Bytes that a hash with element rows has at least.
const ROWS_BYTES: u32 = 20_000;

/// Sets a hash whose fields are element rows.
fn set_hash(world: &mut World, db: u32, key: &[u8], fields: u32) {
    let name = |n: u32| format!("f{n}").into_bytes();
    let value = vec![b'v'; (ROWS_BYTES / fields + 1) as usize];
    world.run(|store| {
        let mut hash = Hash::new();
        for n in 0..fields {
            hash.set(&name(n), &value, 0);
        }
        let mut entry = store.entry_mut(db, key)?;
        entry.value = Value::Hash(Box::new(hash));
        entry.expire_at_ms = 0;
        Ok(())
    });
    let hash: BTreeMap<_, _> = (0..fields).map(|n| (name(n), (value.clone(), 0))).collect();
    world.model.dbs[db as usize].insert(key.to_vec(), (Arc::new(V::Hash(hash)), 0));
}

fn rename(world: &mut World, (from_db, from): (u32, &[u8]), (to_db, to): (u32, &[u8])) {
    let item = world.model.dbs[from_db as usize].remove(from).expect("it exists");
    world.model.dbs[to_db as usize].insert(to.to_vec(), item);
    world.run(|store| store.rename((from_db, from), (to_db, to)));
}

fn some_of_everything(world: &mut World, round: u32) {
    for n in 0..12u32 {
        let expiry = if n % 3 == 0 { NOW + 1000 } else { 0 };
        world.set(n % 2, format!("s{n}").as_bytes(), format!("{round}-{n}").as_bytes(), expiry);
    }
    world.set(0, b"big", &vec![round as u8; 50_000], NOW + 5000);
    set_hash(world, 0, b"{t}hash", 10 + round);
    set_hash(world, 1, b"h", 5);
    world.commit();
    let names = [&[b"a"][..], &[b"a", b"b"], &[b"b", b"c"]];
    world.set_libraries(
        names[round as usize % names.len()].iter().map(|name| library(*name, round)).collect(),
    );
}

fn library(name: &[u8], round: u32) -> Library {
    let function = Function {
        name: name.into(),
        description: round.is_multiple_of(2).then(|| b"some"[..].into()),
        flags: u64::from(round),
    };
    Library {
        name: name.into(),
        engine: b"LUA"[..].into(),
        code: format!("code {round}").into_bytes().into(),
        functions: vec![function; 2],
    }
}

#[test]
fn every_step_of_the_background_may_be_the_last() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), Box::new(|_| true));
    some_of_everything(&mut world, 1);
    for shard in 0..SHARDS {
        world.hand_over(shard, Some(8));
        world.flush(shard);
    }
    some_of_everything(&mut world, 2);
    rename(&mut world, (0, b"{t}hash"), (1, b"{t}moved"));
    world.flush_db(0);
    world.set(0, b"s1", b"again", 0);
    world.swap_db(0, 2);
    world.commit();
    for shard in 0..SHARDS {
        world.hand_over(shard, None);
        world.flush(shard);
        world.sweep(shard);
        world.flush(shard);
    }
    let images = world.probe.images();
    drop(world);
    println!("{} points", images.len());
    assert!(images.len() > 50);
    for (n, image) in images.iter().enumerate() {
        let dir = fresh(root.path(), &mut number);
        let mut copy = World::reopen(image, &dir, no_images());
        copy.verify(&image.at);
        if n % 8 == 0 {
            copy.settle();
            copy.verify(&image.at);
            copy.verify_no_garbage(&image.at);
        }
        drop(copy);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_filter_of_keys_made_anew_has_what_was_pending_before() {
    const MANY: u32 = 90_000;
    let root = tempfile::tempdir().unwrap();
    let mut world = world(&fresh(root.path(), &mut 0), no_images());
    let name = |n: u32| format!("key{n}").into_bytes();
    let set = |world: &mut World, from: u32, to: u32| {
        (from..to).for_each(|n| world.set(0, &name(n), b"v", 0));
        world.commit();
    };
    let shards = || (0..SHARDS).collect::<Vec<_>>();
    set(&mut world, 0, 3 * MANY);
    assert!(shards().iter().all(|shard| !world.look_for_keys(*shard)), "all keys are known");
    for n in 0..3 * MANY - 300 {
        world.run(|store| store.remove(0, &name(n)));
        world.model.dbs[0].remove(&name(n));
    }
    world.commit();
    // Most keys are deleted. The remaining ones are pending: the engine has none of them.
    for shard in shards() {
        assert!(!world.look_for_keys(shard), "a filter begins, and waits for the engine");
    }
    set(&mut world, 0, 20);
    shards().iter().for_each(|shard| world.hand_over(*shard, None));
    assert!(shards().iter().all(|shard| world.look_for_keys(*shard)), "it is read");
    set(&mut world, 20, 40);
    let before = world.partition.presence_bytes();
    for shard in shards() {
        while world.look_for_keys(shard) {}
    }
    assert!(world.partition.presence_bytes() < before / 2);
    set(&mut world, 40, 60);
    shards().iter().for_each(|shard| world.hand_over(*shard, None));
    while world.partition.store.memory() > 0 {
        world.evict();
    }
    world.verify("with a filter made anew");
    // The absence of a key is known without asking the engine.
    let is_hot = |n: &u32| world.partition.store.is_hot(0, &name(*n));
    assert!((1000..2000).filter(is_hot).count() > 950);
}

#[test]
fn a_clean_stop_keeps_the_filter_of_keys_and_a_kill_does_not() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    some_of_everything(&mut first, 1);
    let model = first.model.clone();
    first.close();
    let unknown = |n: &u32| format!("unknown{n}").into_bytes();
    let known = |world: &mut World| {
        (0..100).filter(|n| world.partition.store.is_hot(0, &unknown(n))).count() > 90
    };
    let mut second = World::open(&dir, model, no_images());
    assert!(known(&mut second), "it was kept");
    second.set(0, b"another", b"1", 0);
    second.commit();
    second.evict();
    second.verify("after a clean stop");
    let mut third = kill(second, &root, &mut number);
    assert!(!known(&mut third), "what was kept was of the stop before");
    third.set(0, b"more", b"1", 0);
    third.commit();
    for shard in 0..SHARDS {
        third.hand_over(shard, None);
        while third.look_for_keys(shard) {}
    }
    third.evict();
    assert!(known(&mut third), "all keys were read");
    third.verify("with the filter that was read");
    kill(third, &root, &mut number).settle();
}

#[test]
fn shards_can_become_more_and_fewer() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    some_of_everything(&mut first, 1);
    (0..SHARDS).for_each(|shard| first.hand_over(shard, None));
    some_of_everything(&mut first, 2);
    rename(&mut first, (0, b"{t}hash"), (1, b"{t}moved"));
    // A dead generation whose rows are not swept, and a journal with a tail.
    first.flush_db(0);
    first.set(0, b"s1", b"again", 0);
    first.commit();
    let model = first.model.clone();
    let image = first.probe.now("killed");
    drop(first);
    image.unpack(&dir);
    let keys: usize = model.dbs.iter().map(|db| db.len()).sum();
    for shards in [7, 1, SHARDS] {
        let to = fresh(root.path(), &mut number);
        let mut old = options(&dir, 3);
        old.shards = None;
        let place = Place::local(&to).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let copy = |old: OpenOptions, place: Place| async move {
            reshard(old, place, shards, Clock::default(), &|_| ()).await
        };
        let done = runtime.block_on(copy(old.clone(), place.clone())).unwrap();
        assert!(done.keys >= keys as u64, "{done:?}");
        let again = runtime.block_on(copy(old, place)).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "{again}");
        dir = to;
    }
    let mut last = World::open(&dir, model, no_images());
    last.verify("with other shards");
    last.settle();
    last.verify_no_garbage("with other shards");
}

#[test]
fn shards_in_a_bucket_can_become_others() {
    let root = tempfile::tempdir().unwrap();
    let bucket = Place::within(Arc::new(InMemory::new()), "a/prefix".into(), "memory");
    let dir = fresh(root.path(), &mut 0);
    let at = |store: &Place, journal: Option<&Place>| OpenOptions {
        store: store.clone(),
        journal: journal.cloned(),
        shards: None,
        ..options(&dir, 3)
    };
    let open = |options: OpenOptions, model: Model| {
        let probe = Arc::new(Probe::new(&dir, model.clone(), no_images()));
        let same = |place: &Place| Ok(place.clone());
        World::open_on(options, model, probe, Arc::new(RealDisk), &same).unwrap()
    };
    let log = bucket.join("log");
    let mut old = at(&bucket.join("old"), Some(&log));
    let mut first = open(old.clone(), model(3));
    some_of_everything(&mut first, 1);
    (0..SHARDS).for_each(|shard| first.hand_over(shard, None));
    some_of_everything(&mut first, 2);
    first.set(0, b"s1", b"again", 0);
    first.commit();
    first.journal.sync_now().unwrap();
    let model = first.model.clone();
    // Like a kill: nothing is closed.
    drop(first);
    let mut stores = vec![bucket.join("new"), Place::local(&dir).unwrap(), bucket.join("last")];
    for (to, shards) in stores.iter().zip([7, 1, SHARDS]) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let copy = reshard(old, to.clone(), shards, Clock::default(), &|_| ());
        runtime.block_on(copy).unwrap();
        old = at(to, None);
    }
    let mut last = open(at(&stores.remove(2), None), model);
    last.verify("with other shards");
    last.close();
}

#[test]
fn an_interrupted_reshard_leaves_no_data_directory() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    some_of_everything(&mut first, 1);
    let model = first.model.clone();
    first.close();
    let to = fresh(root.path(), &mut number);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let place = Place::local(&to).unwrap();
    // Interrupts it in the middle of the rows.
    let stop = |done: flagstone_storage::directory::Resharded| assert_eq!(done.rows, 0, "stopped");
    let work = reshard(options(&dir, 3), place, 5, Clock::default(), &stop);
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(work)));
    assert!(stopped.is_err());
    drop(runtime);
    assert!(to.join("shard-0").is_dir() && !to.join("flagstone.json").exists());
    assert!(World::try_open(&to, model.clone(), no_images()).is_err(), "it is not whole");
    World::open(&dir, model, no_images()).verify("the old one");
}

#[test]
fn a_start_without_a_journal_continues_after_the_lsns_of_the_shards() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    (0..9).for_each(|round| some_of_everything(&mut first, round));
    let (model, end) = (first.model.clone(), first.journal.end());
    first.close();
    // After a clean stop the shards are complete by themselves.
    std::fs::remove_dir_all(dir.join("journal")).unwrap();
    let mut second = World::open(&dir, model, no_images());
    second.verify("without a journal");
    second.set(0, b"s1", b"again", 0);
    second.commit();
    assert!(second.journal.end() > end);
    kill(second, &root, &mut number);
}

#[test]
fn a_library_that_is_not_stored_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set_libraries(vec![library(b"a", 1), library(b"b", 1)]);
    world.journal.close().unwrap();
    let new = library(b"a", 2);
    let changes = [(&b"b"[..], None), (b"a", Some(&new))];
    assert!(world.partition.put_libraries(NOW, &changes).is_err());
    let mut pending = BTreeMap::new();
    world.partition.shards[&0].apply_libraries(&mut pending).unwrap();
    assert!(pending.into_values().eq(world.libraries.iter().cloned()));
    kill(world, &root, &mut number);
}

#[test]
fn a_moved_value_outlives_the_database_it_came_from() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    set_hash(&mut world, 0, b"h", 20);
    world.settle();
    rename(&mut world, (0, b"h"), (1, b"h"));
    world.commit();
    world.flush_db(0);
    world.settle();
    world.evict();
    world.verify("after the sweep");
    kill(world, &root, &mut number).verify_no_garbage("after the sweep");
}

#[test]
fn a_flush_that_is_not_handed_over_is_not_swept() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    some_of_everything(&mut world, 1);
    world.settle();
    world.flush_db(0);
    let rows = |world: &World| {
        let shards = world.partition.shards.values();
        let scan =
            |e: &Engine| world.block_on(e.scan(prefix_range(b"M"), usize::MAX)).unwrap().len();
        shards.map(|shard| scan(shard.engine())).sum::<usize>()
    };
    let before = rows(&world);
    (0..SHARDS).for_each(|shard| assert!(!world.sweep(shard)));
    assert_eq!(rows(&world), before);
    world.settle();
    assert!(rows(&world) < before);
    kill(world, &root, &mut number).verify_no_garbage("after the sweep");
}

/// Sets some fields of a hash, removes others, and closes the round.
fn change_hash(world: &mut World, key: &'static [u8], set: &[(u32, usize)], removed: &[u32]) {
    let name = |n: u32| format!("f{n}").into_bytes();
    let mut hash = world.model.hash(0, key);
    for (n, len) in set {
        hash.insert(name(*n), (vec![b'w'; *len], 0));
    }
    for n in removed {
        hash.remove(&name(*n));
    }
    world.run(|store| {
        let mut entry = store.entry_mut(0, key)?;
        match &entry.value {
            Value::Hash(hash) => hash.require_all().or_load(0, key)?,
            _ => entry.value = Value::Hash(Box::new(Hash::new())),
        }
        let hash = entry.as_hash_mut().expect("a hash");
        for (n, len) in set {
            hash.set(&name(*n), &vec![b'w'; *len], 0);
        }
        for n in removed {
            hash.remove(&name(*n));
        }
        Ok(())
    });
    world.model.dbs[0].insert(key.to_vec(), (Arc::new(V::Hash(hash)), 0));
    world.commit();
}

#[test]
fn a_hash_is_unpacked_and_packed_again_between_kills() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let all: Vec<(u32, usize)> = (0..10).map(|n| (n, 350)).collect();
    change_hash(&mut world, b"h", &all, &[]);
    world.settle();
    assert_eq!(elements(&world), 0, "it is packed");
    let mut rounds = 0;
    while elements(&world) == 0 {
        rounds += 1;
        assert!(rounds <= 8, "it is rewritten again and again");
        world.evict();
        change_hash(&mut world, b"h", &[(rounds, 349)], &[]);
        // What is on disk is what the number of rewrites is counted from.
        world = kill(world, &root, &mut number);
        if rounds % 2 == 0 || rounds == 8 {
            world.settle();
        }
    }
    assert_eq!(elements(&world), 10, "it has rows");
    change_hash(&mut world, b"h", &[(3, 7)], &[0, 1, 2, 5, 6, 7, 8]);
    let mut world = kill(world, &root, &mut number);
    world.settle();
    assert_eq!(elements(&world), 0, "it is packed again, and its rows are swept");
    change_hash(&mut world, b"h", &all, &[]);
    change_hash(&mut world, b"h", &[(1, 20_000)], &[]);
    let mut world = kill(world, &root, &mut number);
    world.settle();
    assert_eq!(elements(&world), 10);
    world.verify("unpacked by its size");
    kill(world, &root, &mut number).verify_no_garbage("unpacked by its size");
}

/// Returns the number of element rows in all engines.
fn elements(world: &World) -> usize {
    let count = |engine: &Engine| {
        world.block_on(engine.scan(prefix_range(&[row::ELEMENT]), usize::MAX)).unwrap().len()
    };
    world.partition.shards.values().map(|shard| count(shard.engine())).sum()
}

#[test]
fn a_sweep_that_is_cut_off_between_two_steps_is_finished_after_a_kill() {
    /// More fields than one sweep deletes.
    const FIELDS: u32 = 70_000;
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let shard = world.partition.store.layout().shard_of(slot_of(b"h"));
    set_hash(&mut world, 0, b"h", FIELDS);
    world.settle();
    world.run(|store| store.remove(0, b"h"));
    world.model.dbs[0].clear();
    world.commit();
    world.hand_over(shard, None);
    world.flush(shard);
    assert_eq!(elements(&world), FIELDS as usize);
    assert!(world.sweep(shard), "it ends before the last element");
    let left = elements(&world);
    assert!(0 < left && left < FIELDS as usize, "{left}");
    world.flush(shard);
    let mut world = kill(world, &root, &mut number);
    assert_eq!(elements(&world), left);
    world.settle();
    assert_eq!(elements(&world), 0);
    world.verify_no_garbage("swept after a kill");
}

#[test]
fn versions_that_move_and_die_in_a_round_are_swept() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    for key in [&b"{t}a"[..], b"{t}b", b"{t}c"] {
        set_hash(&mut world, 0, key, 9);
    }
    world.settle();
    rename(&mut world, (0, b"{t}a"), (0, b"{t}b"));
    rename(&mut world, (0, b"{t}b"), (0, b"{t}d"));
    rename(&mut world, (0, b"{t}c"), (0, b"{t}a"));
    world.set(0, b"{t}a", b"a string", 0);
    world.commit();
    world.settle();
    world.verify_no_garbage("moved and overwritten");
    kill(world, &root, &mut number);
}

#[test]
fn versions_of_two_lives_are_different() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    set_hash(&mut world, 0, b"{t}first", 9);
    world.settle();
    let mut world = kill(world, &root, &mut number);
    // Each is the first value with element rows in its life, and they share a slot.
    set_hash(&mut world, 0, b"{t}second", 12);
    world.commit();
    world.run(|store| store.remove(0, b"{t}first"));
    world.model.dbs[0].remove(&b"{t}first"[..]);
    world.settle();
    world.evict();
    world.verify("the first is swept");
    world.verify_no_garbage("the first is swept");
}

#[test]
fn another_number_of_databases_keeps_every_key() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set(0, b"zero", b"0", 0);
    world.set(2, b"two", b"2", 0);
    world.flush_db(0);
    world.flush_db(1);
    world.set(0, b"zero", b"again", 0);
    world.commit();
    // One shard has handed over, the others have not.
    world.hand_over(1, None);
    world.flush(1);
    for databases in [6, 2, 9, 3] {
        let mut image = world.probe.now("killed");
        drop(world);
        let all = image.model.clone();
        image.model.dbs.resize_with(databases, Default::default);
        world = World::reopen(&image, &fresh(root.path(), &mut number), no_images());
        world.verify(&format!("{databases} databases"));
        for db in 0..databases as u32 {
            world.set(db, b"mark", format!("{db} of {databases}").as_bytes(), 0);
        }
        world.flush_db(databases as u32 - 1);
        world.commit();
        // Rows that cannot be swept yet stay.
        let mut image = world.probe.now("killed");
        let out_of_reach = all.dbs.into_iter().skip(databases);
        image.model.dbs.extend(out_of_reach);
        drop(world);
        world = World::reopen(&image, &fresh(root.path(), &mut number), no_images());
        world.verify(&format!("after {databases} databases"));
    }
}

#[test]
fn a_commit_that_was_not_applied_survives_a_stop() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set(0, b"other", b"1", 0);
    world.set(0, b"k", b"old", 0);
    world.commit();
    let mut space = world.partition.store.workspace(&world.partition.store.generations());
    space.adopt(0, world.partition.store.lend(0, b"k").expect("hot"));
    world.partition.granted(1);
    space.begin(NOW, true);
    space.entry_mut(0, b"k").unwrap().value = Value::Str(Str::new(b"new"));
    let sealed = space.seal();
    world.journal.append(NOW, &sealed.shards(), &[&sealed.body()]).unwrap();
    world.model.dbs[0].get_mut(&b"k"[..]).unwrap().0 = Arc::new(V::Str(b"new".to_vec()));
    let model = world.model.clone();
    world.close();
    let dir = root.path().join("1");
    World::open(&dir, model, no_images()).verify("after a stop");
}

#[test]
fn a_commit_that_comes_late_is_in_the_map_that_was_cut() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let shard = world.partition.store.layout().shard_of(slot_of(b"{t}"));
    world.set(0, b"{t}old", b"old", 0);
    world.run(|store| store.entry(0, b"{t}new").map(|_| ()));
    world.commit();
    // A coordinator is lent two keys of the shard, and its record is in the journal.
    let names = [&b"{t}old"[..], b"{t}new"];
    let mut space = world.partition.store.workspace(&world.partition.store.generations());
    for name in names {
        space.adopt(0, world.partition.store.lend(0, name).expect("hot"));
    }
    world.partition.granted(1);
    space.begin(NOW, true);
    for name in names {
        space.entry_mut(0, name).unwrap().value = Value::Str(Str::new(b"late"));
        world.model.dbs[0].insert(name.to_vec(), (Arc::new(V::Str(b"late".to_vec())), 0));
    }
    let sealed = space.seal();
    let (journal, model, body) = (&world.journal, &world.model, sealed.body());
    let append = || journal.append(NOW, &sealed.shards(), &[&body]).unwrap();
    let lsn = world.probe.append(model, append);
    // The shard is cut before it gets that record, which belongs before the cut.
    world.partition.cut(shard);
    assert!(world.partition.take_cut(shard).is_none(), "the map may still grow");
    for (db, entry) in space.drain() {
        world.partition.store.give_back(db, entry, true);
    }
    world.partition.merge(lsn, &body);
    world.partition.note_lsn(lsn);
    world.partition.released(1);
    world.hand_over(shard, None);
    world.flush(shard);
    assert!(world.partition.shards[&shard].flushed() >= lsn);
    // The next start replays nothing of it: the rows and the counters are those of the engine.
    kill(world, &root, &mut number);
}

#[test]
fn a_lent_entry_that_expired_is_written_again() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set(0, b"k", b"old", NOW + 10);
    world.commit();
    let store = &mut world.partition.store;
    let mut space = store.workspace(&store.generations());
    space.adopt(0, store.lend(0, b"k").expect("hot"));
    // It has expired when the command reads it; then the command is broken off.
    space.begin(NOW + 20, true);
    assert!(space.entry(0, b"k").unwrap().is_none());
    for (db, entry) in space.drain() {
        store.give_back(db, entry, false);
    }
    world.model.now_ms = NOW + 20;
    world.set(0, b"k", b"new", 0);
    world.commit();
    kill(world, &root, &mut number);
}

#[test]
fn an_old_hand_over_does_not_overtake_a_newer_one() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let shard = world.partition.store.layout().shard_of(slot_of(b"k"));
    world.set(0, b"k", b"old", 0);
    world.commit();
    world.partition.cut(shard);
    let old = world.partition.take_cut(shard).unwrap();
    let engine = world.partition.shards[&shard].engine().clone();
    let journal = world.journal.clone();
    let seq = world.block_on(hand_over(engine.clone(), journal.clone(), old.clone())).unwrap();
    world.partition.shards.get_mut(&shard).unwrap().handed_over(old.lsn, seq);
    world.set(0, b"k", b"new", 0);
    world.commit();
    world.hand_over(shard, None);
    assert!(world.block_on(hand_over(engine, journal, old)).is_err());
    world.flush(shard);
    kill(world, &root, &mut number);
}

/// Deletes every key of all databases individually.
fn delete_all(world: &mut World) {
    for db in 0..world.model.dbs.len() {
        for key in std::mem::take(&mut world.model.dbs[db]).into_keys() {
            world.run(|store| store.remove(db as u32, &key));
        }
    }
    world.commit();
}

#[test]
fn what_comes_and_goes_between_two_hand_overs_is_never_written() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    for round in 0..3 {
        some_of_everything(&mut world, round);
        delete_all(&mut world);
    }
    for shard in 0..SHARDS {
        world.partition.cut(shard);
        let cut = world.partition.take_cut(shard).unwrap();
        let written = |key: &[u8]| [row::META, row::ELEMENT, row::TIME].contains(&key[0]);
        each_hand_over_batch(&cut, 100, &mut |batch| {
            assert!(!batch.iter().any(|(key, _)| written(key)), "{batch:?}");
        });
        world.partition.shards.get_mut(&shard).unwrap().handed_over(cut.lsn, 0);
    }
    kill(world, &root, &mut number);
}

/// Puts and deletes one key on both sides of a cut, which is under way or complete.
#[test]
fn a_row_is_new_in_one_map_only() {
    for (in_engine, is_taken) in [(false, false), (false, true), (true, false), (true, true)] {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        let mut world = world(&fresh(root.path(), &mut number), no_images());
        some_of_everything(&mut world, 1);
        if in_engine {
            world.settle();
            delete_all(&mut world);
        }
        let mut taken = Vec::new();
        for shard in 0..SHARDS {
            world.partition.cut(shard);
            if is_taken {
                taken.push((shard, world.partition.take_cut(shard).unwrap()));
            }
        }
        some_of_everything(&mut world, 2);
        delete_all(&mut world);
        world.evict();
        world.verify("before the cut is handed over");
        for (shard, cut) in taken {
            let engine = world.partition.shards[&shard].engine().clone();
            let handed = hand_over(engine, world.journal.clone(), cut.clone());
            let seq = world.block_on(handed).unwrap();
            world.partition.shards.get_mut(&shard).unwrap().handed_over(cut.lsn, seq);
        }
        for shard in 0..SHARDS {
            world.hand_over(shard, None);
            world.flush(shard);
        }
        world.verify("between the two");
        let mut world = kill(world, &root, &mut number);
        world.settle();
        world.verify("all is handed over");
        world.verify_no_garbage("all was deleted");
    }
}

/// A replayed put finds the row that it wrote before.
#[test]
fn what_an_unfinished_hand_over_has_left_can_be_deleted() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    some_of_everything(&mut world, 1);
    world.journal.sync_now().unwrap();
    for shard in 0..SHARDS {
        world.partition.cut(shard);
        let cut = world.partition.take_cut(shard).unwrap();
        let engine = world.partition.shards[&shard].engine().clone();
        let mut batches = Vec::new();
        each_hand_over_batch(&cut, 8, &mut |batch| batches.push(batch));
        // The last batch would mark them as complete.
        batches.pop();
        for batch in batches {
            world.block_on(engine.write(batch)).unwrap();
        }
        world.block_on(engine.flush()).unwrap();
    }
    let mut world = kill(world, &root, &mut number);
    delete_all(&mut world);
    world.settle();
    let mut world = kill(world, &root, &mut number);
    world.settle();
    world.verify_no_garbage("all was deleted");
}

#[test]
fn a_full_disk_stops_the_flush_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    some_of_everything(&mut world, 1);
    (0..SHARDS).for_each(|shard| world.hand_over(shard, Some(1000)));
    some_of_everything(&mut world, 2);
    world.probe.refuse(true);
    (0..SHARDS).for_each(|shard| world.hand_over(shard, None));
    let engine = world.partition.shards[&0].engine().clone();
    let handle = world.runtime.as_ref().unwrap().handle().clone();
    let flush = handle.spawn(async move { engine.flush().await });
    some_of_everything(&mut world, 3);
    world.evict();
    world.verify("while the store refuses");
    assert!(!flush.is_finished());
    let image = world.probe.now("while the store refuses");
    World::reopen(&image, &fresh(root.path(), &mut number), no_images()).verify(&image.at);
    world.probe.refuse(false);
    world.block_on(flush).unwrap().unwrap();
    world.settle();
    world.verify_no_garbage("the store takes changes again");
    kill(world, &root, &mut number);
}

#[test]
fn what_a_failed_round_uncovers_may_not_be_durable() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set(0, b"k", b"stored", 0);
    let round = world.partition.store.round();
    world.commit();
    world.set(0, b"k", b"not stored", 0);
    world.journal.close().unwrap();
    assert!(world.partition.commit(NOW).is_err());
    let found = world.get(0, b"k").unwrap().0;
    assert_eq!(found, V::Str(b"stored".to_vec()));
    let closed = world.partition.closed();
    assert!((round..closed).contains(&world.partition.store.seen()), "it shows the first round");
}

#[test]
fn expiry_goes_on_past_the_rows_of_dead_generations() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    for n in 0..50 {
        world.set(0, format!("{{t}}{n}").as_bytes(), b"v", NOW + 1);
    }
    world.commit();
    let shard = world.partition.store.layout().shard_of(slot_of(b"{t}"));
    world.hand_over(shard, None);
    world.flush_db(0);
    world.set(0, b"{t}x", b"v", NOW + 2);
    world.commit();
    world.model.now_ms += 5;
    let plan = world.partition.plan_due(shard, &DueCursor::at(0), NOW + 5, 10).unwrap();
    let (due, rest) = world.block_on(plan.run()).unwrap();
    assert!(rest.is_none() && due.len() == 1 && *due[0].key == *b"{t}x", "{due:?}");
    world.verify("expired");
    world.settle();
    world.verify_no_garbage("expired");
}

#[test]
fn what_comes_late_into_the_expiry_index_is_found_by_the_next_pass() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let shard = world.partition.store.layout().shard_of(slot_of(b"{t}"));
    assert_eq!(world.partition.begin_due(shard, NOW + 1000), 0);
    assert_eq!(world.partition.begin_due(shard, NOW + 2000), NOW + 1001);
    // A command that began long ago is stored, and the engine has its row before the next pass.
    world.set(0, b"{t}late", b"v", NOW + 5);
    world.set(0, b"{t}later", b"v", NOW + 5000);
    world.commit();
    world.hand_over(shard, None);
    let from_ms = world.partition.begin_due(shard, NOW + 3000);
    let plan = world.partition.plan_due(shard, &DueCursor::at(from_ms), NOW + 3000, 10).unwrap();
    let (due, rest) = world.block_on(plan.run()).unwrap();
    assert!(rest.is_none() && due.len() == 1 && *due[0].key == *b"{t}late", "{due:?}");
    // It could not be deleted: the next pass returns it again.
    world.partition.abort_due(shard, from_ms);
    assert_eq!(world.partition.begin_due(shard, NOW + 4000), from_ms);
    assert_eq!(world.partition.begin_due(shard, NOW + 4000), NOW + 4001);
}

#[test]
fn a_pass_over_the_expiry_index_meets_each_row_once() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    let shard = world.partition.store.layout().shard_of(slot_of(b"{t}"));
    for n in 0..40 {
        world.set(0, format!("{{t}}{n}").as_bytes(), b"v", NOW + n % 4);
        if n == 20 {
            world.commit();
            world.hand_over(shard, None);
        }
    }
    world.commit();
    for limit in [1, 3, 7, 100] {
        let (mut met, mut from) = (Vec::new(), Some(DueCursor::at(0)));
        while let Some(cursor) = from {
            let plan = world.partition.plan_due(shard, &cursor, NOW + 2, limit).unwrap();
            let (due, rest) = world.block_on(plan.run()).unwrap();
            met.extend(due.into_iter().map(|due| (due.at_ms, due.key)));
            from = rest;
        }
        assert!(met.is_sorted());
        met.dedup();
        assert_eq!(met.len(), 30, "by {limit}");
    }
}

#[test]
fn times_of_fields_that_are_too_early_are_put_right() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    set_hash(&mut world, 0, b"h", 3);
    let set = |world: &mut World, name: &'static [u8], at: u64| {
        world.run(|store| {
            let mut entry = store.entry_mut(0, b"h")?;
            if let Value::Hash(hash) = &entry.value {
                hash.require([name].into_iter()).or_load(0, b"h")?;
            }
            entry.as_hash_mut().expect("a hash").set(name, b"value", at);
            Ok(())
        });
        let mut hash = world.model.hash(0, b"h");
        hash.insert(name.to_vec(), (b"value".to_vec(), at));
        world.model.dbs[0].insert(b"h".to_vec(), (Arc::new(V::Hash(hash)), 0));
    };
    set(&mut world, b"f1", NOW + 10);
    set(&mut world, b"f2", NOW + 1000);
    world.evict();
    // With only this field in memory, the earliest time is not known to change.
    set(&mut world, b"f1", 0);
    world.model.now_ms += 20;
    world.verify("too early");
    for shard in 0..SHARDS {
        let plan = world.partition.plan_due(shard, &DueCursor::at(0), NOW + 20, 10).unwrap();
        assert!(world.block_on(plan.run()).unwrap().0.is_empty(), "it is put right once");
    }
}

#[test]
fn a_dead_generation_leaves_no_row_behind() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    std::fs::create_dir(&dir).unwrap();
    let mut world = world(&dir, no_images());
    some_of_everything(&mut world, 1);
    world.flush_db(0);
    world.flush_db(1);
    world.settle();
    world.verify_no_garbage("all was pending");
    let model = world.model.clone();
    world.close();
    // Only control rows are left.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let opened = Directory::open(options(&dir, model.dbs.len() as u32), Clock::default());
        let (partitions, _lock) = opened.await.unwrap().into_partitions(2, 2);
        for shard in partitions.iter().flat_map(|p| p.shards.values()) {
            let rows = shard.engine().scan(vec![0]..vec![255], usize::MAX).await.unwrap();
            let control = |key: &[u8]| key[0] == row::CONTROL;
            assert!(rows.iter().all(|(key, _)| control(key)));
            let (_, more) = sweep(shard.engine(), Vec::new()).await.unwrap();
            assert!(!more);
        }
    });
}

/// Keys with equal hashes share a cursor: a scan continues behind all of them.
#[test]
fn a_scan_never_stops_inside_a_group_of_equal_hashes() {
    const GROUP: usize = 6;
    for in_engine in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let mut world = world(&fresh(root.path(), &mut 0), no_images());
        world.set(0, b"{t}k", b"value", 0);
        world.settle();
        let shard = world.partition.store.layout().shard_of(slot_of(b"{t}k"));
        let engine = world.partition.shards[&shard].engine().clone();
        let rows = world.block_on(engine.scan(prefix_range(&[row::META]), usize::MAX)).unwrap();
        let (key, value) = rows[0].clone();
        let Some(Row::Meta { generation, slot, hash48, .. }) = Row::parse(&key) else { panic!() };
        let mut names: Vec<_> = (0..GROUP).map(|n| format!("{{t}}{n}").into_bytes()).collect();
        let at = KeyHash { slot, hash: hash48 << 16 };
        let alike = names.iter().map(|name| {
            let mut key = Vec::new();
            RowKey::meta(&mut key, generation, at, name);
            key
        });
        if in_engine {
            let batch = alike.map(|key| (key.into(), Some(value.clone()))).collect();
            world.block_on(engine.write(batch)).unwrap();
        } else {
            let mut ops = OpWriter::default();
            alike.for_each(|key| ops.put(&key, &value, false));
            let lsn = world.journal.end();
            world.partition.shards.get_mut(&shard).unwrap().merge_sealed(lsn, &ops);
        }
        names.push(b"{t}k".to_vec());
        for limit in 1..GROUP + 2 {
            let (mut found, mut next) = (Vec::new(), Some(Cursor::START));
            while let Some(cursor) = next {
                let plan = world.partition.plan_scan(0, shard, cursor, limit).unwrap();
                let page = world.block_on(plan.run()).unwrap();
                found.extend(page.keys.into_iter().map(|key| key.key.to_vec()));
                next = page.next;
            }
            assert_eq!(found, names, "by {limit}, in the engine: {in_engine}");
        }
    }
}

/// A coordinator's change may not be durable when a unit changes the key and is rolled back.
#[test]
fn what_is_loaded_after_a_roll_back_shows_all_that_it_has_shown_before() {
    let root = TempDir::new().unwrap();
    let mut world = world(&fresh(root.path(), &mut 0), no_images());
    for key in [&b"set"[..], b"deleted"] {
        world.set(0, key, b"old", 0);
    }
    world.commit();
    world.journal.sync_now().unwrap();
    world.partition.observe_durable();
    let store = &mut world.partition.store;
    let mut space = store.workspace(&store.generations());
    for key in [&b"set"[..], b"deleted"] {
        space.adopt(0, store.lend(0, key).unwrap());
    }
    space.begin(NOW, true);
    space.entry_mut(0, b"set").unwrap().value = Value::Str(Str::new(b"new"));
    space.remove(0, b"deleted").unwrap();
    let sealed = space.seal();
    let lsn = world.journal.append(NOW, &sealed.shards(), &[&sealed.body()]).unwrap();
    for (db, entry) in space.drain() {
        world.partition.store.give_back(db, entry, true);
    }
    world.partition.merge(lsn, &sealed.body());
    world.partition.note_lsn(lsn);

    let store = &mut world.partition.store;
    store.begin(NOW, true);
    store.begin_unit();
    for key in [&b"set"[..], b"deleted"] {
        store.entry_mut(0, key).unwrap().value = Value::Str(Str::new(b"taken back"));
    }
    world.partition.roll_back();
    let shown = [&b"set"[..], b"deleted"].map(|key| {
        let value = world.get(0, key).map(|(value, _)| value);
        (value, world.partition.store.seen())
    });
    world.partition.commit(NOW).unwrap();
    let [(set, set_seen), (deleted, deleted_seen)] = shown;
    assert_eq!((set, deleted), (Some(V::Str(b"new".to_vec())), None));
    let durable = world.partition.observe_durable();
    assert!(world.journal.durable() < lsn, "it was not synced");
    assert!(set_seen > durable && deleted_seen > durable, "{set_seen} {deleted_seen} {durable}");
    world.journal.sync_now().unwrap();
    let durable = world.partition.observe_durable();
    assert!(set_seen <= durable && deleted_seen <= durable);
}
