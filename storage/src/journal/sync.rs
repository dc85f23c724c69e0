//! Makes appends durable: one sync at a time, by the sync thread or by a committer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::local::{LocalShared, Writer, lock};
use super::{JournalError, Lsn, SyncMode};
use crate::latency::{LATENCY, LatencyEvent};

/// Requests to the sync thread.
pub(super) struct Signal {
    pub(super) mode: SyncMode,
    /// The greatest lsn that a caller waits for.
    requested: Lsn,
    pub(super) stop: bool,
}

impl Signal {
    pub(super) fn new(mode: SyncMode) -> Self {
        Self { mode, requested: 0, stop: false }
    }
}

/// Fails the journal when the syncing thread panics, for example in a subscriber: otherwise callers
/// would wait silently for ever.
struct FailOnPanic<'a>(&'a LocalShared);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _writer = lock(&self.0.writer);
            self.0.fail("the sync thread has panicked".to_owned());
            self.0.progress.notify_all();
        }
    }
}

enum SyncDue {
    Now,
    After(Duration),
    /// Upon the next append.
    OnAppend,
    /// Upon a request.
    OnRequest,
}

impl LocalShared {
    /// Runs the sync thread.
    pub(super) fn run_sync(&self) {
        let _guard = FailOnPanic(self);
        while self.await_due() {
            let end = self.end.load(Ordering::SeqCst);
            if self.sync_through(end).is_err() {
                return; // failed for good
            }
        }
    }

