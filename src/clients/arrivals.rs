//! Connections that are not clients yet: their TLS handshake is under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum number of handshakes at once. The oldest makes room for a new one: it is the one that is
/// least likely to be completed.
pub(super) const MAX_ARRIVALS: usize = 1000;

/// All arrivals, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends the oldest arrival; returns false if there is none.
    pub(super) fn end_oldest(&self) -> bool {
        let oldest = self.lock().pop_first();
        oldest.inspect(|(_, ended)| ended.notify_one()).is_some()
    }

    pub(super) fn begin(self: &Arc<Self>) -> Arrival {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::new(Notify::new());
        self.lock().insert(id, ended.clone());
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
    }
}
