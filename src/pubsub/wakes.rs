//! Wakes connections that were sent something. To wake a task of another thread costs a system
//! call; so the tasks to be woken are gathered by worker, and one task of each worker is woken,
//! which wakes the others on their own thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::sync::Notify;

/// The tasks of one worker to be woken: one per connection at most, as an outbox gives its waker
/// away once.
#[derive(Debug, Default)]
struct Bell {
    wakers: Mutex<Vec<Waker>>,
    rung: Notify,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Wakes {
    bells: Vec<Bell>,
    /// There are tasks to be woken.
    waiting: AtomicBool,
}

impl Wakes {
    pub(super) fn new(workers: usize) -> Self {
        let bells = (0..workers).map(|_| Bell::default()).collect();
        Self { bells, waiting: AtomicBool::new(false) }
    }

    /// A connection's task is to be woken at the next [`Wakes::ring`].
    pub(super) fn add(&self, worker: usize, waker: Waker) {
        match self.bells.get(worker) {
            Some(bell) => bell.lock().push(waker),
            None => waker.wake(),
        }
        self.waiting.store(true, Ordering::Release);
    }

    /// Has the tasks woken that were added.
    #[inline]
    pub(super) fn ring(&self) {
        if self.waiting.load(Ordering::Relaxed) && self.waiting.swap(false, Ordering::Acquire) {
            self.ring_all();
        }
    }

    #[cold]
    fn ring_all(&self) {
        for bell in &self.bells {
            if !bell.lock().is_empty() {
                bell.rung.notify_one();
            }
        }
    }

    /// Wakes the tasks of a worker; runs as long as it.
    pub(super) async fn run(&self, worker: usize) {
        let Some(bell) = self.bells.get(worker) else { return };
        let mut wakers = Vec::new();
        loop {
            bell.rung.notified().await;
            std::mem::swap(&mut wakers, &mut *bell.lock());
            wakers.drain(..).for_each(Waker::wake);
        }
    }
}
