use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn a_full_disk_refuses_and_recovers() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    let before = journal.append(0, &[0], &[b"before"]).unwrap();
    disk.set_capacity(Some(disk.used() + 5000));
    // Too large for the remaining space: nothing of it is written, and its segments are released.
    let refused = journal.append(0, &[0], &[&[1; 30_000]]);
    assert!(matches!(refused, Err(JournalError::NoSpace { .. })), "{refused:?}");
    assert_eq!(journal.end(), before);
    eventually("space given back", || journal.stats().spares == 2);
    // The reserve can still be used.
    let mut expected = vec![(before, b"before".to_vec())];
    expected.push((journal.append(0, &[0], &[&[2; 5000]]).unwrap(), vec![2; 5000]));
    disk.set_capacity(None);
    expected.push((journal.append(0, &[0], &[&[3; 30_000]]).unwrap(), vec![3; 30_000]));
    assert_eq!(journal.failed(), None);
    drop(journal);
    assert_eq!(bodies(&recover(&disk).unwrap()), expected);
}

#[test]
fn a_journal_begins_with_a_smaller_segment_where_there_is_no_room_for_a_whole_one() {
    let disk = Arc::new(SimDisk::default());
    let whole = || Options { segment_bytes: 4 << 20, ..options(&disk, SyncMode::No) };
    // Without prepared segments.
    let begin = |room: usize| {
        let is_spare = |path: &PathBuf| {
            path.extension().is_some_and(|it| it == "seg")
                && disk.read(path).iter().all(|b| *b == 0)
        };
        disk.files().into_iter().filter(is_spare).for_each(|path| disk.delete(&path));
        disk.set_capacity(Some(disk.used() + room));
        LocalJournal::recover(dir(), whole()).unwrap().start(0, 0)
    };
    let mut expected = Vec::new();
    for (n, room) in [100 << 20, 3 << 20, 1_200_000, 100 << 20].into_iter().enumerate() {
        let journal = begin(room).unwrap();
        for _ in 0..200 {
            let body = vec![n as u8; 50_000];
            match journal.append(0, &[0], &[&body]) {
                Ok(lsn) => expected.push((lsn, body)),
                Err(refused) => {
                    assert!(matches!(refused, JournalError::NoSpace { .. }), "{refused:?}");
                    break;
                }
            }
        }
        assert!(expected.iter().filter(|(_, body)| body[0] == n as u8).count() >= 20, "{room}");
    }
    let refused = begin(1_000_000).err();
    assert!(matches!(refused, Some(JournalError::NoSpace { .. })), "{refused:?}");
    disk.set_capacity(None);
    assert_eq!(bodies(&recover(&disk).unwrap()), expected);
}

#[test]
fn a_full_disk_is_a_state_that_ends_by_itself() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    let refusing = || (journal.stats().last_refused, journal.stats().refusing);
    assert_eq!(refusing(), (false, false));
    disk.set_capacity(Some(disk.used()));
    while journal.append(0, &[0], &[&[1; 900]]).is_ok() {}
    assert_eq!(refusing(), (true, true));
    // A commit that still fits is taken, and does not end the state.
    journal.append(0, &[0], &[b"small"]).unwrap();
    assert_eq!(refusing(), (false, true));
    assert!(journal.append(0, &[0], &[&[1; 900]]).is_err());
    assert_eq!(refusing(), (true, true));
    disk.set_capacity(None);
    eventually("room", || refusing() == (false, false));
    journal.append(0, &[0], &[&[1; 900]]).unwrap();
    assert_eq!(refusing(), (false, false));
}

/// A journal whose disk is also that of engines.
fn with_engines(disk: &Arc<SimDisk>) -> Arc<LocalJournal> {
    let options =
        Options { leaves_room: true, segment_bytes: 4 << 20, ..options(disk, SyncMode::No) };
    LocalJournal::recover(dir(), options).unwrap().start(0, 0).unwrap()
}

/// Appends until that is refused; returns the last lsn.
fn until_refused(journal: &LocalJournal) -> Lsn {
    loop {
        if let Err(refused) = journal.append(0, &[0], &[&[1; 100_000]]) {
            assert!(matches!(refused, JournalError::NoRoom { .. }), "{refused:?}");
            return journal.end();
        }
    }
}

