//! Drops segments that are not needed any more, and keeps prepared ones ready, outside of the path
//! of appends.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::disk::Disk;
use super::floor::JournalFloor;
use super::local::{ClosedSegment, LocalShared, Preparing, Writer, lock};
use super::segment::segment_path;
use super::{JournalError, Lsn, Options};

/// Pause before another try after a failure such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// Most dropped segments that wait for an archive that does not take them: the oldest ones beyond are deleted.
const MOST_LEFT: usize = 32;

/// Bytes that are copied at a time into an archive on another disk.
const COPIED: usize = 1 << 20;

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
            let prepared = self.prepare_up_to(Options::READY, 1);
            failing = recycled.is_err() || prepared.is_err() || self.refusing().1;
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
        if count == 0 && preparing.left.is_empty() {
            return Ok(());
        }
        let most = self.most_spares();
        let (numbers, surplus, mut wanted) = {
            let mut writer = lock(&self.writer);
            let mut numbers = Vec::from(std::mem::take(&mut preparing.left));
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
            if done.is_err() {
                preparing.left.push_back(number);
            }
            outcome = outcome.and(done);
        }
        self.give_up(&mut preparing.left);
        outcome
    }

    /// Deletes the oldest of too many dropped segments that the archive does not take: the disk must not fill up
    /// because of it.
    fn give_up(&self, left: &mut VecDeque<u64>) {
        while left.len() > MOST_LEFT
            && let Some(oldest) = left.front()
            && self.remove(*oldest).is_ok()
        {
            let segment = segment_path(&self.dir, *oldest);
            tracing::error!(
                segment = %segment.display(),
                "deleted without having been archived, as the archive has taken none for long: \
                 no moment in it can be restored"
            );
            left.pop_front();
        }
        self.left.store(left.len(), Ordering::Relaxed);
    }

    /// Makes a spare of the dropped segment `number`; returns false if it had to be deleted because
    /// its size is not the present one. Its contents are never taken for valid: its header has
    /// another number, and its records have smaller lsns.
    fn reuse(&self, number: u64, preparing: &mut Preparing) -> Result<bool, JournalError> {
        let disk = &self.options.disk;
        let path = segment_path(&self.dir, number);
        let failed = |error| JournalError::io("recycling", &path, error);
        let file = match disk.open(&path) {
            // An earlier try got that far.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file.map_err(failed)?,
        };
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
        match self.options.disk.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| JournalError::io("removing", &path, e)),
        }
    }
}

/// Moves a dropped segment to the archive.
pub(super) fn archive_segment(
    disk: &dyn Disk,
    dir: &Path,
    archive: &Path,
    number: u64,
) -> Result<(), JournalError> {
    let (path, target) = (segment_path(dir, number), segment_path(archive, number));
    let moved = disk.create_dir(archive).and_then(|()| {
        match disk.rename(&path, &target) {
            // An earlier try got that far.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(disk.open(&target)?),
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                copy(disk, &path, &target)?;
                disk.sync_dir(archive)?;
                disk.remove(&path)?;
            }
            renamed => renamed?,
        }
        disk.sync_dir(archive)?;
        disk.sync_dir(dir)
    });
    moved.map_err(|e| JournalError::io("archiving", &path, e))
}

/// Copies a file to another disk, where it gets its name when it is whole and durable.
fn copy(disk: &dyn Disk, path: &Path, target: &Path) -> io::Result<()> {
    let begun = target.with_extension("tmp");
    let (from, to) = (disk.open(path)?, disk.create(&begun)?);
    let (size, mut at) = (from.size()?, 0);
    let mut buffer = vec![0; COPIED];
    while at < size {
        let len = usize::try_from(size - at).unwrap_or(COPIED).min(COPIED);
        from.read_exact_at(&mut buffer[..len], at)?;
        to.write_all_at(&mut [IoSlice::new(&buffer[..len])], at)?;
        at += len as u64;
    }
    to.sync()?;
    disk.rename(&begun, target)
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
