//! The journal in a bucket: numbered objects, each put only where there is none.
//!
//! Appends gather in memory; a separate thread puts them, a few objects at a time, and publishes
//! the contiguous prefix as durable. No other process can put the next number unnoticed: a
//! successor puts a fence there, and reads up to it. The bytes and rules are in `docs/format.md`.

mod append;
mod flush;
mod history;
mod object;
mod read;
mod records;
mod recovery;
mod requests;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use object_store::path::Path;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::local::{join, lock};
use super::read::Holds;
use super::segment::ShardSpans;
use super::{HoldId, Journal, JournalError, JournalStats, Lsn, Record, Subscriber, SyncMode};
use crate::lease::{BootTime, LEASE, Lease};
use crate::place::Place;
use object::{ObjectFloor, Position};

pub use history::BucketView;
#[cfg(test)]
pub(crate) use object::OBJECT_HEADER;
pub(super) use recovery::BucketPieces;
pub use recovery::{BucketRecovery, JournalCondition, JournalLook, JournalSight};
pub use tail::{JournalTail, TailStep};

/// Options of a journal in a bucket.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    pub mode: SyncMode,
    /// Age of a commit in [`SyncMode::EverySec`] at which it is put.
    pub everysec_bound: Duration,
    /// How long the oldest commit may wait for the store before appends are refused.
    pub wait_limit: Duration,
    /// Bytes that may wait before appends are refused.
    pub max_waiting: usize,
    /// The salt of the node's journal.
    pub salt: u32,
    /// Place for dropped objects, in the same bucket; `None`: they are deleted.
    pub archive: Option<Place>,
    /// Time limit for an attempt to put a small object.
    pub attempt: Duration,
    /// Time limit for an attempt of another request.
    pub request: Duration,
    /// The pause after a failed attempt; later pauses grow.
    pub pause: Duration,
    /// How long a stored object proves that no other process has taken over. The same for all
    /// possible owners of the journal.
    pub lease: Duration,
    /// True if other servers take the journal over once it is silent for about a lease, as those of a
    /// cluster do. Then a takeover puts its fence before it reads all objects, so that their number
    /// delays nothing; and nobody waits longer than a lease for a store that has stopped to answer.
    pub contested: bool,
}

impl BucketOptions {
    /// Returns how long commits may gather, whatever the mode: as long again is left for the store,
    /// before it counts as away.
    fn longest_gathering(&self) -> Duration {
        self.wait_limit / 2
    }
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self {
            mode: SyncMode::Always,
            everysec_bound: Duration::from_secs(1),
            wait_limit: Duration::from_secs(10),
            max_waiting: 64 << 20,
            salt: 0,
            archive: None,
            attempt: LEASE / 3,
            request: Duration::from_secs(15),
            pause: Duration::from_millis(50),
            lease: LEASE,
            contested: false,
        }
    }
}

