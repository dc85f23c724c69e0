//! CLIENT PAUSE.

use flagstone_storage::clock::Clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A pause of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Ms since the Unix epoch; 0: not paused.
    pub until_ms: u64,
    /// Only commands that may write wait.
    pub writes_only: bool,
}

/// The pause of a node, and those that wait for its end.
pub struct Pauses {
    clock: Clock,
    /// True if `pause` may hold: one load tells that there is none.
    paused: AtomicBool,
    pause: Mutex<Pause>,
    unpaused: Notify,
}

impl Pauses {
    /// No pause.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            paused: AtomicBool::new(false),
            pause: Mutex::default(),
            unpaused: Notify::new(),
        }
    }

    /// The pause that holds now, if any.
    pub fn now(&self) -> Option<Pause> {
        if !self.paused.load(Ordering::Relaxed) {
            return None;
        }
        let pause = *self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        (pause.until_ms > self.clock.now_ms()).then_some(pause)
    }

    /// Begins, changes or (with `until_ms` 0) ends a pause.
    pub fn set(&self, pause: Pause) {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = pause;
        self.paused.store(pause.until_ms != 0, Ordering::Relaxed);
        self.unpaused.notify_waiters();
    }

    /// Waits until no pause holds for a command (`may_write`: it may change something).
    pub async fn wait(&self, may_write: bool) {
        while let Some(pause) = self.now() {
            if pause.writes_only && !may_write {
                return;
            }
            let left = pause.until_ms.saturating_sub(self.clock.now_ms()).max(1);
            let changed = self.unpaused.notified();
            let _ = tokio::time::timeout(Duration::from_millis(left), changed).await;
        }
    }
}
