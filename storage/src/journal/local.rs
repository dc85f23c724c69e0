//! The journal on a local disk: its state, and the trait's methods.
//!
//! The committing thread writes its record itself, under one short lock. One thread syncs, one
//! recycles and prepares segments. Locks are taken in the order: syncing, preparing, signal,
//! writer.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::disk::File;
use super::floor::JournalFloor;
use super::read::{HoldId, Holds};
use super::recovery::Scanned;
use super::refusal::Refusals;
use super::segment::{FIRST_RECORD, SegmentHeader, ShardSpans};
use super::sync::{Gather, NO_APPEND, Signal};
use super::{Journal, JournalError, JournalStats, Lsn, Options, Record, Subscriber, SyncMode};

/// The journal in segments on a local disk. [`super::Recovery::start`] creates it; if it is dropped
/// without [`Journal::close`] it stops as after a kill.
pub struct LocalJournal {
    shared: Arc<LocalShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that recovery hands over.
pub(super) struct RecoveredState {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) floor: JournalFloor,
    pub(super) closed: Vec<Scanned>,
    /// Header of the fresh segment.
    pub(super) header: SegmentHeader,
    pub(super) file: Arc<dyn File>,
    pub(super) spares: Vec<(u64, Arc<dyn File>)>,
    pub(super) next_number: u64,
    /// Numbers of dropped segments that the archive did not take, ascending.
    pub(super) left: Vec<u64>,
}

pub(super) struct LocalShared {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) salt: u32,
    pub(super) epoch: u64,
    pub(super) end: AtomicU64,
    pub(super) durable: AtomicU64,
    pub(super) failed: OnceLock<String>,
    pub(super) refusals: Refusals,
    pub(super) writer: Mutex<Writer>,
    /// Notified, with `writer`, after a sync and after a failure; a stalled append waits for it.
    pub(super) progress: Condvar,
    /// True if appends stall when the oldest undurable commit is too old.
    pub(super) bounded: AtomicBool,
    /// Held by the thread that syncs.
    pub(super) syncing: Mutex<()>,
    pub(super) signal: Mutex<Signal>,
    pub(super) wake_sync: Condvar,
    /// The sync thread is woken by the append that brings all appends to this number of bytes.
    pub(super) wake_at: AtomicU64,
    /// Held by the thread that prepares or recycles segments.
    /// Number of dropped segments that are left.
    pub(super) left: AtomicUsize,
    pub(super) preparing: Mutex<Preparing>,
    pub(super) upkeep_due: Mutex<UpkeepDue>,
    pub(super) wake_upkeep: Condvar,
    subscribers: RwLock<Vec<Subscriber>>,
}

pub(super) struct Preparing {
    pub(super) next_number: u64,
    /// The floor that is on disk.
    pub(super) floor: JournalFloor,
    /// Numbers of dropped segments that could not be moved or removed, ascending: tried again.
    pub(super) left: VecDeque<u64>,
}

#[derive(Default)]
pub(super) struct UpkeepDue {
    pub(super) due: bool,
    pub(super) stop: bool,
}

/// Position of the next record, and the contents of the segments.
pub(super) struct Writer {
    pub(super) current: Current,
    /// CRC of the last record.
    pub(super) chain_crc: u32,
    /// The last whole commit.
    pub(super) last: Lsn,
    pub(super) max_time_ms: u64,
    /// Segments before the current one with writes that are not synced.
    pub(super) unsynced: Vec<Arc<dyn File>>,
    /// The last commit that is not whole any more: the first segment may have the end of it.
    pub(super) dropped: Lsn,
    /// Segments before the current one, oldest first.
    pub(super) closed: VecDeque<ClosedSegment>,
    /// Prepared segments, in the order of use.
    pub(super) spares: VecDeque<(u64, Arc<dyn File>)>,
    /// Segments up to this number are known to be on disk, including their headers.
    pub(super) synced_segment: u64,
    /// Flushed lsn of each shard's engine.
    pub(super) flushed: Vec<Lsn>,
    pub(super) holds: Holds,
    /// Time of the oldest write that no sync has covered or begun to cover, ...
    pub(super) dirty_since: Option<Instant>,
    /// ... and time of the oldest write that a sync is covering now.
    pub(super) syncing_since: Option<Instant>,
    pub(super) closed_for_good: bool,
    pub(super) appends: u64,
    pub(super) appended_bytes: u64,
    /// The `appended_bytes` up to which the disk has room.
    pub(super) granted: u64,
    /// Appends for which a sync may wait.
    pub(super) gather: Gather,
    pub(super) syncs: u64,
}

