//! Follows the records of objects along their chain.

use bytes::{Bytes, BytesMut};

use super::super::record::{HEADER, RecordHeader, RecordKind, decode_shards};
use super::super::{CommitPiece, Lsn, Record};
use super::object::ObjectHeader;

/// State of following an epoch's records.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObjectChain {
    pub(super) epoch: u64,
    /// The last whole commit.
    pub(super) last: Lsn,
    /// CRC of the last record; 0 at the beginning of an epoch.
    pub(super) crc: u32,
    /// The last part of an unfinished commit, and its number of parts.
    open: Option<(u32, u32)>,
    /// True if the beginning of that commit was dropped.
    rest: bool,
    /// True until a record of the epoch was read: the lsn may have jumped before it.
    at_start: bool,
}

/// A part of a commit.
pub(super) struct ObjectPart<'a> {
    pub(super) header: RecordHeader,
    pub(super) shards: Vec<u16>,
    pub(super) body: &'a [u8],
    pub(super) first: bool,
    /// True if the commit is complete with this part.
    pub(super) last: bool,
    /// True if the commit's beginning was dropped, so that it is applied everywhere.
    pub(super) rest: bool,
}

impl ObjectPart<'_> {
    /// Returns the part for replay, with its `body` in memory of its own.
    pub(super) fn piece(&self, body: Bytes) -> CommitPiece {
        CommitPiece { record: self.record(body), first: self.first, last: self.last }
    }

    fn record(&self, body: Bytes) -> Record {
        let RecordHeader { lsn, epoch, time_ms, .. } = self.header;
        Record { lsn, epoch, time_ms, shards: self.shards.clone(), body }
    }
}

impl ObjectChain {
    /// Starts at the first object of an epoch.
    pub(super) fn epoch(epoch: u64, last: Lsn) -> Self {
        Self { epoch, last, at_start: true, ..Self::default() }
    }

    /// Starts at the present beginning of the journal, which may be within a commit.
    pub(super) fn head(epoch: u64, crc: u32) -> Self {
        Self { epoch, crc, rest: true, at_start: true, ..Self::default() }
    }

    /// Returns true if the next record continues a commit.
    pub(super) fn is_within_commit(&self) -> bool {
        self.open.is_some()
    }

    /// Passes each record of an object to `each`; returns an error for a damaged object, or for the
    /// first record that does not continue the chain.
    pub(super) fn walk(
        &mut self,
        object: &ObjectHeader,
        records: &[u8],
        mut each: impl FnMut(&ObjectPart<'_>),
    ) -> Result<(), &'static str> {
        if object.prev_crc != self.crc {
            return Err("it does not follow the object before it");
        }
        let mut rest = records;
        while !rest.is_empty() {
            if rest.len() < HEADER {
                return Err("a record is cut off");
            }
            let header = RecordHeader::decode(rest, object.salt).ok_or("a record is damaged")?;
            let length = usize::try_from(header.record_len()).unwrap_or(usize::MAX);
            let record = rest.get(..length).ok_or("a record is cut off")?;
            let payload = &record[HEADER..];
            if crc32c::crc32c(payload) != header.body_crc {
                return Err("a record is damaged");
            }
            each(&self.follow(header, payload)?);
            rest = &rest[length..];
        }
        if records.is_empty() || self.last == 0 {
            // The end may be in no record.
            self.last = self.last.max(object.last);
        }
        if self.last != object.last {
            return Err("its records are not those it should have");
        }
        Ok(())
    }

    fn follow<'a>(
        &mut self,
        header: RecordHeader,
        payload: &'a [u8],
    ) -> Result<ObjectPart<'a>, &'static str> {
        let RecordHeader { lsn, part, parts, .. } = header;
        let follows = header.epoch == self.epoch && header.prev_crc == self.crc;
        let may_jump = self.at_start || header.kind == RecordKind::Adoption;
        let counts = lsn == self.last + 1 || may_jump && lsn > self.last;
        if !follows || !counts || part == 0 || part > parts {
            return Err("a record does not follow the one before it");
        }
        let expected = match self.open {
            Some((last, of)) => part == last + 1 && parts == of,
            None => part == 1 || self.rest,
        };
        if !expected {
            return Err("a part of a commit is missing");
        }
        let rest = part > 1 && self.rest;
        let is_last = part == parts;
        self.open = (!is_last).then_some((part, parts));
        self.crc = header.crc;
        if is_last {
            (self.last, self.rest, self.at_start) = (lsn, false, false);
        } else if part == 1 {
            self.rest = false;
        }
        Ok(ObjectPart {
            header,
            shards: decode_shards(payload, header.shard_count),
            body: &payload[header.body_range()],
            first: part == 1,
            last: is_last,
            rest,
        })
    }
}

/// Assembles commits from their parts.
#[derive(Debug, Default)]
pub(super) struct Commits {
    body: BytesMut,
}

impl Commits {
    /// Adds a part; returns the commit that it completes, if that is `from` or later.
    pub(super) fn take(&mut self, part: &ObjectPart<'_>, from: Lsn) -> Option<Record> {
        if part.header.lsn < from {
            return None;
        }
        if part.first {
            self.body.clear();
        }
        self.body.extend_from_slice(part.body);
        (part.last && !part.rest).then(|| part.record(self.body.split().freeze()))
    }
}
