//! Appending: a commit is laid out and its checksums computed outside the lock, and written with
//! one call per part under the lock.

use std::io::IoSlice;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::disk::write_zeros;
use super::local::{ClosedSegment, Current, LocalShared, Writer, lock};
use super::record::{ALIGN, HEADER, RecordHeader, RecordKind, record_len};
use super::room::GRANTED;
use super::segment::{
    FIRST_RECORD, SEGMENT_HEADER, SegmentHeader, ShardSpans, prepare_segment, segment_path,
};
use super::{JournalError, Lsn, Options};

/// A commit, laid out in parts.
pub(super) struct Commit<'a> {
    pub(super) time_ms: u64,
    pub(super) shards: &'a [u16],
    pub(super) shard_bytes: Vec<u8>,
    pub(super) parts: Vec<CommitPart<'a>>,
}

pub(super) struct CommitPart<'a> {
    pub(super) slices: Vec<&'a [u8]>,
    pub(super) body_len: u32,
    pub(super) body_crc: u32,
    /// Length of the record, padding included.
    pub(super) len: u64,
}

const PADDING: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// Bytes of a page of the system's page cache.
const PAGE: u64 = 4096;

const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Returns the number of zeros to add to a write from `offset` to `end`: up to the end of the last
/// page, if the write begins that page. Otherwise the system would have to read the page first, to
/// keep its old bytes of a reused segment.
fn page_rest(offset: u64, end: u64, size: u64) -> u64 {
    let page = end / PAGE * PAGE;
    if page < offset || page == end {
        return 0;
    }
    (page + PAGE).min(size) - end
}

impl<'a> Commit<'a> {
    pub(super) fn new(
        time_ms: u64,
        shards: &'a [u16],
        body: &[&'a [u8]],
        max_part: usize,
    ) -> Result<Self, JournalError> {
        if 2 * shards.len() > max_part || shards.len() > usize::from(u16::MAX) {
            return Err(JournalError::TooLarge("too many shards for a segment"));
        }
        let shard_bytes: Vec<u8> = shards.iter().flat_map(|shard| shard.to_le_bytes()).collect();
        let mut parts = Vec::with_capacity(1);
        let mut part = CommitPart::default();
        for mut rest in body.iter().copied().filter(|slice| !slice.is_empty()) {
            while !rest.is_empty() {
                let room = max_part - part.body_len as usize;
                if room == 0 {
                    parts.push(std::mem::take(&mut part).seal(&shard_bytes));
                    continue;
                }
                let (slice, behind) = rest.split_at(rest.len().min(room));
                part.slices.push(slice);
                part.body_len += slice.len() as u32; // at most `max_part`
                rest = behind;
            }
        }
        parts.push(part.seal(&shard_bytes));
        if u32::try_from(parts.len()).is_err() {
            return Err(JournalError::TooLarge("too many parts"));
        }
        Ok(Self { time_ms, shards, shard_bytes, parts })
    }

    /// Returns the length of its records.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    /// Returns how many segments it begins if `room` bytes are left in the current one.
    fn segments_needed(&self, mut room: u64, segment_bytes: u64) -> usize {
        let mut needed = 0;
        for part in &self.parts {
            if part.len > room {
                needed += 1;
                room = segment_bytes - FIRST_RECORD;
            }
            room -= part.len;
        }
        needed
    }
}

impl Default for CommitPart<'_> {
    fn default() -> Self {
        Self { slices: Vec::with_capacity(1), body_len: 0, body_crc: 0, len: 0 }
    }
}

impl CommitPart<'_> {
    fn seal(mut self, shard_bytes: &[u8]) -> Self {
        self.len = record_len(shard_bytes.len() / 2, u64::from(self.body_len));
        let crc = self
            .slices
            .iter()
            .fold(crc32c::crc32c(shard_bytes), |crc, slice| crc32c::crc32c_append(crc, slice));
        self.body_crc = crc32c::crc32c_append(crc, self.padding(shard_bytes));
        self
    }

    pub(super) fn padding(&self, shard_bytes: &[u8]) -> &'static [u8] {
        let used = HEADER + shard_bytes.len() + self.body_len as usize;
        &PADDING[..used.next_multiple_of(ALIGN as usize) - used]
    }
}

impl LocalShared {
    pub(super) fn append(
        &self,
        time_ms: u64,
        shards: &[u16],
        body: &[&[u8]],
    ) -> Result<Lsn, JournalError> {
        let appended = self.try_append(time_ms, shards, body);
        match &appended {
            Ok(_) => self.note_append(),
            Err(error) => self.note_refusal(error),
        }
        appended
    }

