//! Rules for opening a store.

use super::*;
use crate::checkpoint::offline_options;
use crate::clock::ManualTime;
use crate::encoding::{prefix_range, row};
use crate::materialise::hand_over;
use crate::need::Need;
use crate::value::{Str, Value};
use bytes::Bytes;
use object_store::memory::InMemory;
use std::time::Duration;

const NOW: u64 = 1_800_000_000_000;

#[tokio::test]
async fn a_journal_of_others_does_not_take_a_bucket_from_its_server() {
    let root = tempfile::tempdir().unwrap();
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    let at = |journal: &str| Location {
        store: store.clone(),
        journal: Some(Place::local(root.path().join(journal)).unwrap()),
    };
    let open = async |location: Location| {
        let mut options = offline_options(&location).await?;
        options.databases = 1;
        Directory::open(options, Clock::default()).await
    };
    let opened = open(at("ours")).await.unwrap();
    let (journal, engine) = (opened.journal.clone(), opened.engines().remove(0));
    let (mut partitions, locks) = opened.into_partitions(1, 1);
    let mut partition = partitions.remove(0);
    partition.store.begin(NOW, true);
    partition.store.entry_mut(0, b"key").unwrap().value = Value::Str(Str::new(b"value"));
    partition.commit(NOW).unwrap();
    partition.cut(0);
    let cut = partition.take_cut(0).unwrap();
    hand_over(engine.clone(), journal.clone(), cut, Default::default()).await.unwrap();
    engine.flush().await.unwrap();

    for other in ["empty", "empty"] {
        let refused = open(at(other)).await.err().map(|error| format!("{error:#}"));
        let refused = refused.expect("it is not this store's journal");
        assert!(refused.contains("but the journal ends at 0"), "{refused}");
    }
    // The engine still belongs to the server: it writes, and stops as if nothing had happened.
    partition.store.begin(NOW, true);
    partition.store.entry_mut(0, b"key").unwrap().value = Value::Str(Str::new(b"later"));
    partition.commit(NOW).unwrap();
    partition.close().await.unwrap();
    journal.close().unwrap();
    drop(locks);
    open(at("ours")).await.unwrap().close().await.unwrap();
}

/// The former owner was killed, or is paused: it may answer until its lease has ended.
#[tokio::test]
async fn a_start_in_a_bucket_waits_until_the_lease_of_the_former_owner_has_ended() {
    /// Longer than a start takes.
    const LEASE: Duration = Duration::from_secs(1);
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    let location = Location { store, journal: None };
    let open = async || {
        let mut options = offline_options(&location).await.unwrap();
        (options.databases, options.lease) = (1, LEASE);
        Directory::open(options, Clock::default()).await.unwrap()
    };
    let former = open().await;
    let begun = std::time::Instant::now();
    let successor = open().await;
    assert!(begun.elapsed() >= LEASE);
    drop(former);
    successor.close().await.unwrap();
}

#[tokio::test]
async fn operations_to_replay_are_counted_until_they_are_flushed() {
    let root = tempfile::tempdir().unwrap();
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let open = async || {
        let mut options = offline_options(&location).await?;
        options.databases = 1;
        Directory::open(options, Clock::default()).await
    };
    let opened = open().await.unwrap();
    let (journal, engine) = (opened.journal.clone(), opened.engines().remove(0));
    let (mut partitions, locks) = opened.into_partitions(1, 1);
    let mut partition = partitions.remove(0);
    // A new directory begins with one record.
    let before = partition.unflushed_ops();
    for value in [&b"one"[..], b"two", b"three"] {
        partition.store.begin(NOW, true);
        partition.store.entry_mut(0, b"key").unwrap().value = Value::Str(Str::new(value));
        partition.commit(NOW).unwrap();
    }
    // They have become one row.
    assert_eq!(partition.unflushed_ops(), before + 3);
    partition.cut(0);
    let cut = partition.take_cut(0).unwrap();
    let seq =
        hand_over(engine.clone(), journal.clone(), cut.clone(), Default::default()).await.unwrap();
    partition.shards.get_mut(&0).unwrap().handed_over(cut.lsn, seq);
    partition.observe_flushed();
    assert_eq!(partition.unflushed_ops(), before + 3);
    engine.flush().await.unwrap();
    partition.observe_flushed();
    assert_eq!(partition.unflushed_ops(), 0);
    partition.close().await.unwrap();
    journal.close().unwrap();
    drop(locks);
    open().await.unwrap().close().await.unwrap();
}

