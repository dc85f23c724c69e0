//! From a command to the workers that own its keys.

mod call;
mod coordinator;
mod databases;
mod hold;
mod units;

pub use call::{
    Call, DatabasesHandler, FlagsFinder, Handlers, NO_HANDLER, SessionHandler, WaitHandler,
    Waiting, flags, handlers, install, run_on_session, shows_data,
};
pub(crate) use coordinator::coordinate;
pub use coordinator::run_across;
pub use databases::Databases;
pub use hold::{Acquire, Apply, Grant, Holds};

use crate::command::Command;
use crate::node::Node;
use crate::worker::{Message, Worker, WorkerGone};
use flagstone_storage::KeyHash;
use flagstone_wire::resp::Args;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Where a command on keys runs.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// All its keys belong to one worker.
    One(usize, Option<KeyHash>),
    /// Its keys belong to several.
    Many,
}

/// The target of a command on keys. `at`: its only key, if it was hashed.
pub fn target(
    node: &Node,
    command: &Command,
    args: Args<'_>,
    at: Option<KeyHash>,
    db: u32,
    here: usize,
) -> Target {
    if command.one_key
        && let Some(key) = args.get(1)
    {
        let at = at.unwrap_or_else(|| node.layout.key_hash(key));
        return Target::One(node.worker_of(at.slot), Some(at));
    }
    if node.shard_workers == 1 {
        return Target::One(0, None);
    }
    let mut workers = command.keys(args, db).into_iter().map(|(_, key)| owner(node, key));
    let default = if here < node.shard_workers { here } else { 0 };
    let first = workers.next().unwrap_or(default);
    if workers.all(|w| w == first) { Target::One(first, None) } else { Target::Many }
}

/// The worker that owns a key.
pub fn owner(node: &Node, key: &[u8]) -> usize {
    node.worker_of(flagstone_storage::slot::slot_of(key))
}

/// Runs something on a worker's thread, behind the data already sent there or with `urgent` ahead
/// of it, and waits for what it gives.
pub async fn on_worker<T, F, Fut>(
    node: &Node,
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
            // Whoever asked may have gone.
            let _ = tx.send(future.await);
        });
    }));
    let mailbox = &node.mailboxes[worker];
    if urgent {
        mailbox.send_urgent(run).await?
    } else {
        mailbox.send(run).await?
    }
    rx.await.map_err(|_| WorkerGone)
}

/// The same on every worker that owns shards; the results in their order.
pub async fn on_all<T, F, Fut>(node: &Node, urgent: bool, job: F) -> Result<Vec<T>, WorkerGone>
where
    T: Send + 'static,
    F: Fn(Rc<Worker>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let mut out = Vec::with_capacity(node.shard_workers);
    for worker in 0..node.shard_workers {
        let job = job.clone();
        out.push(on_worker(node, worker, urgent, job).await?);
    }
    Ok(out)
}

/// Runs something on a worker's thread, some time.
pub(crate) fn send(
    node: &Arc<Node>,
    target: usize,
    job: impl FnOnce(&Rc<Worker>) + Send + 'static,
) {
    let Err(message) = node.mailboxes[target].try_send_urgent(Message::Run(Box::new(job))) else {
        return;
    };
    let node = node.clone();
    tokio::task::spawn_local(async move {
        // A worker that is gone has lost what this is about with its memory.
        let _ = node.mailboxes[target].send_urgent(message).await;
    });
}
