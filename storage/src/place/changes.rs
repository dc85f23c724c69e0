//! When a store was last changed by this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Notes when something was changed in a store, or is about to be.
#[derive(Debug)]
pub(crate) struct StoreChanges {
    begun: Instant,
    /// The last change, in milliseconds since `begun`. It may be in the future.
    last_ms: AtomicU64,
    /// Notified at each change.
    changed: Notify,
}

impl Default for StoreChanges {
    fn default() -> Self {
        Self { begun: Instant::now(), last_ms: AtomicU64::new(0), changed: Notify::new() }
    }
}

impl StoreChanges {
    /// Notes a change.
    pub(crate) fn note(&self) {
        self.note_ahead(Duration::ZERO);
    }

    /// Notes a change that comes after so much time.
    pub(crate) fn note_ahead(&self, ahead: Duration) {
        let moment = self.begun.elapsed() + ahead;
        let moment_ms = u64::try_from(moment.as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(moment_ms, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Returns true if nothing has changed for so long.
    pub(crate) fn is_quiet(&self, since: Duration) -> bool {
        let last = Duration::from_millis(self.last_ms.load(Ordering::SeqCst));
        self.begun.elapsed() >= last + since
    }

    /// Waits until something has changed within the last `since`.
    pub(crate) async fn until_recent(&self, since: Duration) {
        loop {
            // It is notified of changes from here on.
            let changed = self.changed.notified();
            if !self.is_quiet(since) {
                return;
            }
            changed.await;
        }
    }
}