/// The segment that is being written.
pub(super) struct Current {
    pub(super) number: u64,
    pub(super) file: Arc<dyn File>,
    pub(super) size: u64,
    /// Offset of the next record.
    pub(super) offset: u64,
    /// Engines have flushed all records before this offset.
    pub(super) flushed_to: u64,
    pub(super) first_lsn: Lsn,
    pub(super) spans: ShardSpans,
}

pub(super) struct ClosedSegment {
    pub(super) number: u64,
    /// Bytes in use.
    pub(super) used: u64,
    pub(super) first_lsn: Lsn,
    /// The last commit that ends in it or before it.
    pub(super) last: Lsn,
    pub(super) spans: ShardSpans,
}

/// Locks a mutex, ignoring poison: the code that holds it does not panic with the data
/// half-changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of threads of a journal. A subscriber may drop the last reference to the
/// journal on one of them: that one ends by itself.
pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("a journal thread has panicked");
        }
    }
}

impl LocalJournal {
    pub(super) fn open(opened: RecoveredState) -> Result<Arc<Self>, JournalError> {
        let shared = Arc::new(LocalShared::new(opened));
        let journal =
            Self { shared: Arc::clone(&shared), threads: Mutex::new(Vec::with_capacity(2)) };
        // If the second thread cannot be started, dropping `journal` stops the first.
        journal.spawn("journal-sync", LocalShared::run_sync)?;
        journal.spawn("journal-upkeep", LocalShared::run_upkeep)?;
        Ok(Arc::new(journal))
    }

    fn spawn(&self, name: &str, run: fn(&LocalShared)) -> Result<(), JournalError> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared));
        let thread = thread.map_err(|source| JournalError::Io {
            doing: "starting a thread for",
            path: self.shared.dir.clone(),
            source,
        })?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Stops both threads after their present work.
    fn stop_threads(&self) {
        lock(&self.shared.signal).stop = true;
        self.shared.wake_sync.notify_all();
        lock(&self.shared.upkeep_due).stop = true;
        self.shared.wake_upkeep.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        join(threads);
    }
}

impl fmt::Debug for LocalJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalJournal")
            .field("dir", &self.shared.dir)
            .field("epoch", &self.shared.epoch)
            .field("end", &self.end())
            .field("durable", &self.durable())
            .finish_non_exhaustive()
    }
}

impl Drop for LocalJournal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl LocalShared {
    fn new(opened: RecoveredState) -> Self {
        let RecoveredState { dir, options, floor, closed, header, file, spares, next_number, left } =
            opened;
        let closed = closed.into_iter().map(|segment| ClosedSegment {
            number: segment.header.number,
            used: segment.end,
            first_lsn: segment.header.first_lsn,
            last: segment.last,
            spans: segment.spans,
        });
        let last = header.first_lsn - 1;
        let writer = Writer {
            current: Current {
                number: header.number,
                file,
                size: header.size,
                offset: FIRST_RECORD,
                flushed_to: FIRST_RECORD,
                first_lsn: header.first_lsn,
                spans: ShardSpans::default(),
            },
            chain_crc: header.prev_crc,
            last,
            max_time_ms: header.time_ms,
            unsynced: Vec::new(),
            dropped: floor.dropped,
            closed: closed.collect(),
            spares: spares.into(),
            synced_segment: header.number,
            flushed: Vec::new(),
            holds: Holds::default(),
            dirty_since: None,
            syncing_since: None,
            closed_for_good: false,
            appends: 0,
            appended_bytes: 0,
            granted: 0,
            gather: Gather::default(),
            syncs: 0,
        };
        Self {
            bounded: AtomicBool::new(options.mode == SyncMode::EverySec),
            signal: Mutex::new(Signal::new(options.mode)),
            dir,
            options,
            salt: header.salt,
            epoch: header.epoch,
            end: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            failed: OnceLock::new(),
            refusals: Refusals::default(),
            writer: Mutex::new(writer),
            progress: Condvar::new(),
            syncing: Mutex::new(()),
            wake_sync: Condvar::new(),
            wake_at: AtomicU64::new(NO_APPEND),
            left: AtomicUsize::new(left.len()),
            preparing: Mutex::new(Preparing { next_number, floor, left: left.into() }),
            // The first task is to prepare spares.
            upkeep_due: Mutex::new(UpkeepDue { due: true, stop: false }),
            wake_upkeep: Condvar::new(),
            subscribers: RwLock::new(Vec::new()),
        }
    }

