use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn appended_records_are_replayed() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    assert_eq!((journal.end(), journal.durable(), journal.oldest()), (0, 0, 1));
    assert_eq!(journal.append(1000, &[3], &[b"one"]).unwrap(), 1);
    assert_eq!(journal.append(1001, &[0, 9], &[b"t", b"", b"wo"]).unwrap(), 2);
    assert_eq!(journal.append(999, &[], &[]).unwrap(), 3);
    assert_eq!((journal.end(), journal.durable()), (3, 0));
    assert_eq!(journal.sync_now().unwrap(), 3);
    assert_eq!(journal.durable(), 3);
    drop(journal);

    let recovery = recover(&disk).unwrap();
    let record = |lsn, time_ms, shards: &[u16], body: &'static [u8]| Record {
        lsn,
        epoch: 1,
        time_ms,
        shards: shards.to_vec(),
        body: bytes::Bytes::from_static(body),
    };
    let expected =
        [record(1, 1000, &[3], b"one"), record(2, 1001, &[0, 9], b"two"), record(3, 999, &[], b"")];
    assert_eq!(replayed(&recovery, 0), expected);
    assert_eq!(replayed(&recovery, 3), expected[2..]);
    assert_eq!(replayed(&recovery, 4), []);
    assert_eq!((recovery.end(), recovery.max_epoch(), recovery.max_time_ms()), (3, 1, 1001));
}

#[test]
fn commits_larger_than_a_segment_go_in_parts() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    let mut rng = Rng::new(1);
    let mut expected = Vec::new();
    for length in [1023, 1024, 1025, 3000, 50_000, 5, 4096, 20_000] {
        let body = rng.bytes(length);
        let (front, back) = body.split_at(length / 3);
        let lsn = journal.append(0, &[1, 2], &[front, back]).unwrap();
        expected.push((lsn, body));
    }
    drop(journal);
    let recovery = recover(&disk).unwrap();
    assert_eq!(bodies(&recovery), expected);
    assert_eq!(replayed(&recovery, 5)[0].lsn, 5);
    let journal = recovery.start(0, 0).unwrap();
    journal.close().unwrap();
    assert_eq!(bodies(&recover(&disk).unwrap()), expected);
}

#[test]
fn many_slices_are_written_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    let journal = LocalJournal::recover(&path, options.clone()).unwrap().start(0, 0).unwrap();
    let mut rng = Rng::new(2);
    let mut expected = Vec::new();
    for round in 0..20 {
        let body = rng.bytes(1 + round * 9001);
        let slices: Vec<&[u8]> = body.chunks(7).collect();
        let lsn = journal.append(0, &[0], &slices).unwrap();
        expected.push((lsn, body));
    }
    eventually("durable", || journal.durable() == 20);
    journal.flushed(0, 15);
    journal.close().unwrap();
    drop(journal);
    let recovery = LocalJournal::recover(&path, options).unwrap();
    let found = bodies(&recovery);
    assert!(found.len() >= 5);
    assert_eq!(found, expected[20 - found.len()..]);
}

#[test]
fn each_start_opens_a_greater_epoch() {
    let disk = Arc::new(SimDisk::default());
    for round in 1..=4 {
        let recovery = recover(&disk).unwrap();
        assert_eq!((recovery.end(), recovery.max_epoch()), (round - 1, round - 1));
        let journal = recovery.start(0, 0).unwrap();
        assert_eq!(journal.append(round, &[0], &[b"x"]).unwrap(), round);
    }
    let epochs = replayed(&recover(&disk).unwrap(), 0).iter().map(|r| r.epoch).collect::<Vec<_>>();
    assert_eq!(epochs, [1, 2, 3, 4]);

    // The caller knows of a greater epoch and a greater lsn from a shard.
    let journal = recover(&disk).unwrap().start(100, 1000).unwrap();
    assert_eq!((journal.end(), journal.durable()), (999, 999));
    assert_eq!(journal.append(0, &[0], &[b"y"]).unwrap(), 1000);
    drop(journal);
    let recovery = recover(&disk).unwrap();
    assert_eq!((recovery.end(), recovery.max_epoch()), (1000, 100));
    let lsns: Vec<Lsn> = replayed(&recovery, 0).iter().map(|r| r.lsn).collect();
    assert_eq!(lsns, [1, 2, 3, 4, 1000]);
    let journal = recovery.start(0, 0).unwrap();
    assert_eq!(journal.append(0, &[0], &[b"z"]).unwrap(), 1001);
    assert_eq!(journal.close().unwrap(), 1001);
    assert!(matches!(journal.append(0, &[0], &[]), Err(JournalError::Closed)));
    assert_eq!(recover(&disk).unwrap().durable(), 1001);
}

