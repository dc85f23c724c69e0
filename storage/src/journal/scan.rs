//! Reads segments: record by record along the chain, or past damage for remains.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{CHUNK, File};
use super::record::{ALIGN, HEADER, RecordHeader, RecordKind, decode_shards};
use super::segment::{FIRST_RECORD, SegmentHeader};
use super::{Lsn, Record};

/// A file read through a buffer.
pub(super) struct FileWindow {
    file: Arc<dyn File>,
    size: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl FileWindow {
    pub(super) fn new(file: &Arc<dyn File>) -> io::Result<Self> {
        Ok(Self { file: file.clone(), size: file.size()?, start: 0, buffer: Vec::new() })
    }

    /// Returns `length` bytes from `offset` on; `None` if the file ends before.
    fn get(&mut self, offset: u64, length: u64) -> io::Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(length).filter(|end| *end <= self.size) else {
            return Ok(None);
        };
        if offset < self.start || end > self.start + self.buffer.len() as u64 {
            let ahead = length.max(CHUNK as u64).min(self.size - offset);
            self.buffer.resize(ahead as usize, 0);
            self.start = offset;
            let read = self.file.read_exact_at(&mut self.buffer, offset);
            if read.is_err() {
                self.buffer.clear();
            }
            read?;
        }
        let at = (offset - self.start) as usize;
        Ok(Some(&self.buffer[at..at + length as usize]))
    }
}

/// State of following the chain of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SegmentChain {
    /// Number of the present segment.
    pub(super) number: u64,
    pub(super) epoch: u64,
    /// The last whole commit.
    pub(super) last: Lsn,
    /// CRC of the last record.
    pub(super) crc: u32,
    open: Option<OpenCommit>,
    /// True until a record was read: the first one may be from within a commit.
    at_head: bool,
}

/// A commit not all of whose parts have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenCommit {
    part: u32,
    parts: u32,
    /// True if its first part was read too.
    whole: bool,
}

/// A record's part in the commit it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Mark,
    /// The end of a commit whose beginning was dropped.
    Rest,
    Part {
        first: bool,
        last: bool,
    },
}

impl SegmentChain {
    /// Starts at the beginning of the journal's first segment.
    pub(super) fn head(header: &SegmentHeader) -> Self {
        Self {
            number: header.number,
            epoch: header.epoch,
            last: header.first_lsn - 1,
            crc: header.prev_crc,
            open: None,
            at_head: true,
        }
    }

    /// Returns the chain at the beginning of the segment `next`, if that is the successor.
    pub(super) fn enter(&self, next: &SegmentHeader) -> Option<Self> {
        let linked = next.prev_number == self.number
            && next.prev_epoch == self.epoch
            && next.prev_lsn == self.last
            && next.prev_crc == self.crc;
        let contiguous = if next.epoch == self.epoch {
            next.first_lsn == self.last + 1
        } else {
            next.epoch > self.epoch && next.first_lsn > self.last
        };
        if !linked || !contiguous {
            return None;
        }
        let open = self.open.filter(|_| next.epoch == self.epoch);
        let last = next.first_lsn - 1;
        Some(Self { number: next.number, epoch: next.epoch, last, open, ..*self })
    }

    /// Takes `record` as the next one, if it continues the chain.
    fn follow(&mut self, record: &RecordHeader) -> Option<Met> {
        if record.epoch != self.epoch || record.prev_crc != self.crc {
            return None;
        }
        if record.kind == RecordKind::Mark {
            if record.lsn != self.last {
                return None;
            }
            (self.crc, self.open, self.at_head) = (record.crc, None, false);
            return Some(Met::Mark);
        }
        let RecordHeader { part, parts, .. } = *record;
        if record.lsn != self.last + 1 || part == 0 || part > parts {
            return None;
        }
        // A first part may follow an incomplete commit: that append failed, and its lsn was free.
        let whole = match self.open {
            _ if part == 1 => true,
            Some(open) if open.part + 1 == part && open.parts == parts => open.whole,
            None if self.at_head => false,
            _ => return None,
        };
        let last = part == parts;
        self.open = (!last).then_some(OpenCommit { part, parts, whole });
        (self.crc, self.at_head) = (record.crc, false);
        if last {
            self.last = record.lsn;
        }
        Some(if whole { Met::Part { first: part == 1, last } } else { Met::Rest })
    }
}

/// Walks along the records of one segment.
pub(super) struct SegmentWalk {
    window: FileWindow,
    salt: u32,
    pub(super) chain: SegmentChain,
    /// Offset of the next record, if there is one.
    pub(super) offset: u64,
}

/// A record read by a walk.
pub(super) struct Step<'w> {
    pub(super) header: RecordHeader,
    pub(super) met: Met,
    pub(super) offset: u64,
    /// Bytes of shards, body and padding.
    pub(super) payload: &'w [u8],
}

impl SegmentWalk {
    pub(super) fn new(file: &Arc<dyn File>, salt: u32, chain: SegmentChain) -> io::Result<Self> {
        Ok(Self { window: FileWindow::new(file)?, salt, chain, offset: FIRST_RECORD })
    }

    /// Returns the next record; `None` where the chain ends in this segment, damaged or not.
    pub(super) fn next(&mut self) -> io::Result<Option<Step<'_>>> {
        let Some(bytes) = self.window.get(self.offset, HEADER as u64)? else { return Ok(None) };
        let Some(header) = RecordHeader::decode(bytes, self.salt) else { return Ok(None) };
        let mut chain = self.chain;
        let Some(met) = chain.follow(&header) else { return Ok(None) };
        let payload_len = header.record_len() - HEADER as u64;
        let Some(payload) = self.window.get(self.offset + HEADER as u64, payload_len)? else {
            return Ok(None);
        };
        if crc32c::crc32c(payload) != header.body_crc {
            return Ok(None);
        }
        let offset = self.offset;
        self.offset += header.record_len();
        self.chain = chain;
        Ok(Some(Step { header, met, offset, payload }))
    }
}

impl Step<'_> {
    /// Returns true if it ends a commit whose beginning was dropped.
    pub(super) fn ends_rest(&self) -> bool {
        self.met == Met::Rest && self.header.part == self.header.parts
    }

    /// Returns the commit of this record, with this part of its body.
    pub(super) fn record(&self) -> Record {
        let header = &self.header;
        Record {
            lsn: header.lsn,
            epoch: header.epoch,
            time_ms: header.time_ms,
            shards: decode_shards(self.payload, header.shard_count),
            body: Bytes::copy_from_slice(&self.payload[header.body_range()]),
        }
    }
}

/// Valid headers behind the end of the chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Remains {
    /// The greatest lsn that a valid header states to be durable.
    pub(super) durable: Lsn,
    /// The greatest lsn of a valid header.
    pub(super) last: Lsn,
    pub(super) epoch: u64,
}

/// Searches for valid record headers from `offset` on, at every offset where one may start.
///
/// An lsn that they state to be durable always was, even if the header is from an earlier life of
/// the file: an lsn once durable is never given again.
pub(super) fn remains(file: &Arc<dyn File>, salt: u32, offset: u64) -> io::Result<Remains> {
    let mut window = FileWindow::new(file)?;
    let mut found = Remains::default();
    let mut offset = offset.next_multiple_of(ALIGN);
    while let Some(bytes) = window.get(offset, HEADER as u64)? {
        if let Some(header) = RecordHeader::decode(bytes, salt) {
            found.durable = found.durable.max(header.durable);
            found.last = found.last.max(header.lsn);
            found.epoch = found.epoch.max(header.epoch);
        }
        offset += ALIGN;
    }
    Ok(found)
}
