//! Reads a journal that is open, while a hold keeps its records.
//!
//! A hold keeps records from being dropped. It has a bound: when the journal has grown beyond it,
//! the hold is broken and the reader gets an error; the journal does not grow for a reader.

use std::io;

use bytes::BytesMut;

use super::local::{LocalShared, Writer, lock};
use super::record::decode_shards;
use super::scan::{Met, SegmentChain, SegmentWalk, Step};
use super::segment::{FoundHeader, SegmentHeader, segment_path};
use super::{JournalError, Lsn, Record};

/// Id of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldId(u64);

/// Keeps segments with records from `from` on.
#[derive(Debug)]
pub(super) struct Hold {
    id: HoldId,
    from: Lsn,
    /// Bytes of closed segments beyond which it is broken.
    max_bytes: u64,
}

/// The open holds of readers.
#[derive(Debug, Default)]
pub(super) struct Holds {
    open: Vec<Hold>,
    given: u64,
}

impl Holds {
    pub(super) fn add(&mut self, from: Lsn, max_bytes: u64) -> HoldId {
        self.given += 1;
        let id = HoldId(self.given);
        self.open.push(Hold { id, from, max_bytes });
        id
    }

    pub(super) fn remove(&mut self, id: HoldId) {
        self.open.retain(|hold| hold.id != id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns true if a hold keeps a segment; `last` is the last commit that ends in it.
    pub(super) fn keeps(&self, last: Lsn) -> bool {
        // The next commit may begin in it.
        self.open.iter().any(|hold| last + 1 >= hold.from)
    }

    pub(super) fn has(&self, id: HoldId) -> bool {
        self.open.iter().any(|hold| hold.id == id)
    }

    /// Breaks the holds whose bound is exceeded in a journal of so many bytes.
    pub(super) fn break_beyond(&mut self, bytes: u64) {
        self.open.retain(|hold| bytes <= hold.max_bytes);
    }
}

/// Assembles the commits of a walk from their parts.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    body: BytesMut,
}

impl Assembly {
    /// Adds a step; returns the commit that it completes, if that is `from` or later.
    pub(super) fn take(&mut self, step: &Step<'_>, from: Lsn) -> Option<Record> {
        let header = step.header;
        let Met::Part { first, last } = step.met else { return None };
        if header.lsn < from {
            return None;
        }
        if first {
            self.body.clear();
        }
        self.body.extend_from_slice(&step.payload[header.body_range()]);
        last.then(|| Record {
            lsn: header.lsn,
            epoch: header.epoch,
            time_ms: header.time_ms,
            shards: decode_shards(step.payload, header.shard_count),
            body: self.body.split().freeze(),
        })
    }
}

impl LocalShared {
    pub(super) fn hold(&self, from: Lsn, max_bytes: u64) -> HoldId {
        lock(&self.writer).holds.add(from, max_bytes)
    }

    pub(super) fn release(&self, id: HoldId) {
        lock(&self.writer).holds.remove(id);
        self.request_upkeep();
    }

    pub(super) fn read(
        &self,
        hold: HoldId,
        range: (Lsn, Lsn),
        each: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> Result<(), JournalError> {
        let (from, to) = range;
        let numbers = self.segments_of(hold, from, to)?;
        let mut chain: Option<SegmentChain> = None;
        let mut assembly = Assembly::default();
        for number in numbers {
            if chain.is_some_and(|chain| chain.last >= to) {
                break;
            }
            let path = segment_path(&self.dir, number);
            let failed = |source| JournalError::io("reading", &path, source);
            let file = self.options.disk.open(&path).map_err(failed)?;
            let FoundHeader::Valid(header) = SegmentHeader::read(&*file, number).map_err(failed)?
            else {
                return Err(self.unreadable(hold, &path, 0));
            };
            let entry = match chain {
                Some(chain) => chain.enter(&header),
                None if header.prev_lsn >= from => None,
                None => Some(SegmentChain::head(&header)),
            };
            let entry = entry.ok_or_else(|| self.unreadable(hold, &path, 0))?;
            let mut walk = SegmentWalk::new(&file, self.salt, entry).map_err(failed)?;
            while walk.chain.last < to {
                let Some(step) = walk.next().map_err(failed)? else { break };
                if step.ends_rest() && step.header.lsn >= from {
                    return Err(self.unreadable(hold, &path, step.offset));
                }
                if let Some(record) = assembly.take(&step, from) {
                    each(record).map_err(|e| JournalError::io("copying from", &path, e))?;
                }
            }
            chain = Some(walk.chain);
        }
        match chain {
            Some(chain) if chain.last >= to => Ok(()),
            chain => {
                let path = segment_path(&self.dir, chain.map_or(0, |chain| chain.number));
                Err(self.unreadable(hold, &path, 0))
            }
        }
    }

    /// Returns the segments with records of a range.
    fn segments_of(&self, hold: HoldId, from: Lsn, to: Lsn) -> Result<Vec<u64>, JournalError> {
        let writer = lock(&self.writer);
        if !writer.holds.has(hold) {
            return Err(JournalError::HoldBroken);
        }
        let closed = writer.closed.iter().map(|s| (s.number, s.first_lsn, s.last));
        let current = (writer.current.number, writer.current.first_lsn, writer.last);
        let all = closed.chain([current]);
        // Between epochs there are lsns without records, so the segment that begins behind them is
        // needed too.
        let wanted = all.filter(|&(_, first, last)| last + 1 >= from && first <= to + 1);
        Ok(wanted.map(|(number, ..)| number).collect())
    }

    /// Returns the error for a segment that changed while it was read: it was dropped, or is
    /// damaged.
    fn unreadable(&self, hold: HoldId, path: &std::path::Path, offset: u64) -> JournalError {
        if lock(&self.writer).holds.has(hold) {
            let reason = "records that were written are missing";
            JournalError::corrupt(path.to_path_buf(), offset, reason)
        } else {
            JournalError::HoldBroken
        }
    }
}

impl Writer {
    /// Breaks holds that keep more than their bound.
    pub(super) fn break_oversized_holds(&mut self) {
        if !self.holds.is_empty() {
            let bytes = self.closed.iter().map(|segment| segment.used).sum();
            self.holds.break_beyond(bytes);
        }
    }
}
