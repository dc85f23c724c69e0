//! How replies leave: with what the client hears of itself, within what it may get, and not at once if
//! it guesses passwords.

use super::Connection;
use crate::clients::{STRANGER_TIME, state};
use flagstone_wire::resp::Reply;
use std::io::ErrorKind;

/// Bytes of replies at once that count against no limit of a class of clients.
const ALWAYS_TAKEN: usize = 16 * 1024;

/// Bytes that a client is sent before it has given its password. One that asks for more is left alone
/// for as long as it may stay, and not closed at once: it would come back at once.
const MAX_TOLD_STRANGER: usize = 16 * 1024;

impl Connection {
    /// Keeps the reply to a wrong password back.
    pub(super) async fn serve_penalty(&mut self) {
        if let Some(penalty) = self.session.penalty.take() {
            tokio::time::sleep(penalty).await;
        }
    }

    /// Adds what it was sent unasked to its replies, if it hears of changed keys: what it has changed
    /// itself it hears of with the reply.
    pub(super) fn add_pushes(&self, out: &mut Reply) {
        let client = &self.session.client;
        if client.is(state::TRACKING) && !client.outbox.is_empty() {
            self.session.take_pushes(out);
        }
    }

    /// Writes replies.
    pub(super) async fn reply(&mut self, out: &Reply) -> std::io::Result<()> {
        let client = &self.session.client;
        if !self.session.authenticated {
            self.told_stranger += out.len();
            if self.told_stranger > MAX_TOLD_STRANGER {
                // The clock ends it before, unless there is no password any more.
                tokio::time::sleep(STRANGER_TIME * 2).await;
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        if out.is_lost() {
            tracing::warn!(client = client.id, "there is no memory for its replies: closing");
            client.set_greedy();
            return Err(ErrorKind::ConnectionAborted.into());
        }
        if out.len() > ALWAYS_TAKEN {
            let limits = self.worker.settings().client_output_buffer_limit;
            if !client.may_reply(out.len(), &limits) {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        self.moved += out.len();
        self.wire().reply(out.as_bytes()).await
    }
}
