//! Extracts: records of a journal, written as a journal of their own that a start can recover.
//!
//! Its segments are as long as their contents, and it has a salt of its own, so that no segment of
//! the original journal can be taken for one of it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, File};
use super::floor::JournalFloor;
use super::record::{ALIGN, HEADER, RecordHeader, RecordKind, record_len};
use super::segment::{FIRST_RECORD, SegmentHeader, segment_path};
use super::{JournalError, Lsn, Record};

/// Bytes of a segment from which on the next record begins a new one.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The greatest body of one part of a commit, in bytes.
const PART_BYTES: usize = 8 << 20;

/// See the module's description.
pub struct Extract {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    salt: u32,
    /// Records up to this lsn are left out.
    after: Lsn,
    open: Option<OpenSegment>,
    crc: u32,
    epoch: u64,
    last: Lsn,
    time_ms: u64,
    bytes: u64,
}

struct OpenSegment {
    number: u64,
    file: Arc<dyn File>,
    offset: u64,
}

impl Extract {
    /// Creates an extract in `dir`, which must be empty, for records behind `after`.
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: &Path,
        salt: u32,
        after: Lsn,
    ) -> Result<Self, JournalError> {
        disk.create_dir(dir).map_err(|e| JournalError::io("creating", dir, e))?;
        Ok(Self {
            disk,
            dir: dir.to_path_buf(),
            salt,
            after,
            open: None,
            crc: 0,
            epoch: 0,
            last: after,
            time_ms: 0,
            bytes: 0,
        })
    }

    /// Sets a lower bound of the journal's time: a start must not have an earlier one.
    pub fn at_least(&mut self, time_ms: u64) {
        self.time_ms = self.time_ms.max(time_ms);
    }

    /// Returns the last record's lsn, or the lsn behind which the extract begins.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Returns the greatest time of a record.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Adds a record, which must follow the one before; records up to `after` are skipped.
    pub fn push(&mut self, record: &Record) -> Result<(), JournalError> {
        if record.lsn <= self.last {
            return Ok(());
        }
        let full = self.open.as_ref().is_some_and(|open| open.offset >= SEGMENT_BYTES);
        let goes_on = record.epoch == self.epoch;
        if self.open.is_some() && goes_on && record.lsn != self.last + 1 {
            let reason =
                format!("records between lsn {} and lsn {} are missing", self.last, record.lsn);
            return Err(JournalError::corrupt(self.dir.clone(), 0, reason));
        }
        if self.open.is_none() || full || !goes_on {
            self.begin(record.epoch, record.lsn)?;
        }
        let shards: Vec<u8> = record.shards.iter().flat_map(|s| s.to_le_bytes()).collect();
        let mut bodies: Vec<&[u8]> = record.body.chunks(PART_BYTES).collect();
        if bodies.is_empty() {
            bodies.push(&[]);
        }
        let parts = bodies.len() as u32; // a body has far fewer
        for (part, body) in (1..).zip(bodies) {
            let len = record_len(record.shards.len(), body.len() as u64);
            let used = HEADER + shards.len() + body.len();
            let padding = vec![0; used.next_multiple_of(ALIGN as usize) - used];
            let body_crc = [body, &padding]
                .iter()
                .fold(crc32c::crc32c(&shards), |crc, bytes| crc32c::crc32c_append(crc, bytes));
            let header = RecordHeader {
                crc: 0,
                body_len: body.len() as u32, // at most `PART_BYTES`
                shard_count: record.shards.len() as u16, // as it was read
                kind: RecordKind::Commit,
                epoch: record.epoch,
                lsn: record.lsn,
                time_ms: record.time_ms,
                durable: self.last,
                prev_crc: self.crc,
                part,
                parts,
                body_crc,
            };
            self.write(header, &[&shards, body, &padding], len)?;
        }
        (self.epoch, self.last) = (record.epoch, record.lsn);
        self.time_ms = self.time_ms.max(record.time_ms);
        Ok(())
    }

    /// Marks `end` as the end, makes everything durable, and returns its bytes. `epoch` is the
    /// journal's: the end may be in an epoch without a record.
    pub fn finish(mut self, epoch: u64, end: Lsn) -> Result<u64, JournalError> {
        if self.open.is_none() || self.last < end {
            let epoch = epoch.max(self.epoch + 1);
            let end = end.max(self.last);
            self.begin(epoch, end + 1)?;
            (self.epoch, self.last) = (epoch, end);
        }
        let mark = RecordHeader {
            crc: 0,
            body_len: 0,
            shard_count: 0,
            kind: RecordKind::Mark,
            epoch: self.epoch,
            lsn: self.last,
            time_ms: self.time_ms,
            durable: self.last,
            prev_crc: self.crc,
            part: 0,
            parts: 0,
            body_crc: crc32c::crc32c(&[]),
        };
        self.write(mark, &[], HEADER as u64)?;
        self.close_segment()?;
        let newest_segment = self.open.as_ref().map_or(0, |open| open.number);
        let (dropped, salt, shards) = (self.after, self.salt, BTreeMap::new());
        let floor = JournalFloor { first_segment: 1, newest_segment, dropped, salt, shards };
        floor.write(&*self.disk, &self.dir)?;
        Ok(self.bytes)
    }

    /// Begins the next segment.
    fn begin(&mut self, epoch: u64, first_lsn: Lsn) -> Result<(), JournalError> {
        let before = self.open.as_ref().map_or(0, |open| open.number);
        self.close_segment()?;
        let number = before + 1;
        let header = SegmentHeader {
            number,
            epoch,
            first_lsn,
            prev_number: before,
            prev_epoch: self.epoch,
            prev_lsn: self.last,
            prev_crc: self.crc,
            salt: self.salt,
            durable: self.last,
            time_ms: self.time_ms,
            size: 0,
        };
        let path = segment_path(&self.dir, number);
        let begin = || -> io::Result<Arc<dyn File>> {
            let file = self.disk.create(&path)?;
            header.write(&*file)?;
            Ok(file)
        };
        let file = begin().map_err(|e| JournalError::io("beginning", &path, e))?;
        self.bytes += FIRST_RECORD;
        self.open = Some(OpenSegment { number, file, offset: FIRST_RECORD });
        Ok(())
    }

    fn close_segment(&mut self) -> Result<(), JournalError> {
        let Some(open) = &self.open else { return Ok(()) };
        let path = segment_path(&self.dir, open.number);
        open.file.sync().map_err(|e| JournalError::io("syncing", &path, e))
    }

    fn write(
        &mut self,
        mut header: RecordHeader,
        payload: &[&[u8]],
        len: u64,
    ) -> Result<(), JournalError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let head = header.encode(self.salt);
        let mut slices = vec![IoSlice::new(&head)];
        slices.extend(payload.iter().map(|bytes| IoSlice::new(bytes)));
        let path = segment_path(&self.dir, open.number);
        let written = open.file.write_all_at(&mut slices, open.offset);
        written.map_err(|e| JournalError::io("writing", &path, e))?;
        open.offset += len;
        self.bytes += len;
        self.crc = header.crc;
        Ok(())
    }
}
