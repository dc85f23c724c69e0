//! Turns of connections: how much one may do before others have theirs.

use crate::worker::TURN;
use std::time::{Duration, Instant};

/// Number of bytes that a connection reads and writes before others have a turn.
pub(super) const TURN_BYTES: usize = 256 * 1024;

/// Number of commands of a client that has yet to authenticate which run before others have a turn.
const STRANGERS_TURN: usize = 16;

/// Rest of a turn, from a read on.
pub(super) struct TurnBudget {
    began: Instant,
    /// The time at which it is over, so that each command only compares.
    until: Instant,
    /// Number of commands that are left if the client has yet to authenticate.
    left: usize,
}

impl TurnBudget {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, until: began + TURN, left: STRANGERS_TURN }
    }

    /// Returns how long it has lasted.
    pub(super) fn busy(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// Counts a command that has ended by now; returns true if the turn is over.
    pub(super) fn is_over(&mut self, now: Instant, authenticated: bool) -> bool {
        if !authenticated {
            self.left = self.left.saturating_sub(1);
        }
        self.left == 0 || now > self.until
    }
}
