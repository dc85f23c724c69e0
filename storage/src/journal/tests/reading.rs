//! Reads an open journal, and writes records as a journal of their own.

use super::*;
use crate::journal::{Extract, read_history};
use sim_disk::Handle;

const FULL: &[u8] = &[7; 700];

/// Appends commits of one shard, some of several parts, and reports them as flushed.
fn append(journal: &LocalJournal, commits: u64) {
    for n in 0..commits {
        let body: Vec<u8> = if n % 9 == 4 { [FULL; 4].concat() } else { FULL.to_vec() };
        journal.append(1000 + journal.end(), &[0], &[&body]).unwrap();
    }
    journal.sync_now().unwrap();
}

fn read(journal: &LocalJournal, hold: super::super::HoldId, range: (Lsn, Lsn)) -> Vec<Record> {
    let mut records = Vec::new();
    let collect = &mut |record| {
        records.push(record);
        Ok(())
    };
    journal.read(hold, range, collect).unwrap();
    records
}

fn lsns(records: &[Record]) -> Vec<Lsn> {
    records.iter().map(|record| record.lsn).collect()
}

#[test]
fn held_records_are_read_while_the_journal_goes_on() {
    let disk = Arc::<SimDisk>::default();
    let journal = start(&disk, SyncMode::No);
    append(&journal, 20);
    let hold = journal.hold(5, u64::MAX);
    journal.flushed(0, 20);
    append(&journal, 200);
    journal.flushed(0, journal.durable());
    let records = read(&journal, hold, (5, 150));
    assert_eq!(lsns(&records), (5..=150).collect::<Vec<_>>());
    assert_eq!(records[0].time_ms, 1004);
    assert!(records.iter().any(|record| record.body.len() > FULL.len()));
    assert_eq!(lsns(&read(&journal, hold, (220, 220))), [220]);
    assert!(journal.oldest() <= 5);
    journal.release(hold);
    eventually("the segments are dropped", || journal.oldest() > 150);
    assert!(matches!(journal.read(hold, (5, 150), &mut |_| Ok(())), Err(JournalError::HoldBroken)));
}

#[test]
fn a_commit_whose_beginning_is_dropped_is_not_there() {
    for large in 2..7 {
        let disk = Arc::<SimDisk>::default();
        let journal = start(&disk, SyncMode::No);
        for n in 1..=10 {
            // One commit begins in some segment and ends in a later one.
            let body = if n == large { [FULL; 9].concat() } else { FULL.to_vec() };
            journal.append(0, &[0], &[&body]).unwrap();
        }
        journal.sync_now().unwrap();
        journal.flushed(0, large);
        eventually("segments are dropped", || journal.oldest() > large);
        let (oldest, hold) = (journal.oldest(), journal.hold(0, u64::MAX));
        assert_eq!(lsns(&read(&journal, hold, (oldest, 10))), (oldest..=10).collect::<Vec<_>>());
        let refused = journal.read(hold, (large, 10), &mut |_| Ok(()));
        assert!(refused.is_err(), "{large} is gone");
        journal.close().unwrap();
        drop(journal);
        let recovery = recover(&disk).unwrap();
        assert_eq!(recovery.dropped() + 1, oldest);
        assert_eq!(replayed(&recovery, 0)[0].lsn, oldest);
        assert_eq!(recovery.start(0, 0).unwrap().oldest(), oldest);
    }
}

#[test]
fn lsns_without_records_are_read_too() {
    let disk = Arc::<SimDisk>::default();
    let journal = start(&disk, SyncMode::No);
    append(&journal, 10);
    journal.close().unwrap();
    drop(journal);
    let journal = recover(&disk).unwrap().start(0, 50).unwrap();
    let hold = journal.hold(0, u64::MAX);
    assert_eq!(journal.end(), 49);
    assert!(read(&journal, hold, (11, 49)).is_empty());
    assert_eq!(lsns(&read(&journal, hold, (10, 49))), [10]);
    append(&journal, 3);
    assert_eq!(lsns(&read(&journal, hold, (10, 51))), [10, 50, 51]);
}

