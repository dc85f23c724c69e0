//! Connections that are not clients yet: their TLS handshake is under way.

use socket2::SockRef;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of handshakes at once. To make room for a new one, the oldest of those that have
/// sent nothing is ended, else the oldest: they are least likely to be completed.
pub(super) const MAX_ARRIVALS: usize = 1000;

/// Time that a handshake has at least once its client has sent something, however many others there
/// are: further connections wait meanwhile. A client that is not slow is therefore not turned away by
/// a flood of those that complete nothing. With more time, the flood would hold all places.
pub(super) const LEAST_TIME: Duration = Duration::from_millis(100);

/// Time that a connection has at least until its client sends something. A client sends its first
/// message as soon as it is connected, but it may have to wait for a CPU. Without this time, it would
/// be the one that makes room in a flood of those that have sent something.
pub(super) const SILENT_TIME: Duration = Duration::from_millis(20);

/// An arrival that may have to make room.
#[derive(Debug)]
struct Arriving {
    began: Instant,
    ended: Notify,
    /// True if the client has sent something.
    proceeds: AtomicBool,
    /// The socket, as long as nothing is read from it.
    unread: Mutex<Option<Arc<TcpStream>>>,
}

impl Arriving {
    fn unread(&self) -> MutexGuard<'_, Option<Arc<TcpStream>>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how much is left of its time.
    fn left(&self, time: Duration) -> Duration {
        time.saturating_sub(self.began.elapsed())
    }

    /// Returns true if the client has sent nothing. Bytes that the server did not come to read yet
    /// count as sent: the client waits for the server then, not the server for the client.
    fn is_silent(&self) -> bool {
        if self.proceeds.load(Ordering::Relaxed) {
            return false;
        }
        let mut first = [MaybeUninit::uninit()];
        let has_sent = self.unread().as_deref().is_some_and(|socket| {
            SockRef::from(socket).peek(&mut first).is_ok_and(|bytes| bytes > 0)
        });
        self.proceeds.store(has_sent, Ordering::Relaxed);
        !has_sent
    }
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
    /// None has had its time: how much of that is left. `None`: there is no arrival.
    pub(super) fn end_oldest(&self) -> Result<(), Option<Duration>> {
        let mut waiting = self.lock();
        let silent = waiting.iter().find(|(_, arriving)| arriving.is_silent());
        let silent = silent.map(|(id, arriving)| (*id, arriving.left(SILENT_TIME)));
        let oldest = waiting.first_key_value();
        let oldest = oldest.map(|(id, arriving)| (*id, arriving.left(LEAST_TIME))).ok_or(None)?;
        let (id, left) = silent.filter(|(_, left)| *left <= oldest.1).unwrap_or(oldest);
        if !left.is_zero() {
            return Err(Some(left));
        }
        let ended = waiting.remove(&id).ok_or(None)?;
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
            unread: Mutex::default(),
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
    /// Names the socket, from which nothing is read before [`proceeds`](Self::proceeds).
    pub fn waits_at(&self, socket: &Arc<TcpStream>) {
        *self.arriving.unread() = Some(socket.clone());
    }

    /// Records that the client has sent something, and gives the socket back.
    pub fn proceeds(&self) {
        self.arriving.proceeds.store(true, Ordering::Relaxed);
        *self.arriving.unread() = None;
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
