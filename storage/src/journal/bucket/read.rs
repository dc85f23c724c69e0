//! Reads a journal that is open, while a hold keeps its objects.
//!
//! A hold keeps objects above the floor. It has a bound, like that of a local journal: when it
//! keeps more bytes, it is broken, and the reader gets an error.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use tokio::runtime::Handle;

use super::super::local::lock;
use super::super::read::HoldId;
use super::super::{JournalError, Lsn, Record};
use super::object::{ObjectHeader, Position};
use super::records::{Commits, ObjectChain};
use super::requests::read_object;
use super::{BucketShared, BucketState};

/// Objects that are read at a time: each is a few MiB of memory.
const READS: usize = 4;

/// Reads objects in order, without fences.
pub(super) struct Reader<'a> {
    /// The first and the last lsn to read.
    range: (Lsn, Lsn),
    /// State of the chain; `None`: no object was read yet.
    chain: Option<ObjectChain>,
    commits: Commits,
    each: &'a mut dyn FnMut(Record) -> io::Result<()>,
}

/// The reason why an object could not be read.
pub(super) enum Trouble {
    /// The object is damaged.
    Damaged(String),
    /// The error that `each` returned.
    Copying(io::Error),
}

impl Trouble {
    /// Converts to the error for the object at `path`.
    pub(super) fn error(self, path: PathBuf) -> JournalError {
        match self {
            Self::Copying(error) => JournalError::io("copying from", &path, error),
            Self::Damaged(what) => JournalError::corrupt(path, 0, what),
        }
    }
}

impl BucketShared {
    pub(super) fn hold(&self, from: Lsn, max_bytes: u64) -> HoldId {
        lock(&self.state).holds.add(from, max_bytes)
    }

    pub(super) fn release(&self, hold: HoldId) {
        lock(&self.state).holds.remove(hold);
        self.wake.notify_one();
    }

    pub(super) fn read(
        &self,
        hold: HoldId,
        range: (Lsn, Lsn),
        each: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> Result<(), JournalError> {
        let runtime = Handle::try_current().map_err(|error| JournalError::Io {
            doing: "reading, outside of a runtime,",
            path: self.place.to_string().into(),
            source: io::Error::other(error),
        })?;
        // Only stored objects can be read.
        self.sync_through(range.1)?;
        runtime.block_on(self.read_objects(hold, Reader::new(range, each)))
    }

    async fn read_objects(&self, hold: HoldId, mut reader: Reader<'_>) -> Result<(), JournalError> {
        let wanted = self.objects_of(hold, reader.range)?;
        let get = |at| async move { (at, read_object(&self.place, &self.options, at).await) };
        let mut gets = stream::iter(wanted.into_iter().map(get)).buffered(READS);
        while let Some((at, object)) = gets.next().await {
            let taken = match object? {
                Some(object) => reader.take(at, self.options.salt, &object),
                None => Err(Trouble::Damaged("the object is missing".to_owned())),
            };
            taken.map_err(|trouble| self.unreadable(hold, at, trouble))?;
        }
        Ok(())
    }

    /// Returns the objects with records of a range, in order.
    fn objects_of(
        &self,
        hold: HoldId,
        (from, to): (Lsn, Lsn),
    ) -> Result<Vec<Position>, JournalError> {
        let state = lock(&self.state);
        if !state.holds.has(hold) {
            return Err(JournalError::HoldBroken);
        }
        let has_some = |before: Lsn, last: Lsn| last + 1 >= from && before < to;
        let wanted = state.stored.iter().filter(|stored| has_some(stored.before, stored.last));
        Ok(wanted.map(|stored| stored.at).collect())
    }

    /// Returns the error for an object that could not be read: if it is missing, it was dropped, or
    /// is lost.
    fn unreadable(&self, hold: HoldId, at: Position, trouble: Trouble) -> JournalError {
        match trouble {
            Trouble::Damaged(_) if !lock(&self.state).holds.has(hold) => JournalError::HoldBroken,
            trouble => trouble.error(at.path(self.place.root()).to_string().into()),
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        range: (Lsn, Lsn),
        each: &'a mut dyn FnMut(Record) -> io::Result<()>,
    ) -> Self {
        Self { range, chain: None, commits: Commits::default(), each }
    }

    /// Returns the last commit of the objects that were read; `None`: there was none.
    pub(super) fn last(&self) -> Option<Lsn> {
        self.chain.map(|chain| chain.last)
    }

    /// Forgets the objects that were read: the next one does not follow them.
    pub(super) fn begin_anew(&mut self) {
        self.chain = None;
        self.commits = Commits::default();
    }

    /// Passes the commits of the range that end in an object to the reader's `each`.
    pub(super) fn take(&mut self, at: Position, salt: u32, object: &Bytes) -> Result<(), Trouble> {
        let (from, to) = self.range;
        let damaged = |what: &str| Trouble::Damaged(what.to_owned());
        let decoded = ObjectHeader::decode(object);
        let (header, records) = decoded.map_err(|error| damaged(&error.to_string()))?;
        if header.at != at || header.salt != salt || header.is_fence() {
            return Err(damaged("it is not what was put there"));
        }
        let mut chain = match self.chain {
            Some(chain) if chain.epoch == at.epoch => chain,
            Some(chain) => ObjectChain::epoch(at.epoch, chain.last),
            None => ObjectChain::head(at.epoch, header.prev_crc),
        };
        let (mut outcome, mut is_cut_off) = (Ok(()), false);
        let walked = chain.walk(&header, &records, |part| {
            is_cut_off |= part.rest && (from..=to).contains(&part.header.lsn);
            if let Some(record) = self.commits.take(part, from)
                && record.lsn <= to
                && outcome.is_ok()
            {
                outcome = (self.each)(record);
            }
        });
        self.chain = Some(chain);
        walked.map_err(damaged)?;
        if is_cut_off {
            return Err(damaged("the beginning of a commit is missing"));
        }
        outcome.map_err(Trouble::Copying)
    }
}

impl BucketState {
    /// Breaks holds that keep more than their bound.
    pub(super) fn break_oversized_holds(&mut self) {
        if !self.holds.is_empty() {
            let bytes = self.stored.iter().map(|stored| stored.bytes).sum();
            self.holds.break_beyond(bytes);
        }
    }
}