/// The journal in a bucket. If it is dropped without [`Journal::close`] it stops as after a kill.
pub struct BucketJournal {
    shared: Arc<BucketShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct BucketShared {
    place: Place,
    options: BucketOptions,
    epoch: u64,
    nonce: u64,
    end: AtomicU64,
    durable: AtomicU64,
    failed: OnceLock<String>,
    /// True once a successor has taken over, or may have.
    taken_over: AtomicBool,
    /// True while the oldest commit has waited too long.
    away: AtomicBool,
    state: Mutex<BucketState>,
    /// Wakes the flusher.
    wake: Arc<Notify>,
    lease: Arc<Lease>,
    /// Notified, with `state`, after a publication and after a failure.
    progress: Condvar,
    subscribers: RwLock<Vec<Subscriber>>,
}

struct BucketState {
    mode: SyncMode,
    /// How long commits gather before an object is put for them, whoever waits.
    window: Duration,
    /// The greatest lsn that a caller waits for.
    requested: Lsn,
    /// Appended records that are in no object yet; all batches but the last one are full.
    queue: VecDeque<RecordBatch>,
    /// Objects whose puts are under way, in order.
    flights: VecDeque<Flight>,
    /// Stored objects without fences, in order.
    stored: VecDeque<StoredObject>,
    /// The number of the next object.
    next: Position,
    /// The number up to which all objects of this epoch are stored.
    published: u64,
    /// CRC of the last record.
    chain_crc: u32,
    /// The last commit appended.
    last: Lsn,
    /// The last whole commit in an object.
    sealed: Lsn,
    max_time_ms: u64,
    /// Bytes in `queue` and `flights`.
    waiting: usize,
    /// Flushed lsn of each shard's engine.
    flushed: Vec<Lsn>,
    holds: Holds,
    /// The floor in the last object.
    floor: ObjectFloor,
    /// Objects below the floor, to be deleted.
    doomed: Vec<Path>,
    /// True if some of those have records: they are deleted at once.
    doomed_records: bool,
    /// True while some of those are being deleted.
    deleting: bool,
    /// Those that the store has refused to delete, or to copy to the archive, and not deleted since.
    refused: BTreeSet<Path>,
    /// Time of the last put.
    put_at: Instant,
    /// Time at which an object was stored last.
    landed_at: Instant,
    /// The store's error in the last failed attempt.
    trouble: Option<String>,
    /// True if no more appends are accepted.
    closed: bool,
    /// True once the last object is being put, which releases the journal, ...
    released: bool,
    /// ... and true once it is stored.
    ended: bool,
    stop: bool,
    appends: u64,
    appended_bytes: u64,
    puts: u64,
}

/// Records of a future object.
#[derive(Default)]
struct RecordBatch {
    records: Vec<u8>,
    /// CRC of the record before the first one.
    prev_crc: u32,
    /// The last whole commit at its end.
    last: Lsn,
    spans: ShardSpans,
    time_ms: u64,
    /// Time since which its oldest record waits.
    since: Option<Instant>,
}

struct Flight {
    at: Position,
    last: Lsn,
    spans: ShardSpans,
    bytes: usize,
    since: Instant,
    floor: ObjectFloor,
    /// Set once the object is stored: a moment before which it was not.
    stored: Option<BootTime>,
}

struct StoredObject {
    at: Position,
    /// The last commit before the object.
    before: Lsn,
    last: Lsn,
    bytes: u64,
    spans: ShardSpans,
}

impl BucketJournal {
    fn open(shared: Arc<BucketShared>) -> Result<Arc<Self>, JournalError> {
        #[cfg(test)]
        if let Some(process) = crate::simulated::process() {
            let flusher = Arc::clone(&shared);
            tokio::spawn(process.task(async move { flusher.run().await }));
            return Ok(Arc::new(Self { shared, thread: Mutex::default() }));
        }
        let failed = |source| JournalError::Io {
            doing: "starting a thread for",
            path: shared.place.to_string().into(),
            source,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let flusher = Arc::clone(&shared);
        let thread = thread::Builder::new().name("journal-bucket".to_owned());
        let thread = thread.spawn(move || runtime.block_on(flusher.run())).map_err(failed)?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Looks at the objects of a journal in `place`, which may be in use. It costs a listing.
    ///
    /// # Errors
    /// [`JournalError::Away`].
    pub async fn see(place: &Place, options: &BucketOptions) -> Result<JournalSight, JournalError> {
        BucketRecovery::new(place.clone(), options.clone()).see().await
    }

    /// Deletes the objects of a journal in `place` that nobody needs any more, but not the fences: a
    /// late object of its owner must still meet the one that ended it.
    ///
    /// # Errors
    /// [`JournalError::Away`]: some may be left.
    pub async fn remove_records(
        place: &Place,
        options: &BucketOptions,
    ) -> Result<(), JournalError> {
        BucketRecovery::new(place.clone(), options.clone()).remove_records().await
    }

    /// Appends a record by which shards of other lives are taken: like
    /// [`append`](Journal::append), with an lsn above `above`, as later ones are then.
    pub fn adopt(
        &self,
        above: Lsn,
        time_ms: u64,
        shards: &[u16],
        body: &[u8],
    ) -> Result<Lsn, JournalError> {
        self.shared.adopt(above, time_ms, shards, body)
    }

    /// Closes it like [`close`](Journal::close), which would keep the only thread of a simulation.
    #[cfg(test)]
    pub(crate) async fn close_simulated(&self) -> Result<Lsn, JournalError> {
        let last = self.shared.begin_close();
        let begun = Instant::now();
        while self.durable() < last || !lock(&self.shared.state).is_tidy() {
            self.shared.check_failed()?;
            if begun.elapsed() > self.shared.options.wait_limit {
                return Err(self.shared.away_error(&lock(&self.shared.state)));
            }
            self.request_sync(last);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.stop();
        Ok(self.durable())
    }

    /// Stops the thread; puts under way may arrive or not.
    fn stop(&self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
        let thread = lock(&self.thread).take();
        join(thread);
    }
}

impl fmt::Debug for BucketJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketJournal")
            .field("place", &self.shared.place)
            .field("epoch", &self.shared.epoch)
            .field("end", &self.end())
            .field("durable", &self.durable())
            .finish_non_exhaustive()
    }
}

impl Drop for BucketJournal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl BucketShared {
    /// Marks the journal as failed for good. The caller must hold no lock.
    fn fail(&self, reason: String) {
        tracing::error!(%reason, "the journal has failed: no write is accepted any more");
        // Only the first reason counts.
        let _ = self.failed.set(reason);
        self.lease.end();
        drop(lock(&self.state));
        self.progress.notify_all();
        self.announce();
    }