    /// Waits until a sync is due; returns false if the thread must end.
    fn await_due(&self) -> bool {
        let mut signal = lock(&self.signal);
        loop {
            if signal.stop || self.failed.get().is_some() {
                return false;
            }
            // Set before the check: an append that `due` does not see sees this, and notifies.
            self.wake_on_append.store(true, Ordering::SeqCst);
            let due = self.due(&signal);
            let wakes = matches!(due, SyncDue::OnAppend);
            if !wakes {
                self.wake_on_append.store(false, Ordering::SeqCst);
            }
            signal = match due {
                SyncDue::Now => return true,
                SyncDue::After(wait) => {
                    let waited = self.wake_sync.wait_timeout(signal, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                SyncDue::OnAppend | SyncDue::OnRequest => {
                    self.wake_sync.wait(signal).unwrap_or_else(PoisonError::into_inner)
                }
            };
            self.wake_on_append.store(false, Ordering::SeqCst);
        }
    }

    fn due(&self, signal: &Signal) -> SyncDue {
        let durable = self.durable.load(Ordering::SeqCst);
        let dirty = self.end.load(Ordering::SeqCst) > durable;
        if dirty && signal.requested > durable {
            return SyncDue::Now;
        }
        match signal.mode {
            SyncMode::No => SyncDue::OnRequest,
            SyncMode::Always if self.options.inline_sync => SyncDue::OnRequest,
            SyncMode::Always if dirty => SyncDue::Now,
            SyncMode::EverySec if dirty => {
                let since = lock(&self.writer).oldest_dirty();
                let age = since.map_or(Duration::ZERO, |since| since.elapsed());
                match self.options.everysec_bound.checked_sub(age) {
                    Some(left) if !left.is_zero() => SyncDue::After(left),
                    _ => SyncDue::Now,
                }
            }
            SyncMode::Always | SyncMode::EverySec => SyncDue::OnAppend,
        }
    }

    pub(super) fn notify_sync(&self) {
        let _signal = lock(&self.signal);
        self.wake_sync.notify_all();
    }

    pub(super) fn request_sync(&self, lsn: Lsn) {
        if lsn <= self.durable.load(Ordering::Acquire) {
            return;
        }
        let mut signal = lock(&self.signal);
        signal.requested = signal.requested.max(lsn.min(self.end.load(Ordering::SeqCst)));
        self.wake_sync.notify_all();
    }

    pub(super) fn set_mode(&self, mode: SyncMode) {
        let mut signal = lock(&self.signal);
        signal.mode = mode;
        self.wake_sync.notify_all();
        // Appends may have stalled for a bound that no longer holds.
        let _writer = lock(&self.writer);
        self.bounded.store(mode == SyncMode::EverySec, Ordering::Relaxed);
        self.progress.notify_all();
    }

    /// Waits until everything up to `lsn` (at most the end) is durable, and returns the durable
    /// lsn.
    pub(super) fn sync_through(&self, lsn: Lsn) -> Result<Lsn, JournalError> {
        let result = {
            let _one = lock(&self.syncing);
            self.check_failed()?;
            let durable = self.durable.load(Ordering::Acquire);
            if lsn <= durable {
                return Ok(durable);
            }
            self.sync_all()
        };
        self.progress.notify_all();
        self.announce();
        result
    }

    /// Syncs everything appended so far, older segments first. The caller holds `syncing`.
    fn sync_all(&self) -> Result<Lsn, JournalError> {
        let (end, files, number) = {
            let mut writer = lock(&self.writer);
            writer.syncing_since = writer.dirty_since.take();
            let mut files = std::mem::take(&mut writer.unsynced);
            files.push(Arc::clone(&writer.current.file));
            (writer.last, files, writer.current.number)
        };
        let begun = Instant::now();
        let synced = files.iter().try_for_each(|file| file.sync());
        LATENCY.note(LatencyEvent::JournalSync, begun.elapsed());
        let mut writer = lock(&self.writer);
        if let Err(error) = synced {
            // The kernel may have dropped pages that it could not write: never sync again.
            let reason = format!("syncing the journal in {}: {error}", self.dir.display());
            self.fail(reason.clone());
            return Err(JournalError::Failed(reason));
        }
        writer.syncing_since = None;
        writer.synced_segment = number;
        writer.syncs += 1;
        drop(writer);
        self.durable.store(end, Ordering::SeqCst);
        if files.len() > 1 {
            // Older segments can be dropped only now.
            self.request_upkeep();
        }
        Ok(end)
    }

    /// Locks the writer; in [`SyncMode::EverySec`] waits until the oldest undurable append is young
    /// enough.
    pub(super) fn lock_unstalled(&self) -> Result<MutexGuard<'_, Writer>, JournalError> {
        let limit = 2 * self.options.everysec_bound;
        let mut writer = lock(&self.writer);
        loop {
            self.check_failed()?;
            if writer.closed_for_good {
                return Err(JournalError::Closed);
            }
            let stalled = self.bounded.load(Ordering::Relaxed)
                && writer.oldest_dirty().is_some_and(|since| since.elapsed() >= limit);
            if !stalled {
                return Ok(writer);
            }
            writer = self.progress.wait(writer).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Accepts no more appends, syncs, and marks the end.
    pub(super) fn close(&self) -> Result<Lsn, JournalError> {
        let end = {
            let mut writer = lock(&self.writer);
            if std::mem::replace(&mut writer.closed_for_good, true) {
                drop(writer);
                self.check_failed()?;
                return Ok(self.durable.load(Ordering::Acquire));
            }
            writer.last
        };
        let durable = self.sync_through(end)?;
        let _one = lock(&self.syncing);
        let mut writer = lock(&self.writer);
        let marked = self.write_mark(&mut writer).and_then(|()| {
            let path = &self.dir;
            writer.current.file.sync().map_err(|e| JournalError::io("syncing", path, e))
        });
        if let Err(error) = marked {
            // Everything is durable without it.
            tracing::warn!(%error, "the end of the journal could not be marked");
        }
        // The files may be gone, or have been moved away: then the next start does not find them.
        let found = self.options.disk.list(&self.dir);
        found.map_err(|e| JournalError::io("looking for", &self.dir, e))?;
        Ok(durable)
    }
}

impl Writer {
    fn oldest_dirty(&self) -> Option<Instant> {
        self.syncing_since.or(self.dirty_since)
    }
}