#[test]
fn the_engines_keep_room_for_what_the_journal_has() {
    const FREE: u64 = 12 << 20;
    let disk = Arc::new(SimDisk::default());
    disk.set_free(FREE);
    let journal = with_engines(&disk);
    eventually("a spare", || journal.stats().spares >= 1);
    let last = until_refused(&journal);
    let stats = journal.stats();
    let room = FREE * 4 / 5;
    // A segment that it would have to make takes room, too.
    assert!((room - (6 << 20)..=room).contains(&stats.unflushed), "{stats:?}");
    assert!(stats.refusing, "{stats:?}");
    assert!(journal.append(0, &[0], &[&[1; 100_000]]).is_err());
    journal.flushed(0, last);
    assert_eq!(journal.stats().unflushed, 0);
    eventually("room", || !journal.stats().refusing);
    // So it goes on in the last segment, and from there on.
    for _ in 0..20 {
        let last = until_refused(&journal);
        journal.flushed(0, last);
        eventually("room", || !journal.stats().refusing);
    }
    // One that is too large is refused alone.
    assert!(journal.append(0, &[0], &[&vec![1; 11 << 20]]).is_err());
    let stats = journal.stats();
    assert!(!stats.refusing, "{stats:?}");
    journal.append(0, &[0], &[b"small"]).unwrap();
}

#[test]
fn what_adds_data_is_refused_before_there_is_no_room_at_all() {
    let disk = Arc::new(SimDisk::default());
    disk.set_free(100 << 20);
    let journal = with_engines(&disk);
    journal.append(0, &[0], &[&[1; 100_000]]).unwrap();
    assert!(!journal.look_for_room() && !journal.stats().refusing);
    // Less than a segment beside the rows.
    disk.set_free(4 << 20);
    assert!(journal.look_for_room() && journal.stats().refusing);
    // Deletions are not refused.
    journal.append(0, &[0], &[&[1; 100_000]]).unwrap();
    disk.set_free(6 << 20);
    assert!(journal.look_for_room(), "it has to be enough for a while");
    disk.set_free(100 << 20);
    assert!(!journal.look_for_room());
    eventually("room", || !journal.stats().refusing);
}

#[test]
fn merges_or_others_may_take_the_room_meanwhile() {
    let disk = Arc::new(SimDisk::default());
    disk.set_free(100 << 20);
    let journal = with_engines(&disk);
    let last = journal.append(0, &[0], &[&[1; 100_000]]).unwrap();
    disk.set_free(1000);
    until_refused(&journal);
    // At most what was granted before.
    assert!(journal.stats().unflushed < 2 << 20, "{:?}", journal.stats());
    assert!(journal.end() > last && journal.stats().refusing);
    disk.set_free(100 << 20);
    eventually("room", || !journal.stats().refusing);
    journal.append(0, &[0], &[&[1; 100_000]]).unwrap();
}

#[test]
fn a_commit_that_is_too_large_for_the_disk_is_refused_alone() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    disk.set_capacity(Some(disk.used() + 5000));
    assert!(journal.append(0, &[0], &[&[1; 30_000]]).is_err());
    assert!(journal.stats().last_refused && !journal.stats().refusing);
    journal.append(0, &[0], &[b"small"]).unwrap();
    assert!(!journal.stats().last_refused);
}

#[test]
fn a_failed_write_is_wiped_and_its_lsn_used_again() {
    for (kind, written) in
        [(ErrorKind::StorageFull, 0), (ErrorKind::Other, 70), (ErrorKind::Other, 10_000)]
    {
        let disk = Arc::new(SimDisk::default());
        let journal = start(&disk, SyncMode::No);
        eventually("a spare", || journal.stats().spares >= 1);
        journal.append(0, &[0], &[b"before"]).unwrap();
        disk.fail_write(kind, written);
        let error = journal.append(0, &[5], &[b"lost, and longer than the next"]).unwrap_err();
        assert_eq!(matches!(error, JournalError::NoSpace { .. }), kind == ErrorKind::StorageFull);
        assert_eq!((journal.end(), journal.failed()), (1, None));
        assert_eq!(bodies(&recover(&disk.copy()).unwrap()).len(), 1, "it is not there");
        assert_eq!(journal.append(0, &[0], &[b"after"]).unwrap(), 2);
        drop(journal);
        let expected = [(1, b"before".to_vec()), (2, b"after".to_vec())];
        assert_eq!(bodies(&recover(&disk).unwrap()), expected);
    }
}

#[test]
fn a_commit_that_fails_between_its_parts_does_not_count() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    journal.append(0, &[0], &[b"before"]).unwrap();
    // Two parts fit into the segment and are left behind; the third fails.
    for _ in 0..2 {
        eventually("a spare", || journal.stats().spares >= 1);
        disk.pass_writes(2);
        disk.fail_write(ErrorKind::Other, usize::MAX);
        assert!(journal.append(0, &[5], &[&[9; 5000]]).is_err());
        assert_eq!(bodies(&recover(&disk.copy()).unwrap()), [(1, b"before".to_vec())]);
    }
    journal.append(0, &[0], &[&[8; 3000]]).unwrap();
    let expected = [(1, b"before".to_vec()), (2, vec![8; 3000])];
    journal.sync_now().unwrap();
    assert!(journal.stats().backlog.iter().all(|(shard, _)| *shard == 0));
    drop(journal);
    assert_eq!(bodies(&recover(&disk).unwrap()), expected);
    // An incomplete commit at the very end, and a new epoch behind it.
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    disk.pass_writes(2);
    disk.fail_write(ErrorKind::Other, 0);
    assert!(journal.append(0, &[5], &[&[9; 5000]]).is_err());
    drop(journal);
    let journal = start(&disk, SyncMode::No);
    assert_eq!(journal.append(0, &[0], &[b"last"]).unwrap(), 3);
    journal.close().unwrap();
    assert_eq!(bodies(&recover(&disk).unwrap())[2], (3, b"last".to_vec()));
}

