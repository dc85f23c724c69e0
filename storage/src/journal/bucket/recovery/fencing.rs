//! Takes a journal over: puts a fence behind its last object, however fast its writer is.
//!
//! The writer may go on and delete objects while a starter reads or sleeps, so a fence can land on
//! a number that was used before, and would end nothing. What is known when a fence is put is
//! therefore looked at again once it is stored: objects are deleted only after a later one says so.

use super::{BucketRecovery, Reading};
use crate::journal::JournalError;
use crate::journal::bucket::object::{
    NO_EPOCH, OBJECT_HEADER, ObjectFloor, ObjectHeader, Position,
};
use bytes::Bytes;
use futures::future::join_all;
use object_store::{Error, PutMode};

/// Fences put at once after one has met a record: its writer is still active, and may be faster
/// than fences put one at a time.
const FENCES: u64 = 16;

/// Times that a takeover begins again because objects are deleted before they are read, and times
/// because its fence has landed on a number that was used before.
const LOOKS: usize = 16;

/// The end of an epoch.
pub(super) enum End {
    /// A fence, and the epoch that it opens; [`NO_EPOCH`]: the journal has ended.
    Fence(Position, u64),
    /// The next number, which does not exist yet.
    Missing(Position),
}

impl BucketRecovery {
    /// Puts a fence behind the last object, and returns its position.
    pub(super) async fn take_over(
        &mut self,
        reading: &mut Reading,
    ) -> Result<Position, JournalError> {
        let mut epoch = reading.newest_epoch();
        let (mut fences, mut debris, mut met) = (1, 0, None);
        while debris < LOOKS {
            let first = Position { epoch, number: 1 };
            let end = match self.end_by_names(reading, first).await? {
                Some(end) => Some(end),
                None => self.end_by_reading(reading, first).await?,
            };
            let next = match end {
                Some(End::Fence(_, NO_EPOCH)) => return Err(self.ended()),
                Some(End::Fence(at, opens)) if met == Some(at) => {
                    (epoch, fences) = (opens, 1);
                    continue;
                }
                // Its number may have been used and deleted before it was put there, and since the
                // listing: then an object that is listed now says so.
                Some(End::Fence(at, _)) => {
                    self.list(reading).await?;
                    met = Some(at);
                    continue;
                }
                Some(End::Missing(next)) => next,
                None => {
                    (epoch, fences) = (reading.newest_epoch(), 1);
                    continue;
                }
            };
            self.epoch = reading.newest_epoch().max(epoch) + 1;
            if self.put_fences(reading, next, fences).await? {
                let floor = self.look_behind(next).await?;
                if floor.first <= next {
                    return Ok(next);
                }
                tracing::info!(place = %self.place, "the journal has gone on during the takeover");
                epoch = epoch.max(floor.first.epoch);
                reading.floor.raise(&floor);
                debris += 1;
            }
            // Another process has put an object there, or has put and deleted one: list again
            // before the next attempt.
            self.list(reading).await?;
            fences = FENCES;
        }
        Err(self.restless())
    }

    /// Returns the end of an epoch after reading all its objects; `None`: there are objects of a later
    /// epoch by now.
    async fn end_by_reading(
        &self,
        reading: &mut Reading,
        first: Position,
    ) -> Result<Option<End>, JournalError> {
        self.read_present(reading, first, first.last_of_epoch()).await?;
        // If objects are gone that were listed, somebody has taken the journal over meanwhile: the
        // floor that says so is in a later epoch.
        match reading.newest_epoch() {
            newest if newest > first.epoch => Ok(None),
            _ => self.end_of(reading, first).await.map(Some),
        }
    }

    /// Returns the end of an epoch by the names of its objects, if these are whole from the floor in the
    /// newest one on: then at most two objects are read instead of all. The others are read once the
    /// fence is stored, behind which nobody can put records.
    async fn end_by_names(
        &self,
        reading: &mut Reading,
        first: Position,
    ) -> Result<Option<End>, JournalError> {
        if !self.options.contested || reading.newest_epoch() > first.epoch {
            return Ok(None);
        }
        let is_fence = |size: &u64| *size == OBJECT_HEADER as u64;
        let last = first.last_of_epoch();
        let records = reading.listed.range(first..=last).filter(|(_, size)| !is_fence(size));
        let newest = records.map(|(at, _)| *at).next_back();
        if let Some(at) = newest
            && !self.is_readable(reading, at).await?
        {
            return Ok(None);
        }
        let mut next = first.max(reading.floor.first);
        while reading.listed.get(&next).is_some_and(|size| !is_fence(size)) {
            next = next.next();
        }
        if reading.listed.contains_key(&next) {
            let is_readable = self.is_readable(reading, next).await?;
            return Ok(if is_readable { Some(self.end_of(reading, next).await?) } else { None });
        }
        // If one is missing, the others say whether it was stored.
        let is_end = newest.is_none_or(|at| at < next) && reading.published < next;
        Ok(is_end.then_some(End::Missing(next)))
    }

