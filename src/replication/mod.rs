//! This server as the replica of another one (REPLICAOF), of Redis, Valkey or its own kind.
//!
//! A task on the background runtime, the link (`link.rs`), connects to the primary (`wire.rs`) and
//! asks for its stream from the stored position on. If the primary cannot continue there, it sends
//! its whole data set, which is received into a file (`receive.rs`), and loaded once it is complete
//! (`load.rs`). The commands of the stream are gathered into batches (`stream.rs`). A batch runs as
//! one unit on any workers (`apply.rs`), and its record in the journal has the position that it
//! reaches: so after any crash each command has been applied once.
//!
//! The position becomes void before anything else may write: at a start without `replicaof`, at
//! REPLICAOF NO ONE, and before a data set is loaded. While one is loaded, the stored position says
//! that the data is a part: if the process ends meanwhile, the next start deletes it before it
//! serves anybody. See RFC 13.
//!
//! A server of a group (`repl-group-size`) that is promoted hears other replicas first, and takes from
//! them what it lacks (`succession.rs`); they say it when they come (`testimony.rs`). See RFC 18.

mod apply;
mod failover;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod link;
mod load;
pub(crate) mod primary;
mod receive;
mod stream;
mod succession;
mod testimony;
mod wire;

pub use failover::{
    IS_PRIMARY, OTHER_STREAM, abort as abort_failover, begin as begin_failover, is_at,
};
pub use succession::{hear, review as review_succession};

use crate::clients::Cancel;
use crate::config::ReplAck;
use crate::followers::promised_for;
use crate::node::Node;
use crate::replica::Primary;
use crate::worker::{ABANDONED, Peers};
use apply::Applier;
use flagstone_storage::encoding::SourceExtent;
use std::sync::Arc;

/// Changes the role of this server, to the end even if the future is dropped: the client that has ordered that may be
/// killed meanwhile, and half of a change leaves a replica without a link.
///
/// # Errors
/// Those of the change.
pub async fn to_end<T: Send + 'static>(
    node: &Node,
    change: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    node.background.spawn(change).await.unwrap_or_else(|_| Err(ABANDONED.to_owned()))
}

/// Follows a primary from now on. A server that was a primary with replicas keeps its position in the
/// stream: if the new primary has that stream, it need not send all of its data.
///
/// # Errors
/// The position cannot be told now, and is needed in a group (`repl-group-size`).
pub async fn follow(node: &Arc<Node>, peers: &Arc<Peers>, primary: Primary) -> Result<(), String> {
    let has_stream = !node.health.replica.is_following() && node.followers.figures().is_some();
    match has_stream {
        true => follow_behind_own(node, peers, primary, node.config.settings().is_in_group()).await,
        false => {
            follow_anew(node, peers, primary);
            Ok(())
        }
    }
}

/// Follows a primary behind the end of this server's own stream.
///
/// # Errors
/// The end cannot be told now, as a script runs, for example. Unless it `is_needed`, the primary is followed
/// without it.
async fn follow_behind_own(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    primary: Primary,
    is_needed: bool,
) -> Result<(), String> {
    let applier = Applier::new(node, peers);
    match applier.demote(None, primary.clone(), None).await {
        Ok(Some(epoch)) => start_as_replica(applier, primary, epoch),
        Err(reason) if is_needed => return Err(reason),
        lost => {
            let reason = lost.err().unwrap_or_default();
            tracing::warn!(%reason, "this server's position in its stream is lost");
            follow_anew(node, peers, primary);
        }
    }
    Ok(())
}

/// Follows a primary from the stored position on, if there is one.
fn follow_anew(node: &Arc<Node>, peers: &Arc<Peers>, primary: Primary) {
    let was_following = node.health.replica.is_following();
    let epoch = node.health.replica.follow(primary.clone());
    node.apply_repl_ack();
    let applier = Applier::new(node, peers);
    match was_following {
        true => start_link(applier, primary, epoch),
        false => start_as_replica(applier, primary, epoch),
    }
}

/// Starts the link of a server that has become a replica.
fn start_as_replica(applier: Applier, primary: Primary, epoch: u64) {
    // It would hold the stream of the primary.
    applier.node.pauses.end();
    // A client that waits to write would be served by the primary's commands. One that begins to
    // wait now is refused when it would be served.
    for client in applier.node.clients.all() {
        client.unblock(Cancel::Demoted);
    }
    start_link(applier, primary, epoch);
}

