//! Connections that are not clients yet: their TLS handshake is under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of handshakes at once. The oldest makes room for a new one: it is the one that is
/// least likely to be completed.
pub(super) const MAX_ARRIVALS: usize = 1000;

/// Time that a handshake has at least, however many others there are: further connections wait
/// meanwhile. A client that is not slow is therefore never turned away by a flood of those that
/// complete nothing.
pub(super) const LEAST_TIME: Duration = Duration::from_secs(1);

/// An arrival that may have to make room.
#[derive(Debug)]
struct Arriving {
    began: Instant,
    ended: Arc<Notify>,
}

/// All arrivals, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Arriving>>,
    /// Tells those that wait for a place that there is one.
    freed: Notify,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arriving>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends the oldest arrival.
    ///
    /// # Errors
    /// It has not had its time: how much of that is left. `None`: there is no arrival.
    pub(super) fn end_oldest(&self) -> Result<(), Option<Duration>> {
        let mut waiting = self.lock();
        let oldest = waiting.first_entry().ok_or(None)?;
        let left = LEAST_TIME.saturating_sub(oldest.get().began.elapsed());
        if !left.is_zero() {
            return Err(Some(left));
        }
        oldest.remove().ended.notify_one();
        Ok(())
    }

    /// Waits until an arrival has ended.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    pub(super) fn begin(self: &Arc<Self>) -> Arrival {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::new(Notify::new());
        let arriving = Arriving { began: Instant::now(), ended: ended.clone() };
        self.lock().insert(id, arriving);
        Arrival { arrivals: self.clone(), id, ended }
    }
}

/// A connection that is not a client yet. It counts as one until this is dropped.
#[derive(Debug)]
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    id: u64,
    ended: Arc<Notify>,
}

impl Arrival {
    /// Resolves when it has to make room for others.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.lock().remove(&self.id);
        self.arrivals.freed.notify_one();
    }
}
