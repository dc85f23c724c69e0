//! The hand-over of a reply to a blocked client. Several workers may have something for one client,
//! while it times out, is unblocked, or disconnects: exactly one of these happens.
//!
//! ```text
//!            claim                    serve
//! Waiting ──────────► Claimed ──────────────► Served
//!    │   ◄──────────────┘ release
//!    └──► Cancelled
//! ```
//!
//! A worker claims the turn before it takes anything for the client, and releases it if there was
//! nothing after all. Another worker that comes meanwhile leaves its number, and checks again when
//! the turn is released, so nothing that came in between is overlooked. A client that gives up
//! meanwhile is either served all the same, or its wait ends with the release.

use crate::command::{Answer, Outcome};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Reason why a wait ended without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The timeout is over, or CLIENT UNBLOCK says so.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// The server has become a replica: the connection is closed behind the error.
    Demoted,
    /// The connection has ended, or is being closed.
    Gone,
}

#[derive(Debug)]
enum TurnState {
    Waiting,
    Claimed {
        /// Workers that had something meanwhile.
        missed: Vec<usize>,
        /// The wait has ended, unless the client is served.
        cancelled: Option<Cancel>,
    },
    Served(Vec<u8>, Outcome),
    Cancelled(Cancel),
}

/// End of a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The reply and its outcome.
    Served(Vec<u8>, Outcome),
    Cancelled(Cancel),
}

/// Turn of a blocked client, shared by its connection and the workers.
#[derive(Debug)]
pub struct Turn {
    state: Mutex<TurnState>,
    changed: Notify,
}

impl Default for Turn {
    fn default() -> Self {
        Self { state: Mutex::new(TurnState::Waiting), changed: Notify::new() }
    }
}

impl Turn {
    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the turn for a worker, which then serves or releases it. Returns false if it is over,
    /// or another worker has claimed it, whose release will make this worker check again.
    #[must_use]
    pub fn claim(&self, worker: usize) -> bool {
        let mut state = self.state();
        match &mut *state {
            TurnState::Waiting => {
                *state = TurnState::Claimed { missed: Vec::new(), cancelled: None };
                true
            }
            TurnState::Claimed { missed, .. } => {
                if !missed.contains(&worker) {
                    missed.push(worker);
                }
                false
            }
            TurnState::Served(..) | TurnState::Cancelled(_) => false,
        }
    }

    /// Ends a claimed turn with the reply.
    pub fn serve(&self, answer: Answer) {
        let Answer { reply, outcome } = answer;
        *self.state() = TurnState::Served(reply.into_bytes(), outcome);
        self.changed.notify_one();
    }

    /// Releases a claimed turn: the client goes on waiting. Returns the workers that had something
    /// meanwhile, and have to check again.
    #[must_use]
    pub fn release(&self) -> Vec<usize> {
        let mut state = self.state();
        let TurnState::Claimed { missed, cancelled } = &mut *state else { return Vec::new() };
        let missed = std::mem::take(missed);
        let Some(why) = *cancelled else {
            *state = TurnState::Waiting;
            return missed;
        };
        *state = TurnState::Cancelled(why);
        drop(state);
        self.changed.notify_one();
        Vec::new()
    }

    /// Ends the wait, unless the client is served before. Returns false if it is over already.
    pub fn cancel(&self, why: Cancel) -> bool {
        let mut state = self.state();
        match &mut *state {
            TurnState::Waiting => *state = TurnState::Cancelled(why),
            TurnState::Claimed { cancelled, .. } => return cancelled.replace(why).is_none(),
            TurnState::Served(..) | TurnState::Cancelled(_) => return false,
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Returns true if no worker may begin to serve the client any more.
    pub fn is_over(&self) -> bool {
        match *self.state() {
            TurnState::Waiting | TurnState::Claimed { cancelled: None, .. } => false,
            TurnState::Claimed { .. } | TurnState::Served(..) | TurnState::Cancelled(_) => true,
        }
    }

    /// Returns how the wait has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match &mut *self.state() {
            TurnState::Served(reply, outcome) => {
                Some(Ended::Served(std::mem::take(reply), *outcome))
            }
            TurnState::Cancelled(why) => Some(Ended::Cancelled(*why)),
            TurnState::Waiting | TurnState::Claimed { .. } => None,
        }
    }

    /// Waits for the end. Only one task at a time may wait.
    pub async fn wait(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.changed.notified().await;
        }
    }
}