    /// Marks the journal as failed for good. The caller must call [`announce`](Self::announce) once
    /// it holds no lock.
    pub(super) fn fail(&self, reason: String) {
        tracing::error!(%reason, "the journal has failed: no write is accepted any more");
        // Only the first reason counts.
        let _ = self.failed.set(reason);
    }

    pub(super) fn check_failed(&self) -> Result<(), JournalError> {
        self.failed.get().map_or(Ok(()), |reason| Err(JournalError::Failed(reason.clone())))
    }

    /// Tells the subscribers that the durable lsn advanced or the journal failed.
    pub(super) fn announce(&self) {
        for subscriber in &*self.subscribers.read().unwrap_or_else(PoisonError::into_inner) {
            subscriber();
        }
    }
}

impl Writer {
    /// Returns the shards with unflushed records in the oldest segment.
    fn holders(&self) -> Vec<u16> {
        let oldest = self.closed.front().map_or(&self.current.spans, |segment| &segment.spans);
        oldest.held(&self.flushed).map(|(shard, _)| shard).collect()
    }

    fn backlog(&self) -> Vec<(u16, u64)> {
        let mut backlog = BTreeMap::new();
        let closed = self.closed.iter().map(|segment| &segment.spans);
        for spans in closed.chain([&self.current.spans]) {
            for (shard, bytes) in spans.held(&self.flushed) {
                *backlog.entry(shard).or_insert(0) += bytes;
            }
        }
        backlog.into_iter().collect()
    }
}

impl Journal for LocalJournal {
    fn append(&self, time_ms: u64, shards: &[u16], body: &[&[u8]]) -> Result<Lsn, JournalError> {
        self.shared.append(time_ms, shards, body)
    }

    fn end(&self) -> Lsn {
        self.shared.end.load(Ordering::Acquire)
    }

    fn max_time_ms(&self) -> u64 {
        lock(&self.shared.writer).max_time_ms
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
        self.shared.set_mode(mode);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        let subscribers = &self.shared.subscribers;
        subscribers.write().unwrap_or_else(PoisonError::into_inner).push(subscriber);
    }

    fn failed(&self) -> Option<String> {
        self.shared.failed.get().cloned()
    }

    fn flushed(&self, shard: u16, applied: Lsn) {
        self.shared.flushed(shard, applied);
    }

    fn oldest(&self) -> Lsn {
        let writer = lock(&self.shared.writer);
        let first = writer.closed.front().map_or(writer.current.first_lsn, |s| s.first_lsn);
        first.max(writer.dropped + 1)
    }

    fn stats(&self) -> JournalStats {
        let (last_refused, refusing) = self.shared.refusing();
        let writer = lock(&self.shared.writer);
        JournalStats {
            last_refused,
            refusing,
            segments: writer.closed.len() + 1,
            spares: writer.spares.len(),
            left: self.shared.left.load(Ordering::Relaxed),
            waiting_bytes: 0,
            bytes: writer.closed.iter().map(|s| s.used).sum::<u64>() + writer.current.offset,
            unflushed: if self.shared.options.leaves_room { writer.unflushed() } else { 0 },
            appends: writer.appends,
            appended_bytes: writer.appended_bytes,
            syncs: writer.syncs,
            backlog: writer.backlog(),
            holders: writer.holders(),
        }
    }

    fn look_for_room(&self) -> bool {
        self.shared.look_for_room()
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
        each: &mut dyn FnMut(Record) -> std::io::Result<()>,
    ) -> Result<(), JournalError> {
        self.shared.read(hold, range, each)
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    fn close(&self) -> Result<Lsn, JournalError> {
        let closed = self.shared.close();
        self.stop_threads();
        closed
    }
}