#[test]
fn segments_are_recycled_and_floors_kept() {
    let disk = Arc::new(SimDisk::default());
    let mut rng = Rng::new(3);
    let mut expected = Vec::new();
    let journal = start(&disk, SyncMode::No);
    // Shard 7 writes once and is flushed; shard 1 always lags by ten.
    journal.append(0, &[7, 1], &[b"first"]).unwrap();
    for _ in 0..500 {
        let length = rng.below(600) as usize;
        let body = rng.bytes(length);
        let lsn = journal.append(0, &[1], &[&body]).unwrap();
        expected.push((lsn, body));
        journal.sync_now().unwrap();
        journal.flushed(1, lsn.saturating_sub(10));
        if lsn == 100 {
            assert_eq!(journal.oldest(), 1);
            assert_eq!(journal.stats().holders, [7]);
            journal.flushed(7, 1);
        }
    }
    eventually("recycling", || journal.stats().segments <= 4);
    let stats = journal.stats();
    let most = *Options::SPARES.end();
    assert!(stats.spares <= most && stats.segments <= 4, "{stats:?}");
    assert_eq!(stats.backlog.iter().map(|b| b.0).collect::<Vec<_>>(), [1]);
    // The upkeep thread has ended.
    journal.close().unwrap();
    let oldest = journal.oldest();
    drop(journal);
    assert!(disk.files().len() <= 4 + most + 1, "{:?}", disk.files()); // and the floor

    let recovery = recover(&disk).unwrap();
    let found = bodies(&recovery);
    assert!(found.len() >= 10 && found.len() < 60);
    assert_eq!(found, expected[expected.len() - found.len()..]);
    assert_eq!(found[0].0, oldest);
    assert_eq!((recovery.floor(7), recovery.floor(2)), (1, 0));
    assert!(recovery.floor(1) < oldest && recovery.floor(1) + 2 >= oldest);
    let recovery = Recovered::Local(Box::new(recovery));
    assert!(recovery.check_shard(1, recovery.floor(1)).is_ok());
    let older = recovery.check_shard(7, 0);
    assert!(matches!(older, Err(JournalError::OlderShard { shard: 7, applied: 0, floor: 1 })));
}

#[test]
fn as_many_segments_are_spared_as_were_dropped_at_once() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    let write = |segments: u64| {
        for _ in 0..3 * segments {
            journal.append(0, &[0], &[&[1; 900]]).unwrap();
        }
        journal.sync_now().unwrap();
        journal.flushed(0, journal.end());
        eventually("recycling", || journal.stats().segments == 1);
    };
    write(6);
    eventually("spares", || journal.stats().spares == 5);
    // The next round uses them: no further ones are prepared.
    let files = disk.files().len();
    write(4);
    assert!(disk.files().len() <= files);
    write(30);
    eventually("no more than the bound", || journal.stats().spares == *Options::SPARES.end());
    // Segments that are not needed any more are deleted.
    write(1);
    write(1);
    eventually("few", || journal.stats().spares == *Options::SPARES.start());
    journal.close().unwrap();
    assert_eq!(disk.files().len(), 1 + 2 + 1, "{:?}", disk.files()); // in use, spares, floor
}

#[test]
fn a_page_is_written_as_a_whole_when_it_is_begun() {
    const SEGMENT: usize = 16 << 10;
    let disk = Arc::new(SimDisk::default());
    let options = Options { segment_bytes: SEGMENT as u64, ..options(&disk, SyncMode::No) };
    let journal = LocalJournal::recover(dir(), options.clone()).unwrap().start(0, 0).unwrap();
    eventually("a spare", || journal.stats().spares >= 1);
    let segments = disk.files().into_iter().filter(|path| disk.read(path).len() == SEGMENT);
    let spare = segments.max().unwrap();
    disk.edit(&spare, |bytes| bytes.fill(0xff));
    let body = |lsn: Lsn| vec![lsn as u8; 3000];
    // Five fit into a segment: two are in the spare, the second one ends in its second page.
    for lsn in 1..=7 {
        journal.append(0, &[0], &[&body(lsn)]).unwrap();
    }
    let bytes = disk.read(&spare);
    assert!(bytes[8000..8192].iter().all(|byte| *byte == 0));
    assert!(bytes[8192..].iter().all(|byte| *byte == 0xff));
    drop(journal);
    let found = bodies(&LocalJournal::recover(dir(), options).unwrap());
    assert_eq!(found, (1..=7).map(|lsn| (lsn, body(lsn))).collect::<Vec<_>>());
}

