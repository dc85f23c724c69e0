//! Shutdown of the server: its request, and the coordinators for which it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// Mode of a requested shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownRequest {
    /// True if the engines are closed without a last flush: the journal has everything.
    pub now: bool,
}

/// A coordinator that is running, until this is dropped.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// State of a node's shutdown.
pub struct Ending {
    workers: usize,
    /// Number of running coordinators.
    coordinators: Arc<AtomicUsize>,
    /// Number of workers whose connections have ended.
    quiet_workers: AtomicUsize,
    pub(crate) shutdown: watch::Sender<Option<ShutdownRequest>>,
}

impl Ending {
    /// Creates the state of a node with so many workers, before any request.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            coordinators: Arc::default(),
            quiet_workers: AtomicUsize::new(0),
            shutdown: watch::channel(None).0,
        }
    }

    /// Registers a coordinator, which is running until the result is dropped.
    pub(crate) fn coordinator(&self) -> UnderWay {
        self.coordinators.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.coordinators.clone())
    }

    /// Notes that the connections of a worker have ended: it starts no more coordinators.
    pub(crate) fn is_quiet(&self) {
        self.quiet_workers.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns true if no worker has a running coordinator, and none will start one.
    pub(crate) fn is_settled(&self) -> bool {
        self.quiet_workers.load(Ordering::SeqCst) >= self.workers
            && self.coordinators.load(Ordering::SeqCst) == 0
    }

    /// Begins the shutdown of the whole node.
    pub fn request_shutdown(&self, request: ShutdownRequest) {
        self.shutdown.send_replace(Some(request));
    }

    /// Returns true if the node is being shut down.
    pub fn is_ending(&self) -> bool {
        self.shutdown.borrow().is_some()
    }
}
