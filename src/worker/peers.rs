//! Mailboxes of all workers, and closures that run on them.

use super::hop::Exchange;
use super::{Mailbox, Message, Worker, WorkerGone};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The workers' mailboxes, shared by all of them.
pub struct Peers {
    pub mailboxes: Vec<Mailbox>,
    pub(crate) exchange: Exchange,
    /// Number of workers that own shards; the others only serve connections.
    shard_workers: usize,
}

impl Peers {
    pub fn new(mailboxes: Vec<Mailbox>, shard_workers: usize) -> Self {
        let exchange = Exchange::new(mailboxes.len());
        Self { mailboxes, exchange, shard_workers }
    }

    /// Returns the number of messages that wait for a worker: urgent ones, parcels of short batches,
    /// and others.
    pub fn depths(&self, worker: usize) -> [usize; 3] {
        let [urgent, normal] = self.mailboxes[worker].depths();
        [urgent, self.exchange.depth(worker), normal]
    }

    /// Notes that a worker has ended: the batches that it was sent fail.
    pub(crate) fn leave(&self, worker: usize) {
        self.exchange.leave(worker);
    }

    /// Runs a closure on a worker's thread and waits for its result. It runs behind the data
    /// already sent there, or ahead of it if `urgent`.
    pub async fn on_worker<T, F, Fut>(
        &self,
        worker: usize,
        urgent: bool,
        job: F,
    ) -> Result<T, WorkerGone>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Worker>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let run = Message::Run(Box::new(move |worker: &Rc<Worker>| {
            let future = job(worker.clone());
            tokio::task::spawn_local(async move {
                // The caller may have ended.
                let _ = tx.send(future.await);
            });
        }));
        let mailbox = &self.mailboxes[worker];
        if urgent {
            mailbox.send_urgent(run).await?
        } else {
            mailbox.send(run).await?
        }
        rx.await.map_err(|_| WorkerGone)
    }

    /// Runs a closure on every worker that owns shards, and returns the results in order.
    pub async fn on_all<T, F, Fut>(&self, urgent: bool, job: F) -> Result<Vec<T>, WorkerGone>
    where
        T: Send + 'static,
        F: Fn(Rc<Worker>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let mut out = Vec::with_capacity(self.shard_workers);
        for worker in 0..self.shard_workers {
            let job = job.clone();
            out.push(self.on_worker(worker, urgent, job).await?);
        }
        Ok(out)
    }

    /// Sends a closure to a worker's thread, without waiting for it to run.
    pub(crate) fn send(
        self: &Arc<Self>,
        target: usize,
        job: impl FnOnce(&Rc<Worker>) + Send + 'static,
    ) {
        let message = Message::Run(Box::new(job));
        let Err(message) = self.mailboxes[target].try_send_urgent(message) else { return };
        let peers = self.clone();
        tokio::task::spawn_local(async move {
            // A worker that has ended has no state to change.
            let _ = peers.mailboxes[target].send_urgent(message).await;
        });
    }
}
