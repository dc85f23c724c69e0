//! Shutdown of the server: its request, and the coordinators for which it waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
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

/// A stop on its way from the wish to the end.
#[derive(Clone, Copy, Debug, Default)]
struct Stopping {
    /// The wish, which may be taken back until the end begins.
    wish: Option<ShutdownRequest>,
    /// True if the end has begun.
    ends: bool,
    /// Time until which the stop waits for replicas, ms since the Unix epoch, if it does.
    until_ms: Option<u64>,
    /// Number of stops that were taken back.
    aborted: u64,
}

impl Stopping {
    /// Returns true if the end has begun, and is an immediate one.
    fn is_hurried(&self) -> bool {
        self.ends && self.wish.is_some_and(|wish| wish.now)
    }
}

/// State of a node's shutdown.
pub struct Ending {
    workers: usize,
    /// Number of running coordinators.
    coordinators: Arc<AtomicUsize>,
    /// Number of workers whose connections have ended.
    quiet_workers: AtomicUsize,
    stopping: watch::Sender<Stopping>,
    failure: OnceLock<String>,
}

impl Ending {
    /// Creates the state of a node with so many workers, before any request.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            coordinators: Arc::default(),
            quiet_workers: AtomicUsize::new(0),
            stopping: watch::channel(Stopping::default()).0,
            failure: OnceLock::new(),
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

    /// Asks for the end of the node, which may wait for replicas, and returns the number of the stop.
    /// One that is asked for already may become an immediate one.
    pub fn ask(&self, request: ShutdownRequest) -> u64 {
        let mut number = 0;
        self.stopping.send_modify(|stopping| {
            let now = request.now || stopping.wish.is_some_and(|wish| wish.now);
            stopping.wish = Some(ShutdownRequest { now });
            number = stopping.aborted;
        });
        number
    }

    /// Takes a stop back. Returns false if there is none, or the end has begun.
    pub fn abort(&self) -> bool {
        self.stopping.send_if_modified(|stopping| {
            let waits = stopping.wish.is_some() && !stopping.ends;
            if waits {
                let aborted = stopping.aborted + 1;
                *stopping = Stopping { aborted, ..Stopping::default() };
            }
            waits
        })
    }

    /// Begins the end of the node, which nobody can take back.
    pub fn end(&self, request: ShutdownRequest) {
        self.stopping.send_modify(|stopping| {
            stopping.wish = Some(request);
            stopping.ends = true;
        });
    }

    /// Begins the end of the node because of a failure, which the exit status tells.
    pub fn fail(&self, why: &str) {
        self.failure.get_or_init(|| why.to_owned());
        self.end(ShutdownRequest { now: true });
    }

    /// Returns the failure that has ended the node, if one has.
    pub fn outcome(&self) -> anyhow::Result<()> {
        self.failure.get().map_or(Ok(()), |why| anyhow::bail!("{why}"))
    }

    /// Begins the end that was asked for; `None` if that was taken back.
    pub(crate) fn begin(&self, stop: u64) -> Option<ShutdownRequest> {
        let mut wish = None;
        self.stopping.send_if_modified(|stopping| {
            wish = stopping.wish.filter(|_| stopping.aborted == stop);
            stopping.ends |= wish.is_some();
            wish.is_some()
        });
        wish
    }

    /// Notes that the stop waits for replicas, until a time in ms since the Unix epoch.
    pub(crate) fn waits_until(&self, until_ms: u64) {
        self.stopping.send_modify(|stopping| {
            stopping.until_ms = stopping.wish.map(|_| until_ms);
        });
    }

    /// Returns the time until which a stop waits for replicas, if one does.
    pub fn waiting_until(&self) -> Option<u64> {
        let stopping = self.stopping.borrow();
        stopping.until_ms.filter(|_| !stopping.ends)
    }

    /// Waits until somebody asks for the end, and returns the number of the stop.
    pub(crate) async fn asked(&self) -> u64 {
        self.reached(|stopping| stopping.wish.is_some()).await
    }

    /// Waits until a stop must not wait any longer, or was taken back.
    pub(crate) async fn insisted(&self, stop: u64) {
        let insists = |stopping: &Stopping| stopping.wish.is_none_or(|wish| wish.now);
        self.reached(|now| now.ends || now.aborted != stop || insists(now)).await;
    }

    /// Ends what is not needed to keep the data: of this stop, unless it was taken back.
    pub(crate) fn hurry(&self, stop: u64) {
        self.stopping.send_if_modified(|stopping| {
            let wish = stopping.wish.as_mut().filter(|_| stopping.aborted == stop);
            wish.is_some_and(|wish| !std::mem::replace(&mut wish.now, true))
        });
    }

    /// Returns true if the node ends without what is not needed to keep the data.
    pub(crate) fn is_hurried(&self) -> bool {
        self.stopping.borrow().is_hurried()
    }

    /// Waits until the node ends without what is not needed to keep the data.
    pub(crate) async fn hurried(&self) {
        self.reached(Stopping::is_hurried).await;
    }

    /// Waits until a stop was taken back.
    pub(crate) async fn aborted(&self, stop: u64) {
        self.reached(|stopping| stopping.aborted != stop).await;
    }

    /// Waits for a state, and returns the number of its stop.
    async fn reached(&self, is_so: impl Fn(&Stopping) -> bool) -> u64 {
        let mut watching = self.stopping.subscribe();
        // It has a sender as long as this is there.
        watching.wait_for(is_so).await.map_or(0, |stopping| stopping.aborted)
    }

    /// Returns true if the node is being shut down, or a stop waits for replicas.
    pub fn is_asked(&self) -> bool {
        self.stopping.borrow().wish.is_some()
    }

    /// Returns true if the node is being shut down.
    pub fn is_ending(&self) -> bool {
        self.stopping.borrow().ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_stop_that_is_on_its_way_can_be_hurried() {
        let (in_order, now) = (ShutdownRequest { now: false }, ShutdownRequest { now: true });
        let ending = Ending::new(1);
        ending.hurry(0);
        assert!(!ending.is_asked(), "nobody has asked for an end");
        let first = ending.ask(in_order);
        assert!(ending.abort());
        let second = ending.ask(in_order);
        ending.hurry(first);
        assert_eq!(ending.begin(second), Some(in_order), "the signal was for the one before");
        assert!(!ending.is_hurried());
        ending.hurry(second);
        ending.hurried().await;
        let ending = Ending::new(1);
        let stop = ending.ask(in_order);
        ending.hurry(stop);
        ending.insisted(stop).await;
        assert!(!ending.is_hurried(), "it may still be taken back");
        assert_eq!(ending.begin(stop), Some(now));
        assert!(ending.is_hurried());
    }
}