/// Records have a time that the system clock, set back since, has not reached again.
#[tokio::test]
async fn time_goes_on_from_the_greatest_in_the_journal() {
    use std::sync::atomic::Ordering;
    const DAY_MS: u64 = 86_400_000;
    let root = tempfile::tempdir().unwrap();
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let time = Arc::new(ManualTime::default());
    time.wall_us.store(NOW * 1000, Ordering::Relaxed);
    let open = async || {
        let clock = Clock::manual(time.clone());
        let mut options = offline_options(&location).await.unwrap();
        options.databases = 1;
        (Directory::open(options, clock.clone()).await.unwrap(), clock)
    };
    let (opened, clock) = open().await;
    assert!(clock.now_ms() < NOW + DAY_MS);
    opened.journal.append(NOW + DAY_MS, &[0], &[]).unwrap();
    opened.close().await.unwrap();
    let (opened, clock) = open().await;
    assert!(clock.now_ms() >= NOW + DAY_MS);
    opened.close().await.unwrap();
}

#[tokio::test]
async fn after_a_wrong_jump_of_the_clock_time_goes_on_over_restarts() {
    use std::sync::atomic::Ordering;
    const DAY_MS: u64 = 86_400_000;
    const SECOND_US: u64 = 1_000_000;
    let root = tempfile::tempdir().unwrap();
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let time = Arc::new(ManualTime::default());
    time.wall_us.store((NOW + DAY_MS) * 1000, Ordering::Relaxed);
    let mut before = NOW;
    for n in 0..4u64 {
        let clock = Clock::manual(time.clone());
        let mut options = offline_options(&location).await.unwrap();
        options.databases = 1;
        let opened = Directory::open(options, clock.clone()).await.unwrap();
        let engine = opened.engines().remove(0);
        let (journal, (mut partitions, locks)) =
            (opened.journal.clone(), opened.into_partitions(1, 1));
        let partition = partitions.remove(0);
        let begun = clock.now_ms();
        assert!(begun >= before, "start {n}");
        time.elapsed_us.fetch_add(100 * SECOND_US, Ordering::Relaxed);
        time.wall_us.fetch_add(100 * SECOND_US, Ordering::Relaxed);
        before = clock.now_ms();
        assert!(
            (begun + 99_000..=begun + 100_000).contains(&before),
            "start {n}: {begun} {before}"
        );
        journal.append(before, &[0], &[]).unwrap();
        // File names contain a time that is in no record; files of the next start sort behind them.
        time.elapsed_us.fetch_add(100 * SECOND_US, Ordering::Relaxed);
        time.wall_us.fetch_add(100 * SECOND_US, Ordering::Relaxed);
        engine.write(vec![(vec![0xff].into(), Some(Bytes::new()))]).await.unwrap();
        engine.flush().await.unwrap_or_else(|error| panic!("start {n}: {error:#}"));
        if n % 2 == 0 {
            partition.close().await.unwrap();
            journal.close().unwrap();
        }
        drop(locks);
        // The clock is corrected.
        time.wall_us.store((NOW + n) * 1000, Ordering::Relaxed);
    }
    assert!(before >= NOW + DAY_MS + 396_000);
}

