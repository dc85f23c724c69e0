//! Reads a journal in a bucket by its objects, some of which may be in an archive, while another
//! process may be writing it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::super::record::{HEADER, RecordHeader};
use super::super::{HistoryEnd, JournalError, Lsn, Record, Recovered};
use super::object::{OBJECT_HEADER, ObjectHeader, Position};
use super::read::{Reader, Trouble};
use super::requests::{list_objects, read_object};
use super::{BucketJournal, BucketOptions, BucketRecovery};
use crate::place::Place;

/// Objects that are read at a time.
const READS: usize = 8;

/// Attempts to read a journal that changes meanwhile.
const ATTEMPTS: usize = 5;

/// A journal in a bucket, read without taking it over.
#[derive(Debug)]
pub struct BucketView {
    pub(super) recovery: BucketRecovery,
}

impl From<BucketView> for Recovered {
    /// Converts a view for reading; the result must not be started.
    fn from(view: BucketView) -> Self {
        Self::Bucket(Box::new(view.recovery))
    }
}

impl BucketView {
    /// Returns the last lsn.
    pub fn end(&self) -> Lsn {
        self.recovery.end()
    }

    /// Returns true if its owner has released it, or if nobody has owned it yet.
    pub fn is_released(&self) -> bool {
        self.recovery.is_released()
    }

