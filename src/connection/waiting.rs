//! Waits for the next commands of an idle connection, and sends what it has for the client meanwhile.

use super::Connection;
use std::future::poll_fn;
use std::io::Result;
use std::task::Poll;
use std::time::Duration;

/// Event for which an idle connection waits.
enum Event {
    Readable,
    Pushes,
    Writable,
    Ending,
}

impl Connection {
    /// Waits for something to read; sends unread replies, then pushes meanwhile. Returns false if the
    /// connection is to end.
    pub(super) async fn wait_readable(&mut self) -> Result<bool> {
        // Their replies may have been unwanted.
        self.session.client.ends(|| self.worker.recent_ms());
        let mut sent = false;
        loop {
            let event = poll_fn(|cx| -> Poll<Result<Event>> {
                // The task is woken when this changes.
                if self.session.client.is_ending() {
                    return Poll::Ready(Ok(Event::Ending));
                }
                let readable = self.stream.poll_readable(cx)?.map(|()| Ok(Event::Readable));
                // Commands are read even if there is always more to send.
                if sent && readable.is_ready() {
                    return readable;
                }
                let sendable = if self.unread.is_empty() {
                    self.session.client.outbox.poll_ready(cx).map(|()| Ok(Event::Pushes))
                } else {
                    self.stream.poll_writable(cx)?.map(|()| Ok(Event::Writable))
                };
                if sendable.is_ready() {
                    return sendable;
                }
                if readable.is_pending() {
                    (self.busy, self.moved) = (Duration::ZERO, 0);
                }
                readable
            });
            self.moved += match event.await? {
                Event::Readable => return Ok(true),
                Event::Ending => return Ok(false),
                Event::Pushes => self.wire().send_pushes().await?,
                Event::Writable => self.wire().write_unread()?,
            };
            sent = true;
            self.give_turn().await;
        }
    }
}
