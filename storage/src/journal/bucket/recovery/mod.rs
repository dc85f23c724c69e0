//! Opens a journal in a bucket, after its last owner has ended in any way, or while that still
//! runs.
//!
//! First a fence is put at the next number, and no object behind it may say that this number was
//! used before; from then on no other process can add to the objects that are read. An epoch ends at its first fence, and numbers behind it are ignored: they were
//! never published. Every object between the floor and the fence must exist.

mod breaks;
mod ending;
mod fencing;
mod pieces;
mod sight;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use object_store::Error;
use object_store::path::Path;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use breaks::JournalCondition;
pub use ending::JournalLook;
use fencing::End;
pub(in crate::journal) use pieces::BucketPieces;
pub use sight::JournalSight;

use super::super::local::lock;
use super::super::read::Holds;
use super::super::segment::ShardSpans;
use super::super::{Journal, JournalError, Lsn, Record};
use super::object::{
    NEWEST_VERSION, NO_EPOCH, OBJECT_HEADER, ObjectFloor, ObjectHeader, Position, Unreadable,
};
use super::records::{ObjectChain, ObjectPart};
use super::requests::{ask, list_objects, read_object};
use super::{BucketJournal, BucketOptions, BucketShared, BucketState, StoredObject};
use crate::lease::{Lease, Unconfirmed};
use crate::place::Place;

/// Objects that are read at a time, at least and at most, ...
const READS: (usize, usize) = (4, 64);

/// ... and about how many bytes.
const READ_BYTES: u64 = 64 << 20;

/// Reason why the lease of a journal in a bucket runs out.
const SILENCE: &str = "the journal's store does not answer";

/// Bytes of objects that are kept in memory from the first reading to the replay.
const KEPT_BYTES: usize = 64 << 20;

/// A journal in a bucket that was fenced and read, but not started yet.
pub struct BucketRecovery {
    pub(super) place: Place,
    pub(super) options: BucketOptions,
    nonce: u64,
    /// The epoch that the fence opens.
    epoch: u64,
    /// Objects from the floor to the fence, without fences.
    chain: Vec<FoundObject>,
    /// The position behind these objects, and the state of the chain there.
    behind: (Position, ObjectChain),
    floor: ObjectFloor,
    /// Objects that are not needed.
    garbage: Vec<Path>,
    end: Lsn,
    /// The last whole commit of each ended epoch.
    ends: BTreeMap<u64, Lsn>,
    max_time_ms: u64,
    /// Time at which the fence was put, or from which on the former owner has stored nothing, if it has not
    /// released the journal.
    pub(super) outlived: Option<Instant>,
}

/// An object of the journal.
#[derive(Clone)]
struct FoundObject {
    header: ObjectHeader,
    /// State of the chain before it.
    entry: ObjectChain,
    /// The last lsn before it.
    before: Lsn,
    spans: ShardSpans,
    /// Its records; `None` if there were too many bytes to keep.
    records: Option<Bytes>,
}

/// State of reading the objects.
#[derive(Default)]
struct Reading {
    found: BTreeMap<Position, Result<FoundObject, Unreadable>>,
    /// Listed objects with their sizes.
    listed: BTreeMap<Position, u64>,
    kept: usize,
    /// The highest floor found in any object.
    floor: ObjectFloor,
    published: Position,
    durable: Lsn,
    max_time_ms: u64,
}

impl Reading {
    /// Returns the newest epoch of which objects are listed; 0: there are none.
    fn newest_epoch(&self) -> u64 {
        self.listed.last_key_value().map_or(0, |(at, _)| at.epoch)
    }
}

impl fmt::Debug for BucketRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketRecovery")
            .field("place", &self.place)
            .field("epoch", &self.epoch)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl BucketJournal {
    /// Takes over the journal in `place`, which may be new: former writers can write no more.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if something that was durable is damaged or missing;
    /// [`JournalError::Away`] if the store does not answer; [`JournalError::NewerFormat`].
    pub async fn recover(
        place: Place,
        options: BucketOptions,
    ) -> Result<BucketRecovery, JournalError> {
        let mut recovery = BucketRecovery::new(place, options);
        let mut reading = Reading::default();
        recovery.list(&mut reading).await?;
        let fence = recovery.take_over(&mut reading).await?;
        let fenced = Instant::now();
        recovery.follow(reading, fence).await?;
        recovery.outlived = (!recovery.is_released()).then_some(fenced);
        Ok(recovery)
    }
}

