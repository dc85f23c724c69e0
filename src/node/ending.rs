//! The end of the server: when it is asked for, and when nothing is under way any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// How the node is to be shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownRequest {
    /// Close the engines without a last flush: the journal has everything.
    pub now: bool,
}

/// A coordinator that has not ended.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The end of a node.
pub struct Ending {
    workers: usize,
    /// Coordinators that have not ended.
    coordinators: Arc<AtomicUsize>,
    /// Workers whose connections have ended.
    quiet_workers: AtomicUsize,
    pub(crate) shutdown: watch::Sender<Option<ShutdownRequest>>,
}

impl Ending {
    /// A node of so many workers that is not asked to end.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            coordinators: Arc::default(),
            quiet_workers: AtomicUsize::new(0),
            shutdown: watch::channel(None).0,
        }
    }

    /// A coordinator begins; it has ended when what comes back is dropped.
    pub(crate) fn coordinator(&self) -> UnderWay {
        self.coordinators.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.coordinators.clone())
    }

    /// The connections of a worker have ended: it begins no more coordinators.
    pub(crate) fn is_quiet(&self) {
        self.quiet_workers.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether no coordinator is left, on any worker, and none will begin.
    pub(crate) fn is_settled(&self) -> bool {
        self.quiet_workers.load(Ordering::SeqCst) >= self.workers
            && self.coordinators.load(Ordering::SeqCst) == 0
    }

    /// Begins the shutdown of the whole node; `None` takes a request back that has not begun.
    pub fn request_shutdown(&self, request: ShutdownRequest) {
        self.shutdown.send_replace(Some(request));
    }

    /// Whether the node is being shut down.
    pub fn is_ending(&self) -> bool {
        self.shutdown.borrow().is_some()
    }
}
