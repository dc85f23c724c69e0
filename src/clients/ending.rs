//! The end of a client's connection, which others ask for.

use super::{Cancel, Client, ClientState};
use std::sync::atomic::Ordering;

impl Client {
    /// Asks the connection's task to close it.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        // A blocked command must serve this client no more, although its task has yet to end.
        self.unblock(Cancel::Gone);
        self.kill.notify_one();
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Returns true if messages may be redirected to it: it was not killed, and has not quit.
    pub fn may_hear(&self) -> bool {
        !self.is_killed() && !self.is(ClientState::QUIT)
    }

    /// Returns true if it has quit, and no reply is left for it to read: its connection is about to be
    /// closed.
    pub fn has_left(&self) -> bool {
        self.is(ClientState::QUIT) && self.outbox.size().1 == 0
    }

    /// Asks the connection's task to run no further commands, and to close the connection once the
    /// replies of those that have run are written.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.unblock(Cancel::Gone);
        self.kill.notify_one();
    }

    /// Returns true if it runs no further commands.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire) || self.is_killed()
    }

    /// Resolves when the connection has to be closed, or to end.
    pub async fn ended(&self) {
        while !self.is_ending() {
            self.kill.notified().await;
        }
    }

    /// Resolves when the connection has to be closed.
    pub async fn killed(&self) {
        while !self.is_killed() {
            self.kill.notified().await;
        }
    }
}