/// Starts the link of a choice of a primary.
fn start_link(applier: Applier, primary: Primary, epoch: u64) {
    tracing::info!(%primary, "this server is a replica from now on");
    applier.node.background.clone().spawn(link::run(applier, primary, epoch));
}

/// Reason why a link does nothing any more.
const OTHER: &str = "another primary was chosen";

/// Reason of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// An order that does not depend on the data of this server.
    Ordered,
    /// This server has everything, or its primary wants that.
    HasEverything,
}

const NO_POSITION: &str = "ERR this server lacks what its group has acknowledged: it has no whole data \
     set of its primary. CONFIG SET repl-group-size 0 before makes it a primary all the same";

/// Becomes a primary, or one that hears other replicas first.
///
/// # Errors
/// Returns the reason if that cannot be stored: the server then follows its primary as before.
pub async fn promote(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    promotion: Promotion,
) -> Result<(), String> {
    let replica = &node.health.replica;
    let Some(primary) = replica.link().primary.clone() else { return Ok(()) };
    let settings = node.config.settings();
    let is_ordered = promotion == Promotion::Ordered;
    if is_ordered && settings.is_in_group() && replica.lineage().is_none() {
        return Err(NO_POSITION.to_owned());
    }
    let applier = Applier::new(node, peers);
    replica.part();
    keep_promise(node, None).await;
    // The batch that is under way is the last one.
    applier.alone().await;
    if is_ordered && settings.is_in_group() && replica.lineage().is_none() {
        // The link has just begun to load a data set.
        follow_anew(node, peers, primary);
        return Err(NO_POSITION.to_owned());
    }
    if is_ordered && settings.awaited() > 0 {
        succession::begin(node, settings.awaited());
        return Ok(());
    }
    // The position is void before others may write.
    let parted = match applier.clear_part(None).await {
        Ok(()) => applier.succeed().await,
        Err(reason) => Err(reason),
    };
    match parted {
        Ok(end) => {
            replica.promote(end.map(|end| end.stream));
            node.apply_repl_ack();
        }
        Err(reason) => {
            follow_anew(node, peers, primary);
            return Err(format!("ERR this server cannot become a primary: {reason}"));
        }
    }
    tracing::info!("this server is a primary from now on");
    Ok(())
}

/// Begins as the configuration says: follows its primary, if it names one. Deletes a part of a data
/// set that a killed process has left.
///
/// # Errors
/// Returns the reason if the data cannot be put in order.
pub async fn begin(node: &Arc<Node>, peers: &Arc<Peers>) -> Result<(), String> {
    let settings = node.config.settings();
    let applier = Applier::new(node, peers);
    // Clients may be there already: a role that they choose comes after this.
    let _choosing = node.health.replica.choosing.lock().await;
    link::remove_left_over(&settings);
    primary::clean(node).await;
    let synced = node.health.replica.synced.clone();
    node.journal.subscribe(Box::new(move || synced.notify_one()));
    applier.clear_part(None).await?;
    if settings.cluster_enabled && settings.replicaof.is_some() {
        return Err("replicaof directive not allowed in cluster mode".to_owned());
    }
    let position = node.health.replica.link().position.clone();
    if settings.repl_ack != ReplAck::None && !position.id.is_empty() {
        // Before the end of the last process it may have promised that.
        node.health.replica.promise(0, None, promised_for());
    }
    match settings.replicaof.as_deref().and_then(Primary::parse) {
        // It was a primary before.
        Some(primary) if position.id.is_empty() && node.followers.figures().is_some() => {
            follow_behind_own(node, peers, primary, false).await?;
        }
        Some(primary) => follow_anew(node, peers, primary),
        None if !node.health.replica.is_following() => {}
        None => {
            keep_promise(node, None).await;
            if !position.id.is_empty() && settings.awaited() > 0 {
                succession::begin(node, settings.awaited());
            } else {
                let mut end = None;
                if !position.id.is_empty() && settings.is_in_group() {
                    end = applier.succeed().await?;
                } else if !position.id.is_empty() {
                    applier.forget_position(None, SourceExtent::Whole).await?;
                }
                node.health.replica.promote(end.map(|end| end.stream));
                node.apply_repl_ack();
            }
        }
    }
    node.health.replica.decide();
    Ok(())
}

/// Waits as long as the former primary may count on it that this server vouches for no other one.
/// `primary`: the next one; `None`: this server itself.
async fn keep_promise(node: &Node, primary: Option<&Primary>) {
    let left = || node.health.replica.promised_for(primary);
    while !left().is_zero() {
        tokio::time::sleep(left()).await;
    }
}
