//! The records in objects: followed along their chain.

use bytes::{Bytes, BytesMut};

use super::super::record::{HEADER, RecordHeader, decode_shards};
use super::super::{Lsn, Piece, Record};
use super::object::ObjectHeader;

/// How far the records of an epoch have been followed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chain {
    pub(super) epoch: u64,
    /// The last whole commit.
    pub(super) last: Lsn,
    /// CRC of the last record; 0 at an epoch's start.
    pub(super) crc: u32,
    /// The last part of an unfinished commit, and how many it has.
    open: Option<(u32, u32)>,
    /// The beginning of that commit was dropped.
    rest: bool,
    /// No record of the epoch was read yet: the lsn may have jumped.
    at_start: bool,
}

/// A part of a commit.
pub(super) struct Part<'a> {
    pub(super) header: RecordHeader,
    pub(super) shards: Vec<u16>,
    pub(super) body: &'a [u8],
    pub(super) first: bool,
    /// The commit is whole with it.
    pub(super) last: bool,
    /// The commit's beginning was dropped, so it is applied everywhere.
    pub(super) rest: bool,
}

impl Part<'_> {
    /// The same as it is replayed, with its `body` in memory of its own.
    pub(super) fn piece(&self, body: Bytes) -> Piece {
        Piece { record: self.record(body), first: self.first, last: self.last }
    }

    fn record(&self, body: Bytes) -> Record {
        let RecordHeader { lsn, epoch, time_ms, .. } = self.header;
        Record { lsn, epoch, time_ms, shards: self.shards.clone(), body }
    }
}

impl Chain {
    /// At the first object of an epoch.
    pub(super) fn epoch(epoch: u64, last: Lsn) -> Self {
        Self { epoch, last, at_start: true, ..Self::default() }
    }

    /// Where the journal begins now, which may be within a commit.
    pub(super) fn head(epoch: u64, crc: u32) -> Self {
        Self { epoch, crc, rest: true, at_start: true, ..Self::default() }
    }

    /// Hands each record of an object to `each`; what is wrong with the object, or with the first
    /// record that does not follow.
    pub(super) fn walk(
        &mut self,
        object: &ObjectHeader,
        records: &[u8],
        mut each: impl FnMut(&Part<'_>),
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
            // There is no record that says it.
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
    ) -> Result<Part<'a>, &'static str> {
        let RecordHeader { lsn, part, parts, .. } = header;
        let follows = header.epoch == self.epoch && header.prev_crc == self.crc;
        let counts = lsn == self.last + 1 || self.at_start && lsn > self.last;
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
        Ok(Part {
            header,
            shards: decode_shards(payload, header.shard_count),
            body: &payload[header.body_range()],
            first: part == 1,
            last: is_last,
            rest,
        })
    }
}

/// Puts commits together from their parts.
#[derive(Debug, Default)]
pub(super) struct Commits {
    body: BytesMut,
}

impl Commits {
    /// Returns the commit that a part ends, if it is whole, and `from` or later.
    pub(super) fn take(&mut self, part: &Part<'_>, from: Lsn) -> Option<Record> {
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
