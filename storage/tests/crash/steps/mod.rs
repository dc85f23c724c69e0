//! Histories that lead to one point where a kill, a stop or a fault may do harm.

mod expiry;
mod handover;
mod shard_numbers;

use crate::image::{Pick, Probe};
use crate::model::{Model, V};
use crate::world::{SHARDS, World, fresh, options};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Directory, OpenOptions, is_open, reshard};
use flagstone_storage::encoding::{Function, Library, OpWriter, Row, RowKey, prefix_range, row};
use flagstone_storage::engine::Engine;
use flagstone_storage::journal::RealDisk;
use flagstone_storage::materialise::{each_hand_over_batch, hand_over, sweep};
use flagstone_storage::place::Place;
use flagstone_storage::scan::{Cursor, DueCursor};
use flagstone_storage::slot::{KeyHash, slot_of};
use flagstone_storage::store::{Evictable, OrLoad};
use flagstone_storage::times::FirstToExpire;
use flagstone_storage::value::{Hash, Str, Value};
use object_store::memory::InMemory;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
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
fn a_filter_of_keys_made_anew_has_the_keys_that_were_pending() {
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
    assert!(world.partition.put_libraries(NOW, &changes, Vec::new()).is_err());
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
        // The number of rewrites goes on from that in the row on disk.
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
fn a_value_that_a_failed_round_uncovers_may_not_be_durable() {
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
fn an_eviction_that_is_not_stored_does_not_count() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = world(&fresh(root.path(), &mut number), no_images());
    world.set(0, b"first", b"1", 0);
    world.set(0, b"second", b"2", 0);
    world.commit();
    let partition = &mut world.partition;
    partition.store.begin(NOW, false);
    assert!(partition.store.evict_key(0, b"first", Evictable::Any).is_some());
    assert_eq!(partition.store.stats.evicted, 0);
    partition.commit(NOW).unwrap();
    assert_eq!(partition.store.stats.evicted, 1);
    assert!(partition.store.evict_key(0, b"second", Evictable::Any).is_some());
    world.journal.close().unwrap();
    assert_eq!(world.partition.commit(NOW).unwrap_err().evictions, 1);
    assert_eq!(world.partition.store.stats.evicted, 1);
    assert_eq!(world.get(0, b"second").unwrap().0, V::Str(b"2".to_vec()));
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
fn an_entry_loaded_after_a_roll_back_shows_all_that_it_has_shown_before() {
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
