//! Buffers that the connections of a worker share: each has them while it runs, and none while it
//! waits.

use super::Ahead;
use super::batch::BatchRun;
use std::cell::{Cell, RefCell};

/// Maximum capacity in bytes of a buffer for replies that is kept. A connection has it until its
/// replies are sent.
const REPLY_BUFFER: usize = 64 << 10;

/// Number of bytes that a connection reads at once.
pub(crate) const READ: usize = 64 << 10;

/// Buffers of a worker.
#[derive(Default)]
pub(crate) struct Buffers {
    scratch: RefCell<Option<Vec<u8>>>,
    reply: Cell<Vec<u8>>,
    /// It is large, and moves with each read.
    ahead: Cell<Option<Box<Ahead>>>,
    run: RefCell<BatchRun>,
}

impl Buffers {
    /// Takes the worker's read buffer, which its connections share: none keeps it while it waits.
    pub(crate) fn take_scratch(&self) -> Vec<u8> {
        let scratch = self.scratch.borrow_mut().take();
        scratch.unwrap_or_else(|| vec![0; READ])
    }

    /// Puts the read buffer back.
    pub(crate) fn give_scratch(&self, scratch: Vec<u8>) {
        *self.scratch.borrow_mut() = Some(scratch);
    }

    /// Takes a buffer for replies: the last one returned, unless it is in use.
    pub(crate) fn take_reply_buffer(&self) -> Vec<u8> {
        self.reply.take()
    }

    /// Puts a buffer for replies back, so that the next client need not grow one.
    pub(crate) fn give_reply_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= REPLY_BUFFER {
            self.reply.set(buffer);
        }
    }

    /// Takes the worker's list of commands parsed ahead, for the connection that it serves.
    pub(crate) fn take_ahead(&self) -> Box<Ahead> {
        self.ahead.take().unwrap_or_default()
    }

    /// Puts the list of commands parsed ahead back.
    pub(crate) fn give_ahead(&self, ahead: Box<Ahead>) {
        self.ahead.set(Some(ahead));
    }

    /// Takes the buffers with which batches of other workers run.
    pub(super) fn take_run(&self) -> BatchRun {
        self.run.take()
    }

    /// Puts the buffers of batches back, empty.
    pub(super) fn give_run(&self, run: BatchRun) {
        self.run.replace(run);
    }
}