#[test]
fn a_hold_that_keeps_too_much_is_broken() {
    let disk = Arc::<SimDisk>::default();
    let journal = start(&disk, SyncMode::No);
    let hold = journal.hold(0, 16 << 10);
    append(&journal, 100);
    journal.flushed(0, journal.durable());
    eventually("the segments are dropped", || journal.oldest() > 50);
    let read = journal.read(hold, (1, 100), &mut |_| Ok(()));
    assert!(matches!(read, Err(JournalError::HoldBroken)), "{read:?}");
}

#[test]
fn an_extract_is_a_journal_of_the_same_records() {
    let disk = Arc::<SimDisk>::default();
    for _ in 0..3 {
        let journal = start(&disk, SyncMode::No);
        append(&journal, 30);
        journal.close().unwrap();
    }
    let all = replayed(&recover(&disk).unwrap(), 0);
    for (after, end) in [(0, 90), (10, 55), (30, 60), (89, 90), (90, 90), (90, 95)] {
        let copy = Arc::<SimDisk>::default();
        let to: Arc<dyn Disk> = Arc::new(Handle(Arc::clone(&copy)));
        let mut extract = Extract::create(to, dir(), 0x77, after).unwrap();
        let wanted: Vec<Record> =
            all.iter().filter(|r| r.lsn > after && r.lsn <= end).cloned().collect();
        for record in &wanted {
            extract.push(record).unwrap();
            // A repeated record is skipped.
            extract.push(record).unwrap();
        }
        extract.finish(3, end).unwrap();
        let recovery = recover(&copy).unwrap();
        assert_eq!((recovery.end(), recovery.dropped()), (end, after));
        assert_eq!(replayed(&recovery, 0), wanted, "behind {after} up to {end}");
        // It can be used like any journal.
        let journal = recovery.start(0, 0).unwrap();
        append(&journal, 5);
        journal.close().unwrap();
        assert_eq!(recover(&copy).unwrap().end(), end + 5);
    }
}

#[test]
fn records_that_are_missing_are_missed() {
    let disk = Arc::<SimDisk>::default();
    let journal = start(&disk, SyncMode::No);
    append(&journal, 9);
    journal.close().unwrap();
    let all = replayed(&recover(&disk).unwrap(), 0);
    let to: Arc<dyn Disk> = Arc::new(Handle(Arc::default()));
    let mut extract = Extract::create(to, dir(), 0x77, 0).unwrap();
    extract.push(&all[0]).unwrap();
    assert!(matches!(extract.push(&all[2]), Err(JournalError::Corrupt { .. })));
}

#[test]
fn dropped_segments_go_to_the_archive_and_are_read_with_the_rest() {
    let disk = Arc::<SimDisk>::default();
    let archive = Path::new("/archive");
    let options = Options { archive: Some(archive.into()), ..options(&disk, SyncMode::No) };
    let journal = LocalJournal::recover(dir(), options.clone()).unwrap().start(0, 0).unwrap();
    append(&journal, 60);
    journal.flushed(0, 60);
    eventually("segments are dropped", || journal.oldest() > 40);
    append(&journal, 7);
    journal.close().unwrap();
    let journal = LocalJournal::recover(dir(), options).unwrap().start(0, 0).unwrap();
    append(&journal, 8);
    let handle = Handle(Arc::clone(&disk));
    for after in [0, 1, 17, 40, 60, 67, 74] {
        let mut found = Vec::new();
        let read = read_history(&handle, dir(), archive, (after, Lsn::MAX), &mut |record| {
            found.push(record.lsn);
            Ok(())
        });
        let end = read.unwrap();
        assert!(end.broken.is_none() && end.last == Some(75), "behind {after}: {end:?}");
        assert_eq!(found, (after + 1..=75).collect::<Vec<_>>(), "behind {after}");
    }
    // Without the oldest segment its records are missed.
    let mut names = handle.list(archive).unwrap();
    names.sort();
    handle.remove(&archive.join(&names[0])).unwrap();
    let end = read_history(&handle, dir(), archive, (0, Lsn::MAX), &mut |_| Ok(())).unwrap();
    assert_eq!(end.last, None);
    assert!(end.broken.unwrap().to_string().contains(&names[0]));
}
