//! An archive that does not take what the journal drops.

use std::io;
use std::sync::Mutex;

use super::*;
use crate::journal::segment::segment_number;
use crate::journal::{check_archive, read_history};

/// A disk whose archive is another disk, or cannot be written, while that is set.
struct OtherDisk {
    journal: Handle,
    refusal: Mutex<Option<io::ErrorKind>>,
}

impl Disk for OtherDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.journal.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.journal.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.journal.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.journal.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let refusal = *self.refusal.lock().unwrap();
        match refusal.filter(|_| from.parent() != to.parent()) {
            Some(kind) => Err(kind.into()),
            None => self.journal.rename(from, to),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.journal.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.journal.sync_dir(dir)
    }
}

fn archive() -> &'static Path {
    Path::new("/archive")
}

fn on_other_disk(refusal: io::ErrorKind) -> (Arc<OtherDisk>, Options) {
    let disk = Arc::<SimDisk>::default();
    let other = Arc::new(OtherDisk {
        journal: Handle(Arc::clone(&disk)),
        refusal: Mutex::new(Some(refusal)),
    });
    let archived = Options {
        archive: Some(archive().into()),
        disk: Arc::clone(&other) as Arc<dyn Disk>,
        ..options(&disk, SyncMode::No)
    };
    (other, archived)
}

fn open(options: &Options) -> Arc<LocalJournal> {
    LocalJournal::recover(dir(), options.clone()).unwrap().start(0, 0).unwrap()
}

/// Appends commits of about a third of a segment, and drops what is before the last one.
fn append(journal: &LocalJournal, commits: u64) {
    for _ in 0..commits {
        journal.append(1000 + journal.end(), &[0], &[&[7; 1200]]).unwrap();
    }
    journal.sync_now().unwrap();
    journal.flushed(0, journal.end());
}

/// Returns the lsns that the journal and the archive have together, and whether they are all that there were.
fn read(disk: &OtherDisk, after: Lsn) -> (Vec<Lsn>, bool) {
    let mut found = Vec::new();
    let read = read_history(disk, dir(), archive(), (after, Lsn::MAX), &mut |record| {
        found.push(record.lsn);
        Ok(())
    });
    let end = read.unwrap();
    (found, end.broken.is_none() && end.last.is_some())
}

fn segments(disk: &OtherDisk, dir: &Path) -> usize {
    let names = disk.list(dir).unwrap();
    names.iter().filter(|name| segment_number(name).is_some()).count()
}

#[test]
fn segments_wait_until_the_archive_takes_them() {
    let (disk, options) = on_other_disk(io::ErrorKind::PermissionDenied);
    let journal = open(&options);
    append(&journal, 30);
    eventually("segments are left", || journal.stats().left > 5);
    assert_eq!(segments(&disk, archive()), 0);
    journal.close().unwrap();
    drop(journal);
    // The next start does not need it either.
    let journal = open(&options);
    let left = journal.stats().left;
    assert!(left > 5 && read(&disk, 0).1);
    append(&journal, 10);
    eventually("more are left", || journal.stats().left > left);
    *disk.refusal.lock().unwrap() = None;
    append(&journal, 3);
    eventually("all are archived", || journal.stats().left == 0);
    assert!(segments(&disk, archive()) > left);
    assert_eq!(read(&disk, 0), ((1..=43).collect(), true));
}

#[test]
fn the_archive_may_be_on_another_disk() {
    let (disk, options) = on_other_disk(io::ErrorKind::CrossesDevices);
    let journal = open(&options);
    append(&journal, 40);
    eventually("segments are archived", || segments(&disk, archive()) > 10);
    assert_eq!(journal.stats().left, 0);
    // None is being copied any more.
    drop(journal);
    assert_eq!(read(&disk, 0), ((1..=40).collect(), true));
    assert!(disk.list(archive()).unwrap().iter().all(|name| !name.ends_with("tmp")));
}

#[test]
fn an_archive_that_takes_nothing_does_not_fill_the_disk() {
    let (disk, options) = on_other_disk(io::ErrorKind::StorageFull);
    let journal = open(&options);
    let last = std::iter::repeat_with(|| append(&journal, 3)).take(100).count() as u64 * 3;
    eventually("no more are left", || (1..=32).contains(&journal.stats().left));
    eventually("others are deleted", || segments(&disk, dir()) < 40);
    *disk.refusal.lock().unwrap() = None;
    append(&journal, 3);
    eventually("the rest is archived", || journal.stats().left == 0);
    // The moments that are gone are not said to be there.
    assert_eq!(read(&disk, 0), (Vec::new(), false));
    assert_eq!(read(&disk, last - 30), ((last - 29..=last + 3).collect(), true));
}

