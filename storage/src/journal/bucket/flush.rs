//! Puts objects: a few at a time, in the order of their numbers, retrying until the store has them.
//! Runs on the journal's thread.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::time::Instant;

use super::super::SyncMode;
use super::super::local::lock;
use super::object::{OBJECT_HEADER, ObjectHeader, Position};
use super::{BucketShared, BucketState, Flight, RecordBatch, StoredObject};
use crate::latency::{LATENCY, LatencyEvent};
use crate::lease::BootTime;
use crate::place::{Place, cause};

/// Objects whose puts are under way at a time: more would cost more, and fill no gap.
const IN_FLIGHT: usize = 4;

/// Longest time limit of an attempt. A slow attempt is given up early, as another may be faster;
/// each further one may take twice as long, up to this, in case the store is slow.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(8);

/// An attempt may take a second more for each of so many bytes of the object.
const BYTES_PER_SECOND: usize = 256 << 10;

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Idle time after which an object without records is put, to publish which objects may be deleted.
const MARK_AFTER: Duration = Duration::from_secs(10);

/// A batch is put once it takes one part in so many of the bytes that may wait: if it gathered more,
/// appends might be refused while it is put.
const GATHERED_PART: usize = 4;

/// Objects deleted by one request, its time limit, and the pause after a failed one.
const DELETED_AT_ONCE: usize = 1000;
/// Objects without records that are kept until so many are deleted together.
const EMPTY_KEPT: usize = 100;
const DELETE_LIMIT: Duration = Duration::from_secs(30);
const DELETE_PAUSE: Duration = Duration::from_secs(10);

/// Objects that the store copies to the archive at the same time.
const COPIES: usize = 16;

/// Interval of checks whether the store is away, while something waits.
const LOOK: Duration = Duration::from_millis(100);

/// An object to put.
struct Object {
    at: Position,
    header: Bytes,
    records: Bytes,
}

/// Events that the flusher waits for.
enum Done {
    /// An object is stored, and was not before this moment.
    Landed(Position, BootTime),
    /// The journal has failed.
    Lost(String),
    Deleted(Deletion),
}

/// The outcome of a deletion.
struct Deletion {
    objects: Vec<Path>,
    /// Description of the failure, and its remedy: some objects may be left.
    refusal: Option<String>,
}

impl BucketShared {
    /// Puts due objects until the journal is stopped or has failed.
    pub(super) async fn run(&self) {
        let mut jobs = FuturesUnordered::new();
        let (mut flying, mut deleting) = (0, false);
        let mut delete_from = Instant::now();
        loop {
            while flying < IN_FLIGHT
                && let Some(object) = self.take_due()
            {
                jobs.push(futures::future::Either::Left(self.put(object)));
                flying += 1;
            }
            if !deleting
                && Instant::now() >= delete_from
                && let Some(doomed) = self.take_doomed()
            {
                jobs.push(futures::future::Either::Right(self.delete(doomed)));
                deleting = true;
            }
            let pause = self.until_next_look();
            let done = tokio::select! {
                Some(done) = jobs.next() => Some(done),
                () = self.wake.notified() => None,
                () = tokio::time::sleep(pause) => None,
            };
            match done {
                Some(Done::Landed(at, since)) => {
                    flying -= 1;
                    self.landed(at, since);
                }
                Some(Done::Lost(reason)) => return self.fail(reason),
                Some(Done::Deleted(deletion)) => {
                    deleting = false;
                    if deletion.refusal.is_some() {
                        delete_from = Instant::now() + DELETE_PAUSE;
                    }
                    self.deleted(deletion);
                }
                None => {}
            }
            self.check_store();
            if lock(&self.state).stop {
                return;
            }
        }
    }

    /// Builds the object that is due, if any.
    fn take_due(&self) -> Option<Object> {
        let mut state = lock(&self.state);
        let is_due = self.due_in(&state)? == Duration::ZERO;
        if !is_due {
            return None;
        }
        let batch = state.queue.pop_front();
        state.released = state.closed && batch.is_none();
        let (at, last) = (state.next, state.sealed);
        let batch = batch.unwrap_or_else(|| RecordBatch {
            prev_crc: state.chain_crc,
            last,
            ..RecordBatch::default()
        });
        state.next = at.next();
        state.sealed = batch.last;
        state.puts += 1;
        state.put_at = Instant::now();
        raise_floor(&mut state, at);
        let header = ObjectHeader {
            salt: self.options.salt,
            at,
            nonce: self.nonce,
            opens: 0,
            released: state.released,
            last: batch.last,
            durable: self.durable.load(Ordering::Acquire),
            published: state.published,
            time_ms: state.max_time_ms,
            prev_crc: batch.prev_crc,
            records_crc: 0,
            records_len: batch.records.len() as u64,
            floor: state.floor.clone(),
        };
        let flight = Flight {
            at,
            last: batch.last,
            spans: batch.spans,
            bytes: batch.records.len(),
            since: batch.since.unwrap_or_else(Instant::now),
            floor: state.floor.clone(),
            stored: None,
        };
        state.flights.push_back(flight);
        drop(state);
        let records_crc = crc32c::crc32c(&batch.records);
        let header = ObjectHeader { records_crc, ..header }.encode();
        Some(Object { at, header, records: batch.records.into() })
    }

