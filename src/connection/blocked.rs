//! A connection whose command waits: for its keys, for a timeout, or for clients to go on. Meanwhile
//! it is sent what it has not asked for, and what comes from the client is read, so that its end is
//! noticed.

use super::{Connection, READ, count, write};
use crate::blocking::{Ended, begin};
use crate::clients::{Client, state};
use crate::commands::registry::Command;
use crate::resp::Args;
use crate::worker::{OwnedCommand, Worker};
use bytes::BytesMut;
use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, Result};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::net::TcpStream;

/// What has happened.
enum Woken<T> {
    Done(T),
    Pushes,
    Readable,
}

/// The parts of a connection that go on while one of its commands waits.
pub(super) struct Line<'a> {
    pub(super) worker: &'a Worker,
    pub(super) client: Arc<Client>,
    pub(super) stream: &'a mut TcpStream,
    pub(super) buf: &'a mut BytesMut,
}

impl Connection {
    /// Runs a command that may wait; its reply.
    pub(super) async fn run_blocking(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
    ) -> Result<Vec<u8>> {
        let owned = OwnedCommand::new(command, args, self.session.request());
        let client = self.session.client.clone();
        let waiting = match begin(&self.worker, &client, owned).await {
            Ok(reply) => return Ok(reply),
            Err(waiting) => waiting,
        };
        let mut line =
            Line { worker: &self.worker, client, stream: &mut self.stream, buf: &mut self.buf };
        let ended = line.keep_until(waiting.ended()).await?;
        if matches!(ended, Ended::Cancelled(_)) {
            // It counts as one call; when it is served it counts as it runs.
            self.worker.start_watch();
            let settings = self.worker.settings();
            self.worker.ran(command, args, self.session.client.id, &settings);
        }
        Ok(waiting.reply(ended))
    }
}

impl Line<'_> {
    /// Waits for what a command waits for. The line is served only while the client counts as
    /// blocked: one that ends its side and then waits for a reply gets it. An error: it has gone.
    pub(super) async fn keep_until<T>(&mut self, done: impl Future<Output = T>) -> Result<T> {
        let mut done = pin!(done);
        loop {
            let woken = poll_fn(|cx| {
                if let Poll::Ready(value) = done.as_mut().poll(cx) {
                    return Poll::Ready(Ok(Woken::Done(value)));
                }
                if !self.client.is(state::BLOCKED) {
                    return Poll::Pending;
                }
                if self.client.outbox.poll_ready(cx).is_ready() {
                    return Poll::Ready(Ok(Woken::Pushes));
                }
                self.stream.poll_read_ready(cx).map(|ready| ready.map(|()| Woken::Readable))
            });
            match woken.await? {
                Woken::Done(value) => return Ok(value),
                Woken::Pushes => self.send_pushes().await?,
                Woken::Readable => self.read_ahead()?,
            }
        }
    }

    /// Writes what the client has not asked for.
    pub(super) async fn send_pushes(&mut self) -> Result<()> {
        let frames = self.client.outbox.take();
        let bytes = frames.len();
        write(self.worker, &self.client, self.stream, &frames).await?;
        self.client.outbox.written(bytes);
        Ok(())
    }

    /// Takes in what the client sends. An error: it has gone, or sends too much.
    fn read_ahead(&mut self) -> Result<()> {
        self.buf.reserve(READ);
        match self.stream.try_read_buf(self.buf) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                count(&self.worker.stats().reads, 1);
                count(&self.client.bytes_in, n as u64);
                self.worker.stats().bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                if self.buf.len() > self.worker.settings().client_query_buffer_limit {
                    tracing::warn!(
                        client = self.client.id,
                        "it sends more than client-query-buffer-limit while it waits: closing"
                    );
                    return Err(Error::other("the query buffer limit is reached"));
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
