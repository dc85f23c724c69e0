//! A connection whose command waits for its keys. Meanwhile it is sent what it has not asked for,
//! and what comes from the client is read, so that its end is noticed.

use super::{Connection, READ};
use crate::blocking::{Ended, Waiting, begin};
use crate::commands::registry::Command;
use crate::resp::Args;
use crate::worker::OwnedCommand;
use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, Result};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What has happened meanwhile.
enum Woken {
    Changed,
    TimeIsOver,
    Pushes,
    Readable,
}

impl Connection {
    /// Runs a command that may wait; its reply.
    pub(super) async fn run_blocking(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
    ) -> Result<Vec<u8>> {
        let owned = OwnedCommand::new(command, args, self.session.request());
        let waiting = match begin(&self.worker, owned).await {
            Ok(reply) => return Ok(reply),
            Err(waiting) => waiting,
        };
        self.session.client.set_turn(Some(waiting.waiter.turn.clone()));
        let ended = self.wait_for(&waiting).await;
        self.session.client.set_turn(None);
        let ended = ended?;
        if matches!(ended, Ended::Cancelled(_)) {
            // It counts as one call; when it is served it counts as it runs.
            self.worker.start_watch();
            let settings = self.worker.settings();
            self.worker.ran(command, args, self.session.client.id, &settings);
        }
        Ok(waiting.reply(ended))
    }

    async fn wait_for(&mut self, waiting: &Waiting) -> Result<Ended> {
        let turn = &waiting.waiter.turn;
        let mut is_over = false;
        loop {
            if let Some(ended) = turn.ended() {
                return Ok(ended);
            }
            // A worker may be about to serve it: then that counts, or it comes back here.
            if is_over && turn.cancel(crate::blocking::Cancel::TimedOut) {
                continue;
            }
            let left = match waiting.until_ms() {
                0 => None,
                _ if is_over => None,
                until_ms => Some(until_ms.saturating_sub(self.worker.node.clock.now_ms())),
            };
            match self.woken(waiting, left.map(Duration::from_millis)).await? {
                Woken::Changed => {}
                Woken::TimeIsOver => is_over = true,
                Woken::Pushes => self.send_pushes().await?,
                Woken::Readable => self.read_ahead()?,
            }
        }
    }

    async fn woken(&self, waiting: &Waiting, left: Option<Duration>) -> Result<Woken> {
        let mut changed = pin!(waiting.waiter.turn.changed());
        let mut time = pin!(tokio::time::sleep(left.unwrap_or(Duration::MAX)));
        poll_fn(|cx| {
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Woken::Changed));
            }
            if left.is_some() && time.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Woken::TimeIsOver));
            }
            if self.session.client.outbox.poll_ready(cx).is_ready() {
                return Poll::Ready(Ok(Woken::Pushes));
            }
            self.stream.poll_read_ready(cx).map(|ready| ready.map(|()| Woken::Readable))
        })
        .await
    }

    /// Takes in what the client sends meanwhile. An error: it has gone, or sends too much.
    fn read_ahead(&mut self) -> Result<()> {
        self.buf.reserve(READ);
        match self.stream.try_read_buf(&mut self.buf) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) if self.buf.len() > self.worker.settings().client_query_buffer_limit => {
                Err(Error::other("the query buffer limit is reached"))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
