//! The mark that a change leaves on a client that watches the key.

use std::sync::atomic::{AtomicBool, Ordering};

/// Watch of one client, from its first WATCH until EXEC, DISCARD or UNWATCH.
#[derive(Debug, Default)]
pub struct Watch {
    dirty: AtomicBool,
    /// True if it has ended: tables have removed it, or soon will.
    over: AtomicBool,
}

impl Watch {
    pub(crate) fn mark(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    /// Returns true if one of its keys has changed.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }
    /// Ends the watch: no table adds it any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Returns true if it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}
