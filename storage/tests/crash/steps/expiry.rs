//! Passes over the index of expiry times.

use super::*;

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
fn late_rows_of_the_expiry_index_are_found_by_the_next_pass() {
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

/// Returns the keys of all shards that expire first, and how often the index was read.
fn first_to_expire(world: &mut World, count: usize) -> (Vec<FirstToExpire>, usize) {
    let (mut found, mut reads) = (Vec::new(), 0);
    for shard in 0..SHARDS {
        let known = loop {
            let (known, is_all) = world.partition.first_to_expire(shard, count);
            if is_all {
                break known;
            }
            reads += 1;
            let (plan, reaches) = world.partition.plan_first_times(shard).unwrap();
            let (rows, rest) = world.block_on(plan.run()).unwrap();
            world.partition.end_first_times(shard, Some((rows, rest.or(reaches))));
        };
        found.extend(known);
    }
    found.sort_unstable();
    found.truncate(count);
    (found, reads)
}

#[test]
fn keys_are_evicted_in_the_order_of_their_expiry_without_reading_deleted_rows_again() {
    for seed in 0..4 {
        let root = tempfile::tempdir().unwrap();
        let mut world = world(&fresh(root.path(), &mut 0), no_images());
        let mut draw = StdRng::seed_from_u64(seed);
        let _exact = world.partition.begin_counting();
        let (mut reads, mut evicted) = (0, 0);
        for round in 0..60 {
            for _ in 0..80 {
                let key = format!("k{}", draw.random_range(0..4000));
                let expire_at_ms = NOW + draw.random_range(1..100_000);
                world.set(round % 2, key.as_bytes(), b"v", expire_at_ms);
            }
            world.commit();
            match round % 8 {
                3 => (0..SHARDS).for_each(|shard| world.hand_over(shard, None)),
                5 => world.evict(),
                _ if round == 41 => world.flush_db(1),
                _ => {}
            }
            let mut left = if round < 10 { 0 } else { 70 };
            while left > 0 {
                let (rows, read) = first_to_expire(&mut world, left);
                (reads, left) = (reads + read, left - rows.len());
                for row in &rows {
                    let all = world.model.dbs.iter().flat_map(BTreeMap::values);
                    let first = all.map(|(_, at_ms)| *at_ms).min().unwrap();
                    world.run(|store| store.peek(row.db, &row.key).map(|_| ()));
                    let store = &mut world.partition.store;
                    if store.evict_key(row.db, &row.key, Evictable::At(row.at_ms)).is_some() {
                        assert_eq!(row.at_ms, first, "seed {seed}, round {round}");
                        world.model.dbs[row.db as usize].remove(&*row.key);
                        evicted += 1;
                    } else {
                        world.partition.forget_first(row);
                        left += 1;
                    }
                }
                world.commit();
            }
        }
        assert_eq!(evicted, 50 * 70);
        // One read finds the beginning of each index, some go on behind it.
        assert!(reads < 40, "{reads} reads");
        world.verify("evicted");
    }
}
