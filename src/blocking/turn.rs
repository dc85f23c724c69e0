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
//! nothing after all. Another one that comes meanwhile leaves a note, so that the releasing worker
//! has all look again: what came in between is not overlooked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Why a client waits no more without having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Its time is over, or CLIENT UNBLOCK says that it is.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// The connection has ended.
    Gone,
}

#[derive(Debug)]
enum State {
    Waiting,
    Claimed {
        /// Somebody else had something meanwhile.
        missed: bool,
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

    /// Claims the turn; whoever does serves or releases it. False: it is over, or somebody else
    /// has it and will have everybody look again if it comes to nothing.
    #[must_use]
    pub fn claim(&self) -> bool {
        let mut state = self.state();
        match &mut *state {
            State::Waiting => {
                *state = State::Claimed { missed: false };
                true
            }
            State::Claimed { missed } => {
                *missed = true;
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

    /// There was nothing: the client waits on. True: somebody else had something meanwhile.
    #[must_use]
    pub fn release(&self) -> bool {
        let before = std::mem::replace(&mut *self.state(), State::Waiting);
        // The client may be about to give up.
        self.changed.notify_one();
        matches!(before, State::Claimed { missed: true })
    }

    /// Ends the wait unless somebody is about to serve the client.
    pub fn cancel(&self, why: Cancel) -> bool {
        let mut state = self.state();
        let waiting = matches!(*state, State::Waiting);
        if waiting {
            *state = State::Cancelled(why);
            self.changed.notify_one();
        }
        waiting
    }

    /// Whether the client neither waits nor is about to be served.
    pub fn is_over(&self) -> bool {
        matches!(*self.state(), State::Served(_) | State::Cancelled(_))
    }

    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match &mut *self.state() {
            State::Served(reply) => Some(Ended::Served(std::mem::take(reply))),
            State::Cancelled(why) => Some(Ended::Cancelled(*why)),
            State::Waiting | State::Claimed { .. } => None,
        }
    }

    /// Resolves when something has become of it.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