    fn check_failed(&self) -> Result<(), JournalError> {
        self.failed.get().map_or(Ok(()), |reason| Err(JournalError::Failed(reason.clone())))
    }

    /// Tells the subscribers that the durable lsn advanced, that the journal failed, or that the
    /// store went away or came back.
    fn announce(&self) {
        for subscriber in &*self.subscribers.read().unwrap_or_else(PoisonError::into_inner) {
            subscriber();
        }
    }

    fn away_error(&self, state: &BucketState) -> JournalError {
        let trouble = state.trouble.clone();
        JournalError::Away {
            place: self.place.to_string(),
            reason: trouble.unwrap_or_else(|| "it does not answer".to_owned()),
        }
    }
}

impl BucketState {
    /// Returns the time since which the oldest commit waits that is not durable.
    fn oldest(&self) -> Option<Instant> {
        let flying = self.flights.front().map(|flight| flight.since);
        flying.or_else(|| self.queue.front().and_then(|batch| batch.since))
    }

    /// Returns true if the last object is stored, and those that it has dropped are deleted.
    fn is_tidy(&self) -> bool {
        self.ended && !self.deleting && self.doomed.is_empty()
    }

    /// Returns the number of objects that are to be deleted while the store refuses that; else 0.
    fn left(&self) -> usize {
        // Those of an attempt are in one of both.
        if self.refused.is_empty() { 0 } else { self.doomed.len().max(self.refused.len()) }
    }

    /// Returns the number of objects that are not needed, counted from the oldest.
    fn droppable(&self) -> usize {
        let is_free = |stored: &&StoredObject| {
            stored.spans.held(&self.flushed).next().is_none() && !self.holds.keeps(stored.last)
        };
        self.stored.iter().take_while(is_free).count()
    }

    /// Returns true if there are records that are not needed. Objects without records are left
    /// until one with records is dropped.
    fn drops_records(&self) -> bool {
        self.stored.iter().take(self.droppable()).any(|stored| stored.bytes > 0)
    }
}

impl Journal for BucketJournal {
    fn append(&self, time_ms: u64, shards: &[u16], body: &[&[u8]]) -> Result<Lsn, JournalError> {
        self.shared.append(time_ms, shards, body)
    }

    fn end(&self) -> Lsn {
        self.shared.end.load(Ordering::Acquire)
    }

