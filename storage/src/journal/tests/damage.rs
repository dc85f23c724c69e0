use std::path::PathBuf;

use super::*;
use crate::journal::floor::{JournalFloor, floor_path};
use crate::journal::record::ALIGN;
use crate::journal::scan::remains;
use crate::journal::segment::{FIRST_RECORD, SEGMENT_HEADER, SegmentHeader, segment_path};
use crate::journal::{Disk, HistoryEnd, read_history};

type Model = Vec<(Lsn, Vec<u8>)>;

/// Returns a journal of two epochs and a few segments, with recycled ones; `clean`ly closed or not.
fn small_journal(clean: bool) -> (Arc<SimDisk>, Model) {
    let disk = Arc::new(SimDisk::default());
    let mut rng = Rng::new(11);
    let mut model = Vec::new();
    for epoch in 0..2 {
        let journal = start(&disk, SyncMode::No);
        for round in 0..9 {
            let body = rng.bytes(700);
            model.push((journal.append(0, &[0], &[&body]).unwrap(), body));
            if round % 2 == 0 {
                journal.sync_now().unwrap();
            }
            journal.flushed(0, 4);
        }
        eventually("recycling", || journal.oldest() == 5 && journal.stats().spares >= 1);
        if clean || epoch == 0 {
            journal.close().unwrap();
        }
    }
    let kept = model.split_off(4);
    (disk, kept)
}

/// Asserts that the recovered records are a prefix of `model` that reaches at least `durable`, and
/// that the journal can be used.
fn check_prefix(disk: &Arc<SimDisk>, recovery: Recovery, model: &Model, durable: Lsn) {
    let (end, found) = (recovery.end(), bodies(&recovery));
    assert!(end >= durable, "lsn {durable} was durable, the end is {end}");
    assert_eq!(found, model[..found.len()]);
    assert_eq!(found.last().map_or(0, |last| last.0), end);
    let journal = recovery.start(0, 0).unwrap();
    assert_eq!(journal.append(0, &[0], &[b"next"]).unwrap(), end + 1);
    drop(journal);
    let mut again = bodies(&recover(disk).unwrap());
    assert_eq!(again.pop(), Some((end + 1, b"next".to_vec())));
    assert_eq!(again, found);
}

#[test]
fn a_flipped_bit_is_never_served() {
    for clean in [true, false] {
        let (disk, model) = small_journal(clean);
        let intact = recover(&disk).unwrap();
        assert_eq!(bodies(&intact), model);
        let durable = intact.durable();
        assert_eq!(durable, if clean { 18 } else { 16 });
        let mut rng = Rng::new(12);
        let (mut detected, mut cut) = (0, 0);
        for path in disk.files() {
            let bytes = disk.read(&path);
            // Every byte in use, and some of the others.
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            for at in (0..used).chain((used..bytes.len()).step_by(97)) {
                let damaged = disk.copy();
                damaged.edit(&path, |bytes| bytes[at] ^= 1 << rng.below(8));
                match recover(&damaged) {
                    Err(JournalError::Corrupt { .. }) => detected += 1,
                    Err(error) => panic!("{}, {at}: {error}", path.display()),
                    Ok(recovery) if recovery.end() == 18 => {
                        assert_eq!(bodies(&recovery), model);
                    }
                    Ok(recovery) => {
                        cut += 1;
                        check_prefix(&damaged, recovery, &model, durable);
                    }
                }
            }
        }
        assert!(detected > 9000, "{detected}");
        assert_eq!(cut > 0, !clean);
    }
}

#[test]
fn a_torn_tail_is_cut_at_every_byte() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    let mut model = vec![(1, b"first".to_vec()), (2, vec![9; 77])];
    for (_, body) in &model {
        journal.append(0, &[1], &[body]).unwrap();
    }
    journal.sync_now().unwrap();
    let start_of_last = journal.stats().bytes as usize;
    model.push((3, vec![7; 133]));
    journal.append(0, &[1], &[&model[2].1]).unwrap();
    let end_of_last = journal.stats().bytes as usize;
    drop(journal);
    let path = segment_path(dir(), 1);
    for garbage in [false, true] {
        for cut in start_of_last..=end_of_last {
            let torn = disk.copy();
            torn.edit(&path, |bytes| bytes[cut..].fill(if garbage { 0xA5 } else { 0 }));
            let recovery = recover(&torn).unwrap();
            // The end of the record is padding.
            let whole = cut == end_of_last || (!garbage && cut >= start_of_last + 64 + 2 + 133);
            assert_eq!(recovery.end(), if whole { 3 } else { 2 }, "cut at {cut}");
            check_prefix(&torn, recovery, &model, 2);
            let bytes = torn.read(&path);
            let end = if whole { end_of_last } else { start_of_last };
            assert!(bytes[end..].iter().all(|byte| *byte == 0), "wiped");
        }
    }
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    disk.files().into_iter().filter(|path| path.extension().is_some()).collect()
}