#[test]
fn a_new_journal_counts_on_from_the_archive_of_the_former_one() {
    let (disk, options) = on_other_disk(io::ErrorKind::CrossesDevices);
    let journal = open(&options);
    append(&journal, 40);
    eventually("segments are archived", || segments(&disk, archive()) > 10);
    journal.close().unwrap();
    drop(journal);
    for name in disk.list(dir()).unwrap() {
        disk.remove(&dir().join(name)).unwrap();
    }
    let newest = disk.list(archive()).unwrap().into_iter().max().unwrap();
    let journal = LocalJournal::recover(dir(), options.clone()).unwrap().start(9, 41).unwrap();
    append(&journal, 6);
    eventually("it is archived", || {
        disk.list(archive()).unwrap().into_iter().max() > Some(newest.clone())
    });
    assert_eq!(read(&disk, 41).0, (42..=46).collect::<Vec<_>>());
}

#[test]
fn a_history_is_read_while_the_journal_goes_on() {
    let disk = Arc::<SimDisk>::default();
    let options = Options { archive: Some(archive().into()), ..options(&disk, SyncMode::No) };
    let journal = open(&options);
    append(&journal, 20);
    let (handle, mut found) = (Handle(Arc::clone(&disk)), Vec::new());
    let read = read_history(&handle, dir(), archive(), (0, Lsn::MAX), &mut |record| {
        found.push(record.lsn);
        // The journal goes on behind the records that are read, and segments move to the archive.
        if found.len() < 60 {
            append(&journal, 1);
        }
        Ok(())
    });
    let end = read.unwrap();
    assert!(end.broken.is_none(), "{end:?}");
    let last = end.last.unwrap();
    assert!(last >= 20, "{last}");
    assert_eq!(found, (1..=last).collect::<Vec<_>>());
}

#[test]
fn a_history_ends_at_the_record_that_is_asked_for() {
    let disk = Arc::<SimDisk>::default();
    let options = Options { archive: Some(archive().into()), ..options(&disk, SyncMode::No) };
    let journal = open(&options);
    append(&journal, 20);
    journal.close().unwrap();
    let handle = Handle(Arc::clone(&disk));
    let mut found = Vec::new();
    let read = read_history(&handle, dir(), archive(), (3, 9), &mut |record| {
        found.push(record.lsn);
        Ok(())
    });
    let end = read.unwrap();
    assert!(end.broken.is_none() && end.last == Some(9), "{end:?}");
    assert_eq!(found, (4..=9).collect::<Vec<_>>());
}

/// Returns a disk whose archive has segments, and their paths, the oldest first.
fn archived() -> (Arc<SimDisk>, Vec<std::path::PathBuf>) {
    let disk = Arc::<SimDisk>::default();
    let options = Options { archive: Some(archive().into()), ..options(&disk, SyncMode::No) };
    let journal = open(&options);
    append(&journal, 40);
    let handle = Handle(Arc::clone(&disk));
    eventually("segments are archived", || handle.list(archive()).is_ok_and(|l| l.len() > 10));
    journal.close().unwrap();
    drop(journal);
    let mut names = handle.list(archive()).unwrap();
    names.sort();
    (disk, names.iter().map(|name| archive().join(name)).collect())
}

fn told(disk: &Arc<SimDisk>) -> Vec<String> {
    let (handle, mut told) = (Handle(Arc::clone(disk)), Vec::new());
    check_archive(&handle, dir(), archive(), &mut |what| told.push(what)).unwrap();
    told
}

