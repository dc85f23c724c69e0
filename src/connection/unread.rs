//! Replies that a client has not read, and that are kept for it meanwhile.

use crate::config::ClientMemory;
use crate::large;
use bytes::{Buf, BytesMut};
use flagstone_wire::client_memory::{CLIENTS, Taken};

/// Maximum number of bytes of replies that are kept for a client; its commands wait for more.
const MAX_UNREAD: usize = 16 << 20;

/// Replies that the socket has not taken, in order.
#[derive(Default)]
pub(super) struct Unread {
    buf: BytesMut,
    /// Memory charged for `buf`.
    taken: Taken,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Returns the memory in bytes that they take.
    pub(super) fn memory(&self) -> usize {
        if self.is_empty() { 0 } else { large::memory(&self.buf) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf
    }

    /// Adds replies; returns false if they are too many. Unless `maxmemory-clients` asks for clients
    /// that take much to be closed, none is for replies that it has not read: those that are kept
    /// take at most half of what all clients may.
    #[must_use]
    pub(super) fn keep(&mut self, replies: &[u8], limit: ClientMemory) -> bool {
        let fits = self.len() + replies.len() <= MAX_UNREAD
            && (limit != ClientMemory::Auto || CLIENTS.is_half_free(replies.len()));
        if fits {
            large::reserve(&mut self.buf, replies.len(), 0);
            self.buf.extend_from_slice(replies);
            self.taken.set(self.memory());
        }
        fits
    }

    /// Removes the first bytes, which the socket has taken.
    pub(super) fn written(&mut self, bytes: usize) {
        self.buf.advance(bytes);
        if self.buf.is_empty() {
            *self = Self::default();
        }
    }
}
