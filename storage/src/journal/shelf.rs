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
    /// It cannot be read, for this reason. Only in the archive, where that is a gap like others: what is missing
    /// may not even be asked for.
    Unreadable(String),
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
        let is_archived = dir == self.archive;
        let read = match self.disk.open(&path) {
            Ok(file) => SegmentHeader::read(&*file, number),
            // It may have been moved, or be no file.
            Err(error) if is_no_segment(&error) => return Ok(()),
            Err(error) if is_archived => Err(error),
            Err(error) => return Err(JournalError::io("opening", &path, error)),
        };
        let head = match read {
            Ok(FoundHeader::Valid(head)) if head.salt == self.salt => ShelfHead::Begun(head),
            Ok(FoundHeader::Valid(_)) => ShelfHead::Foreign,
            Ok(FoundHeader::Absent) => ShelfHead::Absent,
            Ok(FoundHeader::Newer(found)) => {
                return Err(JournalError::NewerFormat { path, found, known: VERSION });
            }
            Err(error) if is_archived => ShelfHead::Unreadable(error.to_string()),
            Err(error) => return Err(JournalError::io("reading", &path, error)),
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
    /// go there, and what is wrong with each.
    pub(super) fn headless(&self, range: RangeTo<u64>) -> impl Iterator<Item = (&Path, String)> {
        let archived = self.found.range(range).map(|(_, file)| file);
        let archived = archived.filter(|file| file.path.starts_with(self.archive));
        archived.filter_map(|file| {
            let what = match &file.head {
                ShelfHead::Absent => "its header is damaged".to_owned(),
                ShelfHead::Unreadable(why) => format!("it cannot be read: {why}"),
                ShelfHead::Begun(_) | ShelfHead::Foreign => return None,
            };
            Some((file.path.as_path(), what))
        })
    }

    /// Returns the reason why a segment in the archive cannot be read.
    pub(super) fn unreadable(&self, number: u64) -> Option<&str> {
        match &self.found.get(&number)?.head {
            ShelfHead::Unreadable(why) => Some(why),
            _ => None,
        }
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

    /// Opens a segment; `None`: it is not there any more, or it is in the archive and cannot be read, as
    /// [`unreadable`](Self::unreadable) says from then on.
    ///
    /// # Errors
    /// If it is in the journal, and cannot be opened.
    pub(super) fn open(&mut self, number: u64) -> Result<Option<Arc<dyn File>>, JournalError> {
        let Some(found) = self.found.get(&number) else { return Ok(None) };
        let (mut path, archived) = (found.path.clone(), segment_path(self.archive, number));
        let mut opened = self.disk.open(&path);
        if matches!(&opened, Err(error) if is_no_segment(error)) && path != archived {
            // It may have moved to the archive meanwhile.
            path = archived.clone();
            opened = self.disk.open(&path);
        }
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_no_segment(&error) => Ok(None),
            Err(error) if path == archived => {
                // Nothing is known of its contents: it is not said to be damaged.
                let head = ShelfHead::Unreadable(error.to_string());
                self.found.insert(number, ShelfFile { path, head });
                Ok(None)
            }
            Err(error) => Err(JournalError::io("opening", &path, error)),
        }
    }
}

impl ShelfFile {
    fn begun(&self) -> Option<&SegmentHeader> {
        match &self.head {
            ShelfHead::Begun(head) => Some(head),
            ShelfHead::Absent | ShelfHead::Foreign | ShelfHead::Unreadable(_) => None,
        }
    }
}

/// Returns true if nothing could be opened because no file is there, or has been moved.
fn is_no_segment(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory)
}
