//! The end of a server: waits for its workers, and stores what is left.

use crate::membership::Membership;
use crate::node::{Node, ShutdownRequest};
use anyhow::{Context, Result};
use flagstone_storage::partition::Partition;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Maximum time that connections may take to write their last replies at the shutdown.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

/// Maximum time that the shards of a worker may take to be completed at the shutdown.
const CLOSE: Duration = Duration::from_secs(120);

/// Maximum time to complete the shards of a worker if the disk is known to be full, or beyond the
/// time limit for a request to the store if that answers nothing.
const CLOSE_FULL: Duration = Duration::from_secs(5);

/// Interval at which a stop looks whether the store answers.
const STORE_LOOK: Duration = Duration::from_millis(100);

/// Leaves the cluster: others get this server's shards. Gives that up if the store is away, if it is
/// not done in time, or if the server is told once more to end.
pub(crate) async fn leave_cluster(membership: &Membership, node: &Node, request: ShutdownRequest) {
    tokio::select! {
        () = membership.leave(request) => {}
        () = node.ending.hurried() => membership.end(),
        () = until_store_is_silent(node) => {
            tracing::warn!("the store does not answer: this server does not leave the cluster in order");
            membership.end();
        }
        // A store that answers, and refuses all changes of the map, would keep it here for ever.
        () = tokio::time::sleep(membership.leaving_limit()) => {
            let shards = membership.owned();
            tracing::error!(?shards, "this server does not leave the cluster in time: others have to take over");
            membership.end();
        }
    }
}

/// Waits for the workers, and completes what is stored.
///
/// # Errors
/// If something of it is in the journal only, or not even there.
pub(crate) fn drain(
    threads: Vec<JoinHandle<Result<Partition>>>,
    node: &Node,
    background: &Runtime,
) -> Result<()> {
    let mut failed = None;
    let mut partitions = Vec::new();
    for thread in threads {
        match thread.join() {
            Ok(Ok(partition)) => partitions.push(partition),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some(anyhow::anyhow!("a worker thread panicked")),
        }
    }
    node.journal.sync_now().context("syncing the journal")?;
    // A data set ends whose replica has gone. The engines of its copy must not outlive their runtime.
    let copied = async { tokio::time::timeout(DRAIN, node.followers.copying.lock()).await.is_ok() };
    if !background.block_on(copied) {
        tracing::warn!("a copy of the data for a replica does not end");
    }
    let mut is_complete = !node.ending.is_hurried();
    if is_complete {
        let limit = if node.journal.stats().refusing { CLOSE_FULL } else { CLOSE };
        let closed = background.block_on(async {
            tokio::select! {
                closed = close_shards(partitions, limit) => Some(closed),
                () = node.ending.hurried() => None,
                () = until_store_is_silent(node) => {
                    let what = "the store does not answer; what the shards lack is in the journal";
                    Some(Err(anyhow::anyhow!(what)))
                }
            }
        });
        is_complete = closed.is_some();
        failed = failed.or(closed.and_then(Result::err));
    }
    node.journal.close().context("closing the journal")?;
    match failed {
        Some(error) => Err(error),
        None => {
            let next = if is_complete { "" } else { ", the last of it in the journal only" };
            tracing::info!("everything is stored{next}; bye");
            Ok(())
        }
    }
}

/// Waits until a store that is not a local directory has answered no request for some time.
async fn until_store_is_silent(node: &Node) {
    let store = &node.checkpoints.source.store;
    let patience = Duration::from_millis(node.config.settings().store_timeout_ms) + CLOSE_FULL;
    let (mut answered, mut since) = (0, Instant::now());
    while store.dir().is_some() || since.elapsed() < patience {
        tokio::time::sleep(STORE_LOOK).await;
        let now = store.requests().answered.load(Ordering::Relaxed);
        if now != answered {
            (answered, since) = (now, Instant::now());
        }
    }
}

/// Completes the shards. On a full disk an engine may wait without end: the journal has everything
/// then, too.
async fn close_shards(partitions: Vec<Partition>, limit: Duration) -> Result<()> {
    for partition in partitions {
        tokio::time::timeout(limit, tokio::spawn(partition.close()))
            .await
            .context("an engine did not take its rows in time; they are in the journal")?
            .context("closing the shards")??;
    }
    Ok(())
}