#[tokio::test]
async fn a_start_keeps_no_more_rows_than_it_may() {
    const VALUES: u8 = 20;
    const MIB: usize = 1 << 20;
    let root = tempfile::tempdir().unwrap();
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let open = async |replay_bytes: usize| {
        let options = offline_options(&location).await.unwrap();
        let options = OpenOptions { databases: 1, replay_bytes, ..options };
        let opened = Directory::open(options, Clock::default()).await.unwrap();
        let (journal, engine) = (opened.journal.clone(), opened.engines().remove(0));
        let (mut partitions, locks) = opened.into_partitions(1, 1);
        (partitions.remove(0), engine, journal, locks)
    };
    let (mut partition, _, journal, locks) = open(MIB).await;
    partition.store.begin(NOW, true);
    for n in 0..VALUES {
        let mut entry = partition.store.entry_mut(0, &[n]).unwrap();
        entry.value = Value::Str(Str::new(&vec![n; MIB]));
    }
    // One commit of several parts; no engine gets any part.
    partition.commit(NOW).unwrap();
    assert!(partition.pending_bytes() > usize::from(VALUES) * MIB);
    journal.close().unwrap();
    drop((partition, locks));

    let (partition, _, journal, locks) = open(MIB).await;
    assert!(partition.pending_bytes() < MIB, "{} bytes", partition.pending_bytes());
    // No part of the journal is released.
    assert_eq!(partition.shards[&0].flushed(), 0);
    journal.close().unwrap();
    drop((partition, locks));

    let (partition, engine, journal, _locks) = open(usize::MAX).await;
    assert!(partition.pending_bytes() > usize::from(VALUES) * MIB);
    assert_eq!(partition.totals(0), (u64::from(VALUES), 0));
    partition.close().await.unwrap();
    journal.close().unwrap();
    drop((engine, _locks));
    let (partition, engine, ..) = open(MIB).await;
    assert_eq!((partition.pending_bytes(), partition.totals(0)), (0, (u64::from(VALUES), 0)));
    let rows = engine.scan(prefix_range(&[row::ELEMENT]), usize::MAX).await.unwrap();
    assert_eq!(rows.iter().map(|(_, chunk)| chunk.len()).sum::<usize>(), usize::from(VALUES) * MIB);
    let is_whole = |chunk: &[u8]| chunk.iter().all(|byte| *byte == chunk[0]);
    assert!(rows.iter().all(|(_, chunk)| is_whole(chunk)));
}

/// Returns a key of a shard.
fn key_of(layout: &Layout, shard: u16, mut n: u32) -> Vec<u8> {
    loop {
        let key = n.to_string().into_bytes();
        if layout.shard_of(crate::slot::slot_of(&key)) == shard {
            return key;
        }
        n += 1_000_003;
    }
}

/// A shard whose last record is far before the journal's end has nothing to replay after a clean stop.
#[tokio::test]
async fn after_a_clean_stop_nothing_is_replayed_and_after_a_kill_unflushed_records() {
    for idle in [0, 1] {
        let root = tempfile::tempdir().unwrap();
        let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
        let open = async || {
            let mut options = offline_options(&location).await.unwrap();
            options.databases = 1;
            options.default_shards = 2;
            Directory::open(options, Clock::default()).await.unwrap()
        };
        let first = open().await;
        assert_eq!(first.replayed, 0);
        let layout = first.layout.clone();
        let write = |partition: &mut Partition, shards: &[u16], records: u32| {
            for n in 0..records {
                for shard in shards {
                    partition.store.begin(NOW, true);
                    let key = key_of(&layout, *shard, n);
                    partition.store.entry_mut(0, &key).unwrap().value = Value::Str(Str::new(b"v"));
                    partition.commit(NOW).unwrap();
                }
            }
        };
        let mut opened = first;
        for round in 0..3 {
            let journal = opened.journal.clone();
            let (mut partitions, locks) = opened.into_partitions(1, 1);
            let mut partition = partitions.remove(0);
            if round == 0 {
                write(&mut partition, &[0, 1], 5);
                partition.cut(idle);
                let cut = partition.take_cut(idle).unwrap();
                let engine = partition.shards[&idle].engine().clone();
                let seq = hand_over(engine, journal.clone(), cut.clone(), Default::default())
                    .await
                    .unwrap();
                partition.shards.get_mut(&idle).unwrap().handed_over(cut.lsn, seq);
                write(&mut partition, &[1 - idle], 50);
            }
            partition.close().await.unwrap();
            journal.close().unwrap();
            drop(locks);
            opened = open().await;
            assert_eq!(opened.replayed, 0, "shard {idle} was idle, stop {round}");
        }
        let journal = opened.journal.clone();
        let (mut partitions, locks) = opened.into_partitions(1, 1);
        for _ in 0..7 {
            partitions[0].put_libraries(NOW, &[(&b"gone"[..], None)], Vec::new()).unwrap();
        }
        journal.sync_now().unwrap();
        drop((partitions, journal, locks));
        assert_eq!(open().await.replayed, 7);
    }
}

