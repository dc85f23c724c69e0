//! The commits of a recovered journal, in order.

use super::{Recovery, Scanned};
use crate::journal::scan::{Met, SegmentWalk};
use crate::journal::{CommitPiece, JournalError, Lsn};

/// Reads the commits of a recovered journal.
pub(in crate::journal) struct LocalPieces<'a> {
    recovery: &'a Recovery,
    from: Lsn,
    /// Index of the segment to read next.
    next: usize,
    walk: Option<(&'a Scanned, SegmentWalk)>,
    /// True if the commit that is being read is complete.
    passes: bool,
}

impl LocalPieces<'_> {
    pub(in crate::journal) fn next(&mut self) -> Result<Option<CommitPiece>, JournalError> {
        loop {
            let Some((segment, walk)) = &mut self.walk else {
                if !self.enter()? {
                    return Ok(None);
                }
                continue;
            };
            let number = segment.header.number;
            let path = || self.recovery.path(number);
            let step = walk.next().map_err(|e| JournalError::io("reading", &path(), e))?;
            let Some(step) = step else {
                if walk.offset != segment.end {
                    let reason = "the segment changed while it was read";
                    return Err(JournalError::corrupt(path(), walk.offset, reason));
                }
                self.walk = None;
                continue;
            };
            let Met::Part { first, last } = step.met else { continue };
            if first {
                self.passes = !self.recovery.unfinished.contains(&(number, step.offset));
            }
            if self.passes && step.header.lsn >= self.from {
                return Ok(Some(CommitPiece { record: step.record(), first, last }));
            }
        }
    }

    /// Opens the next segment that is needed; returns false if there is none.
    fn enter(&mut self) -> Result<bool, JournalError> {
        let recovery = self.recovery;
        // The commit behind a segment's last one may have its first parts in that segment.
        while let Some(segment) = recovery.segments.get(self.next) {
            self.next += 1;
            if segment.last + 1 < self.from {
                continue;
            }
            let number = segment.header.number;
            let file = recovery.open_file(number)?;
            let walk = SegmentWalk::new(&file, recovery.salt(), segment.entry)
                .map_err(|error| JournalError::io("reading", &recovery.path(number), error))?;
            self.walk = Some((segment, walk));
            return Ok(true);
        }
        Ok(false)
    }
}

impl Recovery {
    /// Returns the commits from the lsn `from` on, in order, and whole.
    pub(in crate::journal) fn pieces(&self, from: Lsn) -> LocalPieces<'_> {
        LocalPieces { recovery: self, from, next: 0, walk: None, passes: true }
    }
}
