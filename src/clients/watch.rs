//! The mark that a change leaves on a client that watches the key.

use std::sync::atomic::{AtomicBool, Ordering};

/// What one client watches, from its first WATCH until EXEC, DISCARD or UNWATCH.
#[derive(Debug, Default)]
pub struct Watch {
    dirty: AtomicBool,
    /// It has ended: it is not in any table, or will soon not be.
    over: AtomicBool,
}

impl Watch {
    pub(crate) fn mark(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    /// Whether one of its keys has changed.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }
    /// It ends: no table takes it in any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Returns true if it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}