    /// Reads a listed object; returns false if it is gone or damaged.
    async fn is_readable(&self, reading: &mut Reading, at: Position) -> Result<bool, JournalError> {
        Ok(self.read_listed(reading, at, at).await?
            && matches!(reading.found.get(&at), Some(Ok(_))))
    }

    /// Returns the highest floor in the objects behind a fence that is stored. If it is behind the
    /// fence, the number was used and dropped before, and the fence ends nothing.
    async fn look_behind(&self, fence: Position) -> Result<ObjectFloor, JournalError> {
        // Apart from the objects that count: another start may follow this fence already.
        let mut behind = Reading::default();
        self.list(&mut behind).await?;
        self.read_present(&mut behind, fence.next(), Position::LAST).await?;
        let was_stored = behind.published.epoch == fence.epoch && behind.published >= fence;
        if was_stored && behind.floor.first <= fence {
            return Err(self.corrupt(fence, "the object is missing, and it was stored"));
        }
        Ok(behind.floor)
    }

    /// Reads the listed objects of a range, unless they were read before. If some are gone, a later
    /// object says which are needed: the journal is listed again.
    pub(super) async fn read_present(
        &self,
        reading: &mut Reading,
        from: Position,
        to: Position,
    ) -> Result<(), JournalError> {
        for _ in 0..LOOKS {
            if self.read_listed(reading, from, to).await? {
                return Ok(());
            }
            self.list(reading).await?;
        }
        Err(self.restless())
    }

    fn restless(&self) -> JournalError {
        let place = &self.place;
        JournalError::Failed(format!("another server changes {place} faster than it can be read"))
    }

    /// Returns the end of an epoch, as far as it is known.
    pub(super) async fn end_of(
        &self,
        reading: &mut Reading,
        first: Position,
    ) -> Result<End, JournalError> {
        let mut at = first.max(reading.floor.first);
        loop {
            match reading.found.get(&at) {
                Some(Ok(found)) if found.header.is_fence() => {
                    return Ok(End::Fence(at, found.header.opens));
                }
                Some(Ok(_)) => at = at.next(),
                Some(Err(unreadable)) => return Err(self.corrupt(at, unreadable.to_string())),
                None if reading.published < at => return Ok(End::Missing(at)),
                None => {
                    if !self.read_unlisted(reading, at).await? {
                        return Err(self.corrupt(at, "the object is missing, and it was stored"));
                    }
                }
            }
        }
    }

    /// Reads an object that must have been stored and was not listed; returns false if it is not there. The listing of a
    /// directory that is used like a bucket may lack a file that came meanwhile, and have a later one.
    pub(super) async fn read_unlisted(
        &self,
        reading: &mut Reading,
        at: Position,
    ) -> Result<bool, JournalError> {
        let Some(object) = self.read(at).await? else { return Ok(false) };
        reading.listed.insert(at, object.len() as u64);
        self.take(reading, at, &object)?;
        Ok(true)
    }

    /// Puts fences at `next` and the numbers behind it; returns true if the first one was put here.
    /// If not, the object there was read.
    async fn put_fences(
        &self,
        reading: &mut Reading,
        next: Position,
        count: u64,
    ) -> Result<bool, JournalError> {
        let numbers = next.number..next.number + count;
        let puts = numbers.map(|number| self.put_fence(reading, Position { number, ..next }));
        let mut outcomes = join_all(puts).await.into_iter();
        match outcomes.next() {
            Some(Ok(None)) => Ok(true),
            Some(Ok(Some(object))) => {
                self.take(reading, next, &object)?;
                Ok(false)
            }
            Some(Err(error)) => Err(error),
            None => Ok(false),
        }
    }

    /// Puts a fence; returns the object that is there already, unless it is this fence.
    pub(super) async fn put_fence(
        &self,
        reading: &Reading,
        at: Position,
    ) -> Result<Option<Bytes>, JournalError> {
        let header = ObjectHeader {
            salt: self.options.salt,
            at,
            nonce: self.nonce,
            opens: self.epoch,
            released: false,
            last: 0,
            durable: 0,
            published: 0,
            time_ms: reading.max_time_ms,
            prev_crc: 0,
            records_crc: crc32c::crc32c(&[]),
            records_len: 0,
            // A fence is as long as its header.
            floor: ObjectFloor { first: reading.floor.first, ..ObjectFloor::default() },
        };
        let fence = header.encode();
        let path = at.path(self.place.root());
        let store = self.place.store();
        loop {
            let put = || async {
                match store.put_opts(&path, fence.clone().into(), PutMode::Create.into()).await {
                    Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                    put => put.map(|_| true),
                }
            };
            if self.ask(put).await? {
                return Ok(None);
            }
            match self.read(at).await? {
                Some(found) if found == fence => return Ok(None),
                Some(found) => return Ok(Some(found)),
                None => {}
            }
        }
    }
}
