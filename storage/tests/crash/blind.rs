//! Puts that do not know the row that they replace, with a kill at every step until they are
//! resolved.

use crate::image::Pick;
use crate::model::{Model, V};
use crate::world::{SHARDS, World, fresh, options};
use flagstone_storage::directory::OpenOptions;
use flagstone_storage::value::{Hash, Set, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;

const NOW: u64 = 1_800_000_000_000;

fn model() -> Model {
    let mut model = Model { now_ms: NOW, ..Model::default() };
    model.dbs.resize_with(2, Default::default);
    model
}

/// Picks one point of so many.
fn one_of(count: u32) -> Pick {
    let mut points = 0;
    Box::new(move |_| {
        points += 1;
        points % count == 0
    })
}

/// Sets a hash, some of whose fields expire; `big`: its fields are element rows.
fn set_hash(world: &mut World, key: &[u8], big: bool, expire_at_ms: u64) {
    let field = |n: u64| (format!("f{n}").into_bytes(), NOW + 5000 + n);
    world.run(|store| {
        let mut hash = Hash::new();
        for (name, at_ms) in (0..5).map(field) {
            hash.set(&name, b"value", at_ms);
        }
        if big {
            hash.make_table();
        }
        let mut entry = store.entry_mut(0, key)?;
        entry.value = Value::Hash(Box::new(hash));
        entry.expire_at_ms = expire_at_ms;
        Ok(())
    });
    let fields: BTreeMap<_, _> =
        (0..5).map(field).map(|(name, at_ms)| (name, (b"value".to_vec(), at_ms))).collect();
    world.model.dbs[0].insert(key.to_vec(), (Arc::new(V::Hash(fields)), expire_at_ms));
}

fn set_set(world: &mut World, key: &[u8]) {
    let members: Vec<Vec<u8>> = (0..300).map(|n: u32| n.to_string().into()).collect();
    world.run(|store| {
        let mut entry = store.entry_mut(0, key)?;
        let set = entry.typed_or_new::<Set>()?;
        members.iter().for_each(|member| _ = set.add(member));
        Ok(())
    });
    world.model.dbs[0].insert(key.to_vec(), (Arc::new(V::Set(members.into_iter().collect())), 0));
}

/// Keys of several types, with and without expiries.
const KEYS: [&[u8]; 9] =
    [b"plain", b"{t}timed", b"long", b"hash", b"{t}table", b"set", b"due", b"gone", b"new"];

/// Sets all of them but the last two, gives everything to the engines, and takes it out of memory.
fn fill(world: &mut World) {
    world.set(0, b"plain", b"old", 0);
    world.set(0, b"{t}timed", b"old", NOW + 9000);
    world.set(0, b"long", &[7; 50_000], NOW + 9000);
    set_hash(world, b"hash", false, 0);
    set_hash(world, b"{t}table", true, NOW + 7000);
    set_set(world, b"set");
    world.set(0, b"due", b"old", NOW + 10);
    world.set(0, b"gone", b"old", 0);
    world.set(1, b"plain", b"other", 0);
    world.settle();
    world.run(|store| store.remove(0, b"gone"));
    world.model.dbs[0].remove(&b"gone"[..]);
    world.settle();
    world.evict();
}

/// Replaces all keys, some with the expiry that they had.
fn replace(world: &mut World, mark: u8) {
    for (n, key) in KEYS.iter().enumerate() {
        let expiry = [0, NOW + 9000, NOW + 8000][n % 3];
        world.set(0, key, &[mark, n as u8], expiry);
    }
    world.commit();
}

fn remove(world: &mut World, key: &[u8]) {
    assert!(world.run(|store| store.remove(0, key)));
    world.model.dbs[0].remove(key);
}

fn expire_at(world: &mut World, key: &[u8], at_ms: u64) {
    world.run(|store| {
        store.entry_mut(0, key)?.expire_at_ms = at_ms;
        Ok(())
    });
    world.model.dbs[0].get_mut(key).unwrap().1 = at_ms;
}

/// Hands everything over in small batches, each flushed.
fn hand_over_in_steps(world: &mut World) {
    for shard in 0..SHARDS {
        world.hand_over(shard, Some(3));
        world.flush(shard);
        world.sweep(shard);
        world.flush(shard);
    }
}

/// Opens each image that was taken and compares it: at once, when all is handed over, and after a
/// second kill in the middle of that.
fn verify_images(world: World, root: &TempDir, number: &mut u32) {
    let images = world.probe.images();
    drop(world);
    assert!(!images.is_empty());
    println!("{} points", images.len());
    for (n, image) in images.iter().enumerate() {
        let dir = fresh(root.path(), number);
        let mut copy = World::reopen(image, &dir, one_of(if n % 6 == 0 { 67 } else { u32::MAX }));
        if n % 2 == 0 {
            copy.verify(&image.at);
        }
        if n % 6 == 0 {
            hand_over_in_steps(&mut copy);
            for second in copy.probe.images() {
                let dir = fresh(root.path(), number);
                let mut again = World::reopen(&second, &dir, Box::new(|_| false));
                again.verify(&format!("{}, then {}", image.at, second.at));
                drop(again);
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
        copy.settle();
        copy.verify(&image.at);
        copy.verify_no_garbage(&image.at);
        drop(copy);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// Runs a history between `fill` and the hand-over, with a kill at every step from there on.
fn every_step(history: impl Fn(&mut World)) {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), Box::new(|_| false));
    fill(&mut world);
    let image = world.probe.now("filled");
    drop(world);
    let mut world = World::reopen(&image, &fresh(root.path(), &mut number), one_of(23));
    history(&mut world);
    hand_over_in_steps(&mut world);
    world.verify("at the end");
    world.verify_no_garbage("at the end");
    verify_images(world, &root, &mut number);
}

#[test]
fn old_rows_are_found_in_time() {
    every_step(|world| {
        replace(world, 1);
        assert!(world.partition.unresolved() >= 6, "{}", world.partition.unresolved());
    });
}

/// "due" has expired, and was not removed, when it is replaced.
#[test]
fn an_expired_key_is_replaced_like_another() {
    every_step(|world| {
        world.model.now_ms += 100;
        replace(world, 1);
        world.expire();
    });
}

#[test]
fn replaced_values_do_not_come_back() {
    every_step(|world| {
        replace(world, 1);
        KEYS.iter().for_each(|key| remove(world, key));
        world.commit();
        // In one round, one is replaced twice.
        world.evict();
        world.set(1, b"plain", b"new", 0);
        world.run(|store| store.remove(1, b"plain"));
        world.model.dbs[1].clear();
        world.commit();
    });
}

#[test]
fn a_round_that_replaces_and_removes_leaves_nothing() {
    every_step(|world| {
        for key in KEYS {
            world.set(0, key, b"new", NOW + 9000);
            remove(world, key);
        }
        world.commit();
    });
}

#[test]
fn the_expiry_index_has_the_new_times_only() {
    every_step(|world| {
        // As before.
        world.set(0, b"{t}timed", b"new", NOW + 9000);
        // As before, then another time and none.
        for key in [&b"long"[..], b"{t}table"] {
            world.set(0, key, b"new", 0);
            world.commit();
            expire_at(world, key, if key == b"long" { NOW + 9000 } else { NOW + 7000 });
            world.commit();
            for shard in 0..SHARDS {
                if key == b"long" {
                    world.resolve(shard, true);
                }
            }
            expire_at(world, key, 0);
            world.commit();
        }
    });
}

#[test]
fn a_key_is_replaced_again_before_and_after_a_cut() {
    every_step(|world| {
        replace(world, 1);
        world.evict();
        replace(world, 2);
        for shard in 0..SHARDS {
            world.partition.cut(shard);
        }
        world.evict();
        replace(world, 3);
        hand_over_in_steps(world);
        world.evict();
        replace(world, 4);
    });
}

#[test]
fn a_database_is_emptied_behind_replaced_rows() {
    every_step(|world| {
        replace(world, 1);
        world.flush_db(0);
        world.set(0, b"plain", b"again", 0);
        world.swap_db(0, 1);
        world.commit();
    });
}

#[test]
fn no_cut_is_handed_over_before_its_operations_are_resolved() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), one_of(31));
    fill(&mut world);
    replace(&mut world, 1);
    for shard in 0..SHARDS {
        assert!(world.begin_pass(shard, true));
        world.partition.cut(shard);
        assert!(world.partition.take_cut(shard).is_none(), "a pass is under way");
        world.end_pass(shard, false);
        assert!(world.partition.take_cut(shard).is_none(), "the pass has failed");
        assert!(world.begin_pass(shard, false), "the cut waits for it");
        assert!(!world.begin_pass(shard, true), "one at a time");
    }
    world.evict();
    replace(&mut world, 2);
    for shard in 0..SHARDS {
        world.end_pass(shard, true);
        world.hand_over(shard, Some(3));
    }
    world.verify("after both");
    verify_images(world, &root, &mut number);
}

