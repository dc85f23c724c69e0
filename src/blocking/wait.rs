//! The side of the connection: begins a command that may wait, and leaves a waiter with the
//! workers of its keys.

use super::{UNBLOCKED, Waiter};
use crate::clients::{Cancel, Client, Ended};
use crate::command::OwnedCommand;
use crate::node::Node;
use crate::routing::{self, Target};
use crate::worker::{Blocked, Elsewhere, Ran, Worker};
use flagstone_commands::Block;
use flagstone_wire::resp::Reply;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A wait that has begun. Dropped before it has ended, it ends.
pub(crate) struct Waiting {
    worker: Rc<Worker>,
    client: Arc<Client>,
    waiter: Arc<Waiter>,
    block: Box<Block>,
}

/// Runs a command of a client; the reply, or a wait for it.
pub(crate) async fn begin(
    worker: &Rc<Worker>,
    client: &Arc<Client>,
    command: OwnedCommand,
) -> Result<Reply, Waiting> {
    let (node, db) = (&worker.node, command.request.db);
    let target = routing::target(node, command.command, command.args(), None, db, worker.id);
    let ran = match target {
        Target::One(target, _) if target == worker.id => worker.run_one(&command).await,
        Target::One(target, _) => {
            let command = command.clone();
            let run = move |worker: Rc<Worker>| async move { worker.run_shown(&command).await };
            let ran = routing::on_worker(node, target, false, run).await;
            ran.map_or_else(|_| Ran::abandoned(), |ran| ran.map_or_else(Ran::blocked, Ran::reply))
        }
        Target::Many => routing::coordinate(worker, &command, Elsewhere::default()).await,
    };
    match ran.block {
        None => Ok(worker.settle_reply(command.command, ran).await),
        Some(block) => Err(Waiting::begin(worker, client, &command, block)),
    }
}

impl Worker {
    /// Runs a command whose keys are this worker's.
    pub(crate) async fn run_one(self: &Rc<Self>, command: &OwnedCommand) -> Ran {
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
            Ok(seen) => {
                let shown = self.rounds.seen(seen);
                Ran::shows(out, shown)
            }
            Err(blocked) => self.park_or_block(command, blocked).await,
        }
    }

    async fn park_or_block(self: &Rc<Self>, command: &OwnedCommand, blocked: Blocked) -> Ran {
        match blocked {
            Blocked::Empty(block) => Ran::blocked(block),
            blocked => {
                self.park(command.clone(), blocked, None).await.unwrap_or_else(|_| Ran::abandoned())
            }
        }
    }

    /// The same for a connection of another worker: the reply, whose writes are stored, or why there
    /// is none.
    async fn run_shown(self: &Rc<Self>, command: &OwnedCommand) -> Result<Reply, Box<Block>> {
        let mut ran = self.run_one(command).await;
        match ran.block.take() {
            None => Ok(self.settle_reply(command.command, ran).await),
            Some(block) => Err(block),
        }
    }
}

impl Waiting {
    fn begin(
        worker: &Rc<Worker>,
        client: &Arc<Client>,
        command: &OwnedCommand,
        block: Box<Block>,
    ) -> Self {
        let node = &worker.node;
        let id = node.last_waiter.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = Arc::new(Waiter::new(id, command, &block, client.fd));
        // Whoever writes from now on notes what it changes.
        node.change_listeners.fetch_add(1, Ordering::Relaxed);
        client.set_turn(&waiter.turn, block.until_ms != 0);
        let waiting = Self { worker: worker.clone(), client: client.clone(), waiter, block };
        // Each looks again whether there is something once it has the waiter.
        for target in workers_of(node, &waiting.waiter) {
            if target == worker.id {
                worker.add_waiter(&waiting.waiter);
            } else {
                let waiter = waiting.waiter.clone();
                routing::send(node, target, move |worker| worker.add_waiter(&waiter));
            }
        }
        waiting
    }

    /// How it ends, within its time.
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
        // A worker may be about to serve it: then that counts.
        turn.cancel(Cancel::TimedOut);
        turn.wait().await
    }

    /// The reply to a client whose wait has ended.
    pub(crate) fn reply(&self, ended: Ended) -> Reply {
        let mut out = Reply::new(self.waiter.command.request.proto);
        match ended {
            Ended::Served(reply) => return Reply::rendered(out.proto(), reply),
            Ended::Cancelled(Cancel::Unblocked) => out.error(UNBLOCKED),
            Ended::Cancelled(_) => self.block.nil.write(&mut out),
        }
        out
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let node = &self.worker.node;
        self.client.end_turn(node.clock.now_ms());
        self.waiter.turn.cancel(Cancel::Gone);
        node.change_listeners.fetch_sub(1, Ordering::Relaxed);
        for target in workers_of(node, &self.waiter) {
            if target == self.worker.id {
                self.worker.remove_waiter(&self.waiter);
            } else {
                // It may get there before the waiter does, which is then not added.
                let waiter = self.waiter.clone();
                routing::send(node, target, move |worker| worker.remove_waiter(&waiter));
            }
        }
    }
}

/// The workers that own keys which a waiter waits for.
fn workers_of(node: &Node, waiter: &Waiter) -> BTreeSet<usize> {
    waiter.keys.iter().map(|(_, key)| routing::owner(node, key)).collect()
}
