//! Wakes connections that were sent something. To wake a task of another thread costs a system
//! call; so the tasks to be woken are gathered by worker, and one task of each worker is woken,
//! which wakes the others on their own thread.

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
pub(super) struct Wakes(Vec<Bell>);

impl Wakes {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Bell::default()).collect())
    }

    /// A connection's task is to be woken at the next [`Wakes::ring`].
    pub(super) fn add(&self, worker: usize, waker: Waker) {
        match self.0.get(worker) {
            Some(bell) => bell.lock().push(waker),
            None => waker.wake(),
        }
    }

    /// Has the tasks woken that were added.
    pub(super) fn ring(&self) {
        for bell in &self.0 {
            if !bell.lock().is_empty() {
                bell.rung.notify_one();
            }
        }
    }

    /// Wakes the tasks of a worker; runs as long as it.
    pub(super) async fn run(&self, worker: usize) {
        let Some(bell) = self.0.get(worker) else { return };
        let mut wakers = Vec::new();
        loop {
            bell.rung.notified().await;
            std::mem::swap(&mut wakers, &mut *bell.lock());
            wakers.drain(..).for_each(Waker::wake);
        }
    }
}