/// Commands that count keys wait, and no put is blind meanwhile; beyond a bound none is either.
#[test]
fn counters_are_exact_when_a_client_asks() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::open(&fresh(root.path(), &mut 0), model(), Box::new(|_| false));
    fill(&mut world);
    let counting = world.partition.begin_counting();
    replace(&mut world, 1);
    assert_eq!(world.partition.unresolved(), 0);
    drop(counting);
    world.settle();
    world.evict();
    world.commit();
    replace(&mut world, 2);
    assert!(world.partition.unresolved() > 0);
    world.verify("those that were unresolved");
}

/// A start with little memory gives rows to the engines before it has read all of the journal, also
/// in the middle of a record.
#[test]
fn a_start_with_little_memory_resolves_the_rows_that_it_hands_over() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), Box::new(|_| false));
    let name = |n: u32| format!("key{n}").into_bytes();
    for n in 0..300 {
        world.set(0, &name(n), &[1; 100], u64::from(n % 2) * (NOW + 9000));
    }
    fill(&mut world);
    // One record of many parts, then small ones that replace some again.
    for n in 0..300 {
        world.set(0, &name(n), &[2; 400], u64::from(n % 3) * (NOW + 4000));
    }
    world.commit();
    assert!(world.partition.unresolved() > 250);
    world.evict();
    for n in 100..200 {
        world.set(0, &name(n), &[3; 400], 0);
        world.commit();
    }
    replace(&mut world, 3);
    let mut image = world.probe.now("killed");
    drop(world);
    for (replay_bytes, part) in
        [(4000, Some(3)), (20_000, None), (60_000, Some(50)), (4 << 20, None)]
    {
        let dir = fresh(root.path(), &mut number);
        image.unpack(&dir);
        let options = OpenOptions { replay_bytes, ..options(&dir, 2) };
        let mut again = World::open_with(options, image.model.clone());
        if let Some(rows) = part {
            // The engines have some of the later rows, too.
            for shard in 0..SHARDS {
                again.partition.cut(shard);
                again.resolve(shard, false);
                let cut = again.partition.take_cut(shard).unwrap();
                again.write_some(shard, &cut, rows);
            }
        }
        (0..SHARDS).for_each(|shard| again.flush(shard));
        again.verify(&format!("{replay_bytes} bytes at a time"));
        image = again.probe.now(&format!("killed after {replay_bytes} bytes at a time"));
        drop(again);
    }
    let mut last = World::reopen(&image, &fresh(root.path(), &mut number), Box::new(|_| false));
    last.verify(&image.at);
    last.settle();
    last.verify("all is handed over");
    last.verify_no_garbage("all is handed over");
}

/// The engine loses the rows that it was given, also rows that later operations have replaced
/// blindly.
#[test]
fn an_engine_that_is_opened_again_resolves_its_rows() {
    for (part, is_flushed) in [(None, false), (Some((3, 2)), true), (Some((2, 6)), false)] {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        let mut world = World::open(&fresh(root.path(), &mut number), model(), Box::new(|_| false));
        fill(&mut world);
        for mark in 1..4 {
            replace(&mut world, mark);
            (0..SHARDS).for_each(|shard| world.hand_over(shard, None));
            world.evict();
        }
        replace(&mut world, 4);
        (0..SHARDS).for_each(|shard| world.break_engine(shard, part, is_flushed));
        world.open_again();
        world.evict();
        let at = format!("{part:?}, {is_flushed}");
        world.verify(&at);
        let image = world.probe.now(&at);
        world.settle();
        world.verify_no_garbage(&at);
        drop(world);
        let mut again =
            World::reopen(&image, &fresh(root.path(), &mut number), Box::new(|_| false));
        again.settle();
        again.verify(&at);
        again.verify_no_garbage(&at);
    }
}