#[test]
fn damage_in_the_archive_is_told_and_ends_the_history() {
    let (disk, segments) = archived();
    assert_eq!(told(&disk), Vec::<String>::new());
    for at in [1, segments.len() / 2, segments.len() - 1] {
        let path = &segments[at];
        let used = disk.read(path).iter().rposition(|byte| *byte != 0).unwrap();
        for kind in ["missing", "cut off", "without a header", "unreadable", "flipped"] {
            let damaged = disk.copy();
            match kind {
                "missing" => damaged.delete(path),
                "cut off" => damaged.edit(path, |bytes| bytes.truncate(used / 2)),
                "without a header" => damaged.edit(path, |bytes| bytes[..512].fill(0)),
                "unreadable" => damaged.fail_reads(path),
                _ => damaged.edit(path, |bytes| bytes[used / 2] ^= 1),
            }
            let (name, found) = (path.display().to_string(), told(&damaged));
            assert!(found.len() == 1 && found[0].contains(&name), "{kind} {at}: {found:?}");
            let handle = Handle(Arc::clone(&damaged));
            let mut lsns = Vec::new();
            let read = read_history(&handle, dir(), archive(), (0, Lsn::MAX), &mut |record| {
                lsns.push(record.lsn);
                Ok(())
            });
            let end = read.unwrap();
            let last = end.last.unwrap();
            assert!(last < 40, "{kind} {at}: {last}");
            assert_eq!(lsns, (1..=last).collect::<Vec<_>>(), "{kind} {at}");
            let broken = end.broken.unwrap().to_string();
            assert!(broken.contains(&name), "{kind} {at}: {broken}");
            assert_eq!(broken.contains("a sector is bad"), kind == "unreadable", "{broken}");
            // Who begins behind the damage does not hear of it. The next record may begin in the newest segment.
            if at + 1 == segments.len() {
                continue;
            }
            let read = read_history(&handle, dir(), archive(), (39, Lsn::MAX), &mut |_| Ok(()));
            let end = read.unwrap();
            assert!(end.broken.is_none() && end.last == Some(40), "{kind} {at}: {end:?}");
        }
    }
}

#[test]
fn segments_that_have_grown_too_old_and_other_files_are_no_damage() {
    let (disk, segments) = archived();
    for path in &segments[..3] {
        disk.delete(path);
    }
    let handle = Handle(Arc::clone(&disk));
    for name in ["notes", "00000000000003e8.seg"] {
        handle.create(&archive().join(name)).unwrap();
    }
    assert_eq!(told(&disk), Vec::<String>::new());
}

/// A disk that opens one file so many times, and not again: the process has too many open files, say.
struct BusyDisk {
    inner: Handle,
    path: std::path::PathBuf,
    opens: Mutex<usize>,
    /// True if it opens the file again after one failure.
    passes: bool,
}

const BUSY: &str = "too many open files";

impl Disk for BusyDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        if path == self.path {
            let mut opens = self.opens.lock().unwrap();
            if *opens == 0 {
                *opens = if self.passes { usize::MAX } else { 0 };
                return Err(io::Error::other(BUSY));
            }
            *opens -= 1;
        }
        self.inner.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.inner.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
}

#[test]
fn a_segment_that_cannot_be_opened_is_not_said_to_be_damaged() {
    let (disk, segments) = archived();
    let busy = |path: &Path, opens, passes| BusyDisk {
        inner: Handle(Arc::clone(&disk)),
        path: path.to_owned(),
        opens: Mutex::new(opens),
        passes,
    };
    let read = |disk: &BusyDisk| {
        let mut last = 0;
        let end = read_history(disk, dir(), archive(), (0, Lsn::MAX), &mut |record| {
            last = record.lsn;
            Ok(())
        });
        end.map(|end| (end, last))
    };
    // Its header is read, or not even that.
    for opens in [0, 1] {
        // In the archive it is a gap.
        let path = &segments[segments.len() / 2];
        let why = format!("it cannot be read: {BUSY}");
        let (end, last) = read(&busy(path, opens, false)).unwrap();
        let broken = end.broken.unwrap().to_string();
        assert!(broken.contains(&why) && broken.contains(path.to_str().unwrap()), "{broken}");
        assert!(end.last == Some(last) && last < 40, "{last}");
        let mut told = Vec::new();
        let check = busy(path, opens, false);
        check_archive(&check, dir(), archive(), &mut |what| told.push(what)).unwrap();
        assert!(told.len() == 1 && told[0].contains(&why), "{told:?}");
        // In the journal the copy fails: it may be repeated.
        let names = Handle(Arc::clone(&disk)).list(dir()).unwrap();
        let oldest = names.iter().filter(|name| segment_number(name).is_some()).min().unwrap();
        let failed = read(&busy(&dir().join(oldest), opens, false)).unwrap_err();
        assert!(matches!(failed, JournalError::Io { .. }), "{failed}");
        assert!(failed.to_string().contains(BUSY), "{failed}");
    }
    // A failure that passes is not told of at all.
    let (end, last) = read(&busy(&segments[segments.len() / 2], 1, true)).unwrap();
    assert!(end.broken.is_none() && (end.last, last) == (Some(40), 40), "{end:?}");
}