impl BucketRecovery {
    pub(super) fn new(place: Place, options: BucketOptions) -> Self {
        Self {
            place,
            options,
            nonce: rand::random(),
            epoch: 0,
            chain: Vec::new(),
            behind: (Position::GENESIS, ObjectChain::default()),
            floor: ObjectFloor::default(),
            garbage: Vec::new(),
            end: 0,
            ends: BTreeMap::new(),
            max_time_ms: 0,
            outlived: None,
        }
    }

    /// Reads the journal up to its present end, without a fence there: another process may be
    /// writing to it. The journal must not be started then.
    pub(super) async fn read_unfenced(&mut self) -> Result<(), JournalError> {
        let mut reading = Reading::default();
        self.list(&mut reading).await?;
        let (mut epoch, mut met) = (reading.newest_epoch(), None);
        let end = loop {
            let first = Position { epoch, number: 1 };
            self.read_present(&mut reading, first, first.last_of_epoch()).await?;
            if reading.newest_epoch() > epoch {
                epoch = reading.newest_epoch();
                continue;
            }
            match self.end_of(&mut reading, first).await? {
                End::Fence(_, NO_EPOCH) => return Err(self.ended()),
                End::Fence(at, opens) if met == Some(at) => epoch = opens,
                // As in a takeover.
                End::Fence(at, _) => {
                    self.list(&mut reading).await?;
                    met = Some(at);
                }
                End::Missing(next) => break next,
            }
        };
        self.epoch = epoch + 1;
        self.follow(reading, end).await
    }

    /// Returns the position of the oldest object that is needed, or of the next one.
    pub(super) fn first(&self) -> Position {
        self.floor.first
    }

    /// Returns the objects that were read, in order, each with the lsns before it and at its end.
    pub(super) fn objects(&self) -> impl DoubleEndedIterator<Item = (Position, Lsn, Lsn)> {
        self.chain.iter().map(|found| (found.header.at, found.before, found.header.last))
    }

    /// Returns the position behind the objects that were read.
    pub(super) fn behind(&self) -> Position {
        self.behind.0
    }

    /// Returns the last position that is not within a commit, and the state of the chain there.
    pub(super) fn whole_end(&self) -> (Position, ObjectChain) {
        let objects = self.chain.iter().rev().map(|found| (found.header.at, found.entry));
        let mut all = std::iter::once(self.behind).chain(objects);
        all.find(|(_, chain)| !chain.is_within_commit()).unwrap_or(self.behind)
    }

    // ---- requests ----------------------------------------------------------------------------

    fn corrupt(&self, at: Position, reason: impl Into<String>) -> JournalError {
        let path = at.path(self.place.root());
        JournalError::corrupt(path.to_string().into(), 0, reason)
    }

    /// Returns the error for a missing object: either it was lost, or a later object, which cannot
    /// be read, has the floor that dropped it.
    fn missing(&self, reading: &Reading, at: Position) -> JournalError {
        let unreadable = |(at, found): (&Position, &Result<FoundObject, Unreadable>)| {
            found.as_ref().err().map(|unreadable| (*at, unreadable.to_string()))
        };
        match reading.found.range(at..).find_map(unreadable) {
            Some((at, reason)) => self.corrupt(at, reason),
            None => self.corrupt(at, "the object is missing"),
        }
    }