    /// Returns when the next object is due; `None`: there is nothing to put.
    fn due_in(&self, state: &BucketState) -> Option<Duration> {
        // Each stored object renews the lease.
        let renewal = self.lease.renew_in().filter(|_| state.flights.is_empty());
        let records = match state.queue.front() {
            Some(batch) => self.batch_due_in(state, batch),
            // The last object also publishes that all objects before it may be deleted.
            None if state.closed => {
                (!state.released && state.flights.is_empty()).then_some(Duration::ZERO)
            }
            None => {
                let marks = state.flights.is_empty() && state.drops_records();
                marks.then(|| MARK_AFTER.saturating_sub(state.put_at.elapsed()))
            }
        };
        [renewal, records].into_iter().flatten().min()
    }

    /// Returns when the oldest batch is due. It gathers commits for the window, whoever waits for
    /// one of them, unless it is large or the journal ends.
    fn batch_due_in(&self, state: &BucketState, batch: &RecordBatch) -> Option<Duration> {
        let is_large = batch.records.len() >= self.options.max_waiting / GATHERED_PART;
        if state.queue.len() > 1 || is_large || state.closed {
            return Some(Duration::ZERO);
        }
        let gathers = match state.mode {
            SyncMode::Always => state.window,
            SyncMode::EverySec => self.options.everysec_bound,
            SyncMode::No => self.options.longest_gathering(),
        };
        let gathers = gathers.min(self.options.longest_gathering());
        let is_awaited = state.requested > state.sealed;
        let gathers = if is_awaited { gathers.min(state.window) } else { gathers };
        let age = batch.since.map_or(Duration::ZERO, |since| since.elapsed());
        Some(gathers.saturating_sub(age))
    }

    fn until_next_look(&self) -> Duration {
        let state = lock(&self.state);
        let due = self.due_in(&state).filter(|due| !due.is_zero()).unwrap_or(MARK_AFTER);
        if state.oldest().is_some() { due.min(LOOK) } else { due }
    }

    /// Puts an object, retrying until the store has it.
    async fn put(&self, object: Object) -> Done {
        let begun = Instant::now();
        let mut done = self.put_until_stored(object).await;
        if let Done::Landed(at, _) = done
            && let Some(reason) = self.check_rest(at).await
        {
            done = Done::Lost(reason);
        }
        LATENCY.note(LatencyEvent::JournalSync, begun.elapsed());
        done
    }

