//! Rows on their way to the engine: commits that come late, maps that overtake, flushes that fail.

use super::*;

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
    let seq = world
        .block_on(hand_over(engine.clone(), journal.clone(), old.clone(), Default::default()))
        .unwrap();
    world.partition.shards.get_mut(&shard).unwrap().handed_over(old.lsn, seq);
    world.set(0, b"k", b"new", 0);
    world.commit();
    world.hand_over(shard, None);
    assert!(world.block_on(hand_over(engine, journal, old, Default::default())).is_err());
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
fn rows_that_come_and_go_between_two_hand_overs_are_never_written() {
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
            let handed = hand_over(engine, world.journal.clone(), cut.clone(), Default::default());
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
fn rows_of_an_unfinished_hand_over_can_be_deleted() {
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
