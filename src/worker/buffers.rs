//! Buffers that the connections of a worker share: each has them while it runs, and none while it
//! waits.

use super::Ahead;
use std::cell::{Cell, RefCell};

/// Bytes of a buffer for replies that is kept: whoever takes it has it until their replies can leave.
const REPLY_BUFFER: usize = 64 << 10;

/// Bytes that a connection reads at once.
pub(crate) const READ: usize = 64 << 10;

/// See the module's description.
#[derive(Default)]
pub(crate) struct Buffers {
    scratch: RefCell<Option<Vec<u8>>>,
    reply: Cell<Vec<u8>>,
    ahead: RefCell<Ahead>,
}

impl Buffers {
    /// The worker's read buffer, shared by its connections while nobody waits.
    pub(crate) fn take_scratch(&self) -> Vec<u8> {
        let scratch = self.scratch.borrow_mut().take();
        scratch.unwrap_or_else(|| vec![0; READ])
    }

    /// Gives the read buffer back.
    pub(crate) fn give_scratch(&self, scratch: Vec<u8>) {
        *self.scratch.borrow_mut() = Some(scratch);
    }

    /// A buffer for replies: the one that was given back last, unless that is in use.
    pub(crate) fn take_reply_buffer(&self) -> Vec<u8> {
        self.reply.take()
    }

    /// Gives a buffer for replies back, so that those of the next client need not grow one.
    pub(crate) fn give_reply_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= REPLY_BUFFER {
            self.reply.set(buffer);
        }
    }

    /// The worker's list of commands that are parsed ahead, for the connection that it serves.
    pub(crate) fn take_ahead(&self) -> Ahead {
        self.ahead.take()
    }

    /// Gives the list back.
    pub(crate) fn give_ahead(&self, ahead: Ahead) {
        self.ahead.replace(ahead);
    }
}