    fn try_append(
        &self,
        time_ms: u64,
        shards: &[u16],
        body: &[&[u8]],
    ) -> Result<Lsn, JournalError> {
        let commit = Commit::new(time_ms, shards, body, self.options.max_part())?;
        let mut writer = self.lock_for(&commit)?;
        let spares = writer.spares.len();
        let result = self.write_commit(&mut writer, &commit);
        let switched = writer.spares.len() != spares;
        let appended = writer.appended_bytes;
        drop(writer);
        if switched {
            self.request_upkeep();
        }
        match &result {
            Ok(_) if appended >= self.wake_at.load(Ordering::SeqCst) => self.notify_sync(),
            Err(_) if self.failed.get().is_some() => {
                self.progress.notify_all();
                self.announce();
            }
            _ => {}
        }
        result
    }

    /// Locks the writer when it may write `commit`: not stalled, and with enough segments ready, so
    /// that a lack of space is noticed before anything is written.
    fn lock_for(&self, commit: &Commit<'_>) -> Result<MutexGuard<'_, Writer>, JournalError> {
        let mut has_room = false;
        loop {
            let mut writer = self.lock_unstalled()?;
            let room = writer.current.size - writer.current.offset;
            let needed = commit.segments_needed(room, self.options.segment_bytes);
            let missing = needed.saturating_sub(writer.spares.len());
            if missing == 0 && (has_room || writer.is_granted(commit)) {
                if has_room {
                    writer.grant(commit);
                }
                return Ok(writer);
            }
            drop(writer);
            self.make_room(commit.bytes() + GRANTED, needed, missing)
                .inspect_err(|e| self.refuse(e))?;
            has_room = true;
        }
    }

    /// Looks for room for so many bytes, and prepares segments until `needed` are ready, of which so many are
    /// missing.
    fn make_room(&self, bytes: u64, needed: usize, missing: usize) -> Result<(), JournalError> {
        if missing == 0 {
            return self.check_room(bytes, 0);
        }
        if let Some(error) = self.recent_full() {
            return Err(error);
        }
        self.check_room(bytes, missing)?;
        self.prepare_up_to(needed, 0)
    }

    /// Notes that there is no space for a commit.
    #[cold]
    fn refuse(&self, error: &JournalError) {
        // Not if only that commit is too large.
        if !self.has_room() {
            self.remove_spares();
            self.note_full(error);
        }
        self.request_upkeep();
    }

    /// Prepares segments until `wanted` are ready, if the disk has room for so many beside them.
    pub(super) fn prepare_up_to(&self, wanted: usize, beside: usize) -> Result<(), JournalError> {
        let mut preparing = lock(&self.preparing);
        let disk = &*self.options.disk;
        loop {
            let missing = wanted.saturating_sub(lock(&self.writer).spares.len());
            if missing == 0 {
                break;
            }
            let number = preparing.next_number;
            let prepared = self.check_room(0, missing + beside).and_then(|()| {
                prepare_segment(disk, &self.dir, number, self.options.segment_bytes)
            });
            match prepared {
                Ok(file) => lock(&self.writer).spares.push_back((number, file)),
                Err(error) => {
                    // A commit too large for the disk releases the segments prepared for it.
                    let mut writer = lock(&self.writer);
                    let kept = writer.spares.len().min(*Options::SPARES.start());
                    let surplus = writer.spares.split_off(kept);
                    drop(writer);
                    // It may be just too little for one ahead of its use.
                    let is_ahead = beside > 0 && matches!(error, JournalError::NoRoom { .. });
                    if kept == 0 && !is_ahead {
                        self.note_full(&error);
                    }
                    for (number, _) in surplus {
                        // A segment that cannot be removed now is removed at the next start.
                        let _ = disk.remove(&segment_path(&self.dir, number));
                    }
                    return Err(error);
                }
            }
            preparing.next_number += 1;
        }
        self.note_room();
        Ok(())
    }

    fn write_commit(&self, writer: &mut Writer, commit: &Commit<'_>) -> Result<Lsn, JournalError> {
        let lsn = writer.last + 1;
        // Taken before the write: a sync that starts later covers it, so that the age is never
        // underestimated.
        let now = writer.dirty_since.is_none().then(Instant::now);
        let time_ms = writer.max_time_ms.max(commit.time_ms);
        let mut placed: Vec<(u64, u64)> = Vec::with_capacity(1);
        for (index, part) in commit.parts.iter().enumerate() {
            if part.len > writer.current.size - writer.current.offset {
                self.switch(writer)?;
            }
            let mut header = RecordHeader {
                crc: 0,
                body_len: part.body_len,
                shard_count: commit.shards.len() as u16, // checked by `Commit::new`
                kind: RecordKind::Commit,
                epoch: self.epoch,
                lsn,
                time_ms: commit.time_ms,
                durable: self.durable.load(Ordering::Acquire),
                prev_crc: writer.chain_crc,
                part: index as u32 + 1, // checked by `Commit::new`
                parts: commit.parts.len() as u32,
                body_crc: part.body_crc,
            };
            self.write_part(writer, &mut header, part, &commit.shard_bytes)?;
            placed.push((writer.current.number, part.len));
        }
        for &(number, bytes) in &placed {
            writer.spans_of(number).add(commit.shards, lsn, bytes);
            writer.appended_bytes += bytes;
        }
        writer.dirty_since = writer.dirty_since.or(now);
        (writer.last, writer.max_time_ms) = (lsn, time_ms);
        writer.appends += 1;
        self.end.store(lsn, Ordering::SeqCst);
        Ok(lsn)
    }

    /// Writes one part behind the last record. After an error its bytes are wiped; parts before it
    /// stay, and recovery skips them as an unfinished commit.
    fn write_part(
        &self,
        writer: &mut Writer,
        header: &mut RecordHeader,
        part: &CommitPart<'_>,
        shard_bytes: &[u8],
    ) -> Result<(), JournalError> {
        let head = header.encode(self.salt);
        let mut slices = Vec::with_capacity(part.slices.len() + 4);
        slices.extend([IoSlice::new(&head), IoSlice::new(shard_bytes)]);
        slices.extend(part.slices.iter().map(|slice| IoSlice::new(slice)));
        slices.push(IoSlice::new(part.padding(shard_bytes)));
        let current = &mut writer.current;
        let rest = page_rest(current.offset, current.offset + part.len, current.size);
        slices.push(IoSlice::new(&ZEROS[..rest as usize])); // less than a page
        if let Err(error) = current.file.write_all_at(&mut slices, current.offset) {
            let path = segment_path(&self.dir, current.number);
            if let Err(wipe) = write_zeros(&*current.file, current.offset, part.len) {
                self.fail(format!(
                    "writing {}: {error}; and wiping what was written: {wipe}",
                    path.display()
                ));
            }
            return Err(JournalError::io("writing", &path, error));
        }
        current.offset += part.len;
        writer.chain_crc = header.crc;
        Ok(())
    }

    /// Switches to the next prepared segment.
    fn switch(&self, writer: &mut Writer) -> Result<(), JournalError> {
        // `lock_for` ensured that there is one.
        let Some((number, file)) = writer.spares.front().cloned() else {
            return Err(JournalError::NoSpace { path: self.dir.clone() });
        };
        let header = SegmentHeader {
            number,
            epoch: self.epoch,
            first_lsn: writer.last + 1,
            prev_number: writer.current.number,
            prev_epoch: self.epoch,
            prev_lsn: writer.last,
            prev_crc: writer.chain_crc,
            salt: self.salt,
            durable: self.durable.load(Ordering::Acquire),
            time_ms: writer.max_time_ms,
            size: self.options.segment_bytes,
        };
        if let Err(error) = header.write(&*file) {
            let path = segment_path(&self.dir, number);
            if let Err(wipe) = write_zeros(&*file, 0, SEGMENT_HEADER as u64) {
                self.fail(format!("beginning {}: {error}; and wiping: {wipe}", path.display()));
            }
            return Err(JournalError::io("beginning", &path, error));
        }
        writer.spares.pop_front();
        let next = Current {
            number,
            file,
            size: self.options.segment_bytes,
            offset: FIRST_RECORD,
            flushed_to: FIRST_RECORD,
            first_lsn: writer.last + 1,
            spans: ShardSpans::default(),
        };
        let full = std::mem::replace(&mut writer.current, next);
        writer.unsynced.push(full.file);
        writer.closed.push_back(ClosedSegment {
            number: full.number,
            used: full.offset,
            first_lsn: full.first_lsn,
            last: writer.last,
            spans: full.spans,
        });
        Ok(())
    }

    /// Writes a mark at the end of the journal that everything is durable, which it must be:
    /// without it, rot in the last commits could not be told from a torn write. Skipped if there is
    /// no room.
    pub(super) fn write_mark(&self, writer: &mut Writer) -> Result<(), JournalError> {
        let part = CommitPart::default().seal(&[]);
        if part.len > writer.current.size - writer.current.offset {
            return Ok(());
        }
        let mut header = RecordHeader {
            crc: 0,
            body_len: 0,
            shard_count: 0,
            kind: RecordKind::Mark,
            epoch: self.epoch,
            lsn: writer.last,
            time_ms: writer.max_time_ms,
            durable: writer.last,
            prev_crc: writer.chain_crc,
            part: 0,
            parts: 0,
            body_crc: part.body_crc,
        };
        self.write_part(writer, &mut header, &part, &[])
    }
}

impl Writer {
    /// Returns the spans of a segment that holds a part of the commit being written.
    fn spans_of(&mut self, number: u64) -> &mut ShardSpans {
        let closed = self.closed.iter_mut().rev().find(|segment| segment.number == number);
        closed.map_or(&mut self.current.spans, |segment| &mut segment.spans)
    }
}
