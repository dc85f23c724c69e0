//! The side of the connection: begins a command that may wait, and leaves a waiter with the
//! workers of its keys.

use super::serve::waiter_of;
use super::{Cancel, Ended, Waiter};
use crate::commands::Block;
use crate::node::Node;
use crate::resp::Reply;
use crate::routing::{self, Target};
use crate::worker::{Message, OwnedCommand, Ran, Worker};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A wait that has begun. Dropped before it has ended, it ends.
pub(crate) struct Waiting {
    worker: Rc<Worker>,
    pub(crate) waiter: Arc<Waiter>,
    block: Box<Block>,
}

/// Runs a command; the reply, or a wait for it.
pub(crate) async fn begin(worker: &Rc<Worker>, command: OwnedCommand) -> Result<Vec<u8>, Waiting> {
    let (node, db) = (&worker.node, command.request.db);
    let target = routing::target(node, command.command, command.args(), db, worker.id);
    let ran = match target {
        Target::One(target, _) if target == worker.id => worker.run_one(&command).await,
        Target::One(target, _) => {
            let command = command.clone();
            let run = move |worker: Rc<Worker>| async move { worker.run_shown(&command).await };
            routing::on_worker(node, target, false, run).await.unwrap_or_else(|_| Ran::abandoned())
        }
        Target::Many => routing::coordinate(worker, &command, Vec::new()).await,
    };
    match ran.block {
        None => {
            let shown = worker.wait_shown(ran.seen).await;
            Ok(shown.map_or_else(|e| format!("-{}\r\n", e.0).into_bytes(), |()| ran.reply))
        }
        Some(block) => Err(Waiting::begin(worker, &command, block).await),
    }
}

impl Worker {
    /// Runs a command whose keys are this worker's.
    async fn run_one(self: &Rc<Self>, command: &OwnedCommand) -> Ran {
        let mut out = Reply::new(command.request.proto);
        self.start_watch();
        let ran = self.execute(
            command.command,
            command.args(),
            command.request,
            None,
            self.node.clock.now_ms(),
            &self.settings(),
            &mut out,
        );
        match ran {
            Ok(seen) => Ran { reply: out.into_bytes(), seen, block: None },
            Err(blocked) => self.park_or_block(command, blocked).await,
        }
    }

    async fn park_or_block(
        self: &Rc<Self>,
        command: &OwnedCommand,
        blocked: crate::worker::Blocked,
    ) -> Ran {
        match blocked {
            crate::worker::Blocked::Empty(block) => Ran::blocked(block),
            blocked => {
                self.park(command.clone(), blocked).await.unwrap_or_else(|_| Ran::abandoned())
            }
        }
    }

    /// The same for a connection of another worker: what the reply shows is stored.
    async fn run_shown(self: &Rc<Self>, command: &OwnedCommand) -> Ran {
        let mut ran = self.run_one(command).await;
        if let Err(error) = self.wait_shown(ran.seen).await {
            ran.reply = format!("-{}\r\n", error.0).into_bytes();
        }
        ran.seen = 0;
        ran
    }
}

impl Waiting {
    async fn begin(worker: &Rc<Worker>, command: &OwnedCommand, block: Box<Block>) -> Self {
        let waiter = waiter_of(command, &block);
        worker.node.waiters.fetch_add(1, Ordering::Relaxed);
        worker.node.change_listeners.fetch_add(1, Ordering::Relaxed);
        let waiting = Self { worker: worker.clone(), waiter, block };
        // Each looks again whether there is something once it has the waiter.
        for target in workers_of(&worker.node, &waiting.waiter) {
            if target == worker.id {
                worker.add_waiter(&waiting.waiter);
            } else {
                let waiter = waiting.waiter.clone();
                let add = move |worker: Rc<Worker>| async move { worker.add_waiter(&waiter) };
                // A worker that is gone takes the others with it.
                let _ = routing::on_worker(&worker.node, target, false, add).await;
            }
        }
        waiting
    }

    /// When the client gives up: ms since the Unix epoch; 0: never.
    pub(crate) fn until_ms(&self) -> u64 {
        self.block.until_ms
    }

    /// The reply to a client whose wait has ended.
    pub(crate) fn reply(&self, ended: Ended) -> Vec<u8> {
        let mut out = Reply::new(self.waiter.command.request.proto);
        match ended {
            Ended::Served(reply) => return reply,
            Ended::Cancelled(Cancel::Unblocked) => {
                out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
            }
            Ended::Cancelled(_) => self.block.nil.write(&mut out),
        }
        out.into_bytes()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiter.turn.cancel(Cancel::Gone);
        let node = &self.worker.node;
        node.waiters.fetch_sub(1, Ordering::Relaxed);
        node.change_listeners.fetch_sub(1, Ordering::Relaxed);
        for target in workers_of(node, &self.waiter) {
            if target == self.worker.id {
                self.worker.remove_waiter(&self.waiter);
            } else {
                let waiter = self.waiter.clone();
                send(node, target, move |worker| worker.remove_waiter(&waiter));
            }
        }
    }
}

/// The workers that own keys which a waiter waits for.
fn workers_of(node: &Node, waiter: &Waiter) -> BTreeSet<usize> {
    waiter.keys.iter().map(|(_, key)| routing::owner(node, key)).collect()
}

/// Has all workers look again for a waiter: one of them had something while another held its turn.
pub(super) fn look_again(node: &Arc<Node>, waiter: &Arc<Waiter>) {
    for target in workers_of(node, waiter) {
        let waiter = waiter.clone();
        send(node, target, move |worker| {
            worker.touch_waiters(waiter.keys.iter().map(|(db, key)| (*db, &**key)));
            worker.serve_waiters();
        });
    }
}

/// Runs something on a worker's thread, some time.
fn send(node: &Arc<Node>, target: usize, job: impl FnOnce(&Rc<Worker>) + Send + 'static) {
    let node = node.clone();
    tokio::task::spawn_local(async move {
        // A worker that is gone has lost its waiters with its memory.
        let _ = node.mailboxes[target].send_urgent(Message::Run(Box::new(job))).await;
    });
}