#[test]
fn a_prepared_segment_is_used_by_the_next_start() {
    let disk = Arc::new(SimDisk::default());
    for round in 0..10 {
        let journal = start(&disk, SyncMode::No);
        eventually("spares", || journal.stats().spares == 1);
        journal.append(0, &[0], &[b"x"]).unwrap();
        journal.close().unwrap();
        assert_eq!(disk.files().len(), round + 1 + 1 + 1); // begun, spare, floor
    }
    // Another segment size: the old segments stay readable, the spares are replaced.
    let options = Options { segment_bytes: 8192, ..options(&disk, SyncMode::No) };
    let journal = LocalJournal::recover(dir(), options.clone()).unwrap().start(0, 0).unwrap();
    journal.append(0, &[0], &[&[1; 2000]]).unwrap();
    journal.sync_now().unwrap();
    journal.flushed(0, 11);
    eventually("recycling", || journal.oldest() == 11);
    drop(journal);
    assert_eq!(bodies(&LocalJournal::recover(dir(), options).unwrap()), [(11, vec![1; 2000])]);
}

#[test]
fn committers_on_many_threads_share_syncs() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::Always);
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    journal.subscribe(Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    std::thread::scope(|scope| {
        for thread in 0..4_u16 {
            let journal = &journal;
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let body = [&thread.to_le_bytes()[..], &round.to_le_bytes()].concat();
                    let lsn = journal.append(round, &[thread], &[&body]).unwrap();
                    if round % 10 == 9 {
                        assert!(journal.sync_now().unwrap() >= lsn);
                    }
                }
            });
        }
    });
    eventually("durable", || journal.durable() == 200);
    assert!(told.load(Ordering::SeqCst) > 0);
    let stats = journal.stats();
    assert_eq!(stats.appends, 200);
    assert!(stats.syncs <= 200, "{stats:?}");
    drop(journal);
    let records = replayed(&recover(&disk).unwrap(), 0);
    assert_eq!(records.iter().map(|r| r.lsn).collect::<Vec<_>>(), (1..=200).collect::<Vec<_>>());
    for thread in 0..4 {
        let times = records.iter().filter(|r| r.shards == [thread]).map(|r| r.time_ms);
        assert!(times.eq(0..50), "the order of a thread's commits");
    }
}

#[test]
fn modes_decide_when_to_sync() {
    let disk = Arc::new(SimDisk::default());
    let bound = Duration::from_millis(40);
    let options = Options { everysec_bound: bound, ..options(&disk, SyncMode::No) };
    let journal = LocalJournal::recover(dir(), options).unwrap().start(0, 0).unwrap();
    let first = journal.append(0, &[0], &[b"1"]).unwrap();
    std::thread::sleep(bound * 3);
    assert_eq!(journal.durable(), 0, "nobody asked");
    journal.request_sync(first);
    eventually("the sync asked for", || journal.durable() == 1);

    journal.append(0, &[0], &[b"2"]).unwrap();
    journal.set_mode(SyncMode::Always);
    eventually("what was there when the mode changed", || journal.durable() == 2);
    journal.append(0, &[0], &[b"3"]).unwrap();
    eventually("always", || journal.durable() == 3);

    journal.set_mode(SyncMode::EverySec);
    let start = Instant::now();
    journal.append(0, &[0], &[b"4"]).unwrap();
    eventually("every second", || journal.durable() == 4);
    assert!(start.elapsed() >= bound);
    let start = Instant::now();
    let last = journal.append(0, &[0], &[b"5"]).unwrap();
    journal.request_sync(last + 1000); // beyond the end: asks for the end
    eventually("at once when asked", || journal.durable() == 5);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_sync_inline_is_not_done_twice() {
    let disk = Arc::new(SimDisk::default());
    let options = Options { inline_sync: true, ..options(&disk, SyncMode::Always) };
    let journal = LocalJournal::recover(dir(), options).unwrap().start(0, 0).unwrap();
    for round in 1..=100 {
        journal.append(0, &[0], &[b"x"]).unwrap();
        assert_eq!(journal.sync_now().unwrap(), round);
        assert_eq!(journal.sync_now().unwrap(), round, "covered: no second sync");
    }
    assert_eq!(journal.stats().syncs, 100);
}

/// An append must cost far less than a command; the bound is loose for debug builds on busy
/// machines.
#[test]
fn appending_is_cheap() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 16 << 20, mode: SyncMode::No, ..Options::default() };
    let journal = LocalJournal::recover(dir.path(), options).unwrap().start(0, 0).unwrap();
    let body = [7; 200];
    let start = Instant::now();
    for time in 0..10_000 {
        journal.append(time, &[3], &[&body]).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed() / 10_000);
}