#[test]
fn a_missing_file_is_corruption() {
    let (disk, _) = small_journal(true);
    let last = segment_path(dir(), newest(&disk));
    let begun: Vec<_> = segments(&disk).into_iter().filter(|path| *path < last).collect();
    assert!(begun.len() >= 3);
    for path in &begun {
        let damaged = disk.copy();
        damaged.delete(path);
        match recover(&damaged).map(|recovery| recovery.end()) {
            Err(JournalError::Corrupt { path: named, .. }) => assert_eq!(named, *path),
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    disk.delete(&floor_path(dir()));
    let error = recover(&disk).map(|recovery| recovery.end()).unwrap_err();
    assert!(matches!(&error, JournalError::Corrupt { path, .. } if path.ends_with("floor")));
}

/// Returns a journal that was killed in its fourth segment, which is durable and noted in the
/// floor.
fn in_the_fourth_segment() -> Arc<SimDisk> {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    for _ in 0..16 {
        journal.append(0, &[0], &[&[5; 700]]).unwrap();
        journal.sync_now().unwrap();
    }
    let noted = |disk: &Arc<SimDisk>| JournalFloor::read(&Handle(Arc::clone(disk)), dir()).unwrap();
    eventually("noting the newest segment", || {
        let now = disk.copy();
        noted(&now).is_some_and(|floor| floor.newest_segment == newest(&now))
    });
    assert_eq!(newest(&disk), 4);
    drop(journal);
    assert_eq!(recover(&disk).unwrap().end(), 16);
    disk
}

fn assert_corrupt(disk: &Arc<SimDisk>, path: &Path, what: &str) {
    match recover(disk).map(|recovery| recovery.end()) {
        Err(JournalError::Corrupt { path: named, .. }) => assert_eq!(named, path, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn the_newest_segment_is_missed() {
    let disk = in_the_fourth_segment();
    let last = segment_path(dir(), 4);
    let deleted = disk.copy();
    deleted.delete(&last);
    assert_corrupt(&deleted, &last, "deleted");
    let spare = segments(&disk).into_iter().find(|path| *path > last).unwrap();
    let swapped = disk.copy();
    let (ours, other) = (disk.read(&last), disk.read(&spare));
    swapped.edit(&last, |bytes| *bytes = other.clone());
    swapped.edit(&spare, |bytes| *bytes = ours);
    let found = recover(&swapped).map(|recovery| recovery.end());
    assert!(matches!(found, Err(JournalError::Corrupt { .. })), "{found:?}");
    let wiped = disk.copy();
    wiped.edit(&last, |bytes| bytes[..SEGMENT_HEADER].fill(0));
    assert_corrupt(&wiped, &last, "its header is gone");
    // A start notes the segment that it begins.
    drop(recover(&disk).unwrap().start(0, 0).unwrap());
    let last = segment_path(dir(), newest(&disk));
    disk.delete(&last);
    assert_corrupt(&disk, &last, "the first one of an epoch");
}

#[test]
fn a_segment_that_is_cut_off_is_corruption_and_no_torn_tail() {
    let disk = in_the_fourth_segment();
    for number in 1..=4 {
        let path = segment_path(dir(), number);
        for length in (0..disk.read(&path).len()).step_by(61) {
            let damaged = disk.copy();
            damaged.edit(&path, |bytes| bytes.truncate(length));
            assert_corrupt(&damaged, &path, &format!("{length} bytes"));
        }
    }
}

#[test]
fn a_segment_of_another_journal_is_corruption() {
    let disk = Arc::new(SimDisk::default());
    let other = Options { salt: 0x5A18, ..options(&disk, SyncMode::No) };
    let journal = LocalJournal::recover(dir(), other).unwrap().start(0, 0).unwrap();
    journal.append(0, &[0], &[b"theirs"]).unwrap();
    drop(journal);
    let path = segment_path(dir(), 1);
    let theirs = disk.read(&path);
    let ours = Arc::new(SimDisk::default());
    let journal = start(&ours, SyncMode::No);
    journal.append(0, &[0], &[b"ours"]).unwrap();
    drop(journal);
    ours.edit(&path, |bytes| *bytes = theirs);
    assert_corrupt(&ours, &path, "it has another salt");
}

#[test]
fn a_floor_of_an_earlier_version_is_read() {
    let disk = in_the_fourth_segment();
    disk.edit(&floor_path(dir()), |bytes| {
        bytes.drain(48..56);
        bytes[8] = 1;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    assert_eq!(recover(&disk).unwrap().end(), 16);
}

#[test]
fn segments_of_an_earlier_version_are_read() {
    let disk = in_the_fourth_segment();
    for number in 1..=4 {
        disk.edit(&segment_path(dir(), number), |bytes| {
            bytes[8] = 1;
            let crc = crc32c::crc32c(&bytes[..12]);
            let crc = crc32c::crc32c_append(crc, &bytes[16..SEGMENT_HEADER]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        });
    }
    assert_eq!(recover(&disk).unwrap().end(), 16);
}

#[test]
fn damage_is_named_by_file_and_offset() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    for _ in 0..5 {
        journal.append(0, &[0], &[&[1; 100]]).unwrap();
        journal.sync_now().unwrap();
    }
    drop(journal);
    let path = segment_path(dir(), 1);
    let second = FIRST_RECORD as usize + (64 + 2 + 100_usize).next_multiple_of(8);
    disk.edit(&path, |bytes| bytes[second + 80] ^= 1);
    let error = recover(&disk).map(|recovery| recovery.end()).unwrap_err();
    let JournalError::Corrupt { path: named, offset, .. } = &error else { panic!("{error}") };
    assert_eq!((named, *offset), (&path, second as u64));
    assert!(error.to_string().contains("lsn 1") && error.to_string().contains("lsn 4"), "{error}");
}

#[test]
fn a_newer_format_is_refused() {
    let (disk, _) = small_journal(true);
    let path = &segments(&disk)[0];
    disk.edit(path, |bytes| {
        bytes[8] = 5;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..SEGMENT_HEADER]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    let error = recover(&disk).map(|recovery| recovery.end()).unwrap_err();
    assert!(matches!(error, JournalError::NewerFormat { found: 5, known: 4, .. }), "{error}");
}

/// Returns a disk whose newest segment is a recycled file with a whole older record right behind
/// the end; `None` if the upkeep has used a new file this time.
fn recycled() -> Option<Arc<SimDisk>> {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    // Records of equal length: those of a recycled file lie at the offsets of new ones.
    for lsn in 1..=200 {
        eventually("recycling", || {
            let stats = journal.stats();
            stats.segments <= 2 && stats.spares >= 1
        });
        assert_eq!(journal.append(0, &[0], &[&[lsn as u8; 200]]).unwrap(), lsn);
        journal.sync_now().unwrap();
        journal.flushed(0, lsn);
    }
    drop(journal);
    let file = Handle(Arc::clone(&disk)).open(&segment_path(dir(), newest(&disk))).unwrap();
    assert_eq!(remains(&file, 0x5A17, FIRST_RECORD).unwrap().last, 200);
    let in_use = (200 - 1) % 13 + 1;
    let older = remains(&file, 0x5A17, FIRST_RECORD + in_use * 272).unwrap();
    (older.last > 100 && older.last < 200).then_some(disk)
}

#[test]
fn records_of_an_earlier_life_of_a_segment_are_not_taken() {
    let disk = (0..20).find_map(|_| recycled()).expect("a recycled file");
    let recovery = recover(&disk).unwrap();
    assert_eq!(recovery.end(), 200);
    let used = bodies(&recovery).len();
    assert!(used <= 26);
    let journal = recovery.start(0, 0).unwrap();
    assert_eq!(journal.append(0, &[0], &[b"x"]).unwrap(), 201);
    drop(journal);
    assert_eq!(bodies(&recover(&disk).unwrap()).len(), used + 1);
}

#[test]
fn records_of_another_copy_of_the_journal_are_not_taken() {
    let disk = Arc::new(SimDisk::default());
    drop(start(&disk, SyncMode::No));
    // Two copies of the journal are written, both in the same epoch, with records of the same
    // lengths.
    let [ours, theirs] = [1, 2].map(|mark: u8| {
        let disk = disk.copy();
        let journal = start(&disk, SyncMode::No);
        for _ in 0..4 {
            journal.append(0, &[0], &[&[mark; 100]]).unwrap();
            journal.sync_now().unwrap();
        }
        drop(journal);
        disk
    });
    let models = [&ours, &theirs].map(|disk| bodies(&recover(disk).unwrap()));
    assert!(models[0].len() == 4 && models[1].len() == 4);
    let path = segment_path(dir(), newest(&ours));
    let (first, rest) = (ours.read(&path), theirs.read(&path));
    let used = first.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut refused = 0;
    // One of these offsets is between two records.
    for at in (FIRST_RECORD as usize..used).step_by(ALIGN as usize) {
        let mixed = ours.copy();
        mixed.edit(&path, |bytes| *bytes = [&first[..at], &rest[at..]].concat());
        match recover(&mixed) {
            Err(JournalError::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("{at}: {error}"),
            Ok(recovery) => {
                let found = bodies(&recovery);
                let whole = models.iter().any(|model| model.starts_with(&found));
                assert!(whole, "{at}: records of both: {found:?}");
            }
        }
    }
    assert!(refused > 0);
}

/// Returns the lsns of the records behind lsn 4, as another process reads them, and how they end.
fn history(disk: &Arc<SimDisk>) -> Result<(Vec<Lsn>, HistoryEnd), JournalError> {
    let mut found = Vec::new();
    let collect = &mut |record: Record| {
        found.push(record.lsn);
        Ok(())
    };
    let (handle, archive) = (Handle(Arc::clone(disk)), Path::new("/archive"));
    let end = read_history(&handle, dir(), archive, (4, Lsn::MAX), collect)?;
    Ok((found, end))
}

/// Asserts that a history ends as a recovery does: where that refuses damage, the records that are
/// missing are missed, and where it cuts a torn tail, they end.
fn assert_same_end(disk: &Arc<SimDisk>, last: Lsn, what: &str) {
    let Ok((found, end)) = history(disk) else {
        assert!(recover(disk).is_err(), "{what}");
        return;
    };
    assert_eq!(found, (5..5 + found.len() as u64).collect::<Vec<_>>(), "{what}");
    let reached = found.last().copied().unwrap_or(4);
    match recover(disk) {
        Ok(recovery) => {
            assert!(end.broken.is_none(), "{what}: {end:?}");
            assert_eq!((end.last, end.epoch), (Some(recovery.end()), recovery.epoch()), "{what}");
            assert_eq!(reached, recovery.end(), "{what}");
        }
        Err(_) => assert!(end.broken.is_some() || reached == last, "{what}: {end:?}"),
    }
}

#[test]
fn a_history_ends_as_a_recovery_does() {
    for clean in [true, false] {
        let (disk, _) = small_journal(clean);
        assert_same_end(&disk, 18, "as it is");
        let mut rng = Rng::new(13);
        for path in disk.files() {
            let bytes = disk.read(&path);
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            for at in (0..used).step_by(7).chain((used..bytes.len()).step_by(97)) {
                let damaged = disk.copy();
                damaged.edit(&path, |bytes| bytes[at] ^= 1 << rng.below(8));
                assert_same_end(&damaged, 18, &format!("{}, {at} flipped", path.display()));
            }
            for length in (0..bytes.len()).step_by(61) {
                let damaged = disk.copy();
                damaged.edit(&path, |bytes| bytes.truncate(length));
                assert_same_end(&damaged, 18, &format!("{}, {length} bytes", path.display()));
            }
            let damaged = disk.copy();
            damaged.delete(&path);
            assert_same_end(&damaged, 18, &format!("{} is missing", path.display()));
        }
    }
}

#[test]
fn a_history_tells_which_segment_is_missing_or_damaged() {
    let disk = in_the_fourth_segment();
    let all = |found: &[Lsn]| found.to_vec() == (5..=16).collect::<Vec<_>>();
    assert!(all(&history(&disk).unwrap().0));
    for number in 2..=4 {
        let path = segment_path(dir(), number);
        let used = disk.read(&path).iter().rposition(|byte| *byte != 0).unwrap();
        for kind in ["missing", "cut off", "without a header", "flipped"] {
            let damaged = disk.copy();
            match kind {
                "missing" => damaged.delete(&path),
                "cut off" => damaged.edit(&path, |bytes| bytes.truncate(used / 2)),
                "without a header" => damaged.edit(&path, |bytes| bytes[..SEGMENT_HEADER].fill(0)),
                _ => damaged.edit(&path, |bytes| bytes[used / 2] ^= 1),
            }
            let (found, end) = history(&damaged).unwrap();
            // The last record of the newest segment may be a torn write.
            assert!(!all(&found), "{kind} {number}");
            match end.broken {
                Some(JournalError::Corrupt { path: named, .. }) => {
                    assert_eq!(named, path, "{kind}")
                }
                other => panic!("{kind} {number}: {other:?}"),
            }
        }
    }
}

/// Returns the greatest number of a segment that was begun.
fn newest(disk: &SimDisk) -> u64 {
    // A running journal renames segments that it has prepared.
    let disk = disk.copy();
    let begun = |path: &PathBuf| {
        let bytes = disk.read(path);
        // A segment in preparation may be empty.
        match SegmentHeader::decode(bytes.first_chunk::<SEGMENT_HEADER>()?) {
            crate::journal::segment::FoundHeader::Valid(header)
                if segment_path(dir(), header.number) == *path =>
            {
                Some(header.number)
            }
            _ => None,
        }
    };
    segments(&disk).iter().filter_map(begun).max().unwrap()
}
