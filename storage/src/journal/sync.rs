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

/// Number of bytes that appends never reach.
pub(super) const NO_APPEND: u64 = u64::MAX;

/// Maximum time for which commits gather before a sync.
const MAX_GATHER: Duration = Duration::from_micros(250);

/// Part of the expected bytes that need not come: lengths vary.
const SPARED: u64 = 32;

/// Group commit: the bytes that the next sync may wait for, for about as long as a sync takes. Those
/// whose replies leave with a sync append again soon if they have more to do; without a wait, two
/// groups of them would take turns, each with a sync of its own.
#[derive(Default)]
pub(super) struct Gather {
    /// Number of appends, and of their bytes, that syncs have covered.
    covered: (u64, u64),
    /// The same of those that the last sync has covered, and that were made while it ran: so many may
    /// come before the next one.
    expected: (u64, u64),
    /// End of the last sync.
    since: Option<Instant>,
    /// Mean duration of the latest syncs.
    usual: Duration,
}

impl Gather {
    /// Notes a sync from `begun` to `ended`, which has covered all appends up to `first`, and during
    /// which those up to `last` were made.
    fn note(&mut self, (begun, ended): (Instant, Instant), first: (u64, u64), last: (u64, u64)) {
        self.usual = (self.usual * 7 + (ended - begun)) / 8;
        self.since = Some(ended);
        self.expected = (last.0 - self.covered.0, last.1 - self.covered.1);
        self.covered = first;
    }

    /// Returns for how long a sync waits from `now` on, and up to which number of bytes.
    fn left(&self, now: Instant) -> Option<(Duration, u64)> {
        let until = self.since? + self.usual.min(MAX_GATHER);
        let left = until.checked_duration_since(now).filter(|left| !left.is_zero())?;
        // One who waits for each of its appends is not made to wait for others.
        let (appends, bytes) = self.expected;
        (appends > 1).then_some((left, self.covered.1 + bytes - bytes / SPARED))
    }
}

enum SyncDue {
    Now,
    After(Duration),
    /// After a time, or with the append that brings all appends to this number of bytes.
    Gathered(Duration, u64),
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
            self.wake_at.store(0, Ordering::SeqCst);
            let due = self.due(&signal);
            match due {
                SyncDue::OnAppend => {}
                SyncDue::Gathered(_, bytes) => self.wake_at.store(bytes, Ordering::SeqCst),
                SyncDue::Now | SyncDue::After(_) | SyncDue::OnRequest => {
                    self.wake_at.store(NO_APPEND, Ordering::SeqCst);
                }
            }
            signal = match due {
                SyncDue::Now => return true,
                SyncDue::After(wait) | SyncDue::Gathered(wait, _) => {
                    let waited = self.wake_sync.wait_timeout(signal, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                SyncDue::OnAppend | SyncDue::OnRequest => {
                    self.wake_sync.wait(signal).unwrap_or_else(PoisonError::into_inner)
                }
            };
            self.wake_at.store(NO_APPEND, Ordering::SeqCst);
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
            SyncMode::Always if dirty => self.gathered(),
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

    /// Returns when commits have gathered.
    fn gathered(&self) -> SyncDue {
        let writer = lock(&self.writer);
        match writer.gather.left(Instant::now()) {
            Some((left, bytes)) if writer.appended_bytes < bytes => SyncDue::Gathered(left, bytes),
            _ => SyncDue::Now,
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
        let (end, files, number, first) = {
            let mut writer = lock(&self.writer);
            writer.syncing_since = writer.dirty_since.take();
            let mut files = std::mem::take(&mut writer.unsynced);
            files.push(Arc::clone(&writer.current.file));
            let first = (writer.appends, writer.appended_bytes);
            (writer.last, files, writer.current.number, first)
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
        let last = (writer.appends, writer.appended_bytes);
        writer.gather.note((begun, Instant::now()), first, last);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_waits_for_as_much_as_was_appended_lately() {
        let (mut gather, begun) = (Gather::default(), Instant::now());
        assert_eq!(gather.left(begun), None, "there was no sync");
        let ended = begun + Duration::from_micros(800);
        gather.note((begun, ended), (10, 1000), (15, 1600));
        // An eighth of the first sync is the mean so far.
        assert_eq!(gather.left(ended), Some((Duration::from_micros(100), 1000 + 1550)));
        let soon = ended + Duration::from_micros(60);
        assert_eq!(gather.left(soon), Some((Duration::from_micros(40), 2550)));
        assert_eq!(gather.left(ended + Duration::from_micros(100)), None);
        let ended = ended + Duration::from_secs(1);
        gather.note((begun, ended), (30, 3000), (31, 3100));
        assert_eq!(gather.left(ended), Some((MAX_GATHER, 3000 + 2100 - 65)), "a slow disk");
    }

    #[test]
    fn who_appends_alone_waits_for_nobody() {
        let (mut gather, begun) = (Gather::default(), Instant::now());
        let ended = begun + Duration::from_micros(800);
        gather.note((begun, ended), (1, 90_000), (1, 90_000));
        assert_eq!(gather.left(ended), None);
        gather.note((begun, ended), (2, 90_100), (3, 90_200));
        assert!(gather.left(ended).is_some(), "another one has come");
    }
}
