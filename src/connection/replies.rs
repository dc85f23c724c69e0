//! Sends replies: together with the client's pushes, within its output limits, and after a delay if
//! it guesses passwords.

use super::Connection;
use crate::clients::{ClientState, STRANGER_TIME};
use flagstone_wire::resp::Reply;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of replies that may be sent at once whatever the output limits of the client's class.
const ALWAYS_TAKEN: usize = 16 * 1024;

/// Pause of a client behind a reply for which there was no memory: each try may cost as much as a
/// reply of that size, and other clients wait meanwhile.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of bytes sent to a client that has never authenticated. One that asks for more is
/// ignored until its time is over instead of closed, because it would reconnect at once.
const MAX_TOLD_STRANGER: usize = 16 * 1024;

/// Size in bytes of a block of the reference's reply list (DEBUG CLIENT-ENFORCE-REPLY-LIST).
const REPLY_BLOCK: usize = 16 * 1024;

impl Connection {
    /// Delays the reply to a wrong password.
    pub(super) async fn serve_penalty(&mut self) {
        if let Some(penalty) = self.session.penalty.take() {
            tokio::time::sleep(penalty).await;
        }
    }

    /// Adds pending pushes to the replies of a tracking client: it hears of its own changes with
    /// the reply.
    pub(super) fn add_pushes(&self, out: &mut Reply) {
        let client = &self.session.client;
        if client.is(ClientState::TRACKING) && !client.outbox.is_empty() {
            self.session.take_pushes(out);
        }
    }

    /// Closes clients if the replies that this one has not read are too much. The buffers of replies that
    /// are kept have been released before: nobody is closed for them.
    pub(super) fn relieve_unread(&self) {
        if !self.unread.is_empty() {
            self.worker.node.clients.relieve(self.session.client.last_ms());
        }
    }

    /// Writes replies.
    pub(super) async fn reply(&mut self, out: &Reply) -> std::io::Result<()> {
        let client = &self.session.client;
        if !self.session.is_trusted() && !self.session.was_authenticated {
            let in_blocks = self.worker.node.replies_in_blocks.load(Ordering::Relaxed);
            self.told_stranger += if in_blocks { out.len().max(REPLY_BLOCK) } else { out.len() };
            if self.told_stranger > MAX_TOLD_STRANGER {
                // The cron closes the connection before that, unless the password was removed
                // meanwhile.
                tokio::time::sleep(STRANGER_TIME * 2).await;
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        if out.is_lost() {
            tracing::warn!(client = client.id, "there is no memory for its replies: closing");
            client.set_greedy();
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let unread = self.unread.len() + out.len();
        if unread > ALWAYS_TAKEN {
            let limits = self.worker.settings().client_output_buffer_limit;
            if !client.may_reply(unread, &limits) {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        self.moved += out.len();
        self.wire().reply(out.as_bytes()).await?;
        if out.lacks_room() {
            tokio::time::sleep(NO_ROOM_PAUSE).await;
        }
        Ok(())
    }
}
