//! The connection's side of blocking: runs a command that may block, and registers a waiter with
//! the workers of its keys. The workers' side is `crate::worker`'s `waiters`.

use super::coordinator::coordinate_to_end;
use super::{Target, target};
use crate::blocking::{DEMOTED, UNBLOCKED, Waiter};
use crate::clients::{Cancel, Client, Ended};
use crate::command::{Answer, Command, Outcome, OwnedCommand, Request};
use crate::worker::{ABANDONED, Worker};
use flagstone_commands::Block;
use flagstone_wire::resp::{Args, Reply};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of keys that a client may wait for however many keys others wait for.
const MAX_FREE: usize = 16;

/// Approximate memory in bytes of a key that a client waits for, beside its name: in the command, at
/// the waiter, and in a queue of its worker.
const WAITED_KEY: usize = 300;

const TOO_MANY: &str = "OOM the keys that clients wait for take all the memory they may";

/// The memory of the keys of a wait; counted until this is dropped.
struct WaitedBytes(Rc<Worker>, usize);

impl WaitedBytes {
    /// Counts keys, if there is room for them.
    fn count(worker: &Rc<Worker>, keys: &[Box<[u8]>]) -> Option<Self> {
        let bytes = match keys.len() {
            ..=MAX_FREE => 0,
            _ => keys.iter().map(|key| 4 * key.len() + WAITED_KEY).sum(),
        };
        let node = &worker.node;
        let before = node.broadcast.listeners.awaited_bytes.fetch_add(bytes, Ordering::Relaxed);
        let counted = Self(worker.clone(), bytes);
        (bytes == 0 || before + bytes <= node.pressure.budget.waits).then_some(counted)
    }
}

impl Drop for WaitedBytes {
    fn drop(&mut self) {
        self.0.node.broadcast.listeners.awaited_bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A wait that has begun; dropping it ends it.
pub(crate) struct KeyWait {
    worker: Rc<Worker>,
    client: Arc<Client>,
    waiter: Arc<Waiter>,
    /// Workers that own its keys.
    workers: BTreeSet<usize>,
    block: Box<Block>,
    _bytes: WaitedBytes,
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
    let mut block = match run_anywhere(worker, command, args, request).await {
        Ok(answer) => return Ok(answer),
        Err(block) => block,
    };
    let keys = std::mem::take(&mut block.keys);
    let Some(bytes) = WaitedBytes::count(worker, &keys) else {
        worker.stats().failed(command, TOO_MANY);
        return Ok(Answer::failed(request.proto, TOO_MANY));
    };
    let mut command = OwnedCommand::new(command, args, request);
    // Its rights are checked again when it is served.
    command.request.account = client.account().map_or(0, |account| account.number);
    Err(KeyWait::begin(worker, client, &command, (keys, block), bytes))
}

impl KeyWait {
    fn begin(
        worker: &Rc<Worker>,
        client: &Arc<Client>,
        command: &OwnedCommand,
        (keys, block): (Vec<Box<[u8]>>, Box<Block>),
        bytes: WaitedBytes,
    ) -> Self {
        let node = &worker.node;
        let id = node.broadcast.listeners.last_waiter.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = Arc::new(Waiter::new(id, command, keys, &block, client.fd));
        // From now on, writers note the keys that they change.
        node.broadcast.listeners.count.fetch_add(1, Ordering::Relaxed);
        client.set_turn(&waiter.turn, block.until_ms != 0);
        let workers = waiter.keys.iter().map(|(_, key)| node.owner(key)).collect();
        let (worker, client) = (worker.clone(), client.clone());
        let waiting = Self { worker, client, waiter, workers, block, _bytes: bytes };
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
            Ended::Cancelled(Cancel::Demoted) => Answer::failed(proto, DEMOTED),
            Ended::Cancelled(_) => {
                let mut reply = Reply::new(proto);
                // A command that may not wait has another one, if it answers with one element.
                reply.null_array();
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
        node.broadcast.listeners.count.fetch_sub(1, Ordering::Relaxed);
        // The message may overtake the waiter, which is then not added.
        self.at_each(Worker::remove_waiter);
    }
}
