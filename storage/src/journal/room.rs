//! Room on the disk that the journal leaves to the engines.
//!
//! The engines write the rows of the journal into files of their own before its segments can be dropped.
//! If the journal took the last of the disk they could not, and the disk would stay full even after all
//! data was deleted. So commits are refused unless the disk has room for the rows of all that engines have
//! not flushed yet. Merges leave that room, too. While there is not room for a segment more, workers refuse
//! commands that may add data: the rest is for those that remove some.

use super::append::Commit;
use super::local::{LocalShared, Writer, lock};
use super::{JournalError, Options};

/// Part of the bytes of rows in the journal that files may need beyond them: for keys, filters and indexes.
const FILES_NEED: u64 = 4;

/// Bytes of commits for which room is looked for at once.
pub(super) const GRANTED: u64 = 1 << 20;

/// Segments for which there has to be room beside the rows: with less, the disk is short of room, until there is
/// enough.
const SHORT: usize = 1;
pub(super) const ENOUGH: usize = 2;

/// Part of the free bytes that prepared segments may take.
const FOR_SPARES: u64 = 4;

/// Returns the bytes that files of engines may need for so many bytes of records.
pub(crate) fn files_of(records: u64) -> u64 {
    records + records / FILES_NEED
}

impl Writer {
    /// Returns an upper bound of the bytes of records that engines have not flushed.
    pub(super) fn unflushed(&self) -> u64 {
        let closed = self.closed.iter().map(|segment| (&segment.spans, segment.used));
        let current = (&self.current.spans, self.current.offset - self.current.flushed_to);
        let held =
            closed.chain([current]).filter(|(spans, _)| spans.held(&self.flushed).next().is_some());
        held.map(|(_, bytes)| bytes).sum()
    }

    /// Notes where the current segment ends if engines have flushed all of it.
    pub(super) fn note_flushed(&mut self) {
        if self.current.spans.held(&self.flushed).next().is_none() {
            self.current.flushed_to = self.current.offset;
        }
    }

    /// Returns true if room for a commit was looked for already.
    pub(super) fn is_granted(&self, commit: &Commit<'_>) -> bool {
        self.appended_bytes + commit.bytes() <= self.granted
    }

    /// Notes that there is room for a commit, and some more.
    pub(super) fn grant(&mut self, commit: &Commit<'_>) {
        self.granted = self.appended_bytes + commit.bytes() + GRANTED;
    }
}

impl LocalShared {
    /// Returns the free bytes of the disk, if it is also that of the engines.
    fn free(&self) -> Option<u64> {
        self.options.leaves_room.then(|| self.options.disk.free(&self.dir)).flatten()
    }

    /// Checks that engines have room for what the journal holds and so many bytes more, beside so many new
    /// segments.
    pub(super) fn check_room(&self, bytes: u64, segments: usize) -> Result<(), JournalError> {
        let Some(free) = self.free() else { return Ok(()) };
        let rows = lock(&self.writer).unflushed() + bytes;
        let needed = files_of(rows) + segments as u64 * self.options.segment_bytes;
        if free >= needed {
            return Ok(());
        }
        Err(JournalError::NoRoom { path: self.dir.clone(), free })
    }

    /// Returns true if there is room for usual commits.
    pub(super) fn has_room(&self) -> bool {
        self.check_room(GRANTED, 0).is_ok()
    }

    /// Looks whether the disk has hardly room for more than engines have yet to flush, notes and returns it. The
    /// reserve is for deletions, and for the merges that free the space of what was deleted.
    pub(super) fn look_for_room(&self) -> bool {
        let is_refusing = self.refusing().1;
        let Err(error) = self.check_room(0, if is_refusing { ENOUGH } else { SHORT }) else {
            return false;
        };
        self.remove_spares();
        if !is_refusing && self.check_room(0, SHORT).is_ok() {
            return false;
        }
        if !is_refusing {
            self.note_short(&error);
            // It looks for room again each second.
            self.request_upkeep();
        }
        true
    }

    /// Returns how many spares may be kept.
    pub(super) fn most_spares(&self) -> usize {
        let (least, most) = (*Options::SPARES.start(), *Options::SPARES.end());
        let room = self.free().map(|free| free / FOR_SPARES / self.options.segment_bytes);
        room.and_then(|room| usize::try_from(room).ok())
            .map_or(most, |room| room.clamp(least, most))
    }

    /// Removes the prepared segments: they are made again where there is room.
    pub(super) fn remove_spares(&self) {
        let spares = std::mem::take(&mut lock(&self.writer).spares);
        for (number, _) in spares {
            // One that cannot be removed now is removed at the next start.
            let _ = self.remove(number);
        }
    }
}
