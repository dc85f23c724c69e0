//! Parcels: the short batches that connections of one worker have for another one at a time, put
//! together. A parcel goes there, comes back with the replies, and is used again at home, so nothing
//! that is allocated for one worker is freed on another.

use super::slots::SlotKey;
use crate::command::{Command, Outcome, RoundError};
use crate::node::WorkerStats;
use crate::worker::CmdBatch;
use crate::worker::batch::BatchReply;
use flagstone_wire::resp::{Proto, Reply};
use std::ops::Range;

/// Maximum size of a parcel, in commands and in bytes of their arguments.
const MAX_COMMANDS: usize = 128;
const MAX_BYTES: usize = 32 << 10;

/// Maximum number of bytes of replies in a parcel; further replies leave it.
const MAX_ANSWERS: usize = 64 << 10;

/// Maximum number of bytes of replies to one batch that are copied into the parcel; longer ones
/// leave it.
const COPIED: usize = 16 << 10;

/// One connection's batch in a parcel.
#[derive(Debug)]
struct Segment {
    slot: SlotKey,
    /// End of its commands.
    end: usize,
    /// Its replies and their ends; `None` until it has run, and if they have left the parcel.
    answered: Option<(Range<usize>, Range<usize>)>,
}

/// Batches of several connections for one worker, and their replies.
#[derive(Debug, Default)]
pub(crate) struct CmdParcel {
    pub(super) batch: CmdBatch,
    segments: Vec<Segment>,
    /// Number of batches that have run.
    ran: usize,
    bytes: Vec<u8>,
    /// Ends of the replies, from the first reply to their batch on, with their outcomes.
    ends: Vec<(usize, Outcome)>,
    /// Command of each reply, and the round that it shows.
    seen: Vec<(&'static Command, u64)>,
}

impl CmdParcel {
    /// Returns true if there is room for a batch.
    pub(super) fn has_room(&self, batch: &CmdBatch) -> bool {
        self.batch.is_empty()
            || self.batch.len() + batch.len() <= MAX_COMMANDS
                && self.batch.bytes() + batch.bytes() <= MAX_BYTES
    }

    /// Adds a batch, whose replies go to `slot`.
    pub(super) fn add(&mut self, slot: SlotKey, batch: &CmdBatch) {
        self.batch.extend(batch);
        self.segments.push(Segment { slot, end: self.batch.len(), answered: None });
    }

    /// Returns the slot of the next batch to run, and the place of its commands.
    pub(super) fn next(&self) -> Option<(SlotKey, Range<usize>)> {
        let segment = self.segments.get(self.ran)?;
        let before = self.ran.checked_sub(1).map_or(0, |before| self.segments[before].end);
        Some((segment.slot, before..segment.end))
    }

    /// Returns true if replies of that many bytes go home in the parcel.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes <= COPIED && self.bytes.len() + bytes <= MAX_ANSWERS
    }

    /// Adds the replies to the batch that has run.
    pub(super) fn answer(
        &mut self,
        replies: &[u8],
        ends: &[(usize, Outcome)],
        seen: &[(&'static Command, u64)],
    ) {
        let (from, first) = (self.bytes.len(), self.ends.len());
        self.bytes.extend_from_slice(replies);
        self.ends.extend_from_slice(ends);
        self.seen.extend_from_slice(seen);
        self.segments[self.ran].answered = Some((from..self.bytes.len(), first..self.ends.len()));
        self.ran += 1;
    }

    /// Leaves out the replies to the batch that has run: they go home by themselves.
    pub(super) fn leave_out(&mut self) {
        self.ran += 1;
    }

    /// Replaces each reply that shows a failed round by an error, and counts it.
    pub(super) fn fail(
        &mut self,
        failure: impl Fn(u64) -> Option<RoundError>,
        stats: &WorkerStats,
    ) {
        let before = std::mem::take(&mut self.bytes);
        let mut whole = Reply::new(Proto::Resp2);
        for (bytes, ends) in self.segments.iter_mut().filter_map(|s| s.answered.as_mut()) {
            let (first, mut from) = (whole.len(), bytes.start);
            for n in ends.clone() {
                let ((end, outcome), (command, round)) = (self.ends[n], self.seen[n]);
                let reply = &before[from..bytes.start + end];
                from = bytes.start + end;
                let given = stats.give(&mut whole, Some(command), (reply, outcome), failure(round));
                self.ends[n] = (whole.len() - first, given);
            }
            *bytes = first..whole.len();
        }
        self.bytes = whole.into_buffer();
    }

    /// Returns the slots and replies of the batches whose replies have not left.
    pub(super) fn answers(&self) -> impl Iterator<Item = (SlotKey, Answers<'_>)> {
        self.segments.iter().filter_map(|segment| {
            let (bytes, ends) = segment.answered.clone()?;
            Some((segment.slot, Answers { bytes: &self.bytes[bytes], ends: &self.ends[ends] }))
        })
    }

    /// Empties the parcel for its next use.
    pub(super) fn clear(&mut self) {
        self.batch.clear(MAX_BYTES);
        self.segments.clear();
        self.ran = 0;
        self.bytes.clear();
        self.bytes.shrink_to(MAX_ANSWERS);
        self.ends.clear();
        self.seen.clear();
    }
}

/// Replies to a batch, in a parcel.
pub(super) struct Answers<'a> {
    bytes: &'a [u8],
    ends: &'a [(usize, Outcome)],
}

impl Answers<'_> {
    /// Copies the replies.
    pub(super) fn copy_to(&self, reply: &mut BatchReply) {
        reply.set(self.bytes, self.ends);
    }
}
