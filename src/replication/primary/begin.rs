//! Begin and end of the stream for replicas.

use crate::command::RoundError;
use crate::node::Node;
use crate::routing::at_rest;
use crate::worker::{Peers, Worker};
use flagstone_storage::feed::{FeedTail, ID_BYTES};
use std::rc::Rc;
use std::sync::Arc;

/// Begins the stream, unless there is one.
///
/// # Errors
/// If a script runs for long: no command may be in the middle.
pub(super) async fn begin_stream(worker: &Rc<Worker>) -> Result<(), RoundError> {
    let node = worker.node.clone();
    let _turn = node.followers.turn.lock().await;
    if node.followers.figures().is_some() {
        return Ok(());
    }
    let (node, peers) = (worker.node.clone(), worker.peers.clone());
    let begun = at_rest(worker, async move {
        let followers = &node.followers;
        let id: [u8; ID_BYTES] = rand::random();
        followers.feed.turn_on(id);
        if want_words(&peers, true).await.is_err() {
            followers.end();
            return Err("ERR a worker is gone");
        }
        // No thread appends a record without its words any more.
        followers.begin(&id, node.journal.end(), node.clock.now_ms());
        Ok(())
    });
    begun.await??;
    tracing::info!("the stream for replicas has begun");
    Ok(())
}

/// Makes the workers gather words, or stop that. All records that they have begun are appended.
async fn want_words(peers: &Peers, wanted: bool) -> Result<(), crate::worker::WorkerGone> {
    let set = move |worker: Rc<Worker>| async move {
        worker.partition.borrow_mut().store.words.want(wanted);
    };
    peers.on_all(true, set).await.map(drop)
}

/// Ends the stream and disconnects the replicas, which cannot go on with another one.
pub(super) async fn end_stream(node: &Node, peers: &Peers) {
    let _turn = node.followers.turn.lock().await;
    if node.followers.figures().is_none() {
        return;
    }
    node.followers.end();
    for follower in node.followers.all() {
        if let Some(client) = node.clients.get(follower.client) {
            client.kill();
        }
    }
    // A worker that has ended gathers none.
    let _ = want_words(peers, false).await;
    tracing::info!("the stream for replicas has ended");
}

/// Continues the stream of an earlier process, before any command runs.
pub(crate) fn resume(node: &Arc<Node>, tail: Option<FeedTail>) {
    let Some(tail) = tail else { return };
    if node.followers.resume(&tail, node.clock.now_ms()) {
        let figures = node.followers.figures().unwrap_or_default();
        tracing::info!(id = figures.id, offset = figures.end, "the stream for replicas goes on");
    }
}
