//! The socket of a connection: writes replies and pushes, and reads ahead while a command waits.
//!
//! Replies that the client does not read yet are kept, up to a bound, and the connection goes on: a
//! client may send a long pipeline before it reads. Beyond the bound its commands wait.

use super::count;
use super::turn::TURN_BYTES;
use super::unread::Unread;
use crate::clients::{Client, ClientState};
use crate::config::ClientMemory;
use crate::large;
use crate::transport::Stream;
use crate::worker::{READ, Worker};
use bytes::{BufMut, BytesMut};
use flagstone_wire::client_memory::{CLIENTS, Taken};
use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, Result};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Maximum number of bytes of replies that wait for the next ones.
const MAX_PUT_OFF: usize = 16 << 10;

/// Event that ends a wait.
enum Woken<T> {
    Done(T),
    Writable,
    Pushes,
    Readable,
}

/// Parts of a connection that are served while one of its commands waits.
pub(super) struct Wire<'a> {
    pub(super) worker: &'a Worker,
    pub(super) client: &'a Client,
    pub(super) stream: &'a mut Stream,
    pub(super) buf: &'a mut BytesMut,
    /// Memory charged for `buf`.
    pub(super) taken: &'a mut Taken,
    pub(super) unread: &'a mut Unread,
}

impl Wire<'_> {
    /// Waits for `done`. The wire is served only while the client counts as blocked: a client that
    /// shuts its side down and then waits for a reply gets it. Returns an error if the client has
    /// disconnected or is to end.
    pub(super) async fn keep_until<T>(&mut self, done: impl Future<Output = T>) -> Result<T> {
        let mut done = pin!(done);
        let mut moved = 0;
        loop {
            let woken = poll_fn(|cx| {
                if let Poll::Ready(value) = done.as_mut().poll(cx) {
                    return Poll::Ready(Ok(Woken::Done(value)));
                }
                if self.client.is_ending() {
                    return Poll::Ready(Err(ErrorKind::ConnectionAborted.into()));
                }
                if !self.unread.is_empty()
                    && let Poll::Ready(ready) = self.stream.poll_writable(cx)
                {
                    return Poll::Ready(ready.map(|()| Woken::Writable));
                }
                if !self.client.is(ClientState::BLOCKED) {
                    return Poll::Pending;
                }
                if self.unread.is_empty() && self.client.outbox.poll_ready(cx).is_ready() {
                    return Poll::Ready(Ok(Woken::Pushes));
                }
                self.stream.poll_readable(cx).map(|ready| ready.map(|()| Woken::Readable))
            });
            match woken.await? {
                Woken::Done(value) => return Ok(value),
                Woken::Writable => moved += self.write_unread()?,
                Woken::Pushes => moved += self.send_pushes().await?,
                Woken::Readable => moved += self.read_ahead()?,
            }
            if moved > TURN_BYTES {
                self.worker.turns.end().await;
                moved = 0;
            }
        }
    }

    /// Writes some pushes, and returns the number of bytes.
    pub(super) async fn send_pushes(&mut self) -> Result<usize> {
        self.flush().await?;
        let piece = self.client.outbox.take();
        let bytes = piece.copied.len() + piece.shared.len();
        for part in [&*piece.copied, &piece.shared] {
            let left = self.try_write(part)?;
            self.write_rest(left, false).await?;
        }
        self.took(bytes);
        self.client.outbox.written(piece);
        Ok(bytes)
    }

    /// Keeps short replies, which leave with the next ones. Returns false if they are to be written: for
    /// replies that wait no client is closed.
    #[must_use]
    pub(super) fn put_off(&mut self, out: &[u8]) -> bool {
        let spared = self.client.is(ClientState::NO_EVICT);
        let limit = self.worker.settings().maxmemory_clients;
        if self.unread.len() + out.len() > MAX_PUT_OFF
            || matches!(limit, ClientMemory::Bytes(1..) | ClientMemory::Percent(_))
            || !CLIENTS.has_plenty(spared)
            || !self.unread.keep(out, limit, spared)
        {
            return false;
        }
        self.count_bytes(out);
        self.client.outbox.set_replies(self.unread.memory());
        true
    }

    /// Writes the replies that were put off, if there are any.
    pub(super) fn write_put_off(&mut self) -> Result<()> {
        if !self.unread.is_empty() {
            count(&self.worker.stats().writes, 1);
            self.write_unread()?;
        }
        Ok(())
    }

    /// Writes replies, or keeps those that the client does not read yet.
    pub(super) async fn reply(&mut self, out: &[u8]) -> Result<()> {
        if !self.unread.is_empty() && self.put_off(out) {
            return self.write_put_off();
        }
        self.write_unread()?;
        let left = if self.unread.is_empty() {
            self.try_write(out)?
        } else {
            self.count_written(out);
            out
        };
        if left.is_empty() {
            return Ok(());
        }
        let spared = self.client.is(ClientState::NO_EVICT);
        if self.unread.keep(left, self.worker.settings().maxmemory_clients, spared) {
            self.client.outbox.set_replies(self.unread.memory());
            return Ok(());
        }
        self.flush().await?;
        self.write_rest(left, true).await
    }

    /// Writes the replies that are kept, as the client reads.
    pub(super) async fn flush(&mut self) -> Result<()> {
        while !self.unread.is_empty() {
            self.stream.writable().await?;
            self.write_unread()?;
        }
        Ok(())
    }

    /// Writes as many of the kept replies as the socket takes at once, and returns the number of bytes.
    pub(super) fn write_unread(&mut self) -> Result<usize> {
        if self.unread.is_empty() {
            return Ok(0);
        }
        match self.stream.try_write(self.unread.bytes()) {
            Ok(n) => {
                self.took(n);
                self.unread.written(n);
                self.client.outbox.set_replies(self.unread.memory());
                Ok(n)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Writes as much as the socket takes at once, usually everything, and returns the rest.
    fn try_write<'b>(&mut self, out: &'b [u8]) -> Result<&'b [u8]> {
        if out.is_empty() {
            return Ok(out);
        }
        self.count_written(out);
        match self.stream.try_write(out) {
            Ok(n) => Ok(&out[n..]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(out),
            Err(error) => Err(error),
        }
    }

    /// Notes that the client has taken bytes: it is not idle.
    fn took(&self, bytes: usize) {
        if bytes > 0 {
            self.client.seen_since(self.worker.recent_ms());
        }
    }

    fn count_written(&self, out: &[u8]) {
        count(&self.worker.stats().writes, 1);
        self.count_bytes(out);
    }

    fn count_bytes(&self, out: &[u8]) {
        count(&self.client.bytes_out, out.len() as u64);
        self.worker.stats().bytes_out.fetch_add(out.len() as u64, Ordering::Relaxed);
    }

    /// Writes the rest as the client reads; CLIENT LIST shows how much of a reply is left.
    async fn write_rest(&mut self, mut left: &[u8], is_reply: bool) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        while !left.is_empty() {
            if is_reply {
                self.client.outbox.set_replies(left.len());
            }
            self.stream.writable().await?;
            match self.stream.try_write(left) {
                Ok(n) => {
                    self.took(n);
                    left = &left[n..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.client.outbox.set_replies(0);
        Ok(())
    }

    /// Reads the bytes that have arrived from the client, and returns their number. Returns an
    /// error if the client has disconnected or sends too much.
    fn read_ahead(&mut self) -> Result<usize> {
        large::reserve(self.buf, READ, 0);
        match self.stream.try_read_buf(&mut (&mut *self.buf).limit(TURN_BYTES)) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                count(&self.worker.stats().reads, 1);
                count(&self.client.bytes_in, n as u64);
                self.worker.stats().bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                let bytes = large::memory(self.buf);
                self.taken.set(bytes);
                self.client.buffer_bytes.store(bytes as u64, Ordering::Relaxed);
                self.client.query_bytes.store(self.buf.len() as u64, Ordering::Relaxed);
                let node = &self.worker.node;
                node.clients.relieve(node.clock.now_ms());
                if self.buf.len() > self.worker.settings().client_query_buffer_limit {
                    tracing::warn!(
                        client = self.client.id,
                        "it sends more than client-query-buffer-limit while it waits: closing"
                    );
                    self.client.set_greedy();
                    return Err(Error::other("the query buffer limit is reached"));
                }
                Ok(n)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }
}
