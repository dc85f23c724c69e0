//! Connections that are not clients yet: their TLS handshake is under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of handshakes at once. To make room for a new one, the oldest of those that have
/// sent nothing is ended, else the oldest: they are least likely to be completed.
pub(super) const MAX_ARRIVALS: usize = 1000;

/// Time that a handshake has at least once its client has sent something, however many others there
/// are: further connections wait meanwhile. A client that is not slow is therefore not turned away by
/// a flood of those that complete nothing. With more time, the flood would hold all places.
pub(super) const LEAST_TIME: Duration = Duration::from_millis(100);

/// An arrival that may have to make room.
#[derive(Debug)]
struct Arriving {
    began: Instant,
    ended: Notify,
    /// True if the client has sent something.
    proceeds: AtomicBool,
}

/// All arrivals, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Arc<Arriving>>>,
    /// Tells those that wait for a place that there is one.
    freed: Notify,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Arriving>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Ends the oldest arrival that has sent nothing, or else the oldest.
    ///
    /// # Errors
    /// It has not had its time: how much of that is left. `None`: there is no arrival.
    pub(super) fn end_oldest(&self) -> Result<(), Option<Duration>> {
        let mut waiting = self.lock();
        let is_silent = |arriving: &Arriving| !arriving.proceeds.load(Ordering::Relaxed);
        let silent = waiting.iter().find(|(_, arriving)| is_silent(arriving)).map(|(id, _)| *id);
        let ended = if let Some(silent) = silent {
            waiting.remove(&silent).ok_or(None)?
        } else {
            let oldest = waiting.first_entry().ok_or(None)?;
            let left = LEAST_TIME.saturating_sub(oldest.get().began.elapsed());
            if !left.is_zero() {
                return Err(Some(left));
            }
            oldest.remove()
        };
        ended.ended.notify_one();
        Ok(())
    }

    /// Waits until an arrival has ended.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    pub(super) fn begin(self: &Arc<Self>) -> Arrival {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let arriving = Arc::new(Arriving {
            began: Instant::now(),
            ended: Notify::new(),
            proceeds: AtomicBool::new(false),
        });
        self.lock().insert(id, arriving.clone());
        Arrival { arrivals: self.clone(), id, arriving }
    }
}

/// A connection that is not a client yet. It counts as one until this is dropped.
#[derive(Debug)]
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    id: u64,
    arriving: Arc<Arriving>,
}

impl Arrival {
    /// Records that the client has sent something.
    pub fn proceeds(&self) {
        self.arriving.proceeds.store(true, Ordering::Relaxed);
    }

    /// Resolves when it has to make room for others.
    pub async fn ended(&self) {
        self.arriving.ended.notified().await;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.lock().remove(&self.id);
        self.arrivals.freed.notify_one();
    }
}