    /// Retries a request to the store until it succeeds or has failed too often.
    async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &self,
        request: impl FnMut() -> F,
    ) -> Result<T, JournalError> {
        ask(&self.place, &self.options, request).await
    }

    /// Lists the objects.
    async fn list(&self, reading: &mut Reading) -> Result<(), JournalError> {
        reading.listed.extend(list_objects(&self.place, &self.options).await?);
        Ok(())
    }

    /// Reads an object; `None`: it does not exist.
    async fn read(&self, at: Position) -> Result<Option<Bytes>, JournalError> {
        read_object(&self.place, &self.options, at).await
    }

    /// Reads the listed objects of a range, unless they were read before; returns false if some of
    /// them are gone.
    async fn read_listed(
        &self,
        reading: &mut Reading,
        from: Position,
        to: Position,
    ) -> Result<bool, JournalError> {
        let missing = reading.listed.range(from..=to).map(|(at, _)| *at);
        let missing: Vec<_> = missing.filter(|at| !reading.found.contains_key(at)).collect();
        let mut are_there = true;
        let largest = missing.iter().filter_map(|at| reading.listed.get(at)).max().copied();
        let fit = usize::try_from(READ_BYTES / largest.unwrap_or(1).max(1)).unwrap_or(READS.1);
        let at_once = fit.clamp(READS.0, READS.1);
        let reads = missing.into_iter().map(|at| async move { (at, self.read(at).await) });
        let mut reads = stream::iter(reads).buffered(at_once).boxed();
        while let Some((at, object)) = reads.next().await {
            match object? {
                Some(object) => self.take(reading, at, &object)?,
                // Its writer has dropped it.
                None => {
                    reading.listed.remove(&at);
                    are_there = false;
                }
            }
        }
        Ok(are_there)
    }

    /// Takes in an object's header.
    fn take(
        &self,
        reading: &mut Reading,
        at: Position,
        object: &Bytes,
    ) -> Result<(), JournalError> {
        let found = match ObjectHeader::decode(object) {
            Ok((header, _)) if header.at != at => Err(Unreadable::Damaged("it has another name")),
            Ok((header, _)) if header.salt != self.options.salt => {
                return Err(self.corrupt(at, "it is of the journal of another data directory"));
            }
            Ok((header, records)) => {
                reading.floor.raise(&header.floor);
                let published = Position { number: header.published, ..at };
                reading.published = reading.published.max(published);
                reading.durable = reading.durable.max(header.durable);
                reading.max_time_ms = reading.max_time_ms.max(header.time_ms);
                let records = (reading.kept + records.len() <= KEPT_BYTES).then_some(records);
                reading.kept += records.as_ref().map_or(0, Bytes::len);
                let (entry, spans) = (ObjectChain::default(), ShardSpans::default());
                Ok(FoundObject { header, entry, before: 0, spans, records })
            }
            Err(Unreadable::Newer(found)) => {
                let path = at.path(self.place.root()).to_string().into();
                return Err(JournalError::NewerFormat { path, found, known: NEWEST_VERSION });
            }
            Err(damaged) => Err(damaged),
        };
        reading.listed.insert(at, object.len() as u64);
        reading.found.insert(at, found);
        Ok(())
    }

    // ---- reading -----------------------------------------------------------------------------

    /// Follows the objects from the floor to the fence.
    async fn follow(&mut self, mut reading: Reading, fence: Position) -> Result<(), JournalError> {
        let mut at = reading.floor.first;
        let chain = self.follow_objects(&mut reading, &mut at, fence).await?;
        self.ends.insert(at.epoch, chain.last);
        self.behind = (at, chain);
        // Fences stay for ever, and no other objects are as short.
        let dropped = reading.listed.range(..reading.floor.first);
        let garbage = dropped.filter(|(_, size)| **size != OBJECT_HEADER as u64);
        self.garbage = garbage.map(|(at, _)| at.path(self.place.root())).collect();
        // If no object is left, the dropped ones were durable, and reached to the end.
        self.end = if self.chain.is_empty() { reading.durable } else { chain.last };
        if reading.durable > self.end {
            let reason =
                format!("the records end at lsn {}, and {} was durable", self.end, reading.durable);
            return Err(self.corrupt(fence, reason));
        }
        (self.max_time_ms, self.floor) = (reading.max_time_ms, reading.floor);
        Ok(())
    }

    /// Follows the objects from `at` to the fence. Leaves `at` behind the last one that can be read.
    async fn follow_objects(
        &mut self,
        reading: &mut Reading,
        at: &mut Position,
        fence: Position,
    ) -> Result<ObjectChain, JournalError> {
        let mut chain = ObjectChain::epoch(at.epoch, 0);
        let mut at_head = true;
        while *at != fence {
            if !reading.found.contains_key(at) {
                self.read_listed(reading, *at, at.last_of_epoch()).await?;
            }
            if !reading.found.contains_key(at) {
                self.read_unlisted(reading, *at).await?;
            }
            let found = match reading.found.get(at) {
                Some(Ok(found)) => found,
                Some(Err(unreadable)) => return Err(self.corrupt(*at, unreadable.to_string())),
                None => return Err(self.missing(reading, *at)),
            };
            if found.header.is_fence() {
                self.ends.insert(at.epoch, chain.last);
                *at = Position { epoch: found.header.opens, number: 1 };
                chain = ObjectChain::epoch(at.epoch, chain.last);
                continue;
            }
            if std::mem::take(&mut at_head) {
                chain = ObjectChain::head(at.epoch, found.header.prev_crc);
            }
            let mut found = found.clone();
            self.walk(&mut found, &mut chain).await?;
            self.chain.push(found);
            *at = at.next();
        }
        Ok(chain)
    }

    /// Follows the records of one object.
    async fn walk(
        &self,
        found: &mut FoundObject,
        chain: &mut ObjectChain,
    ) -> Result<(), JournalError> {
        let at = found.header.at;
        found.entry = *chain;
        let records = self.records(found).await?;
        found.before = found.header.last;
        let each = |part: &ObjectPart<'_>| {
            // A commit whose beginning was dropped does not count any more.
            found.before = found.before.min(part.header.lsn - u64::from(!part.rest));
            found.spans.add(&part.shards, part.header.lsn, part.header.record_len());
        };
        let header = found.header.clone();
        chain.walk(&header, &records, each).map_err(|what| self.corrupt(at, what))
    }

    async fn records(&self, found: &FoundObject) -> Result<Bytes, JournalError> {
        if let Some(records) = &found.records {
            return Ok(records.clone());
        }
        let at = found.header.at;
        let object = self.read(at).await?;
        let object = object.ok_or_else(|| self.corrupt(at, "the object is missing"))?;
        match ObjectHeader::decode(&object) {
            Ok((header, records)) if header == found.header => Ok(records),
            _ => Err(self.corrupt(at, "the object changed while it was read")),
        }
    }

    // ---- the journal that was found ----------------------------------------------------------

    /// Returns true if there are objects that are needed, other than fences, or one that says that those
    /// before it are not. The newest object of an owner is needed, unless its last ones came too late,
    /// behind a fence: they may say that none before the fence is.
    pub(crate) fn has_objects(&self) -> bool {
        !self.chain.is_empty() || self.floor.first > Position::GENESIS
    }

    /// Returns the last lsn.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Returns the newest epoch that has, or once had, objects other than fences.
    pub fn last_epoch(&self) -> u64 {
        self.chain.last().map_or(self.floor.first, |last| last.header.at).epoch
    }

    /// Returns the greatest epoch before the one that the fence opens.
    pub fn max_epoch(&self) -> u64 {
        self.epoch - 1
    }

    /// Returns the greatest time in any record, dropped ones included.
    pub fn max_time_ms(&self) -> u64 {
        self.max_time_ms
    }

    /// Returns the greatest lsn of `shard` that was dropped because its rows were flushed.
    pub fn floor(&self, shard: u16) -> Lsn {
        self.floor.shards.get(&shard).copied().unwrap_or(0)
    }

    /// Waits until the lease of the former owner has ended, if it has not released the journal.
    /// Then only this process may serve its data.
    ///
    /// # Errors
    /// If another process has taken the journal over meanwhile.
    pub async fn wait_out_lease(&self) -> Result<(), JournalError> {
        if let Some(until) = self.silent_from() {
            let seconds = until.duration_since(Instant::now()).as_secs_f32();
            if seconds > 0.0 {
                let place = &self.place;
                tracing::info!(%place, seconds, "waiting until the lease of the last owner has ended");
                tokio::time::sleep_until(until).await;
            }
        }
        let first = Position { epoch: self.epoch, number: 1 };
        match self.read(first).await? {
            Some(_) => Err(self.lost()),
            None => Ok(()),
        }
    }

    /// Returns the moment from which on the former owner cannot answer any more; `None`: it has
    /// released the journal.
    pub fn silent_from(&self) -> Option<Instant> {
        self.outlived.map(|fenced| fenced + Lease::successor_wait(self.options.lease))
    }

    /// Returns the error for a takeover by another process.
    fn lost(&self) -> JournalError {
        let place = &self.place;
        JournalError::Failed(format!("another server has taken over {place} at the same time"))
    }

    /// Passes every whole commit from the lsn `from` on to `each`, in order, until that fails.
    pub async fn replay<E: From<JournalError>>(
        &self,
        from: Lsn,
        mut each: impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut pieces, mut body) = (self.pieces(from), BytesMut::new());
        while let Some(piece) = pieces.next().await? {
            body.extend_from_slice(&piece.record.body);
            if piece.last {
                each(&Record { body: body.split().freeze(), ..piece.record })?;
            }
        }
        Ok(())
    }

    /// Opens the epoch that the fence names, or one of at least `min_epoch`, and starts the
    /// journal, with a lease that holds. The next lsn is at least `min_next_lsn`.
    pub async fn start(
        self,
        min_epoch: u64,
        min_next_lsn: Lsn,
    ) -> Result<Arc<BucketJournal>, JournalError> {
        let limit = self.options.wait_limit;
        let journal = BucketJournal::open(self.begin(min_epoch, min_next_lsn).await?)?;
        match journal.shared.lease.confirm(limit).await {
            Ok(()) => Ok(journal),
            Err(Unconfirmed::Away) => Err(journal.shared.away_error(&lock(&journal.shared.state))),
            Err(Unconfirmed::Lost) => {
                let reason = journal.failed().unwrap_or_default();
                Err(JournalError::Failed(reason))
            }
        }
    }

    pub(super) async fn begin(
        mut self,
        min_epoch: u64,
        min_next_lsn: Lsn,
    ) -> Result<Arc<BucketShared>, JournalError> {
        if self.epoch < min_epoch {
            // The shards know of greater ones: they had another journal.
            let at = Position { epoch: self.epoch, number: 1 };
            self.epoch = min_epoch;
            let mut reading = Reading { max_time_ms: self.max_time_ms, ..Reading::default() };
            reading.floor.first = self.floor.first;
            if self.put_fence(&reading, at).await?.is_some() {
                return Err(self.lost());
            }
        }
        let last = self.end.max(min_next_lsn.saturating_sub(1));
        let (wake, mut floor) = (Arc::new(Notify::new()), self.floor);
        // With a floor, no object is as short as a fence.
        floor.raise_shard(0, 0);
        let stored = self.chain.into_iter().map(|found| StoredObject {
            at: found.header.at,
            before: found.before,
            last: found.header.last,
            bytes: found.header.records_len,
            spans: found.spans,
        });
        let state = BucketState {
            mode: self.options.mode,
            window: Duration::ZERO,
            requested: 0,
            queue: VecDeque::new(),
            flights: VecDeque::new(),
            stored: stored.collect(),
            next: Position { epoch: self.epoch, number: 1 },
            published: 0,
            chain_crc: 0,
            last,
            sealed: last,
            max_time_ms: self.max_time_ms,
            waiting: 0,
            flushed: Vec::new(),
            holds: Holds::default(),
            floor,
            doomed_records: !self.garbage.is_empty(),
            doomed: self.garbage,
            deleting: false,
            refused: BTreeSet::new(),
            put_at: Instant::now(),
            landed_at: Instant::now(),
            trouble: None,
            closed: false,
            released: false,
            ended: false,
            stop: false,
            appends: 0,
            appended_bytes: 0,
            puts: 0,
        };
        Ok(Arc::new(BucketShared {
            place: self.place,
            lease: Arc::new(Lease::new(self.options.lease, SILENCE, wake.clone())),
            options: self.options,
            epoch: self.epoch,
            nonce: self.nonce,
            end: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            failed: OnceLock::new(),
            taken_over: AtomicBool::new(false),
            away: AtomicBool::new(false),
            state: Mutex::new(state),
            wake,
            progress: Condvar::new(),
            subscribers: RwLock::default(),
        }))
    }
}
