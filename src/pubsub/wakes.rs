//! Wakes connections that have received messages. Waking a task of another thread costs a system
//! call; so wakers are collected by worker, and one task of each worker is woken, which wakes the
//! others on its own thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::sync::Notify;

/// Wakers of one worker: at most one per connection, because an outbox gives its waker away once.
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

/// Wakers of all workers.
#[derive(Debug)]
pub(super) struct Wakes {
    bells: Vec<Bell>,
    /// True if any tasks are to be woken.
    waiting: AtomicBool,
}

impl Wakes {
    pub(super) fn new(workers: usize) -> Self {
        let bells = (0..workers).map(|_| Bell::default()).collect();
        Self { bells, waiting: AtomicBool::new(false) }
    }

    /// Adds a connection's task, to be woken at the next [`Wakes::ring`].
    pub(super) fn add(&self, worker: usize, waker: Waker) {
        match self.bells.get(worker) {
            Some(bell) => bell.lock().push(waker),
            None => waker.wake(),
        }
        self.waiting.store(true, Ordering::Release);
    }

    /// Wakes the tasks that were added.
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

    /// Wakes the tasks of a worker, until it ends.
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
