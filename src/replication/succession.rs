//! A promotion that waits until other replicas have told what they have (RFC 18): this server hears
//! them, and takes from them what it lacks.

use super::apply::Applier;
use super::stream::{StreamLimits, StreamSplitter};
use super::to_end;
use crate::followers::REPLICA_LEASE;
use crate::node::Node;
use crate::replica::{Hearing, Lineage, Precedence, Testimony, shown_formers};
use crate::worker::Peers;
use bytes::BytesMut;
use flagstone_storage::encoding::SourcePosition;
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
    let own = replica.lineage().filter(|_| replica.is_succeeding());
    let Some(own) = own else { return admit(node, server, &said.lineage) };
    match own.compare(&said.lineage) {
        Precedence::Known => {
            let question = said.question.as_deref();
            match replica.with_succession(|it| it.hear(server, question, REPLICA_LEASE)) {
                Some(Hearing::Asks(question)) => Ok(format!("AGAIN {question}")),
                Some(Hearing::Waits(question)) => Ok(format!("WAIT {question}")),
                Some(Hearing::Enough) => {
                    finish(node, peers).await?;
                    admit(node, server, &said.lineage)
                }
                None => admit(node, server, &said.lineage),
            }
        }
        Precedence::More => {
            let Some(rest) = rest else { return Ok(format!("SEND {}", own.offset)) };
            take(node, peers, &said.lineage, rest).await?;
            let again = replica.with_succession(|it| it.ask_again(server));
            Ok(format!("AGAIN {}", again.as_deref().unwrap_or("-")))
        }
        Precedence::Later => Err(complain(node, server, LATER)),
        Precedence::Unrelated => Err(complain(node, server, UNRELATED)),
    }
}

/// Answers a server that wants to follow this one, which does not hear others now. In a group, nobody's
/// data is replaced that this server lacks.
fn admit(node: &Node, server: &str, other: &Lineage) -> Result<String, String> {
    if !node.config.settings().is_in_group() {
        return Ok("OK".to_owned());
    }
    let error = |reason: &str| Err(format!("ERR {server}: {reason} ({MARK})"));
    let stream = node.followers.figures().unwrap_or_default();
    if other.is_of_nobody() {
        return Ok(format!("OK{}", shown_formers(&stream.formers)));
    }
    if node.health.replica.is_following() {
        return error(NO_PRIMARY);
    }
    let id = stream.id.as_bytes().into();
    let own = Lineage { id, offset: stream.end, formers: stream.formers };
    match own.compare(other) {
        Precedence::Known => Ok(format!("OK{}", shown_formers(&own.formers))),
        Precedence::More | Precedence::Later => error(LATER),
        Precedence::Unrelated => error(UNRELATED),
    }
}

/// Part of every error of a hearing.
pub(super) const MARK: &str = "repl-group-size";

const LATER: &str =
    "it has what this server lacks, as it has followed a later primary: promote that one instead";
const UNRELATED: &str = "it has no stream in common with this server, and does not count (with \
     CONFIG SET repl-group-size 0 there, its data would be replaced)";
const NO_PRIMARY: &str = "this server is a replica itself";

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
    let (serial, id, formers) = (position.serial + 1, other.id.clone(), other.formers.clone());
    let renamed = SourcePosition { serial, id, formers, ..position };
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
        Some(true) => {
            let (reviewed, peers) = (node.clone(), peers.clone());
            to_end(node, async move { finish(&reviewed, &peers).await }).await
        }
        _ => Ok(()),
    }
}