    /// Returns the lsn up to which everything was dropped.
    pub fn dropped(&self) -> Lsn {
        self.recovery.objects().next().map_or(self.end(), |(_, before, _)| before)
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> u64 {
        self.recovery.max_epoch()
    }

    /// Returns the greatest time in any record, dropped ones included.
    pub fn max_time_ms(&self) -> u64 {
        self.recovery.max_time_ms()
    }

    /// Passes every whole commit from the lsn `from` on to `each`, in order, until that fails.
    ///
    /// # Errors
    /// Those of `each`; [`JournalError::Corrupt`] also if the journal drops them meanwhile.
    pub async fn replay(
        &self,
        from: Lsn,
        each: impl FnMut(&Record) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        self.recovery.replay(from, each).await
    }
}

impl BucketJournal {
    /// Reads the journal in `place` without changing it.
    ///
    /// # Errors
    /// As of [`recover`](Self::recover).
    pub async fn view(place: &Place, options: &BucketOptions) -> Result<BucketView, JournalError> {
        let mut attempts = 1;
        loop {
            let mut recovery = BucketRecovery::new(place.clone(), options.clone());
            match recovery.read_unfenced().await {
                Ok(()) => return Ok(BucketView { recovery }),
                // A listed object may have been dropped before it was read.
                Err(JournalError::Corrupt { .. }) if attempts < ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes the records behind `after` in the journal and its archive to `each`, in order, as far as
    /// they are whole and none is missing, or up to the lsn `until` or a little further.
    ///
    /// # Errors
    /// Those of `each`, and as of [`view`](Self::view).
    pub async fn read_history(
        journal: &Place,
        archive: &Place,
        options: &BucketOptions,
        (after, until): (Lsn, Lsn),
        each: &mut dyn FnMut(Record) -> Result<(), JournalError>,
    ) -> Result<HistoryEnd, JournalError> {
        let view = Self::view(journal, options).await?;
        let mut end = HistoryEnd { last: None, epoch: view.recovery.last_epoch(), broken: None };
        let stored = view.recovery.objects().filter(|(_, before, _)| *before < until);
        let mut objects: VecDeque<(Position, &Place)> =
            stored.map(|(at, ..)| (at, journal)).collect();
        if view.dropped() > after {
            let archive = Archive::open(journal, archive, options).await?;
            match archive.before(view.recovery.first(), after).await? {
                Ok(earlier) => earlier.into_iter().for_each(|at| objects.push_front(at)),
                Err(gone) => {
                    end.broken = Some(missing(gone, archive.place));
                    return Ok(end);
                }
            }
        }
        let get = |(at, place): (Position, &Place)| {
            let place = place.clone();
            async move { (at, read_object(&place, options, at).await, place) }
        };
        let mut gets = stream::iter(objects.into_iter().map(get)).buffered(READS).boxed();
        let mut failed = None;
        let mut take = |record: Record| {
            each(record).map_err(|error| {
                failed = Some(error);
                std::io::Error::other("it is not taken")
            })
        };
        let mut reader = Reader::new((after + 1, Lsn::MAX), &mut take);
        let mut broken = None;
        while let Some((at, object, place)) = gets.next().await {
            // An object dropped meanwhile may be in the archive now.
            let (object, place) = match object? {
                None => (read_object(archive, options, at).await?, archive),
                object => (object, &place),
            };
            let path = || at.path(place.root()).to_string().into();
            let Some(object) = object else {
                broken = Some(missing(at, archive));
                break;
            };
            match reader.take(at, options.salt, &object) {
                Ok(()) => {}
                Err(trouble @ Trouble::Damaged(_)) => {
                    broken = Some(trouble.error(path()));
                    break;
                }
                Err(trouble) => return Err(failed.unwrap_or_else(|| trouble.error(path()))),
            }
        }
        let last = match &broken {
            Some(_) => reader.last(),
            None => Some(view.end()),
        };
        end.last = last.filter(|last| *last >= after);
        end.broken = broken;
        Ok(end)
    }

    /// Reads the objects in the archive of a journal without a writer, and tells of each one that is
    /// damaged or missing. Objects before the oldest one may have grown too old. Returns how many there
    /// are.
    ///
    /// # Errors
    /// As of [`view`](Self::view).
    pub async fn check_archive(
        journal: &Place,
        archive: &Place,
        options: &BucketOptions,
        tell: &mut dyn FnMut(String),
    ) -> Result<u64, JournalError> {
        let view = Self::view(journal, options).await?;
        let there = Archive::open(journal, archive, options).await?;
        let (present, gaps) = there.all_before(view.recovery.first());
        let oldest = present.last().copied();
        for gone in gaps.into_iter().filter(|gone| oldest.is_some_and(|oldest| oldest < *gone)) {
            tell(missing(gone, archive).to_string());
        }
        let mut pass = |_: Record| Ok(());
        let (nothing, mut before) = ((Lsn::MAX, Lsn::MAX), None);
        let mut reader = Reader::new(nothing, &mut pass);
        for at in present.iter().rev().copied() {
            if before.is_some() && there.predecessor(at) != before {
                reader.begin_anew();
            }
            let place = there.there.get(&at).copied().unwrap_or(archive);
            let Some(object) = read_object(place, options, at).await? else {
                tell(missing(at, place).to_string());
                continue;
            };
            before = Some(at);
            if let Err(trouble) = reader.take(at, options.salt, &object) {
                let path = at.path(place.root()).to_string().into();
                tell(trouble.error(path).to_string());
                before = None;
                reader.begin_anew();
            }
        }
        Ok(present.len() as u64)
    }
}

/// Returns the error for an object that is missing.
fn missing(at: Position, place: &Place) -> JournalError {
    let path = at.path(place.root()).to_string().into();
    JournalError::corrupt(path, 0, "the object is missing: it was lost, or had grown too old")
}

/// The objects of a journal and of its archive.
struct Archive<'a> {
    place: &'a Place,
    options: &'a BucketOptions,
    /// The place of each object: the journal until it is dropped.
    there: BTreeMap<Position, &'a Place>,
    /// The lowest fence of each epoch that counts, with the epoch that it opens.
    fences: BTreeMap<u64, (Position, u64)>,
}

impl<'a> Archive<'a> {
    async fn open(
        journal: &'a Place,
        place: &'a Place,
        options: &'a BucketOptions,
    ) -> Result<Self, JournalError> {
        // In this order, because objects are copied to the archive before they are deleted.
        let stored = list_objects(journal, options).await?;
        let is_short = |size: u64| size == OBJECT_HEADER as u64;
        let longer = stored.iter().filter(|(_, size)| !is_short(**size));
        let mut there: BTreeMap<_, _> = longer.map(|(at, _)| (*at, journal)).collect();
        // No fence belongs into the archive.
        let archived =
            list_objects(place, options).await?.into_iter().filter(|(_, size)| !is_short(*size));
        there.extend(archived.map(|(at, _)| (at, place)));
        let mut this = Self { place, options, there, fences: BTreeMap::new() };
        for (at, _) in stored.into_iter().filter(|(_, size)| is_short(*size)) {
            if this.fences.contains_key(&at.epoch) {
                continue;
            }
            let Some(object) = read_object(journal, options, at).await? else { continue };
            if let Ok((header, _)) = ObjectHeader::decode(&object)
                && header.is_fence()
                && !this.was_used(at).await?
            {
                this.fences.insert(at.epoch, (at, header.opens));
            }
        }
        Ok(this)
    }

    /// Returns true if the number of a fence was one of an object before, so that the fence landed
    /// there too late and ends nothing: that object is archived, or a later one of the epoch says
    /// that it was stored. It may be gone from the archive.
    async fn was_used(&self, fence: Position) -> Result<bool, JournalError> {
        if self.there.contains_key(&fence) {
            return Ok(true);
        }
        let mut behind = self.there.range(fence.next()..=fence.last_of_epoch());
        let Some((last, place)) = behind.next_back() else { return Ok(false) };
        let object = match read_object(place, self.options, *last).await? {
            None => read_object(self.place, self.options, *last).await?,
            object => object,
        };
        let header = object.and_then(|object| ObjectHeader::decode(&object).ok());
        Ok(header.is_some_and(|(header, _)| header.published >= fence.number))
    }

    /// Returns the objects before `first`, newest first, back to one with which the records behind `after` may
    /// begin; or the one that is missing before them.
    async fn before(
        &self,
        first: Position,
        after: Lsn,
    ) -> Result<Result<Vec<(Position, &'a Place)>, Position>, JournalError> {
        let mut at = first;
        let positions = std::iter::from_fn(|| {
            at = self.predecessor(at)?;
            Some(at)
        });
        let there = positions.map_while(|at| Some((at, *self.there.get(&at)?)));
        let get = |(at, place)| async move {
            let object = match read_object(place, self.options, at).await? {
                // It was dropped meanwhile.
                None => read_object(self.place, self.options, at).await?,
                object => object,
            };
            Ok::<_, JournalError>(((at, place), object))
        };
        let mut gets = stream::iter(there.map(get)).buffered(READS).boxed();
        let mut found = Vec::new();
        while let Some(((at, place), object)) = gets.try_next().await? {
            let Some(object) = object else { return Ok(Err(at)) };
            found.push((at, place));
            // One that is damaged ends the history where it is read: what is before it is still there.
            if self.may_begin(at, &object, after) {
                return Ok(Ok(found));
            }
        }
        let oldest = found.last().map_or(first, |(at, _)| *at);
        Ok(self.predecessor(oldest).map_or(Ok(found), Err))
    }

    /// Returns true if no object before this one is needed for the records behind `after`. So one that is damaged
    /// or missing hides no moment for which it is not needed.
    fn may_begin(&self, at: Position, object: &Bytes, after: Lsn) -> bool {
        let Ok((header, records)) = ObjectHeader::decode(object) else { return false };
        if header.at != at || header.salt != self.options.salt {
            return false;
        }
        // An object that ends with `after` may hold the beginning of the next commit.
        let is_empty = records.len() < HEADER;
        let first = (!is_empty).then(|| RecordHeader::decode(&records, self.options.salt));
        let begins = first
            .flatten()
            .is_some_and(|first| first.lsn <= after || (first.lsn == after + 1 && first.part == 1));
        header.last < after || begins
    }

    /// Returns the objects before `first`, the newest first, and those that are missing between them,
    /// or before the oldest one: of several that follow each other only the newest.
    fn all_before(&self, first: Position) -> (Vec<Position>, Vec<Position>) {
        let (mut present, mut gaps) = (Vec::new(), Vec::new());
        let mut at = first;
        while let Some(before) = self.predecessor(at) {
            at = before;
            if !self.there.contains_key(&at) {
                gaps.push(at);
                let Some((next, _)) = self.there.range(..at).next_back() else { break };
                at = *next;
            }
            present.push(at);
        }
        (present, gaps)
    }

    /// Returns the object before this one; `None`: this is the very first.
    fn predecessor(&self, at: Position) -> Option<Position> {
        let mut at = at;
        while at.number == 1 {
            let before = self.fences.values().find(|(_, opens)| *opens == at.epoch);
            at = before?.0;
        }
        Some(Position { number: at.number - 1, ..at })
    }
}
