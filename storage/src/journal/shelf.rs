//! The segments of a journal and of its archive, by their names and headers.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeTo;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::JournalError;
use super::disk::{Disk, File, of_link};
use super::floor::JournalFloor;
use super::segment::{FoundHeader, SegmentHeader, VERSION, segment_number, segment_path};

/// See the module's description. Another process may move a segment from the journal to the archive.
pub(super) struct SegmentShelf<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) journal: &'a Path,
    archive: &'a Path,
    salt: u32,
    found: BTreeMap<u64, ShelfFile>,
    /// The reason why the archive cannot be listed, if it cannot.
    pub(super) trouble: Option<String>,
}

struct ShelfFile {
    path: PathBuf,
    head: ShelfHead,
}

enum ShelfHead {
    Begun(SegmentHeader),
    /// Not begun yet, or damaged.
    Absent,
    /// Of another journal.
    Foreign,
}

impl<'a> SegmentShelf<'a> {
    /// Looks for the segments of the journal with a salt.
    pub(super) fn new(
        disk: &'a dyn Disk,
        journal: &'a Path,
        archive: &'a Path,
        salt: u32,
    ) -> Result<Self, JournalError> {
        let (found, trouble) = (BTreeMap::new(), None);
        let mut shelf = Self { disk, journal, archive, salt, found, trouble };
        shelf.look()?;
        Ok(shelf)
    }

    /// Looks for the segments anew.
    pub(super) fn look(&mut self) -> Result<(), JournalError> {
        self.found.clear();
        self.trouble = None;
        let listed = self.disk.list(self.journal);
        let in_journal = listed.map_err(|e| JournalError::io("listing", self.journal, e))?;
        for name in in_journal {
            self.add(self.journal, &name)?;
        }
        // A segment moves from the journal to the archive, never back.
        match self.disk.list(self.archive) {
            Ok(names) => names.iter().try_for_each(|name| self.add(self.archive, name)),
            Err(error) => {
                let (kind, dir) = (error.kind(), self.archive.display().to_string());
                let why = of_link(error, self.archive).to_string();
                self.trouble = match kind {
                    io::ErrorKind::NotFound if !self.archive.is_symlink() => None,
                    io::ErrorKind::NotADirectory if !self.archive.is_symlink() => {
                        Some(format!("{dir} is no directory"))
                    }
                    _ if why.contains(&dir) => Some(why),
                    _ => Some(format!("{dir} cannot be listed: {why}")),
                };
                Ok(())
            }
        }
    }

    fn add(&mut self, dir: &Path, name: &str) -> Result<(), JournalError> {
        let Some(number) = segment_number(name) else { return Ok(()) };
        if matches!(self.found.get(&number), Some(ShelfFile { head: ShelfHead::Begun(_), .. })) {
            return Ok(());
        }
        let path = segment_path(dir, number);
        // It may have been moved, or be no file.
        let Ok(file) = self.disk.open(&path) else { return Ok(()) };
        let head = SegmentHeader::read(&*file, number);
        let head = match head.map_err(|e| JournalError::io("reading", &path, e))? {
            FoundHeader::Valid(head) if head.salt == self.salt => ShelfHead::Begun(head),
            FoundHeader::Valid(_) => ShelfHead::Foreign,
            FoundHeader::Absent => ShelfHead::Absent,
            FoundHeader::Newer(found) => {
                return Err(JournalError::NewerFormat { path, found, known: VERSION });
            }
        };
        self.found.insert(number, ShelfFile { path, head });
        Ok(())
    }

    /// Returns the segments that were begun, in order.
    pub(super) fn begun(&self) -> impl DoubleEndedIterator<Item = &SegmentHeader> {
        self.found.values().filter_map(ShelfFile::begun)
    }

    /// Returns those with a greater number.
    pub(super) fn begun_behind(&self, number: u64) -> impl Iterator<Item = &SegmentHeader> {
        self.found.range(number + 1..).filter_map(|(_, file)| file.begun())
    }

    /// Returns the numbers of all files with a greater one.
    pub(super) fn numbers_behind(&self, number: u64) -> impl Iterator<Item = u64> {
        self.found.range(number + 1..).map(|(number, _)| *number)
    }

    /// Returns the files in the archive that have no header, although only segments that were begun
    /// go there.
    pub(super) fn headless(&self, range: RangeTo<u64>) -> impl Iterator<Item = &Path> {
        let files = self.found.range(range).map(|(_, file)| file);
        let headless = files.filter(|file| matches!(file.head, ShelfHead::Absent));
        headless.map(|file| file.path.as_path()).filter(|path| path.starts_with(self.archive))
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.found.contains_key(&number)
    }

    pub(super) fn head(&self, number: u64) -> Option<&SegmentHeader> {
        self.found.get(&number)?.begun()
    }

    /// Returns the path of a segment, or where it should be: dropped ones are in the archive.
    pub(super) fn path(&self, number: u64, floor: &JournalFloor) -> PathBuf {
        let is_dropped = number < floor.first_segment;
        let home = if is_dropped { self.archive } else { self.journal };
        self.found.get(&number).map_or_else(|| segment_path(home, number), |file| file.path.clone())
    }

    /// Opens a segment; `None`: it is not there any more.
    pub(super) fn open(&self, number: u64) -> Result<Option<Arc<dyn File>>, JournalError> {
        let Some(ShelfFile { path, .. }) = self.found.get(&number) else { return Ok(None) };
        // It may have moved to the archive meanwhile.
        let archived = segment_path(self.archive, number);
        let opened = self.disk.open(path).or_else(|_| self.disk.open(&archived));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) if self.trouble.is_some() => Ok(None),
            opened => opened.map(Some).map_err(|e| JournalError::io("opening", path, e)),
        }
    }
}

impl ShelfFile {
    fn begun(&self) -> Option<&SegmentHeader> {
        match &self.head {
            ShelfHead::Begun(head) => Some(head),
            ShelfHead::Absent | ShelfHead::Foreign => None,
        }
    }
}
