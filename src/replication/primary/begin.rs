//! Begin and end of the stream for replicas.

use crate::command::{Patience, RoundError};
use crate::node::Node;
use crate::node::limits::LOADING;
use crate::replica::FollowedEnd;
use crate::routing::at_rest;
use crate::worker::{Peers, Worker};
use flagstone_storage::commit::Sealed;
use flagstone_storage::feed::{FeedTail, ID_BYTES};
use flagstone_storage::words::RoundWords;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Maximum time in which the words of the last record come into the stream, while no command runs.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Maximum time in which replicas are sent the end of a stream, and the interval of the looks at them.
const REST_LIMIT: Duration = Duration::from_secs(1);
const REST_POLL: Duration = Duration::from_millis(1);

/// Begins the stream, unless there is one.
///
/// # Errors
/// If a script runs for long: no command may be in the middle. Or if a part of a data set is there only.
pub(super) async fn begin_stream(worker: &Rc<Worker>) -> Result<(), RoundError> {
    let node = worker.node.clone();
    let _turn = node.followers.turn.lock().await;
    if node.followers.figures().is_some() {
        return Ok(());
    }
    if node.health.replica.is_loading() {
        return Err(LOADING.into());
    }
    begin_at_rest(worker, None).await
}

/// Begins the stream. `followed`: the end of the stream that it continues.
async fn begin_at_rest(
    worker: &Rc<Worker>,
    followed: Option<FollowedEnd>,
) -> Result<(), RoundError> {
    let (node, peers) = (worker.node.clone(), worker.peers.clone());
    let begun = at_rest(worker, Patience::Short, async move {
        let followers = &node.followers;
        let id: [u8; ID_BYTES] = rand::random();
        followers.feed.turn_on(id);
        if want_words(&peers, true).await.is_err() {
            followers.end();
            return Err("ERR a worker is gone");
        }
        // No thread appends a record without its words any more.
        let now_ms = node.clock.now_ms();
        followers.begin(&id, node.journal.end(), followed, now_ms);
        // A start finds the stream by its records, and nobody may write for long. If it cannot be
        // appended, nothing else can.
        let _ = followers.feed.append(&*node.journal, now_ms, &begin_record(), &[]);
        Ok(())
    });
    begun.await??;
    tracing::info!("the stream for replicas has begun");
    Ok(())
}

/// Returns the first record of a stream, which makes it select its database: the former primary may be among
/// those who go on with it, and does not know the one that it has selected itself.
fn begin_record() -> Sealed {
    let mut words = RoundWords::default();
    words.want(true);
    words.reselect();
    let mut record = Sealed::default();
    record.words = words.into_bytes();
    record
}

/// Begins the stream of a server that has followed another one, and still refuses writes: other
/// replicas of the same primary go on with it. Replicas of its own keep the stream that they have, but not
/// in a group (`begins_anew`). Returns the id of the stream.
///
/// # Errors
/// Returns the reason if there is none.
pub(crate) async fn succeed(
    worker: &Rc<Worker>,
    followed: FollowedEnd,
    begins_anew: bool,
) -> Result<String, String> {
    let followers = &worker.node.followers;
    let _turn = followers.turn.lock().await;
    let id = || followers.figures().map(|stream| stream.id);
    if let Some(id) = id()
        && !followers.all().is_empty()
    {
        if !begins_anew {
            return Ok(id);
        }
        disconnect_all(&worker.node);
    }
    if let Err(error) = begin_at_rest(worker, Some(followed)).await {
        tracing::warn!(
            reason = error.text,
            "replicas of the former primary will get the whole data set"
        );
        return Err(error.text);
    }
    id().ok_or_else(|| "ERR the stream for replicas has ended".to_owned())
}

/// Disconnects the replicas, which cannot go on with another stream.
fn disconnect_all(node: &Node) {
    for follower in node.followers.all() {
        if let Some(client) = node.clients.get(follower.client) {
            client.kill();
        }
    }
}

/// Makes the workers gather words, or stop that. All records that they have begun are appended.
async fn want_words(peers: &Peers, wanted: bool) -> Result<(), crate::worker::WorkerGone> {
    let set = move |worker: Rc<Worker>| async move {
        worker.partition.borrow_mut().store.words.want(wanted);
    };
    peers.on_all(true, set).await.map(drop)
}

/// Ends the stream and disconnects the replicas, which cannot go on with another one.
pub(crate) async fn end_stream(node: &Node, peers: &Peers) {
    let _turn = node.followers.turn.lock().await;
    if node.followers.figures().is_none() {
        return;
    }
    node.followers.end();
    disconnect_all(node);
    // A worker that has ended gathers none.
    let _ = want_words(peers, false).await;
    tracing::info!("the stream for replicas has ended");
}

/// Ends the stream of a server that takes no writes any more. Replicas are sent the rest of it first, so that they
/// have what was acknowledged; one that does not read is not waited for.
pub(crate) async fn finish_stream(node: &Node, peers: &Peers) {
    let begun = Instant::now();
    while node.followers.has_rest() && begun.elapsed() < REST_LIMIT {
        sleep(REST_POLL).await;
    }
    end_stream(node, peers).await;
}

/// Returns the id and the end of the stream, with everything that is in the journal, and the database that is
/// selected there; `None` if it does not get there in time.
pub(crate) async fn end_of_stream(node: &Node) -> Option<(String, u64, u32)> {
    let lsn = node.journal.end();
    node.journal.request_sync(lsn);
    timeout(END_LIMIT, node.followers.reached(lsn)).await.ok().flatten()
}

/// Begins as a primary, before any command runs: replies wait for replicas, if they have to, and the
/// stream of an earlier process goes on.
pub(crate) fn resume(node: &Arc<Node>, tail: Option<FeedTail>) {
    node.apply_repl_ack();
    let Some(tail) = tail else { return };
    let known = node.health.replica.link().position.formers.clone();
    if node.followers.resume(&tail, &known, node.clock.now_ms()) {
        let figures = node.followers.figures().unwrap_or_default();
        tracing::info!(id = figures.id, offset = figures.end, "the stream for replicas goes on");
    }
}
