//! Replies that a client has not read, and that are kept for it meanwhile.

use crate::config::ClientMemory;
use crate::worker::MAX_REPLIES;
use bytes::{Buf, BytesMut};
use flagstone_wire::client_memory::{CLIENTS, Taken};
use std::collections::VecDeque;

/// Bytes of unread replies that one client may have whatever others leave free, while those of all clients
/// have room; its commands wait for more.
const MAX_UNREAD: usize = 16 << 20;

/// Length in bytes from which on a reply is not copied to be kept: it is written from where it is, and the
/// client's commands wait. The replies to many commands are less at a time.
const LONG_REPLY: usize = 2 * MAX_REPLIES;

/// Least and greatest size of a block of kept replies, in bytes. Its memory is free once it is read.
const BLOCKS: (usize, usize) = (4 << 10, 1 << 20);

/// Replies that the socket has not taken, in order.
#[derive(Default)]
pub(super) struct Unread {
    /// Blocks of replies; none is empty.
    blocks: VecDeque<BytesMut>,
    len: usize,
    /// Bytes of memory that the blocks take.
    memory: usize,
    /// Memory charged for the blocks.
    taken: Taken,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory in bytes that they take.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the first ones, or a part of them.
    pub(super) fn bytes(&self) -> &[u8] {
        self.blocks.front().map_or(&[], |block| block)
    }

    /// Adds replies; returns false if they are too many. `spared`: the client is never closed for its
    /// memory.
    #[must_use]
    pub(super) fn keep(&mut self, replies: &[u8], limit: ClientMemory, spared: bool) -> bool {
        let fits = self.fits(replies.len(), limit, spared);
        if fits {
            self.push(replies);
            self.taken.set(self.memory);
        }
        fits
    }

    /// Returns true if so many bytes more may be kept. Unless `maxmemory-clients` asks for clients that
    /// take much to be closed, none is for replies that it has not read: those of all clients take at
    /// most half of what clients may. One client gets [`MAX_UNREAD`] of that, and beyond it no more than
    /// it leaves to the others.
    fn fits(&self, more: usize, limit: ClientMemory, spared: bool) -> bool {
        if more >= LONG_REPLY {
            return false;
        }
        match limit {
            // Beyond the limit, those that take most are closed.
            ClientMemory::Bytes(bytes) if bytes != 0 && !spared => self.len as u64 <= bytes,
            ClientMemory::Percent(_) if !spared => self.len as u64 <= CLIENTS.limit().all,
            _ => {
                let left = CLIENTS.left_of_half(spared);
                more <= left && self.len.saturating_add(more) <= left.max(MAX_UNREAD)
            }
        }
    }

    fn push(&mut self, mut replies: &[u8]) {
        self.len += replies.len();
        while !replies.is_empty() {
            let room = self.blocks.back().map_or(0, |block| block.capacity() - block.len());
            if room == 0 {
                let size = replies.len().max(self.len).clamp(BLOCKS.0, BLOCKS.1);
                self.blocks.push_back(BytesMut::with_capacity(size));
                self.memory += size;
            }
            if let Some(block) = self.blocks.back_mut() {
                let (now, later) =
                    replies.split_at((block.capacity() - block.len()).min(replies.len()));
                block.extend_from_slice(now);
                replies = later;
            }
        }
    }

    /// Removes the first bytes, which the socket has taken.
    pub(super) fn written(&mut self, bytes: usize) {
        let Some(block) = self.blocks.front_mut() else { return };
        block.advance(bytes);
        self.len -= bytes;
        if block.is_empty() {
            self.blocks.pop_front();
            self.memory = self.blocks.iter().map(BytesMut::capacity).sum();
            self.taken.set(self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_out_in_order_and_their_memory_is_free() {
        let mut unread = Unread::default();
        let mut expected = Vec::new();
        for n in 0..3_000_u32 {
            let reply = vec![n as u8; 1 + n as usize];
            assert!(unread.keep(&reply, ClientMemory::Bytes(1 << 30), false));
            expected.extend(reply);
        }
        assert_eq!(unread.len(), expected.len());
        assert!(unread.memory() < expected.len() + BLOCKS.1);
        let mut read = Vec::new();
        while !unread.is_empty() {
            let piece = unread.bytes();
            let part = piece[..piece.len().min(70_000)].to_vec();
            unread.written(part.len());
            read.extend(part);
        }
        assert!(read == expected);
        assert_eq!((unread.memory(), unread.bytes()), (0, &b""[..]));
    }

    #[test]
    fn an_explicit_limit_bounds_the_replies_of_one_client() {
        let mut unread = Unread::default();
        assert!(unread.keep(&[1; 60_000], ClientMemory::Bytes(100_000), false));
        // Now it takes more than the limit, and is to be closed.
        assert!(unread.keep(&[1; 60_000], ClientMemory::Bytes(100_000), false));
        assert!(!unread.keep(&[1; 1], ClientMemory::Bytes(100_000), false));
        assert_eq!(unread.len(), 120_000);
    }

    #[test]
    fn a_long_reply_is_not_kept_and_those_to_many_commands_are() {
        let mut unread = Unread::default();
        let mut keep = |bytes| unread.keep(&vec![1; bytes], ClientMemory::Bytes(1 << 30), false);
        assert!(keep(MAX_REPLIES + 20_000) && keep(LONG_REPLY - 1));
        assert!(!keep(LONG_REPLY));
    }
}
