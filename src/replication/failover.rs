//! FAILOVER: writes wait, a replica gets all data, this server becomes its replica, and asks it to
//! become the primary.

use super::apply::Applier;
use super::{Promotion, primary, start_as_replica};
use crate::config::ReplAck;
use crate::followers::{FailoverStep, FailoverWish, Follower, RecordPosition};
use crate::node::{Node, PauseReason};
use crate::replica::Primary;
use crate::worker::Peers;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which it is checked if a replica has all data.
const POLL: Duration = Duration::from_millis(20);

/// Interval of the questions to the replicas.
const ASK: Duration = Duration::from_millis(500);

/// Errors of a server that is asked to take over: it is a primary; it follows another stream.
pub const IS_PRIMARY: &str = "ERR PSYNC FAILOVER can't be sent to a master.";
pub const OTHER_STREAM: &str = "ERR PSYNC FAILOVER replid must match my replid.";

/// Answer of the target of a failover, which was asked to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeOver {
    /// It is the primary.
    Done,
    /// It is a replica, as before.
    Refused,
    /// It may be either: it is asked again.
    Unknown,
}

impl TakeOver {
    /// Judges the target's reply to PSYNC. `was_asked`: it was asked before, on a connection that broke, and may
    /// have taken over then. Two primaries would be worse than writes that wait for FAILOVER ABORT.
    pub(super) fn of(reply: &str, was_asked: bool) -> Self {
        if reply.starts_with("+CONTINUE") || reply.starts_with("+FULLRESYNC") {
            Self::Done
        } else if was_asked && reply.strip_prefix('-') != Some(OTHER_STREAM) {
            Self::Unknown
        } else {
            Self::Refused
        }
    }
}

/// Returns true if a server that is asked to take over answers that it is a primary.
pub(super) fn is_of_primary(reply: &str) -> bool {
    reply.strip_prefix('-') == Some(IS_PRIMARY)
}

/// Begins a failover. Returns false if there is one.
pub fn begin(node: &Arc<Node>, peers: &Arc<Peers>, wish: FailoverWish) -> bool {
    let Some(number) = node.followers.failover.begin() else { return false };
    node.pauses.hold_writes(PauseReason::Failover);
    let (node, peers) = (node.clone(), peers.clone());
    node.background.clone().spawn(async move {
        if let Err(reason) = carry_out(&node, &peers, number, &wish).await {
            give_up(&node, &peers, number, &reason).await;
        }
    });
    true
}

/// Ends a failover without an exchange of roles. Returns false if there is none.
pub async fn abort(node: &Arc<Node>, peers: &Arc<Peers>) -> bool {
    let failover = &node.followers.failover;
    let is_there = failover.step() != FailoverStep::None;
    if is_there {
        Applier::new(node, peers).give_up_failover(failover.number(), "FAILOVER ABORT").await;
    }
    is_there
}

/// Ends a failover that cannot go on: this server is the primary.
pub(super) async fn give_up(node: &Arc<Node>, peers: &Arc<Peers>, number: u64, reason: &str) {
    let failover = &node.followers.failover;
    if failover.is_at(number, FailoverStep::InProgress) {
        match super::promote(node, peers, Promotion::HasEverything).await {
            Ok(()) => node.config.assign("replicaof", ""),
            Err(error) => {
                tracing::error!(
                    error,
                    "the failover cannot be taken back: this server is a replica"
                );
            }
        }
    }
    let steps = [FailoverStep::WaitsForSync, FailoverStep::InProgress];
    if failover.end(number, &steps, || node.pauses.release_writes(PauseReason::Failover)) {
        tracing::warn!(reason, "the failover has ended: this server does not give its role away");
    }
}

/// Notes that the target is the primary from now on.
pub(super) fn succeeded(node: &Node, number: u64) {
    let release = || node.pauses.release_writes(PauseReason::Failover);
    if node.followers.failover.end(number, &[FailoverStep::InProgress], release) {
        tracing::info!("the failover is done: this server is a replica");
    }
}

async fn carry_out(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    number: u64,
    wish: &FailoverWish,
) -> Result<(), String> {
    let applier = Applier::new(node, peers);
    // Commands that were admitted before run first.
    applier.rest().await?;
    let deadline = wish.timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let target = wait_for_target(node, peers, (number, wish), deadline).await?;
        let (address, applied) = match &target {
            Some(follower) => {
                let Follower { facts, .. } = &**follower;
                ((facts.ip.clone(), facts.port), Some(follower.applied()))
            }
            None => (wish.target.clone().ok_or("there is no target")?, None),
        };
        let primary = Primary { host: address.0, port: address.1 };
        tracing::info!(%primary, is_synced = applied.is_some(), "the failover target takes over");
        if let Some(epoch) = applier.demote(Some(number), primary.clone(), applied).await? {
            node.config.assign("replicaof", &primary.to_string());
            start_as_replica(applier, primary, epoch);
            return Ok(());
        }
        // Something has changed since the replica had everything.
    }
}

/// Waits for a replica that has everything; `None`: the time is over, and the wish is forced.
async fn wait_for_target(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    (number, wish): (u64, &FailoverWish),
    deadline: Option<Instant>,
) -> Result<Option<Arc<Follower>>, String> {
    let followers = &node.followers;
    let mut asked = None::<Instant>;
    while followers.failover.is_at(number, FailoverStep::WaitsForSync) {
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return match wish.is_forced {
                true => Ok(None),
                false => Err("no replica has caught up before the timeout".to_owned()),
            };
        }
        let lsn = node.journal.end();
        node.journal.request_sync(lsn);
        if let RecordPosition::At(_, end, _) = followers.position_behind(lsn) {
            // Replies that wait for it go first.
            let is_stored = followers.acks.level() == ReplAck::Sync;
            let is_target = |follower: &Arc<Follower>| {
                follower.has(end, false)
                    && follower.has(end, is_stored)
                    && wish.target.as_ref().is_none_or(|target| is_at(follower, target))
            };
            if let Some(found) = followers.all().into_iter().find(is_target) {
                return Ok(Some(found));
            }
        }
        if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            asked = Some(Instant::now());
            let _ = primary::ask_for_acknowledgements(peers).await;
        }
        followers.failover.wait_end(POLL).await;
    }
    Err("it was aborted".to_owned())
}

/// Returns true if a replica has announced an address.
pub fn is_at(follower: &Follower, (host, port): &(String, u16)) -> bool {
    follower.facts.ip.eq_ignore_ascii_case(host) && follower.facts.port == *port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_may_have_taken_over_is_asked_again() {
        let done = ["+CONTINUE", "+CONTINUE abc", "+FULLRESYNC abc 7"];
        let loading = "-LOADING Redis is loading the dataset in memory";
        let [primary, other] = [IS_PRIMARY, OTHER_STREAM].map(|text| format!("-{text}"));
        for was_asked in [false, true] {
            for reply in done {
                assert_eq!(TakeOver::of(reply, was_asked), TakeOver::Done, "{reply}");
            }
            assert_eq!(TakeOver::of(&other, was_asked), TakeOver::Refused);
        }
        for reply in [loading, &primary] {
            assert_eq!(TakeOver::of(reply, false), TakeOver::Refused, "{reply}");
            assert_eq!(TakeOver::of(reply, true), TakeOver::Unknown, "{reply}");
        }
        assert!(is_of_primary(&primary) && !is_of_primary(&other));
    }
}