#[test]
fn a_write_that_cannot_be_wiped_fails_the_journal() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::Always);
    eventually("a spare", || journal.stats().spares >= 1);
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    journal.subscribe(Box::new(move || tell.store(true, Ordering::SeqCst)));
    disk.fail_write(ErrorKind::Other, 3);
    disk.fail_write(ErrorKind::Other, 0);
    assert!(journal.append(0, &[0], &[b"x"]).is_err());
    assert!(journal.failed().is_some() && told.load(Ordering::SeqCst));
    assert!(matches!(journal.append(0, &[0], &[b"x"]), Err(JournalError::Failed(_))));
    assert!(matches!(journal.close(), Err(JournalError::Failed(_))));
}

#[test]
fn a_failed_sync_fails_the_journal_for_good() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    journal.append(0, &[0], &[b"1"]).unwrap();
    journal.sync_now().unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    journal.subscribe(Box::new(move || tell.store(true, Ordering::SeqCst)));
    journal.append(0, &[0], &[b"2"]).unwrap();
    disk.fail_sync();
    journal.request_sync(2);
    eventually("the failure", || told.load(Ordering::SeqCst));
    assert!(journal.failed().unwrap().contains("a sync failed"));
    assert!(matches!(journal.append(0, &[0], &[b"3"]), Err(JournalError::Failed(_))));
    assert!(matches!(journal.sync_now(), Err(JournalError::Failed(_))));
    assert_eq!((journal.durable(), journal.end()), (1, 2));
}

#[test]
fn a_panic_of_the_sync_thread_fails_the_journal() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    journal.subscribe(Box::new(|| assert!(std::thread::current().name() != Some("journal-sync"))));
    journal.append(0, &[0], &[b"1"]).unwrap();
    journal.sync_now().unwrap();
    journal.append(0, &[0], &[b"2"]).unwrap();
    journal.request_sync(2);
    eventually("the failure", || journal.failed().is_some());
    assert!(matches!(journal.append(0, &[0], &[b"3"]), Err(JournalError::Failed(_))));
}

#[test]
fn records_appended_during_a_sync_wait_for_the_next() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    disk.hold_syncs.store(true, Ordering::SeqCst);
    journal.append(0, &[0], &[b"1"]).unwrap();
    journal.request_sync(1);
    eventually("a sync", || disk.sync_held.load(Ordering::SeqCst));
    journal.append(0, &[0], &[b"2"]).unwrap();
    disk.hold_syncs.store(false, Ordering::SeqCst);
    eventually("the sync's end", || journal.durable() > 0);
    assert_eq!((journal.durable(), journal.end()), (1, 2));
    assert_eq!(journal.sync_now().unwrap(), 2);
}

#[test]
fn every_second_stalls_when_the_disk_does_not_keep_up() {
    let disk = Arc::new(SimDisk::default());
    let bound = Duration::from_millis(20);
    let options = Options { everysec_bound: bound, ..options(&disk, SyncMode::EverySec) };
    let journal = LocalJournal::recover(dir(), options).unwrap().start(0, 0).unwrap();
    eventually("a spare", || journal.stats().spares >= 1);
    disk.hold_syncs.store(true, Ordering::SeqCst);
    journal.append(0, &[0], &[b"1"]).unwrap();
    std::thread::sleep(bound * 3);
    let appended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            journal.append(0, &[0], &[b"2"]).unwrap();
            appended.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(bound * 3);
        let (stalled, durable) = (!appended.load(Ordering::SeqCst), journal.durable());
        // A test that fails must be able to end.
        disk.hold_syncs.store(false, Ordering::SeqCst);
        assert!(stalled);
        assert_eq!(durable, 0);
        eventually("the append that stalled", || appended.load(Ordering::SeqCst));
    });

    // A change of the mode frees a stalled append too.
    eventually("durable", || journal.durable() == 2);
    disk.hold_syncs.store(true, Ordering::SeqCst);
    journal.append(0, &[0], &[b"3"]).unwrap();
    std::thread::sleep(bound * 3);
    std::thread::scope(|scope| {
        let stalled = scope.spawn(|| journal.append(0, &[0], &[b"4"]).unwrap());
        std::thread::sleep(bound);
        journal.set_mode(SyncMode::No);
        assert_eq!(stalled.join().unwrap(), 4);
    });
    disk.hold_syncs.store(false, Ordering::SeqCst);
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let path = file.join("journal");
    let error = LocalJournal::recover(&path, Options::default()).map(|r| r.end()).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}
