//! Sends replies: together with the client's pushes, within its output limits, and after a delay if
//! it guesses passwords.

use super::Connection;
use crate::clients::{ClientState, STRANGER_TIME};
use flagstone_wire::resp::Reply;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bytes of replies that may be sent at once whatever the output limits of the client's class.
const ALWAYS_TAKEN: usize = 16 * 1024;

/// Pause of a client behind a reply for which there was no memory: each try may cost as much as a
/// reply of that size, and other clients wait meanwhile.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of bytes sent to a client that has never authenticated. One that asks for more is
/// ignored until its time is over instead of closed, because it would reconnect at once.
const MAX_TOLD_STRANGER: usize = 16 * 1024;

/// Time for which replies wait for those to the commands behind them.
const SOON: Duration = Duration::from_millis(1);

/// Size in bytes of a block of the reference's reply list (DEBUG CLIENT-ENFORCE-REPLY-LIST).
const REPLY_BLOCK: usize = 16 * 1024;

impl Connection {
    /// Delays the reply to a wrong password.
    pub(super) async fn serve_penalty(&mut self) {
        if let Some(penalty) = self.session.penalty.take() {
            // An error ends the connection with the next reply.
            let _ = self.wire().write_put_off();
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

    /// Writes replies; short ones to commands that have others behind them leave with the next ones.
    pub(super) async fn reply_soon(&mut self, out: &Reply) -> std::io::Result<()> {
        let has_next = !self.buf.is_empty() && self.session.is_trusted() && !out.is_lost();
        let now = Instant::now();
        let may_wait = self.put_off_at.is_none_or(|at| now.saturating_duration_since(at) < SOON);
        if has_next && may_wait && self.wire().put_off(out.as_bytes()) {
            self.session.client.ends(|| self.worker.recent_ms());
            self.put_off_at.get_or_insert(now);
            return Ok(());
        }
        self.reply(out).await
    }

    /// Waits for commands. Replies that were put off leave meanwhile, once that is [`SOON`] ago.
    pub(super) async fn answer_meanwhile<T>(
        &mut self,
        mut running: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> std::io::Result<T> {
        if let Some(since) = self.put_off_at {
            if let Ok(done) = timeout_at(since + SOON, running.as_mut()).await {
                return Ok(done);
            }
            self.put_off_at = None;
            self.wire().write_put_off()?;
        }
        Ok(running.await)
    }

    /// Writes replies.
    pub(super) async fn reply(&mut self, out: &Reply) -> std::io::Result<()> {
        self.put_off_at = None;
        let client = &self.session.client;
        client.ends(|| self.worker.recent_ms());
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
