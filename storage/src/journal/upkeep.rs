//! Drops segments that are not needed any more, and keeps prepared ones ready, outside of the path
//! of appends.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::disk::Disk;
use super::floor::JournalFloor;
use super::local::{ClosedSegment, LocalShared, Preparing, Writer, lock};
use super::segment::segment_path;
use super::{JournalError, Lsn, Options};

/// Pause before another try after a failure such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

impl LocalShared {
    /// Runs the upkeep thread.
    pub(super) fn run_upkeep(&self) {
        let (mut failing, mut told) = (false, false);
        while self.await_upkeep(failing) {
            let recycled = self.recycle();
            // A lack of space is logged when a write is refused for it.
            let is_trouble = !matches!(
                recycled,
                Ok(()) | Err(JournalError::NoSpace { .. } | JournalError::NoRoom { .. })
            );
            if let (Err(error), false) = (&recycled, told || !is_trouble) {
                tracing::warn!(%error, "journal segments cannot be dropped; trying again");
            }
            told = is_trouble;
            let prepared = recycled.and_then(|()| self.prepare_up_to(Options::READY, 1));
            failing = prepared.is_err() || self.refusing().1;
        }
    }

    /// Waits for work; returns false if the thread must end.
    fn await_upkeep(&self, failing: bool) -> bool {
        let mut due = lock(&self.upkeep_due);
        let mut retry = false;
        while !due.stop && !due.due && !retry {
            due = if failing {
                retry = true;
                let waited = self.wake_upkeep.wait_timeout(due, RETRY);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.wake_upkeep.wait(due).unwrap_or_else(PoisonError::into_inner)
            };
        }
        due.due = false;
        !due.stop
    }

    pub(super) fn request_upkeep(&self) {
        lock(&self.upkeep_due).due = true;
        self.wake_upkeep.notify_all();
    }

    pub(super) fn flushed(&self, shard: u16, applied: Lsn) {
        let droppable = {
            let mut writer = lock(&self.writer);
            let at = usize::from(shard);
            if writer.flushed.len() <= at {
                writer.flushed.resize(at + 1, 0);
            }
            writer.flushed[at] = writer.flushed[at].max(applied);
            writer.note_flushed();
            writer.break_oversized_holds();
            writer.droppable() > 0
        };
        if droppable {
            self.request_upkeep();
        }
    }

    /// Notes the newest segment. Drops unneeded segments: raises the floor durably, then makes
    /// spares of them, or deletes those beyond the number of spares, and spares that were not
    /// needed.
    fn recycle(&self) -> Result<(), JournalError> {
        let mut preparing = lock(&self.preparing);
        let (floor, count) = {
            let mut writer = lock(&self.writer);
            let count = writer.droppable();
            let floor = writer.floor_without(count, &preparing.floor);
            // A hold from now on does not keep them.
            writer.dropped = floor.dropped;
            (floor, count)
        };
        if floor != preparing.floor {
            floor.write(&*self.options.disk, &self.dir)?;
            preparing.floor = floor;
        }
        if count == 0 {
            return Ok(());
        }
        let most = self.most_spares();
        let (numbers, surplus, mut wanted) = {
            let mut writer = lock(&self.writer);
            let mut numbers = Vec::new();
            while let Some(oldest) = writer.closed.front() {
                if oldest.number >= preparing.floor.first_segment {
                    break;
                }
                numbers.push(oldest.number);
                writer.closed.pop_front();
            }
            let kept = numbers.len().clamp(*Options::SPARES.start(), most);
            let ready = writer.spares.len().min(kept);
            (numbers, writer.spares.split_off(ready), kept - ready)
        };
        let mut outcome = surplus.into_iter().try_for_each(|(number, _)| self.remove(number));
        for number in numbers {
            let done = if self.options.archive.is_some() {
                self.archive(number)
            } else if wanted > 0 {
                self.reuse(number, &mut preparing).map(|reused| wanted -= usize::from(reused))
            } else {
                self.remove(number)
            };
            // A segment that cannot be removed now is removed at the next start.
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Makes a spare of the dropped segment `number`; returns false if it had to be deleted because
    /// its size is not the present one. Its contents are never taken for valid: its header has
    /// another number, and its records have smaller lsns.
    fn reuse(&self, number: u64, preparing: &mut Preparing) -> Result<bool, JournalError> {
        let disk = &self.options.disk;
        let path = segment_path(&self.dir, number);
        let failed = |error| JournalError::io("recycling", &path, error);
        let file = disk.open(&path).map_err(failed)?;
        if file.size().map_err(failed)? != self.options.segment_bytes {
            return self.remove(number).map(|()| false);
        }
        let next = preparing.next_number;
        preparing.next_number += 1;
        disk.rename(&path, &segment_path(&self.dir, next)).map_err(failed)?;
        disk.sync_dir(&self.dir).map_err(failed)?;
        lock(&self.writer).spares.push_back((next, Arc::clone(&file)));
        Ok(true)
    }

    fn archive(&self, number: u64) -> Result<(), JournalError> {
        match &self.options.archive {
            Some(archive) => archive_segment(&*self.options.disk, &self.dir, archive, number),
            None => Ok(()),
        }
    }

    pub(super) fn remove(&self, number: u64) -> Result<(), JournalError> {
        let path = segment_path(&self.dir, number);
        self.options.disk.remove(&path).map_err(|e| JournalError::io("removing", &path, e))
    }
}

/// Moves a dropped segment to the archive.
pub(super) fn archive_segment(
    disk: &dyn Disk,
    dir: &Path,
    archive: &Path,
    number: u64,
) -> Result<(), JournalError> {
    let path = segment_path(dir, number);
    let moved = disk.create_dir(archive).and_then(|()| {
        disk.rename(&path, &segment_path(archive, number))?;
        disk.sync_dir(archive)?;
        disk.sync_dir(dir)
    });
    moved.map_err(|e| JournalError::io("archiving", &path, e))
}

impl Writer {
    /// Returns how many of the oldest segments hold nothing that is needed and have a durably begun
    /// successor.
    fn droppable(&self) -> usize {
        let free = |spans: &super::segment::ShardSpans| spans.held(&self.flushed).next().is_none();
        let segments = self.closed.iter();
        let unneeded = |s: &&ClosedSegment| free(&s.spans) && !self.holds.keeps(s.last);
        segments.take_while(|s| s.number < self.synced_segment && unneeded(s)).count()
    }

    /// Returns the floor after dropping the first `count` segments.
    fn floor_without(&self, count: usize, before: &JournalFloor) -> JournalFloor {
        let mut floor = before.clone();
        floor.newest_segment = before.newest_segment.max(self.synced_segment);
        if count > 0 {
            let next = self.closed.get(count).map(|segment| segment.number);
            floor.first_segment = next.unwrap_or(self.current.number);
        }
        for segment in self.closed.iter().take(count) {
            // Its last commit may go on in the next segment: without its beginning it is gone, too.
            floor.dropped = floor.dropped.max(segment.last).max(segment.spans.newest());
            for (shard, lsn) in segment.spans.last() {
                let entry = floor.shards.entry(shard).or_insert(0);
                *entry = lsn.max(*entry);
            }
        }
        floor
    }
}
