//! The hand-over of something to a client that waits for it. Several workers may have something
//! for one client, while it gives up, is told to, or goes away: exactly one of these happens.
//!
//! ```text
//!            claim                    serve
//! Waiting ──────────► Claimed ──────────────► Served
//!    │   ◄──────────────┘ release
//!    └──► Cancelled
//! ```
//!
//! A worker claims the turn before it takes anything for the client, and releases it if there was
//! nothing after all. Another one that comes meanwhile leaves its number, and looks again when the
//! turn is released: what came in between is not overlooked. A client that gives up meanwhile is
//! either served all the same, or its wait ends with the release.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Why a client waits no more without having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Its time is over, or CLIENT UNBLOCK says that it is.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// The connection has ended, or is to end.
    Gone,
}

#[derive(Debug)]
enum State {
    Waiting,
    Claimed {
        /// Workers that had something meanwhile.
        missed: Vec<usize>,
        /// The client waits no more, unless it is served.
        cancelled: Option<Cancel>,
    },
    Served(Vec<u8>),
    Cancelled(Cancel),
}

/// How a wait ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The reply.
    Served(Vec<u8>),
    Cancelled(Cancel),
}

/// See the module's description.
#[derive(Debug)]
pub struct Turn {
    state: Mutex<State>,
    changed: Notify,
}

impl Default for Turn {
    fn default() -> Self {
        Self { state: Mutex::new(State::Waiting), changed: Notify::new() }
    }
}

impl Turn {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the turn for a worker, which then serves or releases it. False: it is over, or another
    /// has it and will have this worker look again if it comes to nothing.
    #[must_use]
    pub fn claim(&self, worker: usize) -> bool {
        let mut state = self.state();
        match &mut *state {
            State::Waiting => {
                *state = State::Claimed { missed: Vec::new(), cancelled: None };
                true
            }
            State::Claimed { missed, .. } => {
                if !missed.contains(&worker) {
                    missed.push(worker);
                }
                false
            }
            State::Served(_) | State::Cancelled(_) => false,
        }
    }

    /// Ends a claimed turn with the reply.
    pub fn serve(&self, reply: Vec<u8>) {
        *self.state() = State::Served(reply);
        self.changed.notify_one();
    }

    /// There was nothing: the client waits on. The workers that had something meanwhile, and are
    /// to look again.
    #[must_use]
    pub fn release(&self) -> Vec<usize> {
        let mut state = self.state();
        let State::Claimed { missed, cancelled } = &mut *state else { return Vec::new() };
        let missed = std::mem::take(missed);
        let Some(why) = *cancelled else {
            *state = State::Waiting;
            return missed;
        };
        *state = State::Cancelled(why);
        drop(state);
        self.changed.notify_one();
        Vec::new()
    }

    /// Ends the wait, unless the client is served before. False: it is over already.
    pub fn cancel(&self, why: Cancel) -> bool {
        let mut state = self.state();
        match &mut *state {
            State::Waiting => *state = State::Cancelled(why),
            State::Claimed { cancelled, .. } => return cancelled.replace(why).is_none(),
            State::Served(_) | State::Cancelled(_) => return false,
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Whether nobody is to begin to serve the client any more.
    pub fn is_over(&self) -> bool {
        match *self.state() {
            State::Waiting | State::Claimed { cancelled: None, .. } => false,
            State::Claimed { .. } | State::Served(_) | State::Cancelled(_) => true,
        }
    }

    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match &mut *self.state() {
            State::Served(reply) => Some(Ended::Served(std::mem::take(reply))),
            State::Cancelled(why) => Some(Ended::Cancelled(*why)),
            State::Waiting | State::Claimed { .. } => None,
        }
    }

    /// Waits until it has ended. One task at a time may wait.
    pub async fn wait(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.changed.notified().await;
        }
    }
}
