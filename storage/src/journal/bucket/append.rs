//! Appending: into memory, on the caller's thread, without waiting for the store.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::append::Commit;
use super::super::local::lock;
use super::super::record::{RecordHeader, RecordKind};
use super::super::{JournalError, Lsn};
use super::{BucketShared, BucketState, RecordBatch};

/// Bytes of records at which an object is full.
pub(super) const OBJECT_BYTES: usize = 4 << 20;

/// Time limit for dropping objects when the journal is closed.
const TIDY: Duration = Duration::from_secs(5);

/// Interval of looks for room while too much waits.
const ROOM_LOOK: Duration = Duration::from_millis(50);

/// The part of the wait limit after which a store that stores nothing of too much that waits counts as stuck.
const STUCK_PART: u32 = 5;

/// The greatest body of one part of a commit, in bytes.
const MAX_PART: usize = OBJECT_BYTES;

impl BucketShared {
    pub(super) fn append(
        &self,
        time_ms: u64,
        shards: &[u16],
        body: &[&[u8]],
    ) -> Result<Lsn, JournalError> {
        self.add(RecordKind::Commit, 0, &Commit::new(time_ms, shards, body, MAX_PART)?)
    }

    /// Adds a commit behind the last one, and above the lsn `above`.
    pub(super) fn add(
        &self,
        kind: RecordKind,
        above: Lsn,
        commit: &Commit<'_>,
    ) -> Result<Lsn, JournalError> {
        let mut state = match kind {
            RecordKind::Commit => self.lock_with_room(),
            _ => lock(&self.state),
        };
        self.check_open(&state)?;
        let lsn = state.last.max(above) + 1;
        let mut places = Vec::with_capacity(1);
        for part in 0..commit.parts.len() {
            let batch = self.add_part(&mut state, commit, part, (kind, lsn));
            places.push((batch, commit.parts[part].len));
        }
        for (batch, bytes) in places {
            state.queue[batch].spans.add(commit.shards, lsn, bytes);
            state.appended_bytes += bytes;
            state.waiting += usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        state.max_time_ms = state.max_time_ms.max(commit.time_ms);
        if let Some(batch) = state.queue.back_mut() {
            batch.last = lsn;
        }
        state.last = lsn;
        state.appends += 1;
        self.end.store(lsn, Ordering::SeqCst);
        drop(state);
        self.wake.notify_one();
        Ok(lsn)
    }

    pub(super) fn adopt(
        &self,
        above: Lsn,
        time_ms: u64,
        shards: &[u16],
        body: &[u8],
    ) -> Result<Lsn, JournalError> {
        let slices = [body];
        self.add(RecordKind::Adoption, above, &Commit::new(time_ms, shards, &slices, MAX_PART)?)
    }

    /// Locks the state, once there is room for a commit, or the store does not make any.
    fn lock_with_room(&self) -> MutexGuard<'_, BucketState> {
        let mut state = lock(&self.state);
        let begun = std::time::Instant::now();
        while self.makes_room(&state) && begun.elapsed() < self.options.wait_limit {
            let waited = self.progress.wait_timeout(state, ROOM_LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Returns true if too much waits, and the store, which has stored something lately, is taking it.
    fn makes_room(&self, state: &BucketState) -> bool {
        let is_open = !state.closed && self.failed.get().is_none();
        is_open && state.waiting >= self.options.max_waiting && !self.is_stuck(state)
    }

    /// Returns true if the store takes nothing any more: it has failed, or not stored anything of what waits for a part
    /// of the limit.
    fn is_stuck(&self, state: &BucketState) -> bool {
        let since = state.oldest().map_or(Duration::ZERO, |since| since.elapsed());
        let quiet = since.min(state.landed_at.elapsed());
        state.trouble.is_some() || quiet >= self.options.wait_limit / STUCK_PART
    }

    /// Refuses a commit before any change.
    pub(super) fn check_open(&self, state: &BucketState) -> Result<(), JournalError> {
        self.check_failed()?;
        if state.closed {
            return Err(JournalError::Closed);
        }
        let waited = state.oldest().map_or(Duration::ZERO, |since| since.elapsed());
        let is_full = state.waiting >= self.options.max_waiting && self.is_stuck(state);
        if waited >= self.wait_limit(state) || is_full {
            return Err(self.away_error(state));
        }
        Ok(())
    }

    /// Adds a part behind the last record, and returns the index of its batch.
    fn add_part(
        &self,
        state: &mut BucketState,
        commit: &Commit<'_>,
        index: usize,
        (kind, lsn): (RecordKind, Lsn),
    ) -> usize {
        let part = &commit.parts[index];
        let mut header = RecordHeader {
            crc: 0,
            body_len: part.body_len,
            shard_count: commit.shards.len() as u16, // checked by `Commit::new`
            kind,
            epoch: self.epoch,
            lsn,
            time_ms: commit.time_ms,
            durable: self.durable.load(Ordering::Acquire),
            prev_crc: state.chain_crc,
            part: index as u32 + 1, // checked by `Commit::new`
            parts: commit.parts.len() as u32,
            body_crc: part.body_crc,
        };
        let head = header.encode(self.options.salt);
        let full = |batch: &RecordBatch| batch.records.len() + part.len as usize > OBJECT_BYTES;
        if state.queue.back().is_none_or(full) {
            let (prev_crc, last) = (state.chain_crc, state.last);
            state.queue.push_back(RecordBatch { prev_crc, last, ..RecordBatch::default() });
        }
        state.chain_crc = header.crc;
        if let Some(batch) = state.queue.back_mut() {
            batch.since = batch.since.or_else(|| Some(Instant::now()));
            batch.time_ms = batch.time_ms.max(commit.time_ms);
            batch.records.extend_from_slice(&head);
            batch.records.extend_from_slice(&commit.shard_bytes);
            part.slices.iter().for_each(|slice| batch.records.extend_from_slice(slice));
            batch.records.extend_from_slice(part.padding(&commit.shard_bytes));
        }
        state.queue.len() - 1
    }

    /// Changes the window. Commits that gather must not make the store seem away.
    pub(super) fn set_commit_window(&self, window: Duration) {
        lock(&self.state).window = window.min(self.options.longest_gathering());
        self.wake.notify_one();
    }

    pub(super) fn request_sync(&self, lsn: Lsn) {
        if lsn <= self.durable.load(Ordering::Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        state.requested = state.requested.max(lsn.min(state.last));
        drop(state);
        self.wake.notify_one();
    }

    /// Waits until everything up to `lsn` is durable, at most for the wait limit, and returns the
    /// durable lsn.
    pub(super) fn sync_through(&self, lsn: Lsn) -> Result<Lsn, JournalError> {
        self.request_sync(lsn);
        let begun = Instant::now();
        let mut state = lock(&self.state);
        loop {
            let durable = self.durable.load(Ordering::Acquire);
            if durable >= lsn {
                return Ok(durable);
            }
            self.check_failed()?;
            let Some(left) = self.options.wait_limit.checked_sub(begun.elapsed()) else {
                return Err(self.away_error(&state));
            };
            let waited = self.progress.wait_timeout(state, left.max(Duration::from_millis(1)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Accepts no more appends. Returns the last lsn.
    pub(super) fn begin_close(&self) -> Lsn {
        // A process that reads the last object need not wait for the lease.
        self.lease.end();
        let last = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.last
        };
        self.wake.notify_one();
        last
    }

    /// Accepts no more appends, makes everything durable, and drops objects that are not needed, so
    /// that the next start need not read them. The last object releases the journal.
    pub(super) fn close(&self) -> Result<Lsn, JournalError> {
        let last = self.begin_close();
        let durable = self.sync_through(last)?;
        let begun = Instant::now();
        let mut state = lock(&self.state);
        while !state.is_tidy() {
            let left = TIDY.saturating_sub(begun.elapsed());
            if left.is_zero() || self.failed.get().is_some() {
                // The next start deletes the rest, after waiting for the lease.
                break;
            }
            let waited = self.progress.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.check_failed()?;
        Ok(durable)
    }
}