    /// Makes sure, when an object is stored behind the end of a contested lease, that the one before it is
    /// still there; returns the error if not. Without its objects the journal may have been given up:
    /// its successors know no end behind which they could have put a fence, and this process would not
    /// meet one. An attempt takes less than a lease, so what it sees is not older than that.
    async fn check_rest(&self, at: Position) -> Option<String> {
        if !self.options.contested || !self.lease.left().is_zero() {
            return None;
        }
        let newest = {
            let state = lock(&self.state);
            // Objects behind the first one become durable with it.
            let is_first = state.flights.front().is_some_and(|flight| flight.at == at);
            state.stored.back().filter(|_| is_first)?.at.path(self.place.root())
        };
        let (store, mut pause) = (self.place.store(), self.options.pause);
        loop {
            let look = tokio::time::timeout(self.options.attempt, store.head(&newest));
            let trouble = match look.await {
                Ok(Ok(_)) => return None,
                Ok(Err(Error::NotFound { .. })) => break,
                Ok(Err(error)) => cause(&error),
                Err(_) => "it has not answered in time".to_owned(),
            };
            self.has_trouble(trouble);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        self.taken_over.store(true, Ordering::Release);
        self.lease.end();
        Some(format!(
            "{newest} is missing, and this server has stored it more than a lease ago: others have taken over \
             and need {} no more, or its objects were deleted",
            self.place
        ))
    }

    async fn put_until_stored(&self, object: Object) -> Done {
        let path = object.at.path(self.place.root());
        let bytes = object.header.len() + object.records.len();
        let transfer = Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        let mut patience = self.options.attempt;
        let mut pause = self.options.pause;
        let first = BootTime::now();
        loop {
            let begun = BootTime::now();
            let limit = patience + transfer;
            let payload = PutPayload::from_iter([object.header.clone(), object.records.clone()]);
            let store = self.place.store();
            let attempt = store.put_opts(&path, payload, PutMode::Create.into());
            let trouble = match tokio::time::timeout(limit, attempt).await {
                Ok(Ok(_)) => return Done::Landed(object.at, begun),
                // An earlier attempt may have succeeded without an answer; or another process has
                // taken over.
                Ok(Err(Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                    match self.check_existing(&path, &object).await {
                        Ok(None) => return Done::Landed(object.at, first),
                        Ok(Some(reason)) => return Done::Lost(reason),
                        Err(error) => cause(&error),
                    }
                }
                Ok(Err(error)) => cause(&error),
                Err(_) => {
                    patience = (2 * patience).min(LONGEST_ATTEMPT);
                    format!("it has not answered within {} s", limit.as_secs_f32())
                }
            };
            self.has_trouble(trouble);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Checks the object that exists already: `None` if it is this one, else the error.
    async fn check_existing(&self, path: &Path, object: &Object) -> Result<Option<String>, Error> {
        let found = self.place.store().get(path).await?.bytes().await?;
        if found.len() == object.header.len() + object.records.len()
            && found.starts_with(&object.header)
        {
            return Ok(None);
        }
        let place = &self.place;
        Ok(Some(match ObjectHeader::decode(&found) {
            Ok((header, _)) if header.is_fence() => {
                self.taken_over.store(true, Ordering::Release);
                self.lease.end();
                format!("another server has taken over {place}, with epoch {}", header.opens)
            }
            _ => format!("another server writes to {place}: {path} is not what was put there"),
        }))
    }

    fn has_trouble(&self, trouble: String) {
        let mut state = lock(&self.state);
        if state.trouble.is_none() {
            tracing::warn!(place = %self.place, "requests to the journal's store fail: {trouble}");
        }
        state.trouble = Some(trouble);
    }

    /// Notes that an object is stored, and was not before `since`. All contiguous objects up to it
    /// become durable, which proves that no fence was put before.
    fn landed(&self, at: Position, since: BootTime) {
        let mut state = lock(&self.state);
        state.landed_at = Instant::now();
        if state.trouble.take().is_some() {
            tracing::info!(place = %self.place, "the journal's store answers again");
        }
        if let Some(flight) = state.flights.iter_mut().find(|flight| flight.at == at) {
            flight.stored = Some(since);
        }
        let mut durable = self.durable.load(Ordering::Acquire);
        let mut proven = None;
        while let Some(flight) = state.flights.pop_front_if(|flight| flight.stored.is_some()) {
            proven = proven.max(flight.stored);
            state.waiting -= flight.bytes;
            state.published = flight.at.number;
            let stored = StoredObject {
                at: flight.at,
                before: durable,
                last: flight.last,
                bytes: flight.bytes as u64,
                spans: flight.spans,
            };
            durable = durable.max(stored.last);
            state.stored.push_back(stored);
            state.break_oversized_holds();
            // Now the floor is stored too.
            while let Some(old) = state.stored.pop_front_if(|old| old.at < flight.floor.first) {
                state.doomed.push(old.at.path(self.place.root()));
                state.doomed_records |= old.bytes > 0;
            }
        }
        state.ended = state.released && state.flights.is_empty();
        self.durable.store(durable, Ordering::SeqCst);
        if let Some(proven) = proven {
            self.lease.renew(proven);
        }
        drop(state);
        self.progress.notify_all();
        self.announce();
    }

    /// Updates whether the oldest commit has waited too long.
    fn check_store(&self) {
        let (is_away, limit) = {
            let state = lock(&self.state);
            let limit = self.wait_limit(&state);
            (state.oldest().is_some_and(|since| since.elapsed() >= limit), limit.as_secs_f32())
        };
        if self.away.swap(is_away, Ordering::AcqRel) != is_away {
            if is_away {
                tracing::error!(
                    place = %self.place,
                    "writes are refused: the journal's store has not answered for {limit} s"
                );
                if self.options.contested {
                    self.lease.give_up();
                }
            } else {
                tracing::info!(place = %self.place, "writes are accepted again");
            }
            self.announce();
        }
    }

    /// Returns how long a commit may wait before the store counts as away.
    pub(super) fn wait_limit(&self, state: &BucketState) -> Duration {
        // Without a lease, other servers are about to take over.
        let is_lost = self.options.contested && state.trouble.is_some() && !self.lease.holds();
        let limit = self.options.wait_limit;
        if is_lost { limit.min(self.options.lease) } else { limit }
    }

    fn take_doomed(&self) -> Option<Vec<Path>> {
        let mut state = lock(&self.state);
        if !state.doomed_records && !state.closed && state.doomed.len() < EMPTY_KEPT {
            return None;
        }
        let some = state.doomed.len().min(DELETED_AT_ONCE);
        state.doomed_records = state.doomed_records && some < state.doomed.len();
        state.deleting = some > 0;
        (some > 0).then(|| state.doomed.drain(..some).collect())
    }

    /// Copies objects to the archive, if there is one, and deletes them.
    async fn delete(&self, doomed: Vec<Path>) -> Done {
        let place = &self.place;
        if let Some(archive) = &self.options.archive
            && let Err(reason) = self.archive(&doomed, archive).await
        {
            let refusal = format!(
                "dropped objects of the journal {place} cannot be copied to its archive {archive}: {reason}. They \
                 stay, each start takes longer, and `restore --as-of` lacks them, until the credentials may write there"
            );
            return Done::Deleted(Deletion { objects: doomed, refusal: Some(refusal) });
        }
        let paths = stream::iter(doomed.clone().into_iter().map(Ok)).boxed();
        let outcomes = place.store().delete_stream(paths).collect::<Vec<_>>();
        let reason = match tokio::time::timeout(DELETE_LIMIT, outcomes).await {
            Ok(outcomes) => outcomes.iter().find_map(|outcome| failure(outcome.as_ref().err()?)),
            Err(_) => Some(silence()),
        };
        let refusal = reason.map(|reason| {
            format!(
                "dropped objects of the journal {place} cannot be deleted: {reason}. They stay, and each start takes \
                 longer, until the credentials may delete there, and no retention policy of the bucket forbids it"
            )
        });
        Done::Deleted(Deletion { objects: doomed, refusal })
    }

    /// Notes the outcome of a deletion, and logs the first failure, and when it has ended for all objects.
    fn deleted(&self, Deletion { objects, refusal }: Deletion) {
        let mut state = lock(&self.state);
        state.deleting = false;
        let was_refused = !state.refused.is_empty();
        if let Some(refusal) = refusal {
            state.doomed_records = true;
            state.refused.extend(objects.iter().cloned());
            // The others are deleted before they are tried again.
            state.doomed.extend(objects);
            if !was_refused {
                tracing::warn!(objects = state.left(), "{refusal}");
            }
        } else {
            for path in &objects {
                state.refused.remove(path);
            }
            if was_refused && state.refused.is_empty() {
                let place = &self.place;
                tracing::info!(%place, "dropped objects of the journal are deleted again");
            }
        }
        drop(state);
        self.progress.notify_all();
    }
}

/// Describes the failure of a request for a dropped object; `None`: an earlier attempt has removed it.
fn failure(error: &Error) -> Option<String> {
    (!matches!(error, Error::NotFound { .. })).then(|| cause(error))
}

fn silence() -> String {
    format!("it has not answered within {} s", DELETE_LIMIT.as_secs())
}

impl BucketShared {
    /// Has the store copy objects to the archive.
    ///
    /// # Errors
    /// If some may be missing there: the reason of one of them.
    pub(super) async fn archive(&self, doomed: &[Path], archive: &Place) -> Result<(), String> {
        let root = self.place.root();
        let mut copies = Vec::with_capacity(doomed.len());
        for path in doomed {
            if let Some(at) = Position::of(path, root) {
                let (store, from, to) = (self.place.store(), path.clone(), at.path(archive.root()));
                copies.push(async move {
                    let copy = archive_object(&*store, &from, &to);
                    tokio::time::timeout(DELETE_LIMIT, copy).await
                });
            }
        }
        let mut outcomes = stream::iter(copies).buffer_unordered(COPIES);
        let mut reason = None;
        while let Some(outcome) = outcomes.next().await {
            reason = match outcome {
                Ok(Ok(())) => reason,
                Ok(Err(error)) => reason.or_else(|| failure(&error)),
                Err(_) => reason.or_else(|| Some(silence())),
            };
        }
        reason.map_or(Ok(()), Err)
    }
}

/// Copies an object to the archive, unless that has it already. An object is deleted only behind its
/// copy: when a deletion is repeated, a fence may have landed at its number, too late, and must not
/// replace the copy.
async fn archive_object(store: &dyn ObjectStore, from: &Path, to: &Path) -> Result<(), Error> {
    match store.head(to).await {
        Ok(copied) if copied.size != OBJECT_HEADER as u64 => Ok(()),
        Ok(_) | Err(Error::NotFound { .. }) => store.copy(from, to).await,
        Err(error) => Err(error),
    }
}

/// Raises the floor as high as possible, but not beyond the object that is being built.
fn raise_floor(state: &mut BucketState, at: Position) {
    let count = state.droppable();
    if count == 0 {
        return;
    }
    let mut floor = state.floor.clone();
    floor.first = state
        .stored
        .get(count)
        .map_or_else(|| state.flights.front().map_or(at, |flight| flight.at), |stored| stored.at);
    for stored in state.stored.iter().take(count) {
        for (shard, lsn) in stored.spans.last() {
            floor.raise_shard(shard, lsn);
        }
    }
    state.floor = floor;
}
