//! A promotion that waits until other replicas have told what they have (RFC 18): this server hears
//! them, and takes from them what it lacks.

use super::apply::Applier;
use super::stream::{StreamLimits, StreamSplitter};
use crate::followers::REPLICA_LEASE;
use crate::node::Node;
use crate::replica::{Hearing, Lineage, Precedence, Testimony};
use crate::worker::Peers;
use bytes::BytesMut;
use flagstone_storage::encoding::{FormerStream, SourcePosition};
use std::sync::Arc;

/// Waits from now on until so many other servers are heard.
pub(super) fn begin(node: &Node, awaited: usize) {
    node.health.replica.begin_succession(awaited);
    node.apply_repl_ack();
    tracing::info!(
        awaited,
        "this server hears other replicas before it is a primary (repl-group-size)"
    );
}

/// Answers the message of a server, the name of which is given, about its data. `rest`: the last bytes of
/// its stream. The answer is the text of a simple string.
///
/// # Errors
/// Its data does not go together with that of this server, or cannot be taken.
pub async fn hear(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    server: &str,
    said: &Testimony,
    rest: Option<&[u8]>,
) -> Result<String, String> {
    let replica = &node.health.replica;
    let _hearing = replica.hearing.lock().await;
    if let Some(own) = replica.lineage().filter(|_| replica.is_succeeding()) {
        match own.compare(&said.lineage) {
            Precedence::Known => {
                let question = said.question.as_deref();
                match replica.with_succession(|it| it.hear(server, question, REPLICA_LEASE)) {
                    Some(Hearing::Asks(question)) => return Ok(format!("AGAIN {question}")),
                    Some(Hearing::Waits(question)) => return Ok(format!("WAIT {question}")),
                    Some(Hearing::Enough) => finish(node, peers).await?,
                    None => {}
                }
            }
            Precedence::More => {
                let Some(rest) = rest else { return Ok(format!("SEND {}", own.offset)) };
                take(node, peers, &said.lineage, rest).await?;
                let again = replica.with_succession(|it| it.ask_again(server));
                return Ok(format!("AGAIN {}", again.as_deref().unwrap_or("-")));
            }
            Precedence::Later => return Err(complain(node, server, LATER)),
            Precedence::Unrelated => return Err(complain(node, server, UNRELATED)),
        }
    }
    let stream = node.followers.figures().unwrap_or_default();
    if was_replaced(node, &stream.id, &said.lineage) {
        return Err(format!("ERR {server}: {LATER} ({MARK})"));
    }
    Ok(match stream.former {
        Some(FormerStream { id, offset }) => {
            format!("OK {} {offset}", String::from_utf8_lossy(&id))
        }
        None => "OK".to_owned(),
    })
}

/// Returns true if a replica has followed a successor of this primary: what that one has acknowledged
/// is with the replica, and it must not load the data of this server instead.
fn was_replaced(node: &Node, own: &str, other: &Lineage) -> bool {
    node.config.settings().is_in_group()
        && !node.health.replica.is_following()
        && other.went_on_from(own.as_bytes())
}

/// Part of every error of a hearing.
pub(super) const MARK: &str = "repl-group-size";

const LATER: &str = "it has followed a later primary than this server: promote that one instead";
const UNRELATED: &str = "it has no stream in common with this server, and does not count";

/// Logs a complaint about a server, which comes again each second, once; returns the error.
fn complain(node: &Node, server: &str, reason: &str) -> String {
    let error = format!("ERR {server}: {reason} ({MARK})");
    if node.health.replica.with_succession(|it| it.is_new(server, reason)).unwrap_or(false) {
        tracing::warn!(server, reason, "a server that was heard is no help");
    }
    error
}

/// Takes the end of the stream from a server that has more of it.
async fn take(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    other: &Lineage,
    rest: &[u8],
) -> Result<(), String> {
    let (applier, replica) = (Applier::new(node, peers), &node.health.replica);
    let failed = |reason: String| format!("ERR the end of the stream: {reason} ({MARK})");
    let epoch = replica.epoch();
    let position = applier.position(epoch).await.map_err(failed)?;
    if position.offset + rest.len() as u64 != other.offset {
        return Err(failed("these are other bytes than those that were asked for".to_owned()));
    }
    tracing::info!(bytes = rest.len(), "another replica has more of the stream: it is taken over");
    let limits = StreamLimits::of(&node.config.settings());
    let mut splitter = StreamSplitter::new(position, limits);
    let mut rest = BytesMut::from(rest);
    loop {
        splitter.take(&mut rest).map_err(failed)?;
        let Some(batch) = splitter.batch() else { break };
        applier.apply(epoch, batch).await.map_err(failed)?;
    }
    let position = applier.position(epoch).await.map_err(failed)?;
    if position.offset != other.offset {
        return Err(failed(format!("it ends at {}, not at {}", position.offset, other.offset)));
    }
    let (serial, id, former) = (position.serial + 1, other.id.clone(), other.former.clone());
    let renamed = SourcePosition { serial, id, former, ..position };
    applier.put_position(epoch, renamed).await.map_err(failed)
}

/// Becomes a primary, unless another role was chosen meanwhile.
async fn finish(node: &Arc<Node>, peers: &Arc<Peers>) -> Result<(), String> {
    let replica = &node.health.replica;
    let _choosing = replica.choosing.lock().await;
    if !replica.is_succeeding() {
        return Ok(());
    }
    let end = Applier::new(node, peers).succeed().await;
    let end = end.map_err(|reason| format!("ERR this server cannot become a primary: {reason}"))?;
    replica.promote(end.map(|end| end.stream));
    node.apply_repl_ack();
    tracing::info!("this server is a primary from now on: it has all that was acknowledged");
    Ok(())
}

/// Applies changed settings to a promotion that waits.
///
/// # Errors
/// Enough servers were heard by these, but it cannot be carried out.
pub async fn review(node: &Arc<Node>, peers: &Arc<Peers>) -> Result<(), String> {
    let awaited = node.config.settings().awaited();
    match node.health.replica.with_succession(|it| it.set_awaited(awaited)) {
        Some(true) => finish(node, peers).await,
        _ => Ok(()),
    }
}
