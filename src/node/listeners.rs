//! Clients that have to hear of changed keys: the part that all workers share.

use crate::tracking::Prefixes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Shared figures of the clients that listen for changes.
pub struct ChangeListeners {
    /// Number of clients that wait for keys, watch them, or track them.
    pub count: Arc<AtomicUsize>,
    /// Bytes that watched keys take.
    pub watched_bytes: AtomicUsize,
    /// Approximate memory in bytes of the keys that clients wait for, counting only clients that
    /// wait for many.
    pub awaited_bytes: AtomicUsize,
    /// Number of the last client that began to wait for keys.
    pub last_waiter: AtomicU64,
    /// Prefixes that clients track.
    pub prefixes: Arc<Prefixes>,
}

impl ChangeListeners {
    /// Creates the figures without listeners, whose prefixes may take so many bytes.
    pub(super) fn new(max_prefix_bytes: usize) -> Self {
        Self {
            count: Arc::default(),
            watched_bytes: AtomicUsize::new(0),
            awaited_bytes: AtomicUsize::new(0),
            last_waiter: AtomicU64::new(0),
            prefixes: Arc::new(Prefixes::new(max_prefix_bytes)),
        }
    }
}
