//! The connection's side of blocking: runs a command that may block, and registers a waiter with
//! the workers of its keys. The workers' side is `crate::worker`'s `waiters`.

use super::coordinator::coordinate_to_end;
use super::{Target, target};
use crate::blocking::{UNBLOCKED, Waiter};
use crate::clients::{Cancel, Client, Ended};
use crate::command::{Answer, Command, Outcome, OwnedCommand, Request};
use crate::worker::{ABANDONED, Worker};
use flagstone_commands::Block;
use flagstone_wire::resp::{Args, Reply};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A wait that has begun; dropping it ends it.
pub(crate) struct KeyWait {
    worker: Rc<Worker>,
    client: Arc<Client>,
    waiter: Arc<Waiter>,
    /// Workers that own its keys.
    workers: BTreeSet<usize>,
    block: Box<Block>,
}

/// Runs a command on keys of any workers, and returns its reply, or the block.
async fn run_anywhere(
    worker: &Rc<Worker>,
    command: &'static Command,
    args: Args<'_>,
    request: Request,
) -> Result<Answer, Box<Block>> {
    match target(&worker.node, command, args, None, request.db, worker.id) {
        Target::One(target, _) if target == worker.id => {
            worker.run_shown(command, args, request).await
        }
        Target::One(target, _) => {
            let owned = OwnedCommand::new(command, args, request);
            let run = move |worker: Rc<Worker>| async move {
                worker.run_shown(owned.command, owned.args(), owned.request).await
            };
            let ran = worker.peers.on_worker(target, false, run).await;
            ran.unwrap_or_else(|_| Ok(Answer::failed(request.proto, ABANDONED)))
        }
        Target::Many => {
            let owned = OwnedCommand::new(command, args, request);
            worker.settle(command, coordinate_to_end(worker, owned).await).await
        }
    }
}

/// Runs a command that may not block on keys of any workers, and returns its reply.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    command: &'static Command,
    args: Args<'_>,
    request: Request,
) -> Answer {
    run_anywhere(worker, command, args, request).await.unwrap_or_else(|block| {
        let mut reply = Reply::new(request.proto);
        block.nil.write(&mut reply);
        Answer { reply, outcome: Outcome::Done }
    })
}

/// Runs a command of a client, and returns its reply, or a wait for it.
pub(crate) async fn run_or_wait(
    worker: &Rc<Worker>,
    client: &Arc<Client>,
    command: &'static Command,
    args: Args<'_>,
    request: Request,
) -> Result<Answer, KeyWait> {
    run_anywhere(worker, command, args, request).await.map_err(|block| {
        let mut command = OwnedCommand::new(command, args, request);
        // Its rights are checked again when it is served.
        command.request.account = client.account().map_or(0, |account| account.number);
        KeyWait::begin(worker, client, &command, block)
    })
}

impl KeyWait {
    fn begin(
        worker: &Rc<Worker>,
        client: &Arc<Client>,
        command: &OwnedCommand,
        block: Box<Block>,
    ) -> Self {
        let node = &worker.node;
        let id = node.listeners.last_waiter.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = Arc::new(Waiter::new(id, command, &block, client.fd));
        // From now on, writers note the keys that they change.
        node.listeners.count.fetch_add(1, Ordering::Relaxed);
        client.set_turn(&waiter.turn, block.until_ms != 0);
        let workers = waiter.keys.iter().map(|(_, key)| node.owner(key)).collect();
        let waiting =
            Self { worker: worker.clone(), client: client.clone(), waiter, workers, block };
        // Each worker checks its keys again once it has the waiter.
        waiting.at_each(Worker::add_waiter);
        waiting
    }

    /// Passes the waiter to each worker that owns one of its keys.
    fn at_each(&self, give: fn(&Rc<Worker>, Arc<Waiter>)) {
        for &target in &self.workers {
            let waiter = self.waiter.clone();
            if target == self.worker.id {
                give(&self.worker, waiter);
            } else {
                self.worker.peers.send(target, move |worker| give(worker, waiter));
            }
        }
    }

    /// Waits for the end, at most until the timeout.
    pub(crate) async fn ended(&self) -> Ended {
        let turn = &self.waiter.turn;
        if self.block.until_ms == 0 {
            return turn.wait().await;
        }
        let left_ms = self.block.until_ms.saturating_sub(self.worker.node.clock.now_ms());
        let left = std::time::Duration::from_millis(left_ms);
        if let Ok(ended) = tokio::time::timeout(left, turn.wait()).await {
            return ended;
        }
        // If a worker is about to serve the client, its reply counts.
        turn.cancel(Cancel::TimedOut);
        turn.wait().await
    }

    /// Returns the reply to a client whose wait has ended.
    pub(crate) fn answer(&self, ended: Ended) -> Answer {
        let proto = self.waiter.command.request.proto;
        match ended {
            Ended::Served(reply, outcome) => {
                Answer { reply: Reply::rendered(proto, reply), outcome }
            }
            Ended::Cancelled(Cancel::Unblocked) => Answer::failed(proto, UNBLOCKED),
            Ended::Cancelled(_) => {
                let mut reply = Reply::new(proto);
                self.block.nil.write(&mut reply);
                Answer { reply, outcome: Outcome::Done }
            }
        }
    }
}

impl Drop for KeyWait {
    fn drop(&mut self) {
        let node = &self.worker.node;
        self.client.end_turn(node.clock.now_ms());
        self.waiter.turn.cancel(Cancel::Gone);
        node.listeners.count.fetch_sub(1, Ordering::Relaxed);
        // The message may overtake the waiter, which is then not added.
        self.at_each(Worker::remove_waiter);
    }
}