    fn max_time_ms(&self) -> u64 {
        lock(&self.shared.state).max_time_ms
    }

    fn durable(&self) -> Lsn {
        self.shared.durable.load(Ordering::Acquire)
    }

    fn request_sync(&self, lsn: Lsn) {
        self.shared.request_sync(lsn);
    }

    fn sync_now(&self) -> Result<Lsn, JournalError> {
        self.shared.sync_through(self.end())
    }

    fn set_mode(&self, mode: SyncMode) {
        lock(&self.shared.state).mode = mode;
        self.shared.wake.notify_one();
    }

    fn set_commit_window(&self, window: Duration) {
        self.shared.set_commit_window(window);
    }

    fn commit_window(&self) -> Duration {
        lock(&self.shared.state).window
    }

    fn subscribe(&self, subscriber: Subscriber) {
        let subscribers = &self.shared.subscribers;
        subscribers.write().unwrap_or_else(PoisonError::into_inner).push(subscriber);
    }

    fn failed(&self) -> Option<String> {
        self.shared.failed.get().cloned()
    }

    fn published(&self) -> u64 {
        lock(&self.shared.state).published
    }

    fn is_taken_over(&self) -> bool {
        self.shared.taken_over.load(Ordering::Acquire)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn away(&self) -> Option<JournalError> {
        let away = self.shared.away.load(Ordering::Acquire);
        away.then(|| self.shared.away_error(&lock(&self.shared.state)))
    }

    fn is_in_trouble(&self) -> bool {
        lock(&self.shared.state).trouble.is_some()
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        Some(self.shared.lease.clone())
    }

    fn flushed(&self, shard: u16, applied: Lsn) {
        let mut state = lock(&self.shared.state);
        let at = usize::from(shard);
        if state.flushed.len() <= at {
            state.flushed.resize(at + 1, 0);
        }
        state.flushed[at] = state.flushed[at].max(applied);
        drop(state);
        self.shared.wake.notify_one();
    }

    fn hold(&self, from: Lsn, max_bytes: u64) -> HoldId {
        self.shared.hold(from, max_bytes)
    }

    fn release(&self, hold: HoldId) {
        self.shared.release(hold);
    }

    fn read(
        &self,
        hold: HoldId,
        range: (Lsn, Lsn),
        each: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> Result<(), JournalError> {
        self.shared.read(hold, range, each)
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    fn oldest(&self) -> Lsn {
        let state = lock(&self.shared.state);
        state.stored.front().map_or(self.durable(), |stored| stored.before) + 1
    }

    fn stats(&self) -> JournalStats {
        let state = lock(&self.shared.state);
        let needed = || state.stored.iter().skip(state.droppable());
        let mut backlog = std::collections::BTreeMap::new();
        let waiting =
            state.flights.iter().map(|f| &f.spans).chain(state.queue.iter().map(|b| &b.spans));
        for spans in needed().map(|stored| &stored.spans).chain(waiting) {
            for (shard, bytes) in spans.held(&state.flushed) {
                *backlog.entry(shard).or_insert(0) += bytes;
            }
        }
        let holders = needed().next().map(|stored| stored.spans.held(&state.flushed));
        let refusing = matches!(self.shared.check_open(&state), Err(JournalError::Away { .. }));
        JournalStats {
            last_refused: refusing,
            refusing,
            segments: needed().count(),
            spares: 0,
            left: state.left(),
            bytes: needed().map(|stored| stored.bytes).sum::<u64>() + state.waiting as u64,
            waiting_bytes: state.waiting as u64,
            unflushed: 0,
            appends: state.appends,
            appended_bytes: state.appended_bytes,
            syncs: state.puts,
            holders: holders.into_iter().flatten().map(|(shard, _)| shard).collect(),
            backlog: backlog.into_iter().collect(),
        }
    }

    fn close(&self) -> Result<Lsn, JournalError> {
        let closed = self.shared.close();
        self.stop();
        closed
    }
}