/// A row that was handed over is in the engine's memtable only: its older version in a file is not
/// read in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_handed_over_is_never_read_stale() {
    let root = tempfile::tempdir().unwrap();
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let mut options = offline_options(&location).await.unwrap();
    options.databases = 1;
    let opened = Directory::open(options, Clock::default()).await.unwrap();
    let (journal, engine) = (opened.journal.clone(), opened.engines().remove(0));
    let (mut partitions, _locks) = opened.into_partitions(1, 1);
    let mut partition = partitions.remove(0);
    // An entry that was used lately stays at first.
    let forget = |partition: &mut Partition| {
        let durable = partition.durable();
        (0..4).for_each(|_| partition.store.evict(0, durable, 1 << 20, |_, _| false));
    };
    let need = || Need { db: 0, key: b"key"[..].into(), part: None };
    let mut in_place = 0;
    for n in 0..40_u8 {
        partition.store.begin(NOW, true);
        if partition.store.peek(0, b"key").is_err() {
            partition.load_in_place(vec![need()]).unwrap();
        }
        partition.store.entry_mut(0, b"key").unwrap().value = Value::Str(Str::new(&[n]));
        partition.commit(NOW).unwrap();
        journal.sync_now().unwrap();
        partition.observe_durable();
        for step in ["pending", "handed over", "flushed"] {
            if step == "handed over" {
                partition.cut(0);
                let cut = partition.take_cut(0).unwrap();
                let (lsn, engine) = (cut.lsn, engine.clone());
                let seq =
                    hand_over(engine, journal.clone(), cut, Default::default()).await.unwrap();
                partition.shards.get_mut(&0).unwrap().handed_over(lsn, seq);
            } else if step == "flushed" {
                engine.flush().await.unwrap();
                partition.observe_flushed();
            }
            forget(&mut partition);
            assert!(partition.store.peek(0, b"key").is_err(), "it is not in memory");
            let loaded = partition.load_in_place(vec![need()]);
            assert!(step != "pending" || loaded.is_ok());
            assert!(step != "handed over" || loaded.is_err(), "no file has it yet");
            in_place += u32::from(step == "flushed" && loaded.is_ok());
            if loaded.is_err() {
                let plan = partition.plan_load(vec![need()]).unwrap();
                let loaded = plan.run(&tokio::runtime::Handle::current()).await;
                partition.finish_load(loaded).unwrap();
            }
            let entry = partition.store.peek(0, b"key").unwrap().unwrap();
            let Value::Str(text) = &entry.value else { panic!("{:?}", entry.value) };
            assert_eq!(*text.whole().unwrap(), [n], "{step}");
        }
        // In half of the rounds the view has time to follow.
        tokio::time::sleep(Duration::from_millis(u64::from(n % 2) * 20)).await;
        forget(&mut partition);
        in_place += u32::from(partition.load_in_place(vec![need()]).is_ok());
        forget(&mut partition);
        let plan = partition.plan_load(vec![need()]).unwrap();
        let loaded = plan.run(&tokio::runtime::Handle::current()).await;
        partition.finish_load(loaded).unwrap();
        let entry = partition.store.peek(0, b"key").unwrap().unwrap();
        let Value::Str(text) = &entry.value else { panic!("{:?}", entry.value) };
        assert_eq!(*text.whole().unwrap(), [n]);
    }
    assert!(in_place > 10, "{in_place} reads were made in place");
    assert!(partition.point_reads().cached >= u64::from(in_place));
    partition.close().await.unwrap();
}
